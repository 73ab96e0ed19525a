//! Errors of measuring, and what the kernel's refusals mean.

use std::io;

/// Why something cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The kernel does not allow it.
    #[error("not allowed to measure {object}: {reason}{}", remedy_text(remedy))]
    Denied {
        /// What was to be measured.
        object: String,
        /// Why not.
        reason: String,
        /// The command that would allow it.
        remedy: Option<String>,
        /// What the operating system said.
        source: io::Error,
    },
    /// This machine cannot do it.
    #[error("cannot measure {object}: {reason}{}", remedy_text(remedy))]
    Unavailable {
        /// What was to be measured.
        object: String,
        /// Why not.
        reason: String,
        /// What would help, if anything.
        remedy: Option<String>,
        /// What the operating system said.
        source: io::Error,
    },
    /// None of the processes exists any more.
    #[error(
        "none of the processes {pids:?} exists (any more); look the number up (`pgrep -a NAME`), or start measuring earlier"
    )]
    NoProcess {
        /// The processes asked for.
        pids: Vec<i32>,
    },
    /// Too many open files.
    #[error(
        "measuring {threads} thread{} needs {needed} open files beside those of restitch, more than it may have; raise the limit (`ulimit -n {}`) or measure fewer processes",
        if *threads == 1 { "" } else { "s" },
        needed + OTHER_FILES
    )]
    TooManyFiles {
        /// Threads to be measured.
        threads: usize,
        /// Files needed.
        needed: usize,
    },
    /// An operation on an open event failed.
    #[error("{operation} of a performance event failed: {source}{}", next_step(source))]
    Io {
        /// What was done.
        operation: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] restitch_procfs::ProcError),
}

impl PerfError {
    /// The same, of the kernel's own code: whose a process is does not matter there.
    #[must_use]
    pub fn about_the_kernel(self) -> Self {
        of_the_kernel(self, Circumstances::now())
    }

    /// Whether it says no more than that all that was to be measured has ended.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NoProcess { .. } => true,
            Self::Proc(error) => error.is_gone(),
            _ => false,
        }
    }
}

/// More files than restitch has open for anything else, in the advice to raise the limit.
const OTHER_FILES: usize = 64;

/// What helps where the kernel refuses something to an event that is open.
fn next_step(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        // What all events of a user may map (perf_mmap in the kernel's kernel/events/core.c).
        Some(libc::EPERM) => {
            "; the memory for records is limited: raise kernel.perf_event_mlock_kb (sysctl) or the limit of locked memory (`ulimit -l`)"
        }
        Some(libc::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        Some(libc::ENOMEM) => "; free memory and try again",
        _ => "",
    }
}

fn remedy_text(remedy: &Option<String>) -> String {
    remedy.as_ref().map_or_else(String::new, |remedy| format!("; {remedy}"))
}

/// What the kernel takes into account when it decides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i32>,
    /// The effective user.
    pub euid: u32,
}

impl Circumstances {
    pub(crate) fn now() -> Self {
        Self {
            paranoid: restitch_procfs::system::perf_event_paranoid(),
            // SAFETY: `geteuid` has no arguments and no memory effects.
            euid: unsafe { libc::geteuid() },
        }
    }
}

/// What `error` means where the kernel's own code was to be measured.
fn of_the_kernel(error: PerfError, Circumstances { paranoid, euid }: Circumstances) -> PerfError {
    let source = match error {
        PerfError::Denied { source, .. } if euid != 0 => source,
        other => return other,
    };
    let level =
        paranoid.map_or_else(String::new, |level| format!(", and kernel.perf_event_paranoid is {level}"));
    PerfError::Denied {
        object: "the kernel's code".into(),
        reason: format!("it is root's{level}: users may at 1 for processes of their own, at 0 for all"),
        remedy: Some("run with sudo".into()),
        source,
    }
}

/// A refusal in words: whether it is one of permission, the reason, and the remedy.
pub(crate) struct Refusal {
    pub denied: bool,
    pub reason: String,
    pub remedy: Option<String>,
}

/// Explains an error number of `perf_event_open`.
pub(crate) fn explain(errno: i32, circumstances: Circumstances) -> Refusal {
    let Circumstances { paranoid, euid } = circumstances;
    match errno {
        libc::EACCES | libc::EPERM => denied(paranoid, euid),
        libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL => Refusal {
            denied: false,
            reason: "this machine has no such counter (a virtual machine without a virtual PMU, or an old processor)".to_owned(),
            remedy: None,
        },
        libc::ENOSYS => Refusal {
            denied: false,
            reason: "the kernel was built without performance events, or a container's seccomp profile hides them".to_owned(),
            remedy: Some("run outside the container, or with a seccomp profile that permits perf_event_open".to_owned()),
        },
        libc::EBUSY => Refusal {
            denied: false,
            reason: "another program uses the counter exclusively".to_owned(),
            remedy: Some("end the other profiler and try again".to_owned()),
        },
        libc::EMFILE => Refusal {
            denied: false,
            reason: "restitch has as many open files as it may (RLIMIT_NOFILE), and needs some for each thread"
                .to_owned(),
            remedy: Some("raise the limit (`ulimit -n`), or record fewer threads".to_owned()),
        },
        libc::ENFILE => Refusal {
            denied: false,
            reason: "the machine has as many open files as it may (fs.file-max)".to_owned(),
            remedy: Some("raise it by sysctl, or record fewer threads".to_owned()),
        },
        other => Refusal {
            denied: false,
            reason: io::Error::from_raw_os_error(other).to_string(),
            remedy: None,
        },
    }
}

