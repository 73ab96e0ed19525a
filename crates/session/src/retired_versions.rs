//! Retired versions in a session that stays: one in which a thread stood when its successor came goes when
//! the thread has left it, and not with the next round, which may never come.

use restitch_processes::process_set::ProcessSet;
use std::time::{Duration, Instant};

/// The first try comes so long after a round ...
const FIRST: Duration = Duration::from_secs(5);
/// ... and each later one after twice the time of the one before, at most this ...
const LAST: Duration = Duration::from_secs(600);
/// ... and after so many times what the last try took: all of the process's memory is searched for ways into
/// a version.
const OFTENER: u32 = 100;

/// When it is tried again.
#[derive(Debug)]
pub(crate) struct RetiredVersions {
    next: Instant,
    wait: Duration,
}

impl RetiredVersions {
    /// After a round.
    pub fn begin() -> Self {
        Self { next: Instant::now() + FIRST, wait: FIRST }
    }

    /// Unmaps what is retired in `set` and in use no more, if it is time to try. (The set was opened to look
    /// only: the processes are locked for other sessions meanwhile, and left alone if they are locked by
    /// one.) Whether it was tried.
    pub fn tidy(&mut self, set: &ProcessSet) -> bool {
        let retired = || set.all().any(|live| live.journal().versions.iter().any(|v| v.retired));
        if Instant::now() < self.next || !retired() {
            return false;
        }
        let begun = Instant::now();
        let opened = ProcessSet::open(set.leader.target().pid(), set.is_tree());
        // What cannot be opened now may be at the next time.
        let _ = opened.map(|mut set| set.reclaim());
        self.tried(begun.elapsed());
        true
    }

    fn tried(&mut self, took: Duration) {
        self.wait = (self.wait * 2).min(LAST);
        self.next = Instant::now() + self.wait.max(took * OFTENER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_become_rarer_and_are_rare_where_they_take_long() {
        let mut retired = RetiredVersions::begin();
        let until = |retired: &RetiredVersions| retired.next.saturating_duration_since(Instant::now());
        let near =
            |is: Duration, wanted: u64| is.as_secs_f64() > wanted as f64 - 1.0 && is.as_secs() <= wanted;
        assert!(near(until(&retired), 5));
        retired.tried(Duration::from_millis(1));
        assert!(near(until(&retired), 10));
        retired.tried(Duration::from_secs(3));
        assert!(near(until(&retired), 300), "{:?}", until(&retired));
        for _ in 0..20 {
            retired.tried(Duration::ZERO);
        }
        assert!(near(until(&retired), 600));
    }
}
