//! `record --source burst`: a profile from bursts in tracing versions ([`restitch_trace::trace_bursts`]).
//!
//! Instruction pointers pick the functions; tracing versions of them, of those around them and of the linkage tables are mapped
//! beside the modules, checked like every version; threads are put into them for a moment each. Afterwards the versions go again.

use crate::analysis::Analyzed;
use crate::branch_records::BranchRecords;
use crate::modules::{Chosen, choose};
use crate::process_set::{ProcessSet, refuse_kernel_thread};
use crate::sampling::sample;
use crate::selection::select;
use crate::trace_record::{exit_status, launch};
use crate::verdict::Windows;
use crate::{SessionError, TraceRecordOptions, TraceSubject, Watcher};
use restitch_address::LoadBias;
use restitch_apply_process::{Incoming, Module, Target, VersionKind};
use restitch_check::{CheckedVersion, check};
use restitch_emit::window::window_len;
use restitch_emit::{BurstRequest, burst_bound, emit_burst};
use restitch_layout::Layout;
use restitch_profile::scope_of;
use restitch_program::{FuncId, Movability};
use restitch_trace::{BurstCode, BurstEnd, BurstOptions, BurstReport, trace_bursts};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What came of it.
#[derive(Debug)]
pub struct Bursts {
    /// The tracer's figures.
    pub report: BurstReport,
    /// Branches that were in no module.
    pub elsewhere: u64,
    /// The command's exit status as a shell gives it, if a command was traced.
    pub status: Option<i32>,
    /// Modules in the profile.
    pub modules: usize,
    /// Bytes of tracing versions.
    pub mapped: u64,
    /// Where most of the bursts that did not become full came to code that has no copy, most frequent first.
    pub ended_at: Vec<(String, u64)>,
    /// Why something of them had to stay in the process, if it had.
    pub kept: Option<String>,
}

/// How long instruction pointers are sampled, at least and at most.
const SAMPLING: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(5));
/// Pairs of the window's table for each address in it, at least: searches are short then.
const SPARSE: u64 = 2;

/// So many places that ended bursts are named.
const MOST_ENDS: usize = 6;

/// Records bursts, and writes the profile file whole or not at all.
///
/// # Errors
/// [`SessionError`]. The process runs in its original code; what could not be taken out again is in its journal.
pub fn record_bursts(options: TraceRecordOptions, watcher: &mut dyn Watcher) -> Result<Bursts, SessionError> {
    crate::check_writable(&options.output.path)?;
    let mut launched = None;
    let (pid, duration) = match options.subject {
        TraceSubject::Process(pid, duration) => (pid, Some(duration)),
        TraceSubject::Command(command) => (launched.insert(launch(command)?).pid, None),
    };
    refuse_kernel_thread(pid)?;
    refuse_shadow_stack(pid)?;
    let mut set = ProcessSet::open(pid, false)?;
    if set.all().any(|live| !live.journal().is_empty()) {
        set.switch(&[], VersionKind::Burst, watcher)?;
        set.sweep();
    }
    let sampling = duration.map_or(SAMPLING.0, |d| d / 4).clamp(SAMPLING.0, SAMPLING.1);
    watcher.phase("sampling", Some(sampling.as_secs_f64()));
    let mut windows = Windows::new(None, &set.pids(), Duration::from_secs(1));
    let samples = sample(&set, sampling, &mut windows)?;
    watcher.phase("analysing", None);
    let (mut chosen, _) = choose(&set, &samples)?;
    let permanent = permanent_modules(set.leader.target());
    chosen.retain(|c| permanent.contains(&c.index));
    if chosen.is_empty() {
        let why = format!("process {pid} used too little CPU time to be traced; try again under load");
        return Err(SessionError::NothingToDo(why));
    }
    let versions = make_tracing(&set, &chosen)?;
    let mut records = BranchRecords::for_output(&options.output);
    records.open(pid)?;
    let rest = duration.map(|d| d.saturating_sub(sampling).max(SAMPLING.0));
    watcher.phase("tracing", rest.map(|d| d.as_secs_f64()));
    let tracing = BurstOptions {
        depth: options.depth,
        overhead: options.overhead,
        duration: rest,
        ..BurstOptions::default()
    };
    let traced = run(&mut set, &versions, tracing, &mut records);
    let in_order = |report: &BurstReport| !report.bursts.contains_key(&BurstEnd::Gone);
    if !traced.as_ref().is_ok_and(in_order) {
        set.leader.distrust_tracing();
    }
    let kept = take_out(&mut set, watcher);
    if !set.leader_is_alive() {
        set.leader.forget();
    }
    let report = traced?;
    watcher.phase("analysing", None);
    let status = launched.map(|process| exit_status(report.exit, process)).transpose()?;
    let (modules, elsewhere) = (records.modules(), records.elsewhere);
    if modules == 0 {
        let why = format!("process {pid} used too little CPU time to be traced; try again under load");
        return Err(SessionError::NothingToDo(why));
    }
    let ended_at = most_ends(&records, pid, &report);
    records.save(&options.output, watcher)?;
    let mapped = versions.iter().map(|(_, v)| v.loaded_len).sum();
    Ok(Bursts { ended_at, report, elsewhere, status, modules, mapped, kept: kept? })
}

