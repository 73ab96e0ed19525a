//! What a restitch has left that ended in the middle of its work, killed or by a fault: counting versions
//! that nobody reads, tracing versions, replacement mappings.
//!
//! A keeper, a process of its own that sees the end of the working one (`restitch keep`), gives such
//! processes their original code back. Whoever is at work on a process has its lock; so what is found here
//! without one is nobody's.

use crate::ProcessStatus;
use crate::status::{Reverted, revert, status_of};
use restitch_apply_process::{AttachedProcess, StateDir, VersionKind};
use restitch_processes::SessionError;
use restitch_processes::process_set::GivenBack;
use restitch_procfs as procfs;
use std::time::{Duration, Instant};

/// Gives all processes their original code back in which something was left that is of no use to anybody;
/// what became of each. Finished layouts stay.
///
/// # Errors
/// If the state directory cannot be used.
pub fn give_back_abandoned() -> Result<Vec<(i32, GivenBack)>, SessionError> {
    let dir = StateDir::open()?;
    let mut told = Vec::new();
    for pid in dir.users() {
        // One that cannot be looked at has ended.
        let Some(found) = AttachedProcess::open(pid, dir.clone()).ok().and_then(|live| status_of(&live).ok())
        else {
            continue;
        };
        if is_abandoned(&found) {
            match revert(pid, false) {
                Ok(Reverted { processes, .. }) => told.extend(processes),
                Err(error) => told.push((pid, GivenBack::Failed(error))),
            }
        }
    }
    told.retain(|(_, what)| !matches!(what, GivenBack::NothingThere));
    Ok(told)
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

/// Whether nobody is at work on a process, and something is in it that only makes sense while somebody is.
fn is_abandoned(found: &ProcessStatus) -> bool {
    let traces = |(_, kind, ..): &(u32, VersionKind, String, u64, bool)| *kind == VersionKind::Burst;
    found.is_idle && (found.left_counting || found.left_replacements > 0 || found.versions.iter().any(traces))
}
