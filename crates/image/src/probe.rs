//! Static probes (USDT): places that a program's author has marked for tracers by `<sys/sdt.h>`.
//!
//! Each is a `nop` on which a tracer (bpftrace, perf, SystemTap, gdb) sets a breakpoint, and a note that says
//! where it is. The format is that of SystemTap's "User Space Probe Implementation", version 3. `strip`
//! leaves the notes.

use crate::bytes::u64_at;
use crate::raw::notes;
use crate::section::Section;
use object::elf;
use restitch_address::{Svma, SvmaRange};

const SECTION: &str = ".note.stapsdt";
/// One byte, whose address the notes hold, too: what it has moved by since, they have.
const BASE_SECTION: &str = ".stapsdt.base";
const NAME: &[u8; 8] = b"stapsdt\0";
const KIND: u32 = 3;
/// Bytes of the three addresses that the content begins with: of the probe, of the base, of the semaphore.
const ADDRESSES: usize = 24;

/// One static probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticProbe {
    /// The instruction that a tracer sets its breakpoint on.
    pub at: Svma,
    /// What the note has for the base section.
    base: u64,
    /// Address of the 16-bit word that tells the program how many tracers look; 0 if it has none.
    semaphore: u64,
    /// Provider, name and arguments, each with its NUL.
    texts: Box<[u8]>,
}

impl StaticProbe {
    /// `provider:name`.
    pub fn name(&self) -> String {
        let mut texts = self.texts.split(|b| *b == 0).map(String::from_utf8_lossy);
        let mut next = || texts.next().unwrap_or_default().into_owned();
        format!("{}:{}", next(), next())
    }

    /// The note of a copy of this probe at `at` in the same file.
    pub fn note_at(&self, at: Svma) -> Vec<u8> {
        // An address in a note counts from where the base was, so it is put back by what the base has moved
        // by.
        self.note([at.get(), self.base, self.semaphore])
    }

    /// The note of a copy at `at` of a file of its own, which has neither a base nor a semaphore: who looks
    /// at the probe counts itself in the semaphore of the original one, which has the same name.
    pub fn note_elsewhere(&self, at: u64) -> Vec<u8> {
        self.note([at, 0, 0])
    }

    fn note(&self, addresses: [u64; 3]) -> Vec<u8> {
        let len = ADDRESSES + self.texts.len();
        let mut note = [NAME.len() as u32, len as u32, KIND].map(u32::to_le_bytes).concat();
        note.extend(NAME);
        note.extend(addresses.map(u64::to_le_bytes).concat());
        note.extend(&self.texts);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }
}

/// The probes of a file, sorted by address.
pub(crate) fn static_probes(data: &[u8], sections: &[Section]) -> Vec<StaticProbe> {
    let base = sections.iter().find(|s| s.name == BASE_SECTION).map(|s| s.range.start);
    let notes = sections.iter().filter(|s| s.name == SECTION && s.kind == elf::SHT_NOTE);
    let mut probes: Vec<_> = notes.flat_map(|s| read(s.bytes(data), base)).collect();
    probes.sort_unstable();
    probes
}

/// Reads them up to the first note that is damaged.
fn read(list: &[u8], base: Option<Svma>) -> Vec<StaticProbe> {
    let probes = notes(list, 4).filter(|note| note.kind == KIND && is_ours(note.name));
    probes.filter_map(|note| probe(note.value, base)).collect()
}

/// With or without the final zero.
fn is_ours(name: &[u8]) -> bool {
    name.strip_suffix(b"\0").unwrap_or(name) == &NAME[..NAME.len() - 1]
}

fn probe(content: &[u8], base: Option<Svma>) -> Option<StaticProbe> {
    let [at, noted, semaphore] = [u64_at(content, 0)?, u64_at(content, 8)?, u64_at(content, 16)?];
    let moved_by = base.map_or(0, |base| base.get().wrapping_sub(noted));
    Some(StaticProbe {
        at: Svma::new(at.wrapping_add(moved_by)),
        base: noted.wrapping_add(moved_by),
        semaphore: if semaphore == 0 { 0 } else { semaphore.wrapping_add(moved_by) },
        texts: content[ADDRESSES..].into(),
    })
}

/// Those of `probes`, which are sorted, that are in `range`.
pub(crate) fn within(probes: &[StaticProbe], range: SvmaRange) -> &[StaticProbe] {
    let from = probes.partition_point(|p| p.at < range.start);
    let to = probes.partition_point(|p| p.at < range.end);
    &probes[from..to.max(from)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a note in front of its content.
    const HEAD: usize = 12 + NAME.len();

    fn probe(at: u64, base: u64, semaphore: u64) -> StaticProbe {
        let texts = b"postgresql\0query__start\08@%rdi\0".as_slice().into();
        StaticProbe { at: Svma::new(at), base, semaphore, texts }
    }

    #[test]
    fn notes_say_what_was_read() {
        let probes = [probe(0x1000, 0x9000, 0x9100), probe(0x2004, 0x9000, 0)];
        let notes: Vec<u8> = probes.iter().flat_map(|p| p.note_at(p.at)).collect();
        assert_eq!(read(&notes, Some(Svma::new(0x9000))), probes);
        assert_eq!(probes[0].name(), "postgresql:query__start");
        let elsewhere = read(&probes[0].note_elsewhere(0x40), None);
        assert_eq!(elsewhere, [probe(0x40, 0, 0)]);
    }

    #[test]
    fn what_has_moved_since_is_taken_into_account() {
        let notes = probe(0x1000, 0x9000, 0x9100).note_at(Svma::new(0x1000));
        assert_eq!(read(&notes, Some(Svma::new(0xa000))), [probe(0x2000, 0xa000, 0xa100)]);
    }

    #[test]
    fn damaged_notes_end_the_list_and_others_are_passed_over() {
        let good = probe(0x1000, 0, 0).note_at(Svma::new(0x1000));
        let mut other = good.clone();
        other[8] = 1;
        let notes = [&other[..], &good, &good[..30]].concat();
        assert_eq!(read(&notes, None), [probe(0x1000, 0, 0)]);
        let mut short = good.clone();
        short[4..8].copy_from_slice(&8u32.to_le_bytes());
        assert_eq!(read(&short[..HEAD + 8], None), []);
        let mut long = good;
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(&long, None), []);
    }
}
