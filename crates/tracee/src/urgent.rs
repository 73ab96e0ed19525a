//! Being first while others stand still.
//!
//! On a busy machine the tracer is preempted in the middle of a stop, also by the very threads that it has
//! just let go: with 64 busy threads on two processors resuming took 29 ms, and under 2 ms with a real-time
//! policy (sched(7)). So the tracing thread has the lowest real-time priority for as long as it holds a
//! process. Where that is not permitted, nothing changes.

use crate::sys;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// What threads are called that [`aside`] starts; threads that these start inherit the name.
const ASIDE: &str = "restitch aside";
/// The nice value of work aside that could not be made faster later.
const NICE: i32 = 10;
/// When work that gets the caller's priority is looked at for the second time, for threads that were being
/// started at the first.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// The longest time between two such looks.
const LOOK: Duration = Duration::from_secs(1);

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

/// Makes the calling thread yield to others: its nice value becomes `nice` (-20 to 19), unless it is higher
/// already. False where the system refuses.
pub fn be_nice(nice: i32) -> bool {
    sys::set_nice(nice)
}

/// Sleeps of the calling thread, and of what it starts, last as long as they say: an ordinary thread's are up
/// to 50 us longer, so that timers go off together (`PR_SET_TIMERSLACK`, prctl(2)). To be used where times of
/// that size are measured. False where the system refuses.
pub fn be_punctual() -> bool {
    sys::set_timer_slack(1)
}

/// Makes the calling thread, and what it starts, do with what others leave: the lowest of all nice values, no
/// preemption of others on waking up (`SCHED_BATCH`), the idle class of I/O (ioprio_set(2)). Against one busy
/// thread it gets 1.5 % of a core. False where the system refuses the first of these.
pub fn be_lowest() -> bool {
    sys::set_scheduling(libc::SCHED_BATCH, 0);
    sys::set_idle_io();
    sys::set_nice(19)
}

/// Does `work` with what others leave of the processors, on a thread of its own ([`be_lowest`]). It may have
/// to wait for a processor for long; so when `patience` is over, that thread and those that it has started
/// get the caller's priority. Where the system does not permit that (setpriority(2): raising one's priority
/// is a privilege), the work is done at a nice value of 10 from the beginning.
///
/// # Errors
/// If no thread can be started; nothing has been done then.
pub fn aside<T: Send>(patience: Duration, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let nice = sys::nice();
    thread::scope(|scope| {
        let (state, changes) = channel::<()>();
        let worker = thread::Builder::new().name(ASIDE.into()).spawn_scoped(scope, move || {
            if may_raise(nice) {
                be_lowest();
            } else {
                be_nice(NICE);
            }
            // It begins; an error: nobody waits any more.
            let _ = state.send(());
            let result = work();
            drop(state);
            result
        })?;
        let has_begun = changes.recv().is_ok();
        let (mut pause, mut next) = (patience, FIRST_LOOK);
        // Again and again: a thread that is being started meanwhile has its starter's priority of before, and
        // is not to be seen yet.
        while has_begun && changes.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            threads_aside().for_each(|tid| _ = sys::make_ordinary(tid, nice));
            (pause, next) = (next, (next * 2).min(LOOK));
        }
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Whether the calling thread, whose nice value is `nice`, could have it back.
fn may_raise(nice: i32) -> bool {
    let nice = nice.min(18);
    sys::set_nice(nice + 1) && sys::set_nice(nice)
}

/// Threads of this process that work aside.
fn threads_aside() -> impl Iterator<Item = i32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let is_aside = |comm: io::Result<String>| comm.is_ok_and(|comm| comm.trim_end() == ASIDE);
    tasks
        .filter(move |task| is_aside(std::fs::read_to_string(task.path().join("comm"))))
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
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
    fn work_aside_is_lowest_until_patience_ends() {
        let own = (sys::scheduling(), sys::nice());
        let state = || (sys::scheduling(), sys::nice());
        let is_ordinary = own.0 == Some((libc::SCHED_OTHER, 0));
        let may_raise = is_ordinary && thread::spawn(move || may_raise(own.1)).join().unwrap();
        let found = aside(Duration::from_secs(600), state).unwrap();
        if may_raise {
            assert_eq!(found, (Some((libc::SCHED_BATCH, 0)), 19));
        } else {
            assert!(found.1 >= NICE, "{found:?}");
        }
        assert_eq!(state(), own, "the caller is as before");
        // Without patience: where that is permitted, the work and what it has started come to be as the
        // caller is.
        let raised = aside(Duration::ZERO, || {
            let is_own = || {
                thread::sleep(Duration::from_millis(10));
                state() == own
            };
            let wait = || (0..3000).any(|_| is_own());
            thread::scope(|scope| {
                let child = scope.spawn(wait);
                (wait(), child.join().unwrap())
            })
        });
        if may_raise {
            assert_eq!(raised.unwrap(), (true, true));
        }
        // A thread that was waited for is still to be seen until the system has put it away.
        let are_gone = || (threads_aside().count() == 0).then_some(());
        assert!(restitch_testkit::wait_until(Duration::from_secs(60), are_gone).is_some());
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
