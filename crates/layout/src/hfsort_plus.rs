//! hfsort+ (HHVM and BOLT; described by Lavaee, Criswell and Ding and in the sources of BOLT): functions, for
//! the instruction TLB.
//!
//! **Problem.** Calls within a page hit the TLB. Of the others, those hit whose page was touched lately.
//!
//! **Idea.** A page of density d is missing with probability (1 - p)^16, where p is its share of all samples:
//! 16 entries, touched at random. A chain's cost is its long calls times that probability. First, chains are
//! joined where a call is nearly all that its caller makes and its callee gets; then the join that saves most
//! for its size is made, until none saves. Chains go by density.
//!
//! O((n + m) log n) but for hubs; ties go to the lower numbers. Gains may grow when a chain grows denser,
//! which is noticed late (see [`Chains`]).

use restitch_profile::Profile;
use restitch_program::Program;

use crate::chain_merging::{Candidate, Chains, Join, Objective};
use crate::functions::FunctionGraph;
use crate::graph::Link;
use crate::model::{Layout, LayoutAlgorithm};
use crate::nodes::{Arc, Node};
use crate::pettis_hansen::{by_density, links};

/// A call over less than this many bytes stays on its page.
const PAGE: f64 = restitch_address::PAGE as f64;
/// Entries of the TLB, as a power of two: 16.
const ENTRIES_LOG2: u32 = 4;
/// First pass: the least share that a call has among its caller's calls and among the calls of its callee.
const NEARLY_ALL: f64 = 0.9;

/// Whole functions in the order of hfsort+, their blocks as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HfsortPlus;

impl LayoutAlgorithm for HfsortPlus {
    fn name(&self) -> &'static str {
        "hfsort+"
    }

    fn meaning(&self) -> &'static str {
        "Functions on the pages of those that call them, for the instruction TLB"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let graph = FunctionGraph::new(program, profile);
        graph.layout(program, hfsort_plus_order(&graph.by_entries(), &graph.arcs), 16)
    }
}

/// The order of `nodes`, as a permutation of their indices; a node weighs its calls. Arcs that name nodes
/// that do not exist are ignored.
pub fn hfsort_plus_order(nodes: &[Node], arcs: &[Arc]) -> Vec<usize> {
    let sizes: Vec<u64> = nodes.iter().map(|n| n.size.max(1)).collect();
    let links = links(nodes.len(), arcs);
    let mut incoming = vec![0.0; nodes.len()];
    links.iter().for_each(|l| incoming[l.to as usize] += l.weight);
    let samples: Vec<f64> = nodes.iter().zip(&incoming).map(|(n, &i)| i.max(n.weight as f64)).collect();
    let first = first_pass(&links, &incoming, nodes.len());
    let mut pages = Pages::new(&samples, &sizes, &links, &first);
    let mut chains = Chains::new(&sizes, &links, &first);
    chains.run(&mut pages);
    by_density(nodes, chains.into_chains())
}

/// Chains of functions that call each other nearly exclusively.
fn first_pass(links: &[Link], incoming: &[f64], nodes: usize) -> Vec<Vec<u32>> {
    let mut outgoing = vec![0.0; nodes];
    links.iter().for_each(|l| outgoing[l.from as usize] += l.weight);
    let share = |l: &Link| (l.weight / outgoing[l.from as usize]).min(l.weight / incoming[l.to as usize]);
    let mut wanted: Vec<&Link> = links.iter().filter(|l| share(l) >= NEARLY_ALL).collect();
    wanted.sort_by(|a, b| b.weight.total_cmp(&a.weight).then((a.from, a.to).cmp(&(b.from, b.to))));
    let mut paths = crate::paths::Paths::new(nodes);
    for link in wanted {
        paths.join(link.from, link.to);
    }
    paths.into_chains()
}

/// The cost of long calls.
struct Pages {
    total: f64,
    samples: Vec<f64>,
    /// Calls within each chain that stay on a page.
    short: Vec<f64>,
    /// Those that the join under consideration would add.
    added: f64,
}

impl Pages {
    fn new(samples: &[f64], sizes: &[u64], links: &[Link], chains: &[Vec<u32>]) -> Self {
        let sum = |chain: &Vec<u32>| chain.iter().map(|&n| samples[n as usize]).sum();
        let mut place = vec![(0, 0i64); sizes.len()];
        for (number, chain) in chains.iter().enumerate() {
            let mut at = 0;
            for &node in chain {
                place[node as usize] = (number, at);
                at += sizes[node as usize] as i64;
            }
        }
        let mut short = vec![0.0; chains.len()];
        for link in links {
            let ((a, from), (b, to)) = (place[link.from as usize], place[link.to as usize]);
            if a == b {
                short[a] += on_page(link, from, to);
            }
        }
        Self { total: samples.iter().sum(), samples: chains.iter().map(sum).collect(), short, added: 0.0 }
    }

    /// The expected misses of a chain.
    fn misses(&self, samples: f64, size: f64, short: f64) -> f64 {
        let share = samples / size * PAGE / self.total;
        let absent = (0..ENTRIES_LOG2).fold((1.0 - share).max(0.0), |p, _| p * p);
        (samples - short).max(0.0) * absent
    }
}

fn on_page(link: &Link, from: i64, to: i64) -> f64 {
    let distance = (to - from - i64::from(link.leaves)).unsigned_abs() as f64 / PAGE;
    if distance < 1.0 { link.weight * (1.0 - distance * distance) } else { 0.0 }
}

fn short_between(chains: &Chains<'_>, edge: u32, first: u32) -> f64 {
    let size = chains.size(first);
    let at = |node: u32| chains.offset(node) + if chains.chain_of(node) == first { 0 } else { size };
    chains.links_of(edge).map(|l| on_page(l, at(l.from), at(l.to))).sum()
}

impl Objective for Pages {
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate> {
        let [a, b] = chains.ends(edge);
        let (forward, backward) = (short_between(chains, edge, a), short_between(chains, edge, b));
        let (first, second, added) = if backward > forward { (b, a, backward) } else { (a, b, forward) };
        let data = |c: u32| (self.samples[c as usize], chains.size(c) as f64, self.short[c as usize]);
        let ((s1, b1, c1), (s2, b2, c2)) = (data(a), data(b));
        let before = self.misses(s1, b1, c1) + self.misses(s2, b2, c2);
        let gain = (before - self.misses(s1 + s2, b1 + b2, c1 + c2 + added)) / b1.min(b2);
        (gain > 0.0).then_some(Candidate { gain, join: Join::Concat { first, second } })
    }

    fn permits(&mut self, chains: &Chains<'_>, edge: u32, join: Join) -> bool {
        if let Join::Concat { first, .. } = join {
            self.added = short_between(chains, edge, first);
        }
        true
    }

    fn joined(&mut self, kept: u32, gone: u32) {
        self.samples[kept as usize] += self.samples[gone as usize];
        self.short[kept as usize] += self.short[gone as usize] + self.added;
    }
}
