//! Where a counting version needs counters.
//!
//! **Problem.** One counter a block costs more than it has to: many counts follow from others by the flow
//! equations. Find the cheapest set of counters from which phase 1 of [`derive`](crate::derive) gets all the
//! rest exactly.
//!
//! **Idea** (Knuth 1973; Ball and Larus, *Optimally profiling and tracing programs*, 1994). Split each block
//! into an "in" and an "out" point with an edge between them, which is the block's own counter; control-flow
//! edges go from out to in. Points whose equation is open are one and the same point, the outside. In this
//! undirected graph, the counts on any spanning forest follow from the counts off it, so that a
//! *maximum*-cost forest leaves the cheapest counters. Phase 1 then eliminates the leaves of the forest one
//! after the other.
//!
//! **Costs.** Weight times price: a counter at a block start or on a fall-through edge is inline code, dearer
//! where the flags are live; one on a taken branch needs an out-of-line stub and a jump back; `loop` and
//! `jrcxz` reach only a short way and need another jump. Jump-table edges cannot carry counters: they go into
//! the forest first, and where they form cycles of their own some remain undetermined
//! ([`CounterPlan::undetermined`]) and are approximated by phase 2.
//!
//! **Losses.** A call that does not return breaks its block's outgoing equation. In a forest each derived
//! count is a sum of counters with signs +1 and -1, so that a loss of `n` changes each derived count by `n`
//! at most; it is never amplified, but it can reach every count of the same tree. Trees rarely span functions
//! (entries and returns are the outside), landing pads are outside points, and a call that visibly does not
//! return opens the equation. Opening the equations of all blocks with calls would confine losses wholly at
//! the price of about one counter more for each such block; [`Calls::MayNotReturn`] asks for that. The test
//! `losses_stay_small` measures both on random graphs.

use restitch_program::{BlockAttrs, BlockId, Edge, EdgeId, EdgeKind, FuncId, Program, Terminator};

use crate::derive::Known;
use crate::equations::Equations;
use crate::estimate::Estimate;
use crate::weights::Weights;

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    /// Executions of a block.
    Block(BlockId),
    /// Traversals of an edge.
    Edge(EdgeId),
}

/// What is believed about calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// Nearly all calls return: the fewest counters.
    #[default]
    Return,
    /// Any call may not return: equations behind calls are not used.
    MayNotReturn,
}

/// The counters of a counting version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CounterPlan {
    /// What is counted, block by block: its own counter, then those of the edges that leave it.
    pub counted: Vec<Counted>,
    /// The blocks of the counting version, by [`BlockId`].
    pub scope: Vec<bool>,
    /// Jump-table edges that do not follow from the counters.
    pub undetermined: Vec<EdgeId>,
    /// Number of blocks in scope: what plain block counting would need at least.
    pub blocks: usize,
}

impl CounterPlan {
    /// The counts that counter values (in the order of `counted`) stand for, ready for
    /// [`derive`](crate::derive). Missing values are unknown. What happens outside of the counting version is
    /// not seen: edges that begin there are 0.
    pub fn known(&self, program: &Program, values: &[u64]) -> Known {
        let mut known = Known {
            blocks: vec![None; program.blocks.len()],
            edges: program
                .edges
                .iter()
                .map(|edge| if self.has(edge.from) { None } else { Some(0) })
                .collect(),
            scope: Some(self.scope.clone()),
        };
        for (counted, value) in self.counted.iter().zip(values) {
            match *counted {
                Counted::Block(block) => known.blocks[block.index()] = Some(*value),
                Counted::Edge(edge) => known.edges[edge.index()] = Some(*value),
            }
        }
        known
    }

    /// The same, where nothing increments the counters with an index in `missing`: they are unknown, not
    /// zero.
    pub fn known_without(&self, program: &Program, values: &[u64], missing: &[u32]) -> Known {
        let mut known = self.known(program, values);
        for counted in missing.iter().filter_map(|&index| self.counted.get(index as usize)) {
            match *counted {
                Counted::Block(block) => known.blocks[block.index()] = None,
                Counted::Edge(edge) => known.edges[edge.index()] = None,
            }
        }
        known
    }

    /// Counters for each block in scope.
    pub fn ratio(&self) -> f64 {
        if self.blocks == 0 { 0.0 } else { self.counted.len() as f64 / self.blocks as f64 }
    }

