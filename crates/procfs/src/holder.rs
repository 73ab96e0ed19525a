//! Under which name `/proc` shows the memory of a process.
//!
//! **Problem.** The first thread of a process may end while others go on (`pthread_exit` in `main`). The
//! process lives, but what `/proc/PID` says of its memory, files and root is what that thread has of them:
//! nothing.
//!
//! **Idea.** All threads share them, so any that lives does: `/proc/PID/task/TID` has nearly the same files.

use crate::status::parse_stat;
use std::path::PathBuf;

pub(crate) fn path_of(pid: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

pub(crate) fn path_of_thread(pid: i32, tid: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{tid}/{file}"))
}

/// The thread of process `pid` that shows what all of them share: the first, or, where that has ended, one
/// that goes on. `pid` itself if none does.
pub fn holder(pid: i32) -> i32 {
    let lives = |tid: i32| {
        let stat = std::fs::read(path_of_thread(pid, tid, "stat")).ok();
        let stat = stat.and_then(|bytes| parse_stat(&bytes).ok());
        // (A number of a thread leads to its process's list of threads, too.)
        stat.is_some_and(|stat| !stat.state.is_ended() && !stat.is_exiting)
    };
    if lives(pid) {
        return pid;
    }
    let entries = std::fs::read_dir(path_of(pid, "task")).into_iter().flatten().flatten();
    let mut others = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    others.find(|&tid| tid != pid && lives(tid)).unwrap_or(pid)
}

/// The path of `file` in `/proc` for process `pid`: `maps`, `mem`, `auxv`, `exe`, `pagemap`, `smaps`, `root`
/// or `fd` of a thread that has not ended.
pub fn shared_path(pid: i32, file: &str) -> PathBuf {
    match holder(pid) {
        tid if tid == pid => path_of(pid, file),
        tid => path_of_thread(pid, tid, file),
    }
}
