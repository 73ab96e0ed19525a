//! What came of a batch.

use crate::budget::optimize_cost;
use crate::cache::Entry;
use crate::fit::left_by_name;
use crate::observe::{FREQUENCY, Mode, Seen, Usage};
use crate::{LEAST_SECONDS, Session, WORTH};
use restitch_report::counted;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    /// Processor seconds that sampling has taken from the command: how many samples there were, times what
    /// one costs on this machine.
    pub sampling_seconds: f64,
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
    #[serde(serialize_with = "as_text")]
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
    /// Processor seconds in the module of a run of the original: of this session, else of the one that made
    /// the profile.
    pub original_seconds_per_run: f64,
    /// Processor seconds that a run saves, if the runs of both kinds did alike work. Negative if they take
    /// longer.
    pub saved_seconds_per_run: Option<f64>,
    /// Whether that is told by a trial: by runs of the original code beside the others, in processor time of
    /// the whole process, kernel included.
    pub by_trial: bool,
    /// So much more or less it may be, in processor seconds (with a probability of 95 %): runs differ, and
    /// are sampled.
    pub saved_within: Option<f64>,
    /// Processor seconds that the optimization took (in the session that made it).
    pub cost_seconds: f64,
    /// Optimized runs after which that is saved; if it is sure that a run saves something.
    pub breaks_even_after: Option<u64>,
    /// Runs in the original code that were held out for comparison, in this session.
    pub held_out: Runs,
    /// Optimized runs of this and all earlier commands.
    pub optimized_runs_in_all: u64,
    /// This was the module's build until another one replaced its file.
    pub replaced: bool,
}

/// A module that was left alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Left {
    /// Its file.
    #[serde(serialize_with = "as_text")]
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

    /// Runs of one kind that have ended.
    fn usage(&self, mode: Mode) -> Usage {
        self.ended.get(&mode).copied().unwrap_or_default()
    }

    fn runs(&self, mode: Mode) -> Runs {
        let usage = self.usage(mode);
        Runs { runs: usage.runs, seconds: usage.seconds() }
    }
}

/// What a run saves, in processor seconds.
#[derive(Debug, Clone, Copy)]
struct Saving {
    seconds: f64,
    /// Two standard errors.
    within: f64,
}

impl Saving {
    /// Of runs in optimized code against those of the original; `None` if they are too few to say anything.
    fn between(original: Usage, optimized: Usage) -> Option<Self> {
        if original.runs.min(optimized.runs) < LEAST_RUNS || original.samples == 0 {
            return None;
        }
        let variance = original.variance_of_mean() + optimized.variance_of_mean();
        let seconds = original.seconds_per_run() - optimized.seconds_per_run();
        Some(Self { seconds, within: 2.0 * variance.sqrt() })
    }

    fn is_sure(self) -> bool {
        self.seconds > self.within
    }
}

impl Optimized {
    /// Whether runs take longer or shorter than they did, with a probability of 95 %.
    pub fn is_told_apart(&self) -> bool {
        self.saved_seconds_per_run.zip(self.saved_within).is_some_and(|(saved, within)| saved.abs() > within)
    }

    pub(crate) fn new(seen: &Seen, entry: &Entry, new: bool) -> Self {
        let (here, optimized) = (seen.usage(Mode::Original), seen.usage(Mode::Optimized));
        let before = if here.runs >= LEAST_RUNS { here } else { entry.original };
        let trial = entry.trial.with(seen.trial);
        let by_trial = trial.saved().map(|(seconds, within)| Saving { seconds, within });
        let saved = by_trial.or_else(|| Saving::between(before, optimized));
        let even = saved.filter(|s| s.is_sure()).map(|s| (entry.cost_seconds / s.seconds).ceil() as u64);
        Self {
            path: seen.path.clone(),
            build_id: entry.build_id.clone(),
            new,
            in_force: !entry.layout.is_empty(),
            profiled_runs: entry.profiled_runs,
            original: seen.runs(Mode::Original),
            counting: seen.runs(Mode::Counting),
            optimized: seen.runs(Mode::Optimized),
            held_out: seen.runs(Mode::HeldOut),
            by_trial: by_trial.is_some(),
            original_seconds_per_run: match by_trial {
                Some(_) => trial.held_out.mean(),
                None => before.seconds_per_run(),
            },
            saved_seconds_per_run: saved.map(|s| s.seconds),
            saved_within: saved.map(|s| s.within),
            cost_seconds: entry.cost_seconds,
            breaks_even_after: even,
            optimized_runs_in_all: entry.optimized.runs.saturating_add(optimized.runs),
            replaced: seen.replaced,
        }
    }

