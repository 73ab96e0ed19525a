//! Commands that restitch starts.

use std::ffi::OsString;
use std::process::Command as Child;

/// The command and its arguments.
pub(crate) fn child(command: &[OsString]) -> Child {
    let mut child = Child::new(command.first().map_or_else(|| "".into(), Clone::clone));
    child.args(command.iter().skip(1));
    child
}

/// As a shell gives it.
pub(crate) fn exit_status(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
