//! Edge counts from block counts (Tamches and Miller, *Dynamic Kernel Code Optimization*, section 4),
//! generalised to any mix of known block and edge counts.
//!
//! **Phase 1, exact.** Where an equation ([`Equations`]) has one unknown, the unknown follows. A worklist
//! carries this to convergence in O(edges): each equation keeps the sum of its known edges, the number of its
//! unknown ones and the exclusive-or of their indices, so that the last unknown is found without a search.
//! Equations that losses can spoil (blocks with calls) wait until the others are exhausted. Then *nothing
//! left*: where a count is used up by the known edges of a block, the others are zero; that holds for open
//! equations too.
//!
//! **Phase 2, bounded.** An edge is at most what is left of its source, and at most what is left of its
//! target; the smaller one is taken. The paper leaves the order open; here the edge with the largest bound
//! goes first (ties: lower index), and phase 1 runs again after each.
//!
//! Counts that contradict each other (samples, losses) are clamped at zero and counted. What nothing bounds
//! is 0.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use restitch_program::{BlockId, EdgeId, Program};

use crate::equations::Equations;
use crate::model::Profile;

/// The counts that were measured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// By block; `None` is unknown. What is behind the end is unknown.
    pub blocks: Vec<Option<u64>>,
    /// By edge; `None` is unknown. What is behind the end is unknown.
    pub edges: Vec<Option<u64>>,
    /// By block: whether its equations hold. `None`: they hold for all blocks. A counting version sees only
    /// the blocks that were copied into it.
    pub scope: Option<Vec<bool>>,
}

/// Where an edge's count comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Basis {
    /// It was measured.
    Given,
    /// By an equation: exact.
    Equation,
    /// The other edges use its source or its target up: exact, and 0.
    NothingLeft,
    /// By the bounds of phase 2, or nothing is known and the count is 0.
    Approximated,
}

impl Basis {
    /// Whether the count is exact, provided that the measured ones are.
    pub fn is_exact(self) -> bool {
        self != Basis::Approximated
    }
}

/// How much could be derived exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
    /// Edges considered.
    pub edges: usize,
    /// Those with an exact count.
    pub exact_edges: usize,
    /// Functions considered (those with a decoded block).
    pub functions: usize,
    /// Those whose edges all have exact counts.
    pub exact_functions: usize,
}

impl Shares {
    /// Edges whose count is approximated.
    pub fn approximated_edges(&self) -> usize {
        self.edges - self.exact_edges
    }
}

/// A whole profile made of some counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    /// All counts. Calls have the counts of their blocks.
    pub profile: Profile,
    /// Where each edge's count comes from.
    pub basis: Vec<Basis>,
    /// Functions with a block that ran.
    pub executed: Shares,
    /// All functions (with a block in scope).
    pub all: Shares,
    /// Equations that the final counts do not satisfy: contradictions in the input, and what phase 2 left
    /// over.
    pub inconsistent: usize,
}

/// Derives all counts of `program` from the known ones.
pub fn derive(program: &Program, known: &Known) -> Derived {
    let equations = Equations::new(program, known.scope.as_deref());
    let mut solver = Solver::new(program, &equations, known);
    solver.propagate(Stage::Equations);
    solver.propagate(Stage::NothingLeft);
    solver.approximate();
    solver.finish(known)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Equations,
    NothingLeft,
    Approximation,
}

/// One side of one block: the state of an equation, closed or not.
#[derive(Clone, Copy, Default)]
struct Side {
    sum: u64,
    unknown: u32,
    xor: u32,
}

/// Number of an equation: twice the block's, plus one for the outgoing side.
type SideId = usize;

struct Solver<'a> {
    program: &'a Program,
    equations: &'a Equations,
    blocks: Vec<Option<u64>>,
    edges: Vec<Option<u64>>,
    basis: Vec<Basis>,
    sides: Vec<Side>,
    strict: VecDeque<SideId>,
    lossy: VecDeque<SideId>,
}

