//! Where journals and version files live.
//!
//! The directory has to be on a file system without `noexec` (a target maps version files executable) and
//! reachable under the same path in the target's mount namespace. `/run` is `noexec` on Debian, so it is not
//! a candidate.

use crate::error::ProcessError;
use crate::state::state_file::effective_user;
use crate::state::trust;
use crate::state::version_files::VersionFiles;
use restitch_apply::{Existing, Outlives};
use restitch_procfs::{self as procfs, ProcessId};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a state directory is not this user's own, if it is not.
fn not_own(about: &std::fs::Metadata) -> Option<String> {
    let own = effective_user();
    let why = match about.uid() {
        _ if !about.is_dir() => "it is no folder".into(),
        owner if owner != own => format!("it belongs to user {owner}, and restitch runs as user {own}"),
        _ => return None,
    };
    Some(format!("{why}; set RESTITCH_STATE_DIR to a folder of user {own}'s own"))
}

/// The state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The directory that `RESTITCH_STATE_DIR` names, if it is not empty, else `/var/lib/restitch` for root,
    /// or a directory of the user's own in `/var/tmp` or `/tmp`. It is made if it is not there.
    ///
    /// # Errors
    /// If none can be made or written.
    pub fn open() -> Result<Self, ProcessError> {
        let own = |base: &str| PathBuf::from(format!("{base}/restitch-{}", effective_user()));
        let candidates = match std::env::var_os("RESTITCH_STATE_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => vec![PathBuf::from(dir)],
            None if effective_user() == 0 => {
                vec![PathBuf::from("/var/lib/restitch"), own("/var/tmp"), own("/tmp")]
            }
            None => vec![own("/var/tmp"), own("/tmp")],
        };
        let mut last = None;
        for path in candidates {
            match Self::at(path) {
                Ok(dir) => return Ok(dir),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one candidate"))
    }

    /// The state directory at `path`, made if it is not there. Refused if it, or a folder above it, belongs
    /// to somebody else or can be changed by others: they could put files of their own in place of ours.
    ///
    /// # Errors
    /// If it cannot be made, is not a directory or belongs to another user.
    pub fn at(path: PathBuf) -> Result<Self, ProcessError> {
        let state = |operation, source| ProcessError::State { operation, path: path.clone(), source };
        // Others may pass through it to the versions that they may read, and may not list it.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&path)
            .map_err(|e| state("create", e))?;
        let unsafe_to =
            |why: String| state("use", std::io::Error::new(std::io::ErrorKind::PermissionDenied, why));
        let meta = std::fs::symlink_metadata(&path).map_err(|e| state("look at", e))?;
        if let Some(why) = not_own(&meta) {
            return Err(unsafe_to(why));
        }
        let real = std::fs::canonicalize(&path).map_err(|e| state("look at", e))?;
        for folder in real.ancestors() {
            let meta = std::fs::symlink_metadata(folder).map_err(|e| state("look at", e))?;
            if let Some(why) = trust::doubt(folder, &meta, folder == real) {
                return Err(unsafe_to(why));
            }
        }
        Ok(Self { path: real })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is root's. Each user has one of their own, and sees no other's.
    pub fn is_roots(&self) -> bool {
        effective_user() == 0
    }

    /// The journal of a process.
    pub fn journal(&self, process: ProcessId) -> PathBuf {
        self.path.join(format!("{}-{}.json", process.pid, process.start_time))
    }

    /// The files of a version, named by the contents of its image and its map: processes that share both
    /// share the files, and their pages.
    pub(crate) fn version_files(&self, module: &str, version: &[u8], map: &[u8]) -> VersionFiles {
        VersionFiles::named(&self.path, module, version, map)
    }

    /// Writes `bytes` to `path` so that it is there whole or not at all, also if this program is killed. (It
    /// need not survive a power cut, as the process that it speaks of does not either.)
    ///
    /// # Errors
    /// If the disk is full or the directory is gone.
    pub fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<(), ProcessError> {
        restitch_apply::write_atomically(path, bytes, mode, Existing::Replace, Outlives::Death)
            .map_err(|source| ProcessError::State { operation: "write", path: path.to_path_buf(), source })
    }

    /// Whether the target sees this directory under the same path. (What links of its own lead to is looked
    /// at only.)
    pub fn visible_to(&self, pid: i32) -> bool {
        let theirs = procfs::shared_path(pid, "root").join(self.path.strip_prefix("/").unwrap_or(&self.path));
        let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        match (std::fs::metadata(&self.path), std::fs::metadata(theirs)) {
            (Ok(a), Ok(b)) => same(a, b),
            _ => false,
        }
    }

    /// All that is in the directory.
    pub(crate) fn entries(&self) -> impl Iterator<Item = PathBuf> {
        std::fs::read_dir(&self.path).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()))
    }

    /// All journals in the directory.
    pub fn journals(&self) -> Vec<PathBuf> {
        let mut out: Vec<PathBuf> =
            self.entries().filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
        out.sort();
        out
    }
}
