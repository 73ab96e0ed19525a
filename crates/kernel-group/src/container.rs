//! Sections and symbols as a relocatable ELF file.

use crate::section::{Access, Kind, Reference, Sections};
use object::elf::{SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE};
use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionFlags, SectionKind, SymbolFlags,
    SymbolKind, SymbolScope,
};
use std::collections::BTreeMap;

/// A symbol of the module's own code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnSymbol {
    pub(crate) name: String,
    pub(crate) section: Kind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Makes the file.
pub(crate) fn file(
    sections: &Sections,
    symbols: &[OwnSymbol],
    structure_align: u64,
) -> Result<Vec<u8>, object::write::Error> {
    let mut container = Container::new();
    for kind in Kind::ALL.into_iter().filter(|kind| sections.get(*kind).len() > 0) {
        container.section(kind, &sections.get(kind).data, structure_align);
    }
    for symbol in symbols {
        container.own_symbol(symbol);
    }
    for kind in Kind::ALL {
        for field in &sections.get(kind).fields {
            let (symbol, offset) = container.symbol(&field.to);
            let relocation = Relocation {
                offset: field.at,
                symbol,
                addend: offset.wrapping_add(field.plus),
                flags: RelocationFlags::Elf { r_type: field.form.relocation() },
            };
            container.object.add_relocation(container.ids[&kind], relocation)?;
        }
    }
    container.object.write()
}

/// The file while it is made.
struct Container {
    object: Object<'static>,
    ids: BTreeMap<Kind, SectionId>,
    imports: BTreeMap<String, SymbolId>,
    /// The symbol at address 0, from which places of the kernel count: an absolute one, which the loader
    /// takes as it is.
    kernel: SymbolId,
}

impl Container {
    fn new() -> Self {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let kernel = object.add_symbol(Symbol {
            name: b"kernel".to_vec(),
            value: 0,
            size: 0,
            kind: SymbolKind::Label,
            scope: SymbolScope::Compilation,
            weak: false,
            section: SymbolSection::Absolute,
            flags: SymbolFlags::None,
        });
        Self { object, ids: BTreeMap::new(), imports: BTreeMap::new(), kernel }
    }

    fn section(&mut self, kind: Kind, data: &[u8], structure_align: u64) {
        let (is, more) = match kind.access() {
            Access::Code => (SectionKind::Text, SHF_EXECINSTR),
            Access::ReadOnly => (SectionKind::ReadOnlyData, 0),
            Access::Writable => (SectionKind::Data, SHF_WRITE),
        };
        let id = self.object.add_section(Vec::new(), kind.name().as_bytes().to_vec(), is);
        self.object.section_mut(id).flags = SectionFlags::Elf { sh_flags: u64::from(SHF_ALLOC | more) };
        let align = if kind == Kind::Structure { structure_align } else { kind.align() };
        self.object.append_section_data(id, data, align);
        self.ids.insert(kind, id);
    }

    fn own_symbol(&mut self, symbol: &OwnSymbol) {
        let section = SymbolSection::Section(self.ids[&symbol.section]);
        self.object.add_symbol(Symbol {
            name: symbol.name.as_bytes().to_vec(),
            value: symbol.offset,
            size: symbol.len,
            kind: SymbolKind::Text,
            scope: SymbolScope::Compilation,
            weak: false,
            section,
            flags: SymbolFlags::None,
        });
    }

    /// The symbol that a reference goes by, and the distance from it.
    fn symbol(&mut self, to: &Reference) -> (SymbolId, i64) {
        match to {
            Reference::Kernel(address) => (self.kernel, address.get() as i64),
            Reference::Own { section, offset } => {
                (self.object.section_symbol(self.ids[section]), *offset as i64)
            }
            Reference::Import(name) => (self.import(name), 0),
        }
    }

    fn import(&mut self, name: &str) -> SymbolId {
        let object = &mut self.object;
        *self.imports.entry(name.to_owned()).or_insert_with(|| {
            object.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value: 0,
                size: 0,
                kind: SymbolKind::Unknown,
                scope: SymbolScope::Unknown,
                weak: false,
                section: SymbolSection::Undefined,
                flags: SymbolFlags::None,
            })
        })
    }
}
