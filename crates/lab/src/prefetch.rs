//! Code prefetch: which lines to fetch ahead, and where.
//!
//! **Problem.** Code that is larger than the second-level cache waits for lines. A processor's own
//! prefetchers follow straight code, not calls and branches that lead elsewhere.
//!
//! **Idea.** A run of a trace shows which lines the L2 does not have, and what ran before. Where a block
//! nearly always runs some 50 to 400 instructions before a line is missed, and seldom without that, it asks
//! for the line (Luk and Mowry, *Cooperative prefetching*, MICRO 1998; Ayers et al., *AsmDB*, ISCA 2019,
//! whose fan-in and distance the limits are like).
//!
//! **The price** is an instruction at every execution of that block, seven bytes of hot code, and lines
//! brought in for nothing, which take the place of others. So a site has to lead to the line with some
//! probability, and to save more than it costs.
//!
//! **What it does not know**: what the processor's own prefetchers do, what the memory is busy with, and that
//! a software prefetch goes through the data TLB.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use restitch_layout::{Layout, Prefetch};
use restitch_program::{BlockId, Program};

use crate::machine::Machine;
use crate::place::Placement;
use crate::simulate::{LATE, observe};
use crate::trace::{Step, Trace};

/// What a line from behind the L2 costs, in cycles ([`Counts::cost`](crate::Counts::cost)).
const MISS: f64 = 40.0;
/// Of a line, no more misses are looked at.
const LOOKED_AT: usize = 256;

/// Where lines may be fetched ahead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefetchLimits {
    /// A block may fetch a line that is missed after so many bytes of executed code at most.
    pub farthest: u64,
    /// Misses of a line in the trace that a site saves, at least.
    pub misses: usize,
    /// Share of a site's executions that are followed by the miss, at least.
    pub accuracy: f64,
    /// What an execution of a site costs, in cycles, useful or not.
    pub cost: f64,
    /// Sites of one line, at most.
    pub sites: usize,
    /// All sites together, as a share of the bytes of hot code.
    pub growth: f64,
}

impl Default for PrefetchLimits {
    fn default() -> Self {
        Self { farthest: 1600, misses: 4, accuracy: 0.3, cost: 2.0, sites: 3, growth: 0.01 }
    }
}

/// A block that ran before a miss, and how many bytes of executed code before it.
type Before = (BlockId, u64);

/// The misses of a line: for each, the blocks that ran at the right distance before it.
#[derive(Default)]
struct Missed {
    target: Option<(BlockId, u32)>,
    /// By block.
    behind: Vec<Vec<Before>>,
    total: usize,
}

/// Chooses what to fetch ahead in the hot code of `layout`, by a run of `trace` through the models of
/// `machine`. Same input, same output. What the layout fetches already is left out of account. The result is
/// what [`Layout::prefetches`] wants.
pub fn choose_prefetches(
    program: &Program,
    trace: &Trace,
    layout: &Layout,
    machine: &Machine,
    limits: &PrefetchLimits,
) -> Vec<Prefetch> {
    let bare = Layout { prefetches: Vec::new(), ..layout.clone() };
    let placement = Placement::of(program, &bare);
    let mut may = vec![false; program.blocks.len()];
    for &block in bare.hot.iter().flat_map(|f| &f.blocks) {
        let b = program.block(block);
        may[block.index()] = b.terminator_at() != b.start;
    }
    let mut executed = vec![0u64; program.blocks.len()];
    let lines = misses(program, trace, &placement, machine, limits, &may, &mut executed);
    let mut order: Vec<(&u64, &Missed)> = lines.iter().filter(|(_, m)| m.total >= limits.misses).collect();
    order.sort_by_key(|(line, m)| (std::cmp::Reverse(m.total), **line));
    let hot = placement.hot.end - placement.hot.start;
    let mut room = (limits.growth * hot as f64) as u64 / crate::place::PREFETCH;
    let (mut used, mut out) = (HashSet::new(), Vec::new());
    for (_, missed) in order {
        let Some((target, offset)) = missed.target else { continue };
        let wanted = limits.sites.min(usize::try_from(room).unwrap_or(usize::MAX));
        for at in sites(missed, &executed, limits, wanted, &used) {
            used.insert(at);
            out.push(Prefetch { at, target, offset });
            room -= 1;
        }
    }
    out.sort_unstable();
    out
}

