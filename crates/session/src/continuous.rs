//! `attach --continuous`: lays out again when the process works in another way than is known (OCOLOS, section
//! IV-C; docs/design/continuous.md).
//!
//! Between the rounds nothing is changed but that retired versions go when nobody is in them any more
//! (`retired_versions.rs`): a few samples a second say how the process works (`program_phases.rs`), and no
//! lock is held, so it can be reverted at any time, which ends the session.

use crate::attach::{Attached, attach_round};
use crate::attach_job::Round;
use crate::attach_options::AttachOptions;
use crate::program_phases::{Finding, ProgramPhases, Seen};
use crate::retired_versions::RetiredVersions;
use crate::stable_locations::StableLocations;
use restitch_apply_process::VersionKind;
use restitch_pipeline::ExitCode;
use restitch_pipeline::PipelineError;
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_processes::process_set::ProcessSet;
use restitch_processes::sampling::{IpSamples, Sampling};
use restitch_procfs as procfs;
use restitch_report::{self as report, Outcome, RunResult};
use restitch_tracee::AskedToEnd;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to do.
#[derive(Debug, Clone)]
pub struct ContinuousOptions {
    /// Each round.
    pub attach: AttachOptions,
    /// Between the end of a round and the beginning of the next one passes at least so long.
    pub rest: Duration,
    /// Samples a second and running thread meanwhile.
    pub frequency: u64,
}

/// Samples of a set that is compared.
const SET: u64 = 400;
/// A set takes so long at least: what a program does differs from second to second.
const LEAST: Duration = Duration::from_secs(2);
/// After so long it is looked at which processes, modules and versions there are.
const LOOK: Duration = Duration::from_secs(10);
/// So many looks may fail one after another: processes come and go.
const MOST_BLINKS: u32 = 20;
/// Where samples are dear, so much longer than a set takes nothing is looked at behind one of known work, and
/// at most so long.
const PAUSE: u32 = 9;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Whether the session is to end is looked at so often.
const STEP: Duration = Duration::from_millis(250);
/// So many rounds may fail one after another.
const MOST_FAILURES: u32 = 5;

/// Why there is a round.
#[derive(Debug, Clone, PartialEq)]
enum Cause {
    First,
    Other,
    Outside { now: f64, before: f64 },
    Replaced,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::First => write!(f, "the session began"),
            Self::Other => write!(f, "the process works in a way that was not known"),
            Self::Outside { now, before } => write!(
                f,
                "less of the work is done in the new layout: {:.0} % of it, after {:.0} %",
                100.0 * now,
                100.0 * before
            ),
            Self::Replaced => write!(f, "the processes that worked were replaced"),
        }
    }
}

/// What comes after some time of watching.
enum Next {
    Round(Cause),
    End(End),
}

/// Why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Asked,
    Process,
    Program,
    /// By another session.
    Changed,
}

impl End {
    fn why(self) -> &'static str {
        match self {
            Self::Asked => "it was asked to end",
            Self::Process => "the process has ended",
            Self::Program => "the process has executed another program",
            Self::Changed => "another restitch has changed the process",
        }
    }
}

/// Optimizes the process, and again whenever it works in another way than is known, until it ends, or
/// `is_asked` to end, or another session changes it. After each round that has come to something, and at the
/// end, `told` gets the result of the last one with all rounds.
///
/// # Errors
/// Those of [`attach`](crate::attach()) in the first round, but for [`PipelineError::NothingToDo`]: a process
/// that is idle may work later. Later ones only if several rounds fail one after another; what the process
/// has then is told by the error.
pub fn continuous(
    options: &ContinuousOptions,
    is_asked: &dyn Fn() -> bool,
    told: &mut dyn FnMut(&RunResult),
    watcher: &mut dyn Watcher,
) -> Result<RunResult, SessionError> {
    let mut session = Session::begin(options);
    let mut cause = Cause::First;
    let end = loop {
        if let Some(end) = session.round(&cause, told, watcher)? {
            break end;
        }
        match session.watch(is_asked, watcher)? {
            Next::Round(next) => cause = next,
            Next::End(end) => break end,
        }
    };
    session.finish(end, told)
}

