//! Processes that are not touched: those with code of a run time that would not know the copies
//! (`run_time_refusal.rs`), and those whose shadow stack tracing versions do not keep.

use crate::error::SessionError;
use restitch_apply_process::{Module, Target};
use restitch_image::Image;
use restitch_pipeline::PipelineError;
use restitch_pipeline::run_time_refusal::run_time;
use restitch_procfs as procfs;

/// Refuses a process that is to get versions.
///
/// # Errors
/// [`SessionError::Refused`] if nothing in it may have one.
pub fn refuse(target: &Target) -> Result<(), SessionError> {
    refuse_if(target, |image| image.run_time().is_some_and(|found| !found.leaves_other_modules()))
}

/// Refuses a process that is to get tracing versions, which are of no use beside a run time that they leave
/// out.
///
/// # Errors
/// [`SessionError::Refused`] if there is such code in it.
pub fn refuse_all(target: &Target) -> Result<(), SessionError> {
    refuse_if(target, |image| image.run_time().is_some())
}

fn refuse_if(target: &Target, refused: impl Fn(&Image) -> bool) -> Result<(), SessionError> {
    let Some(module) = target.modules.iter().find(|m| refused(&m.image)) else { return Ok(()) };
    let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let why = run_time(&module.image).unwrap_or_default();
    Err(SessionError::Refused { pid: target.pid(), why: format!("{name} {why}") })
}

/// Why a module of a process is left alone, in words that stand for themselves.
pub fn left_alone(module: &Module) -> Option<String> {
    run_time(&module.image).map(|why| format!("it {why}"))
}

/// An error that says that there was nothing to do in a process: with the modules of it that are left alone,
/// which may be what ran all the time.
pub fn with_what_is_left(error: SessionError, target: &Target) -> SessionError {
    if !matches!(
        error,
        SessionError::Pipeline(PipelineError::NothingToDo(_)) | SessionError::NothingMoves { .. }
    ) {
        return error;
    }
    let said = error.to_string();
    let left = target.modules.iter().find_map(|m| Some((m, run_time(&m.image)?)));
    match left.filter(|(_, why)| !said.contains(why)) {
        Some((module, why)) => SessionError::nothing_to_do(format!(
            "{said}; what runs in {} is left in place whatever it does: it {why}",
            module.path.display()
        )),
        None => error,
    }
}

/// Returns that match no call end a process whose shadow stack is on.
pub fn refuse_shadow_stack(pid: i32) -> Result<(), SessionError> {
    let status = std::fs::read_to_string(procfs::shared_path(pid, "status")).unwrap_or_default();
    let features = status.lines().find(|line| line.starts_with("x86_Thread_features:"));
    if features.is_some_and(|line| line.contains("shstk")) {
        let why = "it has a shadow stack, which tracing versions do not keep; use --source trace".into();
        return Err(SessionError::Refused { pid, why });
    }
    Ok(())
}
