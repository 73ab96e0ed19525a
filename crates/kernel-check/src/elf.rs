//! Relocatable files, as the kernel's loader reads them. A reader of its own: it shares no code with what
//! writes modules.

use crate::finding::Problem;
use crate::kernel::{long, word};

/// Kinds of sections (`sh_type`).
pub(crate) const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const RELA: u32 = 4;
/// Flags of sections (`sh_flags`).
pub(crate) const WRITE: u64 = 1;
pub(crate) const ALLOC: u64 = 2;
pub(crate) const EXECUTE: u64 = 4;
/// Bytes of headers and entries.
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;

/// A section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'f> {
    pub(crate) name: &'f str,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) align: u64,
    pub(crate) data: &'f [u8],
    link: u32,
    info: u32,
}

impl Section<'_> {
    /// Whether the loader keeps it in memory.
    pub(crate) fn is_loaded(&self) -> bool {
        self.flags & ALLOC != 0
    }
}

/// Where a symbol is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    Undefined,
    Absolute,
    Section(usize),
    /// Common storage, live patches, and so on.
    Other,
}

/// A symbol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol<'f> {
    pub(crate) name: &'f str,
    pub(crate) home: Home,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) kind: u8,
    pub(crate) binding: u8,
    /// What else is said of it: who sees it.
    pub(crate) other: u8,
}

/// Kinds of symbols.
pub(crate) const UNTYPED: u8 = 0;
pub(crate) const FUNCTION: u8 = 2;
pub(crate) const OF_SECTION: u8 = 3;
/// Bindings.
pub(crate) const LOCAL: u8 = 0;
pub(crate) const GLOBAL: u8 = 1;

/// A field that the loader fills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relocation {
    pub(crate) at: u64,
    pub(crate) kind: u32,
    pub(crate) symbol: usize,
    pub(crate) plus: u64,
}

/// A file.
#[derive(Debug)]
pub(crate) struct Object<'f> {
    pub(crate) sections: Vec<Section<'f>>,
    pub(crate) symbols: Vec<Symbol<'f>>,
}

impl<'f> Object<'f> {
    pub(crate) fn parse(file: &'f [u8]) -> Result<Self, Problem> {
        check_header(file)?;
        let header = |at| long(file, at).unwrap_or_default();
        let half = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
        let (table, count, names) = (header(40), half(60), half(62));
        if half(58) != SECTION {
            return Err(Problem::File("its sections' headers have another length"));
        }
        let len = count * SECTION;
        let table = piece(file, table, len as u64).ok_or(Problem::File("its table of sections is cut"))?;
        let headers: Vec<&[u8]> = table.chunks_exact(SECTION).collect();
        let names = headers.get(names).ok_or(Problem::File("its names of sections are missing"))?;
        let names = contents(file, names)?;
        let sections = headers.iter().map(|header| section(file, header, names));
        let sections: Vec<Section<'f>> = sections.collect::<Result<_, _>>()?;
        let symbols = symbols(&sections)?;
        Ok(Self { sections, symbols })
    }

    /// The loaded section of this name, and its index.
    pub(crate) fn section(&self, name: &str) -> Option<(usize, &Section<'f>)> {
        self.sections.iter().enumerate().find(|(_, section)| section.is_loaded() && section.name == name)
    }

    /// Sections of relocations, by the index of the section that they are of.
    pub(crate) fn relocated(&self) -> impl Iterator<Item = usize> {
        self.sections.iter().filter(|section| section.kind == RELA).map(|section| section.info as usize)
    }

    /// The fields of the section of this index.
    pub(crate) fn relocations(&self, target: usize) -> impl Iterator<Item = Relocation> {
        let own = self
            .sections
            .iter()
            .filter(move |section| section.kind == RELA && section.info as usize == target);
        own.flat_map(|section| section.data.chunks_exact(RELOCATION)).filter_map(|entry| {
            let info = long(entry, 8)?;
            let (kind, symbol) = (info as u32, (info >> 32) as usize);
            Some(Relocation { at: long(entry, 0)?, kind, symbol, plus: long(entry, 16)? })
        })
    }