/// Levels of `kernel.perf_event_paranoid` (Documentation/admin-guide/sysctl/kernel.rst): user code of one's
/// own processes may be measured up to 2; Debian and Ubuntu add 3 and 4, which forbid everything to ordinary
/// users.
fn denied(paranoid: Option<i32>, euid: u32) -> Refusal {
    let (reason, remedy) = match paranoid {
        _ if euid == 0 => (
            "even root may not here: a container without CAP_PERFMON or with a seccomp profile".to_owned(),
            "start the container with --cap-add PERFMON and a seccomp profile that permits perf_event_open"
                .to_owned(),
        ),
        Some(level) if level >= 3 => (
            format!("kernel.perf_event_paranoid is {level}, which forbids it to ordinary users"),
            "run: sudo sysctl kernel.perf_event_paranoid=2".to_owned(),
        ),
        Some(level) => (
            format!("the process belongs to another user (kernel.perf_event_paranoid is {level})"),
            "run as that process's user or with sudo".to_owned(),
        ),
        None => (
            "the kernel refuses it and /proc/sys/kernel/perf_event_paranoid does not exist".to_owned(),
            "run with sudo, outside a container".to_owned(),
        ),
    };
    Refusal { denied: true, reason, remedy: Some(remedy) }
}

impl PerfError {
    /// The error for a failed `perf_event_open`.
    pub(crate) fn from_open(object: &str, source: io::Error) -> Self {
        Self::refused(object, source, Circumstances::now())
    }

    fn refused(object: &str, source: io::Error, circumstances: Circumstances) -> Self {
        let refusal = explain(source.raw_os_error().unwrap_or(0), circumstances);
        let (object, Refusal { denied, reason, remedy }) = (object.to_owned(), refusal);
        match denied {
            true => Self::Denied { object, reason, remedy, source },
            false => Self::Unavailable { object, reason, remedy, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_the_kernel_may_not_be_measured_is_no_matter_of_a_process() {
        let of = |euid| {
            let circumstances = Circumstances { paranoid: Some(2), euid };
            let source = io::Error::from_raw_os_error(libc::EACCES);
            let denied = PerfError::refused("the CPU clock", source, circumstances);
            of_the_kernel(denied, circumstances).to_string()
        };
        let user = of(1000);
        assert!(
            user.contains("the kernel's code") && user.contains("kernel.perf_event_paranoid is 2"),
            "{user}"
        );
        assert!(user.ends_with("run with sudo"), "{user}");
        let root = of(0);
        assert!(root.contains("container") && root.contains("--cap-add PERFMON"), "{root}");
    }

    fn text(errno: i32, paranoid: Option<i32>, euid: u32) -> String {
        let source = io::Error::from_raw_os_error(errno);
        PerfError::refused("cycles of process 7", source, Circumstances { paranoid, euid }).to_string()
    }

    #[test]
    fn what_the_kernel_said_is_kept() {
        for errno in [libc::EACCES, libc::ENOENT] {
            let refused =
                PerfError::refused("cycles", io::Error::from_raw_os_error(errno), Circumstances::default());
            let source = std::error::Error::source(&refused).and_then(|s| s.downcast_ref::<io::Error>());
            assert_eq!(source.and_then(io::Error::raw_os_error), Some(errno), "{refused}");
        }
    }

    #[test]
    fn refusals_name_the_setting_and_the_exact_command() {
        assert_eq!(
            text(libc::EACCES, Some(3), 1000),
            "not allowed to measure cycles of process 7: kernel.perf_event_paranoid is 3, which forbids it to ordinary users; run: sudo sysctl kernel.perf_event_paranoid=2"
        );
        assert_eq!(
            text(libc::EACCES, Some(2), 1000),
            "not allowed to measure cycles of process 7: the process belongs to another user (kernel.perf_event_paranoid is 2); run as that process's user or with sudo"
        );
        assert!(text(libc::EPERM, Some(4), 1000).contains("sudo sysctl kernel.perf_event_paranoid=2"));
        assert!(text(libc::EPERM, Some(2), 0).contains("--cap-add PERFMON"));
        assert!(text(libc::EACCES, None, 1000).contains("does not exist"));
    }

    #[test]
    fn what_limits_an_open_event_is_named() {
        let text = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            PerfError::Io { operation: "mapping the ring", source }.to_string()
        };
        assert!(text(libc::EPERM).starts_with("mapping the ring of a performance event failed: "));
        assert!(text(libc::EPERM).contains("kernel.perf_event_mlock_kb"), "{}", text(libc::EPERM));
        assert!(text(libc::EMFILE).contains("`ulimit -n`"));
        let many = |threads, needed| PerfError::TooManyFiles { threads, needed }.to_string();
        assert!(many(1, 2).starts_with("measuring 1 thread needs 2 open files beside those"));
        assert!(many(700, 1400).contains("`ulimit -n 1464`"), "{}", many(700, 1400));
    }

    #[test]
    fn missing_hardware_is_not_called_a_lack_of_permission() {
        assert!(
            text(libc::ENOENT, Some(2), 1000)
                .starts_with("cannot measure cycles of process 7: this machine has no")
        );
        assert!(text(libc::ENOSYS, Some(2), 1000).contains("seccomp"));
        assert!(text(libc::EBUSY, Some(2), 1000).contains("another program"));
        assert!(text(libc::EMFILE, Some(2), 1000).contains("raise the limit (`ulimit -n`)"));
        assert!(text(libc::ENFILE, Some(2), 1000).contains("fs.file-max"));
    }
}
