//! Call-chain clustering, C3 (Ottoni and Maher, *Optimizing function placement for large-scale data-center
//! applications*, CGO 2017): callers before callees, dense clusters first.
//!
//! Nodes are visited from the most executed to the least. Each node's cluster is appended to the cluster of
//! the node's most likely predecessor, unless the two together exceed the size limit. Clusters are then
//! ordered by executed bytes per byte. Ties go to the lower node number.

use std::cmp::Ordering;

use restitch_profile::Profile;
use restitch_program::Program;

use crate::functions::FunctionGraph;
use crate::model::{Layout, LayoutAlgorithm};
use crate::nodes::{Arc, Node};

/// Whole functions in the order of call-chain clustering, their blocks as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct C3 {
    /// Largest size in bytes of a cluster of several functions. The paper's is a page; HHVM's too.
    pub limit: u64,
}

impl Default for C3 {
    fn default() -> Self {
        Self { limit: 4096 }
    }
}

impl LayoutAlgorithm for C3 {
    fn name(&self) -> &'static str {
        "c3"
    }

    fn meaning(&self) -> &'static str {
        "Functions behind their likeliest callers (call-chain clustering)"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let graph = FunctionGraph::new(program, profile);
        let order = call_chain_order(&graph.nodes, &graph.arcs, self.limit);
        graph.layout(program, order, 16)
    }
}

/// The order of `nodes`, as a permutation of their indices. `arcs` may name a pair several times; `limit` is
/// the size in bytes that no cluster of several nodes exceeds. Arcs that name nodes that do not exist are
/// ignored.
pub fn call_chain_order(nodes: &[Node], arcs: &[Arc], limit: u64) -> Vec<usize> {
    let callers = likeliest_callers(nodes.len(), arcs);
    let mut by_weight: Vec<usize> = (0..nodes.len()).collect();
    by_weight.sort_by_key(|&n| (std::cmp::Reverse(nodes[n].weight), n));
    let mut clusters = Clusters::new(nodes);
    for &node in &by_weight {
        if let Some(caller) = callers[node] {
            clusters.append(caller, node, limit);
        }
    }
    clusters.into_order()
}

/// For each node the other node with the most transfers to it.
fn likeliest_callers(nodes: usize, arcs: &[Arc]) -> Vec<Option<usize>> {
    let mut arcs: Vec<Arc> =
        arcs.iter().copied().filter(|a| a.from != a.to && a.from < nodes && a.to < nodes).collect();
    arcs.sort_unstable_by_key(|a| (a.to, a.from));
    arcs.dedup_by(|again, kept| {
        let same = (again.to, again.from) == (kept.to, kept.from);
        if same {
            kept.count = kept.count.saturating_add(again.count);
        }
        same
    });
    let mut best: Vec<Option<(u64, usize)>> = vec![None; nodes];
    for arc in arcs {
        if arc.count > best[arc.to].map_or(0, |(count, _)| count) {
            best[arc.to] = Some((arc.count, arc.from));
        }
    }
    best.into_iter().map(|b| b.map(|(_, from)| from)).collect()
}

const NONE: usize = usize::MAX;

/// Clusters as linked lists, in the element of their first node.
struct Clusters {
    root: Vec<usize>,
    total: Vec<Node>,
    tail: Vec<usize>,
    next: Vec<usize>,
}

impl Clusters {
    fn new(nodes: &[Node]) -> Self {
        let each: Vec<usize> = (0..nodes.len()).collect();
        Self { root: each.clone(), total: nodes.to_vec(), tail: each, next: vec![NONE; nodes.len()] }
    }

    fn find(&mut self, mut node: usize) -> usize {
        while self.root[node] != node {
            self.root[node] = self.root[self.root[node]];
            node = self.root[node];
        }
        node
    }

    fn append(&mut self, caller: usize, callee: usize, limit: u64) {
        let (first, second) = (self.find(caller), self.find(callee));
        let size = self.total[first].size.saturating_add(self.total[second].size);
        if first == second || size > limit {
            return;
        }
        self.root[second] = first;
        self.next[self.tail[first]] = second;
        self.tail[first] = self.tail[second];
        let weight = self.total[first].weight.saturating_add(self.total[second].weight);
        self.total[first] = Node { size, weight };
    }

    fn into_order(self) -> Vec<usize> {
        let mut heads: Vec<usize> = (0..self.root.len()).filter(|&n| self.root[n] == n).collect();
        heads.sort_by(|&a, &b| denser_first(self.total[a], self.total[b]).then(a.cmp(&b)));
        let follow = |&n: &usize| Some(self.next[n]).filter(|&n| n != NONE);
        heads.into_iter().flat_map(|head| std::iter::successors(Some(head), follow)).collect()
    }
}

/// The order of two nodes by executed bytes per byte, exactly.
pub(crate) fn denser_first(a: Node, b: Node) -> Ordering {
    let (a_side, b_side) =
        (u128::from(a.weight) * u128::from(b.size.max(1)), u128::from(b.weight) * u128::from(a.size.max(1)));
    b_side.cmp(&a_side)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(size: u64, weight: u64) -> Node {
        Node { size, weight }
    }
    fn arc(from: usize, to: usize, count: u64) -> Arc {
        Arc { from, to, count, offset: 0 }
    }

    #[test]
    fn callers_stand_before_their_callees() {
        // 2 calls 0 and 1; 1 calls 3; 4 is hot and alone.
        let nodes = [node(10, 100), node(10, 90), node(10, 10), node(10, 50), node(10, 900)];
        let arcs = [arc(2, 0, 60), arc(2, 1, 50), arc(1, 3, 40), arc(0, 3, 30)];
        assert_eq!(call_chain_order(&nodes, &arcs, 4096), [4, 2, 0, 1, 3]);
    }

    #[test]
    fn parallel_arcs_add_up() {
        let nodes = [node(10, 50), node(10, 40), node(10, 1)];
        let arcs = [arc(0, 2, 30), arc(1, 2, 40), arc(0, 2, 30)];
        assert_eq!(call_chain_order(&nodes, &arcs[..2], 4096), [0, 1, 2]);
        assert_eq!(call_chain_order(&nodes, &arcs, 4096), [1, 0, 2]);
    }

    #[test]
    fn no_cluster_exceeds_the_limit() {
        let nodes = [node(60, 10), node(60, 20)];
        assert_eq!(call_chain_order(&nodes, &[arc(0, 1, 9)], 100), [1, 0]);
        assert_eq!(call_chain_order(&nodes, &[arc(0, 1, 9)], 120), [0, 1]);
    }

    proptest! {
        #[test]
        fn it_is_a_permutation(
            nodes in prop::collection::vec((0u64..99, any::<u64>()), 0..30),
            arcs in prop::collection::vec((0usize..32, 0usize..32, any::<u64>()), 0..60),
            limit in 0u64..999,
        ) {
            let nodes: Vec<Node> = nodes.into_iter().map(|(s, w)| node(s, w)).collect();
            let arcs: Vec<Arc> = arcs.into_iter().map(|(a, b, c)| arc(a, b, c)).collect();
            let mut order = call_chain_order(&nodes, &arcs, limit);
            order.sort_unstable();
            prop_assert_eq!(order, (0..nodes.len()).collect::<Vec<_>>());
        }
    }
}
