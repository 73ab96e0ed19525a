//! The control module's device.

use crate::error::ControlError;
use crate::group::GroupStatus;
use crate::signing::ModuleKey;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Where the control module listens.
const DEVICE: &str = "/dev/restitch-kernel";
/// More than it ever says, in bytes: 64 groups of a line each.
const LONGEST: u64 = 64 << 10;

/// The control module.
#[derive(Debug, Clone)]
pub struct Control {
    device: PathBuf,
    key: Option<ModuleKey>,
}

/// The right to load and to clear groups, which one process has at a time: what was just loaded is not
/// anybody's leftover. The kernel takes it back when the process ends.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "the lock lives as long as the descriptor")] File);

impl Default for Control {
    fn default() -> Self {
        Self { device: DEVICE.into(), key: None }
    }
}

/// A group that calls are led to for as long as this is kept. The kernel leads them back when the process
/// that holds it ends, however that happens.
#[derive(Debug)]
pub struct Enabled {
    control: Control,
    device: File,
    name: String,
}

impl Control {
    /// One that listens elsewhere: for tests.
    pub fn at(device: &Path) -> Self {
        Self { device: device.into(), key: None }
    }

    /// The same, which signs what it loads with this key, if there is one.
    pub fn signing(self, key: Option<ModuleKey>) -> Self {
        Self { key, ..self }
    }

    /// The module as it is to be loaded.
    ///
    /// # Errors
    /// If it cannot be signed.
    pub(crate) fn signed<'a>(&self, module: &'a [u8]) -> Result<Cow<'a, [u8]>, ControlError> {
        match &self.key {
            Some(key) => key.sign(module).map(Cow::Owned),
            None => Ok(Cow::Borrowed(module)),
        }
    }

    /// All groups that are there.
    ///
    /// # Errors
    /// If there is no control module, this user may not ask, or what it says is not understood.
    pub fn groups(&self) -> Result<Vec<GroupStatus>, ControlError> {
        let mut text = String::new();
        let read = self.open()?.take(LONGEST).read_to_string(&mut text);
        read.map_err(|error| self.failed("reading", error))?;
        text.lines().map(|line| GroupStatus::parse(line).ok_or_else(|| self.foreign(line))).collect()
    }

    /// The group of that name.
    ///
    /// # Errors
    /// As [`Self::groups`], and if there is none.
    pub fn group(&self, name: &str) -> Result<GroupStatus, ControlError> {
        let groups = self.groups()?;
        let found = groups.into_iter().find(|group| group.name == name);
        found.ok_or_else(|| ControlError::NoGroup { name: name.into() })
    }

    /// Leads the calls of a group's functions to their copies.
    ///
    /// # Errors
    /// If there is no such group, it is enabled already, or the kernel refuses one of the functions: then
    /// none of them is led away.
    pub fn enable(&self, name: &str) -> Result<Enabled, ControlError> {
        let mut device = self.open()?;
        self.order(&mut device, "enable", name)?;
        Ok(Enabled { control: self.clone(), device, name: name.into() })
    }

    /// Leads calls back, whoever has enabled the group. Nothing is done where they are not led away.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn disable(&self, name: &str) -> Result<(), ControlError> {
        self.order(&mut self.open()?, "disable", name)
    }

    /// Waits until no other process has a [`Turn`].
    ///
    /// # Errors
    /// If there is no control module, or this user may not ask.
    pub fn turn(&self) -> Result<Turn, ControlError> {
        let device = self.open()?;
        loop {
            match flock(&device, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Turn(device)),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("locking", errno.into())),
            }
        }
    }

    fn open(&self) -> Result<File, ControlError> {
        File::options().read(true).write(true).open(&self.device).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ControlError::NoControl,
            _ => self.failed("opening", error),
        })
    }

    /// One write is one order.
    fn order(&self, device: &mut File, verb: &'static str, name: &str) -> Result<(), ControlError> {
        let order = format!("{verb} {name}\n");
        device.write(order.as_bytes()).map(|_| ()).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => ControlError::NoGroup { name: name.into() },
            Some(Errno::BUSY) => ControlError::Busy { name: name.into() },
            _ => self.failed(verb, error),
        })
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> ControlError {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        ControlError::of(operation, &self.device.display().to_string(), errno)
    }

    fn foreign(&self, line: &str) -> ControlError {
        ControlError::Foreign { device: self.device.display().to_string(), line: line.into() }
    }
}

impl Enabled {
    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Leads calls back and says so; to drop it does the same without a word.
    ///
    /// # Errors
    /// If the kernel refuses. It leads them back when this process ends.
    pub fn disable(mut self) -> Result<(), ControlError> {
        self.control.clone().order(&mut self.device, "disable", &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GroupState;
    use restitch_testkit::scratch;

    /// A device that says `text`.
    fn saying(folder: &Path, text: &str) -> Control {
        let device = folder.join("device");
        std::fs::write(&device, text).expect("writable");
        Control::at(&device)
    }

    #[test]
    fn what_the_device_says_is_understood_or_refused() {
        let folder = scratch();
        let control = saying(folder.path(), "poll enabled jump 3 0\ntcp registered jump 1 0\n");
        let groups = control.groups().expect("two lines");
        let states: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.state)).collect();
        assert_eq!(states, [("poll", GroupState::Enabled), ("tcp", GroupState::Registered)]);
        assert_eq!(control.group("tcp").map(|group| group.functions), Ok(1));
        assert_eq!(control.group("udp"), Err(ControlError::NoGroup { name: "udp".into() }));
        let strange = saying(folder.path(), "poll enabled\n").groups();
        assert!(matches!(strange, Err(ControlError::Foreign { line, .. }) if line == "poll enabled"));
    }

    #[test]
    fn orders_are_one_line_each() {
        let folder = scratch();
        let control = saying(folder.path(), "");
        control.enable("poll").expect("written").disable().expect("written");
        let written = std::fs::read_to_string(folder.path().join("device")).expect("readable");
        assert_eq!(written, "enable poll\ndisable poll\n");
    }

    #[test]
    fn a_kernel_without_the_control_module_is_told_of() {
        let folder = scratch();
        let control = Control::at(&folder.path().join("none"));
        assert_eq!(control.groups(), Err(ControlError::NoControl));
        assert!(matches!(control.enable("poll"), Err(ControlError::NoControl)));
        assert!(matches!(control.disable("poll"), Err(ControlError::NoControl)));
    }

    #[test]
    fn what_the_kernel_says_is_passed_on() {
        // A device that takes nothing.
        let control = Control::at(Path::new("/dev/full"));
        let failed = control.enable("poll").map(|_| ());
        assert_eq!(
            failed,
            Err(ControlError::Failed {
                operation: "enable",
                object: "/dev/full".into(),
                source: Errno::NOSPC
            })
        );
    }
}
