//! What is known of two chains between which control moves.

use super::{Join, Shape};
use crate::graph::NONE;

/// All links between two chains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    /// The gain computed last, or a bound of it; 0 where there was none.
    pub gain: f64,
    /// Weight of all its links.
    pub weight: f64,
    /// The lower number first; none once it is gone.
    pub chains: [u32; 2],
    pub first_link: u32,
    pub last_link: u32,
}

impl Edge {
    /// The edge of one link between two chains.
    pub fn of_link(link: u32, weight: f64, a: u32, b: u32) -> Self {
        Self { gain: 0.0, weight, chains: [a.min(b), a.max(b)], first_link: link, last_link: link }
    }
    /// Whether its chains are still two.
    pub fn is_alive(&self) -> bool {
        self.chains[0] != NONE
    }
    /// The chain at the other end than `chain`; none of an edge that is gone.
    pub fn other(&self, chain: u32) -> Option<u32> {
        let [a, b] = self.chains;
        self.is_alive().then_some(if a == chain { b } else { a })
    }
    /// From now on it is gone.
    pub fn end(&mut self) {
        self.chains = [NONE; 2];
    }
}

/// A [`Join`] of the chains of an edge in four bytes: bits 0 and 1 are the kind, bit 2 says that its first
/// (or outer) chain is the edge's second, bits 3 and 4 are the shape, and what is above is the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PackedJoin(u32);

impl PackedJoin {
    /// Of a join of the chains `ends`. A cut is at a node below 2^27: see `SPLIT_NODES` in `ext_tsp`.
    pub fn new(join: Join, ends: [u32; 2]) -> Self {
        let (kind, first, rest) = match join {
            Join::Concat { first, .. } => (0, first, 0),
            Join::Reversed { first, .. } => (1, first, 0),
            Join::Split { outer, at, shape, .. } => (2, outer, (at as u32) << 2 | shape as u32),
        };
        Self(kind | u32::from(first != ends[0]) << 2 | rest << 3)
    }

    /// The join, of the same chains.
    pub fn of(self, ends: [u32; 2]) -> Join {
        let [first, second] = if self.0 & 4 == 0 { ends } else { [ends[1], ends[0]] };
        let shape = match self.0 >> 3 & 3 {
            0 => Shape::Between,
            1 => Shape::Behind,
            _ => Shape::Before,
        };
        match self.0 & 3 {
            0 => Join::Concat { first, second },
            1 => Join::Reversed { first, second },
            _ => Join::Split { outer: first, inner: second, at: (self.0 >> 5) as usize, shape },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_joins_are_what_they_were() {
        for (first, second) in [(3, 8), (8, 3)] {
            let mut joins = vec![Join::Concat { first, second }, Join::Reversed { first, second }];
            for shape in [Shape::Between, Shape::Behind, Shape::Before] {
                for at in [0, 1, 127, (1 << 27) - 1] {
                    joins.push(Join::Split { outer: first, inner: second, at, shape });
                }
            }
            for join in joins {
                assert_eq!(PackedJoin::new(join, [3, 8]).of([3, 8]), join);
            }
        }
    }
}
