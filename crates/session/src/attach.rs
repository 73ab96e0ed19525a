//! `attach`: from a running process to a faster one.

use crate::attach_job::{Inputs, Job, Round};
use crate::attach_options::AttachOptions;
use crate::attach_profile::{Found, Profiled, profile_it, take_given};
use crate::attach_summary::{
    apply_summary, calls_cut_short, large_page_bytes, left_to_preempted, target_of, written,
};
use crate::attach_verdict::{judge, windows_for};
use crate::attach_versions::{Optimized, build_versions};
use crate::earlier_profiles::{not_chosen, of_module, stored, with_earlier};
use crate::left_out::LeftOut;
use crate::module_churn::{ModuleChurn, until_modules_stay};
use crate::plan::memory_for;
use crate::status::status_when;
use restitch_apply_elf::is_restitch_output;
use restitch_apply_process::{Module, StateDir, SwitchReport, VersionKind};
use restitch_check::CheckedVersion;
use restitch_pipeline::imports::adopt_targets;
use restitch_pipeline::timings::Timings;
use restitch_pipeline::{ExitCode, Watcher};
use restitch_processes::SessionError;
use restitch_processes::departure::or_departure;
use restitch_processes::interrupt::heed;
use restitch_processes::judgement::Window;
use restitch_processes::modules::Chosen;
use restitch_processes::process_family::{ProcessFamily, at_work};
use restitch_processes::process_set::{ProcessSet, refuse_unchangeable};
use restitch_processes::reclaim::KeptVersion;
use restitch_processes::refusal::with_what_is_left;
use restitch_processes::sampling::IpSamples;
use restitch_processes::unfinished::or_given_back;
use restitch_profile::ProfileFile;
use restitch_report::{self as report, Outcome, RunResult};

/// Profiles the process, lays its hot code out again, moves it over, measures.
///
/// # Errors
/// [`SessionError`]; the process is as it was, or (after an error during a switch) correct and known to the
/// journal.
pub fn attach(options: &AttachOptions, watcher: &mut dyn Watcher) -> Result<RunResult, SessionError> {
    Ok(attach_round(options, Round::Only, watcher)?.result)
}

/// What a round has come to.
pub(crate) struct Attached {
    pub result: RunResult,
    /// What it has counted; empty if it is the only one.
    pub counted: ProfileFile,
    /// The samples before that, and their modules.
    pub samples: IpSamples,
    pub modules: Vec<Module>,
    /// The share of them that lies in code of which the new layout has a copy.
    pub expected: f64,
}

/// As [`attach`].
///
/// # Errors
/// Its errors. After one in [`Round::Of`] an earlier layout may be in force still.
pub(crate) fn attach_round(
    options: &AttachOptions,
    round: Round<'_>,
    watcher: &mut dyn Watcher,
) -> Result<Attached, SessionError> {
    let result = until_modules_stay(watcher, |churn, watcher| attempt(options, round, churn, watcher));
    if result.is_err()
        && let Ok(dir) = StateDir::open()
    {
        // Versions that were made and did not come to be mapped.
        dir.collect_garbage();
    }
    result
}

/// One attempt of a round: modules that move meanwhile are a reason for another one.
fn attempt(
    options: &AttachOptions,
    round: Round<'_>,
    churn: &ModuleChurn,
    watcher: &mut dyn Watcher,
) -> Result<Attached, SessionError> {
    let mut timings = Timings::new();
    let inputs = Inputs::read(options, round)?;
    let family = at_work(options.pid, options.tree, watcher);
    let (mut set, result) = open(options, &family, churn)?;
    let windows = windows_for(options, &set)?;
    timings.end("opening");
    if !options.dry_run {
        set.room_for_more()?;
    }
    or_given_back(&mut set, watcher, |set, watcher| {
        let left_out = LeftOut::default();
        let job = Job { options, churn, set: &mut *set, windows, left_out, timings, result, watcher };
        let attached = attach_to(job, &inputs);
        attached.map_err(|error| with_what_is_left(or_departure(error, set), set.leader.target()))
    })
    .map_err(|error| family.explain(error))
}

/// The processes, and a result with what there is to say of them.
fn open(
    options: &AttachOptions,
    family: &ProcessFamily,
    churn: &ModuleChurn,
) -> Result<(ProcessSet, RunResult), SessionError> {
    refuse_unchangeable(family.leader)?;
    let mut set = ProcessSet::open_to_change(family.leader, options.tree)?;
    if family.leader != options.pid {
        set.join(options.pid)?;
    }
    set.retargeted_slots = options.slots;
    let mut result = RunResult::new("attach", target_of(&set));
    result.warnings.extend(family.warnings());
    result.warnings.extend(set.left_out());
    result.warnings.extend(churn.warning());
    Ok((set, result))
}

