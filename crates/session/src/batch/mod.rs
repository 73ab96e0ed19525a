//! `batch -- COMMAND`: programs that are too short-lived to be optimized while they run, but run again and again, are optimized
//! between runs (OCOLOS, section V-A).
//!
//! The command runs with the [agent](restitch_preload) preloaded. Meanwhile an [`Observer`](observe) says which modules
//! take the processor's time; of those that are worth it, the next few runs are counted ([`progress`]), an optimized overlay is made
//! ([`work`]), and later runs map it. What was made is kept by build id ([`cache`]) and serves the next command from its first run on.
//!
//! Nothing here may hurt the command: what goes wrong is a note in the report, and the original code runs.

pub mod cache;
pub mod config;
mod observe;
mod progress;
mod report;
mod work;
mod worker;

pub use report::{BatchReport, Left, Optimized, Runs};

use crate::{SessionError, Watcher};
use cache::{Cache, Entry, read_meta};
use observe::{Mode, Observer, Overlays, Seen};
use restitch_layout::LayoutChoice;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use worker::{Message, Worker};

const POLL: Duration = Duration::from_millis(50);
/// Less time in a module than this, in seconds, is not worth anything.
const LEAST_SECONDS: f64 = 0.5;
/// What an optimization costs: seconds for each byte of the file (cc1plus, 33 MB, takes about six).
const SECONDS_PER_BYTE: f64 = 6.0 / 33e6;
/// A module has to have used so many times what its optimization costs: what has run long will run on for about as long.
const WORTH: f64 = 2.0;
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
    /// How to lay out.
    pub layout: LayoutChoice,
    /// Where to copy agent and overlays to in the end.
    pub export: Option<PathBuf>,
    /// Largest size of the cache in bytes.
    pub cache_size: u64,
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
        let mut worker = Worker::start(self.cache.clone(), self.options.layout);
        if self.observer.is_some() {
            self.cache.entries().iter().filter(|e| is_old(e)).for_each(|e| self.cache.retire(&e.build_id));
            self.cache.pending().into_iter().for_each(|entry| {
                self.given.insert(entry.path.clone());
                worker.pending(entry);
            });
        }
        report.status = wait(child, |ended| {
            if let Some(observer) = &mut self.observer {
                observer.poll(&self.cache);
            }
            if !ended {
                self.consider(&mut worker);
            }
            self.listen(&mut worker, watcher);
        });
        report.command_seconds = start.elapsed().as_secs_f64();
        report.own_seconds = worker.stop(|message| self.hear(message, watcher));
        self.describe(report);
        self.cache.prune(self.options.cache_size);
        if let Some(folder) = &self.options.export {
            report.exported = Some(self.cache.export(folder)?);
        }
        Ok(())
    }

    /// Gives modules that are worth it to the worker.
    fn consider(&mut self, worker: &mut Worker) {
        let Some(observer) = &self.observer else { return };
        for seen in observer.modules() {
            if is_named(&seen.path, &self.options.exclude) {
                self.left.entry(seen.path.clone()).or_insert_with(|| "it is excluded".into());
                continue;
            }
            if self.given.contains(&seen.path) || seen.begun < 2 || seen.samples == 0 {
                continue;
            }
            let Ok(file) = std::fs::metadata(&seen.path) else { continue };
            let cost = file.len() as f64 * SECONDS_PER_BYTE;
            let worth_it = seen.seconds() >= LEAST_SECONDS.max(WORTH * cost);
            if !file.is_file() || !(worth_it || self.options.eager) {
                continue;
            }
            self.given.insert(seen.path.clone());
            worker.module(seen.path.clone(), seen.places.clone(), seen.seconds_per_run());
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
        let size = std::fs::metadata(&seen.path).map_or(0, |m| m.len());
        let cost = size as f64 * SECONDS_PER_BYTE;
        let why = match self.left.get(&seen.path) {
            Some(why) => why.clone(),
            None if seen.begun < 2 => "it ran once only; `restitch attach` optimizes long runs".into(),
            None if seen.seconds() < WORTH * cost => {
                format!("to optimize it takes about {cost:.1} s, too much for the time that it used")
            }
            None => "the command ended before its runs could be counted".into(),
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

/// Whether a file has one of these names or paths.
pub(crate) fn is_named(path: &Path, names: &[String]) -> bool {
    names.iter().any(|name| Path::new(name) == path || path.file_name().is_some_and(|n| n == name.as_str()))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// Whether a profile should be made anew.
fn is_old(entry: &Entry) -> bool {
    now().saturating_sub(entry.profiled_at) > OLD
}
