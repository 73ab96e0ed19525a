//! `record --source trace`: a profile from software branch tracing ([`restitch_trace`]), which changes
//! nothing in the process; a layout that is in force in it goes before.

use crate::branch_records::BranchRecords;
use crate::period::Period;
use restitch_pipeline::Watcher;
use restitch_pipeline::profiles::ProfileOutput;
use restitch_processes::SessionError;
use restitch_processes::busy::when_not_traced;
use restitch_processes::interrupt::heed;
use restitch_processes::no_file::in_no_file;
use restitch_processes::process_family::at_work;
use restitch_processes::process_set::{ProcessSet, process_of, refuse_stopped};
use restitch_procfs::{self as procfs, ProcessId};
use restitch_trace::{
    LookAhead, RecordEnd, Relative, TraceOptions, TraceReport, trace, trace_held, trace_together,
};
use restitch_tracee::{
    AskedToEnd, ExitStatus, LaunchOptions, NotStarted, Stopped, TraceEvent, TraceEvents, own_descriptors,
};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

/// What to trace.
#[derive(Debug)]
pub enum TraceSubject {
    /// A running process, for some time.
    Process(i32, Duration),
    /// A running process and all others that run its program, for some time.
    Tree(i32, Duration),
    /// A program from its start to its end.
    Command(Command),
}

/// Taken branches in a record, if nobody says how many: see docs/design/tracing.md.
const DEPTH: usize = 512;

/// Settings of [`record_traced`], [`record_bursts`](crate::burst_record::record_bursts) and
/// [`record_sampled`](crate::sampled_record::record_sampled).
#[derive(Debug)]
pub struct TraceRecordOptions {
    /// What to trace.
    pub subject: TraceSubject,
    /// How.
    pub how: Recording,
    /// The profile file.
    pub output: ProfileOutput,
}

/// How much is recorded, and how.
#[derive(Debug, Clone, Copy)]
pub struct Recording {
    /// Taken branches in a record, records in a burst; `None`: what suits the program.
    pub depth: Option<usize>,
    /// The share of the running time that it may cost, 0 to 1.
    pub overhead: f64,
    /// How far apart records are, in place of that.
    pub period: Option<Period>,
    /// How software branch tracing follows the code ahead.
    pub look_ahead: LookAhead,
}

