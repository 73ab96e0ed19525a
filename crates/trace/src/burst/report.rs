//! What there is to say about bursts.

use crate::report::Missed;
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
    /// Where bursts came to code without a copy: how often, by the target of the branch that led there, or of
    /// the last one before.
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
    pub missed: Missed,
    /// The process's end, if it came.
    pub exit: Option<restitch_tracee::ExitStatus>,
    /// The process executes another program.
    pub left: bool,
    /// Modules with a version that are left out, since they have gone or may go.
    pub left_out: usize,
}

impl BurstReport {
    /// Adds what another session in the same process has given: sums, but where bursts ended or could not
    /// begin and the process's end are of the later one.
    pub fn add(&mut self, later: Self) {
        (self.ended_at, self.refused_at) = (BTreeMap::new(), BTreeMap::new());
        self.go_on(later);
    }

    /// Adds what the same session has given after it was interrupted.
    pub(crate) fn go_on(&mut self, later: Self) {
        self.threads = self.threads.max(later.threads);
        (self.exit, self.left) = (later.exit, later.left);
        self.sum(later);
    }

    /// Adds what a session at the same time in another process, with the same versions at the same addresses,
    /// has given: sums. How that process has ended is not kept.
    pub fn add_beside(&mut self, other: Self) {
        self.threads += other.threads;
        self.sum(other);
    }

    fn sum(&mut self, other: Self) {
        sum(&mut self.bursts, other.bursts);
        sum(&mut self.refused, other.refused);
        sum(&mut self.ended_at, other.ended_at);
        sum(&mut self.refused_at, other.refused_at);
        self.branches += other.branches;
        self.alarms += other.alarms;
        self.held += other.held;
        self.recording += other.recording;
        self.cpu += other.cpu;
        self.missed.add(other.missed);
        self.left_out = self.left_out.max(other.left_out);
    }

    /// All bursts.
    pub fn all(&self) -> u64 {
        self.bursts.values().sum()
    }
    /// Branches in a burst, on average.
    pub fn mean_length(&self) -> f64 {
        self.branches as f64 / self.all().max(1) as f64
    }
    /// The share of the threads' running time that it has cost: measured while threads were held, estimated
    /// while they recorded; `None` where the running time is not known.
    pub fn overhead(&self) -> Option<f64> {
        crate::report::share_of(self.held + self.recording, self.cpu)
    }
    /// The part of it that was measured.
    pub fn held_share(&self) -> Option<f64> {
        crate::report::share_of(self.held, self.cpu)
    }
}

fn sum<K: Ord>(into: &mut BTreeMap<K, u64>, from: BTreeMap<K, u64>) {
    from.into_iter().for_each(|(key, n)| *into.entry(key).or_default() += n);
}
