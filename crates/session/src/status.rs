//! `status` and `revert`: what is in a process, and taking it out.

use restitch_address::Avma;
use restitch_apply_process::{AttachedProcess, Journal, JournalVersion, ProcessError, StateDir, VersionKind};
use restitch_pipeline::ExitCode;
use restitch_processes::SessionError;
use restitch_processes::process_family::families;
use restitch_processes::process_set::{GivenBack, ProcessSet, process_of};
use restitch_processes::reclaim::KeptVersion;
use restitch_procfs::{self as procfs, ProcError};
use restitch_tracee::Memory;
use restitch_x86::patch::Patch;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A version in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionStatus {
    /// Its number.
    pub number: u32,
    /// What it is for.
    pub kind: VersionKind,
    /// Path of its module.
    pub module: String,
    /// Bytes that are mapped.
    pub bytes: u64,
    /// Nothing leads there any more.
    pub is_retired: bool,
}

/// What restitch has in one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The process.
    pub pid: i32,
    /// Its program's path, if it can be read.
    pub program: String,
    /// Versions in it.
    pub versions: Vec<VersionStatus>,
    /// Places that are patched.
    pub patches: usize,
    /// No restitch is at work on it.
    pub is_idle: bool,
    /// A counting version is in force, and no restitch is at work on the process: its attach was killed.
    pub left_counting: bool,
    /// Bytes of replacement mappings that a killed restitch has left; nothing leads there.
    pub left_replacements: u64,
    /// What gdb has to be told so that it names moved functions; empty where it finds them by itself.
    pub gdb: Vec<String>,
    /// A layout is in force whose state files are not here, or the process cannot be looked at: why, and what
    /// to do.
    pub lost: Option<String>,
}

/// `is_used`: something leads into it.
fn version_status(version: &JournalVersion, is_used: bool) -> VersionStatus {
    VersionStatus {
        number: version.number,
        kind: version.kind,
        module: version.module.display().to_string(),
        bytes: version.len,
        is_retired: version.kind != VersionKind::Burst && !is_used,
    }
}

/// The state of process `pid`, or of all processes that have a journal, or have inherited versions from one
/// that has. Journals of ended processes are removed.
///
/// # Errors
/// If the state directory cannot be used; with `pid` also if the process cannot be read.
pub fn status(pid: Option<i32>) -> Result<Vec<ProcessStatus>, SessionError> {
    let dir = StateDir::open()?;
    let pid = pid.map(process_of).transpose()?;
    let pids: Vec<i32> = match pid {
        Some(pid) => vec![pid],
        None => living(&dir),
    };
    let mut out = Vec::new();
    for one in pids {
        match AttachedProcess::open(one, dir.clone()) {
            Ok(live) if live.journal().is_empty() && pid.is_none() => {}
            Ok(live) => out.push(status_of(&live)?),
            Err(error @ ProcessError::StateLost { .. }) => out.push(lost(one, &error)),
            Err(error) if pid.is_some() => return Err(error.into()),
            Err(error) if is_unserved(&error) => out.push(lost(one, &error)),
            Err(_) => {}
        }
    }
    if pid.is_none() {
        // Those that have inherited a layout, and those whose state files are gone.
        out.extend(dir.without_journal().into_iter().filter_map(|one| {
            match AttachedProcess::open(one, dir.clone()) {
                Ok(heir) => status_of(&heir).ok().filter(|found| !found.versions.is_empty()),
                Err(error @ ProcessError::StateLost { .. }) => Some(lost(one, &error)),
                Err(error) if is_unserved(&error) => Some(lost(one, &error)),
                Err(_) => None,
            }
        }));
    }
    Ok(out)
}

/// Whether `status` and `revert` see what root has optimized: each user sees their own, and no other's.
///
/// # Errors
/// If the state directory cannot be used.
pub fn sees_roots() -> Result<bool, SessionError> {
    Ok(StateDir::open()?.is_roots())
}

/// Versions that no process needs to have any more, and are kept for core files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptForCores {
    /// How many.
    pub versions: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// The folder that they are in.
    pub folder: PathBuf,
}