/// The places that ended most bursts, as module and address or symbol in it.
fn most_ends(records: &BranchRecords, pid: i32, report: &BurstReport) -> Vec<(String, u64)> {
    let mut ends: Vec<_> = report.ended_at.iter().map(|(at, n)| (records.name(pid, *at), *n)).collect();
    ends.sort_by_key(|end| std::cmp::Reverse(end.1));
    ends.truncate(MOST_ENDS);
    ends
}

/// Maps the versions and traces.
fn run(
    set: &mut ProcessSet,
    versions: &[(usize, CheckedVersion)],
    options: BurstOptions,
    records: &mut BranchRecords,
) -> Result<BurstReport, SessionError> {
    let incoming: Vec<Incoming<'_>> = versions
        .iter()
        .map(|(module, version)| Incoming { module: *module, version, kind: VersionKind::Burst })
        .collect();
    let window = set.leader.map_tracing(&incoming)?;
    let target = set.leader.target();
    let biased: Vec<(LoadBias, &CheckedVersion)> =
        versions.iter().map(|(module, version)| (target.modules[*module].bias, version)).collect();
    let pid = target.pid();
    let code = BurstCode::new(&biased, window)
        .map_err(|source| restitch_trace::BranchTraceError::Window { pid, source })?;
    let stop = AtomicBool::new(false);
    Ok(trace_bursts(pid, options, &code, &stop, records)?)
}

/// Takes the versions out; gives the reason why something had to stay.
fn take_out(set: &mut ProcessSet, watcher: &mut dyn Watcher) -> Result<Option<String>, SessionError> {
    if !set.leader_is_alive() {
        return Ok(None);
    }
    set.refresh()?;
    match set.switch(&[], VersionKind::Burst, watcher) {
        Ok(_) => {}
        Err(_) if !set.leader_is_alive() => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(set.sweep().into_iter().next().map(|(_, _, why)| why))
}

/// The program and the libraries that it names, directly or through others: they stay where they are for as long as it runs. What was
/// opened by `dlopen` may go, and something else may come where it was; a tracing version would then be entered from there.
fn permanent_modules(target: &Target) -> BTreeSet<usize> {
    let is_named = |module: &Module, name: &str| {
        let file = module.path.file_name().is_some_and(|file| file == name);
        file || module.image.soname() == Some(name)
    };
    let mut found = BTreeSet::from([target.program]);
    let mut open = vec![target.program];
    while let Some(index) = open.pop() {
        for name in target.modules[index].image.needed() {
            let modules = target.modules.iter().enumerate();
            for (i, _) in modules.filter(|(_, module)| is_named(module, name)) {
                if found.insert(i) {
                    open.push(i);
                }
            }
        }
    }
    found
}

/// Returns that match no call end a process whose shadow stack is on.
fn refuse_shadow_stack(pid: i32) -> Result<(), SessionError> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let features = status.lines().find(|line| line.starts_with("x86_Thread_features:"));
    if features.is_some_and(|line| line.contains("shstk")) {
        let why = "it has a shadow stack, which tracing versions do not keep; use --source trace".into();
        return Err(SessionError::Refused { pid, why });
    }
    Ok(())
}

/// Makes and checks tracing versions of the functions with samples, those around them, and the linkage tables.
fn make_tracing(set: &ProcessSet, chosen: &[Chosen]) -> Result<Vec<(usize, CheckedVersion)>, SessionError> {
    let blocks: Vec<Vec<bool>> = chosen.iter().map(blocks_of).collect();
    let entries: u64 = chosen.iter().zip(&blocks).map(|(c, b)| entries(&c.analyzed, b)).sum();
    let bits = (SPARSE * entries).next_power_of_two().trailing_zeros().clamp(10, 24) as u8;
    let (mut versions, mut taken, mut first) = (Vec::new(), Vec::new(), 0);
    for (module, blocks) in chosen.iter().zip(&blocks) {
        let Analyzed { image, program, .. } = &module.analyzed;
        let place =
            set.reserve(module.index, window_len(bits) + burst_bound(program, blocks), &taken, 4096)?;
        taken.push((module.index, place));
        let (window, start) = (place.start, place.start + window_len(bits));
        let request =
            BurstRequest { image, program, blocks, start, number: place.number, window, bits, first };
        let wrong = |why: String| SessionError::Emit { module: module.path.clone(), why };
        let version = emit_burst(&request).map_err(|e| wrong(e.to_string()))?;
        first += version.burst.as_ref().map_or(0, |b| b.branches.len() as u32);
        let bias = set.leader.target().modules[module.index].bias;
        let checked = check(image, program, &Layout::default(), version, Some(bias))
            .map_err(|e| SessionError::Check { module: module.path.clone(), why: e.to_string() })?;
        versions.push((module.index, checked));
    }
    Ok(versions)
}

fn blocks_of(module: &Chosen) -> Vec<bool> {
    let program = &module.analyzed.program;
    let linkage = |f: &FuncId| program.function(*f).movability == Movability::Linkage;
    let mut blocks = scope_of(program, &select(program, &module.weights));
    for function in program.function_ids().filter(linkage) {
        program.blocks_of(function).for_each(|b| blocks[b.index()] = true);
    }
    blocks
}

/// Addresses that indirect branches can come in at: starts of blocks, and behind calls.
fn entries(module: &Analyzed, blocks: &[bool]) -> u64 {
    let chosen = module.program.block_ids().filter(|b| blocks[b.index()]);
    chosen.map(|b| 1 + u64::from(module.program.block(b).call_count)).sum()
}
