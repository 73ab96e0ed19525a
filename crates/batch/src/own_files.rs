//! The files of the cache: whose they are, and how much of them is read.
//!
//! **Problem.** What is in the cache is executed, and what stands beside it is believed. Somebody else may
//! have put it there: in a folder that others may write to, by a link that leads elsewhere, as a pipe that is
//! waited for, as a file without an end.
//!
//! **Idea.** The folder and all folders above it belong to this user or to root, and nobody else may write to
//! them. Each file is opened without following a link and without waiting, has to be a regular one of this
//! user or of root that nobody else may write to, and is read up to a bound. What is in it is no more than
//! data: numbers are bounded where they are used.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Most bytes of a note: what is known of a module, what a session cost.
pub(crate) const MOST_OF_NOTE: u64 = 1 << 20;
/// Most bytes of what grows with a program: samples by place, profiles.
pub(crate) const MOST_OF_DATA: u64 = 1 << 28;
/// Most bytes of an overlay or of its counts.
pub(crate) const MOST_OF_OVERLAY: u64 = 1 << 32;
/// Most links on the way to a folder; the kernel follows as many.
const MOST_LINKS: usize = 40;
/// Others may write (group, all).
const BY_OTHERS: u32 = 0o022;
const OF_GROUP: u32 = 0o020;
/// Who may write may remove what is his own alone.
const STICKY: u32 = 0o1000;

/// Opens a file of the cache for reading.
///
/// # Errors
/// If it cannot be opened, or is not trusted.
pub(crate) fn open_own(path: &Path) -> Result<File> {
    trusted(OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?)
}

/// The same for writing as well.
///
/// # Errors
/// As there.
pub(crate) fn open_own_for_writing(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    trusted(options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?)
}

/// Opens a file that is there to be locked, which is made if it is not there.
///
/// # Errors
/// If it cannot be opened or made, or is not trusted.
pub(crate) fn open_lock(path: &Path) -> Result<File> {
    let make = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match open_own_for_writing(path) {
        // Another session may make it just now.
        Err(e) if e.kind() == ErrorKind::NotFound => make().or_else(|_| open_own_for_writing(path)),
        other => other,
    }
}

/// Reads a file of the cache of at most `most` bytes.
///
/// # Errors
/// If it cannot be read, is not trusted, or is longer.
pub(crate) fn read_own(path: &Path, most: u64) -> Result<Vec<u8>> {
    read_up_to(&open_own(path)?, most)
}

/// Opens a regular file, whoever it belongs to, also by a link. What is none is not waited for.
///
/// # Errors
/// If it cannot be opened, or is none.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(refused("it is no regular file")),
    }
}

fn read_up_to(mut file: &File, most: u64) -> Result<Vec<u8>> {
    let len = file.metadata()?.len();
    if len > most {
        return Err(refused("it is longer than any that restitch writes"));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    // It may be growing.
    file.by_ref().take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn trusted(file: File) -> Result<File> {
    let status = file.metadata()?;
    match () {
        () if !status.is_file() => Err(refused("it is no regular file")),
        () if !is_ours(&status) => Err(refused("it belongs to another user")),
        () if status.mode() & BY_OTHERS != 0 => Err(refused("others may write to it")),
        () => Ok(file),
    }
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, why)
}

/// The user of this process.
pub(crate) fn own_user() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |m| m.uid())
}

fn is_ours(status: &Metadata) -> bool {
    status.uid() == 0 || status.uid() == own_user()
}

/// Whether nobody but this user and root can put anything in the place of the folder at `path`: whose it is,
/// and the folders above it, and those that links on the way lead through. A folder that all may write to and
/// where each may only remove his own (as `/tmp`) may be above it.
///
/// # Errors
/// Which of them is not so, and why.
pub(crate) fn check_folders(path: &Path) -> std::result::Result<(), (PathBuf, &'static str)> {
    let (mut at, mut rest, mut links) = (PathBuf::from("/"), parts(path), 0);
    check_folder(&at, false)?;
    while let Some(part) = rest.pop_front() {
        match part.to_str() {
            Some("..") => drop(at.pop()),
            _ => at.push(&part),
        }
        let status = std::fs::symlink_metadata(&at).map_err(|_| (at.clone(), "it cannot be looked at"))?;
        if status.is_symlink() {
            links += 1;
            if links > MOST_LINKS || !is_ours(&status) {
                return Err((at, "it is a link of another user"));
            }
            let target = std::fs::read_link(&at).map_err(|_| (at.clone(), "it cannot be looked at"))?;
            at = if target.is_absolute() { PathBuf::from("/") } else { parent_of(&at) };
            let mut new = parts(&target);
            new.append(&mut rest);
            rest = new;
        } else {
            check_folder(&at, rest.is_empty())?;
        }
    }
    Ok(())
}

