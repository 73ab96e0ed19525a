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
    /// The group cannot be written.
    #[error("the group {group} cannot be written: {what}")]
    Group {
        /// Its name.
        group: String,
        /// What is wrong.
        what: String,
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
