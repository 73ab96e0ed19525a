//! `status` and `revert`: what is in a process, and taking it out.

use crate::process_set::ProcessSet;
use crate::{SessionError, Watcher};
use restitch_apply_process::{Journal, Live, ProcessError, StateDir, SwitchReport, VersionKind};

/// What restitch has in one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The process.
    pub pid: i32,
    /// Its program's path, if it can be read.
    pub program: String,
    /// Versions in it: number, purpose, module, bytes mapped, retired.
    pub versions: Vec<(u32, VersionKind, String, u64, bool)>,
    /// Places that are patched.
    pub patches: usize,
    /// A counting version is in force that nobody reads: its attach was killed.
    pub left_counting: bool,
}

/// The state of process `pid`, or of all processes that have a journal. Journals of ended processes are removed.
///
/// # Errors
/// If the state directory cannot be used; with `pid` also if the process cannot be read.
pub fn status(pid: Option<i32>) -> Result<Vec<ProcessStatus>, SessionError> {
    let dir = StateDir::open()?;
    let pids: Vec<i32> = match pid {
        Some(pid) => vec![pid],
        None => living(&dir),
    };
    let mut out = Vec::new();
    for one in pids {
        match Live::open(one, dir.clone()) {
            Ok(live) if live.journal().is_empty() && pid.is_none() => {}
            Ok(live) => out.push(of(&live)),
            Err(error) if pid.is_some() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(out)
}

/// Processes with a journal; what ended processes have left behind is removed.
fn living(dir: &StateDir) -> Vec<i32> {
    let mut out = Vec::new();
    for path in dir.journals() {
        let Ok(journal) = Journal::read(&path) else { continue };
        if journal.process().is_alive() {
            out.push(journal.process().pid);
        } else {
            dir.forget(journal.process());
        }
    }
    out
}

fn of(live: &Live) -> ProcessStatus {
    let target = live.target();
    let journal = live.journal();
    ProcessStatus {
        pid: target.pid(),
        program: target.modules[target.program].path.display().to_string(),
        versions: journal
            .versions
            .iter()
            .map(|v| (v.number, v.kind, v.module.display().to_string(), v.len, v.retired))
            .collect(),
        patches: journal.patches.len(),
        left_counting: live.left_counting(),
    }
}

/// Gives process `pid` (and with `tree` all of its program) its original code back.
///
/// # Errors
/// If there is nothing of restitch in it, or it cannot be stopped.
pub fn revert(pid: i32, tree: bool, watcher: &mut dyn Watcher) -> Result<Reverted, SessionError> {
    let mut set = ProcessSet::open(pid, tree)?;
    if set.all().all(|l| l.journal().is_empty()) {
        let dir = StateDir::open()?.path().to_path_buf();
        return Err(ProcessError::NotAttached { pid, dir }.into());
    }
    let switched = set.switch(&[], VersionKind::Optimized, watcher)?;
    Ok(Reverted { switched, kept: set.sweep() })
}

/// What a revert did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reverted {
    /// The switch to the original code.
    pub switched: SwitchReport,
    /// Versions that stay mapped, unused: process, number, reason.
    pub kept: Vec<(i32, u32, String)>,
}
