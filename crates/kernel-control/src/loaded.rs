//! A group's module that is in the kernel because of this process.

use crate::control::{Control, Enabled, Turn};
use crate::error::ControlError;
use crate::group::{GroupState, GroupStatus};
use crate::module::{load, unload};
use restitch_kernel_check::CheckedModule;
use std::time::{Duration, Instant};

/// How long a group may be used by tasks when it is taken out without a word. The control module looks at
/// stacks each second.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks.
const AGAIN: Duration = Duration::from_millis(50);

/// A group's module that this process has loaded. To drop it takes it out without a word, as far as nobody
/// stands in its copies for long.
#[derive(Debug)]
pub struct Loaded {
    control: Control,
    name: String,
    enabled: Option<Enabled>,
    is_done: bool,
}

impl Control {
    /// Whether there is a group of that name that nobody holds: what a restitch leaves that was killed.
    ///
    /// # Errors
    /// If somebody holds it, or tasks stand in its copies.
    pub fn has_left(&self, name: &str) -> Result<bool, ControlError> {
        let group = match self.group(name) {
            Err(ControlError::NoGroup { .. }) => return Ok(false),
            other => other?,
        };
        match group.state {
            GroupState::Enabled => Err(ControlError::InForce { name: name.into() }),
            GroupState::Draining => Err(ControlError::StillUsed { name: name.into() }),
            GroupState::Registered => Ok(true),
        }
    }

    /// Takes such a group out. Whether there was one.
    ///
    /// # Errors
    /// As [`Self::has_left`] has them, and if it cannot be unloaded.
    pub fn clear(&self, name: &str, _: &Turn) -> Result<bool, ControlError> {
        let has_left = self.has_left(name)?;
        if has_left {
            unloaded(name, PATIENCE)?;
        }
        Ok(has_left)
    }

    /// Loads a proved module. Its group is registered then; no calls are led to it.
    ///
    /// # Errors
    /// If this user may not, it cannot be signed, the kernel wants a signature that it knows, has such a
    /// module, or refuses it: because it has no control module, or is not the kernel, of the same boot, that
    /// the module was made for.
    pub fn load(&self, module: &CheckedModule, _: &Turn) -> Result<Loaded, ControlError> {
        let name = module.report().group.clone();
        load(&name, &self.signed(module.file())?)?;
        Ok(Loaded { control: self.clone(), name, enabled: None, is_done: false })
    }
}

impl Loaded {
    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Leads the calls of its functions to their copies; what the control module says of it then.
    ///
    /// # Errors
    /// As [`Control::enable`] has them.
    pub fn enable(&mut self) -> Result<GroupStatus, ControlError> {
        self.enabled = Some(self.control.enable(&self.name)?);
        self.control.group(&self.name)
    }

    /// That calls are led to its copies still.
    ///
    /// # Errors
    /// [`ControlError::TakenOut`] if somebody has had them led back.
    pub fn still_in_force(&self) -> Result<(), ControlError> {
        match self.control.group(&self.name) {
            Ok(group) if group.state == GroupState::Enabled => Ok(()),
            Ok(_) | Err(ControlError::NoGroup { .. }) => {
                Err(ControlError::TakenOut { name: self.name.clone() })
            }
            Err(error) => Err(error),
        }
    }

    /// Leads calls back, and waits until nobody stands in its copies any more, or `patience` is over: how
    /// many tasks still do then. The module stays.
    ///
    /// # Errors
    /// If somebody else has taken it out or enabled it again, or the kernel refuses.
    pub fn lead_back(&mut self, patience: Duration) -> Result<u32, ControlError> {
        self.enabled.take().map_or(Ok(()), Enabled::disable)?;
        let begun = Instant::now();
        loop {
            let group = self.control.group(&self.name)?;
            match group.state {
                GroupState::Registered => return Ok(0),
                _ if begun.elapsed() < patience => std::thread::sleep(AGAIN),
                // Whatever the last look has found: it drains because of somebody.
                GroupState::Draining => return Ok(group.standing.max(1)),
                GroupState::Enabled => return Err(ControlError::InForce { name: self.name.clone() }),
            }
        }
    }

