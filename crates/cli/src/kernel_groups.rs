//! `restitch kernel position`, `run`, `count` and `revert`: groups of copies, as files, into the kernel
//! and out of it.

use crate::child::{child, exit_status};
use crate::group_outputs::GroupOutputs;
use crate::progress::Progress;
use restitch_kernel::Source;
use restitch_kernel_control::{Control, ControlError, unload};
use restitch_kernel_position::Positioned;
use restitch_report::{GroupReport, paragraph};
use restitch_session::{
    AskedToEnd, ExitCode, FoundGroupWanted, GroupInForce, GroupWanted, KernelCounts, NotStarted, OwnChild,
    SessionError, begin_start, find_group, make_group, put_in_force, take_counts, write_result,
};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long tasks may stand in copies that no calls lead to any more. The control module looks each second.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most functions that are told by name.
const MOST: usize = 20;

/// Writes the module of a group to a file; the exit code.
pub(crate) fn write_group(
    source: &Source,
    wanted: &GroupWanted,
    outputs: &GroupOutputs,
    file: &Path,
) -> Result<i32, SessionError> {
    let mut progress = Progress::new();
    let positioned = make_group(source, wanted, &mut progress)?;
    progress.finish();
    // It tells where the kernel is.
    write_result(file, positioned.module.file(), 0o600)?;
    let report = positioned.report(0);
    if !outputs.is_printed() {
        print!("{}{}", words(&positioned, &report), paragraph("", "Nothing was loaded."));
    }
    outputs.write(&report)?;
    Ok(ExitCode::Done.number())
}

/// Puts a group in force for a time, or until this program is asked to end; the exit code.
pub(crate) fn hold(
    wanted: &GroupWanted,
    outputs: &GroupOutputs,
    time: Option<Duration>,
) -> Result<i32, SessionError> {
    hold_group(in_force(wanted)?, &[], outputs, time)
}

/// Counts which functions belong to some roots, and puts a group of those in force that are hot; the exit
/// code.
pub(crate) fn find_and_hold(
    wanted: &FoundGroupWanted,
    outputs: &GroupOutputs,
    time: Option<Duration>,
) -> Result<i32, SessionError> {
    let mut progress = Progress::new();
    let found = find_group(wanted, &mut progress)?;
    progress.finish();
    match found.group {
        Some(group) => hold_group(group, &found.notes, outputs, time),
        None => {
            found.notes.iter().for_each(|note| eprint!("{}", paragraph("found       ", note)));
            let words = "that is no bottleneck: nothing was put in force (--anyway does it all the same, \
                         --bottleneck says how little is none)";
            eprint!("{}", paragraph("restitch: ", words));
            Ok(ExitCode::NothingToDo.number())
        }
    }
}

/// Holds a group that is in force; the exit code.
fn hold_group(
    group: GroupInForce,
    notes: &[String],
    outputs: &GroupOutputs,
    time: Option<Duration>,
) -> Result<i32, SessionError> {
    let end = match time {
        Some(time) => format!("for {} s", time.as_secs_f64()),
        None => "until this ends: Ctrl-C, SIGTERM, SIGHUP".into(),
    };
    let mut report = group.report();
    report.notes.extend_from_slice(notes);
    if !outputs.is_printed() {
        notes.iter().for_each(|note| print!("{}", paragraph("found           ", note)));
        print!("{}", told(&group, &report, &end));
    }
    let is_written = write_outputs(outputs, &report);
    let name = group.status.name.clone();
    let held = group.hold(time);
    match group.take_out() {
        Ok(()) if outputs.is_printed() => held?,
        Ok(()) => held.map(|()| print!("{}", is_out(&name)))?,
        // Calls are led back, as was asked for; the message says what to do when the tasks have gone on.
        Err(error @ ControlError::StillUsed { .. }) => {
            held?;
            eprintln!("restitch: {error}");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(if is_written { ExitCode::Done } else { ExitCode::Failure }.number())
}

/// Counts by a group for a time, or until this program is asked to end.
pub(crate) fn count(wanted: &GroupWanted, time: Duration) -> Result<KernelCounts, SessionError> {
    let group = in_force(wanted)?;
    let begun = Instant::now();
    group.hold(Some(time))?;
    take_counts(group, begun.elapsed())
}

/// Puts a group in force while a command runs; the command's exit code.
pub(crate) fn run_in_force(
    wanted: &GroupWanted,
    outputs: &GroupOutputs,
    command: &[OsString],
) -> Result<i32, SessionError> {
    let group = in_force(wanted)?;
    let report = group.report();
    // Standard output is the command's.
    eprint!("{}", told(&group, &report, "while the command runs"));
    write_outputs(outputs, &report);
    let name = group.status.name.clone();
    let status = run_to_end(command);
    match group.take_out() {
        Ok(()) => eprint!("{}", is_out(&name)),
        // That of the command says more than an exit code of this.
        Err(error) => eprintln!("restitch: {error}"),
    }
    status
}

fn in_force(wanted: &GroupWanted) -> Result<GroupInForce, SessionError> {
    let mut progress = Progress::new();
    let group = put_in_force(wanted, &mut progress)?;
    progress.finish();
    Ok(group)
}

/// Writes files while the group is in force; whether all could be written.
fn write_outputs(outputs: &GroupOutputs, report: &GroupReport) -> bool {
    let written = outputs.write(report);
    if let Err(error) = &written {
        eprintln!("restitch: {error}; the group is in force all the same");
    }
    written.is_ok()
}

fn words(positioned: &Positioned, report: &GroupReport) -> String {
    format!("{}{}\n\n", positioned.to_text(), report.picture(MOST).trim_end())
}

fn told(group: &GroupInForce, report: &GroupReport, end: &str) -> String {
    let means = &group.status.means;
    let led = format!("calls are led to the copies (by {means}) {end}");
    words(&group.positioned, report) + &paragraph("in force        ", &led)
}

fn run_to_end(command: &[OsString]) -> Result<i32, SessionError> {
    let mut starting = child(command);
    begin_start()?;
    let started = OwnChild::spawn(&mut starting);
    let mut started = started.map_err(|error| NotStarted::new(starting.get_program(), error))?;
    AskedToEnd::stand_for(started.pid());
    let status = started.wait().map_err(|error| SessionError::Command {
        command: starting.get_program().to_string_lossy().into_owned(),
        why: error.into(),
    })?;
    Ok(exit_status(status))
}

/// Leads calls back to the original code, waits until nobody is in the copies, and unloads them; what to say.
pub(crate) fn revert(name: &str) -> Result<String, SessionError> {
    Control::default().disable(name)?;
    match unload(name, PATIENCE) {
        // Who held it has seen that, and was faster.
        Ok(()) | Err(ControlError::NoGroup { .. }) => Ok(is_out(name)),
        Err(error) => Err(error.into()),
    }
}

fn is_out(name: &str) -> String {
    paragraph("", &format!("group {name} is out of the kernel: its calls go to the original code"))
}
