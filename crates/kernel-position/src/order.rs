//! The order of blocks: chunks of each function, hot ones in front of all cold ones.

use crate::convert::{Converted, ConvertedBlock};
use crate::request::Order;
use restitch_address::Svma;
use restitch_kernel_group::{Chunk, Heat};

/// Bytes that the first block of a function's hot chunk is aligned to, as compilers do.
const ALIGN: u32 = 16;

/// The chunks of all functions, which begin at `entries`.
pub(crate) fn chunks(functions: Vec<Converted>, entries: &[Svma], order: &Order) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (index, function) in functions.into_iter().enumerate() {
        let (mut cold, mut hot): (Vec<_>, Vec<_>) =
            function.blocks.into_iter().partition(|block| block.is_parted);
        if *order == Order::Reversed {
            hot.reverse();
            cold.reverse();
        }
        entry_first(&mut hot, entries[index]);
        let made = [(Heat::Hot, ALIGN, hot), (Heat::Cold, 1, cold)];
        chunks.extend(made.into_iter().filter_map(|(heat, align, blocks)| {
            let blocks: Vec<_> = blocks.into_iter().map(|block| block.made.block).collect();
            (!blocks.is_empty()).then_some(Chunk { function: index, heat, align, blocks })
        }));
    }
    chunks
}

fn entry_first(blocks: &mut [ConvertedBlock], entry: Svma) {
    if let Some(at) = blocks.iter().position(|block| block.address() == entry) {
        blocks[..=at].rotate_right(1);
    }
}
