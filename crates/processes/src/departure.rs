//! A process that ends, or executes another program, while it is worked on. Whatever fails then, or has come
//! to nothing, is not what there is to tell.

use crate::error::SessionError;
use crate::process_set::ProcessSet;
use restitch_pipeline::ExitCode;

/// The error in place of `error`, which has come while a set was worked on, if its leader has ended by now,
/// or executes another program. Faults of restitch's own, and requests to end, are told in any case.
pub fn or_departure(error: SessionError, set: &ProcessSet) -> SessionError {
    use ExitCode::{BadInput, Failure, NotPermitted, NothingToDo, Refused, Vanished};
    let may_follow =
        matches!(error.exit_code(), BadInput | Failure | NotPermitted | NothingToDo | Refused | Vanished);
    if !may_follow || matches!(error, SessionError::Panicked { .. } | SessionError::Ended { .. }) {
        return error;
    }
    let target = set.leader.target();
    match set.verify_leader() {
        Err(ended) => ended,
        Ok(()) if target.has_executed() => SessionError::Executed { pid: target.pid() },
        Ok(()) => error,
    }
}
