//! The keeper: a second process that gives processes their original code back if the working one is killed.
//!
//! It is this program again, started before anything is changed, in a process group of its own so that what
//! the terminal sends does not end it. It reads from a pipe whose other end only the working one has: a byte
//! means that all is well; the pipe's end without one, that the other has died, or could not give a process
//! its original code back (somebody has frozen it, or traces it): it is tried again for a while.

use restitch_session::{AskedToEnd, ExitCode, GivenBack, SessionError, await_end, give_back_abandoned};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The name of the hidden command.
pub const COMMAND: &str = "keep";
/// For so long it is tried again what could not be changed back.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// A keeper that waits. Dropping it says that all is well, but for while a panic unwinds.
#[derive(Debug)]
pub struct Keeper(Option<Child>);

impl Keeper {
    /// Starts it. Where it cannot be started, the work goes on without one, as it may be killed itself.
    pub fn start() -> Self {
        // This very program, also if another one has its path by now.
        let mut keeper = Command::new("/proc/self/exe");
        keeper.arg(COMMAND).arg(std::process::id().to_string());
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let started = keeper.spawn();
        if let Err(error) = &started {
            eprintln!(
                "restitch: no second process could be started ({error}), so if this one is killed, `restitch status` and `restitch revert` are needed"
            );
        }
        Self(started.ok())
    }
}

impl Keeper {
    /// All is not well: it tries for a while what this program could not do.
    pub fn goes_on(&mut self) {
        if let Some(mut keeper) = self.0.take() {
            drop(keeper.stdin.take());
            eprintln!("restitch: a second process goes on trying for {} seconds", PATIENCE.as_secs());
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.0.take() {
            let pipe = keeper.stdin.take().filter(|_| !std::thread::panicking());
            // An error: it has ended before.
            if let Some(mut pipe) = pipe {
                let _ = pipe.write_all(b".");
                drop(pipe);
                let _ = keeper.wait();
            }
        }
    }
}

/// The hidden command: keeps what process `working` changes.
pub fn keep(working: i32) -> Result<i32, SessionError> {
    // Noted and not looked at: it ends by itself, soon after the other.
    let _asked = AskedToEnd::begin();
    if std::io::stdin().read(&mut [0]).is_ok_and(|read| read > 0) {
        return Ok(ExitCode::Done.number());
    }
    let end = Instant::now() + PATIENCE;
    await_end(working, PATIENCE);
    loop {
        let told = give_back_abandoned()?;
        let has_failed = told.iter().any(|(_, what)| matches!(what, GivenBack::Failed(_)));
        let is_last = !has_failed || Instant::now() >= end;
        for (pid, what) in &told {
            match what {
                GivenBack::Failed(error) if is_last => {
                    eprintln!(
                        "restitch: process {pid} was left in the middle of a restitch that has ended: {error}"
                    );
                }
                GivenBack::Failed(_) | GivenBack::NothingThere => {}
                GivenBack::Done(_) => {
                    eprintln!("restitch: restitch has ended; process {pid} has its original code again");
                }
            }
        }
        if is_last {
            return Ok(if has_failed { ExitCode::Failure } else { ExitCode::Done }.number());
        }
        std::thread::sleep(AGAIN);
    }
}
