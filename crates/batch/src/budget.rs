//! What a command may be slowed down: by one hundredth, over all commands so far.
//!
//! **Problem.** Optimizing costs processor time that is only repaid later, perhaps in the next build. Where
//! every core is busy the command pays for it at once; a thread of the lowest priority, on the other hand,
//! gets next to nothing there.
//!
//! **Idea.** Every processor second that a command uses earns 10 ms. What is done at an ordinary priority,
//! and the runs that count, are paid for with that; what is not spent is kept for the next command. Work that
//! cannot be paid for yet is done at the lowest priority where a core is idle, or by another process when the
//! command has ended. Small builds are optimized after some of them.
//!
//! **Estimates err**, up to fourfold, since libraries differ in how much of them runs. So what it really took
//! is charged afterwards, and may exceed what there is: a debt, which later seconds and later commands pay
//! before anything else is begun.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Share of the command's processor time that may be spent.
const SHARE: f64 = 0.01;
/// Most seconds that are kept for later commands, or owed by them: enough for one large compiler.
const MOST_KEPT: f64 = 10.0;
/// What something costs may be so much less than estimated: it is begun when this share of the estimate is
/// there.
const CERTAIN: f64 = 0.25;
/// By how much a counting run takes longer: by a fifth.
pub(crate) const COUNTING_COSTS: f64 = 0.2;
const MICROSECONDS: f64 = 1e6;
/// What an optimization costs: seconds for each byte of the file, as measured with cc1plus (35 MB: 7.8 on an
/// idle machine, twice that on a busy one). Libraries whose runs use less of them take less (libclang-cpp, 71
/// MB: 8.7; libLLVM, 129 MB: 12.5): what is too much is not spent.
const SECONDS_PER_BYTE: f64 = 8.0 / 35e6;
/// What it costs to begin counting, likewise.
const BEGIN_SECONDS_PER_BYTE: f64 = 3.0 / 35e6;

/// Processor seconds that may be spent.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// What earlier commands have left, less what was spent; microseconds.
    kept: AtomicI64,
    /// What this command has earned; microseconds.
    earned: AtomicI64,
    unlimited: bool,
}

impl Budget {
    /// With what was left by earlier commands; `unlimited`, everything is affordable.
    pub fn new(kept: f64, unlimited: bool) -> Self {
        let kept = if kept.is_finite() { kept.clamp(-MOST_KEPT, MOST_KEPT) } else { 0.0 };
        Self { kept: AtomicI64::new((kept * MICROSECONDS) as i64), earned: AtomicI64::new(0), unlimited }
    }

    /// The command has used so many processor seconds by now.
    pub fn earn(&self, used: f64) {
        self.earned.store((used * SHARE * MICROSECONDS) as i64, Ordering::Relaxed);
    }

    /// Whether something of about so many seconds may be begun. The part of them that is certain is taken:
    /// [`settle`](Self::settle) when it is done.
    pub fn begin(&self, estimate: f64) -> bool {
        let (wanted, earned) = (micro(CERTAIN * estimate), self.earned.load(Ordering::Relaxed));
        let less = |kept: i64| (kept + earned >= wanted).then_some(kept - wanted);
        self.unlimited || self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// What was begun with this estimate took so many seconds.
    pub fn settle(&self, estimate: f64, took: f64) {
        self.charge(took - CERTAIN * estimate);
    }

    /// So many seconds were spent, without asking.
    pub fn charge(&self, seconds: f64) {
        if !self.unlimited {
            self.kept.fetch_sub(micro(seconds), Ordering::Relaxed);
        }
    }

    /// Whether runs may go on counting: nothing is owed.
    pub fn is_sound(&self) -> bool {
        self.unlimited || self.left() > 0.0
    }

    /// Seconds that are left for later commands; less than 0 if they are owed.
    pub fn left(&self) -> f64 {
        let left = self.kept.load(Ordering::Relaxed) + self.earned.load(Ordering::Relaxed);
        (left as f64 / MICROSECONDS).clamp(-MOST_KEPT, MOST_KEPT)
    }
}

fn micro(seconds: f64) -> i64 {
    (seconds * MICROSECONDS) as i64
}

/// Processor seconds that it takes to optimize a module.
pub(crate) fn optimize_cost(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |m| m.len() as f64 * SECONDS_PER_BYTE)
}

