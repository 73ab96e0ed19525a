//! Waiting for the end of children of this program.
//!
//! Problem: the kernel tells the end of a process that its own parent traces once, to whoever of the parent's
//! threads waits for it first: to the tracing one (`wait_task_zombie` in the kernel; another tracer's wait
//! leaves the parent its own). Idea: what the tracer learns of an [`OwnChild`] is kept for it.

use crate::clock::now;
use crate::disposition::as_started;
use crate::error::TraceError;
use crate::waitid::waitid;
use restitch_procfs::ProcessId;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Raw statuses of own children that were waited for in another way than by [`Child`], and when; nothing
/// before.
static ENDS: Mutex<BTreeMap<i32, Option<(i32, Duration)>>> = Mutex::new(BTreeMap::new());

/// How a child has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    /// Its status, as a shell gives it.
    pub status: i32,
    /// The [time](now) at which that was seen.
    pub at: Duration,
}

/// A thread has waited for `tid` and got this status.
pub(crate) fn note_end(tid: i32, status: i32) {
    let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(end) = ends.get_mut(&tid) {
        *end = Some((status, now()));
    }
}

/// From now on the end of child `pid` is kept, whichever thread is told of it.
pub(crate) fn expect_end(pid: i32) {
    ENDS.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, None);
}

/// How child `pid`, whose end is kept, has ended; `None` if it has not, or nobody here was told.
pub(crate) fn end_of(pid: i32) -> Option<End> {
    let kept = ENDS.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).copied().flatten();
    kept.map(|(status, at)| End { status: as_shell(status), at }).or_else(|| {
        let report = waitid(pid, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG).ok()??;
        let status = match report.code {
            libc::CLD_EXITED => report.status,
            libc::CLD_KILLED | libc::CLD_DUMPED => 128 + report.status,
            _ => return None,
        };
        Some(End { status, at: now() })
    })
}

/// A raw status as a shell gives it: the code, or 128 plus the number of the signal.
fn as_shell(status: i32) -> i32 {
    match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    }
}

/// A process that this program has started and may trace, too. Dropping it leaves the process alone.
#[derive(Debug)]
pub struct OwnChild(Child);

impl OwnChild {
    /// Starts `command` as a shell does: a text file that names no interpreter is a script of `/bin/sh`. It
    /// finds the signals [as this program did](as_started).
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        // (Work in front of the exec makes `Command` call `execvp` in place of `posix_spawnp`, which refuses
        // such files.)
        as_started(command);
        let child = command.spawn()?;
        expect_end(child.id() as i32);
        Ok(Self(child))
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// If somebody else has waited for it.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        let ended = match has_ended(self.pid(), false) {
            Ok(false) => Ok(false),
            // What was waited for before is known to `Child`.
            _ => self.0.try_wait().map(|status| status.is_some()),
        };
        ended.or_else(|error| self.noted(error).map(|_| true))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If somebody else has waited for it.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        wait_for_end(self.pid());
        self.0.wait().or_else(|error| self.noted(error))
    }

    /// What a tracing thread was told, if the kernel does not know of it any more.
    fn noted(&self, error: io::Error) -> io::Result<ExitStatus> {
        let ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = ends.get(&self.pid()).copied().flatten();
        let noted = noted.map(|(status, _)| status).filter(|_| error.raw_os_error() == Some(libc::ECHILD));
        noted.map(ExitStatus::from_raw).ok_or(error)
    }
}

/// Whether child `pid` of this program has ended. With `block` it waits until there is something to say, and
/// that may be a stop. Its end is left to be waited for; so is what it reports as a tracee of any of our
/// threads, which a plain wait of any other thread would take from that one and return as if it were an end.
///
/// # Errors
/// If it is no child of this program, or was waited for already.
fn has_ended(pid: i32, block: bool) -> io::Result<bool> {
    let flags = libc::WEXITED | libc::WNOWAIT | if block { 0 } else { libc::WNOHANG };
    let ends = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
    loop {
        match waitid(pid, flags) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            report => return Ok(report?.is_some_and(|report| ends.contains(&report.code))),
        }
    }
}

/// Waits until a child has ended, which is left to be waited for. While it is a tracee of another of our
/// threads (one that is ending lets its tracees go after it can be joined), its stops are that thread's.
fn wait_for_end(pid: i32) {
    while let Ok(false) = has_ended(pid, true) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until `child`, which this program started, has ended; its exit status as a shell gives it: the code,
/// or 128 plus the number of the signal that ended it.
///
/// # Errors
/// If it is no child of this program, or was waited for already.
pub fn wait_for_child(child: ProcessId) -> Result<i32, TraceError> {
    let mut status = 0;
    wait_for_end(child.pid);
    loop {
        // SAFETY: the kernel writes an int into `status`, a live local.
        let waited = unsafe { libc::waitpid(child.pid, &raw mut status, 0) };
        if waited == child.pid {
            note_end(child.pid, status);
            return Ok(as_shell(status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(TraceError::Ptrace { request: "waitpid", tid: child.pid, source: error });
        }
    }
}
