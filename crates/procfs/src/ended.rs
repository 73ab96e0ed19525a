//! Whether a process has ended: what is refused then is not refused for lack of permission.

use crate::status::{Stat, parse_stat};
use std::path::Path;
use std::time::Duration;

/// A process is alive whose first thread has ended and some other one has not, so many looks long.
const LOOKS: u32 = 25;
/// Time between them.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Whether process (or thread) `pid` does not exist or has ended; so is one that is just ending and has no
/// memory any more. A leader that has ended while other threads go on has not.
pub fn has_ended(pid: i32) -> bool {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(bytes) => parse_stat(&bytes).is_ok_and(|leader| all_ended(pid, &leader)),
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    }
}

/// The same of a process whose first thread is `leader`.
///
/// When all threads end together, the first one may have given up its memory while a `SIGKILL` waits for
/// others, or while they are on their way from taking it to their end, which cannot be seen: so the others
/// are looked at again.
pub(crate) fn all_ended(pid: i32, leader: &Stat) -> bool {
    let ends = |stat: &Stat| stat.state.is_ended() || stat.is_exiting || stat.is_killed;
    // What cannot be read is not there any more.
    let has_ended = |task: &Path| {
        std::fs::read(task.join("stat"))
            .ok()
            .and_then(|bytes| parse_stat(&bytes).ok())
            .is_none_or(|stat| stat.pid == pid || ends(&stat))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let others_end = || tasks().all(|task| has_ended(&task.path()));
    (leader.state.is_ended() || leader.is_exiting)
        && (0..LOOKS).any(|look| {
            if look > 0 {
                std::thread::sleep(BETWEEN_LOOKS);
            }
            others_end()
        })
}
