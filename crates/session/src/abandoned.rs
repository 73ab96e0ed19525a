//! What a restitch has left that ended in the middle of its work, killed or by a fault: counting versions
//! that nobody reads, tracing versions, replacement mappings.
//!
//! A keeper, a process of its own that sees the end of the working one (`restitch keep`), gives such
//! processes their original code back. Whoever is at work on a process has its lock: what is found while the
//! keeper has it is nobody's. What was found before only says which processes to look at; another restitch
//! may have put a layout in force since, which stays.

use crate::status::{ProcessStatus, Reverted, revert_where, status_when};
use restitch_apply_process::{AttachedProcess, ProcessError, StateDir, VersionKind};
use restitch_processes::SessionError;
use restitch_processes::busy::Patience;
use restitch_processes::process_set::GivenBack;
use restitch_procfs as procfs;
use std::time::{Duration, Instant};

/// Gives all processes their original code back in which something was left that is of no use to anybody;
/// what became of each. Finished layouts stay.
///
/// # Errors
/// If the state directory cannot be used.
pub fn give_back_abandoned() -> Result<Vec<(i32, GivenBack)>, SessionError> {
    Ok(give_back(unfinished()?))
}

/// A process in which something is that only makes sense while somebody is at work on it.
#[derive(Debug)]
pub struct Unfinished(AttachedProcess);

impl Unfinished {
    /// Its number.
    pub fn pid(&self) -> i32 {
        self.0.target().pid()
    }
}

/// The processes in which something of the kind is just now, whether or not somebody is at work on them.
///
/// # Errors
/// If the state directory cannot be used.
pub fn unfinished() -> Result<Vec<Unfinished>, SessionError> {
    let dir = StateDir::open()?;
    // One that cannot be looked at has ended.
    let opened = dir.users().into_iter().filter_map(|pid| AttachedProcess::open(pid, dir.clone()).ok());
    Ok(opened.filter(is_unfinished).map(Unfinished).collect())
}

/// Gives those of the processes their original code back on which nobody is at work, and in which there is
/// something unfinished by then; what became of each. Somebody who only looks at a process has its lock for a
/// moment, which is waited for. Whoever is at work for long has a keeper, too.
pub fn give_back(found: Vec<Unfinished>) -> Vec<(i32, GivenBack)> {
    let is_busy = |process: &Unfinished| process.0.target().process.is_alive() && !process.0.is_idle();
    let mut told: Vec<(i32, GivenBack)> = Vec::new();
    Patience::default().each(found, is_busy, |process| {
        // Those that were forked off another one have gone along with it.
        if !told.iter().any(|(pid, _)| *pid == process.pid()) {
            told.extend(given_back(process.pid()));
        }
    });
    told.retain(|(_, what)| !matches!(what, GivenBack::NothingThere));
    told
}

/// What became of a process, and of those that it has forked off, on which nobody was at work a moment ago.
fn given_back(pid: i32) -> Vec<(i32, GivenBack)> {
    let is_others = |error: &SessionError| matches!(error, SessionError::Process(ProcessError::Busy { .. }));
    let mut told = match revert_where(pid, false, &is_unfinished) {
        Ok(Reverted { processes, .. }) => processes,
        // There is nothing of the kind any more.
        Err(SessionError::Process(ProcessError::NotAttached { .. })) => Vec::new(),
        Err(error) => vec![(pid, GivenBack::Failed(error))],
    };
    told.retain(|(_, what)| !matches!(what, GivenBack::Failed(error) if is_others(error)));
    told
}

/// Waits for the end of restitch `working`, `patience` so long: its threads let go of what they trace, and of
/// their locks, one after the other.
pub fn await_end(working: i32, patience: Duration) {
    let end = Instant::now() + patience;
    while Instant::now() < end
        && procfs::threads(working).is_ok_and(|tids| tids.iter().any(|tid| runs(working, tid.tid)))
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a thread is there that has not ended; one that is ending may hold something still.
fn runs(pid: i32, tid: i32) -> bool {
    procfs::thread_stat(pid, tid).is_ok_and(|stat| !stat.state.is_ended())
}

/// Whether something is in a process that only makes sense while somebody is at work on it, by what its code
/// leads to: a journal that was written before a switch does not know whether that came to its end.
fn is_unfinished(live: &AttachedProcess) -> bool {
    // One that cannot be looked at has ended.
    let Ok(found) = status_when(live, true) else { return false };
    found.left_counting || found.left_replacements > 0 || is_left_tracing(&found)
}

/// Whether tracing versions are in a process. Those that had to stay mapped go with the layout that is in
/// force by now.
fn is_left_tracing(found: &ProcessStatus) -> bool {
    let (mut traces, mut is_laid_out) = (false, false);
    for version in &found.versions {
        traces |= version.kind == VersionKind::Burst;
        is_laid_out |= version.kind == VersionKind::Optimized && !version.is_retired;
    }
    traces && !is_laid_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::VersionStatus;

    #[test]
    fn tracing_versions_that_had_to_stay_are_no_reason_to_take_a_layout_out() {
        let with = |versions: &[(VersionKind, bool)]| {
            let version = |&(kind, is_retired): &(VersionKind, bool)| VersionStatus {
                number: 1,
                kind,
                module: String::new(),
                bytes: 0,
                is_retired,
            };
            let (program, gdb) = Default::default();
            is_left_tracing(&ProcessStatus {
                pid: 1,
                program,
                versions: versions.iter().map(version).collect(),
                patches: 0,
                is_idle: true,
                left_counting: false,
                left_replacements: 0,
                gdb,
                lost: None,
            })
        };
        use VersionKind::{Burst, Optimized};
        assert!(with(&[(Burst, false)]));
        assert!(with(&[(Burst, false), (Optimized, true)]), "nothing leads into that layout");
        assert!(!with(&[(Burst, false), (Optimized, false)]));
        assert!(!with(&[(Optimized, false)]));
    }
}
