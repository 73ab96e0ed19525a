//! Which way leads out of a block, by the way that led in: what edge counts do not say, and branch records
//! show.
//!
//! **Problem.** `if (a) ..; if (a) ..`: the second branch goes as the first did. Counts of edges call it one
//! of even chances.
//!
//! **Idea.** Two taken branches in a row, and what ran between them, are a way through blocks. Each two edges
//! of it that follow each other are counted. Kept are those of blocks where control comes from several sides
//! and the side tells something of the way on.
//!
//! **Limits.** What came before the last edge is not looked at; a call on the way ends it.

use std::collections::BTreeMap;
use std::hash::Hash;

use restitch_address::Svma;
use restitch_program::{BlockId, EdgeId, Program, Terminator};

use crate::temporal_affinity::{AffinityCounts, Windows};
use crate::ways::{run_between, taken_edge};

/// Executions by the edge into a block and the edge out of it.
pub type PathCounts = BTreeMap<(EdgeId, EdgeId), u64>;

/// Different ways between two branches that are remembered; what is new then is left out.
const MOST_TURNS: usize = 1 << 20;
/// Pairs of edges that a profile has at most; those of the blocks where they tell most.
const MOST_PATHS: usize = 1 << 16;
/// Fewer executions of a block tell nothing.
const LEAST: u64 = 32;
/// The share of a block's executions that go otherwise than the edge counts would have it: less is left out.
const TELLING: f64 = 0.05;

/// Two branches that were taken one after the other: where the older one came from (if known) and led to, the
/// newer one, and where that led to (if known).
pub type Turn<A> = (Option<A>, A, A, Option<A>);

/// How often two branches were taken one after the other, by their addresses, and what ran between them, by
/// windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns<A> {
    counts: BTreeMap<Turn<A>, u64>,
    windows: Windows<A>,
}

impl<A> Default for Turns<A> {
    fn default() -> Self {
        Self { counts: BTreeMap::new(), windows: Windows::default() }
    }
}

impl<A: Copy + Ord + Hash> Turns<A> {
    /// Adds a stack of branches (instruction, target), **newest first**; `None` is a place outside of the
    /// module. Each counts `weight` times.
    pub fn add_stack(&mut self, stack: &[(Option<A>, Option<A>)], weight: u64) {
        for pair in stack.windows(2) {
            if let ((Some(end), out), (from, Some(start))) = (pair[0], pair[1])
                && start <= end
            {
                self.add((from, start, end, out), weight);
            }
        }
    }

    /// Adds one turn, `weight` times; it ran next before or after the one added last.
    pub fn add(&mut self, turn: Turn<A>, weight: u64) {
        self.windows.add(turn.1, turn.2);
        self.count(turn, weight);
    }

    fn count(&mut self, turn: Turn<A>, weight: u64) {
        let full = self.counts.len() >= MOST_TURNS;
        match self.counts.get_mut(&turn) {
            Some(count) => *count = count.saturating_add(weight),
            None if !full && weight > 0 => _ = self.counts.insert(turn, weight),
            None => {}
        }
    }

    /// Adds what another recording of the same code has. What ran together is that of the longer one: its
    /// windows stand for a whole recording.
    pub fn add_all(&mut self, other: &Self) {
        other.counts.iter().for_each(|(turn, &count)| self.count(*turn, count));
        if other.windows.begun() > self.windows.begun() {
            self.windows = other.windows.clone();
        }
    }

    /// The same in other addresses; what has no place there is left out.
    pub fn placed<B: Copy + Ord + Hash>(&self, place: impl Fn(A) -> Option<B>) -> Turns<B> {
        let mut placed = Turns { windows: self.windows.placed(&place), ..Turns::default() };
        for (&(from, start, end, out), &count) in &self.counts {
            if let (Some(start), Some(end)) = (place(start), place(end)) {
                placed.count((from.and_then(&place), start, end, out.and_then(&place)), count);
            }
        }
        placed
    }

    /// With other counts; zeros are left out.
    pub fn scaled(&self, scale: impl Fn(u64) -> u64) -> Self {
        let mut scaled = Self { windows: self.windows.scaled(&scale), ..Self::default() };
        self.counts.iter().for_each(|(turn, &count)| scaled.count(*turn, scale(count)));
        scaled
    }
}

