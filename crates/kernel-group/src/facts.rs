//! What any module file of a kernel says about modules of that kernel.

use crate::error::{Fault, GroupError};
use object::elf::{FileHeader64, Rela64, SHN_LORESERVE, SHT_RELA, STT_SECTION, SectionHeader64};
use object::read::elf::{
    FileHeader as _, Rela as _, SectionHeader as _, SectionTable, Sym as _, SymbolTable,
};
use object::{LittleEndian, SectionIndex};
use std::collections::BTreeMap;

type Header = FileHeader64<LittleEndian>;
type Sections<'a> = SectionTable<'a, Header>;
type Symbols<'a> = SymbolTable<'a, Header>;

/// Where the module's own structure is in its file.
const STRUCTURE: &str = ".gnu.linkonce.this_module";

/// Facts about modules of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleFacts {
    /// What a module has to say to be taken.
    pub vermagic: String,
    /// The module's own name.
    pub name: String,
    /// Bytes of the kernel's `struct module`.
    pub structure_len: u64,
    /// Its alignment.
    pub structure_align: u64,
    /// Offsets in it: of the name, and of the pointers to what is called first and last.
    pub name_at: u64,
    /// See [`Self::name_at`].
    pub init_at: u64,
    /// See [`Self::name_at`].
    pub exit_at: u64,
    /// Whether sites of the function tracer are calls in module files, which the loader rewrites.
    pub traces_are_calls: bool,
    /// Whether module files list their calls.
    pub lists_calls: bool,
    /// Whether compilers make branches through registers go through thunks.
    pub has_retpolines: bool,
    /// Checksums of symbols that it uses, and of those that it exports; empty on kernels without them.
    pub versions: BTreeMap<String, u64>,
}

impl ModuleFacts {
    /// Reads a module file, uncompressed.
    ///
    /// # Errors
    /// If it is none, or does not say what is needed.
    pub fn read(file_name: &str, file: &[u8]) -> Result<Self, GroupError> {
        facts(file).map_err(|fault| fault.of(file_name))
    }

    /// The facts about modules, of this one, with the checksums of both: those of the control module belong
    /// to the symbols that groups use.
    pub fn with_versions_of(mut self, other: &Self) -> Self {
        self.versions.extend(other.versions.iter().map(|(name, sum)| (name.clone(), *sum)));
        self
    }

    /// Whether this kernel compares checksums of symbols.
    pub fn has_versions(&self) -> bool {
        !self.versions.is_empty()
    }
}

fn facts(file: &[u8]) -> Result<ModuleFacts, Fault> {
    let header = Header::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let symbols = sections.symbols(endian, file, object::elf::SHT_SYMTAB)?;
    let source = Source { file, endian, sections, symbols };
    let info = source.info()?;
    let value = |key: &str| info.get(key).cloned().ok_or_else(|| format!("has no {key} in .modinfo"));
    let name = value("name")?;
    let (index, structure) = source.section(STRUCTURE).ok_or_else(|| format!("has no {STRUCTURE}"))?;
    let name_at = source.place_of(structure, &name).ok_or("does not hold its name where it should be")?;
    let pointers = source.pointers(index)?;
    let pointer = |symbol: &str, section: &str| {
        let at = [symbol, section].iter().find_map(|name| pointers.get(*name));
        at.copied().ok_or_else(|| format!("has no {symbol}, or not in {STRUCTURE}"))
    };
    Ok(ModuleFacts {
        vermagic: value("vermagic")?,
        structure_len: structure.sh_size(endian),
        structure_align: structure.sh_addralign(endian),
        name_at,
        init_at: pointer("init_module", ".init.text")?,
        exit_at: pointer("cleanup_module", ".exit.text")?,
        traces_are_calls: source.relocates_by("__fentry__"),
        lists_calls: source.section(".call_sites").is_some(),
        has_retpolines: info.contains_key("retpoline"),
        versions: source.versions()?,
        name,
    })
}

/// A relocation that does nothing, for any processor.
const FILLS_NOTHING: u32 = 0;

/// A module file.
struct Source<'a> {
    file: &'a [u8],
    endian: LittleEndian,
    sections: Sections<'a>,
    symbols: Symbols<'a>,
}

impl<'a> Source<'a> {
    fn section(&self, name: &str) -> Option<(SectionIndex, &'a SectionHeader64<LittleEndian>)> {
        self.sections.section_by_name(self.endian, name.as_bytes())
    }

