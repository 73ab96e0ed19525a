//! Where each block goes, and which branches end it: a branch is short if its target is near, and left out if
//! its target follows.

use crate::error::GroupError;
use crate::group::{Block, Chunk, End, Group, Heat};
use crate::section::{Kind, Reference};
use restitch_address::Svma;
use restitch_x86::Condition;
use restitch_x86::encode::{JCC_NEAR, JCC_SHORT, JMP_NEAR, JMP_SHORT, fits_short};
use restitch_x86::module_code::{DROP_RETURN_ADDRESS, SITE, through_thunk_len};
use std::collections::HashMap;

/// Bytes of the least alignment of a copy that calls are led to.
const ENTRY: u32 = 16;
/// Bytes of a line of the instruction cache.
const LINE: u64 = 64;

/// A direct branch at the end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// None: always.
    pub(crate) condition: Option<Condition>,
    pub(crate) to: Svma,
    pub(crate) is_short: bool,
}

impl Exit {
    fn new(condition: Option<Condition>, to: Svma) -> Self {
        Self { condition, to, is_short: false }
    }

    fn len(self) -> u32 {
        match (self.condition, self.is_short) {
            (None, true) => JMP_SHORT,
            (None, false) => JMP_NEAR,
            (Some(_), true) => JCC_SHORT,
            (Some(_), false) => JCC_NEAR,
        }
    }
}

/// A block at its new place.
#[derive(Debug, Clone)]
pub(crate) struct PlacedBlock<'a> {
    pub(crate) block: &'a Block,
    /// In its section.
    pub(crate) at: u64,
    /// Bytes of what the kernel rewrites at the block's end.
    pub(crate) site: u32,
    pub(crate) exits: Vec<Exit>,
}

impl PlacedBlock<'_> {
    /// Where its code ends and its end begins.
    pub(crate) fn code_end(&self) -> u64 {
        self.at + self.block.code.len() as u64
    }
    pub(crate) fn end(&self) -> u64 {
        let exits: u32 = self.exits.iter().map(|exit| exit.len()).sum();
        self.code_end() + u64::from(self.site + exits)
    }
}

/// A chunk at its new place.
#[derive(Debug, Clone)]
pub(crate) struct PlacedChunk<'a> {
    pub(crate) chunk: &'a Chunk,
    /// Whether it begins with an entry that calls are led to: then in front of it is what drops a return
    /// address.
    pub(crate) is_entry: bool,
    pub(crate) blocks: Vec<PlacedBlock<'a>>,
}

impl PlacedChunk<'_> {
    pub(crate) fn section(&self) -> Kind {
        section_of(self.chunk.heat)
    }
    /// Where its first block is.
    pub(crate) fn start(&self) -> u64 {
        self.blocks[0].at
    }
    pub(crate) fn end(&self) -> u64 {
        self.blocks.last().map_or(0, PlacedBlock::end)
    }
    /// Where one gets to by a call: at an even address, as the entry's is.
    pub(crate) fn called_at(&self) -> Option<u64> {
        self.is_entry.then(|| self.start() - u64::from(DROP_RETURN_ADDRESS))
    }
}

/// All places.
#[derive(Debug, Clone)]
pub(crate) struct Arrangement<'a> {
    pub(crate) chunks: Vec<PlacedChunk<'a>>,
    places: HashMap<Svma, (Kind, u64)>,
}

impl<'a> Arrangement<'a> {
    /// Arranges a group.
    pub(crate) fn of(group: &'a Group) -> Result<Self, GroupError> {
        let mut chunks: Vec<PlacedChunk<'a>> = Vec::new();
        for heat in [Heat::Hot, Heat::Cold] {
            for chunk in group.chunks.iter().filter(|chunk| chunk.heat == heat) {
                chunks.push(placed(group, chunk)?);
            }
        }
        let mut arrangement = Self { chunks, places: HashMap::new() };
        arrangement.all_short(group)?;
        while arrangement.lengthen() {}
        Ok(arrangement)
    }

    /// Where the copy of the block at `address` is.
    pub(crate) fn place(&self, address: Svma) -> Option<(Kind, u64)> {
        self.places.get(&address).copied()
    }

    /// What control that goes to `address` goes to.
    pub(crate) fn code(&self, address: Svma) -> Reference {
        match self.place(address) {
            Some((section, offset)) => Reference::Own { section, offset },
            None => Reference::Kernel(address),
        }
    }

    /// Begins with branches that are too short; what leads to other sections or out of the group is long.
    fn all_short(&mut self, group: &Group) -> Result<(), GroupError> {
        self.measure();
        let blocks: usize = group.chunks.iter().map(|chunk| chunk.blocks.len()).sum();
        if self.places.len() != blocks {
            return Err(GroupError::group(&group.name, "a block is in it twice"));
        }
        let blocks = self.chunks.iter().flat_map(|chunk| &chunk.blocks).map(|placed| placed.block);
        if let Some(block) = blocks.into_iter().find(|block| self.leads_to_no_edge(block)) {
            return Err(GroupError::block(block.address, "it leads to a block that is not there"));
        }
        let places = &self.places;
        for chunk in &mut self.chunks {
            let section = chunk.section();
            for exit in chunk.blocks.iter_mut().flat_map(|block| &mut block.exits) {
                exit.is_short = places.get(&exit.to).is_some_and(|(kind, _)| *kind == section);
            }
        }
        Ok(())
    }

