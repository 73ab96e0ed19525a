//! `record --source burst`: a profile from bursts in tracing versions ([`restitch_trace::trace_bursts`]).
//!
//! Instruction pointers pick the functions; tracing versions of them, of those around them and of the linkage
//! tables are mapped beside the modules, checked like every version; threads are put into them for a moment
//! each. Where bursts end tells what else has to be copied: the first versions only probe for that.
//! Afterwards the versions go again.
//!
//! A command stands still while its code is analysed, at its entry point. A small one needs no more: all of
//! its code is copied there and then, and it is traced from its beginning on. A large one has to run to be
//! sampled, and stands still again while versions are made ([`restitch_processes::hold`]). So all of its run
//! but the sampling is there to be traced, however long versions take to make. A process runs meanwhile, and
//! that work is done with what it leaves of the processors ([`restitch_tracee::aside`]), for as long as that
//! is fast enough.
//!
//! A command may execute other programs (`env`, `nice`, a script's `exec`): each is recorded in its turn.

use crate::branch_records::BranchRecords;
use crate::burst_members::{IDLE, LOOK_AGAIN, Members};
use crate::burst_scope::{BurstScope, candidates, has_its_libraries};
use crate::burst_versions::{Versions, make_tracing};
use crate::period::Period;
use crate::trace_record::TraceRecordOptions;
use crate::trace_record::TraceSubject;
use crate::trace_record::{exit_status, in_processes, launch_holding};
use restitch_address::{Avma, AvmaRange};
use restitch_apply_process::{ProcessError, VersionKind};
use restitch_pipeline::ExitCode;
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::departure::or_departure;
use restitch_processes::hold::holding;
use restitch_processes::interrupt::heed;
use restitch_processes::modules::{Analyses, Chosen, analyze, choose};
use restitch_processes::no_file::{met_in_no_file, samples_in_no_file};
use restitch_processes::process_family::at_work;
use restitch_processes::process_set::{ProcessSet, process_of, refuse_unchangeable};
use restitch_processes::refusal::{refuse_all, refuse_shadow_stack};
use restitch_processes::sampling::sample;
use restitch_processes::unfinished::or_given_back;
use restitch_trace::{BurstEnd, BurstOptions, BurstReport};
use restitch_tracee::{AskedToEnd, aside};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What came of it.
#[derive(Debug)]
pub struct Bursts {
    /// The tracer's figures, all rounds together; where bursts ended is of the last one.
    pub report: BurstReport,
    /// The rounds: probing ones, in which what is copied still grows, and the last one.
    pub rounds: Vec<BurstRound>,
    /// Branches that were in no module.
    pub elsewhere: u64,
    /// Branches in the vdso.
    pub in_vdso: u64,
    /// The estimated share of the branches executed meanwhile that the profile knows, 0 to 1 (sample
    /// coverage).
    pub coverage: f64,
    /// The command's exit status as a shell gives it, if a command was traced.
    pub status: Option<i32>,
    /// Modules in the profile.
    pub modules: usize,
    /// Bytes of tracing versions.
    pub mapped: u64,
    /// Where most of the bursts that did not become full came to code that has no copy, most frequent first.
    pub ended_at: Vec<(String, u64)>,
    /// Where most alarms found threads in code that has no copy.
    pub refused_at: Vec<(String, u64)>,
    /// Why something of them had to stay in the process, if it had.
    pub kept: Option<String>,
}

/// A tracing version's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstRound {
    /// Blocks that it copies.
    pub blocks: usize,
    /// Bursts.
    pub bursts: u64,
    /// Branches in a burst, on average.
    pub mean_length: f64,
    /// How long the version took to make, check and map.
    pub made: Duration,
}

