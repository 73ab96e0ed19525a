//! Writing a file so that nobody ever sees half of it.
//!
//! A path is looked up once ([`resolve`](crate::resolve)); the file is made, and gets its name, in the folder
//! that was found, wherever the path leads meanwhile.

use crate::pipe::{IsAsked, open_to_write};
use crate::resolve::{End, Place, end_of, itself, place_of};
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, renameat, unlinkat};
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
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

/// Writes `bytes` to `path` with the permission bits `mode` (as in `st_mode`; the process's umask does not
/// apply). The file is written under another name in the same directory and then given its name, so `path`
/// holds the old content or the new one at every moment.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if something is there that is to be left alone, else the system's reason;
/// nothing is left behind.
pub fn write_atomically(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    existing: Existing,
    outlives: Outlives,
) -> io::Result<()> {
    write_at(place_of(path)?, bytes, mode, existing, outlives)
}

fn write_at(place: Place, bytes: &[u8], mode: u32, existing: Existing, outlives: Outlives) -> io::Result<()> {
    if existing == Existing::Refuse && place.look()?.is_some() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = Temporary::write(place, bytes, mode, outlives)?;
    match existing {
        Existing::Replace => temporary.rename(),
        Existing::Refuse => temporary.link(),
    }
}

/// Writes what the user asked for, to where `path` leads, by links too, but for those of other users: a file
/// as [`write_atomically`] does, in place of one that is there; what is no file (a pipe, a terminal,
/// `/dev/stdout`) as it is, but for pipes of other users.
///
/// # Errors
/// The system's reason, that a link is not followed or a pipe not waited for, or
/// [`GivenUp`](crate::GivenUp) where nobody reads it; a file that was there is as before.
pub fn write_result(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    outlives: Outlives,
    is_asked: IsAsked<'_>,
) -> io::Result<()> {
    match end_of(path)? {
        End::Place(place) => write_at(place, bytes, mode, Existing::Replace, outlives),
        End::Object(object) => {
            let options = File::options().write(true).create(true).truncate(true).clone();
            open_to_write(&itself(&object), &options, is_asked)?.write_all(bytes)
        }
    }
}

/// Finds out whether [`write_result`] can write to `path`. What is there stays as it is.
///
/// # Errors
/// As for [`write_result`]; nothing is left behind.
pub fn can_be_written(path: &Path, is_asked: IsAsked<'_>) -> io::Result<()> {
    match end_of(path)? {
        End::Object(object) => {
            open_to_write(&itself(&object), File::options().append(true), is_asked).map(drop)
        }
        End::Place(place) if place.look()?.is_some() => {
            let flags =
                OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match openat(&place.folder, &place.name, flags, Mode::empty()) {
                // Somebody has taken it away just now.
                Err(rustix::io::Errno::NOENT) => {
                    Temporary::write(place, &[], 0o600, Outlives::Death).map(drop)
                }
                opened => Ok(opened.map(drop)?),
            }
        }
        End::Place(place) => Temporary::write(place, &[], 0o600, Outlives::Death).map(drop),
    }
}

/// Finds out whether [`write_atomically`] can make a file beside `path`, by making one under another name,
/// which is removed at once: `path` itself is not touched, so that whoever writes it at the same time is not
/// disturbed.
///
/// # Errors
/// The system's reason; nothing is left behind.
pub fn can_be_made(path: &Path) -> io::Result<()> {
    Temporary::write(place_of(path)?, &[], 0o600, Outlives::Death).map(drop)
}

/// Of a file name: the process that was writing to it, if it is one under which [`write_atomically`] begins.
pub fn writer_of(name: &str) -> Option<i32> {
    let (_, id) = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    let (process, number) = id.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

/// A file that is removed when dropped.
struct Temporary {
    /// Where it is to be in the end.
    place: Place,
    name: OsString,
}

impl Temporary {
    fn write(place: Place, bytes: &[u8], mode: u32, outlives: Outlives) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (this, mut file) = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".{}.{}-{number}.tmp", place.name.to_string_lossy(), std::process::id());
            // Not through a link, which would be there already.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(&place.folder, &name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => break (Self { place, name: name.into() }, File::from(file)),
                // Left behind by a killed process of the same number.
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        };
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        if outlives == Outlives::PowerCut {
            file.sync_all()?;
        }
        Ok(this)
    }
    fn rename(&self) -> io::Result<()> {
        let Place { folder, name } = &self.place;
        Ok(renameat(folder, &self.name, folder, name)?)
    }
    /// Gives the file its name, if nothing has that name. File systems without hard links get a check and a
    /// rename.
    fn link(&self) -> io::Result<()> {
        let Place { folder, name } = &self.place;
        match linkat(folder, &self.name, folder, name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) if self.place.look()?.is_none() => self.rename(),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename it is gone, which is as well.
        let _ = unlinkat(&self.place.folder, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        let _half = Temporary::write(place_of(&path).unwrap(), b"", 0o600, Outlives::Death).unwrap();
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
