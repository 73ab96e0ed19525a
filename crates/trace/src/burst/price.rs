//! What bursts cost beside the stops: found out while they are taken.
//!
//! Problem: a burst begins with cold caches, so what a branch costs depends on how long bursts are and how
//! much code and data the program touches, by a factor of ten; and nobody tells how long a thread would have
//! taken in the original code. Idea: now and then a burst is watched to its end. All of its time, that of the
//! program's own work included, is an upper bound of what it costs: the thread's *CPU time*, so waiting for a
//! processor is none of it. Nobody knows when exactly it was over, only whether it was at a look; so what is
//! believed changes when a look contradicts it, and ends where as many bursts are dearer as are cheaper.

use std::time::Duration;

/// Without knowledge, n branches cost so many nanoseconds times the root of n (a prototype on cc1plus: 56 us
/// for 1,000, 116 for 4,000, 224 for 16,000).
const UNKNOWN: f64 = 1_800.0;
/// Never is it more. (A program that waits for its code was at 1,800 when that was the limit, and may have
/// been above.)
const DEAREST: f64 = 3_600.0;
/// ... and never less.
const CHEAPEST: f64 = 200.0;
/// One burst in so many is watched, and each one at first.
const ASKED: u64 = 16;
/// So many are the first.
const FIRST: u64 = 24;
/// How far a burst that was dearer or cheaper than what is believed changes that, in the long run ...
const CHANGE: f64 = 1.04;
/// ... and at first. Each time that the next one says the contrary it is the root of what it was.
const FIRST_CHANGE: f64 = 1.3;
/// When it is looked whether a watched burst is over, in parts of what it is believed to take: one of these,
/// each in its turn. (The thread is interrupted for a look, which may cost as much as some hundred records:
/// of several looks the later ones would see the earlier ones.)
const LOOKS: [f64; 5] = [0.4, 0.7, 0.9, 0.55, 0.8];
/// Bursts of fewer words say nothing.
const LEAST_WORDS: usize = 64;

/// What bursts are believed to cost.
#[derive(Debug)]
pub(super) struct Price {
    /// Nanoseconds, times the root of the words.
    root: f64,
    bursts: u64,
    /// How far the next burst may change that.
    change: f64,
    /// Whether the last one that did was cheaper.
    was_cheaper: Option<bool>,
}

impl Default for Price {
    fn default() -> Self {
        Self { root: UNKNOWN, bursts: 0, change: FIRST_CHANGE, was_cheaper: None }
    }
}

impl Price {
    /// Whether the burst that begins now shall be watched.
    pub fn is_asked(&mut self) -> bool {
        self.bursts += 1;
        self.bursts <= FIRST || self.bursts.is_multiple_of(ASKED)
    }

    /// When to look at a burst that may get so many words.
    pub fn look(&self, words: usize) -> Duration {
        self.of(words).mul_f64(LOOKS[(self.bursts / ASKED) as usize % LOOKS.len()])
    }

    /// A burst was under way, or over, when it had taken so much of its thread's CPU time. It has so many
    /// words, or is to get them.
    pub fn seen(&mut self, words: usize, taken: Duration, is_over: bool) {
        if words < LEAST_WORDS {
            return;
        }
        let is_cheaper = taken < self.of(words);
        // Otherwise it is as was believed.
        if is_over == is_cheaper {
            if self.was_cheaper.replace(is_cheaper).is_some_and(|before| before != is_cheaper) {
                self.change = self.change.sqrt().max(CHANGE);
            }
            let factor = if is_cheaper { 1.0 / self.change } else { self.change };
            self.root = (self.root * factor).clamp(CHEAPEST, DEAREST);
        }
    }

    /// What a burst of so many words costs.
    pub fn of(&self, words: usize) -> Duration {
        Duration::from_nanos((self.root * (words as f64).sqrt()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn without_knowledge_bursts_are_dear() {
        let mut price = Price::default();
        assert_eq!(price.of(10_000), us(180));
        price.seen(10, us(1), true);
        assert_eq!(price.of(10_000), us(180), "too short to say anything");
        for _ in 0..200 {
            price.seen(10_000, us(5_000), false);
        }
        assert_eq!(price.of(10_000), us(360));
    }

    #[test]
    fn looks_that_come_late_do_not_make_bursts_dearer() {
        for real in [40, 90, 150] {
            let mut price = Price::default();
            for i in 0..6_000u64 {
                price.is_asked();
                // Every second time the watcher waits for a processor.
                let late = if i % 2 == 0 { 50 + i * 7919 % 400 } else { 8 + i * 31 % 30 };
                let taken = price.look(10_000) + us(late);
                // Bursts differ by a fifth.
                let takes = us(real - real / 10 + i * 17 % (real / 5));
                price.seen(10_000, taken, taken > takes);
            }
            let found = price.of(10_000).as_secs_f64() * 1e6;
            assert!((real as f64 * 0.9..real as f64 * 1.2).contains(&found), "{real}: {found}");
        }
    }

    #[test]
    fn the_first_bursts_tell_nearly_all() {
        for real in [40, 60, 90, 150] {
            let mut price = Price::default();
            for _ in 0..FIRST {
                assert!(price.is_asked());
                let taken = price.look(10_000) + us(8);
                price.seen(10_000, taken, taken > us(real));
            }
            let found = price.of(10_000).as_secs_f64() * 1e6;
            assert!((real as f64 * 0.85..real as f64 * 1.4).contains(&found), "{real}: {found}");
        }
    }

    #[test]
    fn the_first_bursts_are_watched_and_then_a_few() {
        let mut price = Price::default();
        let asked = (0..1600).filter(|_| price.is_asked()).count();
        assert!((116..=124).contains(&asked), "{asked}");
    }
}
