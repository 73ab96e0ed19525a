//! The bytes of the new segment while they are put together.

use restitch_address::{FileOffset, Svma, SvmaRange};

/// What a part of the segment becomes in the section headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub name: &'static str,
    pub range: SvmaRange,
    pub kind: u32,
    pub executable: bool,
    pub align: u64,
}

/// The new read-execute segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewSegment {
    pub start: Svma,
    pub file_offset: FileOffset,
    /// To which address and offset are congruent.
    pub align: u64,
    pub bytes: Vec<u8>,
    pub parts: Vec<Part>,
}

impl NewSegment {
    /// The address of the next byte, after padding to `align`.
    pub fn aligned_end(&mut self, align: u64) -> Svma {
        pad(&mut self.bytes, align as usize);
        self.start + self.bytes.len() as u64
    }
    /// Puts `bytes` in place of the version's own ELF headers, which nothing reads here, if there is room
    /// before the first part. Notes belong there: `objcopy --only-keep-debug` keeps nothing behind what it
    /// drops.
    pub fn put_first(&mut self, bytes: &[u8]) -> Option<SvmaRange> {
        let room = self.parts.iter().map(|p| p.range.start.offset_from(self.start) as usize).min()?;
        if bytes.len() > room {
            return None;
        }
        let head = self.bytes.get_mut(..room)?;
        head.fill(0);
        head[..bytes.len()].copy_from_slice(bytes);
        Some(SvmaRange::new(self.start, bytes.len() as u64))
    }
    /// Appends `bytes`; where they are.
    pub fn append(&mut self, bytes: &[u8]) -> SvmaRange {
        let at = self.start + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        SvmaRange::new(at, bytes.len() as u64)
    }
    /// All addresses of the segment.
    pub fn range(&self) -> SvmaRange {
        SvmaRange::new(self.start, self.bytes.len() as u64)
    }
    /// Where the byte at `at`, an address in the segment, is in the file.
    pub fn offset_of(&self, at: Svma) -> FileOffset {
        self.file_offset + (at.get() - self.start.get())
    }
    /// Names `range`, which is code, for the section headers.
    pub fn name_executable(&mut self, name: &'static str, range: SvmaRange, align: u64) {
        let kind = object::elf::SHT_PROGBITS;
        self.parts.push(Part { name, range, kind, executable: true, align });
    }
    /// Names `range` for the section headers, if it is not empty.
    pub fn name_part(&mut self, name: &'static str, range: SvmaRange, kind: u32, align: u64) {
        if !range.is_empty() {
            self.parts.push(Part { name, range, kind, executable: false, align });
        }
    }
}

/// Appends zeros until the length is a multiple of `align`.
pub(crate) fn pad(bytes: &mut Vec<u8>, align: usize) {
    bytes.resize(bytes.len().next_multiple_of(align), 0);
}