struct Session<'a> {
    options: &'a ContinuousOptions,
    begun: Instant,
    phases: ProgramPhases,
    locations: StableLocations,
    /// The process that leads the set.
    leader: i32,
    rounds: Vec<report::Round>,
    samples: u64,
    /// Of the last round that came to something.
    result: Option<RunResult>,
    /// The last round has put a layout in force.
    in_force: bool,
    failures: u32,
    /// So often it could not be looked at the processes, one time after another.
    blinks: u32,
    /// Samples cost the processes nothing else than their time: those that often wait are not slowed down.
    is_cheap: Cell<bool>,
}

/// A set of samples, as far as it has come. Modules have other numbers when processes are looked at anew.
struct Sample {
    begun: Instant,
    total: u64,
    in_versions: u64,
    seen: Seen,
}

impl Sample {
    fn begin() -> Self {
        Self { begun: Instant::now(), total: 0, in_versions: 0, seen: Seen::default() }
    }

    fn add(&mut self, samples: &IpSamples, seen: &Seen) {
        self.total += samples.total;
        self.in_versions += samples.in_versions;
        self.seen.learn(seen);
    }
}

/// What is watched, since the last round.
struct Watch {
    set: ProcessSet,
    /// What it ran, and was in, at the beginning.
    program: PathBuf,
    versions: BTreeSet<u32>,
    since: Instant,
    so_far: Sample,
    retired: RetiredVersions,
    /// Nothing was said of it yet.
    is_first: bool,
    /// The processes are as they were, and at work.
    can_sample: bool,
}

impl Watch {
    fn begin(set: ProcessSet, is_first: bool) -> Self {
        let (program, versions) = (program_of(&set), in_force(&set));
        let (so_far, retired) = (Sample::begin(), RetiredVersions::begin());
        Self { set, program, versions, since: Instant::now(), so_far, retired, is_first, can_sample: false }
    }
}

impl<'a> Session<'a> {
    fn begin(options: &'a ContinuousOptions) -> Self {
        Self {
            options,
            begun: Instant::now(),
            phases: ProgramPhases::default(),
            locations: StableLocations::default(),
            leader: options.attach.pid,
            rounds: Vec::new(),
            samples: 0,
            result: None,
            in_force: false,
            failures: 0,
            blinks: 0,
            is_cheap: Cell::new(true),
        }
    }

    /// Optimizes. Gives a reason to end, if there is one.
    fn round(
        &mut self,
        cause: &Cause,
        told: &mut dyn FnMut(&RunResult),
        watcher: &mut dyn Watcher,
    ) -> Result<Option<End>, SessionError> {
        if *cause != Cause::First {
            watcher.note(&format!("{cause}: it is optimized again"));
        }
        let (at, begun) = (self.begun.elapsed(), Instant::now());
        let earlier = self.phases.profiles();
        let attached = attach_round(&self.options.attach, Round::Of(&earlier), watcher);
        let round = report::Round {
            at_seconds: at.as_secs_f64(),
            seconds: begun.elapsed().as_secs_f64(),
            why: cause.to_string(),
            outcome: Outcome::NothingToDo,
            error: None,
            verdict: None,
        };
        self.in_force = attached.as_ref().is_ok_and(|attached| attached.result.outcome == Outcome::InForce);
        match attached {
            Ok(attached) => {
                self.succeeded(attached, round, told);
                Ok(None)
            }
            Err(error) => self.failed(error, cause, round, watcher),
        }
    }

    /// Learns from a round that has come to something, and tells of it.
    fn succeeded(&mut self, attached: Attached, mut round: report::Round, told: &mut dyn FnMut(&RunResult)) {
        let seen = self.locations.of(&attached.modules, &attached.samples);
        self.phases.optimized(seen, attached.expected, attached.counted);
        self.failures = 0;
        let mut result = attached.result;
        self.leader = result.target.pid.map_or(self.leader, |pid| pid as i32);
        (round.outcome, round.verdict) = (result.outcome, result.verdict.clone());
        self.rounds.push(round);
        result.continuous = Some(self.summary(None));
        told(&result);
        self.result = Some(result);
    }

