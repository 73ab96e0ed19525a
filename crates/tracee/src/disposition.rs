//! What signals do to this program, and to the commands that it starts.
//!
//! A command finds the dispositions and the mask that this program was started with, as behind `env` or
//! `nohup`. Handlers are gone with the exec, and what is ignored is not changed, but for two: SIGPIPE, which
//! Rust's run time changes before `main` and in front of each exec, where it empties the mask as well; and
//! SIGCHLD, which this program does not ignore ([`be_told_of_children`]). So these are noted before `main`
//! ([`NOTE`]) and [given back](give_back) in front of the exec of a command.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether SIGPIPE was ignored when this program was started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// Whether SIGCHLD was.
static CHILDREN_IGNORED: AtomicBool = AtomicBool::new(false);
/// What was blocked then: bit `n - 1` for signal `n`, as the kernel has it.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// Run by the C library before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note_given;

extern "C" fn note_given() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    CHILDREN_IGNORED.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
    let mut blocked = 0u64;
    // SAFETY: the kernel writes a mask of the size that is given into `blocked`, a live local.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, null::<u64>(), &raw mut blocked, 8) };
    BLOCKED.store(blocked, Ordering::Relaxed);
}

/// Lets the program that this process is about to execute find what this program was started with.
/// Async-signal-safe.
///
/// # Errors
/// If a disposition cannot be set.
pub(crate) fn give_back() -> io::Result<()> {
    for (signal, was_ignored) in [(libc::SIGPIPE, &PIPE_IGNORED), (libc::SIGCHLD, &CHILDREN_IGNORED)] {
        if was_ignored.load(Ordering::Relaxed) {
            set_disposition(signal, libc::SIG_IGN, 0)?;
        }
    }
    let blocked = BLOCKED.load(Ordering::Relaxed);
    // SAFETY: the kernel reads a mask of the size that is given from `blocked`, a live local.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const blocked, null_mut::<u64>(), 8)
    };
    Ok(())
}

/// Lets `command` find the dispositions and the mask that this program was started with. To be called for
/// each command of a user's.
pub fn as_started(command: &mut Command) {
    // SAFETY: the closure makes async-signal-safe calls only, and allocates nothing.
    unsafe { command.pre_exec(give_back) };
}

/// From now on this program's children leave a status. (Those of a program that ignores SIGCHLD leave none,
/// and to wait for them is an error.) What it starts finds what it was started with: [`as_started`].
pub fn be_told_of_children() {
    if is_ignored(libc::SIGCHLD) {
        // It cannot fail: the signal is there, and may be handled.
        let _ = set_disposition(libc::SIGCHLD, libc::SIG_DFL, 0);
    }
}

/// Whether a signal is ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `now` is a live local, for which all zeroes are a valid value; the kernel fills it in.
    unsafe {
        libc::sigaction(signal, null_mut(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Sets what a signal does.
pub(crate) fn set_disposition(signal: i32, to: libc::sighandler_t, flags: i32) -> io::Result<()> {
    // SAFETY: all zeroes are a valid value of this type: a default disposition with nothing masked.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (action.sa_sigaction, action.sa_flags) = (to, flags);
    // SAFETY: `action` is a live local, and `to` is SIG_DFL, SIG_IGN, or a handler of this crate's, each of
    // which is async-signal-safe and takes what `flags` promise.
    match unsafe { libc::sigaction(signal, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn nothing(_: i32) {}

/// From now on, to write more than a file may have (`RLIMIT_FSIZE`) is an error (`EFBIG`) and ends nobody.
/// (By a handler, which programs that are executed do not get; what ignores the signal goes on to do so.)
pub fn survive_file_limits() {
    if !is_ignored(libc::SIGXFSZ) {
        // It cannot fail: the signal is there, and may be handled.
        let _ = set_disposition(libc::SIGXFSZ, nothing as extern "C" fn(i32) as usize, libc::SA_RESTART);
    }
}

/// Whether this process is not the one that has installed the handler, but a child that it has forked.
/// Async-signal-safe.
pub(crate) fn is_forked(installed_by: i32) -> bool {
    // SAFETY: no pointers.
    installed_by != unsafe { libc::getpid() }
}

/// Ends this process as `signal` does by default, when the handler returns. Async-signal-safe.
pub(crate) fn end_by(signal: i32) {
    let _ = set_disposition(signal, libc::SIG_DFL, 0);
    // SAFETY: no pointers. The signal is blocked while its handler runs.
    unsafe { libc::kill(libc::getpid(), signal) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn programs_that_are_started_end_by_limits_as_ever() {
        survive_file_limits();
        let folder = scratch();
        let script = "ulimit -f 0; exec head -c 100000 /dev/zero >file";
        let status = Command::new("sh").args(["-c", script]).current_dir(folder.path()).status();
        assert_eq!(status.expect("it starts").signal(), Some(libc::SIGXFSZ));
    }
}
