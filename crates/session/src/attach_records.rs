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

/// What profiles are made of, and at what cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Where records or samples come from.
    pub source: SourceChoice,
    /// A share of the running time of all processes together.
    pub overhead: f64,
    /// How long is recorded.
    pub duration: Duration,
}

/// What recording has come to, in words.
struct Recorded {
    what: String,
    /// What was missed.
    missed: Option<String>,
}

/// Records branches of the set's processes; the profiles of the chosen modules, and what was missed.
///
/// # Errors
/// If the leader cannot be traced, or there are too few records. The processes run in their original code.
pub(crate) fn profiles_of_records(
    set: &mut ProcessSet,
    chosen: &[Chosen],
    budget: Budget,
    watcher: &mut dyn Watcher,
) -> Result<(Vec<Profile>, Option<String>), SessionError> {
    let mut records = BranchRecords::default();
    records.open(set.leader.target().pid())?;
    let Recorded { what, missed } = match budget.source {
        SourceChoice::Burst => by_bursts(set, chosen, budget, &mut records, watcher)?,
        _ => by_traces(set, budget, &mut records, watcher)?,
    };
    heed()?;
    watcher.note(&match records.processes() {
        _ if !set.is_tree() => what,
        1 => format!("{what}, in one process"),
        n => format!("{what}, in {n} processes"),
    });
    enough_records(set, records.branches())?;
    let coverage = records.coverage();
    watcher.note(&sparse(coverage).unwrap_or_else(|| known(coverage)));
    let profiles = chosen.iter().map(|c| records.profile(&c.path, &c.analyzed.program));
    Ok((profiles.collect(), missed))
}

/// Records whole stretches of branches, in tracing versions.
fn by_bursts(
    set: &mut ProcessSet,
    chosen: &[Chosen],
    budget: Budget,
    records: &mut BranchRecords,
    watcher: &mut dyn Watcher,
) -> Result<Recorded, SessionError> {
    let tracing = Tracing::within(budget.overhead, None);
    let code = Code::of_process(chosen.to_vec());
    let traced = trace_and_take_out(set, code, Some(budget.duration), tracing, records, watcher)?;
    let (all, mean) = (traced.report.all(), traced.report.mean_length());
    if let Some(why) = traced.kept {
        watcher.note(&format!("tracing versions stay mapped, unused: {why}"));
    }
    let what = format!("{} branches in {} of {mean:.0}", traced.report.branches, counted(all, "burst"));
    Ok(Recorded { what, missed: traced.report.missed.told() })
}

/// Records what threads branch to when they are stopped.
fn by_traces(
    set: &mut ProcessSet,
    budget: Budget,
    records: &mut BranchRecords,
    watcher: &mut dyn Watcher,
) -> Result<Recorded, SessionError> {
    watcher.phase("tracing", Some(budget.duration.as_secs_f64()));
    let report = trace_set(set, budget, records)?;
    tell_left_out(&report, watcher);
    Ok(Recorded { what: format!("{} branches in records", report.branches), missed: report.missed.told() })
}

fn enough_records(set: &ProcessSet, branches: u64) -> Result<(), SessionError> {
    if branches >= LEAST_BRANCHES {
        return Ok(());
    }
    let pid = set.leader.target().pid();
    let who = if set.is_tree() { "and its relatives " } else { "" };
    Err(SessionError::nothing_to_do(format!(
        "process {pid} {who}gave {branches} branch records only; try again under load, with a longer --duration, or with --source count"
    )))
}

/// Samples the set's processes, beside what the initial sampling has given; the profiles of the chosen
/// modules.
///
/// # Errors
/// If sampling is not permitted, or the hardware has given too few branch records.
pub(crate) fn profiles_of_samples(
    set: &ProcessSet,
    chosen: &[Chosen],
    budget: Budget,
    samples: &mut IpSamples,
    watcher: &mut dyn Watcher,
) -> Result<Vec<Profile>, SessionError> {
    let rate = Rate::within(budget.overhead, budget.source)?;
    watcher.phase("sampling for the profile", Some(budget.duration.as_secs_f64()));
    samples.merge(sample_at(set, rate.per_second, rate.stacks, budget.duration)?);
    heed()?;
    watcher.note(&format!(
        "{} samples, {} a second: {:.2} % of the running time at {:.1} us each",
        samples.total,
        rate.per_second,
        100.0 * rate.overhead(),
        rate.cost.as_secs_f64() * 1e6
    ));
    match budget.source {
        SourceChoice::Lbr => of_hardware(chosen, samples),
        _ => Ok(of_places(chosen, samples, watcher)),
    }
}

/// Profiles of the branch records that samples came with.
fn of_hardware(chosen: &[Chosen], samples: &IpSamples) -> Result<Vec<Profile>, SessionError> {
    if samples.records < LEAST_BRANCHES {
        return Err(SessionError::nothing_to_do(format!(
            "the samples came with {} branch records only; try again under load, with a longer --duration, or with --source trace or count",
            samples.records
        )));
    }
    Ok(chosen.iter().map(|c| profile_of_branches(c, samples)).collect())
}

/// Profiles of the places alone that were sampled.
fn of_places(chosen: &[Chosen], samples: &IpSamples, watcher: &mut dyn Watcher) -> Vec<Profile> {
    let none = BTreeMap::new();
    let of = |c: &Chosen| samples.by_module.get(&c.index).unwrap_or(&none);
    let mut covered = Covered::default();
    chosen.iter().for_each(|c| covered.add(&c.analyzed.program, of(c)));
    watcher.note(&only_samples(covered.share()));
    chosen.iter().map(|c| of_samples(&c.analyzed.program, of(c), Sampled::default())).collect()
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
    budget: Budget,
    records: &mut BranchRecords,
) -> Result<TraceReport, SessionError> {
    let pid = set.leader.target().pid();
    let others = if set.is_tree() { relatives(set, records)? } else { Vec::new() };
    let options = TraceOptions {
        overhead: budget.overhead,
        duration: Some(budget.duration),
        restartable: records.restartable(pid),
        ..TraceOptions::default()
    };
    Ok(trace_together(pid, &others, options, AskedToEnd::flag(), records)?)
}
