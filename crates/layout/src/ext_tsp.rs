//! Extended TSP (Newell and Pupyrev, *Improved basic block reordering*, IEEE Transactions on Computers 2020), our own
//! implementation of the published score and merge.
//!
//! **Problem.** Fall-throughs are not all: a short jump over a few bytes costs less than a far one. Maximise, over all
//! branches, 1 for a fall-through and up to 0.1 for a jump over at most 1024 bytes forward or 640 backward.
//!
//! **Idea.** Chains begin as single blocks. The pair of chains whose merge gains most is merged, until nothing gains. A merge
//! of X and Y may also split X: of XY, YX, X1 Y X2, Y X2 X1 and X2 X1 Y the best is taken. Only the cuts that make a new
//! fall-through between X and Y are looked at; others gain a tenth at most. Gains are computed from the links between
//! X and Y and, for a cut, those inside X; see [`Chains`] for what keeps the whole near-linear.
//!
//! **Limits.** Within one function; a branch between functions joins finished chains end to end afterwards. Chains of more than
//! [`SPLIT_NODES`] blocks or with more than [`SPLIT_EDGES`] neighbours are not cut. Ties go to the lower blocks.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::agglomerate::{Candidate, Chains, Join, Objective, Shape};
use crate::chains::extend;
use crate::codestitcher::{DISTANCES, collocate, densest_first};
use crate::graph::{HotGraph, Link, LinkKind, Links};
use crate::hot_chains::cold_fragments;
use crate::stitch::split_by_heat;
use crate::{Fragment, HotChains, Layout, LayoutAlgorithm};

/// Chains of more blocks are not cut. LLVM's limit.
const SPLIT_NODES: usize = 128;
/// Chains with more neighbours are not cut: all their edges would be moved each time.
const SPLIT_EDGES: usize = 256;
/// Reach of a forward jump that counts, in bytes.
pub(crate) const FORWARD: f64 = 1024.0;
/// Reach of a backward jump that counts, in bytes.
pub(crate) const BACKWARD: f64 = 640.0;
/// Share of the executed bytes, 0 to 1, whose blocks [`ExtTspAcross`] lays out in front of all others.
const HOT_SHARE: f64 = 0.99;
/// If these blocks have more bytes than that (a second-level cache), nothing is parted: they would not stay in the cache together, and chains
/// through both parts are worth more.
const HOT_BYTES: u64 = 256 << 10;
/// What a fall-through is worth on top of an executed one, in fall-throughs, if it makes a jump superfluous: a block's only way out then takes no
/// instruction. (Loops turn so that their condition stands at the end.)
const JUMP: f64 = 0.5;
/// What gains less is no gain, but rounding.
const EPSILON: f64 = 1e-9;

/// Extended-TSP chains within functions, ordered by call-chain clustering as [`HotChains`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtTsp {
    /// Threshold, alignment and clustering.
    pub options: HotChains,
}

impl LayoutAlgorithm for ExtTsp {
    fn name(&self) -> &'static str {
        "ext-tsp"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let hot = self.options.hot_blocks(program, profile);
        let within = HotGraph::new(program, profile, &hot, Links::WithinFunctions);
        let graph = HotGraph::new(program, profile, &hot, Links::Branches);
        let chains = graph.to_blocks(extend(&graph, &ext_tsp_chains(&within)));
        self.options.arrange(program, profile, &hot, chains)
    }
}

/// The default: inter-procedural extended TSP. Branches, calls and returns alike, over all functions at once. Its sequences are collocated by
/// Codestitcher's distances and go by density.
///
/// The blocks that make up 99 % of all executed bytes are laid out first, those that ran but seldom behind them by the same method. Spread
/// over the pages of all that ever ran, hot lines fall into the sets of an instruction cache at random, and a working set that would
/// fit misses all the time. Where that part alone is larger than a second-level cache, nothing is parted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtTspAcross;

impl LayoutAlgorithm for ExtTspAcross {
    fn name(&self) -> &'static str {
        "ext-tsp-across"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let executed = HotChains::default().hot_blocks(program, profile);
        let (hot, seldom) = split_by_heat(program, profile, &executed, HOT_SHARE);
        let bytes: u64 =
            program.block_ids().filter(|b| hot[b.index()]).map(|b| u64::from(program.block(b).len)).sum();
        let parts = if bytes <= HOT_BYTES { vec![hot, seldom] } else { vec![executed.clone()] };
        let fragments = parts.iter().flat_map(|marked| across(program, profile, marked)).collect();
        Layout { hot: fragments, cold: cold_fragments(program, &executed), ..Layout::default() }
    }
}

/// The marked blocks.
fn across(program: &Program, profile: &Profile, marked: &[bool]) -> Vec<Fragment> {
    let graph = HotGraph::new(program, profile, marked, Links::All);
    let sequences = collocate(&graph, ext_tsp_chains(&graph), &DISTANCES, None);
    let ordered = graph.to_blocks(densest_first(&graph, sequences));
    ordered.into_iter().map(|blocks| Fragment { blocks, align: 16 }).collect()
}

/// The chains of a graph's nodes with a high extended-TSP score.
pub(crate) fn ext_tsp_chains(graph: &HotGraph) -> Vec<Vec<u32>> {
    let mut chains = Chains::of_single_nodes(&graph.sizes, &graph.links);
    chains.run(&mut TspScore);
    chains.into_chains()
}

/// The extended-TSP score as an [`Objective`].
pub(crate) struct TspScore;

