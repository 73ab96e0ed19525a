//! Errors on the way from a module to a checked version of it.

use crate::exit_code::{ExitCode, signal_name};
use restitch_apply::Why;
use restitch_apply_elf::ElfError;
use std::path::{Path, PathBuf};

/// Why there is no version, or no profile.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// A file could not be read or written.
    #[error("{operation} {path}: {source}{}", advice(source))]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// There is no profile where one was named.
    #[error("reading the profile {path}: {source}; check the path, or make one (`restitch record -o FILE`)")]
    NoProfile {
        /// What was named.
        path: PathBuf,
        /// What the system says.
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
    #[error("making a version of {module}: {why}; nothing was changed. Please report this with the file")]
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
    /// It was asked to end while it waited for the other end of a pipe.
    #[error(
        "ended by {}: {operation} {path}, a pipe, waited for its other end; name a file, or see to it that somebody is there",
        signal_name(*signal)
    )]
    Interrupted {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The signal.
        signal: i32,
    },
    /// What was asked for is not enough, or fits nothing.
    #[error("{0}")]
    Usage(String),
}

/// The next step after a failed access to a file; nothing where the failure names one itself.
fn advice(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as K;
    match source.kind() {
        K::NotFound => "; check the path",
        // That a link is not followed.
        K::PermissionDenied if source.raw_os_error().is_none() => "",
        K::PermissionDenied => "; check the permissions, or run as a user who may do that",
        K::IsADirectory => "; name a file",
        K::NotADirectory => "; a part of the path is a file: name another one",
        K::StorageFull | K::QuotaExceeded => "; make room, or name another place",
        K::ReadOnlyFilesystem => "; name another place",
        _ if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            "; raise the limit of open files (`ulimit -n`, fs.file-max)"
        }
        _ => "; try again, or name another place",
    }
}

/// Whether the system forbids it to this user. (Without a number of the system's it is we who refuse: a link
/// that is not followed.)
fn is_denied(source: &std::io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM))
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
            Self::File { source, .. } if is_denied(source) => ExitCode::NotPermitted,
            Self::File { .. } | Self::NoProfile { .. } | Self::Emit { .. } => ExitCode::Failure,
            Self::BadFile { .. } => ExitCode::BadInput,
            Self::RefusedFile { .. } => ExitCode::Refused,
            Self::NothingToDo(_) => ExitCode::NothingToDo,
            Self::Check { .. } => ExitCode::CheckFailed,
            Self::Usage(_) => ExitCode::Usage,
            Self::Interrupted { signal, .. } => ExitCode::of_signal(*signal),
        }
    }
}
