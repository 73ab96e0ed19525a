//! Reading a process's writable private memory while the process runs.

use crate::ProcessError;
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{Mapping, MappingName, Pagemap};
use restitch_tracee::Memory;

const PAGE: u64 = 4096;
const CHUNK: u64 = 1 << 20;

/// Whether a mapping is writable and private.
pub(crate) fn is_private(m: &Mapping) -> bool {
    let special = matches!(&m.name, MappingName::Special(name) if name.starts_with("[v"));
    m.permissions.write && !m.permissions.shared && !special
}

/// Gives `see` what is in memory or swapped out of `maps`, piece by piece, until that are more than `most` bytes: how many there were.
pub(crate) fn read(
    pid: i32,
    maps: &[Mapping],
    most: u64,
    mut see: impl FnMut(&Memory, &(Avma, Vec<u8>)),
) -> Result<u64, ProcessError> {
    let memory = Memory::open_read_only(pid)?;
    let pages = Pagemap::open(pid).ok();
    let mut looked_at = 0;
    for m in maps {
        let mut at = m.range.start;
        while at < m.range.end && looked_at <= most {
            let len = (m.range.end.offset_from(at) as u64).min(CHUNK);
            for run in present(pages.as_ref(), AvmaRange::new(at, len)) {
                looked_at += run.len();
                match memory.read_vec(run.start, run.len() as usize) {
                    Ok(bytes) => see(&memory, &(run.start, bytes)),
                    Err(_) => page_by_page(&memory, run, &mut see),
                }
            }
            at = at + len;
        }
    }
    Ok(looked_at)
}

/// Gives `see` the pages of `run` that can be read. One that cannot be is a guard (`MADV_GUARD_INSTALL`, which the page table shows as swapped
/// out) or was unmapped meanwhile: it holds nothing, but those beside it do.
fn page_by_page(memory: &Memory, run: AvmaRange, see: &mut impl FnMut(&Memory, &(Avma, Vec<u8>))) {
    let pages = (0..run.len() / PAGE).map(|i| run.start + i * PAGE);
    for page in pages {
        if let Ok(bytes) = memory.read_vec(page, PAGE as usize) {
            see(memory, &(page, bytes));
        }
    }
}

/// The runs of pages in `range` that are in memory or swapped out; all of it if the kernel does not say.
fn present(pages: Option<&Pagemap>, range: AvmaRange) -> Vec<AvmaRange> {
    let Some(states) = pages.and_then(|pages| pages.states(range).ok()) else { return vec![range] };
    let mut out: Vec<AvmaRange> = Vec::new();
    for (i, _) in states.iter().enumerate().filter(|(_, state)| state.present || state.swapped) {
        let page = AvmaRange::new(range.start + i as u64 * PAGE, PAGE);
        match out.last_mut() {
            Some(last) if last.end == page.start => last.end = page.end,
            _ => out.push(page),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::words;
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
        let see = |_: &Memory, chunk: &(Avma, Vec<u8>)| {
            found.extend(words(chunk).map(|(_, word)| word.get()).filter(|w| w & !0xff == 0x12_3456_7800));
        };
        read(pid, &maps, u64::MAX, see).expect("readable");
        let expected: &[u64] = if guarded == "1" { &[0, 2, 4] } else { &[0, 1, 2, 4] };
        let found: Vec<u64> = found.iter().map(|w| w & 0xff).collect();
        assert_eq!(found, expected, "guard: {guarded}");
    }
}