/// What a path names one after the other.
fn parts(path: &Path) -> VecDeque<OsString> {
    let plain = |c: &Component<'_>| matches!(c, Component::Normal(_) | Component::ParentDir);
    path.components().filter(plain).map(|c| c.as_os_str().to_owned()).collect()
}

fn parent_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).into()
}

/// A folder; the `last` one has to be safe against everybody.
fn check_folder(path: &Path, last: bool) -> std::result::Result<(), (PathBuf, &'static str)> {
    let bad = |why| Err((path.to_path_buf(), why));
    let Ok(status) = std::fs::symlink_metadata(path) else { return bad("it cannot be looked at") };
    match () {
        () if !status.is_dir() => bad("it is no folder"),
        () if !is_ours(&status) => bad("it belongs to another user"),
        () if status.mode() & BY_OTHERS == 0 || is_of_own_group(&status) => Ok(()),
        () if status.mode() & STICKY != 0 && !last => Ok(()),
        () => bad("others may write to it (chmod go-w would forbid that)"),
    }
}

/// Whether the group alone may write beside the user, and is the user's own: of the same number, as systems
/// with a group for each user have it.
fn is_of_own_group(status: &Metadata) -> bool {
    status.mode() & BY_OTHERS == OF_GROUP && status.gid() == status.uid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn links_pipes_long_files_and_those_that_others_may_write_to_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, pipe) =
            (folder.path().join("file"), folder.path().join("link"), folder.path().join("pipe"));
        std::fs::write(&file, "12345").unwrap();
        mode(&file, 0o600);
        assert_eq!(read_own(&file, 5).unwrap(), b"12345");
        assert!(read_own(&file, 4).is_err());
        symlink("file", &link).unwrap();
        assert!(read_own(&link, 5).is_err() && open_own_for_writing(&link).is_err());
        assert!(open_regular(&link).is_ok());
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for refused in [&pipe, folder.path()] as [&Path; 2] {
            assert!(read_own(refused, 5).is_err() && open_regular(refused).is_err(), "{refused:?}");
        }
        for others in [0o620, 0o602] {
            mode(&file, others);
            assert!(read_own(&file, 5).is_err() && open_own_for_writing(&file).is_err());
        }
        mode(&file, 0o644);
        if own_user() == 0 {
            chown(&file, Some(12345), None).unwrap();
            assert!(read_own(&file, 5).is_err());
        }
    }

    #[test]
    fn every_folder_above_counts_those_behind_links_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (above, inner) = (base.join("above"), base.join("above/inner"));
        std::fs::create_dir_all(&inner).unwrap();
        [&above, &inner].into_iter().for_each(|f| mode(f, 0o755));
        assert_eq!(check_folders(&inner), Ok(()));
        symlink("above/../above/inner", base.join("link")).unwrap();
        symlink(base.join("link"), base.join("again")).unwrap();
        symlink("round", base.join("round")).unwrap();
        assert_eq!(check_folders(&base.join("again")), Ok(()));
        assert!(check_folders(&base.join("round")).is_err() && check_folders(&base.join("gone")).is_err());
        for (bad, last_too) in [(0o777, true), (0o757, true), (0o1777, false)] {
            mode(&above, bad);
            let found = check_folders(&inner).map_err(|(at, _)| at);
            let expected = if last_too { Err(above.clone()) } else { Ok(()) };
            assert_eq!(
                (&found, check_folders(&base.join("again")).map_err(|(at, _)| at)),
                (&expected, expected.clone())
            );
            assert_eq!(
                check_folders(&above).map_err(|(at, _)| at),
                Err(above.clone()),
                "{bad:o} as the last one"
            );
        }
        mode(&above, 0o755);
        if own_user() == 0 {
            chown(&above, Some(12345), None).unwrap();
            assert_eq!(check_folders(&inner), Err((above, "it belongs to another user")));
        }
    }
}
