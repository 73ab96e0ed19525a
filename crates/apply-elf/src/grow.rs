//! Room for one more program header where the table is.
//!
//! Behind the table come, in what linkers write, `.interp` and notes, then the symbol hash table. The hash table is found
//! through the dynamic section only, so it can move into the new segment; `.interp` and notes, found through program
//! headers only, are then shifted into the place that it leaves. They stay in the file's first page, where kernels look for
//! the build id, and the program header table stays where `strip` expects it.

use crate::raw::{self, FileHeader, PHDR_LEN};
use object::elf;
use restitch_address::FileOffset;
use restitch_image::{Image, Section};
use std::ops::Range;

/// What has to move for one more header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Growth {
    /// File offsets of what is shifted behind the longer table: from the table's old end on.
    pub shifted: Range<u64>,
    /// Index of the hash section.
    pub hash: usize,
    /// Where the dynamic section holds the hash table's address.
    pub hash_pointer: FileOffset,
}

impl Growth {
    /// By how much things are shifted: one header.
    pub const BY: u64 = PHDR_LEN as u64;

    /// How the table of `image` can grow, if it can.
    pub fn find(image: &Image) -> Option<Self> {
        let header = FileHeader::read(image.data())?;
        let end = header.ph_offset.checked_add(u64::from(header.ph_count) * Self::BY)?;
        let stored = |s: &Section| s.is_loaded() && s.kind != elf::SHT_NOBITS && !s.range.is_empty();
        let mut behind: Vec<_> = image.sections().iter().enumerate().filter(|(_, s)| stored(s)).collect();
        behind.sort_by_key(|(_, s)| s.file_offset);
        let mut shifted_end = end;
        for (index, section) in behind {
            let (from, to) = (section.file_offset.get(), section.file_offset.get() + section.range.len());
            if to <= header.ph_offset {
                continue;
            }
            if from < shifted_end {
                return None;
            }
            if section.kind == elf::SHT_NOTE || section.name == ".interp" {
                shifted_end = to;
                continue;
            }
            let tag = hash_tag(section.kind)?;
            let growth = Self { shifted: end..shifted_end, hash: index, hash_pointer: pointer(image, tag, section)? };
            return (shifted_end + Self::BY <= to && growth.fits(image, to)).then_some(growth);
        }
        None
    }

    /// Whether no program header speaks of a part only of what moves, which ends at `end`.
    fn fits(&self, image: &Image, end: u64) -> bool {
        let inside = |r: &Range<u64>| self.shifted.start <= r.start && r.end <= self.shifted.end;
        let table_and_rest = self.shifted.start..end;
        image.program_headers().iter().all(|h| {
            let range = h.offset.get()..h.offset.get().saturating_add(h.file_len);
            let apart = range.end <= table_and_rest.start || table_and_rest.end <= range.start;
            match h.kind {
                elf::PT_LOAD => apart || (range.start <= table_and_rest.start && table_and_rest.end <= range.end),
                elf::PT_INTERP | elf::PT_NOTE | elf::PT_GNU_PROPERTY => apart || inside(&range),
                _ => apart || range.is_empty(),
            }
        })
    }

    /// Whether what starts at `offset` is shifted.
    pub fn shifts(&self, offset: FileOffset) -> bool {
        self.shifted.contains(&offset.get())
    }
    /// The bytes that are shifted, and where they go.
    pub fn shifted_bytes<'a>(&self, image: &'a Image) -> Option<(FileOffset, &'a [u8])> {
        let bytes = raw::slice(image.data(), self.shifted.start, self.shifted.end - self.shifted.start)?;
        Some((FileOffset::new(self.shifted.start + Self::BY), bytes))
    }
    /// The hash table.
    pub fn hash_bytes<'a>(&self, image: &'a Image) -> Option<&'a [u8]> {
        let section = image.sections().get(self.hash)?;
        raw::slice(image.data(), section.file_offset.get(), section.range.len())
    }
}

fn hash_tag(kind: u32) -> Option<u64> {
    match kind {
        elf::SHT_GNU_HASH => Some(elf::DT_GNU_HASH.into()),
        elf::SHT_HASH => Some(elf::DT_HASH.into()),
        _ => None,
    }
}

/// Where the value of the dynamic entry `tag` is in the file, if it is the address of `section`.
fn pointer(image: &Image, tag: u64, section: &Section) -> Option<FileOffset> {
    let header = image.program_headers().iter().find(|h| h.kind == elf::PT_DYNAMIC)?;
    let table = raw::slice(image.data(), header.offset.get(), header.file_len)?;
    let entries = (0..table.len() / 16).map(|i| i * 16);
    let mut found = entries
        .map_while(|at| Some((at, raw::u64_at(table, at).filter(|t| *t != u64::from(elf::DT_NULL))?)))
        .filter(|(_, t)| *t == tag);
    let (at, _) = found.next()?;
    let right = raw::u64_at(table, at + 8)? == section.range.start.get() && found.next().is_none();
    right.then_some(header.offset + (at as u64 + 8))
}
