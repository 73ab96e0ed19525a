//! The models: a trace, seen by a front end.

use std::collections::{HashMap, VecDeque};

use restitch_program::{BlockId, Program};
use serde::Serialize;

use crate::cache::Cache;
use crate::machine::{Geometry, Machine};
use crate::place::{PlacedDuplicate, Placement};
use crate::trace::{How, Step, Trace};

/// What happened in a run of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Counts {
    /// Bytes of original code that ran: the same in all layouts.
    pub bytes: u64,
    /// Branches that were taken, calls, returns and indirect jumps included.
    pub taken: u64,
    /// Lines that the instruction cache did not have.
    pub l1i: u64,
    /// Bytes of these lines that ran before the line was displaced, each counted once.
    pub used: u64,
    /// Lines that the L2 did not have either.
    pub l2: u64,
    /// Pages that the first-level instruction TLB did not have.
    pub itlb: u64,
    /// Pages that the second level did not have either.
    pub stlb: u64,
    /// Taken branches that the branch target buffer did not know.
    pub btb: u64,
    /// Instructions that fetched a line ahead.
    pub prefetches: u64,
}

impl Counts {
    /// The share of the bytes of all fetched lines that ran before they were displaced: what blocks that are
    /// wanted together, and no others, share. `line`: bytes of a line.
    pub fn used_share(&self, line: u64) -> f64 {
        self.used as f64 / (self.l1i * line).max(1) as f64
    }

    /// Cycles that the front end may lose by all this, per 1,000 bytes of code: a weighted sum that serves to
    /// rank layouts. The weights are the usual latencies: 12 for a line from the L2, 40 more from behind it,
    /// 7 for a page from the second-level TLB, 25 more for a page walk, 8 for a branch found in decoding, and
    /// half a cycle for each taken branch and for each line fetched ahead.
    pub fn cost(&self) -> f64 {
        let sum = 12.0 * self.l1i as f64
            + 40.0 * self.l2 as f64
            + 7.0 * self.itlb as f64
            + 25.0 * self.stlb as f64
            + 8.0 * self.btb as f64
            + 0.5 * (self.taken + self.prefetches) as f64;
        1000.0 * sum / self.bytes.max(1) as f64
    }
}

/// The number of the page that holds `at`, and whether it is a large one. (A version begins at a large page's
/// start.)
fn page_of(at: u64, placement: &Placement, machine: &Machine) -> (u64, bool) {
    const LARGE: u64 = 2 << 20;
    if machine.large_pages && placement.hot.contains(&at) {
        // Above all small pages' numbers.
        return ((1 << 60) + (at - placement.hot.start) / LARGE, true);
    }
    (at / machine.page, false)
}

/// A line that is fetched ahead is there when so many bytes of code have run: some 50 instructions, the time
/// that the L2 waits for the next level.
pub(crate) const LATE: u64 = 200;

/// Runs `trace` over code that stands like this.
pub fn simulate(program: &Program, trace: &Trace, placement: &Placement, machine: &Machine) -> Counts {
    observe(program, trace, placement, machine, |_| {})
}

/// What a run shows of one step.
pub(crate) struct Seen<'a> {
    /// The step.
    pub step: &'a Step,
    /// Where the step's copy of its block begins.
    pub start: u64,
    /// Bytes of original code that ran before it.
    pub before: u64,
    /// Numbers of the lines that the L2 did not have.
    pub missed: &'a [u64],
}

