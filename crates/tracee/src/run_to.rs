//! A followed process runs up to a place and is held there.

use crate::breakpoint::{Breakpoint, Notice};
use crate::error::TraceError;
use crate::launch::{TraceEvent, TraceEvents};
use crate::registers::Registers;
use crate::seize::hold_thread;
use crate::stopped::{Held, Stopped};
use crate::sys::{self, Resume};
use restitch_address::Avma;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long other threads of the process may take to stop.
const LIMIT: Duration = Duration::from_secs(10);
/// In rflags of a thread that stands at a breakpoint: it passes it once (AMD64 manual volume 2, section
/// 13.1.1).
const RESUME_FLAG: u64 = 1 << 16;

/// Reaps the stop of a thread in front of a signal of ours, so that nobody gets it should this program die
/// before the thread is resumed.
fn take_from_kernel(tid: i32) {
    sys::wait(tid, false);
}

impl TraceEvents {
    /// Lets a process that a [`TraceEvent::Exec`] holds run until its thread is about to execute the
    /// instruction at `at`: that is a [`TraceEvent::Reached`], once. One place for a process; the next exec
    /// forgets it.
    ///
    /// # Errors
    /// If there is no code at `at`. The process runs on.
    pub fn run_to(&mut self, stopped: Stopped, at: Avma) -> Result<(), TraceError> {
        let pid = stopped.pid();
        stopped.memory().read_vec(at, 1)?;
        let breakpoint = match Breakpoint::hardware(pid, at) {
            Ok(breakpoint) => breakpoint,
            Err(why) => {
                self.trap_in_code.get_or_insert(why.to_string());
                Breakpoint::in_code(stopped.memory(), at)?
            }
        };
        self.breakpoints.insert(pid, breakpoint);
        stopped.resume();
        Ok(())
    }

    /// Why a process had to be stopped by a trap in its code so far, if one had: it would not have outlived
    /// this program just then.
    pub fn trap_in_code(&self) -> Option<&str> {
        self.trap_in_code.as_deref()
    }

    /// Looks at the signal that thread `tid` is about to get. If it is that of its process's breakpoint, the
    /// whole process is held in front of it; one that means nothing any more is swallowed.
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

    /// A thread that is being held for another reason with `signal` on its way: the signal to deliver later.
    /// One that stands at its breakpoint gets there once more when it is let go.
    pub(crate) fn put_off(&self, pid: i32, held: &mut Held) -> Result<(), TraceError> {
        let Some(breakpoint) = self.breakpoints.get(&pid) else { return Ok(()) };
        match breakpoint.judge(held.tid, held.signal, &held.current) {
            Notice::Foreign => return Ok(()),
            Notice::Stale => {}
            Notice::Here => {
                let rip = breakpoint.at();
                held.current = Registers { rip, eflags: held.current.eflags & !RESUME_FLAG, ..held.current };
                sys::set_registers(held.tid, &held.current)?;
                held.original = held.current;
            }
        }
        take_from_kernel(held.tid);
        held.signal = 0;
        Ok(())
    }

    /// A new process has its parent's breakpoint; one that cannot have it runs past the place unreported.
    pub(crate) fn inherit_breakpoint(&mut self, parent: i32, child: i32) {
        if let Some(breakpoint) = self.breakpoints.get(&parent).and_then(|b| b.inherited(child)) {
            self.breakpoints.insert(child, breakpoint);
        }
    }

    /// Takes a process's breakpoint away before its thread `tid`, which stands still, is let go with
    /// `signal`. The signal to deliver: none if it is that of the breakpoint.
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
