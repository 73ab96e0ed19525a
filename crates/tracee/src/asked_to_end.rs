//! Requests to end this program, for work that is not to be cut off in the middle: SIGINT, SIGTERM and SIGHUP
//! are noted, and the work looks whether there was one. What this program was told to ignore stays ignored.
//!
//! While this program stands in for a command ([`AskedToEnd::stand_for`]), the requests are the command's:
//! those that a process has sent are passed on to it, in the handler; what the terminal sends has reached it
//! already. What came before there was a command cannot have: that is passed on, whoever sent it.
//!
//! A child that was forked and does not execute its program yet has the handler, too: there, the signal does
//! what it does by default.
//!
//! Limits: one at a time, and not beside a [`Foreground`](crate::Foreground), which handles the same signals
//! for a command and waits for it besides. A signal that is sent to the group by a process reaches a command
//! twice; so does what the terminal sends while the command is being started.

use crate::child::{End, end_of};
use crate::clock::now;
use crate::disposition::{end_by, is_forked, is_ignored, set_disposition};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WATCHED: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// How long a pause goes on, at most, after a request.
const LOOK: Duration = Duration::from_millis(20);

/// A command that ends without an error so long after a request has ended by it: what supervisors give a
/// program to end (Kubernetes' `terminationGracePeriodSeconds`; Docker has 10 s). One that goes on for longer
/// took it for something else.
const GRACE: Duration = Duration::from_secs(30);

/// Whether there was a request.
static ASKED: AtomicBool = AtomicBool::new(false);
/// The signal of the first one, 0 if there was none.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Process descriptor of the command that requests are passed on to; -1 if there is none.
static COMMAND: AtomicI32 = AtomicI32::new(-1);
/// The command's number; 0 if there is none.
static COMMAND_PID: AtomicI32 = AtomicI32::new(0);
/// The last request that was the command's, 0 if there was none.
static COMMANDS: AtomicI32 = AtomicI32::new(0);
/// When that was, in nanoseconds of the [clock](now).
static COMMANDS_AT: AtomicU64 = AtomicU64::new(0);
/// Signals that came before there was a command, and that are passed on to it: bit `n` for signal `n`.
static EARLY: AtomicU64 = AtomicU64::new(0);
/// Signals that another thread has handed to the first one, and that came from the terminal: bit `n` for
/// signal `n`.
static OF_TERMINAL: AtomicU64 = AtomicU64::new(0);
/// The process that notes requests.
static NOTING: AtomicI32 = AtomicI32::new(0);
/// What whoever asks again is told; null if nothing.
static ANSWER: AtomicPtr<String> = AtomicPtr::new(null_mut());