    fn data(&self, name: &str) -> Option<&'a [u8]> {
        self.section(name)?.1.data(self.endian, self.file).ok()
    }

    /// The lines `key=value`.
    fn info(&self) -> Result<BTreeMap<String, String>, Fault> {
        let text = self.data(".modinfo").ok_or("has no .modinfo")?;
        let lines = text.split(|byte| *byte == 0).filter_map(|line| std::str::from_utf8(line).ok());
        Ok(lines.filter_map(|line| line.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect())
    }

    fn place_of(&self, section: &SectionHeader64<LittleEndian>, name: &str) -> Option<u64> {
        let data = section.data(self.endian, self.file).ok()?;
        let text = [name.as_bytes(), &[0]].concat();
        data.windows(text.len()).position(|window| window == text).map(|at| at as u64)
    }

    /// Names of symbols, or of sections, whose addresses relocations write into the section, and where.
    fn pointers(&self, section: SectionIndex) -> Result<BTreeMap<String, u64>, Fault> {
        let mut out = BTreeMap::new();
        for header in self.sections.iter().filter(|header| header.sh_type(self.endian) == SHT_RELA) {
            if header.info_link(self.endian) != section {
                continue;
            }
            let relocations = header.rela(self.endian, self.file)?;
            let relocations = relocations.map_or(&[][..], |(relocations, _)| relocations);
            out.extend(relocations.iter().filter_map(|relocation| self.pointer(relocation)));
        }
        Ok(out)
    }

    fn pointer(&self, relocation: &Rela64<LittleEndian>) -> Option<(String, u64)> {
        let symbol = self.symbols.symbol(relocation.symbol(self.endian, false)?).ok()?;
        let name = if symbol.st_type() == STT_SECTION {
            let index = SectionIndex(symbol.st_shndx(self.endian).into());
            self.sections.section_name(self.endian, self.sections.section(index).ok()?).ok()?
        } else {
            self.symbols.symbol_name(self.endian, symbol).ok()?
        };
        Some((String::from_utf8(name.into()).ok()?, relocation.r_offset(self.endian)))
    }

    /// Whether a field is filled by the symbol of that name. (objtool makes `nop`s of calls of `__fentry__`,
    /// and leaves their relocations as such that do nothing.)
    fn relocates_by(&self, name: &str) -> bool {
        let sections = self.sections.iter().filter_map(|header| header.rela(self.endian, self.file).ok()?);
        let is_it = |relocation: &Rela64<LittleEndian>| {
            let symbol = relocation.symbol(self.endian, false)?;
            let symbol = self.symbols.symbol(symbol).ok()?;
            let is_named = self.symbols.symbol_name(self.endian, symbol).ok()? == name.as_bytes();
            Some(is_named && relocation.r_type(self.endian, false) != FILLS_NOTHING)
        };
        sections.flat_map(|(relocations, _)| relocations).any(|each| is_it(each) == Some(true))
    }

    /// Checksums of symbols: of those that it uses, by its table; of those that it exports, by the symbols
    /// `__crc_NAME`.
    fn versions(&self) -> Result<BTreeMap<String, u64>, Fault> {
        let entries = self.data("__versions").unwrap_or_default().chunks_exact(Version::LEN);
        let mut versions: BTreeMap<String, u64> = entries.filter_map(Version::read).collect();
        for symbol in self.symbols.iter() {
            let name = self.symbols.symbol_name(self.endian, symbol).unwrap_or_default();
            let name = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix("__crc_"));
            let Some(name) = name else { continue };
            versions.extend(self.checksum(symbol).map(|sum| (name.to_owned(), sum)));
        }
        Ok(versions)
    }

    /// The word at a symbol, or the symbol's own value where it is an absolute one.
    fn checksum(&self, symbol: &<Header as object::read::elf::FileHeader>::Sym) -> Option<u64> {
        let (index, value) = (symbol.st_shndx(self.endian), symbol.st_value(self.endian));
        if index >= SHN_LORESERVE {
            return Some(value);
        }
        let section = self.sections.section(SectionIndex(index.into())).ok()?;
        let data = section.data(self.endian, self.file).ok()?;
        let word = data.get(value as usize..)?.first_chunk()?;
        Some(u32::from_le_bytes(*word).into())
    }
}

/// An entry of `__versions`: a checksum of 8 bytes and a name.
pub(crate) struct Version;

impl Version {
    /// Bytes of an entry.
    pub(crate) const LEN: usize = 64;

    fn read(entry: &[u8]) -> Option<(String, u64)> {
        let (sum, name) = entry.split_first_chunk()?;
        let name = name.split(|byte| *byte == 0).next()?;
        Some((std::str::from_utf8(name).ok()?.to_owned(), u64::from_le_bytes(*sum)))
    }

    /// The bytes of an entry; none if the name is too long.
    pub(crate) fn write(name: &str, sum: u64) -> Option<[u8; Self::LEN]> {
        let mut entry = [0; Self::LEN];
        let (first, text) = entry.split_at_mut(8);
        first.copy_from_slice(&sum.to_le_bytes());
        // The name ends in a zero.
        (name.len() < text.len()).then(|| text[..name.len()].copy_from_slice(name.as_bytes()))?;
        Some(entry)
    }
}
