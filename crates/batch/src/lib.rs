//! `batch -- COMMAND`: programs that are too short-lived to be optimized while they run, but run again and
//! again, are optimized between runs (OCOLOS, section V-A).
//!
//! The command runs with the [agent](restitch_preload) preloaded. Meanwhile an `Observer` (`observe.rs`) says
//! which modules take the processor's time; of those that are worth it, the next few runs are counted
//! (`progress.rs`), an optimized overlay is made (`work.rs`), and later runs map it. What was made is kept by
//! build id ([`cache`]) and serves the next command from its first run on; what a command was too short for,
//! the next one goes on with (`usage.rs`, `suspended.rs`).
//!
//! Nothing here may hurt the command: what goes wrong is a note in the report, and the original code runs.

mod budget;
mod build;
mod builds;
pub mod cache;
pub mod config;
mod fit;
mod in_force;
mod job;
mod known;
mod leftover;
mod names;
mod observe;
mod own_files;
mod pace;
mod progress;
mod report;
mod sample_cost;
mod seal;
mod suspended;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod trial;
mod upkeep;
mod usage;
mod work;
mod worker;

pub use leftover::{Outcome, optimize_pending};
pub use observe::Usage;
pub use report::{BatchReport, Left, Optimized, Runs};
pub use trial::{Outcome as TrialOutcome, Times, Trial};
pub use upkeep::{CountingModule, Verdict};
pub use work::is_busy;

use budget::{Budget, COUNTING_COSTS, IdleCores, begin_cost, optimize_cost, own_seconds};
use build::Build;
use builds::{ModuleFiles, REPLACED};
use cache::{Cache, Entry};
use fit::left_by_name;
use job::Measured;
use names::{is_named, with_files};
use observe::{Observer, Seen};
use pace::Pace;
use restitch_layout::LayoutChoice;
use restitch_pipeline::Watcher;
use restitch_report::counted;
use restitch_tracee::{Foreground, NotStarted};
use sample_cost::SampleCost;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use usage::{Past, Totals, is_due};
use worker::{Haste, Message, Worker};

/// How often what has happened is looked at in the first [`BEGINNING`] of a command, in which most commands
/// are over; the command's end is seen at once.
const POLL: Duration = Duration::from_millis(50);
/// How often afterwards, and whenever there is much to take in. Looks come by time, so where many processes
/// share a processor each of them is a larger part of what the command gets.
const LATER_POLL: Duration = Duration::from_millis(250);
const BEGINNING: Duration = Duration::from_secs(2);
/// Less time in a module than this, in seconds, is not worth anything.
const LEAST_SECONDS: f64 = 0.5;
/// With so many idle cores, work of the lowest priority goes on.
const IDLE: f64 = 0.5;
/// A module has to have used so many times what its optimization costs: what has run long will run on for
/// about as long.
const WORTH: f64 = 2.0;
/// Of a command's time so much is charged for samples at most, whatever they cost: something has to be left
/// for what they are taken for.
const SAMPLING_SHARE: f64 = 0.005;
/// How often suspended countings are looked for: a process in the background may have begun some.
const RESUME: Duration = Duration::from_secs(1);
/// How long a module is left to another session before it is looked at again: that one may have ended without
/// an overlay.
const ELSEWHERE: Duration = Duration::from_secs(30);
/// Why modules are left alone that programs open themselves.
const LATE: &str = "programs open it by dlopen, when they run already; only what is loaded with a program is optimized (docs/batch.md)";
/// Why modules are left alone whose overlay was taken back.
const TAKEN_BACK: &str = "its runs took longer in optimized code than in the original beside them, and that was taken back; it is profiled anew a week after the last time, or after `restitch cache prune` of it";
/// Profiles are made anew after so many seconds.
const OLD: u64 = 7 * 24 * 3600;

/// What to do.
#[derive(Debug)]
pub struct BatchOptions {
    /// The command, for example `make -j8`.
    pub command: Command,
    /// Names (or paths) of the programs whose runs count; all, if empty.
    pub only: Vec<String>,
    /// Names (or paths) of modules that are never optimized.
    pub exclude: Vec<String>,
    /// Optimize whatever runs twice and was seen running, whether it seems worth it or not.
    pub eager: bool,
    /// Compare runs in optimized code that are not seen to save time with runs of the original (`trial.rs`).
    pub trials: bool,
    /// The cache directory, if not the usual one.
    pub cache: Option<PathBuf>,
    /// How overlays are made.
    pub making: Making,
    /// Where to copy agent and overlays to in the end.
    pub export: Option<PathBuf>,
    /// Largest size of the cache in bytes.
    pub cache_size: u64,
}

