//! Places in code that a program writes to while it runs, as its compiler has noted them.
//!
//! **XRay** (`clang -fxray-instrument`): `xray_instr_map` has an entry for each sled. **Tables of
//! addresses**: `__patchable_function_entries` (`-fpatchable-function-entry`, for live patching and tracers),
//! `__mcount_loc` (`-mrecord-mcount`), `__return_loc` (`-mrecord-return`). Each place is some `nop`s, or a
//! jump over them, that a run time, a tracer in the process (uftrace) or a live patcher (libpulp) writes
//! calls or jumps over, and back.
//!
//! Sources: LLVM, `XRaySledEntry` in compiler-rt/include/xray/xray_interface.h and `emitXRayTable` in
//! AsmPrinter.cpp; GCC, the options' descriptions and `default_print_patchable_function_entry`.
//!
//! Limits: such tables have no other mark than the section's name, so nothing is known of a file without
//! section headers, nor of tables that `-mfentry-section` names otherwise.

use crate::bytes::u64_at;
use crate::plt::relocation_at;
use crate::relocation::{DynamicRelocation, RelocationKind};
use crate::section::Section;
use crate::view::View;
use restitch_address::Svma;

const XRAY: &str = "xray_instr_map";
/// Bytes of an entry of XRay's: address, function, kind, whether always, version, filler.
const XRAY_LEN: usize = 32;
const XRAY_VERSION_AT: usize = 18;
/// From this version on, the address counts from where it stands.
const XRAY_RELATIVE: u8 = 2;
/// Tables that are addresses and nothing else.
const ADDRESSES: [&str; 3] = ["__patchable_function_entries", "__mcount_loc", "__return_loc"];

/// The places, sorted.
pub(crate) fn patch_points(
    view: View<'_>,
    sections: &[Section],
    relocations: &[DynamicRelocation],
) -> Vec<Svma> {
    let file = File { view, relocations };
    let mut found = Vec::new();
    for section in sections.iter().filter(|s| s.is_loaded()) {
        if section.name == XRAY {
            found.extend(file.entries(section, XRAY_LEN).filter_map(|(at, entry)| file.sled(at, entry)));
        } else if ADDRESSES.contains(&section.name.as_str()) {
            found.extend(file.entries(section, 8).filter_map(|(at, _)| file.address(at)));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

struct File<'a> {
    view: View<'a>,
    relocations: &'a [DynamicRelocation],
}

impl<'a> File<'a> {
    /// The entries of a table with their addresses.
    fn entries(&self, table: &Section, len: usize) -> impl Iterator<Item = (Svma, &'a [u8])> + use<'a> {
        let start = table.range.start;
        let entries = table.bytes(self.view.data).chunks_exact(len);
        entries.enumerate().map(move |(i, entry)| (start + (i * len) as u64, entry))
    }

    fn sled(&self, at: Svma, entry: &[u8]) -> Option<Svma> {
        if entry[XRAY_VERSION_AT] < XRAY_RELATIVE {
            return self.address(at);
        }
        Some(Svma::new(at.get().wrapping_add(u64_at(entry, 0)?)))
    }

    /// The word at `at` when the loader is done. Linkers leave zeros for functions that they have dropped.
    fn address(&self, at: Svma) -> Option<Svma> {
        let place = match relocation_at(self.relocations, at).map(|r| &r.kind) {
            Some(RelocationKind::Relative { target }) => *target,
            Some(RelocationKind::Symbolic { definition, addend, .. }) => definition.as_ref()?.offset(*addend),
            Some(_) => return None,
            None => Svma::new(self.view.u64(at)?),
        };
        (place.get() != 0).then_some(place)
    }
}
