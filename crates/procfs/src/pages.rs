//! What stands behind single pages and single mappings: `/proc/PID/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst) and the flags of `/proc/PID/smaps` (proc_pid_smaps(5)).

use crate::bounded;
use crate::error::ProcError;
use crate::holder::shared_path;
use restitch_address::{Avma, AvmaRange, PAGE};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What the page table of a process says of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageState {
    /// It has an entry: its next use needs no fault.
    pub present: bool,
    /// It is swapped out.
    pub swapped: bool,
    /// It is a page of the mapped file (or shared memory), not the process's own.
    pub file: bool,
    /// A userfaultfd is told of the next write to it, which waits for an answer (since Linux 5.14).
    pub write_watched: bool,
}

impl PageState {
    /// From the kernel's 64-bit entry.
    fn of(entry: u64) -> Self {
        let bit = |n: u32| entry >> n & 1 == 1;
        Self { present: bit(63), swapped: bit(62), file: bit(61), write_watched: bit(57) }
    }

    /// Whether the process has a copy of its own: in a private file mapping, a page that was written to.
    pub fn is_own(self) -> bool {
        (self.present || self.swapped) && !self.file
    }
}

/// The page table of a process, for reading.
#[derive(Debug)]
pub struct Pagemap {
    pub(crate) pid: i32,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Whether the kernel was found not to know `PAGEMAP_SCAN`.
    pub(crate) cannot_scan: AtomicBool,
}

impl Pagemap {
    /// Opens the page table of process `pid`. The states need no privilege beyond that of reading the
    /// process's memory.
    ///
    /// # Errors
    /// If the process is gone, may not be read, or the kernel has no such file.
    pub fn open(pid: i32) -> Result<Self, ProcError> {
        let path = shared_path(pid, "pagemap");
        let file = File::open(&path).map_err(|e| ProcError::from_io(pid, &path, e))?;
        Ok(Self { pid, path, file, cannot_scan: AtomicBool::new(false) })
    }

    /// The states of the pages of `range`, in order. About 20 ns for each page.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn states(&self, range: AvmaRange) -> Result<Vec<PageState>, ProcError> {
        let mut entries = vec![0; (range.len() / PAGE * 8) as usize];
        let read = self.file.read_exact_at(&mut entries, range.start.get() / PAGE * 8);
        read.map_err(|e| ProcError::from_io(self.pid, &self.path, e))?;
        let entry = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        Ok(entries.chunks_exact(8).map(|bytes| PageState::of(entry(bytes))).collect())
    }
}

/// The kernel's flags of a mapping (`VmFlags` of smaps, two letters each, `sd` left out: every new or touched
/// mapping has it), and `key:N` if it has a protection key.
pub type MappingFlags = BTreeSet<String>;

/// Whether `flags` say that a userfaultfd is told of pages that are missing, written to, or not mapped yet.
pub fn names_a_watcher(flags: &MappingFlags) -> bool {
    ["um", "uw", "ui"].iter().any(|flag| flags.contains(*flag))
}

/// The flags of the mappings of process `pid` that start at `starts`; `None` for those that do not exist.
/// Reads no further than the last of them, because the kernel looks at every page of what is read.
///
/// # Errors
/// If the process is gone or may not be read.
pub fn mapping_flags(pid: i32, starts: &[Avma]) -> Result<Vec<Option<MappingFlags>>, ProcError> {
    let path = shared_path(pid, "smaps");
    let failed = |e| ProcError::from_io(pid, &path, e);
    parse_flags(BufReader::new(File::open(&path).map_err(failed)?), starts).map_err(failed)
}

/// How many bytes of the mapping of process `pid` that starts at `start` the processor reads by large pages
/// (`FilePmdMapped`, `ShmemPmdMapped` and `AnonHugePages` of smaps).
///
/// # Errors
/// If the process is gone or may not be read.
pub fn large_page_bytes(pid: i32, start: Avma) -> Result<u64, ProcError> {
    let path = shared_path(pid, "smaps");
    let failed = |e| ProcError::from_io(pid, &path, e);
    parse_large(BufReader::new(File::open(&path).map_err(failed)?), start).map_err(failed)
}

fn parse_large(reader: impl BufRead, start: Avma) -> std::io::Result<u64> {
    let (mut inside, mut bytes) = (false, 0);
    for line in bounded::lines(reader) {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("FilePmdMapped:" | "ShmemPmdMapped:" | "AnonHugePages:") if inside => {
                bytes += 1024 * words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            }
            Some(first) if !first.ends_with(':') => {
                if inside {
                    break;
                }
                let first = first.split_once('-').and_then(|(at, _)| u64::from_str_radix(at, 16).ok());
                inside = first == Some(start.get());
            }
            _ => {}
        }
    }
    Ok(bytes)
}

