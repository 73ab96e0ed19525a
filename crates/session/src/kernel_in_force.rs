//! A group of the running kernel, in force for a while: read, copied, proved, loaded, compared, enabled; and
//! taken out again, whatever ends it. When this process is killed, the kernel leads calls back, and the
//! module is left, with no calls led to it: the next group of that name takes it out, and so does
//! `restitch kernel revert`.

use crate::kernel_group::{GroupWanted, Members, ReadKernel};
use restitch_kernel::{Source, Symbols, counter_values};
use restitch_kernel_control::{Control, ControlError, GroupStatus, Loaded, ModuleKey, Turn};
use restitch_kernel_position::{FunctionCounts, Positioned, Positioner, Request};
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
/// So many groups of a function may be there, all but one because tasks sleep in their copies.
const NAMES: u32 = 32;

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
    let enforcer = Enforcer::begin(&wanted.functions)?;
    enforcer.while_it_changes(watcher, |read, watcher| {
        let members = read.members(wanted)?;
        watcher.phase("proving", None);
        let subject = read.subject()?;
        let positioner = Positioner::new(&subject)?;
        enforcer.put_in_force(read, &positioner, &members, watcher)
    })
}

/// How something went with a kernel that was read.
pub(crate) enum Attempt<T> {
    /// It is done.
    Done(T),
    /// The originals of these functions are others by now: the kernel has to be read again.
    Changed(Vec<String>),
}

/// Puts groups of the running kernel in force.
pub(crate) struct Enforcer {
    control: Control,
    source: Source,
}