/// What is kept for core files of processes that have ended.
///
/// # Errors
/// If the state directory cannot be used.
pub fn kept_for_cores() -> Result<KeptForCores, SessionError> {
    let dir = StateDir::open()?;
    let kept = dir.kept_for_cores();
    Ok(KeptForCores { versions: kept.files, bytes: kept.bytes, folder: dir.path().to_path_buf() })
}

/// Processes with a journal; what ended processes have left behind is removed.
fn living(dir: &StateDir) -> Vec<i32> {
    dir.collect_garbage();
    dir.owners()
}

/// Whether a process could not be looked at since a file system does not answer.
fn is_unserved(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Proc(ProcError::Unserved { .. }))
}

/// What is known of a process in which a layout is in force whose state files are not here, or which cannot
/// be looked at.
fn lost(pid: i32, error: &ProcessError) -> ProcessStatus {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let redirects = if let ProcessError::StateLost { redirects, .. } = error { *redirects } else { 0 };
    ProcessStatus {
        pid,
        program: program.display().to_string(),
        versions: Vec::new(),
        patches: redirects,
        is_idle: true,
        left_counting: false,
        left_replacements: 0,
        gdb: Vec::new(),
        lost: Some(error.to_string()),
    }
}

/// What restitch has in a process that is open.
fn status_of(live: &AttachedProcess) -> Result<ProcessStatus, SessionError> {
    status_when(live, live.is_idle())
}

/// The same where it is known whether a restitch is at work on it, but for this one.
pub(crate) fn status_when(live: &AttachedProcess, is_idle: bool) -> Result<ProcessStatus, SessionError> {
    let target = live.target();
    let journal = live.journal();
    let mapped: BTreeSet<Avma> = procfs::maps(target.pid())?.iter().map(|m| m.range.start).collect();
    let present: Vec<&JournalVersion> =
        journal.versions.iter().filter(|v| mapped.contains(&v.range().start)).collect();
    let jumps = jumps(target.pid(), journal)?;
    let leads_to = |v: &JournalVersion| jumps.iter().any(|to| v.range().contains(*to));
    let in_any = |to: &&Avma| present.iter().any(|v| v.range().contains(**to));
    Ok(ProcessStatus {
        pid: target.pid(),
        program: target.modules[target.program].path.display().to_string(),
        versions: present.iter().map(|v| version_status(v, leads_to(v))).collect(),
        patches: jumps.iter().filter(in_any).count(),
        is_idle,
        left_counting: present.iter().any(|v| v.kind == VersionKind::Counting && leads_to(v)) && is_idle,
        left_replacements: if is_idle { journal.replacements.iter().map(|s| s.len).sum() } else { 0 },
        gdb: gdb_commands(journal, &present),
        lost: None,
    })
}

/// The commands by which gdb learns of versions, where the loader has no list that it could read them from.
fn gdb_commands(journal: &Journal, present: &[&JournalVersion]) -> Vec<String> {
    if journal.hook.as_ref().is_some_and(|h| h.debugger != 0) {
        return Vec::new();
    }
    let command = |v: &&JournalVersion| format!("add-symbol-file {} -o {:#x}", v.file.display(), v.start);
    present.iter().map(command).collect()
}

/// Where the jumps go that stand at the journal's places.
fn jumps(pid: i32, journal: &Journal) -> Result<Vec<Avma>, SessionError> {
    if journal.patches.is_empty() {
        return Ok(Vec::new());
    }
    let places: Vec<(Avma, usize)> = journal.patches.iter().map(|p| (Avma::new(p.at), Patch::LEN)).collect();
    let found = Memory::open_read_only(pid)?.read_many(&places);
    Ok(places
        .iter()
        .zip(found)
        .filter_map(|((at, _), bytes)| Some(at.offset(Patch::beginning_of(&bytes?)?.as_jump()?)))
        .collect())
}

/// Gives process `pid` (and with `tree` all of its program) its original code back. One that cannot be
/// changed does not keep the others from it.
///
/// # Errors
/// If there is nothing of restitch in any of them, or the named process cannot be opened.
pub fn revert(pid: i32, tree: bool) -> Result<Reverted, SessionError> {
    revert_where(pid, tree, &|_| true)
}

