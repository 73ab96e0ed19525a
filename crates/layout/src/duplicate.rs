//! Tail duplication: superblocks.
//!
//! **Problem.** Where several blocks lead to one, only one of them can stand in front of it. All others jump, however often they run: to the
//! code behind an `if`, to the common end of a function, to the dispatch of an interpreter, to the condition of a loop.
//!
//! **Idea.** State equivalence permits several copies of a block. A copy behind the block that jumps makes the jump superfluous, and
//! goes on as far as that pays: best up to a return or an indirect jump, which never need a branch to somewhere else.
//!
//! **The price.** Code gets larger, and the instruction cache does not. What a tail saves (taken branches, and jumps that are not
//! executed) has to be worth more than its bytes, each at [`DuplicateLimits::price`] executions of an average byte of hot code; all tails together take at most
//! [`DuplicateLimits::growth`] of the hot code. So the hottest jumps of programs with hot spots are removed, and
//! flat code, which waits for the cache, stays as it is.
//!
//! **What it does not know** is how control went before: a duplicate is taken to be left as its block is left on average. Calls and returns inside of
//! duplicates are as in the original.
//!
//! Sources: Hwu et al., *The Superblock* (J. Supercomputing 1993); Mueller and Whalley, *Avoiding unconditional jumps by code
//! replication* (PLDI 1992), which duplicates up to returns and loop ends for the same reason.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use restitch_profile::Profile;
use restitch_program::{BlockAttrs, BlockId, EdgeKind, Program, Terminator};

use crate::{Layout, Tail};

/// What an instruction is worth, measured in taken branches.
const INSTRUCTION: f64 = 0.25;
/// Bytes of a jump that stands for a fall-through; mostly the long form, since duplicates lie far from what they lead to.
const JUMP: f64 = 5.0;

/// How much may be duplicated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DuplicateLimits {
    /// Bytes of a tail, at most.
    pub bytes: u32,
    /// Blocks of a tail, at most.
    pub blocks: usize,
    /// All tails together, as a share of the bytes of hot code.
    pub growth: f64,
    /// What a byte has to save: taken branches for each execution of an average byte of hot code.
    pub price: f64,
}

impl Default for DuplicateLimits {
    fn default() -> Self {
        Self { bytes: 64, blocks: 8, growth: 0.03, price: 0.25 }
    }
}

/// What was duplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duplicated {
    /// Duplicates.
    pub blocks: u64,
    /// Their bytes, as long as the originals.
    pub bytes: u64,
    /// Executions of branches that are no longer taken, by the profile.
    pub taken: u64,
}

/// Adds duplicates to the hot code of `layout` where `profile` says that they save taken branches. Same input, same output; tails that the layout
/// has already are replaced.
pub fn duplicate_tails(
    program: &Program,
    profile: &Profile,
    layout: &mut Layout,
    limits: &DuplicateLimits,
) -> Duplicated {
    layout.tails.clear();
    let mut search = Search::new(program, profile, layout, limits);
    let (tails, done) = search.run();
    layout.tails = tails;
    layout.tails.sort_by_key(|t| t.behind);
    done
}

/// What is gained by a tail.
#[derive(Debug, Clone)]
struct Candidate {
    tail: Tail,
    /// How often control falls into each of its blocks.
    entered: Vec<f64>,
    /// Taken branches and instructions, weighed.
    gain: f64,
    /// Taken branches alone.
    taken: f64,
    /// Bytes that the code grows by.
    bytes: f64,
}

impl Candidate {
    fn density(&self) -> f64 {
        self.gain / self.bytes
    }
}