    fn has(&self, block: BlockId) -> bool {
        self.scope[block.index()]
    }
}

/// The movable blocks of some functions, as a set by [`BlockId`].
pub fn scope_of(program: &Program, functions: &[FuncId]) -> Vec<bool> {
    let mut scope = vec![false; program.blocks.len()];
    for block in functions.iter().flat_map(|&f| program.blocks_of(f)) {
        scope[block.index()] = program.is_movable(block);
    }
    scope
}

/// Plans counters for the blocks in `scope` (by [`BlockId`]): exactly those that the counting version will
/// hold. Blocks that cannot be copied are left out.
pub fn plan_counters(program: &Program, scope: &[bool], weights: Weights<'_>, calls: Calls) -> CounterPlan {
    let scope: Vec<bool> = program
        .block_ids()
        .map(|b| scope.get(b.index()).copied().unwrap_or(false) && program.is_movable(b))
        .collect();
    let equations = Equations::new(program, Some(&scope));
    let estimate = Estimate::new(program, &equations, weights);
    let mut candidates = candidates(program, &scope, &estimate);
    candidates.sort_unstable_by_key(|c| (std::cmp::Reverse(c.cost), std::cmp::Reverse(c.counted)));
    let mut points = Points::new(program, &equations, calls);
    let mut plan = CounterPlan { blocks: scope.iter().filter(|s| **s).count(), ..CounterPlan::default() };
    for candidate in candidates {
        let (a, b) = match candidate.counted {
            Counted::Block(block) => (points.inward(block), points.outward(block)),
            Counted::Edge(edge) => {
                let edge = program.edges[edge.index()];
                (points.outward(edge.from), points.inward(edge.to))
            }
        };
        if points.join(a, b) {
            continue;
        }
        match candidate.counted {
            Counted::Edge(edge) if candidate.cost == NOT_COUNTABLE => plan.undetermined.push(edge),
            counted => plan.counted.push(counted),
        }
    }
    // Counters that run together share cache lines.
    plan.counted.sort_unstable_by_key(|&counted| match counted {
        Counted::Block(block) => (block, None),
        Counted::Edge(edge) => (program.edges[edge.index()].from, Some(edge)),
    });
    plan.undetermined.sort_unstable();
    plan.scope = scope;
    plan
}

const NOT_COUNTABLE: u64 = u64::MAX;
/// Relative prices of one execution of a counter: the increment itself, what live flags add (saving and
/// restoring them), and a jump to a stub and back.
const INCREMENT: u64 = 4;
const LIVE_FLAGS: u64 = 4;
const STUB: u64 = 4;

struct Candidate {
    cost: u64,
    counted: Counted,
}

fn candidates(program: &Program, scope: &[bool], estimate: &Estimate) -> Vec<Candidate> {
    let mut all = Vec::new();
    for block in program.block_ids().filter(|b| scope[b.index()]) {
        let cost = estimate.block(block).saturating_mul(price_at(program, block)).min(NOT_COUNTABLE - 1);
        all.push(Candidate { cost, counted: Counted::Block(block) });
        for (id, edge) in program.out_edges(block) {
            let cost = match price_of(program, edge) {
                None => NOT_COUNTABLE,
                Some(price) => estimate.edge(id).saturating_mul(price).min(NOT_COUNTABLE - 1),
            };
            all.push(Candidate { cost, counted: Counted::Edge(id) });
        }
    }
    all
}

fn price_at(program: &Program, block: BlockId) -> u64 {
    let live = program.block(block).attrs.contains(BlockAttrs::FLAGS_LIVE_IN);
    INCREMENT + if live { LIVE_FLAGS } else { 0 }
}

fn price_of(program: &Program, edge: &Edge) -> Option<u64> {
    let inline = price_at(program, edge.to);
    match (edge.kind, program.block(edge.from).terminator) {
        (EdgeKind::Table, _) => None,
        (EdgeKind::FallThrough, _) => Some(inline),
        (EdgeKind::Taken, Terminator::ShortConditional(_)) => Some(inline + 2 * STUB),
        (EdgeKind::Taken, _) => Some(inline + STUB),
    }
}

/// The points of the graph, joined as the forest grows (union-find). Point 0 is the outside.
struct Points {
    parent: Vec<u32>,
}

