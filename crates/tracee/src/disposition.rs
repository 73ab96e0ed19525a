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
