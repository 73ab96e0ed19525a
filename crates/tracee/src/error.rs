//! Errors of tracing.

use crate::not_started::advice;
use crate::unborrowable::Unborrowable;
use restitch_address::Avma;
use restitch_procfs::{Frozen, ProcError};

/// Why something is not as it has to be: the error that says so, or words.
pub(crate) type Why = Box<dyn std::error::Error + Send + Sync>;

/// What the kernel has refused, with what that means.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
struct Refusal {
    words: String,
    source: std::io::Error,
}

/// `source` in `words`, which hold what it says where that helps.
pub(crate) fn explained(words: String, source: std::io::Error) -> Why {
    Box::new(Refusal { words, source })
}

/// Why something could not be done to another process.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The process or thread ended.
    #[error("process or thread {tid} ended while {operation}; nothing is left to be done for it")]
    Vanished {
        /// The thread or process.
        tid: i32,
        /// What was being done.
        operation: &'static str,
    },
    /// The process has ended, but its parent has not collected it.
    #[error(
        "process {pid} has ended already (it is a zombie until its parent collects it); name another one"
    )]
    Zombie {
        /// The process.
        pid: i32,
    },
    /// Another debugger, tracer or profiler holds the process.
    #[error(
        "process {pid} is traced by process {tracer} ({name}) already, and Linux allows one tracer only; end that one or let it detach, then try again"
    )]
    AlreadyTraced {
        /// The process.
        pid: i32,
        /// The present tracer.
        tracer: i32,
        /// The tracer's command name, as far as known.
        name: String,
    },
    /// The kernel refuses to let this process trace that one.
    #[error("no permission to trace process {pid}: {advice}")]
    Permission {
        /// The process.
        pid: i32,
        /// What the user can do.
        advice: String,
    },
    /// A kernel thread has no user code.
    #[error(
        "process {pid} is a kernel thread, which has no program that could be changed; for the code of the kernel see `restitch kernel`"
    )]
    KernelThread {
        /// The process.
        pid: i32,
    },
    /// A 32-bit program.
    #[error(
        "process {pid} runs 32-bit code, and restitch knows 64-bit x86 programs only; start a 64-bit build of it (gcc -m64)"
    )]
    ThirtyTwoBit {
        /// The process.
        pid: i32,
    },
    /// A thread of a 64-bit program was in 32-bit code at each of several looks.
    #[error(
        "thread {tid} of process {pid} runs 32-bit code, in which it cannot be worked with (it was looked at again and again, for a moment); try again"
    )]
    InThirtyTwoBitCode {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// A process cannot stop itself.
    #[error("process {pid} is this program itself; name another process")]
    OwnProcess {
        /// The process.
        pid: i32,
    },
    /// A thread waits for its vfork child.
    #[error(
        "thread {tid} of process {pid} waits for a vfork child and cannot be stopped before that child runs its program; try again later"
    )]
    VforkParent {
        /// The process.
        pid: i32,
        /// The waiting thread.
        tid: i32,
    },
    /// Another process works in its memory.
    #[error(
        "process {pid} shares its memory with process {other} ({name}), which is no thread of it and would run on while code is exchanged; end that one, or make a faster copy of its program instead (restitch record, restitch optimize)"
    )]
    SharedMemory {
        /// The process.
        pid: i32,
        /// One that shares its memory.
        other: i32,
        /// Its command name, as far as known.
        name: String,
    },
    /// A thread did not stop in time.
    #[error(
        "thread {tid} of process {pid} did not stop within {waited_ms} ms (state {state}): it waits in the kernel, for a disk or a network file system perhaps; try again later"
    )]
    NotStopping {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// How long it was waited for.
        waited_ms: u64,
        /// What `/proc` says about the thread.
        state: String,
    },
    /// Its control group is frozen.
    #[error(
        "process {pid} is frozen by its control group ({group}): none of its threads runs, for a tracer neither; thaw it ({thaw}) and try again"
    )]
    Frozen {
        /// The process.
        pid: i32,
        /// The group.
        group: String,
        /// The command that thaws it.
        thaw: String,
    },
    /// New threads appeared faster than they could be stopped.
    #[error(
        "process {pid} starts threads faster than they can be stopped ({passes} passes over its threads); try again later"
    )]
    ThreadStorm {
        /// The process.
        pid: i32,
        /// Number of passes made.
        passes: u32,
    },
    /// The process has started another program meanwhile.
    #[error("process {pid} started another program while it was being stopped; attach to it again")]
    Executed {
        /// The process.
        pid: i32,
    },
    /// A thread of the target may call next to nothing.
    #[error(
        "process {pid} runs under strict seccomp, which lets it read, write and end; a system call on its behalf would kill it, so none was made; make a faster copy of its program instead (restitch record, restitch optimize)"
    )]
    StrictSeccomp {
        /// The process.
        pid: i32,
    },
    /// A system call filter of the target forbids what it would have to call.
    #[error(
        "a seccomp filter of process {pid} (thread {tid}) does not permit {call}, which restitch would make it call ({outcome}), so it was not called; let the filter permit it (SystemCallFilter= of a systemd service, the seccomp profile of a container), or make a faster copy of its program instead (restitch record, restitch optimize)"
    )]
    ForbiddenCall {
        /// The process.
        pid: i32,
        /// The thread whose filter it is.
        tid: i32,
        /// Name of the system call.
        call: &'static str,
        /// What would come of the call.
        outcome: String,
    },
    /// A descriptor of the target is not that of the memory file that it has just made for us.
    #[error(
        "process {pid}: the memory file that it has just made for restitch cannot be used: {why}; nothing was written to it, and the process keeps its code; try again"
    )]
    NotItsMemoryFile {
        /// The process.
        pid: i32,
        /// What it is instead, or what the kernel says.
        #[source]
        why: Why,
    },
    /// A system call filter of the target cannot be read, so that nobody knows what it permits.
    #[error(
        "process {pid} runs under seccomp, and what its filter permits cannot be read: {why}; a forbidden system call on its behalf could kill it, so none was made"
    )]
    UnreadableFilter {
        /// The process.
        pid: i32,
        /// Why, with what would help.
        #[source]
        why: Why,
    },
    /// No thread is in a state in which it can be borrowed.
    #[error("no thread of process {pid} can be borrowed for a system call: {why}; {}", why.next_step())]
    NothingToBorrow {
        /// The process.
        pid: i32,
        /// What was wrong with a candidate.
        #[source]
        why: Unborrowable,
    },
    /// The place for the stub is not dead executable padding.
    #[error(
        "{at} in process {pid} is no place for a system call stub: {why}; give 16 executable bytes between functions"
    )]
    NoStubPlace {
        /// The process.
        pid: i32,
        /// The place.
        at: Avma,
        /// What is wrong with it.
        why: String,
    },
    /// The target's memory could not be read or written.
    #[error(
        "cannot {operation} {len} bytes at {at} in process {pid}: {source}; check that the range is mapped"
    )]
    Memory {
        /// `read` or `write`.
        operation: &'static str,
        /// The process.
        pid: i32,
        /// First address.
        at: Avma,
        /// Number of bytes.
        len: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A userfaultfd's handler would have to be waited for, who may never answer.
    #[error(
        "cannot {operation} the memory of process {pid} at {at}: a userfaultfd watches it, and whoever touches it waits for that one's handler, perhaps for ever; end what watches it, or make a faster copy of the program instead (restitch record, restitch optimize)"
    )]
    Watched {
        /// `read` or `write`.
        operation: &'static str,
        /// The process.
        pid: i32,
        /// The page.
        at: Avma,
    },
    /// The server of a file system would have to be waited for.
    #[error(
        "cannot {operation} the memory of process {pid} at {at}: it is of a file on a file system that a process serves (FUSE) and that has not brought it; see to it that this one answers, then try again, or make a faster copy of the program instead (restitch record, restitch optimize)"
    )]
    Unserved {
        /// `read` or `write`.
        operation: &'static str,
        /// The process.
        pid: i32,
        /// The page.
        at: Avma,
    },
    /// There are too few descriptors.
    #[error(
        "opening the memory of process {pid}: {source} (RLIMIT_NOFILE; each process takes some); raise the limit (`ulimit -n`), or trace fewer processes"
    )]
    NoFiles {
        /// The process.
        pid: i32,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A remote system call failed in the target.
    #[error("{call} in process {pid} failed: {source}{}", next_step(call, source))]
    RemoteCall {
        /// The process.
        pid: i32,
        /// Name of the system call.
        call: &'static str,
        /// The target's error.
        source: std::io::Error,
    },
    /// The thread is not one of those that are held.
    #[error("thread {tid} is not among the stopped threads; take the number from the list of threads")]
    UnknownThread {
        /// The thread.
        tid: i32,
    },
    /// Stepping is not possible.
    #[error("thread {tid} cannot be stepped: {why}; use another source of profiles (--source count or ip)")]
    CannotStep {
        /// The thread.
        tid: i32,
        /// Why.
        why: &'static str,
    },
    /// The program could not be started.
    #[error("cannot start {program}: {source}; {}", advice(program.as_ref(), source))]
    Launch {
        /// The program.
        program: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A ptrace request failed in an unexpected way.
    #[error("ptrace {request} on thread {tid} failed: {source}; try again, and report it if that stays so")]
    Ptrace {
        /// The request's name.
        request: &'static str,
        /// The thread.
        tid: i32,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

impl TraceError {
    /// That a process is frozen.
    pub(crate) fn frozen(pid: i32, frozen: Frozen) -> Self {
        Self::Frozen { pid, group: frozen.group, thaw: frozen.thaw }
    }

    /// Whether the target has ended: nothing remains to be undone.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Vanished { .. } | Self::Zombie { .. } => true,
            Self::Memory { source, .. } => is_of_lost_memory(source),
            Self::Ptrace { source, .. } => source.raw_os_error() == Some(libc::ESRCH),
            Self::Proc(error) => error.is_gone(),
            _ => false,
        }
    }
}

/// Whether memory could not be read or written because there is none any more: its file ends at once then
/// (`mem_rw` in the kernel's fs/proc/base.c), which it does nowhere else, and the calls that need none say
/// that there is no process.
fn is_of_lost_memory(source: &std::io::Error) -> bool {
    use std::io::ErrorKind::{UnexpectedEof, WriteZero};
    matches!(source.kind(), UnexpectedEof | WriteZero) || source.raw_os_error() == Some(libc::ESRCH)
}

/// What can be done about a system call that failed in a target: the limits are the target's.
fn next_step(call: &str, source: &std::io::Error) -> &'static str {
    match (call, source.raw_os_error()) {
        ("mmap", Some(libc::EAGAIN)) => {
            "; it locks its memory and may lock no more: raise its limit of locked memory (RLIMIT_MEMLOCK: prlimit --memlock)"
        }
        ("mmap", Some(libc::EACCES | libc::EPERM)) => {
            "; a security module (AppArmor, SELinux) does not let it execute what restitch maps: permit it that, or have it unconfined"
        }
        ("mmap" | "mremap", Some(libc::ENOMEM)) => {
            "; raise its limit of address space (RLIMIT_AS: prlimit --as) or vm.max_map_count, or free memory"
        }
        ("openat", Some(libc::EACCES)) => {
            "; it has to be able to read restitch's state directory (RESTITCH_STATE_DIR)"
        }
        ("openat" | "memfd_create", Some(libc::EMFILE)) => {
            "; raise its limit of open files (RLIMIT_NOFILE: prlimit --nofile)"
        }
        _ => "; try again, and report it if that stays so",
    }
}
