//! How many runs are counted: as long as more of them change the profile.
//!
//! OCOLOS (section VI-D) finds about five runs of a compiler best: fewer miss code, more delay the gain. Here the number is not
//! fixed. One run may count, then two in all, then four: each time the profile is compared with the one from half as many
//! runs, and what the second half has not changed the next half will not change much either. For experiments the number can be
//! given ([`Progress::of`]).

use std::time::{Duration, Instant};

/// The profile is complete when the overlap with that of half as many runs is at least this.
const ENOUGH: f64 = 0.93;
/// Most runs that are counted.
const MOST_RUNS: u64 = 16;
/// Runs that end without saying so (by a signal, by `_exit`) are waited for so long.
const PATIENCE: Duration = Duration::from_secs(3);

/// The runs of one module.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    granted: u64,
    runs: u64,
    waiting: Option<Instant>,
    /// The number of runs was given.
    fixed: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self { granted: 1, runs: 0, waiting: None, fixed: false }
    }
}

impl Progress {
    /// Exactly so many runs count, or as many as are useful.
    pub fn of(runs: Option<u64>) -> Self {
        match runs {
            // The kernel's counter of tickets is signed.
            Some(runs) => Self { granted: runs.clamp(1, 1 << 40), fixed: true, ..Self::default() },
            None => Self::default(),
        }
    }

    /// How many runs may count in all.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// How many have.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Whether all that may count have begun, and have ended or had time to.
    pub fn is_due(&mut self, started: u64, ended: u64) -> bool {
        if started < self.granted {
            return false;
        }
        let waiting = *self.waiting.get_or_insert_with(Instant::now);
        ended >= self.granted || waiting.elapsed() >= PATIENCE
    }

    /// Whether the profile is complete, given its overlap with the last one.
    pub fn is_enough(&mut self, started: u64, overlap: Option<f64>) -> bool {
        self.runs = started;
        self.fixed || overlap.is_some_and(|o| o >= ENOUGH) || self.granted >= MOST_RUNS
    }

    /// Twice as many may count.
    pub fn go_on(&mut self) {
        self.granted *= 2;
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_doubled_until_they_change_nothing() {
        let mut progress = Progress::default();
        assert!(!progress.is_due(0, 0));
        assert!(progress.is_due(1, 1) && !progress.is_enough(1, None));
        progress.go_on();
        assert!(!progress.is_due(1, 1) && progress.is_due(2, 2));
        assert!(!progress.is_enough(2, Some(0.5)));
        progress.go_on();
        assert!(!progress.is_due(4, 3), "one is still running");
        assert!(progress.is_due(4, 4) && progress.is_enough(4, Some(0.95)));
        assert_eq!(progress.runs(), 4);
    }

    #[test]
    fn a_given_number_of_runs_is_counted_at_once() {
        let mut progress = Progress::of(Some(5));
        assert_eq!(progress.granted(), 5);
        assert!(!progress.is_due(4, 4) && progress.is_due(5, 5));
        assert!(progress.is_enough(5, None));
        assert_eq!(progress.runs(), 5);
    }

    #[test]
    fn there_is_an_end_to_it() {
        let mut progress = Progress::default();
        let mut rounds = 0;
        while !progress.is_enough(progress.granted(), Some(0.0)) {
            progress.go_on();
            rounds += 1;
        }
        assert_eq!((rounds, progress.runs()), (4, MOST_RUNS));
    }
}
