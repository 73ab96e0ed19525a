//! Reading a process's private memory while the process runs.

use crate::error::ProcessError;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{Mapping, MappingName, PageRun, Pagemap, Residents, Wanted};
use restitch_tracee::Memory;
use std::ops::ControlFlow;

/// Bytes that are read at once: they stay in a processor's own caches until they were looked at.
const CHUNK: u64 = 256 << 10;
/// What is mapped beyond this is first asked about as a whole where the kernel does not scan page tables by
/// itself.
const MUCH: u64 = 1 << 30;

/// Whether a mapping may hold what the process has written: a private one that is writable, or not code.
/// (Memory can be closed while nobody uses it: stacks of coroutines at rest, heaps at barriers. Code is what
/// others have generated, or the hook's.) What can be read only of a file is the loader's: constants, and
/// slots that it has filled.
pub(crate) fn is_private(m: &Mapping) -> bool {
    let special = matches!(&m.name, MappingName::Special(name) if name.starts_with("[v"));
    let may_rest = !m.permissions.execute && (m.path().is_none() || !m.permissions.read);
    (m.permissions.write || may_rest) && !m.permissions.shared && !special
}

/// The pages of such a mapping that may hold it: files' constants are not read.
fn wanted(m: &Mapping) -> Wanted {
    if m.permissions.write || m.path().is_none() { Wanted::All } else { Wanted::Own }
}

/// What may be looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes in all.
    pub bytes: u64,
    /// Of them, those that are swapped out: to look at them brings them back, and others out.
    pub swapped: u64,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LookedAt {
    /// Bytes in all.
    pub bytes: u64,
    /// Of them, those that were swapped out.
    pub swapped: u64,
}

impl LookedAt {
    /// Whether that is more than was permitted, so that there may be others that were not looked at.
    pub fn is_beyond(&self, limits: Limits) -> bool {
        self.bytes > limits.bytes || self.swapped > limits.swapped
    }
}

/// Gives `see` what is in memory or swapped out of `maps`, piece by piece, until it has seen enough, or that
/// is more than the limits permit. A piece behind another one begins with the last bytes of that one, fewer
/// than a word's: words that lie in both are seen, once.
pub(crate) fn read(
    pid: i32,
    maps: &[Mapping],
    limits: Limits,
    mut see: impl FnMut(&Memory, Avma, &[u8]) -> ControlFlow<()>,
) -> Result<LookedAt, ProcessError> {
    let memory = Memory::open_read_only(pid)?;
    let pages = Pagemap::open(pid).ok();
    let mut looked_at = LookedAt::default();
    let mut reader = Reader::new(&memory);
    let held = holding(pid, maps, pages.as_ref());
    for run in held.into_iter().flat_map(|m| Runs::of(pages.as_ref(), m)) {
        for piece in pieces(run.range, CHUNK) {
            looked_at.bytes += piece.len();
            looked_at.swapped += if run.is_swapped { piece.len() } else { 0 };
            if looked_at.is_beyond(limits) {
                return Ok(looked_at);
            }
            let seen = match reader.read(piece, &mut see) {
                Some(seen) => seen,
                // A page that cannot be read is a guard (`MADV_GUARD_INSTALL`, which the page table shows as
                // swapped out) or was unmapped meanwhile: it holds nothing, but those beside it do.
                None => pieces(piece, PAGE)
                    .try_for_each(|page| reader.read(page, &mut see).unwrap_or(ControlFlow::Continue(()))),
            };
            if seen.is_break() {
                return Ok(looked_at);
            }
        }
    }
    Ok(looked_at)
}

/// Reads pieces, and keeps the end of the last one.
struct Reader<'a> {
    memory: &'a Memory,
    /// First the end of the last piece.
    buffer: Vec<u8>,
    /// Where the last piece ended.
    end: Option<Avma>,
}

impl<'a> Reader<'a> {
    /// Bytes of a piece that are seen again: a word less one.
    const AGAIN: usize = 7;

    fn new(memory: &'a Memory) -> Self {
        Self { memory, buffer: vec![0; Self::AGAIN + CHUNK as usize], end: None }
    }

    /// Gives `see` a piece of at most [`CHUNK`] bytes, not less than [`Self::AGAIN`]; `None` if it cannot be
    /// read.
    fn read(
        &mut self,
        piece: AvmaRange,
        see: &mut impl FnMut(&Memory, Avma, &[u8]) -> ControlFlow<()>,
    ) -> Option<ControlFlow<()>> {
        let follows = self.end == Some(piece.start);
        let len = piece.len() as usize;
        self.memory.read(piece.start, &mut self.buffer[Self::AGAIN..][..len]).ok()?;
        let again = if follows { Self::AGAIN } else { 0 };
        let seen = &self.buffer[Self::AGAIN - again..Self::AGAIN + len];
        let seen = see(self.memory, piece.start.offset(-(again as i64)), seen);
        self.buffer.copy_within(len..len + Self::AGAIN, 0);
        self.end = Some(piece.end);
        Some(seen)
    }
}

