//! Starting commands that are looked at from their beginning.

use crate::SessionError;
use restitch_tracee::{LaunchOptions, NotStarted, TraceError, TraceEvents};
use std::process::Command;

/// Starts `command` as a tracee. Whoever wants this program to stand in for it says so
/// ([`restitch_tracee::AskedToEnd::stand_for`]).
///
/// # Errors
/// If it cannot be started.
pub fn launch(command: Command, options: LaunchOptions) -> Result<TraceEvents, SessionError> {
    let program = command.get_program().to_owned();
    TraceEvents::spawn(command, options).map_err(|error| match error {
        TraceError::Launch { source, .. } => NotStarted::new(&program, source).into(),
        other => SessionError::from(other),
    })
}
