//! Starting commands that are looked at from their beginning.

use crate::error::SessionError;
use crate::interrupt::heed;
use restitch_tracee::{AskedToEnd, LaunchOptions, NotStarted, TraceError, TraceEvents};
use std::process::Command;

/// Begins to start a command: not if this program was asked to end.
///
/// # Errors
/// [`SessionError::Interrupted`] then.
pub fn begin_start() -> Result<(), SessionError> {
    AskedToEnd::stand_for_none();
    heed()
}

/// Starts `command` as a tracee. Whoever wants this program to stand in for it says so
/// ([`restitch_tracee::AskedToEnd::stand_for`]).
///
/// # Errors
/// If it cannot be started, or this program was asked to end.
pub fn launch(command: Command, options: LaunchOptions) -> Result<TraceEvents, SessionError> {
    begin_start()?;
    let program = command.get_program().to_owned();
    TraceEvents::spawn(command, options).or_else(|error| {
        // What has ended the command before it was one has come to this program as well.
        heed()?;
        Err(match error {
            TraceError::Launch { source, .. } => NotStarted::new(&program, source).into(),
            other => SessionError::from(other),
        })
    })
}
