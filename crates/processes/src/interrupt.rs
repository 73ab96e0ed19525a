//! Requests to end: a session looks at its waits and between its steps whether there was one, and gives up by
//! an error.

use crate::SessionError;
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

/// Waits for a while, or until this program is asked to end.
///
/// # Errors
/// [`SessionError::Interrupted`] then.
pub fn pause(time: Duration) -> Result<(), SessionError> {
    AskedToEnd::pause(time);
    heed()
}
