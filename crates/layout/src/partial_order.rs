//! The branch-prediction partial order of Codestitcher (CS+PO, section 2.6).
//!
//! **Problem.** A predictor without history takes backward branches as taken and forward ones as not taken.
//! So chains that are branched to often should stand in front of the branch, others behind it, without being
//! joined.
//!
//! **Idea.** A conditional branch whose two counts differ by k speaks with weight k: its target's chain shall
//! come first if the branch is mostly taken, last if not. The heaviest wishes are granted first, unless what
//! was granted before already says the contrary; later joins and the final order keep to what was granted.
//!
//! **Limits.** Whether one chain must precede another is found by a search over at most [`SEARCH_LIMIT`]
//! chains. A search that ends there counts as "yes", so that a wish is dropped or a join not made, never an
//! order broken.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use restitch_profile::Profile;
use restitch_program::{EdgeKind, Program, Terminator};

use crate::c3::denser_first;
use crate::chain_merging::Chains;
use crate::graph::{HotGraph, NONE};
use crate::nodes::Node;

/// Chains that a search looks at.
const SEARCH_LIMIT: usize = 256;

/// A directed graph without cycles over chains: who must stand in front of whom.
pub(crate) struct Order {
    /// Constraints between nodes, in terms of one node of each of the original chains.
    granted: Vec<(u32, u32)>,
    /// By chain number of the current level.
    behind: Vec<Vec<u32>>,
    members: Vec<Member>,
    round: u32,
    /// Chains that a search has yet to look at; kept for its room.
    stack: Vec<u32>,
}

/// A chain of the current level.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// A chain that it has become a part of, or itself.
    root: u32,
    /// The search that looked at it last.
    visited: u32,
}

impl Order {
    /// The order of `chains` of the nodes of `graph`.
    pub fn new(program: &Program, profile: &Profile, graph: &HotGraph, chains: &[Vec<u32>]) -> Self {
        let mut chain_of = vec![NONE; graph.len()];
        for (number, chain) in chains.iter().enumerate() {
            chain.iter().for_each(|&n| chain_of[n as usize] = number as u32);
        }
        let mut order = Self::empty(chains.len());
        for (_, first, second) in wishes(program, profile, graph, &chain_of) {
            if !order.reaches(second, first) {
                order.behind[first as usize].push(second);
                order.granted.push((chains[first as usize][0], chains[second as usize][0]));
            }
        }
        order
    }

    fn empty(chains: usize) -> Self {
        Self {
            granted: Vec::new(),
            behind: vec![Vec::new(); chains],
            members: (0..chains as u32).map(|root| Member { root, visited: 0 }).collect(),
            round: 0,
            stack: Vec::new(),
        }
    }

    /// Takes on the chain numbers of a new level.
    pub fn restart(&mut self, chains: &Chains<'_>) {
        let granted = std::mem::take(&mut self.granted);
        let behind = chains_behind(&granted, |n| chains.chain_of(n), chains.count());
        *self = Self { granted, behind, ..Self::empty(chains.count()) };
    }

    fn find(&mut self, mut chain: u32) -> u32 {
        loop {
            let root = self.members[chain as usize].root;
            if root == chain {
                return chain;
            }
            let above = self.members[root as usize].root;
            self.members[chain as usize].root = above;
            chain = above;
        }
    }

    /// Whether a chain of the one must stand in front of a chain of the other (or that could not be found
    /// out).
    fn reaches(&mut self, from: u32, to: u32) -> bool {
        let (from, to) = (self.find(from), self.find(to));
        self.stack.push(from);
        self.search(to)
    }

    /// Whether `to` must stand behind one of the chains on the stack (or that could not be found out).
    fn search(&mut self, to: u32) -> bool {
        self.round += 1;
        let mut seen = 0;
        while let Some(chain) = self.stack.pop() {
            let visited = &mut self.members[chain as usize].visited;
            if chain != to && std::mem::replace(visited, self.round) == self.round {
                continue;
            }
            seen += 1;
            if chain == to || seen > SEARCH_LIMIT {
                self.stack.clear();
                return true;
            }
            self.push_behind(chain);
        }
        false
    }

    /// Puts what stands right behind a chain on the stack.
    fn push_behind(&mut self, chain: u32) {
        for i in 0..self.behind[chain as usize].len() {
            let next = self.behind[chain as usize][i];
            let next = self.find(next);
            self.stack.push(next);
        }
    }

    /// Whether the sequence `first` may be put right in front of `second`: nothing must stand between them or
    /// the other way round.
    pub fn allows(&mut self, first: u32, second: u32) -> bool {
        let (a, b) = (self.find(first), self.find(second));
        self.stack.push(b);
        if self.search(a) {
            return false;
        }
        self.push_behind(a);
        self.stack.retain(|&next| next != b && next != a);
        !self.search(b)
    }

    /// `gone` has become a part of `kept`.
    pub fn unite(&mut self, kept: u32, gone: u32) {
        let moved = std::mem::take(&mut self.behind[gone as usize]);
        self.behind[kept as usize].extend(moved);
        self.members[gone as usize].root = kept;
        let mut behind: Vec<u32> = std::mem::take(&mut self.behind[kept as usize]);
        behind.iter_mut().for_each(|n| *n = self.find(*n));
        behind.retain(|&n| n != kept);
        behind.sort_unstable();
        behind.dedup();
        self.behind[kept as usize] = behind;
    }

