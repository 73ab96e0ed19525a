//! Following the threads of a running process one by one, without stopping the others.
//!
//! Problem: [`crate::Stopped`] holds a process as a whole; a tracer of bursts wants each thread alone,
//! whenever one of its signals (see crate perf) arrives, and all others running. Idea: seize every thread and
//! interrupt none; report stops as they come; pass foreign signals on untouched.
//!
//! Signals of others are never taken from the kernel: a stop in front of the delivery is looked at without
//! being waited for, so a signal that is on its way when this program dies reaches the process.
//!
//! Limits: all calls must come from one thread. **That thread's end is the detach**: the kernel then lets all
//! tracees go where they are, and no system call of theirs is interrupted. So follow on a thread made for it,
//! close the events first, and let it end. Reference: ptrace(2), "Attaching and detaching", "Death under
//! ptrace".

use crate::error::TraceError;
use crate::launch::TraceEvents;
use crate::memory::Memory;
use crate::registers::Registers;
use crate::seize::{OPTIONS, hold_thread, preflight};
use crate::status::{ExitStatus, StopKind, decode};
use crate::stopped::Stopped;
use crate::sys::{self, Resume, Waited};
use crate::urgent::Urgent;
use crate::wake::WakeTimer;

use restitch_address::AvmaRange;
use restitch_procfs as procfs;
use restitch_x86::patch::DEBUG_TRAP;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// What happened to a followed process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FollowEvent {
    /// An event of ours, with this descriptor number, has interrupted the thread. It is held.
    Notified {
        /// The thread.
        tid: i32,
        /// The descriptor number.
        number: i32,
    },
    /// Another signal was delivered to the thread, which runs on.
    Signal {
        /// The thread.
        tid: i32,
        /// The signal.
        signal: i32,
    },
    /// Another signal is to be delivered to a thread that stands in code that the caller has named
    /// ([`Followed::hold_signals_in`]). It is held before that; [`Followed::resume_with`] delivers it.
    Caught {
        /// The thread.
        tid: i32,
        /// The signal.
        signal: i32,
    },
    /// A new thread. It is held before its first instruction.
    Started {
        /// The thread.
        tid: i32,
    },
    /// A new process, with one thread, which is held before its first instruction.
    Forked {
        /// The process and its thread.
        pid: i32,
        /// The process that it is a copy of, or whose memory it shares until it executes a program.
        parent: i32,
    },
    /// A process executes another program, with one thread, which is held before its first instruction.
    Executed {
        /// The thread: the process's number.
        tid: i32,
    },
    /// A thread has executed one instruction ([`Followed::step`]) and is held.
    Stepped {
        /// The thread.
        tid: i32,
    },
    /// A thread has ended.
    Ended {
        /// The thread.
        tid: i32,
    },
    /// A process has ended.
    Exited {
        /// Which.
        pid: i32,
        /// How.
        status: ExitStatus,
    },
}

/// Whether processes that a followed process makes are followed, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Children {
    /// They are let go at once.
    Leave,
    /// They are followed, with all that they execute and make.
    Follow,
}

/// Processes whose threads are followed, and their children.
#[derive(Debug)]
pub struct Followed {
    pid: i32,
    signal: i32,
    children: Children,
    /// Memory of the followed processes.
    processes: BTreeMap<i32, Memory>,
    /// Threads and their processes.
    threads: BTreeMap<i32, i32>,
    /// Threads that are held for the caller.
    held: BTreeSet<i32>,
    /// Threads that execute one instruction for the caller.
    stepping: BTreeSet<i32>,
    /// The held thread whose stop, in front of the delivery of a signal, was only looked at.
    caught: Option<i32>,
    /// The registers of the thread that was held last, as long as it is.
    known: Option<(i32, Registers)>,
    /// Where signals are not delivered before the caller has seen it.
    catching: Vec<AvmaRange>,
    /// Threads and processes that are not followed, if there are some.
    unfollowed: Option<Unfollowed>,
    /// Until when nobody sleeps.
    awake: Option<Instant>,
    timer: WakeTimer,
    /// Held threads wait until this one has a processor.
    _urgent: Urgent,
    not_send: PhantomData<*const ()>,
}

/// Threads and processes that could not be followed, and have not just ended.
#[derive(Debug)]
pub struct Unfollowed {
    /// How many, each process as one.
    pub number: usize,
    /// Why the first one is not.
    pub why: TraceError,
}

/// A report of the kernel's that needs no answer from the caller is handled inside.
enum Handled {
    Event(FollowEvent),
    Done,
}

