//! Code that the analysis does not understand: where it is, and what it may say.

use crate::address_set::AddressSet;
use crate::sweep::Sweep;
use restitch_address::{Svma, SvmaRange};
use restitch_image::{Image, RelocationKind};
use restitch_x86::filler::fills_alone;
use restitch_x86::{Insn, LONGEST, first_insn};

/// What is executable and in no function, sorted, without what is filler throughout.
pub(crate) fn gaps(image: &Image, sweep: &Sweep) -> Vec<SvmaRange> {
    let mut gaps = Vec::new();
    for range in image.executable_ranges() {
        let first = sweep.spans.partition_point(|span| span.range.end <= range.start);
        let inside = sweep.spans[first..].iter().take_while(|span| span.range.start < range.end);
        let mut from = range.start;
        for span in inside {
            gaps.push(SvmaRange::between(from, span.range.start.max(from)));
            from = span.range.end;
        }
        gaps.push(SvmaRange::between(from, range.end.max(from)));
    }
    gaps.retain(|gap| !gap.is_empty() && !is_filler(image, *gap));
    gaps
}

/// Where the loader enters a module: at its entry and its initialisers (System V gABI, chapter 5,
/// Initialization and Termination Functions).
pub(crate) fn entered_by_loader(image: &Image) -> Vec<Svma> {
    let section = |name: &str| image.section(name).map(|section| section.range);
    let mut entries = vec![image.entry()];
    entries.extend([".init", ".fini"].into_iter().filter_map(section).map(|range| range.start));
    for array in [".preinit_array", ".init_array", ".fini_array"].into_iter().filter_map(section) {
        // A section's size is the file's word, and may be anything: as many words as there are bytes.
        let words = (0..array.len() / 8).map(|i| array.start + 8 * i);
        for (at, word) in words.map_while(|at| Some((at, image.read_u64(at)?))) {
            let target = match image.relocation_at(at).map(|r| &r.kind) {
                Some(RelocationKind::Relative { target }) => Some(*target),
                Some(_) => None,
                None => Some(Svma::new(word)),
            };
            entries.extend(target);
        }
    }
    entries
}

/// Whether there is nothing but what assemblers and linkers fill with.
fn is_filler(image: &Image, range: SvmaRange) -> bool {
    let Some(mut bytes) = image.read(range.start, range.len() as usize) else { return true };
    while let Some(first) = bytes.first() {
        let len = match fills_alone(*first) {
            true => 1,
            false => match first_insn(bytes, range.start) {
                Some(insn) if insn.padding => usize::from(insn.len),
                _ => return false,
            },
        };
        bytes = &bytes[len..];
    }
    true
}

/// The instructions that would begin at each byte of `range` that is not in `known`, if they name an address.
pub(crate) fn naming_at_any_byte(image: &Image, range: SvmaRange, known: &AddressSet) -> Vec<Insn> {
    let bytes = image.read(range.start, range.len() as usize).unwrap_or_default();
    let tail = |i: usize| &bytes[i..bytes.len().min(i + LONGEST)];
    let unknown = (0..bytes.len()).filter(|i| !known.contains(range.start + *i as u64));
    let decoded = unknown.filter_map(|i| first_insn(tail(i), range.start + i as u64));
    decoded.filter(|insn| insn.names.is_some()).collect()
}
