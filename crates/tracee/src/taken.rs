//! Memory files that the target has made for us, taken over to be written from here.
//!
//! Problem: only the target can make a file that it may map whatever its user, its namespaces and its
//! security module say, and its other threads run meanwhile. Whoever opens `/proc/PID/fd/N` for writing opens
//! what a thread of it has put there since (`dup2`): a file of root's, say, that the target itself may only
//! read. Idea: take the very descriptor (pidfd_getfd(2), Linux 5.6), which gives no right that the target
//! does not have itself, and then look at what it is. Only an empty file of the kernel's own memory file
//! system that nobody else has sealed is written: what the target can put there in place of ours is a memory
//! file that it may write as well.
//!
//! Its size is sealed before anything is mapped, and the code's content, too. What other threads write
//! meanwhile harms nobody but the target, which executes it; the content of counters and windows is what the
//! target says anyway, and is read as such.

use crate::arguments::RemoteFd;
use crate::borrow::Borrow;
use crate::error::{TraceError, Why, explained};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

/// `PIDFD_THREAD` (Linux 6.9): the number is that of a thread.
const PIDFD_THREAD: i32 = libc::O_EXCL;
/// `F_SEAL_EXEC` (Linux 6.3), which the system may set on each new memory file (`vm.memfd_noexec`).
const F_SEAL_EXEC: i32 = 0x20;

/// What can no longer be changed of a memory file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sealed {
    /// Its length: counters and windows, which the target writes.
    Length,
    /// Its content as well: code.
    Content,
}

/// A new memory file of the target's, empty as yet.
#[derive(Debug)]
pub struct TakenFile {
    pid: i32,
    file: File,
}

impl Borrow<'_> {
    /// Takes over the file that [`Borrow::memfd_create`] has just made.
    ///
    /// # Errors
    /// [`TraceError::NotItsMemoryFile`] if the descriptor is another file's by now, or the kernel does not
    /// give it away.
    pub fn take_memory_file(&self, fd: RemoteFd) -> Result<TakenFile, TraceError> {
        let pid = self.pid();
        let wrong = |why: Why| TraceError::NotItsMemoryFile { pid, why };
        let file = take(pid, self.thread(), fd.number()).map_err(|e| wrong(explained(of_kernel(&e), e)))?;
        let maker = restitch_procfs::thread_status(pid, self.thread())?.file_system_uid;
        match other_than_new(&file, maker) {
            Ok(None) => Ok(TakenFile { pid, file }),
            Ok(Some(what)) => {
                let why = format!("its descriptor is that of {what} by now; a thread of it exchanges them");
                Err(wrong(why.into()))
            }
            Err(error) => Err(wrong(error.into())),
        }
    }
}

impl TakenFile {
    /// Gives it this content, and a length in bytes that is as large or larger; then it is sealed.
    ///
    /// # Errors
    /// If there is no memory for it, or the target has sealed it meanwhile.
    pub fn fill(self, content: &[u8], len: u64, sealed: Sealed) -> Result<File, TraceError> {
        let Self { pid, file } = self;
        let filled =
            file.write_all_at(content, 0).and_then(|()| file.set_len(len)).and_then(|()| seal(&file, sealed));
        match filled {
            Ok(()) => Ok(file),
            Err(error) => Err(TraceError::NotItsMemoryFile { pid, why: error.into() }),
        }
    }
}

/// What the kernel's refusal to give a descriptor away means.
fn of_kernel(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no pidfd_getfd; that takes Linux 5.6 or later".into(),
        Some(libc::EPERM) => {
            format!("pidfd_getfd: {error} (a seccomp filter of restitch's own container, perhaps)")
        }
        Some(libc::EBADF) => {
            "its descriptor is closed already; a thread of it closes what it has not opened".into()
        }
        Some(libc::EMFILE) => {
            format!("{error}; restitch may not have so many files open: raise the limit (`ulimit -n 1024`)")
        }
        _ => format!("pidfd_getfd: {error}"),
    }
}

/// A descriptor of process `pid`.
pub(crate) fn pidfd(pid: i32, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })
}

/// What a system call has returned that makes a descriptor.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just given this descriptor to us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Descriptor number `fd` of thread `tid`, which mostly has those of its process; older kernels can only be
/// asked for these.
fn take(pid: i32, tid: i32, fd: i32) -> io::Result<File> {
    let thread = pidfd(tid, PIDFD_THREAD).or_else(|_| pidfd(pid, 0))?;
    // SAFETY: pidfd_getfd takes three plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), fd, 0) }).map(File::from)
}

