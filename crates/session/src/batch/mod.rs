//! `batch -- COMMAND`: programs that are too short-lived to be optimized while they run, but run again and again, are optimized
//! between runs (OCOLOS, section V-A).
//!
//! The command runs with the [agent](restitch_preload) preloaded. Meanwhile an [`Observer`](observe) says which modules
//! take the processor's time; of those that are worth it, the next few runs are counted ([`progress`]), an optimized overlay is made
//! ([`work`]), and later runs map it. What was made is kept by build id ([`cache`]) and serves the next command from its first run on.
//!
//! Nothing here may hurt the command: what goes wrong is a note in the report, and the original code runs.

mod budget;
pub mod cache;
pub mod config;
mod observe;
mod progress;
mod report;
mod work;
mod worker;

pub use report::{BatchReport, Left, Optimized, Runs};

use crate::{SessionError, Watcher};
use budget::{Budget, COUNTING_COSTS, IdleCores};
use cache::{Cache, Entry, read_meta};
use observe::{Mode, Observer, Overlays, Seen};
use restitch_layout::LayoutChoice;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use worker::{Haste, Message, Worker};

const POLL: Duration = Duration::from_millis(50);
/// Less time in a module than this, in seconds, is not worth anything.
const LEAST_SECONDS: f64 = 0.5;
/// What an optimization costs: seconds for each byte of the file, as measured with cc1plus (35 MB: 7.8 on an idle machine, twice that on a
/// busy one). Libraries whose runs use less of them take less (libclang-cpp, 71 MB: 8.7; libLLVM, 129 MB: 12.5): what is too much is not spent.
const SECONDS_PER_BYTE: f64 = 8.0 / 35e6;
/// What it costs to begin counting, likewise.
const BEGIN_SECONDS_PER_BYTE: f64 = 3.0 / 35e6;
/// With so many idle cores, work of the lowest priority goes on.
const IDLE: f64 = 0.5;
/// A module has to have used so many times what its optimization costs: what has run long will run on for about as long.
const WORTH: f64 = 2.0;
/// So many samples of at least two whole runs show nearly all functions that run, with those around them.
const ENOUGH_SAMPLES: u64 = 2000;
/// So many whole runs do, however short they are.
const ENOUGH_RUNS: u64 = 4;
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
    /// How many runs count; as many as are useful, if not given.
    pub runs: Option<u64>,
    /// What happens with profiles that are not laid out yet when the command ends.
    pub finish: Finish,
}

/// What happens with profiles that are not laid out yet when the command ends.
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

/// Runs the command to its end, and optimizes what it runs. The command's exit status (as a shell gives it) is in the report.
///
/// # Errors
/// Only if the command cannot be started, or [`BatchOptions::export`] cannot be written. All else is a note, and the command runs as it would without restitch.
pub fn batch(mut options: BatchOptions, watcher: &mut dyn Watcher) -> Result<BatchReport, SessionError> {
    let mut report = BatchReport::default();
    let cache = match Cache::open(options.cache.as_deref()).and_then(|c| c.agent().map(|agent| (c, agent))) {
        Ok(found) => Some(found),
        Err(error) => {
            let note = format!("{error}; the command runs in its original code");
            watcher.note(&note);
            report.notes.push(note);
            None
        }
    };
    let observer = cache.as_ref().and_then(|_| match Observer::start(options.only.clone()) {
        Ok(observer) => Some(observer),
        Err(error) => {
            let note = format!("{error}; nothing new is optimized, what is in the cache is used");
            watcher.note(&note);
            report.notes.push(note);
            None
        }
    });
    if let Some((cache, agent)) = &cache {
        cache.tidy();
        options.command.env("LD_PRELOAD", preload(agent));
    }
    let start = Instant::now();
    let child = spawn(&mut options.command)?;
    match cache {
        Some((cache, _)) => {
            let session = Session {
                cache,
                observer,
                options,
                done: BTreeMap::new(),
                given: BTreeSet::new(),
                left: BTreeMap::new(),
            };
            session.run(child, start, &mut report, watcher)?;
        }
        None => report.status = wait(child, |_| {}),
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// `LD_PRELOAD` with the agent behind what is there.
fn preload(agent: &Path) -> std::ffi::OsString {
    match std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        Some(mut theirs) => {
            theirs.push(":");
            theirs.push(agent);
            theirs
        }
        None => agent.into(),
    }
}

fn spawn(command: &mut Command) -> Result<Child, SessionError> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|e| SessionError::Command { command: name, why: e.to_string() })
}

