//! Whether code is more than the processor keeps close by, by a model of its first-level caches: what is
//! asked before a group is put in force (Tamches and Miller, *Dynamic kernel code optimization*, section
//! 2.1.1, who measure it by counters).
//!
//! All hot code is taken to be used again and again. Lines that a set of the cache has no way for, and pages
//! that the first-level TLB has no entry for, have to be fetched again. What else runs between is not seen:
//! the model finds less than there is.

use restitch_address::PAGE;
use restitch_procfs::system::cpu_caches;
use restitch_report::{CacheShape, Occupancy};
use std::collections::BTreeSet;
use std::ops::Range;

/// Entries for 4-KiB pages of the first-level TLB of instructions: of most x86-64 processors 64 to 128.
const TLB_ENTRIES: u64 = 64;

/// Hot code in the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bottleneck {
    occupancy: Occupancy,
    pages: u64,
}

impl Bottleneck {
    /// Of hot code at these addresses, on this machine.
    pub(crate) fn of(code: Vec<Range<u64>>) -> Self {
        Self::in_cache(this_machine(), code)
    }

    fn in_cache(shape: CacheShape, code: Vec<Range<u64>>) -> Self {
        let filled = code.iter().filter(|range| !range.is_empty());
        let pages: BTreeSet<u64> =
            filled.flat_map(|range| range.start / PAGE..=(range.end - 1) / PAGE).collect();
        Self { occupancy: Occupancy::of(shape, code), pages: pages.len() as u64 }
    }

    /// Lines that find no place in their sets.
    fn excess_lines(&self) -> u64 {
        let ways = self.occupancy.shape.ways;
        self.occupancy.sets.iter().map(|lines| u64::from(lines.saturating_sub(ways))).sum()
    }

    /// The share of the hot lines, or of the hot pages, that finds no place; the larger one.
    pub(crate) fn pressure(&self) -> f64 {
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        let lines = share(self.excess_lines(), self.occupancy.lines());
        lines.max(share(self.pages.saturating_sub(TLB_ENTRIES), self.pages))
    }

    /// In words.
    pub(crate) fn in_words(&self) -> String {
        format!(
            "bottleneck test by a model of the first-level cache: {} lines of hot code, {} of which find no \
             place in their sets, in {} pages, for which the TLB has {TLB_ENTRIES} entries: {:.1} %",
            self.occupancy.lines(),
            self.excess_lines(),
            self.pages,
            100.0 * self.pressure()
        )
    }
}

/// The cache of instructions that the first processor has, as the kernel describes it.
fn this_machine() -> CacheShape {
    let caches = cpu_caches().into_iter();
    let shape = caches.filter(|cache| cache.level == 1 && cache.instructions).find_map(|cache| {
        let shape = CacheShape {
            line_bytes: u32::try_from(cache.line).ok()?,
            sets: u32::try_from(cache.sets).ok()?,
            ways: u32::try_from(cache.ways).ok()?,
        };
        shape.is_possible().then_some(shape)
    });
    shape.unwrap_or(CacheShape::USUAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_pages_without_a_place_make_pressure() {
        let shape = CacheShape { line_bytes: 64, sets: 2, ways: 1 };
        let of = |code: Vec<Range<u64>>| Bottleneck::in_cache(shape, code);
        assert_eq!(of(Vec::new()).pressure(), 0.0);
        // Two lines in two sets.
        assert_eq!(of(vec![0..64, 64..128]).pressure(), 0.0);
        // Lines 0, 1, 2 and 4: three of them in the first set.
        let full = of(vec![0..192, 256..257]);
        assert_eq!((full.excess_lines(), full.pressure()), (2, 0.5));
        assert!(
            full.in_words().contains("4 lines of hot code, 2 of which") && full.in_words().contains("50.0 %")
        );
        // A line in each of 80 pages, all in sets of their own.
        let wide = CacheShape { line_bytes: 64, sets: 64 * 80, ways: 1 };
        let pages = Bottleneck::in_cache(wide, (0..80).map(|page| page * PAGE..page * PAGE + 1).collect());
        assert_eq!((pages.excess_lines(), pages.pages, pages.pressure()), (0, 80, 0.2));
    }
}