/// How long instruction pointers are sampled, at least and at most.
const SAMPLING: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(5));
/// A program that a command has executed is looked at this often, and is opened once it has the libraries
/// that it names and nothing has come in between; after so long it is opened as it is. (What is mapped later
/// gets no copy: it is recorded in no burst.)
const SETTLING: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// So many places that ended bursts are named.
const MOST_ENDS: usize = 6;
/// Tracing versions at most. (A program may come to other code at any time: all its life it is looked whether
/// another version would help.)
const MOST_ROUNDS: usize = 8;
/// How long a version is used before it is looked whether bursts could be longer: at first, and at most. It
/// doubles each time that nothing is gained.
const PROBING: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(8));
/// Making versions may take as long as there is time to trace. A command, which has no such time and stands
/// still meanwhile, waits so long before there is no more probing.
const MAKING: Duration = Duration::from_secs(20);
/// For so long at least, and at most, work for a process is done with what it leaves of the processors; of
/// the time that there is to trace, a half at most.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Bursts of this share of the wanted length are long enough.
const LONG_ENOUGH: f64 = 0.9;
/// Bursts are not made shorter than this: half of what they cost would be their beginnings.
const SHORTEST: u64 = 500;
/// Fewer bursts do not tell how long they should be.
const ENOUGH: u64 = 20;
/// A version is worth its making if it copies the code at which this share of the bursts ended that came to
/// code without a copy.
const WORTHWHILE: f64 = 0.1;

/// Records bursts, and writes the profile file whole or not at all.
///
/// # Errors
/// [`SessionError`]. The process runs in its original code; what could not be taken out again is in its
/// journal.
pub fn record_bursts(options: TraceRecordOptions, watcher: &mut dyn Watcher) -> Result<Bursts, SessionError> {
    restitch_pipeline::disk::check_writable(&options.output.path)?;
    let mut records = BranchRecords::for_output(&options.output);
    let mut tracing = Tracing::within(options.how.overhead, options.how.depth);
    let period = options.how.period.map(Period::time).transpose()?;
    tracing.options.period = period.map(|time| time.as_nanos() as u64);
    let (mut launched, mut family) = (None, None);
    let (mut set, prepared, duration) = match options.subject {
        TraceSubject::Process(pid, duration) => {
            let set = open_running(pid, false)?;
            records.open(set.leader.target().pid())?;
            (set, Prepared::default(), Some(duration))
        }
        TraceSubject::Tree(named, duration) => {
            let family = family.insert(at_work(named, true, watcher));
            family.warnings().iter().for_each(|told| watcher.note(told));
            let set = open_running(family.leader, true)?;
            set.left_out().iter().for_each(|told| watcher.note(told));
            records.open(set.leader.target().pid())?;
            (set, Prepared::default(), Some(duration))
        }
        TraceSubject::Command(command) => {
            watcher.phase("analysing", None);
            // All that has to be known of it is looked up while it is held: a short one has ended a moment
            // later.
            let (process, prepared) = launch_holding(command, |process| {
                records.open(process.pid)?;
                prepare(process.pid)
            })?;
            launched = Some(process);
            let (set, prepared) = prepared?;
            (set, prepared, None)
        }
    };
    let pid = set.leader.target().pid();
    let mut traced = one_program(&mut set, prepared, duration, tracing.clone(), &mut records, watcher);
    let (mut set, mut before) = (Some(set), Traced::default());
    let goes_on = |set: &mut ProcessSet| {
        duration.is_none() && AskedToEnd::signal().is_none() && set.leader.target().has_executed()
    };
    while let Some(gone) = set.take_if(goes_on) {
        // Whatever went wrong, it was in a program that is no more.
        before.go_on(traced.unwrap_or_default());
        drop(gone);
        watcher.phase("analysing", None);
        traced = open_executed(pid, &mut records).and_then(|(opened, prepared)| {
            one_program(set.insert(opened), prepared, duration, tracing.clone(), &mut records, watcher)
        });
    }
    let is_over = |error: &SessionError| set.as_ref().is_none_or(|set| has_ended(set, error));
    let traced = match traced {
        Ok(last) => {
            before.go_on(last);
            Ok(before)
        }
        // The last program was a short one.
        Err(error) if is_over(&error) && !before.rounds.is_empty() => Ok(before),
        Err(error) if set.is_none() && error.exit_code() == ExitCode::Vanished => {
            Err(too_little_of_command())
        }
        Err(error) => Err(error),
    };
    let traced = traced.map_err(|error| match &family {
        Some(family) => family.explain(error),
        None => error,
    });
    watcher.phase("analysing", None);
    let status = traced.as_ref().ok().zip(launched).map(|(t, process)| exit_status(t.report.exit, process));
    // What was mapped into a process that has ended is for nobody, whatever came of it.
    if let Some(set) = set.as_ref().filter(|set| !set.leader_is_alive()) {
        set.leader.forget_ended();
    }
    let (traced, status) = (traced?, status.transpose()?);
    traced.report.missed.told().iter().for_each(|told| watcher.note(told));
    let (modules, elsewhere, in_vdso) = (records.modules(), records.elsewhere, records.in_vdso());
    if modules == 0 {
        heed()?;
        let unknown = set.as_ref().and_then(|set| in_unknown_code(set, &traced.report));
        let too_little =
            || set.as_ref().map_or_else(too_little_of_command, |set| too_little(set, duration.is_none()));
        return Err(unknown.unwrap_or_else(too_little));
    }
    let ended_at = most(&records, pid, &traced.report.ended_at);
    let refused_at = most(&records, pid, &traced.report.refused_at);
    let coverage = records.coverage();
    if set.is_some_and(|set| set.is_tree()) {
        watcher.note(&in_processes(&records));
    }
    records.save(&options.output, watcher)?;
    let Traced { report, rounds, mapped, kept, .. } = traced;
    Ok(Bursts {
        ended_at,
        refused_at,
        report,
        rounds,
        elsewhere,
        in_vdso,
        coverage,
        status,
        modules,
        mapped,
        kept,
    })
}

