//! What went wrong, and what the user can do.

use rustix::io::Errno;
use std::path::PathBuf;

/// The variable of the environment that names the private key of modules (PEM).
pub const KEY: &str = "RESTITCH_MODULE_KEY";
/// The one that names its certificate (PEM or DER).
pub const CERTIFICATE: &str = "RESTITCH_MODULE_CERTIFICATE";

/// What went wrong between us and the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The control module is not loaded.
    #[error(
        "the kernel has no control module of restitch; build and load it ({}); `restitch kernel doctor` says what \
         else is needed",
        restitch_report::CONTROL_MODULE
    )]
    NoControl,
    /// This user may not, or the kernel takes no modules.
    #[error(
        "{operation} {object}: not permitted: it takes root outside of containers, a kernel that loads modules \
         (kernel.modules_disabled of 0), and under lockdown a signed module"
    )]
    NotPermitted {
        /// What was tried.
        operation: &'static str,
        /// On what.
        object: String,
    },
    /// The kernel wants a signature that it knows.
    #[error(
        "loading module {name}: the kernel does not know its signature; enrol a key (sudo mokutil --import), and name \
         it and its certificate with {KEY} and {CERTIFICATE} where they are not those of DKMS"
    )]
    NotSigned {
        /// The module.
        name: String,
    },
    /// What makes signatures cannot be run.
    #[error("signing a module: openssl cannot be run: {source}; install it (sudo apt install openssl)")]
    NoSigner {
        /// What Linux says.
        source: Errno,
    },
    /// A module could not be signed.
    #[error(
        "signing a module with {key} and {certificate}: {why}; {KEY} and {CERTIFICATE} name others",
        key = key.display(), certificate = certificate.display()
    )]
    Signing {
        /// The file of the private key.
        key: PathBuf,
        /// That of its certificate.
        certificate: PathBuf,
        /// What went wrong.
        why: String,
    },
    /// There is a module or group of that name.
    #[error("module {name} is in the kernel already: take it out first (restitch kernel revert {name})")]
    Exists {
        /// The name.
        name: String,
    },
    /// Another process has calls led to a group of that name.
    #[error(
        "group {name} is in force already, held by another process: end that, or take the group out (restitch \
         kernel revert {name})"
    )]
    InForce {
        /// The name.
        name: String,
    },
    /// Somebody else has had calls led back.
    #[error("group {name} was taken out of force by somebody else: its calls go to the original code")]
    TakenOut {
        /// The name.
        name: String,
    },
    /// There is none.
    #[error("the kernel has no group {name}: restitch kernel status lists them")]
    NoGroup {
        /// The name.
        name: String,
    },
    /// Somebody else has it enabled, or a function of it is somebody's.
    #[error(
        "group {name} cannot be enabled: it is enabled by another process, or another tracer has one of its \
         functions; restitch kernel status and the kernel's log say which"
    )]
    Busy {
        /// The name.
        name: String,
    },
    /// Tasks stand in its copies.
    #[error(
        "group {name} is still used: tasks stand in its copies; no new ones enter, so try again later: \
         restitch kernel revert {name}"
    )]
    StillUsed {
        /// The name.
        name: String,
    },
    /// What the device says is not understood.
    #[error(
        "reading {device}: {line:?} is no line of the control module: install the one that belongs to this \
         restitch"
    )]
    Foreign {
        /// The device.
        device: String,
        /// What it said.
        line: String,
    },
    /// Anything else.
    #[error("{operation} {object}: {source}; the kernel's log may say more (dmesg)")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// On what.
        object: String,
        /// What the kernel said.
        source: Errno,
    },
}

impl ControlError {
    /// What an error number means whoever gives it.
    pub(crate) fn of(operation: &'static str, object: &str, source: Errno) -> Self {
        match source {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { operation, object: object.into() },
            source => Self::Failed { operation, object: object.into(), source },
        }
    }
}
