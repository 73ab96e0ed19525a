//! The documented exit codes.

/// Exit codes of the command, as docs/usage/troubleshooting.md lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitCode {
    /// What was asked for is done.
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
    /// The target is of a kind that is refused (another tracer, seccomp, no room, no way to keep exceptions
    /// working), or the source of profiles is not to be had.
    Refused,
    /// The target had too little to do for a profile, nothing in it is worth moving, or there is nothing of
    /// restitch in it that could be taken back.
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
            Self::Done => "what was asked for is done",
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
            Self::TakenBack => {
                "it was taken back: it did not help, that could not be judged, or another restitch did"
            }
            Self::CheckFailed => "the checker refused a new version; nothing was changed; please report it",
            Self::CommandNotStarted => "COMMAND was found but cannot be executed",
            Self::CommandNotFound => "COMMAND was not found, or its interpreter was not",
            Self::HungUp => "SIGHUP ended it; what is in the process is said",
            Self::Interrupted => "SIGINT (Ctrl-C) ended it; what is in the process is said",
            Self::Terminated => "SIGTERM ended it; what is in the process is said",
        }
    }

    /// That of a command that could not be started, as env(1) and timeout(1) have it where the command is the
    /// reason. What the kernel refuses for another one (a limit of processes or files, memory, arguments that
    /// are too long) is a failure.
    pub fn of_start(source: &std::io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT) => Self::CommandNotFound,
            Some(
                libc::EACCES
                | libc::EPERM
                | libc::ENOEXEC
                | libc::ELIBBAD
                | libc::EISDIR
                | libc::ENOTDIR
                | libc::ELOOP
                | libc::ENAMETOOLONG
                | libc::ETXTBSY
                | libc::EINVAL,
            ) => Self::CommandNotStarted,
            _ => Self::Failure,
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

/// The name of a signal that asks to end.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        _ => "SIGTERM",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_with_a_command_is_its_fault() {
        let of = |errno| ExitCode::of_start(&std::io::Error::from_raw_os_error(errno));
        assert_eq!(of(libc::ENOENT), ExitCode::CommandNotFound);
        for errno in [libc::EACCES, libc::ENOEXEC, libc::ENOTDIR, libc::ETXTBSY] {
            assert_eq!(of(errno), ExitCode::CommandNotStarted, "{errno}");
        }
        for errno in [libc::EMFILE, libc::ENFILE, libc::E2BIG, libc::EAGAIN, libc::ENOMEM, libc::ECHILD] {
            assert_eq!(of(errno), ExitCode::Failure, "{errno}");
        }
    }
}
