//! The edges of each chain, and the edge between two chains.
//!
//! **Problem.** Whenever two chains are joined, each neighbour of the one may also be a neighbour of the
//! other, and has to be found. One hash table of all pairs costs several cache misses for each, most of them
//! in vain.
//!
//! **Idea.** Nearly all chains have few edges: the shorter list is looked through. Only pairs of *hubs*,
//! chains that have had more than [`FEW`] edges, stand in a hash table. Lists lie in one array; one that
//! outgrows its place moves to the end.
//!
//! **Limits.** Entries of edges that are gone are dropped when a list is full, so that a list has at most
//! twice the length it needs.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::Edge;

/// Lists of at most so many edges are looked through.
const FEW: u32 = 32;

/// Where a chain's edges stand.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: u32,
    len: u32,
    capacity: u32,
    /// How many edges were added, those included that are gone.
    degree: u32,
}

/// The edges of each chain.
pub(super) struct Neighbours {
    spans: Vec<Span>,
    edges: Vec<u32>,
    /// The edge between two hubs.
    hubs: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
}

impl Neighbours {
    /// Chains without edges, with places for so many.
    pub fn with_room(rooms: &[u32]) -> Self {
        let mut behind = 0;
        let span = |&capacity: &u32| {
            let start = behind;
            behind += capacity;
            Span { start, capacity, ..Span::default() }
        };
        let spans = rooms.iter().map(span).collect();
        Self { spans, edges: vec![0; behind as usize], hubs: HashMap::default() }
    }

    /// How many edges a chain was given, those included that are gone.
    pub fn degree(&self, chain: u32) -> usize {
        self.spans[chain as usize].degree as usize
    }

    /// The edges of a chain, some of which may be gone.
    pub fn of(&self, chain: u32) -> &[u32] {
        let Span { start, len, .. } = self.spans[chain as usize];
        &self.edges[start as usize..(start + len) as usize]
    }

    /// The edge between two chains, and how many edges were looked at for it. It is cheapest if `near` was
    /// used lately.
    pub fn between(&self, all: &[Edge], near: u32, far: u32) -> (Option<u32>, usize) {
        let look_through = |list: &[u32], other: u32| {
            let place = list.iter().position(|&e| all[e as usize].chains.contains(&other));
            (place.map(|p| list[p]), place.unwrap_or(list.len()))
        };
        if !self.is_hub(near) {
            look_through(self.of(near), far)
        } else if !self.is_hub(far) {
            look_through(self.of(far), near)
        } else {
            (self.hubs.get(&pair(near, far)).copied(), 1)
        }
    }

    /// Adds an edge, which `all` holds with its two ends, to the list of one of them.
    pub fn add(&mut self, all: &[Edge], chain: u32, edge: u32) {
        if self.spans[chain as usize].len == self.spans[chain as usize].capacity {
            self.make_room(all, chain);
        }
        let span = &mut self.spans[chain as usize];
        self.edges[(span.start + span.len) as usize] = edge;
        span.len += 1;
        span.degree += 1;
        match span.degree {
            degree if degree <= FEW => {}
            degree if degree == FEW + 1 => {
                for i in span.start..span.start + span.len {
                    self.note_hubs(all, chain, self.edges[i as usize]);
                }
            }
            _ => self.note_hubs(all, chain, edge),
        }
    }

    /// Moves the edges of a chain that is gone to `to`.
    pub fn take(&mut self, chain: u32, to: &mut Vec<u32>) {
        to.clear();
        to.extend_from_slice(self.of(chain));
        self.spans[chain as usize] = Span::default();
    }

    fn is_hub(&self, chain: u32) -> bool {
        self.spans[chain as usize].degree > FEW
    }

    fn note_hubs(&mut self, all: &[Edge], chain: u32, edge: u32) {
        if let Some(other) = all[edge as usize].other(chain).filter(|&other| self.is_hub(other)) {
            self.hubs.insert(pair(chain, other), edge);
        }
    }

    /// Drops entries of edges that are gone; moves the list to the end, with twice the room, if there are
    /// few.
    fn make_room(&mut self, all: &[Edge], chain: u32) {
        let Span { start, len, capacity, degree } = self.spans[chain as usize];
        let list = start as usize..(start + len) as usize;
        let mut kept = 0;
        for i in list.clone() {
            let edge = self.edges[i];
            if all[edge as usize].is_alive() {
                self.edges[list.start + kept as usize] = edge;
                kept += 1;
            }
        }
        let span = if kept > capacity / 2 || capacity < 4 {
            let (end, room) = (self.edges.len(), (2 * capacity).max(4));
            self.edges.extend_from_within(list.start..list.start + kept as usize);
            self.edges.resize(end + room as usize, 0);
            Span { start: end as u32, len: kept, capacity: room, degree }
        } else {
            Span { start, len: kept, capacity, degree }
        };
        self.spans[chain as usize] = span;
    }
}

/// The key of two chains, whichever comes first.
fn pair(a: u32, b: u32) -> u64 {
    u64::from(a.min(b)) << 32 | u64::from(a.max(b))
}

/// Hashes pairs of chains: a multiplication by 2^64 over the golden ratio, the halves of the product folded
/// (Knuth, *The Art of Computer Programming* 3, section 6.4). Nobody chooses chain numbers.
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
