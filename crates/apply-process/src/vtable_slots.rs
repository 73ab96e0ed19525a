//! Slots of v-tables: where they are, and which methods' addresses stand nowhere else.
//!
//! **Idea.** A program calls what a v-table's slot holds, and does nothing else with it: pointers to virtual
//! methods are numbers of slots (Itanium C++ ABI, 2.3), and what casts and exceptions look at stands in other
//! words of the table. So a slot, like one of a linkage table, may hold the address of the method's copy.
//!
//! **Which ones.** Words of objects that the ABI calls `_ZTV...` (5.1.4.1): the dynamic symbols of libraries,
//! and of programs with plugins, have nearly all of them, with sizes; without a symbol nobody can say where a
//! table ends.
//!
//! **Compared after all.** To make a virtual call direct where it can be foreseen, compilers compare the slot
//! with the address of the method that they expect (GCC's speculative devirtualization), and a GNU extension
//! makes ordinary pointers of slots. So methods are left out whose address anything but v-tables makes:
//! relocations, symbols of other modules, `lea`; at fixed addresses any four bytes. What only slots make is
//! equal where it was equal, whenever it was read.

use restitch_address::Svma;
use restitch_image::{Image, ImageKind, RelocationKind, Symbol, SymbolKind};
use restitch_x86::possible::{LEA, possible_lea};
use std::collections::HashSet;

/// How names of v-tables begin.
const TABLE: &str = "_ZTV";

/// The words of the v-tables that have a symbol, sorted.
pub(crate) fn slots(image: &Image) -> Vec<Svma> {
    let is_table = |s: &&Symbol| s.kind == SymbolKind::Object && s.name.starts_with(TABLE);
    let words = |table: &Symbol| {
        let start = table.range.start.align_up(8);
        let count = table.range.end.offset_from(start).max(0) as u64 / 8;
        (0..count).map(move |i| start + 8 * i)
    };
    let mut slots: Vec<Svma> = image.symbols_with_aliases().iter().filter(is_table).flat_map(words).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Those of `entries` whose address something in their module makes that is none of the `slots` of its
/// v-tables.
pub(crate) fn made_elsewhere(image: &Image, entries: &HashSet<Svma>, slots: &[Svma]) -> HashSet<Svma> {
    let (Some(low), Some(high)) = (entries.iter().min(), entries.iter().max()) else { return HashSet::new() };
    let is_entry = |at: &Svma| (low..=high).contains(&at) && entries.contains(at);
    let mut made = HashSet::new();
    for r in image.relocations() {
        let target = match r.kind {
            RelocationKind::Relative { target } => Some(target),
            RelocationKind::Symbolic { definition, addend, .. } => definition.map(|at| at.offset(addend)),
            _ => None,
        };
        made.extend(target.filter(|t| is_entry(t) && slots.binary_search(&r.at).is_err()));
    }
    let is_fixed = image.kind() == ImageKind::Executable;
    for segment in image.segments().iter().filter(|s| s.executable || is_fixed) {
        let backed = segment.file_backed();
        let bytes = image.read(backed.start, backed.len() as usize).unwrap_or_default();
        made.extend(made_by_lea(bytes, backed.start).filter(is_entry));
        if is_fixed {
            let is_slot = |at: Svma| slots.binary_search(&at).is_ok();
            let found = numbers(bytes, backed.start).filter(|(_, number)| is_entry(number));
            made.extend(found.filter(|(at, _)| !is_slot(*at)).map(|(_, number)| number));
        }
    }
    made
}

/// What `lea displacement(%rip),register` would make, wherever bytes could be one.
fn made_by_lea(bytes: &[u8], start: Svma) -> impl Iterator<Item = Svma> + '_ {
    let distances = bytes.windows(LEA).map(|window| window.first_chunk().and_then(possible_lea));
    distances.enumerate().filter_map(move |(i, distance)| Some((start + i as u64).offset(distance?)))
}

/// All numbers of four bytes, with their places.
fn numbers(bytes: &[u8], start: Svma) -> impl Iterator<Item = (Svma, Svma)> + '_ {
    bytes
        .windows(4)
        .enumerate()
        .map(move |(i, b)| (start + i as u64, Svma::new(u32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lea_is_found_at_any_place() {
        // lea 0x10(%rip),%rdx; lea -2(%rip),%eax
        let code = [0x90, 0x48, 0x8d, 0x15, 0x10, 0, 0, 0, 0x8d, 0x05, 0xfe, 0xff, 0xff, 0xff];
        let made: Vec<u64> = made_by_lea(&code, Svma::new(0x1000)).map(Svma::get).collect();
        assert_eq!(made, [0x1018, 0x100c]);
        let numbers: Vec<_> = numbers(&[1, 2, 0, 0, 0], Svma::new(8)).collect();
        assert_eq!(numbers, [(Svma::new(8), Svma::new(0x201)), (Svma::new(9), Svma::new(2))]);
    }
}