impl Turns<Svma> {
    /// The pairs of edges of `program` that tell more than edge counts do. Those with one edge in common are
    /// at most as many as the branches and runs that made the count of that edge.
    pub fn paths(&self, program: &Program) -> PathCounts {
        let mut paths = PathCounts::new();
        for (&(from, start, end, out), &count) in &self.counts {
            let Some((_, falls)) = run_between(program, start, end) else { continue };
            let mut last = from.and_then(|from| taken_edge(program, from, start));
            for next in falls.into_iter().chain(out.and_then(|out| taken_edge(program, end, out))) {
                if let Some(last) = last {
                    let slot = paths.entry((last, next)).or_default();
                    *slot = slot.saturating_add(count);
                }
                last = Some(next);
            }
        }
        telling(program, paths)
    }

    /// The pairs of blocks of `program` that ran at the same time.
    pub fn temporal_affinity(&self, program: &Program) -> AffinityCounts {
        self.windows.pairs(program)
    }
}

/// Only the pairs of blocks whose branch depends on the way in.
fn telling(program: &Program, paths: PathCounts) -> PathCounts {
    let mut blocks: BTreeMap<BlockId, PathCounts> = BTreeMap::new();
    for (pair, count) in paths {
        let block = program.edges[pair.0.index()].to;
        if matches!(program.block(block).terminator, Terminator::Conditional(..)) {
            blocks.entry(block).or_default().insert(pair, count);
        }
    }
    let mut told: Vec<(f64, BlockId, PathCounts)> = blocks
        .into_iter()
        .filter_map(|(block, paths)| elsewhere(&paths).map(|executions| (executions, block, paths)))
        .collect();
    told.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut kept = PathCounts::new();
    for (.., paths) in told {
        if kept.len() + paths.len() > MOST_PATHS {
            break;
        }
        kept.extend(paths);
    }
    kept
}

