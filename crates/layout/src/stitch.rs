//! Stitch: Codestitcher with two changes. Best in the laboratory's models and where the profile fits the work; where it does not,
//! [`ExtTspAcross`](crate::ExtTspAcross) is safer.
//!
//! 1. **Split by heat.** The blocks that make up [`Stitch::hot_share`] of all executed bytes are laid out first; those that ran,
//!    but hardly ever, behind them by the same method, and those that never ran at the far end. In a compiler a quarter of the
//!    executed blocks make less than a thousandth of the execution; between the others they only take up lines and pages.
//! 2. Chains by maximum cycle cover, across functions at tail calls, as in Codestitcher.
//! 3. **Nearness instead of a limit.** Codestitcher counts transfers within a distance d, near ones and those just within d alike.
//!    Here one over x bytes counts 1 - x/d, measured from the branch to its target: of two orders within reach, the tighter one
//!    is taken, and the direction of a join is decided by distances instead of ties. Gain is again over the size of both
//!    sequences, level by level.
//! 4. Sequences go by executed bytes per byte.
//!
//! O(levels (n + m) log n) but for hubs; ties go to the lower addresses.

use std::cmp::Reverse;

use restitch_profile::Profile;
use restitch_program::{BlockId, Program};

use crate::agglomerate::{Candidate, Chains, Join, Objective};
use crate::codestitcher::{DISTANCES, densest_first};
use crate::cycle_cover::cover_chains;
use crate::graph::{HotGraph, Links};
use crate::hot_chains::cold_fragments;
use crate::{Fragment, HotChains, Layout, LayoutAlgorithm};

/// Gains below are rounding errors.
const EPSILON: f64 = 1e-12;

/// Inter-procedural layout by nearness and heat.
#[derive(Debug, Clone, PartialEq)]
pub struct Stitch {
    /// Share of the executed bytes, 0 to 1, whose blocks are laid out in front of all others.
    pub hot_share: f64,
    /// Distances in bytes, ascending.
    pub distances: Vec<u64>,
    /// Alignment in bytes of each sequence of the hot part, a power of two.
    pub align: u32,
}

impl Default for Stitch {
    fn default() -> Self {
        Self { hot_share: 0.999, distances: DISTANCES.to_vec(), align: 16 }
    }
}

impl LayoutAlgorithm for Stitch {
    fn name(&self) -> &'static str {
        "stitch"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let executed = HotChains::default().hot_blocks(program, profile);
        let (hot, warm) = split_by_heat(program, profile, &executed, self.hot_share);
        let mut fragments = self.fragments(program, profile, &hot, self.align);
        fragments.extend(self.fragments(program, profile, &warm, 1));
        Layout { hot: fragments, cold: cold_fragments(program, &executed), ..Layout::default() }
    }
}

impl Stitch {
    /// Steps 2 to 4 for the marked blocks.
    fn fragments(&self, program: &Program, profile: &Profile, marked: &[bool], align: u32) -> Vec<Fragment> {
        let graph = HotGraph::new(program, profile, marked, Links::All);
        let mut chains = Chains::new(&graph.sizes, &graph.links, &cover_chains(program, &graph));
        for &distance in &self.distances {
            chains.run(&mut Near { reach: distance as f64 });
        }
        let ordered = graph.to_blocks(densest_first(&graph, chains.into_chains()));
        ordered.into_iter().map(|blocks| Fragment { blocks, align }).collect()
    }
}

/// Step 1: the most executed blocks, until they make up `share` of all executed bytes, and the rest of the executed ones. Blocks
/// with equal counts stay on one side.
pub(crate) fn split_by_heat(
    program: &Program,
    profile: &Profile,
    executed: &[bool],
    share: f64,
) -> (Vec<bool>, Vec<bool>) {
    let bytes = |b: BlockId| profile.block(b) as f64 * f64::from(program.block(b).len);
    let mut order: Vec<BlockId> = program.block_ids().filter(|b| executed[b.index()]).collect();
    order.sort_by_key(|&b| (Reverse(profile.block(b)), b));
    let wanted = share * order.iter().map(|&b| bytes(b)).sum::<f64>();
    let mut sum = 0.0;
    let mut limit = 0;
    for &block in &order {
        if sum >= wanted {
            break;
        }
        limit = profile.block(block);
        sum += bytes(block);
    }
    let is_hot = |b: BlockId| executed[b.index()] && profile.block(b) >= limit;
    let hot: Vec<bool> = program.block_ids().map(is_hot).collect();
    let warm = hot.iter().zip(executed).map(|(&hot, &ran)| ran && !hot).collect();
    (hot, warm)
}

/// Nearness within a reach.
pub(crate) struct Near {
    pub reach: f64,
}

impl Near {
    /// What the transfers of an edge are worth if its first chain stands in front, and if its second does.
    fn worth(&self, chains: &Chains<'_>, edge: u32) -> [f64; 2] {
        let [a, b] = chains.ends(edge);
        let (sizes, starts) = ([a, b].map(|c| chains.size(c)), [a, b].map(|c| chains.start(c)));
        let mut sums = [0.0; 2];
        for link in chains.links_of(edge) {
            let ((chain, from_place), (_, to_place)) = (chains.place(link.from), chains.place(link.to));
            let source = usize::from(chain != a);
            let leaves = from_place - starts[source] + i64::from(link.leaves);
            let arrives = to_place - starts[1 - source] + i64::from(link.arrives);
            for (front, sum) in sums.iter_mut().enumerate() {
                let ahead = if front == source { sizes[front] } else { -sizes[front] };
                let distance = (arrives - leaves + ahead).unsigned_abs() as f64;
                *sum += link.weight * (1.0 - distance / self.reach).max(0.0);
            }
        }
        sums
    }
}

impl Objective for Near {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let [a, b] = chains.ends(edge);
        let [forward, backward] = self.worth(chains, edge);
        let (first, second, worth) = if backward > forward { (b, a, backward) } else { (a, b, forward) };
        let gain = worth / (chains.size(a) + chains.size(b)) as f64;
        (gain > EPSILON).then_some(Candidate { gain, join: Join::Concat { first, second } })
    }
}
