//! What a wait status means.

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

#[cfg(test)]
mod tests {
    use super::*;

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
