//! What a wait status means, and waiting with a time limit.

use crate::sys::{self, Waited};
use std::time::{Duration, Instant};

/// `PTRACE_EVENT_STOP`.
pub(crate) const EVENT_STOP: i32 = 128;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// It called `exit` with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// The status for the raw word that `waitpid` and `PTRACE_EVENT_EXIT` give.
    pub fn from_raw(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code((status >> 8) & 0xff),
            signal => Self::Signal(signal),
        }
    }
}

/// Why a tracee reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopKind {
    /// It ended.
    Ended(ExitStatus),
    /// Interrupted by the tracer, or a new tracee that was attached automatically.
    Interrupt,
    /// A job-control stop by this signal.
    Group(i32),
    /// This signal is about to be delivered.
    Signal(i32),
    /// Entry to or exit from a system call (with `PTRACE_O_TRACESYSGOOD`).
    SystemCall,
    /// Another ptrace event, by its number.
    Event(i32),
    /// Not a stop of a kind that ptrace(2) lists.
    Unknown(i32),
}

/// Decodes a wait status as ptrace(2) describes for tracees attached with `PTRACE_SEIZE`.
pub(crate) fn decode(status: i32) -> StopKind {
    if status & 0xff != 0x7f {
        return match status {
            0xffff => StopKind::Unknown(status),
            _ => StopKind::Ended(ExitStatus::from_raw(status)),
        };
    }
    let (signal, event) = ((status >> 8) & 0xff, (status >> 16) & 0xffff);
    match (event, signal) {
        (EVENT_STOP, libc::SIGTRAP) => StopKind::Interrupt,
        (EVENT_STOP, signal) => StopKind::Group(signal),
        (0, signal) if signal == libc::SIGTRAP | 0x80 => StopKind::SystemCall,
        (0, signal) => StopKind::Signal(signal),
        (event, _) => StopKind::Event(event),
    }
}

/// Sleeps a little longer each time it is called: at first not at all, then up to a millisecond. (Yielding would give whole time slices
/// to others on a busy machine.)
///
/// To be asked after each look, and to be paused before the next one. What has come in time is seen even if this program itself got no processor until the
/// time was up: the last look is behind that.
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

/// The same, but a signal that is about to be delivered stays with the kernel ([`sys::wait_keeping_signals`]): the tracee
/// reports it again until it is resumed.
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

    #[test]
    fn statuses_of_ptrace_2_are_told_apart() {
        let stop = |event: i32, signal: i32| decode(0x7f | signal << 8 | event << 16);
        assert_eq!(stop(EVENT_STOP, libc::SIGTRAP), StopKind::Interrupt);
        assert_eq!(stop(EVENT_STOP, libc::SIGSTOP), StopKind::Group(libc::SIGSTOP));
        assert_eq!(stop(0, libc::SIGTRAP | 0x80), StopKind::SystemCall);
        assert_eq!(stop(0, libc::SIGTRAP), StopKind::Signal(libc::SIGTRAP));
        assert_eq!(stop(0, libc::SIGUSR1), StopKind::Signal(libc::SIGUSR1));
        assert_eq!(stop(libc::PTRACE_EVENT_EXEC, libc::SIGTRAP), StopKind::Event(4));
        assert_eq!(decode(3 << 8), StopKind::Ended(ExitStatus::Code(3)));
        assert_eq!(decode(9), StopKind::Ended(ExitStatus::Signal(9)));
        assert_eq!(decode(0x80 | 11), StopKind::Ended(ExitStatus::Signal(11)));
        assert_eq!(decode(0xffff), StopKind::Unknown(0xffff));
    }
}
