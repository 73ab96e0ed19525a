//! Who uses the processor: the command and everything that it starts, seen from outside.
//!
//! One sampler on this process, inherited by all that it starts, says which instructions run in which
//! process; the kernel's records of programs that begin and of mappings say which file each of them is in. So
//! it is known of each module (program or library) in how many runs it took part, how much time each run
//! spent in it, and whether that run had an overlay of it. Nothing of this needs the agent.

use crate::trial::{Times, Trial};
use restitch_address::{Avma, AvmaRange, FileOffset};
use restitch_perf::{IpSampler, PerfError, Record, SampleOptions};
use restitch_preload::{HELD_AT, TOLD_AT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Samples of each thread in a second of processor time. A *sample*, wherever they are counted, is one of
/// these: where fewer are taken, each counts for several.
pub(crate) const FREQUENCY: u64 = 250;
/// So many of them are taken in any case.
pub(crate) const FEW: u64 = 50;
/// Processes that use less than this, in nanoseconds, may be too short for a lower frequency: the timer
/// begins anew in each.
const SHORT: u64 = 200_000_000;

/// How a run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// In the original code.
    Original,
    /// Counting.
    Counting,
    /// In the optimized code.
    Optimized,
    /// In the original code, for comparison with the optimized one.
    HeldOut,
}

/// Runs and the samples in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Runs that have ended.
    pub runs: u64,
    /// Samples in them.
    pub samples: u64,
    /// The sum of n * (n - 1), where a run had n samples: see `Totals` (`usage.rs`).
    pub pairs: u64,
    /// By how much the noise of sampling is larger than that of so many samples of one each: the sum of w *
    /// (w - 1), where one that was taken counts for w. (In `pairs` it is left out, as n - 1 leaves out that
    /// of the others.)
    #[serde(default)]
    pub coarse: u64,
}

impl Usage {
    /// Processor seconds in user code.
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / FREQUENCY as f64
    }

    /// Processor seconds in user code of a run; 0 if none has ended.
    pub fn seconds_per_run(&self) -> f64 {
        self.seconds() / self.runs.max(1) as f64
    }

    /// The variance of [`seconds_per_run`](Self::seconds_per_run), in seconds squared: how runs differ, what
    /// sampling adds included. That much at least any count of samples has (Poisson).
    pub fn variance_of_mean(&self) -> f64 {
        let (runs, samples) = (self.runs.max(1) as f64, self.samples as f64);
        let noise = samples + self.coarse as f64;
        let squares = self.pairs as f64 + noise;
        let between = (squares - samples * samples / runs) / (runs - 1.0).max(1.0);
        between.max((noise + 1.0) / runs) / runs / (FREQUENCY as f64).powi(2)
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            runs: self.runs.saturating_add(other.runs),
            samples: self.samples.saturating_add(other.samples),
            pairs: self.pairs.saturating_add(other.pairs),
            coarse: self.coarse.saturating_add(other.coarse),
        }
    }
}

/// What was seen of a module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub path: PathBuf,
    /// Runs that have ended, by how they went.
    pub ended: BTreeMap<Mode, Usage>,
    /// All samples, those of runs that have not ended included.
    pub samples: u64,
    /// Samples of runs that count, those of runs that have not ended included.
    pub counting: u64,
    /// Runs that were begun.
    pub begun: u64,
    /// Of those, the ones in which the program has opened it itself (`dlopen`), when the agent had looked at
    /// all others.
    pub late: u64,
    /// Processor times of whole runs, in user and system: of those that were held out for comparison, and of
    /// optimized ones.
    pub trial: Trial,
    /// A run of it was optimized.
    pub overlaid: bool,
    /// Samples in the original code, by place in the file.
    pub places: BTreeMap<FileOffset, u64>,
    /// The file at the path is another one by now.
    pub replaced: bool,
}

#[derive(Debug, Clone)]
struct Mapping {
    range: AvmaRange,
    offset: FileOffset,
    module: usize,
    /// It is the file itself, not an overlay of it.
    original: bool,
}

