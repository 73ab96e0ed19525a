//! Counts from instruction samples by **flow repair**: the nearest flow to the samples.
//!
//! **Problem.** Samples are few and contradict each other: a block that ran a million times has none, the two
//! ways of a branch have more than the branch. Block counts made of them satisfy no flow equation, and what
//! [`derive()`](crate::derive()) makes of them is clamped everywhere.
//!
//! **Idea** (Levin, Newman and Haber, *Complementing missing and inaccurate profiling using a minimum cost
//! circulation algorithm*, 2008; He, Mestre, Pupyrev, Wang and Yu, *Profile inference revisited*, 2022). Of
//! all counts that satisfy the equations take those that cost least, where changing a block's count costs the
//! more the better its samples tell it. This is a circulation of minimum cost: each block is an arc from
//! where it is entered to where it is left, the flow begins as the sampled counts, and what is too much at
//! one end and lacks at another is sent along the cheapest ways.
//!
//! **What a change costs.** Samples of a block are Poisson distributed around its count times its length.
//! Minus the logarithm of the likelihood is convex in the count; it is taken piecewise linear ([`SEGMENTS`]),
//! in samples: a block with many samples resists a change by a share of its count more than one with few, and
//! a long block without any resists being counted more than a short one. Between ways that cost the same, the
//! probability of branches by their looks decides (as in counter placement).
//!
//! **Not done**: calls and their targets are not tied to each other, nor are jumps to the entries of other
//! functions (tail calls). With tail calls three quarters of cc1plus are one network, which took a minute;
//! without them it is seconds, and functions without any sample stay at zero.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use restitch_program::{BlockAttrs, BlockId, Edge, EdgeId, Program, Terminator};

use crate::derive;
use crate::derive::Known;
use crate::equations::Equations;
use crate::model::Profile;
use crate::probabilities::shares;

/// Executions that one sample in a block of one byte stands for: samples fall in proportion to executions
/// times length.
pub const EXECUTIONS_PER_SAMPLE: u64 = 4096;

/// How far up a count can be raised, in samples, and what one sample more costs there (millionths): chords of
/// `1 - s / x`, the slope of the likelihood at `x` samples where `s` were seen. The first part ends one
/// standard deviation from `s`. Downwards likewise.
const SEGMENTS: Segments = Segments {
    up: &[(2.0, 330_000), (4.0, 600_000), (f64::INFINITY, 850_000)],
    down: &[(0.5, 550_000), (0.25, 1_700_000), (0.0, 4_000_000)],
};

struct Segments {
    up: &'static [(f64, i64)],
    down: &'static [(f64, i64)],
}

/// Cost of an execution that ends in a call that does not return: as much as a sample in 32 bytes.
const LOST: i64 = 32 * SAMPLE;
/// Cost of entering at a landing pad or an indirect target, and of ending the program: decides where samples
/// do not.
const ODD: i64 = SAMPLE / 100;
/// Cost of a sample that is missing, for each byte of the block.
const SAMPLE: i64 = 1_000_000;
/// Cost of a way by its probability: so much for each factor of two, far below the cost of a changed count.
const UNLIKELY: f64 = 2.0;
/// A loop that nothing enters is entered once for so many of its iterations.
const ITERATIONS: i64 = 64;
/// Arcs that may be looked at for each arc of a connected piece of the program before it is given up.
const PATIENCE: usize = 4000;
const UNBOUNDED: i64 = i64::MAX / 4;

/// A repaired profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Repaired {
    /// All counts; calls have the counts of their blocks. The flow equations hold wherever they are closed,
    /// apart from calls that do not return; tail calls may have a higher count than what they enter.
    pub profile: Profile,
    /// How much counts had to be changed, in samples (executions times length over
    /// [`EXECUTIONS_PER_SAMPLE`]).
    pub changed: f64,
    /// Blocks in pieces of the program that took too long; their counts are derived as
    /// [`derive()`](crate::derive()) does it.
    pub given_up: usize,
}

