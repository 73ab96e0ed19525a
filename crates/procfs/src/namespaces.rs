//! In which namespaces numbers and starting times of processes mean what they say (namespaces(7)).

use crate::process::processes;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inode number of the pid namespace that all others are below (`PROC_PID_INIT_INO` in
/// include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xeffffffc;

/// What a process's number and start were read in, as inode numbers; 0 for what the kernel does not have or
/// tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// The pid namespace.
    pub pid: u64,
    /// The time namespace.
    pub time: u64,
}

impl Namespaces {
    /// Those of this process.
    pub fn own() -> Self {
        Self { pid: inode(Path::new("/proc/self/ns/pid")), time: inode(Path::new("/proc/self/ns/time")) }
    }

    /// Whether all processes of the machine are seen from here.
    pub fn sees_all(self) -> bool {
        self.pid == FIRST_PID_NAMESPACE
    }

    /// Whether a process may be in this pid namespace, of those that are seen from here: one that does not
    /// tell may be.
    pub fn may_have_processes(self) -> bool {
        let of = |pid: i32| inode(Path::new(&format!("/proc/{pid}/ns/pid")));
        let is_in = |pid: i32| matches!(of(pid), number if number == 0 || number == self.pid);
        // (Kernel threads tell their namespace, too, and who has just ended is gone.)
        let lives = |pid: i32| Path::new(&format!("/proc/{pid}")).exists();
        processes().map_or(true, |all| all.into_iter().any(|pid| is_in(pid) && lives(pid)))
    }
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |about| about.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_its_own_namespaces() {
        let own = Namespaces::own();
        assert_ne!(own.pid, 0);
        assert!(own.may_have_processes());
        if own.sees_all() && std::fs::metadata("/proc/1/ns/pid").is_ok() {
            assert!(!Namespaces { pid: 1, ..own }.may_have_processes());
        }
    }
}