    /// The sequences, the densest first of those that nothing else has to precede.
    pub fn sorted(&self, graph: &HotGraph, mut sequences: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        let mut number = vec![NONE; graph.len()];
        for (s, sequence) in sequences.iter().enumerate() {
            sequence.iter().for_each(|&n| number[n as usize] = s as u32);
        }
        let behind = chains_behind(&self.granted, |n| number[n as usize], sequences.len());
        let mut before = vec![0; sequences.len()];
        behind.iter().flatten().for_each(|&s| before[s as usize] += 1);
        let ready = |s: u32| Ready { node: graph.weigh(&sequences[s as usize]), sequence: s };
        let mut heap: BinaryHeap<Ready> =
            (0..sequences.len() as u32).filter(|&s| before[s as usize] == 0).map(ready).collect();
        let mut order = Vec::with_capacity(sequences.len());
        while let Some(Ready { sequence, .. }) = heap.pop() {
            order.push(sequence);
            for &next in &behind[sequence as usize] {
                before[next as usize] -= 1;
                if before[next as usize] == 0 {
                    heap.push(ready(next));
                }
            }
        }
        order.into_iter().map(|s| std::mem::take(&mut sequences[s as usize])).collect()
    }
}

/// Constraints between chains from those between nodes, each once.
fn chains_behind(granted: &[(u32, u32)], chain_of: impl Fn(u32) -> u32, chains: usize) -> Vec<Vec<u32>> {
    let mut behind = vec![Vec::new(); chains];
    for &(first, second) in granted {
        let (first, second) = (chain_of(first), chain_of(second));
        if first != second {
            behind[first as usize].push(second);
        }
    }
    for list in &mut behind {
        list.sort_unstable();
        list.dedup();
    }
    behind
}

/// What branches want: weight, the chain that shall come first, the one behind it; the heaviest first.
fn wishes(program: &Program, profile: &Profile, graph: &HotGraph, chain_of: &[u32]) -> Vec<(u64, u32, u32)> {
    let node = |b| graph.blocks.binary_search(&b).ok();
    let mut wishes: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for (from, &block) in graph.blocks.iter().enumerate() {
        if !matches!(
            program.block(block).terminator,
            Terminator::Conditional(..) | Terminator::ShortConditional(_)
        ) {
            continue;
        }
        let ways: Vec<_> = program.out_edges(block).filter(|(_, e)| e.kind != EdgeKind::Table).collect();
        let most = ways.iter().map(|(id, _)| profile.edge(*id)).max().unwrap_or(0);
        let all: u64 = ways.iter().map(|(id, _)| profile.edge(*id)).sum();
        let divergence = (2 * most).saturating_sub(all);
        for (id, edge) in ways {
            let own = chain_of[from];
            let Some(other) = node(edge.to).map(|n| chain_of[n]).filter(|&c| c != own && divergence > 0)
            else {
                continue;
            };
            let likely = profile.edge(id) == most;
            let pair = if likely { (other, own) } else { (own, other) };
            *wishes.entry(pair).or_default() += divergence;
        }
    }
    let mut wishes: Vec<(u64, u32, u32)> = wishes.into_iter().map(|((a, b), w)| (w, a, b)).collect();
    wishes.sort_by_key(|&(weight, a, b)| (std::cmp::Reverse(weight), a, b));
    wishes
}

/// A sequence that may come next.
struct Ready {
    node: Node,
    sequence: u32,
}
impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        denser_first(self.node, other.node).reverse().then(other.sequence.cmp(&self.sequence))
    }
}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Ready {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codestitcher::collocate;
    use crate::cycle_cover::cover_chains;
    use crate::distances::Distances;
    use crate::graph::Links;
    use restitch_profile::testing::{RandomProgram, Shape, walk};

    #[test]
    fn what_was_granted_holds_in_the_final_order() {
        let mut granted = 0;
        for seed in 0..60 {
            let shape = Shape { functions: 6, blocks: 30, unmovable: 0.0 };
            let program = RandomProgram::shaped(seed, shape).program;
            let profile = walk(&program, seed, 100, 0.0);
            let hot: Vec<bool> = program.block_ids().map(|b| profile.block(b) > 0).collect();
            let graph = HotGraph::new(&program, &profile, &hot, Links::All);
            let chains = cover_chains(&program, &graph);
            let mut order = Order::new(&program, &profile, &graph, &chains);
            let pairs = order.granted.clone();
            let sequences = collocate(&graph, chains, Distances::default().bytes(), Some(&mut order));
            let sorted: Vec<u32> = order.sorted(&graph, sequences).concat();
            assert_eq!(sorted.len(), graph.len());
            let place = |n: u32| sorted.iter().position(|&s| s == n);
            for (first, second) in pairs {
                assert!(place(first) < place(second), "seed {seed}: {first} {second} in {sorted:?}");
                granted += 1;
            }
        }
        assert!(granted > 100);
    }
}
