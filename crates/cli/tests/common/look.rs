//! Looks at a process: which bytes of its code differ from the files, and what of restitch is mapped in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub start: u64,
    pub end: u64,
    pub permissions: String,
    pub offset: u64,
    pub name: String,
}

/// The memory map of process `pid`. Empty when it has ended.
pub fn maps(pid: u32) -> Vec<Line> {
    let text = std::fs::read_to_string(restitch_procfs::shared_path(pid as i32, "maps")).unwrap_or_default();
    text.lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let mut words = text.split_whitespace();
    let range = words.next().expect("a range");
    let (start, end) = range.split_once('-').expect("a range");
    let hex = |t: &str| u64::from_str_radix(t, 16).expect("a hexadecimal number");
    let permissions = words.next().expect("permissions").to_owned();
    let offset = hex(words.next().expect("an offset"));
    let name = words.skip(2).collect::<Vec<_>>().join(" ");
    Line { start: hex(start), end: hex(end), permissions, offset, name }
}

impl Line {
    fn is_code(&self) -> bool {
        self.permissions.starts_with("r-x") && self.name.starts_with('/') && !self.is_ours()
    }
    /// Whether restitch has mapped it, as far as a name tells.
    pub fn is_ours(&self) -> bool {
        self.name.contains("restitch-version") || self.name.contains("restitch-counters")
    }
    /// Executable memory without a file: the hook's page.
    fn is_anonymous_code(&self) -> bool {
        self.permissions.contains('x') && self.name.is_empty()
    }
}

/// A place where memory is not the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub at: u64,
    pub file: PathBuf,
    /// Five bytes from `at` on, as they are in memory.
    pub bytes: [u8; 5],
}

impl Difference {
    /// Where the jump there goes, if it is one.
    pub fn target(&self) -> Option<u64> {
        let [0xe9, a, b, c, d] = self.bytes else { return None };
        let displacement = i32::from_le_bytes([a, b, c, d]);
        Some(self.at.wrapping_add(5).wrapping_add_signed(i64::from(displacement)))
    }
}

fn memory(pid: u32) -> File {
    File::open(restitch_procfs::shared_path(pid as i32, "mem"))
        .expect("the memory of our own child can be read")
}