impl Followed {
    /// Seizes all threads of process `pid` without interrupting any. `signal` is the one that events of ours
    /// send.
    ///
    /// # Errors
    /// As for [`crate::Stopped::seize_all`]; no thread was disturbed. Threads that were seized already are
    /// let go when the calling thread ends.
    pub fn seize(pid: i32, signal: i32, children: Children) -> Result<Self, TraceError> {
        let pid = preflight(pid)?.pid;
        let mut followed = Self::of(pid, signal, children)?;
        followed.seize_threads_of(pid)?;
        Ok(followed)
    }

    /// Seizes all threads of one more process without interrupting any; one that is followed already (as the
    /// child of another) is left as it is. Its number comes back.
    ///
    /// # Errors
    /// As for [`Followed::seize`]. The processes that were followed before still are.
    pub fn seize_another(&mut self, pid: i32) -> Result<i32, TraceError> {
        let pid = match preflight(pid) {
            Ok(process) => process.pid,
            Err(TraceError::AlreadyTraced { .. }) if self.is_ours_already(pid, pid) => return Ok(pid),
            Err(error) => return Err(error),
        };
        if let Entry::Vacant(process) = self.processes.entry(pid) {
            process.insert(Memory::open_read_only(pid)?);
            self.seize_threads_of(pid)?;
        }
        Ok(pid)
    }

    /// Twice without a new one: threads may start others meanwhile.
    fn seize_threads_of(&mut self, pid: i32) -> Result<(), TraceError> {
        let mut clean = 0;
        while clean < 2 {
            clean = if self.seize_new_threads(pid)? { 0 } else { clean + 1 };
        }
        Ok(())
    }