fn parse_flags(reader: impl BufRead, starts: &[Avma]) -> std::io::Result<Vec<Option<MappingFlags>>> {
    let mut found: Vec<Option<MappingFlags>> = vec![None; starts.len()];
    let mut current: Option<usize> = None;
    for line in bounded::lines(reader) {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("VmFlags:") => {
                if let Some(i) = current {
                    found[i].get_or_insert_default().extend(words.filter(|w| *w != "sd").map(str::to_owned));
                }
                // The last line of a mapping.
                if found.iter().all(Option::is_some) {
                    break;
                }
            }
            Some("ProtectionKey:") => {
                if let (Some(i), Some(key)) = (current, words.next().filter(|key| *key != "0")) {
                    found[i].get_or_insert_default().insert(format!("key:{key}"));
                }
            }
            // Other lines of a mapping are `Name: value`; its first is `start-end permissions ...`.
            Some(first) if !first.ends_with(':') => {
                let start = first.split_once('-').and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
                current = start.and_then(|start| starts.iter().position(|s| s.get() == start));
            }
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMAPS: &str = "00400000-00401000 r-xp 00000000 fe:00 7   /bin/with: colon\nSize: 4 kB\nTHPeligible:    0\n\
        ProtectionKey:         0\nVmFlags: rd ex mr mw me sd \n\
        00500000-00501000 rw-p 00000000 00:00 0 \nSize: 4 kB\nProtectionKey:   3\nVmFlags: rd wr lo \n";

    #[test]
    fn large_pages_of_one_mapping_are_summed() {
        let text = "1000-2000 r-xp 0 08:01 7 /a\nRss: 4 kB\nFilePmdMapped: 2048 kB\nVmFlags: rd ex\n\
                    200000-800000 r-xp 0 08:01 8 /b\nAnonHugePages: 0 kB\nShmemPmdMapped: 2048 kB\nFilePmdMapped: 4096 kB\n\
                    800000-900000 r-xp 0 08:01 9 /c\nFilePmdMapped: 2048 kB\n";
        let large = |at| parse_large(text.as_bytes(), Avma::new(at)).expect("readable");
        assert_eq!([large(0x1000), large(0x20_0000), large(0x30_0000)], [2 << 20, 6 << 20, 0]);
    }

    #[test]
    fn flags_are_those_of_the_mapping_that_was_asked_for() {
        let starts = [Avma::new(0x50_0000), Avma::new(0x40_0000), Avma::new(0x1000)];
        let found = parse_flags(SMAPS.as_bytes(), &starts).unwrap();
        let set = |words: &[&str]| Some(words.iter().map(|w| (*w).to_owned()).collect::<MappingFlags>());
        assert_eq!(found, [set(&["rd", "wr", "lo", "key:3"]), set(&["rd", "ex", "mr", "mw", "me"]), None]);
    }

    #[test]
    fn watchers_are_known_by_their_flags() {
        let flags = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<MappingFlags>();
        assert!(!names_a_watcher(&flags(&["rd", "wr", "mr", "mw"])));
        for flag in ["um", "uw", "ui"] {
            assert!(names_a_watcher(&flags(&["rd", flag])));
        }
    }

    #[test]
    fn entries_are_read_as_the_manual_says() {
        assert!(PageState::of(1 << 63).is_own() && PageState::of(1 << 62).is_own());
        assert!(PageState::of(1 << 57).write_watched && !PageState::of(!(1 << 57)).write_watched);
        assert!(!PageState::of(1 << 63 | 1 << 61).is_own() && !PageState::of(0).is_own());
    }

    #[test]
    fn this_process_has_pages_of_its_own_and_of_files() {
        let pid = std::process::id() as i32;
        let word = Box::new([1u8; 4096]);
        let at = Avma::new(word.as_ptr() as u64).align_down(4096);
        let map = Pagemap::open(pid).unwrap();
        assert!(map.states(AvmaRange::new(at, 4096)).unwrap()[0].is_own());
        let code = Avma::new(mapping_flags as *const () as u64).align_down(4096);
        let state = map.states(AvmaRange::new(code, 4096)).unwrap()[0];
        assert!(state.file && !state.is_own());
        let maps = crate::maps(pid).unwrap();
        let text = maps.iter().find(|m| m.range.contains(code)).unwrap().range.start;
        assert!(mapping_flags(pid, &[text]).unwrap()[0].as_ref().unwrap().contains("ex"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "([0-9a-f]{1,6}-[0-9a-f]{1,6} |VmFlags: |ProtectionKey: |[a-z :\n]{0,9}){0,30}") {
            let _ = parse_flags(text.as_bytes(), &[Avma::new(0x10)]);
        }
    }
}
