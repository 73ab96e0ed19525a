//! Reading a process's writable private memory while the process runs.

use crate::ProcessError;
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{Mapping, MappingName, Pagemap};
use restitch_tracee::Memory;
use std::ops::ControlFlow;

const PAGE: u64 = 4096;
/// Bytes that are read at once: they stay in a processor's own caches until they were looked at.
const CHUNK: u64 = 256 << 10;
/// Page table entries that are read at once.
const STRETCH: u64 = 64 << 20;

/// Whether a mapping is writable and private.
pub(crate) fn is_private(m: &Mapping) -> bool {
    let special = matches!(&m.name, MappingName::Special(name) if name.starts_with("[v"));
    m.permissions.write && !m.permissions.shared && !special
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

/// Gives `see` what is in memory or swapped out of `maps`, piece by piece, until it has seen enough, or that is more than the limits permit.
pub(crate) fn read(
    pid: i32,
    maps: &[Mapping],
    limits: Limits,
    mut see: impl FnMut(&Memory, Avma, &[u8]) -> ControlFlow<()>,
) -> Result<LookedAt, ProcessError> {
    let memory = Memory::open_read_only(pid)?;
    let pages = Pagemap::open(pid).ok();
    let mut looked_at = LookedAt::default();
    let mut buffer = vec![0; CHUNK as usize];
    for run in maps.iter().flat_map(|m| pieces(m.range, STRETCH)).flat_map(|r| present(pages.as_ref(), r)) {
        for piece in pieces(run.range, CHUNK) {
            looked_at.bytes += piece.len();
            looked_at.swapped += if run.is_swapped { piece.len() } else { 0 };
            if looked_at.is_beyond(limits) {
                return Ok(looked_at);
            }
            let buffer = &mut buffer[..piece.len() as usize];
            let seen = match memory.read_large(piece.start, buffer) {
                Ok(()) => see(&memory, piece.start, buffer),
                Err(_) => page_by_page(&memory, piece, &mut see),
            };
            if seen.is_break() {
                return Ok(looked_at);
            }
        }
    }
    Ok(looked_at)
}

/// `range` in pieces of at most `len` bytes.
fn pieces(range: AvmaRange, len: u64) -> impl Iterator<Item = AvmaRange> {
    let starts = (0..range.len()).step_by(len as usize);
    starts.map(move |at| AvmaRange::new(range.start + at, (range.len() - at).min(len)))
}

/// Gives `see` the pages of `range` that can be read. One that cannot be is a guard (`MADV_GUARD_INSTALL`, which the page table shows as swapped
/// out) or was unmapped meanwhile: it holds nothing, but those beside it do.
fn page_by_page(
    memory: &Memory,
    range: AvmaRange,
    see: &mut impl FnMut(&Memory, Avma, &[u8]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    pieces(range, PAGE).try_for_each(|page| match memory.read_vec(page.start, page.len() as usize) {
        Ok(bytes) => see(memory, page.start, &bytes),
        Err(_) => ControlFlow::Continue(()),
    })
}

/// Pages one after another that are in memory, or swapped out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageRun {
    range: AvmaRange,
    is_swapped: bool,
}

/// The runs of pages in `range` that are in memory or swapped out; all of it if the kernel does not say.
fn present(pages: Option<&Pagemap>, range: AvmaRange) -> Vec<PageRun> {
    let Some(states) = pages.and_then(|pages| pages.states(range).ok()) else {
        return vec![PageRun { range, is_swapped: false }];
    };
    let mut out: Vec<PageRun> = Vec::new();
    for (i, state) in states.iter().enumerate().filter(|(_, state)| state.present || state.swapped) {
        let page = AvmaRange::new(range.start + i as u64 * PAGE, PAGE);
        match out.last_mut() {
            Some(last) if last.range.end == page.start && last.is_swapped == state.swapped => {
                last.range.end = page.end;
            }
            _ => out.push(PageRun { range: page, is_swapped: state.swapped }),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::words_at;
    use restitch_procfs as procfs;
    use restitch_testkit::{Guarded, compile, require, scratch};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Maps five pages, a number in each; the second becomes a guard, if the kernel knows such (Linux 6.13), and the fourth cannot be
    /// read by the process itself. Prints where they are.
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
        let mut found = Vec::new();
        let see = |_: &Memory, at: Avma, bytes: &[u8]| {
            found.extend(
                words_at(at, bytes).map(|(_, word)| word.get()).filter(|w| w & !0xff == 0x12_3456_7800),
            );
            ControlFlow::Continue(())
        };
        read(pid, &maps, Limits { bytes: u64::MAX, swapped: u64::MAX }, see).expect("readable");
        let expected: &[u64] = if guarded == "1" { &[0, 2, 4] } else { &[0, 1, 2, 4] };
        let found: Vec<u64> = found.iter().map(|w| w & 0xff).collect();
        assert_eq!(found, expected, "guard: {guarded}");
    }
}
