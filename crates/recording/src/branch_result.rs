//! What a recording of branches says of itself, for [`RunResult`].

use crate::burst_record::Bursts;
use crate::sampled_record::Sampled;
use crate::trace_record::Traced;
use restitch_processes::source::SourceChoice;
use restitch_report::{BranchRecords, End, Outcome, RunResult, Target};
use restitch_trace::{BurstEnd, RecordEnd, Refusal};
use std::time::Duration;

/// With less coverage, a user should know. (cc1plus gains 14 % of its time at this, 18 % at 0.98:
/// `bench/bench effect`.)
const ENOUGH_COVERAGE: f64 = 0.9;

impl Traced {
    /// The result of a `record` of `program` (process `pid`, if it was not started for this).
    pub fn result(&self, program: &str, pid: Option<i32>) -> RunResult {
        let r = &self.report;
        let records = r.records.values().sum();
        let mut result = result(
            program,
            pid,
            r.processes,
            r.threads,
            BranchRecords {
                source: "trace".into(),
                records,
                full_records: r.full(),
                branches: r.branches,
                elsewhere: self.elsewhere,
                in_vdso: self.in_vdso,
                coverage: self.coverage,
                alarms: r.alarms,
                ends: r.records.iter().map(|(end, n)| ended(record_end(*end), *n)).collect(),
                breakpoints: r.breakpoints,
                contradicted: r.contradicted,
                static_usefulness: r.usefulness_without_evaluation(),
                cpu_ms: ms(r.cpu),
                held_ms: ms(r.held),
                looking_ms: ms(r.looking),
                recording_ms: 0.0,
                overhead: r.overhead(),
                version_bytes: 0,
                blocked_threads: r.blocked_threads as u64,
                missed_threads: r.missed.threads as u64,
            },
        );
        result.warnings.extend(r.missed.told());
        result
    }
}

impl Bursts {
    /// The result of a `record` of `program` (process `pid`, if it was not started for this).
    pub fn result(&self, program: &str, pid: Option<i32>) -> RunResult {
        let r = &self.report;
        let ends = r.bursts.iter().map(|(end, n)| ended(burst_end(*end), *n));
        let refused = r.refused.iter().map(|(why, n)| ended(&format!("alarms {}", refusal(*why)), *n));
        let mut result = result(
            program,
            pid,
            1,
            r.threads,
            BranchRecords {
                source: "burst".into(),
                records: r.all(),
                full_records: r.bursts.get(&BurstEnd::Full).copied().unwrap_or(0),
                branches: r.branches,
                elsewhere: self.elsewhere,
                in_vdso: self.in_vdso,
                coverage: self.coverage,
                alarms: r.alarms,
                ends: ends.chain(refused).collect(),
                cpu_ms: ms(r.cpu),
                held_ms: ms(r.held),
                recording_ms: ms(r.recording),
                overhead: r.overhead(),
                version_bytes: self.mapped,
                missed_threads: r.missed.threads as u64,
                ..BranchRecords::default()
            },
        );
        result.warnings.extend(r.missed.told());
        result
            .warnings
            .extend(self.kept.iter().map(|why| format!("tracing versions stay mapped, unused: {why}")));
        result
    }
}

impl Sampled {
    /// The result of a `record` of `program` (process `pid`, if it was not started for this).
    pub fn result(&self, program: &str, pid: Option<i32>) -> RunResult {
        let mut result = written(program, pid, self.processes, 0);
        let of_branches = self.told.coverage.filter(|_| self.source == SourceChoice::Lbr);
        result.warnings.extend(of_branches.and_then(sparse));
        result.samples = Some(self.told.clone());
        result
    }
}

fn result(
    program: &str,
    pid: Option<i32>,
    processes: usize,
    threads: usize,
    records: BranchRecords,
) -> RunResult {
    let mut result = written(program, pid, processes, threads);
    result.warnings.extend(sparse(records.coverage));
    result.branch_records = Some(records);
    result
}

/// A profile was written.
fn written(program: &str, pid: Option<i32>, processes: usize, threads: usize) -> RunResult {
    let target = Target {
        program: program.into(),
        pid: pid.map(|pid| pid as u32),
        processes: processes as u32,
        threads: threads as u32,
    };
    let mut result = RunResult::new("record", target);
    result.peak_memory_bytes = restitch_pipeline::timings::peak_memory();
    result.outcome = Outcome::Written;
    result.exit_code = 0;
    result
}

/// How much of what is executed a profile knows.
pub fn known(coverage: f64) -> String {
    format!("the profile knows about {:.0} % of what is executed", 100.0 * coverage)
}

/// What is to be said of a profile that knows so little that a layout made of it gains much less than it
/// could.
pub fn sparse(coverage: f64) -> Option<String> {
    let advice = "the more it knows, the more a layout gains: record for longer, or allow more (--overhead), or count (--source count)";
    (coverage < ENOUGH_COVERAGE).then(|| format!("{}; {advice}", known(coverage)))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ended(why: &str, count: u64) -> End {
    End { why: why.into(), count }
}

fn record_end(end: RecordEnd) -> &'static str {
    match end {
        RecordEnd::Full => "full",
        RecordEnd::UnknownCode => "at code that is not known",
        RecordEnd::Restartable => "at a restartable sequence",
        RecordEnd::Signal => "at a signal",
        RecordEnd::Lost => "at a breakpoint that was not reached",
        RecordEnd::Odd => "at a trap or far transfer",
        RecordEnd::Costly => "since it had held its thread for long",
        RecordEnd::Gone => "with the thread",
    }
}

/// In words, to follow a number of bursts.
pub fn burst_end(end: BurstEnd) -> &'static str {
    match end {
        BurstEnd::Full => "full",
        BurstEnd::NoCopy => "at code that is not copied",
        BurstEnd::NoTarget => "at a return or indirect branch to such code",
        BurstEnd::Signal => "at a signal",
        BurstEnd::Gone => "with the process",
    }
}

/// In words, to follow a number of alarms.
pub fn refusal(why: Refusal) -> &'static str {
    match why {
        Refusal::Busy => "during another burst",
        Refusal::NoCopy => "in code that is not copied",
        Refusal::NotAtRest => "in a system call or restartable sequence",
    }
}
