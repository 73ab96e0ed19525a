//! Codestitcher (Lavaee, Criswell and Ding, *Codestitcher: inter-procedural basic block layout optimization*,
//! CC 2019).
//!
//! 1. Chains by maximum cycle cover, joined across functions at tail calls (`cycle_cover`).
//! 2. For each distance d, from small to large: sequences are joined, most transfers over at most d bytes for
//!    each byte of the two first (section 2.4, with heap entries that are brought up to date when they come
//!    to the top), until no join adds any. Branches, calls and returns count alike.
//! 3. Sequences go by executed bytes per byte.
//!
//! With `partial_order`, a stage between 1 and 2 fixes for each pair of chains which one comes first, where a
//! static predictor of the kind "backward taken, forward not taken" gains by it (CS+PO, section 2.6; see
//! `partial_order`).
//!
//! O(levels (n + m) log n) but for hubs. Ties between the two directions of a join go to the one in which
//! calls and jumps go forward, ties between joins to the lower addresses.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::chain_merging::{Candidate, Chains, Join, Objective};
use crate::cycle_cover::cover_chains;
use crate::distances::Distances;
use crate::graph::{HotGraph, Link, LinkKind, Links};
use crate::hot_chains::{HotChains, cold_fragments};
use crate::model::{Fragment, Layout, LayoutAlgorithm};
use crate::nodes::Node;
use crate::partial_order::Order;
use crate::pettis_hansen::by_density;

/// Inter-procedural layout by distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codestitcher {
    /// A block is hot if its count is greater.
    pub threshold: u64,
    /// The levels.
    pub distances: Distances,
    /// Whether chains are ordered for static branch prediction (CS+PO).
    pub partial_order: bool,
    /// Alignment in bytes of each sequence, a power of two.
    pub align: u32,
}

impl Default for Codestitcher {
    fn default() -> Self {
        Self { threshold: 0, distances: Distances::default(), partial_order: false, align: 16 }
    }
}

impl Codestitcher {
    /// The variant with partial order.
    pub fn with_partial_order() -> Self {
        Self { partial_order: true, ..Self::default() }
    }
}

impl LayoutAlgorithm for Codestitcher {
    fn name(&self) -> &'static str {
        if self.partial_order { "codestitcher+po" } else { "codestitcher" }
    }

    fn meaning(&self) -> &'static str {
        match self.partial_order {
            false => {
                "Most fall-throughs, then most transfers within each distance, across functions (Codestitcher)"
            }
            true => "As codestitcher, with branches in the directions that static prediction expects",
        }
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let hot =
            HotChains { threshold: self.threshold, ..HotChains::default() }.hot_blocks(program, profile);
        let graph = HotGraph::new(program, profile, &hot, Links::All);
        let chains = cover_chains(program, &graph);
        let mut order = self.partial_order.then(|| Order::new(program, profile, &graph, &chains));
        let sequences = collocate(&graph, chains, self.distances.bytes(), order.as_mut());
        let sequences = match order {
            Some(order) => order.sorted(&graph, sequences),
            None => densest_first(&graph, sequences),
        };
        let fragment = |blocks| Fragment { blocks, align: self.align };
        let hot_fragments = graph.to_blocks(sequences).into_iter().map(fragment).collect();
        Layout { hot: hot_fragments, cold: cold_fragments(program, &hot), ..Layout::default() }
    }
}

/// Step 3.
pub(crate) fn densest_first(graph: &HotGraph, sequences: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let nodes: Vec<Node> = sequences.iter().map(|s| graph.weigh(s)).collect();
    let singles = (0..sequences.len() as u32).map(|s| vec![s]).collect();
    let mut sequences = sequences;
    by_density(&nodes, singles).into_iter().map(|s| std::mem::take(&mut sequences[s])).collect()
}

/// Step 2: joins sequences level by level.
pub(crate) fn collocate(
    graph: &HotGraph,
    mut sequences: Vec<Vec<u32>>,
    distances: &[u64],
    order: Option<&mut Order>,
) -> Vec<Vec<u32>> {
    let reach = |distance: u64| i64::try_from(distance).unwrap_or(i64::MAX);
    let Some(order) = order else {
        let mut chains = Chains::new(&graph.sizes, &graph.links, &sequences);
        drop(sequences);
        for &distance in distances {
            chains.run(&mut Close { reach: reach(distance), order: None });
        }
        return chains.into_chains();
    };
    for &distance in distances {
        let mut chains = Chains::new(&graph.sizes, &graph.links, &std::mem::take(&mut sequences));
        order.restart(&chains);
        chains.run(&mut Close { reach: reach(distance), order: Some(&mut *order) });
        sequences = chains.into_chains();
    }
    sequences
}

/// Transfers within a distance.
pub(crate) struct Close<'o> {
    pub reach: i64,
    pub order: Option<&'o mut Order>,
}

