//! Errors of sessions, and the documented exit codes.

use restitch_apply_elf::ElfError;
use restitch_apply_process::ProcessError;
use std::path::{Path, PathBuf};

/// Exit codes of the command, as docs/usage/troubleshooting.md lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitCode {
    /// What was asked for is in force.
    Done,
    /// An error without a code of its own.
    Failure,
    /// The command line is wrong, or asks for a judgement for which there is nothing here.
    Usage,
    /// The input file is not usable: truncated, foreign, corrupt.
    BadInput,
    /// The process does not exist, or it ended meanwhile.
    Vanished,
    /// This user may not do that.
    NotPermitted,
    /// The target is of a kind that is refused (another tracer, seccomp, no room, no way to keep exceptions working), or the source of profiles is not to be had.
    Refused,
    /// The target had too little to do for a profile, nothing in it is worth moving, or there is nothing of restitch in it that could be taken back.
    NothingToDo,
    /// It did not help and was taken back, as asked.
    TakenBack,
    /// The independent checker found a fault in a new version; nothing was changed. A bug of restitch.
    CheckFailed,
    /// The command that restitch was to run was found and cannot be executed; 126, as of a shell.
    CommandNotStarted,
    /// The command that restitch was to run was not found; 127, as of a shell.
    CommandNotFound,
    /// SIGHUP has asked it to end; 129, as of a shell.
    HungUp,
    /// SIGINT has; 130, as of a shell.
    Interrupted,
    /// SIGTERM has; 143, as of a shell.
    Terminated,
}

