//! Descriptors that a command shall not have.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first descriptor behind the standard streams.
const FIRST: u32 = 3;
/// Up to where is looked where the kernel (before 5.11) cannot do it in one go.
const MOST: u64 = 1 << 16;

/// Lets `command` have its standard streams only, whatever this program was given by who started it: a lock
/// would be held, and the reader of a pipe would wait, for as long as the command runs.
pub fn close_on_exec(command: &mut Command) {
    // SAFETY: the closure makes system calls only, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            mark_all();
            Ok(())
        });
    }
}

fn mark_all() {
    // SAFETY: no pointers but `limit`, a live local of the type that the kernel fills in. Marking a
    // descriptor closes nothing in this process.
    unsafe {
        if libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) == 0 {
            return;
        }
        let mut limit = libc::rlimit { rlim_cur: MOST, rlim_max: MOST };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in FIRST as i32..limit.rlim_cur.min(MOST) as i32 {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_the_standard_streams_are_left() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the file is open; the copy is closed below.
        let copy = unsafe { libc::dup(file.as_raw_fd()) };
        assert!(copy > 2);
        let look = || {
            let mut command = Command::new("test");
            command.arg("-e").arg(format!("/proc/self/fd/{copy}"));
            command
        };
        assert!(look().status().unwrap().success(), "a copy is inherited");
        let mut alone = look();
        close_on_exec(&mut alone);
        assert!(!alone.status().unwrap().success());
        // SAFETY: it was made above and nobody else knows of it.
        unsafe { libc::close(copy) };
    }
}
