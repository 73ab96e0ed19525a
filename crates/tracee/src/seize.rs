//! Stopping all threads of a process.
//!
//! Every thread found in `/proc/PID/task` is seized and interrupted, until two passes over that directory in
//! a row find no thread that is not held: threads that stand still start no others, so the set is then
//! complete.
//!
//! Threads that the kernel has made in the process's name and that never leave it (workers of io_uring) are
//! let be: they run no code and make no threads, a stop would interrupt what they do for the program, and one
//! that waits for a disk would not come to it.

use crate::cut_calls::{count_cut, wait_until_none, wait_until_not};
use crate::error::TraceError;
use crate::memory::Memory;
use crate::status::{StopKind, decode};
use crate::stopped::{Held, Release, StopTimes, Stopped};
use crate::suspend::HoldsOther;
use crate::sys::{self, Resume};
use crate::urgent::Urgent;
use crate::wait::{Patience, WaitOutcome, pauses, wait_for_keeping_signals};
use restitch_procfs::{self as procfs, ProcError, ProcessId, Stat};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// Settings for a stop.
#[derive(Clone, Copy, Debug)]
pub struct StopOptions {
    /// How long to wait for threads that do not stop: in the kernel, or for a vfork child. For one that is
    /// ready to run and gets no processor meanwhile four times as long is waited.
    pub limit: Duration,
}

impl Default for StopOptions {
    fn default() -> Self {
        Self { limit: Duration::from_secs(2) }
    }
}

/// Marks system call stops with 0x80, so that they differ from a SIGTRAP.
pub(crate) const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;

