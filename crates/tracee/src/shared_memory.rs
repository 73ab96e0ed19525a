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
/// Where more numbers were given in between, all processes are asked about.
const MOST_ASKED: i32 = 2000;

/// A process whose memory nobody else worked in when it was looked at.
#[derive(Debug, Clone, Copy)]
pub struct AloneInMemory {
    pid: i32,
    /// The number that a process or thread got last before that; `None` if it is not known.
    last: Option<i32>,
}

impl AloneInMemory {
    /// Refuses a process whose memory another process works in that is not stopped with it.
    ///
    /// # Errors
    /// [`TraceError::SharedMemory`]; if the process or `/proc` cannot be read.
    pub fn verify(pid: i32) -> Result<Self, TraceError> {
        let mut patience = Patience::new(PATIENCE);
        loop {
            let alone = Self { pid, last: procfs::last_number() };
            let sharers = sharers(pid, procfs::processes()?);
            let Some(&other) = sharers.first().filter(|_| sharers.len() > vfork_parents(pid)) else {
                return Ok(alone);
            };
            if patience.is_over() {
                return Err(shared(pid, other));
            }
            patience.pause();
        }
    }

    /// The same once more while all threads of the process are stopped, so that it makes no others: it may
    /// have made one since. Only numbers that were given since are asked about.
    ///
    /// # Errors
    /// As [`AloneInMemory::verify`], at once.
    pub fn verify_stopped(&self) -> Result<(), TraceError> {
        let since = self.last.zip(procfs::last_number());
        let made = match since {
            // (Numbers begin anew at their limit.)
            Some((last, now)) if (0..MOST_ASKED).contains(&(now - last)) => (last + 1..=now).collect(),
            _ => procfs::processes()?,
        };
        match sharers(self.pid, made).first() {
            Some(&other) => Err(shared(self.pid, other)),
            None => Ok(()),
        }
    }
}

/// Refuses a process whose memory another process works in that is not stopped with it.
///
/// # Errors
/// As [`AloneInMemory::verify`].
pub fn refuse_shared_memory(pid: i32) -> Result<(), TraceError> {
    AloneInMemory::verify(pid).map(drop)
}

/// Whether process `other` has the memory of process `pid`, as a child of `vfork` does until it executes its
/// program: what is changed in one is changed in both. `false` where the kernel does not tell.
pub fn shares_memory(pid: i32, other: i32) -> bool {
    !sharers(pid, vec![other]).is_empty()
}

fn shared(pid: i32, other: i32) -> TraceError {
    let name = procfs::status(other).map_or_else(|_| "unknown".to_owned(), |status| status.name);
    TraceError::SharedMemory { pid, other, name }
}

/// Those of `all` that have the memory of process `pid`, and are none of its threads.
///
/// Kernel threads, and processes that end, have none of user space: to `kcmp` all of these are alike, and
/// like a `pid` that ends.
fn sharers(pid: i32, mut all: Vec<i32>) -> Vec<i32> {
    let holder = procfs::holder(pid);
    let is_other = |other| procfs::status(other).is_ok_and(|it| it.has_memory && it.tgid != Some(pid));
    all.retain(|&other| other != pid && sys::has_memory_of(other, holder) && is_other(other));
    all
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
        assert_eq!(sharers(other, procfs::processes().expect("readable")), [0; 0]);
        assert!(!shares_memory(own, other) && !shares_memory(other, own));
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
        let all = procfs::processes().expect("readable");
        assert_eq!(sharers(one.id() as i32, all.clone()), [0; 0]);
        assert_eq!(sharers(other.id() as i32, all), [0; 0]);
        one.wait().and_then(|_| other.wait()).expect("ours");
    }
}
