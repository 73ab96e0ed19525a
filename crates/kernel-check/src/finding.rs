//! What can be wrong with a module.

use restitch_address::Svma;
use std::fmt;
use thiserror::Error;

/// At most this many findings are kept, so that a thoroughly wrong module cannot fill memory.
pub const MAX_FINDINGS: usize = 100;

/// A place in a module file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The section's name.
    pub section: String,
    /// In it, in bytes.
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.section, self.offset)
    }
}

/// Something that cannot be shown to be equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The function of the kernel, if it is about one.
    pub function: Option<String>,
    /// The original's address, if it is about one.
    pub original: Option<Svma>,
    /// Where in the module, if it has a place there.
    pub place: Option<Place>,
    /// What it is.
    pub problem: Problem,
}

impl From<Problem> for Finding {
    fn from(problem: Problem) -> Self {
        Self { function: None, original: None, place: None, problem }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.function {
            write!(f, "{function}: ")?;
        }
        if let Some(original) = self.original {
            write!(f, "original {original}: ")?;
        }
        if let Some(place) = &self.place {
            write!(f, "module {place}: ")?;
        }
        write!(f, "{}", self.problem)
    }
}

/// What is wrong at the place that a [`Finding`] names.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is no relocatable file, or a damaged one.
    #[error("the file is no module: {0}")]
    File(&'static str),
    /// A section that modules of groups do not have, or have in another form.
    #[error("the section {section} {what}")]
    Section {
        /// Its name.
        section: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A field that the loader fills.
    #[error("the loader is to fill in {0}")]
    Relocation(&'static str),
    /// A symbol of the module.
    #[error("the symbol {symbol} {what}")]
    Symbol {
        /// Its name.
        symbol: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// What the module says of itself.
    #[error("the description of the module {0}")]
    Description(&'static str),
    /// What the module is bound to.
    #[error("the module is not bound to the running kernel: {0}")]
    Anchor(&'static str),
    /// What of the kernel is needed and not there.
    #[error("the kernel cannot be read: {0}")]
    Kernel(&'static str),
    /// Code of the kernel that may not be copied, or is not understood.
    #[error("the original {0}")]
    Original(&'static str),
    /// An instruction that is not the original's.
    #[error("the instruction {0}")]
    Instruction(&'static str),
    /// Control or an operand goes elsewhere.
    #[error("it leads to {to}, not to {want} or a copy of it")]
    WrongTarget {
        /// Where it leads.
        to: Svma,
        /// Where the original leads.
        want: Svma,
    },
    /// One copy that stands for two originals.
    #[error("it is a copy of {other}, too")]
    TwoOriginals {
        /// The other original.
        other: Svma,
    },
    /// An entry of one of the tables that the loader reads.
    #[error("the table {table} {what}")]
    Table {
        /// Its section.
        table: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// What counts.
    #[error("the counter {0}")]
    Counter(&'static str),
    /// A callee that stands in place of a call of it.
    #[error("the callee in place of its call {0}")]
    Inlined(&'static str),
    /// Bytes of code that nothing leads to.
    #[error("nothing leads to this code, and it is no filler")]
    Unaccounted,
}

/// A module that was not proved.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the group module is refused: {}{}", .findings[0], more(.findings.len()))]
pub struct CheckError {
    /// What cannot be shown to be equal. At least one.
    pub findings: Vec<Finding>,
}

fn more(count: usize) -> String {
    if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() }
}
