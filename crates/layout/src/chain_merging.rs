//! The engine that most algorithms run on: chains of nodes are joined, the pair that gains most first.
//!
//! **Problem.** After each join the gains of all pairs with one of the two chains change. To compute them all
//! again makes the whole thing quadratic as soon as there is one node with many neighbours.
//!
//! **Idea.** Gains are kept in order (`queue`) and computed again only when they come to the top and one of
//! the chains has changed since; a pair whose links were united takes the sum of the gains as its bound until
//! then. A gain that has just been computed is good enough if it is at least nine tenths of what stands next:
//! without this, each growth of a chain with a thousand neighbours would put a thousand gains, all smaller by
//! the same little, out of order. The smaller chain is always renumbered into the larger one (`members`), and
//! lists of links are united by linking, so that all bookkeeping together takes O((n + m) log n).
//!
//! With a million nodes time goes by cache misses, not by instructions. So what is needed together stands
//! together, in records of 24 to 32 bytes in a few arrays, numbered as the program is; nothing is allocated
//! for a single chain, and no table of pairs is asked (`neighbours`).
//!
//! **Limits.** A gain that has grown by more than that is found late. Ties go to the edge that was made
//! first.

mod edge;
mod members;
mod neighbours;
mod queue;

use std::cell::Cell;

use crate::graph::{Link, NONE};
use edge::{Edge, PackedJoin};
use members::{Chain, Node};
use neighbours::Neighbours;
use queue::{Entry, Queue};

/// Version of an entry that has not been computed.
const NEVER: u32 = u32::MAX;

/// Share of the next gain that a gain which was computed again must reach to be taken at once.
const SLACK: f64 = 0.9;

/// How two chains are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// All of `first`, then all of `second`.
    Concat { first: u32, second: u32 },
    /// As `Concat`, with the smaller chain back to front.
    Reversed { first: u32, second: u32 },
    /// `outer` is cut in front of its node number `at`; `inner` stays whole.
    Split { outer: u32, inner: u32, at: usize, shape: Shape },
}

/// The order of X1 and X2, the parts of the chain that was cut, and Y, the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// X1 Y X2
    Between,
    /// Y X2 X1
    Behind,
    /// X2 X1 Y
    Before,
}

/// A join and what it gains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub gain: f64,
    pub join: Join,
}

/// What is to be maximised.
pub(crate) trait Objective {
    /// The best way to join the two chains of an edge; `None` if there is none that gains.
    fn best(&mut self, chains: &Chains<'_>, edge: u32) -> Option<Candidate>;
    /// What [`Objective::best`] left open of a join that is about to be made: of joins that gain the same,
    /// which one it is.
    fn settle(&mut self, chains: &Chains<'_>, edge: u32, join: Join) -> Join {
        let _ = (chains, edge);
        join
    }
    /// Chain `gone` has become a part of chain `kept`.
    fn joined(&mut self, kept: u32, gone: u32) {
        let _ = (kept, gone);
    }
    /// Whether a join of an edge's chains that [`Objective::best`] has proposed may be made. Asked right
    /// before.
    fn permits(&mut self, chains: &Chains<'_>, edge: u32, join: Join) -> bool {
        let _ = (chains, edge, join);
        true
    }
}

/// Disjoint chains of nodes, and the links between each pair of them.
pub(crate) struct Chains<'g> {
    sizes: &'g [u64],
    links: &'g [Link],
    nodes: Vec<Node>,
    chains: Vec<Chain>,
    edges: Vec<Edge>,
    /// The join that was computed last for each edge.
    joins: Vec<PackedJoin>,
    neighbours: Neighbours,
    /// The link behind each one of the same edge.
    next_link: Vec<u32>,
    /// Where each node's outgoing links begin, and behind the last node their number.
    outgoing: Vec<u32>,
    /// The number of joins so far.
    clock: u32,
    /// Nodes or edges that are being moved; kept for its room.
    moving: Vec<u32>,
    operations: Cell<u64>,
}

impl<'g> Chains<'g> {
    /// Chains of `sizes.len()` nodes. `links` are sorted by source; `chains` hold each node once.
    pub fn new(sizes: &'g [u64], links: &'g [Link], chains: &[Vec<u32>]) -> Self {
        let mut nodes = vec![Node::default(); sizes.len()];
        let place =
            |(number, order): (usize, &Vec<u32>)| members::place(&mut nodes, sizes, number as u32, order);
        let chains = chains.iter().enumerate().map(place).collect();
        Self::of_placed(sizes, links, nodes, chains)
    }