impl<'a> Solver<'a> {
    fn new(program: &'a Program, equations: &'a Equations, known: &Known) -> Self {
        let mut sides = vec![Side::default(); program.blocks.len() * 2];
        for (id, edge) in program.edges.iter().enumerate() {
            for side in [edge.from.index() * 2 + 1, edge.to.index() * 2] {
                sides[side].unknown += 1;
                sides[side].xor ^= id as u32;
            }
        }
        let mut solver = Self {
            program,
            equations,
            blocks: vec![None; program.blocks.len()],
            edges: vec![None; program.edges.len()],
            basis: vec![Basis::Approximated; program.edges.len()],
            sides,
            strict: VecDeque::new(),
            lossy: VecDeque::new(),
        };
        for (id, count) in known.edges.iter().enumerate().take(program.edges.len()) {
            if let Some(count) = *count {
                solver.set_edge(EdgeId::from_index(id), count, Basis::Given);
            }
        }
        for id in program.block_ids() {
            solver.blocks[id.index()] = known.blocks.get(id.index()).copied().flatten();
        }
        (0..solver.sides.len()).for_each(|side| solver.enqueue(side));
        solver
    }

    fn enqueue(&mut self, side: SideId) {
        let block = BlockId::from_index(side / 2);
        let outgoing = side % 2 == 1;
        if outgoing && self.program.block(block).call_count > 0 {
            self.lossy.push_back(side);
        } else {
            self.strict.push_back(side);
        }
    }

    fn closed(&self, side: SideId) -> bool {
        let block = BlockId::from_index(side / 2);
        if side % 2 == 1 { self.equations.closed_out(block) } else { self.equations.closed_in(block) }
    }

    fn set_edge(&mut self, id: EdgeId, count: u64, basis: Basis) {
        if self.edges[id.index()].is_some() {
            return;
        }
        self.edges[id.index()] = Some(count);
        self.basis[id.index()] = basis;
        let edge = self.program.edges[id.index()];
        for side in [edge.from.index() * 2 + 1, edge.to.index() * 2] {
            let s = &mut self.sides[side];
            s.sum = s.sum.saturating_add(count);
            s.unknown -= 1;
            s.xor ^= id.0;
            self.enqueue(side);
        }
    }

    fn set_block(&mut self, block: usize, count: u64) {
        self.blocks[block] = Some(count);
        self.enqueue(block * 2);
        self.enqueue(block * 2 + 1);
    }

    /// Runs the equations until nothing new follows. In later stages queued sides may be exhausted ones as
    /// well.
    fn propagate(&mut self, stage: Stage) {
        if stage == Stage::NothingLeft {
            (0..self.sides.len()).for_each(|side| self.enqueue(side));
        }
        let equation = if stage == Stage::Approximation { Basis::Approximated } else { Basis::Equation };
        while let Some(side) = self.strict.pop_front().or_else(|| self.lossy.pop_front()) {
            let Side { sum, unknown, xor } = self.sides[side];
            match (self.blocks[side / 2], unknown) {
                (Some(count), 1) if self.closed(side) => {
                    self.set_edge(EdgeId(xor), count.saturating_sub(sum), equation);
                }
                (None, 0) if self.closed(side) => self.set_block(side / 2, sum),
                (Some(count), 1..) if stage != Stage::Equations && sum >= count => {
                    let basis =
                        if stage == Stage::NothingLeft { Basis::NothingLeft } else { Basis::Approximated };
                    self.exhaust(side, basis);
                }
                _ => {}
            }
        }
    }

    /// Sets the unknown edges of a side to 0.
    fn exhaust(&mut self, side: SideId, basis: Basis) {
        for edge in self.edges_of(side) {
            self.set_edge(edge, 0, basis);
        }
    }

    fn edges_of(&self, side: SideId) -> Vec<EdgeId> {
        let block = BlockId::from_index(side / 2);
        if side % 2 == 1 {
            self.program.out_edges(block).map(|(id, _)| id).collect()
        } else {
            self.equations.in_edges(block).to_vec()
        }
    }

    /// What the counts of its two ends leave for an edge, if either is known.
    fn bound(&self, id: EdgeId) -> Option<u64> {
        let edge = self.program.edges[id.index()];
        [edge.from.index() * 2 + 1, edge.to.index() * 2]
            .into_iter()
            .filter_map(|side| Some(self.blocks[side / 2]?.saturating_sub(self.sides[side].sum)))
            .min()
    }

    fn approximate(&mut self) {
        loop {
            let mut heap: BinaryHeap<(u64, Reverse<u32>)> = (0..self.edges.len())
                .filter(|&e| self.edges[e].is_none())
                .filter_map(|e| Some((self.bound(EdgeId(e as u32))?, Reverse(e as u32))))
                .collect();
            if heap.is_empty() && !self.guess_blocks() {
                return;
            }
            while let Some((bound, Reverse(edge))) = heap.pop() {
                if self.edges[edge as usize].is_some() {
                    continue;
                }
                match self.bound(EdgeId(edge)) {
                    Some(now) if now < bound => heap.push((now, Reverse(edge))),
                    _ => {
                        self.set_edge(EdgeId(edge), bound, Basis::Approximated);
                        self.propagate(Stage::Approximation);
                    }
                }
            }
        }
    }

