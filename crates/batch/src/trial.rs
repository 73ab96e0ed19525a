//! Trials: whether runs in an overlay really take less time.
//!
//! **Problem.** Runs in the original code come first and those in the overlay later, and a build does not do
//! the same all the time. And what is seen by samples is user code: what it costs to map an overlay into a
//! short process is the kernel's time.
//!
//! **Idea.** A controlled trial. Where the difference cannot be told to be a gain, each eighth process from
//! then on runs the original code, chosen by chance (the kernel's random bytes), beside all others; the
//! kernel tells the whole processor time of each process when it ends, in user and system. If runs in the
//! overlay take longer for sure, it is taken back; in any case the trial ends when enough is known. Overlays
//! that are seen to pay have no trial: nothing is lost by it there.

use restitch_preload::{HELD_OUT_AT, PAGE};
use restitch_report::counted;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Of 256 processes so many run the original code while there is a trial.
pub(crate) const HELD_OUT: u64 = 32;
/// With fewer runs of each kind nothing is said: their spread is not known.
const LEAST: u64 = 24;
/// A trial ends when so many were held out, whatever it has shown.
const MOST: u64 = 400;
/// It begins when so many runs in the overlay have shown no gain.
const DOUBT: u64 = 16;
/// Standard errors that runs have to be faster by for the trial to end so; slower, for the overlay to be
/// taken back. It is looked at at the end of each command.
const FASTER: f64 = 3.0;
const SLOWER: f64 = 5.0;

/// The processor times of runs, in user and system, of the whole process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub runs: u64,
    /// Their sum, in seconds.
    pub seconds: f64,
    /// The sum of their squares, in seconds squared.
    pub squares: f64,
}

impl Times {
    /// One more run.
    pub(crate) fn add(&mut self, seconds: f64) {
        *self = self.plus(Self { runs: 1, seconds, squares: seconds * seconds });
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            runs: self.runs.saturating_add(other.runs),
            seconds: self.seconds + other.seconds,
            squares: self.squares + other.squares,
        }
    }

    /// Seconds of a run; 0 if there is none.
    pub fn mean(&self) -> f64 {
        self.seconds / self.runs.max(1) as f64
    }

    /// The variance of [`mean`](Self::mean), in seconds squared.
    fn variance_of_mean(&self) -> f64 {
        let runs = self.runs.max(1) as f64;
        let between = (self.squares - self.seconds * self.seconds / runs) / (runs - 1.0).max(1.0);
        between.max(0.0) / runs
    }
}

/// What a trial has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Runs in the overlay take less time.
    Faster,
    /// They take more: the overlay is taken back.
    Slower,
    /// Whatever the difference is, it is too small to be told.
    Alike,
}

/// A trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// There is one, or there was.
    pub begun: bool,
    /// Runs in the original code, beside the others.
    pub held_out: Times,
    /// Runs in the overlay since it began.
    pub optimized: Times,
    /// What has come of it.
    pub outcome: Option<Outcome>,
}

impl Trial {
    /// With what a command has shown, if it was going on before that.
    pub(crate) fn with(self, shown: Self) -> Self {
        let (held_out, optimized) =
            (self.held_out.plus(shown.held_out), self.optimized.plus(shown.optimized));
        if self.goes_on() { Self { held_out, optimized, ..self } } else { self }
    }

    /// Whether each eighth process is to run the original code.
    pub(crate) fn goes_on(&self) -> bool {
        self.begun && self.outcome.is_none()
    }

    /// Whether the overlay was taken back.
    pub fn is_lost(&self) -> bool {
        self.outcome == Some(Outcome::Slower)
    }

    /// Seconds that a run saves, and two standard errors of that; `None` with too few runs of one kind.
    pub fn saved(&self) -> Option<(f64, f64)> {
        let variance = self.held_out.variance_of_mean() + self.optimized.variance_of_mean();
        let saved = self.held_out.mean() - self.optimized.mean();
        (self.held_out.runs.min(self.optimized.runs) >= LEAST).then_some((saved, 2.0 * variance.sqrt()))
    }

    /// At the end of a command, in which so many runs were `optimized`, if they were not seen to be faster:
    /// begins, goes on or ends.
    pub(crate) fn look(&mut self, optimized: u64, is_gain: bool) {
        match self.saved() {
            _ if self.outcome.is_some() => {}
            _ if !self.begun => self.begun = optimized >= DOUBT && !is_gain,
            Some((saved, within)) if saved < 0.0 && -saved >= SLOWER / 2.0 * within => {
                self.outcome = Some(Outcome::Slower);
            }
            Some((saved, within)) if saved > 0.0 && saved >= FASTER / 2.0 * within => {
                self.outcome = Some(Outcome::Faster);
            }
            _ if self.held_out.runs >= MOST => self.outcome = Some(Outcome::Alike),
            _ => {}
        }
    }

