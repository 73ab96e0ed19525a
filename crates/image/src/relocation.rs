//! Dynamic relocations: what the loader writes into the image (x86-64 psABI section 4.4, and RELR).

use crate::bytes::u64_at;
use crate::dynamic::{DynamicSymbol, DynamicTable};
use crate::raw::{RELA_LEN, Rela};
use crate::section::Section;
use crate::view::View;
use object::elf;
use restitch_address::Svma;
use restitch_x86::elf::{RelocationType, relocation_type};
use std::sync::Arc;

/// Length in bytes of the packed relative relocations.
const DT_RELRSZ: u32 = 35;
/// Address of the packed relative relocations.
const DT_RELR: u32 = 36;

/// A place that the loader writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicRelocation {
    /// The place.
    pub at: Svma,
    /// What is written there.
    pub kind: RelocationKind,
}

/// What the loader writes at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelocationKind {
    /// 8 bytes: this address of the module, plus the load bias.
    Relative {
        /// The stated address.
        target: Svma,
    },
    /// 8 bytes: a symbol's address plus an addend.
    Symbolic {
        /// The symbol, without version. Empty if the relocation has none.
        name: Arc<str>,
        /// Added to its address.
        addend: i64,
        /// The module's own definition, which the loader uses unless another module's preempts it. None for
        /// undefined symbols and for IFUNCs, whose value is a resolver.
        definition: Option<Svma>,
    },
    /// 8 bytes: the address of a function that is called through the PLT.
    JumpSlot {
        /// The function, without version.
        name: Arc<str>,
        /// As for [`RelocationKind::Symbolic`].
        definition: Option<Svma>,
    },
    /// 8 bytes: what the function at this address returns.
    IRelative {
        /// The resolver.
        resolver: Svma,
    },
    /// Another relocation of this type number (copy relocations, thread-local storage).
    Other(u32),
}

/// The relocations, sorted by address, and the dynamic symbols.
pub(crate) fn relocations(
    view: View<'_>,
    dynamic: &DynamicTable<'_>,
    sections: &[Section],
) -> (Vec<DynamicRelocation>, Vec<DynamicSymbol>) {
    let raw = raw_relocations(view, dynamic, sections);
    let used = raw.iter().map(|r| r.symbol as usize + 1).max().unwrap_or(0);
    let symbols = dynamic.symbols(used);
    let no_name: Arc<str> = "".into();
    let mut all: Vec<_> = relative_relocations(view, dynamic)
        .into_iter()
        .chain(raw.iter().map(|r| DynamicRelocation { at: r.at, kind: r.resolve(&symbols, &no_name) }))
        .collect();
    all.sort_by_key(|r| r.at);
    (all, symbols)
}

/// DT_RELA and DT_JMPREL; a static program, which has no dynamic section, keeps its IRELATIVE entries in a
/// section.
fn raw_relocations(view: View<'_>, dynamic: &DynamicTable<'_>, sections: &[Section]) -> Vec<Rela> {
    if dynamic.is_empty() {
        let tables = sections.iter().filter(|s| s.kind == elf::SHT_RELA && s.is_loaded());
        return tables.flat_map(|s| entries(s.bytes(view.data))).collect();
    }
    let rela = dynamic.table(elf::DT_RELA, elf::DT_RELASZ);
    let plt = dynamic.table(elf::DT_JMPREL, elf::DT_PLTRELSZ);
    // Some linkers let DT_RELA cover the PLT's part as well.
    let inside = rela.as_ptr_range().contains(&plt.as_ptr());
    let plt = if inside { &[][..] } else { plt };
    entries(rela).chain(entries(plt)).collect()
}

fn entries(table: &[u8]) -> impl Iterator<Item = Rela> {
    table.chunks_exact(RELA_LEN).filter_map(Rela::read)
}

impl Rela {
    fn resolve(&self, symbols: &[DynamicSymbol], no_name: &Arc<str>) -> RelocationKind {
        let symbol = symbols.get(self.symbol as usize).filter(|_| self.symbol != 0);
        let name = || symbol.map_or(no_name, |s| &s.name).clone();
        let definition = symbol.and_then(|s| s.raw.definition());
        let Some(known) = relocation_type(self.kind) else { return RelocationKind::Other(self.kind) };
        match known {
            RelocationType::Relative => RelocationKind::Relative { target: Svma::new(self.addend as u64) },
            RelocationType::Symbolic => {
                RelocationKind::Symbolic { name: name(), addend: self.addend, definition }
            }
            RelocationType::JumpSlot => RelocationKind::JumpSlot { name: name(), definition },
            RelocationType::IRelative => {
                RelocationKind::IRelative { resolver: Svma::new(self.addend as u64) }
            }
        }
    }
}

/// DT_RELR: an even entry is an address, an odd one a bitmap over the 63 words behind the last address. The
/// targets are in the places themselves.
fn relative_relocations(view: View<'_>, dynamic: &DynamicTable<'_>) -> Vec<DynamicRelocation> {
    let table = dynamic.table(DT_RELR, DT_RELRSZ);
    // A well-formed table names each word of the file at most once.
    let limit = view.data.len() / 8;
    let mut found = Vec::new();
    let mut next = Svma::new(0);
    for entry in table.chunks_exact(8).filter_map(|e| u64_at(e, 0)) {
        let (base, bits, span) = match entry & 1 {
            0 => (Svma::new(entry), 1, 8),
            _ => (next, entry >> 1, 63 * 8),
        };
        let places = (0..63).filter(|i| bits >> i & 1 != 0).map(|i| base + i * 8);
        found.extend(places.filter_map(|at| {
            let target = Svma::new(view.u64(at)?);
            Some(DynamicRelocation { at, kind: RelocationKind::Relative { target } })
        }));
        if found.len() > limit {
            break;
        }
        next = base + span;
    }
    found
}