    /// Takes over a process that `events` holds. It stays held until `stopped` lets it go; whatever else
    /// there were events of is let go now.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn take_over(
        mut events: TraceEvents,
        stopped: &Stopped,
        signal: i32,
        children: Children,
    ) -> Result<Self, TraceError> {
        let pid = stopped.pid();
        let mut followed = Self::of(pid, signal, children)?;
        for tid in stopped.threads() {
            sys::set_options(tid, followed.options())?;
            followed.threads.insert(tid, pid);
        }
        events.give_up(pid);
        Ok(followed)
    }

    fn of(pid: i32, signal: i32, children: Children) -> Result<Self, TraceError> {
        let timer =
            WakeTimer::new().map_err(|source| TraceError::Ptrace { request: "timer", tid: pid, source })?;
        Ok(Self {
            pid,
            signal,
            children,
            processes: BTreeMap::from([(pid, Memory::open_read_only(pid)?)]),
            threads: BTreeMap::new(),
            held: BTreeSet::new(),
            stepping: BTreeSet::new(),
            caught: None,
            known: None,
            catching: Vec::new(),
            awake: None,
            unfollowed: None,
            timer,
            _urgent: Urgent::begin(),
            not_send: PhantomData,
        })
    }

    fn seize_new_threads(&mut self, pid: i32) -> Result<bool, TraceError> {
        let mut found = false;
        for thread in procfs::threads(pid)? {
            let stays_in_kernel = || procfs::thread_stat(pid, thread.tid).is_ok_and(|s| s.stays_in_kernel());
            if self.threads.contains_key(&thread.tid) || stays_in_kernel() {
                continue;
            }
            match sys::seize(thread.tid, self.options()) {
                Ok(()) => {
                    self.threads.insert(thread.tid, pid);
                    found = true;
                }
                // It ended; or it was attached to by itself, as the child of a thread that was seized before.
                Err(TraceError::Vanished { .. }) => found = true,
                Err(_) if self.is_ours_already(pid, thread.tid) => {
                    self.threads.insert(thread.tid, pid);
                    found = true;
                }
                Err(error) => Self::judge(pid, thread.tid, error)?,
            }
        }
        Ok(found)
    }

    fn options(&self) -> i32 {
        let forks = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
        let children = if self.children == Children::Follow { forks } else { 0 };
        OPTIONS | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | children
    }

    fn is_ours_already(&self, pid: i32, tid: i32) -> bool {
        let tracer = procfs::thread_status(pid, tid).ok().and_then(|status| status.tracer);
        tracer
            .is_some_and(|tracer| tracer == sys::own_tid() || u32::try_from(tracer) == Ok(std::process::id()))
    }

    /// A dead leader stays in the list for as long as the process lives.
    fn judge(pid: i32, tid: i32, error: TraceError) -> Result<(), TraceError> {
        match procfs::thread_stat(pid, tid) {
            Ok(stat) if !stat.state.is_ended() && !stat.is_exiting => Err(error),
            _ => Ok(()),
        }
    }

    /// The process that was seized first.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn note_unfollowed(&mut self, why: TraceError) {
        if !why.is_gone() {
            self.unfollowed.get_or_insert(Unfollowed { number: 0, why }).number += 1;
        }
    }

    /// The new threads and processes that were not followed, if there were some that have not just ended.
    pub fn take_unfollowed(&mut self) -> Option<Unfollowed> {
        self.unfollowed.take()
    }

    /// The threads that are followed, of all processes.
    pub fn threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.threads.keys().copied()
    }

    /// The threads of one of the followed processes.
    pub fn threads_of(&self, pid: i32) -> impl Iterator<Item = i32> + '_ {
        self.threads.iter().filter(move |(_, process)| **process == pid).map(|(tid, _)| *tid)
    }

    /// The process of a followed thread.
    pub fn process_of(&self, tid: i32) -> Option<i32> {
        self.threads.get(&tid).copied()
    }

    /// The memory of a followed process, read-only.
    pub fn memory(&self, pid: i32) -> Option<&Memory> {
        self.processes.get(&pid)
    }

    /// For so long the next call of [`next_event`](Self::next_event) looks for an event without sleeping. To
    /// be used where one is about to come: a processor that has gone to sleep takes as long to wake as
    /// several stops (100 us in virtual machines).
    pub fn stay_awake(&mut self, long: Duration) {
        self.awake = Some(Instant::now() + long);
    }

    /// The next event, or `None` when `limit` has passed without one (a few milliseconds late at most).
    ///
    /// A thread that is [caught](FollowEvent::Caught) is to be resumed before the next call of this: until
    /// then the kernel delivers the signal should this program die, afterwards it is in the hands of this
    /// program alone. The same holds for the signal of an event of ours, which the program ignores.
    pub fn next_event(&mut self, limit: Duration) -> Result<Option<FollowEvent>, TraceError> {
        let end = Instant::now() + limit;
        if let Some(tid) = self.caught.take().filter(|tid| self.held.contains(tid))
            && let Some(Handled::Event(event)) = self.take_stop(tid)?
        {
            return Ok(Some(event));
        }
        // Busy targets report at once; only idle ones need the timer.
        let mut timer_is_set = false;
        let awake = self.awake.take();
        loop {
            let waited = match sys::wait_keeping_signals(-1, false) {
                Waited::Nothing if awake.is_some_and(|until| Instant::now() < until) => continue,
                Waited::Nothing => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    if !timer_is_set {
                        self.timer.set(left);
                        timer_is_set = true;
                    }
                    sys::wait_keeping_signals(-1, true)
                }
                waited => waited,
            };
            match waited {
                Waited::Nothing => {}
                Waited::NoChild => return Ok(None),
                Waited::Status(tid, status) => {
                    if let Handled::Event(event) = self.handle(tid, decode(status))? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    fn handle(&mut self, tid: i32, stop: StopKind) -> Result<Handled, TraceError> {
        match stop {
            StopKind::Ended(status) => Ok(self.ended(tid, status)),
            StopKind::Signal(signal) => self.signalled(tid, signal),
            StopKind::Group(_) => {
                self.quietly(sys::listen(tid))?;
                Ok(Handled::Done)
            }
            StopKind::Interrupt if !self.threads.contains_key(&tid) => self.arrived(tid),
            StopKind::Event(libc::PTRACE_EVENT_EXEC) => self.executed(tid),
            _ => {
                self.quietly(sys::resume(tid, Resume::Continue, 0))?;
                Ok(Handled::Done)
            }
        }
    }

    /// All threads but one are gone, and that one has the process's number.
    fn executed(&mut self, pid: i32) -> Result<Handled, TraceError> {
        self.threads.retain(|_, process| *process != pid);
        let threads = &self.threads;
        self.held.retain(|tid| threads.contains_key(tid));
        self.stepping.retain(|tid| threads.contains_key(tid));
        // The old program's memory is of no use any more, and its descriptor is.
        self.processes.remove(&pid);
        match Memory::open_read_only(pid) {
            Ok(memory) => {
                self.processes.insert(pid, memory);
                self.threads.insert(pid, pid);
                self.held.insert(pid);
                Ok(Handled::Event(FollowEvent::Executed { tid: pid }))
            }
            Err(error) => {
                self.note_unfollowed(error);
                self.quietly(sys::detach(pid, 0))?;
                Ok(Handled::Event(FollowEvent::Ended { tid: pid }))
            }
        }
    }

    /// A tracee that is not there any more needs no answer.
    fn quietly(&self, result: Result<(), TraceError>) -> Result<(), TraceError> {
        match result {
            Err(TraceError::Vanished { .. }) => Ok(()),
            other => other,
        }
    }

    fn ended(&mut self, tid: i32, status: ExitStatus) -> Handled {
        let known = self.threads.remove(&tid);
        self.held.remove(&tid);
        self.stepping.remove(&tid);
        if tid == self.pid || self.processes.contains_key(&tid) {
            self.processes.remove(&tid);
            self.threads.retain(|_, process| *process != tid);
            return Handled::Event(FollowEvent::Exited { pid: tid, status });
        }
        match known {
            Some(_) => Handled::Event(FollowEvent::Ended { tid }),
            None => Handled::Done,
        }
    }

    /// A tracee that was attached by itself: a thread, or a process that a followed one has made.
    fn arrived(&mut self, tid: i32) -> Result<Handled, TraceError> {
        let status = match procfs::status(tid) {
            Ok(status) => status,
            // It is ending (or cannot be looked at): whatever it still reports is answered.
            Err(error) => {
                self.note_unfollowed(error.into());
                self.quietly(sys::resume(tid, Resume::Continue, 0))?;
                return Ok(Handled::Done);
            }
        };
        let (pid, parent) = (status.tgid.unwrap_or(tid), status.ppid.unwrap_or(self.pid));
        if self.processes.contains_key(&pid) {
            self.threads.insert(tid, pid);
            self.held.insert(tid);
            return Ok(Handled::Event(FollowEvent::Started { tid }));
        }
        let wanted = self.children == Children::Follow && pid == tid;
        let memory = match wanted.then(|| Memory::open_read_only(pid)) {
            Some(Ok(memory)) => memory,
            other => {
                if let Some(Err(error)) = other {
                    self.note_unfollowed(error);
                }
                self.quietly(sys::detach(tid, 0))?;
                return Ok(Handled::Done);
            }
        };
        self.processes.insert(pid, memory);
        self.threads.insert(tid, pid);
        self.held.insert(tid);
        Ok(Handled::Event(FollowEvent::Forked { pid, parent }))
    }

    /// The stop was looked at only ([`sys::wait_keeping_signals`]): whatever this program dies of, the kernel
    /// delivers the signal.
    fn signalled(&mut self, tid: i32, signal: i32) -> Result<Handled, TraceError> {
        let origin = match sys::signal_origin(tid) {
            Err(TraceError::Vanished { .. }) => return Ok(Handled::Done),
            origin => origin?,
        };
        if signal == self.signal && origin.is_descriptor() {
            // Most callers resume it at once: then it need not be taken first, which would be one more system
            // call while it is held.
            self.caught = Some(tid);
            return self.notified(tid, origin.descriptor);
        }
        if signal == libc::SIGTRAP && STEPS.contains(&origin.code) && self.stepping.contains(&tid) {
            if let Some(handled) = self.take_stop(tid)? {
                return Ok(handled);
            }
            self.stepping.remove(&tid);
            self.held.insert(tid);
            return Ok(Handled::Event(FollowEvent::Stepped { tid }));
        }
        if signal == libc::SIGTRAP && origin.is_without_cause() && !self.is_at_debug_trap(tid) {
            // The breakpoint was not reported, nor passed: the thread comes to it once more.
            self.quietly(sys::resume(tid, Resume::Continue, 0))?;
            return Ok(Handled::Done);
        }
        if self.stands_in_caught_code(tid)? {
            self.held.insert(tid);
            self.caught = Some(tid);
            return Ok(Handled::Event(FollowEvent::Caught { tid, signal }));
        }
        self.quietly(sys::resume(tid, Resume::Continue, signal))?;
        Ok(Handled::Event(FollowEvent::Signal { tid, signal }))
    }

    /// Takes the stop in front of a signal's delivery out of the kernel's hands, so that it is not reported
    /// again while the thread stays held. `Some` if there was something else to report, its end.
    fn take_stop(&mut self, tid: i32) -> Result<Option<Handled>, TraceError> {
        match sys::wait(tid, false) {
            Waited::Nothing | Waited::NoChild => Ok(Some(Handled::Done)),
            Waited::Status(tid, status) => match decode(status) {
                StopKind::Signal(_) => Ok(None),
                other => self.handle(tid, other).map(Some),
            },
        }
    }

    /// Whether the instruction in front of where the thread stands is one whose signal is its own; or that
    /// where it stands, as some hypervisors on processors of AMD leave it there.
    fn is_at_debug_trap(&self, tid: i32) -> bool {
        let around = || {
            let memory = self.processes.get(self.threads.get(&tid)?)?;
            let rip = sys::get_registers(tid).ok()?.rip;
            Some([-1, 0].map(|i| memory.read_vec(rip.offset(i), 1).is_ok_and(|byte| byte == [DEBUG_TRAP])))
        };
        around().is_some_and(|is_trap| is_trap.contains(&true))
    }

    fn stands_in_caught_code(&self, tid: i32) -> Result<bool, TraceError> {
        if self.catching.is_empty() {
            return Ok(false);
        }
        match sys::get_registers(tid) {
            Ok(registers) => Ok(self.catching.iter().any(|range| range.contains(registers.rip))),
            Err(TraceError::Vanished { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// From now on, signals to threads that stand in one of `ranges` are reported before they are delivered.
    pub fn hold_signals_in(&mut self, ranges: Vec<AvmaRange>) {
        self.catching = ranges;
    }

    /// Lets a held thread run on and delivers `signal` to it. Should this program die between
    /// [`FollowEvent::Caught`] and this, the kernel delivers it.
    pub fn resume_with(&mut self, tid: i32, signal: i32) -> Result<(), TraceError> {
        self.let_go(tid)?;
        self.quietly(sys::resume(tid, Resume::Continue, signal))
    }

    /// Sets the registers of a held thread that is in no system call: what they say is where and how it goes
    /// on.
    pub fn set_registers(&mut self, tid: i32, registers: &Registers) -> Result<(), TraceError> {
        self.require_held(tid)?;
        self.known = None;
        sys::set_registers(tid, registers)
    }

    /// A signal that was blocked and comes when a system call returns can have interrupted that call.
    fn notified(&mut self, tid: i32, number: i32) -> Result<Handled, TraceError> {
        match hold_thread(tid, 0) {
            Err(TraceError::Vanished { .. }) => return Ok(Handled::Done),
            held => self.known = Some((tid, held?.current)),
        }
        self.held.insert(tid);
        Ok(Handled::Event(FollowEvent::Notified { tid, number }))
    }

    /// Lets a held thread run on. One that has vanished is no error.
    pub fn resume(&mut self, tid: i32) -> Result<(), TraceError> {
        self.let_go(tid)?;
        self.quietly(sys::resume(tid, Resume::Continue, 0))
    }

    /// Lets a held thread execute one instruction. **For tests**: should this program die before the thread
    /// is resumed again, the trap kills the process.
    pub fn step(&mut self, tid: i32) -> Result<(), TraceError> {
        self.let_go(tid)?;
        self.stepping.insert(tid);
        self.quietly(sys::resume(tid, Resume::Step, 0))
    }

    /// It is held no longer.
    fn let_go(&mut self, tid: i32) -> Result<(), TraceError> {
        if !self.held.remove(&tid) {
            return Err(TraceError::UnknownThread { tid });
        }
        self.known = self.known.filter(|(known, _)| *known != tid);
        Ok(())
    }

    fn require_held(&self, tid: i32) -> Result<(), TraceError> {
        if self.held.contains(&tid) { Ok(()) } else { Err(TraceError::UnknownThread { tid }) }
    }

    /// The registers of a held thread.
    pub fn registers(&self, tid: i32) -> Result<Registers, TraceError> {
        self.require_held(tid)?;
        match self.known {
            Some((known, registers)) if known == tid => Ok(registers),
            _ => sys::get_registers(tid),
        }
    }

    /// Whether a held thread blocks `signal`.
    pub fn blocks(&self, tid: i32, signal: i32) -> Result<bool, TraceError> {
        self.require_held(tid)?;
        Ok(sys::get_signal_mask(tid)? & 1 << (signal - 1) != 0)
    }

    /// Where a held thread has registered its `struct rseq`, if anywhere.
    pub fn rseq_area(&self, tid: i32) -> Option<restitch_address::Avma> {
        self.held.contains(&tid).then_some(())?;
        sys::rseq_area(tid).filter(|&at| at != 0).map(restitch_address::Avma::new)
    }
}

/// What the kernel says of single steps: `TRAP_TRACE`, and `TRAP_BRKPT` of one that ends with a system call
/// (arch/x86/kernel/ptrace.c, `user_single_step_report`). A breakpoint in the program's code has neither, but
/// `SI_KERNEL`.
const STEPS: [i32; 2] = [2, 1];
