//! Writing a file so that nobody ever sees half of it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What to do with a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Leave it and fail: protects the input from a mistyped output path.
    Refuse,
    /// Replace it in one step. Processes that run the old file keep it.
    Replace,
}

/// What a file that was written has to outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlives {
    /// The death of this program at any moment.
    Death,
    /// A power cut, too: it is synchronized, which takes milliseconds.
    PowerCut,
}

/// Writes `bytes` to `path` with the permission bits `mode` (as in `st_mode`; the process's umask does not apply). The
/// file is written under another name in the same directory and then given its name, so `path` holds the
/// old content or the new one at every moment.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if something is there that is to be left alone, else the system's reason; nothing is left behind.
pub fn write_atomically(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    existing: Existing,
    outlives: Outlives,
) -> io::Result<()> {
    if existing == Existing::Refuse && fs::symlink_metadata(path).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = Temporary::write(path, bytes, mode, outlives)?;
    match existing {
        Existing::Replace => temporary.rename(path),
        Existing::Refuse => temporary.link(path),
    }
}

/// Finds out whether [`write_atomically`] can make a file beside `path`, by making one under another name, which is
/// removed at once: `path` itself is not touched, so that whoever writes it at the same time is not disturbed.
///
/// # Errors
/// The system's reason; nothing is left behind.
pub fn can_be_made(path: &Path) -> io::Result<()> {
    Temporary::write(path, &[], 0o600, Outlives::Death).map(drop)
}

/// Of a file name: the process that was writing to it, if it is one under which [`write_atomically`] begins.
pub fn writer_of(name: &str) -> Option<i32> {
    let (_, id) = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    let (process, number) = id.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

/// A file that is removed when dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn write(beside: &Path, bytes: &[u8], mode: u32, outlives: Outlives) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = beside.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        let (this, mut file) = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = beside.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => break (Self(path), file),
                // Left behind by a killed process of the same number.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        };
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        if outlives == Outlives::PowerCut {
            file.sync_all()?;
        }
        Ok(this)
    }
    fn rename(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.0, to)
    }
    /// Gives the file its name, if nothing has that name. File systems without hard links get a check and a rename.
    fn link(self, to: &Path) -> io::Result<()> {
        match fs::hard_link(&self.0, to) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists && fs::symlink_metadata(to).is_err() => {
                self.rename(to)
            }
            result => result,
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename it is gone, which is as well.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn write(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> io::Result<()> {
        write_atomically(path, bytes, mode, existing, Outlives::PowerCut)
    }

    #[test]
    fn files_get_content_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        write(&path, b"one", 0o100_755, Existing::Refuse).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
        write(&path, b"two", 0o600, Existing::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        write_atomically(&path, b"three", 0o600, Existing::Replace, Outlives::Death).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(names(folder.path()), ["program"]);
    }

    #[test]
    fn what_is_half_written_tells_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-2.json");
        let _half = Temporary::write(&path, b"", 0o600, Outlives::Death).unwrap();
        let names = names(folder.path());
        assert_eq!(writer_of(&names[0]), Some(std::process::id() as i32), "{names:?}");
        for other in ["1-2.json", ".x.tmp", ".x.1.tmp", ".x.1-.tmp", "x.1-2.tmp", ".x.1-2", ".x.a-2.tmp"] {
            assert_eq!(writer_of(other), None, "{other}");
        }
    }

    #[test]
    fn asking_leaves_everything_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        can_be_made(&path).unwrap();
        assert!(names(folder.path()).is_empty());
        fs::write(&path, b"input").unwrap();
        can_be_made(&path).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"input".into(), vec!["program".into()])
        );
        let error = can_be_made(&folder.path().join("none/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_there_is_not_overwritten_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, b"input").unwrap();
        let error = write(&path, b"output", 0o755, Existing::Refuse).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"input");
        assert_eq!(names(folder.path()), ["program"]);
    }

    #[test]
    fn failures_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing/program");
        assert_eq!(
            write(&missing, b"", 0o755, Existing::Replace).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        // A directory cannot be replaced by a file.
        let path = folder.path().join("directory");
        fs::create_dir(&path).unwrap();
        assert!(write(&path, b"x", 0o755, Existing::Replace).is_err());
        assert_eq!(names(folder.path()), ["directory"]);
    }
}
