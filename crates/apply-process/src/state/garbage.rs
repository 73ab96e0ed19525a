//! Files in the state directory that nobody needs any more.

use crate::state::journal::{Journal, is_record_of_elsewhere};
use crate::state::store::StateDir;
use crate::state::version_files::{VersionFiles, image_of, is_version_file, version_of};
use restitch_procfs::{self as procfs, Namespaces, ProcError, ProcessId};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// By so much times of files and of processes' starts may differ, which are of other clocks.
const DOUBT: Duration = Duration::from_secs(2);

impl StateDir {
    /// Living processes that have a journal here, one that cannot be read included.
    pub fn owners(&self) -> Vec<i32> {
        let owners = self.journals().into_iter().filter_map(|path| owner_of(&path));
        owners.filter(|process| process.is_alive()).map(|process| process.pid).collect()
    }

    /// Living processes that have a journal here, or a version mapped whose files are here; the former first.
    pub fn users(&self) -> Vec<i32> {
        let owners = self.owners();
        let has_version = |pid: &i32| {
            let maps = procfs::maps(*pid).unwrap_or_default();
            maps.iter().any(|mapping| {
                image_of(mapping, self.path()).is_some_and(|file| file.starts_with(self.path()))
            })
        };
        let others = procfs::processes().unwrap_or_default().into_iter().filter(|pid| !owners.contains(pid));
        let others: Vec<i32> = others.filter(has_version).collect();
        owners.into_iter().chain(others).collect()
    }

    /// Living processes that have no journal here, and a version mapped whose file is or was in this
    /// directory.
    pub fn without_journal(&self) -> Vec<i32> {
        let owners = self.owners();
        let has_version = |pid: &i32| {
            let is_ours = |path: &Path| path.parent() == Some(self.path()) && is_version_file(path);
            procfs::maps(*pid).unwrap_or_default().iter().any(|m| m.path().is_some_and(is_ours))
        };
        let others = procfs::processes().unwrap_or_default().into_iter().filter(|pid| !owners.contains(pid));
        others.filter(has_version).collect()
    }

