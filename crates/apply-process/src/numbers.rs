//! Numbers in a process's memory that look like low addresses.

use crate::private_memory::{self, is_private};
use crate::threads::words;
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping};

/// Below this, numbers of 32 bits look like addresses.
pub(crate) const LOW: Avma = Avma::new(1 << 32);
/// Most bytes that are looked through for one place: enough for the data of all modules.
const MOST_MEMORY: u64 = 32 << 20;
const PAGE: u64 = 4096;
const PAGES: usize = (LOW.get() / PAGE) as usize;

/// How many words point where below [`LOW`].
#[derive(Debug)]
pub(crate) struct Numbers {
    /// By page: how many point to it or below it.
    below: Vec<u32>,
}

impl Numbers {
    /// Those in the writable private memory of `processes`: the smallest mappings first, since the data of modules is among them and the
    /// largest heap is not, until [`MOST_MEMORY`] bytes were looked at. What cannot be read holds none.
    pub fn of(processes: impl Iterator<Item = i32>) -> Self {
        let (mut counts, mut left) = (vec![0u32; PAGES], MOST_MEMORY);
        for pid in processes {
            let mut maps: Vec<Mapping> = procfs::maps(pid).unwrap_or_default();
            maps.retain(is_private);
            maps.sort_by_key(|m| m.range.len());
            let read = private_memory::read(pid, &maps, left, |_, chunk| {
                for (_, word) in words(chunk).filter(|(_, word)| *word < LOW) {
                    let count = &mut counts[(word.get() / PAGE) as usize];
                    *count = count.saturating_add(1);
                }
            });
            left = left.saturating_sub(read.unwrap_or_default());
            if left == 0 {
                break;
            }
        }
        Self::summed(counts)
    }

    /// `counts` by page.
    fn summed(mut counts: Vec<u32>) -> Self {
        let mut sum = 0u32;
        for count in &mut counts {
            sum = sum.saturating_add(*count);
            *count = sum;
        }
        Self { below: counts }
    }

    /// How many point into `range`, which consists of whole pages.
    pub fn within(&self, range: AvmaRange) -> u64 {
        let below = |at: Avma| match (at.get() / PAGE) as usize {
            0 => 0,
            page => self.below.get(page - 1).or(self.below.last()).copied().unwrap_or_default(),
        };
        u64::from(below(range.end).saturating_sub(below(range.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_words(words: &[u64]) -> Numbers {
        let mut counts = vec![0; PAGES];
        words.iter().filter(|w| **w < LOW.get()).for_each(|w| counts[(w / PAGE) as usize] += 1);
        Numbers::summed(counts)
    }

    #[test]
    fn words_in_memory_are_counted_where_they_point() {
        // In one mapping of its own, which the allocator makes for large pieces, or in the heap.
        let page = 0x7654_3000;
        let held: Vec<u64> = std::hint::black_box(vec![page + 0x123; 1000]);
        let numbers = Numbers::of(std::iter::once(std::process::id() as i32));
        assert!(numbers.within(AvmaRange::new(Avma::new(page), PAGE)) >= held.len() as u64);
        assert!(numbers.within(AvmaRange::new(Avma::new(page - 8 * PAGE), 4 * PAGE)) < held.len() as u64);
    }

    #[test]
    fn processes_that_have_ended_hold_none() {
        let none = Numbers::of([0, i32::MAX].into_iter());
        assert_eq!(none.within(AvmaRange::between(Avma::new(0), LOW)), 0);
    }

    proptest! {
        #[test]
        fn ranges_know_how_many_point_into_them(
            words in prop::collection::vec(0u64..1 << 33, 0..40), from in 0u64..1 << 21, pages in 1u64..1 << 20,
        ) {
            let range = AvmaRange::new(Avma::new(from * PAGE), pages * PAGE);
            let inside = words.iter().filter(|w| **w < LOW.get() && range.contains(Avma::new(**w))).count();
            prop_assert_eq!(of_words(&words).within(range), inside as u64);
        }
    }
}
