//! Letting a followed process run up to a place: its program's entry point, say, where the loader's work is done.
//!
//! Problem: the process has to be stopped there, and yet must run on as if nothing had been if this program dies on the way. Idea: a hardware
//! breakpoint that belongs to a descriptor of *ours* ([`restitch_perf::ThreadBreakpoint`]); it sends the thread a signal whose default is to
//! be ignored, which stops a traced thread and does nothing to any other.
//!
//! Where there are no such breakpoints (a container that forbids `perf_event_open`, a debugger that uses all of them), the place gets an
//! `int3`; the original byte comes back in the stop in which it is reached, or when the process is let go. **Should this
//! program be killed before that, the process ends by SIGTRAP** when it gets there; [`TraceEvents::trap_in_code`] tells of it. (A
//! program that reads its own code meanwhile sees the `int3`.)
//!
//! Limits: of the process's threads only the one that executed the program is stopped by a hardware breakpoint; others do not get to an entry
//! point. A thread that blocks all signals of which one could be used gets an `int3`.

use crate::launch::{TraceEvent, TraceEvents};
use crate::seize::hold_thread;
use crate::stopped::{Held, Stopped};
use crate::sys::{self, Resume};
use crate::{Memory, Registers, TraceError};
use restitch_address::Avma;
use restitch_perf::ThreadBreakpoint;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const INT3: u8 = 0xcc;
/// How long other threads of the process may take to stop.
const LIMIT: Duration = Duration::from_secs(10);
/// Signals that are ignored by default and that nobody needs at the start of a program.
const SIGNALS: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// In rflags of a thread that stands at a breakpoint: it passes it once (AMD64 manual volume 2, section 13.1.1).
const RESUME_FLAG: u64 = 1 << 16;

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
enum Notice {
    /// That of a breakpoint that the thread stands in front of.
    Here,
    /// That of a breakpoint, of no meaning any more.
    Stale,
    /// Somebody else's.
    Foreign,
}

/// Reaps the stop of a thread in front of a signal of ours, so that nobody gets it should this program die before the thread is resumed.
fn take_from_kernel(tid: i32) {
    sys::wait(tid, false);
}

impl Breakpoint {
    /// A hardware breakpoint for thread `tid`, which stands still; else why there can be none.
    fn hardware(tid: i32, at: Avma) -> Result<Self, String> {
        let mask = sys::get_signal_mask(tid).map_err(|e| e.to_string())?;
        let open = |signal: &&i32| mask & 1 << (**signal - 1) == 0;
        let signal = SIGNALS.iter().find(open).ok_or("it blocks the signals that could be used")?;
        let mut breakpoint = ThreadBreakpoint::open(tid, *signal).map_err(|e| e.to_string())?;
        breakpoint.set(at).map_err(|e| e.to_string())?;
        Ok(Self { at, kind: Kind::Hardware(breakpoint) })
    }

    fn in_code(memory: &Memory, at: Avma) -> Result<Self, TraceError> {
        let original = memory.read_vec(at, 1)?.first().copied().unwrap_or(INT3);
        memory.write(at, &[INT3])?;
        Ok(Self { at, kind: Kind::Code(original) })
    }