    /// Gives the blocks that no equation determines the most that is known to flow through them; false if
    /// there is no such block.
    fn guess_blocks(&mut self) -> bool {
        let guess: Vec<(usize, u64)> = (0..self.blocks.len())
            .filter(|&b| self.blocks[b].is_none())
            .map(|b| (b, self.sides[b * 2].sum.max(self.sides[b * 2 + 1].sum)))
            .collect();
        for &(block, count) in &guess {
            if self.blocks[block].is_none() {
                self.set_block(block, count);
            }
        }
        self.propagate(Stage::Approximation);
        !guess.is_empty()
    }

    fn finish(self, known: &Known) -> Derived {
        let inconsistent = (0..self.sides.len())
            .filter(|&side| self.closed(side) && self.blocks[side / 2].unwrap_or(0) != self.sides[side].sum)
            .count();
        let blocks: Vec<u64> = self.blocks.iter().map(|c| c.unwrap_or(0)).collect();
        let calls = self.program.calls.iter().map(|call| blocks[call.block.index()]).collect();
        let edges = self.edges.iter().map(|c| c.unwrap_or(0)).collect();
        let profile = Profile { blocks, edges, calls, ..Profile::default() };
        let (executed, all) = shares(self.program, &profile, &self.basis, known.scope.as_deref());
        Derived { profile, basis: self.basis, executed, all, inconsistent }
    }
}

