//! How an output file is recognised and turned back.
//!
//! A note of the owner `restitch` says which version is in the file and where the undo record is: the
//! original bytes of every place that changed. Both are in the loaded segment, because `strip` keeps what is
//! loaded. A PT_NOTE leads to the note where one could be had; else it is found by section, else by its bytes
//! in the last segment.

use crate::error::ElfError;
use crate::segment::pad;
use object::elf;
use restitch_address::{FileOffset, PAGE, Svma, SvmaRange};
use restitch_image::bytes::{u32_at, u64_at};
use restitch_image::raw;
use restitch_image::{BuildId, Image};

/// Owner of the note.
const OWNER: &[u8; 9] = b"restitch\0";
/// `n_type`: "RST1".
const KIND: u32 = 0x3154_5352;
/// Format of the note and the undo record.
const FORMAT: u32 = 1;
/// Section that holds the note.
pub(crate) const NOTE_SECTION: &str = ".note.restitch";
/// Length of the fixed part of the note's value.
const FIXED: usize = 64;

/// What an output file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestitchNote {
    /// Format of the note; this crate writes 1.
    pub format: u32,
    /// Number of the version in the file.
    pub number: u32,
    /// Length of the original file in bytes.
    pub original_len: u64,
    /// FNV-1a (64 bits) of the original file.
    pub checksum: u64,
    /// The added segment, without its unwind tables and notes.
    pub code: SvmaRange,
    /// The undo record.
    pub undo: SvmaRange,
    /// The original's build id.
    pub build_id: Option<BuildId>,
}

impl RestitchNote {
    /// The note record, a multiple of 8 bytes long.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let id = self.build_id.as_ref().map_or(&[][..], BuildId::as_bytes);
        let value_len = FIXED + id.len().next_multiple_of(8);
        let mut out = Vec::with_capacity(24 + value_len);
        for field in [OWNER.len() as u32, value_len as u32, KIND] {
            out.extend(field.to_le_bytes());
        }
        out.extend(OWNER);
        pad(&mut out, 8);
        out.extend(self.format.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        for field in [
            self.original_len,
            self.checksum,
            self.undo.start.get(),
            self.undo.len(),
            self.code.start.get(),
            self.code.len(),
            id.len() as u64,
        ] {
            out.extend(field.to_le_bytes());
        }
        out.extend(id);
        pad(&mut out, 8);
        out
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let range = |at| Some(SvmaRange::new(Svma::new(u64_at(value, at)?), u64_at(value, at + 8)?));
        let id = raw::slice(value, FIXED as u64, u64_at(value, 56)?)?;
        Some(Self {
            format: u32_at(value, 0)?,
            number: u32_at(value, 4)?,
            original_len: u64_at(value, 8)?,
            checksum: u64_at(value, 16)?,
            undo: range(24)?,
            code: range(40)?,
            build_id: (!id.is_empty()).then(|| BuildId::new(id)),
        })
    }
}

/// What restitch wrote about the file, if it wrote it; also after `strip`.
pub fn is_restitch_output(image: &Image) -> Option<RestitchNote> {
    let data = image.data();
    let of_segment = image
        .program_headers()
        .iter()
        .filter(|h| h.kind == elf::PT_NOTE)
        .find_map(|h| find(raw::slice(data, h.offset.get(), h.file_len)?, h.align));
    of_segment
        .or_else(|| {
            let section = image.section(NOTE_SECTION)?;
            find(raw::slice(data, section.file_offset.get(), section.range.len())?, 8)
        })
        .or_else(|| by_signature(image))
}

fn find(notes: &[u8], align: u64) -> Option<RestitchNote> {
    raw::notes(notes, align).find_map(|n| decode(&n))
}

fn decode(note: &raw::Note<'_>) -> Option<RestitchNote> {
    (note.kind == KIND && note.name == OWNER).then(|| RestitchNote::decode(note.value))?
}

/// Looks for the note's own bytes in the last segment, which is executable in restitch's output and hardly
/// elsewhere.
fn by_signature(image: &Image) -> Option<RestitchNote> {
    let last = image.segments().last().filter(|s| s.executable && !s.writable)?;
    let bytes = raw::slice(image.data(), last.file_offset.get(), last.file_len)?;
    let mut from = 0;
    while let Some(at) = position(&bytes[from..], &KIND.to_le_bytes()).map(|i| from + i) {
        // The type is the third word of the note's header.
        let note = at.checked_sub(8).and_then(|start| raw::notes(&bytes[start..], 8).next());
        if let Some(found) = note.and_then(|n| decode(&n)) {
            return Some(found);
        }
        from = at + 1;
    }
    None
}

fn position(bytes: &[u8], wanted: &[u8; 4]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|b| *b == wanted[0]).map(|i| from + i) {
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// A place of the original file whose bytes change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Changed {
    pub offset: FileOffset,
    pub len: u64,
}

