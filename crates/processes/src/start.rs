//! Starting commands that are looked at from their beginning.

use crate::SessionError;
use restitch_tracee::{AskedToEnd, LaunchOptions, NotStarted, TraceError, TraceEvents};
use std::process::Command;

/// Starts `command` as a tracee. From now on this program stands in for it: requests to end are the
/// command's.
pub fn launch(command: Command, options: LaunchOptions) -> Result<TraceEvents, SessionError> {
    let program = command.get_program().to_owned();
    let launched = TraceEvents::spawn(command, options).map_err(|error| match error {
        TraceError::Launch { source, .. } => NotStarted::new(&program, source).into(),
        other => SessionError::from(other),
    })?;
    AskedToEnd::stand_for(launched.root().pid);
    Ok(launched)
}