    /// Each node a chain of its own.
    pub fn of_single_nodes(sizes: &'g [u64], links: &'g [Link]) -> Self {
        let mut nodes = vec![Node::default(); sizes.len()];
        let place = |node: u32| members::place(&mut nodes, sizes, node, &[node]);
        let chains = (0..sizes.len() as u32).map(place).collect();
        Self::of_placed(sizes, links, nodes, chains)
    }

    fn of_placed(sizes: &'g [u64], links: &'g [Link], nodes: Vec<Node>, chains: Vec<Chain>) -> Self {
        let mut rooms = vec![0; chains.len()];
        let mut edges = 0;
        for link in links {
            let (a, b) = (nodes[link.from as usize].chain, nodes[link.to as usize].chain);
            if a != b {
                rooms[a as usize] += 1;
                rooms[b as usize] += 1;
                edges += 1;
            }
        }
        let mut new = Self {
            sizes,
            links,
            nodes,
            chains,
            edges: Vec::with_capacity(edges),
            joins: Vec::new(),
            neighbours: Neighbours::with_room(&rooms),
            next_link: vec![NONE; links.len()],
            outgoing: outgoing(sizes.len(), links),
            clock: 0,
            moving: Vec::new(),
            operations: Cell::new(0),
        };
        (0..links.len() as u32).for_each(|link| new.add_link(link));
        new.joins = vec![PackedJoin::default(); new.edges.len()];
        new
    }

    fn add_link(&mut self, link: u32) {
        let l = &self.links[link as usize];
        let (a, b) = (self.chain_of(l.from), self.chain_of(l.to));
        if a == b {
            return;
        }
        if let Some(edge) = self.edge_between(a, b) {
            let edge = &mut self.edges[edge as usize];
            let last = std::mem::replace(&mut edge.last_link, link);
            edge.weight += l.weight;
            self.next_link[last as usize] = link;
        } else {
            let edge = self.edges.len() as u32;
            self.edges.push(Edge::of_link(link, l.weight, a, b));
            self.neighbours.add(&self.edges, a, edge);
            self.neighbours.add(&self.edges, b, edge);
        }
    }

    /// The edge between two chains; quickest if `near` was used lately.
    fn edge_between(&self, near: u32, far: u32) -> Option<u32> {
        let (edge, looked_at) = self.neighbours.between(&self.edges, near, far);
        self.spend(looked_at);
        edge
    }

