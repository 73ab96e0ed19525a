//! What can stand in the way.

use restitch_address::Svma;
use restitch_kernel::Reason;
use restitch_kernel_check::{CheckError, Finding, Problem};
use restitch_kernel_group::GroupError;
use std::fmt;

/// Why a function is not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The analysis says that it stays. At least one, the first one first.
    Reasons(Vec<Reason>),
    /// Something in it has no form in a group.
    Obstacle {
        /// What.
        obstacle: Obstacle,
        /// Where.
        at: Svma,
    },
    /// It has no place of the function tracer by which calls of it could be led to a copy.
    Untraceable,
    /// Nothing that is copied calls it directly.
    NotReached,
    /// None of its blocks was executed often.
    Cold,
    /// Its copy could not be proved to be equal.
    Unproved(Box<Finding>),
}

/// What has no form in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// Its bytes, or an entry about them, are not in what was read of the kernel.
    Unreadable,
    /// A branch that only stands where it does.
    OddBranch,
    /// A table speaks of the branch at the end of a block, which a copy may have to leave out.
    KnownBranch,
    /// A static call of which it is not known what it may begin as.
    NoTrampoline,
    /// A trap that reports, in a kernel whose types do not say what its records are like.
    UnknownWarning,
    /// Code of which the unwinder knows nothing.
    NoUnwindRow,
    /// Nowhere in a block, or on an edge, can a counter stand.
    NoRoomForCounter,
    /// Flags are live where a counter is to stand, and there is no stack to keep them on.
    NoStack,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "it was not read as a whole",
            Self::OddBranch => "a branch in a form that cannot be moved",
            Self::KnownBranch => "a warning or a fault of the branch at the end of a block",
            Self::NoTrampoline => "a static call without a trampoline",
            Self::UnknownWarning => "a warning, whose record the kernel's types (BTF) do not describe",
            Self::NoRoomForCounter => "no place for a counter",
            Self::NoStack => "flags are live where the unwinder knows no stack to keep them on",
            Self::NoUnwindRow => "the unwinder has no row for it",
        })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reasons(reasons) => {
                let words: Vec<&str> = reasons.iter().map(|reason| reason.words()).collect();
                f.write_str(&words.join("; "))
            }
            Self::Obstacle { obstacle, at } => write!(f, "{obstacle} (at {at})"),
            Self::Untraceable => {
                f.write_str("the function tracer has no place in it, to lead calls away from")
            }
            Self::Unproved(finding) => write!(f, "its copy cannot be proved: {}", finding.problem),
            Self::Cold => f.write_str("none of its blocks was executed often"),
            Self::NotReached => f.write_str("nothing that is copied calls it"),
        }
    }
}

/// A function that is not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub address: Svma,
    /// Why.
    pub why: Why,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.why)
    }
}

/// Why there is no module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PositionError {
    /// Functions that were asked for stay where they are.
    #[error("no copy can be made of {}", list(.0))]
    Refused(Vec<Refused>),
    /// The module file that is taken as an example says too little, or the group cannot be written.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The module file that is taken as an example cannot be read by the checker.
    #[error("the module file {file} is no example of modules of this kernel: {source}")]
    Example {
        /// Which.
        file: String,
        /// Why.
        source: Problem,
    },
    /// No module file was given.
    #[error("no module file that was built for this kernel says what modules look like")]
    NoExample,
    /// Nothing that it exports can bind a module to the running kernel.
    #[error("the kernel exports no symbol of which {0}; give a module file that was built for it")]
    NoAnchor(&'static str),
    /// By the counts, a root was never called.
    #[error("{0} was never called while instructions were counted; count while it works")]
    NeverCalled(String),
    /// What was written is not equal to the kernel's code, as far as can be shown.
    #[error("{0}; nothing is written")]
    Unproved(#[from] CheckError),
}

impl PositionError {
    /// Whether the module file that is taken as an example is none.
    pub fn is_bad_example(&self) -> bool {
        let is_unreadable = |error: &GroupError| {
            matches!(error, GroupError::ModuleFile { .. } | GroupError::Unreadable { .. })
        };
        match self {
            Self::Group(error) => is_unreadable(error),
            Self::Example { .. } | Self::NoExample => true,
            _ => false,
        }
    }
}

fn list(refused: &[Refused]) -> String {
    let texts: Vec<String> = refused.iter().map(ToString::to_string).collect();
    texts.join(", of ")
}

/// A line of counts that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: an address in hexadecimal, a length and a count are wanted")]
pub struct CountsError {
    /// Its number, from 1.
    pub line: usize,
}
