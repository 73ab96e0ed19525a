//! Errors of sessions, and the exit codes for them.

use restitch_apply::Why;
use restitch_apply_process::ProcessError;
use restitch_kernel::KernelError;
use restitch_kernel_control::ControlError;
use restitch_kernel_position::PositionError;
use restitch_pipeline::{ExitCode, PipelineError, signal_name};
use std::path::PathBuf;

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No version could be made, or no profile be had.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A process could not be changed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A kernel could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A group of the kernel could not be put in force, or be taken out.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Functions of a kernel could not be copied.
    #[error(transparent)]
    Position(#[from] PositionError),
    /// Code of the kernel changes all the time.
    #[error(
        "the kernel's code of {} changed each time while it was copied, as by events or tracers that go on and \
         off; nothing is in force; try again when they are still", functions.join(", ")
    )]
    KernelChurn {
        /// The functions that have changed last.
        functions: Vec<String>,
    },
    /// A module of the hottest functions was to be written, and there are no counts.
    #[error("which functions are the hottest is not known without counts: say --counts FILE")]
    NoCounts,
    /// Sampling failed.
    #[error(transparent)]
    Perf(#[from] restitch_perf::PerfError),
    /// What was to be recorded by samples alone cannot be sampled.
    #[error(
        "sampling {object}: {error}; other sources of profiles need no samples (--source trace or count)"
    )]
    Unsampled {
        /// What was to be sampled.
        object: String,
        /// Why it cannot be.
        #[source]
        error: restitch_perf::PerfError,
    },
    /// A process could not be read.
    #[error(transparent)]
    Proc(#[from] restitch_procfs::ProcError),
    /// `/proc` is another PID namespace's.
    #[error(
        "/proc shows another PID namespace than the one that restitch runs in, where the same numbers mean other \
         processes; nothing was done; mount it anew (mount -t proc proc /proc, or unshare --mount-proc), or \
         run restitch outside of the namespace"
    )]
    OtherNamespace,
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
    /// All functions of a module are better off where they are.
    #[error(
        "{module}: what runs in it is best left where it is; nothing was changed; try again under another load"
    )]
    NothingMoves {
        /// The module.
        module: PathBuf,
    },
    /// The process is of a kind that is not touched.
    #[error("process {pid}: {why}; restitch leaves it alone, nothing was changed")]
    Refused {
        /// The process.
        pid: i32,
        /// Why.
        why: String,
    },
    /// Bursts were to be recorded where a retired version has to stay mapped.
    #[error(
        "process {pid} has its original code, but version {number} stays mapped in it, unused: {why}; bursts are \
         recorded only where no other version is mapped; try again later, or use --source trace or count"
    )]
    Stays {
        /// The process.
        pid: i32,
        /// The version.
        number: u32,
        /// Why it stays.
        why: String,
    },
    /// The process has ended before the work on it was done.
    #[error("process {pid} ended {when}")]
    Ended {
        /// The process.
        pid: i32,
        /// When, in words, with the next step if there is one.
        when: String,
    },
    /// The process executes another program by now, in which there is nothing of restitch.
    #[error("process {pid} has executed another program meanwhile; name it again for that one")]
    Executed {
        /// The process.
        pid: i32,
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
    #[error(transparent)]
    NotStarted(#[from] restitch_tracee::NotStarted),
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
    /// Not all could be written; something else was.
    #[error("{error}; {done}")]
    Unwritten {
        /// What was not.
        error: Box<SessionError>,
        /// What is done all the same.
        done: String,
    },
    /// A command could not be run.
    #[error("running {command}: {why}")]
    Command {
        /// The command.
        command: String,
        /// Why not.
        #[source]
        why: Why,
    },
}

fn colon(then: &str) -> &'static str {
    if then.is_empty() { "" } else { ": " }
}

impl SessionError {
    /// Nothing to optimize, or to record.
    pub fn nothing_to_do(why: impl Into<String>) -> Self {
        Self::Pipeline(PipelineError::NothingToDo(why.into()))
    }

