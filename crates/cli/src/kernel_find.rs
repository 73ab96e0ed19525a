//! `restitch kernel find`: samples of the running kernel's code, for a time or while a command runs.

use crate::child::{child, exit_status};
use crate::process_number::process_number;
use crate::progress::Progress;
use crate::seconds::some_seconds;
use crate::sources::percent;
use clap::Args;
use restitch_kernel::TimeReport;
use restitch_session::{
    AskedToEnd, ExitCode, KernelSampling, NotStarted, OwnChild, SessionError, Watcher, begin_start,
};
use std::ffi::OsString;
use std::time::Duration;

/// Between two looks whether a command has ended.
const LOOK: Duration = Duration::from_millis(100);

/// What is sampled, and for how long.
#[derive(Debug, Args)]
pub struct FindOptions {
    /// Only what the kernel does for this process and those that it starts.
    #[arg(long, value_name = "PID", value_parser = process_number, conflicts_with = "command")]
    pub pid: Option<i32>,
    /// Sample for so many seconds.
    #[arg(long = "for", value_name = "SECONDS", value_parser = some_seconds, default_value_t = 10.0,
          conflicts_with = "command")]
    pub time: f64,
    /// Show functions below which at least this share of the time is spent.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent)]
    pub share: f64,
    /// Sample while this program runs, with its arguments, what the kernel does for everybody.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What was found.
pub(crate) struct Found {
    /// Where the time goes.
    pub(crate) report: TimeReport,
    /// The exit code: that of the command, if there was one.
    pub(crate) status: i32,
}

/// Samples, and says where the time goes.
pub(crate) fn find(options: &FindOptions) -> Result<Found, SessionError> {
    let mut progress = Progress::new();
    let mut sampling = KernelSampling::begin(options.pid)?;
    let status = match options.command.is_empty() {
        true => {
            progress.phase("sampling", Some(options.time));
            sample_for(&mut sampling, Duration::from_secs_f64(options.time));
            ExitCode::Done.number()
        }
        false => sample_while(&mut sampling, &options.command)?,
    };
    let samples = sampling.finish()?;
    progress.phase("analysing", None);
    let report = samples.report(options.share)?;
    progress.finish();
    Ok(Found { report, status })
}

/// Samples for a time, or until what is sampled ends or this program is asked to end.
fn sample_for(sampling: &mut KernelSampling, time: Duration) {
    while sampling.elapsed() < time && !sampling.is_over() {
        sampling.step(time.saturating_sub(sampling.elapsed()));
    }
}

/// Samples while a command runs; its exit code.
fn sample_while(sampling: &mut KernelSampling, command: &[OsString]) -> Result<i32, SessionError> {
    let mut starting = child(command);
    begin_start()?;
    let started = OwnChild::spawn(&mut starting);
    let mut started = started.map_err(|error| NotStarted::new(starting.get_program(), error))?;
    AskedToEnd::stand_for(started.pid());
    let name = starting.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| SessionError::Command { command: name.clone(), why: error.into() };
    while !started.has_ended().map_err(failed)? {
        sampling.step(LOOK);
    }
    Ok(exit_status(started.wait().map_err(failed)?))
}
