//! Where the part of a block that is copied as it is ends, and what is known about the machine behind it.

use restitch_address::Svma;
use restitch_program::{Block, Program, Terminator};

/// Bytes of `block` that are copied as they are; the rest is a branch that is written anew.
pub(crate) fn copied_len(block: &Block) -> u32 {
    match block.terminator {
        Terminator::Jump(_) | Terminator::Conditional(..) | Terminator::ShortConditional(_) => {
            block.len - u32::from(block.terminator_len)
        }
        _ => block.len,
    }
}

/// The address whose unwind state holds in what is written behind the copied part of a block.
pub(crate) fn tail_frame(program: &Program, block: &Block) -> Svma {
    if !matches!(block.terminator, Terminator::FallThrough | Terminator::Stop) {
        return block.terminator_at();
    }
    // The last instruction may have changed the frame; behind the function's end nothing is known.
    let inside = program.function(block.function).range.contains(block.end());
    if inside { block.end() } else { block.end() - 1 }
}
