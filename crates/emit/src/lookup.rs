//! Address to block, fast: a version of a large program asks a million times.

use restitch_address::Svma;
use restitch_program::{BlockId, Program};

/// Bytes of code for each entry of the index, as a power of two: a few blocks.
const GRAIN: u32 = 6;
/// Programs that are spread wider than this are searched without an index.
const WIDEST: u64 = 1 << 30;

/// Finds blocks by start address.
pub(crate) struct Lookup<'a> {
    program: &'a Program,
    base: Svma,
    /// The first block that starts at or behind each grain. Empty: no index.
    first: Vec<u32>,
}

impl<'a> Lookup<'a> {
    pub fn new(program: &'a Program) -> Self {
        let mut lookup = Self { program, base: Svma::default(), first: Vec::new() };
        let (Some(head), Some(tail)) = (program.blocks.first(), program.blocks.last()) else { return lookup };
        lookup.base = head.start;
        let span = tail.start.get().wrapping_sub(head.start.get());
        if span > WIDEST || span > 1024 * program.blocks.len() as u64 {
            return lookup;
        }
        lookup.first.reserve((span >> GRAIN) as usize + 2);
        for (i, block) in program.blocks.iter().enumerate() {
            let grain = (block.start.get().wrapping_sub(head.start.get()) >> GRAIN) as usize;
            while lookup.first.len() <= grain {
                lookup.first.push(i as u32);
            }
        }
        lookup
    }

    /// The block that starts at `at`.
    pub fn starting_at(&self, at: Svma) -> Option<BlockId> {
        if self.first.is_empty() {
            return self.program.block_starting_at(at);
        }
        let grain = usize::try_from(at.get().checked_sub(self.base.get())? >> GRAIN).ok()?;
        let from = *self.first.get(grain)? as usize;
        let candidates = self.program.blocks[from..].iter().take_while(|b| b.start <= at);
        candidates.enumerate().find(|(_, b)| b.start == at).map(|(i, _)| BlockId((from + i) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    proptest! {
        #[test]
        fn agrees_with_the_search(gaps in prop::collection::vec((1u64..300, 1u64..90), 1..40)) {
            let mut text = String::new();
            let mut at = 0x1000;
            for (gap, len) in gaps {
                at += gap;
                let _ = writeln!(text, "function {at:#x}..{:#x} - movable\n {at:#x} +{len} entry fall", at + len);
                at += len;
            }
            let program = Program::from_text(&text).unwrap();
            let lookup = Lookup::new(&program);
            for at in (0xf00..at + 100).map(Svma::new) {
                prop_assert_eq!(lookup.starting_at(at), program.block_starting_at(at));
            }
        }
    }
}
