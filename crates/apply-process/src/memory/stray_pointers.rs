//! Stray pointers: words in a process's memory that look like addresses of places where nothing is mapped.
//! They would keep a version that comes to be there.

use crate::memory::private_memory::{self, Limits, is_private};
use crate::words::WordFinder;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{self as procfs, Mapping};
use std::ops::ControlFlow;

/// Most bytes that are looked through for one place: enough for the data of all modules.
const MOST_MEMORY: u64 = 32 << 20;
/// ... and of what is swapped out.
const MOST_SWAPPED: u64 = 1 << 20;

/// How many words point where within a window of the address space.
#[derive(Debug)]
pub(crate) struct StrayPointers {
    /// The window's first page, by number.
    first: u64,
    /// By page of the window: how many point to it or to one before it.
    below: Vec<u32>,
}

impl StrayPointers {
    /// Those in the private memory of `processes` that point into `window`: the smallest mappings
    /// first, since the data of modules is among them and the largest heap is not, until [`MOST_MEMORY`]
    /// bytes were looked at. What cannot be read holds none.
    pub fn of(processes: impl Iterator<Item = i32>, window: AvmaRange) -> Self {
        let first = window.start.get() / PAGE;
        let mut counts = vec![0u32; window.end.get().div_ceil(PAGE).saturating_sub(first) as usize];
        let finder = WordFinder::of(&[window]);
        let mut left = MOST_MEMORY;
        for pid in processes {
            let mut maps: Vec<Mapping> = procfs::maps(pid).unwrap_or_default();
            maps.retain(is_private);
            maps.sort_by_key(|m| m.range.len());
            let limits = Limits { bytes: left, swapped: MOST_SWAPPED };
            let read = private_memory::read(pid, &maps, limits, |_, _, bytes| {
                finder.find(bytes, |_, word| {
                    let count = &mut counts[(word.get() / PAGE - first) as usize];
                    *count = count.saturating_add(1);
                });
                ControlFlow::Continue(())
            });
            left = left.saturating_sub(read.unwrap_or_default().bytes);
            if left == 0 {
                break;
            }
        }
        Self::summed(first, counts)
    }

    /// `counts` by page, from page `first` on.
    fn summed(first: u64, mut counts: Vec<u32>) -> Self {
        let mut sum = 0u32;
        for count in &mut counts {
            sum = sum.saturating_add(*count);
            *count = sum;
        }
        Self { first, below: counts }
    }

    /// Those of `words` that point into `window`, which consists of whole pages.
    #[cfg(test)]
    pub fn of_words(words: &[u64], window: AvmaRange) -> Self {
        let first = window.start.get() / PAGE;
        let mut counts = vec![0; (window.len() / PAGE) as usize];
        let within = words.iter().filter(|w| window.contains(Avma::new(**w)));
        within.for_each(|w| counts[(w / PAGE - first) as usize] += 1);
        Self::summed(first, counts)
    }

    /// How many point into `range`, which consists of whole pages. What lies outside of the window has none.
    pub fn within(&self, range: AvmaRange) -> u64 {
        let below = |at: Avma| match (at.get() / PAGE).saturating_sub(self.first) as usize {
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
    use restitch_testkit::{Guarded, wait_until};
    use std::process::Command;
    use std::time::Duration;

    fn everywhere_below(end: u64) -> AvmaRange {
        AvmaRange::between(Avma::new(0), Avma::new(end))
    }

    /// In a process of its own, whose memory is small: this one's may be more than is looked through.
    #[test]
    fn words_in_memory_are_counted_where_they_point() {
        let child = Guarded::spawn(Command::new("sleep").arg("100")).expect("it starts");
        let pid = child.pid() as i32;
        // When it is linked, its data point to functions of the C library.
        let points_there = || {
            let maps = procfs::maps(pid).ok()?;
            let is_libc = |m: &&Mapping| m.path().is_some_and(|p| p.to_string_lossy().contains("libc.so"));
            let code = maps.iter().filter(is_libc).find(|m| m.permissions.execute)?.range;
            let window = AvmaRange::new(Avma::new(code.start.get() - 8 * PAGE), code.len() + 16 * PAGE);
            let found = StrayPointers::of(std::iter::once(pid), window);
            (found.within(code) > 0 && found.within(window) >= found.within(code)).then_some(())
        };
        assert!(wait_until(Duration::from_secs(60), points_there).is_some());
        let nowhere = AvmaRange::new(Avma::new(0x1234_5678_9000), 16 * PAGE);
        assert_eq!(StrayPointers::of(std::iter::once(pid), nowhere).within(nowhere), 0);
    }

    #[test]
    fn processes_that_have_ended_hold_none() {
        let none = StrayPointers::of([0, i32::MAX].into_iter(), everywhere_below(1 << 32));
        assert_eq!(none.within(everywhere_below(1 << 32)), 0);
    }

    proptest! {
        #[test]
        fn ranges_know_how_many_point_into_them(
            words in prop::collection::vec(0u64..1 << 33, 0..40), from in 0u64..1 << 21, pages in 1u64..1 << 20,
            window in (0u64..1 << 20, 1u64..1 << 20),
        ) {
            let range = AvmaRange::new(Avma::new(from * PAGE), pages * PAGE);
            let window = AvmaRange::new(Avma::new(window.0 * PAGE), window.1 * PAGE);
            let pointed = |w: &&u64| [range, window].iter().all(|r| r.contains(Avma::new(**w)));
            let inside = words.iter().filter(pointed).count();
            prop_assert_eq!(StrayPointers::of_words(&words, window).within(range), inside as u64);
        }
    }
}
