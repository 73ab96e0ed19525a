//! Locks on files, and who holds them.

use crate::files::FileIdentity;
use crate::maps::Device;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsRawFd;

/// Whether others may hold a lock at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Others of this kind may.
    Shared,
    /// Nobody may.
    Exclusive,
}

/// A lock on a file, until it is dropped.
///
/// Problem: the kernel's locks last until the last copy of the descriptor is closed, and a process that
/// another thread of this one is just starting has copies of all descriptors until it executes its program.
/// Idea: the lock is given back by name, which ends it whoever has copies.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    /// The byte that is locked; `None` if it is all of the file.
    byte: Option<u64>,
}

impl FileLock {
    /// Locks a file as flock(2) does; `None` if somebody else has locked it.
    ///
    /// # Errors
    /// If the file system has no locks.
    pub fn try_whole(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file, byte: None })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The same, when it is this one's turn.
    ///
    /// # Errors
    /// If the file system has no locks.
    pub fn whole(file: File) -> io::Result<Self> {
        file.lock().map(|()| Self { file, byte: None })
    }

    /// Locks one byte of a file that is open for reading and writing, whether or not there is such a byte: an
    /// "open file description lock" (fcntl(2)). `None` if somebody else has locked it.
    ///
    /// # Errors
    /// If the file system has no locks.
    pub fn try_byte(file: File, at: u64, kind: LockKind) -> io::Result<Option<Self>> {
        let kind = if kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
        match set_byte(&file, at, kind) {
            Ok(()) => Ok(Some(Self { file, byte: Some(at) })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It ends with the descriptor at the latest.
        let _ = match self.byte {
            Some(at) => set_byte(&self.file, at, libc::F_UNLCK),
            None => self.file.unlock(),
        };
    }
}

fn set_byte(file: &File, at: u64, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: all bytes zero are a value of this structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = i64::try_from(at).map_err(io::Error::other)?;
    lock.l_len = 1;
    // SAFETY: the kernel reads the structure, which lives until the call returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The processes that hold a lock of flock(2) on a file, as `/proc/locks` has it; not those that this program
/// does not see.
pub fn flock_holders(file: FileIdentity) -> Vec<i32> {
    parse_flocks(&std::fs::read("/proc/locks").unwrap_or_default(), file)
}

/// The same of the text of `/proc/locks` (proc_locks(5)).
fn parse_flocks(text: &[u8], file: FileIdentity) -> Vec<i32> {
    let of_line = |line: &str| {
        // Number, kind, advisory or not, access, process, file, range. Those that wait have an arrow in
        // front.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
        let mut parts = place.split(':');
        let mut hex = || u32::from_str_radix(parts.next()?, 16).ok();
        let device = Device { major: hex()?, minor: hex()? };
        let inode: u64 = parts.next()?.parse().ok()?;
        let is_it = (device, inode) == (file.device, file.inode);
        is_it.then(|| pid.parse().ok()).flatten().filter(|pid| *pid > 0)
    };
    String::from_utf8_lossy(text).lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_found_by_file() {
        let text = b"1: POSIX  ADVISORY  WRITE 7 00:15:99 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 00:15:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 00:15:99 0 EOF\n3: FLOCK  ADVISORY  READ 10 fe:1a:99 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 0 00:15:99 0 EOF\nx: FLOCK";
        let of =
            |major, minor| parse_flocks(text, FileIdentity { device: Device { major, minor }, inode: 99 });
        assert_eq!((of(0, 0x15), of(0xfe, 0x1a), of(1, 1)), (vec![8], vec![10], vec![]));
    }

    #[test]
    fn own_locks_are_seen() {
        let path = std::env::temp_dir().join(format!("restitch-locks-{}", std::process::id()));
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let byte = |at, kind| FileLock::try_byte(open(), at, kind).unwrap();
        let (one, other) = (byte(5, LockKind::Shared), byte(5, LockKind::Shared));
        assert!(one.is_some() && other.is_some() && byte(5, LockKind::Exclusive).is_none());
        // A copy of its descriptor, as a process has that is being started, does not keep it.
        let copy = one.as_ref().map(|lock| lock.file().try_clone().unwrap());
        drop((one, other));
        let third = byte(5, LockKind::Exclusive);
        assert!(third.is_some() && byte(5, LockKind::Shared).is_none());
        assert!(byte(6, LockKind::Exclusive).is_some(), "another byte");
        let whole = FileLock::try_whole(open()).unwrap().unwrap();
        assert!(FileLock::try_whole(open()).unwrap().is_none());
        let identity = FileIdentity::of(whole.file()).unwrap();
        assert_eq!(flock_holders(identity), [std::process::id() as i32]);
        let another = whole.file().try_clone().unwrap();
        drop(whole);
        assert_eq!(flock_holders(identity), []);
        FileLock::whole(open()).unwrap();
        drop((copy, another));
        std::fs::remove_file(&path).unwrap();
    }
}