#[derive(Debug, Clone, Default)]
struct Process {
    maps: Vec<Mapping>,
    /// By module.
    runs: BTreeMap<usize, Run>,
    /// It has just executed a program, the mapping of which comes next (but for the loader's, if that was
    /// given the program's name).
    is_new: bool,
    /// Its program is one of those that were asked for.
    counts: bool,
    /// The agent has looked at all modules that it was loaded with.
    loaded: bool,
    /// Processor time of its threads that have ended, in nanoseconds.
    nanoseconds: u64,
}

/// A process that has ended, whose processor time is told a little later.
#[derive(Debug, Clone)]
struct Over {
    pid: i32,
    /// Its runs on trial, by module.
    runs: Vec<(usize, Mode)>,
    nanoseconds: u64,
    /// How often records were taken in since.
    polls: u32,
}

/// After so many of them its time is told.
const TOLD_AFTER: u32 = 2;

/// A process's part in the use of a module.
#[derive(Debug, Clone, Copy)]
struct Run {
    mode: Mode,
    samples: u64,
    /// See [`Usage::coarse`].
    coarse: u64,
    /// It began in this process; a forked child goes on in its parent's.
    own: bool,
}

/// What an overlay file is.
pub(crate) trait Overlays {
    /// The module's path and how it runs, if `path` is an overlay.
    fn recognise(&self, path: &Path) -> Option<(PathBuf, Mode)>;
}

/// Observes this process and its descendants.
#[derive(Debug)]
pub(crate) struct Observer {
    /// Tells of programs, mappings and ends, and takes [`FEW`] samples.
    sampler: Option<IpSampler>,
    /// Takes the other samples.
    more: Option<IpSampler>,
    /// Whether it does now.
    takes_more: bool,
    /// Samples that were taken.
    taken: u64,
    own: i32,
    processes: BTreeMap<i32, Process>,
    /// In the order in which they ended.
    over: Vec<Over>,
    modules: Vec<Seen>,
    by_path: BTreeMap<PathBuf, usize>,
    /// Programs whose processes count; all, if empty.
    only: Vec<String>,
    lost: u64,
    /// Nanoseconds of short processes that have ended.
    short: u64,
}

impl Observer {
    /// Begins. What this process starts from now on is observed; with `only`, only what programs of these
    /// names (or paths) run.
    ///
    /// # Errors
    /// If sampling is not permitted.
    pub fn start(only: Vec<String>) -> Result<Self, PerfError> {
        let own = std::process::id() as i32;
        let options =
            SampleOptions { event: restitch_perf::SampleEvent::CpuClock, ..SampleOptions::default() };
        // Changing a frequency would not do: the kernel exchanges the events of processes that have inherited
        // alike ones, with the frequency that they began with. But closing reaches them all.
        let others = SampleOptions { frequency: FREQUENCY - FEW, tasks: false, ring_pages: 16, ..options };
        // Where there may be no more events or rings, one takes all samples, as long as the command runs.
        // (This one first: the other makes do with a smaller ring.)
        let more = IpSampler::open(&[own], others).ok();
        let frequency = if more.is_some() { FEW } else { FREQUENCY };
        let sampler =
            IpSampler::open(&[own], SampleOptions { frequency, times: true, ring_pages: 256, ..options })?;
        Ok(Self { sampler: Some(sampler), more, ..Self::of(own, only) })
    }

    fn of(own: i32, only: Vec<String>) -> Self {
        let (processes, modules, by_path) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let over = Vec::new();
        Self {
            sampler: None,
            more: None,
            takes_more: true,
            taken: 0,
            own,
            over,
            processes,
            modules,
            by_path,
            only,
            lost: 0,
            short: 0,
        }
    }

    /// Takes only [`FEW`] samples from now on, if others are taken by an event of their own.
    pub fn take_few(&mut self) {
        if self.more.take().is_some() {
            self.takes_more = false;
        }
    }

    /// Processor seconds, in user and system, of short processes that have ended.
    pub fn short_seconds(&self) -> f64 {
        self.short as f64 / 1e9
    }

