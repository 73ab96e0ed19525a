//! Borrowing a stopped thread to make system calls in its process.
//!
//! Problem: the target must map, protect and move memory, which only its own system calls can do, and this
//! program may be killed (SIGKILL) at any instruction in between, after which nobody is there to give the
//! thread its registers back. Idea: the thread carries its own way back. In this order, each step harmless if
//! it is the last one:
//!
//! 1. the [stub](crate::stub) goes into dead padding, the [frame](crate::frame) with the thread's context
//!    below its stack;
//! 2. the thread's registers point to the stub, with `getpid` as the call: from here on a death of the tracer
//!    makes the thread run the stub and return through `rt_sigreturn`, signal mask included;
//! 3. its signals are blocked, a signal that was on its way is queued again;
//! 4. the calls: registers set, one run from system call entry to exit, result read. The thread stands behind
//!    the stub's first instruction then, in front of `rt_sigreturn`, which never runs while the tracer lives;
//! 5. signal mask and registers are set back (in this order), so that a system call that was interrupted by
//!    the stop continues with the rest of its timeout, which `rt_sigreturn` would have lost; then the bytes
//!    of stub and stack.

use crate::borrow_area::{Place, failed};
use crate::error::TraceError;
use crate::frame;
use crate::registers::{NO_SYSTEM_CALL, PendingRestart, Registers};
use crate::seccomp::{Asked, Filters};
use crate::status::StopKind;
use crate::stopped::Stopped;
use crate::stub::{BATCH_SPACE, STUB_SPACE, StubPlace};
use crate::sys::{self, Resume};
use crate::unborrowable::Unborrowable;
use crate::wait::{WaitOutcome, pauses, wait_for};
use restitch_address::{Avma, AvmaRange};
use restitch_x86::kernel::NUMBERED_CALL;
use restitch_x86::system_call::AFTER_CALL;
use std::time::Duration;

/// Bytes below the stack pointer that belong to the running function (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;
/// Room for arguments in memory: the longest path and some words.
const SCRATCH: usize = 4096 + 64;
/// Signals that cannot be blocked are cleared from the mask by the kernel.
const ALL_SIGNALS: u64 = u64::MAX;
/// How long a call may take before the target is considered stuck.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Times that an interrupted call is made again.
const RETRIES: u32 = 100;

/// A thread of a stopped process that makes system calls for us. Dropping it gives the thread back as it was.
#[derive(Debug)]
pub struct Borrow<'a> {
    stopped: &'a mut Stopped,
    index: usize,
    stub: Avma,
    /// The loop for several calls is there too.
    loop_room: bool,
    stub_before: Vec<u8>,
    /// Lowest byte of the area below the stack: scratch space, then the frame.
    area: Avma,
    area_before: Vec<u8>,
    frame: Avma,
    mask: u64,
    /// Whether the thread stands behind a system call, no longer in the stop in which it was taken.
    moved: bool,
    returned: bool,
    filters: Filters,
}

