//! Waiting for a stop without sleeping.
//!
//! Problem: a thread comes to its breakpoint some microseconds after it was let go, and is then held until
//! the tracer wakes: in virtual machines, whose sleeping processors take an exit to wake, for ten times that.
//! Idea: stay awake for a moment. That would be wrong where the two have one processor between them, since a
//! tracer goes before what it traces: where stops do not come in time, it sleeps.

use std::time::Duration;

/// After so many stops in a row that did not come in time ...
const FAILURES: u32 = 4;
/// ... the tracer sleeps for so many.
const SLEEPS: u32 = 64;
/// One stop in so many is slept for, so that what an alarm takes, for which nobody stays awake, remains
/// known. All of the first ones are.
const SLEPT_FOR: u32 = 8;

/// Whether the tracer stays awake for the next stop.
#[derive(Debug, Default)]
pub(crate) struct SpinWait {
    stops: u32,
    failures: u32,
    sleeps: u32,
}

impl SpinWait {
    /// For longer it does not pay.
    pub const LONGEST: Duration = Duration::from_micros(150);

    /// Asked for each stop before the thread is let go.
    pub fn stays_awake(&mut self) -> bool {
        self.stops = self.stops.wrapping_add(1);
        if self.sleeps > 0 {
            self.sleeps -= 1;
            return false;
        }
        self.stops > SLEPT_FOR && !self.stops.is_multiple_of(SLEPT_FOR)
    }

    /// A stop that was stayed awake for came after so long.
    pub fn ended(&mut self, after: Duration) {
        self.failures = if after < Self::LONGEST { 0 } else { self.failures + 1 };
        if self.failures >= FAILURES {
            (self.failures, self.sleeps) = (0, SLEEPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awake_in(spin_wait: &mut SpinWait, stops: u32, after: Duration) -> u32 {
        let mut awake = 0;
        for _ in 0..stops {
            if spin_wait.stays_awake() {
                awake += 1;
                spin_wait.ended(after);
            }
        }
        awake
    }

    #[test]
    fn stops_in_time_are_stayed_awake_for_but_one_in_some() {
        let mut spin_wait = SpinWait::default();
        assert_eq!(awake_in(&mut spin_wait, SLEPT_FOR, Duration::ZERO), 0);
        assert_eq!(awake_in(&mut spin_wait, 8 * SLEPT_FOR, Duration::from_micros(30)), 8 * (SLEPT_FOR - 1));
    }

    #[test]
    fn stops_that_come_late_are_slept_for() {
        let mut spin_wait = SpinWait::default();
        let awake = awake_in(&mut spin_wait, 1000, SpinWait::LONGEST);
        assert!(awake <= 1000 / (SLEEPS + FAILURES) * FAILURES + 2 * FAILURES, "{awake}");
        assert!(awake > FAILURES, "it tries again: {awake}");
        assert!(awake_in(&mut spin_wait, 1000, Duration::ZERO) > 700);
    }
}
