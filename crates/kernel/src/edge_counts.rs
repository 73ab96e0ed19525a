//! Counts of edges from counts of blocks.
//!
//! **Problem.** Counting how often each block runs is cheap; a layout wants to know how often each edge is
//! taken.
//!
//! **Idea.** What comes into a block, and what leaves it, is its count. An edge that is the only unknown one
//! on either side of a block follows, until nothing more does (phase 1). What is left can be no more than
//! what either of its blocks has left over; the lesser of the two is its estimate (phase 2).
//!
//! **Limits.** Counts that do not fit each other (taken one after the other, or sampled) give edges of 0
//! rather than less. Reference: Tamches and Miller, *Dynamic kernel code optimization*, section 4.1.

/// An edge between blocks by their numbers. None stands for the outside: callers, and whoever goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowEdge {
    /// The block that it leaves.
    pub from: Option<usize>,
    /// The block that it enters.
    pub to: Option<usize>,
}

/// How often an edge is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EdgeCount {
    /// This often: it follows from the counts of blocks.
    Exact(u64),
    /// At most this often.
    Estimate(u64),
}

impl EdgeCount {
    /// The number, exact or not.
    pub fn number(self) -> u64 {
        match self {
            Self::Exact(count) | Self::Estimate(count) => count,
        }
    }
}

/// The counts of `edges` between blocks with these counts. Edges with a block that there is none of are said
/// to be taken never.
pub fn edge_counts(blocks: &[u64], edges: &[FlowEdge]) -> Vec<EdgeCount> {
    let sides = Sides::new(blocks.len(), edges);
    let mut known = vec![None; edges.len()];
    let mut left = Left { out: blocks.to_vec(), into: blocks.to_vec() };
    sides.propagate(edges, |edge, follows| {
        let count = follows.map_or(0, |side| left.of(side));
        known[edge] = Some(count);
        left.take(edges[edge], count);
    });
    let estimate = |edge: &FlowEdge| {
        let out = edge.from.map_or(u64::MAX, |block| left.out[block]);
        let into = edge.to.map_or(u64::MAX, |block| left.into[block]);
        EdgeCount::Estimate(if edge.from.or(edge.to).is_none() { 0 } else { out.min(into) })
    };
    let count =
        |(edge, known): (&FlowEdge, Option<u64>)| known.map_or_else(|| estimate(edge), EdgeCount::Exact);
    edges.iter().zip(known).map(count).collect()
}

/// Which of `edges` follow from the counts of so many blocks, whatever these are.
pub fn exact_edges(blocks: usize, edges: &[FlowEdge]) -> Vec<bool> {
    let mut known = vec![false; edges.len()];
    Sides::new(blocks, edges).propagate(edges, |edge, _| known[edge] = true);
    known
}

/// What of each block's count is not yet on an edge.
struct Left {
    out: Vec<u64>,
    into: Vec<u64>,
}

impl Left {
    fn of(&self, side: Side) -> u64 {
        match side {
            Side::Out(block) => self.out[block],
            Side::Into(block) => self.into[block],
        }
    }

    fn take(&mut self, edge: FlowEdge, count: u64) {
        if let Some(left) = edge.from.and_then(|block| self.out.get_mut(block)) {
            *left = left.saturating_sub(count);
        }
        if let Some(left) = edge.to.and_then(|block| self.into.get_mut(block)) {
            *left = left.saturating_sub(count);
        }
    }
}

/// A side of a block.
#[derive(Debug, Clone, Copy)]
enum Side {
    /// Edges that leave it.
    Out(usize),
    /// Edges that enter it.
    Into(usize),
}

/// The edges of each block that are not known.
struct Sides {
    out: Vec<Vec<usize>>,
    into: Vec<Vec<usize>>,
    /// Edges of blocks that there are none of.
    nowhere: Vec<usize>,
}

impl Sides {
    fn new(blocks: usize, edges: &[FlowEdge]) -> Self {
        let mut sides =
            Self { out: vec![Vec::new(); blocks], into: vec![Vec::new(); blocks], nowhere: Vec::new() };
        for (number, edge) in edges.iter().enumerate() {
            let is_there = |block: Option<usize>| block.is_none_or(|block| block < blocks);
            if !is_there(edge.from) || !is_there(edge.to) {
                sides.nowhere.push(number);
                continue;
            }
            edge.from.into_iter().for_each(|block| sides.out[block].push(number));
            edge.to.into_iter().for_each(|block| sides.into[block].push(number));
        }
        sides
    }

    /// Hands each edge that follows to `found`, with the side of the block that it follows from; none for an
    /// edge that cannot be taken.
    fn propagate(mut self, edges: &[FlowEdge], mut found: impl FnMut(usize, Option<Side>)) {
        std::mem::take(&mut self.nowhere).into_iter().for_each(|edge| found(edge, None));
        let mut open: Vec<usize> = (0..self.out.len()).rev().collect();
        while let Some(block) = open.pop() {
            for side in [Side::Out(block), Side::Into(block)] {
                let unknown = match side {
                    Side::Out(block) => &self.out[block],
                    Side::Into(block) => &self.into[block],
                };
                let [edge] = unknown[..] else { continue };
                found(edge, Some(side));
                open.extend(self.forget(edge, edges[edge]));
            }
        }
    }

