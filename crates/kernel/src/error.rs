//! What can go wrong with what a kernel says of itself.

use std::io;
use std::path::{Path, PathBuf};

/// Why a kernel could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A file could not be read.
    #[error("reading {}: {source}{}", path.display(), advice_on(path, source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The function tracer could not be used.
    #[error("tracing calls by {}: {source}{}", path.display(), advice(source))]
    Tracer {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel shows its addresses to others only.
    #[error("{} shows no addresses to this user; run as root, with kernel.kptr_restrict of 0 or 1", path.display())]
    Hidden {
        /// The file.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel says too little of itself.
    #[error("this kernel has no {what}: its code cannot be told from data for certain, and stays as it is")]
    Missing {
        /// What it does not say.
        what: String,
    },
    /// There is no module file to learn from.
    #[error(
        "{} holds no module file; one that was built for this kernel is needed, to make modules like it",
        path.display()
    )]
    NoModules {
        /// Where they were looked for.
        path: PathBuf,
    },
    /// There is no such function.
    #[error("the kernel has no function {name}{}", suggestion(similar))]
    NoFunction {
        /// What was asked for.
        name: String,
        /// Functions with names like it.
        similar: Vec<String>,
    },
    /// Several functions have that name.
    #[error("{} functions are called {name}; name one by its address: {}", places.len(), places.join(", "))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their addresses.
        places: Vec<String>,
    },
}

impl KernelError {
    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), why: why.into() }
    }

    /// Whether another user may do it.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Tracer { source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            Self::Hidden { .. } => true,
            _ => false,
        }
    }
}

/// What brings the kernel's memory, where there is no file of it.
pub(crate) const WITH_MEMORY: &str = "boot a kernel with CONFIG_PROC_KCORE";

fn advice_on(path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound if path.ends_with("proc/kcore") => format!("; {WITH_MEMORY}"),
        _ => advice(source).into(),
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root (`restitch kernel doctor` says what else forbids it)"
        }
        _ => "",
    }
}

fn suggestion(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!("; it has {}", similar.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_a_file_of_its_memory_has_a_next_step() {
        let said = |path: &str| {
            let source = io::ErrorKind::NotFound.into();
            KernelError::Read { path: path.into(), source }.to_string()
        };
        assert!(said("/proc/kcore").ends_with("; boot a kernel with CONFIG_PROC_KCORE"));
        assert!(!said("/proc/kallsyms").contains("boot"));
    }
}
