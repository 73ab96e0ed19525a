//! Numbers and headers in ELF bytes (little endian). Reads never panic.

use object::elf;
use restitch_image::ProgramHeader;

/// Size of `Elf64_Ehdr`.
pub(crate) const EHDR_LEN: usize = 64;
/// Size of `Elf64_Phdr`.
pub(crate) const PHDR_LEN: usize = 56;
/// Size of `Elf64_Shdr`.
pub(crate) const SHDR_LEN: usize = 64;
/// Size of `Elf64_Sym`.
pub(crate) const SYM_LEN: usize = 24;

fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}
pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array(data, at).map(u16::from_le_bytes)
}
pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    array(data, at).map(u32::from_le_bytes)
}
pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    array(data, at).map(u64::from_le_bytes)
}
/// `len` bytes at `at`, if all are there.
pub(crate) fn slice(data: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let from = usize::try_from(at).ok()?;
    let to = usize::try_from(at.checked_add(len)?).ok()?;
    data.get(from..to)
}
/// Appends zeros until the length is a multiple of `align`.
pub(crate) fn pad(bytes: &mut Vec<u8>, align: usize) {
    bytes.resize(bytes.len().next_multiple_of(align), 0);
}

/// Fields of `Elf64_Ehdr` that change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub entry: u64,
    pub ph_offset: u64,
    pub ph_count: u16,
    pub sh_offset: u64,
    pub sh_count: u16,
    pub sh_names: u16,
}

impl FileHeader {
    pub fn read(data: &[u8]) -> Option<Self> {
        Some(Self {
            entry: u64_at(data, 24)?,
            ph_offset: u64_at(data, 32)?,
            ph_count: u16_at(data, 56)?,
            sh_offset: u64_at(data, 40)?,
            sh_count: u16_at(data, 60)?,
            sh_names: u16_at(data, 62)?,
        })
    }
    /// Writes the fields into the header at the start of `data`, which holds at least [`EHDR_LEN`] bytes.
    pub fn write(&self, data: &mut [u8]) {
        data[24..32].copy_from_slice(&self.entry.to_le_bytes());
        data[32..40].copy_from_slice(&self.ph_offset.to_le_bytes());
        data[40..48].copy_from_slice(&self.sh_offset.to_le_bytes());
        data[56..58].copy_from_slice(&self.ph_count.to_le_bytes());
        data[60..62].copy_from_slice(&self.sh_count.to_le_bytes());
        data[62..64].copy_from_slice(&self.sh_names.to_le_bytes());
    }
}

/// The bytes of a program header table. The physical address equals the virtual one, as linkers write it.
pub(crate) fn program_header_bytes(headers: &[ProgramHeader]) -> Vec<u8> {
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

/// `Elf64_Shdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SectionHeader {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub len: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry_len: u64,
}

impl SectionHeader {
    pub fn read(s: &[u8]) -> Option<Self> {
        Some(Self {
            name: u32_at(s, 0)?,
            kind: u32_at(s, 4)?,
            flags: u64_at(s, 8)?,
            address: u64_at(s, 16)?,
            offset: u64_at(s, 24)?,
            len: u64_at(s, 32)?,
            link: u32_at(s, 40)?,
            info: u32_at(s, 44)?,
            align: u64_at(s, 48)?,
            entry_len: u64_at(s, 56)?,
        })
    }
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

/// One record of a note section or segment.
pub(crate) struct Note<'a> {
    pub name: &'a [u8],
    pub kind: u32,
    pub value: &'a [u8],
}

/// The records of `notes`, up to the first damaged one. `align` is that of the segment or section: 8, else it
/// counts as 4.
pub(crate) fn notes(notes: &[u8], align: u64) -> impl Iterator<Item = Note<'_>> {
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
