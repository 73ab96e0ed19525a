//! PH.BB: all of Pettis and Hansen (*Profile guided code positioning*, PLDI 1990): procedures are split, the
//! blocks of their hot parts chained, and the hot parts ordered by "closest is best". The Codestitcher
//! paper's strongest rival.
//!
//! Within a function, the chain of the entry comes first; then, again and again, the chain to which the ones
//! already placed branch most, so that unlikely branches go forward, as old static predictors want.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::c3::denser_first;
use crate::chains::greedy_chains;
use crate::functions::arcs;
use crate::graph::{HotGraph, Links, NONE};
use crate::hot_chains::{HotChains, cold_fragments, node};
use crate::model::{Fragment, Layout, LayoutAlgorithm};
use crate::nodes::Node;
use crate::pettis_hansen::pettis_hansen_order;

/// Splitting, chaining and function order of Pettis and Hansen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhBb {
    /// A block is hot if its count is greater.
    pub threshold: u64,
}

impl LayoutAlgorithm for PhBb {
    fn name(&self) -> &'static str {
        "ph.bb"
    }

    fn meaning(&self) -> &'static str {
        "Functions split, hot blocks chained, functions as by ph (all of Pettis and Hansen)"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let hot =
            HotChains { threshold: self.threshold, ..HotChains::default() }.hot_blocks(program, profile);
        let graph = HotGraph::new(program, profile, &hot, Links::WithinFunctions);
        let groups = functions(program, profile, &graph, greedy_chains(program, &graph));
        let nodes: Vec<Node> = groups.iter().map(|blocks| node(program, profile, blocks)).collect();
        let mut group_of = vec![NONE; program.blocks.len()];
        for (number, group) in groups.iter().enumerate() {
            group.iter().for_each(|b| group_of[b.index()] = number as u32);
        }
        let arcs = arcs(program, profile, |b| group_of[b.index()]);
        let order = pettis_hansen_order(&nodes, &arcs);
        let fragment = |g: usize| Fragment { blocks: groups[g].clone(), align: 16 };
        Layout {
            hot: order.into_iter().map(fragment).collect(),
            cold: cold_fragments(program, &hot),
            ..Layout::default()
        }
    }
}

/// The hot blocks of each function in their final order, by function in address order.
pub(crate) fn functions(
    program: &Program,
    profile: &Profile,
    graph: &HotGraph,
    mut chains: Vec<Vec<u32>>,
) -> Vec<Vec<restitch_program::BlockId>> {
    let function = |n: u32| program.block(graph.blocks[n as usize]).function;
    chains.sort_by_key(|c| (function(c[0]), c[0]));
    let mut groups = Vec::new();
    for group in chains.chunk_by(|a, b| function(a[0]) == function(b[0])) {
        let entry = program.entry_block(function(group[0][0]));
        let order = by_branches(program, profile, graph, group, entry);
        let nodes = order.into_iter().flat_map(|c| &group[c]);
        groups.push(nodes.map(|&n| graph.blocks[n as usize]).collect());
    }
    groups
}

/// The order of a function's chains: that of the entry, then always the one with most branches from those
/// before it.
fn by_branches(
    program: &Program,
    profile: &Profile,
    graph: &HotGraph,
    group: &[Vec<u32>],
    entry: Option<restitch_program::BlockId>,
) -> Vec<usize> {
    let mut chain_of = std::collections::HashMap::new();
    for (c, chain) in group.iter().enumerate() {
        chain_of.extend(chain.iter().map(|&n| (n, c)));
    }
    let density = |c: usize| {
        let blocks: Vec<_> = group[c].iter().map(|&n| graph.blocks[n as usize]).collect();
        node(program, profile, &blocks)
    };
    let mut rank: Vec<usize> = (0..group.len()).collect();
    rank.sort_by(|&a, &b| denser_first(density(a), density(b)).then(a.cmp(&b)));
    let mut place = vec![0; group.len()];
    rank.iter().enumerate().for_each(|(i, &c)| place[c] = i);
    let holds_entry = |c: &usize| group[*c].iter().any(|&n| Some(graph.blocks[n as usize]) == entry);
    let mut heap: std::collections::BinaryHeap<(u64, std::cmp::Reverse<usize>)> = rank
        .iter()
        .map(|&c| (if holds_entry(&c) { u64::MAX } else { 0 }, std::cmp::Reverse(place[c])))
        .collect();
    let (mut reached, mut placed, mut order) =
        (vec![0u64; group.len()], vec![false; group.len()], Vec::new());
    while let Some((_, std::cmp::Reverse(at))) = heap.pop() {
        let chain = rank[at];
        if std::mem::replace(&mut placed[chain], true) {
            continue;
        }
        order.push(chain);
        for &from in &group[chain] {
            let first = graph.links.partition_point(|l| l.from < from);
            for link in graph.links[first..].iter().take_while(|l| l.from == from) {
                if let Some(&other) = chain_of.get(&link.to).filter(|c| !placed[**c]) {
                    reached[other] = reached[other].saturating_add(link.weight as u64);
                    heap.push((reached[other], std::cmp::Reverse(place[other])));
                }
            }
        }
    }
    order
}
