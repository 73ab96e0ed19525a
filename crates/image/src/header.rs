//! ELF header, program headers and segments (System V gABI, chapters 4 and 5).

use crate::bytes::slice;
use crate::error::ImageError;
use crate::raw::{EHDR_LEN, FileHeader, PHDR_LEN, ProgramHeader};
use object::elf;
use restitch_address::{FileOffset, SvmaRange};

/// A PT_LOAD segment that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Addresses, memory size (what is behind `file_len` is zero-filled).
    pub range: SvmaRange,
    /// Where its bytes begin in the file.
    pub file_offset: FileOffset,
    /// How many bytes the file holds for it; never more than the range's length.
    pub file_len: u64,
    /// PF_R.
    pub readable: bool,
    /// PF_W.
    pub writable: bool,
    /// PF_X.
    pub executable: bool,
}

impl Segment {
    /// The addresses whose bytes are in the file.
    pub fn file_backed(&self) -> SvmaRange {
        SvmaRange::new(self.range.start, self.file_len)
    }
}

pub(crate) fn header(data: &[u8]) -> Result<FileHeader, ImageError> {
    if data.get(..4) != Some(&elf::ELFMAG[..]) {
        return Err(ImageError::NotElf);
    }
    let truncated =
        || ImageError::Truncated { what: "the ELF header", need: EHDR_LEN as u64, have: data.len() as u64 };
    match data.get(4).copied().ok_or_else(truncated)? {
        elf::ELFCLASS64 => {}
        elf::ELFCLASS32 => return Err(ImageError::ThirtyTwoBit),
        _ => return Err(ImageError::Malformed { what: "its ELF class is neither 32 nor 64 bits" }),
    }
    match data.get(5).copied().ok_or_else(truncated)? {
        elf::ELFDATA2LSB => {}
        elf::ELFDATA2MSB => return Err(ImageError::BigEndian),
        _ => {
            return Err(ImageError::Malformed {
                what: "its ELF byte order is neither little nor big endian",
            });
        }
    }
    FileHeader::read(data).ok_or_else(truncated)
}

/// Refuses what is not a linked x86-64 program or shared object.
pub(crate) fn check_supported(header: &FileHeader) -> Result<(), ImageError> {
    let machine = header.machine;
    if machine != restitch_x86::elf::MACHINE {
        return Err(ImageError::ForeignMachine { machine });
    }
    match header.kind {
        elf::ET_EXEC | elf::ET_DYN => Ok(()),
        elf::ET_REL => Err(ImageError::Relocatable),
        elf::ET_CORE => Err(ImageError::CoreDump),
        kind => Err(ImageError::UnknownType { kind }),
    }
}

pub(crate) fn program_headers(data: &[u8], header: &FileHeader) -> Result<Vec<ProgramHeader>, ImageError> {
    if header.ph_count == 0 || header.ph_offset == 0 {
        return Err(ImageError::NoProgramHeaders);
    }
    if header.ph_count == elf::PN_XNUM {
        return Err(ImageError::Malformed { what: "it has more than 65,534 program headers" });
    }
    if usize::from(header.ph_entry_len) != PHDR_LEN {
        return Err(ImageError::Malformed { what: "its program headers are not 56 bytes long" });
    }
    let len = u64::from(header.ph_count) * PHDR_LEN as u64;
    let table = slice(data, header.ph_offset, len).ok_or(ImageError::Truncated {
        what: "the program header table",
        need: header.ph_offset.saturating_add(len),
        have: data.len() as u64,
    })?;
    Ok(table.chunks_exact(PHDR_LEN).filter_map(ProgramHeader::read).collect())
}

/// The non-empty PT_LOADs, sorted by address, checked against the file's length and each other.
pub(crate) fn segments(data: &[u8], headers: &[ProgramHeader]) -> Result<Vec<Segment>, ImageError> {
    let loads = headers.iter().filter(|p| p.kind == elf::PT_LOAD && p.memory_len != 0);
    let mut segments = loads.map(|p| segment(data, p)).collect::<Result<Vec<_>, _>>()?;
    if segments.is_empty() {
        return Err(ImageError::NoProgramHeaders);
    }
    segments.sort_by_key(|s| s.range);
    for pair in segments.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(ImageError::OverlappingSegments { first: pair[0].range, second: pair[1].range });
        }
    }
    Ok(segments)
}

fn segment(data: &[u8], p: &ProgramHeader) -> Result<Segment, ImageError> {
    if p.file_len > p.memory_len {
        return Err(ImageError::Malformed { what: "a segment has more bytes in the file than in memory" });
    }
    if p.address.get().checked_add(p.memory_len).is_none() {
        return Err(ImageError::Malformed { what: "a segment wraps around the end of the address space" });
    }
    let need = p.offset.get().saturating_add(p.file_len);
    if p.file_len != 0 && need > data.len() as u64 {
        return Err(ImageError::Truncated { what: "a loadable segment", need, have: data.len() as u64 });
    }
    Ok(Segment {
        range: SvmaRange::new(p.address, p.memory_len),
        file_offset: p.offset,
        file_len: p.file_len,
        readable: p.flags & elf::PF_R != 0,
        writable: p.flags & elf::PF_W != 0,
        executable: p.flags & elf::PF_X != 0,
    })
}
