//! Whether a process has ended: what is refused then is not refused for lack of permission.

use crate::parse_stat;

/// Whether process (or thread) `pid` does not exist or has ended; so is one that is just ending and has no memory any more. A leader that has ended while other
/// threads go on has not.
pub fn has_ended(pid: i32) -> bool {
    let stat = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(bytes) => parse_stat(&bytes),
        Err(error) => return matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    };
    let others = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.count());
    stat.is_ok_and(|stat| (stat.state.is_ended() || stat.is_exiting) && others() <= 1)
}
