//! What came of a batch.

use super::budget::optimize_cost;
use super::cache::Entry;
use super::observe::{FREQUENCY, Mode, Seen, Usage};
use super::{LEAST_SECONDS, Session, WORTH};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The result of [`batch`](super::batch()).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BatchReport {
    /// The command's exit status, as a shell gives it.
    pub status: i32,
    /// Seconds until the command ended.
    pub command_seconds: f64,
    /// Seconds in all.
    pub seconds: f64,
    /// Processor seconds that were spent on optimizing, in the background.
    pub own_seconds: f64,
    /// Modules that ran in optimized code, or will the next time; those that used most time first.
    pub optimized: Vec<Optimized>,
    /// Modules that used half a second or more and were left alone.
    pub left: Vec<Left>,
    /// A process in the background goes on with what was only profiled.
    pub goes_on: bool,
    /// Overlays that were exported.
    pub exported: Option<usize>,
    /// Records of the kernel's that were lost: times are too low by their share.
    pub lost_records: u64,
    /// What else the user should know.
    pub notes: Vec<String>,
}

/// Runs of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Runs {
    /// How many have ended.
    pub runs: u64,
    /// Processor seconds that they spent in the module's user code.
    pub seconds: f64,
}

/// A module that is optimized.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Optimized {
    /// Its file.
    pub path: PathBuf,
    /// Its build id.
    pub build_id: String,
    /// Whether it was optimized (or profiled) in this session.
    pub new: bool,
    /// Whether there is an overlay; if not, the profile is kept and the next session begins with making one.
    pub in_force: bool,
    /// Runs that the profile was counted in.
    pub profiled_runs: u64,
    /// Runs in the original code, in this session.
    pub original: Runs,
    /// Runs that counted, in this session.
    pub counting: Runs,
    /// Runs in optimized code, in this session.
    pub optimized: Runs,
    /// Processor seconds in the module of a run of the original: of this session, else of the one that made the profile.
    pub original_seconds_per_run: f64,
    /// Processor seconds that a run saves, if the runs of both kinds did alike work. Negative if they take longer.
    pub saved_seconds_per_run: Option<f64>,
    /// Processor seconds that the optimization took (in the session that made it).
    pub cost_seconds: f64,
    /// Optimized runs after which that is saved.
    pub breaks_even_after: Option<u64>,
    /// This was the module's build until another one replaced its file.
    pub replaced: bool,
}

/// A module that was left alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Left {
    /// Its file.
    pub path: PathBuf,
    /// Processor seconds that it used.
    pub seconds: f64,
    /// Runs that were begun.
    pub runs: u64,
    /// Why.
    pub why: String,
}

/// Fewer runs than this say nothing of what a run takes.
const LEAST_RUNS: u64 = 3;

impl Seen {
    /// Processor seconds, those of runs that have not ended included.
    pub(crate) fn seconds(&self) -> f64 {
        self.samples as f64 / FREQUENCY as f64
    }

    /// Processor seconds of a run of the original; 0 if none has ended.
    pub(crate) fn seconds_per_run(&self) -> f64 {
        self.ended.get(&Mode::Original).filter(|u| u.runs > 0).map_or(0.0, |u| u.seconds() / u.runs as f64)
    }

    fn runs(&self, mode: Mode) -> Runs {
        let usage: Usage = self.ended.get(&mode).copied().unwrap_or_default();
        Runs { runs: usage.runs, seconds: usage.seconds() }
    }
}

