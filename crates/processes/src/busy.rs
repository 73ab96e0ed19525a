//! Processes that another restitch is at work on: they are waited for a little. It may be about to end, or a
//! keeper that gives a process back for one that was killed.

use crate::error::SessionError;
use crate::interrupt::pause;
use restitch_apply_process::{ProcessError, StateDir};
use restitch_procfs::{self as procfs, ProcessId};
use restitch_tracee::{TraceError, preflight};
use std::time::{Duration, Instant};

/// For so long a process is waited for that another restitch is at work on.
pub const BUSY: Duration = Duration::from_secs(5);
/// So often it is looked whether it still is.
pub const BUSY_LOOK: Duration = Duration::from_millis(20);

/// Process `pid`, which can be traced, once no other restitch traces it any more.
///
/// # Errors
/// Those of [`preflight`]; [`ProcessError::Busy`] if another restitch is at work on it for long.
pub fn when_not_traced(pid: i32) -> Result<ProcessId, SessionError> {
    let end = Instant::now() + BUSY;
    // Who traced it when nobody had its lock. (One that has just let go of both was not seen to.)
    let mut stranger = None;
    loop {
        let (pid, tracer, name) = match preflight(pid) {
            Err(TraceError::AlreadyTraced { pid, tracer, name }) => (pid, tracer, name),
            done => return Ok(done?),
        };
        if stranger == Some(tracer) {
            return Err(TraceError::AlreadyTraced { pid, tracer, name }.into());
        }
        if lets_go(pid, tracer) {
            if Instant::now() > end {
                return Err(ProcessError::Busy { pid, by: None }.into());
            }
            pause(BUSY_LOOK)?;
        } else {
            stranger = Some(tracer);
        }
    }
}

/// Whether the thread that traces a process will let go of it soon: a restitch has the process's lock, or the
/// tracer ends.
fn lets_go(pid: i32, tracer: i32) -> bool {
    let lock = || StateDir::open()?.lock_process(ProcessId::of(pid)?);
    procfs::has_ended(tracer) || matches!(lock(), Err(ProcessError::Busy { .. }))
}