/// The same for those of them that are `wanted`, which is asked when nobody else can change them any more.
///
/// # Errors
/// As there; where none is wanted, as if there was nothing of restitch in any of them.
pub(crate) fn revert_where(
    pid: i32,
    tree: bool,
    wanted: &dyn Fn(&AttachedProcess) -> bool,
) -> Result<Reverted, SessionError> {
    let mut set = ProcessSet::open(pid, tree)?;
    let pid = set.leader.target().pid();
    let lost = set.take_lost();
    let mut reverted = given_back(&mut set, wanted);
    reverted.processes.extend(lost.into_iter().map(|(member, error)| (member, GivenBack::Failed(error))));
    // Those that run the program at other addresses are sets of their own. An error: the named process has
    // ended meanwhile.
    let families = if tree { families(pid).unwrap_or_default() } else { Vec::new() };
    for member in families.into_iter().skip(1).flatten() {
        match ProcessSet::open(member, false) {
            Ok(mut other) => {
                let theirs = given_back(&mut other, wanted);
                let done = |(_, what): &(i32, GivenBack)| !matches!(what, GivenBack::NothingThere);
                reverted.processes.extend(theirs.processes.into_iter().filter(done));
                reverted.kept.extend(theirs.kept);
            }
            Err(error @ SessionError::Process(ProcessError::StateLost { .. })) => {
                reverted.processes.push((member, GivenBack::Failed(error)));
            }
            // One that cannot be opened has nothing of restitch in it, or has ended.
            Err(_) => {}
        }
    }
    if reverted.processes.iter().all(|(_, what)| matches!(what, GivenBack::NothingThere)) {
        let dir = StateDir::open()?;
        dir.collect_garbage();
        let (is_roots, dir) = (dir.is_roots(), dir.path().to_path_buf());
        return Err(ProcessError::NotAttached { pid, dir, is_roots }.into());
    }
    Ok(reverted)
}

fn given_back(set: &mut ProcessSet, wanted: &dyn Fn(&AttachedProcess) -> bool) -> Reverted {
    if set.all().all(|l| l.journal().is_empty()) {
        let processes = set.pids().into_iter().map(|pid| (pid, GivenBack::NothingThere)).collect();
        return Reverted { processes, kept: Vec::new() };
    }
    let processes = set.give_back(wanted);
    Reverted { processes, kept: set.reclaim() }
}

/// What a revert did.
#[derive(Debug)]
pub struct Reverted {
    /// What became of each process, the named one first.
    pub processes: Vec<(i32, GivenBack)>,
    /// Versions that stay mapped.
    pub kept: Vec<KeptVersion>,
}

impl Reverted {
    /// Why the first of those that could not be changed could not.
    pub fn failure(&self) -> Option<&SessionError> {
        self.processes.iter().find_map(|(_, what)| match what {
            GivenBack::Failed(error) => Some(error),
            _ => None,
        })
    }

    /// The exit code: that of the worst that has happened to a process.
    pub fn exit_code(&self) -> ExitCode {
        self.processes.iter().map(|(_, what)| what.exit_code()).max().unwrap_or(ExitCode::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_of_a_revert_is_that_of_the_worst() {
        let refused = || GivenBack::Failed(SessionError::Refused { pid: 2, why: "a reason".into() });
        let failed = || GivenBack::Failed(SessionError::Command { command: "c".into(), why: "w".into() });
        let done = || GivenBack::Done(restitch_apply_process::SwitchReport::default());
        let code = |all: Vec<GivenBack>| {
            let processes = all.into_iter().enumerate().map(|(pid, what)| (pid as i32, what)).collect();
            let reverted = Reverted { processes, kept: Vec::new() };
            (reverted.exit_code(), reverted.failure().is_some())
        };
        assert_eq!(code(vec![done(), GivenBack::NothingThere]), (ExitCode::Done, false));
        assert_eq!(code(vec![done(), refused(), done()]), (ExitCode::Refused, true));
        assert_eq!(code(vec![refused(), failed()]), (ExitCode::Refused, true));
        assert_eq!(code(vec![failed(), done()]), (ExitCode::Failure, true));
    }
}
