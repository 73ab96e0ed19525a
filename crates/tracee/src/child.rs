//! Waiting for the end of a child that is no longer traced.

use crate::TraceError;
use restitch_procfs::ProcessId;
use std::io;

/// Waits until `child`, which this program started, has ended; its exit status as a shell gives it: the code, or 128
/// plus the number of the signal that ended it.
///
/// # Errors
/// If it is no child of this program, or was waited for already.
pub fn wait_for_child(child: ProcessId) -> Result<i32, TraceError> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes an int into `status`, a live local.
        let waited = unsafe { libc::waitpid(child.pid, &raw mut status, 0) };
        if waited == child.pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(TraceError::Ptrace { request: "waitpid", tid: child.pid, source: error });
        }
    }
    Ok(match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    })
}