    /// That `object` cannot be sampled for a profile that is made of samples alone.
    pub fn unsampled(object: impl Into<String>, error: Self) -> Self {
        match error {
            Self::Perf(error) if !error.is_gone() => Self::Unsampled { object: object.into(), error },
            other => other,
        }
    }

    /// Whether it comes of no more than that the process has ended, whatever could not be done then: the one
    /// place where that is judged.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Ended { .. } => true,
            Self::Process(error) => error.is_gone(),
            Self::Perf(error) | Self::Unsampled { error, .. } => error.is_gone(),
            Self::Proc(error) => error.is_gone(),
            Self::Trace(error) => error.is_gone(),
            Self::BranchTrace(error) => error.is_gone(),
            Self::NotGivenBack { error, .. } | Self::Unwritten { error, .. } => error.is_gone(),
            _ => false,
        }
    }

    /// The exit code for it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            gone if gone.is_gone() => ExitCode::Vanished,
            Self::Pipeline(error) => error.exit_code(),
            Self::Process(error) => of_process(error),
            Self::Kernel(error) => of_kernel(error),
            Self::Control(error) => of_control(error),
            Self::Position(error) => of_position(error),
            Self::Proc(error) => of_proc(error),
            Self::Trace(error) => of_trace(error),
            Self::Perf(error) | Self::Unsampled { error, .. } => of_perf(error),
            Self::Ended { .. } => ExitCode::Vanished,
            Self::Command { .. } => ExitCode::Failure,
            Self::NotStarted(error) => ExitCode::of_start(&error.source),
            Self::BranchTrace(error) => of_branch_trace(error),
            Self::Source { .. } => ExitCode::Refused,
            Self::Unjudged { .. } | Self::NoCounts => ExitCode::Usage,
            Self::Refused { .. }
            | Self::Executed { .. }
            | Self::KernelChurn { .. }
            | Self::OtherNamespace => ExitCode::Refused,
            Self::NothingMoves { .. } => ExitCode::NothingToDo,
            Self::Interrupted { signal, .. } => ExitCode::of_signal(*signal),
            // A layout may have been taken out before.
            Self::Panicked { .. } | Self::Stays { .. } => ExitCode::Failure,
            // These promise a process that is as it was.
            Self::NotGivenBack { error, .. } => match error.exit_code() {
                ExitCode::Refused | ExitCode::NothingToDo => ExitCode::Failure,
                code => code,
            },
            Self::Unwritten { error, .. } => error.exit_code(),
        }
    }
}

fn of_perf(error: &restitch_perf::PerfError) -> ExitCode {
    match error {
        restitch_perf::PerfError::Denied { .. } => ExitCode::NotPermitted,
        _ => ExitCode::Failure,
    }
}

fn of_branch_trace(error: &restitch_trace::BranchTraceError) -> ExitCode {
    use restitch_trace::BranchTraceError as B;
    match error {
        B::Trace(error) => of_trace(error),
        B::Proc(error) => of_proc(error),
        B::Perf(error) => of_perf(error),
        B::NoSignal { .. } => ExitCode::Refused,
        B::Thread { .. } | B::Window { .. } | B::NoFiles { .. } => ExitCode::Failure,
    }
}

fn of_kernel(error: &KernelError) -> ExitCode {
    match error {
        error if error.is_permission() => ExitCode::NotPermitted,
        KernelError::Read { .. } | KernelError::Tracer { .. } | KernelError::Hidden { .. } => {
            ExitCode::Failure
        }
        KernelError::Damaged { .. } => ExitCode::BadInput,
        KernelError::Missing { .. } | KernelError::NoModules { .. } => ExitCode::Refused,
        KernelError::NoFunction { .. } | KernelError::Ambiguous { .. } => ExitCode::Usage,
    }
}

fn of_control(error: &ControlError) -> ExitCode {
    match error {
        ControlError::NotPermitted { .. } | ControlError::NotSigned { .. } => ExitCode::NotPermitted,
        ControlError::NoGroup { .. } | ControlError::TakenOut { .. } => ExitCode::NothingToDo,
        ControlError::Foreign { .. } => ExitCode::BadInput,
        ControlError::Failed { .. } => ExitCode::Failure,
        _ => ExitCode::Refused,
    }
}

