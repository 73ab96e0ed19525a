//! The undo journal: what was done to a process, enough to undo it from a later run.
//!
//! It is written before the first byte changes and after each step, whole or not at all. What it lists may
//! not have happened yet: undoing something that was not done is harmless, because each entry has the
//! original bytes.

use crate::entry_patch::written;
use crate::error::ProcessError;
use crate::state::hook_journal::JournalHook;
use crate::state::map_file::sum;
use crate::state::state_file::{self, is_place, is_range};
use crate::state::store::StateDir;
use crate::state::version_files::{RECORD, VersionFiles, image_of, is_version_file, version_of};
use restitch_address::{Avma, AvmaRange};
use restitch_apply::Why;
use restitch_procfs::{Mapping, Namespaces, ProcessId};
use restitch_x86::patch::Patch;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the journal's form. The first one had no checksum; it is read still.
const SCHEMA: u32 = 2;
const WITHOUT_SUM: u32 = 1;
/// The checksum's place: the first member of the object, 16 hexadecimal digits over what follows.
const SUM: (&str, &str) = ("{\"sum\":\"", "\",");

/// What a version is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionKind {
    /// Counts edges, temporarily.
    Counting,
    /// The optimized layout.
    Optimized,
    /// Records branches of threads that are put into it. Nothing leads there.
    Burst,
}

/// The journal of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    schema: u32,
    pid: i32,
    start_time: u64,
    /// In which namespaces its number and start were read.
    #[serde(default)]
    read_in: ReadIn,
    /// Number that the next version gets.
    pub next_number: u32,
    /// Versions that are mapped or may be.
    pub versions: Vec<JournalVersion>,
    /// Code patches that are in force or may be.
    pub patches: Vec<JournalPatch>,
    /// The unwinder's hook, once it is there.
    pub hook: Option<JournalHook>,
    /// Places that versions have had, start and length: no new one goes there.
    #[serde(default)]
    pub used: Vec<(u64, u64)>,
    /// Replacement mappings of code mappings that are there or may be, during a switch and after one that was
    /// killed.
    #[serde(default, rename = "spares")]
    pub replacements: Vec<JournalReplacement>,
    /// Whether the process may leave a core file, for which its versions are kept.
    #[serde(default)]
    pub cores: bool,
}

/// The namespaces of the restitch that wrote a file, by their inode numbers; 0 where it did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ReadIn {
    pid_namespace: u64,
    time_namespace: u64,
}

impl ReadIn {
    /// Those of this restitch.
    fn here() -> Self {
        let Namespaces { pid, time } = Namespaces::own();
        Self { pid_namespace: pid, time_namespace: time }
    }

    /// Whether the file says that it was written in another pid namespace.
    fn is_elsewhere(self) -> bool {
        self.pid_namespace != 0 && self.pid_namespace != Self::here().pid_namespace
    }
}

/// A second mapping of a module's code with redirects in it, which replaces the module's own in one step;
/// nothing leads to it until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalReplacement {
    /// First address.
    pub start: u64,
    /// Length.
    pub len: u64,
    /// Inode number of the file that is mapped.
    pub inode: u64,
    /// Which byte of the file is at its start.
    pub offset: u64,
}

impl JournalReplacement {
    /// The mapped addresses.
    pub fn range(&self) -> AvmaRange {
        AvmaRange::new(Avma::new(self.start), self.len)
    }

    /// Whether a process may have it.
    fn is_sound(&self) -> bool {
        is_range(self.start, self.len)
    }

    /// Whether it is among `maps`.
    pub(crate) fn is_mapped(&self, maps: &[Mapping]) -> bool {
        let is_it =
            |m: &Mapping| (m.range, m.inode, m.offset.get()) == (self.range(), self.inode, self.offset);
        maps.iter().any(|m| is_it(m) && m.permissions.execute && !m.permissions.write)
    }
}