impl Objective for TspScore {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let [a, b] = chains.ends(edge);
        let mut best: Option<Candidate> = None;
        for (first, second) in [(a, b), (b, a)] {
            consider(&mut best, concatenated(chains, edge, first), Join::Concat { first, second });
        }
        for (outer, inner) in [(a, b), (b, a)] {
            let nodes = chains.members(outer).len();
            if (2..=SPLIT_NODES).contains(&nodes) && chains.degree(outer) <= SPLIT_EDGES {
                cuts(chains, edge, outer, inner, &mut best);
            }
        }
        best
    }
}

fn consider(best: &mut Option<Candidate>, gain: f64, join: Join) {
    if gain > best.map_or(EPSILON, |b| b.gain + EPSILON) {
        *best = Some(Candidate { gain, join });
    }
}

/// The value of the links of an edge if `first` stands in front of the other chain.
fn concatenated(chains: &Chains<'_>, edge: u32, first: u32) -> f64 {
    let size = chains.size(first);
    let at = |node: u32| chains.offset(node) + if chains.chain_of(node) == first { 0 } else { size };
    chains.links_of(edge).map(|l| value(l, at(l.from), at(l.to))).sum()
}

/// All cuts of `outer` that make a fall-through to the head or from the tail of `inner`.
fn cuts(chains: &Chains<'_>, edge: u32, outer: u32, inner: u32, best: &mut Option<Candidate>) {
    let (x, y) = (chains.members(outer), chains.members(inner));
    let place = |node: u32| x.iter().position(|&n| n == node);
    let mut places = Vec::new();
    for link in chains.links_of(edge).filter(|l| l.kind == LinkKind::Branch) {
        if Some(&link.to) == y.front() {
            places.extend(place(link.from).map(|i| i + 1));
        } else if Some(&link.from) == y.back() {
            places.extend(place(link.to));
        }
    }
    places.sort_unstable();
    places.dedup();
    places.retain(|&at| at > 0 && at < x.len());
    for at in places {
        let crossing = crossing(chains, outer, at);
        for shape in [Shape::Between, Shape::Behind, Shape::Before] {
            let gain = cut(chains, edge, (outer, inner), at, &crossing, shape);
            consider(best, gain, Join::Split { outer, inner, at, shape });
        }
    }
}

/// The links within a chain that a cut in front of its node number `at` parts.
fn crossing<'g>(chains: &Chains<'g>, chain: u32, at: usize) -> Vec<&'g Link> {
    let nodes = chains.members(chain);
    let Some(&second) = nodes.get(at) else { return Vec::new() };
    let border = chains.offset(second);
    let links = nodes.iter().flat_map(|&node| chains.links_from(node));
    let parted = |l: &&Link| {
        chains.chain_of(l.to) == chain && (chains.offset(l.from) < border) != (chains.offset(l.to) < border)
    };
    links.filter(parted).collect()
}

/// What it gains to cut the first of two chains in front of its node number `at` and to put it together with the second like this.
fn cut(
    chains: &Chains<'_>,
    edge: u32,
    (outer, inner): (u32, u32),
    at: usize,
    crossing: &[&Link],
    shape: Shape,
) -> f64 {
    let nodes = chains.members(outer);
    let border = nodes.get(at).map_or(0, |&n| chains.offset(n));
    let (head, tail, whole) = (border, chains.size(outer) - border, chains.size(inner));
    // Where X1, X2 and Y begin.
    let (x1, x2, y) = match shape {
        Shape::Between => (0, head + whole, head),
        Shape::Behind => (whole + tail, whole, 0),
        Shape::Before => (tail, 0, head + tail),
    };
    let old = |node: u32| chains.offset(node);
    let new = |node: u32| match () {
        () if chains.chain_of(node) == inner => y + old(node),
        () if old(node) < border => x1 + old(node),
        () => x2 + old(node) - border,
    };
    let between: f64 = chains.links_of(edge).map(|l| value(l, new(l.from), new(l.to))).sum();
    let within = |l: &&Link| value(l, new(l.from), new(l.to)) - value(l, old(l.from), old(l.to));
    between + crossing.iter().map(within).sum::<f64>()
}

/// The value of a link between nodes that begin at these places.
pub(crate) fn value(link: &Link, from: i64, to: i64) -> f64 {
    let (end, to) = (from + i64::from(link.leaves), to + i64::from(link.arrives));
    let near = |distance: i64, reach: f64| 0.1 * (1.0 - distance as f64 / reach).max(0.0);
    let worth = match to - end {
        0 if link.kind == LinkKind::Branch => {
            if link.only {
                1.0 + JUMP
            } else {
                1.0
            }
        }
        distance if distance < 0 => near(-distance, BACKWARD),
        distance => near(distance, FORWARD),
    };
    link.weight * worth
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_profile::testing::{RandomProgram, Shape};

    /// A program of so many functions, of which every tenth block runs seldom.
    fn with(functions: usize) -> (Program, Profile) {
        let program = RandomProgram::shaped(1, Shape { functions, blocks: 20, unmovable: 0.0 }).program;
        let mut profile = Profile::empty(&program);
        profile.blocks = (0..program.blocks.len()).map(|i| if i % 10 == 0 { 5 } else { 5000 }).collect();
        // Chains lead through both kinds.
        profile.edges =
            program.edges.iter().map(|e| profile.block(e.from).min(profile.block(e.to))).collect();
        (program, profile)
    }

    #[test]
    fn the_hottest_go_first_where_they_fit() {
        for (functions, parted) in [(20, true), (2000, false)] {
            let (program, profile) = with(functions);
            let layout = ExtTspAcross.layout(&program, &profile);
            let order: Vec<bool> =
                layout.hot.iter().flat_map(|f| &f.blocks).map(|b| profile.block(*b) == 5000).collect();
            assert!(order.contains(&true) && order.contains(&false));
            assert_eq!(order.is_sorted_by(|a, b| a >= b), parted, "{functions} functions");
        }
    }
}