/// The round on a set that is open. An error or a panic may leave processes in a counting version.
fn attach_to(mut job: Job<'_>, inputs: &Inputs<'_>) -> Result<Attached, SessionError> {
    heed()?;
    take_back_what_was_there(&mut job, inputs.round)?;
    let found = match &inputs.given {
        Some(given) => take_given(given, &mut job)?,
        None => profile_it(&mut job, inputs.source, inputs.votes())?,
    };
    heed()?;
    let Found { before, samples, mut chosen, profiled } = found;
    let Some(mut profiled) = profiled else {
        job.left_out.tell(&mut job.result);
        job.timings.end("planning");
        return Ok(attached(job, ProfileFile::default(), samples, &[]));
    };
    let counted = complete(&mut job, inputs, &mut chosen, &mut profiled)?;
    let made = build_or_take_back(&mut job, &mut chosen, &mut profiled)?;
    job.result.profile = Some(profiled.summary(samples.total));
    let layout = Built { chosen: &chosen, made: &made };
    match job.options.dry_run {
        true => tell_plan(&mut job, layout),
        false => carry_out(&mut job, layout, &profiled.switch, &before)?,
    }
    Ok(attached(job, counted, samples, &made.versions))
}

/// Versions, and the modules that they are of.
#[derive(Clone, Copy)]
struct Built<'a> {
    chosen: &'a [Chosen],
    made: &'a Optimized,
}

/// Says what would be done.
fn tell_plan(job: &mut Job<'_>, built: Built<'_>) {
    describe(job, built.chosen, built.made);
    job.result.planned_memory = memory_for(job.set, &built.made.versions, false);
    (job.result.outcome, job.result.exit_code) = (Outcome::Planned, ExitCode::Done.number());
}

/// Puts the versions in force, says what that was, and judges it by the time `before`. `counting`: the switch
/// to what has counted.
fn carry_out(
    job: &mut Job<'_>,
    built: Built<'_>,
    counting: &SwitchReport,
    before: &[Window],
) -> Result<(), SessionError> {
    let switched = put_in_force(job, counting, built.made)?;
    describe(job, built.chosen, built.made);
    tell_of_switches(job, counting, &switched);
    let is_measured = job.windows.can_measure();
    judge(job, before)?;
    large_page_bytes(job.set, &built.made.versions, &mut job.result);
    job.timings.end(if is_measured { "measuring" } else { "looking back" });
    job.result.target = target_of(job.set);
    Ok(())
}

/// Processes that are in a layout already get their original code back first, unless the round is one of
/// several.
fn take_back_what_was_there(job: &mut Job<'_>, round: Round<'_>) -> Result<(), SessionError> {
    // By what its code leads to: the journal of one that was killed may be ahead of it.
    let counts = |live| status_when(live, true).is_ok_and(|found| found.left_counting);
    let stays = matches!(round, Round::Of(_)) && !job.set.all().any(counts);
    if job.set.all().any(|l| !l.journal().is_empty()) && !job.options.dry_run && !stays {
        job.watcher.note("the process is under restitch already: it gets its original code back first");
        job.take_back()?;
        job.timings.end("take back what was there");
    }
    Ok(())
}

/// Adds to the profiles what is known besides: what indirect calls call, what earlier rounds have counted.
/// What this one has counted.
fn complete(
    job: &mut Job<'_>,
    inputs: &Inputs<'_>,
    chosen: &mut Vec<Chosen>,
    profiled: &mut Profiled,
) -> Result<ProfileFile, SessionError> {
    for (module, profile) in chosen.iter().zip(profiled.each_profile()) {
        inputs.known.iter().for_each(|known| adopt_targets(known, &module.analyzed, profile));
    }
    let mut counted = ProfileFile::default();
    if let Round::Of(earlier) = inputs.round {
        counted = stored(chosen, profiled.each_profile());
        add_earlier(job, chosen, profiled, &with_earlier(&counted, earlier))?;
    }
    if job.options.version.promote_calls && profiled.each_profile().all(|p| p.targets.is_empty()) {
        job.warn(UNKNOWN_TARGETS);
    }
    Ok(counted)
}

/// Why nothing is promoted.
const UNKNOWN_TARGETS: &str =
    "no indirect call is promoted: none was seen to call one function of its module often enough";

