//! Results: printed, as JSON and as HTML.

use restitch_report::{Outcome, RunResult, Target};
use restitch_session::{
    AskedToEnd, ExitCode, PipelineError, SessionError, check_writable, or_interrupted, signal_name,
    write_result,
};
use std::path::Path;

/// Results that could not be written afterwards would be lost: that is found out first.
pub(crate) fn check_outputs(paths: &[Option<&Path>]) -> Result<(), PipelineError> {
    paths.iter().flatten().filter(|p| p.as_os_str() != "-").try_for_each(|p| check_writable(p))
}

/// Where a result goes beside the screen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outputs<'a> {
    /// As JSON; "-" for standard output.
    pub json: Option<&'a Path>,
    /// As an HTML page.
    pub html: Option<&'a Path>,
    /// The file that the command is there to write, which is written by then.
    pub written: Option<&'a Path>,
}

impl Outputs<'_> {
    /// Finds out whether the files can be written.
    pub fn check(&self) -> Result<(), PipelineError> {
        check_outputs(&[self.json, self.html])
    }

    /// Writes the result where it was asked for, and says what could not be written; whether all was.
    /// Standard output is the command's own unless JSON is to go there.
    pub fn publish_beside(&self, result: &RunResult) -> bool {
        if self.is_printed()
            && let Ok(json) = as_json(result)
        {
            print_json!(&json);
        }
        self.say_unwritten(&self.write_files(result), &self.done(result))
    }

    /// Prints the result for people, or as JSON, and writes it to files where asked for. The exit code: what
    /// was to be done is done, so what could not be written makes a success only a failure (or the end that
    /// was asked for meanwhile), and a message says what holds.
    pub fn publish(&self, result: &RunResult) -> i32 {
        let unwritten = self.write_files(result);
        self.print(result);
        match self.say_unwritten(&unwritten, &self.done(result)) {
            false if result.exit_code == ExitCode::Done.number() => {
                AskedToEnd::signal().map_or(ExitCode::Failure, ExitCode::of_signal).number()
            }
            _ => result.exit_code,
        }
    }

    /// The same in the middle of a session that goes on. That something cannot be written is said `once`.
    pub fn publish_between(&self, result: &RunResult, once: &mut bool) {
        let unwritten = self.write_files(result);
        self.print(result);
        if !std::mem::replace(once, *once || !unwritten.is_empty()) {
            self.say_unwritten(&unwritten, "the session goes on, and tries it again after each round");
        }
    }

    fn is_printed(&self) -> bool {
        self.json.is_some_and(|path| path.as_os_str() == "-")
    }

    fn print(&self, result: &RunResult) {
        match as_json(result) {
            Ok(json) if self.is_printed() => print_json!(&json),
            _ => print!("{}", result.to_text()),
        }
    }

    /// Writes the files; what could not be written.
    fn write_files(&self, result: &RunResult) -> Vec<SessionError> {
        let write = |path: &Path, text: String| Ok(write_result(path, text.as_bytes(), 0o644)?);
        let json = self.json.filter(|_| !self.is_printed());
        let json = json.map(|path| as_json(result).and_then(|json| write(path, json)));
        let html = self.html.map(|path| write(path, result.to_html()));
        [json, html].into_iter().flatten().filter_map(Result::err).collect()
    }

    /// Whether nothing is unwritten; else it is said, with what is `done` all the same.
    fn say_unwritten(&self, unwritten: &[SessionError], done: &str) -> bool {
        unwritten.iter().for_each(|error| eprintln!("restitch: {error}; {done}"));
        unwritten.is_empty()
    }

    /// What is done all the same, and how it is undone.
    fn done(&self, result: &RunResult) -> String {
        let is_tree = result.target.processes > 1;
        let (all, tree) = if is_tree { (" and its relatives", " --tree") } else { ("", "") };
        match (result.outcome, result.target.pid, self.written) {
            (Outcome::InForce, Some(pid), _) => format!(
                "the new layout of process {pid}{all} is active all the same; `restitch revert {pid}{tree}` takes it out"
            ),
            (Outcome::Written, _, Some(path)) => format!("{} is written all the same", path.display()),
            (Outcome::Reverted, Some(pid), _) => format!("process {pid}{all} has its original code again"),
            (Outcome::Planned | Outcome::NothingToDo, ..) => "nothing was changed".into(),
            _ => "all else that was asked for is done".into(),
        }
    }
}

/// The exit code of a recording, which is that of the command if one was recorded. One that this program was
/// asked to end is as good as it goes, and says so.
pub(crate) fn ended_early(result: &mut RunResult, status: Option<i32>) -> i32 {
    let Some(signal) = AskedToEnd::signal().filter(|_| status.is_none()) else {
        return status.unwrap_or(ExitCode::Done.number());
    };
    let told =
        format!("ended by {}: what had been recorded until then is in the profile", signal_name(signal));
    eprintln!("restitch: {told}");
    result.warnings.push(told);
    result.exit_code = ExitCode::of_signal(signal).number();
    result.exit_code
}

/// What has come of a recording, which says, if it was ended before there was a profile, that there is none.
pub(crate) fn or_no_profile<T>(done: Result<T, SessionError>, output: &Path) -> Result<T, SessionError> {
    or_interrupted(done).map_err(|error| match error {
        SessionError::Interrupted { signal, then } => {
            let then = if then.is_empty() { "record again, for longer".into() } else { then };
            let then = format!("no profile was written to {}; {then}", output.display());
            SessionError::Interrupted { signal, then }
        }
        other => other,
    })
}

/// Runs `work` on `target` and, if it fails, writes that to the JSON file that was asked for: whoever reads
/// it in the end is to find more than nothing.
pub(crate) fn or_say_why(
    command: &str,
    target: Target,
    json: Option<&Path>,
    work: impl FnOnce() -> Result<RunResult, SessionError>,
) -> Result<RunResult, SessionError> {
    let result = or_interrupted(work());
    if let (Err(error), Some(path)) = (&result, json) {
        let mut failed = RunResult::new(command, target);
        let code = error.exit_code();
        if code == ExitCode::NothingToDo {
            failed.outcome = Outcome::NothingToDo;
        }
        failed.exit_code = code.number();
        failed.warnings.push(error.to_string());
        // The failure itself is what the user has to hear of.
        let _ = as_json(&failed).and_then(|text| match path.as_os_str() == "-" {
            true => {
                print_json!(&text);
                Ok(())
            }
            false => Ok(write_result(path, text.as_bytes(), 0o644)?),
        });
    }
    result
}

/// The target of a failure: a process, or a file.
pub(crate) fn failed_target(program: impl Into<String>, pid: Option<i32>) -> Target {
    Target { program: program.into(), pid: pid.and_then(|p| u32::try_from(p).ok()), processes: 0, threads: 0 }
}

fn as_json(result: &RunResult) -> Result<String, SessionError> {
    result.to_json().map_err(|e| SessionError::Command { command: "json".into(), why: e.into() })
}
