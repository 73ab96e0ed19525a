//! Events of one thread that tell about themselves by a signal to that thread.
//!
//! Problem: a tracer that wants to see a thread *at* an instruction, or in the middle of its work, needs it
//! held there, and yet nothing may be left behind if the tracer dies: debug registers that `ptrace` has set
//! stay set and then kill the thread by SIGTRAP, and so does a SIGTRAP of `attr.sigtrap` that is under way.
//! Idea: the event belongs to a descriptor of *ours* and goes with it; its overflow sends (`F_SETSIG`,
//! `F_SETOWN_EX`) a signal whose default is to be ignored to the *thread*. A tracer sees ignored signals too,
//! as a stop before the instruction is executed; if it dies, at whatever moment, the signal is ignored and
//! the thread runs on.
//!
//! Limits: a thread that blocks the signal is not stopped until it unblocks it. References:
//! perf_event_open(2), "Overflow handling"; fcntl(2), "Managing signals"; ptrace(2), "Signal-delivery-stop".

use crate::error::PerfError;
use crate::event::{Attributes, Event, execution_breakpoint};
use crate::sampler::has_ended;
use perf_event_open_sys as sys;
use restitch_address::Avma;
use std::io;

/// What makes an alarm go off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlarmEvent {
    /// So many nanoseconds of the thread's own CPU time, seen when it is in user code.
    TaskClock,
    /// So many CPU cycles in user code.
    Cycles,
    /// So many taken branches. `raw` is the processor's event code (`r20c4` on Intel, `rc4` on AMD).
    TakenBranches {
        /// Event code.
        raw: u64,
    },
}

/// An event that interrupts a thread now and then.
#[derive(Debug)]
pub struct ThreadAlarm {
    event: Event,
}

impl ThreadAlarm {
    /// Opens an alarm for thread `tid` that sends it `signal`; it is silent until [`start`](Self::start).
    pub fn open(tid: i32, what: AlarmEvent, signal: i32) -> Result<Self, PerfError> {
        let mut attributes = what.attributes();
        attributes.__bindgen_anon_1.sample_period = SILENT;
        attributes.set_remove_on_exec(1);
        let event = open(&attributes, tid, "an alarm")?;
        notify(&event, tid, signal)?;
        Ok(Self { event })
    }

    /// The number that the signal carries as `si_fd`.
    pub fn number(&self) -> i32 {
        self.event.raw()
    }

    /// Lets the alarm run, with the period that was set last.
    pub fn start(&self) -> Result<(), PerfError> {
        self.event.enable().map_err(|source| PerfError::Io { operation: "starting", source })
    }

    /// How many of its events the thread has had since the alarm was started: of [`AlarmEvent::TaskClock`],
    /// nanoseconds of its own CPU time, in the kernel too, up to now. (A thread that runs is interrupted for
    /// that.)
    pub fn count(&self) -> Result<u64, PerfError> {
        let mut count = [0];
        self.event
            .read_words(&mut count)
            .map_err(|source| PerfError::Io { operation: "reading an alarm", source })?;
        Ok(count[0])
    }

    /// Sets the time from now until it goes off, and from each time on until the next one.
    pub fn set_period(&self, period: u64) -> Result<(), PerfError> {
        let mut period = period.max(1);
        // SAFETY: the kernel reads one u64 at the address, which is that of a live local.
        let result = unsafe { sys::ioctls::PERIOD(self.event.raw(), &raw mut period as u64) };
        check(result, "setting the period")
    }
}

/// The period of an alarm that nobody waits for: an hour.
const SILENT: u64 = 3_600_000_000_000;

/// A hardware breakpoint of one thread.
#[derive(Debug)]
pub struct ThreadBreakpoint {
    event: Event,
    set: bool,
}

/// Where a breakpoint stands before it is set for the first time: never executable.
const NOWHERE: Avma = Avma::new(0x1000);

impl ThreadBreakpoint {
    /// Opens a breakpoint for thread `tid` that sends it `signal` before it executes the instruction. It is
    /// not set yet.
    pub fn open(tid: i32, signal: i32) -> Result<Self, PerfError> {
        let event = open(&breakpoint_at(NOWHERE, false), tid, "a hardware breakpoint")?;
        notify(&event, tid, signal)?;
        Ok(Self { event, set: false })
    }

    /// The number that the signal carries as `si_fd`.
    pub fn number(&self) -> i32 {
        self.event.raw()
    }

    /// Moves the breakpoint to the instruction at `at`. Only sound while the thread is stopped.
    pub fn set(&mut self, at: Avma) -> Result<(), PerfError> {
        let mut attributes = breakpoint_at(at, true);
        // SAFETY: the kernel reads a `perf_event_attr` of the size in its `size` field from the live local.
        let result = unsafe { sys::ioctls::MODIFY_ATTRIBUTES(self.event.raw(), &raw mut attributes) };
        self.set = true;
        check(result, "moving a breakpoint")
    }

    /// Takes the breakpoint away.
    pub fn clear(&mut self) -> Result<(), PerfError> {
        if std::mem::take(&mut self.set) {
            return self.event.disable().map_err(|source| PerfError::Io { operation: "clearing", source });
        }
        Ok(())
    }
}

fn breakpoint_at(at: Avma, enabled: bool) -> Attributes {
    let mut attributes = execution_breakpoint(at);
    attributes.set_disabled(u64::from(!enabled));
    attributes.set_remove_on_exec(1);
    attributes
}

fn check(result: i32, operation: &'static str) -> Result<(), PerfError> {
    match result {
        0.. => Ok(()),
        _ => Err(PerfError::Io { operation, source: io::Error::last_os_error() }),
    }
}

fn open(attributes: &Attributes, tid: i32, what: &str) -> Result<Event, PerfError> {
    match Event::open(attributes, tid, -1, None) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            crate::event::raise_file_limit();
            Event::open(attributes, tid, -1, None)
        }
        other => other,
    }
    .map_err(|source| match source.raw_os_error() {
        Some(libc::ESRCH) => PerfError::NoProcess { pids: vec![tid] },
        Some(libc::EACCES | libc::EPERM) if has_ended(tid) => PerfError::NoProcess { pids: vec![tid] },
        Some(libc::ENOSPC) => PerfError::Unavailable {
            object: format!("{what} of thread {tid}"),
            reason: "all of its debug registers are in use by another debugger".to_owned(),
            remedy: Some("end the other debugger and try again".to_owned()),
            source,
        },
        _ => PerfError::from_open(&format!("{what} of thread {tid}"), source),
    })
}

/// `struct f_owner_ex` of fcntl(2).
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;
const F_SETSIG: libc::c_int = 10;

/// Makes overflows of `event` send `signal` to thread `tid`.
fn notify(event: &Event, tid: i32, signal: i32) -> Result<(), PerfError> {
    let owner = Owner { kind: F_OWNER_TID, pid: tid };
    // SAFETY: `fcntl` on an owned descriptor; the first call reads the live local `owner`, the others take
    // numbers.
    let results = unsafe {
        [
            libc::fcntl(event.raw(), F_SETOWN_EX, &raw const owner),
            libc::fcntl(event.raw(), F_SETSIG, signal),
            libc::fcntl(event.raw(), libc::F_SETFL, libc::O_ASYNC),
        ]
    };
    results.into_iter().try_for_each(|result| check(result, "directing the signal"))
}
