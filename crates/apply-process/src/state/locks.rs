//! Who is at work: locks, which last for as long as the program that holds them.
//!
//! They are bytes of one file in the state directory, which nobody else can open: a lock on the directory
//! itself, or on `/proc/PID`, could be held by anybody, for ever. A restitch of another user (or with another
//! state directory) is seen by a lock on `/proc/PID` all the same, which counts only if somebody holds it who
//! may: this user, root, or the target's own.

use crate::error::ProcessError;
use crate::state::state_file::effective_user;
use crate::state::store::StateDir;
use restitch_procfs::{self as procfs, FileIdentity, FileLock, LockKind, ProcessId};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file. It stays, empty, so that all have the same.
const NAME: &str = "lock";
/// Held while version files are there that no journal lists yet, and by whoever removes files.
const FILES: u64 = 0;
/// The bytes from here on are of processes, by number.
const PROCESSES: u64 = 1;
/// So long it is waited for somebody who writes or removes files, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// A lock, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _own: Option<FileLock>,
    _of_process: Option<FileLock>,
}

impl StateDir {
    /// Takes the lock of a process: one restitch at a time changes it.
    ///
    /// # Errors
    /// [`ProcessError::Busy`] if another restitch holds it.
    pub fn lock_process(&self, process: ProcessId) -> Result<Lock, ProcessError> {
        let busy = |by| ProcessError::Busy { pid: process.pid, by };
        let number = u64::try_from(process.pid).unwrap_or_default();
        let own = match self.try_lock(PROCESSES + number, LockKind::Exclusive) {
            Ok(Some(file)) => Some(file),
            Ok(None) => return Err(busy(None)),
            // What is written there is told to whoever writes; a process can be given back without.
            Err(error) if is_full(&error) => None,
            Err(error) => return Err(self.unlockable(error)),
        };
        match lock_for_others(process.pid) {
            Ok(of_process) => Ok(Lock { _own: own, _of_process: of_process }),
            Err(by) => Err(busy(Some(by))),
        }
    }

    /// Held while version files are there that no journal lists yet, so that nobody takes them for garbage.
    pub(crate) fn writing(&self) -> Result<Lock, ProcessError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_lock(FILES, LockKind::Shared) {
                Ok(Some(file)) => return Ok(Lock { _own: Some(file), _of_process: None }),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => {
                    let why =
                        format!("{} removes files there since {} s", self.holders(), PATIENCE.as_secs());
                    return Err(self.unlockable(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                Err(error) => return Err(self.unlockable(error)),
            }
        }
    }

    /// Held while files are removed; `None` if somebody is writing some.
    pub(crate) fn removing(&self) -> Option<Lock> {
        let file = self.try_lock(FILES, LockKind::Exclusive).ok()??;
        Some(Lock { _own: Some(file), _of_process: None })
    }

    fn try_lock(&self, at: u64, kind: LockKind) -> io::Result<Option<FileLock>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(self.lock_path())?;
        FileLock::try_byte(file, at, kind)
    }

    fn lock_path(&self) -> PathBuf {
        self.path().join(NAME)
    }

    fn unlockable(&self, source: io::Error) -> ProcessError {
        ProcessError::State { operation: "lock", path: self.lock_path(), source }
    }

    /// Whoever has the file open, in words.
    fn holders(&self) -> String {
        let identity = File::open(self.lock_path()).and_then(|file| FileIdentity::of(&file));
        let has_it = |pid: &i32| identity.as_ref().is_ok_and(|identity| has_open(*pid, *identity));
        let all = procfs::processes().unwrap_or_default();
        let own = std::process::id() as i32;
        match all.into_iter().filter(|pid| *pid != own).find(has_it) {
            Some(pid) => format!("process {pid}"),
            None => "another process".into(),
        }
    }
}

/// Whether the directory takes no more files, or is read only.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::StorageFull | K::QuotaExceeded | K::ReadOnlyFilesystem)
}

/// Whether a process has a file open, as far as this user may see that.
fn has_open(pid: i32, identity: FileIdentity) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    // Asked of the file system only: nothing is opened.
    let is_it = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|m| {
            let device = procfs::Device { major: libc::major(m.dev()), minor: libc::minor(m.dev()) };
            identity == FileIdentity { device, inode: m.ino() }
        })
    };
    files.into_iter().any(|entry| is_it(&entry.path()))
}

/// The lock by which restitches of other users know of each other; or who holds it. One that anybody else
/// holds says nothing.
fn lock_for_others(pid: i32) -> Result<Option<FileLock>, i32> {
    let Ok(file) = File::open(format!("/proc/{pid}")) else { return Ok(None) };
    let identity = FileIdentity::of(&file);
    if let Ok(Some(lock)) = FileLock::try_whole(file) {
        return Ok(Some(lock));
    }
    let user = |pid: i32| procfs::status(pid).ok().and_then(|status| status.effective_uid);
    let holders = identity.map(procfs::flock_holders).unwrap_or_default();
    let may = |holder: &i32| {
        user(*holder).is_some_and(|uid| [0, effective_user()].contains(&uid) || user(pid) == Some(uid))
    };
    holders.into_iter().find(may).map_or(Ok(None), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;

    #[test]
    fn a_process_has_one_lock_and_files_have_another() {
        let folder = scratch();
        let dir = StateDir::at(folder.path().into()).expect("our own");
        let me = ProcessId::of(std::process::id() as i32).expect("it lives");
        let lock = dir.lock_process(me).expect("nobody is at it");
        assert!(matches!(dir.lock_process(me), Err(ProcessError::Busy { by: None, .. })));
        let (one, other) = (dir.writing().expect("no garbage"), dir.writing().expect("both write"));
        assert!(dir.removing().is_none());
        drop((one, other));
        let removing = dir.removing().expect("nobody writes");
        assert!(dir.removing().is_none());
        drop((removing, lock));
        dir.lock_process(me).expect("free again");
    }

    #[test]
    fn whoever_has_another_state_directory_is_seen() {
        let (one, other) = (scratch(), scratch());
        let dir = |folder: &Path| StateDir::at(folder.into()).expect("our own");
        let me = ProcessId::of(std::process::id() as i32).expect("it lives");
        let lock = dir(one.path()).lock_process(me).expect("nobody is at it");
        let error = dir(other.path()).lock_process(me).expect_err("somebody is");
        assert!(matches!(error, ProcessError::Busy { by: Some(by), .. } if by == me.pid), "{error}");
        drop(lock);
        dir(other.path()).lock_process(me).expect("free again");
    }
}