struct Search<'a> {
    program: &'a Program,
    profile: &'a Profile,
    limits: &'a DuplicateLimits,
    /// By block: it is hot and may be duplicated.
    hot: Vec<bool>,
    /// By block of the hot code: what stands behind it.
    next: Vec<Option<BlockId>>,
    /// By block: executions that do not go through a duplicate.
    left: Vec<f64>,
    /// Bytes of the hot code.
    bytes: f64,
    /// What a byte has to save.
    price: f64,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, profile: &'a Profile, layout: &Layout, limits: &'a DuplicateLimits) -> Self {
        let count = program.blocks.len();
        let left = (0..count).map(|b| profile.block(BlockId(b as u32)) as f64).collect();
        let (mut hot, mut next) = (vec![false; count], vec![None; count]);
        let (mut bytes, mut executed) = (0.0, 0.0);
        for (i, fragment) in layout.hot.iter().enumerate() {
            let following = layout.hot.get(i + 1).filter(|f| f.align == 1).and_then(|f| f.blocks.first());
            for (k, &block) in fragment.blocks.iter().enumerate() {
                next[block.index()] = fragment.blocks.get(k + 1).or(following).copied();
                let len = f64::from(program.block(block).len);
                bytes += len;
                executed += len * profile.block(block) as f64;
                hot[block.index()] = profile.block(block) > 0
                    && !program.block(block).attrs.intersects(BlockAttrs::PINNED | BlockAttrs::LANDING_PAD);
            }
        }
        let price = limits.price * executed / f64::max(bytes, 1.0);
        Self { program, profile, limits, hot, next, left, bytes, price }
    }

    /// Takes the densest tails first. What was taken makes others worth less: they are looked at again when it is their turn.
    fn run(&mut self) -> (Vec<Tail>, Duplicated) {
        let mut heap: BinaryHeap<(u64, Reverse<u32>)> = BinaryHeap::new();
        let key = |c: &Candidate| c.density().to_bits();
        for block in self.program.block_ids() {
            if let Some(candidate) = self.best_behind(block) {
                heap.push((key(&candidate), Reverse(block.0)));
            }
        }
        let (mut tails, mut done) = (Vec::new(), Duplicated::default());
        let mut room = self.limits.growth * self.bytes;
        while let Some((found, Reverse(block))) = heap.pop() {
            let Some(candidate) = self.best_behind(BlockId(block)) else { continue };
            if key(&candidate) < found && heap.peek().is_some_and(|(other, _)| *other > key(&candidate)) {
                heap.push((key(&candidate), Reverse(block)));
                continue;
            }
            if candidate.bytes > room {
                continue;
            }
            room -= candidate.bytes;
            for (&block, entered) in candidate.tail.blocks.iter().zip(&candidate.entered) {
                self.left[block.index()] = (self.left[block.index()] - entered).max(0.0);
                done.bytes += u64::from(self.program.block(block).len);
            }
            done.blocks += candidate.tail.blocks.len() as u64;
            done.taken += candidate.taken.max(0.0) as u64;
            // Nothing more comes behind it.
            self.next[block as usize] = candidate.tail.blocks.first().copied();
            tails.push(candidate.tail);
        }
        (tails, done)
    }

    /// The tail behind `block` that gains most, if one is worth its bytes.
    fn best_behind(&self, block: BlockId) -> Option<Candidate> {
        if !self.hot[block.index()] || self.left[block.index()] == 0.0 {
            return None;
        }
        let share = self.left[block.index()] / self.profile.block(block) as f64;
        let ways = self.ways(block);
        let tails = ways.into_iter().filter(|(to, _)| Some(*to) != self.next[block.index()]);
        let candidates = tails.filter_map(|(to, count)| self.grow(block, share, to, count * share));
        candidates
            .filter(|c| c.gain > self.price * c.bytes)
            .max_by(|a, b| (a.gain - self.price * a.bytes).total_cmp(&(b.gain - self.price * b.bytes)))
    }

    /// The best of the tails behind `behind` that begin with `first`, which is entered `count` times.
    fn grow(&self, behind: BlockId, share: f64, first: BlockId, count: f64) -> Option<Candidate> {
        let former = self.next[behind.index()];
        let mut saved = self.cost(behind, former, false).minus(self.cost(behind, Some(first), false), share);
        let mut bytes = -self.extra_bytes(behind, former) + self.extra_bytes(behind, Some(first));
        let mut tail = Tail { behind, blocks: Vec::new(), turned: false };
        let (mut entered, mut length) = (Vec::new(), 0);
        let mut best: Option<Candidate> = None;
        let mut at = Some((first, count));
        while let Some((block, count)) = at.filter(|(b, _)| self.may_add(&tail, *b)) {
            length += self.program.block(block).len;
            if length > self.limits.bytes || tail.blocks.len() >= self.limits.blocks {
                break;
            }
            let share = count / self.profile.block(block) as f64;
            tail.blocks.push(block);
            entered.push(count);
            // Once as the last one, and once with what comes behind it.
            let own = self.cost(block, self.next[block.index()], false);
            let size = bytes + f64::from(self.program.block(block).len);
            let (straight, turned) = (self.cost(block, former, false), self.cost(block, former, true));
            let turns = turned.weight() < straight.weight();
            let end = saved.plus(own.minus(if turns { turned } else { straight }, share));
            let candidate = Candidate {
                tail: Tail { turned: turns, ..tail.clone() },
                entered: entered.clone(),
                gain: end.weight(),
                taken: end.taken,
                bytes: f64::max(size + self.extra_bytes(block, former), 1.0),
            };
            let worth = |c: &Candidate| c.gain - self.price * c.bytes;
            if best.as_ref().is_none_or(|b| worth(&candidate) > worth(b)) {
                best = Some(candidate);
            }
            at = self.ways(block).into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
            if let Some((on, count)) = &mut at {
                saved = saved.plus(own.minus(self.cost(block, Some(*on), false), share));
                bytes = size + self.extra_bytes(block, Some(*on));
                *count *= share;
            }
        }
        best
    }

    fn may_add(&self, tail: &Tail, block: BlockId) -> bool {
        self.hot[block.index()] && block != tail.behind && !tail.blocks.contains(&block)
    }

    /// Where control can fall from the end of a block, with executions.
    fn ways(&self, block: BlockId) -> Vec<(BlockId, f64)> {
        if !matches!(
            self.program.block(block).terminator,
            Terminator::FallThrough | Terminator::Jump(_) | Terminator::Conditional(..)
        ) {
            return Vec::new();
        }
        let edges = self.program.out_edges(block);
        let mut ways: Vec<(BlockId, f64)> =
            edges.map(|(id, e)| (e.to, self.profile.edge(id) as f64)).filter(|(_, n)| *n > 0.0).collect();
        ways.dedup_by(|again, first| {
            let same = again.0 == first.0;
            if same {
                first.1 += again.1;
            }
            same
        });
        ways
    }

    /// What leaving a block costs, all its executions together, if `next` stands behind it.
    fn cost(&self, block: BlockId, next: Option<BlockId>, turned: bool) -> Cost {
        let way = |kind| self.program.out_edges(block).find(|(_, e)| e.kind == kind);
        let count = |way: Option<(_, _)>| way.map_or(0.0, |(id, _)| self.profile.edge(id) as f64);
        let is_next =
            |way: Option<(_, &restitch_program::Edge)>| way.is_some_and(|(_, e)| Some(e.to) == next);
        let (fall, taken) = (way(EdgeKind::FallThrough), way(EdgeKind::Taken));
        let jumps =
            |way| if is_next(way) { Cost::default() } else { Cost { taken: count(way), added: count(way) } };
        match self.program.block(block).terminator {
            Terminator::FallThrough => jumps(fall),
            Terminator::Jump(_) => jumps(taken),
            Terminator::Conditional(..) => {
                let (away, on) = match is_next(fall) || !is_next(taken) && !turned {
                    true => (taken, fall),
                    false => (fall, taken),
                };
                Cost { taken: count(away), added: 0.0 }.plus(jumps(on))
            }
            _ => Cost::default(),
        }
    }

    /// Bytes of the jump that a block needs, or (negative) does not need any more, if `next` stands behind it.
    fn extra_bytes(&self, block: BlockId, next: Option<BlockId>) -> f64 {
        let b = self.program.block(block);
        let next = next.map(|n| self.program.block(n).start);
        match b.terminator {
            Terminator::FallThrough if next != Some(b.end()) => JUMP,
            Terminator::Conditional(_, to) if next != Some(b.end()) && next != Some(to) => JUMP,
            Terminator::Jump(to) if next == Some(to) => -f64::from(b.terminator_len),
            _ => 0.0,
        }
    }
}

/// Executions of taken branches, and of jumps that the order makes necessary.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    taken: f64,
    added: f64,
}

impl Cost {
    fn weight(self) -> f64 {
        self.taken + INSTRUCTION * self.added
    }
    fn plus(self, other: Self) -> Self {
        Self { taken: self.taken + other.taken, added: self.added + other.added }
    }
    /// The difference, for this share of the executions.
    fn minus(self, other: Self, share: f64) -> Self {
        Self { taken: share * (self.taken - other.taken), added: share * (self.added - other.added) }
    }
}