/// Those of `maps` that may hold something; all of them where to ask would cost more than to look.
fn holding<'a>(pid: i32, maps: &'a [Mapping], pages: Option<&Pagemap>) -> Vec<&'a Mapping> {
    let much = maps.iter().map(|m| m.range.len()).sum::<u64>() > MUCH;
    let asks = much && !pages.is_some_and(Pagemap::scans);
    match asks.then(|| Residents::of(pid).ok()).flatten() {
        Some(residents) => maps.iter().filter(|m| residents.may_hold(m)).collect(),
        None => maps.iter().collect(),
    }
}

/// Bytes of `maps` that would have to be looked at page by page: none where the kernel finds by itself what
/// is there.
pub(crate) fn tedious(pid: i32, maps: &[Mapping]) -> u64 {
    let pages = Pagemap::open(pid).ok();
    match pages.as_ref().is_some_and(Pagemap::scans) {
        true => 0,
        false => holding(pid, maps, pages.as_ref()).iter().map(|m| m.range.len()).sum(),
    }
}

/// `range` in pieces of at most `len` bytes.
fn pieces(range: AvmaRange, len: u64) -> impl Iterator<Item = AvmaRange> {
    let starts = (0..range.len()).step_by(len as usize);
    starts.map(move |at| AvmaRange::new(range.start + at, (range.len() - at).min(len)))
}

/// The pieces of a mapping's pages that are in memory or swapped out, in order, found while they are asked
/// for; all of it if the kernel does not say.
struct Runs<'a> {
    pages: Option<&'a Pagemap>,
    /// What was found and not given yet.
    found: std::vec::IntoIter<PageRun>,
    /// Where nobody has looked yet.
    rest: AvmaRange,
    wanted: Wanted,
}

impl<'a> Runs<'a> {
    fn of(pages: Option<&'a Pagemap>, m: &Mapping) -> Self {
        Self { pages, found: Vec::new().into_iter(), rest: m.range, wanted: wanted(m) }
    }
}

impl Iterator for Runs<'_> {
    type Item = PageRun;

    fn next(&mut self) -> Option<PageRun> {
        loop {
            if let Some(run) = self.found.next() {
                return Some(run);
            }
            if self.rest.is_empty() {
                return None;
            }
            let all = PageRun { range: self.rest, is_swapped: false };
            let nothing_left = AvmaRange::new(self.rest.end, 0);
            let looked = self.pages.and_then(|pages| pages.runs(self.rest, self.wanted).ok());
            let (found, rest) = looked.unwrap_or_else(|| (vec![all], nothing_left));
            (self.found, self.rest) = (found.into_iter(), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::WordFinder;
    use restitch_procfs as procfs;
    use restitch_testkit::{Guarded, compile, require, scratch};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Maps five pages, a number in each; the second becomes a guard, if the kernel knows such (Linux 6.13),
    /// and the fourth cannot be read by the process itself. Prints where they are.
    const GUARD: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define MADV_GUARD_INSTALL 102
int main(void) {
    char *pages = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 5; i++) *(unsigned long *)(pages + i * 4096 + 64) = 0x1234567800 + i;
    int guarded = !madvise(pages + 4096, 4096, MADV_GUARD_INSTALL);
    mprotect(pages + 3 * 4096, 4096, PROT_NONE);
    printf("%d %lx\n", guarded, (unsigned long)pages);
    fflush(stdout);
    pause();
    return 0;
}
"#;

    #[test]
    fn what_lies_beside_a_guard_is_read() {
        let folder = scratch();
        let source = folder.path().join("guard.c");
        std::fs::write(&source, GUARD).expect("writable");
        let program = require!(compile(&source, &["-O1"]).ok(), "gcc");
        let mut child = Guarded::spawn(Command::new(program).stdout(Stdio::piped())).expect("started");
        let output = child.child().stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("an answer");
        let (guarded, start) = line.trim().split_once(' ').expect("two numbers");
        let start = Avma::new(u64::from_str_radix(start, 16).expect("an address"));
        let pid = child.pid() as i32;
        let mut maps = procfs::maps(pid).expect("it lives");
        maps.retain(|m| is_private(m) && m.range.overlaps(&AvmaRange::new(start, 5 * PAGE)));
        let finder = WordFinder::of(&[AvmaRange::new(Avma::new(0x12_3456_7800), 0x100)]);
        let mut found = Vec::new();
        let see = |_: &Memory, at: Avma, bytes: &[u8]| {
            found.extend(finder.words_at(at, bytes).iter().map(|(_, word)| word.get()));
            ControlFlow::Continue(())
        };
        read(pid, &maps, Limits { bytes: u64::MAX, swapped: u64::MAX }, see).expect("readable");
        let expected: &[u64] = if guarded == "1" { &[0, 2, 3, 4] } else { &[0, 1, 2, 3, 4] };
        let found: Vec<u64> = found.iter().map(|w| w & 0xff).collect();
        assert_eq!(found, expected, "guard: {guarded}");
    }
}
