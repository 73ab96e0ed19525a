//! Which nodes stand in which chain, and where.
//!
//! A chain is a list that leads through its nodes, so that joining two moves nothing; but each node of the
//! one gets a new chain and a new place.

use super::{Chains, Join, Shape};
use crate::graph::NONE;

/// A node's place.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Node {
    /// Its first byte, in the coordinates of its chain.
    pub place: i64,
    pub chain: u32,
    /// The node behind it in its chain.
    next: u32,
    /// Its bytes; functions of 4 GiB or more are not told from each other.
    size: u32,
}

/// A chain that is not gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    /// Its first byte and its end, in its coordinates.
    start: i64,
    end: i64,
    /// When it was changed last. Unique, so that an entry of a chain that is gone never passes for one of its
    /// heir.
    pub version: u32,
    /// Number of its nodes; 0 of a chain that is gone.
    len: u32,
    head: u32,
    tail: u32,
}

impl Chain {
    /// Without nodes.
    const EMPTY: Self = Self { start: 0, end: 0, version: 0, len: 0, head: NONE, tail: NONE };
}

/// The chain `number` of these nodes in this order.
pub(super) fn place(nodes: &mut [Node], sizes: &[u64], number: u32, order: &[u32]) -> Chain {
    let mut chain = Chain::EMPTY;
    append(nodes, sizes, &mut chain, number, order);
    chain
}

fn append(nodes: &mut [Node], sizes: &[u64], chain: &mut Chain, number: u32, order: &[u32]) {
    let [Some(&first), Some(&last)] = [order.first(), order.last()] else { return };
    chain.end = lay(nodes, sizes, number, chain.end, order);
    match nodes.get_mut(chain.tail as usize) {
        Some(tail) => tail.next = first,
        None => chain.head = first,
    }
    chain.tail = last;
    chain.len += order.len() as u32;
}

fn prepend(nodes: &mut [Node], sizes: &[u64], chain: &mut Chain, number: u32, order: &[u32]) {
    let [Some(&first), Some(&last)] = [order.first(), order.last()] else { return };
    chain.start -= order.iter().map(|&node| sizes[node as usize] as i64).sum::<i64>();
    lay(nodes, sizes, number, chain.start, order);
    nodes[last as usize].next = chain.head;
    if chain.head == NONE {
        chain.tail = last;
    }
    chain.head = first;
    chain.len += order.len() as u32;
}

/// Links these nodes and gives them places from `at` on in chain `number`. Returns the end of the last one.
fn lay(nodes: &mut [Node], sizes: &[u64], number: u32, mut at: i64, order: &[u32]) -> i64 {
    for (i, &node) in order.iter().enumerate() {
        let next = order.get(i + 1).copied().unwrap_or(NONE);
        let size = sizes[node as usize];
        nodes[node as usize] =
            Node { place: at, chain: number, next, size: u32::try_from(size).unwrap_or(u32::MAX) };
        at += size as i64;
    }
    at
}

impl Chains<'_> {
    /// The chain of a node.
    pub fn chain_of(&self, node: u32) -> u32 {
        self.nodes[node as usize].chain
    }
    /// Bytes from the start of a node's chain to the node.
    pub fn offset(&self, node: u32) -> i64 {
        let Node { place, chain, .. } = self.nodes[node as usize];
        place - self.chains[chain as usize].start
    }
    /// A node's chain, and its place. The chain begins at [`Chains::start`].
    pub fn place(&self, node: u32) -> (u32, i64) {
        let Node { place, chain, .. } = self.nodes[node as usize];
        (chain, place)
    }
    /// The place of a chain's first byte.
    pub fn start(&self, chain: u32) -> i64 {
        self.chains[chain as usize].start
    }
    /// Bytes of a node.
    pub fn node_size(&self, node: u32) -> i64 {
        i64::from(self.nodes[node as usize].size)
    }
    /// Bytes of a chain.
    pub fn size(&self, chain: u32) -> i64 {
        let Chain { start, end, .. } = self.chains[chain as usize];
        end - start
    }
    /// Nodes of a chain; 0 if it has become part of another.
    pub fn len(&self, chain: u32) -> usize {
        self.chains[chain as usize].len as usize
    }
    /// The first and the last node of a chain that has not become part of another.
    pub fn tips(&self, chain: u32) -> (u32, u32) {
        let Chain { head, tail, .. } = self.chains[chain as usize];
        (head, tail)
    }
    /// The nodes of a chain, in order; none if it has become part of another.
    pub fn members(&self, chain: u32) -> impl Iterator<Item = u32> {
        let Chain { head, len, .. } = self.chains[chain as usize];
        let follow = |&node: &u32| Some(self.nodes[node as usize].next);
        std::iter::successors(Some(head), follow).take(len as usize)
    }

    /// The chains, in the order of their numbers.
    pub fn into_chains(self) -> Vec<Vec<u32>> {
        let numbers = (0..self.chains.len() as u32).filter(|&c| self.len(c) > 0);
        numbers.map(|c| self.members(c).collect()).collect()
    }

    /// Puts the nodes of `gone` to those of `kept`.
    pub(super) fn move_members(&mut self, join: Join, kept: u32, gone: u32) {
        let mut moving = std::mem::take(&mut self.moving);
        moving.clear();
        moving.extend(self.members(gone));
        self.spend(moving.len());
        self.chains[gone as usize] = Chain::EMPTY;
        let chain = &mut self.chains[kept as usize];
        let mut put = |before: bool, order: &[u32]| {
            let add = if before { prepend } else { append };
            add(&mut self.nodes, self.sizes, chain, kept, order);
        };
        match join {
            Join::Concat { first, .. } => put(first != kept, &moving),
            Join::Reversed { first, .. } => {
                moving.reverse();
                put(first != kept, &moving);
            }
            Join::Split { at, shape, .. } => {
                let (head, tail) = moving.split_at(at);
                let (then, last) = match shape {
                    Shape::Between => ((true, head), (false, tail)),
                    Shape::Behind => ((false, tail), (false, head)),
                    Shape::Before => ((true, head), (true, tail)),
                };
                put(then.0, then.1);
                put(last.0, last.1);
            }
        }
        self.moving = moving;
    }
}
