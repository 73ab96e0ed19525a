//! What a command may be slowed down: by one hundredth, over all commands so far.
//!
//! **Problem.** Optimizing costs processor time that is only repaid later, perhaps in the next build. Where every core is busy the command
//! pays for it at once; a thread of the lowest priority, on the other hand, gets next to nothing there.
//!
//! **Idea.** Every processor second that a command uses earns 10 ms. What is done at an ordinary priority, and the runs that count, are paid for
//! with that; what is not spent is kept for the next command. Work that cannot be paid for yet is done at the lowest priority
//! where a core is idle, or waits. So at no moment has the command been slowed down by more than a hundredth, and small builds are optimized after
//! some of them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Share of the command's processor time that may be spent.
const SHARE: f64 = 0.01;
/// Most seconds that are kept for later commands: enough for one large compiler.
const MOST_KEPT: f64 = 10.0;
/// By how much a counting run takes longer: by a fifth.
pub(crate) const COUNTING_COSTS: f64 = 0.2;
const MICROSECONDS: f64 = 1e6;

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
        let kept = if kept.is_finite() { kept.clamp(0.0, MOST_KEPT) } else { 0.0 };
        Self { kept: AtomicI64::new((kept * MICROSECONDS) as i64), earned: AtomicI64::new(0), unlimited }
    }

    /// The command has used so many processor seconds by now.
    pub fn earn(&self, used: f64) {
        self.earned.store((used * SHARE * MICROSECONDS) as i64, Ordering::Relaxed);
    }

    /// Takes so many seconds, if they are there.
    pub fn take(&self, seconds: f64) -> bool {
        let wanted = (seconds * MICROSECONDS) as i64;
        let earned = self.earned.load(Ordering::Relaxed);
        let less = |kept: i64| (kept + earned >= wanted).then_some(kept - wanted);
        self.unlimited || self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Seconds that are left for later commands.
    pub fn left(&self) -> f64 {
        let left = self.kept.load(Ordering::Relaxed) + self.earned.load(Ordering::Relaxed);
        (left as f64 / MICROSECONDS).clamp(0.0, MOST_KEPT)
    }
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
        assert!(!budget.take(0.6));
        budget.earn(10.0);
        assert!(budget.take(0.6) && !budget.take(0.01), "0.1 were earned, and all is spent");
        budget.earn(110.0);
        assert!((budget.left() - 1.0).abs() < 1e-6);
        assert!(budget.take(1.0) && !budget.take(0.01));
        assert!(Budget::new(1e9, false).left() <= MOST_KEPT && Budget::new(f64::NAN, false).left() == 0.0);
        assert!(Budget::new(0.0, true).take(1e6), "nothing is too dear for those who are eager");
    }

    #[test]
    fn idle_time_is_read() {
        assert_eq!(idle_ticks("cpu  1 2 3 400 50 6 7 8 9 10\ncpu0 1"), Some(450));
        assert_eq!(idle_ticks("cpu  1 2 3"), None);
        assert_eq!(idle_ticks("intr 5"), None);
        assert!((0.0..1e5).contains(&IdleCores::default().now()));
    }
}
