//! The dynamic section (System V gABI, chapter 5), read through PT_DYNAMIC so that it needs no section
//! headers.

use crate::bytes::{c_string, u16_at, u32_at, u64_at};
use crate::raw::{ProgramHeader, dynamic_entries};
use crate::view::View;
use object::elf;
use restitch_address::Svma;
use std::sync::Arc;

/// Size of `Elf64_Sym`.
pub(crate) const SYMBOL_LEN: usize = 24;

/// What the dynamic section says about the module as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DynamicInfo {
    /// DT_SONAME.
    pub soname: Option<String>,
    /// DT_NEEDED, in search order.
    pub needed: Vec<String>,
    /// DT_RPATH.
    pub rpath: Option<String>,
    /// DT_RUNPATH.
    pub runpath: Option<String>,
    /// All symbols are bound at start (`-z now`): no lazy PLT entries.
    pub bind_now: bool,
    /// DF_1_PIE.
    pub pie: bool,
    /// The loader writes into code (DT_TEXTREL): code bytes in memory differ from those in the file.
    pub text_relocations: bool,
    /// DT_INIT.
    pub init: Option<Svma>,
    /// DT_FINI.
    pub fini: Option<Svma>,
}

/// An entry of the dynamic symbol table that has an address in this module: functions, objects, labels,
/// resolvers of IFUNCs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedSymbol {
    /// Where the entry (`Elf64_Sym`) is.
    pub entry: Svma,
    /// `st_value`.
    pub value: Svma,
    /// `st_size`.
    pub len: u64,
    /// The lower four bits of `st_info`.
    pub kind: u8,
}

impl ExportedSymbol {
    /// Where `st_value` is in an entry; `st_size` follows.
    pub const VALUE: u64 = 8;

    /// Whether it names a function that is entered at its address.
    pub fn is_function(&self) -> bool {
        self.kind == elf::STT_FUNC
    }
}

/// The dynamic section's entries, up to DT_NULL.
pub(crate) struct DynamicTable<'a> {
    view: View<'a>,
    entries: Vec<(u64, u64)>,
}

/// One raw entry of the dynamic symbol table.
pub(crate) struct DynamicSymbol {
    pub name: Arc<str>,
    pub raw: RawSymbol,
}

/// The fields of `Elf64_Sym` but the name.
#[derive(Clone, Copy)]
pub(crate) struct RawSymbol {
    pub info: u8,
    pub section: u16,
    pub value: u64,
    pub len: u64,
}

impl RawSymbol {
    /// Name offset and fields of the entry in `bytes`.
    pub fn parse(bytes: &[u8]) -> Option<(u32, Self)> {
        let raw = Self {
            info: *bytes.get(4)?,
            section: u16_at(bytes, 6)?,
            value: u64_at(bytes, 8)?,
            len: u64_at(bytes, 16)?,
        };
        Some((u32_at(bytes, 0)?, raw))
    }
    pub fn kind(&self) -> u8 {
        self.info & 0xf
    }
    /// Defined in this module, at an address.
    pub fn is_defined(&self) -> bool {
        !matches!(self.section, elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON)
            && self.kind() != elf::STT_TLS
    }
    /// Where it is defined in this module, if it is, and if the value is not an IFUNC resolver's.
    pub fn definition(&self) -> Option<Svma> {
        (self.is_defined() && self.kind() != elf::STT_GNU_IFUNC).then_some(Svma::new(self.value))
    }
}

impl<'a> DynamicTable<'a> {
    /// Reads PT_DYNAMIC; empty without one.
    pub fn read(view: View<'a>, headers: &[ProgramHeader]) -> Self {
        let dynamic = headers.iter().find(|p| p.kind == elf::PT_DYNAMIC);
        let bytes = dynamic.map(|p| view.up_to(p.address, p.memory_len)).unwrap_or_default();
        let entries = dynamic_entries(bytes).take_while(|e| e.0 != u64::from(elf::DT_NULL)).collect();
        Self { view, entries }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of the first entry with this tag.
    pub fn get(&self, tag: u32) -> Option<u64> {
        self.entries.iter().find(|e| e.0 == u64::from(tag)).map(|e| e.1)
    }

    /// The bytes of the table that the tags `address` and `len` describe.
    pub fn table(&self, address: u32, len: u32) -> &'a [u8] {
        match (self.get(address), self.get(len)) {
            (Some(at), Some(len)) => self.view.up_to(Svma::new(at), len),
            _ => &[],
        }
    }

