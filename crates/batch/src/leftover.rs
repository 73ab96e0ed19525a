//! What is left to do when the command ends: it is done now, by a process in the background, or by whoever
//! calls `restitch cache optimize`.

use crate::build::Build;
use crate::cache::{Cache, Entry};
use crate::usage::Past;
use crate::{RESUME, is_old, job, known, usage, work, worker};
use restitch_layout::LayoutChoice;
use restitch_pipeline::PipelineError;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// So many times a process in the background tries to get hold of a module, once a second.
const ATTEMPTS: usize = 20;

/// Starts a process that goes on with what is not laid out yet, and outlives this one; whether there is one.
pub(crate) fn go_on(cache: &Cache, layout: LayoutChoice) -> bool {
    let Ok(own) = std::env::current_exe() else { return false };
    let complete = || cache.countings().iter().any(|c| c.complete);
    let wanted = || usage::read(cache).values().any(|past| past.wanted);
    if cache.pending().is_empty() && !complete() && !wanted() {
        return false;
    }
    let mut command = Command::new(own);
    command
        .args(["cache", "optimize", "--background", "--layout", &layout.to_string(), "--cache"])
        .arg(cache.base());
    // A group of its own: what a terminal sends to the command's is not for it.
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Nor are locks and pipes of whoever started this.
    restitch_tracee::close_on_exec(&mut command);
    command.spawn().is_ok()
}

/// What came of a module that a command was too short for.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is optimized.
    Optimized(Box<Entry>),
    /// Its next runs count.
    Counting,
}

/// Lays out what was only profiled or counted, and makes the overlays that count of what is worth it; in the
/// `background`, at the lowest priority. What came of each module.
pub fn optimize_pending(
    cache: &Cache,
    layout: LayoutChoice,
    background: bool,
) -> Vec<(PathBuf, Result<Outcome, PipelineError>)> {
    if background {
        restitch_tracee::be_lowest();
    }
    let mut outcomes = Vec::new();
    let optimized = |entry| Outcome::Optimized(Box::new(entry));
    for entry in cache.pending() {
        let (path, start) = (entry.path.clone(), worker::cpu_seconds());
        let cost = || worker::cpu_seconds() - start;
        outcomes.push((path, work::optimize_stored(cache, entry, layout, cost).map(optimized)));
    }
    for state in cache.countings().into_iter().filter(|c| c.complete) {
        let (path, start) = (state.path.clone(), worker::cpu_seconds());
        let (original, spent) = (state.original, state.spent);
        let cost = || spent + worker::cpu_seconds() - start;
        if let Some(job) = job::Job::resume(cache, &state.build_id) {
            outcomes.push((path, job.complete(cache, original, layout, cost).map(optimized)));
        }
    }
    for (path, past) in usage::read(cache).into_iter().filter(|(_, past)| past.wanted) {
        let begun = begin_wanted(cache, &path, &past, background);
        outcomes.push((path, begun.map(|()| Outcome::Counting)));
    }
    outcomes
}

/// Makes the overlay that counts runs of a module, for the next session.
fn begin_wanted(cache: &Cache, path: &Path, past: &Past, background: bool) -> Result<(), PipelineError> {
    // The session that wants it may still be ending.
    let mut begun = begin_once(cache, path, past);
    for _ in 0..if background { ATTEMPTS } else { 0 } {
        if !begun.as_ref().is_err_and(work::is_busy) {
            break;
        }
        std::thread::sleep(RESUME);
        begun = begin_once(cache, path, past);
    }
    // Whatever came of it: when it goes on being used it will be considered again.
    let seen: u64 = past.places().values().sum();
    usage::settle(cache, path, work::shows_nothing(&begun).then_some(seen));
    begun
}

fn begin_once(cache: &Cache, path: &Path, past: &Past) -> Result<(), PipelineError> {
    let start = worker::cpu_seconds();
    let image = known::read_module(cache, path)?;
    let build = Build::of(&image);
    cache.make_way(path, &build)?;
    let id = build.id;
    if cache.is_suspended(&id) || cache.entry(&id).is_some_and(|e| !is_old(&e)) {
        return Err(PipelineError::NothingToDo("another session has begun with it".into()));
    }
    let job = job::Job::begin(cache, path, image, &past.places(), past.runs)?;
    job.suspend(cache, past.totals.original(), worker::cpu_seconds() - start)
}
