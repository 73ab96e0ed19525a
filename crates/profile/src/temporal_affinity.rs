//! Which blocks run at the same time: what counts do not say, and long branch records show.
//!
//! **Problem.** Two blocks of equal count may be wanted by the instruction cache together or never; only
//! those that are wanted together shall share a line (temporal affinity: Gloy and Smith, *Procedure placement
//! using temporal-ordering information*, TOPLAS 1999).
//!
//! **Idea.** Records are cut into windows of [`WINDOW`] different runs between taken branches, about what a
//! first-level instruction cache holds. Two blocks whose first executions in some window follow each other
//! closely are a pair; its count is the number of windows in which both ran. One window is worth one
//! execution: it is in the same scale as the other counts of these records.
//!
//! **Limits.** At most [`MOST_WINDOWS`] windows, evenly chosen, and [`MOST_PAIRS`] pairs. Threads whose
//! records come by turns share windows. Of short stacks (hardware has 16 or 32 branches) a window holds many
//! samples: what ran within the time between them. Programs with fewer runs than a window has none: all their
//! code fits into the cache.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Range;

use restitch_address::Svma;
use restitch_program::{BlockId, Program};

use crate::ways::run_between;

/// In how many windows both blocks ran, by the lower block and the higher one.
pub type AffinityCounts = BTreeMap<(BlockId, BlockId), u64>;

/// Different runs of a window: some 20 KiB of code.
const WINDOW: usize = 1024;
/// Windows that are kept.
const MOST_WINDOWS: usize = 1024;
/// Different runs that are remembered; what is new then is left out.
const MOST_RUNS: usize = 1 << 20;
/// Pairs of blocks that a profile has at most, the most counted ones.
const MOST_PAIRS: usize = 1 << 20;
/// First executions that follow each other so closely make a pair.
const NEAR: usize = 6;
/// What ran together in fewer windows did so by chance, or once.
const LEAST: usize = 2;
/// The share of the windows with one of two blocks in which both run: less makes no pair.
const LEAST_SHARE: f64 = 0.1;

const MILLION: u64 = 1_000_000;

/// Runs of code by windows, by their first and last addresses.
#[derive(Debug, Clone)]
pub struct Windows<A> {
    numbers: HashMap<(A, A), u32>,
    runs: Vec<(A, A)>,
    /// The window, from 1, that each run was last in.
    last: Vec<u64>,
    current: Vec<u32>,
    /// Windows that were complete, each the runs in the order of their first execution.
    kept: Vec<Vec<u32>>,
    /// Windows that were begun.
    begun: u64,
    /// One in so many is kept.
    stride: u64,
    /// What each of these counts, in millionths.
    worth: u64,
}

impl<A> Default for Windows<A> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            runs: Vec::new(),
            last: Vec::new(),
            current: Vec::new(),
            kept: Vec::new(),
            begun: 1,
            stride: 1,
            worth: MILLION,
        }
    }
}

impl<A: PartialEq> PartialEq for Windows<A> {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |w: &Self| (w.begun, w.stride, w.worth);
        // (`numbers` and `last` follow from these.)
        (&self.runs, &self.kept, &self.current) == (&other.runs, &other.kept, &other.current)
            && numbers(self) == numbers(other)
    }
}

impl<A: Eq> Eq for Windows<A> {}

impl<A: Copy + Ord + Hash> Windows<A> {
    /// Windows that were begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Adds a run from `start` up to the branch at `end`, which ran next before or after the one added last.
    pub fn add(&mut self, start: A, end: A) {
        let Some(number) = self.number((start, end)) else { return };
        if std::mem::replace(&mut self.last[number as usize], self.begun) == self.begun {
            return;
        }
        self.current.push(number);
        if self.current.len() == WINDOW {
            let window = std::mem::take(&mut self.current);
            if self.begun.is_multiple_of(self.stride) {
                self.kept.push(window);
            }
            self.begun += 1;
            if self.kept.len() > MOST_WINDOWS {
                // Those that stay are the multiples of the new stride.
                self.stride *= 2;
                self.kept = std::mem::take(&mut self.kept).into_iter().skip(1).step_by(2).collect();
            }
        }
    }

