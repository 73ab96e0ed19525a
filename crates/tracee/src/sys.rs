//! The raw requests of ptrace(2) and waitpid(2), each as a safe function with a typed error.

use crate::child::note_end;
use crate::error::TraceError;
use crate::registers::Registers;
use crate::status::{StopKind, decode};
use crate::waitid::waitid;
use std::io;

/// `PTRACE_GET_RSEQ_CONFIGURATION`, missing in some libc versions.
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// `PTRACE_SECCOMP_GET_FILTER`, missing in the libc crate.
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` (Linux 6.4), missing in the libc crate.
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// `PTRACE_GETSIGMASK`.
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
/// `PTRACE_SETSIGMASK`.
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
/// `NT_X86_XSTATE`.
const NT_X86_XSTATE: usize = 0x202;

fn failed(request: &'static str, tid: i32) -> TraceError {
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::ESRCH) => TraceError::Vanished { tid, operation: request },
        _ => TraceError::Ptrace { request, tid, source },
    }
}

/// A request whose address and data are plain numbers, not pointers into this process.
fn plain(
    name: &'static str,
    request: libc::c_uint,
    tid: i32,
    addr: usize,
    data: usize,
) -> Result<i64, TraceError> {
    // SAFETY: the callers in this file pass requests only that take numbers as address and data, so the
    // kernel neither reads nor writes memory of this process.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    if result == -1 { Err(failed(name, tid)) } else { Ok(result) }
}

/// `PTRACE_SEIZE` with option bits.
pub(crate) fn seize(tid: i32, options: i32) -> Result<(), TraceError> {
    plain("SEIZE", libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// `PTRACE_SETOPTIONS` for a thread that stands still.
pub(crate) fn set_options(tid: i32, options: i32) -> Result<(), TraceError> {
    plain("SETOPTIONS", libc::PTRACE_SETOPTIONS, tid, 0, options as usize).map(drop)
}

/// `PTRACE_INTERRUPT`.
pub(crate) fn interrupt(tid: i32) -> Result<(), TraceError> {
    plain("INTERRUPT", libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// `PTRACE_DETACH`, delivering `signal` (0 for none).
pub(crate) fn detach(tid: i32, signal: i32) -> Result<(), TraceError> {
    plain("DETACH", libc::PTRACE_DETACH, tid, 0, signal as usize).map(drop)
}

/// `PTRACE_LISTEN`: leaves a thread in its group stop, but reports when that ends.
pub(crate) fn listen(tid: i32) -> Result<(), TraceError> {
    plain("LISTEN", libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// How far a thread is to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resume {
    /// Until something happens.
    Continue,
    /// Until the next entry to or exit from a system call.
    ToSystemCall,
    /// One instruction.
    Step,
}

/// Resumes a stopped thread, delivering `signal` (0 for none).
pub(crate) fn resume(tid: i32, how: Resume, signal: i32) -> Result<(), TraceError> {
    let request = match how {
        Resume::Continue => libc::PTRACE_CONT,
        Resume::ToSystemCall => libc::PTRACE_SYSCALL,
        Resume::Step => libc::PTRACE_SINGLESTEP,
    };
    plain("CONT", request, tid, 0, signal as usize).map(drop)
}

/// `PTRACE_GETREGS`.
pub(crate) fn get_registers(tid: i32) -> Result<Registers, TraceError> {
    let mut registers = std::mem::MaybeUninit::<Registers>::zeroed();
    // SAFETY: `Registers` is `repr(C)` with the layout of `user_regs_struct` (asserted by size in its file),
    // so the kernel writes within it; any bit pattern is valid for its integer fields, also the zeros before
    // the call.
    unsafe {
        if libc::ptrace(libc::PTRACE_GETREGS, tid, 0usize, registers.as_mut_ptr()) == -1 {
            return Err(failed("GETREGS", tid));
        }
        Ok(registers.assume_init())
    }
}

/// `PTRACE_SETREGS`.
pub(crate) fn set_registers(tid: i32, registers: &Registers) -> Result<(), TraceError> {
    // SAFETY: the kernel only reads `size_of::<user_regs_struct>()` bytes, the size of `Registers`.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0usize, registers) };
    if result == -1 { Err(failed("SETREGS", tid)) } else { Ok(()) }
}

/// `PTRACE_GETSIGMASK`: bit `n - 1` for signal `n`.
pub(crate) fn get_signal_mask(tid: i32) -> Result<u64, TraceError> {
    let mut mask = 0u64;
    // SAFETY: address is the size (8) of the kernel's signal set, which the kernel writes into `mask`.
    let result = unsafe { libc::ptrace(PTRACE_GETSIGMASK, tid, 8usize, &raw mut mask) };
    if result == -1 { Err(failed("GETSIGMASK", tid)) } else { Ok(mask) }
}

/// `PTRACE_SETSIGMASK`.
pub(crate) fn set_signal_mask(tid: i32, mask: u64) -> Result<(), TraceError> {
    // SAFETY: address is the size (8) of the kernel's signal set, which the kernel reads from `mask`.
    let result = unsafe { libc::ptrace(PTRACE_SETSIGMASK, tid, 8usize, &raw const mask) };
    if result == -1 { Err(failed("SETSIGMASK", tid)) } else { Ok(()) }
}

/// `PTRACE_GETREGSET` of the extended state, in the processor's standard (not compacted) form.
pub(crate) fn get_xsave(tid: i32) -> Result<Vec<u8>, TraceError> {
    // The largest state known (with AMX tiles) is about 11 KiB; the kernel says how much it wrote.
    let mut bytes = vec![0u8; 16 << 10];
    let mut slice = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `slice` names `bytes`, which is live and of that length; the kernel writes no more and updates
    // iov_len.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut slice) };
    if result == -1 {
        return Err(failed("GETREGSET", tid));
    }
    bytes.truncate(slice.iov_len);
    Ok(bytes)
}

/// `PTRACE_SETREGSET` of the extended state.
pub(crate) fn set_xsave(tid: i32, bytes: &[u8]) -> Result<(), TraceError> {
    let slice = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel only reads the `iov_len` bytes of the live slice.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw const slice) };
    if result == -1 { Err(failed("SETREGSET", tid)) } else { Ok(()) }
}

/// Where the thread has registered its `struct rseq`, 0 for nowhere; `None` where the kernel cannot tell.
pub(crate) fn rseq_area(tid: i32) -> Option<u64> {
    // struct ptrace_rseq_configuration: u64 pointer, u32 size, signature, flags, pad.
    let mut configuration = [0u64; 3];
    let size = std::mem::size_of_val(&configuration);
    // SAFETY: the address argument is the size of the buffer, beyond which the kernel does not write.
    let result =
        unsafe { libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, size, configuration.as_mut_ptr()) };
    (result != -1).then_some(configuration[0])
}

/// Whether the thread has its system calls handed to itself as SIGSYS (`PR_SET_SYSCALL_USER_DISPATCH`).
/// `false` also where the kernel cannot tell (before Linux 6.4, while it has the feature since 5.11): a call
/// that is made in such a thread then ends the process, unless its selector permits it just now.
pub(crate) fn dispatches_calls(tid: i32) -> bool {
    // struct ptrace_sud_config (linux/ptrace.h): u64 mode, selector, offset, len.
    let mut configuration = [0u64; 4];
    let size = std::mem::size_of_val(&configuration);
    // SAFETY: the address argument is the size of the buffer, which the kernel compares with its own
    // structure's, and beyond which it does not write.
    let result = unsafe {
        libc::ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, configuration.as_mut_ptr())
    };
    result != -1 && configuration[0] != 0
}

/// `PTRACE_GETSIGINFO`: whether the signal of a signal stop was sent with `tkill` or `tgkill`.
pub(crate) fn sent_to_thread(tid: i32) -> Result<bool, TraceError> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes one `siginfo_t`, of which zeros are a valid value.
    unsafe {
        if libc::ptrace(libc::PTRACE_GETSIGINFO, tid, 0usize, info.as_mut_ptr()) == -1 {
            return Err(failed("GETSIGINFO", tid));
        }
        Ok(info.assume_init().si_code == libc::SI_TKILL)
    }
}

/// `PTRACE_SECCOMP_GET_FILTER`: the filter that so many newer ones of the thread stand in front of.
///
/// # Errors
/// `ENOENT` if there are not so many; `EACCES` without `CAP_SYS_ADMIN`, or if this program is under a filter
/// itself.
pub(crate) fn seccomp_filter(tid: i32, index: usize) -> io::Result<Vec<libc::sock_filter>> {
    let empty = libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 };
    // The kernel takes no filter of more instructions (`BPF_MAXINSNS`).
    let mut program = vec![empty; 4096];
    // SAFETY: the kernel writes one filter, which `program` has room for whichever it is, and returns its
    // length.
    let len = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index, program.as_mut_ptr()) };
    if len == -1 {
        return Err(io::Error::last_os_error());
    }
    program.truncate(len as usize);
    Ok(program)
}

/// `PTRACE_GETEVENTMSG`.
pub(crate) fn event_message(tid: i32) -> Result<u64, TraceError> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long into `message`.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0usize, &raw mut message) };
    if result == -1 { Err(failed("GETEVENTMSG", tid)) } else { Ok(message) }
}

/// Whether two tasks have the same memory (`kcmp`, `KCMP_VM`); `false` where the kernel does not tell.
pub(crate) fn has_memory_of(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_long = 1;
    // SAFETY: all arguments are numbers; for this kind the last two are not looked at.
    unsafe {
        libc::syscall(libc::SYS_kcmp, libc::c_long::from(one), libc::c_long::from(other), KCMP_VM, 0, 0) == 0
    }
}

/// The number of this very thread.
pub(crate) fn own_tid() -> i32 {
    // SAFETY: `gettid` has no arguments and no memory effects.
    unsafe { libc::gettid() }
}

/// Where a signal came from: the parts of `siginfo_t` that are of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalOrigin {
    /// `si_code`.
    pub code: i32,
    /// `si_fd`, if it was a descriptor.
    pub descriptor: i32,
}

impl SignalOrigin {
    /// Whether a descriptor with `O_ASYNC` sent it: `POLL_IN` (1) to `POLL_HUP` (6), or `SI_SIGIO`.
    pub fn is_descriptor(self) -> bool {
        matches!(self.code, 1..=6 | -5)
    }
    /// Of a SIGTRAP: a debug exception of which the kernel was told no cause (`TRAP_BRKPT`;
    /// arch/x86/kernel/traps.c, `exc_debug_user`): an `int1`, or, where a hypervisor loses what the processor
    /// says (DR6), any hardware breakpoint.
    pub fn is_without_cause(self) -> bool {
        self.code == 1
    }
}

/// `PTRACE_GETSIGINFO`.
pub(crate) fn signal_origin(tid: i32) -> Result<SignalOrigin, TraceError> {
    // `siginfo_t` is 128 bytes; signo, errno, code, padding, then for descriptors: long band, int fd.
    let mut words = [0i32; 32];
    // SAFETY: the kernel writes the 128 bytes of a `siginfo_t`, the size of `words`.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid, 0usize, words.as_mut_ptr()) };
    if result == -1 {
        return Err(failed("GETSIGINFO", tid));
    }
    Ok(SignalOrigin { code: words[2], descriptor: words[6] })
}

/// What a wait found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    /// Nothing to report yet.
    Nothing,
    /// The task changed its state: its number and the raw status word.
    Status(i32, i32),
    /// There is no such child or tracee.
    NoChild,
}

/// `waitpid` for one task (or any tracee or child with -1) of this very thread.
pub(crate) fn wait(tid: i32, block: bool) -> Waited {
    // Other threads of this program may trace processes of their own.
    let flags = libc::__WALL | libc::__WNOTHREAD | if block { 0 } else { libc::WNOHANG };
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int into `status`.
        let result = unsafe { libc::waitpid(tid, &raw mut status, flags) };
        match result {
            0 => return Waited::Nothing,
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            -1 => return Waited::NoChild,
            tid => {
                if matches!(decode(status), StopKind::Ended(_)) {
                    note_end(tid, status);
                }
                return Waited::Status(tid, status);
            }
        }
    }
}

/// Like [`wait`], but a tracee that stands in front of the delivery of a signal is **not reaped**: the stop
/// is looked at only, and is reported again until the tracee is resumed or [`wait`]ed for.
///
/// A wait takes the signal out of the kernel's hands (`wait_task_stopped` clears the exit code unless it is
/// asked not to), and if the tracer then dies before it resumes the tracee, nobody delivers it. What was only
/// looked at is delivered by the kernel. With `block`, a signal to this thread ends it with
/// [`Waited::Nothing`].
pub(crate) fn wait_keeping_signals(tid: i32, block: bool) -> Waited {
    loop {
        let (tid, status) = match look(tid, block) {
            Waited::Status(tid, status) => (tid, status),
            other => return other,
        };
        if is_signal_stop(status) {
            return Waited::Status(tid, status);
        }
        // It may have been killed since: then there is nothing now, and its end is still to come.
        if let Waited::Status(tid, status) = wait(tid, false) {
            return Waited::Status(tid, status);
        }
    }
}

fn is_signal_stop(status: i32) -> bool {
    matches!(decode(status), StopKind::Signal(_))
}

/// `waitid` with `WNOWAIT`, its answer as the status word of `waitpid`.
fn look(tid: i32, block: bool) -> Waited {
    let all = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | libc::__WNOTHREAD;
    let flags = all | if block { 0 } else { libc::WNOHANG };
    loop {
        return match waitid(tid, flags) {
            Ok(None) => Waited::Nothing,
            Ok(Some(report)) => Waited::Status(report.pid, status_word(report.code, report.status)),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Waited::NoChild,
            Err(_) if block => Waited::Nothing,
            Err(_) => continue,
        };
    }
}

/// The status word of `waitpid` for what `waitid` says.
fn status_word(code: i32, status: i32) -> i32 {
    match code {
        libc::CLD_EXITED => (status & 0xff) << 8,
        libc::CLD_KILLED => status & 0x7f,
        libc::CLD_DUMPED => status & 0x7f | 0x80,
        // A stop: the signal, and the event above it.
        _ => status << 8 | 0x7f,
    }
}

/// The calling thread's scheduling policy and real-time priority.
pub(crate) fn scheduling() -> Option<(i32, i32)> {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 names the calling thread; the kernel writes one `sched_param`.
    let (policy, read) =
        unsafe { (libc::sched_getscheduler(0), libc::sched_getparam(0, &raw mut parameters)) };
    (policy >= 0 && read == 0).then_some((policy, parameters.sched_priority))
}

/// Sets the nice value of the calling thread (on Linux the priority of "process" 0 is that of the calling
/// thread; sched(7)).
pub(crate) fn set_nice(nice: i32) -> bool {
    // SAFETY: touches no memory.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice.clamp(-20, 19)) == 0 }
}

/// Sets how much later than it wants the calling thread may be woken, in nanoseconds (0: the default).
pub(crate) fn set_timer_slack(nanoseconds: u32) -> bool {
    // SAFETY: this operation takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_ulong::from(nanoseconds)) == 0 }
}

/// The calling thread's nice value.
pub(crate) fn nice() -> i32 {
    // SAFETY: touches no memory.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Gives thread `tid` of this process the ordinary scheduling policy and this nice value; whether the system
/// permits it.
pub(crate) fn make_ordinary(tid: i32, nice: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel only reads the parameters; the rest touches no memory.
    unsafe {
        libc::sched_setscheduler(tid, libc::SCHED_OTHER, &raw const parameters) == 0
            && libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, nice.clamp(-20, 19)) == 0
    }
}

/// Puts the calling thread into the idle class of I/O; without effect where the system refuses.
pub(crate) fn set_idle_io() {
    const THREAD: i32 = 1;
    const IDLE_CLASS: i32 = 3 << 13;
    // SAFETY: touches no memory; 0 names the calling thread.
    unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, 0, IDLE_CLASS) };
}

/// Sets the calling thread's scheduling policy and real-time priority; whether that was permitted.
pub(crate) fn set_scheduling(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 names the calling thread; the kernel only reads the parameters.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}
