//! The structures of ELF files, field by field, for this crate and for those who write files: the one place
//! that knows where each field is (System V gABI, chapters 4 and 5). Reads never panic.

use crate::bytes::{i64_at, u16_at, u32_at, u64_at};
use object::elf;
use restitch_address::{FileOffset, Svma};

pub use crate::bytes::slice;

/// Size of `Elf64_Ehdr`.
pub const EHDR_LEN: usize = 64;
/// Size of `Elf64_Phdr`.
pub const PHDR_LEN: usize = 56;
/// Size of `Elf64_Shdr`.
pub const SHDR_LEN: usize = 64;
/// Size of `Elf64_Sym`.
pub const SYM_LEN: usize = 24;
/// Size of `Elf64_Rela`.
pub const RELA_LEN: usize = 24;
/// Size of `Elf64_Dyn`.
pub const DYN_LEN: usize = 16;

/// `Elf64_Ehdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileHeader {
    /// `e_type`.
    pub kind: u16,
    /// `e_machine`.
    pub machine: u16,
    /// `e_entry`.
    pub entry: u64,
    /// `e_phoff`.
    pub ph_offset: u64,
    /// `e_phentsize`.
    pub ph_entry_len: u16,
    /// `e_phnum`.
    pub ph_count: u16,
    /// `e_shoff`.
    pub sh_offset: u64,
    /// `e_shentsize`.
    pub sh_entry_len: u16,
    /// `e_shnum`.
    pub sh_count: u16,
    /// `e_shstrndx`.
    pub sh_names: u16,
}

impl FileHeader {
    /// The header at the start of `data`, whatever its first 16 bytes say.
    pub fn read(data: &[u8]) -> Option<Self> {
        let h = data.get(..EHDR_LEN)?;
        Some(Self {
            kind: u16_at(h, 16)?,
            machine: u16_at(h, 18)?,
            entry: u64_at(h, 24)?,
            ph_offset: u64_at(h, 32)?,
            ph_entry_len: u16_at(h, 54)?,
            ph_count: u16_at(h, 56)?,
            sh_offset: u64_at(h, 40)?,
            sh_entry_len: u16_at(h, 58)?,
            sh_count: u16_at(h, 60)?,
            sh_names: u16_at(h, 62)?,
        })
    }

    /// Writes the entry point and what leads to the tables into the header at the start of `data`, which
    /// holds at least [`EHDR_LEN`] bytes.
    pub fn write(&self, data: &mut [u8]) {
        data[24..32].copy_from_slice(&self.entry.to_le_bytes());
        data[32..40].copy_from_slice(&self.ph_offset.to_le_bytes());
        data[40..48].copy_from_slice(&self.sh_offset.to_le_bytes());
        data[56..58].copy_from_slice(&self.ph_count.to_le_bytes());
        data[60..62].copy_from_slice(&self.sh_count.to_le_bytes());
        data[62..64].copy_from_slice(&self.sh_names.to_le_bytes());
    }
}

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

impl ProgramHeader {
    /// `Elf64_Phdr` at the start of `bytes`.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u32_at(bytes, 0)?,
            flags: u32_at(bytes, 4)?,
            offset: FileOffset::new(u64_at(bytes, 8)?),
            address: Svma::new(u64_at(bytes, 16)?),
            file_len: u64_at(bytes, 32)?,
            memory_len: u64_at(bytes, 40)?,
            align: u64_at(bytes, 48)?,
        })
    }
}

/// The bytes of a program header table. The physical address equals the virtual one, as linkers write it.
pub fn program_header_bytes(headers: &[ProgramHeader]) -> Vec<u8> {
    let mut out = Vec::with_capacity(headers.len() * PHDR_LEN);
    for h in headers {
        out.extend(h.kind.to_le_bytes());
        out.extend(h.flags.to_le_bytes());
        let address = h.address.get();
        for field in [h.offset.get(), address, address, h.file_len, h.memory_len, h.align] {
            out.extend(field.to_le_bytes());
        }
    }
    out
}

/// How many bytes there are from the first to the last one that is loaded, by the `beginning` of an ELF64
/// file: nothing else of it was read, and nothing of it is checked.
pub fn stated_span(beginning: &[u8]) -> Option<u64> {
    let ident = [&elf::ELFMAG[..], &[elf::ELFCLASS64, elf::ELFDATA2LSB]].concat();
    let header = FileHeader::read(beginning).filter(|_| beginning.starts_with(&ident))?;
    let table = beginning.get(usize::try_from(header.ph_offset).ok()?..)?;
    let headers = table.chunks_exact(PHDR_LEN).take(header.ph_count.into()).filter_map(ProgramHeader::read);
    let loads = headers.filter(|h| h.kind == elf::PT_LOAD);
    let ranges = loads.map(|h| (h.address.get(), h.address.get().saturating_add(h.memory_len)));
    let all = ranges.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))?;
    Some(all.1 - all.0)
}

