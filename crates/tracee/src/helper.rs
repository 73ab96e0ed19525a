//! Touching memory of another process in a process of its own, which may be given up.
//!
//! A wait for the server of a file cannot be ended, so it is somebody else's: a grandchild, whom nobody here
//! has to collect. It has no descriptors but two, or it would hold locks and outputs of this program for as
//! long as it waits.

use restitch_address::Avma;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Reads a byte of each of `pages` of a process's `memory`, whether that can be read or not. Whether that was
/// done in time.
pub(crate) fn touch(memory: &File, pages: &[Avma], patience: Duration) -> bool {
    let Ok((answer, told)) = io::pipe() else { return false };
    // SAFETY: the child calls nothing but what signal-safety(7) permits after a fork of a program with
    // threads, and ends without coming back.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: this is the child; both descriptors are open, and nothing here is used after it.
        unsafe { begin(memory.as_raw_fd(), told.as_raw_fd(), pages) }
    }
    drop(told);
    if child < 0 {
        return false;
    }
    // SAFETY: it is our child, forked by this thread, which ends at once; no status is asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    has_answered(answer, patience)
}

/// The grandchild tells its number first, then a byte when it is done.
fn has_answered(mut answer: impl Read + AsRawFd, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let mut number = [0; 4];
    let mut done = [0];
    if !is_readable(answer.as_raw_fd(), until) || answer.read_exact(&mut number).is_err() {
        return false;
    }
    if is_readable(answer.as_raw_fd(), until) {
        return answer.read_exact(&mut done).is_ok();
    }
    // SAFETY: no memory is concerned. It is the grandchild: it has not ended, or the answer would.
    unsafe { libc::kill(i32::from_le_bytes(number), libc::SIGKILL) };
    false
}

/// Whether something, an end perhaps, can be read of a pipe before `until`.
fn is_readable(pipe: RawFd, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut asked = libc::pollfd { fd: pipe, events: libc::POLLIN, revents: 0 };
        // Rounded up.
        let milliseconds = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: one live structure, as the count says.
        let found = unsafe { libc::poll(&raw mut asked, 1, milliseconds) };
        let interrupted = found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if !interrupted || left.is_zero() {
            return found > 0;
        }
    }
}

/// In the child: forks once more and ends; the grandchild touches the pages.
///
/// # Safety
/// To be called in a forked child, with two open descriptors.
unsafe fn begin(memory: RawFd, told: RawFd, pages: &[Avma]) -> ! {
    // SAFETY: all of these are permitted after a fork (signal-safety(7)); the descriptors are the caller's
    // promise, the buffers are live with the lengths that are given, and `_exit` does not come back.
    unsafe {
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        // Out of the way of 0 and 1 first.
        let (memory, told) = (libc::fcntl(memory, libc::F_DUPFD, 3), libc::fcntl(told, libc::F_DUPFD, 3));
        libc::dup2(memory, 0);
        libc::dup2(told, 1);
        if libc::syscall(libc::SYS_close_range, 2u32, u32::MAX, 0u32) != 0 {
            (2..1 << 16).for_each(|fd| {
                libc::close(fd);
            });
        }
        let number = libc::getpid().to_le_bytes();
        libc::write(1, number.as_ptr().cast(), number.len());
        let mut byte = 0u8;
        for page in pages {
            libc::pread(0, (&raw mut byte).cast(), 1, page.get().cast_signed());
        }
        libc::write(1, (&raw const byte).cast(), 1);
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_touched_and_an_end_is_no_answer() {
        let memory = File::open("/proc/self/mem").expect("our own");
        let own = Avma::new(&raw const memory as u64);
        assert!(touch(&memory, &[own, Avma::new(8)], Duration::from_secs(60)));
        let (answer, told) = io::pipe().expect("a pipe");
        drop(told);
        assert!(!has_answered(answer, Duration::from_secs(60)));
    }

    #[test]
    fn nobody_is_waited_for_longer_than_is_said() {
        let (answer, told) = io::pipe().expect("a pipe");
        let begun = Instant::now();
        assert!(!has_answered(answer, Duration::from_millis(20)));
        assert!(begun.elapsed() >= Duration::from_millis(20));
        drop(told);
    }
}