thread_local! {
    /// Threads that were seized but could not be stopped in time. They stop some day, with nobody waiting.
    static STRAGGLERS: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// Lets threads go that did not stop in time at an earlier, failed attempt and have stopped meanwhile;
/// returns how many there still are. After [`TraceError::NotStopping`] or [`TraceError::VforkParent`], call
/// it from time to time **on the same thread** (each new stop does too), or end that thread: the kernel then
/// lets its tracees go.
pub fn settle_stragglers() -> usize {
    STRAGGLERS.with_borrow_mut(|tids| {
        tids.retain(|&tid| match sys::wait_keeping_signals(tid, false) {
            sys::Waited::Nothing => true,
            sys::Waited::NoChild => false,
            sys::Waited::Status(_, status) => {
                let signal = match decode(status) {
                    StopKind::Signal(signal) => signal,
                    _ => 0,
                };
                let _ = sys::detach(tid, signal);
                false
            }
        });
        tids.len()
    })
}

/// Threads of which a stop was asked for that has not come in time.
pub(crate) fn remember_stragglers(tids: impl Iterator<Item = i32>) {
    STRAGGLERS.with_borrow_mut(|all| all.extend(tids));
}

/// Whether this thread asked a thread to stop at an earlier attempt, and that has not come yet.
fn is_straggler(tid: i32) -> bool {
    STRAGGLERS.with_borrow(|tids| tids.contains(&tid))
}

impl Stopped {
    /// Stops all threads of process `pid` with the default [`StopOptions`].
    pub fn seize_all(pid: i32) -> Result<Self, TraceError> {
        Self::seize_all_with(pid, StopOptions::default())
    }

    /// Stops all threads of process `pid`, at a moment at which none runs 32-bit code. On an error every
    /// thread runs on as before.
    pub fn seize_all_with(pid: i32, options: StopOptions) -> Result<Self, TraceError> {
        out_of_32_bit_code(|| Self::seize_all_once(pid, options))
    }

    fn seize_all_once(pid: i32, options: StopOptions) -> Result<Self, TraceError> {
        settle_stragglers();
        let process = preflight(pid)?;
        let pid = process.pid;
        // What may take long first: a child of vfork is not to come behind the look for one.
        wait_until_none(pid);
        let in_kernel = wait_for_vfork_children(pid, options.limit)?;
        let marker = exec_marker(pid);
        let mut seizing = Seizing::new(pid, options.limit);
        seizing.in_kernel = in_kernel;
        seizing.seize_until_complete()?;
        let stopped = seizing.finish(process)?;
        if exec_marker(stopped.memory.pid()).zip(marker).is_some_and(|(now, then)| now != then) {
            return Err(TraceError::Executed { pid });
        }
        Ok(stopped)
    }
}

/// Stops again and again, for a moment, as long as threads are found in 32-bit code: 64-bit programs (Wine,
/// for one) call some, and come back.
fn out_of_32_bit_code(mut stop: impl FnMut() -> Result<Stopped, TraceError>) -> Result<Stopped, TraceError> {
    for pause in pauses() {
        match stop() {
            Err(TraceError::InThirtyTwoBitCode { .. }) => std::thread::sleep(pause),
            stopped => return stopped,
        }
    }
    stop()
}

/// Stops one thread of process `pid`, at a moment at which it runs no 32-bit code, and leaves the others
/// alone. On an error it runs on as before.
pub(crate) fn seize_one(pid: i32, tid: i32) -> Result<Stopped, TraceError> {
    out_of_32_bit_code(|| seize_one_once(pid, tid))
}

fn seize_one_once(pid: i32, tid: i32) -> Result<Stopped, TraceError> {
    settle_stragglers();
    let process = preflight(pid)?;
    let limit = StopOptions::default().limit;
    wait_until_not(process.pid, tid);
    if procfs::thread_stat(process.pid, tid).is_ok_and(|stat| waits_for_vfork(process.pid, &stat)) {
        wait_for_vfork_children(process.pid, limit)?;
    }
    let mut seizing = Seizing::new(process.pid, limit);
    if seizing.seize(tid)? {
        seizing.collect_stops()?;
    }
    match seizing.stopped.is_empty() {
        true => Err(TraceError::Vanished { tid, operation: "stopping it" }),
        false => {
            let mut stopped = seizing.finish(process)?;
            stopped.others_run = procfs::threads(process.pid).map_or(true, |threads| threads.len() > 1);
            Ok(stopped)
        }
    }
}

/// Something that differs after an `exec`: where the 16 random bytes are.
fn exec_marker(pid: i32) -> Option<restitch_address::Avma> {
    procfs::auxv(pid).ok()?.random_bytes()
}

/// Refuses, before anything is touched, what cannot be traced. Stops begin with that; whoever has much to do
/// before can ask at once.
///
/// # Errors
/// Why the process cannot be stopped: it has ended, is traced by another program, is frozen, a kernel thread,
/// a 32-bit program or this one.
pub fn preflight(pid: i32) -> Result<ProcessId, TraceError> {
    let status = procfs::status(pid)?;
    let pid = status.tgid.unwrap_or(pid);
    if u32::try_from(pid) == Ok(std::process::id()) {
        return Err(TraceError::OwnProcess { pid });
    }
    let ended = status.state.is_some_and(|state| state.is_ended());
    if ended && procfs::threads(pid).map_or(0, |threads| threads.len()) <= 1 {
        return Err(TraceError::Zombie { pid });
    }
    if procfs::has_ended(pid) {
        return Err(TraceError::Vanished { tid: pid, operation: "looking at it" });
    }
    if status.kernel_thread {
        return Err(TraceError::KernelThread { pid });
    }
    if let Some(tracer) = status.tracer.filter(|&tracer| tracer != 0 && !is_straggler(pid)) {
        return Err(already_traced(pid, tracer));
    }
    if let Some(frozen) = procfs::frozen(pid) {
        return Err(TraceError::frozen(pid, frozen));
    }
    if is_32_bit_file(pid) {
        return Err(TraceError::ThirtyTwoBit { pid });
    }
    Ok(ProcessId::of(pid)?)
}

fn already_traced(pid: i32, tracer: i32) -> TraceError {
    let name = procfs::status(tracer).map_or_else(|_| "unknown".to_owned(), |status| status.name);
    TraceError::AlreadyTraced { pid, tracer, name }
}

/// Whether the program of process `pid` is a 32-bit ELF file; not so if its file cannot be read.
pub fn is_32_bit_file(pid: i32) -> bool {
    let mut ident = [0; 5];
    let opened = procfs::open_executable(pid).ok();
    let read = opened.and_then(|mut opened| opened.file.read_exact(&mut ident).ok());
    read.is_some() && ident == *b"\x7fELF\x01"
}

/// That the kernel said EPERM.
fn permission_error(pid: i32) -> TraceError {
    TraceError::Permission { pid, advice: procfs::obstacle(pid, procfs::Access::Trace) }
}

/// A thread that waits for its vfork child stops only after the child's exec; seizing it before would leave
/// the whole process half stopped for that long. Gives the threads that stay in the kernel.
fn wait_for_vfork_children(pid: i32, limit: Duration) -> Result<BTreeSet<i32>, TraceError> {
    let mut patience = Patience::new(limit);
    loop {
        let stats = procfs::threads(pid)?.into_iter().map(|thread| procfs::thread_stat(pid, thread.tid));
        let stats: Vec<Stat> = stats.filter_map(Result::ok).collect();
        let Some(waiting) = stats.iter().find(|stat| waits_for_vfork(pid, stat)) else {
            return Ok(stats.iter().filter(|stat| stat.stays_in_kernel()).map(|stat| stat.pid).collect());
        };
        if patience.is_over() {
            return Err(TraceError::VforkParent { pid, tid: waiting.pid });
        }
        patience.pause();
    }
}

/// Whether a thread sleeps uninterruptibly in a system call that creates processes.
pub(crate) fn waits_for_vfork(pid: i32, thread: &Stat) -> bool {
    thread.state == procfs::ProcessState::Uninterruptible && in_creating_call(pid, thread.pid)
}

fn in_creating_call(pid: i32, tid: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
    let number = text.ok().and_then(|text| text.split(' ').next()?.parse().ok());
    matches!(number, Some(libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3))
}

/// Passes over the thread list before new threads in each of them are a storm. (A storm of six chains of
/// threads takes three or four.)
const STORM: u32 = 16;

/// A thread that is ready to run and gets no processor cannot stop yet, and nothing is wrong with it: so many
/// times the limit are waited for it. (Longer would keep the others standing still that have stopped
/// already.)
const STARVED: u32 = 4;

/// Threads on their way into a stop. Dropping it lets all of them go.
struct Seizing {
    pid: i32,
    limit: Duration,
    begun: Instant,
    passes: u32,
    urgent: Option<Urgent>,
    holds: Option<HoldsOther>,
    /// Seized, stop not seen yet.
    waiting: BTreeSet<i32>,
    stopped: BTreeMap<i32, Held>,
    /// Threads that stay in the kernel.
    in_kernel: BTreeSet<i32>,
    /// One that has stopped in 32-bit code.
    in_32_bit_code: Option<i32>,
}

impl Seizing {
    fn new(pid: i32, limit: Duration) -> Self {
        let holds = Some(HoldsOther::begin());
        let (urgent, begun) = (Some(Urgent::begin()), Instant::now());
        let (waiting, stopped, in_kernel) = Default::default();
        let in_32_bit_code = None;
        Self { pid, limit, begun, passes: 0, urgent, holds, waiting, stopped, in_kernel, in_32_bit_code }
    }

    fn seize_until_complete(&mut self) -> Result<(), TraceError> {
        let mut clean = 0;
        while clean < 2 {
            let found = self.seize_new_threads()?;
            self.collect_stops()?;
            // (A number may have gone over to a thread of another kind.)
            let found = found || self.forget_others();
            clean = if found { 0 } else { clean + 1 };
            self.passes += 1;
            // A pass may take long because this program gets no processor: the threads that it has found are
            // held all the same.
            if clean == 0 && self.passes >= STORM && self.begun.elapsed() > self.limit {
                return Err(TraceError::ThreadStorm { pid: self.pid, passes: self.passes });
            }
        }
        match self.stopped.is_empty() {
            true => Err(TraceError::Vanished { tid: self.pid, operation: "stopping its threads" }),
            false => Ok(()),
        }
    }

    /// One pass over the thread list; whether it found a thread that was not held.
    fn seize_new_threads(&mut self) -> Result<bool, TraceError> {
        let threads = match procfs::threads(self.pid) {
            Err(ProcError::Gone { .. }) => {
                return Err(TraceError::Vanished { tid: self.pid, operation: "listing its threads" });
            }
            threads => threads?,
        };
        let mut found = false;
        for tid in threads.into_iter().map(|thread| thread.tid) {
            if !self.is_held(tid) {
                found |= self.seize(tid)?;
            }
        }
        Ok(found)
    }

    fn is_held(&self, tid: i32) -> bool {
        self.waiting.contains(&tid) || self.stopped.contains_key(&tid) || self.in_kernel.contains(&tid)
    }

    /// Forgets those of `in_kernel` that are no such threads; whether there were some.
    fn forget_others(&mut self) -> bool {
        let (pid, before) = (self.pid, self.in_kernel.len());
        self.in_kernel.retain(|&tid| procfs::thread_stat(pid, tid).is_ok_and(|stat| stat.stays_in_kernel()));
        self.in_kernel.len() < before
    }

    /// Seizes and interrupts one thread; false if there is nothing to seize any more.
    fn seize(&mut self, tid: i32) -> Result<bool, TraceError> {
        if is_straggler(tid) {
            return Ok(self.take_back(tid));
        }
        match sys::seize(tid, OPTIONS) {
            Ok(()) => {}
            // It ended between the listing and now: the list has changed, so this pass was not clean.
            Err(TraceError::Vanished { .. }) => return Ok(true),
            Err(error) => return self.judge_refusal(tid, error),
        }
        self.waiting.insert(tid);
        match sys::interrupt(tid) {
            Ok(()) | Err(TraceError::Vanished { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits again for one that was asked to stop at an earlier attempt; false if it has ended.
    fn take_back(&mut self, tid: i32) -> bool {
        if self.has_ended(tid) {
            return false;
        }
        STRAGGLERS.with_borrow_mut(|tids| tids.retain(|&other| other != tid));
        self.waiting.insert(tid)
    }

    fn judge_refusal(&self, tid: i32, error: TraceError) -> Result<bool, TraceError> {
        let TraceError::Ptrace { source, .. } = &error else { return Err(error) };
        if source.raw_os_error() != Some(libc::EPERM) {
            return Err(error);
        }
        let status = match procfs::thread_status(self.pid, tid) {
            Err(ProcError::Gone { .. }) => return Ok(true),
            status => status?,
        };
        let is_exiting = || procfs::thread_stat(self.pid, tid).is_ok_and(|stat| stat.is_exiting);
        if status.state.is_some_and(|state| state.is_ended()) || is_exiting() {
            // A dead thread stays in the list until it is collected; a dead leader for as long as the process
            // lives.
            return Ok(false);
        }
        match status.tracer.filter(|&tracer| tracer != 0) {
            Some(tracer) => Err(already_traced(self.pid, tracer)),
            None if procfs::has_ended(self.pid) => Ok(true),
            None => Err(permission_error(self.pid)),
        }
    }

    /// Waits for all stops that were asked for, also where one thread is found to be in 32-bit code: those
    /// that have not stopped cannot be let go.
    fn collect_stops(&mut self) -> Result<(), TraceError> {
        while let Some(&tid) = self.waiting.first() {
            self.collect(tid)?;
        }
        match self.in_32_bit_code {
            Some(tid) => Err(TraceError::InThirtyTwoBitCode { pid: self.pid, tid }),
            None => Ok(()),
        }
    }

    /// Waits for the stop of one thread. If that is in front of the delivery of a signal, the kernel still
    /// delivers it should this program die during the stop.
    fn collect(&mut self, tid: i32) -> Result<(), TraceError> {
        let begun = Instant::now();
        // A dying leader reports nothing while other threads live: look at its state early.
        let first_look = Duration::from_millis(20).min(self.limit);
        let mut outcome = wait_for_keeping_signals(tid, first_look);
        let used = self.used(tid);
        if matches!(outcome, WaitOutcome::TimedOut) && !self.has_ended(tid) {
            outcome = wait_for_keeping_signals(tid, self.limit.saturating_sub(first_look));
        }
        let mut times = 1;
        while matches!(outcome, WaitOutcome::TimedOut) && times < STARVED && self.is_starved(tid, used) {
            outcome = wait_for_keeping_signals(tid, self.limit);
            times += 1;
        }
        match outcome {
            WaitOutcome::Stop(StopKind::Ended(_)) if tid == self.pid => {
                self.waiting.remove(&tid);
                return Err(TraceError::Vanished { tid, operation: "stopping its threads" });
            }
            WaitOutcome::Stop(StopKind::Ended(_)) | WaitOutcome::Gone => {
                self.waiting.remove(&tid);
            }
            WaitOutcome::Stop(StopKind::Interrupt | StopKind::Group(_)) => self.hold(tid, 0)?,
            WaitOutcome::Stop(StopKind::Signal(signal)) => self.hold(tid, signal)?,
            // Not among the stops that our options ask for; the interruption is still to come.
            WaitOutcome::Stop(_) => sys::resume(tid, Resume::Continue, 0)?,
            WaitOutcome::TimedOut if self.has_ended(tid) => {
                self.waiting.remove(&tid);
                STRAGGLERS.with_borrow_mut(|tids| tids.push(tid));
            }
            WaitOutcome::TimedOut => return Err(self.not_stopping(tid, begun)),
        }
        Ok(())
    }

    fn has_ended(&self, tid: i32) -> bool {
        match procfs::thread_stat(self.pid, tid) {
            Ok(stat) => stat.state.is_ended(),
            Err(error) => matches!(error, ProcError::Gone { .. }),
        }
    }

    /// CPU time of a thread.
    fn used(&self, tid: i32) -> Option<Duration> {
        procfs::thread_cpu_time(self.pid, tid).ok()
    }

    /// Whether a thread has been ready to run, and has not run, since it had used so much CPU time.
    fn is_starved(&self, tid: i32, used: Option<Duration>) -> bool {
        let is_ready =
            procfs::thread_stat(self.pid, tid).is_ok_and(|s| s.state == procfs::ProcessState::Running);
        is_ready && used.is_some() && self.used(tid) == used
    }

    fn not_stopping(&self, tid: i32, begun: Instant) -> TraceError {
        let pid = self.pid;
        let stat = procfs::thread_stat(pid, tid);
        if stat.as_ref().is_ok_and(|stat| waits_for_vfork(pid, stat)) {
            return TraceError::VforkParent { pid, tid };
        }
        if let Some(frozen) = procfs::frozen(tid) {
            return TraceError::frozen(pid, frozen);
        }
        let state = stat.map_or_else(|error| error.to_string(), |stat| format!("{:?}", stat.state));
        let waited_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        TraceError::NotStopping { pid, tid, waited_ms, state }
    }

    /// Takes a thread that has stopped, with its registers, and repairs a false `EINTR`.
    fn hold(&mut self, tid: i32, signal: i32) -> Result<(), TraceError> {
        self.waiting.remove(&tid);
        let held = match hold_thread(tid, signal) {
            // Killed in the stop.
            Err(TraceError::Vanished { .. }) => {
                STRAGGLERS.with_borrow_mut(|tids| tids.push(tid));
                return Ok(());
            }
            held => held?,
        };
        // One that was not there when it was looked for them.
        if held.original.are_of_the_kernel()
            && procfs::thread_stat(self.pid, tid).is_ok_and(|stat| stat.stays_in_kernel())
        {
            self.in_kernel.insert(tid);
            return sys::detach(tid, signal);
        }
        if !held.original.is_64_bit() {
            self.in_32_bit_code = Some(tid);
        }
        self.stopped.insert(tid, held);
        Ok(())
    }

    fn finish(mut self, process: ProcessId) -> Result<Stopped, TraceError> {
        // The leader may have ended while the process lives; any living thread leads to the memory.
        let living = self.stopped.keys().next().copied().unwrap_or(self.pid);
        let memory = Memory::open(living)?.of_stopped();
        let times = StopTimes { stopping: self.begun.elapsed(), passes: self.passes, ..Default::default() };
        count_cut(self.stopped.values().map(|held| &held.original), &memory);
        Ok(Stopped {
            process,
            threads: std::mem::take(&mut self.stopped).into_values().collect(),
            memory,
            others_run: false,
            release: Release::Detach,
            times,
            since: Instant::now(),
            _urgent: self.urgent.take().unwrap_or_else(Urgent::begin),
            holds: self.holds.take(),
            not_send: PhantomData,
        })
    }
}

impl Drop for Seizing {
    fn drop(&mut self) {
        for held in self.stopped.values() {
            let _ = sys::detach(held.tid, held.signal);
        }
        STRAGGLERS.with_borrow_mut(|tids| tids.extend(&self.waiting));
        settle_stragglers();
    }
}

/// Reads the registers of a thread that is in a stop and repairs a false `EINTR`.
pub(crate) fn hold_thread(tid: i32, signal: i32) -> Result<Held, TraceError> {
    let mut registers = sys::get_registers(tid)?;
    if let Some(repaired) = registers.repaired() {
        sys::set_registers(tid, &repaired)?;
        registers = repaired;
    }
    Ok(Held { tid, original: registers, current: registers, signal })
}