/// As [`simulate`]; `seen` is told of each step when it has run.
pub(crate) fn observe(
    program: &Program,
    trace: &Trace,
    placement: &Placement,
    machine: &Machine,
    mut seen: impl FnMut(Seen<'_>),
) -> Counts {
    let half = Geometry { ways: machine.l2.ways.div_ceil(2), ..machine.l2 };
    let mut l1i = Cache::new(machine.l1i);
    let (mut l2, mut btb) = (Cache::new(half), Cache::new(machine.btb));
    let (mut itlb, mut stlb) = (Cache::new(machine.itlb), Cache::new(machine.stlb));
    let large_itlb = Geometry { sets: 1, ways: machine.large_itlb.max(1) };
    let mut large_itlb = Cache::new(large_itlb);
    let mut counts = Counts::default();
    let (mut line_before, mut page_before) = (u64::MAX, u64::MAX);
    let mut copies = Copies::new(placement);
    // Lines on their way, with when they will be there.
    let mut ahead: VecDeque<(u64, u64)> = VecDeque::new();
    let mut missed = Vec::new();
    let mut used = UsedBytes::new(machine.line);
    let mut following = trace.steps.first().map(|step| copies.first(step));
    for (i, step) in trace.steps.iter().enumerate() {
        let Some((start, end)) = following else { break };
        let from = placement.byte(step.block, start, step.from);
        let to = match step.to {
            Step::END => end.max(from),
            to => placement.byte(step.block, start, to),
        };
        let before = counts.bytes;
        let there = ahead.partition_point(|(there, _)| *there <= before);
        ahead.drain(..there).for_each(|(_, line)| l2.fetch(line));
        if let Some(address) = placement.fetches(step.block, start).filter(|_| step.from == 0) {
            counts.prefetches += 1;
            ahead.push_back((before + LATE, address / machine.line));
        }
        let original_end = if step.to == Step::END { program.block(step.block).len } else { step.to };
        counts.bytes += u64::from(original_end.saturating_sub(step.from));
        // The last byte of an emptied step is the one in front of it.
        for line in from / machine.line..=to.max(from + 1).wrapping_sub(1) / machine.line {
            if line == line_before {
                used.add(line, from, to);
                continue;
            }
            line_before = line;
            let (page, large) = page_of(line * machine.line, placement, machine);
            let first = if large && machine.large_itlb > 0 { &mut large_itlb } else { &mut itlb };
            if page != page_before && !first.touch(page) {
                stlb.touch(page);
            }
            page_before = page;
            if !l1i.touch(line) {
                used.fetch(line);
                if !l2.touch(line) {
                    missed.push(line);
                }
            }
            used.add(line, from, to);
        }
        seen(Seen { step, start, before, missed: &missed });
        missed.clear();
        let next_step = trace.steps.get(i + 1);
        following = next_step.map(|next| copies.next(step, next));
        let next = next_step.zip(following).map(|(n, (start, _))| placement.byte(n.block, start, n.from));
        if step.how == How::Taken || next.is_some_and(|n| n != to) {
            counts.taken += 1;
            btb.touch(to);
        }
    }
    let misses = [l1i.misses, l2.misses, itlb.misses + large_itlb.misses, stlb.misses, btb.misses];
    [counts.l1i, counts.l2, counts.itlb, counts.stlb, counts.btb] = misses;
    counts.used = used.bytes;
    counts
}

/// Which bytes of lines ran since the line was fetched.
struct UsedBytes {
    line: u64,
    /// By line, a bit for each byte (of longer lines, for two and so on).
    seen: HashMap<u64, u64>,
    bytes: u64,
}

impl UsedBytes {
    fn new(line: u64) -> Self {
        Self { line, seen: HashMap::new(), bytes: 0 }
    }

    fn fetch(&mut self, line: u64) {
        self.seen.insert(line, 0);
    }

    /// The part of `from..to` that is in `line` ran.
    fn add(&mut self, line: u64, from: u64, to: u64) {
        let unit = self.line.div_ceil(64);
        let first = from.saturating_sub(line * self.line).min(self.line) / unit;
        let behind = to.saturating_sub(line * self.line).min(self.line).div_ceil(unit);
        let below = |bit: u64| u64::MAX.checked_shr(64 - bit as u32).unwrap_or(0);
        let seen = self.seen.entry(line).or_default();
        let new = below(behind) & !below(first) & !*seen;
        *seen |= new;
        self.bytes += u64::from(new.count_ones()) * unit;
    }
}

/// Calls that are followed into and out of duplicates.
const CALLS: usize = 256;

/// A tail, and how many of its duplicates were passed or entered.
type InTail<'a> = (&'a [PlacedDuplicate], usize);

