//! The engine that most algorithms run on: chains of nodes are joined, the pair that gains most first.
//!
//! **Problem.** After each join the gains of all pairs with one of the two chains change. To compute them all again makes
//! the whole thing quadratic as soon as there is one node with many neighbours.
//!
//! **Idea.** Gains are kept in a heap and computed again only when they come to its top and one of the chains has changed
//! since; a pair whose links were united takes the sum of the gains as its bound until then. A gain that has just been computed is
//! good enough if it is at least nine tenths of what stands next in the heap: without this, each growth of a chain with
//! a thousand neighbours would put a thousand gains, all smaller by the same little, out of order. The smaller chain is always
//! renumbered into the larger one, and lists of links are united by linking, so that all bookkeeping together takes
//! O((n + m) log n).
//!
//! **Limits.** A gain that has grown by more than that is found late. Ties go to the edge that was made first.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::graph::{Link, NONE};

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
    /// What [`Objective::best`] left open of a join that is about to be made: of joins that gain the same, which one it is.
    fn settle(&mut self, chains: &Chains<'_>, edge: u32, join: Join) -> Join {
        let _ = (chains, edge);
        join
    }
    /// Chain `gone` has become a part of chain `kept`.
    fn joined(&mut self, kept: u32, gone: u32) {
        let _ = (kept, gone);
    }
    /// Whether a join that [`Objective::best`] has proposed may be made. Asked right before.
    fn permits(&mut self, chains: &Chains<'_>, join: Join) -> bool {
        let _ = (chains, join);
        true
    }
}

struct Edge {
    chains: [u32; 2],
    first_link: u32,
    last_link: u32,
    alive: bool,
    /// The gain computed last, or a bound of it; 0 where there was none.
    gain: f64,
    /// The join that was computed last.
    join: Join,
    /// Weight of all its links.
    weight: f64,
}

/// Disjoint chains of nodes, and the links between each pair of them.
pub(crate) struct Chains<'g> {
    /// Bytes of each node.
    pub sizes: &'g [u64],
    pub links: &'g [Link],
    members: Vec<VecDeque<u32>>,
    chain_of: Vec<u32>,
    /// First byte of each node, in the coordinates of its chain.
    place: Vec<i64>,
    /// First byte and end of each chain in its coordinates.
    range: Vec<(i64, i64)>,
    /// When a chain was changed last. Unique, so that an entry of a chain that is gone never passes for one of its heir.
    version: Vec<u32>,
    clock: u32,
    edges: Vec<Edge>,
    next_link: Vec<u32>,
    incident: Vec<Vec<u32>>,
    between: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
    /// Where each node's outgoing links begin, and behind the last node their number.
    outgoing: Vec<u32>,
    operations: Cell<u64>,
}

impl<'g> Chains<'g> {
    /// Chains of `sizes.len()` nodes. `links` are sorted by source; `chains` hold each node once.
    pub fn new(sizes: &'g [u64], links: &'g [Link], chains: Vec<Vec<u32>>) -> Self {
        let mut new = Self {
            sizes,
            links,
            chain_of: vec![NONE; sizes.len()],
            place: vec![0; sizes.len()],
            range: Vec::with_capacity(chains.len()),
            version: vec![0; chains.len()],
            clock: 0,
            edges: Vec::new(),
            next_link: vec![NONE; links.len()],
            incident: vec![Vec::new(); chains.len()],
            between: HashMap::default(),
            outgoing: Vec::with_capacity(sizes.len() + 1),
            members: chains.into_iter().map(VecDeque::from).collect(),
            operations: Cell::new(0),
        };
        for (chain, members) in new.members.iter().enumerate() {
            let mut at = 0;
            for &node in members {
                new.chain_of[node as usize] = chain as u32;
                new.place[node as usize] = at;
                at += sizes[node as usize] as i64;
            }
            new.range.push((0, at));
        }
        new.outgoing = outgoing(sizes.len(), links);
        (0..links.len() as u32).for_each(|link| new.add_link(link));
        new
    }

    /// Each node a chain of its own.
    pub fn of_single_nodes(sizes: &'g [u64], links: &'g [Link]) -> Self {
        Self::new(sizes, links, (0..sizes.len() as u32).map(|n| vec![n]).collect())
    }

    fn add_link(&mut self, link: u32) {
        let l = &self.links[link as usize];
        let (a, b) = (self.chain_of[l.from as usize], self.chain_of[l.to as usize]);
        if a == b {
            return;
        }
        if let Some(&edge) = self.between.get(&pair(a, b)) {
            let last = std::mem::replace(&mut self.edges[edge as usize].last_link, link);
            self.next_link[last as usize] = link;
            self.edges[edge as usize].weight += l.weight;
        } else {
            let edge = self.edges.len() as u32;
            self.edges.push(Edge {
                chains: [a.min(b), a.max(b)],
                first_link: link,
                last_link: link,
                alive: true,
                gain: 0.0,
                join: Join::Concat { first: a, second: b },
                weight: l.weight,
            });
            self.between.insert(pair(a, b), edge);
            self.incident[a as usize].push(edge);
            self.incident[b as usize].push(edge);
        }
    }

