//! The build id: the key under which profiles of a module are kept.

use crate::bytes::slice;
use crate::raw::{Note, ProgramHeader, notes};
use crate::section::Section;
use object::elf;
use sha2::{Digest, Sha256};
use std::fmt;

/// The GNU build id: bytes that differ between any two builds. Its text form is lower-case hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Box<[u8]>);

impl BuildId {
    /// A build id of these bytes (as the kernel or a profile gives them).
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
    /// The bytes; 20 of them in most files.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
    /// The build id that `hex` spells, if it is an even number of hexadecimal digits and not empty.
    pub fn from_hex(hex: &str) -> Option<Self> {
        if hex.is_empty() || !hex.len().is_multiple_of(2) || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).ok();
        (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<_>>>().map(|b| Self(b.into()))
    }
}

/// What stands for a build id where there is none: this word and the SHA-256 of the whole file.
const OF_CONTENT: &[u8; 8] = b"restitch";
/// Longest build id that is taken for one, in bytes (SHA-512 has as many).
const LONGEST: usize = 64;

impl BuildId {
    /// The identity of a file without a build id: that of all its bytes.
    pub(crate) fn of_content(data: &[u8]) -> Self {
        Self([&OF_CONTENT[..], &Sha256::digest(data)[..]].concat().into())
    }

    /// Whether it can stand in file names, as it is.
    pub(crate) fn is_usable(&self) -> bool {
        (1..=LONGEST).contains(&self.0.len())
    }

    /// Whether it was made from the content of a file that has none of its own: nothing in a process's memory
    /// says so.
    pub fn is_of_content(&self) -> bool {
        self.0.len() == OF_CONTENT.len() + 32 && self.0.starts_with(OF_CONTENT)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

pub(crate) fn build_id(data: &[u8], headers: &[ProgramHeader], sections: &[Section]) -> Option<BuildId> {
    lists(data, headers, sections).find_map(|(notes, align)| find(notes, align))
}

/// Names of the owners of all notes, with their final zeros.
pub(crate) fn names<'a>(
    data: &'a [u8],
    headers: &'a [ProgramHeader],
    sections: &'a [Section],
) -> Vec<&'a [u8]> {
    let all = lists(data, headers, sections).flat_map(|(list, align)| notes(list, align));
    all.map(|note| note.name).collect()
}

/// The file's lists of notes, each with the alignment of its entries.
fn lists<'a>(
    data: &'a [u8],
    headers: &'a [ProgramHeader],
    sections: &'a [Section],
) -> impl Iterator<Item = (&'a [u8], u64)> {
    let in_segments = headers
        .iter()
        .filter(|p| p.kind == elf::PT_NOTE)
        .filter_map(move |p| Some((slice(data, p.offset.get(), p.file_len)?, p.align)));
    let in_sections = sections.iter().filter(|s| s.kind == elf::SHT_NOTE).map(move |s| (s.bytes(data), 4));
    in_segments.chain(in_sections)
}

fn find(list: &[u8], align: u64) -> Option<BuildId> {
    let is_build_id =
        |n: &Note<'_>| n.kind == elf::NT_GNU_BUILD_ID && n.name == b"GNU\0" && !n.value.is_empty();
    notes(list, align).find(is_build_id).map(|note| BuildId::new(note.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let id = BuildId::new(&[0, 0xff, 0x1a]);
        assert_eq!(id.to_string(), "00ff1a");
        assert_eq!(BuildId::from_hex("00FF1a"), Some(id));
        for bad in ["", "0", "0g", "+1", "\u{e9}\u{e9}"] {
            assert_eq!(BuildId::from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn other_notes_are_passed_over() {
        let note = |kind: u32, name: &[u8; 4], value: &[u8]| {
            let mut n = [4u32, value.len() as u32, kind].map(u32::to_le_bytes).concat();
            n.extend_from_slice(name);
            n.extend_from_slice(value);
            n.resize(n.len().next_multiple_of(4), 0);
            n
        };
        let notes =
            [note(1, b"GNU\0", b"12345"), note(3, b"XYZ\0", b"no"), note(3, b"GNU\0", b"yes")].concat();
        assert_eq!(find(&notes, 4), Some(BuildId::new(b"yes")));
        assert_eq!(find(&notes[..notes.len() - 4], 4), None);
    }
}
