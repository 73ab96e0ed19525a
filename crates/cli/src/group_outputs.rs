//! Where the report of a group of kernel functions goes beside the screen.

use crate::outputs::check_outputs;
use clap::Args;
use restitch_report::GroupReport;
use restitch_session::{PipelineError, SessionError, write_result};
use std::path::{Path, PathBuf};

/// Files that are asked for.
#[derive(Debug, Args)]
pub struct GroupOutputs {
    /// Write what is in the group as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write it as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl GroupOutputs {
    /// Finds out whether the files can be written.
    pub(crate) fn check(&self) -> Result<(), PipelineError> {
        check_outputs(&[self.json.as_deref(), self.html.as_deref()])
    }

    /// Whether standard output has the JSON, in place of words.
    pub(crate) fn is_printed(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Writes the files, and the JSON to standard output if that is asked for.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(crate) fn write(&self, report: &GroupReport) -> Result<(), SessionError> {
        if let Some(path) = &self.json {
            let json = report.to_json();
            let json = json.map_err(|e| SessionError::Command { command: "json".into(), why: e.into() })?;
            match self.is_printed() {
                true => print_json!(&json),
                false => write_result(path, json.as_bytes(), 0o600)?,
            }
        }
        // Both tell where the kernel is.
        let html = self.html.as_ref().map(|path| write_result(path, report.to_html().as_bytes(), 0o600));
        Ok(html.transpose().map(|_| ())?)
    }
}