    /// How many chains there were at first: chain numbers are below.
    pub fn count(&self) -> usize {
        self.members.len()
    }
    /// The chains of an edge.
    pub fn ends(&self, edge: u32) -> [u32; 2] {
        self.edges[edge as usize].chains
    }
    /// The weight of all links of an edge.
    pub fn weight(&self, edge: u32) -> f64 {
        self.edges[edge as usize].weight
    }
    /// The edge between two chains.
    pub fn edge_between(&self, a: u32, b: u32) -> Option<u32> {
        self.between.get(&pair(a, b)).copied()
    }
    /// The links of an edge, in both directions.
    pub fn links_of(&self, edge: u32) -> impl Iterator<Item = &'g Link> {
        let links = self.links;
        let first = Some(self.edges[edge as usize].first_link);
        let follow = |&l: &u32| Some(self.next_link[l as usize]).filter(|&n| n != NONE);
        std::iter::successors(first, follow).map(|l| {
            self.spend(1);
            &links[l as usize]
        })
    }
    /// Links looked at and nodes renumbered so far: what the run time is proportional to.
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
    /// The chain of a node.
    pub fn chain_of(&self, node: u32) -> u32 {
        self.chain_of[node as usize]
    }
    /// The nodes of a chain, in order; none if it has become part of another.
    pub fn members(&self, chain: u32) -> &VecDeque<u32> {
        &self.members[chain as usize]
    }
    /// Bytes of a chain.
    pub fn size(&self, chain: u32) -> i64 {
        let (start, end) = self.range[chain as usize];
        end - start
    }
    /// Bytes from the start of a node's chain to the node.
    pub fn offset(&self, node: u32) -> i64 {
        self.place[node as usize] - self.range[self.chain_of[node as usize] as usize].0
    }
    /// Number of edges of a chain, dead ones included.
    pub fn degree(&self, chain: u32) -> usize {
        self.incident[chain as usize].len()
    }
    /// The one of two chains that keeps its number when they are joined.
    pub fn larger(&self, a: u32, b: u32) -> u32 {
        let bulk = |c: u32| self.members[c as usize].len() + self.incident[c as usize].len();
        if bulk(b) > bulk(a) { b } else { a }
    }

    /// The chains, in the order of their numbers.
    pub fn into_chains(self) -> Vec<Vec<u32>> {
        self.members.into_iter().filter(|m| !m.is_empty()).map(Vec::from).collect()
    }

    /// Joins greedily until nothing gains. Returns the joins made.
    pub fn run(&mut self, objective: &mut impl Objective) -> usize {
        let edges = 0..self.edges.len() as u32;
        let alive: Vec<u32> = edges.filter(|&edge| self.edges[edge as usize].alive).collect();
        let first: Vec<Entry> = alive.into_iter().filter_map(|edge| self.evaluate(edge, objective)).collect();
        let mut heap = BinaryHeap::from(first);
        let mut joins = 0;
        while let Some(top) = heap.pop() {
            let edge = top.edge;
            if !self.edges[edge as usize].alive {
                continue;
            }
            if self.version_of(edge) != top.version {
                let Some(fresh) = self.evaluate(edge, objective) else { continue };
                if heap.peek().is_some_and(|next| fresh.gain < SLACK * next.gain) {
                    heap.push(fresh);
                    continue;
                }
            }
            let join = objective.settle(self, edge, self.edges[edge as usize].join);
            if !objective.permits(self, join) {
                continue;
            }
            joins += 1;
            let united = self.apply(edge, join, objective);
            heap.extend(united);
        }
        joins
    }

    /// When one of its chains was changed last.
    fn version_of(&self, edge: u32) -> u32 {
        let [a, b] = self.ends(edge);
        self.version[a as usize].max(self.version[b as usize])
    }

    fn evaluate(&mut self, edge: u32, objective: &mut impl Objective) -> Option<Entry> {
        self.spend(1);
        self.edges[edge as usize].gain = 0.0;
        let Candidate { gain, join } = objective.best(self, edge)?;
        self.edges[edge as usize].gain = gain;
        self.edges[edge as usize].join = join;
        Some(Entry { gain, edge, version: self.version_of(edge) })
    }

    /// Joins; entries for the edges that were united with another, to be computed when they come to the top.
    fn apply(&mut self, edge: u32, join: Join, objective: &mut impl Objective) -> Vec<Entry> {
        let [a, b] = self.ends(edge);
        let kept = match join {
            Join::Split { inner, .. } => inner,
            _ => self.larger(a, b),
        };
        let gone = if kept == a { b } else { a };
        self.move_members(join, kept, gone);
        self.range[gone as usize] = (0, 0);
        self.clock += 1;
        self.version[kept as usize] = self.clock;
        objective.joined(kept, gone);
        self.move_edges(edge, kept, gone)
    }

    fn move_members(&mut self, join: Join, kept: u32, gone: u32) {
        let mut moving = Vec::from(std::mem::take(&mut self.members[gone as usize]));
        self.spend(moving.len());
        match join {
            Join::Concat { first, .. } | Join::Reversed { first, .. } => {
                if matches!(join, Join::Reversed { .. }) {
                    moving.reverse();
                }
                if first == kept { self.append(kept, &moving) } else { self.prepend(kept, &moving) }
            }
            Join::Split { at, shape, .. } => {
                let (head, tail) = moving.split_at(at);
                match shape {
                    Shape::Between => {
                        self.prepend(kept, head);
                        self.append(kept, tail);
                    }
                    Shape::Behind => {
                        self.append(kept, tail);
                        self.append(kept, head);
                    }
                    Shape::Before => {
                        self.prepend(kept, head);
                        self.prepend(kept, tail);
                    }
                }
            }
        }
    }

    fn append(&mut self, chain: u32, nodes: &[u32]) {
        for &node in nodes {
            let end = &mut self.range[chain as usize].1;
            self.place[node as usize] = *end;
            *end += self.sizes[node as usize] as i64;
            self.chain_of[node as usize] = chain;
            self.members[chain as usize].push_back(node);
        }
    }

    fn prepend(&mut self, chain: u32, nodes: &[u32]) {
        for &node in nodes.iter().rev() {
            let start = &mut self.range[chain as usize].0;
            *start -= self.sizes[node as usize] as i64;
            self.place[node as usize] = *start;
            self.chain_of[node as usize] = chain;
            self.members[chain as usize].push_front(node);
        }
    }

    fn move_edges(&mut self, inner: u32, kept: u32, gone: u32) -> Vec<Entry> {
        self.edges[inner as usize].alive = false;
        self.between.remove(&pair(kept, gone));
        let mut united = Vec::new();
        for edge in std::mem::take(&mut self.incident[gone as usize]) {
            if !self.edges[edge as usize].alive {
                continue;
            }
            self.spend(1);
            let [a, b] = self.ends(edge);
            let other = if a == gone { b } else { a };
            self.between.remove(&pair(gone, other));
            if let Some(&twin) = self.between.get(&pair(kept, other)) {
                let (first, last) =
                    (self.edges[edge as usize].first_link, self.edges[edge as usize].last_link);
                self.edges[edge as usize].alive = false;
                let end = std::mem::replace(&mut self.edges[twin as usize].last_link, last);
                self.next_link[end as usize] = first;
                self.edges[twin as usize].weight += self.edges[edge as usize].weight;
                self.edges[twin as usize].gain += self.edges[edge as usize].gain;
                let gain = self.edges[twin as usize].gain;
                if gain > 0.0 {
                    united.push(Entry { gain, edge: twin, version: NEVER });
                }
            } else {
                self.edges[edge as usize].chains = [kept.min(other), kept.max(other)];
                self.between.insert(pair(kept, other), edge);
                self.incident[kept as usize].push(edge);
            }
        }
        united
    }
}