impl Stopped {
    /// Borrows the thread that is disturbed least. `place` is where its stub goes.
    ///
    /// Errors, before anything is changed: [`TraceError::NoStubPlace`]; [`TraceError::ForbiddenCall`] and the
    /// other errors about filters if these let no thread make our calls; [`TraceError::NothingToBorrow`] if
    /// every thread is in a state that cannot be interrupted without harm.
    pub fn borrow_thread(&mut self, place: StubPlace) -> Result<Borrow<'_>, TraceError> {
        let pid = self.pid();
        let living = self.memory.pid();
        if restitch_procfs::thread_status(living, living)?.shadow_stack {
            return Err(TraceError::NothingToBorrow { pid, why: Unborrowable::ShadowStack });
        }
        let stub_before = self.memory.read_vec(place.address(), place.len())?;
        place.check_bytes(pid, &stub_before)?;
        let (mut why, mut forbidden) = (Unborrowable::ThereIsNone, None);
        for index in self.candidates() {
            let filters = match self.filters(index, place) {
                Ok(filters) => filters,
                Err(error) => {
                    forbidden = Some(error);
                    continue;
                }
            };
            match self.plan_area(index) {
                Ok(plan) => return Borrow::begin(self, index, place, stub_before, plan, filters),
                Err(another) => why = why.or(another),
            }
        }
        Err(forbidden.unwrap_or(TraceError::NothingToBorrow { pid, why }))
    }

    /// A thread's filters, if they let it be borrowed.
    fn filters(&self, index: usize, place: StubPlace) -> Result<Filters, TraceError> {
        let tid = self.threads[index].tid;
        let status = restitch_procfs::thread_status(self.memory.pid(), tid)?;
        let filters = Filters::of(self.pid(), tid, &status)?;
        filters.permit_borrow(status.own_number().unwrap_or(tid), place.address())?;
        Ok(filters)
    }

    /// Threads in the order of how little a borrow disturbs them.
    fn candidates(&self) -> Vec<usize> {
        let penalty = |&index: &usize| {
            let held = &self.threads[index];
            // A restartable sequence is aborted; a pending signal loses its place in the queue; a
            // mask-swapping wait could see a signal that its mask holds back; a timeout begins anew if the
            // tracer dies. Small stacks of coroutines are less likely on the first thread.
            u32::from(self.rseq_abort(index).is_some()) * 16
                + u32::from(held.signal != 0) * 8
                + u32::from(held.current.swaps_signal_mask()) * 4
                + u32::from(held.current.pending_restart() == PendingRestart::Continue) * 2
                + u32::from(held.tid != self.process.pid)
        };
        let mut indices: Vec<usize> = (0..self.threads.len()).collect();
        indices.sort_by_cached_key(penalty);
        indices
    }

    /// Whether no thread can be borrowed just now, as far as its stack goes, and one may be in a moment.
    fn is_to_wait(&self) -> bool {
        let mut passes = false;
        for index in 0..self.threads.len() {
            match self.plan_area(index) {
                Ok(_) => return false,
                Err(why) => passes |= why.passes(),
            }
        }
        passes
    }

    /// Stops all threads of process `pid` at a moment at which one of them can be borrowed: threads that
    /// stand on small stacks (of coroutines) leave them. If that does not come soon, it is stopped all the
    /// same.
    ///
    /// # Errors
    /// Those of [`Stopped::seize_all`].
    pub fn seize_all_to_borrow(pid: i32) -> Result<Self, TraceError> {
        let mut stopped = Self::seize_all(pid)?;
        for pause in pauses() {
            if !stopped.is_to_wait() {
                break;
            }
            stopped.resume();
            std::thread::sleep(pause);
            stopped = Self::seize_all(pid)?;
        }
        Ok(stopped)
    }

    /// Where scratch space and frame go, with the bytes that are there now.
    fn plan_area(&self, index: usize) -> Result<AreaPlan, Unborrowable> {
        let held = &self.threads[index];
        if sys::dispatches_calls(held.tid) {
            return Err(Unborrowable::CallsDispatched { tid: held.tid });
        }
        let xsave = sys::get_xsave(held.tid).map_err(failed)?;
        let room = frame::frame_len(xsave.len()) as u64;
        let frame = (held.current.rsp - RED_ZONE - room).align_down(64);
        let area = frame - SCRATCH as u64;
        let before = self.fit_area(Place {
            tid: held.tid,
            area: AvmaRange::between(area, held.current.rsp - RED_ZONE),
            thread_data: held.current.fs_base,
            others_run: self.others_run,
        })?;
        Ok(AreaPlan { area, before, frame, xsave })
    }
}

struct AreaPlan {
    area: Avma,
    before: Vec<u8>,
    frame: Avma,
    xsave: Vec<u8>,
}