impl Enforcer {
    /// For groups whose first function has the first of these names.
    ///
    /// # Errors
    /// If there is no control module, or such a group is in force.
    pub(crate) fn begin(functions: &[String]) -> Result<Self, SessionError> {
        let control = Control::default().signing(ModuleKey::of_machine());
        // Before the kernel is read, which takes seconds. If the function has another name, it is told later.
        let name = Request::name_for(functions.first().map_or("", String::as_str));
        match control.has_left(&name) {
            Ok(_) | Err(ControlError::StillUsed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { control, source: Source::running() })
    }

    /// Reads the kernel and does something with it, and once more if the kernel has changed meanwhile.
    pub(crate) fn while_it_changes<T>(
        &self,
        watcher: &mut dyn Watcher,
        mut attempt: impl FnMut(&ReadKernel<'_>, &mut dyn Watcher) -> Result<Attempt<T>, SessionError>,
    ) -> Result<T, SessionError> {
        let mut functions = Vec::new();
        for _ in 0..TRIES {
            heed()?;
            watcher.phase("analysing", None);
            let read = ReadKernel::read(&self.source)?;
            match attempt(&read, watcher)? {
                Attempt::Done(done) => return Ok(done),
                Attempt::Changed(changed) => functions = changed,
            }
        }
        Err(SessionError::KernelChurn { functions })
    }

    /// Makes a group and leads calls to it.
    ///
    /// # Errors
    /// If the functions cannot be copied, the kernel refuses the module or one of the functions, or this
    /// program was asked to end. Nothing is in the kernel then.
    pub(crate) fn put_in_force(
        &self,
        read: &ReadKernel<'_>,
        positioner: &Positioner<'_>,
        members: &Members,
        watcher: &mut dyn Watcher,
    ) -> Result<Attempt<GroupInForce>, SessionError> {
        heed()?;
        let turn = self.control.turn()?;
        // Functions of a group in force are refused as in use: whose they are says more.
        let name = free_name(&self.control, &read.group_name(&members.roots), &turn, watcher)?;
        let positioned = positioner.position(&members.request(name))?;
        heed()?;
        watcher.phase("loading", None);
        let mut loaded = self.control.load(&positioned.module, &turn)?;
        match enable(read, &positioned, &mut loaded) {
            Ok(Enabling::Done(status)) => Ok(Attempt::Done(GroupInForce { positioned, status, loaded })),
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
}

/// A name that no group has: `first`, or where tasks still sleep in the copies of that one, `first_2` and so
/// on. What others have left of these names is taken out.
fn free_name(
    control: &Control,
    first: &str,
    turn: &Turn,
    watcher: &mut dyn Watcher,
) -> Result<String, ControlError> {
    let mut free = None;
    for number in 1..=NAMES {
        let name = if number == 1 { first.to_owned() } else { format!("{first}_{number}") };
        match control.clear(&name, turn) {
            Ok(true) => {
                watcher.note(&format!("group {name}, which nobody held any more, was taken out"));
            }
            Ok(false) => {}
            Err(ControlError::StillUsed { .. }) => continue,
            Err(error) => return Err(error),
        }
        free.get_or_insert(name);
    }
    free.ok_or_else(|| ControlError::StillUsed { name: first.into() })
}

enum Enabling {
    Done(GroupStatus),
    Changed(Vec<String>),
}

/// Enables a group if its originals are what was copied still.
fn enable(
    read: &ReadKernel<'_>,
    positioned: &Positioned,
    loaded: &mut Loaded,
) -> Result<Enabling, SessionError> {
    let changed = read.changed(positioned)?;
    heed()?;
    Ok(match changed.is_empty() {
        true => Enabling::Done(loaded.enable()?),
        false => Enabling::Changed(changed),
    })
}

/// What a group has counted.
#[derive(Debug)]
pub(crate) struct Counted {
    /// By function; empty for a group that does not count.
    pub(crate) counts: Vec<FunctionCounts>,
    /// Tasks that stood in its copies when the counters were read.
    pub(crate) standing: u32,
    /// Whether its module is in the kernel still, because of them.
    pub(crate) is_left: bool,
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
        self.hold_until(time, || false)
    }

    /// The same, at most until something `is_over`.
    pub(crate) fn hold_until(
        &self,
        time: Option<Duration>,
        is_over: impl Fn() -> bool,
    ) -> Result<(), ControlError> {
        let begun = Instant::now();
        loop {
            let left = time.map(|time| time.saturating_sub(begun.elapsed()));
            if left.is_some_and(|left| left.is_zero()) || AskedToEnd::signal().is_some() || is_over() {
                return Ok(());
            }
            AskedToEnd::pause(left.unwrap_or(LOOK).min(LOOK));
            self.loaded.still_in_force()?;
        }
    }

    /// Leads calls back, and reads what the group has counted when nobody stands in its copies any more: then
    /// the counts fit each other. If somebody does for long, they are read all the same, and the module is
    /// left for them, with no calls led to it. Else it is taken out.
    ///
    /// # Errors
    /// If somebody else has taken the group out, or the kernel's memory cannot be read.
    pub(crate) fn count(mut self) -> Result<Counted, SessionError> {
        let standing = self.loaded.lead_back(PATIENCE)?;
        let counts = self.positioned.counting.as_ref().map(|counting| {
            let source = Source::running();
            let symbols = Symbols::read(&source)?;
            let values = counter_values(&source, &symbols, &self.status.name, counting.memory)?;
            Ok::<_, SessionError>(counting.counts(&values))
        });
        let counts = counts.transpose();
        let patience = if standing == 0 { PATIENCE } else { Duration::ZERO };
        let is_left = match self.loaded.take_out(patience) {
            Ok(()) => false,
            Err(ControlError::StillUsed { .. }) => true,
            Err(error) => return Err(error.into()),
        };
        Ok(Counted { counts: counts?.unwrap_or_default(), standing, is_left })
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

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_pipeline::Quiet;

    #[test]
    fn a_group_that_tasks_sleep_in_is_in_nobodys_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let device = folder.path().join("device");
        let name = |text: &str| {
            std::fs::write(&device, text).expect("written");
            let control = Control::at(&device);
            let turn = control.turn().expect("nobody else is there");
            free_name(&control, "poll", &turn, &mut Quiet)
        };
        assert_eq!(name(""), Ok("poll".into()));
        assert_eq!(name("poll draining jump 1 2\n"), Ok("poll_2".into()));
        assert_eq!(name("poll draining jump 1 2\npoll_2 draining jump 1 1\n"), Ok("poll_3".into()));
        assert_eq!(name("poll_2 draining jump 1 2\n"), Ok("poll".into()));
        assert_eq!(name("poll enabled jump 1 0\n"), Err(ControlError::InForce { name: "poll".into() }));
        let all = (2..=NAMES).map(|number| format!("poll_{number} draining jump 1 1\n"));
        let all = format!("poll draining jump 1 1\n{}", all.collect::<String>());
        assert_eq!(name(&all), Err(ControlError::StillUsed { name: "poll".into() }));
    }
}