/// Traces the program that the process executes. Whatever comes in between, it has its original code then.
fn one_program(
    set: &mut ProcessSet,
    prepared: Prepared,
    duration: Option<Duration>,
    tracing: Tracing,
    records: &mut BranchRecords,
    watcher: &mut dyn Watcher,
) -> Result<Traced, SessionError> {
    or_given_back(set, watcher, |set, watcher| {
        let traced = trace_process(set, prepared, duration, tracing, records, watcher);
        traced.map_err(|error| if duration.is_some() { or_departure(error, set) } else { error })
    })
}

/// Opens a command again that executes another program by now, once that has mapped its libraries. What it
/// does until then is not recorded.
fn open_executed(pid: i32, records: &mut BranchRecords) -> Result<(ProcessSet, Prepared), SessionError> {
    records.told_executed(pid);
    let begun = Instant::now();
    let mut mapped = Vec::new();
    loop {
        let now = code_of(pid)?;
        let is_late = begun.elapsed() > SETTLING.1;
        let is_settled = now == mapped && !now.is_empty();
        mapped = now;
        if is_settled || is_late {
            let opened = holding(pid, || {
                records.open(pid)?;
                let set = open(pid, false)?;
                let is_whole = is_late || has_its_libraries(set.leader.target());
                is_whole.then(|| prepare_in(set)).transpose()
            });
            match opened {
                Ok(Some(opened)) => return Ok(opened),
                Ok(None) => mapped.clear(),
                // It may execute yet another one by now.
                Err(_) if begun.elapsed() <= SETTLING.1 => {}
                Err(error) => return Err(error),
            }
        }
        std::thread::sleep(SETTLING.0);
    }
}

/// Where the process has code of files.
fn code_of(pid: i32) -> Result<Vec<AvmaRange>, SessionError> {
    let maps = restitch_procfs::maps(pid)?;
    Ok(maps.iter().filter(|m| m.permissions.execute && m.inode != 0).map(|m| m.range).collect())
}

/// Whether an error says no more than that the process has ended, or is just ending: it has no memory any
/// more then, and is not yet dead for as long as it gets no processor.
fn has_ended(set: &ProcessSet, error: &SessionError) -> bool {
    error.exit_code() == ExitCode::Vanished || !set.leader_is_alive()
}

/// Why there is nothing, and what gives more.
fn too_little(set: &ProcessSet, is_command: bool) -> SessionError {
    let pid = set.leader.target().pid();
    if is_command {
        return too_little_of_command();
    }
    if !set.leader_is_alive() {
        let when = "before its tracing versions were ready; `record --source burst -- COMMAND` holds a command until \
                    they are, `--source trace` needs none";
        return SessionError::Ended { pid, when: when.into() };
    }
    let why = format!("process {pid} used too little CPU time to be traced; try again under load");
    SessionError::nothing_to_do(why)
}

/// That alarms found most threads in no module's code, if they did.
fn in_unknown_code(set: &ProcessSet, report: &BurstReport) -> Option<SessionError> {
    let target = set.leader.target();
    let places = || report.refused_at.iter().chain(&report.ended_at);
    let outside = places().filter(|(at, _)| target.module_at(**at).is_none()).map(|(at, n)| (*at, *n));
    met_in_no_file(target.pid(), outside, places().map(|(_, n)| n).sum())
}

fn too_little_of_command() -> SessionError {
    SessionError::nothing_to_do(
        "the command used too little CPU time for bursts (a large one needs 0.4 seconds, to find its hot code); \
         `--source trace` records from a program's first instruction on",
    )
}