/// The undo record: for each place the gap to the end of the one before and its length, 32 bits each, and the
/// original bytes.
///
/// # Errors
/// If places overlap or lie outside the file.
pub(crate) fn encode_undo(original: &[u8], mut places: Vec<Changed>) -> Result<Vec<u8>, ElfError> {
    places.sort();
    let mut out = Vec::new();
    let mut end = 0;
    for place in places {
        let bytes = raw::slice(original, place.offset.get(), place.len)
            .ok_or(ElfError::Malformed { what: "a part that has to change lies outside the file" })?;
        let overlap = ElfError::Malformed { what: "two parts that have to change overlap" };
        let gap = place.offset.get().checked_sub(end).ok_or(overlap)?;
        for field in [gap, place.len] {
            let field = u32::try_from(field).map_err(|_| ElfError::TooLarge(original.len() as u64))?;
            out.extend(field.to_le_bytes());
        }
        out.extend(bytes);
        end = place.offset.get() + place.len;
    }
    Ok(out)
}

/// Writes the bytes of an undo record back. `None` if the record is damaged.
fn undo(data: &mut [u8], mut record: &[u8]) -> Option<()> {
    let mut at = 0usize;
    while !record.is_empty() {
        let (gap, len) = (u32_at(record, 0)? as usize, u32_at(record, 4)? as usize);
        at = at.checked_add(gap)?;
        data.get_mut(at..at.checked_add(len)?)?.copy_from_slice(record.get(8..8 + len)?);
        at += len;
        record = &record[8 + len..];
    }
    Some(())
}

/// FNV-1a, 64 bits.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// The bytes of the file that `output` was made from, exactly.
///
/// # Errors
/// If `output` was not written by restitch ([`ElfError::NotRestitched`]), by a newer one, or was changed
/// afterwards (`strip` moves and drops bytes): [`ElfError::Changed`].
pub fn original_bytes(output: &Image) -> Result<Vec<u8>, ElfError> {
    let note = is_restitch_output(output).ok_or(ElfError::NotRestitched)?;
    if note.format != FORMAT {
        return Err(ElfError::UnknownFormat(note.format));
    }
    let changed = |why| ElfError::Changed { why };
    let original = raw::slice(output.data(), 0, note.original_len);
    let mut original = original.ok_or(changed("it is shorter than the original was"))?.to_vec();
    let record = usize::try_from(note.undo.len()).ok().and_then(|len| output.read(note.undo.start, len));
    record
        .and_then(|record| undo(&mut original, record))
        .ok_or(changed("its record of the original bytes is damaged"))?;
    if checksum(&original) != note.checksum {
        return Err(changed("the restored bytes do not have the original's checksum"));
    }
    Ok(original)
}

/// The note for an output with this version.
pub(crate) fn describe(image: &Image, number: u32, code: SvmaRange, undo: SvmaRange) -> RestitchNote {
    debug_assert!(code.start.get().is_multiple_of(PAGE));
    RestitchNote {
        format: FORMAT,
        number,
        original_len: image.data().len() as u64,
        checksum: checksum(image.data()),
        code,
        undo,
        build_id: image.build_id().cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn notes_say_what_was_written(number: u32, len: u64, sum: u64, code: (u64, u32), undo: (u64, u32),
                                      id in proptest::collection::vec(any::<u8>(), 0..40)) {
            let range = |(start, len): (u64, u32)| SvmaRange::new(Svma::new(start), len.into());
            let note = RestitchNote {
                format: FORMAT, number, original_len: len, checksum: sum, code: range(code), undo: range(undo),
                build_id: (!id.is_empty()).then(|| BuildId::new(&id)),
            };
            let bytes = note.encode();
            prop_assert!(bytes.len().is_multiple_of(8));
            prop_assert_eq!(find(&bytes, 8), Some(note.clone()));
            prop_assert_eq!(find(&bytes, 4), Some(note));
        }

        #[test]
        fn undo_restores_every_changed_byte(original in proptest::collection::vec(any::<u8>(), 64..512),
                                            cuts in proptest::collection::btree_set(0usize..64, 0..12)) {
            let cuts: Vec<_> = cuts.into_iter().collect();
            let places: Vec<_> = cuts.chunks_exact(2)
                .map(|pair| Changed { offset: FileOffset::new(pair[0] as u64), len: (pair[1] - pair[0]) as u64 })
                .collect();
            let record = encode_undo(&original, places.iter().rev().copied().collect()).unwrap();
            let mut changed = original.clone();
            for place in &places {
                let from = place.offset.get() as usize;
                changed[from..from + place.len as usize].iter_mut().for_each(|b| *b = !*b);
            }
            prop_assert_eq!(undo(&mut changed, &record), Some(()));
            prop_assert_eq!(changed, original);
        }

        #[test]
        fn damaged_records_do_not_panic(mut data in proptest::collection::vec(any::<u8>(), 0..64),
                                        record in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = undo(&mut data, &record);
            let _ = find(&record, 4);
            let _ = RestitchNote::decode(&record);
        }
    }

    #[test]
    fn overlapping_places_are_refused() {
        let place = |at, len| Changed { offset: FileOffset::new(at), len };
        assert!(encode_undo(&[0; 64], vec![place(8, 5), place(12, 5)]).is_err());
        assert!(encode_undo(&[0; 64], vec![place(60, 5)]).is_err());
    }
}
