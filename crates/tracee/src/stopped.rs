//! A process all of whose threads are stopped.

use crate::error::TraceError;
use crate::memory::Memory;
use crate::registers::Registers;
use crate::suspend::HoldsOther;
use crate::sys::{self, Resume};
use crate::urgent::Urgent;
use restitch_address::Avma;
use restitch_procfs::{Mapping, ProcessId};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// A stopped thread.
#[derive(Debug)]
pub(crate) struct Held {
    pub tid: i32,
    /// As they were at the stop (with a false `EINTR` repaired): what a rollback restores.
    pub original: Registers,
    /// As they are now.
    pub current: Registers,
    /// The signal that was about to be delivered and will be when the thread is released; 0 for none.
    pub signal: i32,
}

/// How threads are let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// The tracer leaves them.
    Detach,
    /// They run on as tracees of the event loop that lent them.
    Continue,
}

/// How long a stop took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StopTimes {
    /// From the first thread's interruption until all threads stood still.
    pub stopping: Duration,
    /// How long all threads stood still, up to the first one's release.
    pub stopped: Duration,
    /// From the first thread's release to the last one's.
    pub resuming: Duration,
    /// Passes over the thread list that the stop took.
    pub passes: u32,
    /// Number of threads.
    pub threads: usize,
}

impl StopTimes {
    /// `duration` in whole microseconds, for journals and reports.
    pub fn micros(duration: Duration) -> u64 {
        u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
    }
}

/// All threads of a process, held still by this thread of this program.
///
/// There is one way to get it ([`Stopped::seize_all`], or an exec event of [`crate::TraceEvents`]), no way to
/// copy it and no way to send it to another thread, because the kernel accepts requests from the tracing
/// thread only. [`Stopped::resume`] lets the process run on with the registers that were set; **dropping** it
/// instead gives every thread its registers back first. What was written to memory stays written in both
/// cases.
#[derive(Debug)]
pub struct Stopped {
    pub(crate) process: ProcessId,
    pub(crate) threads: Vec<Held>,
    pub(crate) memory: Memory,
    /// Threads of the process that are not held run.
    pub(crate) others_run: bool,
    pub(crate) release: Release,
    pub(crate) times: StopTimes,
    pub(crate) since: Instant,
    /// Dropped last: letting the threads go is urgent too.
    pub(crate) _urgent: Urgent,
    /// And then this program may be suspended; nothing for a process of its own.
    pub(crate) holds: Option<HoldsOther>,
    pub(crate) not_send: PhantomData<*const ()>,
}

