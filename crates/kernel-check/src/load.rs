//! What the kernel's loader makes of a file: sections at addresses, fields filled
//! (`apply_relocate_add` in `arch/x86/kernel/module.c`).
//!
//! Where it puts a module is not known. Each field is a sum of places of sections and constants, so what
//! leads to the right address with sections at two unrelated sets of places does so at all: [`PLACEMENTS`].

use crate::elf::{Home, Object, Relocation, Symbol};
use crate::finding::{Place, Problem};
use crate::sections::{ADDRESS, ADDRESS_32, ANCHORS, CODE, DISTANCE, DISTANCE_64, EXIT, INIT};
use restitch_address::{PAGE, Svma};
use std::collections::BTreeMap;

/// What the control module exports.
pub(crate) const REGISTER: &str = "restitch_kernel_register";
pub(crate) const UNREGISTER: &str = "restitch_kernel_unregister";

/// Where a loader may put a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    /// In the kernel's area for modules.
    start: u64,
    /// Pages between sections: that many more from each to the next.
    gap: u64,
    /// The last section first.
    is_reversed: bool,
    /// Where the control module's two functions are.
    control: u64,
}

pub(crate) const PLACEMENTS: [Placement; 2] = [
    Placement { start: 0xffff_ffff_c000_0000, gap: 1, is_reversed: false, control: 0xffff_ffff_f000_0000 },
    Placement { start: 0xffff_ffff_d234_5000, gap: 7, is_reversed: true, control: 0xffff_ffff_f600_3000 },
];

/// A loaded section.
#[derive(Debug)]
pub(crate) struct Part<'f> {
    pub(crate) name: &'f str,
    pub(crate) at: Svma,
    pub(crate) data: Vec<u8>,
}

impl Part<'_> {
    pub(crate) fn end(&self) -> Svma {
        self.at + self.data.len() as u64
    }
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Loaded<'f> {
    /// By index in the file.
    parts: BTreeMap<usize, Part<'f>>,
    control: u64,
}

impl<'f> Loaded<'f> {
    /// Loads a file. `anchors` are the addresses of other imports.
    pub(crate) fn load(
        object: &Object<'f>,
        placement: Placement,
        anchors: &BTreeMap<&str, Svma>,
    ) -> Result<Self, Problem> {
        let mut loaded = Self { parts: parts(object, placement), control: placement.control };
        for index in loaded.parts.keys().copied().collect::<Vec<_>>() {
            for field in object.relocations(index) {
                let symbol = object.symbols.get(field.symbol);
                let symbol = symbol.ok_or(Problem::Relocation("the address of no symbol"))?;
                let value = loaded.value(symbol, loaded.parts[&index].name, anchors)?;
                let part = loaded.parts.get_mut(&index).ok_or(Problem::Relocation("no section"))?;
                fill(part, field, value.wrapping_add(field.plus))?;
            }
        }
        Ok(loaded)
    }

    /// The address of a symbol that is named in `section`.
    fn value(
        &self,
        symbol: &Symbol<'_>,
        section: &str,
        anchors: &BTreeMap<&str, Svma>,
    ) -> Result<u64, Problem> {
        match symbol.home {
            Home::Absolute => Ok(symbol.value),
            Home::Section(index) => match self.parts.get(&index) {
                Some(part) => Ok(part.at.get().wrapping_add(symbol.value)),
                None => Err(Problem::Relocation("the address of what it does not load")),
            },
            Home::Undefined => self.import(symbol.name, section, anchors),
            _ => Err(Problem::Relocation("the address of a symbol that groups do not have")),
        }
    }

    fn import(&self, name: &str, section: &str, anchors: &BTreeMap<&str, Svma>) -> Result<u64, Problem> {
        let own = match section {
            INIT if name == REGISTER => Some(self.register().get()),
            EXIT if name == UNREGISTER => Some(self.unregister().get()),
            ANCHORS => anchors.get(name).map(|address| address.get()),
            _ => None,
        };
        own.ok_or(Problem::Relocation("a function or variable of the kernel that groups do not name"))
    }

