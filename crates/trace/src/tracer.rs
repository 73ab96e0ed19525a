//! The event loop.

use crate::code::LiveCode;
use crate::data::{Data, Pages};
use crate::error::BranchTraceError;
use crate::options::{LookAhead, TraceOptions};
use crate::pace::{Pace, longest_record};
use crate::report::{Missed, Record, RecordEnd, Sink, TraceReport};
use crate::reserve::leaving_some;
use crate::signal;
use crate::spin_wait::SpinWait;
use crate::thread::{Chase, Phase, Thread, state_of};
use restitch_address::{Avma, AvmaRange};
use restitch_evaluate::{Code, Ended, Memory, State, Step, Stuck, Taken, Tally, follow};
use restitch_procfs as procfs;
use restitch_tracee::{
    Children, FollowEvent, Followed, HoldsOther, Registers, Stopped, TraceEvents, Unfollowed, be_suspended,
    is_to_be_suspended, own_descriptors,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long to wait for an event before looking whether tracing shall end.
const LOOK_UP: Duration = Duration::from_millis(50);
/// A thread that runs so long (nanoseconds) before its record is full has gone elsewhere: its next alarm
/// comes no sooner than that, and ends the record.
const WATCHDOG: u64 = 3_000_000;
/// ... and so much longer for each branch of the record: system calls lie between some.
const WATCHDOG_BRANCH: u64 = 10_000;
/// What lies between two stops counts as cost up to this where the thread may have slept in between.
const LONGEST_LEG: Duration = Duration::from_micros(500);
/// The cost of a stop before any was measured (ptrace stops cost 9 to 12 us on idle machines).
const FIRST_LEG: Duration = Duration::from_micros(20);
/// How often CPU times are read.
const ACCOUNT: Duration = Duration::from_millis(100);
/// Set in rflags of a thread that stands at a breakpoint: it passes it once (AMD64 manual volume 2, section
/// 13.1.1).
const RESUME_FLAG: u64 = 1 << 16;
/// ... and how much less often for each thread: reading takes some 10 us.
const ACCOUNT_THREAD: Duration = Duration::from_millis(1);
/// Offset of `rseq_cs` in `struct rseq`, and size of `struct rseq_cs` (`linux/rseq.h`).
const RSEQ_CS: u64 = 8;

/// Traces process `pid`, and its children if that is asked for, until `stop` is set, the duration is over, or
/// the process ends. `sink` takes the records.
///
/// # Errors
/// If the process cannot be traced; nothing was changed then.
pub fn trace(
    pid: i32,
    options: TraceOptions,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<TraceReport, BranchTraceError> {
    trace_together(pid, &[], options, stop, sink)
}

/// One of several processes that are traced together.
#[derive(Debug, Clone, Default)]
pub struct Relative {
    /// The process.
    pub pid: i32,
    /// Critical sections of its restartable sequences, as in [`TraceOptions::restartable`].
    pub restartable: Vec<AvmaRange>,
}

/// The same for several processes together, within one budget: `overhead` is a share of the running time of
/// all of their threads. It ends with process `pid`. Of the others those that have ended, or end meanwhile,
/// do not count; those that cannot be traced are in [`TraceReport::left_out`].
///
/// # Errors
/// If process `pid` cannot be traced, or there is no signal for all; nothing was changed then.
pub fn trace_together(
    pid: i32,
    others: &[Relative],
    options: TraceOptions,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<TraceReport, BranchTraceError> {
    let mut part = trace_until_suspended(pid, others, options, Before::default(), stop, sink)?;
    while let Some(Rest { options, relatives, before }) = part.rest.take() {
        be_suspended();
        part = match trace_until_suspended(pid, &relatives, options, before, stop, sink) {
            // It has ended meanwhile.
            Err(error) if error.is_gone() => break,
            next => next?,
        };
    }
    Ok(part.report)
}

/// The same to the end, or to where this program is to be suspended: the processes have been let go then.
fn trace_until_suspended(
    pid: i32,
    others: &[Relative],
    options: TraceOptions,
    before: Before,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<Part, BranchTraceError> {
    // Dropped behind the end of the tracing thread.
    let _waiting = HoldsOther::begin();
    // The end of the tracing thread is what lets the target go, without interrupting anything: see
    // `Followed`.
    std::thread::scope(|scope| {
        let tracing = std::thread::Builder::new().name("branch trace".into()).spawn_scoped(scope, || {
            own_descriptors();
            let numbers: Vec<i32> = others.iter().map(|other| other.pid).collect();
            let signal = signal::choose(pid, &numbers)?;
            let followed = Followed::seize(pid, signal, children(&options))?;
            let mut tracer = Tracer::with(followed, signal, options, before, sink)?;
            tracer.is_own = false;
            others.iter().for_each(|other| tracer.add_relative(other));
            tracer.run_to_the_end(stop)
        });
        let tracing = tracing.map_err(|source| BranchTraceError::Thread { pid, source })?;
        tracing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What was traced before this program was suspended.
#[derive(Default)]
struct Before {
    report: TraceReport,
    /// Threads and processes that were traced up to there: they are in the report.
    threads: BTreeSet<i32>,
    processes: BTreeSet<i32>,
}

/// What has come of tracing, and what is left to be done if that was not all.
struct Part {
    report: TraceReport,
    rest: Option<Rest>,
}

/// What is left to be done when this program goes on. (Processes that are made until then are not traced.)
struct Rest {
    options: TraceOptions,
    /// Who was traced beside the first process.
    relatives: Vec<Relative>,
    before: Before,
}

/// The same for a process that this thread has started and holds ([`TraceEvents`]): it is traced from there
/// on.
///
/// It is let go by the end of the calling thread, so give it one of its own, with
/// [descriptors](own_descriptors) of its own.
///
/// # Errors
/// As [`trace`]; the process runs on then.
pub fn trace_held(
    held: (TraceEvents, Stopped),
    options: TraceOptions,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<TraceReport, BranchTraceError> {
    let (events, stopped) = held;
    let pid = stopped.pid();
    let signal = signal::choose(pid, &[])?;
    let followed = Followed::take_over(events, &stopped, signal, children(&options))?;
    let tracer = Tracer::with(followed, signal, options, Before::default(), sink)?;
    stopped.resume();
    tracer.run_to_the_end(stop).map(|part| part.report)
}

fn children(options: &TraceOptions) -> Children {
    if options.children { Children::Follow } else { Children::Leave }
}

/// One of the traced processes.
struct Process {
    code: LiveCode,
    /// Critical sections of restartable sequences that its modules state.
    restartable: Vec<AvmaRange>,
}

struct Tracer<'a> {
    options: TraceOptions,
    signal: i32,
    followed: Followed,
    processes: BTreeMap<i32, Process>,
    pages: Pages,
    pace: Pace,
    threads: BTreeMap<i32, Thread>,
    report: TraceReport,
    sink: &'a mut dyn Sink,
    /// Records that wait until no thread is held.
    outbox: Vec<(i32, i32, Box<Chase>, RecordEnd)>,
    /// Threads whose alarm waits to be set until they run.
    unset: Vec<i32>,
    /// A running average of what lies between letting a thread go and seeing it at its breakpoint, if nobody
    /// stays awake for it: what an alarm takes until it is seen.
    leg: Duration,
    spin_wait: SpinWait,
    /// Process of threads, and CPU time when they were first and last looked at.
    cpu: BTreeMap<i32, (i32, Duration, Duration)>,
    accounted: Instant,
    /// Threads and processes that are in the report already.
    known: (BTreeSet<i32>, BTreeSet<i32>),
    begun: Instant,
    /// The processes are this program's own: they may wait while it is suspended.
    is_own: bool,
}

impl<'a> Tracer<'a> {
    fn with(
        followed: Followed,
        signal: i32,
        options: TraceOptions,
        before: Before,
        sink: &'a mut dyn Sink,
    ) -> Result<Self, BranchTraceError> {
        let pid = followed.pid();
        let process = Process { code: LiveCode::open(pid)?, restartable: options.restartable.clone() };
        let pace = Pace::new(options.overhead, options.period, options.event.per_nanosecond(), options.seed);
        let mut tracer = Self {
            options,
            signal,
            followed,
            processes: BTreeMap::from([(pid, process)]),
            pages: Pages::default(),
            pace,
            threads: BTreeMap::new(),
            report: before.report,
            sink,
            outbox: Vec::new(),
            unset: Vec::new(),
            leg: FIRST_LEG,
            spin_wait: SpinWait::default(),
            cpu: BTreeMap::new(),
            accounted: Instant::now(),
            known: (before.threads, before.processes),
            begun: Instant::now(),
            is_own: true,
        };
        // Those that are still there are missed again.
        tracer.report.missed = Missed::default();
        tracer.count_process(pid);
        let tids: Vec<i32> = tracer.followed.threads().collect();
        let opened = tids.into_iter().map(|tid| tracer.add_thread(pid, tid)).collect();
        tracer.report.missed.note_first(opened, tracer.threads.len())?;
        Ok(tracer)
    }

    /// Seizes one of the other processes and opens its events. That it cannot be traced is no reason to give
    /// up the others.
    fn add_relative(&mut self, relative: &Relative) {
        let seized = self.followed.seize_another(relative.pid);
        let pid = match seized {
            Ok(pid) if self.processes.contains_key(&pid) => return,
            Ok(pid) => pid,
            Err(error) if error.is_gone() => return,
            Err(error) => return self.report.left_out.push((relative.pid, error.to_string())),
        };
        let tids: Vec<i32> = self.followed.threads_of(pid).collect();
        let code = match LiveCode::open(pid) {
            Ok(code) => code,
            Err(error) => return self.missed_unless_gone(error),
        };
        if tids.is_empty() {
            // It has ended, or is a child of one of the others that is about to be reported.
            return;
        }
        self.processes.insert(pid, Process { code, restartable: relative.restartable.clone() });
        self.count_process(pid);
        for tid in tids {
            let opened = self.add_thread(pid, tid);
            self.report.missed.note(opened);
        }
    }

    fn count_process(&mut self, pid: i32) {
        self.report.processes += usize::from(!self.known.1.remove(&pid));
    }

    /// Opens the events of a thread. One that has ended already is left out.
    fn add_thread(&mut self, pid: i32, tid: i32) -> Result<(), BranchTraceError> {
        let period = self.pace.first_period();
        let (event, signal) = (self.options.event, self.signal);
        match leaving_some(tid, || Thread::open(pid, tid, event, signal, period)) {
            Ok(thread) => {
                self.report.threads += usize::from(!self.known.0.remove(&tid));
                self.threads.insert(tid, thread);
                let now = procfs::thread_cpu_time(pid, tid).unwrap_or_default();
                self.cpu.insert(tid, (pid, now, now));
                Ok(())
            }
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn run_to_the_end(mut self, stop: &AtomicBool) -> Result<Part, BranchTraceError> {
        let result = self.run(stop);
        let mut rest = matches!(result, Ok(true)).then(|| self.rest());
        self.finish_all();
        if let Some(Unfollowed { number, why }) = self.followed.take_unfollowed() {
            self.report.missed.note_some(number, &why);
        }
        rest.iter_mut().for_each(|rest| rest.before.report = self.report.clone());
        result.map(|_| Part { report: self.report, rest })
    }

    /// What would be left to be done from here on.
    fn rest(&self) -> Rest {
        let mut options = self.options.clone();
        options.duration = options.duration.map(|duration| duration.saturating_sub(self.begun.elapsed()));
        options.seed = options.seed.wrapping_add(1);
        let relative = |(pid, process): (&i32, &Process)| Relative {
            pid: *pid,
            restartable: process.restartable.clone(),
        };
        let (first, relatives): (Vec<Relative>, Vec<Relative>) =
            self.processes.iter().map(relative).partition(|process| process.pid == self.followed.pid());
        options.restartable = first.into_iter().flat_map(|first| first.restartable).collect();
        let threads = self.threads.keys().copied().collect();
        let processes = self.processes.keys().copied().collect();
        Rest { options, relatives, before: Before { report: TraceReport::default(), threads, processes } }
    }

    /// Whether the processes are to be let go, as this program is to be suspended.
    fn gives_way(&self) -> bool {
        !self.is_own && is_to_be_suspended()
    }

    /// Traces; true if that is not all since it [gives way](Self::gives_way).
    fn run(&mut self, stop: &AtomicBool) -> Result<bool, BranchTraceError> {
        let end = self.options.duration.map(|duration| self.begun + duration);
        while !stop.load(Ordering::Relaxed) {
            if self.gives_way() {
                return Ok(true);
            }
            let left = end.map_or(LOOK_UP, |end| end.saturating_duration_since(Instant::now()).min(LOOK_UP));
            if left.is_zero() {
                break;
            }
            match self.followed.next_event(left)? {
                None if self.followed.threads().next().is_none() => break,
                None => self.refresh_code(),
                Some(FollowEvent::Exited { pid, status }) if pid == self.followed.pid() => {
                    self.report.exit = Some(status);
                    break;
                }
                Some(event) => self.handle(event)?,
            }
            self.set_alarms()?;
            self.post();
            if self.accounted.elapsed() > ACCOUNT + ACCOUNT_THREAD * self.cpu.len() as u32 {
                self.account();
                self.refresh_code();
            }
        }
        Ok(false)
    }

    fn refresh_code(&mut self) {
        self.processes.values_mut().for_each(|process| process.code.refresh_now_and_then());
    }

    fn handle(&mut self, event: FollowEvent) -> Result<(), BranchTraceError> {
        match event {
            FollowEvent::Notified { tid, number } => self.notified(tid, number)?,
            FollowEvent::Signal { tid, .. } => self.interrupted(tid)?,
            // Nothing is to be caught.
            FollowEvent::Caught { tid, signal } => self.followed.resume_with(tid, signal)?,
            FollowEvent::Started { tid } => {
                // One more thread than events can be opened for is no reason to give up the others.
                let pid = self.followed.process_of(tid).unwrap_or(tid);
                let opened = self.add_thread(pid, tid);
                self.report.missed.note(opened);
                self.followed.resume(tid)?;
            }
            FollowEvent::Forked { pid, parent } => self.forked(pid, parent)?,
            FollowEvent::Executed { tid } => self.executed(tid)?,
            FollowEvent::Ended { tid } => self.drop_thread(tid),
            FollowEvent::Stepped { tid } => self.followed.resume(tid)?,
            FollowEvent::Exited { pid, .. } => self.drop_process(pid),
        }
        Ok(())
    }

    /// A new process: what is in the parent's memory is in its own.
    fn forked(&mut self, pid: i32, parent: i32) -> Result<(), BranchTraceError> {
        let restartable = self.processes.get(&parent).map(|p| p.restartable.clone()).unwrap_or_default();
        self.post();
        self.sink.forked(pid, parent);
        self.count_process(pid);
        self.add_process(pid, restartable);
        Ok(self.followed.resume(pid)?)
    }

    /// A process that is gone already, or for which no events can be opened, is no reason to give up the
    /// others.
    fn add_process(&mut self, pid: i32, restartable: Vec<AvmaRange>) {
        let code = match LiveCode::open(pid) {
            Ok(code) => code,
            Err(error) => return self.missed_unless_gone(error),
        };
        self.processes.insert(pid, Process { code, restartable });
        let opened = self.add_thread(pid, pid);
        self.report.missed.note(opened);
    }

    fn missed_unless_gone(&mut self, error: BranchTraceError) {
        if !error.is_gone() {
            self.report.missed.note(Err(error));
        }
    }

    /// Another program: nothing that was known of the old one is true.
    fn executed(&mut self, pid: i32) -> Result<(), BranchTraceError> {
        let was_recorded = self.cpu.contains_key(&pid);
        self.drop_process(pid);
        self.post();
        self.sink.executed(pid);
        // Its thread was counted when it began, as one that is recorded or as one that is not.
        let (threads, missed) = (self.report.threads, self.report.missed.threads);
        self.add_process(pid, Vec::new());
        self.report.threads = threads;
        if !was_recorded {
            self.report.missed.threads = missed;
        }
        Ok(self.followed.resume(pid)?)
    }

    fn drop_process(&mut self, pid: i32) {
        let own = self.cpu.iter().filter(|(_, (process, ..))| *process == pid);
        let tids: Vec<i32> = own.map(|(tid, _)| *tid).collect();
        tids.into_iter().for_each(|tid| self.drop_thread(tid));
        self.processes.remove(&pid);
    }

    fn drop_thread(&mut self, tid: i32) {
        let thread = self.threads.remove(&tid);
        // The kernel has nothing to say any more of a thread that has ended, but its alarm has counted to the
        // end.
        let counted = thread.as_ref().and_then(Thread::cpu_time).unwrap_or_default();
        if let Some((_, first, last)) = self.cpu.remove(&tid) {
            self.report.cpu += last.saturating_sub(first).max(counted);
        }
        if let Some(Thread { pid, phase: Phase::Chasing(mut chase), .. }) = thread {
            chase.drop_guesses();
            self.deliver(pid, tid, *chase, RecordEnd::Gone);
        }
    }

    /// Reads the threads' CPU times as far as they have come.
    fn account(&mut self) {
        for (&tid, (pid, _, last)) in &mut self.cpu {
            if let Ok(now) = procfs::thread_cpu_time(*pid, tid) {
                *last = now;
            }
        }
        let running: Duration = self.cpu.values().map(|(_, first, last)| last.saturating_sub(*first)).sum();
        self.pace.observed(self.report.held, self.report.cpu + running);
        self.accounted = Instant::now();
    }

    /// Closes all events. What stops a thread from here on is passed on when the tracing thread ends.
    fn finish_all(&mut self) {
        self.account();
        let tids: Vec<i32> = self.threads.keys().copied().collect();
        self.report.blocked_threads = tids.iter().filter(|&&tid| self.blocks_signal(tid)).count();
        tids.into_iter().for_each(|tid| self.drop_thread(tid));
        self.post();
    }

    fn blocks_signal(&self, tid: i32) -> bool {
        let pid = self.followed.process_of(tid).unwrap_or(tid);
        let status = procfs::thread_status(pid, tid);
        let blocked = status.ok().and_then(|status| status.blocked_signals).unwrap_or(0);
        blocked & 1 << (self.signal - 1) != 0
    }

    /// A signal handler may begin: what was evaluated is not what comes next.
    fn interrupted(&mut self, tid: i32) -> Result<(), BranchTraceError> {
        let Some(mut thread) = self.threads.remove(&tid) else { return Ok(()) };
        if let Phase::Chasing(mut chase) = std::mem::replace(&mut thread.phase, Phase::Waiting) {
            chase.drop_guesses();
            self.finish(&mut thread, *chase, RecordEnd::Signal)?;
        }
        self.threads.insert(tid, thread);
        Ok(())
    }

    fn notified(&mut self, tid: i32, number: i32) -> Result<(), BranchTraceError> {
        let begun = Instant::now();
        let mut is_watched = false;
        if let Some(mut thread) = self.threads.remove(&tid) {
            let attended = self.attend(&mut thread, number, begun);
            is_watched = matches!(&thread.phase, Phase::Chasing(chase) if chase.watched);
            self.threads.insert(tid, thread);
            match attended {
                Err(BranchTraceError::Trace(error)) if error.is_gone() => {}
                other => other?,
            }
        }
        self.followed.resume(tid)?;
        if is_watched {
            self.followed.stay_awake(SpinWait::LONGEST);
        }
        Ok(())
    }

    /// A thread was interrupted by one of its events and is held.
    fn attend(&mut self, thread: &mut Thread, number: i32, begun: Instant) -> Result<(), BranchTraceError> {
        let registers = self.followed.registers(thread.tid)?;
        self.pages.clear();
        match std::mem::replace(&mut thread.phase, Phase::Waiting) {
            Phase::Waiting if number == thread.alarm.number() => {
                self.report.alarms += 1;
                let mut chase = Box::new(Chase::new(state_of(&registers), self.options.depth));
                chase.cost = self.leg;
                chase.delayed = thread.run_delay();
                if self.in_restartable(thread, &registers) {
                    return self.finish(thread, *chase, RecordEnd::Restartable);
                }
                let patience = (WATCHDOG + WATCHDOG_BRANCH * self.options.depth as u64) as f64;
                thread.no_alarm_for((patience * self.options.event.per_nanosecond()) as u64)?;
                self.advance(thread, chase, &registers, begun)
            }
            // A breakpoint signal that was blocked until its record was over.
            Phase::Waiting => Ok(()),
            Phase::Chasing(mut chase) => {
                if chase.watched {
                    self.spin_wait.ended(begun - chase.resumed);
                }
                let leg = chase.without_waiting(begun - chase.resumed, || thread.run_delay());
                // Where the way leads through the kernel the thread may have slept, which is not our doing.
                let leg = if chase.expected.knows_memory() { leg } else { leg.min(LONGEST_LEG) };
                if !chase.watched {
                    self.leg = (self.leg * 7 + leg.min(LONGEST_LEG)) / 8;
                }
                chase.cost += leg;
                if number == thread.alarm.number() && registers.rip != chase.expected.pc {
                    return self.overtaken(thread, chase, &registers);
                }
                self.reached(thread, chase, &registers, begun)
            }
        }
    }

    /// A thread that was chasing has stopped: at its breakpoint, or elsewhere.
    fn reached(
        &mut self,
        thread: &mut Thread,
        mut chase: Box<Chase>,
        registers: &Registers,
        begun: Instant,
    ) -> Result<(), BranchTraceError> {
        let expected = &chase.expected;
        let is_there = registers.rip == expected.pc;
        self.report.breakpoints += u64::from(is_there);
        if !is_there || expected.contradicts(&registers.general(), registers.eflags) {
            self.report.contradicted += u64::from(chase.drop_guesses());
            return self.finish(thread, *chase, RecordEnd::Lost);
        }
        self.report.confirmed += u64::from(chase.guessed != 0);
        chase.guessed = 0;
        if chase.is_check {
            return self.finish(thread, *chase, RecordEnd::Full);
        }
        if self.in_restartable(thread, registers) {
            return self.finish(thread, *chase, RecordEnd::Restartable);
        }
        if chase.cost > longest_record(self.options.depth) {
            return self.finish(thread, *chase, RecordEnd::Costly);
        }
        chase.expected = state_of(registers);
        self.advance(thread, chase, registers, begun)
    }

    /// The alarm went off before the breakpoint was reached. Where the processor was taken away meanwhile (by
    /// the host of a virtual machine, whose alarms are not told of that) the thread is still on its way, and
    /// says nothing against what was evaluated.
    fn overtaken(
        &mut self,
        thread: &mut Thread,
        mut chase: Box<Chase>,
        registers: &Registers,
    ) -> Result<(), BranchTraceError> {
        let is_on_its_way = chase.leads_over(registers.rip);
        let guessed = chase.drop_guesses();
        self.report.contradicted += u64::from(guessed && !is_on_its_way);
        self.report.overtaken += u64::from(is_on_its_way);
        self.finish(thread, *chase, RecordEnd::Lost)
    }

    /// Looks ahead from the chase's state, and decides how it goes on.
    fn advance(
        &mut self,
        thread: &mut Thread,
        mut chase: Box<Chase>,
        registers: &Registers,
        begun: Instant,
    ) -> Result<(), BranchTraceError> {
        let looking = Instant::now();
        let start = chase.expected.clone();
        let ended = self.look_ahead(thread.pid, &mut chase);
        let end = match ended {
            Ended::Full if !self.pace.one_in(self.options.check_every) => Some(RecordEnd::Full),
            Ended::Full => {
                chase.is_check = true;
                self.refuse_breakpoint(thread, &chase).map(|_| RecordEnd::Full)
            }
            Ended::NoCode => Some(RecordEnd::UnknownCode),
            Ended::TooLong | Ended::Branch(Stuck::Odd) => Some(RecordEnd::Odd),
            // Not even with all registers known.
            Ended::Branch(_) if chase.guessed == 0 && chase.expected.pc == registers.rip => {
                Some(RecordEnd::Odd)
            }
            Ended::Branch(_) => self.refuse_breakpoint(thread, &chase),
        };
        if end.is_none() {
            let resumes = registers.eflags & RESUME_FLAG != 0;
            self.stop_at_first_pass(thread.pid, &mut chase, start, resumes);
        }
        self.report.looking += looking.elapsed();
        chase.cost += begun.elapsed();
        if let Some(end) = end {
            return self.finish(thread, *chase, end);
        }
        thread.breakpoint.set(chase.expected.pc)?;
        chase.begun = registers.rip;
        chase.watched = self.spin_wait.stays_awake();
        chase.resumed = Instant::now();
        thread.phase = Phase::Chasing(chase);
        Ok(())
    }

    /// The code and the memory of a process, during one stop; `None` if it is gone.
    fn view(&mut self, pid: i32) -> Option<(&mut Process, Data<'_>)> {
        let process = self.processes.get_mut(&pid)?;
        Some((process, Data { pages: &mut self.pages, memory: self.followed.memory(pid)? }))
    }

    fn look_ahead(&mut self, pid: i32, chase: &mut Chase) -> Ended {
        let Some(process) = self.processes.get_mut(&pid) else { return Ended::NoCode };
        let Some(memory) = self.followed.memory(pid) else { return Ended::NoCode };
        let (code, mut data) = (&mut process.code, Data { pages: &mut self.pages, memory });
        let (branches, state) = (&mut chase.branches, &mut chase.expected);
        let (depth, before) = (self.options.depth, branches.len());
        let tally = &mut self.report.tally;
        if self.options.look_ahead == LookAhead::Fixed {
            resolve_one(state, code, &mut data, branches, tally);
            *state = State::blank(state.pc);
        }
        let left = depth.saturating_sub(branches.len());
        let ended = follow(state, code, &mut data, left, tally, &mut |taken| branches.push(taken));
        chase.guessed = branches.len() - before;
        ended
    }

    /// The way to the breakpoint may lead over its address before (in a loop): the thread will stop there the
    /// first time, so what is expected is cut back to that.
    fn stop_at_first_pass(&mut self, pid: i32, chase: &mut Chase, mut start: State, resumes: bool) {
        let first = chase.branches.len() - chase.guessed;
        let Some(passes) = first_pass(&chase.branches[first..], start.pc, chase.expected.pc, resumes) else {
            return;
        };
        let Some((process, mut data)) = self.view(pid) else { return };
        if run_to(&mut start, &mut process.code, &mut data, passes, chase.expected.pc) {
            chase.expected = start;
            chase.branches.truncate(first + passes);
            chase.guessed = passes;
            chase.is_check = false;
        }
    }

    /// Whether a breakpoint at the chase's place would be in the way of a restartable sequence.
    fn refuse_breakpoint(&mut self, thread: &Thread, chase: &Chase) -> Option<RecordEnd> {
        let at = chase.expected.pc;
        let (process, mut data) = self.view(thread.pid)?;
        let known = process.restartable.iter().any(|range| range.contains(at));
        let mut announced = || {
            let area = thread.rseq.flatten()?;
            let descriptor = chase.expected.load(area + RSEQ_CS, 8, &mut data).low(8)?;
            critical_section(descriptor, &mut data)
        };
        let inside = known || announced().is_some_and(|range| range.contains(at));
        inside.then_some(RecordEnd::Restartable)
    }

    /// Whether a held thread is in a restartable sequence, which our stop makes it abort.
    fn in_restartable(&mut self, thread: &mut Thread, registers: &Registers) -> bool {
        let followed = &self.followed;
        let area = *thread.rseq.get_or_insert_with(|| followed.rseq_area(thread.tid));
        let Some(area) = area else { return false };
        let Some((_, mut data)) = self.view(thread.pid) else { return false };
        let mut word = [0; 8];
        let section = data.read(area + RSEQ_CS, &mut word).then(|| u64::from_le_bytes(word));
        section
            .and_then(|descriptor| critical_section(descriptor, &mut data))
            .is_some_and(|range| range.contains(registers.rip))
    }

    /// Ends a record. The thread's alarm for the next one is set when it runs.
    fn finish(&mut self, thread: &mut Thread, chase: Chase, end: RecordEnd) -> Result<(), BranchTraceError> {
        thread.breakpoint.clear()?;
        self.pace.paid(chase.cost);
        self.unset.push(thread.tid);
        thread.phase = Phase::Waiting;
        self.deliver(thread.pid, thread.tid, chase, end);
        Ok(())
    }

    fn deliver(&mut self, pid: i32, tid: i32, chase: Chase, end: RecordEnd) {
        self.report.held += chase.cost;
        *self.report.records.entry(end).or_default() += 1;
        self.report.branches += chase.branches.len() as u64;
        if !chase.branches.is_empty() {
            self.outbox.push((pid, tid, Box::new(chase), end));
        }
    }

    /// Sets the alarms of threads whose records have ended. The kernel asks a thread's last processor for
    /// that: it answers at once while the thread runs there, and has to be woken while it is held.
    fn set_alarms(&mut self) -> Result<(), BranchTraceError> {
        for tid in std::mem::take(&mut self.unset) {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.set_period(self.pace.next_period())?;
            }
        }
        Ok(())
    }

    /// Hands out the records, while all threads run.
    fn post(&mut self) {
        for (pid, tid, chase, end) in self.outbox.drain(..) {
            self.sink.record(Record { pid, tid, branches: &chase.branches, end });
        }
    }
}

/// Executes the one instruction at the state's place, of which all is known: the branch at a breakpoint.
fn resolve_one(
    state: &mut State,
    code: &mut LiveCode,
    data: &mut Data<'_>,
    branches: &mut Vec<Taken>,
    tally: &mut Tally,
) {
    let from = state.pc;
    let Some(run) = code.run(from) else { return };
    let Some(first) = run.instructions.first().filter(|i| i.is_transfer()) else { return };
    let step = state.step(first, run.bias, data);
    tally.add(&first.action, step == Step::Taken);
    if step == Step::Taken {
        branches.push(Taken { from, to: state.pc });
    }
}

/// After how many of `branches`, which begin at `start`, the thread comes over `at`; `None` if only at their
/// end. `resumes`: the thread stands at a breakpoint, which lets it pass once.
fn first_pass(branches: &[Taken], start: Avma, at: Avma, resumes: bool) -> Option<usize> {
    let starts = std::iter::once(start).chain(branches.iter().map(|b| b.to));
    let mut pieces = starts.zip(branches).enumerate();
    pieces.find_map(|(i, (from, branch))| {
        let passes = from <= at && at <= branch.from && !(i == 0 && resumes && at == start);
        passes.then_some(i)
    })
}

/// Evaluates again, up to `at` behind so many taken branches; false if it does not come by.
fn run_to(state: &mut State, code: &mut LiveCode, data: &mut Data<'_>, branches: usize, at: Avma) -> bool {
    follow(state, code, data, branches, &mut Tally::default(), &mut |_| {});
    // Straight code may be many runs, which end at branches that are not taken.
    while let Some(run) = code.run(state.pc) {
        for semantic in run.instructions {
            if state.pc == at {
                return true;
            }
            if state.step(semantic, run.bias, data) != Step::On {
                return false;
            }
        }
        if run.instructions.is_empty() {
            return false;
        }
    }
    false
}

/// The instructions of the critical section that a `struct rseq_cs` describes.
fn critical_section(descriptor: u64, data: &mut Data<'_>) -> Option<AvmaRange> {
    // u32 version, flags; u64 start_ip, post_commit_offset, abort_ip.
    let mut bytes = [0; 16];
    if descriptor == 0 || !data.read(Avma::new(descriptor) + 8, &mut bytes) {
        return None;
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    Some(AvmaRange::new(Avma::new(word(0)), word(8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_in_a_loop_is_met_at_its_first_pass() {
        let at = Avma::new;
        let taken = |from, to| Taken { from: at(from), to: at(to) };
        let branches = [taken(0x110, 0x100), taken(0x110, 0x100), taken(0x120, 0x200)];
        assert_eq!(first_pass(&branches, at(0x108), at(0x200), false), None);
        assert_eq!(first_pass(&branches, at(0x108), at(0x10c), false), Some(0));
        assert_eq!(first_pass(&branches, at(0x108), at(0x104), false), Some(1));
        assert_eq!(first_pass(&branches, at(0x108), at(0x120), false), Some(2));
        assert_eq!(first_pass(&branches, at(0x108), at(0x108), false), Some(0));
        assert_eq!(first_pass(&branches, at(0x108), at(0x108), true), Some(1));
        assert_eq!(first_pass(&branches, at(0x110), at(0x110), true), Some(1));
    }
}
