//! What is known of how often code runs before it is counted.

use crate::model::Profile;

/// An estimate of how often things run, so that counters go where they cost little.
#[derive(Debug, Clone, Copy, Default)]
pub enum Weights<'a> {
    /// Nothing is known: frequencies are guessed from the shape of the code.
    #[default]
    Static,
    /// Estimated executions of each block by [`BlockId`](restitch_program::BlockId): IP samples divided by
    /// the block's length in bytes, times [`EXECUTIONS_PER_SAMPLE`](crate::EXECUTIONS_PER_SAMPLE). They
    /// become the nearest flow; where there is none, the guess decides.
    Blocks(&'a [u64]),
    /// An earlier profile.
    Profile(&'a Profile),
}
