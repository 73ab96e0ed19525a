//! How often a command is sampled.
//!
//! **Problem.** A sample costs the command some 20 to 100 microseconds (an interrupt, which in a virtual machine is an exit to the host), and what it pushes out of the caches. At 250 a second that is more
//! than all that restitch does besides, and most of it tells nothing new: in the second build with a cache, everything that uses time is optimized. But the kernel's timer begins anew in each process, so with
//! few samples a second what runs in short processes is never seen; and a module that is to be counted wants its functions known.
//!
//! **Idea.** Four fifths of the samples are taken until two things are known of the last seconds of processor time: nearly all of it went into modules with which everything is settled (or of which enough is known), and into
//! processes that are long enough to be seen by few samples as well. The kernel tells the time of every process that has ended, also of those without a sample. Then their event is closed, in all processes, and each sample of the
//! other one counts for the time that it stands for, so seconds stay seconds, with a larger spread ([`Usage::coarse`](super::observe::Usage::coarse)).
//!
//! **Limit.** It cannot be opened again in processes that run already, so that is for the rest of the command: what begins afterwards and runs for less than 20 ms at a time is seen by the next command only.
//! (Halting it, and going on, was built first. In one run of the tests the kernel lost nearly all records while that was done, and why was not found.)

use super::observe::{FREQUENCY, Observer, Seen};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// So many samples are looked back at, and twice as many at most.
const BACK: f64 = 1000.0;
/// At least so many are known before there are few.
const KNOWN: f64 = 500.0;
/// This share of them may be new, and this share of their time short.
const REST: f64 = 0.1;

/// What was seen in the last seconds of processor time.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Samples are few.
    is_low: bool,
    /// Samples by module when they were looked at last.
    before: BTreeMap<PathBuf, u64>,
    short_before: f64,
    back: Back,
}

/// Samples, far ones for less and less.
#[derive(Debug, Default, Clone, Copy)]
struct Back {
    all: f64,
    /// In modules that are not settled.
    new: f64,
    /// As many as there should have been in short processes.
    short: f64,
}

impl Pace {
    /// Takes few samples from now on, if that is enough; `is_settled` are the modules that more samples tell nothing new of.
    pub fn set(&mut self, observer: &mut Observer, is_settled: impl Fn(&Seen) -> bool) {
        if self.is_low {
            return;
        }
        for seen in observer.modules() {
            let before = self.before.get(&seen.path).copied().unwrap_or(0);
            if seen.samples == before {
                continue;
            }
            let more = seen.samples.saturating_sub(before) as f64;
            self.back.all += more;
            self.back.new += if is_settled(seen) { 0.0 } else { more };
            self.before.insert(seen.path.clone(), seen.samples);
        }
        let short = observer.short_seconds();
        self.back.short += (short - self.short_before) * FREQUENCY as f64;
        self.short_before = short;
        if self.back.is_known() {
            self.is_low = true;
            observer.take_few();
        }
        self.back.forget();
    }
}

impl Back {
    /// Whether more samples would tell nothing new. (Short processes may have no samples at all; then these are few, and that time is much beside them.)
    fn is_known(self) -> bool {
        self.all >= KNOWN && self.new <= REST * self.all && self.short <= REST * self.all
    }

    /// Halves what lies far back.
    fn forget(&mut self) {
        if self.all > 2.0 * BACK {
            *self = Self { all: self.all / 2.0, new: self.new / 2.0, short: self.short / 2.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_few_where_all_is_known() {
        let is_known = |all, new, short| Back { all, new, short }.is_known();
        assert!(!is_known(0.0, 0.0, 0.0) && !is_known(400.0, 0.0, 0.0));
        assert!(is_known(1000.0, 50.0, 50.0));
        assert!(!is_known(1000.0, 150.0, 0.0) && !is_known(1000.0, 0.0, 150.0));
    }

    #[test]
    fn what_is_new_or_short_is_found_however_much_there_was_before() {
        let mut before = Back::default();
        for _ in 0..100_000 {
            before.all += 250.0;
            before.forget();
        }
        assert!(before.is_known());
        let (mut new, mut short) = (before, before);
        for _ in 0..2 {
            (new.all, new.new) = (new.all + 250.0, new.new + 250.0);
            // Seconds of which there are no samples.
            short.short += 250.0;
            new.forget();
            short.forget();
        }
        assert!(!new.is_known() && !short.is_known());
    }
}
