//! How often a command is sampled.
//!
//! **Problem.** A sample costs the command some 20 to 100 microseconds (an interrupt, which in a virtual machine is an exit to the host), and what it pushes out of the caches. At 250 a second that is more
//! than all that restitch does besides, and most of it tells nothing new: in the second build with a cache, everything that uses time is optimized. But the kernel's timer begins anew in each process, so with
//! few samples a second what runs in short processes is never seen; and a module that is to be counted wants its functions known.
//!
//! **Idea.** Few samples, once two things are known of the last seconds of processor time: nearly all of it went into modules with which everything is settled (or of which enough is known), and into
//! processes that are long enough to be seen by few samples as well. The kernel tells the time of every process that has ended, also of those without a sample. Each sample counts for the time that it stands for,
//! so seconds stay seconds, with a larger spread ([`Usage::coarse`](super::observe::Usage::coarse)). Where something new turns up there are many samples again.

use super::observe::{Observer, Seen};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// So many samples, and so many seconds of processes that have ended, are what is looked back at, and twice as many at most.
const BACK: f64 = 1000.0;
const BACK_SECONDS: f64 = 4.0;
/// At least so much of that is known before there are few.
const KNOWN: f64 = 0.5;
/// This share of it may be new, or short.
const REST: f64 = 0.1;

/// What was seen in the last seconds of processor time.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Samples by module when they were looked at last.
    before: BTreeMap<PathBuf, u64>,
    ended_before: (f64, f64),
    /// Samples: all, and those in modules that are not settled.
    samples: (f64, f64),
    /// Seconds of processes that have ended: of all, and of short ones.
    ended: (f64, f64),
}

impl Pace {
    /// Sets the pace of an observer, of whose modules `is_settled` are those that more samples tell nothing new of.
    pub fn set(&mut self, observer: &mut Observer, is_settled: impl Fn(&Seen) -> bool) {
        for seen in observer.modules() {
            let before = self.before.get(&seen.path).copied().unwrap_or(0);
            if seen.samples == before {
                continue;
            }
            let more = seen.samples.saturating_sub(before) as f64;
            self.samples.0 += more;
            self.samples.1 += if is_settled(seen) { 0.0 } else { more };
            self.before.insert(seen.path.clone(), seen.samples);
        }
        let ended = observer.ended();
        self.ended.0 += ended.0 - self.ended_before.0;
        self.ended.1 += ended.1 - self.ended_before.1;
        self.ended_before = ended;
        observer.take_more(self.is_new());
        forget(&mut self.samples, BACK);
        forget(&mut self.ended, BACK_SECONDS);
    }

    /// Whether more samples tell something new.
    fn is_new(&self) -> bool {
        let is_old = |(all, new): (f64, f64), back: f64| all >= KNOWN * back && new <= REST * all;
        !is_old(self.samples, BACK) || !is_old(self.ended, BACK_SECONDS)
    }
}

/// Halves what lies far back.
fn forget((all, new): &mut (f64, f64), back: f64) {
    if *all > 2.0 * back {
        (*all, *new) = (*all / 2.0, *new / 2.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_new(samples: (f64, f64), ended: (f64, f64)) -> bool {
        Pace { samples, ended, ..Pace::default() }.is_new()
    }

    #[test]
    fn samples_are_few_where_all_is_known() {
        assert!(is_new((0.0, 0.0), (0.0, 0.0)));
        assert!(!is_new((1000.0, 50.0), (4.0, 0.2)));
        // Too little of both is known, something is new, much is short.
        assert!(is_new((400.0, 0.0), (4.0, 0.0)) && is_new((1000.0, 0.0), (1.0, 0.0)));
        assert!(is_new((1000.0, 150.0), (4.0, 0.0)) && is_new((1000.0, 0.0), (4.0, 1.0)));
    }

    #[test]
    fn what_is_new_is_found_however_much_there_was_before() {
        let mut sums = (0.0, 0.0);
        for second in 0..100_000 {
            sums = (sums.0 + 250.0, sums.1 + if second < 99_996 { 0.0 } else { 250.0 });
            forget(&mut sums, BACK);
        }
        assert!(is_new(sums, (4.0, 0.0)));
    }
}