/// The nearest flow to `samples`, the number of samples in each block (by [`BlockId`]; missing ones are 0).
pub fn repair(program: &Program, samples: &[u64]) -> Repaired {
    let equations = Equations::new(program, None);
    let shares = shares(program);
    let at = |b: BlockId| samples.get(b.index()).copied().unwrap_or(0);
    let mut result = Repaired { profile: Profile::empty(program), changed: 0.0, given_up: 0 };
    let mut left: Vec<BlockId> = Vec::new();
    for blocks in pieces(program) {
        if blocks.iter().all(|b| at(*b) == 0) {
            continue;
        }
        let mut piece = Piece::new(program, &equations, &shares, &blocks, at);
        if piece.network.settle() {
            piece.connect();
            piece.write(program, &mut result);
        } else {
            left.extend(blocks);
        }
    }
    if !left.is_empty() {
        fall_back(program, &left, at, &mut result);
    }
    for block in program.block_ids() {
        let b = program.block(block);
        for call in b.first_call.0..b.first_call.0 + b.call_count {
            result.profile.calls[call as usize] = result.profile.block(block);
        }
    }
    result
}

/// Executions of `block` for `samples` in it.
fn executions(program: &Program, block: BlockId, samples: u64) -> i64 {
    let len = u64::from(program.block(block).len.max(1));
    (samples.saturating_mul(EXECUTIONS_PER_SAMPLE) / len).min(UNBOUNDED as u64 / 8) as i64
}

fn fall_back(program: &Program, left: &[BlockId], at: impl Fn(BlockId) -> u64, result: &mut Repaired) {
    let mut known = Known { blocks: vec![Some(0); program.blocks.len()], ..Known::default() };
    for &block in left {
        known.blocks[block.index()] = Some(executions(program, block, at(block)) as u64);
    }
    let derived = derive(program, &known).profile;
    for &block in left {
        result.profile.blocks[block.index()] = derived.block(block);
        program.out_edges(block).for_each(|(e, _)| result.profile.edges[e.index()] = derived.edge(e));
    }
    result.given_up += left.len();
}

/// Whether the edge enters another function at its start.
fn is_tail_call(program: &Program, edge: &Edge) -> bool {
    let (from, to) = (program.block(edge.from), program.block(edge.to));
    from.function != to.function && to.attrs.contains(BlockAttrs::ENTRY)
}

/// The blocks of the program by what edges connect (tail calls do not), each piece in address order.
fn pieces(program: &Program) -> Vec<Vec<BlockId>> {
    let mut parent: Vec<u32> = (0..program.blocks.len() as u32).collect();
    fn root(parent: &mut [u32], mut i: u32) -> u32 {
        while parent[i as usize] != i {
            parent[i as usize] = parent[parent[i as usize] as usize];
            i = parent[i as usize];
        }
        i
    }
    for edge in program.edges.iter().filter(|e| !is_tail_call(program, e)) {
        let (a, b) = (root(&mut parent, edge.from.0), root(&mut parent, edge.to.0));
        parent[a.max(b) as usize] = a.min(b);
    }
    let mut pieces: BTreeMap<u32, Vec<BlockId>> = BTreeMap::new();
    for block in program.block_ids() {
        pieces.entry(root(&mut parent, block.0)).or_default().push(block);
    }
    pieces.into_values().collect()
}

/// A connected piece of a program as a network: block `i` is entered at node `2 i` and left at `2 i + 1`; the
/// last node is the world outside.
struct Piece {
    blocks: Vec<BlockId>,
    /// Sampled executions of each.
    sampled: Vec<i64>,
    lengths: Vec<u32>,
    network: Network,
    /// The edges of the program and their arcs.
    edges: Vec<(EdgeId, u32)>,
}

