//! Starting other programs: `LD_PRELOAD` keeps naming the agent, whatever environment a program gives to the next one.
//!
//! Each function adds the agent to the environment that it was given, if it is not there, in a copy on its own stack (a child of
//! `vfork` must leave no traces in its parent's memory), and calls the C library's function of the same name. `system` and `popen` give their
//! shell the process's own environment, which is exchanged for such a copy meanwhile, where no other thread can look.

use crate::libc::{self, Next};
use crate::{sys, versions};
use core::ffi::c_int;
use core::mem::MaybeUninit;

type Text = *const u8;
type List = *const Text;

/// Environments with more entries are passed on as they are.
const MOST_ENTRIES: usize = 2046;
/// Values of `LD_PRELOAD` that are longer, with the agent's path, are passed on as they are.
const MOST_BYTES: usize = 4096;
const NAME: &[u8] = b"LD_PRELOAD=";

static EXECVE: Next = Next::new(b"execve\0");
static EXECVEAT: Next = Next::new(b"execveat\0");
static EXECVPE: Next = Next::new(b"execvpe\0");
static FEXECVE: Next = Next::new(b"fexecve\0");
static SPAWN: Next = Next::new(b"posix_spawn\0");
static SPAWNP: Next = Next::new(b"posix_spawnp\0");
static SYSTEM: Next = Next::new(b"system\0");
static POPEN: Next = Next::new(b"popen\0");

/// Finds all, while the process is in one thread.
pub fn find() {
    for next in [&EXECVE, &EXECVEAT, &EXECVPE, &FEXECVE, &SPAWN, &SPAWNP, &SYSTEM, &POPEN] {
        next.find();
    }
}

/// Calls `call` with an environment that has the agent in it: `given`, or a copy. The copy needs 20 KiB of stack, which threads with small stacks
/// may not have; but it is needed only where a program has made its own environment.
///
/// # Safety
/// `given` is null or a list of texts that ends in a null pointer.
unsafe fn with_agent(given: List, call: impl FnOnce(List) -> c_int) -> c_int {
    let own = versions::preload_text();
    // SAFETY: promised by the caller; the text ends in a zero byte.
    if own.is_null()
        || unsafe { entry_of_preload(given) }.is_some_and(|(_, value)| unsafe { names(value, own.cast()) })
    {
        return call(given);
    }
    // SAFETY: as above.
    unsafe { with_copy(given, own.cast(), call) }
}

/// # Safety
/// As above, and `own` ends in a zero byte.
#[inline(never)]
unsafe fn with_copy(given: List, own: Text, call: impl FnOnce(List) -> c_int) -> c_int {
    let mut room = Environment::new();
    // SAFETY: promised by the caller.
    let environment = unsafe { room.complete(given, own) }.unwrap_or(given);
    call(environment)
}

/// The number of the entry for `LD_PRELOAD`, and its value.
///
/// # Safety
/// `given` is null or a list of texts that ends in a null pointer.
unsafe fn entry_of_preload(given: List) -> Option<(usize, Text)> {
    if given.is_null() {
        return None;
    }
    // SAFETY: the list ends in a null pointer, its texts in zero bytes.
    let entry = |i: usize| unsafe { *given.add(i) };
    let mut all = (0..).take_while(|i| !entry(*i).is_null());
    // SAFETY: as above; a text that begins with the name is at least as long.
    all.find_map(|i| unsafe { begins_with(entry(i), NAME).then(|| (i, entry(i).add(NAME.len()))) })
}

/// Room for an environment with the agent in it.
struct Environment {
    entries: [MaybeUninit<Text>; MOST_ENTRIES + 2],
    preload: [u8; MOST_BYTES],
}

impl Environment {
    const fn new() -> Self {
        Self { entries: [MaybeUninit::uninit(); MOST_ENTRIES + 2], preload: [0; MOST_BYTES] }
    }