fn shares(program: &Program, profile: &Profile, basis: &[Basis], scope: Option<&[bool]>) -> (Shares, Shares) {
    let (mut executed, mut all) = (Shares::default(), Shares::default());
    let in_scope = |b: BlockId| scope.is_none_or(|s| s.get(b.index()).copied().unwrap_or(false));
    for function in program.function_ids() {
        let blocks: Vec<BlockId> = program.blocks_of(function).filter(|&b| in_scope(b)).collect();
        if blocks.is_empty() {
            continue;
        }
        let mut one = Shares { functions: 1, ..Shares::default() };
        for (id, _) in blocks.iter().flat_map(|&b| program.out_edges(b)) {
            one.edges += 1;
            one.exact_edges += usize::from(basis[id.index()].is_exact());
        }
        one.exact_functions = usize::from(one.edges == one.exact_edges);
        let ran = blocks.iter().any(|&b| profile.block(b) > 0);
        for total in [Some(&mut all), ran.then_some(&mut executed)].into_iter().flatten() {
            total.edges += one.edges;
            total.exact_edges += one.exact_edges;
            total.functions += 1;
            total.exact_functions += one.exact_functions;
        }
    }
    (executed, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RandomProgram, walk};
    use proptest::prelude::*;

    /// Figure 1 of the paper: A -> B, C; B -> D; C -> C, D.
    const FIGURE_1: &str = "\
function 0x0..0x40 f movable
  0x0 +16 entry cond(4)/2 -> 0x20
  0x10 +16 - jump/2 -> 0x30
  0x20 +16 target cond(5)/2 -> 0x20
  0x30 +16 target return/1
";

    fn blocks(counts: &[u64]) -> Known {
        Known { blocks: counts.iter().copied().map(Some).collect(), ..Known::default() }
    }

    #[test]
    fn figure_1_is_exact() {
        let program = Program::from_text(FIGURE_1).unwrap();
        let derived = derive(&program, &blocks(&[1001, 1000, 2001, 1001]));
        // A->B, A->C, B->D, C->D, C->C
        assert_eq!(derived.profile.edges, [1000, 1, 1000, 1, 2000]);
        assert_eq!(derived.basis, [Basis::Equation; 5]);
        assert_eq!(derived.inconsistent, 0);
        assert_eq!((derived.all.exact_edges, derived.executed.exact_functions), (5, 1));
    }

    /// Two sources, two common targets: not determined; the bounds decide.
    const CROSS: &str = "\
function 0x0..0x60 f movable
  0x0 +16 entry cond(4)/2 -> 0x20
  0x10 +16 - cond(4)/2 -> 0x50
  0x20 +16 target cond(4)/2 -> 0x40
  0x30 +16 - jump/2 -> 0x50
  0x40 +16 target,indirect return/1
  0x50 +16 target,indirect return/1
";

    #[test]
    fn what_is_not_determined_is_bounded() {
        let text = "\
function 0x0..0x50 f movable
  0x0 +16 entry cond(4)/2 -> 0x20
  0x10 +16 - table(0)/2
  0x20 +16 target table(1)/2
  0x30 +16 - return/1
  0x40 +16 - return/1
table 0x1e load 0x1e at 0x0 base 0x0 absolute8 copyable: 0x30 0x40
table 0x2e load 0x2e at 0x0 base 0x0 absolute8 copyable: 0x30 0x40
";
        let program = Program::from_text(text).unwrap();
        let derived = derive(&program, &blocks(&[110, 100, 10, 90, 20]));
        assert_eq!(derived.profile.edges, [100, 10, 90, 10, 0, 10]);
        assert_eq!(derived.all.approximated_edges(), 4);
        assert_eq!((derived.all.exact_functions, derived.inconsistent), (0, 0));
        // One edge more is enough for all.
        let mut known = blocks(&[110, 100, 10, 90, 20]);
        known.edges = vec![None, None, None, None, Some(3), None];
        let derived = derive(&program, &known);
        assert_eq!(derived.profile.edges, [100, 10, 87, 13, 3, 7]);
        assert_eq!(derived.all.approximated_edges(), 0);
    }

    #[test]
    fn a_block_that_never_ran_has_no_edges_that_ran() {
        let program = Program::from_text(CROSS).unwrap();
        let derived = derive(&program, &blocks(&[10, 10, 0, 0, 0, 10]));
        assert!(derived.basis.iter().all(|b| b.is_exact()));
        assert_eq!(derived.profile.edges, [10, 0, 0, 10, 0, 0, 0]);
        assert_eq!(derived.inconsistent, 0);
    }

    #[test]
    fn contradictions_are_clamped_and_counted() {
        let program = Program::from_text(FIGURE_1).unwrap();
        let derived = derive(&program, &blocks(&[5, 9, 3, 7]));
        assert!(derived.inconsistent > 0);
        assert!(derived.profile.edges.iter().all(|&e| e < 100));
        let nothing = derive(&program, &Known::default());
        assert_eq!(nothing.profile, Profile::empty(&program));
    }

    proptest! {
        #[test]
        fn exact_counts_are_the_truth(seed: u64) {
            let random = RandomProgram::new(seed);
            let truth = walk(&random.program, seed, 30, 0.0);
            let known = Known { blocks: truth.blocks.iter().copied().map(Some).collect(), ..Known::default() };
            let derived = derive(&random.program, &known);
            for (id, basis) in derived.basis.iter().enumerate() {
                if basis.is_exact() {
                    prop_assert_eq!(derived.profile.edges[id], truth.edges[id], "edge {}", id);
                }
            }
            prop_assert_eq!(&derived.profile.blocks, &truth.blocks);
            let all = Known { edges: truth.edges.iter().copied().map(Some).collect(), ..known };
            prop_assert_eq!(derive(&random.program, &all).profile, truth);
        }

        #[test]
        fn edges_alone_give_the_closed_blocks(seed: u64) {
            let random = RandomProgram::new(seed);
            let truth = walk(&random.program, seed, 30, 0.0);
            let known = Known { edges: truth.edges.iter().copied().map(Some).collect(), ..Known::default() };
            let derived = derive(&random.program, &known);
            let equations = Equations::new(&random.program, None);
            for b in random.program.block_ids() {
                if equations.closed_in(b) || equations.closed_out(b) {
                    prop_assert_eq!(derived.profile.block(b), truth.block(b));
                }
            }
        }

        #[test]
        fn any_input_terminates_within_bounds(seed: u64, counts in prop::collection::vec(any::<Option<u16>>(), 0..60)) {
            let random = RandomProgram::new(seed);
            let known = Known { blocks: counts.iter().map(|c| c.map(u64::from)).collect(), ..Known::default() };
            let derived = derive(&random.program, &known);
            for (b, count) in known.blocks.iter().enumerate().take(random.program.blocks.len()) {
                if let Some(count) = count { prop_assert_eq!(derived.profile.blocks[b], *count); }
            }
            prop_assert_eq!(&derive(&random.program, &known), &derived);
        }
    }
}
