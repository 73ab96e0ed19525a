//! Which of our blocks BOLT sees as blocks too, and where a block's last instruction is.
//!
//! We begin blocks generously (at every address that may be taken), BOLT (`BinaryFunction::buildCFG`) only
//! behind a branch and at targets: of direct branches and calls from anywhere, of jump tables, landing pads,
//! entries. A lone `jmp` behind a conditional branch belongs to the conditional's block.

use crate::records::Records;
use restitch_address::Svma;
use restitch_image::Image;
use restitch_program::{BlockAttrs, BlockId, CallTarget, EdgeKind, FuncId, Program, Terminator};

/// BOLT's view of the blocks of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoltBlocks {
    leader: Vec<bool>,
    last: Vec<Svma>,
    instructions: Vec<u32>,
}

impl BoltBlocks {
    /// The view of `program`, whose bytes are in `image`.
    pub fn new(image: &Image, program: &Program) -> Self {
        let mut view = Self::of_program(program);
        for (index, block) in program.blocks.iter().enumerate() {
            let Some(bytes) = image.read(block.start, block.len as usize) else { continue };
            let (mut last, mut count) = (block.start, 0);
            let decoded = restitch_x86::scan(bytes, block.start, |insn| {
                last = insn.at;
                count += 1;
            });
            if decoded.is_ok() {
                view.last[index] = last;
                view.instructions[index] = count;
            }
        }
        view
    }

    /// The same without bytes: the last instruction of a block without a branch is taken to be its first.
    pub fn of_program(program: &Program) -> Self {
        // The attribute BRANCH_TARGET holds for what stands behind the end of a table, too; BOLT does not
        // look there.
        let mut target = vec![false; program.blocks.len()];
        for edge in program.edges.iter().filter(|e| e.kind == EdgeKind::Table) {
            target[edge.to.index()] = true;
        }
        let jumps = program.blocks.iter().filter_map(|b| match b.terminator {
            Terminator::Jump(to) | Terminator::Conditional(_, to) | Terminator::ShortConditional(to) => {
                Some(to)
            }
            _ => None,
        });
        let calls = program.calls.iter().filter_map(|c| match c.target {
            CallTarget::Direct(to) => Some(to),
            CallTarget::Indirect => None,
        });
        for block in jumps.chain(calls).filter_map(|to| program.block_starting_at(to)) {
            target[block.index()] = true;
        }
        let leader = program.block_ids().map(|b| is_leader(program, b, target[b.index()])).collect();
        let last =
            |b: &restitch_program::Block| if b.terminator_len > 0 { b.terminator_at() } else { b.start };
        Self {
            leader,
            last: program.blocks.iter().map(last).collect(),
            instructions: vec![0; program.blocks.len()],
        }
    }

    /// Whether BOLT begins a block here.
    pub fn is_leader(&self, block: BlockId) -> bool {
        self.leader.get(block.index()).copied().unwrap_or(false)
    }

    /// Where the last instruction of `block` is, if control can go on from it into `next` and BOLT sees two
    /// blocks there.
    pub fn step(&self, program: &Program, block: BlockId, next: BlockId) -> Option<Svma> {
        let same = program.blocks.get(next.index())?.function == program.block(block).function;
        let falls = || program.out_edges(block).any(|(_, e)| e.kind == EdgeKind::FallThrough && e.to == next);
        (same && self.is_leader(next) && falls()).then(|| self.last[block.index()])
    }

    /// Our blocks of `function` in groups, one a block of BOLT, in address order. Padding between
    /// blocks is a block to BOLT.
    pub fn groups(&self, program: &Program, function: FuncId) -> Vec<Vec<BlockId>> {
        let mut groups: Vec<Vec<BlockId>> = Vec::new();
        for block in program.blocks_of(function) {
            match groups.last_mut() {
                Some(group) if !self.is_leader(block) => group.push(block),
                _ => groups.push(vec![block]),
            }
        }
        groups
    }

    /// Adds the steps that BOLT does not know of, between our blocks within one of its own: each runs as
    /// often as the block that it leaves, or, in front of a lone `jmp`, as that is taken.
    pub fn complete(&self, program: &Program, records: &mut Records) {
        let (profile, _) = records.to_profile(program);
        let mut arrived = profile.blocks.clone();
        for block in program.block_ids().filter(|b| !self.is_leader(*b)) {
            let Some(before) = block.0.checked_sub(1).map(BlockId) else { continue };
            let falls = |e: &restitch_program::Edge| e.kind == EdgeKind::FallThrough && e.to == block;
            let Some((edge, _)) = program.out_edges(before).find(|(_, e)| falls(e)) else { continue };
            let plain = program.block(before).terminator == Terminator::FallThrough;
            let count = if plain { arrived[before.index()] } else { arrived[block.index()] };
            let missing = count.saturating_sub(profile.edge(edge));
            if missing > 0 {
                records.add_fall_through(self.last[before.index()], program.block(block).start, missing);
                arrived[block.index()] = arrived[block.index()].max(count);
            }
        }
    }

    /// Instructions of `block`; 0 if its bytes are not known.
    pub fn instructions(&self, block: BlockId) -> u32 {
        self.instructions.get(block.index()).copied().unwrap_or(0)
    }
}

fn is_leader(program: &Program, id: BlockId, target: bool) -> bool {
    let block = program.block(id);
    if target || block.attrs.intersects(BlockAttrs::ENTRY | BlockAttrs::LANDING_PAD) {
        return true;
    }
    let Some(before) = id.0.checked_sub(1).map(|b| program.block(BlockId(b))) else { return true };
    if before.function != block.function {
        return true;
    }
    let lone_jump =
        matches!(block.terminator, Terminator::Jump(_)) && block.len == u32::from(block.terminator_len);
    let inside = |to| program.function(block.function).range.contains(to);
    match before.terminator {
        Terminator::FallThrough => false,
        Terminator::Conditional(_, to) | Terminator::ShortConditional(to) => !(lone_jump && inside(to)),
        _ => true,
    }
}