/// How overlays are made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Making {
    /// How to lay out.
    pub layout: LayoutChoice,
    /// It was asked for: what the cache has in another layout is laid out again, from the profile that it
    /// keeps.
    pub lay_out_again: bool,
    /// How many runs count; as many as are useful, if not given.
    pub runs: Option<u64>,
    /// What happens with profiles that are not laid out yet when the command ends.
    pub finish: Finish,
}

/// What happens with work that is left when the command ends: profiles that are not laid out, modules that
/// are worth it and were not begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Finish {
    /// Another process goes on with them, at the lowest priority; nobody has to wait.
    #[default]
    Background,
    /// They are laid out now.
    Wait,
    /// The next session begins with them.
    Later,
}

/// Runs the command to its end, and optimizes what it runs. The command's exit status (as a shell gives it)
/// is in the report.
///
/// # Errors
/// Only if the command cannot be started. All else is a note, and the command runs as it would without
/// restitch.
pub fn batch(mut options: BatchOptions, watcher: &mut dyn Watcher) -> Result<BatchReport, NotStarted> {
    let mut report = BatchReport::default();
    let search = std::env::var_os("PATH");
    options.exclude = with_files(&options.exclude, search.as_deref());
    let cache = match Cache::open(options.cache.as_deref()).and_then(|c| c.agent().map(|agent| (c, agent))) {
        Ok(found) => Some(found),
        Err(error) => {
            let export = if options.export.is_some() { ", and nothing is exported" } else { "" };
            remark(&mut report, watcher, format!("{error}; the command runs in its original code{export}"));
            None
        }
    };
    let start_observing = |cache: &Cache| -> Result<_, Box<dyn std::error::Error>> {
        cache.check_writable()?;
        Ok(Observer::start(with_files(&options.only, search.as_deref()))?)
    };
    let observer = cache.as_ref().and_then(|(cache, _)| match start_observing(cache) {
        Ok(observer) => Some(observer),
        Err(error) => {
            let note = format!("{error}; nothing new is optimized, what is in the cache is used");
            remark(&mut report, watcher, note);
            None
        }
    });
    if let Some((cache, agent)) = &cache {
        cache.tidy().into_iter().for_each(|note| remark(&mut report, watcher, note));
        cache.leave_out(&options.exclude);
        // Before the command starts: its first process could be held out.
        if !options.trials {
            cache.end_trials();
        }
        options.command.env("LD_PRELOAD", preload(std::env::var_os("LD_PRELOAD"), agent));
    }
    let start = Instant::now();
    let command = spawn(&mut options.command)?;
    match cache {
        Some((cache, _)) => {
            let session = Session::new(cache, observer, options);
            session.run(command, start, &mut report, watcher);
        }
        None => report.status = wait(command, &[], |_| {}),
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn remark(report: &mut BatchReport, watcher: &mut dyn Watcher, note: String) {
    watcher.note(&note);
    report.notes.push(note);
}

/// `LD_PRELOAD` with the agent behind what is there, if it is not there already: this may be a batch below a
/// batch.
fn preload(theirs: Option<OsString>, agent: &Path) -> OsString {
    let folder = |file: &Path| file.parent().and_then(|folder| folder.canonicalize().ok());
    let is_agent = |word: &[u8]| {
        let file = Path::new(OsStr::from_bytes(word));
        file == agent
            || file.file_name() == agent.file_name()
                && folder(file).is_some()
                && folder(file) == folder(agent)
    };
    match theirs.filter(|v| !v.is_empty()) {
        Some(theirs) if theirs.as_bytes().split(|b| matches!(b, b':' | b' ')).any(is_agent) => theirs,
        Some(mut theirs) => {
            theirs.push(":");
            theirs.push(agent);
            theirs
        }
        None => agent.into(),
    }
}

fn spawn(command: &mut Command) -> Result<Foreground, NotStarted> {
    Foreground::spawn(command).map_err(|e| NotStarted::new(command.get_program(), e))
}

/// Waits for the command, calling `tick` now and then and when one of `full` can be read; its status.
fn wait(mut command: Foreground, full: &[OwnedFd], mut tick: impl FnMut(bool)) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let begun = Instant::now();
    loop {
        let poll = if begun.elapsed() < BEGINNING { POLL } else { LATER_POLL };
        if let Some(status) = command.wait(poll, full) {
            tick(true);
            return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        tick(false);
    }
}

struct Session {
    cache: Cache,
    observer: Option<Observer>,
    options: BatchOptions,
    /// What was optimized in this session.
    done: BTreeMap<PathBuf, Entry>,
    /// Modules that the worker has got.
    given: BTreeSet<PathBuf>,
    /// Modules that were not optimized, and why.
    left: BTreeMap<PathBuf, String>,
    /// Modules of which nothing could be counted, and how many samples said so.
    uncounted: BTreeMap<PathBuf, u64>,
    /// Modules that another session had, and when that was seen.
    busy: BTreeMap<PathBuf, Instant>,
    /// What earlier commands have shown.
    past: BTreeMap<PathBuf, Past>,
    /// Modules that are worth it, and were not begun.
    wanted: BTreeSet<PathBuf>,
    /// Modules whose countings the next session goes on with.
    suspended: BTreeSet<PathBuf>,
    /// Modules that something is known of: their files may be others by now, with the same content.
    unseen: BTreeSet<PathBuf>,
    /// Modules whose old overlay was taken out of force. Runs that began just before are still in it.
    retired: BTreeSet<PathBuf>,
    /// When suspended countings were looked for.
    resumed: Option<Instant>,
    files: ModuleFiles,
    /// The builds that are at paths where others were before.
    builds: BTreeMap<PathBuf, Build>,
    pace: Pace,
    /// What came of modules whose files were replaced.
    former: (Vec<Optimized>, Vec<Left>),
}

impl Session {
    fn new(cache: Cache, observer: Option<Observer>, options: BatchOptions) -> Self {
        Self {
            cache,
            observer,
            options,
            done: BTreeMap::new(),
            given: BTreeSet::new(),
            left: BTreeMap::new(),
            uncounted: BTreeMap::new(),
            busy: BTreeMap::new(),
            past: BTreeMap::new(),
            wanted: BTreeSet::new(),
            suspended: BTreeSet::new(),
            unseen: BTreeSet::new(),
            retired: BTreeSet::new(),
            resumed: None,
            files: ModuleFiles::default(),
            builds: BTreeMap::new(),
            pace: Pace::default(),
            former: Default::default(),
        }
    }

    fn run(
        mut self,
        command: Foreground,
        start: Instant,
        report: &mut BatchReport,
        watcher: &mut dyn Watcher,
    ) {
        let budget = Arc::new(Budget::new(self.cache.kept_budget(), self.options.eager));
        let counted = worker::Seen::default();
        let mut worker = Worker::start(&self.cache, self.options.making, budget.clone(), counted.clone());
        if !worker.is_whole() {
            watcher.note(
                "no more threads may be started, so less is optimized, or nothing; raise the limit of processes (`ulimit -u`)",
            );
        }
        let mut idle = IdleCores::default();
        if self.observer.is_some() {
            self.past = usage::read(&self.cache);
            self.begin(&mut worker, &budget);
        }
        let mut cost =
            self.observer.is_some().then(|| SampleCost::of(self.cache.path.join("sample-cost.json")));
        let mut charged = 0.0;
        let full = self.observer.as_ref().map(Observer::fullness).unwrap_or_default();
        report.status = wait(command, &full, |ended| {
            let mut watching = 0.0;
            if let Some((observer, cost)) = self.observer.as_mut().zip(cost.as_mut()) {
                observer.poll(&self.cache);
                budget.earn(observer.seconds());
                report.sampling_seconds = cost.seconds(observer.taken());
                watching = report.sampling_seconds.min(SAMPLING_SHARE * observer.seconds());
            }
            let costs = watching + self.measure(&counted);
            budget.charge(costs - charged);
            charged = costs;
            if !ended {
                // First what is begun already: it would be begun anew.
                self.resume(&worker);
                self.look_at_files(&worker);
                self.consider(&mut worker, &budget, idle.now());
                self.set_pace();
            }
            self.listen(&mut worker, watcher);
        });
        report.command_seconds = start.elapsed().as_secs_f64();
        // A command may have ended before anything was looked for.
        self.resumed = None;
        self.resume(&worker);
        self.want();
        let finish = self.options.making.finish;
        worker.stop(finish == Finish::Wait, |message| self.hear(message, watcher));
        self.remember();
        if finish == Finish::Wait {
            self.finish(watcher);
        }
        report.own_seconds = own_seconds();
        self.cache.keep_budget(budget.left());
        self.observer.iter_mut().for_each(Observer::finish);
        self.describe(report);
        for name in self.unknown_programs() {
            remark(report, watcher, format!("no program named {name} was run"));
        }
        if let Some(note) = self.nothing_to_tell(report) {
            remark(report, watcher, note);
        }
        self.account(|note| remark(report, watcher, note));
        self.cache.prune(self.options.cache_size);
        report.goes_on =
            finish == Finish::Background && leftover::go_on(&self.cache, self.options.making.layout);
        if let Some(folder) = &self.options.export {
            match self.cache.export(folder) {
                Ok(count) => report.exported = Some(count),
                Err(error) => remark(report, watcher, format!("nothing more is exported: {error}")),
            }
        }
    }

    /// Names of programs whose runs were to count, and of which there was none.
    fn unknown_programs(&self) -> Vec<String> {
        let Some(observer) = &self.observer else { return Vec::new() };
        let search = std::env::var_os("PATH");
        let ran = |name: &&String| {
            let names = with_files(std::slice::from_ref(*name), search.as_deref());
            observer.all_modules().iter().any(|m| is_named(&m.path, &names))
        };
        self.options.only.iter().filter(|name| !ran(name)).cloned().collect()
    }

    /// What earlier commands have left to do.
    fn begin(&mut self, worker: &mut Worker, budget: &Budget) {
        // An old one stays in force until a new profile can be paid for.
        let old = self.cache.entries().into_iter().filter(|e| is_old(e) && !e.layout.is_empty());
        for entry in old {
            let estimate = begin_cost(&entry.path);
            if budget.begin(estimate) {
                // It is taken when the work begins.
                budget.settle(estimate, 0.0);
                self.cache.retire(&entry.build_id);
                self.retired.insert(entry.path);
            }
        }
        for entry in self.cache.entries().into_iter().filter(|e| e.trial.is_lost() && !is_old(e)) {
            // Who took it back may have been killed over that.
            if let Some(_lock) = self.cache.lock(&entry.build_id) {
                self.cache.follow(&entry.build_id, &entry.trial);
            }
            // Another build of it is another module.
            if Build::at(&entry.path).is_some_and(|build| entry.is_of(&build)) {
                self.given.insert(entry.path.clone());
                self.left.insert(entry.path, TAKEN_BACK.into());
            }
        }
        self.unseen = self.cache.entries().into_iter().map(|e| e.path).collect();
        if self.options.making.lay_out_again {
            self.cache.want_layout(self.options.making.layout);
        }
        for entry in self.cache.pending() {
            self.given.insert(entry.path.clone());
            let paid = budget.begin(optimize_cost(&entry.path));
            worker.pending(if paid { Haste::Ordinary } else { Haste::Lowest }, entry);
        }
    }

    /// Tells the accountant what was seen of runs that count; the seconds by which all of them were slowed
    /// down.
    fn measure(&self, counted: &worker::Seen) -> f64 {
        let Some(observer) = &self.observer else { return 0.0 };
        let mut counting = 0;
        let mut list = counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_counted = |s: &&Seen| s.counting > 0 || self.given.contains(&s.path);
        for seen in observer.all_modules().iter().filter(is_counted) {
            let typical = self.totals(seen).typical();
            list.insert(seen.path.clone(), Measured { counting: seen.counting, typical });
            counting += seen.counting;
        }
        counting as f64 / observe::FREQUENCY as f64 * COUNTING_COSTS / (1.0 + COUNTING_COSTS)
    }

    /// Whether runs of a module start in an overlay.
    fn is_optimized(&self, seen: &Seen) -> bool {
        seen.overlaid && !self.retired.contains(&seen.path)
    }

    /// What this command and those before it have shown of a module.
    fn totals(&self, seen: &Seen) -> Totals {
        let now = Totals::of(seen);
        self.past.get(&seen.path).map_or(now, |past| past.totals.plus(now))
    }

    /// Takes fewer samples where they tell nothing new.
    fn set_pace(&mut self) {
        let (mut pace, Some(mut observer)) = (std::mem::take(&mut self.pace), self.observer.take()) else {
            return;
        };
        pace.set(&mut observer, |seen| self.is_settled(seen));
        (self.pace, self.observer) = (pace, Some(observer));
    }

    /// Whether more samples tell nothing new of a module: it is optimized, in work or left alone, or its
    /// functions are known by now.
    fn is_settled(&self, seen: &Seen) -> bool {
        let path = &seen.path;
        self.given.contains(path)
            || self.left.contains_key(path)
            || self.is_optimized(seen)
            || left_by_name(path).is_some()
            || self.cache.holds(path)
            || self.totals(seen).is_well_known()
    }

    /// Goes on with countings that other sessions have begun.
    fn resume(&mut self, worker: &Worker) {
        if self.observer.is_none() || self.resumed.is_some_and(|at| at.elapsed() < RESUME) {
            return;
        }
        self.resumed = Some(Instant::now());
        for id in self.cache.counting_ids() {
            let Some(path) = self.cache.path_of(&id) else { continue };
            if self.given.contains(&path) || is_named(&path, &self.options.exclude) {
                continue;
            }
            self.files.has_changed(&path);
            if let Some(job) = job::Job::resume(&self.cache, &id) {
                self.given.insert(path);
                worker.resume(job);
            }
        }
    }

    /// Finds out which modules are others by now, at the same paths.
    fn look_at_files(&mut self, worker: &Worker) {
        let Some(observer) = self.observer.as_ref().filter(|_| self.files.is_time()) else { return };
        let seen: Vec<PathBuf> =
            observer.modules().filter(|s| s.samples > 0).map(|s| s.path.clone()).collect();
        for path in seen {
            if !self.files.has_changed(&path) {
                continue;
            }
            let build = Build::at(&path);
            let is_known = build.as_ref().is_some_and(|build| self.cache.knows_build(build));
            // Which one was there is known if it was seen to come, or is optimized.
            let seen_before =
                build.as_ref().and_then(|build| self.builds.insert(path.clone(), build.clone()));
            let before = seen_before.or_else(|| self.done.get(&path).and_then(Entry::build));
            if !is_known || before.is_some() && before != build {
                self.forget(&path);
            }
            if is_known && !known::is_known(&self.cache, &path) {
                worker.recognise(path);
            }
        }
    }

    /// Another build is at `path`, of which nothing is known yet.
    fn forget(&mut self, path: &Path) {
        if let Some(before) = self.observer.as_mut().and_then(|o| o.replace(path)).cloned() {
            self.keep_former(&before);
        }
        self.given.remove(path);
        for set in [&mut self.wanted, &mut self.suspended, &mut self.retired] {
            set.remove(path);
        }
        self.done.remove(path);
        self.left.remove(path);
        self.uncounted.remove(path);
        self.busy.remove(path);
        self.past.remove(path);
    }

    /// Keeps what was seen of modules that may be worth it some day.
    fn remember(&self) {
        let Some(observer) = &self.observer else { return };
        usage::add(&self.cache, observer.modules(), now(), self.options.making.runs, |seen| {
            let is_done = self.is_optimized(seen)
                || self.left.contains_key(&seen.path) && !self.uncounted.contains_key(&seen.path)
                || self.done.contains_key(&seen.path);
            let is_own = self.cache.is_made(&seen.path);
            (seen.samples > 0 && !is_done && !is_own).then(|| self.wanted.contains(&seen.path))
        });
        for (path, samples) in self.uncounted.iter().filter(|(path, _)| !self.wanted.contains(*path)) {
            usage::settle(&self.cache, path, Some(*samples));
        }
    }

    /// Does what is left to do, now.
    fn finish(&mut self, watcher: &mut dyn Watcher) {
        for (path, outcome) in optimize_pending(&self.cache, self.options.making.layout, false) {
            let message = match outcome {
                Ok(Outcome::Optimized(entry)) => Message::Done(entry),
                Ok(Outcome::Counting) => Message::Suspended(path),
                Err(error) => Message::Left(path, worker::why(&error)),
            };
            self.hear(message, watcher);
        }
    }

    /// Whether a module is to be counted: it is worth it, nobody has begun, and enough is known of it.
    fn is_worth_it(&self, seen: &Seen) -> bool {
        let totals = self.totals(seen);
        let is_late = seen.late > 0 && seen.late == seen.begun;
        if is_late || self.given.contains(&seen.path) || self.is_optimized(seen) || !totals.is_known() {
            return false;
        }
        let past = || self.past.get(&seen.path).map(|past| past.uncounted);
        let uncounted = self.uncounted.get(&seen.path).copied().or_else(past);
        if !is_due(uncounted.unwrap_or_default(), totals.samples) {
            return false;
        }
        let is_elsewhere = self.busy.get(&seen.path).is_some_and(|at| at.elapsed() < ELSEWHERE);
        if is_elsewhere {
            return false;
        }
        let worth_it = totals.seconds() >= LEAST_SECONDS.max(WORTH * optimize_cost(&seen.path));
        // Agents are no part of the command, and overlays are optimized already: those of a batch that runs
        // below this one, too.
        (worth_it || self.options.eager) && seen.path.is_file() && !self.cache.is_made(&seen.path)
    }

    /// At the end of the command: what shows itself to be worth it by now is begun by whoever comes next.
    /// (All of a command may be over before it was looked at for the first time.)
    fn want(&mut self) {
        let Some(observer) = &self.observer else { return };
        let is_wanted = |seen: &&Seen| !is_named(&seen.path, &self.options.exclude) && self.is_worth_it(seen);
        let wanted: Vec<PathBuf> = observer.modules().filter(is_wanted).map(|s| s.path.clone()).collect();
        self.wanted.extend(wanted);
    }

    /// Gives modules that are worth it to the worker.
    fn consider(&mut self, worker: &mut Worker, budget: &Budget, idle_cores: f64) {
        let Some(observer) = &self.observer else { return };
        for seen in observer.modules() {
            if is_named(&seen.path, &self.options.exclude) {
                self.left.entry(seen.path.clone()).or_insert_with(|| "it is excluded".into());
                continue;
            }
            if seen.late > 0 && seen.late == seen.begun {
                self.left.entry(seen.path.clone()).or_insert_with(|| LATE.into());
                continue;
            }
            if self.unseen.remove(&seen.path) && !known::is_known(&self.cache, &seen.path) {
                worker.recognise(seen.path.clone());
            }
            if !self.is_worth_it(seen) {
                continue;
            }
            let haste = match budget.begin(begin_cost(&seen.path)) {
                true => Haste::Ordinary,
                false if idle_cores >= IDLE => Haste::Lowest,
                false => {
                    self.wanted.insert(seen.path.clone());
                    continue;
                }
            };
            self.files.has_changed(&seen.path);
            self.given.insert(seen.path.clone());
            let past = self.past.get(&seen.path).map(Past::places).unwrap_or_default();
            let samples = seen.places.iter().fold(past, |mut sum, (at, n)| {
                *sum.entry(*at).or_default() += n;
                sum
            });
            self.wanted.insert(seen.path.clone());
            worker.module(haste, seen.path.clone(), samples, self.totals(seen).original());
        }
    }

    fn listen(&mut self, worker: &mut Worker, watcher: &mut dyn Watcher) {
        while let Some(message) = worker.message() {
            self.hear(message, watcher);
        }
    }

    fn hear(&mut self, message: Message, watcher: &mut dyn Watcher) {
        match message {
            Message::Counting(path) => {
                watcher.note(&format!("counting runs of {}", path.display()));
                self.wanted.remove(&path);
                self.left.remove(&path);
                self.uncounted.remove(&path);
            }
            Message::Suspended(path) => drop(self.suspended.insert(path)),
            Message::Done(entry) => {
                let done = if entry.layout.is_empty() { "profiled" } else { "optimized" };
                let runs = counted(entry.profiled_runs, "run");
                watcher.note(&format!("{} is {done}, from {runs}", entry.path.display()));
                // Another build may be there by now.
                if self.builds.get(&entry.path).is_none_or(|build| entry.is_of(build)) {
                    self.done.insert(entry.path.clone(), *entry);
                }
            }
            Message::Left(path, why) if why == REPLACED => {
                watcher.note(&format!(
                    "{} was replaced by another build, which is looked at anew",
                    path.display()
                ));
                match self.files.has_changed(&path) {
                    true => self.forget(&path),
                    // That was seen already; it may have been given to the worker since, who knows what he
                    // has got.
                    false => drop(self.given.remove(&path)),
                }
            }
            Message::Left(path, why) => {
                self.uncounted.remove(&path);
                if why == work::BUSY {
                    self.given.remove(&path);
                    self.busy.insert(path.clone(), Instant::now());
                }
                self.left.insert(path, why);
            }
            Message::Uncounted(path, samples) => {
                // It is given to the worker again when there are more.
                self.given.remove(&path);
                self.wanted.remove(&path);
                self.left.insert(path.clone(), work::UNCOUNTED.into());
                self.uncounted.insert(path, samples);
            }
        }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// Whether a profile should be made anew.
fn is_old(entry: &Entry) -> bool {
    now().saturating_sub(entry.profiled_at) > OLD
}