    /// A copy of `given` with the agent behind what is preloaded there; nothing if it is too large.
    ///
    /// # Safety
    /// `given` is null or a list of texts that ends in a null pointer, and `own` ends in a zero byte.
    unsafe fn complete(&mut self, given: List, own: Text) -> Option<List> {
        let mut count = 0;
        if !given.is_null() {
            // SAFETY: the list ends in a null pointer.
            while let entry = unsafe { *given.add(count) }
                && !entry.is_null()
            {
                self.entries.get_mut(count)?.write(entry);
                count += 1;
            }
        }
        let mut len = 0;
        self.put(&mut len, NAME)?;
        // SAFETY: promised by the caller.
        let place = match unsafe { entry_of_preload(given) } {
            Some((place, theirs)) => {
                // SAFETY: ends in a zero byte.
                unsafe { self.put_text(&mut len, theirs)? };
                if len > NAME.len() {
                    self.put(&mut len, b":")?;
                }
                place
            }
            None => {
                count += 1;
                count - 1
            }
        };
        // SAFETY: ends in a zero byte.
        unsafe { self.put_text(&mut len, own)? };
        self.put(&mut len, b"\0")?;
        self.entries.get_mut(place)?.write(self.preload.as_ptr());
        self.entries.get_mut(count)?.write(core::ptr::null());
        Some(self.entries.as_ptr().cast())
    }

    fn put(&mut self, len: &mut usize, bytes: &[u8]) -> Option<()> {
        for byte in bytes {
            *self.preload.get_mut(*len)? = *byte;
            *len += 1;
        }
        Some(())
    }

    /// # Safety
    /// `text` ends in a zero byte.
    unsafe fn put_text(&mut self, len: &mut usize, mut text: Text) -> Option<()> {
        // SAFETY: the end has not been reached.
        while let byte = unsafe { *text }
            && byte != 0
        {
            *self.preload.get_mut(*len)? = byte;
            *len += 1;
            // SAFETY: as above.
            text = unsafe { text.add(1) };
        }
        Some(())
    }
}

/// # Safety
/// `text` ends in a zero byte.
unsafe fn begins_with(text: Text, prefix: &[u8]) -> bool {
    // A zero byte differs from every byte of the prefix, and ends the comparison.
    // SAFETY: no byte behind the end is read.
    prefix.iter().enumerate().all(|(i, byte)| unsafe { *text.add(i) } == *byte)
}

/// Whether a list of paths (between colons or blanks) holds `path`.
///
/// # Safety
/// Both end in zero bytes.
unsafe fn names(mut list: Text, path: Text) -> bool {
    loop {
        let mut i = 0;
        // SAFETY: neither end is passed: a difference or the path's end stops the comparison.
        unsafe {
            while *path.add(i) != 0 && *list.add(i) == *path.add(i) {
                i += 1;
            }
            if *path.add(i) == 0 && matches!(*list.add(i), 0 | b':' | b' ') {
                return true;
            }
            while !matches!(*list, 0 | b':' | b' ') {
                list = list.add(1);
            }
            if *list == 0 {
                return false;
            }
            list = list.add(1);
        }
    }
}

type Execve = unsafe extern "C" fn(Text, List, List) -> c_int;
type Execveat = unsafe extern "C" fn(c_int, Text, List, List, c_int) -> c_int;
type Fexecve = unsafe extern "C" fn(c_int, List, List) -> c_int;
type Spawn = unsafe extern "C" fn(*mut c_int, Text, *const u8, *const u8, List, List) -> c_int;

const ENOSYS: c_int = 38;

/// # Safety
/// As `execve(2)`, and so on for the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: Text, arguments: List, environment: List) -> c_int {
    // SAFETY: here and below: the caller's promise is that of the function that is called.
    let call = |environment| unsafe {
        match EXECVE.get() {
            0 => sys::execute(path, arguments, environment) as c_int,
            next => core::mem::transmute::<usize, Execve>(next)(path, arguments, environment),
        }
    };
    // SAFETY: promised by the caller.
    unsafe { with_agent(environment, call) }
}

/// # Safety
/// As `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: Text, arguments: List) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { execve(path, arguments, libc::environment()) }
}

/// # Safety
/// As `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: Text, arguments: List, environment: List) -> c_int {
    // SAFETY: see `execve`.
    let call = |environment| unsafe {
        match EXECVPE.get() {
            0 => -1,
            next => core::mem::transmute::<usize, Execve>(next)(file, arguments, environment),
        }
    };
    // SAFETY: promised by the caller.
    unsafe { with_agent(environment, call) }
}

/// # Safety
/// As `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: Text, arguments: List) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { execvpe(file, arguments, libc::environment()) }
}

