//! Processes that share their memory without being threads of one process (`clone` with `CLONE_VM` alone).
//!
//! Code that is exchanged in one of them is exchanged in all, and a stop holds one's threads only. The kernel
//! tells who shares memory by comparing two processes (`kcmp`, `KCMP_VM`), so all that can be seen are asked
//! about: about a microsecond for each. Such a child of `vfork` is none: who waits for it stops when it has
//! gone, and stops refuse to begin before ([`crate::Stopped::seize_all`]).
//!
//! **What is not seen**: processes of other users, by one who is not root; any, where `kcmp` is not permitted
//! (a container's filter) or not there.

use crate::error::TraceError;
use crate::seize::waits_for_vfork;
use crate::sys;
use crate::wait::Patience;
use restitch_procfs as procfs;
use std::time::Duration;

/// How long a process that was just made by `vfork` may take to execute its program.
const PATIENCE: Duration = Duration::from_millis(300);

/// Refuses a process whose memory another process works in that is not stopped with it.
///
/// # Errors
/// [`TraceError::SharedMemory`]; if the process or `/proc` cannot be read.
pub fn refuse_shared_memory(pid: i32) -> Result<(), TraceError> {
    let mut patience = Patience::new(PATIENCE);
    loop {
        let sharers = sharers(pid)?;
        let Some(&other) = sharers.first().filter(|_| sharers.len() > vfork_parents(pid)) else {
            return Ok(());
        };
        if patience.is_over() {
            let name = procfs::status(other).map_or_else(|_| "unknown".to_owned(), |status| status.name);
            return Err(TraceError::SharedMemory { pid, other, name });
        }
        patience.pause();
    }
}

/// The other processes that have the memory of process `pid`, ascending.
///
/// Kernel threads, and processes that end, have none of user space: to `kcmp` all of these are alike, and
/// like a `pid` that ends.
fn sharers(pid: i32) -> Result<Vec<i32>, TraceError> {
    let holder = procfs::holder(pid);
    let mut all = procfs::processes()?;
    let works_in_memory = |other| procfs::status(other).is_ok_and(|status| status.has_memory);
    all.retain(|&other| other != pid && sys::has_memory_of(other, holder) && works_in_memory(other));
    Ok(all)
}

/// How many threads of a process wait for a vfork child each.
fn vfork_parents(pid: i32) -> usize {
    let threads = procfs::threads(pid).unwrap_or_default();
    let stats = threads.into_iter().filter_map(|thread| procfs::thread_stat(pid, thread.tid).ok());
    stats.filter(|stat| waits_for_vfork(pid, stat)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_memory_of_their_own_are_told_apart() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("it starts");
        let (own, other) = (std::process::id() as i32, child.id() as i32);
        assert!(!sys::has_memory_of(other, own));
        assert_eq!(sharers(other).expect("it lives"), [0; 0]);
        assert!(refuse_shared_memory(other).is_ok());
        child.kill().and_then(|()| child.wait()).expect("ours");
        // (Where the call is not permitted, nothing is seen.)
        println!("kcmp works: {}", sys::has_memory_of(own, own));
    }

    #[test]
    fn processes_that_have_ended_share_nothing() {
        let ended = || {
            let child = std::process::Command::new("true").spawn().expect("it starts");
            while !procfs::has_ended(child.id() as i32) {
                std::thread::yield_now();
            }
            child
        };
        let (mut one, mut other) = (ended(), ended());
        // (To the kernel they have the same: none.)
        assert_eq!(sharers(one.id() as i32).expect("it is not forgotten yet"), [0; 0]);
        assert_eq!(sharers(other.id() as i32).expect("it is not forgotten yet"), [0; 0]);
        one.wait().and_then(|_| other.wait()).expect("ours");
    }
}