    /// Leads calls back and unloads the module, as soon as nobody stands in its copies any more. That
    /// somebody else has done so is as good.
    ///
    /// # Errors
    /// If somebody stands in them after `patience`, or the kernel refuses.
    pub fn take_out(mut self, patience: Duration) -> Result<(), ControlError> {
        self.is_done = true;
        self.out(patience)
    }

    fn out(&mut self, patience: Duration) -> Result<(), ControlError> {
        // The descriptor is closed in any case, and calls are led back by that.
        let led_back = self.enabled.take().map_or(Ok(()), Enabled::disable);
        unloaded(&self.name, patience).map_err(|error| led_back.err().unwrap_or(error))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !self.is_done {
            // `restitch kernel status` shows what is left.
            let _ = self.out(PATIENCE);
        }
    }
}

/// [`unload`], and no error if it is gone.
fn unloaded(name: &str, patience: Duration) -> Result<(), ControlError> {
    match unload(name, patience) {
        Err(ControlError::NoGroup { .. }) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;

    #[test]
    fn what_somebody_holds_is_not_cleared() {
        let folder = scratch();
        let device = folder.path().join("device");
        std::fs::write(&device, "held enabled call 1 0\nused draining call 1 2\n").expect("written");
        let control = Control::at(&device);
        let turn = control.turn().expect("nobody else is there");
        assert_eq!(control.clear("held", &turn), Err(ControlError::InForce { name: "held".into() }));
        assert_eq!(control.clear("used", &turn), Err(ControlError::StillUsed { name: "used".into() }));
        assert_eq!(control.clear("other", &turn), Ok(false));
    }

    #[test]
    fn that_somebody_has_taken_a_group_out_is_told() {
        let folder = scratch();
        let device = folder.path().join("device");
        std::fs::write(&device, "").expect("written");
        let control = Control::at(&device);
        let name = String::from("no_such_module_of_restitch");
        let loaded = Loaded { control: control.clone(), name: name.clone(), enabled: None, is_done: true };
        let says = |text: &str| {
            std::fs::write(&device, text).expect("written");
            loaded.still_in_force()
        };
        assert_eq!(says(&format!("{name} enabled jump 1 0\n")), Ok(()));
        for text in [format!("{name} registered jump 1 0\n"), String::new()] {
            assert_eq!(says(&text), Err(ControlError::TakenOut { name: name.clone() }), "{text}");
        }
        assert!(matches!(says("?\n"), Err(ControlError::Foreign { .. })));
    }

    #[test]
    fn calls_are_led_back_before_the_module_goes() {
        let folder = scratch();
        let device = folder.path().join("device");
        std::fs::write(&device, "group enabled jump 1 0\n").expect("written");
        let control = Control::at(&device);
        let (name, enabled) = (String::from("group"), Some(control.enable("group").expect("written")));
        let mut loaded = Loaded { control, name, enabled, is_done: true };
        // The order is written over what the device says.
        let refused = loaded.lead_back(Duration::ZERO).expect_err("the device says nothing that is known");
        assert!(matches!(refused, ControlError::Foreign { line, .. } if line == "enable group"));
        assert!(loaded.enabled.is_none());
        let in_force = Err(ControlError::InForce { name: "group".into() });
        for (text, standing) in [
            ("group draining jump 1 3\n", Ok(3)),
            ("group draining jump 1 0\n", Ok(1)),
            ("group enabled jump 1 0\n", in_force),
            ("group registered jump 1 0\n", Ok(0)),
        ] {
            std::fs::write(&device, text).expect("written");
            assert_eq!(loaded.lead_back(Duration::from_millis(1)), standing, "{text}");
        }
    }

    #[test]
    fn one_at_a_time_has_a_turn() {
        let folder = scratch();
        let device = folder.path().join("device");
        std::fs::write(&device, "").expect("written");
        let control = Control::at(&device);
        let turn = control.turn().expect("nobody else is there");
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = control.clone();
        let waiting = std::thread::spawn(move || sender.send(other.turn().map(drop)));
        let early = receiver.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "it did not wait");
        drop(turn);
        assert_eq!(receiver.recv(), Ok(Ok(())));
        waiting.join().expect("it ends").expect("it was heard");
    }
}
