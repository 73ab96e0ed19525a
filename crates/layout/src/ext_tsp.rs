//! Extended TSP (Newell and Pupyrev, *Improved basic block reordering*, IEEE Transactions on Computers 2020),
//! our own implementation of the published score and merge.
//!
//! **Problem.** Fall-throughs are not all: a short jump over a few bytes costs less than a far one. Maximise,
//! over all branches, 1 for a fall-through and up to 0.1 for a jump over at most 1024 bytes forward or 640
//! backward.
//!
//! **Idea.** Chains begin as single blocks. The pair of chains whose merge gains most is merged, until
//! nothing gains. A merge of X and Y may also split X: of XY, YX, X1 Y X2, Y X2 X1 and X2 X1 Y the best is
//! taken. Only the cuts that make a new fall-through between X and Y are looked at; others gain a tenth at
//! most. Gains are computed from the links between X and Y and, for a cut, those inside X; see [`Chains`] for
//! what keeps the whole near-linear.
//!
//! **Limits.** Within one function; a branch between functions joins finished chains end to end afterwards.
//! Chains of more than [`SPLIT_NODES`] blocks or with more than [`SPLIT_EDGES`] neighbours are not cut. Ties
//! go to the lower blocks.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::chain_merging::{Candidate, Chains, Join, Objective, Shape};
use crate::chains::extend;
use crate::graph::{HotGraph, Link, LinkKind, Links};
use crate::hot_chains::HotChains;
use crate::model::{Layout, LayoutAlgorithm};
use crate::tsp_worth::{AFFINITY, BACKWARD, FALL, FORWARD, JUMP, LINE, SHORT};

/// Chains of more blocks are not cut. LLVM's limit.
const SPLIT_NODES: usize = 128;
/// Chains with more neighbours are not cut: all their edges would be moved each time.
const SPLIT_EDGES: usize = 256;
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

    fn meaning(&self) -> &'static str {
        "Fall-throughs and short jumps within functions (extended TSP); functions as by c3"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let hot = self.options.hot_blocks(program, profile);
        let within = ext_tsp_chains(&HotGraph::new(program, profile, &hot, Links::WithinFunctions));
        let graph = HotGraph::new(program, profile, &hot, Links::Branches);
        let chains = graph.to_blocks(extend(&graph, &within));
        self.options.arrange(program, profile, &hot, chains)
    }
}

/// A branch between blocks that are in no [`Program`], both by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Where it starts from.
    pub from: usize,
    /// Where it leads to.
    pub to: usize,
    /// How often it is taken, by a jump or not.
    pub count: u64,
    /// Whether control has no other way from there.
    pub is_only: bool,
}

/// Chains of blocks of these sizes in bytes with a high extended-TSP score. Ways that are never taken, lead
/// to where they start, or name blocks that do not exist are ignored.
pub fn block_chains(sizes: &[u64], ways: &[Way]) -> Vec<Vec<usize>> {
    let link = |way: &Way| Link {
        from: way.from as u32,
        to: way.to as u32,
        weight: way.count as f64,
        leaves: sizes[way.from] as u32,
        arrives: 0,
        kind: LinkKind::Branch,
        only: way.is_only,
    };
    let is_one = |way: &&Way| way.count > 0 && way.from != way.to && way.from.max(way.to) < sizes.len();
    let graph = HotGraph::of_links(sizes, &ways.iter().filter(is_one).map(link).collect::<Vec<_>>());
    let chains = ext_tsp_chains(&graph).into_iter();
    chains.map(|chain| chain.into_iter().map(|node| node as usize).collect()).collect()
}

/// The chains of a graph's nodes with a high extended-TSP score.
pub(crate) fn ext_tsp_chains(graph: &HotGraph) -> Vec<Vec<u32>> {
    let mut chains = Chains::of_single_nodes(&graph.sizes, &graph.links);
    chains.run(&mut TspScore::default());
    chains.into_chains()
}

/// The extended-TSP score as an [`Objective`].
#[derive(Default)]
pub(crate) struct TspScore {
    /// The links of the edge under consideration.
    between: Vec<Transfer>,
    /// Where the chain under consideration may be cut: bytes from its start to the node in front of which
    /// that is.
    borders: Vec<i64>,
    /// The links within that chain that a cut parts, and what they are worth without it.
    crossing: Vec<(Transfer, f64)>,
}

/// A link of which the places of both ends are known.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    from: End,
    to: End,
    /// How often.
    weight: f64,
    /// What one is worth if nothing is in between.
    falling: f64,
    /// It is no way: see [`LinkKind::Affinity`].
    is_affinity: bool,
}

#[derive(Debug, Clone, Copy)]
struct End {
    node: u32,
    chain: u32,
    /// Bytes from the start of the node to where control leaves or arrives.
    inside: u32,
    /// Bytes from the start of the chain to the node.
    offset: i64,
}

impl Objective for TspScore {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let [a, b] = chains.ends(edge);
        let starts = [chains.start(a), chains.start(b)];
        let start = |chain: u32| if chain == a { starts[0] } else { starts[1] };
        self.between.clear();
        self.between.extend(chains.links_of(edge).map(|l| Transfer::new(chains, l, start)));
        let mut best: Option<Candidate> = None;
        for (first, second) in [(a, b), (b, a)] {
            let size = chains.size(first);
            let new = |end: &End| if end.chain == first { end.offset } else { size + end.offset };
            let gain = self.between.iter().map(|t| t.value(new)).sum();
            consider(&mut best, gain, Join::Concat { first, second });
        }
        for (outer, inner) in [(a, b), (b, a)] {
            if (2..=SPLIT_NODES).contains(&chains.len(outer)) {
                self.cut(chains, outer, inner, &mut best);
            }
        }
        best
    }
}