    /// Whether the section is one that says what is in the file, under its usual name, and holds nothing of
    /// the module.
    pub(crate) fn is_bookkeeping(&self, section: &Section<'_>) -> bool {
        let target = self.sections.get(section.info as usize);
        let is_named = match section.kind {
            0 => section.name.is_empty(),
            SYMTAB => section.name == ".symtab",
            STRTAB => [".strtab", ".shstrtab"].contains(&section.name),
            RELA => section.name.strip_prefix(".rela") == target.map(|target| target.name),
            _ => false,
        };
        is_named && !section.is_loaded()
    }
}

/// Class, byte order, version; type and processor.
fn check_header(file: &[u8]) -> Result<(), Problem> {
    const MARK: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
    const RELOCATABLE_X86: [u8; 4] = [1, 0, 62, 0];
    if file.len() < HEADER || file[..MARK.len()] != MARK || file[16..20] != RELOCATABLE_X86 {
        return Err(Problem::File("it does not begin as one"));
    }
    Ok(())
}

fn piece(file: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let end = at.checked_add(len)?;
    file.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
}

fn contents<'f>(file: &'f [u8], header: &[u8]) -> Result<&'f [u8], Problem> {
    /// Has no bytes in the file.
    const NOBITS: u32 = 8;
    let number = |at| long(header, at).unwrap_or_default();
    match word(header, 4) {
        Some(0 | NOBITS) => Ok(&[]),
        _ => piece(file, number(24), number(32)).ok_or(Problem::File("a section is cut")),
    }
}

fn section<'f>(file: &'f [u8], header: &[u8], names: &'f [u8]) -> Result<Section<'f>, Problem> {
    let half = |at| word(header, at).unwrap_or_default();
    let number = |at| long(header, at).unwrap_or_default();
    let (kind, data) = (half(4), contents(file, header)?);
    let entry = match kind {
        SYMTAB => SYMBOL,
        RELA => RELOCATION,
        _ => 1,
    };
    if !data.len().is_multiple_of(entry) || (entry > 1 && number(56) != entry as u64) {
        return Err(Problem::File("a table has entries of another length"));
    }
    let (name, flags) = (text(names, half(0))?, number(8));
    Ok(Section { name, kind, flags, align: number(48), data, link: half(40), info: half(44) })
}

/// The text that ends in a zero.
fn text(names: &[u8], at: u32) -> Result<&str, Problem> {
    let name = names.get(at as usize..).and_then(|rest| rest.split(|byte| *byte == 0).next());
    let name = name.and_then(|name| std::str::from_utf8(name).ok());
    name.ok_or(Problem::File("a name is no text"))
}

fn symbols<'f>(sections: &[Section<'f>]) -> Result<Vec<Symbol<'f>>, Problem> {
    let mut tables = sections.iter().filter(|section| section.kind == SYMTAB);
    let (Some(table), None) = (tables.next(), tables.next()) else {
        return Err(Problem::File("it does not have one table of symbols"));
    };
    let names = sections.get(table.link as usize).filter(|names| names.kind == STRTAB);
    let names = names.ok_or(Problem::File("its symbols have no names"))?.data;
    table.data.chunks_exact(SYMBOL).map(|entry| symbol(entry, names, sections.len())).collect()
}

fn symbol<'f>(entry: &[u8], names: &'f [u8], sections: usize) -> Result<Symbol<'f>, Problem> {
    let home = match u16::from_le_bytes([entry[6], entry[7]]) {
        0 => Home::Undefined,
        0xfff1 => Home::Absolute,
        index if usize::from(index) < sections => Home::Section(index.into()),
        _ => Home::Other,
    };
    let number = |at| long(entry, at).unwrap_or_default();
    Ok(Symbol {
        name: text(names, word(entry, 0).unwrap_or_default())?,
        home,
        value: number(8),
        size: number(16),
        kind: entry[4] & 0xf,
        binding: entry[4] >> 4,
        other: entry[5],
    })
}