/// Opens a running process, if it can be changed at all.
fn open_running(pid: i32, tree: bool) -> Result<ProcessSet, SessionError> {
    refuse_unchangeable(pid)?;
    open(pid, tree)
}

/// Opens a process, and takes out what an earlier session may have left.
fn open(pid: i32, tree: bool) -> Result<ProcessSet, SessionError> {
    let pid = process_of(pid)?;
    refuse_shadow_stack(pid)?;
    let mut set = ProcessSet::open_to_change(pid, tree)?;
    refuse_all(set.leader.target())?;
    set.room_for_more()?;
    Ok(set)
}

/// What was done for a command before it ran: nothing, for a process.
#[derive(Default)]
struct Prepared {
    /// Analyses of the code that may be traced.
    ready: Analyses,
    /// All code of a small program, and its versions.
    whole: Option<(BurstScope, Versions)>,
}

/// What can be done for a command before it runs: all code that may be traced is analysed, and copied if it
/// is not too much.
fn prepare(pid: i32) -> Result<(ProcessSet, Prepared), SessionError> {
    prepare_in(open(pid, false)?)
}

/// The same where it is open.
fn prepare_in(set: ProcessSet) -> Result<(ProcessSet, Prepared), SessionError> {
    let ready = analyze(&set, candidates(&set));
    let scope = match BurstScope::whole(&set, ready)? {
        Ok(scope) => scope,
        Err(ready) => return Ok((set, Prepared { ready, whole: None })),
    };
    match make_tracing(&set, &scope) {
        Ok(versions) => Ok((set, Prepared { ready: Analyses::new(), whole: Some((scope, versions)) })),
        // There may be room for less.
        Err(SessionError::Process(ProcessError::NoRoom { .. })) => {
            let ready = analyze(&set, candidates(&set));
            Ok((set, Prepared { ready, whole: None }))
        }
        Err(error) => Err(error),
    }
}

/// Samples, traces, and takes the tracing versions out again. Without a `duration` it is a command, to its
/// end.
fn trace_process(
    set: &mut ProcessSet,
    prepared: Prepared,
    duration: Option<Duration>,
    tracing: Tracing,
    records: &mut BranchRecords,
    watcher: &mut dyn Watcher,
) -> Result<Traced, SessionError> {
    if set.all().any(|live| !live.journal().is_empty()) {
        set.tell_taken_out(watcher);
        set.switch(&[], VersionKind::Burst, watcher)?;
        set.reclaim().iter().for_each(|kept| watcher.note(&kept.to_string()));
    }
    trace_original(set, prepared, duration, tracing, records, watcher)
}

/// The same where nothing of restitch is in the process.
fn trace_original(
    set: &mut ProcessSet,
    prepared: Prepared,
    duration: Option<Duration>,
    tracing: Tracing,
    records: &mut BranchRecords,
    watcher: &mut dyn Watcher,
) -> Result<Traced, SessionError> {
    let Prepared { mut ready, whole } = prepared;
    let is_command = duration.is_none();
    if whole.is_some() {
        return trace_and_take_out(
            set,
            Code { chosen: Vec::new(), ready, whole, is_command },
            None,
            tracing,
            records,
            watcher,
        );
    }
    let sampling = duration.map_or(SAMPLING.0, |d| d / 4).clamp(SAMPLING.0, SAMPLING.1);
    watcher.phase("sampling", Some(sampling.as_secs_f64()));
    let choice = sample(set, sampling).and_then(|samples| {
        watcher.phase("analysing", None);
        let choice = meanwhile(set, is_command, patience(duration), || choose(set, &samples, &mut ready))??;
        let in_no_file = || samples_in_no_file(set.leader.target().pid(), &samples);
        if choice.0.is_empty() { in_no_file().map_or(Ok(choice), Err) } else { Ok(choice) }
    });
    let chosen = match choice {
        // It has ended: whatever could not be done then is no error of its own.
        Err(error) if has_ended(set, &error) => return Err(too_little(set, is_command)),
        choice => choice?.0,
    };
    let rest = duration.map(|d| d.saturating_sub(sampling).max(SAMPLING.0));
    trace_and_take_out(set, Code { chosen, ready, whole: None, is_command }, rest, tracing, records, watcher)
}