/// What a descriptor is, if it is not that of an empty memory file that can be read, written and sealed and
/// that `maker` has just made.
fn other_than_new(file: &File, maker: Option<u32>) -> io::Result<Option<&'static str>> {
    let about = file.metadata()?;
    if !about.is_file() || about.nlink() != 0 || about.dev() != memory_device()? {
        return Ok(Some("another file"));
    }
    // The rest is true of memory files that somebody has given to the target.
    let seals = fcntl(file, libc::F_GET_SEALS, 0)? & !F_SEAL_EXEC;
    let is_writable = fcntl(file, libc::F_GETFL, 0)? & libc::O_ACCMODE == libc::O_RDWR;
    let is_new = seals == 0 && is_writable && about.len() == 0 && maker.is_none_or(|uid| uid == about.uid());
    Ok((!is_new).then_some("another memory file"))
}

/// The device of the kernel's own memory file system, which is mounted nowhere: no path leads there.
fn memory_device() -> io::Result<u64> {
    // SAFETY: the name ends with a zero byte, and the kernel only reads it.
    let made =
        owned(libc::c_long::from(unsafe { libc::memfd_create(c"restitch".as_ptr(), libc::MFD_CLOEXEC) }));
    Ok(File::from(made?).metadata()?.dev())
}

fn seal(file: &File, sealed: Sealed) -> io::Result<()> {
    let content = if sealed == Sealed::Content { libc::F_SEAL_WRITE } else { 0 };
    fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | content)
        .map(drop)
}

/// fcntl(2) with a command that takes a number, or none.
fn fcntl(file: &File, command: i32, argument: i32) -> io::Result<i32> {
    // SAFETY: the commands in this file take a plain number, so no memory is touched.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_file(flags: libc::c_uint) -> File {
        // SAFETY: as in `memory_device`.
        File::from(owned(libc::c_long::from(unsafe { libc::memfd_create(c"test".as_ptr(), flags) })).unwrap())
    }

    fn judged(file: &File, maker: Option<u32>) -> Option<&'static str> {
        other_than_new(file, maker).unwrap()
    }

    #[test]
    fn only_a_new_memory_file_is_one() {
        let own = std::fs::metadata("/proc/self").unwrap().uid();
        let new = || memory_file(libc::MFD_ALLOW_SEALING);
        assert_eq!(judged(&new(), Some(own)), None);
        assert_eq!(judged(&new(), Some(own + 1)), Some("another memory file"));
        assert_eq!(judged(&memory_file(0), None), Some("another memory file"), "it cannot be sealed");
        let sealed = new();
        seal(&sealed, Sealed::Length).unwrap();
        assert_eq!(judged(&sealed, None), Some("another memory file"));
        let filled = new();
        filled.set_len(1).unwrap();
        assert_eq!(judged(&filled, None), Some("another memory file"), "somebody uses it");
        let path = format!("/proc/self/fd/{}", filled.as_raw_fd());
        filled.set_len(0).unwrap();
        assert_eq!(
            judged(&File::open(path).unwrap(), None),
            Some("another memory file"),
            "it is open for reading"
        );
    }

    #[test]
    fn files_with_names_are_none() {
        for place in ["/dev/shm", "/tmp", "/proc/self/mem", "/dev/null"] {
            let path = std::path::Path::new(place);
            let path = if path.is_dir() {
                path.join(format!("restitch-taken-{}", std::process::id()))
            } else {
                path.into()
            };
            let Ok(file) = File::options().read(true).write(true).create(true).truncate(false).open(&path)
            else {
                continue;
            };
            if path.starts_with("/dev/shm") || path.starts_with("/tmp") {
                std::fs::remove_file(&path).unwrap();
            }
            assert_eq!(judged(&file, None), Some("another file"), "{place}");
        }
    }

    #[test]
    fn what_is_sealed_stays() {
        for (sealed, may_write) in [(Sealed::Length, true), (Sealed::Content, false)] {
            let taken = TakenFile { pid: 1, file: memory_file(libc::MFD_ALLOW_SEALING) };
            let file = taken.fill(b"code", 8, sealed).unwrap();
            assert_eq!(file.write_all_at(b"x", 0).is_ok(), may_write);
            assert!(file.set_len(4).is_err() && file.set_len(9).is_err());
            assert!(fcntl(&file, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE).is_err());
            assert_eq!(file.metadata().unwrap().len(), 8);
        }
    }
}
