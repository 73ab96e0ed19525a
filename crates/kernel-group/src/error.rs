//! What can be wrong.

use restitch_address::Svma;

/// Why there is no module.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// A module file that does not say what is needed.
    #[error("the module file {file} {what}; give one that was built for the running kernel")]
    ModuleFile {
        /// Which.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// A module file that is none.
    #[error(
        "the module file {file} cannot be read: {source}; give one that was built for the running kernel"
    )]
    Unreadable {
        /// Which.
        file: String,
        /// What is wrong with it.
        source: object::Error,
    },
    /// The group cannot be written.
    #[error("the group {group} cannot be written: {what}")]
    Group {
        /// Its name.
        group: String,
        /// What is wrong.
        what: String,
    },
    /// There is no file that holds it.
    #[error("the group {group} cannot be written as a file: {source}")]
    Container {
        /// Its name.
        group: String,
        /// Why.
        source: object::write::Error,
    },
    /// One of its blocks cannot be written.
    #[error("the block at {block} cannot be written: {what}")]
    Block {
        /// Where it is in the kernel.
        block: Svma,
        /// What is wrong.
        what: String,
    },
}

impl GroupError {
    /// About a block.
    pub(crate) fn block(block: Svma, what: impl Into<String>) -> Self {
        Self::Block { block, what: what.into() }
    }
    /// About a group.
    pub(crate) fn group(group: &str, what: impl Into<String>) -> Self {
        Self::Group { group: group.into(), what: what.into() }
    }
}

/// What is wrong with a module file.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It does not say this.
    Lacks(String),
    /// It is none.
    Format(object::Error),
}

impl Fault {
    /// The same of file `file`.
    pub(crate) fn of(self, file: &str) -> GroupError {
        let file = file.into();
        match self {
            Self::Lacks(what) => GroupError::ModuleFile { file, what },
            Self::Format(source) => GroupError::Unreadable { file, source },
        }
    }
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self::Lacks(what)
    }
}

impl From<&str> for Fault {
    fn from(what: &str) -> Self {
        Self::Lacks(what.into())
    }
}

impl From<object::Error> for Fault {
    fn from(error: object::Error) -> Self {
        Self::Format(error)
    }
}
