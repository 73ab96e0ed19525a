//! Results: printed, as JSON and as HTML.

use restitch_report::{Outcome, RunResult, Target};
use restitch_session::{
    AskedToEnd, ExitCode, PipelineError, SessionError, check_writable, signal_name, write_result,
};
use std::path::Path;

/// Results that could not be written afterwards would be lost: that is found out first.
pub(crate) fn check_outputs(paths: &[Option<&Path>]) -> Result<(), PipelineError> {
    paths.iter().flatten().filter(|p| p.as_os_str() != "-").try_for_each(|p| check_writable(p))
}

/// Writes the result where it was asked for. Standard output is the command's own unless JSON is to go there.
pub(crate) fn publish_beside(
    result: &RunResult,
    json: Option<&Path>,
    html: Option<&Path>,
) -> Result<(), SessionError> {
    if json.is_some_and(|path| path.as_os_str() == "-") {
        print_json!(&as_json(result)?);
    }
    publish_files(result, json, html)
}

/// Prints the result for people, and as JSON and HTML where asked for.
pub(crate) fn publish(
    result: &RunResult,
    json: Option<&Path>,
    html: Option<&Path>,
) -> Result<i32, SessionError> {
    publish_files(result, json, html)?;
    match json {
        Some(path) if path.as_os_str() == "-" => print_json!(&as_json(result)?),
        _ => print!("{}", result.to_text()),
    }
    Ok(result.exit_code)
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

/// Runs `work` on `target` and, if it fails, writes that to the JSON file that was asked for: whoever reads
/// it in the end is to find more than nothing.
pub(crate) fn or_say_why(
    command: &str,
    target: Target,
    json: Option<&Path>,
    work: impl FnOnce() -> Result<RunResult, SessionError>,
) -> Result<RunResult, SessionError> {
    let result = work();
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

/// Writes the result to the files that were asked for.
fn publish_files(result: &RunResult, json: Option<&Path>, html: Option<&Path>) -> Result<(), SessionError> {
    if let Some(path) = json.filter(|path| path.as_os_str() != "-") {
        write_result(path, as_json(result)?.as_bytes(), 0o644)?;
    }
    if let Some(path) = html {
        write_result(path, result.to_html().as_bytes(), 0o644)?;
    }
    Ok(())
}