/// Puts `all` that was counted in place of the profiles of this round, with the modules that only earlier
/// ones were in.
fn add_earlier(
    job: &Job<'_>,
    chosen: &mut Vec<Chosen>,
    profiled: &mut Profiled,
    all: &ProfileFile,
) -> Result<(), SessionError> {
    for (module, profile) in chosen.iter().zip(profiled.each_profile()) {
        *profile = of_module(all, module).unwrap_or_else(|| std::mem::take(profile));
    }
    for (module, profile) in not_chosen(job.set, chosen, &job.left_out, all)? {
        // Profiles that were not counted here come before those that were.
        chosen.insert(0, module);
        profiled.profiles.insert(0, profile);
    }
    Ok(())
}

/// Makes the versions. Where that fails the processes get their original code back: they count.
fn build_or_take_back(
    job: &mut Job<'_>,
    chosen: &mut Vec<Chosen>,
    profiled: &mut Profiled,
) -> Result<Optimized, SessionError> {
    job.watcher.phase("laying out", None);
    build_versions(job, chosen, profiled).or_else(|error| {
        // One that was asked to end gives back as after any other error.
        if !job.options.dry_run && !matches!(error, SessionError::Interrupted { .. }) {
            job.take_back()?;
        }
        Err(error)
    })
}

/// Moves the processes over, and notes when the layout came to be in force.
fn put_in_force(
    job: &mut Job<'_>,
    counting: &SwitchReport,
    made: &Optimized,
) -> Result<SwitchReport, SessionError> {
    job.watcher.phase("moving over", None);
    let switched = job.set.switch(&made.versions, VersionKind::Optimized, job.watcher)?;
    job.timings.end("moving over");
    let in_force_ms = job.timings.elapsed_ms();
    if switched.patched == 0 {
        job.take_back()?;
        return Err(nowhere_led(made, &switched));
    }
    let applied = report::ApplySummary { in_force_ms, ..apply_summary(counting, &switched) };
    job.result.apply = Some(applied);
    Ok(switched)
}

/// Why no call is led to the versions.
fn nowhere_led(made: &Optimized, switched: &SwitchReport) -> SessionError {
    let blocks: usize = made.versions.iter().map(|(_, version)| version.blocks.len()).sum();
    let why = match switched.left_out {
        0 => "none of their functions can be redirected".to_owned(),
        left if left == switched.left_to_preempted => format!(
            "threads that a signal has interrupted rest in the process, maybe at one of all {left} places where they would be redirected"
        ),
        left => format!("threads stood at all {left} places where they would be redirected; try again"),
    };
    SessionError::nothing_to_do(format!(
        "{blocks} blocks were laid out, but {why}; nothing was moved, and the process is as it was"
    ))
}

/// The modules, their layouts and versions, and what was left out.
fn describe(job: &mut Job<'_>, chosen: &[Chosen], made: &Optimized) {
    job.result.modules = made.reports(chosen, job.options);
    job.timings.end("report");
    job.left_out.tell(&mut job.result);
    let outputs = chosen.iter().filter(|module| is_restitch_output(&module.analyzed.image).is_some());
    job.result.warnings.extend(outputs.map(|module| {
        format!(
            "{} is an output of restitch, laid out already, so there is little to gain here; attach to the original program, or optimize that again",
            module.path.display()
        )
    }));
}

/// What is to be said of the switches, and of the versions that are left behind.
fn tell_of_switches(job: &mut Job<'_>, counting: &SwitchReport, switched: &SwitchReport) {
    job.result.warnings.extend(written(job.set.leader.target(), &[counting, switched]));
    job.result.warnings.extend(left_to_preempted(switched));
    job.result.warnings.extend(calls_cut_short());
    job.result.warnings.extend(job.set.reclaim().iter().map(KeptVersion::to_string));
    job.timings.end("unmapping former versions");
    (job.result.outcome, job.result.exit_code) = (Outcome::InForce, ExitCode::Done.number());
}

/// The end of a round.
fn attached(
    job: Job<'_>,
    counted: ProfileFile,
    samples: IpSamples,
    versions: &[(usize, CheckedVersion)],
) -> Attached {
    let copied = |(module, version): &(usize, CheckedVersion)| -> u64 {
        let all = samples.by_module.get(module).into_iter().flatten();
        all.filter(|(at, _)| version.map.to_version(**at).is_some()).map(|(_, n)| *n).sum()
    };
    let copied: u64 = versions.iter().map(copied).sum();
    let modules = job.set.leader.target().modules.clone();
    let expected = copied as f64 / samples.total.max(1) as f64;
    let mut result = job.result;
    job.timings.finish(&mut result);
    Attached { result, counted, samples, modules, expected }
}