impl<'a> Borrow<'a> {
    fn begin(
        stopped: &'a mut Stopped,
        index: usize,
        place: StubPlace,
        stub_before: Vec<u8>,
        plan: AreaPlan,
        filters: Filters,
    ) -> Result<Self, TraceError> {
        let tid = stopped.threads[index].tid;
        stopped.abort_rseq(tid)?;
        let mask = sys::get_signal_mask(tid)?;
        let mut settled = stopped.threads[index].current.settled();
        let mut code = [0; NUMBERED_CALL];
        if settled.rax == libc::SYS_restart_syscall as u64
            && stopped.memory.read(settled.rip.offset(2 - NUMBERED_CALL as i64), &mut code).is_ok()
        {
            settled = settled.begun_anew(&code);
        }
        let frame = frame::build(plan.frame.get(), &settled, mask, &plan.xsave);
        let mut borrow = Self {
            stopped,
            index,
            stub: place.address(),
            loop_room: place.len() >= BATCH_SPACE,
            stub_before,
            area: plan.area,
            area_before: plan.before,
            frame: plan.frame,
            mask,
            moved: false,
            returned: false,
            filters,
        };
        borrow.stopped.memory.write(borrow.stub, &StubPlace::code(place.len()))?;
        borrow.stopped.memory.write(Avma::new(frame.at), &frame.bytes)?;
        sys::set_registers(tid, &borrow.call_registers(libc::SYS_getpid, [0; 6]))?;
        sys::set_signal_mask(tid, ALL_SIGNALS)?;
        borrow.queue_signal_again()?;
        Ok(borrow)
    }

    fn tid(&self) -> i32 {
        self.stopped.threads[self.index].tid
    }

    /// The process's number.
    pub fn pid(&self) -> i32 {
        self.stopped.pid()
    }

    /// The stopped process's memory.
    pub fn memory(&self) -> &crate::memory::Memory {
        self.stopped.memory()
    }

    /// The borrowed thread's number.
    pub fn thread(&self) -> i32 {
        self.tid()
    }

    pub(crate) fn call_registers(&self, number: libc::c_long, args: [u64; 6]) -> Registers {
        let original = self.stopped.threads[self.index].current;
        Registers {
            rax: number as u64,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            rip: self.stub,
            rsp: self.frame,
            // Keeps the kernel from restarting the system call that the thread was in.
            orig_rax: NO_SYSTEM_CALL,
            ..original
        }
    }

    /// A signal on its way to the thread is blocked by now: injecting it makes the kernel queue it again,
    /// with all it carries (`ptrace_signal` in kernel/signal.c).
    fn queue_signal_again(&mut self) -> Result<(), TraceError> {
        let signal = std::mem::take(&mut self.stopped.threads[self.index].signal);
        if signal == 0 {
            return Ok(());
        }
        let tid = self.tid();
        sys::interrupt(tid)?;
        sys::resume(tid, Resume::Continue, signal)?;
        self.wait_for_interrupt()
    }

    /// Waits until the thread stands still because of an interruption.
    fn wait_for_interrupt(&mut self) -> Result<(), TraceError> {
        let tid = self.tid();
        loop {
            match self.next_stop()? {
                StopKind::Interrupt | StopKind::Group(_) => return Ok(()),
                // Signals are blocked: the kernel queues what is injected again. SIGSTOP leads to a group
                // stop.
                StopKind::Signal(signal) => {
                    sys::interrupt(tid)?;
                    sys::resume(tid, Resume::Continue, signal)?;
                }
                _ => sys::resume(tid, Resume::Continue, 0)?,
            }
        }
    }

    pub(crate) fn next_stop(&self) -> Result<StopKind, TraceError> {
        let (tid, operation) = (self.tid(), "making a system call for us");
        match wait_for(tid, CALL_LIMIT) {
            WaitOutcome::Stop(StopKind::Ended(_)) | WaitOutcome::Gone => {
                Err(TraceError::Vanished { tid, operation })
            }
            WaitOutcome::Stop(stop) => Ok(stop),
            WaitOutcome::TimedOut => Err(TraceError::NotStopping {
                pid: self.pid(),
                tid,
                waited_ms: CALL_LIMIT.as_millis() as u64,
                state: operation.to_owned(),
            }),
        }
    }

    /// Makes one system call; the result is what the kernel leaves in `rax`, negative for an error number.
    /// Calls that could block for long, or end or duplicate the process, are not to be made.
    ///
    /// # Errors
    /// [`TraceError::ForbiddenCall`] if a filter of the thread does not let it through; then it was not made.
    pub fn raw_system_call(&mut self, number: i64, args: [u64; 6]) -> Result<i64, TraceError> {
        self.permit(&Asked { number, args })?;
        for _ in 0..RETRIES {
            let result = self.call_once(number, args)?;
            // EINTR and the kernel's internal restart codes: job control came in between.
            if result != -i64::from(libc::EINTR) && !(-516..=-512).contains(&result) {
                return Ok(result);
            }
        }
        Ok(-i64::from(libc::EINTR))
    }

