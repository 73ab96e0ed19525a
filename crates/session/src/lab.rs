//! `lab PROGRAM --profile FILE`: all layouts of a program, seen by models of a front end, and on demand on
//! the real processor.

use crate::lab_options::LabOptions;
use crate::lab_runs::{check_command, run_layouts};
use restitch_address::FileOffset;
use restitch_apply::Why;
use restitch_lab::{Comparison, Machine, RecordedBranch, Trace, compare};
use restitch_layout::{DuplicateLimits, Layout, Prefetch, duplicate_tails};
use restitch_pipeline::PipelineError;
use restitch_pipeline::Watcher;
use restitch_pipeline::analysis::Analyzed;
use restitch_pipeline::disk;
use restitch_pipeline::imports::{ProfileRequest, read_profile};
use restitch_pipeline::machine::this_machine;
use restitch_pipeline::make::{Ways, lay_out, prefetches};
use restitch_pipeline::original::load_movable;
use restitch_pipeline::recorded_builds::of_build;
use restitch_processes::SessionError;
use restitch_profile::{Profile, branch_stacks, import_perf_data};
use restitch_program::Program;
use std::path::Path;

/// Fewer steps than these fill no second-level cache.
const FEW_STEPS: usize = 500_000;

/// The names of layouts, and the seconds that each took.
pub type LayoutTimes = Vec<(String, f64)>;

/// Compares layouts by models. Also the seconds that each layout took.
///
/// # Errors
/// If the program or the profile cannot be read, or do not fit together; or if the command does not run the
/// program.
pub fn lab(
    options: &LabOptions,
    watcher: &mut dyn Watcher,
) -> Result<(Comparison, LayoutTimes), SessionError> {
    if let Some(runs) = &options.runs {
        check_command(&options.program, runs)?;
    }
    watcher.phase("analysing", None);
    let module = load_movable(&options.program)?;
    let request = ProfileRequest { program: &options.program, profile: &options.profile };
    let (profile, warnings) = read_profile(request, &module)?;
    warnings.iter().for_each(|w| watcher.note(w));
    watcher.phase("laying out", None);
    let (mut layouts, mut seconds) = (Vec::new(), Vec::new());
    for choice in &options.layouts {
        let started = std::time::Instant::now();
        let ways =
            Ways { choice: *choice, keep_in_place: None, retargeted: &[], duplicate: false, prefetch: false };
        let layout = lay_out(ways, &module.program, &profile);
        seconds.push((choice.to_string(), started.elapsed().as_secs_f64()));
        layouts.push((choice.to_string(), layout.clone()));
        if options.duplicate {
            layouts.extend(with_duplicates(&choice.to_string(), &layout, &module.program, &profile));
        }
    }
    watcher.phase("running the models", None);
    let mut machine = options.machine.clone().unwrap_or_else(this_machine);
    if options.large_pages {
        machine = machine.with_large_pages();
    }
    let mut trace = match &options.records {
        Some(path) => recorded(path, &options.program, options.steps, &module, watcher)?,
        None => Trace::walk(&module.program, &profile, options.steps, options.seed),
    };
    if options.prefetch {
        let known = match options.records {
            Some(_) => {
                let (first, second) = trace.halves();
                trace = second;
                first
            }
            None => Trace::to_choose_by(&module.program, &profile),
        };
        layouts = with_prefetches(layouts, &module.program, &known, &machine);
    }
    let seed = options.records.is_none().then_some(options.seed);
    let named: Vec<(&str, Layout)> = layouts.iter().map(|(n, l)| (n.as_str(), l.clone())).collect();
    let mut comparison = compare(&module.program, &profile, machine, &named, &trace, seed);
    if let Some(runs) = &options.runs {
        comparison.add(run_layouts(options, runs, watcher)?);
    }
    Ok((comparison, seconds))
}

/// A layout with duplicates by edges alone, and by paths where there are some.
fn with_duplicates(
    name: &str,
    layout: &Layout,
    program: &Program,
    profile: &Profile,
) -> Vec<(String, Layout)> {
    let duplicated = |by: &str, profile: &Profile| {
        let mut layout = layout.clone();
        let done = duplicate_tails(program, profile, &mut layout, &DuplicateLimits::default());
        (format!("{name}, {} by {by}", done.blocks), layout)
    };
    let edges = Profile { paths: Default::default(), ..profile.clone() };
    let mut both = vec![duplicated("edges", &edges)];
    if !profile.paths.is_empty() {
        both.push(duplicated("paths", profile));
    }
    both
}

/// Each layout, and behind it the same with instructions that fetch the line in which they stand, and with
/// lines fetched ahead.
fn with_prefetches(
    layouts: Vec<(String, Layout)>,
    program: &Program,
    trace: &Trace,
    machine: &Machine,
) -> Vec<(String, Layout)> {
    let both = |(name, layout): (String, Layout)| {
        let prefetches = prefetches(program, trace, &layout, machine);
        let own = prefetches.iter().map(|p| Prefetch { target: p.at, offset: 0, ..*p }).collect();
        let padded = (format!("{name}, padded"), Layout { prefetches: own, ..layout.clone() });
        let ahead = (format!("{name}, ahead"), Layout { prefetches, ..layout.clone() });
        [(name, layout), padded, ahead]
    };
    layouts.into_iter().flat_map(both).collect()
}

/// The trace of a file of branch records.
fn recorded(
    path: &Path,
    program: &Path,
    steps: usize,
    module: &Analyzed,
    watcher: &mut dyn Watcher,
) -> Result<Trace, SessionError> {
    let bytes = disk::read_profile(path)?;
    let bad = |why: Why| SessionError::from(PipelineError::BadFile { path: path.to_owned(), why });
    let imported = import_perf_data(&bytes).map_err(|e| bad(e.into()))?;
    let own = of_build(&imported, module, program).map_err(|why| bad(why.into()))?;
    own.notes.iter().for_each(|note| watcher.note(note));
    let stacks = branch_stacks(&bytes, &own.files).map_err(|e| bad(e.into()))?;
    let place = |at: Option<FileOffset>| at.and_then(|at| module.image.address_of(at));
    let stacks: Vec<Vec<RecordedBranch>> = stacks
        .iter()
        .map(|stack| stack.iter().map(|&(from, to)| (place(from), place(to))).collect())
        .collect();
    let trace = Trace::of_records(&module.program, stacks.iter().map(Vec::as_slice), steps);
    if trace.steps.is_empty() {
        let why = "it has no branch stacks of this program; record with `restitch record --source trace --depth 1024 -o FILE.perf.data`";
        return Err(bad(why.into()));
    }
    if trace.steps.len() < FEW_STEPS {
        watcher.note(&format!(
            "the records make {} steps only: misses of cold caches weigh much",
            trace.steps.len()
        ));
    }
    Ok(trace)
}
