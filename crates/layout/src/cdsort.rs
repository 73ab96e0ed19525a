//! CDSort, cache-directed sort (Pupyrev; in LLVM since 2023, BOLT's and lld's best function order).
//!
//! The gain of a join is the growth of locality by distance (each call is worth its count times
//! distance^(-1/4)) plus a quarter of the fall in expected misses (16 entries of 2 KiB, touched at random as
//! in hfsort+), over the smaller size. Chains of at most 128 functions, then by density.
//!
//! O((n + m) log n) but for hubs; ties go to the lower numbers.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::chain_merging::{Candidate, Chains, Join, Objective};
use crate::functions::FunctionGraph;
use crate::graph::Link;
use crate::model::{Layout, LayoutAlgorithm};
use crate::nodes::{Arc, Node};
use crate::pettis_hansen::{by_density, links};

/// The constants of the cost model; the defaults are LLVM's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheDirected {
    /// Bytes of a unit of the cache that is modelled.
    pub unit: f64,
    /// Its entries, as a power of two.
    pub entries_log2: u32,
    /// What misses count against distance.
    pub frequency_scale: f64,
    /// Most nodes of a chain.
    pub max_chain: usize,
}

impl Default for CacheDirected {
    fn default() -> Self {
        Self { unit: 2048.0, entries_log2: 4, frequency_scale: 0.25, max_chain: 128 }
    }
}

/// Whole functions in cache-directed order, their blocks as they were.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CdSort {
    /// The cost model.
    pub model: CacheDirected,
}

impl LayoutAlgorithm for CdSort {
    fn name(&self) -> &'static str {
        "cdsort"
    }

    fn meaning(&self) -> &'static str {
        "Functions near those that call them, at every scale (cache-directed sort)"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let graph = FunctionGraph::new(program, profile);
        let order = cache_directed_order(&graph.by_entries(), &graph.arcs, self.model);
        graph.layout(program, order, 16)
    }
}

/// The order of `nodes`, as a permutation of their indices; a node weighs its calls. Arcs that name nodes
/// that do not exist are ignored.
pub fn cache_directed_order(nodes: &[Node], arcs: &[Arc], model: CacheDirected) -> Vec<usize> {
    let sizes: Vec<u64> = nodes.iter().map(|n| n.size.max(1)).collect();
    let links = links(nodes.len(), arcs);
    let samples = samples(nodes, &links);
    let bytes: u64 = sizes.iter().zip(&samples).filter(|(_, s)| **s > 0.0).map(|(b, _)| *b).sum();
    let mut locality = Locality {
        model,
        total: samples.iter().sum(),
        farthest: worth(bytes as f64),
        samples: samples.clone(),
    };
    let mut chains = Chains::of_single_nodes(&sizes, &links);
    chains.run(&mut locality);
    let weighed: Vec<Node> =
        sizes.iter().zip(&samples).map(|(&size, &s)| Node { size, weight: s as u64 }).collect();
    by_density(&weighed, chains.into_chains())
}

/// A node's calls, or what it makes or gets if that is more.
fn samples(nodes: &[Node], links: &[Link]) -> Vec<f64> {
    let (mut into, mut out) = (vec![0.0; nodes.len()], vec![0.0; nodes.len()]);
    for link in links {
        into[link.to as usize] += link.weight;
        out[link.from as usize] += link.weight;
    }
    let most = |(n, node): (usize, &Node)| (node.weight as f64).max(into[n]).max(out[n]);
    nodes.iter().enumerate().map(most).collect()
}

/// distance^(-1/4), by square roots, which are exact on every machine.
fn worth(distance: f64) -> f64 {
    1.0 / distance.max(0.1).sqrt().sqrt()
}

struct Locality {
    model: CacheDirected,
    total: f64,
    /// What a call between two chains is worth.
    farthest: f64,
    samples: Vec<f64>,
}

impl Locality {
    fn misses(&self, samples: f64, size: f64) -> f64 {
        let share = samples / size * self.model.unit / self.total;
        samples * (0..self.model.entries_log2).fold((1.0 - share).max(0.0), |p, _| p * p)
    }

    fn by_distance(&self, chains: &Chains<'_>, edge: u32, first: u32) -> f64 {
        let size = chains.size(first);
        let at = |node: u32| chains.offset(node) + if chains.chain_of(node) == first { 0 } else { size };
        let distance = |l: &Link| (at(l.to) - at(l.from) - i64::from(l.leaves)).unsigned_abs() as f64;
        chains.links_of(edge).map(|l| l.weight * (worth(distance(l)) - self.farthest)).sum()
    }
}

impl Objective for Locality {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let [a, b] = chains.ends(edge);
        if chains.len(a) + chains.len(b) > self.model.max_chain {
            return None;
        }
        let (forward, backward) = (self.by_distance(chains, edge, a), self.by_distance(chains, edge, b));
        let (first, second, near) = if backward > forward { (b, a, backward) } else { (a, b, forward) };
        let data = |c: u32| (self.samples[c as usize], chains.size(c) as f64);
        let ((s1, b1), (s2, b2)) = (data(a), data(b));
        let misses = self.misses(s1, b1) + self.misses(s2, b2) - self.misses(s1 + s2, b1 + b2);
        let gain = (near + self.model.frequency_scale * misses) / b1.min(b2);
        (gain > 1e-8).then_some(Candidate { gain, join: Join::Concat { first, second } })
    }

    fn joined(&mut self, kept: u32, gone: u32) {
        self.samples[kept as usize] += self.samples[gone as usize];
    }
}