    /// The number of a run; `None` if there are too many.
    fn number(&mut self, run: (A, A)) -> Option<u32> {
        if let Some(&number) = self.numbers.get(&run) {
            return Some(number);
        }
        let number = self.runs.len() as u32;
        (self.runs.len() < MOST_RUNS).then(|| {
            self.numbers.insert(run, number);
            self.runs.push(run);
            self.last.push(0);
            number
        })
    }

    /// With other counts.
    pub fn scaled(&self, scale: impl Fn(u64) -> u64) -> Self {
        Self { worth: scale(self.worth), ..self.clone() }
    }

    /// The same in other addresses; what has no place there is left out.
    pub fn placed<B: Copy + Ord + Hash>(&self, place: impl Fn(A) -> Option<B>) -> Windows<B> {
        let mut out =
            Windows { begun: self.begun, stride: self.stride, worth: self.worth, ..Windows::default() };
        let mut placed = |&(start, end): &(A, A)| out.number((place(start)?, place(end)?));
        let numbers: Vec<Option<u32>> = self.runs.iter().map(&mut placed).collect();
        let renumbered = |window: &Vec<u32>| window.iter().filter_map(|n| numbers[*n as usize]).collect();
        out.kept = self.kept.iter().map(renumbered).collect();
        out
    }
}

