//! What may be wrong with an output file.

use restitch_address::{Svma, SvmaRange};
use restitch_apply::Why;
use thiserror::Error;

/// What differs between an output file and its plan.
#[derive(Debug, Error)]
pub enum Mismatch {
    /// Bytes of the added segment.
    #[error("the added segment at {0} does not hold what was planned")]
    Segment(SvmaRange),
    /// A changed place.
    #[error("the bytes at {0} are not those that were planned")]
    Patch(Svma),
    /// The headers.
    #[error("its program headers differ from the plan: {0}")]
    Headers(&'static str),
    /// The note.
    #[error("its note does not say what was planned")]
    Note,
    /// The way back.
    #[error("it does not turn back into the original file: {0}")]
    Revert(#[source] Why),
    /// Unwind tables.
    #[error("unwinding code at {at} would go wrong: {why}")]
    Unwind {
        /// The code.
        at: Svma,
        /// What is wrong.
        why: &'static str,
    },
}
