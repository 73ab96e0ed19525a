//! Stitch: Codestitcher with two changes. Best in the laboratory's models; where the profile does not fit the
//! work, [`ExtTspAcross`](crate::ExtTspAcross) is safer.
//!
//! 1. **Split by heat.** The blocks that make up [`Stitch::hot_share`] of all executed bytes are laid out
//!    first; those that ran, but hardly ever, behind them by the same method, and those that never ran at the
//!    far end. In a compiler a quarter of the executed blocks make less than a thousandth of the execution;
//!    between the others they only take up lines and pages.
//! 2. Chains by maximum cycle cover, across functions at tail calls, as in Codestitcher.
//! 3. **Nearness instead of a limit.** Codestitcher counts transfers within a distance d, near ones and those
//!    just within d alike. Here one over x bytes counts 1 - x/d, measured from the branch to its target: of
//!    two orders within reach, the tighter one is taken, and the direction of a join is decided by distances
//!    instead of ties. Gain is again over the size of both sequences, level by level.
//! 4. Sequences go by executed bytes per byte.
//!
//! O(levels (n + m) log n) but for hubs; ties go to the lower addresses.

use std::cmp::Reverse;

use restitch_profile::Profile;
use restitch_program::{BlockId, Program};

use crate::chain_merging::{Candidate, Chains, Join, Objective};
use crate::codestitcher::densest_first;
use crate::cycle_cover::cover_chains;
use crate::distances::Distances;
use crate::graph::{HotGraph, Links};
use crate::hot_chains::{HotChains, cold_fragments};
use crate::model::{Fragment, Layout, LayoutAlgorithm};

/// Gains below are rounding errors.
const EPSILON: f64 = 1e-12;

/// Inter-procedural layout by nearness and heat.
#[derive(Debug, Clone, PartialEq)]
pub struct Stitch {
    /// Share of the executed bytes, 0 to 1, whose blocks are laid out in front of all others.
    pub hot_share: f64,
    /// The levels.
    pub distances: Distances,
    /// Alignment in bytes of each sequence of the hot part, a power of two.
    pub align: u32,
}

impl Default for Stitch {
    fn default() -> Self {
        Self { hot_share: 0.999, distances: Distances::default(), align: 16 }
    }
}

impl LayoutAlgorithm for Stitch {
    fn name(&self) -> &'static str {
        "stitch"
    }

    fn meaning(&self) -> &'static str {
        "Chains by nearness as codestitcher's by distance, the hottest blocks first"
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
        let sequences = collocate_near(&graph, cover_chains(program, &graph), self.distances.bytes());
        let ordered = graph.to_blocks(densest_first(&graph, sequences));
        ordered.into_iter().map(|blocks| Fragment { blocks, align }).collect()
    }
}

/// Step 3: joins sequences level by level.
pub(crate) fn collocate_near(graph: &HotGraph, sequences: Vec<Vec<u32>>, distances: &[u64]) -> Vec<Vec<u32>> {
    let mut chains = Chains::new(&graph.sizes, &graph.links, &sequences);
    drop(sequences);
    for &distance in distances {
        chains.run(&mut Near { reach: distance as f64 });
    }
    chains.into_chains()
}

/// Step 1: the most executed blocks, until they make up `share` of all executed bytes, and the rest of the
/// executed ones. Blocks with equal counts stay on one side.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Link;
    use crate::small_graphs::{random_graph, starts};
    use restitch_profile::testing::best_of_all;

    /// What transfers are worth if the nodes stand in this order.
    fn nearness(sizes: &[u64], links: &[Link], order: &[u32], reach: f64) -> f64 {
        let starts = starts(sizes, order);
        let distance =
            |l: &Link| Some((starts[l.to as usize]? - starts[l.from as usize]?).unsigned_abs() as f64);
        let worth = |l: &Link| distance(l).map_or(0.0, |d| l.weight * (1.0 - d / reach).max(0.0));
        links.iter().map(worth).sum()
    }

    /// Greedy joins against the best of all orders.
    #[test]
    fn nearness_comes_near_the_optimum() {
        let (mut reached, mut possible, mut least) = (0.0, 0.0, 1.0f64);
        for seed in 0..120 {
            let (sizes, links) = random_graph(seed, 6);
            let reach = 160.0;
            let mut chains = Chains::of_single_nodes(&sizes, &links);
            chains.run(&mut Near { reach });
            let sequences = chains.into_chains();
            let got: f64 = sequences.iter().map(|s| nearness(&sizes, &links, s, reach)).sum();
            let optimum = best_of_all(&[0, 1, 2, 3, 4, 5], &|order| nearness(&sizes, &links, order, reach));
            assert!(got <= optimum + 1e-9, "seed {seed}: {got} of {optimum}");
            least = least.min(got / optimum);
            reached += got;
            possible += optimum;
        }
        eprintln!("nearness: {:.3} of the optimum, at least {least:.3}", reached / possible);
        assert!(least > 0.5 && reached > 0.85 * possible);
    }
}
