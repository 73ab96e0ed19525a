//! `record`: an exact profile of a process or of one run of a program, into a file.

use crate::attach_summary::{calls_cut_short, left_to_preempted, target_of};
use crate::far::refuse_far;
use crate::follow::follow;
use crate::instrument::from_counts;
use crate::left_out::LeftOut;
use crate::module_churn::{ModuleChurn, until_modules_stay};
use crate::profiling::{Counting, count, make_counting};
use restitch_apply_process::VersionKind;
use restitch_pipeline::Watcher;
use restitch_pipeline::derivation;
use restitch_pipeline::profiles::{ProfileOutput, save_counts};
use restitch_pipeline::timings::Timings;
use restitch_processes::SessionError;
use restitch_processes::departure::or_departure;
use restitch_processes::initial_sampling::{LEAST_SAMPLES, Length};
use restitch_processes::interrupt::heed;
use restitch_processes::modules::{Analyses, Chosen, choose};
use restitch_processes::no_file::samples_in_no_file;
use restitch_processes::process_family::{ProcessFamily, at_work};
use restitch_processes::process_set::{ProcessSet, refuse_unchangeable};
use restitch_processes::reclaim::KeptVersion;
use restitch_processes::refusal::with_what_is_left;
use restitch_processes::sampling::sample;
use restitch_processes::unfinished::or_given_back;
use restitch_profile::{Derived, ModuleProfile, ProfileFile};
use restitch_report::{RunResult, Target};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What to record.
#[derive(Debug)]
pub enum RecordSubject {
    /// A running process, for some time.
    Process {
        /// Its number.
        pid: i32,
        /// Also all that run its program.
        tree: bool,
        /// Sampling and counting together.
        duration: Duration,
    },
    /// A program and all that it executes, from start to end: all functions are counted.
    Command {
        /// The command.
        command: Command,
        /// Count programs of these names (or paths) only; all, if there are none.
        only: Vec<String>,
    },
    /// What programs of [`instrument`](crate::instrument) have counted in these files.
    Counts(Vec<PathBuf>),
}

/// Where the profile goes.
#[derive(Debug)]
pub struct RecordOptions {
    /// What to record.
    pub subject: RecordSubject,
    /// The profile file.
    pub output: ProfileOutput,
}

/// Records, and writes the profile file whole or not at all. For a command the exit status of the command
/// comes back, too.
///
/// # Errors
/// [`SessionError`]. The process has its original code again.
pub fn record(
    options: RecordOptions,
    watcher: &mut dyn Watcher,
) -> Result<(RunResult, Option<i32>), SessionError> {
    restitch_pipeline::disk::check_writable(&options.output.path)?;
    let ((file, result), status) = match options.subject {
        RecordSubject::Process { pid, tree, duration } => {
            let once = |churn: &ModuleChurn, watcher: &mut dyn Watcher| {
                record_process(pid, tree, duration, churn, watcher)
            };
            (until_modules_stay(watcher, once)?, None)
        }
        RecordSubject::Command { command, only } => {
            let (recorded, status) = record_command(command, &only, watcher)?;
            (recorded, Some(status))
        }
        RecordSubject::Counts(paths) => (from_counts(&paths, watcher)?, None),
    };
    for note in save_counts(file, &options.output)?.notes {
        watcher.note(&note);
    }
    Ok((result, status))
}

/// What comes of recording.
type Recorded = (ProfileFile, RunResult);

fn record_process(
    pid: i32,
    tree: bool,
    duration: Duration,
    churn: &ModuleChurn,
    watcher: &mut dyn Watcher,
) -> Result<Recorded, SessionError> {
    let timings = Timings::new();
    let family = at_work(pid, tree, watcher);
    let pid = family.leader;
    refuse_unchangeable(pid)?;
    let mut set = ProcessSet::open_to_change(pid, tree)?;
    set.left_out().iter().for_each(|told| watcher.note(told));
    set.room_for_more()?;
    or_given_back(&mut set, watcher, |set, watcher| {
        record_set(set, duration, churn, &family, timings, watcher)
            .map_err(|error| with_what_is_left(or_departure(error, set), set.leader.target()))
    })
    .map_err(|error| family.explain(error))
}

