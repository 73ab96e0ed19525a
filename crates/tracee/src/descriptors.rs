//! Descriptors that a command shall not have, and those of one thread alone.

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

/// Gives the calling thread a table of descriptors of its own, a copy of the one that all threads share: what
/// it opens from now on is closed at its end, whatever the others do. So the breakpoints of a tracing thread
/// are gone before the kernel lets the traced threads go, if this program is killed (the kernel closes a
/// thread's files before it looks for what the thread traced; kernel/exit.c, `do_exit`); otherwise the others
/// would keep them until they, too, had a processor to end on.
///
/// **What is opened before must not be closed after it, and nothing may be handed to other threads**: a
/// number means another file there. Whether it has one: not before Linux 5.9, or where that is forbidden; all
/// is as it was then.
pub fn own_descriptors() -> bool {
    // SAFETY: no pointers. Every number stays open in this thread, for the same file.
    unsafe {
        // The range is empty: only the table is copied. (Containers often forbid unshare(2), not this.)
        libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_a_thread_with_descriptors_of_its_own_opens_is_its_own() {
        let before = File::open("/dev/null").unwrap();
        let seen = |thread: &str, fd| std::fs::read_link(format!("/proc/{thread}/fd/{fd}")).ok();
        let null = Some("/dev/null".into());
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| {
                let has = own_descriptors();
                assert_eq!(seen("thread-self", before.as_raw_fd()), null);
                let opened = File::open("/dev/zero").unwrap();
                // High enough that no other test has it.
                // SAFETY: the number is that of an open file; nobody closes the copy but the thread's end.
                let copy = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700) };
                assert!(seen("thread-self", copy).is_some());
                // What looks descriptors up by name has to look in the right table.
                let name = std::path::Path::new("/proc/self/exe");
                assert!(restitch_procfs::open_regular(name).is_ok());
                (has, copy)
            });
            let (has, copy) = alone.join().unwrap();
            if !has {
                return println!("SKIPPED: the kernel gives threads no descriptors of their own");
            }
            assert!(copy >= 700 && seen("self", copy).is_none(), "{copy}");
        });
        assert_eq!(seen("self", before.as_raw_fd()), null);
    }

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
