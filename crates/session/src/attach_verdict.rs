//! The verdict on the new layout, and what follows from it.

use crate::attach_job::Job;
use crate::attach_options::AttachOptions;
use restitch_apply_process::VersionKind;
use restitch_pipeline::{ExitCode, signal_name};
use restitch_processes::SessionError;
use restitch_processes::judgement::Window;
use restitch_processes::process_set::ProcessSet;
use restitch_processes::reclaim::KeptVersion;
use restitch_processes::verdict::Windows;
use restitch_report::{Helped, Outcome};
use restitch_tracee::AskedToEnd;
use std::time::Duration;

/// How the verdict is measured.
///
/// # Errors
/// If there is no way, although it decides whether the layout stays.
pub(crate) fn windows_for(options: &AttachOptions, set: &ProcessSet) -> Result<Windows, SessionError> {
    const LENGTH: Duration = Duration::from_millis(250);
    let windows = match options.measure.is_zero() {
        true => Windows::unasked(),
        false => Windows::new(options.metric.clone(), &set.pids(), LENGTH, options.measure),
    };
    match windows.why_nothing().filter(|_| options.revert_if_slower && !options.dry_run) {
        Some(why) => Err(SessionError::Unjudged { pid: options.pid, why }),
        None => Ok(windows),
    }
}

/// Whoever asks for --revert-if-slower wants to be safe.
const UNJUDGED: &str =
    "--revert-if-slower: whether the new layout is slower could not be judged, so it was taken back";

/// Measures the new layout and acts on it.
///
/// # Errors
/// If the process cannot be given its original code back, as was asked.
pub(crate) fn judge(job: &mut Job<'_>, before: &[Window]) -> Result<(), SessionError> {
    let ended = measure(job, before);
    let is_good = job.result.verdict.as_ref().is_some_and(|verdict| verdict.helped != Helped::No);
    if !is_good && job.options.revert_if_slower {
        job.set.switch(&[], VersionKind::Optimized, job.watcher)?;
        job.result.warnings.extend(job.set.reclaim().iter().map(KeptVersion::to_string));
        job.result.outcome = Outcome::Reverted;
        job.result.exit_code = ExitCode::TakenBack.number();
    }
    if let Some(signal) = ended {
        job.result.exit_code = ExitCode::of_signal(signal).number();
        job.result.warnings.push(match job.result.outcome {
            Outcome::Reverted => "the process has its original code again".into(),
            _ => format!(
                "the new layout is active and stays (`restitch revert {}` takes it out)",
                job.options.pid
            ),
        });
    }
    Ok(())
}

/// Puts the verdict, or why there is none, into the result; the signal that ended the measurement.
fn measure(job: &mut Job<'_>, before: &[Window]) -> Option<i32> {
    if job.windows.can_measure() {
        job.watcher.phase("measuring", Some(job.options.measure.as_secs_f64()));
        job.windows.measure(job.options.measure);
    }
    let after = job.windows.take();
    let ended = AskedToEnd::signal();
    let judged = match ended {
        Some(signal) => Err(format!("no verdict: ended by {} while it was measured", signal_name(signal))),
        None => job.windows.verdict(before, &after),
    };
    match judged {
        Ok(judgement) => {
            job.result.verdict = Some(judgement.verdict);
            job.result.verdict_beside = judgement.beside;
        }
        Err(why) => {
            job.result.warnings.push(why);
            if job.options.revert_if_slower {
                job.result.warnings.push(UNJUDGED.into());
            }
        }
    }
    ended
}
