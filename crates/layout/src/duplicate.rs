//! Tail duplication: superblocks.
//!
//! **Problem.** Where several blocks lead to one, only one of them can stand in front of it. All others jump,
//! however often they run: to the code behind an `if`, to the common end of a function, to the dispatch of an
//! interpreter, to the condition of a loop.
//!
//! **Idea.** State equivalence permits several copies of a block. A copy behind the block that jumps makes
//! the jump superfluous, and goes on as far as that pays: best up to a return or an indirect jump, which
//! never need a branch to somewhere else.
//!
//! **The price.** Code gets larger, and the instruction cache does not. What a tail saves (taken branches,
//! and jumps that are not executed) has to be worth more than its bytes, each at [`DuplicateLimits::price`]
//! executions of an average byte of hot code; all tails together take at most [`DuplicateLimits::growth`] of
//! the hot code. So the hottest jumps of programs with hot spots are removed, and flat code, which waits for
//! the cache, stays as it is.
//!
//! **Ways through joins.** Where the profile has counts of edges by the edge before ([`Profile::paths`], of
//! branch records), a duplicate is left as its block is when control comes from that side, and the block's
//! own place as it is for the rest. Otherwise it is taken to be left as its block is left on average. Calls
//! and returns inside of duplicates are as in the original.
//!
//! Sources: Hwu et al., *The Superblock* (J. Supercomputing 1993); Mueller and Whalley, *Avoiding
//! unconditional jumps by code replication* (PLDI 1992), which duplicates up to returns and loop ends for the
//! same reason.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use restitch_profile::Profile;
use restitch_program::{BlockAttrs, BlockId, EdgeId, EdgeKind, Program, Terminator};

use crate::model::{Layout, Tail};

/// What an instruction is worth, measured in taken branches.
const INSTRUCTION: f64 = 0.25;
/// Bytes of a jump that stands for a fall-through; mostly the long form, since duplicates lie far from what
/// they lead to.
const JUMP: f64 = 5.0;

/// Fewer executions of an edge do not tell how control goes on behind it.
const LEAST_PATHS: u64 = 8;

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

