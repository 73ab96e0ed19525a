//! Loading and unloading modules.

use crate::error::ControlError;
use crate::signing::wants_signatures;
use rustix::io::Errno;
use rustix::system::{delete_module, init_module};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Between two tries to unload.
const AGAIN: Duration = Duration::from_millis(50);
/// `delete_module(2)`: do not wait for users (`O_NONBLOCK`).
const NO_WAIT: i32 = 0o4000;

/// Loads the file of a proved module, signed or not, as [`Control::load`](crate::control::Control::load) says
/// it.
pub(crate) fn load(name: &str, file: &[u8]) -> Result<(), ControlError> {
    init_module(file, c"").map_err(|errno| match errno {
        Errno::EXIST => ControlError::Exists { name: name.into() },
        Errno::KEYREJECTED | Errno::NOKEY => ControlError::NotSigned { name: name.into() },
        // Lockdown says it so.
        Errno::PERM if wants_signatures() => ControlError::NotSigned { name: name.into() },
        // A symbol of the control module is not there.
        Errno::NOENT => ControlError::NoControl,
        errno => ControlError::of("loading module", name, errno),
    })
}

/// Unloads a group's module, as soon as nobody uses it any more.
///
/// # Errors
/// If somebody still does after `patience`, there is none, or this user may not.
pub fn unload(name: &str, patience: Duration) -> Result<(), ControlError> {
    let begun = Instant::now();
    let text = CString::new(name).map_err(|_| ControlError::NoGroup { name: name.into() })?;
    loop {
        match delete_module(&text, NO_WAIT) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => return Err(ControlError::NoGroup { name: name.into() }),
            Err(Errno::AGAIN | Errno::BUSY) if begun.elapsed() < patience => std::thread::sleep(AGAIN),
            Err(Errno::AGAIN | Errno::BUSY) => return Err(ControlError::StillUsed { name: name.into() }),
            Err(errno) => return Err(ControlError::of("unloading module", name, errno)),
        }
    }
}
