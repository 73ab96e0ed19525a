//! The event loop of bursts.
//!
//! A thread that its alarm has stopped stands at an instruction of the original code. If that has a copy,
//! room for records is made, the program counter is set to the copy, and the thread goes on; it leaves when
//! the room is used up or it comes to code without a copy. The records are read at the next alarm, without
//! stopping anybody. One thread at a time is in a burst.
//!
//! **No signal handler ever sees the copy**: the kernel shows a tracer each signal before it is delivered; a
//! thread in the copy is then moved to the equivalent original instruction, and what recording code had
//! borrowed is given back. Should this program die, the thread in the copy leaves it some microseconds later
//! as ever, and nobody enters it again.

use super::code::Position;
use super::price::Price;
use super::reading::{Over, note, read};
use super::{BurstCode, BurstEnd, BurstReport, Refusal};
use crate::error::BranchTraceError;
use crate::pace::Pace;
use crate::report::Sink;
use crate::reserve::leaving_some;
use crate::signal;
use restitch_address::{Avma, AvmaRange};
use restitch_emit::window::{self, Taken};
use restitch_perf::{AlarmEvent, ThreadAlarm};
use restitch_procfs as procfs;
use restitch_tracee::{
    Children, FollowEvent, Followed, HoldsOther, Registers, be_punctual, be_suspended, is_to_be_suspended,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How long to wait for an event before looking whether tracing shall end.
const LOOK_UP: Duration = Duration::from_millis(50);
/// When a burst is over, so that its records can be read before the next alarm holds a thread. It may not be:
/// its thread has to get a processor.
const LONG_OVER: Duration = Duration::from_millis(1);
/// So it is looked up to so many times, each time after twice as long; after that, at the next alarm.
const LOOKS: u32 = 5;
/// What a stop's way in and out costs beyond the time that is measured.
const LEG: Duration = Duration::from_micros(12);
/// How often CPU times are read.
const ACCOUNT: Duration = Duration::from_millis(100);
/// ... and how much less often for each thread.
const ACCOUNT_THREAD: Duration = Duration::from_millis(1);
/// How long the last burst may take to end.
const LAST_BURST: Duration = Duration::from_secs(2);
/// Offset of `rseq_cs` in `struct rseq` (`linux/rseq.h`).
const RSEQ_CS: u64 = 8;
/// Status flags that `lahf` gives, and the overflow flag.
const LAHF: u64 = 0xd5;
const OVERFLOW: u64 = 1 << 11;

/// Settings.
#[derive(Debug, Clone)]
pub struct BurstOptions {
    /// Records in a burst, at most [`BurstCode::most_records`]. (Direct jumps and calls leave none.)
    pub depth: usize,
    /// The share of the threads' running time that bursts may cost, 0 to 1.
    pub overhead: f64,
    /// A fixed period in nanoseconds instead of the budget.
    pub period: Option<u64>,
    /// End after this time.
    pub duration: Option<Duration>,
    /// Start of the random numbers that jitter the periods.
    pub seed: u64,
    /// The process is that of a command which this program has started: it may wait while this program is
    /// suspended.
    pub is_own: bool,
}

impl Default for BurstOptions {
    fn default() -> Self {
        Self { depth: 4000, overhead: 0.01, period: None, duration: None, seed: 1, is_own: false }
    }
}

/// Traces process `pid`, which has the versions of `code`, until `stop` is set, the duration is over, or the
/// process ends.
///
/// # Errors
/// If the process cannot be traced. It runs on in its original code in any case.
pub fn trace_bursts(
    pid: i32,
    options: BurstOptions,
    code: &BurstCode,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<BurstReport, BranchTraceError> {
    let (mut report, mut rest) = trace_until_suspended(pid, options, code, stop, sink)?;
    while let Some(options) = rest {
        be_suspended();
        let later = match trace_until_suspended(pid, options, code, stop, sink) {
            // It has ended meanwhile.
            Err(error) if error.is_gone() => break,
            later => later?,
        };
        report.go_on(later.0);
        rest = later.1;
    }
    Ok(report)
}

/// The same to the end, or to where this program is to be suspended: the process has been let go then, and
/// what is left to be done comes back.
fn trace_until_suspended(
    pid: i32,
    options: BurstOptions,
    code: &BurstCode,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<(BurstReport, Option<BurstOptions>), BranchTraceError> {
    // Dropped behind the end of the tracing thread.
    let _waiting = (!options.is_own).then(HoldsOther::begin);
    // The end of the tracing thread is what lets the target go: see `Followed`.
    std::thread::scope(|scope| {
        let (over, bursts) = channel();
        let tracing = std::thread::Builder::new().name("burst trace".into()).spawn_scoped(scope, move || {
            // What bursts cost is measured by sleeping for as long.
            be_punctual();
            let mut tracer = Tracer::attach(pid, options, code, over)?;
            let rest = tracer.run(stop)?.then(|| tracer.rest());
            tracer.finish()?;
            Ok::<_, BranchTraceError>((tracer.report, rest))
        });
        let tracing = tracing.map_err(|source| BranchTraceError::Thread { pid, source })?;
        let read = read(pid, code, bursts, sink);
        let (mut report, rest) = tracing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        report.branches = read.branches;
        report.ended_at = read.ended_at;
        read.bursts.into_iter().for_each(|(end, n)| *report.bursts.entry(end).or_default() += n);
        Ok((report, rest))
    })
}

/// A thread with its alarm.
struct Thread {
    alarm: ThreadAlarm,
    /// Where its `struct rseq` is; `None` until it was looked up.
    rseq: Option<Option<Avma>>,
}

/// A burst under way.
#[derive(Debug, Clone, Copy)]
struct Burst {
    tid: i32,
    /// Where its records begin.
    start: Avma,
    /// The original instruction at which it began.
    at: Avma,
    /// So often it was looked whether it is over. (Its thread may be kept from running for long.)
    looks: u32,
}

struct Tracer<'a> {
    options: BurstOptions,
    signal: i32,
    followed: Followed,
    code: &'a BurstCode,
    ranges: Vec<AvmaRange>,
    pace: Pace,
    threads: BTreeMap<i32, Thread>,
    burst: Option<Burst>,
    /// Where the next burst's records begin, if the window is ready for them.
    ready: Option<Avma>,
    /// What bursts cost.
    price: Price,
    report: BurstReport,
    cpu: BTreeMap<i32, (Duration, Duration)>,
    accounted: Instant,
    /// Takes records to where they are decoded.
    over: Sender<Over>,
    /// No more bursts begin.
    ending: bool,
    /// The process executes another program.
    left: bool,
    begun: Instant,
}

impl<'a> Tracer<'a> {
    fn attach(
        pid: i32,
        options: BurstOptions,
        code: &'a BurstCode,
        over: Sender<Over>,
    ) -> Result<Self, BranchTraceError> {
        let signal = signal::choose(pid, &[])?;
        let mut followed = Followed::seize(pid, signal, Children::Leave)?;
        let ranges = code.ranges();
        followed.hold_signals_in(ranges.clone());
        let pace = Pace::new(options.overhead, options.period, 1.0, options.seed);
        let mut tracer = Self {
            options,
            signal,
            followed,
            code,
            ranges,
            pace,
            threads: BTreeMap::new(),
            burst: None,
            ready: None,
            price: Price::default(),
            report: BurstReport::default(),
            cpu: BTreeMap::new(),
            accounted: Instant::now(),
            over,
            ending: false,
            left: false,
            begun: Instant::now(),
        };
        let tids: Vec<i32> = tracer.followed.threads().collect();
        let opened = tids.into_iter().map(|tid| tracer.add_thread(tid)).collect();
        tracer.report.missed.note_first(opened, tracer.threads.len())?;
        Ok(tracer)
    }

    fn add_thread(&mut self, tid: i32) -> Result<(), BranchTraceError> {
        let open = |period| -> Result<ThreadAlarm, BranchTraceError> {
            let alarm = ThreadAlarm::open(tid, AlarmEvent::TaskClock, self.signal)?;
            alarm.set_period(period)?;
            alarm.start()?;
            Ok(alarm)
        };
        let period = self.pace.first_period();
        match leaving_some(tid, || open(period)) {
            Ok(alarm) => {
                self.report.threads += 1;
                self.threads.insert(tid, Thread { alarm, rseq: None });
                let now = procfs::thread_cpu_time(self.followed.pid(), tid).unwrap_or_default();
                self.cpu.insert(tid, (now, now));
                Ok(())
            }
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What would be left to be done from here on.
    fn rest(&self) -> BurstOptions {
        let mut options = self.options.clone();
        options.duration = options.duration.map(|duration| duration.saturating_sub(self.begun.elapsed()));
        options.seed = options.seed.wrapping_add(1);
        options
    }

    /// Traces; true if that is not all, since this program is to be suspended and the process is to be let
    /// go.
    fn run(&mut self, stop: &AtomicBool) -> Result<bool, BranchTraceError> {
        let end = self.options.duration.map(|duration| self.begun + duration);
        while !stop.load(Ordering::Relaxed) && !self.left {
            if !self.options.is_own && is_to_be_suspended() {
                return Ok(true);
            }
            let look_up = self.burst.filter(|burst| burst.looks < LOOKS);
            let look_up = look_up.map_or(LOOK_UP, |burst| LONG_OVER * 2u32.pow(burst.looks));
            let left = end.map_or(look_up, |end| end.saturating_duration_since(Instant::now()).min(look_up));
            if left.is_zero() || !self.next(left)? {
                break;
            }
        }
        Ok(false)
    }

    /// Waits for one event and handles it; false if there will be no more.
    fn next(&mut self, limit: Duration) -> Result<bool, BranchTraceError> {
        match self.followed.next_event(limit)? {
            None if self.followed.threads().next().is_none() => return Ok(false),
            // While nobody is held for it.
            None => {
                self.collect()?;
                self.burst.iter_mut().for_each(|burst| burst.looks += 1);
                self.make_ready()?;
            }
            Some(FollowEvent::Exited { status, .. }) => {
                self.report.exit = Some(status);
                return Ok(false);
            }
            Some(event) => self.handle(event)?,
        }
        if self.accounted.elapsed() > ACCOUNT + ACCOUNT_THREAD * self.cpu.len() as u32 {
            self.account();
        }
        Ok(true)
    }

    fn handle(&mut self, event: FollowEvent) -> Result<(), BranchTraceError> {
        match event {
            FollowEvent::Notified { tid, .. } => {
                let attended = self.attend(tid);
                self.unless_gone(attended)?;
                let is_asked = self.burst.is_some_and(|burst| burst.tid == tid) && self.price.is_asked();
                let begun = if is_asked { self.clock(tid) } else { None };
                self.followed.resume(tid)?;
                self.wind_up(tid)?;
                begun.map_or(Ok(()), |begun| self.ask_price(begun))?;
            }
            FollowEvent::Caught { tid, signal } => {
                let taken_out = self.take_out(tid);
                self.unless_gone(taken_out)?;
                self.followed.resume_with(tid, signal)?;
            }
            FollowEvent::Started { tid } => {
                let opened = self.add_thread(tid);
                self.report.missed.note(opened);
                self.followed.resume(tid)?;
            }
            FollowEvent::Executed { tid } => {
                // The versions are gone with the old program.
                self.left = true;
                self.report.left = true;
                self.followed.hold_signals_in(Vec::new());
                self.threads.clear();
                self.followed.resume(tid)?;
            }
            FollowEvent::Ended { tid } => self.drop_thread(tid),
            FollowEvent::Stepped { tid } => self.followed.resume(tid)?,
            // Children are left: none is told of.
            FollowEvent::Signal { .. } | FollowEvent::Exited { .. } | FollowEvent::Forked { .. } => {}
        }
        Ok(())
    }

    /// A thread that has vanished meanwhile is no error.
    fn unless_gone(&self, result: Result<(), BranchTraceError>) -> Result<(), BranchTraceError> {
        match result {
            Err(BranchTraceError::Trace(error)) if error.is_gone() => Ok(()),
            other => other,
        }
    }

    fn drop_thread(&mut self, tid: i32) {
        // The kernel has nothing to say any more of a thread that has ended, but its alarm has counted to the
        // end.
        let alarm = self.threads.remove(&tid).map(|thread| thread.alarm);
        let counted = alarm.and_then(|alarm| alarm.count().ok()).map(Duration::from_nanos);
        if let Some((first, last)) = self.cpu.remove(&tid) {
            self.report.cpu += last.saturating_sub(first).max(counted.unwrap_or_default());
        }
    }

    /// Reads the threads' CPU times as far as they have come.
    fn account(&mut self) {
        let pid = self.followed.pid();
        for (&tid, (_, last)) in &mut self.cpu {
            if let Ok(now) = procfs::thread_cpu_time(pid, tid) {
                *last = now;
            }
        }
        let running: Duration = self.cpu.values().map(|(first, last)| last.saturating_sub(*first)).sum();
        self.pace.observed(self.report.held + self.report.recording, self.report.cpu + running);
        self.accounted = Instant::now();
    }

    /// Waits for the last burst and closes all alarms.
    fn finish(&mut self) -> Result<(), BranchTraceError> {
        self.ending = true;
        let end = Instant::now() + LAST_BURST;
        // The last look is behind the end: this program may have got no processor until then.
        let mut is_last = false;
        while self.burst.is_some() && !self.left && self.report.exit.is_none() && !is_last {
            is_last = Instant::now() >= end;
            self.collect()?;
            if self.burst.is_some() && !self.next(Duration::from_millis(1))? {
                break;
            }
        }
        if self.burst.take().is_some() {
            *self.report.bursts.entry(BurstEnd::Gone).or_default() += 1;
        }
        self.account();
        let tids: Vec<i32> = self.cpu.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.drop_thread(tid));
        Ok(())
    }

    fn shared<T>(&self, result: io::Result<T>) -> Result<T, BranchTraceError> {
        result.map_err(|source| BranchTraceError::Window { pid: self.followed.pid(), source })
    }

    /// Reads the records of the last burst, if it is over.
    fn collect(&mut self) -> Result<(), BranchTraceError> {
        let Some(burst) = self.burst else { return Ok(()) };
        let position = self.shared(self.code.position())?;
        if position.state == window::RUNNING {
            return Ok(());
        }
        self.burst = None;
        let records = self.shared(self.code.read_records(burst.start, position.cursor))?;
        let end = end_of(position);
        let cost = self.price.of(records.len() / 4);
        self.report.recording += cost;
        self.pace.paid_more(cost);
        let target = match end {
            BurstEnd::NoTarget => Some(Avma::new(self.shared(self.code.word(window::ORIGINAL))?)),
            _ => None,
        };
        // Nobody ceases to listen before this thread has ended.
        let _ = self.over.send(Over { tid: burst.tid, at: burst.at, records, end, target });
        Ok(())
    }

    /// Makes room for the next burst, if none is under way: before a thread is held for it, if there is time.
    fn make_ready(&mut self) -> Result<(), BranchTraceError> {
        if self.burst.is_none() && self.ready.is_none() {
            self.ready = Some(self.shared(self.code.arm(self.options.depth))?);
        }
        Ok(())
    }

    /// The CPU time of a thread since it has its alarm.
    fn clock(&self, tid: i32) -> Option<Duration> {
        self.threads.get(&tid)?.alarm.count().ok().map(Duration::from_nanos)
    }

    /// Looks once whether the burst is over that has just begun, at `begun` of its thread's CPU time: to
    /// learn what such bursts take.
    fn ask_price(&mut self, begun: Duration) -> Result<(), BranchTraceError> {
        let Some(Burst { tid, start, .. }) = self.burst else { return Ok(()) };
        let depth = self.options.depth;
        std::thread::sleep(self.price.look(depth));
        let was_over = self.shared(self.code.position())?.state != window::RUNNING;
        let Some(now) = self.clock(tid) else { return Ok(()) };
        let position = self.shared(self.code.position())?;
        let is_over = position.state != window::RUNNING;
        let words = position.cursor.offset_from(start).max(0) as usize / 4;
        // What ended meanwhile took about as long, which says nothing. The way out of the stop is paid for
        // with it.
        if is_over == was_over {
            let taken = now.saturating_sub(begun + LEG / 2);
            self.price.seen(if is_over { words } else { depth }, taken, is_over);
        }
        Ok(())
    }

    /// A thread's alarm has gone off.
    fn attend(&mut self, tid: i32) -> Result<(), BranchTraceError> {
        let begun = Instant::now();
        self.report.alarms += 1;
        self.collect()?;
        if !self.ending
            && let Err(why) = self.begin(tid)?
        {
            *self.report.refused.entry(why).or_default() += 1;
        }
        let cost = begun.elapsed() + LEG;
        self.report.held += cost;
        self.pace.paid(cost);
        Ok(())
    }

    /// Sets the alarm of a thread that has just been let go. (The kernel asks the processor that the thread
    /// was on last, and waits for its answer: `task_function_call`. While the thread is held that processor
    /// sleeps or does something else, and being woken takes it longer than all else that is done in a stop.)
    fn wind_up(&mut self, tid: i32) -> Result<(), BranchTraceError> {
        let period = self.pace.next_period();
        match self.threads.get(&tid) {
            Some(thread) => Ok(thread.alarm.set_period(period)?),
            None => Ok(()),
        }
    }

    /// Puts a held thread into the copy of where it stands.
    fn begin(&mut self, tid: i32) -> Result<Result<(), Refusal>, BranchTraceError> {
        if self.burst.is_some() {
            return Ok(Err(Refusal::Busy));
        }
        let is_alone = self.followed.threads().count() == 1;
        self.shared(self.code.leave_out_what_may_go(is_alone))?;
        self.report.left_out = self.code.left_out();
        let mut registers = self.followed.registers(tid)?;
        let Some(way_in) = self.code.way_in(registers.rip) else {
            note(&mut self.report.refused_at, registers.rip);
            return Ok(Err(Refusal::NoCopy));
        };
        let in_system_call = registers.orig_rax as i64 >= 0;
        if in_system_call || self.ranges.iter().any(|r| r.contains(registers.rip)) || self.in_restartable(tid)
        {
            return Ok(Err(Refusal::NotAtRest));
        }
        // (Another instruction than that at which it stands, if that is a jump.)
        let Some(at) = self.code.original(way_in) else { return Ok(Err(Refusal::NoCopy)) };
        self.make_ready()?;
        let Some(start) = self.ready.take() else { return Ok(Err(Refusal::Busy)) };
        registers.rip = way_in;
        if let Err(error) = self.followed.set_registers(tid, &registers) {
            self.shared(self.code.set_state(window::TAKEN_OUT))?;
            return Err(error.into());
        }
        self.burst = Some(Burst { tid, start, at, looks: 0 });
        Ok(Ok(()))
    }

    /// Whether a held thread has announced a restartable sequence: it may be in it.
    fn in_restartable(&mut self, tid: i32) -> bool {
        let followed = &self.followed;
        let Some(thread) = self.threads.get_mut(&tid) else { return true };
        let area = *thread.rseq.get_or_insert_with(|| followed.rseq_area(tid));
        let Some(area) = area else { return false };
        let memory = followed.memory(followed.pid());
        memory.is_none_or(|m| m.read_u64(area + RSEQ_CS).map_or(true, |descriptor| descriptor != 0))
    }

    /// A signal is about to be delivered to a thread that stands in a version: it goes on where it would be
    /// without.
    fn take_out(&mut self, tid: i32) -> Result<(), BranchTraceError> {
        let mut registers = self.followed.registers(tid)?;
        let at = registers.rip;
        let to = match self.code.inserted(at) {
            Some(inserted) => {
                let to = self.shared(self.code.leads(at, inserted.leads, registers.rax))?;
                let given = give_back(&mut registers, inserted.taken, self.code);
                self.shared(given)?;
                to
            }
            None => self.code.original(at),
        };
        let Some(to) = to else { return Ok(()) };
        registers.rip = to;
        self.followed.set_registers(tid, &registers)?;
        let position = self.shared(self.code.position())?;
        if self.burst.is_some_and(|burst| burst.tid == tid) && position.state == window::RUNNING {
            self.shared(self.code.set_state(window::TAKEN_OUT))?;
            self.collect()?;
        }
        Ok(())
    }
}

/// Why a burst has ended that is over.
pub(super) fn end_of(position: Position) -> BurstEnd {
    match position.state {
        _ if position.cursor.get().is_multiple_of(window::RECORDS_END) => BurstEnd::Full,
        window::NO_COPY => BurstEnd::NoCopy,
        window::NO_TARGET => BurstEnd::NoTarget,
        _ => BurstEnd::Signal,
    }
}

/// Undoes what recording code has done to the registers.
fn give_back(registers: &mut Registers, taken: Taken, code: &BurstCode) -> io::Result<()> {
    if taken >= Taken::Rcx {
        registers.rcx = code.word(window::SAVED_RCX)?;
    }
    if taken >= Taken::RcxRax {
        registers.rax = code.word(window::SAVED_RAX)?;
    }
    if taken == Taken::All {
        registers.rdx = code.word(window::SAVED_RDX)?;
        let saved = code.word(window::SAVED_FLAGS)?;
        let flags = ((saved >> 8) & LAHF) | ((saved & 1) * OVERFLOW);
        registers.eflags = registers.eflags & !(LAHF | OVERFLOW) | flags;
    }
    Ok(())
}
