//! Which join comes next.
//!
//! The gains that are known when a run begins are sorted once and taken one after the other; a heap holds
//! only what comes later. A heap of them all would be many times the size of a cache, and each of its steps a
//! miss.

use std::collections::BinaryHeap;

/// A gain that an edge had. Greater ones come first; of equal ones the edge that was made first, then the
/// later version.
///
/// One number, so that it is compared as one: the gain with its bits in such an order that they compare as it
/// does, the edge's complement and the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u128);

impl Entry {
    pub fn new(gain: f64, edge: u32, version: u32) -> Self {
        let bits = gain.to_bits();
        let ascending = if gain.is_sign_negative() { !bits } else { bits | 1 << 63 };
        Self(u128::from(ascending) << 64 | u128::from(!edge) << 32 | u128::from(version))
    }
    pub fn gain(self) -> f64 {
        let ascending = (self.0 >> 64) as u64;
        f64::from_bits(if ascending >> 63 == 0 { !ascending } else { ascending & !(1 << 63) })
    }
    pub fn edge(self) -> u32 {
        !((self.0 >> 32) as u32)
    }
    /// The version of the edge when the gain was computed.
    pub fn version(self) -> u32 {
        self.0 as u32
    }
}

/// Entries, the greatest first.
pub(super) struct Queue {
    /// What was there at first, the greatest last.
    first: Vec<Entry>,
    later: BinaryHeap<Entry>,
}

impl Queue {
    pub fn new(mut first: Vec<Entry>) -> Self {
        first.sort_unstable();
        Self { first, later: BinaryHeap::new() }
    }
    pub fn push(&mut self, entry: Entry) {
        self.later.push(entry);
    }
    pub fn peek(&self) -> Option<Entry> {
        self.first.last().copied().max(self.later.peek().copied())
    }
    pub fn pop(&mut self) -> Option<Entry> {
        if self.first.last() <= self.later.peek() {
            return self.later.pop();
        }
        // The heap grows meanwhile.
        if self.first.len() < self.first.capacity() / 2 {
            self.first.shrink_to_fit();
        }
        self.first.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_profile::testing::Random;

    #[test]
    fn entries_keep_what_they_are_made_of_and_go_by_gain_then_age() {
        let mut gains = [f64::NEG_INFINITY, -2.5, -0.0, 0.0, 1e-300, 0.1, 3.0, f64::INFINITY].to_vec();
        for &gain in &gains {
            let entry = Entry::new(gain, 7, 9);
            assert_eq!((entry.gain().to_bits(), entry.edge(), entry.version()), (gain.to_bits(), 7, 9));
        }
        let mut entries: Vec<Entry> = gains.iter().rev().map(|&gain| Entry::new(gain, 1, 1)).collect();
        entries.sort_unstable();
        gains.sort_by(f64::total_cmp);
        assert!(entries.iter().zip(&gains).all(|(e, g)| e.gain().to_bits() == g.to_bits()));
        assert!(Entry::new(1.0, 3, 0) > Entry::new(1.0, 4, u32::MAX));
        assert!(Entry::new(1.0, 3, 2) > Entry::new(1.0, 3, 1));
    }

    #[test]
    fn it_gives_what_one_heap_would() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut entry =
                || Entry::new(random.below(9) as f64, random.below(9) as u32, random.below(3) as u32);
            let first: Vec<Entry> = (0..seed % 40).map(|_| entry()).collect();
            let later: Vec<Entry> = (0..80).map(|_| entry()).collect();
            let (mut heap, mut queue) = (BinaryHeap::from(first.clone()), Queue::new(first));
            for chunk in later.chunks(3) {
                chunk.iter().for_each(|&e| queue.push(e));
                heap.extend(chunk);
                for _ in 0..4 {
                    assert_eq!(queue.peek(), heap.peek().copied());
                    assert_eq!(queue.pop(), heap.pop());
                }
            }
        }
    }
}