impl Default for Recording {
    fn default() -> Self {
        Self { depth: None, overhead: 0.01, period: None, look_ahead: LookAhead::Evaluate }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Traced {
    /// The tracer's figures.
    pub report: TraceReport,
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
}

/// Traces, and writes the profile file whole or not at all.
///
/// # Errors
/// [`SessionError`]. The process was not changed, but for a layout that was taken out.
pub fn record_traced(
    mut options: TraceRecordOptions,
    watcher: &mut dyn Watcher,
) -> Result<Traced, SessionError> {
    restitch_pipeline::disk::check_writable(&options.output.path)?;
    let seconds = match &mut options.subject {
        TraceSubject::Process(pid, duration) | TraceSubject::Tree(pid, duration) => {
            *pid = process_of(*pid)?;
            Some(duration.as_secs_f64())
        }
        TraceSubject::Command(_) => None,
    };
    watcher.phase("tracing", seconds);
    let mut records = BranchRecords::for_output(&options.output);
    let Recording { depth, overhead, period, look_ahead } = options.how;
    let depth = depth.unwrap_or(DEPTH);
    let (event, period) = match period.map(Period::alarm).transpose()? {
        Some((event, period)) => (event, Some(period)),
        None => (TraceOptions::default().event, None),
    };
    let tracing = TraceOptions { depth, overhead, event, period, look_ahead, ..TraceOptions::default() };
    // Locked for as long as it is traced.
    let mut set = None;
    let (process, report) = match options.subject {
        TraceSubject::Process(pid, duration) => {
            set = Some(open_original(pid, false, watcher)?);
            records.open(pid)?;
            let tracing =
                TraceOptions { duration: Some(duration), restartable: records.restartable(pid), ..tracing };
            (None, trace(pid, tracing, AskedToEnd::flag(), &mut records)?)
        }
        TraceSubject::Tree(named, duration) => {
            let family = at_work(named, true, watcher);
            let pid = family.leader;
            let tree = set.insert(open_original(pid, true, watcher)?);
            records.open(pid)?;
            tree.left_out().iter().for_each(|told| watcher.note(told));
            let others = relatives(tree, &mut records)?;
            let tracing =
                TraceOptions { duration: Some(duration), restartable: records.restartable(pid), ..tracing };
            let report = trace_together(pid, &others, tracing, AskedToEnd::flag(), &mut records)?;
            family.warnings().iter().for_each(|told| watcher.note(told));
            watcher.note(&in_processes(&records));
            if records.modules() == 0 && AskedToEnd::signal().is_none() {
                tree.verify_leader().map_err(|error| family.explain(error))?;
            }
            (None, report)
        }
        TraceSubject::Command(command) => {
            let (process, report) = trace_command(command, tracing, &mut records)?;
            (Some(process), report)
        }
    };
    tell_left_out(&report, watcher);
    report.missed.told().iter().for_each(|told| watcher.note(told));
    watcher.phase("analysing", None);
    let status = process.map(|process| exit_status(report.exit, process)).transpose()?;
    let (modules, elsewhere, in_vdso) = (records.modules(), records.elsewhere, records.in_vdso());
    if modules == 0 {
        heed()?;
        set.iter().try_for_each(ProcessSet::verify_leader)?;
        return Err(untraced(&report));
    }
    let coverage = records.coverage();
    records.save(&options.output, watcher)?;
    Ok(Traced { modules, elsewhere, in_vdso, coverage, status, report })
}

/// With more CPU time than this a process was not idle.
const WORKED: Duration = Duration::from_millis(100);

/// Why nothing of files was traced.
fn untraced(report: &TraceReport) -> SessionError {
    let records: u64 = report.records.values().sum();
    let unknown = report.records.get(&RecordEnd::UnknownCode).copied().unwrap_or(0);
    let seconds = report.cpu.as_secs_f64();
    match in_no_file("the process", unknown, records) {
        Some(error) => error,
        None if report.cpu < WORKED => {
            let why = "the process used too little CPU time to be traced; try again under load";
            SessionError::nothing_to_do(why)
        }
        None if report.blocked_threads > 0 => SessionError::Source {
            source_name: "software branch tracing",
            why: format!(
                "the process used {seconds:.1} s of CPU time and blocks the signals that would interrupt it, as valgrind \
                 does for the programs that run under it; use --source ip or count"
            ),
        },
        None => SessionError::nothing_to_do(format!(
            "the process used {seconds:.1} s of CPU time, but hardly any in its own code (the rest is the kernel's), so \
             there was nothing to trace; `restitch kernel find` shows what it does there"
        )),
    }
}

/// Opens processes that are to be traced in their original code: a layout that is in force is taken out.
fn open_original(pid: i32, tree: bool, watcher: &mut dyn Watcher) -> Result<ProcessSet, SessionError> {
    when_not_traced(pid)?;
    if !tree {
        refuse_stopped(pid)?;
    }
    let mut set = ProcessSet::open(pid, tree)?;
    if set.all().any(|live| !live.journal().is_empty()) {
        set.tell_taken_out(watcher);
        set.take_back(watcher)?;
        set.reclaim_patiently().iter().for_each(|kept| watcher.note(&kept.to_string()));
        heed()?;
    }
    Ok(set)
}

/// The other processes of a tree, the busiest first: there may be more threads than events can be opened for.
pub fn relatives(set: &mut ProcessSet, records: &mut BranchRecords) -> Result<Vec<Relative>, SessionError> {
    set.refresh()?;
    let mut known = BTreeSet::from([set.leader.target().pid()]);
    let mut found = Vec::new();
    for pid in set.busiest().into_iter().chain(set.pids()) {
        // An error: it has ended.
        if known.insert(pid) && records.open(pid).is_ok() {
            found.push(Relative { pid, restartable: records.restartable(pid) });
        }
    }
    Ok(found)
}

/// Says which processes of a tree could not be traced.
pub fn tell_left_out(report: &TraceReport, watcher: &mut dyn Watcher) {
    for (pid, why) in &report.left_out {
        watcher.note(&format!("process {pid} is not recorded: {why}"));
    }
}

/// How many processes of a tree have branches.
pub(crate) fn in_processes(records: &BranchRecords) -> String {
    match records.processes() {
        1 => "branches were recorded in one process".into(),
        n => format!("branches were recorded in {n} processes"),
    }
}

/// Traces a command from its program's entry point on.
fn trace_command(
    command: Command,
    tracing: TraceOptions,
    records: &mut BranchRecords,
) -> Result<(ProcessId, TraceReport), SessionError> {
    let program = command.get_program().to_owned();
    let (started, is_started) = channel();
    let (begin, begins) = channel();
    // A thread of its own: see `trace_held`.
    std::thread::scope(|scope| {
        let traced = Builder::new().spawn_scoped(scope, move || -> Result<_, SessionError> {
            own_descriptors();
            let stand_in = |process| {
                // Until this program stands in for the command. (The other side does not go before.)
                let _ = started.send(process).map(|()| begins.recv());
            };
            let (events, stopped) = launch_held(command, stand_in)?;
            let process = stopped.process();
            records.open(process.pid)?;
            let tracing = TraceOptions { restartable: records.restartable(process.pid), ..tracing };
            let report = trace_held((events, stopped), tracing, AskedToEnd::flag(), records)?;
            Ok((process, report))
        });
        let traced = traced.map_err(|source| NotStarted::new(&program, source))?;
        // The descriptor for that must not be the tracing thread's. An error: the command could not be
        // started, which the thread says.
        if let Ok(process) = is_started.recv() {
            let process: ProcessId = process;
            AskedToEnd::stand_for(process.pid);
            let _ = begin.send(());
        }
        traced.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Starts a command, does `work` while it stands at its program's entry point, where all of its libraries are
/// mapped, and lets go of it.
pub fn launch_holding<T>(
    command: Command,
    work: impl FnOnce(ProcessId) -> T,
) -> Result<(ProcessId, T), SessionError> {
    let program = command.get_program().to_owned();
    let (held, is_held) = channel();
    let (done, is_done) = channel::<()>();
    // The holder is a thread of its own: it is urgent, and whoever does the work need not be.
    std::thread::scope(|scope| {
        let holder = Builder::new().spawn_scoped(scope, move || {
            match launch_held(command, |process| AskedToEnd::stand_for(process.pid)) {
                Ok((events, stopped)) => {
                    let _ = held.send(Ok(stopped.process()));
                    // An error: the other side is gone, which says the same.
                    let _ = is_done.recv();
                    stopped.resume();
                    events.detach();
                }
                Err(error) => drop(held.send(Err(error))),
            }
        });
        holder.map_err(|source| NotStarted::new(&program, source))?;
        let process = is_held.recv().map_err(|_| not_held())??;
        let result = work(process);
        drop(done);
        Ok((process, result))
    })
}

fn not_held() -> SessionError {
    SessionError::nothing_to_do(
        "the command could not be held at its beginning; try again, or record it by its number (-p)",
    )
}

/// Starts a command, lets this program `stand_in` for it, and holds it at its program's entry point. (Should
/// this program end, it runs on.)
fn launch_held(
    command: Command,
    stand_in: impl FnOnce(ProcessId),
) -> Result<(TraceEvents, Stopped), SessionError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut events = restitch_processes::start::launch(command, LaunchOptions::default())?;
    stand_in(events.root());
    let failed = |why: String| SessionError::Command { command: name.clone(), why: why.into() };
    loop {
        match events.next_event(LOADER_LIMIT)? {
            Some(TraceEvent::Exec(stopped)) => match procfs::auxv(stopped.pid())?.entry() {
                Some(entry) => events.run_to(stopped, entry)?,
                None => drop(stopped.resume()),
            },
            Some(TraceEvent::Reached(stopped)) => return Ok((events, stopped)),
            Some(TraceEvent::Exited { status, .. }) => {
                return Err(SessionError::nothing_to_do(ended_in_loader(&name, status)));
            }
            None if events.is_empty() => return Err(failed("it ended before its program began".into())),
            None => {
                let seconds = LOADER_LIMIT.as_secs();
                return Err(failed(format!(
                    "its program had not begun after {seconds} seconds, in which its libraries were loaded; it goes on by itself"
                )));
            }
            Some(_) => {}
        }
    }
}

fn ended_in_loader(name: &str, status: ExitStatus) -> String {
    let how = match status {
        ExitStatus::Code(code) => format!("with exit status {code}"),
        ExitStatus::Signal(signal) => format!("by signal {signal}"),
    };
    format!("{name} ended {how} while its libraries were loaded, before there was anything to record")
}

/// How long the loader may take.
const LOADER_LIMIT: Duration = Duration::from_secs(60);

/// The tracer has collected the end of a child of ours where it saw it.
pub fn exit_status(exit: Option<ExitStatus>, process: ProcessId) -> Result<i32, SessionError> {
    match exit {
        Some(ExitStatus::Code(code)) => Ok(code),
        Some(ExitStatus::Signal(signal)) => Ok(128 + signal),
        None => Ok(restitch_tracee::wait_for_child(process)?),
    }
}
