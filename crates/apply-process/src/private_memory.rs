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
                // Memory that was unmapped meanwhile holds nothing.
                let bytes = memory.read_vec(run.start, run.len() as usize).unwrap_or_default();
                see(&memory, &(run.start, bytes));
            }
            at = at + len;
        }
    }
    Ok(looked_at)
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