    /// Whether control goes from a block to a counter on an edge that has no place.
    fn leads_to_no_edge(&self, block: &Block) -> bool {
        let [first, second] = match block.end {
            End::Next(to) | End::Jump(to) => [Some(to), None],
            End::Conditional { taken, next, .. } | End::StaticKey { taken, next, .. } => {
                [Some(taken), Some(next)]
            }
            End::Return | End::IndirectJump(_) | End::StaticJump { .. } | End::Stop => [None; 2],
        };
        let faults = block.exceptions.iter().map(|exception| exception.fixup);
        let mut leads = first.into_iter().chain(second).chain(faults);
        leads.any(|to| Block::is_stand_in(to) && !self.places.contains_key(&to))
    }

    /// Gives all blocks their places, by the lengths that branches have now.
    fn measure(&mut self) {
        let (mut hot, mut cold) = (0, 0);
        for chunk in &mut self.chunks {
            let at = if chunk.chunk.heat == Heat::Hot { &mut hot } else { &mut cold };
            let align = u64::from(chunk.chunk.align);
            *at = match chunk.is_entry {
                true => entry_behind(*at, align),
                false => at.next_multiple_of(align),
            };
            let section = section_of(chunk.chunk.heat);
            for block in &mut chunk.blocks {
                block.at = *at;
                self.places.insert(block.block.address, (section, *at));
                *at = block.end();
            }
        }
    }

    /// Makes branches long that do not reach; whether there were any. Ends, since none becomes short again.
    fn lengthen(&mut self) -> bool {
        self.measure();
        let mut any = false;
        let places = &self.places;
        for block in self.chunks.iter_mut().flat_map(|chunk| &mut chunk.blocks) {
            let mut at = block.code_end() + u64::from(block.site);
            for exit in &mut block.exits {
                at += u64::from(exit.len());
                let to = places.get(&exit.to).map_or(0, |(_, offset)| *offset);
                if exit.is_short && !fits_short(to as i64 - at as i64) {
                    exit.is_short = false;
                    any = true;
                }
            }
        }
        any
    }
}

/// Where an entry is, behind what is at `at` and what drops a return address: in one line with that, if its
/// alignment allows it.
fn entry_behind(at: u64, align: u64) -> u64 {
    let (drop, least) = (u64::from(DROP_RETURN_ADDRESS), align.max(ENTRY.into()));
    let start = (at + drop).next_multiple_of(least);
    match start % LINE == 0 && least < LINE {
        true => start + least,
        false => start,
    }
}

fn section_of(heat: Heat) -> Kind {
    match heat {
        Heat::Hot => Kind::Hot,
        Heat::Cold => Kind::Cold,
    }
}

fn placed<'a>(group: &Group, chunk: &'a Chunk) -> Result<PlacedChunk<'a>, GroupError> {
    let wrong = |what: &str| Err(GroupError::group(&group.name, what));
    let Some(function) = group.functions.get(chunk.function) else {
        return wrong("a chunk is of no function");
    };
    let Some(first) = chunk.blocks.first() else { return wrong("a chunk has no blocks") };
    if !chunk.align.is_power_of_two() {
        return wrong("a chunk's alignment is no power of two");
    }
    let following = chunk.blocks.iter().skip(1).map(|block| Some(block.address)).chain([None]);
    let blocks = chunk.blocks.iter().zip(following).map(|(block, following)| PlacedBlock {
        block,
        at: 0,
        site: site_len(group, block.end),
        exits: exits(block.end, following),
    });
    let is_entry = function.is_redirected && first.address == function.address;
    Ok(PlacedChunk { chunk, is_entry, blocks: blocks.collect() })
}

/// Bytes of what the kernel rewrites at a block's end.
fn site_len(group: &Group, end: End) -> u32 {
    match end {
        End::StaticKey { .. } | End::StaticJump { .. } => SITE,
        End::Return if group.kernel.return_thunk.is_some() => SITE,
        End::Return => 1,
        End::IndirectJump(register) => through_thunk_len(register),
        End::Next(_) | End::Jump(_) | End::Conditional { .. } | End::Stop => 0,
    }
}

/// The branches that a block needs in front of the block at `following`.
fn exits(end: End, following: Option<Svma>) -> Vec<Exit> {
    let jump = |to| (following != Some(to)).then_some(Exit::new(None, to));
    match end {
        End::Next(to) | End::Jump(to) | End::StaticKey { next: to, .. } => jump(to).into_iter().collect(),
        End::Conditional { condition, taken, next } if following == Some(taken) && taken != next => {
            vec![Exit::new(Some(condition.inverted()), next)]
        }
        End::Conditional { condition, taken, next } => {
            [Exit::new(Some(condition), taken)].into_iter().chain(jump(next)).collect()
        }
        End::Return | End::IndirectJump(_) | End::StaticJump { .. } | End::Stop => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_in_one_line_with_what_stands_in_front_of_it() {
        let drop = u64::from(DROP_RETURN_ADDRESS);
        for at in 0..200 {
            for align in [1, 4, 16, 32] {
                let start = entry_behind(at, align);
                assert!(start >= at + drop && start.is_multiple_of(align.max(16)), "{at} {align}");
                assert_eq!((start - drop) / LINE, start / LINE, "{at} {align}");
            }
        }
        assert_eq!(entry_behind(0, 64), 64, "what is asked for comes first");
    }
}