/// Adds duplicates to the hot code of `layout` where `profile` says that they save taken branches. Same
/// input, same output; tails that the layout has already are replaced.
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
    /// The executions of each of its blocks.
    flows: Vec<Flow>,
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
    left: Vec<Flow>,
    /// Bytes of the hot code.
    bytes: f64,
    /// What a byte has to save.
    price: f64,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, profile: &'a Profile, layout: &Layout, limits: &'a DuplicateLimits) -> Self {
        let count = program.blocks.len();
        let left = program.block_ids().map(|b| average(program, profile, b)).collect();
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

    /// Takes the densest tails first. What was taken makes others worth less: they are looked at again when
    /// it is their turn.
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
            for (&block, flow) in candidate.tail.blocks.iter().zip(&candidate.flows) {
                self.left[block.index()] = self.left[block.index()].without(*flow);
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
        if !self.hot[block.index()] || self.left[block.index()].entered == 0.0 {
            return None;
        }
        let ways = self.ways(block, self.left[block.index()]);
        let tails = ways.into_iter().filter(|way| Some(way.to) != self.next[block.index()]);
        let candidates = tails.filter_map(|way| self.grow(block, way));
        candidates
            .filter(|c| c.gain > self.price * c.bytes)
            .max_by(|a, b| (a.gain - self.price * a.bytes).total_cmp(&(b.gain - self.price * b.bytes)))
    }

    /// The best of the tails behind `behind` that begin with this way.
    fn grow(&self, behind: BlockId, first: Way) -> Option<Candidate> {
        let former = self.next[behind.index()];
        let flow = self.left[behind.index()];
        let mut saved =
            self.cost(behind, former, false, flow).minus(self.cost(behind, Some(first.to), false, flow));
        let mut bytes = -self.extra_bytes(behind, former) + self.extra_bytes(behind, Some(first.to));
        let mut tail = Tail { behind, blocks: Vec::new(), turned: false };
        let (mut flows, mut length) = (Vec::new(), 0);
        let mut best: Option<Candidate> = None;
        let mut at = Some(first);
        while let Some(way) = at.filter(|way| self.may_add(&tail, way.to)) {
            let block = way.to;
            length += self.program.block(block).len;
            if length > self.limits.bytes || tail.blocks.len() >= self.limits.blocks {
                break;
            }
            let flow = self.flow(way);
            tail.blocks.push(block);
            flows.push(flow);
            // Once as the last one, and once with what comes behind it.
            let own = self.cost(block, self.next[block.index()], false, flow);
            let size = bytes + f64::from(self.program.block(block).len);
            let (straight, turned) =
                (self.cost(block, former, false, flow), self.cost(block, former, true, flow));
            let turns = turned.weight() < straight.weight();
            let end = saved.plus(own.minus(if turns { turned } else { straight }));
            let candidate = Candidate {
                tail: Tail { turned: turns, ..tail.clone() },
                flows: flows.clone(),
                gain: end.weight(),
                taken: end.taken,
                bytes: f64::max(size + self.extra_bytes(block, former), 1.0),
            };
            let worth = |c: &Candidate| c.gain - self.price * c.bytes;
            if best.as_ref().is_none_or(|b| worth(&candidate) > worth(b)) {
                best = Some(candidate);
            }
            let ways = self.ways(block, flow).into_iter();
            at = ways.max_by(|a, b| a.count.total_cmp(&b.count).then(b.to.cmp(&a.to)));
            if let Some(on) = at {
                saved = saved.plus(own.minus(self.cost(block, Some(on.to), false, flow)));
                bytes = size + self.extra_bytes(block, Some(on.to));
            }
        }
        best
    }

    fn may_add(&self, tail: &Tail, block: BlockId) -> bool {
        self.hot[block.index()] && block != tail.behind && !tail.blocks.contains(&block)
    }

    /// Where control can fall from the end of a block that is left like this.
    fn ways(&self, block: BlockId, flow: Flow) -> Vec<Way> {
        if !matches!(
            self.program.block(block).terminator,
            Terminator::FallThrough | Terminator::Jump(_) | Terminator::Conditional(..)
        ) {
            return Vec::new();
        }
        let edges = self.program.out_edges(block);
        let mut ways: Vec<Way> = edges
            .map(|(edge, e)| Way { edge, to: e.to, count: flow.by(e.kind) })
            .filter(|w| w.count > 0.0)
            .collect();
        ways.dedup_by(|again, first| {
            let same = again.to == first.to;
            if same {
                first.count += again.count;
            }
            same
        });
        ways
    }

    /// How the block that a way leads to is left by executions that come this way.
    fn flow(&self, way: Way) -> Flow {
        let (first, last) = ((way.edge, EdgeId(0)), (way.edge, EdgeId(u32::MAX)));
        let known = || self.profile.paths.range(first..=last);
        let sum = known().map(|(_, n)| *n).fold(0, u64::saturating_add);
        if sum < LEAST_PATHS {
            let share = way.count / self.profile.block(way.to) as f64;
            return average(self.program, self.profile, way.to).times(share);
        }
        let mut flow = Flow::default();
        for (&(_, out), &count) in known() {
            flow.add(self.program.edges[out.index()].kind, count as f64);
        }
        Flow { entered: way.count, ..flow.times(way.count / sum as f64) }
    }

    /// What leaving a block like this costs if `next` stands behind it.
    fn cost(&self, block: BlockId, next: Option<BlockId>, turned: bool, flow: Flow) -> Cost {
        let is_next = |kind| self.program.out_edges(block).any(|(_, e)| e.kind == kind && Some(e.to) == next);
        let (fall, taken) = (EdgeKind::FallThrough, EdgeKind::Taken);
        let jumps = |kind| match is_next(kind) {
            true => Cost::default(),
            false => Cost { taken: flow.by(kind), added: flow.by(kind) },
        };
        match self.program.block(block).terminator {
            Terminator::FallThrough => jumps(fall),
            Terminator::Jump(_) => jumps(taken),
            Terminator::Conditional(..) => {
                let (away, on) = match is_next(fall) || !is_next(taken) && !turned {
                    true => (taken, fall),
                    false => (fall, taken),
                };
                Cost { taken: flow.by(away), added: 0.0 }.plus(jumps(on))
            }
            _ => Cost::default(),
        }
    }

    /// Bytes of the jump that a block needs, or (negative) does not need any more, if `next` stands behind
    /// it.
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

/// A way on, with executions.
#[derive(Debug, Clone, Copy)]
struct Way {
    edge: EdgeId,
    to: BlockId,
    count: f64,
}

/// Executions of a block, and how they leave it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Flow {
    entered: f64,
    fall: f64,
    taken: f64,
}

/// All executions of `block`.
fn average(program: &Program, profile: &Profile, block: BlockId) -> Flow {
    let mut flow = Flow { entered: profile.block(block) as f64, ..Flow::default() };
    program.out_edges(block).for_each(|(id, e)| flow.add(e.kind, profile.edge(id) as f64));
    flow
}

impl Flow {
    fn by(self, kind: EdgeKind) -> f64 {
        match kind {
            EdgeKind::FallThrough => self.fall,
            EdgeKind::Taken => self.taken,
            EdgeKind::Table => 0.0,
        }
    }
    fn add(&mut self, kind: EdgeKind, count: f64) {
        match kind {
            EdgeKind::FallThrough => self.fall += count,
            EdgeKind::Taken => self.taken += count,
            EdgeKind::Table => {}
        }
    }
    fn times(self, share: f64) -> Self {
        Self { entered: share * self.entered, fall: share * self.fall, taken: share * self.taken }
    }
    fn without(self, other: Self) -> Self {
        let less = |a: f64, b: f64| (a - b).max(0.0);
        Self {
            entered: less(self.entered, other.entered),
            fall: less(self.fall, other.fall),
            taken: less(self.taken, other.taken),
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
    fn minus(self, other: Self) -> Self {
        Self { taken: self.taken - other.taken, added: self.added - other.added }
    }
}