/// One version in the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalVersion {
    /// Its number.
    pub number: u32,
    /// Its purpose.
    pub kind: VersionKind,
    /// The module's path.
    #[serde(with = "restitch_apply::path_text")]
    pub module: PathBuf,
    /// What is added to the module's stated addresses.
    pub bias: u64,
    /// First address.
    pub start: u64,
    /// Length of the mapping.
    pub len: u64,
    /// The file that is mapped.
    #[serde(with = "restitch_apply::path_text")]
    pub file: PathBuf,
    /// The file with the address map, for moving threads out.
    #[serde(with = "restitch_apply::path_text")]
    pub map_file: PathBuf,
    /// Address of its `.eh_frame_hdr`, for the unwinder.
    pub eh_frame_hdr: u64,
    /// The counter area, if it counts: start and length.
    pub counters: Option<(u64, u64)>,
    /// Whether new code no longer goes there.
    pub retired: bool,
    /// Whether slots of v-tables have led into it, so that addresses in it may stand anywhere.
    #[serde(default)]
    pub by_pointers: bool,
    /// Slots of linkage tables that have led into it.
    #[serde(default)]
    pub slots: Vec<JournalSlot>,
}

/// A slot that has led into a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalSlot {
    /// Its address.
    pub at: u64,
    /// The function's entry in the original code.
    pub entry: u64,
}

impl JournalVersion {
    /// The mapped addresses.
    pub fn range(&self) -> AvmaRange {
        AvmaRange::new(Avma::new(self.start), self.len)
    }

    /// Its files are those of these names in `folder`, wherever the directory was when they were written
    /// down.
    fn have_files_in(&mut self, folder: &Path) {
        self.file = folder.join(self.file.file_name().unwrap_or_default());
        self.map_file = VersionFiles::of(&self.file).map;
    }

    /// What no version in a process can be, its files in `folder`: another file has been made of the journal
    /// or record that tells of it.
    fn flaw(&self, folder: &Path) -> Option<String> {
        let number = self.number;
        let flaw = |what: &str| Some(format!("{what} of version {number} is not possible"));
        if number == u32::MAX {
            return flaw("the number");
        }
        if self.file.parent() != Some(folder) || version_of(&self.file).as_ref() != Some(&self.file) {
            return flaw("the file");
        }
        let counters = self.counters.is_none_or(|(start, len)| is_range(start, len));
        if !is_range(self.start, self.len) || !counters || !is_place(self.eh_frame_hdr, 0) {
            return flaw("the place");
        }
        let is_slot = |slot: &JournalSlot| is_place(slot.at, 8) && is_place(slot.entry, 0);
        if self.slots.iter().all(is_slot) { None } else { flaw("a slot") }
    }
}

/// What lies beside a version file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: JournalVersion,
    #[serde(default)]
    read_in: ReadIn,
    hook: Option<JournalHook>,
    /// Replacement mappings that there were during switches of the last processes that had this version:
    /// children may have inherited them.
    #[serde(default, rename = "spares")]
    replacements: Vec<JournalReplacement>,
}

/// Whether a file is the record of a version that was made in another pid namespace.
pub(crate) fn is_record_of_elsewhere(path: &Path) -> bool {
    let is_record = path.extension().is_some_and(|extension| extension == RECORD);
    let bytes = if is_record { state_file::read(path).ok() } else { None };
    let record: Option<Record> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    record.is_some_and(|record| record.read_in.is_elsewhere())
}

/// Whether bytes are the record of the version with this `image` at `start`, and the version that it tells
/// of.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn version_in_record(bytes: &[u8], image: &Path, start: u64) -> Option<JournalVersion> {
    Record::parse(bytes, image, start).map(|record| record.version)
}

/// Most replacements that a record tells of.
const MOST_REPLACEMENTS: usize = 64;

impl Record {
    /// That of the version with this `image` at `start`. One that is damaged, or of another version, is none.
    fn read(image: &Path, start: u64) -> Option<Self> {
        Self::parse(&state_file::read(&VersionFiles::of(image).record(start)).ok()?, image, start)
    }