/// How long there is to wait for processors that have nothing else to do, if there are `left` to trace.
fn patience(left: Option<Duration>) -> Duration {
    (left.unwrap_or_default() / 2).clamp(PATIENCE.0, PATIENCE.1)
}

/// Does `work` for a process: a command is held meanwhile, another runs on and has the processors for as long
/// as there is `patience`.
fn meanwhile<T: Send>(
    set: &ProcessSet,
    is_command: bool,
    patience: Duration,
    work: impl FnOnce() -> T + Send,
) -> Result<T, SessionError> {
    let pid = set.leader.target().pid();
    if is_command {
        return Ok(holding(pid, work));
    }
    let no_thread = |source| restitch_trace::BranchTraceError::Thread { pid, source };
    Ok(aside(patience, work).map_err(no_thread)?)
}

/// How bursts are taken.
#[derive(Debug, Clone)]
pub struct Tracing {
    options: BurstOptions,
    /// Nobody has said how long they shall be.
    may_shorten: bool,
}

impl Tracing {
    /// At a price of `overhead`, as long as `depth` says, or as suits the program.
    pub fn within(overhead: f64, depth: Option<usize>) -> Self {
        let usual = BurstOptions::default();
        let options = BurstOptions { overhead, depth: depth.unwrap_or(usual.depth), ..usual };
        Self { options, may_shorten: depth.is_none() }
    }
}

/// What is known of the code that is to be traced.
pub struct Code {
    /// Modules with samples.
    chosen: Vec<Chosen>,
    /// Analyses of others.
    ready: Analyses,
    /// Or all code, and its versions.
    whole: Option<(BurstScope, Versions)>,
    /// Whether it is that of a command, which may be held.
    is_command: bool,
}

impl Code {
    /// The code of a process that runs on whatever is done.
    pub fn of_process(chosen: Vec<Chosen>) -> Self {
        Self { chosen, ready: Analyses::new(), whole: None, is_command: false }
    }
}

/// Traces in a set that is open, in the code that sampling has chosen, for `rest` or to the end of the
/// process, and takes the tracing versions out again.
///
/// # Errors
/// [`SessionError`]. The process runs in its original code; what could not be taken out again is in its
/// journal.
pub fn trace_and_take_out(
    set: &mut ProcessSet,
    code: Code,
    rest: Option<Duration>,
    mut tracing: Tracing,
    records: &mut BranchRecords,
    watcher: &mut dyn Watcher,
) -> Result<Traced, SessionError> {
    refuse_shadow_stack(set.leader.target().pid())?;
    let is_command = code.is_command;
    tracing.options.is_own = is_command;
    let (scope, versions) = match code.whole {
        Some((scope, versions)) => (scope, Some(versions)),
        None => {
            let scope = || BurstScope::new(set, code.chosen, code.ready);
            (meanwhile(set, is_command, patience(rest), scope)??, None)
        }
    };
    if scope.modules.is_empty() {
        return Err(scope.left_out().unwrap_or_else(|| too_little(set, is_command)));
    }
    watcher.phase("tracing", rest.map(|d| d.as_secs_f64()));
    let (traced, making) = (Traced::default(), Duration::ZERO);
    let members = Members::default();
    let mut rounds = Rounds {
        scope,
        versions,
        members,
        rest,
        is_command,
        tracing,
        traced,
        making,
        last_mean: 0.0,
        last: Ends::default(),
    };
    let result = rounds.all(set, records);
    rounds.members.refused().for_each(|why| watcher.note(&why));
    let mut traced = rounds.traced;
    if result.is_err() || traced.report.bursts.contains_key(&BurstEnd::Gone) {
        set.leader.distrust_tracing();
    }
    let kept = take_out(set, watcher);
    result?;
    traced.kept = kept?;
    Ok(traced)
}

/// What tracing has given.
#[derive(Debug, Default)]
pub struct Traced {
    /// The tracer's figures.
    pub report: BurstReport,
    rounds: Vec<BurstRound>,
    /// Where bursts of the last time came to code without a copy, and where alarms found threads in such
    /// code.
    places: BTreeMap<Avma, u64>,
    mapped: u64,
    /// Why something of the tracing versions had to stay in the process, if it had.
    pub kept: Option<String>,
}

impl Traced {
    /// Adds what the next program of a command has given: sums, but places are of the later one.
    fn go_on(&mut self, later: Self) {
        self.report.add(later.report);
        self.rounds.extend(later.rounds);
        (self.places, self.mapped, self.kept) = (later.places, self.mapped.max(later.mapped), later.kept);
    }
}