impl Piece {
    fn new(
        program: &Program,
        equations: &Equations,
        shares: &[f64],
        blocks: &[BlockId],
        samples: impl Fn(BlockId) -> u64,
    ) -> Self {
        let index = |b: BlockId| blocks.binary_search(&b).expect("edges stay within their piece");
        let world = 2 * blocks.len();
        let mut this = Self {
            blocks: blocks.to_vec(),
            sampled: blocks.iter().map(|b| executions(program, *b, samples(*b))).collect(),
            lengths: blocks.iter().map(|b| program.block(*b).len.max(1)).collect(),
            network: Network::new(world + 1),
            edges: Vec::new(),
        };
        for (i, &block) in blocks.iter().enumerate() {
            this.add_block(i, samples(block));
            for (edge, e) in program.out_edges(block) {
                let unlikely = -shares[edge.index()].max(1e-6).log2() * UNLIKELY;
                let to = if is_tail_call(program, e) { world } else { 2 * index(e.to) };
                let arc = this.network.arc(2 * i + 1, to, UNBOUNDED, unlikely as i64);
                this.edges.push((edge, arc));
            }
            if let Some(cost) = entered_from_outside(program, equations, block) {
                this.network.arc(world, 2 * i, UNBOUNDED, cost);
            }
            if let Some(cost) = left_to_outside(program, equations, block) {
                this.network.arc(2 * i + 1, world, UNBOUNDED, cost);
            }
        }
        this
    }

    /// The arcs along which the count of block `i` changes.
    fn add_block(&mut self, i: usize, samples: u64) {
        let (count, len) = (self.sampled[i], i64::from(self.lengths[i]));
        let (enter, leave) = (2 * i, 2 * i + 1);
        self.network.excess[leave] += count;
        self.network.excess[enter] -= count;
        if samples == 0 {
            self.network.arc(enter, leave, UNBOUNDED, SAMPLE * len);
            return;
        }
        let deviation = (samples as f64).sqrt();
        let near = ((count as f64 / deviation) as i64).min(count);
        let nearly = (SAMPLE as f64 / 2.0 / deviation) as i64 * len;
        self.network.arc(enter, leave, near, nearly);
        let mut reached = count + near;
        for &(factor, cost) in SEGMENTS.up {
            let end = (count as f64 * factor).min(UNBOUNDED as f64) as i64;
            if end > reached {
                self.network.arc(enter, leave, end - reached, cost * len);
                reached = end;
            }
        }
        self.network.arc(leave, enter, near, nearly);
        let mut reached = count - near;
        for &(factor, cost) in SEGMENTS.down {
            let end = (count as f64 * factor) as i64;
            if end < reached {
                self.network.arc(leave, enter, reached - end, cost * len);
                reached = end;
            }
        }
    }

    /// Executions of block `i` now.
    fn count(&self, i: usize) -> i64 {
        self.sampled[i] + self.network.between(2 * i, 2 * i + 1)
    }

    /// Leads some of the flow to loops that nothing enters.
    fn connect(&mut self) {
        let world = 2 * self.blocks.len();
        let mut tried = vec![false; self.blocks.len()];
        loop {
            let reached = self.network.reached(world, |i| self.count(i) > 0);
            let alone = (0..self.blocks.len()).filter(|&i| !tried[i] && !reached[2 * i] && self.count(i) > 0);
            let Some(i) = alone.max_by_key(|&i| (self.count(i), Reverse(i))) else { return };
            tried[i] = true;
            let amount = (self.count(i) / ITERATIONS).max(1);
            let (into, out) = (self.network.way(world, 2 * i), self.network.way(2 * i + 1, world));
            if let (Some(into), Some(out)) = (into, out) {
                into.into_iter().chain(out).for_each(|arc| self.network.push(arc, amount));
                self.network.push_through(2 * i, amount);
            }
        }
    }

