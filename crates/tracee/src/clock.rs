//! The monotonic clock, as signal handlers can read it.

use std::time::Duration;

/// The time since some moment in the past. Async-signal-safe.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one record, a live local. (It cannot fail: every Linux has this clock.)
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
