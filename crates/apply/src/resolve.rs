//! Where a path that the user has named leads.
//!
//! Problem: whoever may write to a folder on the way (`/tmp`, another user's home) can put a symbolic link
//! there at any moment, and a path that is looked up twice leads to two places. Idea: it is looked up once,
//! name by name, each in the folder that the last one led to, and what is done is done in the folder that was
//! found, by its descriptor.
//!
//! Links are followed by the rule that the kernel has for shared folders (`fs.protected_symlinks`,
//! proc_sys_fs(5)), in all folders: only if the link's owner is this user, root or the folder's owner. The
//! last name says which file is replaced: there only links of this user's and root's are followed.
//!
//! A pipe makes whoever opens it wait for its other end: the same holds for those with a name
//! (`fs.protected_fifos`, also there). Pipes that this program was given open may be anybody's.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Most links on a way (as many as the kernel follows).
const MOST_LINKS: u32 = 40;

/// A name in a folder, whether or not there is such a file.
#[derive(Debug)]
pub(crate) struct Place {
    pub folder: OwnedFd,
    pub name: OsString,
}

/// What a path leads to.
#[derive(Debug)]
pub(crate) enum End {
    /// A name of which there is no file, or a regular one.
    Place(Place),
    /// Something that is written as it is: a pipe, a terminal, a file that has no name.
    Object(OwnedFd),
}

/// Whether a link at the end of the path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Followed,
    Itself,
}

/// The name of the very file behind a descriptor, which may be this thread's alone.
pub(crate) fn itself(object: &impl AsRawFd) -> String {
    format!("/proc/thread-self/fd/{}", object.as_raw_fd())
}

/// The folder that the path names, and its last name, which is not looked at.
///
/// # Errors
/// If the folder is not there, or a link leads to it that is not to be followed.
pub(crate) fn place_of(path: &Path) -> io::Result<Place> {
    match walk(path, Last::Itself)? {
        End::Place(place) => Ok(place),
        End::Object(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Where the path leads, by links at its end too.
///
/// # Errors
/// As for [`place_of`]; if it leads to a folder, in circles, or to another user's pipe.
pub(crate) fn end_of(path: &Path) -> io::Result<End> {
    walk(path, Last::Followed)
}

impl Place {
    /// What has the name; `None` if nothing has.
    pub fn look(&self) -> io::Result<Option<Stat>> {
        look(&self.folder, &self.name)
    }
}

fn walk(path: &Path, last: Last) -> io::Result<End> {
    let mut way: VecDeque<OsString> = VecDeque::new();
    let mut folder = begin(path, &mut way)?;
    let (mut shown, mut links) = (beginning(path), 0);
    while let Some(name) = way.pop_front() {
        let is_last = way.is_empty();
        shown.push(&name);
        if name == ".." || name == "/" {
            folder = descend(&folder, &name)?;
            continue;
        }
        if is_last && last == Last::Itself {
            return Ok(End::Place(Place { folder, name }));
        }
        let Some(about) = look(&folder, &name)? else {
            return if is_last {
                Ok(End::Place(Place { folder, name }))
            } else {
                Err(io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", shown.display())))
            };
        };
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Symlink => {
                links += 1;
                may_follow(&folder, &about, is_last).map_err(|owner| foreign_link(&shown, owner))?;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()));
                }
                // The kernel's links to what a process has open may lead to what has no name.
                match of_process(&folder, &name)? {
                    Some(object) if is_last => return Ok(End::Object(object)),
                    Some(object) => folder = object,
                    None => {
                        let text = OsString::from_vec(readlinkat(&folder, &name, Vec::new())?.into_bytes());
                        shown.pop();
                        shown.push(beginning(Path::new(&text)));
                        let mut rest = VecDeque::new();
                        if let Some(root) = begin_anew(Path::new(&text), &mut rest)? {
                            folder = root;
                        }
                        rest.append(&mut way);
                        way = rest;
                    }
                }
            }
            FileType::Directory => folder = descend(&folder, &name)?,
            FileType::RegularFile if is_last => return Ok(End::Place(Place { folder, name })),
            _ if is_last => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let object = openat(&folder, &name, flags, Mode::empty())?;
                may_wait_for(&object, &shown)?;
                return Ok(End::Object(object));
            }
            _ => return Err(io::ErrorKind::NotADirectory.into()),
        }
    }
    Err(io::ErrorKind::IsADirectory.into())
}

