//! `--dry-run`: what would be done, with nothing touched.

use crate::left_out::LeftOut;
use crate::profiling::{CountingVersions, make_counting};
use restitch_apply_process::MemoryNeed;
use restitch_check::CheckedVersion;
use restitch_pipeline::ExitCode;
use restitch_pipeline::selection::select;
use restitch_pipeline::summaries::most_sampled;
use restitch_processes::SessionError;
use restitch_processes::modules::Chosen;
use restitch_processes::process_set::ProcessSet;
use restitch_program::{FuncId, Movability};
use restitch_report::{self as report, Outcome, RunResult};

/// Writes into `result` what would be done with the chosen modules. Counting versions are made and checked as
/// they would be, if the modules would be counted (`vote`: whether indirect calls vote then), and go nowhere.
///
/// # Errors
/// If no module can be counted: the first one's reason.
pub(crate) fn plan(
    set: &ProcessSet,
    chosen: &mut Vec<Chosen>,
    vote: Option<bool>,
    samples: u64,
    left_out: &mut LeftOut,
    result: &mut RunResult,
) -> Result<(), SessionError> {
    let made = vote.map(|vote| make_counting(set, chosen, left_out, vote)).transpose()?;
    result.modules = chosen.iter().map(|module| planned(module, samples)).collect();
    if let Some(made) = made {
        tell_counting(&made, result);
        result.planned_memory = memory_for(set, &made.1, true);
    }
    result.profile = Some(report::ProfileSummary {
        source: "samples".into(),
        seconds: 0.0,
        samples,
        exact_edge_share: 0.0,
    });
    result.outcome = Outcome::Planned;
    result.exit_code = ExitCode::Done.number();
    Ok(())
}

/// Adds what the counting versions are; there is one for each module of the result.
fn tell_counting(made: &CountingVersions, result: &mut RunResult) {
    for (entry, (counting, (_, version))) in result.modules.iter_mut().zip(made.0.iter().zip(&made.1)) {
        entry.counting = Some(counting.planned());
        if let Some(plan) = &mut entry.plan {
            plan.counting_bytes = Some(version.text.len());
            plan.counting_mapped_bytes = Some(version.mapped_len());
        }
    }
}

/// What putting `versions` in force would take of the memory of a process: of the one where that is the most
/// of what is left.
pub(crate) fn memory_for(
    set: &ProcessSet,
    versions: &[(usize, CheckedVersion)],
    for_counting: bool,
) -> Option<report::PlannedMemory> {
    let spare = |need: &MemoryNeed| {
        need.room.as_ref().map_or(i128::MAX, |room| i128::from(room.left) - i128::from(need.needed))
    };
    let need = set.all().map(|live| live.memory_for(versions)).min_by_key(spare)?;
    let room = need.room.as_ref();
    Some(report::PlannedMemory {
        needed_bytes: need.needed,
        for_counting,
        left_bytes: room.map(|room| room.left),
        limit_bytes: room.map(|room| room.limit),
        group: room.map(|room| room.group.display().to_string()),
    })
}

/// One module, sampled and not counted.
fn planned(module: &Chosen, samples: u64) -> report::Module {
    let (program, weights) = (&module.analyzed.program, &module.weights.functions);
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let sampled: Vec<FuncId> = program.function_ids().filter(|f| weights[f.index()] > 0).collect();
    let is_fixed = |f: &&FuncId| program.function(**f).movability != Movability::Movable;
    let fixed: Vec<u64> = sampled.iter().filter(is_fixed).map(|f| weights[f.index()]).collect();
    let functions = select(program, &module.weights);
    let all_blocks = functions.iter().flat_map(|f| program.blocks_of(*f));
    let blocks: Vec<u64> =
        all_blocks.filter(|b| program.is_movable(*b)).map(|b| u64::from(program.block(b).len)).collect();
    let mut entry = module.analyzed.report(&module.path.display().to_string());
    entry.samples = module.samples;
    entry.hottest = most_sampled(program, weights);
    entry.plan = Some(report::Plan {
        sample_share: share(module.samples, samples),
        sampled_functions: sampled.len() as u64,
        sampled_bytes: sampled.iter().map(|f| program.function(*f).range.len()).sum(),
        fixed_functions: fixed.len() as u64,
        fixed_share: share(fixed.iter().sum(), module.samples),
        functions: functions.len() as u64,
        blocks: blocks.len() as u64,
        bytes: blocks.iter().sum(),
        counting_bytes: None,
        counting_mapped_bytes: None,
    });
    entry
}