fn read(mem: &File, line: &Line) -> Vec<u8> {
    let mut bytes = vec![0; (line.end - line.start) as usize];
    match mem.read_exact_at(&mut bytes, line.start) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

/// Those of [`differences`] that are there time and again for a moment: what a program writes into its own
/// code may come and go.
pub fn differences_that_stay(pid: u32) -> Vec<Difference> {
    let mut stay = differences(pid);
    for _ in 0..20 {
        if stay.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        let now = differences(pid);
        stay.retain(|difference| now.contains(difference));
    }
    stay
}

/// Places where the code of process `pid` differs from its files. Bytes behind the end of a file count as
/// zero.
pub fn differences(pid: u32) -> Vec<Difference> {
    let (mem, lines) = (memory(pid), maps(pid));
    let mut out = Vec::new();
    for line in lines.iter().filter(|l| l.is_code()) {
        let path = PathBuf::from(&line.name);
        let Ok(file) = std::fs::read(&path) else { continue };
        let found = read(&mem, line);
        let mut skip_to = 0;
        for (i, byte) in found.iter().enumerate() {
            let expected = file.get(line.offset as usize + i).copied().unwrap_or(0);
            if *byte != expected && i >= skip_to {
                let place = difference(&found, i, line, &lines);
                skip_to = (place.at - line.start) as usize + 5;
                out.push(place);
            }
        }
    }
    out
}

/// The same without the unwinders' lookup functions, which lead to the hook for as long as a version is
/// mapped.
pub fn differences_but_hook(pid: u32) -> Vec<Difference> {
    let mut out = differences(pid);
    out.retain(|d| !d.target().is_some_and(|to| is_hook(pid, to)));
    out
}

/// The difference whose first differing byte is the one at `i` of what was found in `line`. A redirect whose
/// first bytes were there before does not differ in them, and its displacement may hold an `e9` too: of the
/// places where it may begin the one is taken from which a jump leads to what restitch has mapped.
fn difference(found: &[u8], i: usize, line: &Line, lines: &[Line]) -> Difference {
    let from = |j: usize| {
        let mut bytes = [0; 5];
        let n = (found.len() - j).min(5);
        bytes[..n].copy_from_slice(&found[j..j + n]);
        Difference { at: line.start + j as u64, file: PathBuf::from(&line.name), bytes }
    };
    let leads_to_us = |place: &Difference| {
        let within = |to: u64| {
            lines.iter().any(|l| (l.is_ours() || l.is_anonymous_code()) && l.start <= to && to < l.end)
        };
        place.target().is_some_and(within)
    };
    (i.saturating_sub(4)..=i).rev().map(from).find(leads_to_us).unwrap_or_else(|| from(i))
}

/// What of restitch is mapped: versions, counters.
pub fn ours(pid: u32) -> Vec<Line> {
    maps(pid).into_iter().filter(Line::is_ours).collect()
}

/// Words in read-only data of `module` (how its path ends) that lead into versions.
pub fn words_into_versions(pid: u32, module: &str) -> usize {
    let (memory, ours) = (memory(pid), ours(pid));
    let is_data = |l: &&Line| l.permissions == "r--p" && l.name.ends_with(module);
    let lead = |l: &Line| {
        let bytes = read(&memory, l);
        let words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")));
        words.filter(|w| ours.iter().any(|o| o.start <= *w && *w < o.end)).count()
    };
    maps(pid).iter().filter(is_data).map(lead).sum()
}

/// What a killed restitch must not leave behind: the same without what leads to the hook (from a
/// replacement mapping, as it would from the code itself), and without what stands in padding between
/// functions and behind them, where restitch lets a thread execute system calls. Looked at again if a keeper
/// has changed the process meanwhile.
pub fn differences_after_a_kill(pid: u32) -> Vec<Difference> {
    let ours =
        || maps(pid).into_iter().filter(|l| l.is_ours() || l.is_anonymous_code()).map(|l| (l.start, l.end));
    loop {
        let before: Vec<(u64, u64)> = ours().collect();
        let found = differences_but_what_may_stay(pid);
        if found.is_empty() || ours().eq(before) {
            return found;
        }
    }
}

fn differences_but_what_may_stay(pid: u32) -> Vec<Difference> {
    let lines = maps(pid);
    let line_at = |at: u64| lines.iter().find(|l| l.start <= at && at < l.end);
    let is_padding = |d: &Difference| {
        let file = std::fs::read(&d.file).unwrap_or_default();
        let original = line_at(d.at).and_then(|l| {
            let at = (l.offset + d.at - l.start) as usize;
            Some(file.get(at..(at + 5).min(file.len()))?.to_vec())
        });
        original.is_some_and(|bytes| bytes.iter().all(|b| [0, 0x90, 0xcc].contains(b)))
    };
    let leads_to_hook = |d: &Difference| {
        let Some(own) = line_at(d.at) else { return false };
        let offset = own.offset + d.at - own.start;
        let same = lines.iter().filter(|l| l.is_code() && l.name == own.name && l.offset <= offset);
        let places = same.map(|l| l.start + offset - l.offset);
        places
            .into_iter()
            .any(|at| Difference { at, ..d.clone() }.target().is_some_and(|to| is_hook(pid, to)))
    };
    let mut out = differences(pid);
    out.retain(|d| !is_padding(d) && !leads_to_hook(d));
    out
}

/// Whether `at` is in executable memory without a file: the hook's page, to which the unwinders' lookup
/// functions lead.
pub fn is_hook(pid: u32, at: u64) -> bool {
    maps(pid).iter().any(|l| l.is_anonymous_code() && l.start <= at && at < l.end)
}

/// The state of a process that restitch has to give back: its read-only memory and its mappings without a
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// By first address: name, bytes.
    read_only: BTreeMap<u64, (String, Vec<u8>)>,
    anonymous_code: usize,
}

impl Snapshot {
    pub fn of(pid: u32) -> Self {
        let mem = memory(pid);
        let lines = maps(pid);
        let read_only = lines
            .iter()
            .filter(|l| l.permissions.starts_with('r') && !l.permissions.contains('w'))
            .filter(|l| l.name.starts_with('/') && !l.is_ours())
            .map(|l| (l.start, (l.name.clone(), read(&mem, l))))
            .collect();
        Self { read_only, anonymous_code: lines.iter().filter(|l| l.is_anonymous_code()).count() }
    }

    /// Where `now` is not what this was; files mapped since do not count. Empty: all is back.
    pub fn changes(&self, now: &Self) -> Vec<String> {
        let mut out = Vec::new();
        for (start, (name, bytes)) in &self.read_only {
            match now.read_only.get(start) {
                Some((_, other)) if other == bytes => {}
                Some((_, other)) => {
                    let places: Vec<String> = (0..bytes.len().min(other.len()))
                        .filter(|&i| bytes[i] != other[i])
                        .take(4)
                        .map(|i| format!("{:#x}", start + i as u64))
                        .collect();
                    out.push(format!("{name} at {start:#x} differs, first at {}", places.join(", ")));
                }
                None => out.push(format!("{name} at {start:#x} is gone")),
            }
        }
        if now.anonymous_code > self.anonymous_code {
            out.push(format!(
                "{} nameless executable mappings stay",
                now.anonymous_code - self.anonymous_code
            ));
        }
        out
    }
}