    /// What can be read when there is so much to take in that it should be done soon.
    pub fn fullness(&self) -> Vec<OwnedFd> {
        // Failing, it is taken in when it is time.
        self.sampler.as_ref().and_then(|sampler| sampler.fullness().ok()).unwrap_or_default()
    }

    /// Takes in what has happened since the last time.
    pub fn poll(&mut self, overlays: &impl Overlays) {
        let mut records = self.more.as_mut().map(IpSampler::drain).unwrap_or_default();
        // Behind the samples of the other one: what these lie in is told here.
        records.extend(self.sampler.iter_mut().flat_map(IpSampler::drain));
        records.sort_by_key(Record::time);
        records.into_iter().for_each(|record| self.take(record, overlays));
        self.over.iter_mut().for_each(|over| over.polls += 1);
        self.settle(TOLD_AFTER);
    }

    /// The command is over: nothing more comes.
    pub fn finish(&mut self) {
        self.settle(0);
    }

    /// Adds the times of processes that ended so many polls ago.
    fn settle(&mut self, polls: u32) {
        for over in self.over.extract_if(.., |over| over.polls >= polls) {
            // Now and then the kernel tells nothing.
            if over.nanoseconds == 0 {
                continue;
            }
            self.short += if over.nanoseconds < SHORT { over.nanoseconds } else { 0 };
            for (module, mode) in over.runs {
                let trial = &mut self.modules[module].trial;
                let times: &mut Times =
                    if mode == Mode::HeldOut { &mut trial.held_out } else { &mut trial.optimized };
                times.add(over.nanoseconds as f64 / 1e9);
            }
        }
    }

    /// Samples that were taken, of whatever runs.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// What was seen, by module.
    pub fn modules(&self) -> impl Iterator<Item = &Seen> {
        self.modules.iter().filter(|m| !m.replaced)
    }

    /// What was seen, also of modules that were [replaced](Self::replace), which come before those that have
    /// replaced them.
    pub fn all_modules(&self) -> &[Seen] {
        &self.modules
    }

    /// The file at `path` is another module from here on; what was seen of the one before. Processes that
    /// have mapped that go on in it.
    pub fn replace(&mut self, path: &Path) -> Option<&Seen> {
        let before = &mut self.modules[self.by_path.remove(path)?];
        before.replaced = true;
        Some(before)
    }

    /// Processor seconds in user code of everything that was seen.
    pub fn seconds(&self) -> f64 {
        self.modules.iter().map(|m| m.samples).sum::<u64>() as f64 / FREQUENCY as f64
    }

