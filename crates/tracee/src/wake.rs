//! A timer that ends a blocking wait.
//!
//! `waitpid` has no time limit. A signal to the waiting thread ends it with `EINTR`; one that comes just
//! before the wait is lost, so the timer repeats.

use crate::sys;
use std::io;
use std::time::Duration;

/// The pause after which a lost wake-up is repeated.
const REPEAT: Duration = Duration::from_millis(5);

/// A timer of the thread that made it.
#[derive(Debug)]
pub(crate) struct WakeTimer {
    id: libc::timer_t,
}

/// The signal: a real-time one that neither glibc (32 to 34) nor musl uses. Its handler does nothing.
fn signal() -> i32 {
    libc::SIGRTMIN() + 5
}

extern "C" fn nothing(_: libc::c_int) {}

impl WakeTimer {
    pub fn new() -> io::Result<Self> {
        let mut id: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both structures are plain integers and pointers, for which zeros are valid; they are live
        // locals that the kernel and the C library only read; the handler does nothing and is thus
        // async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            if libc::sigaction(signal(), &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = sys::own_tid();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut id) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { id })
    }

    /// Goes off after `delay`, and again and again after that.
    pub fn set(&self, delay: Duration) {
        let time = |d: Duration| libc::timespec {
            tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: d.subsec_nanos().into(),
        };
        let setting = libc::itimerspec {
            it_interval: time(REPEAT),
            it_value: time(delay.max(Duration::from_micros(1))),
        };
        // SAFETY: the timer lives as long as `self`; the setting is a live local that is only read.
        unsafe { libc::timer_settime(self.id, 0, &raw const setting, std::ptr::null_mut()) };
    }
}

impl Drop for WakeTimer {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `new` and is deleted once.
        unsafe { libc::timer_delete(self.id) };
    }
}