    /// How many chains there were at first: chain numbers are below.
    pub fn count(&self) -> usize {
        self.chains.len()
    }
    /// The chains of an edge.
    pub fn ends(&self, edge: u32) -> [u32; 2] {
        self.edges[edge as usize].chains
    }
    /// The weight of all links of an edge.
    pub fn weight(&self, edge: u32) -> f64 {
        self.edges[edge as usize].weight
    }
    /// The links of an edge, in both directions.
    pub fn links_of(&self, edge: u32) -> impl Iterator<Item = &'g Link> {
        let (links, edge) = (self.links, &self.edges[edge as usize]);
        let (first, last) = (Some(edge.first_link), edge.last_link);
        std::iter::successors(first, move |&l| (l != last).then(|| self.next_link[l as usize])).map(|l| {
            self.spend(1);
            &links[l as usize]
        })
    }
    /// Links and edges looked at and nodes renumbered so far: what the run time is proportional to.
    #[cfg(test)]
    pub fn operations(&self) -> u64 {
        self.operations.get()
    }
    fn spend(&self, more: usize) {
        self.operations.set(self.operations.get() + more as u64);
    }
    /// The links that leave a node.
    pub fn links_from(&self, node: u32) -> &'g [Link] {
        let node = node as usize;
        &self.links[self.outgoing[node] as usize..self.outgoing[node + 1] as usize]
    }
    /// Number of edges that a chain was given, those included that are gone.
    pub fn degree(&self, chain: u32) -> usize {
        self.neighbours.degree(chain)
    }
    /// The one of two chains that keeps its number when they are joined.
    pub fn larger(&self, a: u32, b: u32) -> u32 {
        let bulk = |c: u32| self.len(c) + self.degree(c);
        if bulk(b) > bulk(a) { b } else { a }
    }

    /// Joins greedily until nothing gains. Returns the joins made.
    pub fn run(&mut self, objective: &mut impl Objective) -> usize {
        let edges = 0..self.edges.len() as u32;
        let alive = edges.filter(|&edge| self.edges[edge as usize].is_alive()).count();
        let mut first = Vec::with_capacity(alive);
        for edge in 0..self.edges.len() as u32 {
            if self.edges[edge as usize].is_alive() {
                first.extend(self.evaluate(edge, objective));
            }
        }
        let mut queue = Queue::new(first);
        let mut joins = 0;
        while let Some(top) = queue.pop() {
            let edge = top.edge();
            if !self.edges[edge as usize].is_alive() {
                continue;
            }
            if self.version_of(edge) != top.version() {
                let Some(fresh) = self.evaluate(edge, objective) else { continue };
                if queue.peek().is_some_and(|next| fresh.gain() < SLACK * next.gain()) {
                    queue.push(fresh);
                    continue;
                }
            }
            let join = self.joins[edge as usize].of(self.ends(edge));
            let join = objective.settle(self, edge, join);
            if !objective.permits(self, edge, join) {
                continue;
            }
            joins += 1;
            self.apply(edge, join, objective, &mut queue);
        }
        joins
    }

    /// When one of its chains was changed last.
    fn version_of(&self, edge: u32) -> u32 {
        let [a, b] = self.ends(edge);
        self.chains[a as usize].version.max(self.chains[b as usize].version)
    }

    fn evaluate(&mut self, edge: u32, objective: &mut impl Objective) -> Option<Entry> {
        self.spend(1);
        let best = objective.best(self, edge);
        self.edges[edge as usize].gain = best.map_or(0.0, |b| b.gain);
        let Candidate { gain, join } = best?;
        self.joins[edge as usize] = PackedJoin::new(join, self.ends(edge));
        Some(Entry::new(gain, edge, self.version_of(edge)))
    }

    /// Joins; puts the edges that were united with another into the queue, to be computed when they come to
    /// the top.
    fn apply(&mut self, edge: u32, join: Join, objective: &mut impl Objective, queue: &mut Queue) {
        let [a, b] = self.ends(edge);
        let kept = match join {
            Join::Split { inner, .. } => inner,
            _ => self.larger(a, b),
        };
        let gone = if kept == a { b } else { a };
        self.move_members(join, kept, gone);
        self.clock += 1;
        self.chains[kept as usize].version = self.clock;
        objective.joined(kept, gone);
        self.edges[edge as usize].end();
        self.move_edges(kept, gone, queue);
    }

    fn move_edges(&mut self, kept: u32, gone: u32, queue: &mut Queue) {
        let mut moving = std::mem::take(&mut self.moving);
        self.neighbours.take(gone, &mut moving);
        for &edge in &moving {
            let Some(other) = self.edges[edge as usize].other(gone) else { continue };
            self.spend(1);
            if let Some(twin) = self.edge_between(kept, other) {
                self.unite(edge, twin, queue);
            } else {
                self.edges[edge as usize].chains = [kept.min(other), kept.max(other)];
                self.neighbours.add(&self.edges, kept, edge);
            }
        }
        self.moving = moving;
    }

    /// The links of `edge` are `twin`'s from now on.
    fn unite(&mut self, edge: u32, twin: u32, queue: &mut Queue) {
        let gone = self.edges[edge as usize];
        self.edges[edge as usize].end();
        let kept = &mut self.edges[twin as usize];
        let end = std::mem::replace(&mut kept.last_link, gone.last_link);
        kept.weight += gone.weight;
        kept.gain += gone.gain;
        self.next_link[end as usize] = gone.first_link;
        if kept.gain > 0.0 {
            queue.push(Entry::new(kept.gain, twin, NEVER));
        }
    }
}