/// `Elf64_Shdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SectionHeader {
    /// `sh_name`: where its name is among the names.
    pub name: u32,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// `sh_addr`.
    pub address: u64,
    /// `sh_offset`.
    pub offset: u64,
    /// `sh_size`.
    pub len: u64,
    /// `sh_link`.
    pub link: u32,
    /// `sh_info`.
    pub info: u32,
    /// `sh_addralign`.
    pub align: u64,
    /// `sh_entsize`.
    pub entry_len: u64,
}

impl SectionHeader {
    /// The header at the start of `bytes`.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            name: u32_at(bytes, 0)?,
            kind: u32_at(bytes, 4)?,
            flags: u64_at(bytes, 8)?,
            address: u64_at(bytes, 16)?,
            offset: u64_at(bytes, 24)?,
            len: u64_at(bytes, 32)?,
            link: u32_at(bytes, 40)?,
            info: u32_at(bytes, 44)?,
            align: u64_at(bytes, 48)?,
            entry_len: u64_at(bytes, 56)?,
        })
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.name.to_le_bytes());
        out.extend(self.kind.to_le_bytes());
        for field in [self.flags, self.address, self.offset, self.len] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.link.to_le_bytes());
        out.extend(self.info.to_le_bytes());
        out.extend(self.align.to_le_bytes());
        out.extend(self.entry_len.to_le_bytes());
    }

    /// The section's bytes; none for SHT_NOBITS and for damaged headers.
    pub fn bytes<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        if self.kind == elf::SHT_NOBITS { None } else { slice(data, self.offset, self.len) }
    }
}

/// `Elf64_Rela`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rela {
    /// `r_offset`: the place that it is for.
    pub at: Svma,
    /// The low half of `r_info`: its type.
    pub kind: u32,
    /// The high half of `r_info`: index of a symbol.
    pub symbol: u32,
    /// `r_addend`.
    pub addend: i64,
}

impl Rela {
    /// Where the addend stands in an entry.
    pub const ADDEND: u64 = 16;

    /// The entry at the start of `bytes`.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            at: Svma::new(u64_at(bytes, 0)?),
            kind: u32_at(bytes, 8)?,
            symbol: u32_at(bytes, 12)?,
            addend: i64_at(bytes, Self::ADDEND as usize)?,
        })
    }
}

/// The entries (`Elf64_Dyn`) of a dynamic section, tag and value, all that there is room for: behind the
/// first DT_NULL they mean nothing.
pub fn dynamic_entries(table: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    table.chunks_exact(DYN_LEN).filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)))
}

/// One record of a note section or segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'a> {
    /// Its owner, with the final zero.
    pub name: &'a [u8],
    /// `n_type`.
    pub kind: u32,
    /// What it holds.
    pub value: &'a [u8],
}

/// The records of `notes`, up to the first damaged one. `align` is that of the segment or section: 8, else it
/// counts as 4.
pub fn notes(notes: &[u8], align: u64) -> impl Iterator<Item = Note<'_>> {
    let align = if align == 8 { 8 } else { 4 };
    let mut rest = notes;
    std::iter::from_fn(move || {
        let (name_len, value_len) = (u32_at(rest, 0)? as usize, u32_at(rest, 4)? as usize);
        let value_at = (12 + name_len).next_multiple_of(align);
        let note = Note {
            name: rest.get(12..12 + name_len)?,
            kind: u32_at(rest, 8)?,
            value: rest.get(value_at..value_at + value_len)?,
        };
        rest = rest.get((value_at + value_len).next_multiple_of(align)..).unwrap_or_default();
        Some(note)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        let small = include_bytes!("../../check/tests/data/small.elf");
        let header = FileHeader::read(small).expect("a header");
        let mut again = small.to_vec();
        again[24..64].fill(0);
        again[52..56].copy_from_slice(&small[52..56]);
        again[58..60].copy_from_slice(&small[58..60]);
        again[48..52].copy_from_slice(&small[48..52]);
        header.write(&mut again);
        assert_eq!(again, small);

        let len = SHDR_LEN * usize::from(header.sh_count);
        let table = slice(small, header.sh_offset, len as u64).expect("sections");
        let mut written = Vec::new();
        table.chunks_exact(SHDR_LEN).filter_map(SectionHeader::read).for_each(|s| s.write(&mut written));
        assert_eq!(written, table);

        let len = PHDR_LEN * usize::from(header.ph_count);
        let table = slice(small, header.ph_offset, len as u64).expect("segments");
        let headers: Vec<_> = table.chunks_exact(PHDR_LEN).filter_map(ProgramHeader::read).collect();
        assert_eq!(program_header_bytes(&headers), table);
    }

    #[test]
    fn the_stated_span_is_that_of_the_image() {
        let small = include_bytes!("../../check/tests/data/small.elf");
        let image = crate::Image::parse(small.to_vec()).expect("an image");
        assert_eq!(stated_span(small), Some(image.span().len()));
        assert_eq!(stated_span(&small[..60]), None);
        assert_eq!(stated_span(b""), None);
        for (at, bits) in [(0, 1), (32, 0xff), (39, 0xff), (56, 0xff)] {
            let mut damaged = small.to_vec();
            damaged[at] ^= bits;
            let _ = stated_span(&damaged);
        }
    }
}