/// # Safety
/// As `execveat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: Text,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    // SAFETY: see `execve`.
    let call = |environment| unsafe {
        match EXECVEAT.get() {
            0 => -1,
            next => {
                core::mem::transmute::<usize, Execveat>(next)(folder, path, arguments, environment, flags)
            }
        }
    };
    // SAFETY: promised by the caller.
    unsafe { with_agent(environment, call) }
}

/// # Safety
/// As `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, arguments: List, environment: List) -> c_int {
    // SAFETY: see `execve`.
    let call = |environment| unsafe {
        match FEXECVE.get() {
            0 => -1,
            next => core::mem::transmute::<usize, Fexecve>(next)(file, arguments, environment),
        }
    };
    // SAFETY: promised by the caller.
    unsafe { with_agent(environment, call) }
}

/// A function like `posix_spawn(3)`.
macro_rules! spawn {
    ($name:ident, $next:ident) => {
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut c_int,
            path: Text,
            actions: *const u8,
            attributes: *const u8,
            arguments: List,
            environment: List,
        ) -> c_int {
            // SAFETY: see `execve`.
            let call = |environment| unsafe {
                match $next.get() {
                    0 => ENOSYS,
                    next => {
                        let spawn = core::mem::transmute::<usize, Spawn>(next);
                        spawn(pid, path, actions, attributes, arguments, environment)
                    }
                }
            };
            // SAFETY: promised by the caller.
            unsafe { with_agent(environment, call) }
        }
    };
}

spawn!(posix_spawn, SPAWN);
spawn!(posix_spawnp, SPAWNP);

// `execl`, `execlp` and `execle` take their arguments one by one. They are put in a row with those that are on the stack
// already: the return address is taken away, the five registers are pushed, and what lies there is the list. They return only
// if they fail, and give the stack back as it was.
macro_rules! variadic {
    ($name:ident, $with:ident) => {
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "pop r10",
                ".cfi_adjust_cfa_offset -8",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r10",
                ".cfi_adjust_cfa_offset 48",
                ".cfi_offset rip, -48",
                "call {with}",
                "pop r10",
                "add rsp, 40",
                "push r10",
                ".cfi_adjust_cfa_offset -40",
                ".cfi_offset rip, -8",
                "ret",
                ".cfi_endproc",
                with = sym $with,
            )
        }
    };
}

variadic!(execl, execv);
variadic!(execlp, execvp);
variadic!(execle, execv_with_environment);

/// Calls `call` while the process's own environment has the agent in it. With other threads, which could change the environment
/// meanwhile, it stays as it is.
///
/// # Safety
/// As for the C library's function that is called.
unsafe fn with_agent_in_own<T>(mut call: impl FnMut() -> T) -> T {
    let mut result = None;
    if let Some(slot) = libc::environment_slot()
        && libc::is_single_threaded_glibc()
    {
        // SAFETY: there is one thread, which waits here; the copy lives until the C library's function has returned.
        unsafe {
            let own = *slot;
            with_agent(own, |list| {
                *slot = list;
                result = Some(call());
                if *slot == list {
                    *slot = own;
                }
                0
            });
        }
    }
    match result {
        Some(result) => result,
        None => call(),
    }
}

/// # Safety
/// As `system(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: Text) -> c_int {
    type System = unsafe extern "C" fn(Text) -> c_int;
    // SAFETY: the caller's promise is that of the function that is called.
    unsafe {
        with_agent_in_own(|| match SYSTEM.get() {
            0 => -1,
            next => core::mem::transmute::<usize, System>(next)(command),
        })
    }
}

/// # Safety
/// As `popen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: Text, kind: Text) -> *mut u8 {
    type Popen = unsafe extern "C" fn(Text, Text) -> *mut u8;
    // SAFETY: as above.
    unsafe {
        with_agent_in_own(|| match POPEN.get() {
            0 => core::ptr::null_mut(),
            next => core::mem::transmute::<usize, Popen>(next)(command, kind),
        })
    }
}

/// # Safety
/// `arguments` end in a null pointer, and behind it is the environment.
unsafe extern "C" fn execv_with_environment(path: Text, arguments: List) -> c_int {
    let mut count = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while !(*arguments.add(count)).is_null() {
            count += 1;
        }
        execve(path, arguments, (*arguments.add(count + 1)).cast())
    }
}