impl ExitCode {
    /// All codes, in order.
    pub const ALL: [Self; 15] = [
        Self::Done,
        Self::Failure,
        Self::Usage,
        Self::BadInput,
        Self::Vanished,
        Self::NotPermitted,
        Self::Refused,
        Self::NothingToDo,
        Self::TakenBack,
        Self::CheckFailed,
        Self::CommandNotStarted,
        Self::CommandNotFound,
        Self::HungUp,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The number that the shell sees.
    pub const fn number(self) -> i32 {
        match self {
            Self::Done => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::BadInput => 3,
            Self::Vanished => 4,
            Self::NotPermitted => 5,
            Self::Refused => 6,
            Self::NothingToDo => 7,
            Self::TakenBack => 8,
            Self::CheckFailed => 9,
            Self::CommandNotStarted => 126,
            Self::CommandNotFound => 127,
            Self::HungUp => 129,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// What it means, for help and documents.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "what was asked for is in force",
            Self::Failure => "it failed for another reason; the message says why",
            Self::Usage => "the command line is wrong, or `--revert-if-slower` has nothing to judge by",
            Self::BadInput => "a file is truncated, corrupt, of a foreign architecture, or does not fit",
            Self::Vanished => "the process does not exist or has ended",
            Self::NotPermitted => "this user may not do that",
            Self::Refused => {
                "the target cannot be changed safely, or that source of profiles is not available; it is as it was"
            }
            Self::NothingToDo => {
                "nothing to do: too little work for a profile, nothing worth moving, or no restitch to take out"
            }
            Self::TakenBack => "it did not help, or that could not be judged, and it was taken back",
            Self::CheckFailed => "the checker refused a new version; nothing was changed; please report it",
            Self::CommandNotStarted => "COMMAND was found but cannot be executed",
            Self::CommandNotFound => "COMMAND was not found, or its interpreter was not",
            Self::HungUp => "SIGHUP ended it; what is in the process is said",
            Self::Interrupted => "SIGINT (Ctrl-C) ended it; what is in the process is said",
            Self::Terminated => "SIGTERM ended it; what is in the process is said",
        }
    }

    /// That of a request to end by `signal`.
    pub const fn of_signal(signal: i32) -> Self {
        match signal {
            libc::SIGHUP => Self::HungUp,
            libc::SIGINT => Self::Interrupted,
            _ => Self::Terminated,
        }
    }
}

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A process could not be changed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Sampling failed.
    #[error(transparent)]
    Perf(#[from] restitch_perf::PerfError),
    /// A process could not be read.
    #[error(transparent)]
    Proc(#[from] restitch_procfs::ProcError),
    /// Tracing failed.
    #[error(transparent)]
    Trace(#[from] restitch_tracee::TraceError),
    /// Branch tracing failed.
    #[error(transparent)]
    BranchTrace(#[from] restitch_trace::BranchTraceError),
    /// A source of profiles is not to be had.
    #[error("profiles from {source_name} are not available: {why}")]
    Source {
        /// Which one.
        source_name: &'static str,
        /// Why not, with what to use instead.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{operation} {path}: {source}; {}", advice(source))]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what is needed.
    #[error("{path}: {why}")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// Why, with the next step.
        why: String,
    },
    /// A file is of a kind that is not changed.
    #[error("{path}: {why}")]
    RefusedFile {
        /// The file.
        path: PathBuf,
        /// Why, with the next step.
        why: String,
    },
    /// Nothing to optimize.
    #[error("{0}")]
    NothingToDo(String),
    /// All functions of a module are better off where they are.
    #[error("{module}: what runs in it is best left where it is; nothing was changed")]
    NothingMoves {
        /// The module.
        module: PathBuf,
    },
    /// A version could not be made.
    #[error("making a version of {module}: {why}; nothing was changed")]
    Emit {
        /// The module.
        module: PathBuf,
        /// Why not.
        why: String,
    },
    /// The checker found a fault.
    #[error(
        "the checker refused the new version of {module}: {why}; nothing was changed. Please report this with the file"
    )]
    Check {
        /// The module.
        module: PathBuf,
        /// The findings.
        why: String,
    },
    /// The process is of a kind that is not touched.
    #[error("process {pid}: {why}; restitch leaves it alone, nothing was changed")]
    Refused {
        /// The process.
        pid: i32,
        /// Why.
        why: String,
    },
    /// There is no way to judge what was asked to be judged.
    #[error("judging the new layout of process {pid} for --revert-if-slower: {why}; nothing was changed")]
    Unjudged {
        /// The process.
        pid: i32,
        /// Why not, with the next step.
        why: &'static str,
    },
    /// The command that was named cannot be started.
    #[error("cannot start {command}: {source}; {advice}")]
    NotStarted {
        /// The command.
        command: String,
        /// What the operating system said.
        source: std::io::Error,
        /// The next step.
        advice: String,
    },
    /// It was asked to end.
    #[error("ended by {}{}{then}", signal_name(*signal), colon(then))]
    Interrupted {
        /// By which signal.
        signal: i32,
        /// What has become of the process; empty if there was nothing to undo.
        then: String,
    },
    /// A fault of restitch's own.
    #[error(
        "restitch has a fault ({why}){}{then}; please report it, with the command and the program",
        colon(then)
    )]
    Panicked {
        /// What the panic said.
        why: String,
        /// What has become of the process.
        then: String,
    },
    /// After an error a process could not be given its original code back.
    #[error(
        "{error}; and process {pid} could not be given its original code back: {failure}; `restitch revert {pid}` tries again"
    )]
    NotGivenBack {
        /// The process.
        pid: i32,
        /// What had failed before.
        error: Box<SessionError>,
        /// Why it could not be changed back.
        failure: Box<SessionError>,
    },
    /// What was asked for is not enough, or fits nothing.
    #[error("{0}")]
    Usage(String),
    /// A command could not be run.
    #[error("running {command}: {why}")]
    Command {
        /// The command.
        command: String,
        /// Why not.
        why: String,
    },
}

fn colon(then: &str) -> &'static str {
    if then.is_empty() { "" } else { ": " }
}

/// The name of a signal that asks to end.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        _ => "SIGTERM",
    }
}

/// The next step after a failed access to a file.
fn advice(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as K;
    match source.kind() {
        K::NotFound => "check the path",
        K::PermissionDenied => "check the permissions, or run as a user who may do that",
        K::IsADirectory | K::NotADirectory => "name a file",
        K::StorageFull | K::QuotaExceeded => "make room, or name another place",
        K::ReadOnlyFilesystem => "name another place",
        _ => "try again, or name another place",
    }
}

