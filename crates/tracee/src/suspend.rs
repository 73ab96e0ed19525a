//! Being suspended by a terminal (Ctrl-Z) only while no process of others waits for this program.
//!
//! Problem: threads that this program holds or follows stand still for as long as it is stopped itself, and
//! whoever suspends it does not mean them. Idea: the signals of job control are handled. While a
//! [`HoldsOther`] lives they are noted; who follows a process for long looks ([`is_to_be_suspended`]) and
//! lets it go; and the last one to let go stops this program, as the signal would have. SIGCONT takes back
//! what has not happened yet.
//!
//! The process of a command that this program has started may wait: the terminal stops it as well.
//!
//! Limits: SIGSTOP cannot be handled.

use crate::disposition::{end_by, is_forked, is_ignored, set_disposition};
use crate::sys;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// What suspends by default and can be handled.
const HANDLED: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// In [`STATE`]: this program is being stopped, and nobody may begin to hold a process.
const STOPPING: u32 = 1 << 31;
/// How often it is looked whether that is over.
const LOOK: Duration = Duration::from_millis(1);

/// How many [`HoldsOther`] there are, or [`STOPPING`].
static STATE: AtomicU32 = AtomicU32::new(0);
/// The signal by which this program is to be suspended, 0 if it is not.
static WANTED: AtomicI32 = AtomicI32::new(0);
/// The process that handles them.
static HANDLING: AtomicI32 = AtomicI32::new(0);

/// Async-signal-safe: atomics and system calls.
extern "C" fn suspend(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if is_forked(HANDLING.load(Ordering::SeqCst)) {
        return end_by(signal);
    }
    // SAFETY: `errno` is this thread's.
    let before = unsafe { *libc::__errno_location() };
    WANTED.store(signal, Ordering::SeqCst);
    stop_if_free();
    if signal == libc::SIGTTOU && is_to_be_suspended() {
        // Or the write that has caused it would be tried, and cause it, again and again: with the signal
        // blocked the kernel lets it through.
        // SAFETY: the handler is installed with SA_SIGINFO, so the kernel hands in a context of its own,
        // whose mask (of 64 bits, of which one is set) the thread gets when the handler returns.
        unsafe { libc::sigaddset(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, signal) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = before };
}

/// SIGCONT. Async-signal-safe.
extern "C" fn go_on(_: i32) {
    WANTED.store(0, Ordering::SeqCst);
}

/// Whether this program is to be suspended, as soon as it holds no process of others.
pub fn is_to_be_suspended() -> bool {
    WANTED.load(Ordering::SeqCst) != 0
}

/// Lets this program be suspended if it is to be, and waits until it goes on. To be called by who holds
/// nobody.
pub fn be_suspended() {
    while is_to_be_suspended() {
        stop_if_free();
        std::thread::sleep(LOOK);
    }
}

/// Stops this program if it is to be suspended and nobody is held; it goes on from here. Async-signal-safe.
fn stop_if_free() {
    loop {
        let signal = WANTED.load(Ordering::SeqCst);
        let begin = || STATE.compare_exchange(0, STOPPING, Ordering::SeqCst, Ordering::SeqCst);
        if signal == 0 || begin().is_err() {
            return;
        }
        stop_by(signal);
        STATE.store(0, Ordering::SeqCst);
    }
}

/// Does what `signal` does by default, which is nothing where nobody could continue this program (in an
/// orphaned process group). Async-signal-safe.
///
/// The signal is on its way before it is looked whether this program was continued meanwhile: a SIGCONT that
/// comes later takes it away in the kernel.
fn stop_by(signal: i32) {
    let before = mask(libc::SIG_BLOCK, signal);
    let _ = set_disposition(signal, libc::SIG_DFL, 0);
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), sys::own_tid(), signal) };
    if !is_to_be_suspended() {
        // What is ignored is on its way no longer.
        let _ = set_disposition(signal, libc::SIG_IGN, 0);
    }
    mask(libc::SIG_UNBLOCK, signal);
    // It goes on.
    WANTED.store(0, Ordering::SeqCst);
    handle(signal);
    // SAFETY: `before` is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
}

/// Blocks or unblocks one signal in this thread; the mask before.
fn mask(how: i32, signal: i32) -> libc::sigset_t {
    let (mut one, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
    // SAFETY: both are live locals, for which all zeroes are a valid value and which the calls fill in.
    unsafe {
        libc::sigemptyset(one.as_mut_ptr());
        libc::sigaddset(one.as_mut_ptr(), signal);
        libc::pthread_sigmask(how, one.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn handle(signal: i32) {
    let handler = suspend as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // It cannot fail: the signal is there, and may be handled.
    let _ = set_disposition(signal, handler as usize, libc::SA_SIGINFO | libc::SA_RESTART);
}

/// What is ignored stays ignored.
fn begin_to_handle() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        // SAFETY: no pointers.
        HANDLING.store(unsafe { libc::getpid() }, Ordering::SeqCst);
        if !is_ignored(libc::SIGCONT) {
            let _ = set_disposition(libc::SIGCONT, go_on as extern "C" fn(i32) as usize, libc::SA_RESTART);
        }
        HANDLED.into_iter().filter(|signal| !is_ignored(*signal)).for_each(handle);
    });
}

/// While it lives, a process that is not this program's own is held, or waits for this program with whatever
/// its threads do: this program is not suspended. Dropping the last one lets it be.
#[derive(Debug)]
pub struct HoldsOther(());

impl HoldsOther {
    /// Begins; while this program is being stopped, when it goes on.
    pub fn begin() -> Self {
        begin_to_handle();
        loop {
            let state = STATE.load(Ordering::SeqCst);
            let next = || STATE.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::SeqCst);
            if state & STOPPING == 0 && next().is_ok() {
                return Self(());
            }
            if state & STOPPING != 0 {
                std::thread::sleep(LOOK);
            }
        }
    }
}

impl Drop for HoldsOther {
    fn drop(&mut self) {
        if STATE.fetch_sub(1, Ordering::SeqCst) == 1 {
            stop_if_free();
        }
    }
}