/// Tracing in one version after the other.
struct Rounds {
    scope: BurstScope,
    /// What the first round needs, where it is there already.
    versions: Option<Versions>,
    /// Who is recorded.
    members: Members,
    /// Time that is left.
    rest: Option<Duration>,
    /// It stands still while versions are made.
    is_command: bool,
    tracing: Tracing,
    traced: Traced,
    /// How long versions have been made.
    making: Duration,
    /// Branches in a burst of the last time, on average.
    last_mean: f64,
    /// How bursts ended the last time.
    last: Ends,
}

/// How bursts have ended.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    all: u64,
    /// With all of their records.
    full: u64,
    /// Branches in all of them.
    branches: u64,
}

/// How many records a burst of up to `depth` should have. Between two system calls, which end it, a burst may
/// begin anywhere and runs on to the second one: what comes late is in more bursts than what comes early.
/// Bursts that are short beside that distance have everything as often. Where most bursts have all of their
/// records, the distance is longer than they are.
fn unbiased_depth(ends: &Ends, depth: usize) -> usize {
    if ends.all < ENOUGH || 4 * ends.full > 3 * ends.all {
        return depth;
    }
    // (docs/design/bursts.md says how long they are, and why.)
    (ends.branches / ends.all / 5).max(SHORTEST) as usize
}

impl Rounds {
    fn all(&mut self, set: &mut ProcessSet, records: &mut BranchRecords) -> Result<(), SessionError> {
        loop {
            match self.one(set, records) {
                // What has been recorded is worth keeping; of nothing, nothing is.
                Ok(true) if AskedToEnd::signal().is_some() => return Ok(()),
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // Its end has come between two rounds.
                Err(error) if !has_ended(set, &error) => return Err(error),
                Err(_) if !self.traced.rounds.is_empty() => return Ok(()),
                Err(_) => return Err(too_little(set, self.is_command)),
            }
        }
    }

    /// Makes a version and traces in it: for some time, if bursts may become longer, else to the end. False
    /// if that was all.
    fn one(&mut self, set: &mut ProcessSet, records: &mut BranchRecords) -> Result<bool, SessionError> {
        heed()?;
        let begun = Instant::now();
        let (is_command, patience) = (self.is_command, patience(self.rest));
        let versions = match self.versions.take() {
            Some(versions) => versions,
            None => meanwhile(set, is_command, patience, || make_tracing(set, &self.scope))??,
        };
        self.scope.is_made();
        self.members.map(set, &versions, is_command, records)?;
        let made = begun.elapsed();
        self.making += made;
        if !self.traced.rounds.is_empty() {
            set.reclaim();
        }
        self.traced.mapped = versions.of.iter().map(|(_, v)| v.loaded_len).sum();
        self.traced.rounds.push(BurstRound { blocks: self.scope.len(), bursts: 0, mean_length: 0.0, made });
        self.last = Ends::default();
        let mut slice = PROBING.0;
        while self.may_grow(slice) {
            if self.trace(set, &versions, Some(slice), records)? {
                return Ok(false);
            }
            let places = std::mem::take(&mut self.traced.places);
            if self.last_mean < LONG_ENOUGH * self.tracing.options.depth as f64
                && meanwhile(set, is_command, patience, || self.scope.grow(set, &places))?? > WORTHWHILE
            {
                return Ok(true);
            }
            // What ends them is not for want of copies.
            self.shorten();
            slice = (2 * slice).min(PROBING.1);
        }
        while self.tracing.may_shorten
            && self.last.all < ENOUGH
            && self.rest.is_none_or(|rest| rest > 2 * slice)
        {
            if self.trace(set, &versions, Some(slice), records)? {
                return Ok(false);
            }
            self.shorten();
            slice = (2 * slice).min(PROBING.1);
        }
        let rest = self.rest;
        self.trace(set, &versions, rest, records)?;
        Ok(false)
    }

    /// Makes bursts shorter if they end early as it is.
    fn shorten(&mut self) {
        if self.tracing.may_shorten {
            let depth = self.tracing.options.depth;
            self.tracing.options.depth = depth.min(unbiased_depth(&self.last, depth));
        }
    }

