//! Section headers, symbols and names of the output: all unloaded, at the end of the file.
//!
//! The old table is copied and extended at its end, so that no index changes. Tables that grow (symbols,
//! names) are written anew; the old ones stay in the file, unused, so that the input can be restored. A file
//! without section headers gets none: tools would take a few sections for the whole file.

use crate::error::ElfError;
use crate::grow::Growth;
use crate::segment::{NewSegment, Part};
use object::elf;
use restitch_address::{FileOffset, PAGE, SvmaRange};
use restitch_emit::{Version, VersionSymbol, copied_probes};
use restitch_image::Image;
use restitch_image::raw::{self, FileHeader, SYM_LEN, SectionHeader};
use std::collections::BTreeMap;

/// Name of the version's code section.
pub(crate) const TEXT_SECTION: &str = ".text.restitch";
const STATIC_PROBES: &str = ".note.stapsdt";
/// Old sections that have a successor, and what they are called afterwards.
const RENAMED: [(&str, &str); 2] = [(".eh_frame", ".eh_frame.orig"), (".eh_frame_hdr", ".eh_frame_hdr.orig")];

/// The unloaded end of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tail {
    /// Bytes that follow the new segment.
    pub bytes: Vec<u8>,
    /// The section fields of the ELF header; `None` leaves them as they are.
    pub table: Option<(u64, u16, u16)>,
}

/// Writes the sections for a file that ends, before them, with `segment`.
pub(crate) fn build(
    image: &Image,
    segment: &NewSegment,
    version: &Version,
    moved: Option<(&Growth, &[SvmaRange])>,
    counters: Option<SvmaRange>,
) -> Result<Tail, ElfError> {
    if image.sections().is_empty() {
        return Ok(Tail::default());
    }
    let mut table = Table::read(image)?;
    table.rename_replaced(image, &segment.parts);
    if let Some((growth, places)) = moved {
        table.follow(growth, places, segment);
    }
    if let Some(counters) = counters {
        table.add_counters(image, counters);
    }
    let text = table.add_parts(segment);
    let text = u16::try_from(text).map_err(|_| ElfError::TooManySections(text))?;
    table.add_symbols(image, &version.symbols, text)?;
    table.add_probes(image, version);
    table.finish(segment)
}

struct Table<'a> {
    data: &'a [u8],
    headers: Vec<SectionHeader>,
    names_index: usize,
    /// Contents of the sections that are written anew, by index.
    contents: BTreeMap<usize, Vec<u8>>,
}

impl<'a> Table<'a> {
    fn read(image: &'a Image) -> Result<Self, ElfError> {
        let data = image.data();
        let malformed = || ElfError::Malformed { what: "its section headers cannot be read" };
        let header = FileHeader::read(data).ok_or_else(malformed)?;
        let count = image.sections().len();
        let raw = raw::slice(data, header.sh_offset, (count * raw::SHDR_LEN) as u64).ok_or_else(malformed)?;
        let headers: Vec<_> = raw.chunks_exact(raw::SHDR_LEN).filter_map(SectionHeader::read).collect();
        // Room for eight more, below the reserved indices.
        if count + 8 >= usize::from(elf::SHN_LORESERVE) {
            return Err(ElfError::TooManySections(count));
        }
        let names_index = usize::from(header.sh_names);
        if headers.get(names_index).is_none_or(|s| s.kind != elf::SHT_STRTAB) {
            return Err(malformed());
        }
        Ok(Self { data, headers, names_index, contents: BTreeMap::new() })
    }

    /// The contents of section `index`, to be changed.
    fn contents(&mut self, index: usize) -> &mut Vec<u8> {
        let (data, header) = (self.data, self.headers.get(index));
        let old = || header.and_then(|h| h.bytes(data)).unwrap_or_default().to_vec();
        self.contents.entry(index).or_insert_with(old)
    }

    /// Adds a string to the string table `index`; its offset.
    fn add_string(&mut self, index: usize, text: &str) -> u32 {
        let strings = self.contents(index);
        if strings.last() != Some(&0) {
            strings.push(0);
        }
        let at = strings.len() as u32;
        strings.extend(text.as_bytes().iter().filter(|b| **b != 0));
        strings.push(0);
        at
    }

    fn add_section(&mut self, name: &str, header: SectionHeader) -> usize {
        let name = self.add_string(self.names_index, name);
        self.headers.push(SectionHeader { name, ..header });
        self.headers.len() - 1
    }

    /// Renames the sections whose names go to new ones.
    fn rename_replaced(&mut self, image: &Image, parts: &[Part]) {
        for (index, section) in image.sections().iter().enumerate() {
            let replaced = RENAMED.iter().find(|(name, _)| section.name == *name && section.is_loaded());
            if let Some((name, old_name)) = replaced
                && parts.iter().any(|p| p.name == *name)
            {
                self.headers[index].name = self.add_string(self.names_index, old_name);
            }
        }
    }

    /// Follows what has moved so that the program header table could grow.
    fn follow(&mut self, growth: &Growth, places: &[SvmaRange], segment: &NewSegment) {
        for header in self.headers.iter_mut().filter(|h| h.kind != elf::SHT_NOBITS) {
            if growth.shifts(FileOffset::new(header.offset)) {
                header.address += Growth::BY;
                header.offset += Growth::BY;
            }
        }
        for (table, place) in growth.tables.iter().zip(places) {
            let header = &mut self.headers[table.section];
            header.address = place.start.get();
            header.offset = segment.offset_of(place.start).get();
        }
    }