impl Optimized {
    pub(crate) fn new(seen: &Seen, entry: &Entry, new: bool) -> Self {
        let (original, optimized) = (seen.runs(Mode::Original), seen.runs(Mode::Optimized));
        let before = if original.runs >= LEAST_RUNS { seen.seconds_per_run() } else { entry.seconds_per_run };
        let saved = (optimized.runs >= LEAST_RUNS && before > 0.0)
            .then(|| before - optimized.seconds / optimized.runs as f64);
        let even = saved.filter(|s| *s > 0.0).map(|s| (entry.cost_seconds / s).ceil() as u64);
        Self {
            path: seen.path.clone(),
            build_id: entry.build_id.clone(),
            new,
            in_force: !entry.layout.is_empty(),
            profiled_runs: entry.profiled_runs,
            original,
            counting: seen.runs(Mode::Counting),
            optimized,
            original_seconds_per_run: before,
            saved_seconds_per_run: saved,
            cost_seconds: entry.cost_seconds,
            breaks_even_after: even,
            replaced: seen.replaced,
        }
    }

    fn seconds(&self) -> f64 {
        self.original.seconds + self.counting.seconds + self.optimized.seconds
    }
}

impl Session {
    /// Fills the report in.
    pub(super) fn describe(&self, report: &mut BatchReport) {
        let Some(observer) = &self.observer else { return };
        report.lost_records = observer.lost();
        let (mut optimized, mut left) = self.former.clone();
        let known = self.known();
        for seen in observer.modules() {
            match self.optimized(seen, &known) {
                Some(entry) => optimized.push(entry),
                None => left.extend(self.left_alone(seen)),
            }
        }
        (report.optimized, report.left) = (optimized, left);
        report.sort();
    }

    /// What is said in the end of a module whose file was replaced.
    pub(super) fn keep_former(&mut self, seen: &Seen) {
        match self.optimized(seen, &self.known()) {
            Some(entry) => self.former.0.push(entry),
            None => self.former.1.extend(self.left_alone(seen)),
        }
    }

    /// The modules in the cache, by path: the newest build of each.
    fn known(&self) -> BTreeMap<PathBuf, Entry> {
        self.cache.entries().into_iter().rev().map(|e| (e.path.clone(), e)).collect()
    }

    /// What came of a module, if it was optimized now or before.
    fn optimized(&self, seen: &Seen, known: &BTreeMap<PathBuf, Entry>) -> Option<Optimized> {
        let done = self.done.get(&seen.path);
        let used = seen.ended.contains_key(&Mode::Optimized) && !self.retired.contains(&seen.path);
        let entry = done.or_else(|| known.get(&seen.path)).filter(|_| used || done.is_some())?;
        Some(Optimized::new(seen, entry, done.is_some()))
    }

    /// Why a module that used some time was not optimized.
    fn left_alone(&self, seen: &Seen) -> Option<Left> {
        if seen.seconds() < LEAST_SECONDS {
            return None;
        }
        let cost = optimize_cost(&seen.path);
        let why = match self.left.get(&seen.path) {
            _ if seen.replaced => "its file was changed or replaced while the command ran".into(),
            Some(why) => why.clone(),
            None if self.cache.holds(&seen.path) => "it is restitch's own library in each process".into(),
            None if self.suspended.contains(&seen.path) => {
                "the command ended before enough of its runs were counted; the next one goes on with it".into()
            }
            None if self.given.contains(&seen.path) => "the command ended before its runs could be counted".into(),
            None if seen.begun < 2 => "it ran once only; `restitch attach` optimizes long runs".into(),
            None if self.totals(seen).seconds() < WORTH * cost => {
                format!("to optimize it takes about {cost:.1} s, too much for the time that it has used until now")
            }
            None if !self.totals(seen).is_known() => "too few of its runs have ended to know what it does; the next commands add to them".into(),
            None => "to profile it would have slowed the command down by more than a hundredth, as all cores were busy; it is begun when the command has ended, or by a later one".into(),
        };
        Some(Left { path: seen.path.clone(), seconds: seen.seconds(), runs: seen.begun, why })
    }
}

impl BatchReport {
    /// The report as JSON, as `docs/batch.md` describes it.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What used most time comes first.
    pub(crate) fn sort(&mut self) {
        self.optimized.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
        self.left.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    }
}
