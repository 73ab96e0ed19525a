//! Programs that are not touched, because their run time looks return addresses or program counters up in tables of its own.
//!
//! State equivalence says that a version differs from the original in program counters and return addresses alone. A run
//! time that walks stacks with its own tables (to collect garbage, to grow stacks) would find addresses that are in
//! none of them. libgcc's tables are extended by the unwinder's hook; these cannot be.
//!
//! Which files are of such a kind says [`Image::run_time`]; the analysis leaves all of their code in place, whoever asks for it. Here is what the user is told, before
//! anything is done.

use crate::SessionError;
use restitch_apply_process::{Module, Target};
use restitch_image::Image;
use restitch_procfs as procfs;
use std::path::Path;

/// What there is for such programs instead.
const INSTEAD: &str = "`record --source trace` and `--source ip` profile it as it is; what makes it faster is its own compiler's to do";

/// Refuses a process that is to get versions.
///
/// # Errors
/// [`SessionError::Refused`] if nothing in it may have one.
pub(crate) fn refuse(target: &Target) -> Result<(), SessionError> {
    refuse_if(target, |image| image.run_time().is_some_and(|found| !found.leaves_other_modules()))
}

/// Refuses a process that is to get tracing versions, which are of no use beside a run time that they leave out.
///
/// # Errors
/// [`SessionError::Refused`] if there is such code in it.
pub(crate) fn refuse_all(target: &Target) -> Result<(), SessionError> {
    refuse_if(target, |image| image.run_time().is_some())
}

fn refuse_if(target: &Target, refused: impl Fn(&Image) -> bool) -> Result<(), SessionError> {
    let Some(module) = target.modules.iter().find(|m| refused(&m.image)) else { return Ok(()) };
    let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let why = run_time(&module.image).unwrap_or_default();
    Err(SessionError::Refused { pid: target.pid(), why: format!("{name} {why}") })
}

/// Refuses a file of which a changed copy is to be written.
///
/// # Errors
/// [`SessionError::RefusedFile`] if its run time would not know the copies.
pub(crate) fn refuse_file(path: &Path, image: &Image) -> Result<(), SessionError> {
    match run_time(image) {
        Some(why) => Err(SessionError::RefusedFile {
            path: path.into(),
            why: format!("it {why}; no copy of it was made"),
        }),
        None => Ok(()),
    }
}

/// Why a module of a process is left alone, in words that stand for themselves.
pub(crate) fn left_alone(module: &Module) -> Option<String> {
    run_time(&module.image).map(|why| format!("it {why}"))
}

/// An error that says that there was nothing to do in a process: with the modules of it that are left alone, which may be what ran all the time.
pub(crate) fn with_what_is_left(error: SessionError, target: &Target) -> SessionError {
    if !matches!(error, SessionError::NothingToDo(_) | SessionError::NothingMoves { .. }) {
        return error;
    }
    let said = error.to_string();
    let left = target.modules.iter().find_map(|m| Some((m, run_time(&m.image)?)));
    match left.filter(|(_, why)| !said.contains(why)) {
        Some((module, why)) => SessionError::NothingToDo(format!(
            "{said}; what runs in {} is left in place whatever it does: it {why}",
            module.path.display()
        )),
        None => error,
    }
}

/// Why an image is not touched, in words that follow its name, and what else there is.
pub(crate) fn run_time(image: &Image) -> Option<String> {
    image.run_time().map(|found| format!("{}; {INSTEAD}", found.why()))
}

/// Returns that match no call end a process whose shadow stack is on.
pub(crate) fn refuse_shadow_stack(pid: i32) -> Result<(), SessionError> {
    let status = std::fs::read_to_string(procfs::shared_path(pid, "status")).unwrap_or_default();
    let features = status.lines().find(|line| line.starts_with("x86_Thread_features:"));
    if features.is_some_and(|line| line.contains("shstk")) {
        let why = "it has a shadow stack, which tracing versions do not keep; use --source trace".into();
        return Err(SessionError::Refused { pid, why });
    }
    Ok(())
}
