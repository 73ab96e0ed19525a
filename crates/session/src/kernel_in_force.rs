//! A group of the running kernel, in force for a while: read, copied, proved, loaded, compared, enabled; and
//! taken out again, whatever ends it. When this process is killed, the kernel leads calls back, and the
//! module is left, with no calls led to it: the next group of that name takes it out, and so does
//! `restitch kernel revert`.

use crate::kernel_group::{Chosen, GroupWanted};
use restitch_kernel::{Source, Symbols, counter_values};
use restitch_kernel_control::{Control, ControlError, GroupStatus, Loaded};
use restitch_kernel_position::{FunctionCounts, Positioned, Request};
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_report::GroupReport;
use restitch_tracee::AskedToEnd;
use std::time::{Duration, Instant};

/// A group is made so often if the kernel's code changes meanwhile: keys of events go on or off now and then.
const TRIES: usize = 3;
/// How long tasks may stand in copies that no calls lead to any more. The control module looks each second.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether it is in force still.
const LOOK: Duration = Duration::from_secs(1);

/// A group that calls are led to.
#[derive(Debug)]
pub struct GroupInForce {
    /// What is in it.
    pub positioned: Positioned,
    /// What the control module says of it.
    pub status: GroupStatus,
    loaded: Loaded,
}

/// Makes a group of functions of the running kernel and leads their calls to it.
///
/// # Errors
/// If there is no control module, the functions cannot be copied, the kernel refuses the module or one of the
/// functions, or this program was asked to end. Nothing is in the kernel then.
pub fn put_in_force(wanted: &GroupWanted, watcher: &mut dyn Watcher) -> Result<GroupInForce, SessionError> {
    let control = Control::default();
    // Before the kernel is read, which takes seconds. If the function has another name, it is told later.
    control.has_left(&Request::name_for(wanted.functions.first().map_or("", String::as_str)))?;
    let source = Source::running();
    let mut functions = Vec::new();
    for _ in 0..TRIES {
        heed()?;
        match attempt(&control, &source, wanted, watcher)? {
            Attempt::InForce(group) => return Ok(*group),
            Attempt::Changed(changed) => functions = changed,
        }
    }
    Err(SessionError::Restless { functions })
}

enum Attempt {
    InForce(Box<GroupInForce>),
    /// The originals of these functions are others by now.
    Changed(Vec<String>),
}

fn attempt(
    control: &Control,
    source: &Source,
    wanted: &GroupWanted,
    watcher: &mut dyn Watcher,
) -> Result<Attempt, SessionError> {
    watcher.phase("analysing", None);
    let chosen = Chosen::read(source, wanted)?;
    let turn = control.turn()?;
    // Functions of a group in force are refused as in use: whose they are says more.
    let name = chosen.group_name();
    if control.clear(&name, &turn)? {
        watcher.note(&format!("group {name}, which nobody held any more, was taken out"));
    }
    watcher.phase("proving", None);
    let positioned = chosen.position()?;
    heed()?;
    watcher.phase("loading", None);
    let mut loaded = control.load(&positioned.module, &turn)?;
    let enabled = enable(&chosen, &positioned, &mut loaded);
    match enabled {
        Ok(Enabling::Done(status)) => {
            Ok(Attempt::InForce(Box::new(GroupInForce { positioned, status, loaded })))
        }
        Ok(Enabling::Changed(functions)) => {
            loaded.take_out(PATIENCE)?;
            Ok(Attempt::Changed(functions))
        }
        Err(error) => {
            if let Err(left) = loaded.take_out(PATIENCE) {
                watcher.note(&left.to_string());
            }
            Err(error)
        }
    }
}

enum Enabling {
    Done(GroupStatus),
    Changed(Vec<String>),
}

/// Enables a group if its originals are what was copied still.
fn enable(
    chosen: &Chosen<'_>,
    positioned: &Positioned,
    loaded: &mut Loaded,
) -> Result<Enabling, SessionError> {
    let changed = chosen.changed(positioned)?;
    heed()?;
    Ok(match changed.is_empty() {
        true => Enabling::Done(loaded.enable()?),
        false => Enabling::Changed(changed),
    })
}

impl GroupInForce {
    /// What is in it, and where its hot code is in the kernel.
    pub fn report(&self) -> GroupReport {
        let mut report = self.positioned.report(hot_code(&self.status.name).unwrap_or_default());
        report.led_by = Some(self.status.means.clone());
        report
    }

    /// Waits for `time`, or without one for ever; at most until this program is asked to end.
    ///
    /// # Errors
    /// If somebody else has taken the group out of force.
    pub fn hold(&self, time: Option<Duration>) -> Result<(), ControlError> {
        let begun = Instant::now();
        loop {
            let left = time.map(|time| time.saturating_sub(begun.elapsed()));
            if left.is_some_and(|left| left.is_zero()) || AskedToEnd::signal().is_some() {
                return Ok(());
            }
            AskedToEnd::pause(left.unwrap_or(LOOK).min(LOOK));
            self.loaded.still_in_force()?;
        }
    }

    /// Leads calls back, and reads what the group has counted as soon as nobody stands in its copies: then
    /// the counts fit each other. Then it is taken out. None for a group that does not count.
    ///
    /// # Errors
    /// If somebody stands in the copies for long, somebody else has taken the group out, or the kernel's
    /// memory cannot be read.
    pub fn count(mut self) -> Result<Option<Vec<FunctionCounts>>, SessionError> {
        self.loaded.lead_back(PATIENCE)?;
        let counts = self.positioned.counting.as_ref().map(|counting| {
            let source = Source::running();
            let symbols = Symbols::read(&source)?;
            let values = counter_values(&source, &symbols, &self.status.name, counting.memory)?;
            Ok::<_, SessionError>(counting.counts(&values))
        });
        let counts = counts.transpose();
        self.loaded.take_out(PATIENCE)?;
        counts
    }

    /// Leads calls back and unloads the module, as soon as nobody stands in its copies.
    ///
    /// # Errors
    /// If somebody stands in them for long, or the kernel refuses.
    pub fn take_out(self) -> Result<(), ControlError> {
        self.loaded.take_out(PATIENCE)
    }
}

/// Where the hot code of a group's module is.
fn hot_code(group: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/module/{group}/sections/.text")).ok()?;
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}
