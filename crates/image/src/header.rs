//! ELF header, program headers and segments (System V gABI, chapters 4 and 5).

use crate::ImageError;
use crate::bytes::{slice, u16_at, u32_at, u64_at};
use object::elf;
use restitch_address::{FileOffset, Svma, SvmaRange};

/// Size of `Elf64_Ehdr`.
const HEADER_LEN: u64 = 64;
/// Size of `Elf64_Phdr`.
const PROGRAM_HEADER_LEN: u16 = 56;
/// Size of `Elf64_Shdr`.
pub(crate) const SECTION_HEADER_LEN: u16 = 64;

/// One program header as the file states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramHeader {
    /// `p_type`, for example `object::elf::PT_LOAD` (1).
    pub kind: u32,
    /// `p_flags`: 1 execute, 2 write, 4 read.
    pub flags: u32,
    /// Place in the file.
    pub offset: FileOffset,
    /// Stated address.
    pub address: Svma,
    /// Bytes in the file.
    pub file_len: u64,
    /// Bytes in memory.
    pub memory_len: u64,
    /// Alignment in bytes.
    pub align: u64,
}

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

/// The fields of `Elf64_Ehdr` that later phases need.
pub(crate) struct Header {
    pub elf_type: u16,
    pub entry: Svma,
    pub ph_offset: u64,
    pub ph_count: u16,
    pub sh_offset: u64,
    pub sh_entry_len: u16,
    pub sh_count: u16,
    pub sh_names: u16,
}

pub(crate) fn header(data: &[u8]) -> Result<Header, ImageError> {
    if data.get(..4) != Some(&elf::ELFMAG[..]) {
        return Err(ImageError::NotElf);
    }
    let truncated =
        || ImageError::Truncated { what: "the ELF header", need: HEADER_LEN, have: data.len() as u64 };
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
    raw_header(data).ok_or_else(truncated)
}

fn raw_header(data: &[u8]) -> Option<Header> {
    let h = data.get(..HEADER_LEN as usize)?;
    Some(Header {
        elf_type: u16_at(h, 16)?,
        entry: Svma::new(u64_at(h, 24)?),
        ph_offset: u64_at(h, 32)?,
        ph_count: u16_at(h, 56)?,
        sh_offset: u64_at(h, 40)?,
        sh_entry_len: u16_at(h, 58)?,
        sh_count: u16_at(h, 60)?,
        sh_names: u16_at(h, 62)?,
    })
}

/// Refuses what is not a linked x86-64 program or shared object.
pub(crate) fn check_supported(data: &[u8], header: &Header) -> Result<(), ImageError> {
    let machine = u16_at(data, 18).unwrap_or_default();
    if machine != restitch_x86::elf::MACHINE {
        return Err(ImageError::ForeignMachine { machine });
    }
    match header.elf_type {
        elf::ET_EXEC | elf::ET_DYN => Ok(()),
        elf::ET_REL => Err(ImageError::Relocatable),
        elf::ET_CORE => Err(ImageError::CoreDump),
        kind => Err(ImageError::UnknownType { kind }),
    }
}

pub(crate) fn program_headers(data: &[u8], header: &Header) -> Result<Vec<ProgramHeader>, ImageError> {
    if header.ph_count == 0 || header.ph_offset == 0 {
        return Err(ImageError::NoProgramHeaders);
    }
    if header.ph_count == elf::PN_XNUM {
        return Err(ImageError::Malformed { what: "it has more than 65,534 program headers" });
    }
    if u16_at(data, 54) != Some(PROGRAM_HEADER_LEN) {
        return Err(ImageError::Malformed { what: "its program headers are not 56 bytes long" });
    }
    let len = u64::from(header.ph_count) * u64::from(PROGRAM_HEADER_LEN);
    let table = slice(data, header.ph_offset, len).ok_or(ImageError::Truncated {
        what: "the program header table",
        need: header.ph_offset.saturating_add(len),
        have: data.len() as u64,
    })?;
    Ok(table.chunks_exact(usize::from(PROGRAM_HEADER_LEN)).filter_map(program_header).collect())
}

fn program_header(p: &[u8]) -> Option<ProgramHeader> {
    Some(ProgramHeader {
        kind: u32_at(p, 0)?,
        flags: u32_at(p, 4)?,
        offset: FileOffset::new(u64_at(p, 8)?),
        address: Svma::new(u64_at(p, 16)?),
        file_len: u64_at(p, 32)?,
        memory_len: u64_at(p, 40)?,
        align: u64_at(p, 48)?,
    })
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