impl Windows<Svma> {
    /// The pairs of blocks of `program` that ran together.
    pub fn pairs(&self, program: &Program) -> AffinityCounts {
        let blocks = |&(start, end): &(Svma, Svma)| {
            let (first, way) = run_between(program, start, end)?;
            Some(first.0..first.0 + 1 + way.len() as u32)
        };
        let blocks_of: Vec<Range<u32>> = self.runs.iter().map(|run| blocks(run).unwrap_or(0..0)).collect();
        let mut windows_of: Vec<Vec<u32>> = vec![Vec::new(); program.blocks.len()];
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (number, window) in self.kept.iter().enumerate() {
            let mut order: Vec<u32> = Vec::with_capacity(2 * window.len());
            for block in window.iter().flat_map(|run| blocks_of[*run as usize].clone()) {
                let seen = &mut windows_of[block as usize];
                if seen.last() != Some(&(number as u32)) {
                    seen.push(number as u32);
                    order.push(block);
                }
            }
            for (i, &a) in order.iter().enumerate() {
                let next = order[i + 1..].iter().take(NEAR);
                pairs.extend(next.map(|&b| (a.min(b), a.max(b))));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut counted: Vec<(usize, (u32, u32))> = pairs
            .into_iter()
            .filter_map(|(a, b)| {
                let (x, y) = (&windows_of[a as usize], &windows_of[b as usize]);
                let both = common(x, y);
                let either = (x.len() + y.len() - both) as f64;
                (both >= LEAST && both as f64 >= LEAST_SHARE * either).then_some((both, (a, b)))
            })
            .collect();
        if counted.len() > MOST_PAIRS {
            counted.sort_by_key(|&(both, pair)| (std::cmp::Reverse(both), pair));
            counted.truncate(MOST_PAIRS);
        }
        let count = |both: usize| (both as u64 * self.stride).saturating_mul(self.worth).div_ceil(MILLION);
        counted.into_iter().map(|(both, (a, b))| ((BlockId(a), BlockId(b)), count(both))).collect()
    }
}

/// Numbers that are in both of two sorted lists.
fn common(x: &[u32], y: &[u32]) -> usize {
    let (short, long) = if x.len() < y.len() { (x, y) } else { (y, x) };
    let mut rest = long;
    let mut both = 0;
    for number in short {
        let at = rest.partition_point(|n| n < number);
        both += usize::from(rest.get(at) == Some(number));
        rest = &rest[at..];
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    /// Functions of one block each, 16 bytes apart.
    fn blocks(number: u64) -> Program {
        let mut text = String::new();
        for at in (0..number).map(|n| 0x1000 + 16 * n) {
            let _ = writeln!(
                text,
                "function {at:#x}..{:#x} f{at:x} movable\n  {at:#x} +16 entry return/1",
                at + 16
            );
        }
        Program::from_text(&text).unwrap()
    }

    fn run(windows: &mut Windows<Svma>, block: u64) {
        let start = 0x1000 + 16 * block;
        windows.add(Svma::new(start), Svma::new(start + 15));
    }

    #[test]
    fn what_runs_by_turns_is_told_from_what_runs_together() {
        let half = WINDOW as u64;
        let program = blocks(2 * half);
        let mut windows = Windows::default();
        // Two phases of equally often executed blocks, each in every second window, and each block several
        // times.
        for round in 0..40 {
            let phase = round % 2 * half;
            let several = (phase..phase + half).flat_map(|block| [block.max(phase + 1) - 1, block]);
            several.for_each(|block| run(&mut windows, block));
        }
        let pairs = windows.pairs(&program);
        let side = |block: BlockId| u64::from(block.0) / half;
        assert!(pairs.keys().all(|(a, b)| a < b && side(*a) == side(*b)));
        assert_eq!(pairs.get(&(BlockId(0), BlockId(1))), Some(&20));
        assert_eq!(pairs.get(&(BlockId(0), BlockId(NEAR as u32))), Some(&20));
        assert_eq!(pairs.get(&(BlockId(0), BlockId(NEAR as u32 + 1))), None);
    }

    #[test]
    fn code_that_fits_into_one_window_has_no_pairs() {
        let program = blocks(WINDOW as u64 - 1);
        let mut windows = Windows::default();
        (0..10).for_each(|_| (0..WINDOW as u64 - 1).for_each(|block| run(&mut windows, block)));
        assert!(windows.pairs(&program).is_empty());
    }

    #[test]
    fn many_windows_are_thinned_evenly_and_count_as_before() {
        let number = WINDOW as u64 + 200;
        let program = blocks(number);
        let mut windows = Windows::default();
        let rounds = 3 * MOST_WINDOWS as u64;
        (0..rounds * WINDOW as u64).for_each(|n| run(&mut windows, n * 7 % number));
        assert!(windows.kept.len() <= MOST_WINDOWS && windows.kept.len() > MOST_WINDOWS / 2 - 1);
        assert_eq!(windows.stride, 4);
        let most = *windows.pairs(&program).values().max().unwrap();
        assert!(most <= rounds + 4 && most > rounds / 2, "{most} of {rounds}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Against sets of blocks, window by window.
        #[test]
        fn counts_are_those_of_windows_with_both(seed: u64) {
            let number = WINDOW as u64 + 60;
            let program = blocks(number);
            let (mut windows, mut random) = (Windows::default(), Random::new(seed));
            let (mut sets, mut current) = (Vec::new(), BTreeSet::new());
            while sets.len() < 6 {
                let block = random.below(number as usize) as u64;
                run(&mut windows, block);
                current.insert(block as u32);
                if current.len() == WINDOW {
                    sets.push(std::mem::take(&mut current));
                }
            }
            let pairs = windows.pairs(&program);
            prop_assert!(!pairs.is_empty());
            for ((a, b), count) in &pairs {
                let both = sets.iter().filter(|set| set.contains(&a.0) && set.contains(&b.0)).count();
                prop_assert_eq!(*count, both as u64);
            }
            let half = windows.scaled(|n| n / 2).pairs(&program);
            prop_assert!(pairs.iter().all(|(pair, count)| half[pair] == count.div_ceil(2)));
            prop_assert_eq!(windows.placed(Some).pairs(&program), pairs);
            prop_assert!(windows.placed(|_| None::<Svma>).pairs(&program).is_empty());
        }
    }
}