/// The key of two chains, whichever comes first.
fn pair(a: u32, b: u32) -> u64 {
    u64::from(a.min(b)) << 32 | u64::from(a.max(b))
}

/// Where each node's links begin, and behind the last node their number. `links` are sorted by source.
fn outgoing(nodes: usize, links: &[Link]) -> Vec<u32> {
    let mut first = vec![0u32; nodes + 1];
    links.iter().for_each(|l| first[l.from as usize + 1] += 1);
    (1..first.len()).for_each(|n| first[n] += first[n - 1]);
    first
}

/// Hashes pairs of chains: a multiplication by 2^64 over the golden ratio, the halves of the product folded (Knuth, *The Art of
/// Computer Programming* 3, section 6.4). The standard hasher took a tenth of a layout's time; nobody chooses chain numbers.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 << 8 | u64::from(byte)));
    }
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

#[derive(Debug, PartialEq)]
struct Entry {
    gain: f64,
    edge: u32,
    /// [`Chains::version_of`] the edge when the gain was computed.
    version: u32,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_gain = self.gain.total_cmp(&other.gain);
        by_gain.then(other.edge.cmp(&self.edge)).then(self.version.cmp(&other.version))
    }
}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codestitcher::Close;
    use crate::ext_tsp::TspScore;
    use crate::graph::LinkKind;
    use crate::stitch::Near;
    use restitch_profile::testing::Random;

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
        growth("ext-tsp", operations(n, &mut TspScore), operations(m, &mut TspScore));
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
            chains.run(&mut TspScore);
            let mut seen = 0;
            for chain in 0..chains.count() as u32 {
                let mut at = 0;
                for &node in chains.members(chain) {
                    assert_eq!((chains.chain_of(node), chains.offset(node)), (chain, at));
                    at += sizes[node as usize] as i64;
                    seen += 1;
                }
                assert_eq!(chains.size(chain), at);
            }
            assert_eq!(seen, 300);
        }
    }
}
