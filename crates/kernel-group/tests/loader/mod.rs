//! A loader that does with a module file what the kernel's does: places sections, finds symbols, fills
//! fields, and refuses what that refuses (`apply_relocate_add` of `arch/x86/kernel/module.c`).

use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};
use object::{RelocationFlags, SectionIndex, SymbolSection};
use std::collections::{BTreeMap, HashMap};

/// Where modules are.
pub const BASE: u64 = 0xffff_ffff_c000_0000;

/// A loaded module.
#[derive(Debug)]
pub struct Loaded {
    /// By name: address and bytes.
    pub sections: BTreeMap<String, (u64, Vec<u8>)>,
    /// Functions of the module, by name: address and length.
    pub symbols: BTreeMap<String, (u64, u64)>,
}

impl Loaded {
    /// The bytes at an address of the module.
    pub fn at(&self, address: u64) -> &[u8] {
        let holds = |(start, data): &&(u64, Vec<u8>)| (*start..start + data.len() as u64).contains(&address);
        let (start, data) = self.sections.values().find(holds).expect("an address of the module");
        &data[(address - start) as usize..]
    }
    /// Entries of `len` bytes of a table, with their addresses.
    pub fn table(&self, name: &str, len: usize) -> Vec<(u64, &[u8])> {
        let Some((start, data)) = self.sections.get(name) else { return Vec::new() };
        assert_eq!(data.len() % len, 0, "{name}");
        data.chunks(len).enumerate().map(|(i, entry)| (start + (i * len) as u64, entry)).collect()
    }
}

/// A word of 4 bytes of an entry that points from itself.
pub fn pointer(entry: (u64, &[u8]), at: usize) -> u64 {
    let distance = i32::from_le_bytes(*entry.1[at..].first_chunk().unwrap());
    (entry.0 + at as u64).wrapping_add(i64::from(distance) as u64)
}

/// Loads `file`; `exported` are the kernel's symbols.
pub fn load(file: &[u8], exported: &BTreeMap<&str, u64>) -> Result<Loaded, String> {
    let file = object::File::parse(file).map_err(|e| e.to_string())?;
    let (mut places, mut at) = (HashMap::<SectionIndex, u64>::new(), BASE);
    for section in file.sections().filter(|section| section.size() > 0) {
        at = at.next_multiple_of(section.align().max(1));
        places.insert(section.index(), at);
        at += section.size();
    }
    let mut out = Loaded { sections: BTreeMap::new(), symbols: BTreeMap::new() };
    for section in file.sections().filter(|section| section.size() > 0) {
        let (place, mut data) = (places[&section.index()], section.data().unwrap().to_vec());
        for (offset, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err("no symbol".into());
            };
            let symbol = file.symbol_by_index(symbol).unwrap();
            let value = match symbol.section() {
                SymbolSection::Absolute => symbol.address(),
                SymbolSection::Section(index) => places[&index] + symbol.address(),
                _ => {
                    let name = symbol.name().unwrap();
                    *exported.get(name).ok_or_else(|| format!("Unknown symbol {name}"))?
                }
            };
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return Err("no ELF".into()) };
            fill(&mut data, offset, r_type, value.wrapping_add(relocation.addend() as u64), place + offset)?;
        }
        out.sections.insert(section.name().unwrap().into(), (place, data));
    }
    for symbol in file.symbols() {
        if let SymbolSection::Section(index) = symbol.section() {
            let address = places[&index] + symbol.address();
            out.symbols.insert(symbol.name().unwrap().into(), (address, symbol.size()));
        }
    }
    Ok(out)
}

fn fill(data: &mut [u8], offset: u64, kind: u32, value: u64, place: u64) -> Result<(), String> {
    let distance = value.wrapping_sub(place);
    let (bytes, fits) = match kind {
        1 => (value.to_le_bytes().to_vec(), true),
        2 => ((distance as u32).to_le_bytes().to_vec(), distance as i32 as i64 as u64 == distance),
        10 => ((value as u32).to_le_bytes().to_vec(), u64::from(value as u32) == value),
        24 => (distance.to_le_bytes().to_vec(), true),
        other => return Err(format!("Unknown rela relocation: {other}")),
    };
    let field = &mut data[offset as usize..offset as usize + bytes.len()];
    if field.iter().any(|byte| *byte != 0) {
        return Err("Invalid relocation target, existing value is nonzero".into());
    }
    if !fits {
        return Err(format!("overflow in relocation type {kind}"));
    }
    field.copy_from_slice(&bytes);
    Ok(())
}
