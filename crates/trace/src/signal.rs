//! Which signal interrupts the target.

use crate::error::BranchTraceError;
use restitch_procfs as procfs;

/// Signals whose default is to be ignored and that programs rarely use. (SIGCHLD is used by all that start
/// others.)
const CANDIDATES: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signal that fewest threads of processes `pid` and `others` block, among those that none of these
/// processes handles. Others that have ended meanwhile do not count.
///
/// Go's runtime handles all signals, but uses SIGURG for itself and takes any number of them for nothing
/// (`src/runtime/preempt.go`), so SIGURG is right there as well.
pub(crate) fn choose(pid: i32, others: &[i32]) -> Result<i32, BranchTraceError> {
    let caught = |pid| procfs::status(pid).map(|status| status.caught_signals.unwrap_or(0));
    let mut handled = vec![caught(pid)?];
    handled.extend(others.iter().filter_map(|pid| caught(*pid).ok()));
    let usable = |signal: &i32| handled.iter().all(|caught| is_usable(*signal, *caught));
    let mut threads = procfs::threads(pid)?;
    threads.extend(others.iter().filter_map(|pid| procfs::threads(*pid).ok()).flatten());
    let masks: Vec<u64> = threads
        .into_iter()
        .filter_map(|thread| procfs::thread_status(thread.pid, thread.tid).ok()?.blocked_signals)
        .collect();
    let blocking = |signal: &i32| masks.iter().filter(|mask| *mask & bit(*signal) != 0).count();
    // Threads block everything for a moment when they start others: being blocked now is no reason to refuse.
    CANDIDATES.into_iter().filter(usable).min_by_key(blocking).ok_or(BranchTraceError::NoSignal { pid })
}

/// Whether a process that handles the signals `caught` does not mind `signal`.
fn is_usable(signal: i32, caught: u64) -> bool {
    caught & bit(signal) == 0 || (signal == libc::SIGURG && handles_all(caught))
}

/// A runtime that catches everything down to SIGWINCH and SIGURG, as Go's does.
fn handles_all(caught: u64) -> bool {
    [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD, libc::SIGIO]
        .into_iter()
        .all(|signal| caught & bit(signal) != 0)
}