    fn strings(&self) -> &'a [u8] {
        self.table(elf::DT_STRTAB, elf::DT_STRSZ)
    }

    fn string(&self, tag: u32) -> Option<String> {
        c_string(self.strings(), self.get(tag)?).map(|s| s.into_owned())
    }

    pub fn info(&self) -> DynamicInfo {
        let needed = self.entries.iter().filter(|e| e.0 == u64::from(elf::DT_NEEDED));
        let flags = self.get(elf::DT_FLAGS).unwrap_or(0);
        let flags_1 = self.get(elf::DT_FLAGS_1).unwrap_or(0);
        DynamicInfo {
            soname: self.string(elf::DT_SONAME),
            needed: needed.filter_map(|e| c_string(self.strings(), e.1)).map(|s| s.into_owned()).collect(),
            rpath: self.string(elf::DT_RPATH),
            runpath: self.string(elf::DT_RUNPATH),
            bind_now: self.get(elf::DT_BIND_NOW).is_some()
                || flags & u64::from(elf::DF_BIND_NOW) != 0
                || flags_1 & u64::from(elf::DF_1_NOW) != 0,
            pie: flags_1 & u64::from(elf::DF_1_PIE) != 0,
            text_relocations: self.get(elf::DT_TEXTREL).is_some() || flags & u64::from(elf::DF_TEXTREL) != 0,
            init: self.get(elf::DT_INIT).map(Svma::new),
            fini: self.get(elf::DT_FINI).map(Svma::new),
        }
    }

    /// The dynamic symbols: as many as the hash tables know, and at least `at_least` where the file has them.
    pub fn symbols(&self, at_least: usize) -> Vec<DynamicSymbol> {
        let Some(at) = self.get(elf::DT_SYMTAB) else { return Vec::new() };
        let table = self.view.tail(Svma::new(at)).unwrap_or_default();
        let hashed = self.sysv_hash_count().or_else(|| self.gnu_hash_count()).unwrap_or(0);
        let strings = self.strings();
        table
            .chunks_exact(SYMBOL_LEN)
            .take(hashed.max(at_least))
            .filter_map(|bytes| {
                let (name, raw) = RawSymbol::parse(bytes)?;
                Some(DynamicSymbol { name: c_string(strings, name.into()).unwrap_or_default().into(), raw })
            })
            .collect()
    }

    /// Those of `symbols`, the whole table, that have an address in this module.
    pub fn exported(&self, symbols: &[DynamicSymbol]) -> Vec<ExportedSymbol> {
        let Some(table) = self.get(elf::DT_SYMTAB) else { return Vec::new() };
        let entry = |i: usize| Svma::new(table) + (i * SYMBOL_LEN) as u64;
        let defined = symbols.iter().enumerate().filter(|(_, s)| s.raw.is_defined());
        defined
            .map(|(i, s)| ExportedSymbol {
                entry: entry(i),
                value: Svma::new(s.raw.value),
                len: s.raw.len,
                kind: s.raw.kind(),
            })
            .collect()
    }

    /// DT_HASH states the number of symbols (`nchain`).
    fn sysv_hash_count(&self) -> Option<usize> {
        let at = Svma::new(self.get(elf::DT_HASH)?);
        self.view.u32(at + 4).map(|n| n as usize)
    }

    /// DT_GNU_HASH: the end of the chain that starts last. 0 if no symbol is hashed.
    fn gnu_hash_count(&self) -> Option<usize> {
        let bytes = self.view.tail(Svma::new(self.get(elf::DT_GNU_HASH)?))?;
        let (buckets, first, bloom) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?);
        let bucket_at = 16 + bloom as usize * 8;
        let chain_at = bucket_at + buckets as usize * 4;
        let heads = bytes.get(bucket_at..chain_at)?.chunks_exact(4).filter_map(|b| u32_at(b, 0));
        let last = heads.max().filter(|&head| head >= first && head != 0);
        let Some(last) = last else { return Some(first as usize) };
        let chain = bytes.get(chain_at + (last - first) as usize * 4..)?;
        let rest = chain.chunks_exact(4).position(|c| c[0] & 1 != 0)?;
        Some(last as usize + rest + 1)
    }
}
