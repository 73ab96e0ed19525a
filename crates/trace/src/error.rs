//! Errors of branch tracing.

use restitch_perf::PerfError;
use restitch_procfs::ProcError;
use restitch_tracee::TraceError;

/// Why a process cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum BranchTraceError {
    /// It cannot be attached to.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Its events cannot be opened.
    #[error(transparent)]
    Perf(#[from] PerfError),
    /// `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// There is no signal that the process can be interrupted with.
    #[error(
        "process {pid} handles all of the signals that are ignored by default (SIGURG, SIGWINCH, SIGCONT), so none can interrupt it unnoticed; use another source of profiles (--source count or ip)"
    )]
    NoSignal {
        /// The process.
        pid: i32,
    },
    /// The memory that is shared with the process cannot be used.
    #[error("reading the branch records of process {pid}: {source}; try again, or use --source trace")]
    Window {
        /// The process.
        pid: i32,
        /// Why not.
        source: std::io::Error,
    },
    /// There are too few descriptors for another thread.
    #[error(
        "opening the events of thread {tid}: {source} (RLIMIT_NOFILE; each thread takes some); raise the limit (`ulimit -n`), or record fewer threads"
    )]
    NoFiles {
        /// The thread.
        tid: i32,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The tracing thread could not be started.
    #[error("starting a thread to trace process {pid}: {source}; free memory or processes and try again")]
    Thread {
        /// The process.
        pid: i32,
        /// Why not.
        source: std::io::Error,
    },
}

impl BranchTraceError {
    /// Whether the process or thread is gone.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Trace(error) => error.is_gone(),
            Self::Proc(error) => error.is_gone(),
            Self::Perf(error) => error.is_gone(),
            _ => false,
        }
    }
}
