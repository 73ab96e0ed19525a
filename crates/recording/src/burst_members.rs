//! The processes that are recorded in bursts together.
//!
//! Problem: the process that is named may only wait (the first one of PostgreSQL, of nginx), and those that
//! work come and go while it is recorded. Idea: processes of a set have their modules at the same addresses,
//! so one tracing version and one set of tables serve all of them, each with a window of its own, and the
//! busiest are recorded at the same time. A version has to be mapped into a process, in a short stop, so not
//! all of hundreds get it: the places of those that have ended go to others at the next look. Each is traced
//! by a thread of its own that keeps the budget for its process: so it is kept for all of them together.
//!
//! Limits: a process that lives for less than a second or two may never be looked at; `--source trace`
//! follows it from its beginning.

use crate::branch_records::BranchRecords;
use crate::burst_versions::Versions;
use restitch_apply_process::{AttachedProcess, JournalVersion, Target, VersionKind};
use restitch_processes::SessionError;
use restitch_processes::process_set::{ProcessSet, incoming};
use restitch_processes::refusal::refuse_shadow_stack;
use restitch_trace::{BranchTraceError, BurstCode, BurstEnd, BurstOptions, BurstReport, relay, trace_bursts};
use restitch_tracee::{AskedToEnd, Stopped};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::thread::{Builder, scope};
use std::time::Duration;

/// So many processes are recorded at the same time, at most: each is stopped for a moment whenever a version
/// is mapped, and has a window of some megabytes.
const MOST_MEMBERS: usize = 16;

/// A process that has the versions.
struct Member {
    pid: i32,
    code: BurstCode,
}

/// The processes that have the versions: the leader of a set alone, or the busiest ones of a tree.
#[derive(Default)]
pub struct Members {
    list: Vec<Member>,
    /// Processes of a tree that cannot be recorded, and why.
    refused: BTreeMap<i32, String>,
}

impl Members {
    /// Whether there is nobody to record.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Processes that could not be recorded, with the reason.
    pub fn refused(&self) -> impl Iterator<Item = String> + '_ {
        self.refused.iter().map(|(pid, why)| format!("process {pid} is not recorded: {why}"))
    }

    /// Maps new versions: in place of older ones into the processes that have some, and into more if there is
    /// room.
    ///
    /// # Errors
    /// If it cannot be done in a process that was named alone.
    pub fn map(
        &mut self,
        set: &mut ProcessSet,
        versions: &Versions,
        is_command: bool,
        records: &mut BranchRecords,
    ) -> Result<(), SessionError> {
        let before: Vec<i32> = std::mem::take(&mut self.list).into_iter().map(|member| member.pid).collect();
        if !set.is_tree() {
            refuse_others(set)?;
            let pid = set.leader.target().pid();
            let hold = is_command && set.leader.journal().is_empty();
            let held = hold.then(|| Stopped::seize_all(pid).ok()).flatten();
            let leader = set.leader.target().clone();
            let incoming = incoming(&set.leader, &leader, &versions.of, VersionKind::Burst);
            let window = set.leader.map_tracing(held, &incoming)?;
            records.be_certain(pid, versions.of.iter().map(|(module, _)| &leader.modules[*module]));
            self.list.push(Member { pid, code: code(pid, versions, window)? });
            return Ok(());
        }
        self.add(set, versions, before, records);
        self.fill(set, versions, records);
        Ok(())
    }

    /// Gives free places to the busiest ones of a tree's other processes.
    pub fn fill(&mut self, set: &mut ProcessSet, versions: &Versions, records: &mut BranchRecords) {
        self.list.retain(|member| set.find(member.pid).is_some_and(|live| live.target().process.is_alive()));
        let busy = set.busiest();
        self.add(set, versions, busy, records);
    }

    fn add(
        &mut self,
        set: &mut ProcessSet,
        versions: &Versions,
        wanted: Vec<i32>,
        records: &mut BranchRecords,
    ) {
        let leader = set.leader.target().clone();
        for pid in wanted {
            if self.list.len() >= MOST_MEMBERS {
                return;
            }
            if self.refused.contains_key(&pid) || self.list.iter().any(|member| member.pid == pid) {
                continue;
            }
            let Some(live) = set.find(pid) else { continue };
            match map_into(live, &leader, versions, records) {
                Ok(code) => self.list.push(Member { pid, code }),
                // Not mapped, or not whole: whatever was is taken out at the end at the latest.
                Err(_) if !live.target().process.is_alive() => {}
                Err(error) => {
                    let _ = live.revert();
                    self.refused.insert(pid, reason(&error));
                }
            }
        }
    }

    /// Records in all of them at the same time, for `duration` or to the end of each. One that vanishes is no
    /// error. Processes in which a burst did not end as it should are distrusted, and those that have ended
    /// or execute another program have no place any more.
    ///
    /// # Errors
    /// If a process that was named alone cannot be traced.
    pub fn trace(
        &mut self,
        set: &mut ProcessSet,
        options: &BurstOptions,
        records: &mut BranchRecords,
    ) -> Result<BurstReport, SessionError> {
        let stop = AskedToEnd::flag();
        if !set.is_tree() {
            let Some(Member { pid, code }) = self.list.first() else { return Ok(BurstReport::default()) };
            return Ok(trace_bursts(*pid, options.clone(), code, stop, records)?);
        }
        let mut sum = BurstReport::default();
        let results = together(&self.list, options, stop, records);
        for (pid, result) in results {
            let is_over = result.as_ref().map_or(true, |report| report.exit.is_some() || report.left);
            if is_over {
                self.list.retain(|member| member.pid != pid);
            }
            let live = set.find(pid);
            let is_alive = live.as_ref().is_some_and(|live| live.target().process.is_alive());
            let is_odd = result.as_ref().map_or(true, |report| report.bursts.contains_key(&BurstEnd::Gone));
            if let Some(live) = live.filter(|_| is_odd) {
                live.distrust_tracing();
            }
            match result {
                Ok(report) => sum.add_beside(report),
                Err(error) if is_alive => _ = self.refused.insert(pid, error.to_string()),
                Err(_) => {}
            }
        }
        Ok(sum)
    }
}

