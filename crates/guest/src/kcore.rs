//! `/proc/kcore` as a file of moderate size: the same notes and addresses, with those parts that were copied.
//!
//! The original has offsets of terabytes and ranges that nothing is mapped in.

use std::collections::BTreeMap;

use crate::Result;
use crate::error::Error;

/// Sizes of the header of an ELF file and of a program header.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Types of program headers.
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// Read, write, execute.
const FLAGS: u32 = 7;
/// What parts are aligned to.
const ALIGNMENT: u64 = restitch_address::PAGE;
/// No physical address.
const NONE: u64 = u64::MAX;

/// A program header.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    physical: u64,
    /// In memory.
    size: u64,
    /// In the file.
    file_size: u64,
}

/// Writes the core file: `head` is the begin of `/proc/kcore` with its program headers and notes, `parts` are
/// pages of memory by their addresses.
pub fn assemble_kcore(head: &[u8], parts: &BTreeMap<u64, Vec<u8>>) -> Result<Vec<u8>> {
    let segments = segments(head)?;
    let note = segments.iter().find(|segment| segment.kind == NOTE);
    let note = note.ok_or_else(|| damaged("it has no notes"))?;
    let notes = head.get(note.offset as usize..(note.offset + note.file_size) as usize);
    let notes = notes.ok_or_else(|| damaged("its notes are cut"))?;

    let notes_at = HEADER + PROGRAM_HEADER * (parts.len() + 1);
    let mut offset = ((notes_at + notes.len()) as u64).next_multiple_of(ALIGNMENT);
    let mut headers = vec![Segment {
        kind: NOTE,
        offset: notes_at as u64,
        address: 0,
        physical: 0,
        size: 0,
        file_size: notes.len() as u64,
    }];
    for (&address, bytes) in parts {
        let size = bytes.len() as u64;
        let physical = physical(&segments, address);
        headers.push(Segment { kind: LOAD, offset, address, physical, size, file_size: size });
        offset += size.next_multiple_of(ALIGNMENT);
    }

    let mut file = head[..HEADER].to_vec();
    file[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
    file[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    for header in &headers {
        write(header, &mut file);
    }
    file.extend(notes);
    for bytes in parts.values() {
        file.resize(file.len().next_multiple_of(ALIGNMENT as usize), 0);
        file.extend(bytes);
    }
    Ok(file)
}

fn damaged(why: &str) -> Error {
    Error::damaged("the head of /proc/kcore", why)
}

fn segments(head: &[u8]) -> Result<Vec<Segment>> {
    if head.len() < HEADER || !head.starts_with(b"\x7fELF") {
        return Err(damaged("it is no ELF file"));
    }
    let begin = word(head, 32) as usize;
    let count = usize::from(u16::from_le_bytes([head[56], head[57]]));
    let table =
        head.get(begin..begin + count * PROGRAM_HEADER).ok_or_else(|| damaged("its headers are cut"))?;
    Ok(table.chunks_exact(PROGRAM_HEADER).map(segment).collect())
}

fn segment(bytes: &[u8]) -> Segment {
    Segment {
        kind: word(bytes, 0) as u32,
        offset: word(bytes, 8),
        address: word(bytes, 16),
        physical: word(bytes, 24),
        file_size: word(bytes, 32),
        size: word(bytes, 40),
    }
}

/// Eight bytes as a number.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The physical address of memory, as the segment says that holds it.
fn physical(segments: &[Segment], address: u64) -> u64 {
    let holds = |segment: &&Segment| {
        segment.kind == LOAD && address.checked_sub(segment.address).is_some_and(|at| at < segment.size)
    };
    match segments.iter().find(holds) {
        Some(segment) if segment.physical != NONE => segment.physical + (address - segment.address),
        _ => NONE,
    }
}

fn write(segment: &Segment, file: &mut Vec<u8>) {
    file.extend(segment.kind.to_le_bytes());
    file.extend(FLAGS.to_le_bytes());
    let alignment = if segment.kind == LOAD { ALIGNMENT } else { 0 };
    let words =
        [segment.offset, segment.address, segment.physical, segment.file_size, segment.size, alignment];
    for word in words {
        file.extend(word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head with notes and one segment of kernel memory.
    fn head() -> Vec<u8> {
        let mut head = vec![0; HEADER];
        head[..4].copy_from_slice(b"\x7fELF");
        head[32] = HEADER as u8;
        head[56] = 2;
        let note = Segment { kind: NOTE, offset: 176, address: 0, physical: 0, size: 0, file_size: 5 };
        let load = Segment {
            kind: LOAD,
            offset: 1 << 46,
            address: 0xffff_ffff_8100_0000,
            physical: 0x100_0000,
            size: 0x20_0000,
            file_size: 0x20_0000,
        };
        write(&note, &mut head);
        write(&load, &mut head);
        head.extend(b"notes");
        head
    }

    #[test]
    fn parts_keep_their_addresses_and_bytes() {
        let parts =
            BTreeMap::from([(0xffff_ffff_8100_1000, vec![7; 4096]), (0xffff_ffff_c000_0000, vec![8; 4096])]);
        let file = assemble_kcore(&head(), &parts).unwrap();
        let found = segments(&file).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(&file[found[0].offset as usize..][..5], b"notes");
        assert_eq!(found[1].address, 0xffff_ffff_8100_1000);
        assert_eq!(found[1].physical, 0x100_1000);
        assert_eq!(found[2].physical, NONE);
        for (segment, byte) in [(found[1], 7), (found[2], 8)] {
            assert!(file[segment.offset as usize..][..4096].iter().all(|&b| b == byte));
        }
    }

    #[test]
    fn a_head_that_is_cut_is_refused() {
        let head = head();
        for end in [0, 63, 100, head.len() - 1] {
            assert!(assemble_kcore(&head[..end], &BTreeMap::new()).is_err(), "{end}");
        }
    }
}
