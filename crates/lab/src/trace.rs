//! A made-up execution: a weighted random walk over a profile.
//!
//! Branches are taken as often as the profile says, independently of what was before. Direct calls lead to
//! their callee, and its returns back. Where control goes by an indirect call or jump is unknown; but a block
//! that ran more often than known transfers explain must have been reached that way, so targets are drawn by
//! that surplus: of indirect jumps within the function where it has one, else over all functions.

use restitch_profile::Profile;
use restitch_program::{BlockAttrs, BlockId, CallTarget, Program, Terminator};

/// Return addresses that the walk remembers; calls beyond are stepped over.
const DEPTH: usize = 200;

/// How control leaves a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By a branch, or by falling through: the layout decides.
    Branch,
    /// By something that is taken in every layout: call, return, indirect jump.
    Taken,
}

/// A stretch of a block that ran without interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The block.
    pub block: BlockId,
    /// Bytes from the block's start to the first one.
    pub from: u32,
    /// Bytes from the block's start to behind the last one; [`Step::END`] for all of the block.
    pub to: u32,
    /// What comes then.
    pub how: How,
}

impl Step {
    /// The end of a block, whatever its length in a layout.
    pub const END: u32 = u32::MAX;
}

/// Steps in the order of their execution.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Trace {
    /// A walk of `length` steps. The same seed gives the same walk. Empty if nothing ran.
    pub fn walk(program: &Program, profile: &Profile, length: usize, seed: u64) -> Self {
        let mut walk = Walk::new(program, profile, seed);
        let mut at = walk.anywhere();
        let mut steps = Vec::with_capacity(length);
        while steps.len() < length {
            let Some(block) = at else { break };
            at = walk.through(block, 0, &mut steps);
        }
        steps.truncate(length);
        Self { steps }
    }
}

/// Things to draw from, by weight.
#[derive(Debug, Default)]
struct Urn {
    blocks: Vec<BlockId>,
    /// Sums of weights up to and with each.
    sums: Vec<f64>,
}

impl Urn {
    fn add(&mut self, block: BlockId, weight: u64) {
        if weight > 0 {
            self.sums.push(self.sums.last().unwrap_or(&0.0) + weight as f64);
            self.blocks.push(block);
        }
    }
    fn draw(&self, random: &mut Random) -> Option<BlockId> {
        let at = random.unit() * self.sums.last()?;
        self.blocks.get(self.sums.partition_point(|&s| s <= at)).copied()
    }
}

/// xorshift64*: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Walk<'a> {
    program: &'a Program,
    profile: &'a Profile,
    random: Random,
    /// Entries that are reached in unknown ways.
    entries: Urn,
    /// By function: blocks that indirect jumps reach.
    inside: Vec<Urn>,
    /// Block and number of its call.
    stack: Vec<(BlockId, u32)>,
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, profile: &'a Profile, seed: u64) -> Self {
        let surplus = surplus(program, profile);
        let mut entries = Urn::default();
        let mut inside: Vec<Urn> = program.functions.iter().map(|_| Urn::default()).collect();
        for block in program.block_ids() {
            let attrs = program.block(block).attrs;
            let weight = surplus[block.index()];
            if attrs.contains(BlockAttrs::ENTRY) {
                entries.add(block, weight);
            } else if attrs.contains(BlockAttrs::INDIRECT) {
                inside[program.block(block).function.index()].add(block, weight);
            }
        }
        if entries.blocks.is_empty() {
            program.block_ids().for_each(|b| entries.add(b, profile.block(b)));
        }
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Self { program, profile, random, entries, inside, stack: Vec::new() }
    }

    fn anywhere(&mut self) -> Option<BlockId> {
        self.entries.draw(&mut self.random)
    }

    /// Runs a block from its call number `call` on; the block that comes next.
    fn through(&mut self, block: BlockId, call: u32, steps: &mut Vec<Step>) -> Option<BlockId> {
        let calls = self.program.calls_of(block);
        let start = self.program.block(block).start.get();
        let mut from = match call.checked_sub(1).and_then(|c| calls.get(c as usize)) {
            Some(done) => (done.at.get() - start) as u32 + u32::from(done.len),
            None => 0,
        };
        for (number, site) in calls.iter().enumerate().skip(call as usize) {
            let to = (site.at.get() - start) as u32 + u32::from(site.len);
            let callee = match site.target {
                CallTarget::Direct(target) => self.program.block_starting_at(target),
                CallTarget::Indirect => self.anywhere(),
            };
            let callee = callee.filter(|&c| self.profile.block(c) > 0 && self.stack.len() < DEPTH);
            if let Some(callee) = callee {
                steps.push(Step { block, from, to, how: How::Taken });
                self.stack.push((block, number as u32 + 1));
                return Some(callee);
            }
            // A call to somewhere else: it takes the line with it, and comes back.
            steps.push(Step { block, from, to, how: How::Taken });
            from = to;
        }
        self.leave(block, from, steps)
    }

    fn leave(&mut self, block: BlockId, from: u32, steps: &mut Vec<Step>) -> Option<BlockId> {
        if let Some(next) = self.branch(block) {
            let indirect = matches!(self.program.block(block).terminator, Terminator::Table(_));
            let how = if indirect { How::Taken } else { How::Branch };
            steps.push(Step { block, from, to: Step::END, how });
            return Some(next);
        }
        steps.push(Step { block, from, to: Step::END, how: How::Taken });
        let b = self.program.block(block);
        if b.terminator == Terminator::IndirectJump {
            let near = self.inside[b.function.index()].draw(&mut self.random);
            return near.or_else(|| self.anywhere());
        }
        match self.stack.pop() {
            Some((caller, call)) => self.resume(caller, call, steps),
            None => self.anywhere(),
        }
    }

    fn resume(&mut self, caller: BlockId, call: u32, steps: &mut Vec<Step>) -> Option<BlockId> {
        self.through(caller, call, steps)
    }

    /// The block to which one of the known branches leads; `None` if control goes elsewhere.
    fn branch(&mut self, block: BlockId) -> Option<BlockId> {
        let ways = || self.program.out_edges(block).map(|(id, e)| (self.profile.edge(id), e.to));
        let total: u64 = ways().map(|(count, _)| count).sum();
        let mut at = self.random.unit() * total as f64;
        let mut last = None;
        for (count, to) in ways().filter(|(count, _)| *count > 0) {
            last = Some(to);
            at -= count as f64;
            if at < 0.0 {
                break;
            }
        }
        last
    }
}

/// Executions of each block that known branches and direct calls do not explain.
fn surplus(program: &Program, profile: &Profile) -> Vec<u64> {
    let mut surplus = profile.blocks.clone();
    let mut explain = |block: BlockId, count: u64| {
        surplus[block.index()] = surplus[block.index()].saturating_sub(count);
    };
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        explain(edge.to, count);
    }
    for (call, &count) in program.calls.iter().zip(&profile.calls) {
        if let CallTarget::Direct(target) = call.target
            && let Some(callee) = program.block_starting_at(target)
        {
            explain(callee, count);
        }
    }
    surplus
}