/// Refuses a process in which a retired version of another kind has to stay mapped, beside which no tracing
/// version comes ([`AttachedProcess::map_tracing`]). Its threads get a moment to leave it.
fn refuse_others(set: &mut ProcessSet) -> Result<(), SessionError> {
    let is_other = |v: &JournalVersion| v.kind != VersionKind::Burst;
    let journal = set.leader.journal();
    if !journal.patches.is_empty() || !journal.versions.iter().any(is_other) {
        return Ok(());
    }
    let pid = set.leader.target().pid();
    let kept = set.reclaim_patiently();
    let others: Vec<u32> =
        set.leader.journal().versions.iter().filter(|v| is_other(v)).map(|v| v.number).collect();
    match kept.into_iter().find(|kept| kept.pid == pid && others.contains(&kept.number)) {
        Some(kept) => Err(SessionError::Stays { pid, number: kept.number, why: kept.why }),
        None => Ok(()),
    }
}

/// Maps the versions into one process of a tree.
fn map_into(
    live: &mut AttachedProcess,
    leader: &Target,
    versions: &Versions,
    records: &mut BranchRecords,
) -> Result<BurstCode, SessionError> {
    let pid = live.target().pid();
    refuse_shadow_stack(pid)?;
    live.lock()?;
    let mut kept = Vec::new();
    if !live.has_windows() && !live.journal().is_empty() {
        // Inherited from a process that is being recorded, with that one's window.
        live.revert()?;
        kept = live.reclaim()?.kept;
    }
    live.may_have_more()?;
    if !live.has_windows() && !live.journal().is_empty() {
        return Err(stays(live, kept));
    }
    let incoming = incoming(live, leader, &versions.of, VersionKind::Burst);
    if incoming.len() != versions.of.len() {
        let why = "its libraries lie elsewhere than those of the others";
        return Err(SessionError::Refused { pid, why: why.into() });
    }
    let window = live.map_tracing(None, &incoming)?;
    records.open(pid)?;
    code(pid, versions, window)
}

/// That something has to stay mapped in a process that has its original code again: `kept` is what a look
/// through it has found, by number.
fn stays(live: &AttachedProcess, kept: Vec<(u32, String)>) -> SessionError {
    let pid = live.target().pid();
    let is_there = |number: u32| live.journal().versions.iter().any(|version| version.number == number);
    match kept.into_iter().find(|(number, _)| is_there(*number)) {
        Some((number, why)) => SessionError::Stays { pid, number, why },
        None => SessionError::Refused { pid, why: "code of restitch has to stay mapped in it".into() },
    }
}

/// Why a process of a tree is not recorded, where it is named already.
fn reason(error: &SessionError) -> String {
    match error {
        SessionError::Refused { why, .. } => why.clone(),
        SessionError::Stays { number, why, .. } => format!(
            "version {number} stays mapped in it, unused: {why}; bursts are recorded only where no other version is mapped"
        ),
        other => other.to_string(),
    }
}

fn code(pid: i32, versions: &Versions, window: File) -> Result<BurstCode, SessionError> {
    let code = BurstCode::new(pid, versions.tables.clone(), window)
        .map_err(|source| BranchTraceError::Window { pid, source })?;
    code.use_large_pages(pid);
    Ok(code)
}

/// What came of tracing a process.
type Outcome = (i32, Result<BurstReport, BranchTraceError>);

/// Traces all members, each on a thread of its own, and takes their records in meanwhile.
fn together(
    members: &[Member],
    options: &BurstOptions,
    stop: &AtomicBool,
    records: &mut BranchRecords,
) -> Vec<Outcome> {
    let (sender, receiver) = relay();
    scope(|scope| {
        let mut tracers = Vec::new();
        for (i, member) in members.iter().enumerate() {
            let seed = options.seed.wrapping_add(i as u64 * 1000);
            let (options, mut sink) = (BurstOptions { seed, ..options.clone() }, sender.clone());
            let work = move || trace_bursts(member.pid, options, &member.code, stop, &mut sink);
            let thread = Builder::new().name("bursts".into()).spawn_scoped(scope, work);
            tracers.push((member.pid, thread));
        }
        // The last tracer that ends closes the channel.
        drop(sender);
        receiver.hand_to(records);
        let join = |(pid, thread): (i32, Result<std::thread::ScopedJoinHandle<'_, _>, _>)| match thread {
            Ok(thread) => (pid, thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
            Err(source) => (pid, Err(BranchTraceError::Thread { pid, source })),
        };
        tracers.into_iter().map(join).collect()
    })
}

/// How long a tree is recorded before it is looked for processes that have come and gone.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// ... and if nobody works.
pub const IDLE: Duration = Duration::from_millis(100);
