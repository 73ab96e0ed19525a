//! Section headers, which a program can do without: damaged ones count as absent.

use crate::bytes::{c_string, slice};
use crate::header::Segment;
use crate::raw::{FileHeader, SHDR_LEN, SectionHeader};
use object::elf;
use restitch_address::{FileOffset, Svma, SvmaRange};

/// One section header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name, for example `.text`.
    pub name: String,
    /// Addresses; starts at 0 for a section that is not loaded (see [`Section::is_loaded`]).
    pub range: SvmaRange,
    /// Where its bytes are in the file.
    pub file_offset: FileOffset,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// `sh_link`: index of a related section.
    pub link: u32,
    /// `sh_entsize`: length of one entry in bytes, 0 if it is no table.
    pub entry_len: u64,
}

impl Section {
    /// SHF_ALLOC: part of the program in memory.
    pub fn is_loaded(&self) -> bool {
        self.flags & u64::from(elf::SHF_ALLOC) != 0
    }
    /// Loaded, with bytes in the file, and holding instructions.
    pub fn is_code(&self) -> bool {
        self.is_loaded() && self.kind != elf::SHT_NOBITS && self.flags & u64::from(elf::SHF_EXECINSTR) != 0
    }
    /// The section's bytes in the file; empty for SHT_NOBITS and for damaged headers.
    pub(crate) fn bytes<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        if self.kind == elf::SHT_NOBITS {
            return &[];
        }
        slice(data, self.file_offset.get(), self.range.len()).unwrap_or_default()
    }
}

/// All sections but the null one, in file order with index 0 kept as an empty entry, so that `link` works.
pub(crate) fn sections(data: &[u8], header: &FileHeader) -> Vec<Section> {
    table(data, header).unwrap_or_default()
}

fn table(data: &[u8], header: &FileHeader) -> Option<Vec<Section>> {
    if header.sh_offset == 0 || usize::from(header.sh_entry_len) != SHDR_LEN {
        return None;
    }
    let entry_len = SHDR_LEN as u64;
    let first = SectionHeader::read(slice(data, header.sh_offset, entry_len)?)?;
    let count = match header.sh_count {
        0 => first.len,
        n => u64::from(n),
    };
    let names_index = match header.sh_names {
        elf::SHN_XINDEX => first.link,
        n => u32::from(n),
    };
    let raw = slice(data, header.sh_offset, count.checked_mul(entry_len)?)?;
    let headers: Vec<_> = raw.chunks_exact(SHDR_LEN).filter_map(SectionHeader::read).collect();
    let names = headers.get(names_index as usize).and_then(|s| s.bytes(data)).unwrap_or_default();
    Some(headers.iter().map(|s| section(s, names)).collect())
}

fn section(header: &SectionHeader, names: &[u8]) -> Section {
    Section {
        name: c_string(names, header.name.into()).unwrap_or_default().into_owned(),
        range: SvmaRange::new(Svma::new(header.address), header.len),
        file_offset: FileOffset::new(header.offset),
        kind: header.kind,
        flags: header.flags,
        link: header.link,
        entry_len: header.entry_len,
    }
}

/// Where code is: the code sections inside executable segments; without such sections, the executable
/// segments' file-backed part. Sorted, without overlaps.
pub(crate) fn executable_ranges(segments: &[Segment], sections: &[Section]) -> Vec<SvmaRange> {
    let executable = || segments.iter().filter(|s| s.executable && s.file_len != 0);
    let inside = |r: &SvmaRange| !r.is_empty() && executable().any(|s| s.file_backed().covers(r));
    let mut ranges: Vec<_> =
        sections.iter().filter(|s| s.is_code()).map(|s| s.range).filter(inside).collect();
    if ranges.is_empty() {
        return executable().map(Segment::file_backed).collect();
    }
    ranges.sort();
    let mut merged: Vec<SvmaRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end > range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