    /// What `signal` is to thread `tid`, which stands still with `registers`.
    fn judge(&self, tid: i32, signal: i32, registers: &Registers) -> Notice {
        match &self.kind {
            Kind::Hardware(breakpoint) => {
                let is_ours = SIGNALS.contains(&signal)
                    && sys::signal_origin(tid)
                        .is_ok_and(|o| o.is_descriptor() && o.descriptor == breakpoint.number());
                match is_ours {
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
    fn take_away(&self, pid: i32, registers: &Registers) -> Result<Registers, TraceError> {
        let Kind::Code(original) = self.kind else { return Ok(*registers) };
        Memory::open(pid)?.write(self.at, &[original])?;
        let rip = if registers.rip == self.at + 1 { self.at } else { registers.rip };
        Ok(Registers { rip, ..*registers })
    }
}

impl TraceEvents {
    /// Lets a process that a [`TraceEvent::Exec`] holds run until its thread is about to execute the instruction at
    /// `at`: that is a [`TraceEvent::Reached`], once. One place for a process; the next exec forgets it.
    ///
    /// # Errors
    /// If there is no code at `at`. The process runs on.
    pub fn run_to(&mut self, stopped: Stopped, at: Avma) -> Result<(), TraceError> {
        let pid = stopped.pid();
        stopped.memory().read_vec(at, 1)?;
        let breakpoint = match Breakpoint::hardware(pid, at) {
            Ok(breakpoint) => breakpoint,
            Err(why) => {
                self.trap_in_code.get_or_insert(why);
                Breakpoint::in_code(stopped.memory(), at)?
            }
        };
        self.breakpoints.insert(pid, breakpoint);
        stopped.resume();
        Ok(())
    }

    /// Why a process had to be stopped by a trap in its code so far, if one had: it would not have outlived this program just then.
    pub fn trap_in_code(&self) -> Option<&str> {
        self.trap_in_code.as_deref()
    }

    /// Looks at the signal that thread `tid` is about to get. If it is that of its process's breakpoint, the whole process is held in
    /// front of it; one that means nothing any more is swallowed.
    pub(crate) fn notified(
        &mut self,
        pid: i32,
        tid: i32,
        signal: i32,
    ) -> Result<Option<TraceEvent>, TraceError> {
        let Some(breakpoint) = self.breakpoints.get(&pid) else {
            return sys::resume(tid, Resume::Continue, signal).map(|()| None);
        };
        let registers = sys::get_registers(tid)?;
        match breakpoint.judge(tid, signal, &registers) {
            Notice::Here => {
                take_from_kernel(tid);
                self.reached(pid, tid).map(Some)
            }
            Notice::Stale => sys::resume(tid, Resume::Continue, 0).map(|()| None),
            Notice::Foreign => sys::resume(tid, Resume::Continue, signal).map(|()| None),
        }
    }

    fn reached(&mut self, pid: i32, tid: i32) -> Result<TraceEvent, TraceError> {
        let begun = Instant::now();
        let mut held = hold_thread(tid, 0)?;
        if let Some(breakpoint) = self.breakpoints.remove(&pid) {
            held.current = breakpoint.take_away(pid, &held.current)?;
            sys::set_registers(tid, &held.current)?;
            held.original = held.current;
        }
        let stopped = self.hold_all(pid, LIMIT, BTreeMap::from([(tid, held)]), begun)?;
        Ok(TraceEvent::Reached(stopped))
    }

    /// A thread that is being held for another reason with `signal` on its way: the signal to deliver later. One that stands at its
    /// breakpoint gets there once more when it is let go.
    pub(crate) fn put_off(&self, pid: i32, held: &mut Held) -> Result<(), TraceError> {
        let Some(breakpoint) = self.breakpoints.get(&pid) else { return Ok(()) };
        match breakpoint.judge(held.tid, held.signal, &held.current) {
            Notice::Foreign => return Ok(()),
            Notice::Stale => {}
            Notice::Here => {
                let rip = breakpoint.at;
                held.current = Registers { rip, eflags: held.current.eflags & !RESUME_FLAG, ..held.current };
                sys::set_registers(held.tid, &held.current)?;
                held.original = held.current;
            }
        }
        take_from_kernel(held.tid);
        held.signal = 0;
        Ok(())
    }

    /// A new process has its parent's memory, an `int3` included; a hardware breakpoint it gets of its own.
    pub(crate) fn inherit_breakpoint(&mut self, parent: i32, child: i32) {
        let inherited = match self.breakpoints.get(&parent) {
            None => return,
            Some(Breakpoint { at, kind: Kind::Code(original) }) => {
                Some(Breakpoint { at: *at, kind: Kind::Code(*original) })
            }
            // A child that cannot have one runs past the place unreported.
            Some(Breakpoint { at, kind: Kind::Hardware(_) }) => Breakpoint::hardware(child, *at).ok(),
        };
        if let Some(breakpoint) = inherited {
            self.breakpoints.insert(child, breakpoint);
        }
    }

    /// Takes a process's breakpoint away before its thread `tid`, which stands still, is let go with `signal`. The signal to
    /// deliver: none if it is that of the breakpoint.
    pub(crate) fn leave_breakpoint(&mut self, pid: i32, tid: i32, signal: i32) -> i32 {
        let Some(breakpoint) = self.breakpoints.get(&pid) else { return signal };
        // What cannot be read or written now belongs to a process that is gone.
        let Ok(registers) = sys::get_registers(tid) else { return signal };
        let is_ours = signal != 0 && breakpoint.judge(tid, signal, &registers) != Notice::Foreign;
        if is_ours && let Ok(before) = breakpoint.take_away(pid, &registers) {
            let _ = sys::set_registers(tid, &before);
            return 0;
        }
        let _ = breakpoint.take_away(pid, &registers);
        signal
    }

    /// Runs a thread that is held on, when its process could not be stopped as a whole.
    pub(crate) fn run_on(held: &BTreeMap<i32, Held>) {
        for held in held.values() {
            let _ = sys::resume(held.tid, Resume::Continue, held.signal);
        }
    }
}