/// Which copy of a block a trace runs through.
struct Copies<'a> {
    placement: &'a Placement,
    /// Where the trace is; `None` where there is no tail.
    at: Option<InTail<'a>>,
    /// What calls come back to: the block, and where it was.
    callers: Vec<(BlockId, Option<InTail<'a>>)>,
}

impl<'a> Copies<'a> {
    fn new(placement: &'a Placement) -> Self {
        Self { placement, at: None, callers: Vec::new() }
    }

    /// The first step's copy: start and end.
    fn first(&mut self, step: &Step) -> (u64, u64) {
        self.at = self.placement.tails.get(&step.block).map(|tail| (&tail[..], 0));
        (self.placement.starts[step.block.index()], self.placement.end(step.block))
    }

    /// The copy of `next`, which comes after `step`: its start and end.
    fn next(&mut self, step: &Step, next: &Step) -> (u64, u64) {
        if self.placement.tails.is_empty() {
            return self.first(next);
        }
        if step.to != Step::END {
            if (step.block, step.to) == (next.block, next.from) {
                return self.here(next);
            }
            if self.callers.len() >= CALLS {
                self.callers.drain(..CALLS / 2);
            }
            self.callers.push((step.block, self.at));
        }
        if next.from > 0
            && let Some(caller) = self.callers.iter().rposition(|(block, _)| *block == next.block)
        {
            self.at = self.callers[caller].1;
            self.callers.truncate(caller);
            return self.here(next);
        }
        let falls = self.at.filter(|_| step.to == Step::END && step.how == How::Branch);
        if let Some((tail, passed)) = falls
            && let Some(duplicate) = tail.get(passed).filter(|d| d.block == next.block && next.from == 0)
        {
            self.at = Some((tail, passed + 1));
            return (duplicate.start, duplicate.start + duplicate.length);
        }
        self.first(next)
    }

    /// The copy of the step's block in which the trace is.
    fn here(&mut self, step: &Step) -> (u64, u64) {
        let duplicate = self.at.and_then(|(tail, passed)| tail.get(passed.checked_sub(1)?));
        match duplicate.filter(|d| d.block == step.block) {
            Some(duplicate) => (duplicate.start, duplicate.start + duplicate.length),
            None => self.first(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn bytes_are_used_once_until_the_line_is_fetched_again() {
        let mut used = UsedBytes::new(64);
        used.fetch(2);
        used.add(2, 130, 140);
        used.add(2, 135, 145);
        assert_eq!(used.bytes, 15);
        // Only what is in the line counts.
        used.add(2, 100, 129);
        used.add(2, 190, 300);
        used.add(2, 150, 150);
        assert_eq!(used.bytes, 15 + 1 + 2);
        used.fetch(2);
        used.add(2, 128, 192);
        assert_eq!(used.bytes, 18 + 64);
    }

    proptest! {
        #[test]
        fn used_bytes_are_those_of_sets(steps in prop::collection::vec((0u64..400, 0u64..90, any::<bool>()), 0..60)) {
            let (mut used, mut sets, mut bytes) = (UsedBytes::new(64), BTreeSet::new(), 0);
            for (from, len, fetch) in steps {
                for line in from / 64..=(from + len) / 64 {
                    if fetch {
                        used.fetch(line);
                        sets.retain(|at| at / 64 != line);
                    }
                    used.add(line, from, from + len);
                    let inside = (from..from + len).filter(|at| at / 64 == line);
                    bytes += inside.filter(|at| sets.insert(*at)).count() as u64;
                }
            }
            prop_assert_eq!(used.bytes, bytes);
        }
    }
}