fn of_position(error: &PositionError) -> ExitCode {
    match error {
        error if error.is_bad_example() => ExitCode::BadInput,
        PositionError::Unproved(_) => ExitCode::CheckFailed,
        PositionError::NeverCalled(_) => ExitCode::NothingToDo,
        _ => ExitCode::Refused,
    }
}

fn of_process(error: &ProcessError) -> ExitCode {
    match error {
        ProcessError::Proc(error) => of_proc(error),
        ProcessError::Trace(error) => of_trace(error),
        ProcessError::NoProgram { .. } | ProcessError::BadProgram { .. } | ProcessError::Journal { .. } => {
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
        | ProcessError::StateLost { .. }
        | ProcessError::TextMoved { .. }
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
        P::Unserved { .. } => ExitCode::Refused,
        P::Replaced { .. } => ExitCode::BadInput,
        P::Io { .. } | P::Malformed { .. } => ExitCode::Failure,
    }
}

fn of_trace(error: &restitch_tracee::TraceError) -> ExitCode {
    use restitch_tracee::TraceError as T;
    match error {
        T::Permission { .. } => ExitCode::NotPermitted,
        T::Proc(e) => of_proc(e),
        T::Launch { source, .. } => ExitCode::of_start(source),
        T::NoFiles { .. } => ExitCode::Failure,
        _ => ExitCode::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_perf::PerfError;

    #[test]
    fn what_cannot_be_sampled_says_what_it_was_and_what_to_use() {
        let denied = PerfError::Denied {
            object: "cycles".into(),
            reason: "no".into(),
            remedy: None,
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        let error = SessionError::unsampled("process 7", denied.into());
        assert!(error.to_string().starts_with("sampling process 7: not allowed to measure cycles: no; "));
        assert!(error.to_string().contains("--source trace"), "{error}");
        assert_eq!(error.exit_code(), ExitCode::NotPermitted);
        assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<PerfError>()));
        let gone = SessionError::unsampled("process 7", PerfError::NoProcess { pids: vec![7] }.into());
        assert_eq!(gone.exit_code(), ExitCode::Vanished);
    }

    #[test]
    fn the_end_of_a_process_has_one_code_whatever_it_kept_from_being_done() {
        let gone = || restitch_tracee::TraceError::Vanished { tid: 7, operation: "a test" };
        let unread = |source: std::io::Error| restitch_tracee::TraceError::Memory {
            operation: "read",
            pid: 7,
            at: restitch_address::Avma::new(0x1000),
            len: 8,
            source,
        };
        let no_hook = ProcessError::NoUnwindHook { pid: 7, why: Box::new(gone()) };
        let ended = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let all: [SessionError; 5] = [
            gone().into(),
            no_hook.into(),
            unread(ended).into(),
            restitch_procfs::ProcError::Reused { pid: 7 }.into(),
            restitch_trace::BranchTraceError::from(gone()).into(),
        ];
        for error in all {
            assert_eq!(error.exit_code(), ExitCode::Vanished, "{error}");
        }
        let fault = std::io::Error::from_raw_os_error(libc::EIO);
        assert_eq!(SessionError::from(unread(fault)).exit_code(), ExitCode::Refused);
    }

    #[test]
    fn no_code_says_that_a_process_is_as_it_was_where_it_is_not() {
        let refused = || SessionError::OtherNamespace;
        assert_eq!(refused().exit_code(), ExitCode::Refused);
        let kept = |error: SessionError| SessionError::NotGivenBack {
            pid: 7,
            error: Box::new(error),
            failure: Box::new(refused()),
        };
        assert_eq!(kept(refused()).exit_code(), ExitCode::Failure);
        let interrupted = SessionError::Interrupted { signal: 15, then: String::new() };
        assert_eq!(kept(interrupted).exit_code(), ExitCode::of_signal(15));
    }
}
