//! A command that this program stands in front of, as a shell or `time` does: the end is the command's, not
//! ours.
//!
//! Problem: a terminal sends ^C to the whole group; whoever started us signals us alone, and means the
//! command. Idea: while the command runs, the signals that end things are handled. What comes from the
//! kernel, the terminal's, the command has got itself; what a process sends is passed on to it. What came
//! while the command was being started it may not have got: that is passed on, whoever sent it. What this
//! program was told to ignore stays ignored.
//!
//! The command starts with the dispositions and the mask that this program was started with ([`give_back`]).
//! Signals are blocked between the change and the fork, so that each meets one state or the other.
//!
//! Limits: one command at a time (a second one's signals would go to the first); a signal that is sent to the
//! group by a process reaches the command twice, as does what the terminal sends while it is being started.

use crate::disposition::{end_by, give_back, is_forked, is_ignored, set_disposition};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is handled.
const HANDLED: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];
/// How often the command is looked at where the kernel (before 5.3) does not tell its end.
const LOOK: Duration = Duration::from_millis(5);

/// Signals that are to be passed on: bit `n` for signal `n`.
static NOTED: AtomicU64 = AtomicU64::new(0);
/// An event counter by which the handler wakes whoever waits; -1 if there is none.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The process that handles signals.
static HANDLING: AtomicI32 = AtomicI32::new(0);
/// Whether the command is not known to have got what the terminal sends: it is being started.
static STARTING: AtomicBool = AtomicBool::new(false);

/// Async-signal-safe: two atomics and `write`.
extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if is_forked(HANDLING.load(Ordering::SeqCst)) {
        return end_by(signal);
    }
    // SAFETY: the handler is installed with SA_SIGINFO, so the kernel hands in a record of its own; `errno`
    // is this thread's.
    let (code, errno) = unsafe { ((*info).si_code, libc::__errno_location()) };
    if code != libc::SI_KERNEL || STARTING.load(Ordering::SeqCst) {
        NOTED.fetch_or(1 << signal, Ordering::SeqCst);
    }
    // SAFETY: `errno` belongs to this thread. The descriptor is an event counter, or -1 or closed, which is
    // an error that means nothing.
    unsafe {
        let before = *errno;
        libc::write(WAKE.load(Ordering::SeqCst), (&raw const ONE).cast(), 8);
        *errno = before;
    }
}

static ONE: u64 = 1;

/// Sets the thread's mask; the one before.
fn set_mask(how: i32, mask: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: `mask` is initialised and `before` a live local, for which all zeroes are a valid value.
    unsafe {
        libc::pthread_sigmask(how, mask, before.as_mut_ptr());
        before.assume_init()
    }
}

/// What is different from when this program was started. Dropping it brings that back.
#[derive(Debug)]
struct Handled {
    signals: Vec<i32>,
}

impl Handled {
    fn begin() -> Self {
        // SAFETY: no pointers.
        HANDLING.store(unsafe { libc::getpid() }, Ordering::SeqCst);
        let wanted = HANDLED.into_iter().filter(|s| !is_ignored(*s));
        let handler = note as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        let handle =
            |s: &i32| set_disposition(*s, handler as usize, libc::SA_SIGINFO | libc::SA_RESTART).is_ok();
        Self { signals: wanted.filter(handle).collect() }
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        for signal in &self.signals {
            let _ = set_disposition(*signal, libc::SIG_DFL, 0);
        }
        WAKE.store(-1, Ordering::SeqCst);
    }
}

/// A command in whose place this program stands until it has ended. Dropping it before leaves the command
/// alone.
#[derive(Debug)]
pub struct Foreground {
    child: Child,
    end: Option<OwnedFd>,
    /// Before `wake` in the order of dropping: the handler writes to it.
    handled: Option<Handled>,
    wake: Option<OwnedFd>,
}

impl Foreground {
    /// Starts `command`. From here on to its end signals are the command's.
    ///
    /// # Errors
    /// If it cannot be started; signals are this program's again.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        // SAFETY: no pointers.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) });
        let all = full_mask();
        let before = set_mask(libc::SIG_BLOCK, &all);
        NOTED.store(0, Ordering::SeqCst);
        WAKE.store(wake.as_ref().map_or(-1, AsRawFd::as_raw_fd), Ordering::SeqCst);
        let handled = Handled::begin();
        let signals = handled.signals.clone();
        // SAFETY: the closure makes async-signal-safe calls only, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                signals.iter().try_for_each(|s| set_disposition(*s, libc::SIG_DFL, 0))?;
                give_back()
            });
        }
        let child = command.spawn();
        let handled = child.is_ok().then_some(handled);
        // What is delivered now came while the command was being started, which may not have got it.
        STARTING.store(true, Ordering::SeqCst);
        set_mask(libc::SIG_SETMASK, &before);
        STARTING.store(false, Ordering::SeqCst);
        let child = child?;
        // SAFETY: no pointers. The child was not waited for, so the number is its own.
        let end = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) } as RawFd);
        Ok(Self { child, end, handled, wake })
    }

    /// Waits for the command's end, for `limit` at most and no longer than until one of `others` can be read,
    /// and passes signals on. After the end, signals are this program's again.
    pub fn wait(&mut self, limit: Duration, others: &[OwnedFd]) -> Option<ExitStatus> {
        let begun = Instant::now();
        let own = [&self.end, &self.wake].map(|fd| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd));
        let all = own.into_iter().chain(others.iter().map(AsRawFd::as_raw_fd));
        let mut fds: Vec<_> = all.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        loop {
            self.pass_on();
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.handled = None;
                    return Some(status);
                }
                Ok(None) => {}
                // There is no status to be had: somebody else has waited for it.
                Err(_) => {
                    self.handled = None;
                    return Some(std::os::unix::process::ExitStatusExt::from_raw(1 << 8));
                }
            }
            let left = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            self.sleep(left, &mut fds);
            for other in &mut fds[own.len()..] {
                match other.revents {
                    0 => {}
                    ready if ready & libc::POLLIN != 0 => return None,
                    // There will be nothing to read there, which is to wake nobody again and again.
                    _ => other.fd = -1,
                }
            }
        }
    }

    fn pass_on(&self) {
        let noted = NOTED.swap(0, Ordering::SeqCst);
        for signal in HANDLED.into_iter().filter(|s| noted & (1 << s) != 0) {
            // SAFETY: no pointers. The child was not waited for, so the number is its own.
            unsafe { libc::kill(self.child.id() as i32, signal) };
        }
    }

    /// Until something happens, or the time is over. The first two of `fds` are the command's end and the
    /// wake-up.
    fn sleep(&self, limit: Duration, fds: &mut [libc::pollfd]) {
        let limit = if self.end.is_some() && self.wake.is_some() { limit } else { limit.min(LOOK) };
        let mut count = 0u64;
        // Rounded up, so as not to spin at the end.
        let milliseconds = limit.as_micros().div_ceil(1000) as i32;
        // SAFETY: `fds` is a live array of that length, of which negative ones are passed over; `count` has
        // the 8 bytes that are read, and the descriptor does not block.
        unsafe {
            libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds);
            libc::read(fds[1].fd, (&raw mut count).cast(), 8);
        }
    }
}

fn owned(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: a descriptor that is not negative was just made, and nobody else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn full_mask() -> libc::sigset_t {
    let mut mask = MaybeUninit::zeroed();
    // SAFETY: `mask` is a live local, which the call fills in.
    unsafe {
        libc::sigfillset(mask.as_mut_ptr());
        mask.assume_init()
    }
}