/// How a path that begins like this one is shown, without its names.
fn beginning(path: &Path) -> PathBuf {
    PathBuf::from(if path.has_root() { "/" } else { "" })
}

/// The folder that a path begins in; its names go to `way`.
fn begin(path: &Path, way: &mut VecDeque<OsString>) -> io::Result<OwnedFd> {
    match begin_anew(path, way)? {
        Some(root) => Ok(root),
        None => descend(CWD, OsStr::new(".")),
    }
}

/// The root, if the path begins there; its names go to `way`.
fn begin_anew(path: &Path, way: &mut VecDeque<OsString>) -> io::Result<Option<OwnedFd>> {
    let names = path.components().filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
    way.extend(names.map(|c| c.as_os_str().to_owned()));
    path.has_root().then(|| descend(CWD, OsStr::new("/"))).transpose()
}

fn descend(folder: impl std::os::fd::AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::empty())?)
}

fn look(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<Stat>> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(about) => Ok(Some(about)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a link in `folder` is to be followed; else its owner.
fn may_follow(folder: &OwnedFd, link: &Stat, is_last: bool) -> Result<(), u32> {
    let is_folders =
        || !is_last && rustix::fs::fstat(folder).is_ok_and(|folder| folder.st_uid == link.st_uid);
    if is_trusted(link.st_uid) || is_folders() { Ok(()) } else { Err(link.st_uid) }
}

/// Whether a user is this program's, or root.
fn is_trusted(user: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&user)
}

/// That this is no pipe whose other end another user may keep everybody waiting at.
fn may_wait_for(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let about = rustix::fs::fstat(object)?;
    let (is_pipe, owner) = (FileType::from_raw_mode(about.st_mode) == FileType::Fifo, about.st_uid);
    if !is_pipe || is_trusted(owner) {
        return Ok(());
    }
    let path = path.display();
    let why = format!(
        "{path} is a pipe of another user (number {owner}), which is not waited for; name another path, or have the shell open it if it is meant (/dev/stdout with > {path}, /dev/stdin with < {path})"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn foreign_link(path: &Path, owner: u32) -> io::Error {
    let path = path.display();
    let why = format!(
        "{path} is a symbolic link of another user (number {owner}), which is not followed; name another path, or the one that it leads to if that is meant"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// What a link in `/proc` leads to, unless that has a name of its own, by which it can be replaced.
fn of_process(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    if rustix::fs::fstatfs(folder)?.f_type != rustix::fs::PROC_SUPER_MAGIC {
        return Ok(None);
    }
    let object = openat(folder, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let about = rustix::fs::fstat(&object)?;
    let text = PathBuf::from(OsString::from_vec(readlinkat(folder, name, Vec::new())?.into_bytes()));
    let named = || statat(CWD, &text, AtFlags::SYMLINK_NOFOLLOW).ok();
    let is_named = text.has_root()
        && named().is_some_and(|named| (named.st_dev, named.st_ino) == (about.st_dev, about.st_ino));
    let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
    Ok((!(is_file && is_named)).then_some(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    /// The folder's and the file's names, as far as the path leads to such.
    fn ends(path: &Path) -> Result<(PathBuf, OsString), String> {
        match end_of(path).map_err(|e| e.to_string())? {
            End::Place(place) => {
                let folder = fs::read_link(format!("/proc/self/fd/{}", place.folder.as_raw_fd())).unwrap();
                Ok((folder, place.name))
            }
            End::Object(_) => Err("an object".into()),
        }
    }

    #[test]
    fn links_lead_where_the_kernel_says() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/b/file"), "").unwrap();
        symlink("a/b", base.join("relative")).unwrap();
        symlink(base.join("a"), base.join("absolute")).unwrap();
        symlink("../../absolute/b/file", base.join("a/b/link")).unwrap();
        symlink("circle", base.join("circle")).unwrap();
        let found = |path: &str| ends(&base.join(path));
        let inner = |name: &str| Ok((base.join("a/b"), OsString::from(name)));
        for path in ["a/b/file", "relative/file", "absolute/b/file", "a/b/link", "a/../relative/./link"] {
            assert_eq!(found(path), inner("file"), "{path}");
        }
        assert_eq!(found("absolute/b/none"), inner("none"));
        for bad in ["none/file", "a/b/file/x", "a/b", "relative", "circle", "circle/x"] {
            assert!(found(bad).is_err(), "{bad}");
        }
        for (path, missing) in
            [("none/file", "none"), ("relative/none/x", "a/b/none"), ("absolute/none/x", "a/none")]
        {
            let expected = format!("{} does not exist", base.join(missing).display());
            assert_eq!(found(path), Err(expected), "{path}");
        }
        let place = place_of(&base.join("relative/link")).unwrap();
        assert_eq!(place.name, "link");
        assert_eq!(FileType::from_raw_mode(place.look().unwrap().unwrap().st_mode), FileType::Symlink);
        assert!(place_of(Path::new("/")).is_err());
    }

    #[test]
    fn what_is_open_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().canonicalize().unwrap();
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", file.as_file().as_raw_fd()));
        let expected = (path.parent().unwrap().to_path_buf(), path.file_name().unwrap().to_owned());
        assert_eq!(ends(&by_number), Ok(expected));
        let open = fs::File::options().read(true).write(true).open(&path).unwrap();
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        drop(file);
        assert_eq!(ends(&by_number), Err("an object".into()), "it has no name any more");
        assert_eq!(ends(Path::new("/dev/null")), Err("an object".into()));
    }

    /// Whose links are followed where.
    #[test]
    fn links_of_others_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        if fs::metadata(&base).unwrap().uid() != 0 {
            println!("SKIPPED: only root can give files away");
            return;
        }
        let (other, third) = (65533, 65532);
        fs::create_dir_all(base.join("theirs")).unwrap();
        fs::create_dir_all(base.join("real")).unwrap();
        for (link, to) in [
            ("link", "real/file"),
            ("dir", "real"),
            ("theirs/link", "../real/file"),
            ("theirs/dir", "../real"),
            ("theirs/third", "../real"),
        ] {
            symlink(to, base.join(link)).unwrap();
            lchown(base.join(link), Some(if link.ends_with("third") { third } else { other }), None).unwrap();
        }
        lchown(base.join("theirs"), Some(other), None).unwrap();
        let why = |path: &str| ends(&base.join(path)).err().unwrap_or_default();
        for path in ["link", "dir/file", "theirs/link", "theirs/third/file"] {
            assert!(why(path).contains("another user"), "{path}: {}", why(path));
        }
        assert_eq!(why("theirs/dir/file"), "", "in its owner's folder");
        lchown(base.join("theirs/link"), Some(0), None).unwrap();
        assert_eq!(why("theirs/link"), "", "our own");
        assert_eq!(place_of(&base.join("link")).unwrap().name, "link", "what is replaced itself");
    }

    /// Which pipes are opened: those of others only if they were given open.
    #[test]
    fn pipes_of_others_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().canonicalize().unwrap().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(ends(&pipe), Err("an object".into()), "our own");
        let (reader, _writer) = io::pipe().unwrap();
        let anonymous = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        assert_eq!(ends(&anonymous), Err("an object".into()));
        if fs::metadata(&pipe).unwrap().uid() != 0 {
            println!("SKIPPED: only root can give files away");
            return;
        }
        lchown(&pipe, Some(65533), None).unwrap();
        let link = folder.path().join("link");
        symlink("pipe", &link).unwrap();
        for path in [&pipe, &link] {
            let why = ends(path).unwrap_err();
            assert!(
                why.contains(&format!("{} is a pipe of another user (number 65533)", pipe.display())),
                "{why}"
            );
        }
        rustix::fs::fchown(&reader, Some(rustix::fs::Uid::from_raw(65533)), None).unwrap();
        assert_eq!(ends(&anonymous), Err("an object".into()), "whoever started this program made it");
        let open = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        assert_eq!(ends(&by_number), Err("an object".into()), "opened before");
    }
}