    /// Records that did not fit into the kernel's ring.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn take(&mut self, record: Record, overlays: &impl Overlays) {
        match record {
            Record::Sample(sample) if sample.pid != self.own => self.sample(sample.pid, sample.ip),
            Record::Mmap { pid, range, offset, path, .. } if pid != self.own => {
                self.map(pid, range, offset, &path, overlays);
            }
            Record::Fork { pid, parent_pid, .. } if pid != parent_pid => {
                let mut child = self.processes.get(&parent_pid).cloned().unwrap_or_default();
                child.nanoseconds = 0;
                let inherited = |run: &mut Run| *run = Run { samples: 0, coarse: 0, own: false, ..*run };
                child.runs.values_mut().for_each(inherited);
                self.processes.insert(pid, child);
            }
            Record::Exec { pid, .. } if pid != self.own => self.exec(pid),
            Record::Exit { pid, tid, .. } if pid == tid => self.over(pid),
            Record::Time { pid, value, .. } => self.time(pid, value),
            Record::Lost { count } => self.lost += count,
            _ => {}
        }
    }

    fn sample(&mut self, pid: i32, ip: Avma) {
        self.taken += 1;
        let weight = if self.takes_more { 1 } else { FREQUENCY / FEW };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(mapping) = process.maps.iter().rev().find(|m| m.range.contains(ip)) else { return };
        if !process.counts {
            return;
        }
        let seen = &mut self.modules[mapping.module];
        seen.samples += weight;
        if mapping.original {
            let place = mapping.offset + ip.offset_from(mapping.range.start) as u64;
            *seen.places.entry(place).or_default() += weight;
        }
        if let Some(run) = process.runs.get_mut(&mapping.module) {
            run.samples += weight;
            run.coarse += weight * (weight - 1);
            seen.counting += if run.mode == Mode::Counting { weight } else { 0 };
        }
    }

    fn map(&mut self, pid: i32, range: AvmaRange, offset: FileOffset, path: &Path, overlays: &impl Overlays) {
        if !path.is_absolute() {
            return;
        }
        if is_loader(path) {
            return;
        }
        if offset.get() == HELD_AT
            && let Some((path, Mode::Optimized)) = overlays.recognise(path)
        {
            let module = self.module(&path);
            let run = self.processes.get_mut(&pid).and_then(|p| p.runs.get_mut(&module));
            run.into_iter().for_each(|run| run.mode = Mode::HeldOut);
            return;
        }
        if is_told(path, offset) {
            self.processes.entry(pid).or_default().loaded = true;
            return;
        }
        let overlay = overlays.recognise(path);
        let (module, mode) = match &overlay {
            Some((path, mode)) => (self.module(path), *mode),
            None => (self.module(path), Mode::Original),
        };
        // The version is mapped first, from the file's beginning. It is taken away again where no run may
        // count any more; the code pages that follow are not.
        let is_in_force = overlay.is_some() && offset.get() > 0;
        self.modules[module].overlaid |= is_in_force && mode == Mode::Optimized;
        let is_asked_for = self.asked_for(&self.modules[module].path);
        let process = self.processes.entry(pid).or_default();
        if std::mem::take(&mut process.is_new) {
            process.counts = is_asked_for;
        }
        let begins = !process.runs.contains_key(&module);
        let run = process.runs.entry(module).or_insert(Run {
            mode: Mode::Original,
            samples: 0,
            coarse: 0,
            own: true,
        });
        if is_in_force {
            run.mode = mode;
        }
        process.maps.push(Mapping { range, offset, module, original: overlay.is_none() });
        self.modules[module].late += u64::from(begins && process.loaded);
        self.modules[module].begun += u64::from(begins);
    }

    /// Everything that was there before the program is gone.
    fn exec(&mut self, pid: i32) {
        self.end(pid);
        self.processes.insert(pid, Process { is_new: true, ..Process::default() });
    }

    fn asked_for(&self, path: &Path) -> bool {
        self.only.is_empty() || super::names::is_named(path, &self.only)
    }

    fn module(&mut self, path: &Path) -> usize {
        if let Some(&known) = self.by_path.get(path) {
            return known;
        }
        self.modules.push(Seen { path: path.into(), ..Seen::default() });
        self.by_path.insert(path.into(), self.modules.len() - 1);
        self.modules.len() - 1
    }

    /// A process has ended.
    fn over(&mut self, pid: i32) {
        let Some(process) = self.processes.get(&pid).filter(|p| p.counts) else { return self.end(pid) };
        let is_on_trial = |run: &Run| run.own && matches!(run.mode, Mode::HeldOut | Mode::Optimized);
        let runs = process.runs.iter().filter(|(_, run)| is_on_trial(run)).map(|(m, run)| (*m, run.mode));
        self.over.push(Over { pid, runs: runs.collect(), nanoseconds: process.nanoseconds, polls: 0 });
        self.end(pid);
    }

    /// A thread of a process has ended, which has used so many nanoseconds.
    fn time(&mut self, pid: i32, nanoseconds: u64) {
        let over = self.over.iter_mut().rev().find(|over| over.pid == pid).map(|o| &mut o.nanoseconds);
        let slot = over.or_else(|| self.processes.get_mut(&pid).map(|p| &mut p.nanoseconds));
        slot.into_iter().for_each(|sum| *sum += nanoseconds);
    }

    fn end(&mut self, pid: i32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        for (module, run) in process.runs {
            let usage = self.modules[module].ended.entry(run.mode).or_default();
            usage.runs += u64::from(run.own);
            usage.samples += run.samples;
            usage.pairs += (run.samples * run.samples).saturating_sub(run.samples + run.coarse);
            usage.coarse += run.coarse;
        }
    }
}

