//! Being first while others stand still.
//!
//! On a busy machine the tracer is preempted in the middle of a stop, also by the very threads that it has just let go: with 64
//! busy threads on two processors resuming took 29 ms, and under 2 ms with a real-time policy (sched(7)). So the tracing
//! thread has the lowest real-time priority for as long as it holds a process. Where that is not permitted, nothing changes.

use crate::sys;

/// The calling thread is urgent for as long as this lives; to be dropped on the same thread.
#[derive(Debug)]
pub(crate) struct Urgent {
    before: Option<(i32, i32)>,
}

impl Urgent {
    /// Makes the calling thread urgent, unless it has a policy of its own already.
    pub fn begin() -> Self {
        let ordinary = sys::scheduling().filter(|(policy, _)| *policy == libc::SCHED_OTHER);
        Self { before: ordinary.filter(|_| sys::set_scheduling(libc::SCHED_FIFO, 1)) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some((policy, priority)) = self.before {
            sys::set_scheduling(policy, priority);
        }
    }
}

/// Makes the calling thread yield to others: its nice value becomes `nice` (0 to 19), unless it is higher already. False where the
/// system refuses.
pub fn be_nice(nice: i32) -> bool {
    sys::set_nice(nice)
}

/// Makes the calling thread, and what it starts, do with what others leave: the lowest of all nice values, no preemption of others on waking up
/// (`SCHED_BATCH`), the idle class of I/O (ioprio_set(2)). Against one busy thread it gets 1.5 % of a core. False where the system refuses
/// the first of these.
pub fn be_lowest() -> bool {
    sys::set_scheduling(libc::SCHED_BATCH, 0);
    sys::set_idle_io();
    sys::set_nice(19)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_lowest_priority_does_not_change_others() {
        let own = sys::scheduling();
        let lowest = std::thread::spawn(|| (be_lowest(), sys::scheduling(), sys::nice())).join().unwrap();
        assert_eq!(lowest, (true, Some((libc::SCHED_BATCH, 0)), 19));
        assert_eq!(sys::scheduling(), own);
        assert!(sys::nice() < 19, "the test itself runs at a higher priority");
    }

    #[test]
    fn the_policy_is_as_before_afterwards() {
        let before = sys::scheduling();
        let urgent = Urgent::begin();
        drop(Urgent::begin());
        assert_eq!(urgent.before.is_some(), sys::scheduling() != before);
        drop(urgent);
        assert_eq!(sys::scheduling(), before);
    }
}
