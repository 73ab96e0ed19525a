//! Where the blocks of a layout stand.

use restitch_address::PAGE;
use std::collections::BTreeMap;
use std::ops::Range;

use restitch_layout::Layout;
use restitch_program::{BlockId, Program, Terminator};

/// Bytes of an instruction that fetches a line ahead.
pub(crate) const PREFETCH: u64 = 7;

/// Bytes of a jump that the order of blocks makes necessary.
const JUMP: u64 = 5;

/// Start and length of each block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// First byte, by [`BlockId`].
    pub starts: Vec<u64>,
    /// Bytes, by [`BlockId`]: a jump more where the order needs one, and none where it needs none any more.
    pub lengths: Vec<u64>,
    /// The hot code of the version.
    pub hot: Range<u64>,
    /// Duplicates, by the block that they stand behind, in order.
    pub tails: BTreeMap<BlockId, Vec<PlacedDuplicate>>,
    /// By block, the address of the line that is fetched ahead at its start.
    pub prefetches: BTreeMap<BlockId, u64>,
}

/// Where a duplicate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedDuplicate {
    /// The block.
    pub block: BlockId,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

impl Placement {
    /// The original places.
    pub fn original(program: &Program) -> Self {
        Self {
            starts: program.blocks.iter().map(|b| b.start.get()).collect(),
            lengths: program.blocks.iter().map(|b| u64::from(b.len)).collect(),
            hot: 0..0,
            tails: BTreeMap::new(),
            prefetches: BTreeMap::new(),
        }
    }

    /// The places of a version with this layout; blocks that it does not hold stay where they are.
    pub fn of(program: &Program, layout: &Layout) -> Self {
        let mut placement = Self::original(program);
        let end = program.blocks.last().map_or(0, |b| b.end().get());
        let mut at = end.saturating_add(PAGE).next_multiple_of(PAGE);
        placement.hot = at..at;
        let fragments: Vec<_> = layout.hot.iter().chain(&layout.cold).collect();
        for (i, fragment) in fragments.iter().enumerate() {
            at = at.next_multiple_of(u64::from(fragment.align.max(1)));
            let following = fragments.get(i + 1).filter(|f| f.align == 1).and_then(|f| f.blocks.first());
            let mut copies = layout.copies(fragment).peekable();
            let mut behind = None;
            while let Some(copy) = copies.next() {
                let next = copies.peek().map(|c| c.block).or(following.copied());
                let (block, start) = (copy.block, at);
                let ahead = layout.prefetch_at(block).filter(|_| !copy.duplicate).map_or(0, |_| PREFETCH);
                let length = ahead + length(program, block, next);
                match behind.filter(|_| copy.duplicate) {
                    Some(behind) => {
                        let tail = placement.tails.entry(behind).or_default();
                        tail.push(PlacedDuplicate { block, start, length });
                    }
                    None => {
                        behind = Some(block);
                        placement.starts[block.index()] = start;
                        placement.lengths[block.index()] = length;
                    }
                }
                at += length;
            }
            if i < layout.hot.len() {
                placement.hot.end = at;
            }
        }
        for prefetch in &layout.prefetches {
            let line = placement.starts[prefetch.target.index()] + u64::from(prefetch.offset);
            placement.prefetches.insert(prefetch.at, line);
        }
        placement
    }

    /// Where a byte of a block's copy stands that begins at `start`.
    pub(crate) fn byte(&self, block: BlockId, start: u64, offset: u32) -> u64 {
        let fetches = offset > 0 && self.fetches(block, start).is_some();
        start + u64::from(offset) + if fetches { PREFETCH } else { 0 }
    }

    /// What the copy of a block that begins at `start` fetches ahead.
    pub(crate) fn fetches(&self, block: BlockId, start: u64) -> Option<u64> {
        let address = self.prefetches.get(&block)?;
        (start == self.starts[block.index()]).then_some(*address)
    }

    /// First byte behind a block.
    pub fn end(&self, block: BlockId) -> u64 {
        self.starts[block.index()] + self.lengths[block.index()]
    }
}

fn length(program: &Program, id: BlockId, next: Option<BlockId>) -> u64 {
    let block = program.block(id);
    let next = next.map(|n| program.block(n).start);
    let own = u64::from(block.len);
    match block.terminator {
        Terminator::FallThrough | Terminator::ShortConditional(_) if next != Some(block.end()) => own + JUMP,
        Terminator::Conditional(_, to) if next != Some(block.end()) && next != Some(to) => own + JUMP,
        Terminator::Jump(to) if next == Some(to) => own - u64::from(block.terminator_len),
        _ => own,
    }
}
