//! What signals do to this program.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

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
