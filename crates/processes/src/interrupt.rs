//! Requests to end: a session looks at its waits and between its steps whether there was one, and gives up by
//! an error.

use crate::error::SessionError;
use restitch_pipeline::ExitCode;
use restitch_tracee::AskedToEnd;
use std::time::Duration;

/// Whether this program is to go on.
///
/// # Errors
/// [`SessionError::Interrupted`] if it was asked to end.
pub fn heed() -> Result<(), SessionError> {
    match AskedToEnd::signal() {
        Some(signal) => Err(SessionError::Interrupted { signal, then: String::new() }),
        None => Ok(()),
    }
}

/// What was `done`, but for work that has come to nothing after a request to end: then, that is why. The same
/// holds for whatever failed after a request that has ended the command for which this program stands.
///
/// # Errors
/// As `done`; [`SessionError::Interrupted`] if there was such a request.
pub fn or_interrupted<T>(done: Result<T, SessionError>) -> Result<T, SessionError> {
    done.map_err(|error| {
        let is_nothing = matches!(error.exit_code(), ExitCode::NothingToDo | ExitCode::Vanished);
        let own = AskedToEnd::signal().filter(|_| is_nothing);
        match (&error, AskedToEnd::ended_command().or(own)) {
            (SessionError::Interrupted { .. } | SessionError::NotGivenBack { .. }, _) | (_, None) => error,
            (_, Some(signal)) => SessionError::Interrupted { signal, then: error.to_string() },
        }
    })
}

/// Waits for a while, or until this program is asked to end.
///
/// # Errors
/// [`SessionError::Interrupted`] then.
pub fn pause(time: Duration) -> Result<(), SessionError> {
    AskedToEnd::pause(time);
    heed()
}
