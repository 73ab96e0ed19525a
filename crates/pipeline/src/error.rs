//! Errors on the way from a module to a checked version of it.

use crate::exit_code::ExitCode;
use restitch_apply::Why;
use restitch_apply_elf::ElfError;
use std::path::{Path, PathBuf};

/// Why there is no version, or no profile.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// A file could not be read or written.
    #[error("{operation} {path}: {source}; {}", advice(source))]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what is needed.
    #[error("{path}: {why}")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// Why, with the next step.
        #[source]
        why: Why,
    },
    /// A file is of a kind that is not changed.
    #[error("{path}: {why}")]
    RefusedFile {
        /// The file.
        path: PathBuf,
        /// Why, with the next step.
        #[source]
        why: Why,
    },
    /// Nothing to optimize.
    #[error("{0}")]
    NothingToDo(String),
    /// A version could not be made.
    #[error("making a version of {module}: {why}; nothing was changed")]
    Emit {
        /// The module.
        module: PathBuf,
        /// Why not.
        #[source]
        why: Why,
    },
    /// The checker found a fault.
    #[error(
        "the checker refused the new version of {module}: {why}; nothing was changed. Please report this with the file"
    )]
    Check {
        /// The module.
        module: PathBuf,
        /// The findings.
        #[source]
        why: Why,
    },
    /// What was asked for is not enough, or fits nothing.
    #[error("{0}")]
    Usage(String),
}

/// The next step after a failed access to a file.
fn advice(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as K;
    match source.kind() {
        K::NotFound => "check the path",
        K::PermissionDenied => "check the permissions, or run as a user who may do that",
        K::IsADirectory | K::NotADirectory => "name a file",
        K::StorageFull | K::QuotaExceeded => "make room, or name another place",
        K::ReadOnlyFilesystem => "name another place",
        _ => "try again, or name another place",
    }
}

impl PipelineError {
    /// Why nothing can be written into the file at `path`.
    pub fn of_elf(path: &Path, why: ElfError) -> Self {
        let is_refused = matches!(why, ElfError::Appended(_) | ElfError::OutOfReach { .. });
        let (path, why) = (path.to_path_buf(), why.into());
        if is_refused { Self::RefusedFile { path, why } } else { Self::BadFile { path, why } }
    }

    /// The exit code for it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::File { .. } | Self::Emit { .. } => ExitCode::Failure,
            Self::BadFile { .. } => ExitCode::BadInput,
            Self::RefusedFile { .. } => ExitCode::Refused,
            Self::NothingToDo(_) => ExitCode::NothingToDo,
            Self::Check { .. } => ExitCode::CheckFailed,
            Self::Usage(_) => ExitCode::Usage,
        }
    }
}