    /// Goes on after a round that has failed, or ends.
    fn failed(
        &mut self,
        error: SessionError,
        cause: &Cause,
        mut round: report::Round,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<End>, SessionError> {
        // One that worked for the named process has ended: others may come in its place.
        let named = self.options.attach.pid;
        let is_replaced =
            matches!(&error, SessionError::Ended { pid, .. } if *pid != named && is_alive(named));
        let is_idle = is_replaced || matches!(error, SessionError::Pipeline(PipelineError::NothingToDo(_)));
        let is_asked = matches!(error, SessionError::Interrupted { .. });
        // What rounds before have come to is told also where it was asked to end in this one.
        let is_all = if is_asked { self.result.is_none() } else { *cause == Cause::First && !is_idle };
        if is_all {
            return Err(error);
        }
        round.error = Some(error.to_string());
        self.rounds.push(round);
        if !is_alive(self.options.attach.pid) {
            return Ok(Some(End::Process));
        }
        watcher.note(&error.to_string());
        if is_asked {
            return Ok(Some(End::Asked));
        }
        if *cause != Cause::First {
            self.phases.not_optimized();
        }
        self.failures += u32::from(!is_idle);
        if self.failures >= MOST_FAILURES { Err(error) } else { Ok(None) }
    }

    /// Watches until there is a reason to do something.
    fn watch(
        &mut self,
        is_asked: &dyn Fn() -> bool,
        watcher: &mut dyn Watcher,
    ) -> Result<Next, SessionError> {
        watcher.phase("watching", None);
        let set = match ProcessSet::open_to_look(self.leader, self.options.attach.tree) {
            Err(_) if !is_alive(self.leader) => return Ok(self.without_leader()),
            set => set?,
        };
        let mut watch = Watch::begin(set, self.in_force);
        if self.in_force && watch.versions.is_empty() {
            return Ok(self.changed());
        }
        loop {
            if is_asked() {
                return Ok(Next::End(End::Asked));
            }
            if let Some(next) = self.look(&mut watch)? {
                return Ok(next);
            }
            if watch.can_sample
                && let Some(sample) = self.sampled(&mut watch, is_asked)?
                && let Some(cause) = self.judged(&mut watch, sample, is_asked, watcher)
                && self.rested(watch.since)
            {
                return Ok(Next::Round(cause));
            }
        }
    }

    /// Looks whether the processes are those that they were, and in what they were.
    fn look(&mut self, watch: &mut Watch) -> Result<Option<Next>, SessionError> {
        watch.can_sample = false;
        if !is_alive(self.leader) {
            // A worker that is replaced leaves others, who may be on their way still.
            if !is_alive(self.options.attach.pid) || self.rested(watch.since) {
                return Ok(Some(self.without_leader()));
            }
            std::thread::sleep(STEP);
            return Ok(None);
        }
        if let Err(error) = watch.set.look_again() {
            return self.blink(error).map(|()| None);
        }
        if program_of(&watch.set) != watch.program {
            return Ok(Some(Next::End(End::Program)));
        }
        if in_force(&watch.set) != watch.versions {
            return Ok(Some(self.changed()));
        }
        watch.can_sample = !watch.retired.tidy(&watch.set);
        Ok(None)
    }

    /// What there is to do when the leader has ended.
    fn without_leader(&self) -> Next {
        let pid = self.options.attach.pid;
        let is_replaced = self.leader != pid && is_alive(pid);
        if is_replaced { Next::Round(Cause::Replaced) } else { Next::End(End::Process) }
    }

    /// What there is to do when the process is in other versions than it was left in.
    fn changed(&self) -> Next {
        if has_memory(self.leader) { Next::End(End::Changed) } else { self.without_leader() }
    }

    /// Takes samples for a while; the set of them once it is complete.
    fn sampled(
        &mut self,
        watch: &mut Watch,
        is_asked: &dyn Fn() -> bool,
    ) -> Result<Option<Sample>, SessionError> {
        let so_far = &mut watch.so_far;
        let wanted = SET.saturating_sub(so_far.total);
        let new = match self.take(&watch.set, wanted, so_far.begun + LEAST, is_asked) {
            Ok(new) => new,
            Err(error) => return self.blink(error).map(|()| None),
        };
        self.blinks = 0;
        so_far.add(&new, &self.locations.of(&watch.set.leader.target().modules, &new));
        if so_far.total < SET || so_far.begun.elapsed() < LEAST {
            return Ok(None);
        }
        self.samples += so_far.total;
        Ok(Some(std::mem::replace(so_far, Sample::begin())))
    }

    /// Why a set of samples asks for another round, if it does.
    fn judged(
        &mut self,
        watch: &mut Watch,
        sample: Sample,
        is_asked: &dyn Fn() -> bool,
        watcher: &mut dyn Watcher,
    ) -> Option<Cause> {
        let inside = sample.in_versions as f64 / sample.total as f64;
        match self.phases.look(&sample.seen, inside) {
            Finding::Known => {
                if std::mem::take(&mut watch.is_first) {
                    watcher.note(&format!("{:.0} % of the work is done in the new layout", 100.0 * inside));
                }
                if !self.is_cheap.get() {
                    self.pause(sample.begun.elapsed() * PAUSE, is_asked);
                    watch.so_far = Sample::begin();
                }
                None
            }
            Finding::Unsure => None,
            Finding::Other => Some(Cause::Other),
            Finding::Outside { now, before } => Some(Cause::Outside { now, before }),
        }
    }

    /// The processes could not be looked at: they come and go.
    fn blink(&mut self, error: SessionError) -> Result<(), SessionError> {
        self.blinks += 1;
        std::thread::sleep(STEP);
        if is_alive(self.leader) && self.blinks > MOST_BLINKS { Err(error) } else { Ok(()) }
    }

    /// Does nothing for a while, at most [`LONGEST_PAUSE`].
    fn pause(&self, time: Duration, is_asked: &dyn Fn() -> bool) {
        let end = Instant::now() + time.min(LONGEST_PAUSE);
        while Instant::now() < end && !is_asked() && is_alive(self.leader) {
            std::thread::sleep(STEP);
        }
    }

    fn rested(&self, since: Instant) -> bool {
        since.elapsed() >= self.options.rest
    }

    /// Takes samples for a while: until there are as many as are `wanted`, and at least until a moment.
    fn take(
        &self,
        set: &ProcessSet,
        wanted: u64,
        until: Instant,
        is_asked: &dyn Fn() -> bool,
    ) -> Result<IpSamples, SessionError> {
        let mut sampling = Sampling::watching(set, self.options.frequency)?;
        self.is_cheap.set(sampling.is_of_machine());
        let begun = Instant::now();
        while begun.elapsed() < LOOK && (sampling.samples().total < wanted || Instant::now() < until) {
            if is_asked() || !set.leader_is_alive() {
                break;
            }
            sampling.step(STEP);
        }
        sampling.finish()
    }

    fn summary(&self, ended: Option<String>) -> report::Continuous {
        report::Continuous {
            rounds: self.rounds.clone(),
            seconds: self.begun.elapsed().as_secs_f64(),
            samples: self.samples,
            sample_sets: self.phases.sets(),
            program_phases: self.phases.len() as u64,
            ended,
        }
    }

    /// The result of all.
    fn finish(mut self, end: End, told: &mut dyn FnMut(&RunResult)) -> Result<RunResult, SessionError> {
        let left = Left::of(self.leader);
        let summary = self.summary(Some(ended(end, self.leader, &left)));
        let Some(mut result) = self.result.take() else { return Err(self.without_result(end, &left)) };
        let is_lost = matches!(left, Left::Original) && result.outcome == Outcome::InForce;
        if end == End::Changed || end != End::Program && is_lost {
            result.outcome = Outcome::Reverted;
            result.exit_code = ExitCode::TakenBack.number();
        }
        if let Some(signal) = AskedToEnd::signal().filter(|_| end == End::Asked) {
            result.exit_code = ExitCode::of_signal(signal).number();
        }
        result.continuous = Some(summary);
        told(&result);
        Ok(result)
    }

    /// Why there is no result. A layout may be in force all the same: one that was there before.
    fn without_result(&self, end: End, left: &Left) -> SessionError {
        let pid = self.leader;
        let why = self.rounds.last().and_then(|round| round.error.clone()).unwrap_or_default();
        match (end, heed()) {
            (End::Asked, Err(SessionError::Interrupted { signal, .. })) => {
                let then = format!("{}, and nothing was optimized before: {why}", left.told(pid));
                SessionError::Interrupted { signal, then }
            }
            (End::Process, _) => {
                SessionError::Ended { pid, when: format!("before anything was optimized: {why}") }
            }
            (End::Program, _) => SessionError::Executed { pid },
            _ => {
                SessionError::nothing_to_do(format!("{}, and nothing was optimized before: {why}", end.why()))
            }
        }
    }
}

/// What a process is left in.
#[derive(Debug)]
enum Left {
    /// A layout is in force.
    Layout,
    /// Its original code.
    Original,
    /// It has ended, or is about to: it has no memory any more.
    Nothing,
    /// It could not be looked at.
    Unknown(SessionError),
}

impl Left {
    fn of(pid: i32) -> Self {
        match ProcessSet::open_to_look(pid, false).map(|set| in_force(&set).is_empty()) {
            Ok(false) => Self::Layout,
            _ if !has_memory(pid) => Self::Nothing,
            Ok(true) => Self::Original,
            Err(error) => Self::Unknown(error),
        }
    }

