//! `attach --source trace` and `--source burst`: a profile from branch records instead of a counting version, for processes that
//! are to be touched as little as can be, or that a counting version would slow down too much.

use crate::branch_records::BranchRecords;
use crate::branch_result::{known, sparse};
use crate::burst_record::{Code, trace_and_take_out};
use crate::modules::Chosen;
use crate::process_set::ProcessSet;
use crate::{SessionError, SourceChoice, Watcher};
use restitch_profile::Profile;
use restitch_trace::{BurstOptions, TraceOptions, trace};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Fewer branches than this say nothing about a program.
const LEAST_BRANCHES: u64 = 1000;

/// Records branches of the set's leader for `duration`, from a source and at a cost (a share of the running time); the profiles of the chosen modules.
///
/// # Errors
/// If it cannot be traced, or there are too few records. The process runs in its original code.
pub(crate) fn profiles_of_records(
    set: &mut ProcessSet,
    chosen: &[Chosen],
    (source, overhead): (SourceChoice, f64),
    duration: Duration,
    watcher: &mut dyn Watcher,
) -> Result<Vec<Profile>, SessionError> {
    let pid = set.leader.target().pid();
    let mut records = BranchRecords::default();
    records.open(pid)?;
    if source == SourceChoice::Burst {
        let options = BurstOptions { overhead, ..BurstOptions::default() };
        let code = Code::of_process(chosen.to_vec());
        let traced = trace_and_take_out(set, code, Some(duration), options, &mut records, watcher)?;
        let (all, mean) = (traced.report.all(), traced.report.mean_length());
        watcher.note(&format!("{} branches in {all} bursts of {mean:.0}", traced.report.branches));
        if let Some(why) = traced.kept {
            watcher.note(&format!("tracing versions stay mapped, unused: {why}"));
        }
    } else {
        watcher.phase("tracing", Some(duration.as_secs_f64()));
        let options = TraceOptions {
            overhead,
            duration: Some(duration),
            restartable: records.restartable(pid),
            ..TraceOptions::default()
        };
        let report = trace(pid, options, &AtomicBool::new(false), &mut records)?;
        watcher.note(&format!("{} branches in records", report.branches));
    }
    if records.branches() < LEAST_BRANCHES {
        return Err(SessionError::NothingToDo(format!(
            "process {pid} gave {} branch records only; try again under load, with a longer --duration, or with --source count",
            records.branches()
        )));
    }
    let coverage = records.coverage();
    watcher.note(&sparse(coverage).unwrap_or_else(|| known(coverage)));
    Ok(chosen.iter().map(|c| records.profile(&c.path, &c.analyzed.program)).collect())
}