    /// The edge is known; the blocks that it concerns.
    fn forget(&mut self, number: usize, edge: FlowEdge) -> impl Iterator<Item = usize> + use<> {
        if let Some(block) = edge.from {
            self.out[block].retain(|other| *other != number);
        }
        if let Some(block) = edge.to {
            self.into[block].retain(|other| *other != number);
        }
        edge.from.into_iter().chain(edge.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edge(from: usize, to: usize) -> FlowEdge {
        FlowEdge { from: Some(from), to: Some(to) }
    }

    /// Figure 1: blocks A, B, C, D.
    const FIGURE: [FlowEdge; 5] = [
        FlowEdge { from: Some(0), to: Some(1) },
        FlowEdge { from: Some(1), to: Some(3) },
        FlowEdge { from: Some(0), to: Some(2) },
        FlowEdge { from: Some(2), to: Some(2) },
        FlowEdge { from: Some(2), to: Some(3) },
    ];

    #[test]
    fn the_example_of_pettis_and_hansen_follows_from_its_blocks() {
        let counts = edge_counts(&[1001, 1000, 2001, 1001], &FIGURE);
        assert_eq!(counts, [1000, 1000, 1, 2000, 1].map(EdgeCount::Exact));
        assert_eq!(exact_edges(4, &FIGURE), [true; 5]);
    }

    #[test]
    fn what_does_not_follow_is_at_most_what_its_blocks_have_left() {
        // Two branches, one behind the other, whose sides cross: A, B -> C, D.
        let edges = [edge(0, 2), edge(0, 3), edge(1, 2), edge(1, 3)];
        assert_eq!(exact_edges(4, &edges), [false; 4]);
        let counts = edge_counts(&[10, 5, 12, 3], &edges);
        assert_eq!(counts, [10, 3, 5, 3].map(EdgeCount::Estimate));
    }

    #[test]
    fn counts_that_do_not_fit_and_edges_of_no_block_give_no_nonsense() {
        let counts = edge_counts(&[5, 9], &[edge(0, 1), edge(0, 7), FlowEdge { from: None, to: None }]);
        assert_eq!(counts, [EdgeCount::Exact(5), EdgeCount::Exact(0), EdgeCount::Estimate(0)]);
        // All of block 0 goes round; more than there is goes nowhere.
        let counts = edge_counts(&[5, 9], &[edge(0, 0), edge(0, 1), edge(1, 1)]);
        assert_eq!(counts, [5, 0, 9].map(EdgeCount::Exact));
        assert!(edge_counts(&[], &[]).is_empty());
    }

    /// A graph with the true count of each edge: walks from the entry, block 0, until they leave.
    #[derive(Debug, Clone)]
    struct Walked {
        blocks: Vec<u64>,
        edges: Vec<FlowEdge>,
        taken: Vec<u64>,
    }

    fn walked() -> impl Strategy<Value = Walked> {
        let successors = proptest::collection::vec(proptest::collection::vec(0usize..12, 0..3), 1..12);
        (successors, proptest::collection::vec(any::<u8>(), 0..400)).prop_map(|(successors, choices)| {
            let count = successors.len();
            let mut edges = vec![FlowEdge { from: None, to: Some(0) }];
            for (from, to) in successors.iter().enumerate() {
                edges.extend(to.iter().map(|to| edge(from, to % count)));
                // Only those without successors, and one in three others, leave.
                if to.is_empty() || from % 3 == 0 {
                    edges.push(FlowEdge { from: Some(from), to: None });
                }
            }
            let (mut blocks, mut taken) = (vec![0; count], vec![0; edges.len()]);
            let mut choices = choices.into_iter();
            'walks: for _ in 0..8 {
                let mut way = Vec::new();
                let mut at = 0;
                loop {
                    let leaving: Vec<usize> =
                        (0..edges.len()).filter(|e| edges[*e].from == Some(at)).collect();
                    let Some(choice) = choices.next() else { break 'walks };
                    let next = leaving[usize::from(choice) % leaving.len()];
                    way.push((at, next));
                    match edges[next].to {
                        Some(to) => at = to,
                        None => break,
                    }
                }
                // A walk counts as a whole, so that what enters a block leaves it.
                taken[0] += 1;
                for (block, edge) in way {
                    blocks[block] += 1;
                    taken[edge] += 1;
                }
            }
            Walked { blocks, edges, taken }
        })
    }

    proptest! {
        #[test]
        fn what_is_called_exact_is_and_the_rest_is_a_bound(walked in walked()) {
            let counts = edge_counts(&walked.blocks, &walked.edges);
            let exact = exact_edges(walked.blocks.len(), &walked.edges);
            for ((count, taken), exact) in counts.iter().zip(&walked.taken).zip(exact) {
                match count {
                    EdgeCount::Exact(count) => prop_assert_eq!(count, taken),
                    EdgeCount::Estimate(count) => prop_assert!(count >= taken),
                }
                prop_assert_eq!(matches!(count, EdgeCount::Exact(_)), exact);
            }
        }
    }
}
