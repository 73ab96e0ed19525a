//! Letting a followed process run up to a place: its program's entry point, say, where the loader's work is
//! done.
//!
//! Problem: the process has to be stopped there, and yet must run on as if nothing had been if this program
//! dies on the way. Idea: a hardware breakpoint that belongs to a descriptor of *ours*
//! ([`restitch_perf::ThreadBreakpoint`]); it sends the thread a signal whose default is to be ignored, which
//! stops a traced thread and does nothing to any other.
//!
//! Where there are no such breakpoints (a container that forbids `perf_event_open`, a debugger that uses all
//! of them), the place gets an `int3`; the original byte comes back in the stop in which it is reached, or
//! when the process is let go. **Should this program be killed before that, the process ends by SIGTRAP**
//! when it gets there; [`crate::TraceEvents::trap_in_code`] tells of it. (A program that reads its own code
//! meanwhile sees the `int3`.)
//!
//! Limits: of the process's threads only the one that executed the program is stopped by a hardware
//! breakpoint; others do not get to an entry point. A thread that blocks all signals of which one could be
//! used gets an `int3`.

use crate::error::{TraceError, Why};
use crate::memory::Memory;
use crate::registers::Registers;
use crate::sys::{self, SignalOrigin};

use restitch_address::Avma;
use restitch_perf::ThreadBreakpoint;
use restitch_x86::patch::BREAKPOINT;

/// Signals that are ignored by default and that nobody needs at the start of a program.
const SIGNALS: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// A place that a process has not reached yet.
#[derive(Debug)]
pub(crate) struct Breakpoint {
    at: Avma,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Hardware(ThreadBreakpoint),
    /// An `int3` in place of this byte.
    Code(u8),
}

/// What a signal is that a thread is about to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// That of a breakpoint that the thread stands in front of.
    Here,
    /// That of a breakpoint, of no meaning any more.
    Stale,
    /// Somebody else's.
    Foreign,
}

impl Breakpoint {
    /// A hardware breakpoint for thread `tid`, which stands still; else why there can be none.
    pub fn hardware(tid: i32, at: Avma) -> Result<Self, Why> {
        let mask = sys::get_signal_mask(tid)?;
        let open = |signal: &&i32| mask & 1 << (**signal - 1) == 0;
        let signal = SIGNALS.iter().find(open).ok_or("it blocks the signals that could be used")?;
        let mut breakpoint = ThreadBreakpoint::open(tid, *signal)?;
        breakpoint.set(at)?;
        Ok(Self { at, kind: Kind::Hardware(breakpoint) })
    }

    pub fn in_code(memory: &Memory, at: Avma) -> Result<Self, TraceError> {
        let original = memory.read_vec(at, 1)?.first().copied().unwrap_or(BREAKPOINT);
        memory.write(at, &[BREAKPOINT])?;
        Ok(Self { at, kind: Kind::Code(original) })
    }

    /// What `signal` is to thread `tid`, which stands still with `registers`.
    pub fn judge(&self, tid: i32, signal: i32, registers: &Registers) -> Notice {
        match &self.kind {
            Kind::Hardware(breakpoint) => {
                let origin = sys::signal_origin(tid).ok();
                let is_ours = SIGNALS.contains(&signal)
                    && origin.is_some_and(|o| o.is_descriptor() && o.descriptor == breakpoint.number());
                let is_lost = signal == libc::SIGTRAP && origin.is_some_and(SignalOrigin::is_without_cause);
                match is_ours {
                    _ if is_lost && registers.rip == self.at => Notice::Here,
                    true if registers.rip == self.at => Notice::Here,
                    true => Notice::Stale,
                    false => Notice::Foreign,
                }
            }
            Kind::Code(_) if signal == libc::SIGTRAP && registers.rip == self.at + 1 => Notice::Here,
            Kind::Code(_) => Notice::Foreign,
        }
    }

    /// Gives the code its byte back, and a thread that stands behind an `int3` its place in front of it.
    pub fn take_away(&self, pid: i32, registers: &Registers) -> Result<Registers, TraceError> {
        let Kind::Code(original) = self.kind else { return Ok(*registers) };
        Memory::open(pid)?.write(self.at, &[original])?;
        let rip = if registers.rip == self.at + 1 { self.at } else { registers.rip };
        Ok(Registers { rip, ..*registers })
    }
    /// The place.
    pub fn at(&self) -> Avma {
        self.at
    }

    /// That of process `child`, new and standing still, whose parent has this one: it has its parent's
    /// memory, an `int3` included, and gets a hardware breakpoint of its own. `None` if it cannot have one;
    /// it runs past the place then.
    pub fn inherited(&self, child: i32) -> Option<Self> {
        match self.kind {
            Kind::Code(original) => Some(Self { at: self.at, kind: Kind::Code(original) }),
            Kind::Hardware(_) => Self::hardware(child, self.at).ok(),
        }
    }
}