    fn write(&self, program: &Program, result: &mut Repaired) {
        for (i, &block) in self.blocks.iter().enumerate() {
            let count = self.count(i).max(0);
            result.profile.blocks[block.index()] = count as u64;
            let changed = count.abs_diff(self.sampled[i]) as f64;
            result.changed += changed * f64::from(program.block(block).len) / EXECUTIONS_PER_SAMPLE as f64;
        }
        for &(edge, arc) in &self.edges {
            result.profile.edges[edge.index()] = self.network.flow(arc).max(0) as u64;
        }
    }
}

/// What it costs to enter a block by no edge; `None` if its equation is closed.
fn entered_from_outside(program: &Program, equations: &Equations, block: BlockId) -> Option<i64> {
    if equations.closed_in(block) {
        return None;
    }
    let odd = program.block(block).attrs.intersects(BlockAttrs::LANDING_PAD | BlockAttrs::INDIRECT);
    Some(if odd { ODD } else { 0 })
}

/// What it costs to leave a block by no edge; `None` if nothing can.
fn left_to_outside(program: &Program, equations: &Equations, block: BlockId) -> Option<i64> {
    let b = program.block(block);
    match b.terminator {
        Terminator::Stop => Some(ODD),
        _ if !equations.closed_out(block) => Some(0),
        _ if b.call_count > 0 => Some(LOST),
        _ => None,
    }
}

/// A directed network with costs. Arcs come in pairs: `2 k` and its reverse `2 k + 1`.
struct Network {
    /// By node: flow that has to leave (positive) or to arrive.
    excess: Vec<i64>,
    to: Vec<u32>,
    /// What more can flow.
    room: Vec<i64>,
    cost: Vec<i64>,
    next: Vec<u32>,
    first: Vec<u32>,
    potential: Vec<i64>,
}

const NONE: u32 = u32::MAX;

impl Network {
    fn new(nodes: usize) -> Self {
        Self {
            excess: vec![0; nodes],
            to: Vec::new(),
            room: Vec::new(),
            cost: Vec::new(),
            next: Vec::new(),
            first: vec![NONE; nodes],
            potential: vec![0; nodes],
        }
    }

    fn arc(&mut self, from: usize, to: usize, room: i64, cost: i64) -> u32 {
        let id = self.to.len() as u32;
        for (a, b, room, cost) in [(from, to, room, cost), (to, from, 0, -cost)] {
            self.next.push(self.first[a]);
            self.first[a] = self.to.len() as u32;
            self.to.push(b as u32);
            self.room.push(room);
            self.cost.push(cost);
        }
        id
    }