/// Async-signal-safe: atomics, system calls, and a string that lives for ever.
extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if is_forked(NOTING.load(Ordering::SeqCst)) {
        return end_by(signal);
    }
    // SAFETY: the handler is installed with SA_SIGINFO, so the kernel hands in a record of its own; `errno`
    // is this thread's.
    let (code, errno) = unsafe { ((*info).si_code, libc::__errno_location()) };
    // SAFETY: `errno` belongs to this thread.
    let before = unsafe { *errno };
    let is_sent = match code {
        libc::SI_TKILL => !take_from(&OF_TERMINAL, signal),
        code => code != libc::SI_KERNEL,
    };
    let command = COMMAND.load(Ordering::SeqCst);
    if is_other_file(command) {
        if !is_sent {
            put_into(&OF_TERMINAL, signal);
        }
        to_first_thread(signal);
    } else if is_there(command) {
        note_commands(signal);
        if is_sent {
            send(command, signal);
        }
    } else {
        let is_first = FIRST.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        ASKED.store(true, Ordering::SeqCst);
        if command < 0 {
            put_into(&EARLY, signal);
            // Another thread may have got the command meanwhile.
            hand_over();
        }
        if !is_first {
            answer();
        }
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// What came early goes to the command, if there is one by now.
fn hand_over() {
    let command = COMMAND.load(Ordering::SeqCst);
    for signal in WATCHED.into_iter().filter(|signal| command >= 0 && take_from(&EARLY, *signal)) {
        FIRST.store(0, Ordering::SeqCst);
        ASKED.store(false, Ordering::SeqCst);
        note_commands(signal);
        send(command, signal);
    }
}

/// From now on, `signal` is the last request that was the command's.
fn note_commands(signal: i32) {
    COMMANDS_AT.store(now().as_nanos() as u64, Ordering::SeqCst);
    COMMANDS.store(signal, Ordering::SeqCst);
}

fn put_into(signals: &AtomicU64, signal: i32) {
    signals.fetch_or(1 << signal, Ordering::SeqCst);
}

/// Whether the signal was among them; it is no more.
fn take_from(signals: &AtomicU64, signal: i32) -> bool {
    signals.fetch_and(!(1 << signal), Ordering::SeqCst) & (1 << signal) != 0
}

fn set_command(command: i32) {
    let before = COMMAND.swap(command, Ordering::SeqCst);
    if before >= 0 {
        // SAFETY: it was opened for this, and the handler has another one from now on.
        unsafe { libc::close(before) };
    }
}

/// Whether the number of the command's descriptor means another file, or none, in this thread, which has
/// [descriptors of its own](crate::own_descriptors).
fn is_other_file(command: i32) -> bool {
    // SAFETY: no signal is sent, and there is no record to be read; `errno` is this thread's.
    command >= 0
        && unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, command, 0, null::<libc::siginfo_t>(), 0) == -1
                && *libc::__errno_location() == libc::EBADF
        }
}

/// Has the first thread, which has the descriptors that all share, handle the signal.
fn to_first_thread(signal: i32) {
    // SAFETY: no pointers. The first thread's number is the process's.
    unsafe {
        let own = libc::getpid();
        libc::syscall(libc::SYS_tgkill, own, own, signal);
    }
}