    /// What has come of it, for the module at `path`.
    pub(crate) fn said_of(&self, path: &Path) -> String {
        let (saved, within) = self.saved().unwrap_or_default();
        let share = |seconds: f64| 100.0 * seconds / self.held_out.mean().max(f64::MIN_POSITIVE);
        let runs = counted(self.held_out.runs, "run");
        let found = match self.outcome {
            Some(Outcome::Slower) => format!(
                "its runs take {:.1} % longer (+- {:.1}) in optimized code than {runs} of the original beside them: it was taken back",
                share(-saved),
                share(within)
            ),
            Some(Outcome::Faster) => format!(
                "its runs take {:.1} % less time (+- {:.1}) in optimized code than {runs} of the original beside them",
                share(saved),
                share(within)
            ),
            _ => format!(
                "no difference could be told between its runs in optimized code and {runs} of the original beside them ({:+.1} % +- {:.1})",
                share(-saved),
                share(within)
            ),
        };
        format!("{}: {found}", path.display())
    }
}

/// Ends a trial in the bytes of an overlay: in exported ones nobody looks at what comes of it.
pub(crate) fn without(overlay: &mut [u8]) {
    let page = overlay.len().saturating_sub(PAGE as usize);
    overlay.iter_mut().skip(page + HELD_OUT_AT as usize).take(8).for_each(|b| *b = 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many runs around `seconds`, by turns a tenth more and less.
    fn times(runs: u64, seconds: f64) -> Times {
        let mut out = Times::default();
        (0..runs).for_each(|i| out.add(seconds * if i % 2 == 0 { 0.9 } else { 1.1 }));
        out
    }

    fn after(held_out: Times, optimized: Times) -> Option<Outcome> {
        let mut trial = Trial { begun: true, held_out, optimized, outcome: None };
        trial.look(1000, false);
        trial.outcome
    }

    #[test]
    fn what_is_slower_for_sure_is_taken_back() {
        assert_eq!(after(times(30, 1.0), times(140, 1.2)), Some(Outcome::Slower));
        assert_eq!(after(times(30, 1.0), times(140, 0.8)), Some(Outcome::Faster));
        // Nothing can be told of 1 % with thirty runs, and nothing at all of few.
        assert_eq!(after(times(30, 1.0), times(140, 1.01)), None);
        assert_eq!(after(times(LEAST - 1, 1.0), times(140, 2.0)), None);
        assert_eq!(after(times(MOST, 1.0), times(2800, 1.001)), Some(Outcome::Alike));
        let (saved, within) =
            Trial { begun: true, held_out: times(30, 1.0), optimized: times(140, 0.8), outcome: None }
                .saved()
                .unwrap();
        assert!((saved - 0.2).abs() < 1e-9 && (0.03..0.05).contains(&within), "{saved} {within}");
    }

    #[test]
    fn what_is_seen_to_pay_has_no_trial() {
        let mut trial = Trial::default();
        trial.look(DOUBT - 1, false);
        trial.look(1000, true);
        assert!(!trial.begun && !trial.goes_on());
        trial.look(DOUBT, false);
        assert!(trial.goes_on() && trial.outcome.is_none() && !trial.is_lost());
        // Once over it is over.
        trial.outcome = Some(Outcome::Alike);
        (trial.held_out, trial.optimized) = (times(30, 1.0), times(140, 2.0));
        trial.look(1000, false);
        assert_eq!(trial.outcome, Some(Outcome::Alike));
    }

    /// Runs of both kinds that take alike long are hardly ever taken for slower ones, however often that is
    /// looked at.
    #[test]
    fn equal_runs_stay() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            0.5 + (state >> 40) as f64 / f64::from(1 << 24)
        };
        let mut lost = 0;
        for _ in 0..4000 {
            let mut trial = Trial { begun: true, ..Trial::default() };
            for _ in 0..10 {
                (0..10).for_each(|_| trial.held_out.add(next()));
                (0..70).for_each(|_| trial.optimized.add(next()));
                trial.look(70, false);
            }
            lost += u32::from(trial.is_lost());
        }
        assert!(lost <= 2, "{lost} of 4000");
    }
}