    fn arcs(&self, node: usize) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(self.first[node]), |a| self.next.get(*a as usize).copied())
            .take_while(|a| *a != NONE)
    }

    /// Flow along the arc.
    fn flow(&self, arc: u32) -> i64 {
        self.room[(arc ^ 1) as usize]
    }

    /// Flow from `a` to `b` along arcs between them, less the flow back.
    fn between(&self, a: usize, b: usize) -> i64 {
        let own = |from: usize, to: usize| -> i64 {
            let arcs = self.arcs(from).filter(|arc| arc % 2 == 0 && self.to[*arc as usize] as usize == to);
            // A block may branch to itself: that arc goes from where it is left to where it is entered and is
            // unbounded.
            arcs.filter(|arc| !(from > to && self.room[*arc as usize] + self.flow(*arc) == UNBOUNDED))
                .map(|arc| self.flow(arc))
                .sum()
        };
        own(a, b) - own(b, a)
    }

    fn push(&mut self, arc: u32, amount: i64) {
        self.room[arc as usize] -= amount;
        self.room[(arc ^ 1) as usize] += amount;
    }

    /// Raises the count of the block that is entered at `node`.
    fn push_through(&mut self, node: usize, amount: i64) {
        let arcs = self.arcs(node).filter(|a| a % 2 == 0 && self.to[*a as usize] as usize == node + 1);
        if let Some(arc) = arcs.max_by_key(|a| self.room[*a as usize]) {
            self.push(arc, amount);
        }
    }

    /// Sends every excess to where something lacks, along cheapest ways; false if that takes too long.
    fn settle(&mut self) -> bool {
        let mut patience = PATIENCE * self.to.len();
        let mut search = Search::new(self.first.len());
        for source in 0..self.excess.len() {
            while self.excess[source] > 0 {
                let Some(target) = search.run(self, source, &mut patience) else { return false };
                self.augment(source, target, &search);
            }
        }
        true
    }

    fn augment(&mut self, source: usize, target: usize, search: &Search) {
        let mut amount = self.excess[source].min(-self.excess[target]);
        let way = search.way_to(self, source, target);
        way.iter().for_each(|arc| amount = amount.min(self.room[*arc as usize]));
        way.iter().for_each(|arc| self.push(*arc, amount));
        self.excess[source] -= amount;
        self.excess[target] += amount;
    }

    /// Nodes that flow reaches from `start`; `runs` says whether a block has a count.
    fn reached(&self, start: usize, runs: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut reached = vec![false; self.first.len()];
        let mut queue = vec![start];
        reached[start] = true;
        while let Some(node) = queue.pop() {
            let is_entrance = node % 2 == 0 && node + 1 < reached.len();
            let through = (is_entrance && runs(node / 2)).then_some(node + 1);
            let flows = self.arcs(node).filter(|a| a % 2 == 0 && self.flow(*a) > 0 && !is_entrance);
            for to in flows.map(|a| self.to[a as usize] as usize).chain(through) {
                if !std::mem::replace(&mut reached[to], true) {
                    queue.push(to);
                }
            }
        }
        reached
    }

    /// The shortest way from one node to another along arcs of the program and through blocks.
    fn way(&self, start: usize, end: usize) -> Option<Vec<u32>> {
        let mut by: Vec<u32> = vec![NONE; self.first.len()];
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            if node == end {
                break;
            }
            for arc in self.arcs(node).filter(|a| a % 2 == 0 && self.room[*a as usize] > UNBOUNDED / 4) {
                let to = self.to[arc as usize] as usize;
                // The way does not go through the world outside.
                if to != start && by[to] == NONE && (to == end || to + 1 < by.len()) {
                    by[to] = arc;
                    queue.push_back(to);
                }
            }
        }
        let (mut way, mut node) = (Vec::new(), end);
        while node != start {
            let arc = by[node];
            if arc == NONE {
                return None;
            }
            way.push(arc);
            node = self.to[(arc ^ 1) as usize] as usize;
        }
        Some(way)
    }
}

/// Dijkstra's search for the nearest lacking node, on reduced costs.
struct Search {
    distance: Vec<i64>,
    by: Vec<u32>,
    touched: Vec<u32>,
    heap: BinaryHeap<Reverse<(i64, u32)>>,
}