impl Stopped {
    /// The process.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// The process's number.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// The numbers of the held threads, ascending.
    pub fn threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.threads.iter().map(|held| held.tid)
    }

    /// The process's memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The process's mappings, read now. Takes about 0.5 us for each.
    pub fn maps(&self) -> Result<Vec<Mapping>, TraceError> {
        Ok(restitch_procfs::maps(self.memory.pid())?)
    }

    /// What the stop has taken so far.
    pub fn times(&self) -> StopTimes {
        StopTimes { stopped: self.since.elapsed(), ..self.times }
    }

    pub(crate) fn index_of(&self, tid: i32) -> Result<usize, TraceError> {
        let found = self.threads.binary_search_by_key(&tid, |held| held.tid);
        found.map_err(|_| TraceError::UnknownThread { tid })
    }

    /// A thread's registers.
    pub fn registers(&self, tid: i32) -> Result<Registers, TraceError> {
        Ok(self.threads[self.index_of(tid)?].current)
    }

    /// Sets a thread's registers, at once.
    ///
    /// If the thread is in an interrupted system call ([`Registers::pending_restart`]), the kernel takes the
    /// restart to heart after this: it moves `rip` back by the two bytes of the `syscall` instruction. So
    /// move such a thread to the place behind the copy of that instruction only, or
    /// [settle](Registers::settled) the registers.
    pub fn set_registers(&mut self, tid: i32, registers: Registers) -> Result<(), TraceError> {
        let index = self.index_of(tid)?;
        sys::set_registers(tid, &registers)?;
        self.threads[index].current = registers;
        Ok(())
    }

    /// The thread's blocked signals: bit `n - 1` for signal `n`.
    pub fn signal_mask(&self, tid: i32) -> Result<u64, TraceError> {
        self.index_of(tid)?;
        sys::get_signal_mask(tid)
    }

    /// The signal that waits to be delivered to the thread when it is released, if it was stopped on its way.
    pub fn held_signal(&self, tid: i32) -> Result<Option<i32>, TraceError> {
        let signal = self.threads[self.index_of(tid)?].signal;
        Ok((signal != 0).then_some(signal))
    }

    /// The thread's extended state (x87, SSE, AVX, AVX-512, PKRU) as an XSAVE area in standard form.
    pub fn xsave(&self, tid: i32) -> Result<Vec<u8>, TraceError> {
        self.index_of(tid)?;
        sys::get_xsave(tid)
    }

    /// Sets the thread's extended state. Not undone by dropping.
    pub fn set_xsave(&mut self, tid: i32, area: &[u8]) -> Result<(), TraceError> {
        self.index_of(tid)?;
        sys::set_xsave(tid, area)
    }

    /// If the thread is inside a restartable sequence, aborts it as the kernel does after a preemption: the
    /// thread continues at the abort handler. Needed before the thread is moved or borrowed, because the
    /// kernel forgets a sequence when the thread is seen outside. Returns whether there was one.
    pub fn abort_rseq(&mut self, tid: i32) -> Result<bool, TraceError> {
        let index = self.index_of(tid)?;
        let Some((area, abort)) = self.rseq_abort(index) else { return Ok(false) };
        let registers = Registers { rip: abort, ..self.threads[index].current };
        sys::set_registers(tid, &registers)?;
        self.threads[index].current = registers;
        // An abort is no change that a rollback may take back: the sequence is no longer armed.
        self.threads[index].original = registers;
        self.memory.write(area + RSEQ_CS, &[0; 8])?;
        Ok(true)
    }

    /// The thread's rseq area and the abort address, if its rip is inside the active sequence.
    pub(crate) fn rseq_abort(&self, index: usize) -> Option<(Avma, Avma)> {
        let held = &self.threads[index];
        let area = Avma::new(sys::rseq_area(held.tid).filter(|&area| area != 0)?);
        let descriptor = self.memory.read_u64(area + RSEQ_CS).ok().filter(|&cs| cs != 0)?;
        // struct rseq_cs: u32 version, flags; u64 start_ip, post_commit_offset, abort_ip.
        let word = |at| self.memory.read_u64(Avma::new(descriptor) + at).ok();
        let (start, len, abort) = (word(8)?, word(16)?, word(24)?);
        let inside = held.current.rip.get().wrapping_sub(start) < len;
        inside.then_some((area, Avma::new(abort)))
    }

    /// The process is that of a command which this program has started: it may stand still for longer, and
    /// while this program is suspended.
    pub fn of_own_command(mut self) -> Self {
        self.holds = None;
        self
    }

    /// Lets all threads run on with their present registers and signals, and gives up the process.
    pub fn resume(mut self) -> StopTimes {
        self.let_go(false);
        self.times
    }

    /// A thread that has vanished meanwhile needs nothing: ESRCH is normal here.
    fn let_go(&mut self, roll_back: bool) {
        let begun = Instant::now();
        self.times.stopped = begun - self.since;
        self.times.threads = self.threads.len();
        for held in self.threads.drain(..) {
            if roll_back && held.current != held.original {
                let _ = sys::set_registers(held.tid, &held.original);
            }
            let _ = match self.release {
                Release::Detach => sys::detach(held.tid, held.signal),
                Release::Continue => sys::resume(held.tid, Resume::Continue, held.signal),
            };
        }
        self.times.resuming = begun.elapsed();
    }
}

/// Offset of `rseq_cs` in `struct rseq`.
const RSEQ_CS: u64 = 8;

impl Drop for Stopped {
    fn drop(&mut self) {
        self.let_go(true);
    }
}