/// Whether the agent says that everything is loaded.
fn is_told(path: &Path, offset: FileOffset) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    offset.get() == TOLD_AT && name.is_some_and(|n| n.starts_with("librestitch-"))
}

/// Whether a file is a dynamic loader, by its name.
fn is_loader(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    name.starts_with("ld-linux") || name.starts_with("ld-musl") || name.starts_with("ld-2.")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use restitch_perf::Sample;
    use restitch_procfs::Device;

    struct Named;
    impl Overlays for Named {
        fn recognise(&self, path: &Path) -> Option<(PathBuf, Mode)> {
            path.ends_with("a.overlay").then(|| ("/bin/a".into(), Mode::Optimized))
        }
    }

    fn map(pid: i32, start: u64, path: &str) -> Record {
        let (range, offset) = (AvmaRange::new(Avma::new(start), 0x1000), FileOffset::new(0x1000));
        Record::Mmap {
            pid,
            tid: pid,
            range,
            offset,
            device: Device::default(),
            inode: 1,
            path: path.into(),
            time: 0,
        }
    }

    fn exec(pid: i32) -> Record {
        Record::Exec { pid, time: 0 }
    }

    fn sample(pid: i32, ip: u64) -> Record {
        Record::Sample(Sample {
            pid,
            tid: pid,
            ip: Avma::new(ip),
            time: 0,
            callers: Vec::new(),
            branches: Vec::new(),
        })
    }

    /// An observer that has seen two programs begin, `a` and `b`.
    pub(in super::super) fn observed() -> Observer {
        let mut observer = Observer::of(1, Vec::new());
        for (pid, path) in [(10, "/bin/a"), (11, "/bin/b")] {
            [exec(pid), map(pid, 0x1000, path)].into_iter().for_each(|r| observer.take(r, &Named));
        }
        observer
    }

    /// Takes so many samples of one of them.
    pub(in super::super) fn sample_more(observer: &mut Observer, program: i32, samples: u64) {
        (0..samples).for_each(|_| observer.take(sample(10 + program, 0x1010), &Named));
    }

    fn seen<'o>(observer: &'o Observer, path: &str) -> &'o Seen {
        observer.modules().find(|m| m.path == Path::new(path)).unwrap()
    }

    #[test]
    fn what_a_program_opens_itself_is_told_from_what_it_is_loaded_with() {
        let mut observer = Observer::of(1, Vec::new());
        let told = |pid| {
            let (range, offset) = (AvmaRange::new(Avma::new(0x2000), 0x1000), FileOffset::new(TOLD_AT));
            let path = "/cache/v1/librestitch-x86_64.so".into();
            Record::Mmap { pid, tid: pid, range, offset, device: Device::default(), inode: 1, path, time: 0 }
        };
        let program = |pid| {
            let loader = map(pid, 0x9000, "/lib/ld-linux-x86-64.so.2");
            [
                exec(pid),
                map(pid, 0x5000, "/bin/a"),
                loader,
                map(pid, 0x7000, "/lib/l.so"),
                told(pid),
                map(pid, 0x8000, "/lib/p.so"),
            ]
        };
        let records = program(10).into_iter().chain([map(10, 0x8800, "/lib/p.so")]);
        // A second program in the same process is loaded anew.
        let fork = Record::Fork { pid: 11, tid: 11, parent_pid: 10, time: 0 };
        let other = [exec(11), map(11, 0x5000, "/bin/b"), map(11, 0x9000, "/lib/ld-linux-x86-64.so.2")];
        let records = records.chain([fork]).chain(program(11)).chain(program(11)).chain(other);
        records.for_each(|r| observer.take(r, &Named));
        let late = |path| (seen(&observer, path).late, seen(&observer, path).begun);
        assert_eq!((late("/bin/a"), late("/lib/l.so"), late("/lib/p.so")), ((0, 3), (0, 3), (3, 3)));
        assert_eq!(late("/bin/b"), (0, 1));
        assert!(observer.modules().all(|m| !m.path.starts_with("/cache")));
    }

    #[test]
    fn times_of_runs_on_trial_are_told_when_they_have_ended() {
        let mut observer = Observer::of(1, Vec::new());
        let exit = |pid| Record::Exit { pid, tid: pid, time: 0 };
        let held = |pid| {
            let (range, offset) = (AvmaRange::new(Avma::new(0x2000), 0x1000), FileOffset::new(HELD_AT));
            Record::Mmap {
                pid,
                tid: pid,
                range,
                offset,
                device: Device::default(),
                inode: 1,
                path: "/a.overlay".into(),
                time: 0,
            }
        };
        let time = |pid, tid, value| Record::Time { pid, tid, value, time: 0 };
        let program = |pid| {
            let fork = Record::Fork { pid, tid: pid, parent_pid: 9, time: 0 };
            [fork, exec(pid), map(pid, 0x5000, "/bin/a"), map(pid, 0x9000, "/lib/ld-linux-x86-64.so.2")]
        };
        // One is held out, one is optimized and has a second thread, one is neither, and of one nothing is
        // told.
        let mut records: Vec<Record> = [10, 11, 12, 13].into_iter().flat_map(program).collect();
        records.extend([held(10), map(11, 0x5000, "/a.overlay"), map(13, 0x5000, "/a.overlay")]);
        records.extend([sample(10, 0x5010), time(11, 111, 500_000_000)]);
        records.extend([10, 11, 12, 13].map(exit));
        records.extend([
            time(10, 10, 2_000_000_000),
            time(11, 11, 500_000_000),
            time(11, 11, 0),
            time(12, 12, 7),
        ]);
        records.into_iter().for_each(|r| observer.take(r, &Named));
        observer.finish();
        let a = seen(&observer, "/bin/a");
        let one = |seconds: f64| Times { runs: 1, seconds, squares: seconds * seconds };
        assert_eq!((a.trial.held_out, a.trial.optimized), (one(2.0), one(1.0)));
        assert_eq!(a.ended[&Mode::HeldOut], Usage { runs: 1, samples: 1, ..Usage::default() });
        assert_eq!((a.ended[&Mode::Optimized].runs, a.ended[&Mode::Original].runs), (2, 1));
    }

    #[test]
    fn few_samples_count_for_many() {
        let usage = |takes_more: bool, samples: u64| {
            let mut observer = Observer { takes_more, ..Observer::of(1, Vec::new()) };
            observer.take(exec(10), &Named);
            observer.take(map(10, 0x1000, "/bin/b"), &Named);
            (0..samples).for_each(|i| observer.take(sample(10, 0x1000 + i), &Named));
            observer.take(Record::Exit { pid: 10, tid: 10, time: 0 }, &Named);
            let b = seen(&observer, "/bin/b");
            assert_eq!((observer.taken(), b.places.values().sum()), (samples, b.samples));
            b.ended[&Mode::Original]
        };
        let (many, few) = (usage(true, 3), usage(false, 3));
        assert_eq!((many, many.coarse), (Usage { runs: 1, samples: 3, pairs: 6, coarse: 0 }, 0));
        assert_eq!(few, Usage { runs: 1, samples: 15, pairs: 6 * 25, coarse: 3 * 20 });
        // Of the same time, a fifth of the samples knows less: five times the variance.
        let (fine, rough) = (usage(true, 100), usage(false, 20));
        assert_eq!(fine.samples, rough.samples);
        let ratio = rough.variance_of_mean() / fine.variance_of_mean();
        assert!((4.5..5.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_run_that_may_not_count_any_more_is_one_in_the_original_code() {
        let mut observer = Observer::of(1, Vec::new());
        let exit = Record::Exit { pid: 10, tid: 10, time: 0 };
        let (range, offset) = (AvmaRange::new(Avma::new(0x3000), 0x1000), FileOffset::new(0));
        // The agent takes the version away again, which no record says, and leaves the code pages.
        let version = Record::Mmap {
            pid: 10,
            tid: 10,
            range,
            offset,
            device: Device::default(),
            inode: 1,
            path: "/a.overlay".into(),
            time: 0,
        };
        let program = [exec(10), map(10, 0x5000, "/bin/a"), map(10, 0x9000, "/lib/ld-linux-x86-64.so.2")];
        let records = program.into_iter().chain([version, sample(10, 0x5010), exit]);
        records.for_each(|r| observer.take(r, &Named));
        let a = seen(&observer, "/bin/a");
        let usage = Usage { runs: 1, samples: 1, ..Usage::default() };
        assert_eq!((a.ended.clone(), a.overlaid), (BTreeMap::from([(Mode::Original, usage)]), false));
        assert_eq!(a.places.len(), 1);
    }

    #[test]
    fn programs_without_a_loader_and_loaders_that_are_given_a_program_begin_runs() {
        let mut observer = Observer::of(1, vec!["b".into()]);
        let shell = [exec(10), map(10, 0x1000, "/bin/sh"), map(10, 0x9000, "/lib/ld-linux-x86-64.so.2")];
        let fixed = [exec(10), map(10, 0x5000, "/bin/a"), sample(10, 0x5010), map(10, 0x6000, "/lib/l.so")];
        let given = [exec(10), map(10, 0x9000, "/lib/ld-linux-x86-64.so.2"), map(10, 0x5000, "/bin/b")];
        let ends = [sample(10, 0x5010), Record::Exit { pid: 10, tid: 10, time: 0 }];
        shell.into_iter().chain(fixed).chain(given).chain(ends).for_each(|r| observer.take(r, &Named));
        let of = |path| {
            let seen = seen(&observer, path);
            (seen.begun, seen.late, seen.samples, seen.ended[&Mode::Original].runs)
        };
        assert_eq!((of("/bin/sh"), of("/lib/l.so")), ((1, 0, 0, 1), (1, 0, 0, 1)));
        // Only one of them was asked for.
        assert_eq!((of("/bin/a"), of("/bin/b")), ((1, 0, 0, 1), (1, 0, 1, 1)));
    }

    #[test]
    fn runs_are_told_apart_by_what_is_mapped() {
        let mut observer = Observer::of(1, Vec::new());
        let fork = |pid, parent_pid| Record::Fork { pid, tid: pid, parent_pid, time: 0 };
        let exit = |pid| Record::Exit { pid, tid: pid, time: 0 };
        let records = [
            // A shell starts `a` twice, the second time with an overlay, and both use a library.
            exec(10),
            map(10, 0x1000, "/bin/sh"),
            map(10, 0x9000, "/lib/ld-linux-x86-64.so.2"),
            sample(10, 0x1010),
            fork(11, 10),
            exec(11),
            map(11, 0x5000, "/bin/a"),
            map(11, 0x9000, "/lib/ld-linux-x86-64.so.2"),
            map(11, 0x7000, "/lib/l.so"),
            sample(11, 0x5010),
            sample(11, 0x7010),
            sample(11, 0x1010),
            exit(11),
            fork(12, 10),
            exec(12),
            map(12, 0x5000, "/bin/a"),
            map(12, 0x9000, "/lib/ld-linux-x86-64.so.2"),
            map(12, 0x3000, "/cache/a.overlay"),
            map(12, 0x5000, "/cache/a.overlay"),
            sample(12, 0x3010),
            sample(12, 0x5010),
            exit(12),
        ];
        records.into_iter().for_each(|r| observer.take(r, &Named));
        let usage = |runs, samples| Usage { runs, samples, pairs: samples * (samples.max(1) - 1), coarse: 0 };
        let a = seen(&observer, "/bin/a");
        assert_eq!(a.ended, BTreeMap::from([(Mode::Original, usage(1, 1)), (Mode::Optimized, usage(1, 2))]));
        assert_eq!((a.begun, a.samples), (2, 3));
        assert_eq!(a.places, BTreeMap::from([(FileOffset::new(0x1010), 1)]));
        assert_eq!(seen(&observer, "/lib/l.so").ended[&Mode::Original], usage(1, 1));
        // What was mapped before the exec is not there any more; the children's parts are no runs.
        assert_eq!(seen(&observer, "/bin/sh").samples, 1);
        assert_eq!(seen(&observer, "/bin/sh").ended[&Mode::Original], usage(0, 0));
    }
}