impl Search {
    fn new(nodes: usize) -> Self {
        Self {
            distance: vec![i64::MAX; nodes],
            by: vec![NONE; nodes],
            touched: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    fn run(&mut self, network: &mut Network, source: usize, patience: &mut usize) -> Option<usize> {
        self.touched.drain(..).for_each(|n| self.distance[n as usize] = i64::MAX);
        self.heap.clear();
        self.visit(source, 0, NONE);
        let mut done: Vec<u32> = Vec::new();
        while let Some(Reverse((distance, node))) = self.heap.pop() {
            let at = node as usize;
            if distance > self.distance[at] {
                continue;
            }
            if network.excess[at] < 0 {
                // Potentials of what lies nearer; all others stay.
                for n in done {
                    network.potential[n as usize] += self.distance[n as usize] - distance;
                }
                return Some(at);
            }
            done.push(node);
            let mut arc = network.first[at];
            while arc != NONE {
                let a = arc as usize;
                *patience = patience.checked_sub(1)?;
                if network.room[a] > 0 {
                    let to = network.to[a] as usize;
                    let length = network.cost[a] + network.potential[at] - network.potential[to];
                    if distance + length < self.distance[to] {
                        self.visit(to, distance + length, arc);
                    }
                }
                arc = network.next[a];
            }
        }
        None
    }

    fn visit(&mut self, node: usize, distance: i64, by: u32) {
        self.distance[node] = distance;
        self.by[node] = by;
        self.touched.push(node as u32);
        self.heap.push(Reverse((distance, node as u32)));
    }

    fn way_to(&self, network: &Network, source: usize, target: usize) -> Vec<u32> {
        let (mut way, mut node) = (Vec::new(), target);
        while node != source {
            let arc = self.by[node];
            way.push(arc);
            node = network.to[(arc ^ 1) as usize] as usize;
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, RandomProgram, Shape, walk};
    use proptest::prelude::*;

    const TEXT: &str = "\
function 0x1000..0x1040 f movable
  0x1000 +16 entry cond(4)/2 -> 0x1020
  0x1010 +16 - fall
  0x1020 +16 target cond(5)/2 -> 0x1000
  0x1030 +16 - return/1
";

    /// Samples that tell the counts exactly.
    fn exact(program: &Program, profile: &Profile) -> Vec<u64> {
        program.block_ids().map(|b| profile.block(b) * u64::from(program.block(b).len)).collect()
    }

    fn open_equations(program: &Program, profile: &Profile) -> Vec<String> {
        let equations = Equations::new(program, None);
        let mut wrong = Vec::new();
        for block in program.block_ids() {
            let count = profile.block(block);
            let enter: u64 = equations.in_edges(block).iter().map(|e| profile.edge(*e)).sum();
            let leave: u64 = program.out_edges(block).map(|(e, _)| profile.edge(e)).sum();
            let exact_out = equations.closed_out(block) && program.block(block).call_count == 0;
            let tail_calls = program.block(block).attrs.contains(BlockAttrs::ENTRY);
            if (enter > count && !tail_calls) || (equations.closed_in(block) && enter != count) {
                wrong.push(format!("{block:?}: {enter} go in, {count}"));
            }
            if leave > count || (exact_out && leave != count) {
                wrong.push(format!("{block:?}: {count}, {leave} go out"));
            }
        }
        wrong
    }

    #[test]
    fn a_block_without_samples_runs_between_those_with_many() {
        let program = Program::from_text(TEXT).unwrap();
        // The loop's first and third block have samples, and neither way between them.
        let repaired = repair(&program, &[1000, 0, 1000, 10]);
        assert_eq!(open_equations(&program, &repaired.profile), Vec::<String>::new());
        let [first, way, third, end] = repaired.profile.blocks[..] else { panic!("four blocks") };
        assert!(first.abs_diff(third) == 0 && first >= 250 * 1000, "{first} {third}");
        assert!(way < first / 50, "the way without samples is not taken: {way}");
        assert_eq!(end, 256 * 10);
    }

    #[test]
    fn contradicting_samples_meet_between() {
        let program = Program::from_text(TEXT).unwrap();
        let repaired = repair(&program, &[900, 300, 1100, 10]);
        assert_eq!(open_equations(&program, &repaired.profile), Vec::<String>::new());
        assert!((256 * 900..=256 * 1100).contains(&repaired.profile.blocks[0]));
        assert!((30.0..300.0).contains(&repaired.changed), "{}", repaired.changed);
    }

    #[test]
    fn a_loop_that_nothing_enters_is_entered() {
        let text = "\
function 0x1000..0x1040 f movable
  0x1000 +16 entry fall
  0x1010 +16 target cond(4)/2 -> 0x1010
  0x1020 +16 - fall
  0x1030 +16 - return/1
";
        let program = Program::from_text(text).unwrap();
        let repaired = repair(&program, &[0, 6400, 0, 0]);
        assert_eq!(open_equations(&program, &repaired.profile), Vec::<String>::new());
        let times = 256 * 6400 / 64;
        assert_eq!(repaired.profile.blocks, [times, 256 * 6400 + times, times, times]);
        assert_eq!(repair(&program, &[]).profile, Profile::empty(&program));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn exact_samples_stay(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let profile = walk(&program, seed, 30, 0.0);
            let samples = exact(&program, &profile);
            let (equations, shares) = (Equations::new(&program, None), shares(&program));
            for blocks in pieces(&program) {
                let mut piece = Piece::new(&program, &equations, &shares, &blocks, |b| samples[b.index()]);
                prop_assert!(piece.network.settle());
                for (i, block) in blocks.iter().enumerate() {
                    prop_assert_eq!(piece.count(i) as u64, profile.block(*block) * EXECUTIONS_PER_SAMPLE);
                }
            }
            // Edges of equal block counts may be others, among them loops that nothing enters: these are
            // connected.
            prop_assert_eq!(open_equations(&program, &repair(&program, &samples).profile), Vec::<String>::new());
        }

        #[test]
        fn whatever_the_samples_the_equations_hold(seed: u64) {
            let mut random = Random::new(seed);
            let shape = Shape { functions: 1 + random.below(4), blocks: 30, unmovable: 0.0 };
            let program = RandomProgram::shaped(seed, shape).program;
            let samples: Vec<u64> = program.blocks.iter().map(|_| [0, 0, 1, 5, 10_000, u64::MAX][random.below(6)] >> random.below(64)).collect();
            let repaired = repair(&program, &samples);
            prop_assert_eq!(repaired.given_up, 0);
            prop_assert_eq!(open_equations(&program, &repaired.profile), Vec::<String>::new());
            prop_assert_eq!(&repaired, &repair(&program, &samples));
        }
    }

    #[test]
    fn few_samples_become_a_better_profile() {
        // Overlap of edges with the true ones, over many programs: against what is derived from the same
        // samples.
        let (mut better, mut sums) = (0, [0.0; 2]);
        for seed in 0..60 {
            let program =
                RandomProgram::shaped(seed, Shape { functions: 3, blocks: 25, unmovable: 0.0 }).program;
            let truth = walk(&program, seed, 400, 0.0);
            let samples = drawn(&program, &truth, seed, 500);
            let of = |p: &Profile| overlap(&p.edges, &truth.edges);
            let blocks =
                program.block_ids().map(|b| Some(executions(&program, b, samples[b.index()]) as u64));
            let derived = derive(&program, &Known { blocks: blocks.collect(), ..Known::default() });
            let both = [of(&derived.profile), of(&repair(&program, &samples).profile)];
            better += usize::from(both[1] > both[0]);
            sums = [sums[0] + both[0], sums[1] + both[1]];
        }
        println!("derived {:.3}, repaired {:.3}; better in {better} of 60", sums[0] / 60.0, sums[1] / 60.0);
        assert!(sums[1] > sums[0] && better > 40, "{sums:?}, better in {better}");
    }

    fn drawn(program: &Program, truth: &Profile, seed: u64, number: usize) -> Vec<u64> {
        let mut random = Random::new(seed ^ 77);
        let weights = exact(program, truth);
        let all: u64 = weights.iter().sum();
        let mut samples = vec![0; weights.len()];
        for _ in 0..number {
            let mut at = random.bits() % all.max(1);
            for (i, w) in weights.iter().enumerate() {
                if at < *w {
                    samples[i] += 1;
                    break;
                }
                at -= w;
            }
        }
        samples
    }

    fn overlap(a: &[u64], b: &[u64]) -> f64 {
        let sum = |v: &[u64]| v.iter().sum::<u64>().max(1) as f64;
        let (sa, sb) = (sum(a), sum(b));
        a.iter().zip(b).map(|(x, y)| (*x as f64 / sa).min(*y as f64 / sb)).sum()
    }
}
