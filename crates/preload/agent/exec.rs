//! Starting other programs: `LD_PRELOAD` keeps naming the agent, whatever environment a program gives to the
//! next one.
//!
//! Each function adds the agent to the environment that it was given, if it is not there, and calls the C
//! library's function of the same name. `system` and `popen` give their shell the process's own environment,
//! which is exchanged for such a copy meanwhile, where no other thread can look. Where the next program could
//! not be given the agent, or would tell of it ([`is_of_use`]), it is taken out instead.

use crate::environment::{Environment, List, Text, value};
use crate::libc::{self, Next};
use crate::{sys, versions};
use core::ffi::c_int;

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

/// Calls `call` with an environment that has the agent in it, or not where it is of no use: `given`, or a
/// copy. The copy needs 20 KiB of stack, which threads with small stacks may not have; but it is needed only
/// where a program has made its own environment, or has changed what it may see.
///
/// # Safety
/// `given` is null or a list of texts that ends in a null pointer.
unsafe fn with_agent(given: List, call: impl FnOnce(List) -> c_int) -> c_int {
    let own: Text = versions::preload_text();
    if own.is_null() {
        return call(given);
    }
    // SAFETY: promised by the caller; the text ends in a zero byte.
    let (is_named, is_wanted) = unsafe { (Environment::names(given, own), is_of_use(given)) };
    if is_named == is_wanted {
        return call(given);
    }
    // SAFETY: as above.
    unsafe { with_copy(given, own, is_wanted, call) }
}

/// Whether the agent may be given to the next program. Its loader says on standard error what it cannot
/// preload: this process may have another user or another root folder by now than when it began, or the
/// agent's file is gone. And a program of which the loader is to list the libraries (as `ldd` has it do, and
/// those who copy them) has not asked for this one.
///
/// # Safety
/// `given` is null or a list of texts that ends in a null pointer.
unsafe fn is_of_use(given: List) -> bool {
    // The loader takes any value for a wish, also an empty one.
    // SAFETY: promised by the caller; the path that the loader knows this library by ends in a zero byte.
    unsafe {
        value(given, b"LD_TRACE_LOADED_OBJECTS=").is_none() && sys::may_read(versions::own_path().cast())
    }
}

/// # Safety
/// As above, and `own` ends in a zero byte.
#[inline(never)]
unsafe fn with_copy(given: List, own: Text, is_wanted: bool, call: impl FnOnce(List) -> c_int) -> c_int {
    let mut room = Environment::new();
    // SAFETY: promised by the caller.
    let copy = unsafe { if is_wanted { room.with(given, own) } else { room.without(given, own) } };
    call(copy.unwrap_or(given))
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

// `execl`, `execlp` and `execle` take their arguments one by one. They are put in a row with those that are
// on the stack already: the return address is taken away, the five registers are pushed, and what lies there
// is the list. They return only if they fail, and give the stack back as it was.
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

/// Calls `call` while the process's own environment has the agent in it. With other threads, which could
/// change the environment meanwhile, it stays as it is.
///
/// # Safety
/// As for the C library's function that is called.
unsafe fn with_agent_in_own<T>(mut call: impl FnMut() -> T) -> T {
    let mut result = None;
    if let Some(slot) = libc::environment_slot()
        && libc::is_single_threaded_glibc()
    {
        // SAFETY: there is one thread, which waits here; the copy lives until the C library's function has
        // returned.
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
