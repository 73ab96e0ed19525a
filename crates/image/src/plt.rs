//! PLT stubs: code that jumps through a GOT slot.
//!
//! They are recognised by their bytes, in the sections named `.plt*` and `.iplt`; in a file without section
//! headers, anywhere in executable segments, but then only where the loader fills the slot. A function that
//! consists of such a jump is found as well, which is harmless: it behaves like a stub.

use crate::relocation::{DynamicRelocation, RelocationKind};
use crate::section::Section;
use crate::view::View;
use restitch_address::{Svma, SvmaRange};
use restitch_x86::slot::plt_stub;
use std::sync::Arc;

/// A PLT stub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PltSlot {
    /// The stub's addresses, padding included: 8 or 16 bytes.
    pub stub: SvmaRange,
    /// The GOT slot that it jumps through.
    pub slot: Svma,
    /// The function that the slot is bound to, where a relocation names it (not for IFUNCs of the module
    /// itself).
    pub name: Option<Arc<str>>,
}

/// All stubs, sorted by address.
pub(crate) fn plt_slots(
    view: View<'_>,
    sections: &[Section],
    executable: &[SvmaRange],
    relocations: &[DynamicRelocation],
) -> Vec<PltSlot> {
    let is_plt = |s: &&Section| s.is_code() && (s.name.starts_with(".plt") || s.name == ".iplt");
    let named = sections.iter().filter(is_plt).map(|s| s.range);
    let (ranges, must_be_relocated): (Vec<_>, bool) = match sections.is_empty() {
        true => (executable.to_vec(), true),
        false => (named.collect(), false),
    };
    let mut found = Vec::new();
    for range in ranges {
        let code = view.up_to(range.start, range.len());
        for offset in (0..code.len()).step_by(8) {
            let Some(stub) = plt_stub(&code[offset..]) else { continue };
            let slot = (range.start + offset as u64).offset(stub.slot);
            let relocation = relocation_at(relocations, slot);
            if must_be_relocated && relocation.is_none() || view.segment_at(slot).is_none() {
                continue;
            }
            let len = stub.len.min(code.len() - offset) as u64;
            let stub = SvmaRange::new(range.start + offset as u64, len);
            found.push(PltSlot { stub, slot, name: relocation.and_then(bound_name) });
        }
    }
    found.sort_by_key(|s| s.stub.start);
    found.dedup_by_key(|s| s.stub.start);
    found
}

pub(crate) fn relocation_at(relocations: &[DynamicRelocation], at: Svma) -> Option<&DynamicRelocation> {
    let i = relocations.partition_point(|r| r.at < at);
    relocations.get(i).filter(|r| r.at == at)
}

fn bound_name(relocation: &DynamicRelocation) -> Option<Arc<str>> {
    match &relocation.kind {
        RelocationKind::JumpSlot { name, .. } | RelocationKind::Symbolic { name, .. } if !name.is_empty() => {
            Some(name.clone())
        }
        _ => None,
    }
}
