//! Processes that another restitch is at work on: they are waited for a little. It may be about to end, or a
//! keeper that gives a process back for one that was killed.

use crate::error::SessionError;
use crate::interrupt::pause;
use restitch_apply_process::{ProcessError, StateDir};
use restitch_procfs::{self as procfs, ProcessId};
use restitch_tracee::{TraceError, preflight};
use std::time::{Duration, Instant};

/// For so long a process is waited for that another restitch is at work on.
pub const BUSY: Duration = Duration::from_secs(5);
/// So often it is looked whether it still is.
pub const BUSY_LOOK: Duration = Duration::from_millis(20);

/// So often, for one process.
const BUSY_LOOKS: u32 = 250;
/// ... and for all that are waited for one after the other: a minute.
const ALL_BUSY_LOOKS: u32 = 12 * BUSY_LOOKS;

/// Waits for processes that another restitch is at work on: for each of them as long as for the first one
/// ([`BUSY`]), whatever the others took, but not for ever.
#[derive(Debug)]
pub struct Patience {
    looks: u32,
    rest: fn(),
}

impl Default for Patience {
    fn default() -> Self {
        Self { looks: ALL_BUSY_LOOKS, rest: || std::thread::sleep(BUSY_LOOK) }
    }
}

impl Patience {
    /// What it comes to, tried again for as long as another restitch is at work on the process. Requests to
    /// end are not looked at.
    ///
    /// # Errors
    /// Those of `lock`.
    pub fn with_lock<T>(
        &mut self,
        mut lock: impl FnMut() -> Result<T, ProcessError>,
    ) -> Result<T, ProcessError> {
        let most = self.looks.min(BUSY_LOOKS);
        for _ in 0..most {
            match lock() {
                Err(ProcessError::Busy { .. }) => {
                    self.looks -= 1;
                    (self.rest)();
                }
                done => return done,
            }
        }
        lock()
    }

    /// Gives each process to `work` once nobody `is_busy` with it; those with which somebody is for long are
    /// left out. What `work` takes is not waiting.
    pub fn each<P>(self, mut left: Vec<P>, is_busy: impl Fn(&P) -> bool, mut work: impl FnMut(&P)) {
        for look in 0..=BUSY_LOOKS {
            left.retain(|process| {
                let waits = is_busy(process);
                if !waits {
                    work(process);
                }
                waits
            });
            if left.is_empty() || look == BUSY_LOOKS {
                break;
            }
            (self.rest)();
        }
    }
}

/// A tracer that nobody's lock explains has to be seen so often, over 100 ms, before it is a stranger: one
/// that is ending has let go of its lock before its tracees.
const STRANGER_LOOKS: u32 = 6;

/// Process `pid`, which can be traced, once no other restitch traces it any more.
///
/// # Errors
/// Those of [`preflight`]; [`ProcessError::Busy`] if another restitch is at work on it for long.
pub fn when_not_traced(pid: i32) -> Result<ProcessId, SessionError> {
    when_let_go(|| preflight(pid), lets_go)
}

/// The same, by a function that `looks` at the process, and one that says whether the tracer of a process
/// `lets_go` of it soon.
fn when_let_go<T>(
    look: impl Fn() -> Result<T, TraceError>,
    lets_go: impl Fn(i32, i32) -> bool,
) -> Result<T, SessionError> {
    let end = Instant::now() + BUSY;
    // Who traces it although nobody has its lock, and how often that was seen.
    let mut stranger: Option<(i32, u32)> = None;
    loop {
        let (pid, tracer, name) = match look() {
            Err(TraceError::AlreadyTraced { pid, tracer, name }) => (pid, tracer, name),
            done => return Ok(done?),
        };
        let seen = stranger.filter(|known| known.0 == tracer).map_or(0, |known| known.1);
        stranger = (!lets_go(pid, tracer)).then_some((tracer, seen + 1));
        if stranger.is_some_and(|(_, seen)| seen >= STRANGER_LOOKS) {
            return Err(TraceError::AlreadyTraced { pid, tracer, name }.into());
        }
        if Instant::now() > end {
            return Err(ProcessError::Busy { pid, by: None }.into());
        }
        pause(BUSY_LOOK)?;
    }
}

/// Whether the thread that traces a process will let go of it soon: a restitch has the process's lock, or the
/// tracer ends.
fn lets_go(pid: i32, tracer: i32) -> bool {
    let lock = || StateDir::open()?.lock_process(ProcessId::of(pid)?);
    procfs::has_ended(tracer) || matches!(lock(), Err(ProcessError::Busy { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const PATIENT: Patience = Patience { looks: ALL_BUSY_LOOKS, rest: || {} };

    /// A lock that is somebody else's for so many looks.
    fn free_after(looks: u32) -> impl FnMut() -> Result<(), ProcessError> {
        let mut left = looks;
        move || match left.checked_sub(1) {
            Some(less) => {
                left = less;
                Err(ProcessError::Busy { pid: 1, by: None })
            }
            None => Ok(()),
        }
    }

    #[test]
    fn the_last_of_many_processes_is_waited_for_as_long_as_the_first() {
        let mut patience = PATIENT;
        assert!(patience.with_lock(free_after(u32::MAX)).is_err(), "somebody is at work on it for long");
        assert!(patience.with_lock(free_after(BUSY_LOOKS)).is_ok());
        assert!(patience.with_lock(free_after(BUSY_LOOKS)).is_ok());
        assert!(patience.with_lock(free_after(BUSY_LOOKS + 1)).is_err());
        // In total, though, there is an end.
        let waited = (0..100).filter(|_| patience.with_lock(free_after(BUSY_LOOKS)).is_ok()).count();
        assert_eq!(waited as u32, ALL_BUSY_LOOKS / BUSY_LOOKS - 4);
        assert!(patience.with_lock(free_after(0)).is_ok());
    }

    #[test]
    fn processes_are_worked_on_when_they_are_free() {
        let looks = Cell::new(0);
        let mut done = Vec::new();
        let is_busy = |free_at: &u32| {
            looks.set(looks.get() + 1);
            looks.get() <= *free_at
        };
        PATIENT.each(vec![u32::MAX, 0, 7, 1], is_busy, |free_at| done.push(*free_at));
        assert_eq!(done, [0, 1, 7]);
    }

    const TRACED: fn() -> TraceError = || TraceError::AlreadyTraced { pid: 1, tracer: 2, name: "x".into() };

    #[test]
    fn a_tracer_that_is_about_to_let_go_is_no_stranger() {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            if looks.get() < 4 { Err(TRACED()) } else { Ok(()) }
        };
        assert!(when_let_go(look, |_, _| false).is_ok(), "{} looks", looks.get());
    }

    #[test]
    fn a_stranger_that_stays_is_told_and_not_at_once() {
        let looks = Cell::new(0);
        let look = || -> Result<(), TraceError> {
            looks.set(looks.get() + 1);
            Err(TRACED())
        };
        let told = when_let_go(look, |_, _| false).expect_err("it stays");
        assert!(matches!(told, SessionError::Trace(TraceError::AlreadyTraced { tracer: 2, .. })), "{told}");
        assert_eq!(looks.get(), STRANGER_LOOKS);
    }
}