    fn parse(bytes: &[u8], image: &Path, start: u64) -> Option<Self> {
        let mut record: Self = serde_json::from_slice(bytes).ok()?;
        record.version.have_files_in(image.parent()?);
        let is_its = record.version.start == start && record.version.file == image;
        let is_sound = is_its
            && record.version.flaw(image.parent()?).is_none()
            && record.hook.as_ref().is_none_or(|hook| hook.flaw().is_none())
            && record.replacements.iter().all(JournalReplacement::is_sound);
        is_sound.then_some(record)
    }
}

/// One code patch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPatch {
    /// Address.
    pub at: u64,
    /// Bytes before restitch.
    #[serde(with = "written")]
    pub original: Patch,
    /// Bytes that are to be there.
    #[serde(with = "written")]
    pub now: Patch,
}

impl Journal {
    /// An empty journal.
    pub fn new(process: ProcessId) -> Self {
        Self {
            schema: SCHEMA,
            pid: process.pid,
            start_time: process.start_time,
            read_in: ReadIn::here(),
            next_number: 1,
            versions: Vec::new(),
            patches: Vec::new(),
            hook: None,
            replacements: Vec::new(),
            used: Vec::new(),
            cores: false,
        }
    }

    /// The process.
    pub fn process(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_time: self.start_time }
    }

    /// Whether its process may be there still, as far as can be told from here: its number and start mean
    /// nothing in another pid namespace, and its start nothing in another time namespace.
    pub(crate) fn may_have_process(&self) -> bool {
        let (read_in, here) = (self.read_in, ReadIn::here());
        if read_in.is_elsewhere() {
            let their = Namespaces { pid: read_in.pid_namespace, time: read_in.time_namespace };
            return !Namespaces::own().sees_all() || their.may_have_processes();
        }
        let same_clock = read_in.time_namespace == 0 || read_in.time_namespace == here.time_namespace;
        match same_clock {
            true => self.process().is_alive(),
            // One that cannot be looked at may be there.
            false => ProcessId::of(self.pid).map_or_else(|error| !error.is_gone(), ProcessId::is_alive),
        }
    }

    /// Writes each version's record beside its file: a child that is forked off inherits the mapping, and
    /// finds the record by it.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub(crate) fn save_records(&self, dir: &StateDir) -> Result<(), ProcessError> {
        for version in &self.versions {
            let path = VersionFiles::of(&version.file).record(version.start);
            let mut replacements =
                Record::read(&version.file, version.start).map(|r| r.replacements).unwrap_or_default();
            replacements.retain(|s| !self.replacements.contains(s));
            replacements.extend(self.replacements.iter().cloned());
            replacements.drain(..replacements.len().saturating_sub(MOST_REPLACEMENTS));
            let (version, hook) = (version.clone(), self.hook.clone());
            let record = Record { version, read_in: self.read_in, hook, replacements };
            let bytes = serde_json::to_vec(&record).expect("plain data serializes");
            dir.write(&path, &bytes, 0o600)?;
        }
        Ok(())
    }

    /// The journal of a process that has version files mapped but no journal of its own: a child of one that
    /// had. Its patches are not known here. `None` if nothing is mapped.
    pub(crate) fn inherited(process: ProcessId, maps: &[Mapping], dir: &StateDir) -> Option<Self> {
        let mut journal = Self::new(process);
        for mapping in maps.iter().filter(|m| m.permissions.execute) {
            let Some(path) = image_of(mapping, dir.path()) else { continue };
            // (Parts of a version behind its first have no record.)
            let start = mapping.range.start.get();
            let Some(mut record) = Record::read(&path, start) else { continue };
            let new: Vec<_> =
                record.replacements.into_iter().filter(|s| !journal.replacements.contains(s)).collect();
            journal.replacements.extend(new);
            // Processes that share the files of one version and not of another give them numbers of their
            // own.
            if journal.versions.iter().any(|v| v.number == record.version.number) {
                record.version.number = journal.next_number;
            }
            journal.next_number = journal.next_number.max(record.version.number + 1);
            journal.hook = journal.hook.or(record.hook);
            journal.versions.push(record.version);
        }
        // A child that was forked off before its parent's switch was complete may lack the hook.
        journal.retain_mapped(maps);
        (!journal.versions.is_empty()).then_some(journal)
    }

    /// Whether it lists each version file that is mapped: no record was missing that it was made of.
    pub(crate) fn lists_all(&self, maps: &[Mapping], dir: &StateDir) -> bool {
        let files = maps.iter().filter(|m| m.permissions.execute && image_of(m, dir.path()).is_some());
        files.into_iter().all(|m| self.versions.iter().any(|v| v.range().contains(m.range.start)))
    }

    /// Forgets what is not mapped: the process has executed another program since, or an attach was killed
    /// before it mapped what it had planned.
    pub(crate) fn retain_mapped(&mut self, maps: &[Mapping]) {
        let at = |start: u64| maps.iter().find(|m| m.range.start.get() == start && m.permissions.execute);
        self.versions.retain(|v| at(v.start).and_then(|m| m.path()).is_some_and(is_version_file));
        self.replacements.retain(|s| s.is_mapped(maps));
        // (Its mapping may have merged with a neighbour.)
        let holds = |page: u64| {
            maps.iter().any(|m| m.range.contains(Avma::new(page)) && m.permissions.execute && m.inode == 0)
        };
        if self.hook.as_ref().is_some_and(|h| !holds(h.page)) {
            self.hook = None;
        }
        if self.versions.is_empty() && self.hook.is_none() {
            self.patches.clear();
        }
    }

    /// Whether nothing of restitch is left in the process.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
            && self.patches.is_empty()
            && self.hook.is_none()
            && self.replacements.is_empty()
    }

    /// Reads a journal.
    ///
    /// # Errors
    /// If it is damaged or of another form.
    pub fn read(path: &Path) -> Result<Self, ProcessError> {
        let bytes = state_file::read(path).map_err(|source| ProcessError::State {
            operation: "read",
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(&bytes, path)
    }

    /// Reads what a journal at `path` holds.
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Self, ProcessError> {
        let damaged = |why: Why| ProcessError::Journal { path: path.to_path_buf(), why };
        let (plain, has_sum) = match without_sum(bytes) {
            Some(plain) => (plain.ok_or_else(|| damaged("its checksum is another".into()))?, true),
            None => (bytes.to_vec(), false),
        };
        let mut journal: Self = serde_json::from_slice(&plain).map_err(|e| damaged(e.into()))?;
        if journal.schema != if has_sum { SCHEMA } else { WITHOUT_SUM } {
            return Err(damaged(
                format!("its form is {}, this restitch knows {SCHEMA}", journal.schema).into(),
            ));
        }
        journal.schema = SCHEMA;
        let folder = path.parent().unwrap_or(Path::new(""));
        journal.versions.iter_mut().for_each(|version| version.have_files_in(folder));
        match journal.flaw(path) {
            Some(why) => Err(damaged(why.into())),
            None => Ok(journal),
        }
    }

    /// What its file holds.
    pub(crate) fn written(&self) -> Vec<u8> {
        with_sum(&serde_json::to_vec(self).expect("plain data serializes"))
    }

    /// What no journal at `path` can hold: numbers are bounded before they are used.
    fn flaw(&self, path: &Path) -> Option<String> {
        let folder = path.parent()?;
        if path.file_name() != self.name().file_name() {
            return Some("it is another process's".into());
        }
        if self.next_number == u32::MAX {
            return Some("its next number is not possible".into());
        }
        let is_used = |(start, len): &(u64, u64)| is_range(*start, *len);
        if !self.replacements.iter().all(JournalReplacement::is_sound) || !self.used.iter().all(is_used) {
            return Some("a place is not possible".into());
        }
        if !self.patches.iter().all(|patch| is_place(patch.at, Patch::LEN as u64)) {
            return Some("the place of a patch is not possible".into());
        }
        let of_hook = self.hook.as_ref().and_then(JournalHook::flaw);
        of_hook.or_else(|| self.versions.iter().find_map(|version| version.flaw(folder)))
    }

    /// What its file is called.
    fn name(&self) -> PathBuf {
        PathBuf::from(format!("{}-{}.json", self.pid, self.start_time))
    }

    /// The same, with the records, behind a change that was listed before, or before one that goes back:
    /// where the directory takes nothing any more (it is full, or cannot be written), what is there lists as
    /// much or more, and that does no harm. Going back needs no room.
    pub(crate) fn save_if_possible(&self, dir: &StateDir) {
        let _ = self.save(dir).and_then(|()| self.save_records(dir));
    }

    /// Writes it to the state directory; removes the file when nothing is left to undo.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn save(&self, dir: &StateDir) -> Result<(), ProcessError> {
        let path = dir.journal(self.process());
        if self.is_empty() {
            let _ = std::fs::remove_file(path);
            return Ok(());
        }
        dir.write(&path, &self.written(), 0o600)
    }
}

