//! `attach --source trace`, `burst`, `lbr` and `ip`: a profile from branch records or samples instead of a
//! counting version, for processes that are to be touched as little as can be, or that a counting version
//! would slow down too much.

use restitch_pipeline::Watcher;
use restitch_pipeline::profiles::{Covered, Sampled, of_samples, only_samples};
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_processes::modules::Chosen;
use restitch_processes::process_set::ProcessSet;
use restitch_processes::sampling::{IpSamples, sample_at};
use restitch_processes::source::SourceChoice;
use restitch_profile::Profile;
use restitch_recording::branch_records::BranchRecords;
use restitch_recording::branch_result::{known, sparse};
use restitch_recording::burst_record::{Code, Tracing, trace_and_take_out};
use restitch_recording::sampled_record::Rate;
use restitch_recording::trace_record::{relatives, tell_left_out};
use restitch_report::counted;
use restitch_trace::{TraceOptions, TraceReport, trace_together};
use restitch_tracee::AskedToEnd;
use std::collections::BTreeMap;
use std::time::Duration;

/// Fewer branches than this say nothing about a program.
const LEAST_BRANCHES: u64 = 1000;

/// Records branches of the set's processes for `duration`, from a source and at a cost (a share of the
/// running time of all of them together); the profiles of the chosen modules.
///
/// # Errors
/// If the leader cannot be traced, or there are too few records. The processes run in their original code.
pub(crate) fn profiles_of_records(
    set: &mut ProcessSet,
    chosen: &[Chosen],
    source: SourceChoice,
    overhead: f64,
    duration: Duration,
    watcher: &mut dyn Watcher,
) -> Result<(Vec<Profile>, Option<String>), SessionError> {
    let pid = set.leader.target().pid();
    let mut records = BranchRecords::default();
    records.open(pid)?;
    let (what, missed) = if source == SourceChoice::Burst {
        let tracing = Tracing::within(overhead, None);
        let code = Code::of_process(chosen.to_vec());
        let traced = trace_and_take_out(set, code, Some(duration), tracing, &mut records, watcher)?;
        let (all, mean) = (traced.report.all(), traced.report.mean_length());
        if let Some(why) = traced.kept {
            watcher.note(&format!("tracing versions stay mapped, unused: {why}"));
        }
        let what = format!("{} branches in {} of {mean:.0}", traced.report.branches, counted(all, "burst"));
        (what, traced.report.missed.told())
    } else {
        watcher.phase("tracing", Some(duration.as_secs_f64()));
        let report = trace_set(set, overhead, duration, &mut records)?;
        tell_left_out(&report, watcher);
        (format!("{} branches in records", report.branches), report.missed.told())
    };
    heed()?;
    watcher.note(&match records.processes() {
        _ if !set.is_tree() => what,
        1 => format!("{what}, in one process"),
        n => format!("{what}, in {n} processes"),
    });
    if records.branches() < LEAST_BRANCHES {
        let who = if set.is_tree() { "and its relatives " } else { "" };
        return Err(SessionError::nothing_to_do(format!(
            "process {pid} {who}gave {} branch records only; try again under load, with a longer --duration, or with --source count",
            records.branches()
        )));
    }
    let coverage = records.coverage();
    watcher.note(&sparse(coverage).unwrap_or_else(|| known(coverage)));
    let profiles = chosen.iter().map(|c| records.profile(&c.path, &c.analyzed.program));
    Ok((profiles.collect(), missed))
}

/// Samples the set's processes for `duration`, at a cost, beside what the initial sampling has given; the
/// profiles of the chosen modules.
///
/// # Errors
/// If sampling is not permitted, or the hardware has given too few branch records.
pub(crate) fn profiles_of_samples(
    set: &ProcessSet,
    chosen: &[Chosen],
    source: SourceChoice,
    overhead: f64,
    duration: Duration,
    samples: &mut IpSamples,
    watcher: &mut dyn Watcher,
) -> Result<Vec<Profile>, SessionError> {
    let rate = Rate::within(overhead, source)?;
    watcher.phase("sampling for the profile", Some(duration.as_secs_f64()));
    samples.merge(sample_at(set, rate.per_second, rate.stacks, duration)?);
    heed()?;
    watcher.note(&format!(
        "{} samples, {} a second: {:.2} % of the running time at {:.1} us each",
        samples.total,
        rate.per_second,
        100.0 * rate.overhead(),
        rate.cost.as_secs_f64() * 1e6
    ));
    if source == SourceChoice::Lbr {
        if samples.records < LEAST_BRANCHES {
            return Err(SessionError::nothing_to_do(format!(
                "the samples came with {} branch records only; try again under load, with a longer --duration, or with --source trace or count",
                samples.records
            )));
        }
        return Ok(chosen.iter().map(|c| profile_of_branches(c, samples)).collect());
    }
    let none = BTreeMap::new();
    let of = |c: &Chosen| samples.by_module.get(&c.index).unwrap_or(&none);
    let mut covered = Covered::default();
    chosen.iter().for_each(|c| covered.add(&c.analyzed.program, of(c)));
    watcher.note(&only_samples(covered.share()));
    Ok(chosen.iter().map(|c| of_samples(&c.analyzed.program, of(c), Sampled::default())).collect())
}

/// What the hardware's branch records say of a module.
pub(crate) fn profile_of_branches(module: &Chosen, samples: &IpSamples) -> Profile {
    match samples.branches.get(&module.index) {
        Some(records) => records.to_profile(&module.analyzed.program).0,
        None => Profile::empty(&module.analyzed.program),
    }
}

/// Traces the leader of a set, or all processes of a tree together.
fn trace_set(
    set: &mut ProcessSet,
    overhead: f64,
    duration: Duration,
    records: &mut BranchRecords,
) -> Result<TraceReport, SessionError> {
    let pid = set.leader.target().pid();
    let others = if set.is_tree() { relatives(set, records)? } else { Vec::new() };
    let options = TraceOptions {
        overhead,
        duration: Some(duration),
        restartable: records.restartable(pid),
        ..TraceOptions::default()
    };
    Ok(trace_together(pid, &others, options, AskedToEnd::flag(), records)?)
}