    /// In words.
    fn told(&self, pid: i32) -> String {
        match self {
            Self::Layout => format!("the layout that is active in process {pid} stays"),
            Self::Original => format!("process {pid} has its original code"),
            Self::Nothing => format!("process {pid} has ended"),
            Self::Unknown(error) => format!(
                "whether a layout is active in process {pid} could not be seen ({error}); `restitch status` tells"
            ),
        }
    }
}

/// Why the session of process `pid` has ended, and what stays behind where that is not plain.
fn ended(end: End, pid: i32, left: &Left) -> String {
    match (end, left) {
        (End::Asked, Left::Layout) => format!("{}; the layout stays", end.why()),
        (End::Asked, Left::Original) => format!("{}; {}", end.why(), left.told(pid)),
        (End::Asked | End::Changed, Left::Unknown(_)) => format!("{}; {}", end.why(), left.told(pid)),
        _ => end.why().into(),
    }
}

/// Whether the process has memory: one that is ending has none any more, though it is there. (What cannot be
/// looked at has some.)
fn has_memory(pid: i32) -> bool {
    procfs::maps(pid).map_or_else(|error| !error.is_gone(), |maps| !maps.is_empty())
}

fn is_alive(pid: i32) -> bool {
    procfs::status(pid).is_ok() && !procfs::has_ended(pid)
}

/// Path of the leader's program.
fn program_of(set: &ProcessSet) -> PathBuf {
    let target = set.leader.target();
    target.modules[target.program].path.clone()
}

/// Numbers of the leader's versions that new code may go to.
fn in_force(set: &ProcessSet) -> BTreeSet<u32> {
    let versions = set.leader.journal().versions.iter();
    versions.filter(|v| !v.retired && v.kind == VersionKind::Optimized).map(|v| v.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_looked_at_in_the_end_is_told() {
        let unknown = || Left::Unknown(SessionError::nothing_to_do("too many open files"));
        let told = ended(End::Asked, 7, &unknown());
        assert!(told.starts_with(End::Asked.why()), "{told}");
        assert!(
            ["could not be seen", "too many open files", "restitch status"].iter().all(|w| told.contains(w))
        );
        assert!(ended(End::Changed, 7, &unknown()).contains("too many open files"));
        // Nothing is left of those.
        assert_eq!(ended(End::Process, 7, &unknown()), End::Process.why());
        assert_eq!(ended(End::Program, 7, &unknown()), End::Program.why());
        assert!(ended(End::Asked, 7, &Left::Layout).ends_with("the layout stays"));
        assert!(ended(End::Asked, 7, &Left::Original).ends_with("process 7 has its original code"));
    }

    #[test]
    fn what_a_process_is_left_in_is_looked_at() {
        let own = std::process::id() as i32;
        assert!(matches!(Left::of(own), Left::Original), "{:?}", Left::of(own));
        assert!(matches!(Left::of(i32::MAX), Left::Nothing), "{:?}", Left::of(i32::MAX));
    }
}
