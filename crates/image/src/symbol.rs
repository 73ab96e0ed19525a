//! Symbols of functions and objects, from all tables that a file may have.

use crate::bytes::c_string;
use crate::dynamic::{DynamicSymbol, RawSymbol, SYMBOL_LEN};
use crate::header::Segment;
use crate::section::Section;
use crate::view::View;
use object::elf;
use restitch_address::{Svma, SvmaRange};
use std::cmp::Reverse;
use std::sync::Arc;

/// What a symbol names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SymbolKind {
    /// A function.
    Function,
    /// An IFUNC: the address is that of a resolver, itself a function.
    IndirectFunction,
    /// A data object.
    Object,
}

/// Who can see a symbol. Ordered from the best known to the least known name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Binding {
    /// Other modules; one definition.
    Global,
    /// Other modules; may be defined several times.
    Weak,
    /// Its own source file.
    Local,
}

/// A symbol that the module defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Name as the linker has it (mangled), without `@version`.
    pub name: Arc<str>,
    /// Addresses; empty where the file states no size (hand-written assembly).
    pub range: SvmaRange,
    /// What it names.
    pub kind: SymbolKind,
    /// Who can see it.
    pub binding: Binding,
}

impl Symbol {
    /// Whether the symbol's address is code.
    pub fn is_function(&self) -> bool {
        self.kind != SymbolKind::Object
    }

    /// Address first; then the best of several names for one address.
    fn order(&self) -> (Svma, bool, bool, Binding, usize, &str, Reverse<Svma>) {
        let underscores = self.name.bytes().take_while(|&b| b == b'_').count();
        let no_size = self.range.is_empty();
        (
            self.range.start,
            !self.is_function(),
            no_size,
            self.binding,
            underscores,
            &self.name,
            Reverse(self.range.end),
        )
    }
}

/// The symbols of the SHT_SYMTAB section (the gABI allows one) of the file `data`.
pub(crate) fn from_sections(data: &[u8], sections: &[Section], segments: &[Segment]) -> Vec<Symbol> {
    let Some(table) = sections.iter().find(|s| s.kind == elf::SHT_SYMTAB) else { return Vec::new() };
    let strings = sections.get(table.link as usize).map(|s| s.bytes(data)).unwrap_or_default();
    let entries = table.bytes(data).chunks_exact(SYMBOL_LEN);
    let defined = entries.filter_map(|entry| {
        let (name, raw) = RawSymbol::parse(entry)?;
        let (range, kind) = place(&raw, segments)?;
        let name = c_string(strings, name.into())?;
        symbol(without_version(&name).into(), &raw, range, kind)
    });
    defined.collect()
}

/// Addresses of the defined symbols of SHT_SYMTAB that have no type, or one that is not known.
pub(crate) fn labels(data: &[u8], sections: &[Section]) -> Vec<Svma> {
    let table = sections.iter().find(|s| s.kind == elf::SHT_SYMTAB);
    let entries = table.map(|t| t.bytes(data)).unwrap_or_default().chunks_exact(SYMBOL_LEN);
    let known = [elf::STT_FUNC, elf::STT_GNU_IFUNC, elf::STT_OBJECT, elf::STT_SECTION, elf::STT_FILE];
    let raw = entries.filter_map(|entry| Some(RawSymbol::parse(entry)?.1));
    raw.filter(|raw| raw.is_defined() && !known.contains(&raw.kind()))
        .map(|raw| Svma::new(raw.value))
        .collect()
}

/// The defined functions and objects among the dynamic symbols.
pub(crate) fn from_dynamic(table: &[DynamicSymbol], segments: &[Segment]) -> Vec<Symbol> {
    let defined = table.iter().filter_map(|s| {
        let (range, kind) = place(&s.raw, segments)?;
        symbol(s.name.clone(), &s.raw, range, kind)
    });
    defined.collect()
}

/// `name@version` and `name@@version` of a linked file's .symtab without the version.
fn without_version(name: &str) -> &str {
    match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// Range and kind, if this is a function or an object inside a segment.
fn place(raw: &RawSymbol, segments: &[Segment]) -> Option<(SvmaRange, SymbolKind)> {
    let kind = match raw.kind() {
        elf::STT_FUNC => SymbolKind::Function,
        elf::STT_GNU_IFUNC => SymbolKind::IndirectFunction,
        elf::STT_OBJECT => SymbolKind::Object,
        _ => return None,
    };
    let segment = View { data: &[], segments }.segment_at(Svma::new(raw.value))?;
    let range = SvmaRange::new(Svma::new(raw.value), raw.len);
    (raw.is_defined() && segment.range.covers(&range)).then_some((range, kind))
}

fn symbol(name: Arc<str>, raw: &RawSymbol, range: SvmaRange, kind: SymbolKind) -> Option<Symbol> {
    let binding = match raw.info >> 4 {
        elf::STB_LOCAL => Binding::Local,
        elf::STB_WEAK => Binding::Weak,
        _ => Binding::Global,
    };
    (!name.is_empty()).then_some(Symbol { name, range, kind, binding })
}

/// Sorted by address, best name first, each name once at an address.
pub(crate) fn sorted(mut symbols: Vec<Symbol>) -> Vec<Symbol> {
    symbols.sort_by(|a, b| a.order().cmp(&b.order()));
    symbols.dedup_by(|b, a| a.range.start == b.range.start && a.name == b.name);
    symbols
}

/// The first of each address of a sorted list.
pub(crate) fn best(all: &[Symbol]) -> Vec<Symbol> {
    let mut best = all.to_vec();
    best.dedup_by_key(|s| s.range.start);
    best
}
