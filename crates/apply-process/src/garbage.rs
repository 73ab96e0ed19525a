//! Files in the state directory that nobody needs any more.

use crate::version_files::{MARK, VersionFiles, is_version_file};
use crate::{Journal, StateDir};
use restitch_procfs::{self as procfs, ProcessId};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

impl StateDir {
    /// Removes the journals of ended processes, and the version files that no journal lists and no process has mapped.
    pub fn collect_garbage(&self) {
        let Ok(writers) = File::open(self.path()) else { return };
        if writers.try_lock().is_err() {
            return;
        }
        let mut listed = BTreeSet::new();
        for path in self.journals() {
            match Journal::read(&path) {
                Ok(journal) if journal.process().is_alive() => {
                    listed.extend(journal.versions.into_iter().map(|v| v.file));
                }
                Ok(_) => drop(std::fs::remove_file(path)),
                Err(_) if owner_of(&path).is_some_and(|p| !p.is_alive()) => drop(std::fs::remove_file(path)),
                Err(_) => {}
            }
        }
        let files: Vec<PathBuf> =
            self.entries().filter(|p| p.extension().is_some_and(|e| e == MARK)).collect();
        if files.iter().all(|f| listed.contains(f)) {
            return;
        }
        for pid in procfs::processes().unwrap_or_default() {
            for mapping in procfs::maps(pid).unwrap_or_default() {
                listed.extend(mapping.path().filter(|p| is_version_file(p)).map(Path::to_path_buf));
            }
        }
        for file in files.iter().filter(|f| !listed.contains(*f)) {
            let files = VersionFiles::of(file);
            for path in [files.version, files.map, files.record] {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// The process that a journal's name stands for.
fn owner_of(journal: &Path) -> Option<ProcessId> {
    let (pid, start_time) = journal.file_stem()?.to_str()?.split_once('-')?;
    Some(ProcessId { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
}
