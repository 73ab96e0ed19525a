//! What can go wrong.

use std::path::{Path, PathBuf};

/// Why a guest could not be made or did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program or package that the machine could have is not there.
    #[error("{what}; {next}")]
    Missing {
        /// What is not there.
        what: String,
        /// What the user can do.
        next: String,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {what} {path}: {source}; check that there is room and that the folder is yours")]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}): {output}")]
    Command {
        /// The program with its arguments.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The guest did not get to the end of its job.
    #[error("the guest ended before its job ({why}); its console ends with:\n{console}")]
    Died {
        /// What is known about the reason.
        why: String,
        /// The end of the console.
        console: String,
    },
    /// The guest's kernel complained.
    #[error(
        "the guest's kernel complained: {}; allow it by allow_complaints if it is expected; around it:\n{console}",
        .complaints.join(" | ")
    )]
    Complained {
        /// The lines of the console that say so.
        complaints: Vec<String>,
        /// The console from there on, shortened.
        console: String,
    },
    /// What came out of a guest or of the plugin is not in the form that it should have.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// What was read.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// Whether something is not there that this or another machine could have: tests skip then.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Something is not there.
    pub(crate) fn missing(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), next: next.into() }
    }

    /// Turns an error of the system into one that names what was tried on which file.
    pub(crate) fn file<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::File { what, path: path.into(), source }
    }

    /// Something is not in its form.
    pub(crate) fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), why: why.into() }
    }
}
