//! The cost model: what a layout does to the processor's front end, in numbers that need no run.
//!
//! It shares nothing with the algorithms. Blocks of the layout stand one behind the other, aligned, at their
//! original lengths; all others stand where they are. Calls and returns are the same in every layout and are
//! not counted. Duplicates ([`crate::Tail`]) are left out: the score is that of the fragments alone.

use restitch_address::PAGE;
use restitch_profile::Profile;
use restitch_program::{EdgeKind, Program, Terminator};

use crate::model::Layout;

/// Line size that [`Coverage`] of lines counts, in bytes.
pub const LINE: u64 = 64;

/// What a placement costs. Fewer taken branches, lines and pages are better; more of the others.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// Executions of branches that are taken, and of jumps that the order makes necessary.
    pub taken: u64,
    /// Executed edges that fall through.
    pub fall_through: u64,
    /// Extended-TSP score (Newell and Pupyrev, *Improved basic block reordering*, IEEE ToC 2020): 1 for each
    /// fall-through, up to 0.1 for jumps over at most 1024 bytes forward or 640 backward.
    pub ext_tsp: f64,
    /// 64-byte lines.
    pub lines: Coverage,
    /// 4-KiB pages.
    pub pages: Coverage,
    /// Bytes of blocks that ran.
    pub executed_bytes: u64,
}

/// How many units hold a share of all executed bytes, the fullest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// 90 % of the executed bytes.
    pub p90: usize,
    /// 99 % of the executed bytes.
    pub p99: usize,
    /// All.
    pub all: usize,
}

impl Score {
    /// Scores `layout` under `profile`.
    pub fn of(program: &Program, profile: &Profile, layout: &Layout) -> Score {
        score(program, profile, &addresses(program, Some(layout)))
    }

    /// Scores the original order under `profile`.
    pub fn of_original(program: &Program, profile: &Profile) -> Score {
        score(program, profile, &addresses(program, None))
    }

    /// Share of executed edges that fall through; 1 where nothing ran.
    pub fn fall_through_share(&self) -> f64 {
        let all = self.taken as f64 + self.fall_through as f64;
        if all == 0.0 { 1.0 } else { self.fall_through as f64 / all }
    }
}

/// Where each block begins: a layout stands behind everything, on a page of its own.
fn addresses(program: &Program, layout: Option<&Layout>) -> Vec<u64> {
    let mut starts: Vec<u64> = program.blocks.iter().map(|b| b.start.get()).collect();
    let Some(layout) = layout else { return starts };
    let end = program.blocks.last().map_or(0, |b| b.end().get());
    let mut at = end.saturating_add(PAGE).next_multiple_of(PAGE);
    for fragment in layout.hot.iter().chain(&layout.cold) {
        at = at.next_multiple_of(u64::from(fragment.align.max(1)));
        for &block in &fragment.blocks {
            starts[block.index()] = at;
            at += u64::from(program.block(block).len);
        }
    }
    starts
}

fn score(program: &Program, profile: &Profile, starts: &[u64]) -> Score {
    let mut score = Score::default();
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        let source = program.block(edge.from);
        let (end, to) = (starts[edge.from.index()] + u64::from(source.len), starts[edge.to.index()]);
        let fixed = edge.kind == EdgeKind::Table
            || (edge.kind == EdgeKind::Taken && matches!(source.terminator, Terminator::ShortConditional(_)));
        if end == to && !fixed {
            score.fall_through = score.fall_through.saturating_add(count);
        } else {
            score.taken = score.taken.saturating_add(count);
        }
        score.ext_tsp += count as f64 * gain(end, to, fixed);
    }
    let ran = |b: &usize| profile.blocks[*b] > 0;
    score.executed_bytes = (0..starts.len()).filter(ran).map(|b| u64::from(program.blocks[b].len)).sum();
    score.lines = coverage(program, profile, starts, LINE);
    score.pages = coverage(program, profile, starts, PAGE);
    score
}

/// The extended-TSP value of one execution of a branch at `end` (its end) to `to`.
fn gain(end: u64, to: u64, fixed: bool) -> f64 {
    const FORWARD: f64 = 1024.0;
    const BACKWARD: f64 = 640.0;
    match (to.checked_sub(end), end.saturating_sub(to)) {
        (Some(0), _) if !fixed => 1.0,
        (Some(distance), _) => 0.1 * (1.0 - distance as f64 / FORWARD).max(0.0),
        (None, distance) => 0.1 * (1.0 - distance as f64 / BACKWARD).max(0.0),
    }
}

fn coverage(program: &Program, profile: &Profile, starts: &[u64], unit: u64) -> Coverage {
    let mut pieces: Vec<(u64, u128)> = Vec::new();
    for (block, &count) in profile.blocks.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (mut at, end) = (starts[block], starts[block] + u64::from(program.blocks[block].len));
        while at < end {
            let next = (at / unit + 1) * unit;
            pieces.push((at / unit, u128::from(count) * u128::from(next.min(end) - at)));
            at = next;
        }
    }
    pieces.sort_unstable();
    pieces.dedup_by(|again, kept| {
        let same = again.0 == kept.0;
        if same {
            kept.1 += again.1;
        }
        same
    });
    let mut weights: Vec<u128> = pieces.into_iter().map(|(_, weight)| weight).collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    let total: u128 = weights.iter().sum();
    let covering = |percent: u128| {
        let mut sum = 0;
        weights
            .iter()
            .take_while(|w| {
                let more = sum * 100 < total * percent;
                sum += **w;
                more
            })
            .count()
    };
    Coverage { p90: covering(90), p99: covering(99), all: weights.len() }
}
