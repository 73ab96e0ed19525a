//! Files of the state directory, read with care.
//!
//! The directory is this user's alone, so nobody else writes them; but they may be damaged, and what a target
//! says leads to their names. So nothing but a regular file of this user's own is read, whatever has the
//! name, no link is followed, and no more is read than a file of ours ever has.

use restitch_address::PAGE;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Most bytes that a file of the state directory may have: the address map of a program ten times as large as
/// any that was seen.
pub(crate) const MOST_BYTES: u64 = 512 << 20;
/// Behind the last address that a program can have, with five levels of page tables.
pub(crate) const ADDRESSES_END: u64 = 1 << 56;

/// Opens a file of the state directory for reading.
///
/// # Errors
/// If it is no regular file of this user's own that is of a sensible length.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if about.uid() != effective_user() {
        return Err(io::Error::other(format!("it belongs to user {}", about.uid())));
    }
    if about.len() > MOST_BYTES {
        return Err(io::Error::other(format!("it has {} bytes, far more than any such file", about.len())));
    }
    Ok(file)
}

/// Reads a file of the state directory.
///
/// # Errors
/// As for [`open`].
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // (It may grow while it is read.)
    open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a process may have `len` bytes at `start`, in whole pages from there on.
pub(crate) fn is_range(start: u64, len: u64) -> bool {
    start.is_multiple_of(PAGE) && is_place(start, len)
}

/// Whether a process may have `len` bytes at `at`.
pub(crate) fn is_place(at: u64, len: u64) -> bool {
    at.checked_add(len).is_some_and(|end| end <= ADDRESSES_END)
}

/// The effective user, from the ownership of our own `/proc` entry.
pub(crate) fn effective_user() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |m| m.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;

    #[test]
    fn only_regular_files_of_this_user_are_read() {
        let folder = scratch();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").expect("writable");
        std::os::unix::fs::symlink("file", path("link")).expect("writable");
        std::fs::create_dir(path("folder")).expect("writable");
        File::create(path("endless")).and_then(|f| f.set_len(MOST_BYTES + 1)).expect("sparse");
        assert_eq!(read(&path("file")).expect("ours"), b"text");
        let mut bad = vec![path("link"), path("folder"), path("endless"), "/dev/zero".into(), path("none")];
        let made = std::process::Command::new("mkfifo").arg(path("fifo")).status();
        bad.extend(made.is_ok_and(|status| status.success()).then(|| path("fifo")));
        for path in bad {
            assert!(read(&path).is_err(), "{}", path.display());
        }
        if effective_user() == 0 {
            std::os::unix::fs::chown(path("file"), Some(65534), None).expect("root may");
            let why = read(&path("file")).expect_err("somebody else's").to_string();
            assert!(why.contains("65534"), "{why}");
        }
    }

    #[test]
    fn ranges_end_where_addresses_do() {
        assert!(is_range(0x1000, 1) && is_range(ADDRESSES_END - 4096, 4096) && is_place(5, 0));
        assert!(!is_range(0x1001, 1) && !is_range(ADDRESSES_END - 4096, 4097));
        assert!(!is_range(u64::MAX - 4095, 4096) && !is_place(1, u64::MAX));
    }
}
