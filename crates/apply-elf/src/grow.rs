//! Room for one more program header where the table is.
//!
//! Behind the table come, in what linkers write, `.interp` and notes, then the dynamic symbol tables: hash,
//! symbols, names. Those are found through the dynamic section only, so as many as necessary move into the
//! new segment; `.interp` and notes, found through program headers only, are then shifted into the place that
//! they leave. They stay in the file's first page, where kernels look for the build id, and the program
//! header table stays where `strip` expects it.

use object::elf;
use restitch_address::FileOffset;
use restitch_image::raw::{self, FileHeader, PHDR_LEN};
use restitch_image::{Image, Section};
use std::ops::Range;

/// What has to move for one more header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Growth {
    /// File offsets of what is shifted behind the longer table: from the table's old end on.
    pub shifted: Range<u64>,
    /// The tables that move away, in file order.
    pub tables: Vec<DynamicTable>,
}

/// A table that only the dynamic section leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DynamicTable {
    /// Index of its section.
    pub section: usize,
    /// Where the dynamic section holds its address.
    pub pointer: FileOffset,
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
        let mut growth = Self { shifted: end..end, tables: Vec::new() };
        let mut reached = end;
        for (section, s) in behind {
            let (from, to) = (s.file_offset.get(), s.file_offset.get().checked_add(s.range.len())?);
            if to <= header.ph_offset {
                continue;
            }
            if from < reached {
                return None;
            }
            reached = to;
            if growth.tables.is_empty() && (s.kind == elf::SHT_NOTE || s.name == ".interp") {
                growth.shifted.end = to;
                continue;
            }
            let pointer = pointer(image, dynamic_tag(s)?, s)?;
            growth.tables.push(DynamicTable { section, pointer });
            if growth.shifted.end + Self::BY <= to {
                return growth.fits(image, to).then_some(growth);
            }
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
                elf::PT_LOAD => {
                    apart || (range.start <= table_and_rest.start && table_and_rest.end <= range.end)
                }
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
    /// The bytes of one of the tables.
    pub fn table_bytes<'a>(image: &'a Image, table: &DynamicTable) -> Option<&'a [u8]> {
        let section = image.sections().get(table.section)?;
        raw::slice(image.data(), section.file_offset.get(), section.range.len())
    }
}

/// The entry of the dynamic section that leads to `section`.
fn dynamic_tag(section: &Section) -> Option<u64> {
    let tag = match section.kind {
        elf::SHT_GNU_HASH => elf::DT_GNU_HASH,
        elf::SHT_HASH => elf::DT_HASH,
        elf::SHT_DYNSYM => elf::DT_SYMTAB,
        elf::SHT_STRTAB if section.name == ".dynstr" => elf::DT_STRTAB,
        _ => return None,
    };
    Some(tag.into())
}

/// Where the value of the dynamic entry `tag` is in the file, if it is the address of `section`.
fn pointer(image: &Image, tag: u64, section: &Section) -> Option<FileOffset> {
    let header = image.program_headers().iter().find(|h| h.kind == elf::PT_DYNAMIC)?;
    let table = raw::slice(image.data(), header.offset.get(), header.file_len)?;
    let entries = raw::dynamic_entries(table).take_while(|entry| entry.0 != u64::from(elf::DT_NULL));
    let mut found = entries.enumerate().filter(|(_, entry)| entry.0 == tag);
    let (index, (_, value)) = found.next()?;
    let right = value == section.range.start.get() && found.next().is_none();
    right.then_some(header.offset + (index * raw::DYN_LEN) as u64 + 8)
}
