//! Opening the very file that a process has mapped, although its path may name another one by now or be in
//! another mount namespace.

use crate::error::ProcError;
use crate::holder;
use crate::holder::shared_path;
use crate::maps::{Device, Mapping};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So long a file system may take to open a file.
const UNSERVED_AFTER: Duration = Duration::from_secs(2);

/// Which file, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    /// The device that it lies on.
    pub device: Device,
    /// Its inode number there.
    pub inode: u64,
}

impl FileIdentity {
    /// The identity of an open file.
    pub fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let device = metadata.dev();
        Ok(Self {
            device: Device { major: libc::major(device), minor: libc::minor(device) },
            inode: metadata.ino(),
        })
    }

    /// Whether the maps file's device and inode mean this file. On file systems without a device of their own
    /// (major number 0: btrfs, overlayfs) the maps file may give another minor number than `stat` does, so
    /// there only the inode decides.
    pub fn matches(&self, mapping: &Mapping) -> bool {
        let nameless = self.device.major == 0 && mapping.device.major == 0;
        self.inode == mapping.inode && (self.device == mapping.device || nameless)
    }
}

/// A file that a process has mapped.
#[derive(Debug)]
pub struct OpenedFile {
    /// The file, open for reading.
    pub file: File,
    /// Through which name it was opened.
    pub via: PathBuf,
}

/// Opens a regular file for reading. What somebody else has put at the path in its place is looked at only:
/// to open a FIFO waits for a writer, and to open a device may do something.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    read_regular(&found)
}

/// Opens the regular file that `found` (`O_PATH`) leads to.
fn read_regular(found: &impl AsRawFd) -> io::Result<File> {
    // The very file that was found, whatever has its name by now. (A thread may have descriptors of its own.)
    let itself = PathBuf::from(format!("/proc/thread-self/fd/{}", found.as_raw_fd()));
    if !std::fs::metadata(&itself)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(&itself)
}

