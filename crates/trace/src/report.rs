//! Records, and what there is to say about all of them.

use crate::error::BranchTraceError;
use restitch_evaluate::{Taken, Tally};
use std::collections::BTreeMap;
use std::time::Duration;

/// Taken branches that one thread executed one after the other, oldest first.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The branches.
    pub branches: &'a [Taken],
    /// Why it ends where it does.
    pub end: RecordEnd,
}

/// Takes what a source of branch records gives, in the thread that traces: that one may have
/// [descriptors of its own](restitch_tracee::own_descriptors), so a sink keeps none that it opens.
/// A plain function that takes [`Record`]s is one, too.
pub trait Sink: Send {
    /// A record. Threads run meanwhile, so the process may be gone.
    fn record(&mut self, record: Record<'_>);
    /// `pid` is a new process: a copy of `parent`. It is held; be quick.
    fn forked(&mut self, pid: i32, parent: i32) {
        let _ = (pid, parent);
    }
    /// `pid` executes another program. All records of the old one have come. It is held; be
    /// quick.
    fn executed(&mut self, pid: i32) {
        let _ = pid;
    }
}

impl<F: FnMut(Record<'_>) + Send> Sink for F {
    fn record(&mut self, record: Record<'_>) {
        self(record);
    }
}

/// Why a record ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordEnd {
    /// It has as many branches as were asked for.
    Full,
    /// It comes to code that is not known: written by the process itself, or none at all.
    UnknownCode,
    /// The next breakpoint would be inside a restartable sequence, or the thread was in one.
    Restartable,
    /// A signal handler began.
    Signal,
    /// The breakpoint was not reached within some milliseconds of running, or not as expected: a handler that
    /// does not return, a blocked signal, a jump that only the kernel makes.
    Lost,
    /// It is not known how control goes on: a trap, a far transfer.
    Odd,
    /// It has held its thread for longer than a record of so many branches may: stops take long where others
    /// have the processors.
    Costly,
    /// The thread or the process ended, or executed another program.
    Gone,
}

/// The figures of a tracing session.
#[derive(Debug, Clone, Default)]
pub struct TraceReport {
    /// Records by the reason of their end, those without a branch included.
    pub records: BTreeMap<RecordEnd, u64>,
    /// Branches in records.
    pub branches: u64,
    /// Breakpoints that were reached.
    pub breakpoints: u64,
    /// Alarms that went off.
    pub alarms: u64,
    /// Breakpoints at which the thread's registers were as evaluated.
    pub confirmed: u64,
    /// Breakpoints at which they were not, and those that were never reached: the branches evaluated before
    /// were dropped.
    pub contradicted: u64,
    /// Breakpoints to which a thread was still on its way when its next alarm went off: nothing was wrong
    /// with the branches evaluated before, but they were dropped as well.
    pub overtaken: u64,
    /// Branches met while looking ahead.
    pub tally: Tally,
    /// How long threads were held for records.
    pub held: Duration,
    /// Part of `held` that went into looking ahead.
    pub looking: Duration,
    /// CPU time of all threads while they were traced.
    pub cpu: Duration,
    /// Threads that were traced.
    pub threads: usize,
    /// Processes that were traced, each once whatever it executes.
    pub processes: usize,
    /// Threads for which no events could be opened.
    pub missed: Missed,
    /// Of several processes that were to be traced together, those that could not be, and why.
    pub left_out: Vec<(i32, String)>,
    /// Of the threads at the end, those that block the signal: they can be seen only when they unblock it.
    pub blocked_threads: usize,
    /// The process's end, if it came.
    pub exit: Option<restitch_tracee::ExitStatus>,
}

/// Threads that are not recorded, as no events could be opened for them: there is a limit of open files, say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missed {
    /// How many.
    pub threads: usize,
    /// Why the first one is, with the next step.
    pub why: Option<String>,
}

impl Missed {
    /// Takes in what came of opening a thread's events.
    pub(crate) fn note(&mut self, opened: Result<(), BranchTraceError>) {
        if let Err(error) = opened {
            self.note_some(1, &error);
        }
    }

    /// Takes in so many threads.
    pub(crate) fn note_some(&mut self, threads: usize, why: &dyn std::fmt::Display) {
        self.threads += threads;
        self.why.get_or_insert_with(|| why.to_string());
    }

    /// Takes in what came of opening the events of the threads that are there when tracing begins: some
    /// without are no reason to give up the others.
    ///
    /// # Errors
    /// If none has events.
    pub(crate) fn note_first(
        &mut self,
        opened: Vec<Result<(), BranchTraceError>>,
        with_events: usize,
    ) -> Result<(), BranchTraceError> {
        if with_events == 0 {
            return opened.into_iter().collect();
        }
        opened.into_iter().for_each(|opened| self.note(opened));
        Ok(())
    }

    /// Adds those of another session.
    pub(crate) fn add(&mut self, other: Self) {
        self.threads += other.threads;
        self.why = self.why.take().or(other.why);
    }

    /// What there is to tell the user, if there is something.
    pub fn told(&self) -> Option<String> {
        let why = self.why.as_deref()?;
        let threads = if self.threads == 1 { "thread was" } else { "threads were" };
        Some(format!("{} {threads} not recorded: {why}", self.threads))
    }
}

impl TraceReport {
    /// Branches recorded for each breakpoint: the paper's breakpoint usefulness factor.
    pub fn usefulness(&self) -> f64 {
        self.branches as f64 / self.breakpoints.max(1) as f64
    }

    /// What the paper's look-ahead would reach on the same branches: t / (1 - s).
    pub fn usefulness_without_evaluation(&self) -> f64 {
        let dynamic = self.tally.dynamic_taken + self.tally.not_taken;
        (self.tally.dynamic_taken + self.tally.fixed) as f64 / dynamic.max(1) as f64
    }

    /// The share of the threads' running time that they were held; `None` where that time is not known.
    pub fn overhead(&self) -> Option<f64> {
        share_of(self.held, self.cpu)
    }

    /// Records that are as long as was asked for.
    pub fn full(&self) -> u64 {
        self.records.get(&RecordEnd::Full).copied().unwrap_or(0)
    }
}

/// What share of `all` a `part` is, if there was anything at all.
pub(crate) fn share_of(part: Duration, all: Duration) -> Option<f64> {
    (!all.is_zero()).then(|| part.as_secs_f64() / all.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_without_events_are_told_as_long_as_one_has_some() {
        let no_files = |tid| BranchTraceError::NoFiles { tid, source: std::io::Error::from_raw_os_error(24) };
        let opened = || vec![Ok(()), Err(no_files(2)), Err(no_files(3))];
        let mut missed = Missed::default();
        missed.note_first(opened(), 1).expect("one is recorded");
        assert_eq!(missed.threads, 2);
        assert!(missed.told().is_some_and(|told| told.starts_with("2 threads") && told.contains("thread 2")));
        assert!(Missed::default().note_first(opened(), 0).is_err());
        assert!(Missed::default().note_first(vec![Ok(())], 0).is_ok(), "it has ended");
    }

    #[test]
    fn a_share_of_an_unknown_time_is_unknown() {
        let ms = Duration::from_millis;
        let report = |cpu| TraceReport { held: ms(10), cpu, ..TraceReport::default() };
        assert_eq!(report(ms(0)).overhead(), None);
        assert_eq!(report(ms(40)).overhead(), Some(0.25));
    }
}