/// Processor seconds that it takes until runs of it can count.
pub(crate) fn begin_cost(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |m| m.len() as f64 * BEGIN_SECONDS_PER_BYTE)
}

/// Processor seconds of this process, without the command.
pub(crate) fn own_seconds() -> f64 {
    /// The unit of /proc/PID/stat, on every x86-64 Linux.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(") ").next().unwrap_or_default();
    // utime and stime are the fields 14 and 15; the third one is the first behind the name.
    behind_name.split(' ').skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// How many cores of the machine were idle of late.
#[derive(Debug, Default)]
pub(crate) struct IdleCores {
    last: Option<(Instant, u64)>,
    idle: f64,
}

impl IdleCores {
    /// For so long the average is taken.
    const WINDOW: Duration = Duration::from_millis(500);
    /// Ticks a second in /proc/stat, on every x86-64 Linux.
    const TICKS: f64 = 100.0;

    /// Cores that were idle in the last window; 0 where nothing is known.
    pub fn now(&mut self) -> f64 {
        let due = self.last.is_none_or(|(at, _)| at.elapsed() >= Self::WINDOW);
        if due && let Some(ticks) = idle_ticks(&std::fs::read_to_string("/proc/stat").unwrap_or_default()) {
            if let Some((at, before)) = self.last {
                self.idle = ticks.saturating_sub(before) as f64 / Self::TICKS / at.elapsed().as_secs_f64();
            }
            self.last = Some((Instant::now(), ticks));
        }
        self.idle
    }
}

/// `idle` and `iowait` of all processors (proc_stat(5)).
fn idle_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().skip(3);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundredth_is_spent_and_the_rest_is_kept() {
        let budget = Budget::new(0.5, false);
        assert!(!budget.begin(2.4));
        budget.earn(10.0);
        assert!(
            budget.begin(2.4) && !budget.begin(0.1),
            "0.1 were earned, and what is certain of 2.4 is taken"
        );
        budget.settle(2.4, 0.6);
        budget.earn(110.0);
        assert!((budget.left() - 1.0).abs() < 1e-6 && budget.is_sound());
        assert!(Budget::new(1e9, false).left() <= MOST_KEPT && Budget::new(f64::NAN, false).left() == 0.0);
        let eager = Budget::new(0.0, true);
        eager.charge(5.0);
        assert!(eager.begin(1e6) && eager.is_sound(), "nothing is too dear for those who are eager");
    }

    #[test]
    fn what_took_longer_than_was_there_is_owed() {
        let budget = Budget::new(1.0, false);
        assert!(budget.begin(4.0));
        budget.settle(4.0, 3.0);
        assert!((budget.left() + 2.0).abs() < 1e-6 && !budget.is_sound() && !budget.begin(0.0));
        // The next command pays it first.
        let next = Budget::new(budget.left(), false);
        next.earn(199.0);
        assert!(!next.is_sound());
        next.earn(201.0);
        assert!(next.is_sound() && next.begin(0.03) && !next.begin(1.0));
        next.charge(1e9);
        assert!(next.left() >= -MOST_KEPT, "debts are bounded");
    }

    #[test]
    fn idle_time_is_read() {
        assert_eq!(idle_ticks("cpu  1 2 3 400 50 6 7 8 9 10\ncpu0 1"), Some(450));
        assert_eq!(idle_ticks("cpu  1 2 3"), None);
        assert_eq!(idle_ticks("intr 5"), None);
        assert!((0.0..1e5).contains(&IdleCores::default().now()));
    }
}
