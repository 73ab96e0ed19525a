//! How often a command is sampled.
//!
//! **Problem.** A sample costs the command some 20 to 100 microseconds (an interrupt, which in a virtual
//! machine is an exit to the host), and what it pushes out of the caches. At 250 a second that is more than
//! all that restitch does besides, and most of it tells nothing new: in the second build with a cache,
//! everything that uses time is optimized. But the kernel's timer begins anew in each process, so with few
//! samples a second what runs in short processes is never seen; and a module that is to be counted wants its
//! functions known.
//!
//! **Idea.** Four fifths of the samples are taken until two things are known of the last seconds of processor
//! time: nearly all of it went into modules with which everything is settled (or of which enough is known),
//! and into processes that are long enough to be seen by few samples as well. The kernel tells the time of
//! every process that has ended, also of those without a sample. Then their event is closed, in all
//! processes, and each sample of the other one counts for the time that it stands for, so seconds stay
//! seconds, with a larger spread ([`Usage::coarse`](super::observe::Usage::coarse)).
//!
//! **Limit.** It cannot be opened again in processes that run already, so that is for the rest of the
//! command: what begins afterwards and runs for less than 20 ms at a time is seen by the next command only.
//! (Halting it, and going on, was built first. In one run of the tests the kernel lost nearly all records
//! while that was done, and why was not found.)

use crate::observe::{FREQUENCY, Observer, Seen};
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
pub(crate) struct Pace {
    /// Samples are few.
    is_low: bool,
    modules: BTreeMap<PathBuf, Module>,
    short_before: f64,
    back: Back,
}

#[derive(Debug, Default)]
struct Module {
    /// Its samples when it was looked at last.
    before: u64,
    /// Those in the last seconds, far ones for less.
    back: f64,
}

/// Samples, far ones for less and less.
#[derive(Debug, Default, Clone, Copy)]
struct Back {
    all: f64,
    /// As many as there should have been in short processes.
    short: f64,
}

impl Pace {
    /// Takes few samples from now on, if that is enough; `is_settled` are the modules that more samples tell
    /// nothing new of.
    pub fn set(&mut self, observer: &mut Observer, is_settled: impl Fn(&Seen) -> bool) {
        if self.is_low {
            return;
        }
        let mut new = 0.0;
        for seen in observer.modules() {
            if !self.modules.contains_key(&seen.path) {
                self.modules.insert(seen.path.clone(), Module::default());
            }
            let Some(module) = self.modules.get_mut(&seen.path) else { continue };
            let more = seen.samples.saturating_sub(module.before) as f64;
            module.before = seen.samples;
            module.back += more;
            self.back.all += more;
            // What is settled by now was new when it was sampled, and that is no matter any more.
            new += if module.back > 0.0 && !is_settled(seen) { module.back } else { 0.0 };
        }
        let short = observer.short_seconds();
        self.back.short += (short - self.short_before) * FREQUENCY as f64;
        self.short_before = short;
        if self.back.is_known(new) {
            self.is_low = true;
            observer.take_few();
        } else if self.back.is_long() {
            self.back = self.back.half();
            self.modules.values_mut().for_each(|module| module.back /= 2.0);
        }
    }
}

impl Back {
    /// Whether more samples would tell nothing new, where so many are in modules that are not settled. (Short
    /// processes may have no samples at all; then these are few, and that time is much beside them.)
    fn is_known(self, new: f64) -> bool {
        self.all >= KNOWN && new <= REST * self.all && self.short <= REST * self.all
    }

    fn is_long(self) -> bool {
        self.all > 2.0 * BACK
    }

    /// What lies far back halved.
    fn half(self) -> Self {
        Self { all: self.all / 2.0, short: self.short / 2.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::{observed, sample_more};

    #[test]
    fn samples_are_few_where_all_is_known() {
        let is_known = |all, new, short| Back { all, short }.is_known(new);
        assert!(!is_known(0.0, 0.0, 0.0) && !is_known(400.0, 0.0, 0.0));
        assert!(is_known(1000.0, 50.0, 50.0));
        assert!(!is_known(1000.0, 150.0, 0.0) && !is_known(1000.0, 0.0, 150.0));
    }

    #[test]
    fn what_becomes_known_is_known_at_once_and_what_is_new_is_seen() {
        let mut observer = observed();
        let mut pace = Pace::default();
        // A module that is new until it has a thousand samples.
        for _ in 0..9 {
            sample_more(&mut observer, 0, 100);
            pace.set(&mut observer, |seen| seen.samples >= 1000);
            assert!(!pace.is_low);
        }
        // Another one, which nobody knows, for a fifth of the time.
        sample_more(&mut observer, 1, 300);
        sample_more(&mut observer, 0, 200);
        let is_settled = |seen: &Seen| seen.path.ends_with("a");
        pace.set(&mut observer, is_settled);
        assert!(!pace.is_low);
        // And then for no longer.
        for _ in 0..40 {
            sample_more(&mut observer, 0, 100);
            pace.set(&mut observer, is_settled);
        }
        assert!(pace.is_low);
    }
}