/// Runs the trace and notes what was missed in the version, and after what.
fn misses(
    program: &Program,
    trace: &Trace,
    placement: &Placement,
    machine: &Machine,
    limits: &PrefetchLimits,
    may: &[bool],
    executed: &mut [u64],
) -> BTreeMap<u64, Missed> {
    let mut lines: BTreeMap<u64, Missed> = BTreeMap::new();
    let mut past: VecDeque<(u64, BlockId)> = VecDeque::new();
    observe(program, trace, placement, machine, |seen| {
        for &line in seen.missed {
            let first = line * machine.line;
            if !placement.hot.contains(&first) {
                continue;
            }
            let missed = lines.entry(line).or_default();
            missed.total += 1;
            let offset = first.saturating_sub(seen.start) as u32;
            missed.target.get_or_insert((seen.step.block, offset));
            if missed.behind.len() < LOOKED_AT {
                let in_time = past.iter().take_while(|(at, _)| at + LATE <= seen.before);
                // Of a block that ran several times, the last one.
                let mut behind: Vec<Before> = in_time.map(|(at, block)| (*block, seen.before - at)).collect();
                behind.sort_unstable();
                behind.dedup_by_key(|(block, _)| *block);
                missed.behind.push(behind);
            }
        }
        let gone = past.partition_point(|(at, _)| at + limits.farthest < seen.before);
        past.drain(..gone);
        if seen.step.from == 0 && may[seen.step.block.index()] {
            executed[seen.step.block.index()] += 1;
            past.push_back((seen.before, seen.step.block));
        }
    });
    lines
}

/// The best places for one line: each saves misses that those before it do not. Of places that save as much
/// the nearest, so that the line is there in time and is not pushed out before it is wanted.
fn sites(
    missed: &Missed,
    executed: &[u64],
    limits: &PrefetchLimits,
    wanted: usize,
    used: &HashSet<BlockId>,
) -> Vec<BlockId> {
    // Of the misses that were not looked at, as many are saved.
    let scale = missed.total as f64 / missed.behind.len().max(1) as f64;
    let mut left: Vec<&[Before]> = missed.behind.iter().map(Vec::as_slice).collect();
    let mut found = Vec::new();
    while found.len() < wanted {
        // Misses, and the sum of the distances.
        let mut saved: HashMap<BlockId, (usize, u64)> = HashMap::new();
        for (block, distance) in left.iter().flat_map(|behind| behind.iter()) {
            let (misses, distances) = saved.entry(*block).or_default();
            *misses += 1;
            *distances += distance;
        }
        let gain = |block: BlockId, saved: usize| {
            let (saved, executions) = (saved as f64 * scale, executed[block.index()] as f64);
            let good = saved >= limits.misses as f64 && saved >= limits.accuracy * executions;
            let gain = saved * MISS - executions * limits.cost;
            (good && gain > 0.0).then_some(gain)
        };
        let best = saved
            .into_iter()
            .filter(|(block, _)| !used.contains(block) && !found.contains(block))
            .filter_map(|(block, (saved, distances))| Some((gain(block, saved)?, distances, block)))
            .max_by(|a, b| a.0.total_cmp(&b.0).then((b.1, b.2).cmp(&(a.1, a.2))));
        let Some((.., block)) = best else { break };
        left.retain(|behind| behind.binary_search_by_key(&block, |b| b.0).is_err());
        found.push(block);
    }
    found
}

/// So many steps of a walk are enough to fill an L2 many times over.
const STEPS: usize = 3_000_000;
/// The walk by which lines are chosen is not one by which layouts are compared.
const SEED: u64 = 0x0ead;

impl Trace {
    /// The walk by which lines are chosen where there is no real execution.
    pub fn to_choose_by(program: &Program, profile: &restitch_profile::Profile) -> Self {
        Self::walk(program, profile, STEPS, SEED)
    }

    /// The first half of the steps, and the second.
    pub fn halves(mut self) -> (Self, Self) {
        let second: Vec<Step> = self.steps.split_off(self.steps.len() / 2);
        (self, Self { steps: second })
    }
}
