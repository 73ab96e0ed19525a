//! Single-stepping one thread while all others stand still.

use crate::error::TraceError;
use crate::registers::{PendingRestart, Registers};
use crate::status::StopKind;
use crate::stopped::Stopped;
use crate::sys::{self, Resume};
use crate::wait::{WaitOutcome, wait_for};
use restitch_address::Avma;
use restitch_x86::kernel::{KernelEntry, stores_flags};
use std::time::Duration;

/// Why stepping ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepEnd {
    /// The predicate held at this address.
    Reached(Avma),
    /// The permitted number of instructions was executed.
    Limit(Avma),
    /// The next instruction is a system call (or one is pending): it could block, so it was not executed.
    SystemCall(Avma),
    /// The instruction at this address caused this signal, which the thread receives when it is released.
    Fault(Avma, i32),
}

/// How long one instruction may take.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// The trap flag of rflags.
const TRAP_FLAG: u8 = 1;

impl Stopped {
    /// Executes instructions of one thread, at most `limit`, until `reached` holds for the address of the
    /// next one (which is asked before the first step too). For moving a thread out of code whose state has
    /// no equal elsewhere.
    ///
    /// Signals are held back: one that arrives is queued again for the thread and all its signals are blocked
    /// until the stepping ends. The new registers are kept also when `self` is dropped, since instructions
    /// cannot be undone.
    pub fn step_thread(
        &mut self,
        tid: i32,
        limit: usize,
        mut reached: impl FnMut(Avma) -> bool,
    ) -> Result<StepEnd, TraceError> {
        let index = self.index_of(tid)?;
        self.refuse_unsafe_stepping(tid)?;
        let mut stepper = Stepper { stopped: self, index, tid, mask: None };
        let end = stepper.run(limit, &mut reached);
        let restored = stepper.restore_mask();
        let end = end?;
        restored?;
        Ok(end)
    }

    /// A trap that cannot be delivered makes the kernel reset the program's SIGTRAP action.
    fn refuse_unsafe_stepping(&self, tid: i32) -> Result<(), TraceError> {
        let trap = 1u64 << (libc::SIGTRAP - 1);
        if self.signal_mask(tid)? & trap != 0 {
            return Err(TraceError::CannotStep { tid, why: "it blocks SIGTRAP" });
        }
        let status = restitch_procfs::thread_status(self.memory.pid(), self.memory.pid())?;
        match status.ignored_signals.unwrap_or(0) & trap {
            0 => Ok(()),
            _ => Err(TraceError::CannotStep { tid, why: "its process ignores SIGTRAP" }),
        }
    }
}

struct Stepper<'a> {
    stopped: &'a mut Stopped,
    index: usize,
    tid: i32,
    /// The thread's own mask, once it was replaced.
    mask: Option<u64>,
}

impl Stepper<'_> {
    fn registers(&self) -> Registers {
        self.stopped.threads[self.index].current
    }

    fn run(&mut self, limit: usize, reached: &mut dyn FnMut(Avma) -> bool) -> Result<StepEnd, TraceError> {
        for done in 0.. {
            let registers = self.registers();
            let rip = registers.rip;
            if reached(rip) {
                return Ok(StepEnd::Reached(rip));
            }
            if done == limit {
                return Ok(StepEnd::Limit(rip));
            }
            let code = self.code_at(rip);
            if registers.pending_restart() != PendingRestart::None
                || KernelEntry::beginning_of(&code).is_some_and(KernelEntry::is_system_call)
            {
                return Ok(StepEnd::SystemCall(rip));
            }
            if let Some(signal) = self.step(stores_flags(&code))? {
                return Ok(StepEnd::Fault(rip, signal));
            }
        }
        Ok(StepEnd::Limit(self.registers().rip))
    }

    /// The first bytes of the next instruction; fewer or none at the end of a mapping.
    fn code_at(&self, rip: Avma) -> Vec<u8> {
        let memory = self.stopped.memory();
        (1..=3).rev().find_map(|len| memory.read_vec(rip, len).ok()).unwrap_or_default()
    }

    /// One instruction; the signal that it caused, if it failed.
    fn step(&mut self, pushes_flags: bool) -> Result<Option<i32>, TraceError> {
        let mut inject = std::mem::take(&mut self.stopped.threads[self.index].signal);
        if inject != 0 {
            self.block_signals()?;
        }
        loop {
            sys::resume(self.tid, Resume::Step, inject)?;
            inject = 0;
            match self.next_stop()? {
                StopKind::Signal(libc::SIGTRAP) => {
                    self.note_progress()?;
                    if pushes_flags {
                        self.clear_pushed_trap_flag()?;
                    }
                    return Ok(None);
                }
                StopKind::Signal(signal) if is_synchronous(signal) => {
                    self.note_progress()?;
                    self.stopped.threads[self.index].signal = signal;
                    return Ok(Some(signal));
                }
                StopKind::Signal(signal) => {
                    self.block_signals()?;
                    inject = signal;
                }
                _ => {}
            }
        }
    }

    fn next_stop(&self) -> Result<StopKind, TraceError> {
        let (tid, operation) = (self.tid, "stepping through an instruction");
        match wait_for(tid, STEP_LIMIT) {
            WaitOutcome::Stop(StopKind::Ended(_)) | WaitOutcome::Gone => {
                Err(TraceError::Vanished { tid, operation })
            }
            WaitOutcome::Stop(stop) => Ok(stop),
            WaitOutcome::TimedOut => Err(TraceError::NotStopping {
                pid: self.stopped.pid(),
                tid,
                waited_ms: STEP_LIMIT.as_millis() as u64,
                state: operation.to_owned(),
            }),
        }
    }

    fn note_progress(&mut self) -> Result<(), TraceError> {
        let registers = sys::get_registers(self.tid)?;
        let held = &mut self.stopped.threads[self.index];
        held.current = registers;
        held.original = registers;
        Ok(())
    }

    /// Blocks what can be held back. Signals that instructions cause stay open: blocked ones kill.
    fn block_signals(&mut self) -> Result<(), TraceError> {
        if self.mask.is_none() {
            let own = sys::get_signal_mask(self.tid)?;
            sys::set_signal_mask(self.tid, own | !synchronous_set())?;
            self.mask = Some(own);
        }
        Ok(())
    }

    fn restore_mask(&mut self) -> Result<(), TraceError> {
        self.mask.take().map_or(Ok(()), |mask| sys::set_signal_mask(self.tid, mask))
    }

    /// `pushf` under single-step pushes the tracer's trap flag, which a later `popf` would set for good.
    fn clear_pushed_trap_flag(&mut self) -> Result<(), TraceError> {
        let at = self.registers().rsp + 1;
        let memory = self.stopped.memory();
        let mut byte = [0];
        memory.read(at, &mut byte)?;
        memory.write(at, &[byte[0] & !TRAP_FLAG])
    }
}

fn is_synchronous(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGSYS | libc::SIGTRAP
    )
}

fn synchronous_set() -> u64 {
    (1..=64).filter(|&signal| is_synchronous(signal)).map(|signal| 1 << (signal - 1)).sum()
}
