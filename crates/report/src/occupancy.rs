//! How code fills a first-level instruction cache, if all of it is used again and again: how many lines fall
//! into each set (Tamches and Miller, Dynamic Kernel Code Optimization, Figure 2).

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// The shape of a set-associative cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheShape {
    /// Bytes of a line; a power of two.
    pub line_bytes: u32,
    /// Sets.
    pub sets: u32,
    /// Lines that a set holds.
    pub ways: u32,
}

impl CacheShape {
    /// What most x86-64 processors have: 32 KiB, 64 sets of 8 lines of 64 bytes.
    pub const USUAL: Self = Self { line_bytes: 64, sets: 64, ways: 8 };

    /// Lines that fit in.
    pub fn lines(self) -> u64 {
        u64::from(self.sets) * u64::from(self.ways)
    }

    /// Whether there can be such a cache.
    pub fn is_possible(self) -> bool {
        self.line_bytes.is_power_of_two() && self.sets > 0 && self.ways > 0
    }
}

/// Lines of code by set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// The cache.
    pub shape: CacheShape,
    /// How many lines of the code fall into each set.
    pub sets: Vec<u32>,
}

impl Occupancy {
    /// Of code at these addresses; a line that several ranges share counts once.
    ///
    /// # Panics
    /// If the shape is not possible ([`CacheShape::is_possible`]).
    pub fn of(shape: CacheShape, code: impl IntoIterator<Item = Range<u64>>) -> Self {
        assert!(shape.is_possible(), "a cache of {shape:?}");
        let line = u64::from(shape.line_bytes);
        let code = code.into_iter().filter(|range| !range.is_empty());
        let lines: BTreeSet<u64> =
            code.flat_map(|range| range.start / line..=(range.end - 1) / line).collect();
        let mut sets = vec![0; shape.sets as usize];
        lines.into_iter().for_each(|line| sets[(line % u64::from(shape.sets)) as usize] += 1);
        Self { shape, sets }
    }

    /// All its lines.
    pub fn lines(&self) -> u64 {
        self.sets.iter().copied().map(u64::from).sum()
    }

    /// Its lines as a share of those that fit in; above 1 if they do not.
    pub fn share(&self) -> f64 {
        self.lines() as f64 / self.shape.lines() as f64
    }

    /// Whether a set gets more lines than it holds, so that they drive each other out.
    pub fn is_overfull(&self, lines: u32) -> bool {
        lines > self.shape.ways
    }

    /// Sets that are overfull.
    pub fn overfull(&self) -> u64 {
        self.sets.iter().filter(|lines| self.is_overfull(**lines)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::once;

    #[test]
    fn lines_are_counted_once_in_the_set_that_they_fall_into() {
        let shape = CacheShape { line_bytes: 32, sets: 4, ways: 1 };
        // Lines 0 and 1; 1 again; 4, which falls where 0 does; nothing.
        let found = Occupancy::of(shape, [0x10..0x21, 0x3f..0x40, 0x80..0x81, 0x60..0x60]);
        assert_eq!(found.sets, [2, 1, 0, 0]);
        assert_eq!((found.lines(), found.overfull()), (3, 1));
        assert!((found.share() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn the_cache_of_the_paper_is_filled_as_there() {
        // 244 blocks of 32 bytes in 16 KiB of two ways: 47.7 %; 132: 25.8 %.
        let shape = CacheShape { line_bytes: 32, sets: 256, ways: 2 };
        let share = |lines: u64| format!("{:.1}", Occupancy::of(shape, once(0..lines * 32)).share() * 100.0);
        assert_eq!([share(244), share(132)], ["47.7", "25.8"]);
    }
}
