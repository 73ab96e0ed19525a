//! Locks on files, and who holds them.

use crate::{Device, FileIdentity};
use std::fs::File;
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

/// Locks one byte of a file that is open for reading and writing, whether or not there is such a byte: an
/// "open file description lock" (fcntl(2)), which lasts until `file` and its copies are closed. `false` if
/// somebody else has locked it.
///
/// # Errors
/// If the file system has no locks.
pub fn try_lock_byte(file: &File, at: u64, kind: LockKind) -> io::Result<bool> {
    // SAFETY: all bytes zero are a value of this structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = if kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK } as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = i64::try_from(at).map_err(io::Error::other)?;
    lock.l_len = 1;
    // SAFETY: the kernel reads the structure, which lives until the call returns.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
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
        let (one, other) = (open(), open());
        assert!(try_lock_byte(&one, 5, LockKind::Shared).unwrap());
        assert!(try_lock_byte(&other, 5, LockKind::Shared).unwrap());
        assert!(!try_lock_byte(&other, 5, LockKind::Exclusive).unwrap());
        drop(one);
        assert!(try_lock_byte(&other, 5, LockKind::Exclusive).unwrap());
        let third = open();
        assert!(!try_lock_byte(&third, 5, LockKind::Shared).unwrap());
        assert!(try_lock_byte(&third, 6, LockKind::Exclusive).unwrap(), "another byte");
        other.lock().unwrap();
        assert_eq!(flock_holders(FileIdentity::of(&other).unwrap()), [std::process::id() as i32]);
        std::fs::remove_file(&path).unwrap();
    }
}
