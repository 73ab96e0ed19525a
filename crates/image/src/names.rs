//! Names and constants, as marks of what a file was made by.

use crate::dynamic::{RawSymbol, SYMBOL_LEN};
use crate::section::Section;
use crate::view::View;
use object::elf;

/// A name in a symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameInTable<'a> {
    /// Its bytes, as the file has them.
    pub text: &'a [u8],
    /// Whether this file defines it.
    pub is_defined: bool,
}

/// The names in the SHT_SYMTAB section.
pub(crate) fn in_sections<'a>(
    data: &'a [u8],
    sections: &'a [Section],
) -> impl Iterator<Item = NameInTable<'a>> {
    let table = sections.iter().find(|s| s.kind == elf::SHT_SYMTAB);
    let strings =
        table.and_then(|t| sections.get(t.link as usize)).map(|s| s.bytes(data)).unwrap_or_default();
    let entries = table.map(|t| t.bytes(data)).unwrap_or_default().chunks_exact(SYMBOL_LEN);
    entries.filter_map(move |entry| {
        let (at, raw) = RawSymbol::parse(entry)?;
        let text = strings.get(at as usize..)?.split(|&byte| byte == 0).next()?;
        Some(NameInTable { text, is_defined: raw.section != elf::SHN_UNDEF })
    })
}

/// The loaded bytes that nobody writes, code aside; of a file without section headers, those of all segments
/// that are not writable.
pub(crate) fn constants<'a>(view: View<'a>, sections: &[Section]) -> Vec<&'a [u8]> {
    let is_writable = |s: &Section| s.flags & u64::from(elf::SHF_WRITE) != 0;
    let constant = |s: &&Section| s.is_loaded() && !s.is_code() && !is_writable(s);
    let found: Vec<&[u8]> = sections.iter().filter(constant).map(|s| s.bytes(view.data)).collect();
    if !found.is_empty() {
        return found;
    }
    let constant = view.segments.iter().filter(|s| !s.writable);
    constant.filter_map(|s| view.tail(s.range.start)).collect()
}
