//! Work that does not come to its end: asked to end, failed, or panicked. Nothing of it is left in force.
//!
//! A session that is asked to end gives up by an error like any other (`interrupt.rs`). Whatever the error,
//! and whatever panics, [`or_given_back`] gives the processes their original code back, unless what they have
//! is finished: a layout in force that only was to be judged. Giving back looks at no request: it is short,
//! and what waits for it is told so ([`AskedToEnd::answer`]).

use crate::error::SessionError;
use crate::process_set::ProcessSet;
use restitch_apply_process::{AttachedProcess, VersionKind};
use restitch_pipeline::Watcher;
use restitch_tracee::AskedToEnd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does `work` on the processes of `set`. If it fails or panics, they get their original code back where they
/// are not in a finished layout.
///
/// # Errors
/// Those of `work`, with what has become of the processes where it was asked to end;
/// [`SessionError::Panicked`] in place of a panic; [`SessionError::NotGivenBack`] if a process could not be
/// changed back.
pub fn or_given_back<T>(
    set: &mut ProcessSet,
    watcher: &mut dyn Watcher,
    work: impl FnOnce(&mut ProcessSet, &mut dyn Watcher) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    let error = match catch_unwind(AssertUnwindSafe(|| work(set, watcher))) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error,
        Err(panic) => {
            // What is in memory may be half changed; what is on disk is whole.
            set.all_mut().for_each(AttachedProcess::distrust);
            SessionError::Panicked { why: words(&*panic), then: String::new() }
        }
    };
    let pid = set.leader.target().pid();
    let is_left = set.all().any(is_unfinished);
    let then = match is_left {
        true => {
            AskedToEnd::answer(&format!(
                "restitch: it is ending already: process {pid} is being given its original code back"
            ));
            watcher.phase("giving back", None);
            // In another program that it executes by now there is nothing.
            if let Err(failure) = set.take_back(watcher)
                && !set.leader.target().has_executed()
            {
                return Err(SessionError::NotGivenBack {
                    pid,
                    error: Box::new(error),
                    failure: Box::new(failure),
                });
            }
            set.reclaim_patiently().iter().for_each(|kept| watcher.note(&kept.to_string()));
            format!("process {pid} has its original code again")
        }
        false if set.leader.journal().is_empty() => format!("process {pid} has its original code"),
        false => format!("the layout that is active in process {pid} stays"),
    };
    Err(error.followed_by(then))
}

/// Whether a process is in something that is of no use when nobody goes on with it.
fn is_unfinished(live: &AttachedProcess) -> bool {
    let passes = |kind| matches!(kind, VersionKind::Counting | VersionKind::Burst);
    live.journal().versions.iter().any(|v| passes(v.kind) && !v.retired)
}

/// What a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_owned()
}

impl SessionError {
    /// The same error, which also says what has become of the process, where that is not plain.
    fn followed_by(self, then: String) -> Self {
        match self {
            Self::Interrupted { signal, .. } => Self::Interrupted { signal, then },
            Self::Panicked { why, .. } => Self::Panicked { why, then },
            other => other,
        }
    }
}
