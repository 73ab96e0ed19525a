//! What stands in a file behind everything that its headers describe.
//!
//! **Problem.** Programs carry data behind their own end: AppImages a file system, `deno compile`, pkg and
//! PyInstaller a program, self-extracting archives an archive. They find it from the end of the file, from
//! where the section headers end, or at offsets that were written down when it was appended. An added segment
//! moves the first two, and data that moves along with the end loses the third. No place is right for all of
//! them, and a file does not say which of them it is.
//!
//! **Idea.** Such a file is refused by name; its processes can be optimized. Zeros alone are padding, as some
//! tools leave it.

use object::elf;
use restitch_image::Image;
use restitch_image::raw::{self, EHDR_LEN, FileHeader, PHDR_LEN, SHDR_LEN};
use std::fmt;

/// How far from the end trailers are looked for: a zip archive's last record is the longest, 22 bytes and a
/// comment.
const TRAILER: usize = 22 + u16::MAX as usize;

/// Marks that the data begin with, and what they are then.
const LEADING: [(usize, &[u8], &str); 11] = [
    (0, b"hsqs", "a squashfs file system, as AppImages have it"),
    (0, b"DWARFS", "a DwarFS file system, as AppImages have it"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"\xfd7zXZ", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x7fELF", "another ELF file"),
    (257, b"ustar", "a tar archive"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
];

/// Marks near the file's end, and what it is then.
const TRAILING: [(&[u8], &str); 6] = [
    (b"MEI\x0c\x0b\x0a\x0b\x0e", "a PyInstaller archive"),
    (b"d3n0l4nd", "a program of deno compile"),
    (b"---- Bun! ----", "a program of bun build --compile"),
    (b"<nexe~~sentinel>", "a program of nexe"),
    (b"~Module signature appended~\n", "a signature"),
    (b"PK\x05\x06", "a zip archive"),
];

/// Data behind the part of a file that its headers describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Where they begin in the file.
    pub offset: u64,
    /// Bytes to the end of the file.
    pub len: u64,
    /// What they look like, in words that follow "which looks like".
    pub looks_like: Option<&'static str>,
}

impl fmt::Display for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes behind the end that its headers give it, from offset {} on",
            self.len, self.offset
        )?;
        self.looks_like.map_or(Ok(()), |what| write!(f, " (it looks like {what})"))
    }
}

/// The data behind the part of the file that its headers describe, if there are any but zeros.
pub fn appended(image: &Image) -> Option<Appended> {
    let offset = described(image).min(image.data().len() as u64);
    let data = &image.data()[offset as usize..];
    let is_padding = data.iter().all(|byte| *byte == 0);
    (!is_padding).then(|| Appended { offset, len: data.len() as u64, looks_like: looks_like(data) })
}

/// Where the last thing ends that a header describes: the headers themselves, a segment, a section. What
/// would not lie in the file is none.
fn described(image: &Image) -> u64 {
    let header = FileHeader::read(image.data());
    let programs = image.program_headers().len() * PHDR_LEN;
    let sections = image.sections().len().max(header.map_or(0, |h| h.sh_count.into())) * SHDR_LEN;
    let tables = header.map(|h| [(h.ph_offset, programs as u64), (h.sh_offset, sections as u64)]);
    let segments = image.program_headers().iter().map(|h| (h.offset.get(), h.file_len));
    let in_file = image.sections().iter().filter(|s| !matches!(s.kind, elf::SHT_NULL | elf::SHT_NOBITS));
    let all = in_file.map(|s| (s.file_offset.get(), s.range.len())).chain(segments);
    let all = all.chain(tables.into_iter().flatten()).filter(|(_, len)| *len != 0);
    let ends = all.filter_map(|(offset, len)| offset.checked_add(len));
    let len = image.data().len() as u64;
    ends.filter(|end| *end <= len).max().unwrap_or(0).max(EHDR_LEN as u64)
}

fn looks_like(data: &[u8]) -> Option<&'static str> {
    let leading =
        LEADING.iter().find(|(at, mark, _)| raw::slice(data, *at as u64, mark.len() as u64) == Some(mark));
    let tail = &data[data.len().saturating_sub(TRAILER)..];
    let holds = |mark: &[u8]| tail.windows(mark.len()).any(|w| w == mark);
    let trailing = || TRAILING.iter().find(|(mark, _)| holds(mark)).map(|(_, what)| *what);
    leading.map(|(_, _, what)| *what).or_else(trailing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kinds_are_named() {
        let mut tar = vec![0; 300];
        tar[257..262].copy_from_slice(b"ustar");
        let mut long = b"hsqs".to_vec();
        long.extend(vec![7; 200_000]);
        let behind = |mark: &[u8]| [&[9; 100_000][..], mark, &[1; 80]].concat();
        for (data, words) in [
            (tar, "tar"),
            (long, "squashfs"),
            (behind(b"MEI\x0c\x0b\x0a\x0b\x0e"), "PyInstaller"),
            (behind(b"d3n0l4nd"), "deno"),
            (behind(b"PK\x05\x06"), "zip"),
            (behind(b"~Module signature appended~\n"), "signature"),
        ] {
            assert!(looks_like(&data).is_some_and(|what| what.contains(words)), "{words}");
        }
        assert_eq!(looks_like(b"x"), None);
        assert_eq!(looks_like(&[]), None);
    }
}
