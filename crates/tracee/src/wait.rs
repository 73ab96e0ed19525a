//! Waiting with a time limit.

use crate::status::{StopKind, decode};
use crate::sys::{self, Waited};
use std::time::{Duration, Instant};

/// Sleeps a little longer each time it is called: at first not at all, then up to a millisecond. (Yielding
/// would give whole time slices to others on a busy machine.)
///
/// To be asked after each look, and to be paused before the next one. What has come in time is seen even if
/// this program itself got no processor until the time was up: the last look is behind that.
pub(crate) struct Patience {
    rounds: u32,
    since: Instant,
    limit: Duration,
    /// The time was up before the last look.
    over: bool,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { rounds: 0, since: Instant::now(), limit, over: false }
    }

    /// Whether the time was up before the last look.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Lets others run for a moment.
    pub(crate) fn pause(&mut self) {
        self.rounds += 1;
        match self.rounds {
            0..=20 => std::hint::spin_loop(),
            21..=100 => std::thread::sleep(Duration::from_micros(5)),
            101..=300 => std::thread::sleep(Duration::from_micros(200)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        self.over = self.since.elapsed() >= self.limit;
    }
}

/// Pauses between looks for a moment at which threads stand where they can be used: of different lengths, so
/// as not to meet a loop at the same place again and again; 0.4 s in all.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    (1..=28).map(|i: u64| Duration::from_micros(1013 * i))
}

/// The outcome of [`wait_for`].
pub(crate) enum WaitOutcome {
    /// The thread reported this.
    Stop(StopKind),
    /// It is no longer a tracee of this thread.
    Gone,
    /// It reported nothing within the limit.
    TimedOut,
}

/// Waits for the next report of one tracee.
pub(crate) fn wait_for(tid: i32, limit: Duration) -> WaitOutcome {
    wait_with(sys::wait, tid, limit)
}

/// The same, but a signal that is about to be delivered stays with the kernel
/// ([`sys::wait_keeping_signals`]): the tracee reports it again until it is resumed.
pub(crate) fn wait_for_keeping_signals(tid: i32, limit: Duration) -> WaitOutcome {
    wait_with(sys::wait_keeping_signals, tid, limit)
}

fn wait_with(wait: impl Fn(i32, bool) -> Waited, tid: i32, limit: Duration) -> WaitOutcome {
    let mut patience = Patience::new(limit);
    loop {
        match wait(tid, false) {
            Waited::Status(_, status) => return WaitOutcome::Stop(decode(status)),
            Waited::NoChild => return WaitOutcome::Gone,
            Waited::Nothing if patience.is_over() => return WaitOutcome::TimedOut,
            Waited::Nothing => patience.pause(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_kept_from_looking_looks_once_more() {
        let mut patience = Patience::new(Duration::from_millis(5));
        assert!(!patience.is_over());
        std::thread::sleep(Duration::from_millis(10));
        assert!(!patience.is_over(), "nobody has looked since the time is up");
        patience.pause();
        assert!(patience.is_over());
    }
}