/// Of one block: executions that leave it otherwise than if all came the same way. `None` if there are too
/// few to tell.
fn elsewhere(paths: &PathCounts) -> Option<f64> {
    let (mut ins, mut outs) = (BTreeMap::new(), BTreeMap::new());
    for (&(way_in, out), &count) in paths {
        *ins.entry(way_in).or_insert(0.0) += count as f64;
        *outs.entry(out).or_insert(0.0) += count as f64;
    }
    let all: f64 = ins.values().sum();
    let mut sum = 0.0;
    for (way_in, came) in &ins {
        for (out, left) in &outs {
            let count = paths.get(&(*way_in, *out)).map_or(0.0, |n| *n as f64);
            sum += (count - came * left / all).abs();
        }
    }
    (all >= LEAST as f64 && sum / 2.0 >= TELLING * all).then_some(sum / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branches::BranchSamples;
    use crate::merge::{MergeWeights, merge_profiles};
    use crate::model::Profile;
    use crate::store::{ModuleProfile, ProfileFile};
    use crate::testing::{Random, RandomProgram};
    use proptest::prelude::*;
    use restitch_program::EdgeKind;

    const TWO_BRANCHES: &str = "\
function 0x1000..0x1060 f movable
  0x1000 +16 entry cond(4)/2 -> 0x1020
  0x1010 +16 - jump/2 -> 0x1030
  0x1020 +16 target fall
  0x1030 +16 target cond(4)/2 -> 0x1050
  0x1040 +16 - jump/2 -> 0x1000
  0x1050 +16 target jump/2 -> 0x1000
";

    /// Taken branches of a random walk, newest first. `turns`: which of its ways a block takes, of the edge
    /// it was entered by.
    fn stack(
        program: &Program,
        seed: u64,
        turns: impl Fn(EdgeId) -> bool,
    ) -> Vec<(Option<Svma>, Option<Svma>)> {
        let mut random = Random::new(seed);
        let (mut at, mut stack) = (BlockId(0), Vec::new());
        let mut last: Option<EdgeId> = None;
        for _ in 0..400 {
            let ways: Vec<EdgeId> = program.out_edges(at).map(|(id, _)| id).collect();
            let known = last.filter(|_| ways.len() == 2).map(|last| usize::from(turns(last)));
            let drawn = random.below(ways.len().max(1));
            let Some(&way) = ways.get(known.filter(|_| random.chance(0.9)).unwrap_or(drawn)) else {
                (at, last) = (BlockId(random.below(program.blocks.len()) as u32), None);
                stack.push((None, Some(program.block(at).start)));
                continue;
            };
            let edge = &program.edges[way.index()];
            if edge.kind != EdgeKind::FallThrough {
                stack.push((Some(program.block(at).terminator_at()), Some(program.block(edge.to).start)));
            }
            (at, last) = (edge.to, Some(way));
        }
        stack.reverse();
        stack
    }

    fn profile(program: &Program, seed: u64) -> Profile {
        let mut samples = BranchSamples::default();
        samples.add_stack(&stack(program, seed, |edge| edge.0 % 2 == 0));
        let mut profile = samples.to_profile(program).0;
        // There is too little code for windows.
        let pairs =
            (0..program.blocks.len() as u32 / 2).map(|n| (BlockId(n), BlockId(n + 1 + seed as u32 % 2)));
        let inside = pairs.filter(|pair| pair.1.index() < program.blocks.len());
        profile.temporal_affinity = inside.map(|pair| (pair, 1 + seed % 1000)).collect();
        profile
    }

    #[test]
    fn a_branch_that_repeats_another_is_seen_and_one_that_does_not_is_left_out() {
        let program = Program::from_text(TWO_BRANCHES).unwrap();
        let edge = |from, to| crate::ways::taken_edge(&program, Svma::new(from), Svma::new(to)).unwrap();
        let by_jump = edge(0x101e, 0x1030);
        let mut samples = BranchSamples::default();
        samples.add_stack(&stack(&program, 7, |last| last == by_jump));
        let (profile, report) = samples.to_profile(&program);
        assert_eq!(report.broken_ranges, 0);
        // Only the second branch has two ways in that tell; the jumps back do not tell the way of the first.
        let joins: Vec<Svma> =
            profile.paths.keys().map(|p| program.block(program.edges[p.0.index()].to).start).collect();
        assert_eq!(joins.iter().filter(|at| **at == Svma::new(0x1030)).count(), 4, "{joins:?}");
        let count = |out| profile.paths[&(by_jump, out)];
        let taken = edge(0x103e, 0x1050);
        let fall = program.out_edges(BlockId(3)).find(|(id, _)| *id != taken).unwrap().0;
        assert!(count(taken) > 5 * count(fall), "{:?}", profile.paths);

        let mut same = BranchSamples::default();
        for (from, way_on) in [(0x100e, 0x1040), (0x100e, 0x1050), (0x101e, 0x1040), (0x101e, 0x1050)] {
            let start = if from == 0x101e { 0x1030 } else { 0x1020 };
            let out = if way_on == 0x1050 { (0x103e, 0x1050) } else { (0x104e, 0x1000) };
            let turn = (Some(Svma::new(from)), Svma::new(start), Svma::new(out.0), Some(Svma::new(out.1)));
            same.turns.add(turn, 100);
        }
        assert!(same.turns.paths(&program).is_empty());
    }

    proptest! {
        #[test]
        fn paths_are_at_most_the_counts_of_their_edges(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let profile = profile(&program, seed);
            let (mut ins, mut outs) = (BTreeMap::new(), BTreeMap::new());
            for (&(way_in, out), &count) in &profile.paths {
                prop_assert_eq!(program.edges[way_in.index()].to, program.edges[out.index()].from);
                *ins.entry(way_in).or_insert(0) += count;
                *outs.entry(out).or_insert(0) += count;
            }
            for (edge, sum) in ins.into_iter().chain(outs) {
                prop_assert!(sum <= profile.edge(edge), "{edge:?}: {sum} of {}", profile.edge(edge));
            }
        }
        #[test]
        fn paths_are_stored_written_and_merged(seed: u64, other: u64) {
            let program = RandomProgram::new(seed).program;
            let (a, b) = (profile(&program, seed), profile(&program, other));
            prop_assert_eq!(&Profile::from_text(&a.to_text(&program), &program).unwrap(), &a);
            let file = |p| ProfileFile { modules: vec![ModuleProfile::of(&program, p, &[1], "")] };
            let (x, y) = (file(&a), file(&b));
            prop_assert_eq!(&ProfileFile::read(&x.write()).unwrap().modules[0].resolve(&program).0, &a);
            for weights in [MergeWeights::AsCounted, MergeWeights::Equal] {
                let Ok(one) = merge_profiles(&[x.clone(), y.clone()], &weights) else { continue };
                prop_assert_eq!(merge_profiles(&[y.clone(), x.clone()], &weights), Ok(one));
            }
            let sum = merge_profiles(&[x, y], &MergeWeights::AsCounted).unwrap().modules[0].resolve(&program).0;
            for (pair, count) in &sum.paths {
                let of = |p: &Profile| p.paths.get(pair).copied().unwrap_or(0);
                prop_assert_eq!(*count, of(&a) + of(&b));
            }
            for (pair, count) in &sum.temporal_affinity {
                let of = |p: &Profile| p.temporal_affinity.get(pair).copied().unwrap_or(0);
                prop_assert_eq!(*count, of(&a) + of(&b));
            }
        }
    }
}
