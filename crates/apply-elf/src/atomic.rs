//! Writing a file so that nobody ever sees half of it.

use crate::ElfError;
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

/// Writes `bytes` to `path` with the permission bits `mode` (as in `st_mode`; the process's umask does not apply). The
/// file is written under another name in the same directory, synchronized and then given its name, so `path` holds the
/// old content or the new one at every moment.
///
/// # Errors
/// [`ElfError::Exists`] or [`ElfError::Io`]; nothing is left behind.
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> Result<(), ElfError> {
    let failed = |source| ElfError::Io { path: path.into(), source };
    if existing == Existing::Refuse && fs::symlink_metadata(path).is_ok() {
        return Err(ElfError::Exists(path.into()));
    }
    let temporary = Temporary::write(path, bytes, mode).map_err(failed)?;
    match existing {
        Existing::Replace => temporary.rename(path).map_err(failed),
        Existing::Refuse => temporary.link(path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => ElfError::Exists(path.into()),
            _ => failed(source),
        }),
    }
}

/// A file that is removed when dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn write(beside: &Path, bytes: &[u8], mode: u32) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = beside.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = beside.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let this = Self(path);
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        file.sync_all()?;
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

    #[test]
    fn files_get_content_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        write_atomically(&path, b"one", 0o100_755, Existing::Refuse).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
        write_atomically(&path, b"two", 0o600, Existing::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["program"]);
    }

    #[test]
    fn what_is_there_is_not_overwritten_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, b"input").unwrap();
        let error = write_atomically(&path, b"output", 0o755, Existing::Refuse).unwrap_err();
        assert!(error.to_string().contains("the file exists; choose another output path"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"input");
        assert_eq!(names(folder.path()), ["program"]);
    }

    #[test]
    fn failures_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing/program");
        assert!(matches!(
            write_atomically(&missing, b"", 0o755, Existing::Replace),
            Err(ElfError::Io { .. })
        ));
        // A directory cannot be replaced by a file.
        let path = folder.path().join("directory");
        fs::create_dir(&path).unwrap();
        assert!(matches!(write_atomically(&path, b"x", 0o755, Existing::Replace), Err(ElfError::Io { .. })));
        assert_eq!(names(folder.path()), ["directory"]);
    }
}