    pub(crate) fn register(&self) -> Svma {
        Svma::new(self.control)
    }
    pub(crate) fn unregister(&self) -> Svma {
        Svma::new(self.control + PAGE)
    }

    /// The section of this name.
    pub(crate) fn part(&self, name: &str) -> Option<&Part<'f>> {
        self.parts.values().find(|part| part.name == name)
    }
    /// The section with this index in the file.
    pub(crate) fn numbered(&self, index: usize) -> Option<&Part<'f>> {
        self.parts.get(&index)
    }
    /// Sections that copies stand in.
    pub(crate) fn code(&self) -> impl Iterator<Item = &Part<'f>> {
        self.parts.values().filter(|part| CODE.contains(&part.name))
    }
    /// Entries of `len` bytes of a table, with their addresses.
    pub(crate) fn entries(&self, table: &'static str, len: usize) -> Result<Vec<Entry<'_>>, Problem> {
        let Some(part) = self.part(table) else { return Ok(Vec::new()) };
        if len == 0 || !part.data.len().is_multiple_of(len) {
            return Err(Problem::Table { table, what: "ends in the middle of an entry" });
        }
        let entries = part.data.chunks_exact(len).enumerate();
        Ok(entries.map(|(i, bytes)| Entry { at: part.at + (i * len) as u64, bytes }).collect())
    }
    /// Where an address is in the file; its end counts as a part of a section.
    pub(crate) fn place(&self, address: Svma) -> Option<Place> {
        let part = self.parts.values().find(|part| part.at <= address && address <= part.end())?;
        Some(Place { section: part.name.to_owned(), offset: address.offset_from(part.at) as u64 })
    }
}

/// An entry of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'m> {
    pub(crate) at: Svma,
    pub(crate) bytes: &'m [u8],
}

fn parts<'f>(object: &Object<'f>, placement: Placement) -> BTreeMap<usize, Part<'f>> {
    let mut loaded: Vec<_> =
        object.sections.iter().enumerate().filter(|(_, section)| section.is_loaded()).collect();
    if placement.is_reversed {
        loaded.reverse();
    }
    let (mut at, mut gap) = (Svma::new(placement.start), placement.gap);
    let place = |(index, section): (usize, &crate::elf::Section<'f>)| {
        at = (at + gap * PAGE).align_up(section.align.max(1));
        gap += placement.gap;
        let part = Part { name: section.name, at, data: section.data.to_vec() };
        at = part.end();
        (index, part)
    };
    loaded.into_iter().map(place).collect()
}

fn fill(part: &mut Part<'_>, field: Relocation, value: u64) -> Result<(), Problem> {
    let distance = value.wrapping_sub(part.at.get().wrapping_add(field.at));
    let (number, len, fits) = match field.kind {
        ADDRESS => (value, 8, true),
        DISTANCE => (distance, 4, distance as i32 as i64 as u64 == distance),
        ADDRESS_32 => (value, 4, u64::from(value as u32) == value),
        DISTANCE_64 => (distance, 8, true),
        _ => return Err(Problem::Relocation("a field of a kind that groups do not have")),
    };
    if !fits {
        return Err(Problem::Relocation("a field that is too short for it"));
    }
    let at = usize::try_from(field.at).ok();
    let range = at.and_then(|at| Some(at..at.checked_add(len)?));
    let bytes = range.and_then(|range| part.data.get_mut(range));
    let bytes = bytes.ok_or(Problem::Relocation("a field that is outside of its section"))?;
    if bytes.iter().any(|byte| *byte != 0) {
        return Err(Problem::Relocation("a field that is not zero"));
    }
    bytes.copy_from_slice(&number.to_le_bytes()[..len]);
    Ok(())
}