    /// Removes the journals of ended processes, the files of versions that no journal lists and no process
    /// has mapped, and what a restitch was writing when it was killed. The directory is one user's own, and
    /// so is all that is in it.
    ///
    /// Versions of processes that could leave core files are kept for a while (`cores.rs`).
    ///
    /// Of a version the image may be gone and its map or a record left: its removal was cut short, or the
    /// record was written once more by a restitch whose process had ended. A version that somebody has keeps
    /// no records of places where nobody has it.
    ///
    /// Processes outside of this pid namespace are not seen, so versions that were made there stay, and the
    /// journals.
    pub fn collect_garbage(&self) {
        let Some(_lock) = self.removing() else { return };
        let mut needed = BTreeSet::new();
        for path in self.journals() {
            match Journal::read(&path) {
                Ok(journal) if journal.may_have_process() => {
                    journal.versions.iter().for_each(|v| needed.extend(files_at(&v.file, v.start)));
                }
                Ok(journal) => {
                    let versions = journal.versions.iter().filter(|_| journal.cores);
                    versions.for_each(|v| self.keep_for_cores(&v.file));
                    drop(std::fs::remove_file(path));
                }
                Err(_) if owner_of(&path).is_some_and(|p| !p.is_alive()) => drop(std::fs::remove_file(path)),
                Err(_) => {}
            }
        }
        self.entries().filter(|p| is_abandoned(p)).for_each(|p| drop(std::fs::remove_file(p)));
        needed.extend(self.files_for_cores());
        let files: BTreeSet<PathBuf> = self.entries().filter(|p| version_of(p).is_some()).collect();
        if files.is_subset(&needed) {
            return;
        }
        if !Namespaces::own().sees_all() {
            needed.extend(files_of_elsewhere(&files));
        }
        for pid in procfs::processes().unwrap_or_default() {
            for mapping in procfs::maps(pid).unwrap_or_default() {
                let file = image_of(&mapping, self.path());
                needed.extend(file.iter().flat_map(|f| files_at(f, mapping.range.start.get())));
            }
        }
        // The image last: it leads to the others, should this be cut short.
        let is_image = |path: &&PathBuf| version_of(path).as_ref() == Some(*path);
        let (images, others): (Vec<_>, Vec<_>) = files.difference(&needed).partition(is_image);
        others.into_iter().chain(images).for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Of the files of versions, those of which a record says that they were made in another pid namespace.
fn files_of_elsewhere(files: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let records = files.iter().filter(|path| is_record_of_elsewhere(path));
    let versions: BTreeSet<PathBuf> = records.filter_map(|path| version_of(path)).collect();
    files.iter().filter(|path| version_of(path).is_some_and(|v| versions.contains(&v))).cloned().collect()
}

/// All that belongs to a version at `start`.
fn files_at(version: &Path, start: u64) -> [PathBuf; 3] {
    let files = VersionFiles::of(version);
    [files.record(start), files.map, files.version]
}

/// Whether this is half of a file, whose writer has ended.
fn is_abandoned(path: &Path) -> bool {
    let writer = path.file_name().and_then(|name| restitch_apply::writer_of(&name.to_string_lossy()));
    let Some(writer) = writer else { return false };
    let Ok(written) = std::fs::symlink_metadata(path).and_then(|m| m.modified()) else { return false };
    match ProcessId::of(writer) {
        // One of that number that began later is another one.
        Ok(process) => !process.is_alive() || process.started().is_some_and(|began| began > written + DOUBT),
        Err(error) => matches!(error, ProcError::Gone { .. }),
    }
}

/// The process that a journal's name stands for.
fn owner_of(journal: &Path) -> Option<ProcessId> {
    let (pid, start_time) = journal.file_stem()?.to_str()?.split_once('-')?;
    Some(ProcessId { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::version_files::MARK;
    use std::fs::{File, FileTimes};
    use std::time::SystemTime;

    /// What restitch may leave that is killed while it writes or removes; a living process is this one.
    #[test]
    fn what_belongs_to_nobody_is_removed() {
        let folder = restitch_testkit::scratch();
        let dir = StateDir::at(folder.path().into()).expect("our own");
        let me = ProcessId::of(std::process::id() as i32).expect("it lives");
        let ended = ProcessId { start_time: me.start_time + 1, ..me };
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("writable");
            path
        };
        let version = |name: &str| VersionFiles::of(&folder.path().join(format!("{name}.{MARK}")));
        let lists = |process: ProcessId, name: &str, cores: bool| {
            let mut journal = Journal::new(process);
            journal.cores = cores;
            let file = version(name).version;
            journal.versions.push(crate::state::journal::JournalVersion {
                number: 1,
                kind: crate::state::journal::VersionKind::Optimized,
                module: PathBuf::new(),
                bias: 0,
                start: 0,
                len: 0,
                map_file: version(name).map,
                file,
                eh_frame_hdr: 0,
                counters: None,
                retired: false,
                by_pointers: false,
                slots: Vec::new(),
            });
            journal.save(&dir).expect("writable");
        };
        lists(me, "mine", true);
        // One process has left a core file, perhaps; the other one cannot have.
        lists(ended, "dumped", true);
        let half = ProcessId { start_time: me.start_time + 3, ..me };
        let without = ProcessId { start_time: me.start_time + 2, ..me };
        lists(without, "ended", false);
        let long_ago = write("long-ago.restitch-ended", "");
        let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        File::options().write(true).open(&long_ago).and_then(|f| f.set_times(times)).expect("our own");
        // Its record is there as well, written once more after all else was removed.
        let gone = |name: &str| write(name, "half");
        let garbage = [
            gone("a.1000.restitch-record"),
            // Of a process that has ended, while this one has the version elsewhere.
            gone("mine.1000.restitch-record"),
            // As it was called before places were part of the name.
            gone("mine.restitch-record"),
            gone("b.restitch-map"),
            gone("c.restitch-version"),
            gone(".a.restitch-version.4194305-0.tmp"),
            gone("4194305-7.json"),
            gone("dumped.restitch-map"),
            gone("dumped.1000.restitch-record"),
            gone("ended.restitch-version"),
            gone("ended.restitch-map"),
            gone("long-ago.restitch-version"),
            long_ago,
            dir.journal(ended),
            dir.journal(without),
            dir.journal(half),
        ];
        std::fs::write(dir.journal(half), "{").expect("writable");
        // Another process had this one's number when that was written.
        let earlier = gone(&format!(".b.restitch-map.{}-0.tmp", me.pid));
        File::options().write(true).open(&earlier).and_then(|f| f.set_times(times)).expect("our own");
        let mine = version("mine");
        let kept = [
            dir.journal(me),
            write("mine.restitch-version", ""),
            write("mine.restitch-map", ""),
            write("mine.0.restitch-record", ""),
            write(&format!(".c.json.{}-1.tmp", me.pid), ""),
            write("of-somebody-else", ""),
            write("dumped.restitch-version", "image"),
        ];
        assert_eq!(mine.version, kept[1]);
        // Somebody is just writing files that no journal lists yet.
        let writing = dir.writing().expect("no lock");
        dir.collect_garbage();
        assert!(garbage.iter().chain(&kept).chain([&earlier]).all(|p| p.exists()));
        drop(writing);
        dir.collect_garbage();
        for path in garbage.iter().chain([&earlier]) {
            assert!(!path.exists(), "{path:?}");
        }
        for path in &kept {
            assert!(path.exists(), "{path:?}");
        }
        assert_eq!(dir.kept_for_cores(), crate::state::cores::KeptVersions { files: 1, bytes: 5 });
    }
}
