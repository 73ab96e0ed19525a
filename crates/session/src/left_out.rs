//! Modules that were not changed though something else was, with the reasons.

use restitch_apply_process::ProcessError;
use restitch_pipeline::PipelineError;
use restitch_processes::SessionError;
use restitch_processes::modules::Chosen;
use restitch_report as report;
use std::path::{Path, PathBuf};

/// The modules that were left out.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    list: Vec<(PathBuf, u64, String)>,
}

impl LeftOut {
    /// Adds a module with so many samples.
    pub fn add(&mut self, path: &Path, samples: u64, why: String) {
        self.list.push((path.into(), samples, why));
    }

    /// Whether the module was left out.
    pub fn has(&self, path: &Path) -> bool {
        self.list.iter().any(|(left, ..)| left == path)
    }

    /// All of them, in brackets; nothing if there is none.
    pub fn reasons(&self) -> String {
        let one = |(path, _, why): &(PathBuf, u64, String)| format!("{}: {why}", path.display());
        let all: Vec<String> = self.list.iter().map(one).collect();
        if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
    }

    /// Takes those modules out of `chosen` whose version could not be `made`, and gives the others' versions,
    /// in order.
    ///
    /// # Errors
    /// The first module's error if nothing is left, and any error that is not one module's own.
    pub fn keep<T>(
        &mut self,
        chosen: &mut Vec<Chosen>,
        made: Vec<Result<T, SessionError>>,
    ) -> Result<Vec<T>, SessionError> {
        let (mut kept, mut versions, mut first) = (Vec::new(), Vec::new(), None);
        for (module, made) in chosen.drain(..).zip(made) {
            match made {
                Ok(version) => {
                    kept.push(module);
                    versions.push(version);
                }
                Err(error) if is_of_one_module(&error) => {
                    self.add(&module.path, module.samples, reason(&error));
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        *chosen = kept;
        match first {
            Some(error) if versions.is_empty() => Err(error),
            _ => Ok(versions),
        }
    }

    /// Writes them into a result.
    pub fn tell(&self, result: &mut report::RunResult) {
        for (path, samples, why) in &self.list {
            let path = path.display().to_string();
            // None are known where nothing was sampled.
            let share = if *samples > 0 { format!(" ({samples} of the samples)") } else { String::new() };
            result.warnings.push(format!("{path}{share}: {why}"));
            result.left_out.push(report::LeftOut { path, why: why.clone(), samples: *samples });
        }
    }
}

/// Whether an error says nothing of the other modules.
fn is_of_one_module(error: &SessionError) -> bool {
    matches!(
        error,
        SessionError::Pipeline(PipelineError::Emit { .. } | PipelineError::Check { .. })
            | SessionError::NothingMoves { .. }
            | SessionError::Process(ProcessError::NoRoom { .. })
    )
}

/// The error in words that follow the module's name.
fn reason(error: &SessionError) -> String {
    match error {
        SessionError::Pipeline(PipelineError::Check { why, .. }) => {
            format!(
                "the checker refused its new version, so it stays as it is ({why}); please report this with the file"
            )
        }
        SessionError::Pipeline(PipelineError::Emit { why, .. }) => {
            format!("no new version of it could be made, so it stays as it is: {why}")
        }
        SessionError::NothingMoves { .. } => "what runs in it is best left where it is".into(),
        other => format!("it stays as it is: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_told_where_there_are_some() {
        let target = report::Target { program: String::new(), pid: None, processes: 0, threads: 0 };
        let mut result = report::RunResult::new("attach", target);
        let mut left_out = LeftOut::default();
        left_out.add(Path::new("/lib/a"), 0, "it stays".into());
        left_out.add(Path::new("/lib/b"), 7, "it stays".into());
        left_out.tell(&mut result);
        assert_eq!(result.warnings, ["/lib/a: it stays", "/lib/b (7 of the samples): it stays"]);
    }
}