    fn seconds(&self) -> f64 {
        self.original.seconds + self.counting.seconds + self.optimized.seconds
    }
}

impl Session {
    /// Fills the report in.
    pub(crate) fn describe(&self, report: &mut BatchReport) {
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

    /// What is said where a report would name no module at all.
    pub(crate) fn nothing_to_tell(&self, report: &BatchReport) -> Option<String> {
        let told = !report.optimized.is_empty() || !report.left.is_empty();
        let modules = self.observer.as_ref().filter(|_| !told)?.modules();
        let most = modules.max_by_key(|seen| seen.samples);
        Some(match most.filter(|seen| seen.samples > 0) {
            Some(most) => format!(
                "no program or library has used {LEAST_SECONDS} s of processor time, the least that is reported; {} has used most, {:.2} s in {}",
                most.path.display(),
                most.seconds(),
                counted(most.begun, "run")
            ),
            None => "no program or library was seen at work: too little processor time was used".into(),
        })
    }

    /// What is said in the end of a module whose file was replaced.
    pub(crate) fn keep_former(&mut self, seen: &Seen) {
        match self.optimized(seen, &self.known()) {
            Some(entry) => self.former.0.push(entry),
            None => self.former.1.extend(self.left_alone(seen)),
        }
    }

    /// Adds the runs of this command to what the cache knows of its modules, and begins and ends trials.
    pub(crate) fn account(&self, mut note: impl FnMut(String)) {
        let Some(observer) = &self.observer else { return };
        let known = self.known();
        for seen in observer.modules().filter(|seen| !seen.replaced) {
            let Some(entry) = known.get(&seen.path).cloned() else { continue };
            // Another session may be at work; its entry counts then.
            let Some(_lock) = self.cache.lock(&entry.build_id) else { continue };
            let (original, optimized) = (seen.usage(Mode::Original), seen.usage(Mode::Optimized));
            // What was begun in this command has its first runs already.
            let all = self.totals(seen).original();
            let more = if self.given.contains(&seen.path) { all } else { entry.original.plus(original) };
            let original = if more.runs > entry.original.runs { more } else { entry.original };
            let optimized = entry.optimized.plus(optimized);
            let mut trial = entry.trial.with(seen.trial);
            let is_gain = Saving::between(original, optimized).is_some_and(Saving::is_sure);
            // Who is eager wants all of it.
            if self.options.trials && !self.options.eager && !entry.layout.is_empty() {
                trial.look(optimized.runs, is_gain);
            }
            if (original, optimized, trial) != (entry.original, entry.optimized, entry.trial) {
                let (id, path, ended) =
                    (entry.build_id.clone(), entry.path.clone(), trial.outcome != entry.trial.outcome);
                let known = self.cache.write_entry(&Entry { original, optimized, trial, ..entry });
                // Where that cannot be kept, everything stays as it is, and the next command knows less.
                if known.is_ok() {
                    self.cache.follow(&id, &trial);
                }
                if known.is_ok() && ended {
                    note(trial.said_of(&path));
                }
            }
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
        let by_name = left_by_name(&seen.path).map(String::from);
        let why = match self.left.get(&seen.path).cloned().or(by_name) {
            _ if seen.replaced => "its file was changed or replaced while the command ran".into(),
            _ if self.cache.holds(&seen.path) => "it is restitch's own library in each process".into(),
            _ if self.cache.is_made(&seen.path) => "another batch's cache has brought it into the process".into(),
            Some(why) => why,
            None if self.suspended.contains(&seen.path) => {
                "the command ended before enough of its runs were counted; the next one goes on with it".into()
            }
            None if self.given.contains(&seen.path) => "the command ended before its runs could be counted".into(),
            None if seen.begun < 2 => "it ran once only; `restitch attach` optimizes long runs".into(),
            None if self.totals(seen).seconds() < WORTH * cost => format!(
                "it has used {:.1} s until now, all commands together; that pays from {:.1} s on, as to optimize it takes about {cost:.1} s",
                self.totals(seen).seconds(),
                WORTH * cost
            ),
            None if !self.totals(seen).is_known() => "too few of its runs have ended to know what it does; the next commands add to them".into(),
            None => "to profile it would have slowed the command down by more than a hundredth, as all cores were busy; it is begun when the command has ended, or by a later one".into(),
        };
        Some(Left { path: seen.path.clone(), seconds: seen.seconds(), runs: seen.begun, why })
    }
}

/// A path as text, for readers: what is no UTF-8 is shown by replacement characters.
fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// So many runs of `samples` samples each, one more or less by turns.
    fn runs(count: u64, samples: u64) -> Usage {
        let each = |i: u64| if i.is_multiple_of(2) { samples + 1 } else { samples - 1 };
        let sum = |f: fn(u64) -> u64| (0..count).map(|i| f(each(i))).sum();
        Usage { runs: count, samples: sum(|n| n), pairs: sum(|n| n * (n - 1)), coarse: 0 }
    }

    #[test]
    fn what_runs_save_is_said_with_how_sure_that_is() {
        let between = |a, b| Saving::between(a, b).expect("enough runs");
        // A twentieth of 250 samples: nothing with four runs, sure with a hundred.
        let few = between(runs(4, 250), runs(4, 237));
        let a_twentieth = 13.0 / FREQUENCY as f64;
        assert!((few.seconds - a_twentieth).abs() < 0.2 * a_twentieth && !few.is_sure(), "{few:?}");
        let many = between(runs(100, 250), runs(100, 237));
        assert!(many.is_sure() && many.within < few.within / 4.0, "{many:?}");
        // One sample in each of four runs, none in three others: alike runs, as far as anybody can tell.
        let one = Usage { runs: 4, samples: 4, pairs: 0, coarse: 0 };
        let none = Usage { runs: 3, samples: 0, pairs: 0, coarse: 0 };
        assert!(!between(one, none).is_sure() && !between(one, one).is_sure());
        // Runs of very different length say less than equal ones.
        let uneven = Usage { runs: 100, samples: 25_000, pairs: 10 * 2500 * 2499, coarse: 0 };
        assert!(!between(uneven, runs(100, 225)).is_sure());
        assert!(Saving::between(runs(2, 250), runs(100, 225)).is_none());
        assert!(Saving::between(Usage::default(), runs(100, 225)).is_none());
    }

    #[test]
    fn paths_that_are_no_text_leave_the_report_whole() {
        use std::os::unix::ffi::OsStringExt;
        let path = std::ffi::OsString::from_vec(b"/\xff".to_vec()).into();
        let left = vec![Left { path, seconds: 1.0, runs: 2, why: "why".into() }];
        let json = BatchReport { left, ..Default::default() }.to_json();
        assert!(json.contains("\"/\u{fffd}\"") && json.contains("\"runs\": 2"), "{json}");
    }

    proptest::proptest! {
        /// Whatever is in the cache's files.
        #[test]
        fn any_usage_has_a_finite_variance(runs: u64, samples: u64, pairs: u64, coarse: u64) {
            let usage = Usage { runs, samples, pairs, coarse };
            let variance = usage.variance_of_mean();
            proptest::prop_assert!(variance.is_finite() && variance > 0.0, "{variance}");
        }
    }
}