/// Where each node's links begin, and behind the last node their number. `links` are sorted by source.
fn outgoing(nodes: usize, links: &[Link]) -> Vec<u32> {
    let mut first = vec![0u32; nodes + 1];
    links.iter().for_each(|l| first[l.from as usize + 1] += 1);
    (1..first.len()).for_each(|n| first[n] += first[n - 1]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codestitcher::Close;
    use crate::ext_tsp::TspScore;
    use crate::graph::LinkKind;
    use crate::stitch::Near;
    use restitch_profile::testing::Random;
    use std::collections::BTreeMap;

    /// Functions of ten nodes: branches nearby, calls to anywhere, one callee in ten popular.
    fn graph(nodes: u32, seed: u64) -> (Vec<u64>, Vec<Link>) {
        let mut random = Random::new(seed);
        let sizes = (0..nodes).map(|_| 4 + random.below(40) as u64).collect();
        let mut links = Vec::new();
        for from in 0..nodes {
            let mut link = |to: u32, kind, random: &mut Random| {
                let weight = (1u64 << random.below(20)) as f64;
                if to != from && to < nodes {
                    links.push(Link { from, to, weight, leaves: 4, arrives: 0, kind, only: false });
                }
            };
            link(from + 1, LinkKind::Branch, &mut random);
            link(from / 10 * 10 + random.below(10) as u32, LinkKind::Branch, &mut random);
            let popular = random.chance(0.1);
            let callees = if popular { nodes / 1000 + 1 } else { nodes / 10 };
            link(random.below(callees as usize) as u32 * 10, LinkKind::Call, &mut random);
        }
        links.sort_by_key(|l| (l.from, l.to));
        (sizes, links)
    }

    fn operations(nodes: u32, objective: &mut impl Objective) -> f64 {
        let (sizes, links) = graph(nodes, 5);
        let mut chains = Chains::of_single_nodes(&sizes, &links);
        chains.run(objective);
        chains.operations() as f64
    }

    /// Eight times the nodes may cost less than twelve times the work.
    #[test]
    fn work_grows_little_faster_than_the_graph() {
        let growth = |name: &str, small: f64, large: f64| {
            eprintln!("{name}: {small} operations, then {large}: {:.2} times", large / small);
            assert!(large < 12.0 * small, "{name}: {small} {large}");
        };
        let (n, m) = (4_000, 32_000);
        growth("ext-tsp", operations(n, &mut TspScore::default()), operations(m, &mut TspScore::default()));
        let close = || Close { reach: 4096, order: None };
        growth("codestitcher", operations(n, &mut close()), operations(m, &mut close()));
        let near = || Near { reach: 4096.0 };
        growth("stitch", operations(n, &mut near()), operations(m, &mut near()));
    }

    /// After any run, places, sizes and memberships are what the order of the members says.
    #[test]
    fn bookkeeping_agrees_with_the_order() {
        for seed in 0..20 {
            let (sizes, links) = graph(300, seed);
            let mut chains = Chains::of_single_nodes(&sizes, &links);
            chains.run(&mut TspScore::default());
            let mut seen = 0;
            for chain in 0..chains.count() as u32 {
                let mut at = 0;
                for node in chains.members(chain) {
                    assert_eq!((chains.chain_of(node), chains.offset(node)), (chain, at));
                    at += sizes[node as usize] as i64;
                    seen += 1;
                }
                assert_eq!(chains.size(chain), at);
            }
            assert_eq!(seen, 300);
        }
    }

    /// After any run, also with hubs, there is one edge for each pair of chains that links connect, and it
    /// has all of these links.
    #[test]
    fn edges_agree_with_the_links() {
        let mut hubs = 0;
        for seed in 0..10 {
            let (sizes, links) = graph(1500, seed);
            let mut chains = Chains::of_single_nodes(&sizes, &links);
            chains.run(&mut Close { reach: 200 << (seed % 5), order: None });
            let mut expected: BTreeMap<[u32; 2], Vec<Link>> = BTreeMap::new();
            for link in &links {
                let (a, b) = (chains.chain_of(link.from), chains.chain_of(link.to));
                if a != b {
                    expected.entry([a.min(b), a.max(b)]).or_default().push(*link);
                }
            }
            let alive: Vec<u32> =
                (0..chains.edges.len() as u32).filter(|&e| chains.edges[e as usize].is_alive()).collect();
            assert_eq!(alive.len(), expected.len());
            for edge in alive {
                let [a, b] = chains.ends(edge);
                let mut got: Vec<Link> = chains.links_of(edge).copied().collect();
                got.sort_by_key(|l| (l.from, l.to));
                assert_eq!(got, expected[&[a, b]]);
                assert_eq!(chains.weight(edge), got.iter().map(|l| l.weight).sum::<f64>());
                assert_eq!([chains.edge_between(a, b), chains.edge_between(b, a)], [Some(edge); 2]);
                hubs += usize::from(chains.degree(a).min(chains.degree(b)) > 32);
            }
        }
        assert!(hubs > 100, "{hubs}");
    }
}
