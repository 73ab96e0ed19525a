//! Whether a process has ended: what is refused then is not refused for lack of permission.

use crate::status::{ProcessState, Stat, parse_stat};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// So often the threads of a process whose first one has ended are looked at, if what becomes of them cannot
/// be seen: a second, as they may wait for a processor for long.
const LOOKS: u32 = 500;
/// Time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Clock ticks in user mode that a thread gets which goes on. (The kernel estimates how many of its ticks
/// were such, so that one may be added to a thread that is ending.)
const WORKS: u64 = 2;

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
    if !(leader.state.is_ended() || leader.is_exiting) {
        return false;
    }
    let mut first = BTreeMap::new();
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        match fate_of(&others(pid), &mut first) {
            Fate::Ends => return true,
            Fate::GoesOn => return false,
            Fate::Unseen => {}
        }
    }
    false
}

/// The threads of a process but for the first one. What cannot be read is not there any more.
fn others(pid: i32) -> Vec<Stat> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stat = |task: &Path| parse_stat(&std::fs::read(task.join("stat")).ok()?).ok();
    tasks.filter_map(|task| stat(&task.path())).filter(|stat| stat.pid != pid).collect()
}

/// What becomes of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Ends,
    GoesOn,
    /// Perhaps some are on their way to their end.
    Unseen,
}

/// What becomes of these threads. `first`: their ticks in user mode when they were first looked at.
fn fate_of(threads: &[Stat], first: &mut BTreeMap<i32, u64>) -> Fate {
    let mut fate = Fate::Ends;
    for stat in threads {
        let begun = *first.entry(stat.pid).or_insert(stat.user_ticks);
        // What sleeps until a signal comes has none that ends it.
        let rests =
            matches!(stat.state, ProcessState::Sleeping | ProcessState::Stopped | ProcessState::Traced);
        if stat.state.is_ended() || stat.is_exiting || stat.is_killed {
            continue;
        } else if rests || stat.user_ticks >= begun + WORKS {
            return Fate::GoesOn;
        }
        fate = Fate::Unseen;
    }
    fate
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread in a state, with flags and pending signals, that was in user mode for so many ticks.
    fn thread(pid: i32, state: char, flags: u64, pending: u64, user: u64) -> Stat {
        let zeros = |n: usize| vec!["0"; n].join(" ");
        // Fields 3 to 9, 10 to 15, 16 to 31, and the rest of proc_pid_stat(5).
        let line = format!(
            "{pid} (x) {state} 1 {} {flags} {} {user} 0 {} {pending} {}",
            zeros(4),
            zeros(4),
            zeros(15),
            zeros(21)
        );
        parse_stat(line.as_bytes()).expect("a line of the kernel's")
    }

    #[test]
    fn threads_that_wait_for_a_processor_to_end_are_not_taken_for_working_ones() {
        let (kill, exiting) = (1 << (libc::SIGKILL - 1), 4);
        let mut first = BTreeMap::new();
        let ending = [thread(2, 'S', 0, kill, 5), thread(3, 'R', exiting, 0, 5), thread(4, 'Z', 0, 0, 5)];
        assert_eq!(fate_of(&ending, &mut first), Fate::Ends);
        assert_eq!(fate_of(&[], &mut first), Fate::Ends);
        // It has taken the signal, or works.
        for user in [7, 8] {
            let one = [ending[0].clone(), thread(5, 'R', 0, 0, user)];
            assert_eq!(fate_of(&one, &mut first), Fate::Unseen);
        }
        assert_eq!(fate_of(&[thread(5, 'R', 0, 0, 9)], &mut first), Fate::GoesOn);
        assert_eq!(fate_of(&[thread(5, 'R', exiting, 0, 9)], &mut first), Fate::Ends);
        for state in ['S', 'T', 't'] {
            assert_eq!(fate_of(&[ending[1].clone(), thread(6, state, 0, 0, 0)], &mut first), Fate::GoesOn);
        }
    }
}
