//! PLT stubs: code that jumps through a GOT slot, `[endbr64] [bnd] jmp *slot(%rip)`.
//!
//! They are recognised by their bytes, in the sections named `.plt*` and `.iplt`; in a file without section headers,
//! anywhere in executable segments, but then only where the loader fills the slot. A function that consists of such a
//! jump is found as well, which is harmless: it behaves like a stub.

use crate::bytes::i32_at;
use crate::relocation::{DynamicRelocation, RelocationKind};
use crate::section::Section;
use crate::view::View;
use restitch_address::{Svma, SvmaRange};
use std::sync::Arc;

/// A PLT stub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PltSlot {
    /// The stub's addresses, padding included: 8 or 16 bytes.
    pub stub: SvmaRange,
    /// The GOT slot that it jumps through.
    pub slot: Svma,
    /// The function that the slot is bound to, where a relocation names it (not for IFUNCs of the module itself).
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
            let Some((slot, len)) = stub(&code[offset..], range.start + offset as u64) else { continue };
            let relocation = relocation_at(relocations, slot);
            if must_be_relocated && relocation.is_none() || view.segment_at(slot).is_none() {
                continue;
            }
            let len = len.min(code.len() - offset) as u64;
            let stub = SvmaRange::new(range.start + offset as u64, len);
            found.push(PltSlot { stub, slot, name: relocation.and_then(bound_name) });
        }
    }
    found.sort_by_key(|s| s.stub.start);
    found.dedup_by_key(|s| s.stub.start);
    found
}

/// Slot and length in bytes, if a stub begins at the beginning of `code`, which is at `at`.
fn stub(code: &[u8], at: Svma) -> Option<(Svma, usize)> {
    let endbr = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let bnd = usize::from(code.get(endbr) == Some(&0xf2));
    let jump = endbr + bnd;
    if code.get(jump..jump + 2)? != [0xff, 0x25] {
        return None;
    }
    let displacement = i32_at(code, jump + 2)?;
    let end = jump + 6;
    let slot = (at + end as u64).offset(displacement.into());
    // `.plt.got` without endbr64: 6 bytes of jump, then `xchg %ax,%ax`.
    let is_short = end == 6 && code.get(6..8) == Some(&[0x66, 0x90]);
    Some((slot, if is_short { 8 } else { 16 }))
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
