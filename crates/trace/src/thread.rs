//! One traced thread.

use crate::BranchTraceError;
use restitch_address::Avma;
use restitch_evaluate::{State, Taken};
use restitch_perf::{AlarmEvent, ThreadAlarm, ThreadBreakpoint};
use restitch_tracee::Registers;
use std::time::{Duration, Instant};

/// A thread with its events.
#[derive(Debug)]
pub(crate) struct Thread {
    pub pid: i32,
    pub tid: i32,
    pub alarm: ThreadAlarm,
    pub breakpoint: ThreadBreakpoint,
    pub phase: Phase,
    /// Where its `struct rseq` is; `None` until it was looked up.
    pub rseq: Option<Option<Avma>>,
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
    /// Branches and instructions that were evaluated, also those that were dropped afterwards.
    pub evaluated: (u64, u64),
    /// The breakpoint only checks what was evaluated; the record is full.
    pub is_check: bool,
    /// What the record has cost so far.
    pub cost: Duration,
    /// When the thread was let go.
    pub resumed: Instant,
}

impl Chase {
    pub fn new(expected: State, depth: usize) -> Self {
        Self {
            branches: Vec::with_capacity(depth.min(4096)),
            guessed: 0,
            expected,
            evaluated: (0, 0),
            is_check: false,
            cost: Duration::ZERO,
            resumed: Instant::now(),
        }
    }

    /// Taken branches for each instruction.
    pub fn density(&self) -> f64 {
        self.evaluated.0 as f64 / self.evaluated.1.max(1) as f64
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
        Ok(Self { pid, tid, alarm, breakpoint, phase: Phase::Waiting, rseq: None })
    }
}

/// The whole state of a stopped thread.
pub(crate) fn state_of(r: &Registers) -> State {
    State::new(r.rip, r.general(), r.eflags, r.fs_base, r.gs_base)
}