/// Waits for the command, calling `tick` now and then; its status.
fn wait(mut child: Child, mut tick: impl FnMut(bool)) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            tick(true);
            return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        tick(false);
        std::thread::sleep(POLL);
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
}

impl Session {
    fn run(
        mut self,
        child: Child,
        start: Instant,
        report: &mut BatchReport,
        watcher: &mut dyn Watcher,
    ) -> Result<(), SessionError> {
        let budget = Arc::new(Budget::new(self.cache.kept_budget(), self.options.eager));
        let mut worker = Worker::start(&self.cache, self.options.making, budget.clone());
        let mut idle = IdleCores::default();
        if self.observer.is_some() {
            // An old one stays in force until a new profile can be paid for.
            let dear = |e: &Entry| !budget.take(begin_cost(&e.path));
            let old = self.cache.entries().into_iter().filter(|e| is_old(e) && !e.layout.is_empty());
            old.filter(|e| !dear(e)).for_each(|e| self.cache.retire(&e.build_id));
            self.cache.pending().into_iter().for_each(|entry| {
                self.given.insert(entry.path.clone());
                worker.pending(if self.options.eager { Haste::Ordinary } else { Haste::Lowest }, entry);
            });
        }
        report.status = wait(child, |ended| {
            if let Some(observer) = &mut self.observer {
                observer.poll(&self.cache);
                budget.earn(observer.seconds());
            }
            if !ended {
                self.consider(&mut worker, &budget, idle.now());
            }
            self.listen(&mut worker, watcher);
        });
        report.command_seconds = start.elapsed().as_secs_f64();
        let finish = self.options.making.finish;
        worker.stop(finish == Finish::Wait, |message| self.hear(message, watcher));
        report.own_seconds = own_seconds();
        self.cache.keep_budget(budget.left());
        self.describe(report);
        self.cache.prune(self.options.cache_size);
        report.goes_on = finish == Finish::Background && go_on(&self.cache, self.options.making.layout);
        if let Some(folder) = &self.options.export {
            report.exported = Some(self.cache.export(folder)?);
        }
        Ok(())
    }

    /// Gives modules that are worth it to the worker.
    fn consider(&mut self, worker: &mut Worker, budget: &Budget, idle_cores: f64) {
        let Some(observer) = &self.observer else { return };
        for seen in observer.modules() {
            if is_named(&seen.path, &self.options.exclude) {
                self.left.entry(seen.path.clone()).or_insert_with(|| "it is excluded".into());
                continue;
            }
            if self.given.contains(&seen.path) || seen.overlaid || !is_known(seen) {
                continue;
            }
            // The agent is no part of the command.
            if seen.path.parent() == self.cache.overlay(&[]).parent() {
                continue;
            }
            let worth_it = seen.seconds() >= LEAST_SECONDS.max(WORTH * optimize_cost(&seen.path));
            if !seen.path.is_file() || !(worth_it || self.options.eager) {
                continue;
            }
            // The first run that counts is paid for as well.
            let haste = match budget.take(begin_cost(&seen.path) + COUNTING_COSTS * seen.seconds_per_run()) {
                true => Haste::Ordinary,
                false if idle_cores >= IDLE => Haste::Lowest,
                false => continue,
            };
            self.given.insert(seen.path.clone());
            worker.module(haste, seen.path.clone(), seen.places.clone(), seen.seconds_per_run());
        }
    }

    fn listen(&mut self, worker: &mut Worker, watcher: &mut dyn Watcher) {
        while let Some(message) = worker.message() {
            self.hear(message, watcher);
        }
    }

    fn hear(&mut self, message: Message, watcher: &mut dyn Watcher) {
        match message {
            Message::Counting(path) => watcher.note(&format!("counting runs of {}", path.display())),
            Message::Done(entry) => {
                let done = if entry.layout.is_empty() { "profiled" } else { "optimized" };
                let runs = entry.profiled_runs;
                watcher.note(&format!("{} is {done}, from {runs} runs", entry.path.display()));
                self.done.insert(entry.path.clone(), *entry);
            }
            Message::Left(path, why) => {
                self.left.insert(path, why);
            }
        }
    }

