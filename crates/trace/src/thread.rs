//! One traced thread.

use crate::error::BranchTraceError;
use restitch_address::Avma;
use restitch_evaluate::{State, Taken};
use restitch_perf::{AlarmEvent, ThreadAlarm, ThreadBreakpoint};
use restitch_procfs::RunDelay;
use restitch_tracee::Registers;
use std::time::{Duration, Instant};

/// A thread with its events.
#[derive(Debug)]
pub(crate) struct Thread {
    pub pid: i32,
    pub tid: i32,
    pub alarm: ThreadAlarm,
    /// The period that the alarm has, in its events.
    period: u64,
    pub breakpoint: ThreadBreakpoint,
    pub phase: Phase,
    /// How long it has waited for processors; `None` where the kernel does not tell.
    delay: Option<RunDelay>,
    /// Where its `struct rseq` is; `None` until it was looked up.
    pub rseq: Option<Option<Avma>>,
    event: AlarmEvent,
}

/// What a thread is doing for us.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Running until its alarm goes off.
    Waiting,
    /// Running towards its breakpoint.
    Chasing(Box<Chase>),
}

/// A record in the making.
#[derive(Debug)]
pub(crate) struct Chase {
    pub branches: Vec<Taken>,
    /// So many of the last branches were evaluated, not seen.
    pub guessed: usize,
    /// What the thread is expected to look like at the breakpoint.
    pub expected: State,
    /// The breakpoint only checks what was evaluated; the record is full.
    pub is_check: bool,
    /// What the record has cost so far.
    pub cost: Duration,
    /// Where and when the thread was let go.
    pub begun: Avma,
    pub resumed: Instant,
    /// Its stop is waited for without sleeping.
    pub watched: bool,
    /// How long the thread had waited for processors in its life, when that was last looked at.
    pub delayed: Option<Duration>,
}

impl Chase {
    pub fn new(expected: State, depth: usize) -> Self {
        Self {
            branches: Vec::with_capacity(depth.min(4096)),
            guessed: 0,
            expected,
            is_check: false,
            cost: Duration::ZERO,
            begun: Avma::new(0),
            resumed: Instant::now(),
            watched: false,
            delayed: None,
        }
    }

    /// What of `leg`, the time since the thread was let go, it did not wait for a processor: it would have
    /// waited without us, too, and others ran meanwhile. (Short times are not worth a look.)
    pub fn without_waiting(&mut self, leg: Duration, delay: impl FnOnce() -> Option<Duration>) -> Duration {
        let Some(before) = self.delayed.filter(|_| leg > LONG_LEG) else { return leg };
        let Some(now) = delay() else { return leg };
        self.delayed = Some(now);
        leg.saturating_sub(now.saturating_sub(before))
    }

    /// Whether `at` lies on the evaluated way to the breakpoint.
    pub fn leads_over(&self, at: Avma) -> bool {
        let guesses = &self.branches[self.branches.len() - self.guessed..];
        let starts = std::iter::once(self.begun).chain(guesses.iter().map(|b| b.to));
        let ends = guesses.iter().map(|b| b.from).chain([self.expected.pc]);
        starts.zip(ends).any(|(start, end)| start <= at && at <= end)
    }

    /// Drops what was evaluated and not confirmed; whether there was any.
    pub fn drop_guesses(&mut self) -> bool {
        let kept = self.branches.len() - self.guessed;
        self.branches.truncate(kept);
        std::mem::take(&mut self.guessed) != 0
    }
}

impl Thread {
    pub fn open(
        pid: i32,
        tid: i32,
        event: AlarmEvent,
        signal: i32,
        period: u64,
    ) -> Result<Self, BranchTraceError> {
        let alarm = ThreadAlarm::open(tid, event, signal)?;
        let breakpoint = ThreadBreakpoint::open(tid, signal)?;
        alarm.set_period(period)?;
        alarm.start()?;
        let delay = RunDelay::open(pid, tid);
        Ok(Self { pid, tid, alarm, period, breakpoint, phase: Phase::Waiting, delay, rseq: None, event })
    }

    /// Sets the alarm's period. Each time costs an interrupt of the thread's last processor, which may sleep.
    pub fn set_period(&mut self, period: u64) -> Result<(), BranchTraceError> {
        self.period = period;
        Ok(self.alarm.set_period(period)?)
    }

    /// Sees to it that the alarm does not go off before so many more of its events. (It has just gone off.)
    pub fn no_alarm_for(&mut self, events: u64) -> Result<(), BranchTraceError> {
        if self.period >= events { Ok(()) } else { self.set_period(events) }
    }

    /// Its CPU time since it was opened, also after its end; `None` if its alarm counts something else.
    pub fn cpu_time(&self) -> Option<Duration> {
        (self.event == AlarmEvent::TaskClock)
            .then(|| self.alarm.count().ok())
            .flatten()
            .map(Duration::from_nanos)
    }

    /// How long it has waited for processors in its life.
    pub fn run_delay(&self) -> Option<Duration> {
        self.delay.as_ref()?.read()
    }
}

/// A thread that needs longer to its breakpoint may have waited for a processor.
const LONG_LEG: Duration = Duration::from_micros(100);

/// The whole state of a stopped thread.
pub(crate) fn state_of(r: &Registers) -> State {
    State::new(r.rip, r.general(), r.eflags, r.fs_base, r.gs_base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_its_way_between_the_evaluated_branches_only() {
        let taken = |from, to| Taken { from: Avma::new(from), to: Avma::new(to) };
        let mut chase = Chase::new(State::blank(Avma::new(0x310)), 8);
        chase.branches = vec![taken(0x900, 0x100), taken(0x110, 0x200), taken(0x220, 0x300)];
        (chase.begun, chase.guessed) = (Avma::new(0x104), 2);
        let on = [0x104, 0x108, 0x110, 0x200, 0x220, 0x300, 0x310];
        let off = [0x100, 0x111, 0x1ff, 0x221, 0x2ff, 0x311, 0x900];
        assert_eq!(on.map(|at| chase.leads_over(Avma::new(at))), [true; 7]);
        assert_eq!(off.map(|at| chase.leads_over(Avma::new(at))), [false; 7]);
    }

    #[test]
    fn waiting_for_a_processor_is_no_cost() {
        let us = Duration::from_micros;
        let mut chase = Chase::new(State::blank(restitch_address::Avma::new(0)), 8);
        let unasked = || -> Option<Duration> { panic!("asked for nothing") };
        assert_eq!(chase.without_waiting(us(900), unasked), us(900), "nothing is known of the time before");
        chase.delayed = Some(us(5_000));
        assert_eq!(chase.without_waiting(us(40), unasked), us(40));
        assert_eq!(chase.without_waiting(us(900), || None), us(900));
        assert_eq!(chase.without_waiting(us(900), || Some(us(5_700))), us(200));
        assert_eq!(chase.delayed, Some(us(5_700)));
        assert_eq!(chase.without_waiting(us(900), || Some(us(5_700))), us(900));
        // What it waited before it was let go for the first time after a short leg.
        assert_eq!(chase.without_waiting(us(200), || Some(us(9_000))), Duration::ZERO);
    }
}
