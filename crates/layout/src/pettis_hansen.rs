//! Pettis and Hansen's order of procedures (*Profile guided code positioning*, PLDI 1990, section 3):
//! "closest is best".
//!
//! The call graph is undirected. The heaviest edge's two chains are joined until no edge is left; weights of
//! edges between the same two chains add up. A chain may be turned round before it is joined: of the four
//! ways to join two chains, the one is taken whose two touching procedures call each other most. Chains that
//! no call connects go by density.
//!
//! O((n + m) log n); ties go to the lower numbers.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::c3::denser_first;
use crate::chain_merging::{Candidate, Chains, Join, Objective};
use crate::functions::FunctionGraph;
use crate::graph::{Link, LinkKind};
use crate::model::{Layout, LayoutAlgorithm};
use crate::nodes::{Arc, Node};

/// Whole functions in Pettis and Hansen's order, their blocks as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PettisHansen;

impl LayoutAlgorithm for PettisHansen {
    fn name(&self) -> &'static str {
        "ph"
    }

    fn meaning(&self) -> &'static str {
        "Functions that call each other side by side (Pettis and Hansen's order of procedures)"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let graph = FunctionGraph::new(program, profile);
        graph.layout(program, pettis_hansen_order(&graph.nodes, &graph.arcs), 16)
    }
}

/// The order of `nodes`, as a permutation of their indices. `arcs` may name a pair several times. Arcs that
/// name nodes that do not exist are ignored.
pub fn pettis_hansen_order(nodes: &[Node], arcs: &[Arc]) -> Vec<usize> {
    let sizes: Vec<u64> = nodes.iter().map(|n| n.size).collect();
    let links = links(nodes.len(), arcs);
    let mut chains = Chains::of_single_nodes(&sizes, &links);
    chains.run(&mut Closest);
    by_density(nodes, chains.into_chains())
}

/// Arcs as links, sorted by source.
pub(crate) fn links(nodes: usize, arcs: &[Arc]) -> Vec<Link> {
    let inside = |a: &&Arc| a.from != a.to && a.from < nodes && a.to < nodes && a.count > 0;
    let link = |a: &Arc| Link {
        from: a.from as u32,
        to: a.to as u32,
        weight: a.count as f64,
        leaves: u32::try_from(a.offset).unwrap_or(u32::MAX),
        arrives: 0,
        kind: LinkKind::Call,
        only: false,
    };
    let mut links: Vec<Link> = arcs.iter().filter(inside).map(link).collect();
    links.sort_by_key(|l| (l.from, l.to));
    links
}

/// The nodes of the chains, the denser chains first.
pub(crate) fn by_density(nodes: &[Node], chains: Vec<Vec<u32>>) -> Vec<usize> {
    let total = |chain: &[u32]| {
        chain.iter().map(|&n| nodes[n as usize]).fold(Node::default(), |sum, n| Node {
            size: sum.size.saturating_add(n.size),
            weight: sum.weight.saturating_add(n.weight),
        })
    };
    let mut ranked: Vec<(Node, Vec<u32>)> = chains.into_iter().map(|c| (total(&c), c)).collect();
    ranked.sort_by(|(a, x), (b, y)| denser_first(*a, *b).then_with(|| x.cmp(y)));
    ranked.into_iter().flat_map(|(_, chain)| chain).map(|n| n as usize).collect()
}

struct Closest;

impl Objective for Closest {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let gain = chains.links_of(edge).map(|l| l.weight).sum();
        Some(Candidate { gain, join: closest(chains, edge)? })
    }
}

/// The way to join in which the two procedures that touch call each other most.
fn closest(chains: &Chains<'_>, edge: u32) -> Option<Join> {
    let [a, b] = chains.ends(edge);
    let large = chains.larger(a, b);
    let small = if large == a { b } else { a };
    let ((large_head, large_tail), (small_head, small_tail)) = (chains.tips(large), chains.tips(small));
    let ways = [
        (large_tail, small_head, Join::Concat { first: large, second: small }),
        (large_head, small_tail, Join::Concat { first: small, second: large }),
        (large_tail, small_tail, Join::Reversed { first: large, second: small }),
        (large_head, small_head, Join::Reversed { first: small, second: large }),
    ];
    let mut calls = [0.0; 4];
    for link in chains.links_of(edge) {
        for (sum, (x, y, _)) in calls.iter_mut().zip(&ways) {
            if [(link.from, link.to), (link.to, link.from)].contains(&(*x, *y)) {
                *sum += link.weight;
            }
        }
    }
    // The first of equals: `max_by` would take the last.
    (0..4).rev().max_by(|&i, &j| calls[i].total_cmp(&calls[j])).map(|best| ways[best].2)
}