/// Whether the command with this process descriptor has not ended yet.
fn is_there(command: i32) -> bool {
    let mut end = libc::pollfd { fd: command, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record, a live local; the call does not wait.
    command >= 0 && unsafe { libc::poll(&raw mut end, 1, 0) } == 0
}

fn send(command: i32, signal: i32) {
    // SAFETY: the descriptor is that of a process; there is no record to be read.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, command, signal, null::<libc::siginfo_t>(), 0) };
}

fn answer() {
    // SAFETY: a string that is stored there is never freed nor changed; `write` reads no more than it has.
    unsafe {
        if let Some(answer) = ANSWER.load(Ordering::SeqCst).as_ref() {
            libc::write(libc::STDERR_FILENO, answer.as_ptr().cast(), answer.len());
        }
    }
}

/// Whether a command that was `asked` to end by `signal` has ended by that.
fn is_end_by(signal: i32, asked: Duration, end: End) -> bool {
    let is_soon = end.at.saturating_sub(asked) <= GRACE;
    end.status == 128 + signal || end.status == 0 && signal != libc::SIGHUP && is_soon
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
        FIRST.store(0, Ordering::SeqCst);
        EARLY.store(0, Ordering::SeqCst);
        // SAFETY: no pointers.
        NOTING.store(unsafe { libc::getpid() }, Ordering::SeqCst);
        let wanted = WATCHED.into_iter().filter(|signal| !is_ignored(*signal));
        let handler = note as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        let flags = libc::SA_RESTART | libc::SA_SIGINFO;
        let handle = |signal: &i32| set_disposition(*signal, handler as usize, flags).is_ok();
        Self { signals: wanted.filter(handle).collect() }
    }

    /// Whether there was one.
    pub fn is_asked(&self) -> bool {
        ASKED.load(Ordering::SeqCst)
    }

    /// The signal of the first request, if there was one.
    pub fn signal() -> Option<i32> {
        Some(FIRST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Requests are no longer noted: the next one ends this program. The signal of the first one before, if
    /// there was any; none is lost in between.
    pub fn end(self) -> Option<i32> {
        drop(self);
        Self::signal()
    }

    /// True from the first request on, for loops that have a flag to look at.
    pub fn flag() -> &'static AtomicBool {
        &ASKED
    }

    /// What whoever asks again is told from now on, as a line on standard error: what is waited for.
    pub fn answer(text: &str) {
        // The handler may be reading the one before, so none is ever freed. There are few.
        ANSWER.store(Box::leak(Box::new(format!("{text}\n"))), Ordering::SeqCst);
    }

    /// From now on, requests are those of the command `pid`, a child that was not waited for, for as long as
    /// it lives. Those that came before are passed on. (Not for a thread with
    /// [descriptors of its own](crate::own_descriptors); such threads may get signals, though.)
    pub fn stand_for(pid: i32) {
        // SAFETY: no pointers. The descriptor is closed when this program stands for another command or ends;
        // it is not inherited.
        let command = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
        COMMAND_PID.store(pid, Ordering::SeqCst);
        COMMANDS.store(0, Ordering::SeqCst);
        set_command(command);
        hand_over();
    }

    /// From now on, requests are this program's, until it [stands for](Self::stand_for) a command.
    pub fn stand_for_none() {
        set_command(-1);
    }

    /// The request that has ended the command: the last one that was the command's, if the command has ended
    /// and its exit status says so, or is 0 soon after it. (Not with 0 for SIGHUP, which asks many programs
    /// for something else; any other status is the command's own word.)
    pub fn ended_command() -> Option<i32> {
        let signal = Some(COMMANDS.load(Ordering::SeqCst)).filter(|signal| *signal != 0)?;
        let asked = Duration::from_nanos(COMMANDS_AT.load(Ordering::SeqCst));
        let end = end_of(COMMAND_PID.load(Ordering::SeqCst))?;
        is_end_by(signal, asked, end).then_some(signal)
    }

    /// Does nothing for a while, or until there is a request.
    pub fn pause(time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if ASKED.load(Ordering::SeqCst) {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_seen_up_to_the_very_end() {
        let asked = AskedToEnd::begin();
        assert_eq!(AskedToEnd::signal(), None);
        // Those that are ignored say nothing.
        let Some(signal) = asked.signals.first().copied() else { return };
        // SAFETY: no pointers; the handler is installed, so the signal does not end this program.
        unsafe { libc::raise(signal) };
        assert_eq!(asked.end(), Some(signal));
    }

    #[test]
    fn what_the_terminal_sent_is_told_apart_by_signal() {
        let of_terminal = AtomicU64::new(0);
        put_into(&of_terminal, libc::SIGINT);
        assert!(!take_from(&of_terminal, libc::SIGTERM), "a process has sent that one");
        assert!(take_from(&of_terminal, libc::SIGINT));
        assert!(!take_from(&of_terminal, libc::SIGINT), "once");
    }

    #[test]
    fn a_command_that_goes_on_after_a_request_has_not_ended_by_it() {
        let asked = Duration::from_secs(1000);
        let ended = |signal, status, after| {
            is_end_by(signal, asked, End { status, at: asked + Duration::from_secs(after) })
        };
        assert!(ended(libc::SIGTERM, 0, 1) && ended(libc::SIGINT, 0, 29));
        assert!(!ended(libc::SIGTERM, 0, 31) && !ended(libc::SIGINT, 0, 3600), "it ended by itself");
        assert!(ended(libc::SIGTERM, 143, 3600), "its status says so");
        assert!(!ended(libc::SIGTERM, 130, 1) && !ended(libc::SIGTERM, 1, 1), "its own word");
        assert!(!ended(libc::SIGHUP, 0, 1), "it has read its settings anew");
    }
}