impl Points {
    fn new(program: &Program, equations: &Equations, calls: Calls) -> Self {
        let mut points = Self { parent: (0..program.blocks.len() as u32 * 2 + 1).collect() };
        for block in program.block_ids() {
            let lossy = calls == Calls::MayNotReturn && program.block(block).call_count > 0;
            if !equations.closed_in(block) {
                points.join(0, points.inward(block));
            }
            if !equations.closed_out(block) || lossy {
                points.join(0, points.outward(block));
            }
        }
        points
    }

    fn inward(&self, block: BlockId) -> u32 {
        block.0 * 2 + 1
    }
    fn outward(&self, block: BlockId) -> u32 {
        block.0 * 2 + 2
    }

    fn find(&mut self, mut point: u32) -> u32 {
        while self.parent[point as usize] != point {
            let up = self.parent[self.parent[point as usize] as usize];
            self.parent[point as usize] = up;
            point = up;
        }
        point
    }

    /// Joins two points; false if they were joined before. The lower root stays, so that the outside remains
    /// 0.
    fn join(&mut self, a: u32, b: u32) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a.max(b) as usize] = a.min(b);
        a != b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::derive;
    use crate::derive::{Basis, Derived};
    use crate::model::Profile;
    use crate::testing::{RandomProgram, Shape, walk};
    use proptest::prelude::*;

    fn everything(program: &Program) -> Vec<bool> {
        vec![true; program.blocks.len()]
    }

    fn values(plan: &CounterPlan, truth: &Profile) -> Vec<u64> {
        let value = |counted: &Counted| match *counted {
            Counted::Block(b) => truth.block(b),
            Counted::Edge(e) => truth.edge(e),
        };
        plan.counted.iter().map(value).collect()
    }

    fn counted_and_derived(program: &Program, plan: &CounterPlan, truth: &Profile) -> Derived {
        derive(program, &plan.known(program, &values(plan, truth)))
    }

    fn movable(seed: u64, functions: usize, blocks: usize) -> Program {
        RandomProgram::shaped(seed, Shape { functions, blocks, unmovable: 0.0 }).program
    }

    #[test]
    fn a_diamond_in_a_loop_needs_three_counters_for_six_blocks() {
        let text = "\
function 0x0..0x60 f movable
  0x0 +16 entry fall
  0x10 +16 target cond(4)/2 -> 0x30
  0x20 +16 - jump/2 -> 0x40
  0x30 +16 target fall
  0x40 +16 target cond(5)/2 -> 0x10
  0x50 +16 - return/1
";
        let program = Program::from_text(text).unwrap();
        let plan = plan_counters(&program, &everything(&program), Weights::Static, Calls::Return);
        assert_eq!((plan.counted.len(), plan.blocks), (3, 6));
        let truth = walk(&program, 1, 100, 0.0);
        let derived = counted_and_derived(&program, &plan, &truth);
        assert_eq!(derived.profile, truth);
        assert_eq!(derived.all.approximated_edges(), 0);
    }

    #[test]
    fn live_flags_and_hot_blocks_repel_counters() {
        let text = "\
function 0x0..0x30 f movable
  0x0 +16 entry cond(4)/2 -> 0x20
  0x10 +16 flags-in return/1
  0x20 +16 target return/1
";
        let program = Program::from_text(text).unwrap();
        let all = everything(&program);
        let equal = plan_counters(&program, &all, Weights::Blocks(&[9, 9, 9]), Calls::Return);
        assert!(!equal.counted.contains(&Counted::Block(BlockId(1))), "{equal:?}");
        let hot = plan_counters(&program, &all, Weights::Blocks(&[1009, 9, 1000]), Calls::Return);
        let into_1 = [Counted::Block(BlockId(1)), Counted::Edge(EdgeId(0))];
        assert!(hot.counted.iter().any(|c| into_1.contains(c)), "{hot:?}");
    }

    #[test]
    fn what_cannot_be_copied_is_not_counted() {
        let text = "\
function 0x0..0x20 f movable
  0x0 +16 entry jump/2 -> 0x20
  0x10 +16 target,pinned return/1
function 0x20..0x30 g odd-unwind-info
  0x20 +16 entry jump/2 -> 0x10
";
        let program = Program::from_text(text).unwrap();
        let scope = scope_of(&program, &[FuncId(0), FuncId(1)]);
        assert_eq!(scope, [true, false, false]);
        let plan = plan_counters(&program, &everything(&program), Weights::Static, Calls::Return);
        assert_eq!(plan.scope, scope);
        let derived = derive(&program, &plan.known(&program, &[7]));
        assert_eq!(plan.counted, [Counted::Block(BlockId(0))]);
        assert_eq!(derived.profile.edges, [7, 0]);
    }

    /// Not a property, a measurement with a bound: counters per block, and damage by calls that do not
    /// return.
    #[test]
    fn losses_stay_small() {
        let (mut counters, mut blocks) = ([0, 0], 0);
        let (mut error, mut weight) = ([0u64; 3], 0u64);
        for seed in 0..60 {
            let program = movable(seed, 8, 30);
            let truth = walk(&program, seed, 400, 0.005);
            let plans = [Calls::Return, Calls::MayNotReturn]
                .map(|calls| plan_counters(&program, &everything(&program), Weights::Static, calls));
            blocks += plans[0].blocks;
            weight += truth.edges.iter().sum::<u64>();
            for (i, plan) in plans.iter().enumerate() {
                counters[i] += plan.counted.len();
                let derived = counted_and_derived(&program, plan, &truth);
                error[i] += difference(&derived.profile, &truth);
            }
            let known =
                Known { blocks: truth.blocks.iter().copied().map(Some).collect(), ..Known::default() };
            error[2] += difference(&derive(&program, &known).profile, &truth);
        }
        let ratio = counters.map(|c| c as f64 / blocks as f64);
        let error = error.map(|e| e as f64 / weight as f64);
        eprintln!(
            "counters per block {ratio:.3?}, edge error {error:.4?} (the last one: all blocks counted)"
        );
        assert!(ratio[0] < 0.8 && ratio[0] < ratio[1]);
        assert!(error[0] < 0.02 && error[1] < 0.02, "{error:?}");
    }

    fn difference(a: &Profile, b: &Profile) -> u64 {
        a.edges.iter().zip(&b.edges).map(|(a, b)| a.abs_diff(*b)).sum()
    }

    proptest! {
        #[test]
        fn the_counters_give_everything_else(seed: u64, careful: bool, profiled: bool) {
            let program = movable(seed, 5, 14);
            let first = walk(&program, !seed, 40, 0.0);
            let weights = if profiled { Weights::Profile(&first) } else { Weights::Static };
            let calls = if careful { Calls::MayNotReturn } else { Calls::Return };
            let plan = plan_counters(&program, &everything(&program), weights, calls);
            let truth = walk(&program, seed, 60, 0.0);
            let derived = counted_and_derived(&program, &plan, &truth);
            for (id, basis) in derived.basis.iter().enumerate() {
                if basis.is_exact() {
                    prop_assert_eq!(derived.profile.edges[id], truth.edges[id], "edge {}", id);
                }
            }
            if plan.undetermined.is_empty() {
                prop_assert_eq!(derived.profile, truth);
            }
            prop_assert!(plan.undetermined.iter().all(|e| program.edges[e.index()].kind == EdgeKind::Table));
        }

        #[test]
        fn no_counter_can_be_spared(seed: u64) {
            let program = movable(seed, 2, 7);
            let plan = plan_counters(&program, &everything(&program), Weights::Static, Calls::Return);
            for skipped in 0..plan.counted.len() {
                let mut known = plan.known(&program, &vec![1; plan.counted.len()]);
                match plan.counted[skipped] {
                    Counted::Block(b) => known.blocks[b.index()] = None,
                    Counted::Edge(e) => known.edges[e.index()] = None,
                }
                let derived = derive(&program, &known);
                let open = derived.basis.iter().any(|b| !matches!(b, Basis::Given | Basis::Equation))
                    || program.block_ids().any(|b| program.block(b).edge_count == 0);
                prop_assert!(open, "counter {:?} is superfluous", plan.counted[skipped]);
            }
        }

        #[test]
        fn a_part_of_the_program_stays_in_its_scope(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let functions: Vec<FuncId> = program.function_ids().step_by(2).collect();
            let scope = scope_of(&program, &functions);
            let plan = plan_counters(&program, &scope, Weights::Static, Calls::Return);
            for counted in &plan.counted {
                let block = match *counted { Counted::Block(b) => b, Counted::Edge(e) => program.edges[e.index()].from };
                prop_assert!(scope[block.index()]);
            }
            let derived = derive(&program, &plan.known(&program, &vec![0; plan.counted.len()]));
            prop_assert!(derived.profile.edges.iter().all(|e| *e == 0));
        }
    }
}