impl SessionError {
    /// Why nothing can be written into the file at `path`.
    pub(crate) fn of_elf(path: &Path, why: ElfError) -> Self {
        let is_refused = matches!(why, ElfError::Appended(_) | ElfError::OutOfReach { .. });
        let (path, why) = (path.to_path_buf(), why.to_string());
        if is_refused { Self::RefusedFile { path, why } } else { Self::BadFile { path, why } }
    }
    /// The exit code for it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Process(error) => of_process(error),
            Self::Proc(error) => of_proc(error),
            Self::Trace(error) => of_trace(error),
            Self::Perf(restitch_perf::PerfError::Denied { .. }) => ExitCode::NotPermitted,
            Self::Perf(restitch_perf::PerfError::NoProcess { .. }) => ExitCode::Vanished,
            Self::Perf(_) | Self::File { .. } | Self::Command { .. } | Self::Emit { .. } => ExitCode::Failure,
            Self::NotStarted { source, .. } => of_start(source),
            Self::BranchTrace(error) => of_branch_trace(error),
            Self::Source { .. } => ExitCode::Refused,
            Self::Unjudged { .. } | Self::Usage(_) => ExitCode::Usage,
            Self::BadFile { .. } => ExitCode::BadInput,
            Self::Refused { .. } | Self::RefusedFile { .. } => ExitCode::Refused,
            Self::NothingToDo(_) | Self::NothingMoves { .. } => ExitCode::NothingToDo,
            Self::Check { .. } => ExitCode::CheckFailed,
            Self::Interrupted { signal, .. } => ExitCode::of_signal(*signal),
            Self::Panicked { .. } => ExitCode::Failure,
            Self::NotGivenBack { error, .. } => error.exit_code(),
        }
    }
}

/// As env(1) and timeout(1) have it.
fn of_start(source: &std::io::Error) -> ExitCode {
    match source.kind() {
        std::io::ErrorKind::NotFound => ExitCode::CommandNotFound,
        _ => ExitCode::CommandNotStarted,
    }
}

fn of_branch_trace(error: &restitch_trace::BranchTraceError) -> ExitCode {
    use restitch_perf::PerfError;
    use restitch_trace::BranchTraceError as B;
    match error {
        B::Trace(error) => of_trace(error),
        B::Proc(error) => of_proc(error),
        B::Perf(PerfError::Denied { .. }) => ExitCode::NotPermitted,
        B::Perf(PerfError::NoProcess { .. }) => ExitCode::Vanished,
        B::NoSignal { .. } => ExitCode::Refused,
        B::Perf(_) | B::Thread { .. } | B::Window { .. } => ExitCode::Failure,
    }
}

fn of_process(error: &ProcessError) -> ExitCode {
    match error {
        ProcessError::Proc(error) => of_proc(error),
        ProcessError::Trace(error) => of_trace(error),
        ProcessError::NoProgram { .. } | ProcessError::Module { .. } | ProcessError::Journal { .. } => {
            ExitCode::BadInput
        }
        ProcessError::Busy { .. }
        | ProcessError::HalfDone { .. }
        | ProcessError::NoRoom { .. }
        | ProcessError::NoMemory { .. }
        | ProcessError::NoUnwindHook { .. }
        | ProcessError::NoDeadBytes { .. }
        | ProcessError::Foreign { .. }
        | ProcessError::Moved { .. }
        | ProcessError::PlaceTaken { .. }
        | ProcessError::Overlaid { .. }
        | ProcessError::PiledUp { .. }
        | ProcessError::Occupied { .. }
        | ProcessError::Unbound { .. } => ExitCode::Refused,
        ProcessError::NotVerified { .. } | ProcessError::State { .. } => ExitCode::Failure,
        ProcessError::NotAttached { .. } => ExitCode::NothingToDo,
    }
}

fn of_proc(error: &restitch_procfs::ProcError) -> ExitCode {
    use restitch_procfs::ProcError as P;
    match error {
        P::Gone { .. } | P::Reused { .. } => ExitCode::Vanished,
        P::Permission { .. } => ExitCode::NotPermitted,
        P::Replaced { .. } => ExitCode::BadInput,
        P::Io { .. } | P::Malformed { .. } => ExitCode::Failure,
    }
}

fn of_trace(error: &restitch_tracee::TraceError) -> ExitCode {
    use restitch_tracee::TraceError as T;
    match error {
        e if e.is_gone() => ExitCode::Vanished,
        T::Permission { .. } => ExitCode::NotPermitted,
        T::Proc(e) => of_proc(e),
        T::Launch { source, .. } => of_start(source),
        _ => ExitCode::Refused,
    }
}