/// An object with its checksum in front.
fn with_sum(object: &[u8]) -> Vec<u8> {
    let head = format!("{}{:016x}{}", SUM.0, sum(object), SUM.1);
    [head.as_bytes(), &object[1..]].concat()
}

/// The object without its checksum, or `None` in place of it if that is not its own; `None` if there is none.
fn without_sum(bytes: &[u8]) -> Option<Option<Vec<u8>>> {
    let rest = bytes.strip_prefix(SUM.0.as_bytes())?;
    let digits = rest.get(..16).and_then(|digits| std::str::from_utf8(digits).ok());
    let object = rest.get(16..).and_then(|rest| rest.strip_prefix(SUM.1.as_bytes()));
    let whole = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).zip(object).and_then(
        |(wanted, object)| {
            let object = [b"{", object].concat();
            (sum(&object) == wanted).then_some(object)
        },
    );
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(byte: u8) -> Patch {
        Patch::new([byte; Patch::LEN])
    }

    #[test]
    fn a_damaged_journal_is_not_taken_for_one() {
        let folder = restitch_testkit::scratch();
        let dir = StateDir::at(folder.path().into()).expect("our own");
        let me = ProcessId::of(std::process::id() as i32).expect("it lives");
        let mut journal = Journal::new(me);
        journal.patches.push(JournalPatch { at: 0x1234, original: patch(1), now: patch(2) });
        journal.save(&dir).expect("writable");
        let path = dir.journal(me);
        assert_eq!(Journal::read(&path).expect("whole"), journal);
        let bytes = std::fs::read(&path).expect("there");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                std::fs::write(&path, &damaged).expect("writable");
                // A hexadecimal digit may be of either case.
                let read = Journal::read(&path);
                assert!(read.is_err() || read.is_ok_and(|read| read == journal), "byte {at}, bit {bit}");
            }
            std::fs::write(&path, &bytes[..at]).expect("writable");
            assert!(Journal::read(&path).is_err(), "cut at {at}");
        }
        let old =
            serde_json::to_vec(&Journal { schema: WITHOUT_SUM, ..journal.clone() }).expect("plain data");
        std::fs::write(&path, old).expect("writable");
        assert_eq!(Journal::read(&path).expect("of an older restitch"), journal);
        std::fs::write(&path, "{").expect("writable");
        let error = Journal::read(&path).expect_err("cut");
        let source =
            std::error::Error::source(&error).and_then(|why| why.downcast_ref::<serde_json::Error>());
        let source = source.expect("the decoder's own error");
        assert!(error.to_string().contains(&format!("cannot be read: {source};")), "{error}");
    }
}
