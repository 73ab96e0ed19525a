//! What there is to say about bursts.

use restitch_address::Avma;
use std::collections::BTreeMap;
use std::time::Duration;

/// Why a burst ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BurstEnd {
    /// It has as many branches as there was room for.
    Full,
    /// It came to code that has no copy: a system call, a pinned call, a function that nobody thought of.
    NoCopy,
    /// A return, an indirect call or jump went to code that has no copy.
    NoTarget,
    /// A signal came; its handler runs in the original code.
    Signal,
    /// The tracing ended before the burst did.
    Gone,
}

/// Why an alarm did not begin a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Another burst was under way.
    Busy,
    /// The thread stood in code that has no copy.
    NoCopy,
    /// It was in a system call or a restartable sequence.
    NotAtRest,
}

/// The figures of a session of bursts.
#[derive(Debug, Clone, Default)]
pub struct BurstReport {
    /// Bursts by the reason of their end.
    pub bursts: BTreeMap<BurstEnd, u64>,
    /// Alarms that began none, by the reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Where bursts came to code without a copy: how often, by the target of the branch that led there, or of the last one before.
    pub ended_at: BTreeMap<Avma, u64>,
    /// Where alarms found threads in code without a copy, and how often: at most some thousand places.
    pub refused_at: BTreeMap<Avma, u64>,
    /// Branches in all bursts.
    pub branches: u64,
    /// Alarms that went off.
    pub alarms: u64,
    /// How long threads were held.
    pub held: Duration,
    /// What running in tracing versions is estimated to have cost.
    pub recording: Duration,
    /// CPU time of all threads meanwhile.
    pub cpu: Duration,
    /// Threads that were traced.
    pub threads: usize,
    /// Threads for which no alarm could be opened.
    pub missed_threads: usize,
    /// The process's end, if it came.
    pub exit: Option<restitch_tracee::ExitStatus>,
    /// The process executes another program.
    pub left: bool,
}

impl BurstReport {
    /// Adds what another session in the same process has given: sums, but where bursts ended or could not begin and the process's end are of the later one.
    pub fn add(&mut self, later: Self) {
        for (end, n) in later.bursts {
            *self.bursts.entry(end).or_default() += n;
        }
        for (why, n) in later.refused {
            *self.refused.entry(why).or_default() += n;
        }
        (self.ended_at, self.refused_at) = (later.ended_at, later.refused_at);
        self.branches += later.branches;
        self.alarms += later.alarms;
        self.held += later.held;
        self.recording += later.recording;
        self.cpu += later.cpu;
        self.threads = self.threads.max(later.threads);
        self.missed_threads += later.missed_threads;
        (self.exit, self.left) = (later.exit, later.left);
    }
    /// All bursts.
    pub fn all(&self) -> u64 {
        self.bursts.values().sum()
    }
    /// Branches in a burst, on average.
    pub fn mean_length(&self) -> f64 {
        self.branches as f64 / self.all().max(1) as f64
    }
    /// The share of the threads' running time that it has cost: measured while threads were held, estimated while they recorded.
    pub fn overhead(&self) -> f64 {
        (self.held + self.recording).as_secs_f64() / self.cpu.as_secs_f64().max(1e-9)
    }
}