impl Objective for Close<'_> {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let [a, b] = chains.ends(edge);
        let bytes = chains.size(a) + chains.size(b);
        let (weight, join) = if bytes <= self.reach && self.order.is_none() {
            // All is close, whichever is first: `settle` looks at the links, if ever.
            (chains.weight(edge), Join::Concat { first: a, second: b })
        } else {
            self.closer(chains, edge)?
        };
        (weight > 0.0).then_some(Candidate { gain: weight / bytes as f64, join })
    }

    fn settle(&mut self, chains: &Chains<'_>, edge: u32, join: Join) -> Join {
        match self.order {
            None => self.closer(chains, edge).map_or(join, |(_, join)| join),
            Some(_) => join,
        }
    }

    fn permits(&mut self, _: &Chains<'_>, _: u32, join: Join) -> bool {
        match (self.order.as_deref_mut(), join) {
            (Some(order), Join::Concat { first, second }) => order.allows(first, second),
            _ => true,
        }
    }

    fn joined(&mut self, kept: u32, gone: u32) {
        if let Some(order) = self.order.as_deref_mut() {
            order.unite(kept, gone);
        }
    }
}

impl Close<'_> {
    /// The better of the two ways to join the chains of an edge, and the transfers that are close then.
    fn closer(&mut self, chains: &Chains<'_>, edge: u32) -> Option<(f64, Join)> {
        let [a, b] = chains.ends(edge);
        let [ab, ba] = self.close(chains, edge);
        let mut ways = [(ab, a, b), (ba, b, a)];
        if ba > ab {
            ways.swap(0, 1);
        }
        // The better one first: to ask the order is the dearest part.
        for ((weight, _), first, second) in ways {
            if weight > 0.0 && self.order.as_deref_mut().is_none_or(|o| o.allows(first, second)) {
                return Some((weight, Join::Concat { first, second }));
            }
        }
        None
    }

    /// Transfers that are close if the first chain of an edge stands in front, and, for ties, how many of
    /// them go forward; the same if the second does.
    fn close(&self, chains: &Chains<'_>, edge: u32) -> [(f64, f64); 2] {
        let [a, b] = chains.ends(edge);
        let (sizes, starts) = ([a, b].map(|c| chains.size(c)), [a, b].map(|c| chains.start(c)));
        let mut sums = [(0.0, 0.0); 2];
        for &Link { from, to, weight, kind, .. } in chains.links_of(edge) {
            let ((chain, from_place), (_, to_place)) = (chains.place(from), chains.place(to));
            // Which of the two chains it leaves, and how far from their starts its nodes stand.
            let source = usize::from(chain != a);
            let (begins, arrives) = (from_place - starts[source], to_place - starts[1 - source]);
            for (front, (all, forward)) in sums.iter_mut().enumerate() {
                let ahead = front == source;
                let distance = if ahead {
                    sizes[front] + arrives + chains.node_size(to) - begins
                } else {
                    sizes[front] + begins + chains.node_size(from) - arrives
                };
                if distance <= self.reach {
                    *all += weight;
                    *forward += if ahead && kind != LinkKind::Return { weight } else { 0.0 };
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_graphs::{random_graph, starts};
    use restitch_profile::testing::best_of_all;

    /// Transfers over at most `reach` bytes, ends included, if the nodes stand in this order.
    fn close_transfers(sizes: &[u64], links: &[Link], order: &[u32], reach: i64) -> f64 {
        let starts = starts(sizes, order);
        let distance = |l: &Link| {
            let (a, b) = (starts[l.from as usize]?, starts[l.to as usize]?);
            let last =
                if a > b { a + sizes[l.from as usize] as i64 } else { b + sizes[l.to as usize] as i64 };
            Some(last - a.min(b))
        };
        links.iter().filter(|l| distance(l).is_some_and(|d| d <= reach)).map(|l| l.weight).sum()
    }

    /// The greedy partial layout against the best of all orders (which is an upper bound for partial layouts
    /// too).
    #[test]
    fn close_transfers_come_near_the_optimum() {
        let (mut reached, mut possible) = (0.0, 0.0);
        for seed in 0..120 {
            let (sizes, links) = random_graph(seed, 6);
            let reach = 160;
            let mut chains = Chains::of_single_nodes(&sizes, &links);
            chains.run(&mut Close { reach, order: None });
            let sequences = chains.into_chains();
            let got: f64 = sequences.iter().map(|s| close_transfers(&sizes, &links, s, reach)).sum();
            let optimum =
                best_of_all(&[0, 1, 2, 3, 4, 5], &|order| close_transfers(&sizes, &links, order, reach));
            assert!(got <= optimum + 1e-9 && got >= 0.5 * optimum, "seed {seed}: {got} of {optimum}");
            reached += got;
            possible += optimum;
        }
        eprintln!("close transfers: {:.3} of the optimum", reached / possible);
        assert!(reached > 0.85 * possible);
    }
}
