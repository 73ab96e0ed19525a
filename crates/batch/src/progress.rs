//! How many runs are counted: as long as more of them change the profile.
//!
//! OCOLOS (section VI-D) finds about five runs of a compiler best: fewer miss code, more delay the gain. Here
//! the number is not fixed. One run may count, then two in all, then four: each time the profile is compared
//! with the one from half as many runs, and what the second half has not changed the next half will not
//! change much either. For experiments the number can be given ([`Progress::of`]).
//!
//! **Runs are not alike.** A driver that only links is a run of the compiler's libraries, too. So runs are
//! weighed by the time that they spend in the module: what counts is to how many *typical* runs they come
//! ([`whole_runs`](super::usage::whole_runs)). For each that lacks, another one may count.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The profile is complete when the overlap with that of half as many runs is at least this.
const ENOUGH: f64 = 0.93;
/// Most typical runs that are counted.
const MOST_RUNS: u64 = 16;
/// Most runs of any kind that may count. Those that are not typical cost next to nothing.
const MOST_TICKETS: u64 = 256;
/// Most runs that can be asked for.
const MOST_GIVEN: u64 = 1 << 40;
/// Runs that end without saying so (by a signal, by `_exit`) are waited for so long.
const PATIENCE: Duration = Duration::from_secs(3);
/// Whole runs are estimated, from samples: so much of them is as good.
const ABOUT: f64 = 0.75;
/// Less than this much of one typical run makes no profile.
const LEAST: f64 = 0.5;

/// The runs of one module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Typical runs that are wanted.
    wanted: u64,
    /// Runs that may count, in all.
    tickets: u64,
    runs: u64,
    #[serde(skip)]
    waiting: Option<Instant>,
    /// The number of runs was given.
    fixed: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait for those that may count.
    Wait,
    /// So many more may count.
    Grant(u64),
    /// Compare the profile with the last one.
    Compare,
    /// Enough have counted, and none did what is typical.
    GiveUp,
}

impl Default for Progress {
    fn default() -> Self {
        Self { wanted: 1, tickets: 1, runs: 0, waiting: None, fixed: false }
    }
}

impl Progress {
    /// Exactly so many runs count, or as many as are useful.
    pub fn of(runs: Option<u64>) -> Self {
        match runs {
            // The kernel's counter of tickets is signed.
            Some(runs) => {
                let runs = runs.clamp(1, MOST_GIVEN);
                Self { wanted: runs, tickets: runs, fixed: true, ..Self::default() }
            }
            None => Self::default(),
        }
    }

    /// How many runs may count in all.
    pub fn tickets(&self) -> u64 {
        self.tickets
    }

    /// How many have.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Whether its numbers are such as there can be.
    pub fn is_bounded(&self) -> bool {
        self.wanted <= 2 * MOST_GIVEN && self.tickets <= 2 * MOST_GIVEN
    }

    /// The number of runs was given.
    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// So many have begun to count.
    pub fn begun(&mut self, started: u64) {
        self.runs = started;
    }

    /// What to do when so many have `started` and `ended`, that come to `whole` typical runs.
    pub fn next(&mut self, started: u64, ended: u64, whole: f64) -> Step {
        self.runs = started;
        if started < self.tickets {
            return Step::Wait;
        }
        let waiting = *self.waiting.get_or_insert_with(Instant::now);
        if ended < self.tickets && waiting.elapsed() < PATIENCE {
            return Step::Wait;
        }
        let lacking = self.wanted as f64 - whole;
        match self.fixed || whole >= ABOUT * self.wanted as f64 {
            true => Step::Compare,
            false if self.tickets < MOST_TICKETS => {
                Step::Grant((lacking.ceil() as u64).clamp(1, MOST_TICKETS - self.tickets))
            }
            false if whole >= LEAST => Step::Compare,
            false => Step::GiveUp,
        }
    }

    /// Whether the profile is complete, given its overlap with the last one.
    pub fn is_enough(&self, overlap: Option<f64>) -> bool {
        let most = self.wanted >= MOST_RUNS || self.tickets >= MOST_TICKETS;
        self.fixed || overlap.is_some_and(|o| o >= ENOUGH) || most
    }

    /// Twice as many typical runs are wanted; for which so many more runs may count.
    pub fn double(&mut self) -> u64 {
        let more = self.wanted;
        self.wanted = self.wanted.saturating_mul(2);
        more
    }

    /// So many more may count.
    pub fn grant(&mut self, more: u64) {
        self.tickets = self.tickets.saturating_add(more);
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_doubled_until_they_change_nothing() {
        let mut progress = Progress::default();
        assert_eq!(progress.next(0, 0, 0.0), Step::Wait);
        assert_eq!(progress.next(1, 1, 1.0), Step::Compare);
        assert!(!progress.is_enough(None));
        let more = progress.double();
        progress.grant(more);
        assert_eq!((progress.next(1, 1, 1.0), progress.next(2, 2, 2.0)), (Step::Wait, Step::Compare));
        assert!(!progress.is_enough(Some(0.5)));
        let more = progress.double();
        progress.grant(more);
        assert_eq!(progress.next(4, 3, 3.5), Step::Wait, "one is still running");
        assert_eq!(progress.next(4, 4, 3.9), Step::Compare);
        assert!(progress.is_enough(Some(0.95)));
        assert_eq!(progress.runs(), 4);
    }

    #[test]
    fn runs_that_do_next_to_nothing_neither_count_nor_decide() {
        let mut progress = Progress::default();
        // The first one is a driver that links: another may count.
        assert_eq!(progress.next(1, 1, 0.01), Step::Grant(1));
        progress.grant(1);
        assert_eq!(progress.next(2, 2, 1.0), Step::Compare);
        let more = progress.double();
        progress.grant(more);
        assert_eq!((progress.next(3, 3, 1.1), progress.tickets()), (Step::Grant(1), 3));
        // If there are none but such, that is no profile.
        let mut progress = Progress::default();
        while let Step::Grant(more) = progress.next(progress.tickets(), progress.tickets(), 0.1) {
            progress.grant(more);
        }
        assert_eq!(progress.tickets(), MOST_TICKETS);
        assert_eq!(progress.next(MOST_TICKETS, MOST_TICKETS, 0.1), Step::GiveUp);
        assert_eq!(progress.next(MOST_TICKETS, MOST_TICKETS, 0.6), Step::Compare);
        assert!(progress.is_enough(None));
    }

    #[test]
    fn a_given_number_of_runs_is_counted_at_once() {
        let mut progress = Progress::of(Some(5));
        assert_eq!((progress.tickets(), progress.next(4, 4, 4.0)), (5, Step::Wait));
        assert_eq!(progress.next(5, 5, 0.1), Step::Compare);
        assert!(progress.is_enough(None));
        assert_eq!(progress.runs(), 5);
    }

    #[test]
    fn there_is_an_end_to_it() {
        let mut progress = Progress::default();
        let mut rounds = 0;
        while !progress.is_enough(Some(0.0)) {
            let more = progress.double();
            progress.grant(more);
            rounds += 1;
        }
        assert_eq!((rounds, progress.tickets()), (4, MOST_RUNS));
    }
}
