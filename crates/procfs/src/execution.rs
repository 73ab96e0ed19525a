//! Which of the programs that a process executes one after the other it executes now.

use crate::auxv::AuxVector;
use crate::error::ProcError;
use crate::files::FileIdentity;
use crate::holder::shared_path;
use crate::process::auxv;
use std::fs::File;

/// One program that a process executes: another one after the next `exec`, also if that is of the same file.
/// A forked process has the one of its parent.
///
/// The kernel tells no number of it. What it gives a program when it begins is at other places each time
/// (`AT_RANDOM` and the others); where addresses are not randomized, the file and its entry tell programs
/// apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    given: AuxVector,
    file: Option<FileIdentity>,
}

impl Execution {
    /// The one of process `pid` now.
    ///
    /// # Errors
    /// If there is none (any more), or it cannot be read.
    pub fn of(pid: i32) -> Result<Self, ProcError> {
        let given = auxv(pid)?;
        let path = shared_path(pid, "exe");
        if given.is_empty() {
            return Err(ProcError::Gone { pid, path });
        }
        let file = File::open(&path).and_then(|file| FileIdentity::of(&file)).ok();
        Ok(Self { given, file })
    }
}
