//! Greedy chains (Pettis and Hansen, *Profile guided code positioning*, PLDI 1990, section 4.2.2, bottom-up).
//!
//! The heaviest edge first, two chains are joined if the edge goes from the tail of one to the head of the
//! other. An edge can be made a fall-through whatever it was before, except through a jump table and for the
//! taken side of branches that cannot be inverted (`loop`, `jrcxz`). Ties go to the lower source address,
//! then the lower target address.
//!
//! Greedy reaches at least a third of the best possible fall-through weight (three matroid constraints: one
//! successor, one predecessor, no cycle) and usually nearly all. It can, on contrived graphs, be worse than
//! the order that is there; then that order is kept, so that a layout never has fewer fall-throughs than the
//! original.

use std::cmp::Reverse;

use restitch_program::Program;

use crate::graph::{HotGraph, LinkKind};
use crate::paths::Paths;

/// Something that would be a fall-through if two nodes stood one behind the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Joint {
    pub from: u32,
    pub to: u32,
    pub weight: u64,
}

/// All pairs that may be joined, each once, sorted by source and target.
pub(crate) fn joints(graph: &HotGraph) -> Vec<Joint> {
    let mut joints: Vec<Joint> = Vec::new();
    for link in graph.links.iter().filter(|l| l.kind == LinkKind::Branch) {
        let weight = link.weight as u64;
        match joints.last_mut() {
            Some(last) if (last.from, last.to) == (link.from, link.to) => {
                last.weight = last.weight.saturating_add(weight);
            }
            _ => joints.push(Joint { from: link.from, to: link.to, weight }),
        }
    }
    joints
}

/// Joins the nodes of a graph of `program` to chains. Chains are in the order of their first nodes.
pub(crate) fn greedy_chains(program: &Program, graph: &HotGraph) -> Vec<Vec<u32>> {
    let mut joints = joints(graph);
    let in_place = |j: &Joint| {
        let block = |n: u32| program.block(graph.blocks[n as usize]);
        block(j.from).end() == block(j.to).start
    };
    let mut original = Paths::new(graph.len());
    let kept = joints.iter().filter(|j| in_place(j) && original.join(j.from, j.to));
    let original_weight = kept.fold(0u64, |sum, j| sum.saturating_add(j.weight));
    let (greedy, weight) = greedy(graph.len(), &mut joints);
    let best = if original_weight > weight { original } else { greedy };
    best.into_chains()
}

/// Greedy paths, and the weight of the joints made.
pub(crate) fn greedy(nodes: usize, joints: &mut [Joint]) -> (Paths, u64) {
    let mut paths = Paths::new(nodes);
    let weight = add_greedily(&mut paths, joints);
    (paths, weight)
}

/// Adds to paths what still fits, the heaviest first; the weight added.
pub(crate) fn add_greedily(paths: &mut Paths, joints: &mut [Joint]) -> u64 {
    joints.sort_unstable_by_key(|j| (Reverse(j.weight), u64::from(j.from) << 32 | u64::from(j.to)));
    let made = joints.iter().filter(|j| paths.join(j.from, j.to));
    made.fold(0, |sum: u64, j| sum.saturating_add(j.weight))
}

/// Joins given chains further, end to end, by the same rule.
pub(crate) fn extend(graph: &HotGraph, chains: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut paths = Paths::new(graph.len());
    for pair in chains.iter().flat_map(|chain| chain.windows(2)) {
        paths.join(pair[0], pair[1]);
    }
    add_greedily(&mut paths, &mut joints(graph));
    paths.into_chains()
}
