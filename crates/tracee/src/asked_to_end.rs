//! Requests to end this program, for work that is not to be cut off in the middle: SIGINT, SIGTERM and SIGHUP are noted, and the work looks whether there was one.
//! What this program was told to ignore stays ignored.
//!
//! Limits: one at a time, and not beside a [`Foreground`](crate::Foreground), which handles the same signals for a command.

use crate::foreground::{is_ignored, set_disposition};
use std::sync::atomic::{AtomicBool, Ordering};

const WATCHED: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

static ASKED: AtomicBool = AtomicBool::new(false);

/// Async-signal-safe: an atomic.
extern "C" fn note(_: i32) {
    ASKED.store(true, Ordering::SeqCst);
}

/// While it lives, requests to end are noted. Dropping it makes them end this program again.
#[derive(Debug)]
pub struct AskedToEnd {
    signals: Vec<i32>,
}

impl AskedToEnd {
    /// Begins to note them.
    pub fn begin() -> Self {
        ASKED.store(false, Ordering::SeqCst);
        let wanted = WATCHED.into_iter().filter(|signal| !is_ignored(*signal));
        let handler = note as extern "C" fn(i32);
        let handle = |signal: &i32| set_disposition(*signal, handler as usize, libc::SA_RESTART).is_ok();
        Self { signals: wanted.filter(handle).collect() }
    }

    /// Whether there was one.
    pub fn is_asked(&self) -> bool {
        ASKED.load(Ordering::SeqCst)
    }
}

impl Drop for AskedToEnd {
    fn drop(&mut self) {
        for signal in &self.signals {
            // It cannot fail: the same signal's was set before.
            let _ = set_disposition(*signal, libc::SIG_DFL, 0);
        }
    }
}
