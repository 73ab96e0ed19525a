//! What to trace and how fast.

use restitch_address::AvmaRange;
use restitch_perf::AlarmEvent;
use std::time::Duration;

/// How the code ahead is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookAhead {
    /// Only over branches that the instruction alone decides, as the paper does.
    Fixed,
    /// With the values of registers and memory.
    Evaluate,
}

/// Settings.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// Taken branches in a record. Records start where time is spent, not where branches are; the longer they
    /// are, the less that counts (`docs/design/tracing.md`).
    pub depth: usize,
    /// The share of the threads' running time that records may cost, 0 to 1.
    pub overhead: f64,
    /// How to look ahead.
    pub look_ahead: LookAhead,
    /// What starts a record: by default the best event that the machine has.
    pub event: AlarmEvent,
    /// A fixed period (nanoseconds, or taken branches) instead of the budget.
    pub period: Option<u64>,
    /// One in so many records that were evaluated to their end is checked by a breakpoint behind it.
    pub check_every: u32,
    /// Critical sections of restartable sequences: no breakpoints in there.
    pub restartable: Vec<AvmaRange>,
    /// Whether processes that the traced one makes are traced, too.
    pub children: bool,
    /// End after this time.
    pub duration: Option<Duration>,
    /// Start of the random numbers that jitter the periods.
    pub seed: u64,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            depth: 512,
            overhead: 0.01,
            look_ahead: LookAhead::Evaluate,
            event: AlarmEvent::best(),
            period: None,
            check_every: 16,
            restartable: Vec::new(),
            children: true,
            duration: None,
            seed: 1,
        }
    }
}
