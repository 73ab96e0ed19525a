//! Errors of reading `/proc`.

use crate::ended::has_ended;
use crate::obstacle::{Access, obstacle};
use std::path::{Path, PathBuf};

/// Why a fact about a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The process or thread does not exist (any more).
    #[error("process {pid} does not exist, or has ended; look its number up (`pgrep -a NAME`) and try again")]
    Gone {
        /// The process asked about.
        pid: i32,
        /// The file that was to be read.
        path: PathBuf,
    },
    /// The kernel refuses to tell.
    #[error("no permission to read {path} of process {pid}: {obstacle}", path = path.display())]
    Permission {
        /// The process asked about.
        pid: i32,
        /// The file that was to be read.
        path: PathBuf,
        /// What is in the way, and what helps.
        obstacle: String,
    },
    /// Any other failure of the operating system.
    #[error("cannot read {path} of process {pid}: {source}{}", next_step(source), path = path.display())]
    Io {
        /// The process asked about.
        pid: i32,
        /// The file that was to be read.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file does not have the form that the kernel documents (proc(5)).
    #[error("{path} of process {pid} is not understood: {what}; please report it, with the version of the kernel (uname -r)", path = path.display())]
    Malformed {
        /// The process asked about.
        pid: i32,
        /// The file that was read.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The pid now names another process than the one that was meant.
    #[error("process {pid} has ended and its number was given to another process; look up the pid again")]
    Reused {
        /// The process number in question.
        pid: i32,
    },
    /// The server of the file's file system does not answer.
    #[error(
        "the file system of {path}, which process {pid} runs, does not answer; see to its server (FUSE, NFS), and try again",
        path = path.display()
    )]
    Unserved {
        /// The process asked about.
        pid: i32,
        /// The file that was to be opened.
        path: PathBuf,
    },
    /// The file at the path is not the one that the process has mapped.
    #[error(
        "{path} is not the file that process {pid} has mapped (it was replaced or deleted since the start); restart the process, or run as root so that the mapped file itself can be opened",
        path = path.display()
    )]
    Replaced {
        /// The process asked about.
        pid: i32,
        /// The path that the process's maps name.
        path: PathBuf,
    },
}

/// What helps where it is a limit of restitch's own.
fn next_step(source: &std::io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => {
            "; restitch may not have so many files open: raise the limit (`ulimit -n 1024`)"
        }
        Some(libc::ENFILE) => "; the system has as many files open as it may (fs.file-max)",
        Some(libc::ENOMEM) => "; free memory and try again",
        _ => "; try again",
    }
}

impl ProcError {
    /// Whether it says no more than that the process, or a thread of it, has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Reused { .. })
    }

    /// The error for a failed access to `path` of process `pid`.
    pub(crate) fn from_io(pid: i32, path: &Path, source: std::io::Error) -> Self {
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Self::Gone { pid, path },
            // The files of a process that has ended belong to root until it is collected.
            Some(libc::EACCES | libc::EPERM) if has_ended(pid) => Self::Gone { pid, path },
            Some(libc::EACCES | libc::EPERM) => {
                let access = if path.ends_with("mem") { Access::Trace } else { Access::Look };
                Self::Permission { pid, path, obstacle: obstacle(pid, access) }
            }
            _ => Self::Io { pid, path, source },
        }
    }
}