/// Samples and counts in a set that is open.
fn record_set(
    set: &mut ProcessSet,
    duration: Duration,
    churn: &ModuleChurn,
    family: &ProcessFamily,
    mut timings: Timings,
    watcher: &mut dyn Watcher,
) -> Result<Recorded, SessionError> {
    let pid = set.leader.target().pid();
    heed()?;
    if set.all().any(|l| !l.journal().is_empty()) {
        set.tell_taken_out(watcher);
        set.switch(&[], VersionKind::Counting, watcher)?;
    }
    let sampling = (duration / 3).clamp(Duration::from_millis(500), Duration::from_secs(20));
    watcher.phase("sampling", Some(sampling.as_secs_f64()));
    let samples = sample(set, sampling)?;
    heed()?;
    timings.end("sampling");
    watcher.phase("analysing", None);
    let mut left_out = LeftOut::default();
    let (mut chosen, left) = choose(set, &samples, &mut Analyses::new())?;
    left.into_iter().for_each(|(path, n, why)| left_out.add(&path, n, why));
    churn.leave_out(&mut chosen, &mut left_out);
    if chosen.is_empty() {
        if let Some(error) = samples_in_no_file(pid, &samples) {
            return Err(error);
        }
        return Err(SessionError::nothing_to_do(match samples.total {
            LEAST_SAMPLES.. => {
                format!(
                    "nothing of process {pid} that ran enough can be counted{}; `--source trace` or `ip` may record it as it is",
                    left_out.reasons()
                )
            }
            few => format!(
                "process {pid} used too little CPU time to be profiled ({few} samples); try again under load"
            ),
        }));
    }
    timings.end("analysis");
    let (counting, versions) = make_counting(set, &mut chosen, &mut left_out, true)?;
    timings.end("counting version");
    heed()?;
    let rest = duration.saturating_sub(sampling).max(Duration::from_millis(500));
    let length = Length::Exactly(rest);
    let derived = count(set, &chosen, &counting, &versions, length, watcher);
    set.switch(&[], VersionKind::Counting, watcher)?;
    let kept = set.reclaim();
    timings.end("counting");
    let (derived, switched, counted) = derived?;
    let mut result = RunResult::new("record", target_of(set));
    result.warnings.extend(family.warnings());
    result.warnings.extend(churn.warning());
    result.warnings.extend(left_to_preempted(&switched));
    result.warnings.extend(calls_cut_short());
    result.warnings.extend(kept.iter().map(KeptVersion::to_string));
    describe(&mut result, &chosen, &counting, &derived);
    left_out.tell(&mut result);
    derivation::finish(&mut result, "counting version", counted.as_secs_f64());
    timings.finish(&mut result);
    Ok((profile_file(&chosen, &derived), result))
}

/// Counts all programs that the command executes, from their entry points to their ends.
fn record_command(
    command: Command,
    only: &[String],
    watcher: &mut dyn Watcher,
) -> Result<(Recorded, i32), SessionError> {
    let mut timings = Timings::new();
    refuse_far(command.get_program())?;
    watcher.phase("running", None);
    let followed = follow(command, only, watcher)?;
    timings.end("running");
    let (parts, modules): (Vec<_>, Vec<_>) = followed.images.profiles().into_iter().unzip();
    let target = Target { program: followed.program, pid: None, processes: followed.counted, threads: 0 };
    let mut result = RunResult::new("record", target);
    if parts.is_empty() {
        let why = match followed.warnings.first() {
            Some(first) => format!("nothing was counted: {first}"),
            None => "nothing was counted: no program of that name was executed".into(),
        };
        return Err(SessionError::nothing_to_do(why));
    }
    result.modules = modules;
    result.warnings = followed.warnings;
    derivation::finish(&mut result, "counting versions", 0.0);
    timings.end("counts to profile");
    timings.finish(&mut result);
    Ok(((ProfileFile { modules: parts }, result), followed.status))
}

/// Reports the modules that ran.
fn describe(result: &mut RunResult, chosen: &[Chosen], counting: &[Counting], derived: &[Derived]) {
    for ((module, counting), derived) in chosen.iter().zip(counting).zip(derived) {
        if derived.executed.functions > 0 {
            let mut entry = module.analyzed.report(&module.path.display().to_string());
            entry.counting = Some(counting.summary(&module.analyzed.program, derived));
            result.modules.push(entry);
        }
    }
}

fn profile_file(chosen: &[Chosen], derived: &[Derived]) -> ProfileFile {
    let modules = chosen
        .iter()
        .zip(derived)
        .map(|(c, d)| {
            let build_id = c.analyzed.image.build_id().map(|b| b.as_bytes().to_vec()).unwrap_or_default();
            ModuleProfile::of(&c.analyzed.program, &d.profile, &build_id, &c.path.to_string_lossy())
        })
        .filter(|m| !m.blocks.is_empty())
        .collect();
    ProfileFile { modules }
}