/// Opens a file by the name that it has in the mount namespace of process `pid`, where links that are
/// absolute lead to that process's root, not to ours (openat2(2) with `RESOLVE_IN_ROOT`, Linux 5.6).
fn open_in_root(pid: i32, path: &Path) -> io::Result<File> {
    let root = File::options().read(true).custom_flags(libc::O_PATH).open(shared_path(pid, "root"))?;
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all bytes zero are a value of this structure of numbers.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the kernel reads the name, which ends with a zero byte, and the structure, whose size it is
    // told; both live until the call returns.
    let found = unsafe {
        libc::syscall(libc::SYS_openat2, root.as_raw_fd(), name.as_ptr(), &raw const how, size_of_val(&how))
    };
    match i32::try_from(found) {
        // SAFETY: the kernel has just given this descriptor to us, and nobody else knows it.
        Ok(fd) if fd >= 0 => read_regular(&unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the file behind `mapping` of process `pid` for reading.
///
/// First through `/proc/PID/map_files`, which names the mapped file itself even when it was deleted (needs
/// `CAP_CHECKPOINT_RESTORE` or root), else through the process's root directory. Either way device and inode
/// are those of `mapping`: another file may have been mapped at the same addresses since it was read. Only
/// regular files are opened, whatever the process has put at the name since.
///
/// A file system of a program's (FUSE), or of another machine's, may never answer, and whoever waits for it
/// can only be killed: such files are waited for by a thread of their own, and not for ever.
///
/// # Errors
/// [`ProcError::Replaced`] if the file cannot be reached any more, [`ProcError::Unserved`] if its file system
/// does not answer.
pub fn open_mapped(pid: i32, mapping: &Mapping) -> Result<OpenedFile, ProcError> {
    // (Those that a kernel serves by itself have a device of their own, but for stacked ones and some more.)
    if mapping.device.major != 0 {
        return open_now(pid, mapping);
    }
    let (wanted, device) = (mapping.clone(), mapping.device);
    let opened =
        if is_silent(device) { None } else { answer_of(UNSERVED_AFTER, move || open_now(pid, &wanted)) };
    opened.unwrap_or_else(|| {
        silent().insert(device, Instant::now());
        let path = mapping.path().unwrap_or(Path::new("a file")).to_path_buf();
        Err(ProcError::Unserved { pid, path })
    })
}

/// Devices that did not answer, and when that was told last: a program may have many files of one.
fn silent() -> MutexGuard<'static, BTreeMap<Device, Instant>> {
    static SILENT: Mutex<BTreeMap<Device, Instant>> = Mutex::new(BTreeMap::new());
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_silent(device: Device) -> bool {
    silent().get(&device).is_some_and(|since| since.elapsed() < UNSERVED_AFTER)
}

/// What `ask` says, if it does so in time. It goes on in a thread of its own, which ends with this program at
/// the latest. Where there may be no more threads, it is waited for.
fn answer_of<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Clone + Send + 'static,
) -> Option<T> {
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    let own = ask.clone();
    // Who has given up does not listen any more.
    match std::thread::Builder::new().spawn(move || drop(answer.send(own()))) {
        Ok(_) => answered.recv_timeout(patience).ok(),
        Err(_) => Some(ask()),
    }
}

fn open_now(pid: i32, mapping: &Mapping) -> Result<OpenedFile, ProcError> {
    let range = mapping.range;
    // The folders of threads have no such files, but their numbers lead to one, too; what is found there is
    // compared.
    let holder = holder(pid);
    let via =
        PathBuf::from(format!("/proc/{holder}/map_files/{:x}-{:x}", range.start.get(), range.end.get()));
    match open_regular(&via) {
        Ok(file) if is_behind(&file, pid, mapping) => return Ok(OpenedFile { file, via }),
        Err(source) if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            return Err(ProcError::from_io(pid, &via, source));
        }
        _ => {}
    }
    let Some(path) = mapping.path() else {
        let what = format!("no file is mapped at {range}");
        return Err(ProcError::Malformed { pid, path: via, what });
    };
    open_by_path(pid, mapping, path)
}

/// Whether the file that was found at a mapping's addresses is that mapping's. On stacked file systems
/// (overlayfs) `stat` may give another device and inode than the maps file; there the mapping has to be what
/// it was.
fn is_behind(file: &File, pid: i32, mapping: &Mapping) -> bool {
    FileIdentity::of(file).is_ok_and(|identity| {
        identity.matches(mapping)
            || identity.device.major == 0 && crate::maps(pid).is_ok_and(|maps| maps.contains(mapping))
    })
}

fn open_by_path(pid: i32, mapping: &Mapping, path: &Path) -> Result<OpenedFile, ProcError> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let via = shared_path(pid, "root").join(relative);
    let failed = |source: std::io::Error| match source.raw_os_error() {
        // The process is there (its maps were read), so it is the file that is missing.
        Some(libc::ENOENT) => ProcError::Replaced { pid, path: path.to_path_buf() },
        _ => ProcError::from_io(pid, &via, source),
    };
    let file = match open_in_root(pid, path) {
        // An older kernel, or a filter that does not know of openat2: links in the name may lead elsewhere,
        // and device and inode decide.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => open_regular(&via),
        opened => opened,
    };
    let file = file.map_err(failed)?;
    let identity = FileIdentity::of(&file).map_err(failed)?;
    if !identity.matches(mapping) {
        return Err(ProcError::Replaced { pid, path: path.to_path_buf() });
    }
    Ok(OpenedFile { file, via })
}

/// Opens the program that the process runs, through `/proc/PID/exe` (works for deleted files too). The kernel
/// has executed it, so it is a regular file. Its file system is waited for as with [`open_mapped`].
pub fn open_executable(pid: i32) -> Result<OpenedFile, ProcError> {
    let via = shared_path(pid, "exe");
    let wanted = via.clone();
    match answer_of(UNSERVED_AFTER, move || File::open(wanted)) {
        Some(Ok(file)) => Ok(OpenedFile { file, via }),
        Some(Err(source)) => Err(ProcError::from_io(pid, &via, source)),
        None => Err(ProcError::Unserved { pid, path: std::fs::read_link(&via).unwrap_or(via) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_not_waited_for_for_ever() {
        let (keeper, asked) = std::sync::mpsc::channel::<()>();
        let asked = std::sync::Arc::new(Mutex::new(asked));
        let ask = move || asked.lock().is_ok_and(|asked| asked.recv().is_ok());
        assert_eq!(answer_of(Duration::from_millis(10), ask), None);
        drop(keeper);
        assert_eq!(answer_of(Duration::from_secs(600), || 7), Some(7));
    }
}
