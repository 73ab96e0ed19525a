//! Stopping a process that is followed already.

use crate::error::TraceError;
use crate::launch::{TraceEvent, TraceEvents};
use crate::memory::Memory;
use crate::seize::hold_thread;
use crate::status::{StopKind, decode};
use crate::stopped::{Held, Release, StopTimes, Stopped};
use crate::sys::{self, Waited};
use crate::urgent::Urgent;
use crate::wait::Patience;
use restitch_procfs::{self as procfs, ProcessId};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

impl TraceEvents {
    /// Stops all threads of a followed process in the middle of its run, like [`Stopped::seize_all`] for
    /// processes that nobody traces. Resuming or dropping the result lets the process run on as a tracee.
    /// Events that come meanwhile are reported later; if one of them is the process's exec or end, it is not
    /// stopped ([`TraceError::Executed`], [`TraceError::Vanished`]).
    pub fn stop(&mut self, pid: i32, limit: Duration) -> Result<Stopped, TraceError> {
        self.hold_all(pid, limit, BTreeMap::new(), Instant::now())
    }

    /// Stops all threads of `pid` but those in `held`, which stand still already.
    pub(crate) fn hold_all(
        &mut self,
        pid: i32,
        limit: Duration,
        mut held: BTreeMap<i32, Held>,
        begun: Instant,
    ) -> Result<Stopped, TraceError> {
        let process = match ProcessId::of(pid) {
            Ok(process) => process,
            Err(error) => {
                Self::run_on(&held);
                return Err(error.into());
            }
        };
        let stopped = self.stop_threads(pid, limit, &mut held).and_then(|()| {
            let living = held.keys().next().copied();
            let living =
                living.ok_or(TraceError::Vanished { tid: pid, operation: "stopping its threads" })?;
            Ok(Memory::open(living)?.of_stopped())
        });
        let memory = match stopped {
            Ok(memory) => memory,
            Err(error) => {
                Self::run_on(&held);
                return Err(error);
            }
        };
        Ok(Stopped {
            process,
            threads: held.into_values().collect(),
            memory,
            others_run: false,
            release: Release::Continue,
            times: StopTimes { stopping: begun.elapsed(), passes: 1, ..StopTimes::default() },
            since: Instant::now(),
            holds: None,
            _urgent: Urgent::begin(),
            not_send: PhantomData,
        })
    }

    fn stop_threads(
        &mut self,
        pid: i32,
        limit: Duration,
        held: &mut BTreeMap<i32, Held>,
    ) -> Result<(), TraceError> {
        for tid in self.threads_of(pid).into_iter().filter(|tid| !held.contains_key(tid)) {
            let _ = sys::interrupt(tid);
        }
        let mut patience = Patience::new(limit);
        loop {
            let waiting: Vec<i32> =
                self.threads_of(pid).into_iter().filter(|tid| !held.contains_key(tid)).collect();
            let Some(&first) = waiting.first() else { return Ok(()) };
            let mut progress = false;
            for &tid in &waiting {
                progress |= self.collect_stop(pid, tid, held)?;
            }
            if !progress {
                // A first thread that has ended reports that when the others have, too.
                if waiting == [pid] && has_ended(pid) && !held.is_empty() {
                    return Ok(());
                }
                if patience.is_over() {
                    let waited_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                    let state = "followed".to_owned();
                    return Err(TraceError::NotStopping { pid, tid: first, waited_ms, state });
                }
                patience.pause();
            }
        }
    }

    /// Looks at one thread; whether it had something to report.
    fn collect_stop(
        &mut self,
        pid: i32,
        tid: i32,
        held: &mut BTreeMap<i32, Held>,
    ) -> Result<bool, TraceError> {
        if self.early.iter().any(|&(early, _)| early == tid) {
            return Err(TraceError::Executed { pid });
        }
        let stop = match sys::wait_keeping_signals(tid, false) {
            Waited::Nothing => return Ok(false),
            Waited::NoChild => {
                self.tasks.remove(&tid);
                return Ok(true);
            }
            Waited::Status(_, status) => decode(status),
        };
        match stop {
            StopKind::Interrupt | StopKind::Group(_) | StopKind::Signal(_) => {
                let signal = if let StopKind::Signal(signal) = stop { signal } else { 0 };
                match hold_thread(tid, signal) {
                    Ok(mut thread) => {
                        if signal != 0 {
                            self.put_off(pid, &mut thread)?;
                        }
                        held.insert(tid, thread);
                    }
                    // Killed in the stop: its end is still to be reported.
                    Err(TraceError::Vanished { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            StopKind::Event(libc::PTRACE_EVENT_EXEC) => {
                self.early.push_back((tid, stop));
                return Err(TraceError::Executed { pid });
            }
            StopKind::Ended(_) if tid == pid => {
                self.early.push_back((tid, stop));
                return Err(TraceError::Vanished { tid, operation: "stopping its threads" });
            }
            other => self.pass_by(tid, other)?,
        }
        Ok(true)
    }

    /// Handles an event on the way to the stop as usual, keeps what is to be reported, and interrupts again.
    fn pass_by(&mut self, tid: i32, stop: StopKind) -> Result<(), TraceError> {
        match self.handle(tid, stop) {
            Ok(Some(TraceEvent::Exiting(exit))) => {
                let tid = exit.pid();
                self.queued.push_back(TraceEvent::Exiting(exit));
                return Err(TraceError::Vanished { tid, operation: "stopping its threads" });
            }
            Ok(Some(event)) => self.queued.push_back(event),
            Ok(None) | Err(TraceError::Vanished { .. }) => {}
            Err(error) => return Err(error),
        }
        for tid in self.tasks.keys().copied().filter(|&other| self.tasks.get(&other) == self.tasks.get(&tid))
        {
            // Threads that stand still already take this as another interruption, which their release drops.
            let _ = sys::interrupt(tid);
        }
        Ok(())
    }

    fn threads_of(&self, pid: i32) -> Vec<i32> {
        self.tasks.iter().filter(|&(_, &group)| group == pid).map(|(&tid, _)| tid).collect()
    }
}

/// Whether the thread with this number, the first of its process, has ended.
fn has_ended(pid: i32) -> bool {
    procfs::thread_stat(pid, pid).is_ok_and(|stat| stat.state.is_ended())
}