    /// Fills the report in.
    fn describe(&self, report: &mut BatchReport) {
        let Some(observer) = &self.observer else { return };
        report.lost_records = observer.lost();
        let known: BTreeMap<PathBuf, Entry> =
            self.cache.entries().into_iter().map(|e| (e.path.clone(), e)).collect();
        for seen in observer.modules() {
            let optimized = self.done.get(&seen.path).or_else(|| known.get(&seen.path));
            let used = seen.ended.contains_key(&Mode::Optimized);
            match optimized.filter(|_| used || self.done.contains_key(&seen.path)) {
                Some(entry) => {
                    let new = self.done.contains_key(&seen.path);
                    report.optimized.push(Optimized::new(seen, entry, new));
                }
                None => report.left.extend(self.left_alone(seen)),
            }
        }
        report.sort();
    }

    /// Why a module that used some time was not optimized.
    fn left_alone(&self, seen: &Seen) -> Option<Left> {
        if seen.seconds() < LEAST_SECONDS {
            return None;
        }
        let cost = optimize_cost(&seen.path);
        let why = match self.left.get(&seen.path) {
            Some(why) => why.clone(),
            None if self.given.contains(&seen.path) => "the command ended before its runs could be counted".into(),
            None if seen.begun < 2 => "it ran once only; `restitch attach` optimizes long runs".into(),
            None if seen.seconds() < WORTH * cost => {
                format!("to optimize it takes about {cost:.1} s, too much for the time that it used")
            }
            None => "to profile it would have slowed the command down by more than a hundredth, as all cores were busy; a later one will".into(),
        };
        Some(Left { path: seen.path.clone(), seconds: seen.seconds(), runs: seen.begun, why })
    }
}

impl Overlays for Cache {
    fn recognise(&self, path: &Path) -> Option<(PathBuf, Mode)> {
        let id = path.file_name()?.to_str()?.strip_suffix(".overlay")?;
        if path.parent() != self.overlay(&[]).parent() {
            return None;
        }
        // The file may have been replaced since: an optimized overlay follows a counting one.
        let counts = read_meta(path).is_some_and(|m| m.counters_len > 0);
        let mode = if counts { Mode::Counting } else { Mode::Optimized };
        Some((self.path_of(id)?, mode))
    }
}

/// Whether the samples of a module say which of its functions run: those are counted, all others stay in the original code. The samples of
/// a run that has just begun show its start alone (with two begun runs of cc1plus, 5 % of the instructions ran in the version that came of it).
fn is_known(seen: &Seen) -> bool {
    let runs: u64 = seen.ended.values().map(|u| u.runs).sum();
    seen.samples > 0 && (runs >= ENOUGH_RUNS || runs >= 2 && seen.samples >= ENOUGH_SAMPLES)
}

/// Processor seconds that it takes to optimize a module.
fn optimize_cost(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |m| m.len() as f64 * SECONDS_PER_BYTE)
}

/// Processor seconds that it takes until runs of it can count.
fn begin_cost(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |m| m.len() as f64 * BEGIN_SECONDS_PER_BYTE)
}

/// Whether a file has one of these names or paths.
pub(crate) fn is_named(path: &Path, names: &[String]) -> bool {
    names.iter().any(|name| Path::new(name) == path || path.file_name().is_some_and(|n| n == name.as_str()))
}

/// Processor seconds of this process, without the command.
fn own_seconds() -> f64 {
    /// The unit of /proc/PID/stat, on every x86-64 Linux.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(") ").next().unwrap_or_default();
    // utime and stime are the fields 14 and 15; the third one is the first behind the name.
    behind_name.split(' ').skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Starts a process that goes on with what is not laid out yet, and outlives this one; whether there is one.
fn go_on(cache: &Cache, layout: LayoutChoice) -> bool {
    let Ok(own) = std::env::current_exe() else { return false };
    if cache.pending().is_empty() {
        return false;
    }
    let mut command = Command::new(own);
    command
        .args(["cache", "optimize", "--background", "--layout", layout.name(), "--cache"])
        .arg(cache.base());
    // A group of its own: what a terminal sends to the command's is not for it.
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}

/// Lays out what was only profiled; in the `background`, at the lowest priority. What came of each module.
pub fn optimize_pending(
    cache: &Cache,
    layout: LayoutChoice,
    background: bool,
) -> Vec<(PathBuf, Result<Entry, SessionError>)> {
    if background {
        restitch_tracee::be_lowest();
    }
    let mut outcomes = Vec::new();
    for entry in cache.pending() {
        let (path, start) = (entry.path.clone(), worker::cpu_seconds());
        let cost = || worker::cpu_seconds() - start;
        outcomes.push((path, work::optimize_stored(cache, entry, layout, cost)));
    }
    outcomes
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// Whether a profile should be made anew.
fn is_old(entry: &Entry) -> bool {
    now().saturating_sub(entry.profiled_at) > OLD
}
