//! Letting a followed process run up to a place: its program's entry point, say, where the loader's work is done.
//!
//! The place gets an `int3`; the original byte comes back in the stop in which it is reached, or when the process is
//! let go. (A program that reads its own code meanwhile sees the `int3`.)

use crate::launch::{TraceEvent, TraceEvents};
use crate::seize::hold_thread;
use crate::stopped::Stopped;
use crate::sys::{self, Resume};
use crate::{Memory, Registers, TraceError};
use restitch_address::Avma;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const INT3: u8 = 0xcc;
/// How long other threads of the process may take to stop.
const LIMIT: Duration = Duration::from_secs(10);

/// A place that a process has not reached yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Breakpoint {
    pub at: Avma,
    pub original: u8,
}

impl TraceEvents {
    /// Lets a process that a [`TraceEvent::Exec`] holds run until a thread of it is about to execute the instruction at
    /// `at`: that is a [`TraceEvent::Reached`], once. One place for a process; the next exec forgets it.
    ///
    /// # Errors
    /// If there is no code at `at`. The process runs on.
    pub fn run_to(&mut self, stopped: Stopped, at: Avma) -> Result<(), TraceError> {
        let memory = stopped.memory();
        let original = memory.read_vec(at, 1)?;
        memory.write(at, &[INT3])?;
        let original = original.first().copied().unwrap_or(INT3);
        self.breakpoints.insert(stopped.pid(), Breakpoint { at, original });
        stopped.resume();
        Ok(())
    }

    /// Whether the SIGTRAP of thread `tid` is that of its process's breakpoint; then the whole process is held, with the
    /// original byte in place and the thread in front of it.
    pub(crate) fn reached(&mut self, pid: i32, tid: i32) -> Result<Option<TraceEvent>, TraceError> {
        let Some(&Breakpoint { at, original }) = self.breakpoints.get(&pid) else { return Ok(None) };
        let begun = Instant::now();
        let mut held = hold_thread(tid, 0)?;
        if held.current.rip != at + 1 {
            return Ok(None);
        }
        self.breakpoints.remove(&pid);
        Memory::open(pid)?.write(at, &[original])?;
        held.current.rip = at;
        sys::set_registers(tid, &held.current)?;
        held.original = held.current;
        let stopped = self.hold_all(pid, LIMIT, BTreeMap::from([(tid, held)]), begun)?;
        Ok(Some(TraceEvent::Reached(stopped)))
    }

    /// A new process has its parent's memory, breakpoint included.
    pub(crate) fn inherit_breakpoint(&mut self, parent: i32, child: i32) {
        if let Some(&breakpoint) = self.breakpoints.get(&parent) {
            self.breakpoints.insert(child, breakpoint);
        }
    }

    /// Gives a process its byte back before its thread `tid`, which stands still, is let go with `signal`. The signal to
    /// deliver: none if it is that of the breakpoint.
    pub(crate) fn leave_breakpoint(&mut self, pid: i32, tid: i32, signal: i32) -> i32 {
        let Some(&Breakpoint { at, original }) = self.breakpoints.get(&pid) else { return signal };
        // What cannot be read or written now belongs to a process that is gone.
        if let Ok(memory) = Memory::open(pid) {
            let _ = memory.write(at, &[original]);
        }
        match sys::get_registers(tid) {
            Ok(registers) if signal == libc::SIGTRAP && registers.rip == at + 1 => {
                let _ = sys::set_registers(tid, &Registers { rip: at, ..registers });
                0
            }
            _ => signal,
        }
    }

    /// Runs a thread that is held on, when its process could not be stopped as a whole.
    pub(crate) fn run_on(held: &BTreeMap<i32, crate::stopped::Held>) {
        for held in held.values() {
            let _ = sys::resume(held.tid, Resume::Continue, held.signal);
        }
    }
}
