//! Results: printed, as JSON and as HTML.

use restitch_report::RunResult;
use restitch_session::{SessionError, check_writable, write_result};
use std::path::Path;

/// Results that could not be written afterwards would be lost: that is found out first.
pub(crate) fn check_outputs(paths: &[Option<&Path>]) -> Result<(), SessionError> {
    paths.iter().flatten().filter(|p| p.as_os_str() != "-").try_for_each(|p| check_writable(p))
}

/// Writes the result where it was asked for. Standard output is the command's own unless JSON is to go there.
pub(crate) fn publish_beside(
    result: &RunResult,
    json: Option<&Path>,
    html: Option<&Path>,
) -> Result<(), SessionError> {
    if json.is_some_and(|path| path.as_os_str() == "-") {
        print!("{}", as_json(result)?);
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
        Some(path) if path.as_os_str() == "-" => print!("{}", as_json(result)?),
        _ => print!("{}", result.to_text()),
    }
    Ok(result.exit_code)
}

fn as_json(result: &RunResult) -> Result<String, SessionError> {
    result.to_json().map_err(|e| SessionError::Command { command: "json".into(), why: e.to_string() })
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