    fn call_once(&mut self, number: i64, args: [u64; 6]) -> Result<i64, TraceError> {
        let tid = self.tid();
        sys::set_registers(tid, &self.call_registers(number, args))?;
        // Entry, then exit.
        for _ in 0..2 {
            sys::resume(tid, Resume::ToSystemCall, 0)?;
            self.moved = true;
            self.wait_for_system_call_stop()?;
        }
        Ok(sys::get_registers(tid)?.rax as i64)
    }

    fn wait_for_system_call_stop(&mut self) -> Result<(), TraceError> {
        let tid = self.tid();
        loop {
            match self.next_stop()? {
                StopKind::SystemCall => return Ok(()),
                StopKind::Signal(signal) => sys::resume(tid, Resume::ToSystemCall, signal)?,
                _ => sys::resume(tid, Resume::ToSystemCall, 0)?,
            }
        }
    }

    /// Puts bytes into scratch space below the thread's stack, valid until the next call of this function; at
    /// most 4160 bytes.
    pub(crate) fn put_scratch(&mut self, bytes: &[u8]) -> Result<Avma, TraceError> {
        if bytes.len() > SCRATCH {
            let source = std::io::Error::from_raw_os_error(libc::ENAMETOOLONG);
            let (pid, at, len) = (self.pid(), self.area, bytes.len());
            return Err(TraceError::Memory { operation: "write", pid, at, len, source });
        }
        self.stopped.memory.write(self.area, bytes)?;
        Ok(self.area)
    }

    /// Whether the loop for several calls is behind the stub.
    pub(crate) fn loop_room(&self) -> bool {
        self.loop_room
    }

    pub(crate) fn stub(&self) -> Avma {
        self.stub
    }

    /// Where scratch space begins.
    pub(crate) fn area(&self) -> Avma {
        self.area
    }

    pub(crate) fn scratch_len(&self) -> usize {
        SCRATCH
    }

    pub(crate) fn set_moved(&mut self, moved: bool) {
        self.moved = moved;
    }

    /// Delivers a signal when the thread is released, if no other one waits for that.
    pub(crate) fn deliver_later(&mut self, signal: i32) {
        let held = &mut self.stopped.threads[self.index].signal;
        if *held == 0 {
            *held = signal;
        }
    }

    /// The thread's number in its own pid namespace.
    pub(crate) fn own_number(&self) -> Result<i32, TraceError> {
        let status = restitch_procfs::thread_status(self.stopped.memory.pid(), self.tid())?;
        Ok(status.own_number().unwrap_or(self.tid()))
    }

    /// Whether the thread's filters let it make this call, at the stub or in the loop behind it.
    pub(crate) fn permit(&self, asked: &Asked) -> Result<(), TraceError> {
        [2, STUB_SPACE as u64 + AFTER_CALL]
            .iter()
            .try_for_each(|&at| self.filters.permit(asked, self.stub + at))
    }

    /// Gives the thread back, and reports whether that worked (dropping does the same silently).
    pub fn finish(mut self) -> Result<(), TraceError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), TraceError> {
        if std::mem::replace(&mut self.returned, true) {
            return Ok(());
        }
        let tid = self.tid();
        if self.moved {
            // Only a stop at which signals are looked at lets the kernel restart an interrupted call
            // afterwards.
            sys::interrupt(tid)?;
            sys::resume(tid, Resume::Continue, 0)?;
            self.wait_for_interrupt()?;
        }
        sys::set_signal_mask(tid, self.mask)?;
        sys::set_registers(tid, &self.stopped.threads[self.index].current)?;
        self.stopped.memory.write(self.area, &self.area_before)?;
        self.stopped.memory.write(self.stub, &self.stub_before)
    }
}

impl Drop for Borrow<'_> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