    /// Adds the counters at the end of the last segment, so that `strip` leaves it as long in memory as it
    /// is.
    fn add_counters(&mut self, image: &Image, counters: SvmaRange) {
        let data_end = image.segments().last().map_or(0, |s| s.file_offset.get() + s.file_len);
        self.add_section(
            ".bss.restitch",
            SectionHeader {
                kind: elf::SHT_NOBITS,
                flags: (elf::SHF_ALLOC | elf::SHF_WRITE).into(),
                address: counters.start.get(),
                offset: data_end,
                len: counters.len(),
                align: PAGE,
                ..SectionHeader::default()
            },
        );
    }

    /// Adds the sections of the new segment; the index of the code.
    fn add_parts(&mut self, segment: &NewSegment) -> usize {
        let mut text = 0;
        for part in &segment.parts {
            let execute = if part.executable { elf::SHF_EXECINSTR } else { 0 };
            let index = self.add_section(
                part.name,
                SectionHeader {
                    kind: part.kind,
                    flags: (elf::SHF_ALLOC | execute).into(),
                    address: part.range.start.get(),
                    offset: segment.offset_of(part.range.start).get(),
                    len: part.range.len(),
                    align: part.align,
                    ..SectionHeader::default()
                },
            );
            if part.name == TEXT_SECTION {
                text = index;
            }
        }
        text
    }

    /// Adds the version's symbols, to the symbol table if there is one.
    fn add_symbols(&mut self, image: &Image, symbols: &[VersionSymbol], text: u16) -> Result<(), ElfError> {
        let known = image.sections().iter().position(|s| s.kind == elf::SHT_SYMTAB);
        let index = match known {
            Some(index) => index,
            None => self.new_symbol_table(),
        };
        let has_extended_indices = image.sections().iter().any(|s| s.kind == elf::SHT_SYMTAB_SHNDX);
        let header = self.headers[index];
        let strings = header.link as usize;
        if has_extended_indices || self.headers.get(strings).is_none_or(|s| s.kind != elf::SHT_STRTAB) {
            return Ok(());
        }
        // Local symbols come first. Where other sections refer to symbols by number, the numbers have to
        // stay.
        let numbered = image.sections().iter().any(|s| {
            matches!(s.kind, elf::SHT_REL | elf::SHT_RELA | elf::SHT_GROUP) && s.link as usize == index
        });
        let binding = if numbered { elf::STB_GLOBAL } else { elf::STB_LOCAL };
        let mut entries = Vec::with_capacity(symbols.len() * SYM_LEN);
        for symbol in symbols {
            entries.extend(self.add_string(strings, &symbol.name).to_le_bytes());
            entries.extend([(binding << 4) | elf::STT_FUNC, elf::STV_DEFAULT]);
            entries.extend(text.to_le_bytes());
            entries.extend(symbol.range.start.get().to_le_bytes());
            entries.extend(symbol.range.len().to_le_bytes());
        }
        let table = self.contents(index);
        let locals = header.info as usize * SYM_LEN;
        if !table.len().is_multiple_of(SYM_LEN) || locals > table.len() {
            return Err(ElfError::Malformed { what: "its symbol table is damaged" });
        }
        let at = if numbered { table.len() } else { locals };
        table.splice(at..at, entries);
        if !numbered {
            self.headers[index].info += symbols.len() as u32;
        }
        Ok(())
    }

    /// Adds notes for the copies of static probes.
    fn add_probes(&mut self, image: &Image, version: &Version) {
        let copies = copied_probes(image, &version.map);
        let known = image.sections().iter().position(|s| s.name == STATIC_PROBES && !s.is_loaded());
        if let Some(index) = known.filter(|_| !copies.is_empty()) {
            let notes = self.contents(index);
            notes.resize(notes.len().next_multiple_of(4), 0);
            notes.extend(copies.iter().flat_map(|(at, probe)| probe.note_at(*at)));
        }
    }

    /// An empty `.symtab` and its `.strtab`.
    fn new_symbol_table(&mut self) -> usize {
        let plain = |kind, align| SectionHeader { kind, align, ..SectionHeader::default() };
        let strings = self.add_section(".strtab", plain(elf::SHT_STRTAB, 1));
        self.contents.insert(strings, vec![0]);
        let table = SectionHeader {
            link: strings as u32,
            info: 1,
            entry_len: SYM_LEN as u64,
            ..plain(elf::SHT_SYMTAB, 8)
        };
        let table = self.add_section(".symtab", table);
        self.contents.insert(table, vec![0; SYM_LEN]);
        table
    }

    /// Lays out what is written anew, and the table behind it.
    fn finish(mut self, segment: &NewSegment) -> Result<Tail, ElfError> {
        let mut bytes = Vec::new();
        let start = segment.file_offset.get() + segment.bytes.len() as u64;
        let lead = start.next_multiple_of(8) - start;
        bytes.resize(lead as usize, 0);
        for (index, contents) in &self.contents {
            bytes.resize(bytes.len() + ((lead as usize).wrapping_sub(bytes.len()) & 7), 0);
            let header = &mut self.headers[*index];
            header.offset = start + bytes.len() as u64;
            header.len = contents.len() as u64;
            bytes.extend(contents);
        }
        bytes.resize(bytes.len() + ((lead as usize).wrapping_sub(bytes.len()) & 7), 0);
        let offset = start + bytes.len() as u64;
        let count = self.headers.len();
        let too_many = |_| ElfError::TooManySections(count);
        for header in &self.headers {
            header.write(&mut bytes);
        }
        let names = u16::try_from(self.names_index).map_err(too_many)?;
        Ok(Tail { bytes, table: Some((offset, u16::try_from(count).map_err(too_many)?, names)) })
    }
}
