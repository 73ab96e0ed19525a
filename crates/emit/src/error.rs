//! What can go wrong.

use restitch_address::Svma;
use restitch_cfi::CfiError;
use restitch_program::{BlockId, EdgeId};
use thiserror::Error;

/// Why there is no version. (What merely stays in the original code is [`Skipped`](crate::Skipped), not an
/// error.)
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EmitError {
    /// A version is mapped, so it starts at a page.
    #[error("emitting a version at {0}: the address is not a multiple of 4096; ask for a page-aligned place")]
    Unaligned(Svma),
    /// The layout names a block that the program does not have.
    #[error(
        "emitting a version: the layout names block number {}, which the program does not have; make the layout from this program",
        .0.0
    )]
    UnknownBlock(BlockId),
    /// The layout names a block more than once.
    #[error(
        "emitting a version: the layout holds the block at {at} (number {}) twice; a layout names each block at most once",
        .block.0
    )]
    BlockTwice {
        /// The block.
        block: BlockId,
        /// Its address in the original code.
        at: Svma,
    },
    /// The layout has a duplicate of a block that it does not hold otherwise.
    #[error(
        "emitting a version: the layout duplicates the block at {at} (number {}) and holds it in no fragment; put it into one",
        .block.0
    )]
    DuplicateAlone {
        /// The block.
        block: BlockId,
        /// Its address in the original code.
        at: Svma,
    },
    /// A fragment's alignment is not a power of two up to the page size.
    #[error(
        "emitting a version: a fragment asks for an alignment of {0} bytes; use a power of two from 1 to 4096"
    )]
    Alignment(u32),
    /// The image does not hold a block's bytes.
    #[error(
        "emitting a version: the image holds no bytes for the block at {0}; use the image that the program was made from"
    )]
    Unreadable(Svma),
    /// More than 1 GiB of code, or code that would wrap into itself.
    #[error(
        "emitting a version: {0} bytes of code are more than one version can hold (1 GiB); lay out fewer functions"
    )]
    TooLarge(u64),
    /// A counter for something that is not in the program.
    #[error(
        "emitting a counting version: counter {0} counts a block or edge that the program does not have; choose counters from this program"
    )]
    UnknownCounted(usize),
    /// The same thing is to be counted by two counters.
    #[error(
        "emitting a counting version: counter {0} counts what an earlier one counts; name each at most once"
    )]
    CountedTwice(usize),
    /// Traversals of a jump-table edge cannot be counted.
    #[error(
        "emitting a counting version: edge number {} goes through a jump table and cannot have a counter; count its target block instead",
        .0.0
    )]
    TableEdge(EdgeId),
    /// The counter area is out of 32-bit reach of the code.
    #[error(
        "emitting a counting version: the counters at {area} are out of 32-bit reach of the code at {code}; place the area within 2 GiB"
    )]
    CountersOutOfReach {
        /// Where the counters should be.
        area: Svma,
        /// Where the version should be.
        code: Svma,
    },
    /// Something that a tracing version has to reach is too far away.
    #[error(
        "emitting a tracing version: {to} is out of 32-bit reach of {from}; place version and window within 2 GiB of the module"
    )]
    BurstOutOfReach {
        /// Behind the instruction.
        from: Svma,
        /// What it has to reach.
        to: Svma,
    },
    /// The unwind tables could not be written.
    #[error("emitting a version: {0}")]
    Unwind(#[from] CfiError),
}