impl TspScore {
    /// All cuts of `outer` that make a fall-through to the head or from the tail of `inner`, if it has few
    /// neighbours.
    fn cut(&mut self, chains: &Chains<'_>, outer: u32, inner: u32, best: &mut Option<Candidate>) {
        self.find_borders(chains, outer, inner);
        if self.borders.is_empty() || chains.degree(outer) > SPLIT_EDGES {
            return;
        }
        let (size, whole) = (chains.size(outer), chains.size(inner));
        for i in 0..self.borders.len() {
            let border = self.borders[i];
            let at = self.find_crossing(chains, outer, border);
            for shape in [Shape::Between, Shape::Behind, Shape::Before] {
                let gain = self.gain_of_cut(inner, border, size - border, whole, shape);
                consider(best, gain, Join::Split { outer, inner, at, shape });
            }
        }
    }

    fn find_borders(&mut self, chains: &Chains<'_>, outer: u32, inner: u32) {
        self.borders.clear();
        let ((first, last), (head, tail)) = (chains.tips(outer), chains.tips(inner));
        for Transfer { from, to, .. } in self.between.iter().filter(|t| t.is_affinity || t.falling >= FALL) {
            if to.node == head {
                if from.node != last {
                    self.borders.push(from.offset + chains.node_size(from.node));
                }
            } else if from.node == tail && to.node != first {
                self.borders.push(to.offset);
            }
        }
        self.borders.sort_unstable();
        self.borders.dedup();
    }

    /// Finds the links within a chain that a cut parts. Returns how many nodes stand in front of it.
    fn find_crossing(&mut self, chains: &Chains<'_>, chain: u32, border: i64) -> usize {
        self.crossing.clear();
        let start = chains.start(chain);
        let mut at = 0;
        for node in chains.members(chain) {
            let in_front = chains.place(node).1 - start < border;
            at += usize::from(in_front);
            for link in chains.links_from(node) {
                let (other, place) = chains.place(link.to);
                if other == chain && (place - start < border) != in_front {
                    let transfer = Transfer::new(chains, link, |_| start);
                    self.crossing.push((transfer, transfer.value(|end| end.offset)));
                }
            }
        }
        at
    }

    /// What it gains to part a chain, of which `head` bytes are in front of the cut and `tail` behind it, and
    /// to put it together with the chain `inner` of `whole` bytes like this.
    fn gain_of_cut(&self, inner: u32, head: i64, tail: i64, whole: i64, shape: Shape) -> f64 {
        // Where X1, X2 and Y begin.
        let (x1, x2, y) = match shape {
            Shape::Between => (0, head + whole, head),
            Shape::Behind => (whole + tail, whole, 0),
            Shape::Before => (tail, 0, head + tail),
        };
        let new = |end: &End| match () {
            () if end.chain == inner => y + end.offset,
            () if end.offset < head => x1 + end.offset,
            () => x2 + end.offset - head,
        };
        let between: f64 = self.between.iter().map(|t| t.value(new)).sum();
        between + self.crossing.iter().map(|(t, old)| t.value(new) - old).sum::<f64>()
    }
}

impl Transfer {
    /// A link; `start` says where the chains of its ends start.
    fn new(chains: &Chains<'_>, link: &Link, start: impl Fn(u32) -> i64) -> Self {
        let end = |node: u32, inside: u32| {
            let (chain, place) = chains.place(node);
            End { node, chain, inside, offset: place - start(chain) }
        };
        let falling = match link.kind {
            LinkKind::Branch if link.only => FALL + JUMP,
            LinkKind::Branch => FALL,
            LinkKind::Affinity => AFFINITY,
            _ => SHORT,
        };
        Self {
            from: end(link.from, link.leaves),
            to: end(link.to, link.arrives),
            weight: link.weight,
            falling,
            is_affinity: link.kind == LinkKind::Affinity,
        }
    }

    /// What it is worth if the nodes of its ends stand at these places.
    fn value(&self, at: impl Fn(&End) -> i64) -> f64 {
        let (end, to) =
            (at(&self.from) + i64::from(self.from.inside), at(&self.to) + i64::from(self.to.inside));
        if self.is_affinity {
            let (first, second) = (at(&self.from), at(&self.to));
            let between = if first < second { second - end } else { first - to };
            return self.weight * self.falling * (1.0 - between as f64 / LINE).max(0.0);
        }
        let near = |distance: i64, reach: f64| SHORT * (1.0 - distance as f64 / reach).max(0.0);
        let worth = match to - end {
            0 => self.falling,
            distance if distance < 0 => near(-distance, BACKWARD),
            distance => near(distance, FORWARD),
        };
        self.weight * worth
    }
}

fn consider(best: &mut Option<Candidate>, gain: f64, join: Join) {
    if gain > best.map_or(EPSILON, |b| b.gain + EPSILON) {
        *best = Some(Candidate { gain, join });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of Pettis and Hansen's example: A, B, C, D, of which C is a loop.
    #[test]
    fn blocks_of_no_program_make_chains() {
        let way = |from, to, count| Way { from, to, count, is_only: from == 1 };
        let ways = [way(0, 1, 1000), way(1, 3, 1000), way(0, 2, 1), way(2, 2, 2000), way(2, 3, 1)];
        let chains = block_chains(&[16; 4], &ways);
        let first = chains.iter().find(|chain| chain.contains(&0)).expect("a chain");
        assert_eq!(first[..3], [0, 1, 3]);
        let mut all = chains.concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        assert_eq!(block_chains(&[16; 2], &[way(0, 7, 9), way(1, 0, 0)]), [[0], [1]]);
        assert!(block_chains(&[], &[]).is_empty());
    }
}