    /// Whether another version may be made after a `slice` of time in this one.
    fn may_grow(&self, slice: Duration) -> bool {
        let is_quick = self.making < self.rest.unwrap_or(MAKING);
        let is_early =
            self.traced.rounds.len() < MOST_ROUNDS && self.rest.is_none_or(|rest| rest > 2 * slice);
        is_quick && is_early && !self.scope.is_whole
    }

    /// True if the process has ended or executes another program.
    fn trace(
        &mut self,
        set: &mut ProcessSet,
        versions: &Versions,
        duration: Option<Duration>,
        records: &mut BranchRecords,
    ) -> Result<bool, SessionError> {
        let report = match duration {
            Some(duration) if set.is_tree() => self.trace_tree(set, versions, duration, records)?,
            _ => {
                let options = self.options(duration);
                self.members.trace(set, &options, records)?
            }
        };
        self.last_mean = report.mean_length();
        self.last = Ends {
            all: report.all(),
            full: report.bursts.get(&BurstEnd::Full).copied().unwrap_or(0),
            branches: report.branches,
        };
        self.traced.places.clone_from(&report.ended_at);
        for (at, n) in &report.refused_at {
            *self.traced.places.entry(*at).or_default() += n;
        }
        self.rest = self.rest.map(|rest| rest.saturating_sub(duration.unwrap_or_default()));
        if let Some(round) = self.traced.rounds.last_mut() {
            let before = round.mean_length * round.bursts as f64;
            round.bursts += report.all();
            round.mean_length = (before + report.branches as f64) / round.bursts.max(1) as f64;
        }
        let is_over = AskedToEnd::signal().is_some()
            || report.exit.is_some()
            || report.left
            || (set.is_tree() && !set.leader_is_alive());
        self.traced.report.add(report);
        Ok(is_over)
    }

    /// Traces the processes of a tree, and looks for those that come and go.
    fn trace_tree(
        &mut self,
        set: &mut ProcessSet,
        versions: &Versions,
        duration: Duration,
        records: &mut BranchRecords,
    ) -> Result<BurstReport, SessionError> {
        let end = Instant::now() + duration;
        let mut sum = BurstReport::default();
        while set.leader_is_alive() && AskedToEnd::signal().is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.members.is_empty() {
                std::thread::sleep(left.min(IDLE));
            } else {
                let options = self.options(Some(left.min(LOOK_AGAIN)));
                let report = self.members.trace(set, &options, records)?;
                let threads = sum.threads.max(report.threads);
                sum.add_beside(report);
                sum.threads = threads;
            }
            set.refresh()?;
            self.members.fill(set, versions, records);
        }
        Ok(sum)
    }

    fn options(&mut self, duration: Option<Duration>) -> BurstOptions {
        // Other random numbers each time.
        self.tracing.options.seed += 1;
        BurstOptions { duration, ..self.tracing.options.clone() }
    }
}

/// The most frequent places, as module and address or symbol in it.
fn most(records: &BranchRecords, pid: i32, places: &BTreeMap<Avma, u64>) -> Vec<(String, u64)> {
    let mut most: Vec<_> = places.iter().map(|(at, n)| (records.name(pid, *at), *n)).collect();
    most.sort_by_key(|place| std::cmp::Reverse(place.1));
    most.truncate(MOST_ENDS);
    most
}

/// Takes the versions out; gives the reason why something had to stay.
fn take_out(set: &mut ProcessSet, watcher: &mut dyn Watcher) -> Result<Option<String>, SessionError> {
    if set.is_tree() {
        set.take_back(watcher)?;
        return Ok(set.reclaim().first().map(|kept| format!("process {}: {}", kept.pid, kept.why)));
    }
    if !set.leader_is_alive() {
        return Ok(None);
    }
    match set.refresh().and_then(|()| set.switch(&[], VersionKind::Burst, watcher)) {
        Ok(_) => {}
        Err(error) if has_ended(set, &error) || set.leader.target().has_executed() => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(set.reclaim().into_iter().next().map(|kept| kept.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_short_beside_what_ends_them() {
        let depth = |all, full, branches| unbiased_depth(&Ends { all, full, branches }, 4000);
        assert_eq!(depth(100, 90, 380_000), 4000, "they end by themselves");
        assert_eq!(depth(100, 20, 290_000), 580, "system calls end them");
        assert_eq!(depth(100, 0, 1_000), 500, "but no shorter than this");
        assert_eq!(depth(19, 0, 1_000), 4000, "nothing is known yet");
        assert_eq!(depth(0, 0, 0), 4000);
    }
}
