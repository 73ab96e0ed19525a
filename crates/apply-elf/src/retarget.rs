//! Retargets into the version: displacements of branches that stay, addresses that the loader relocates, and
//! what makes the addresses of functions of which pointers lead to the copy: relocations, displacements of
//! `lea`, dynamic symbols. Of these either all are changed or the file is refused.

use crate::error::ElfError;
use crate::grow::Growth;
use object::elf;
use restitch_address::{Svma, SvmaRange};
use restitch_emit::{Retarget, RetargetKind, Version};
use restitch_image::bytes::u64_at;
use restitch_image::raw::{RELA_LEN, Rela, dynamic_entries};
use restitch_image::{ExportedSymbol, Image, RelocationKind};
use restitch_x86::elf::RELATIVE;
use restitch_x86::patch;
use std::collections::HashMap;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetargetWrite {
    /// Where the bytes are in the input: for a pointer, the relocation's addend, or (packed relocations) the
    /// pointer itself.
    pub at: Svma,
    /// The new bytes.
    pub after: Vec<u8>,
    /// What is changed by them.
    pub retarget: Retarget,
    /// What they are in is moved away so that the program header table can grow: the bytes change there.
    pub moved: bool,
}

/// The changes that the version asks for. What lies where this file cannot be changed is left out: the
/// redirects serve it.
pub(crate) fn writes(
    image: &Image,
    version: &Version,
    growth: Option<&Growth>,
) -> Result<Vec<RetargetWrite>, ElfError> {
    let mut addends = None;
    let moved: Vec<SvmaRange> = growth.map_or(Vec::new(), |growth| {
        growth.tables.iter().filter_map(|t| Some(image.sections().get(t.section)?.range)).collect()
    });
    let mut out = Vec::with_capacity(version.retargets.len());
    for retarget in &version.retargets {
        if !version.text.contains(retarget.to) {
            let why = "does not lead into the version";
            return Err(ElfError::BadRedirect { at: retarget.at, why });
        }
        let write = match retarget.kind {
            RetargetKind::Displacement | RetargetKind::Lea => displacement(image, retarget)?,
            RetargetKind::Pointer | RetargetKind::Function => {
                pointer(image, retarget, addends.get_or_insert_with(|| places(image)))
            }
            RetargetKind::Symbol => symbol(image, version, retarget),
        };
        let lies_in_moved = |w: &RetargetWrite| moved.iter().any(|range| range.contains(w.at));
        match write.map(|w| RetargetWrite { moved: lies_in_moved(&w), ..w }) {
            Some(write) if !write.moved || retarget.kind == RetargetKind::Symbol => out.push(write),
            _ if retarget.kind.is_optional() => {}
            _ => {
                return Err(ElfError::BadRedirect {
                    at: retarget.at,
                    why: "makes an address and cannot be changed",
                });
            }
        }
    }
    Ok(out)
}

/// `None` where the loader writes.
fn displacement(image: &Image, retarget: &Retarget) -> Result<Option<RetargetWrite>, ElfError> {
    let bad = |why| ElfError::BadRedirect { at: retarget.at, why };
    if !image.segment_at(retarget.at).is_some_and(|s| s.executable && !s.writable) {
        return Err(bad("is not in read-only code"));
    }
    if !image.relocations_in(SvmaRange::new(retarget.at.offset(-7), 11)).is_empty() {
        return Ok(None);
    }
    let field = patch::displacement(retarget.to.offset_from(retarget.at));
    let after = field.ok_or_else(|| bad("does not reach the version"))?.to_vec();
    Ok(Some(RetargetWrite { at: retarget.at, after, retarget: *retarget, moved: false }))
}

/// `None` where no symbol has that value.
fn symbol(image: &Image, version: &Version, retarget: &Retarget) -> Option<RetargetWrite> {
    let value = |s: &ExportedSymbol| s.entry + ExportedSymbol::VALUE == retarget.at;
    image.exported().iter().find(|s| value(s) && s.value == retarget.original)?;
    let function = version.retargeted.binary_search_by_key(&retarget.original, |l| l.original).ok()?;
    let mut after = retarget.to.get().to_le_bytes().to_vec();
    after.extend(version.retargeted[function].len.to_le_bytes());
    Some(RetargetWrite { at: retarget.at, after, retarget: *retarget, moved: false })
}

/// `None` where the relocation is not found, or is another one.
fn pointer(image: &Image, retarget: &Retarget, addends: &HashMap<Svma, Svma>) -> Option<RetargetWrite> {
    let says = image.relocation_at(retarget.at).map(|r| &r.kind);
    let at = addends.get(&retarget.at).copied().unwrap_or(retarget.at);
    let holds = image.read_u64(at) == Some(retarget.original.get());
    let as_known = says == Some(&RelocationKind::Relative { target: retarget.original }) && holds;
    let after = retarget.to.get().to_le_bytes().to_vec();
    as_known.then_some(RetargetWrite { at, after, retarget: *retarget, moved: false })
}

/// The addend of each relative relocation of DT_RELA, by the place that it is for.
fn places(image: &Image) -> HashMap<Svma, Svma> {
    let mut out = HashMap::new();
    let Some((start, bytes)) = table(image) else { return out };
    let entries = bytes.chunks_exact(RELA_LEN).filter_map(Rela::read).enumerate();
    for (i, entry) in entries.filter(|(_, entry)| entry.kind == RELATIVE) {
        out.entry(entry.at).or_insert(start + (i * RELA_LEN) as u64 + Rela::ADDEND);
    }
    out
}

/// DT_RELA.
fn table(image: &Image) -> Option<(Svma, &[u8])> {
    let dynamic = image.program_headers().iter().find(|h| h.kind == elf::PT_DYNAMIC)?;
    let entries = image.read(dynamic.address, usize::try_from(dynamic.file_len).ok()?)?;
    let value = |tag: u32| dynamic_entries(entries).find(|e| e.0 == u64::from(tag)).map(|e| e.1);
    let start = Svma::new(value(elf::DT_RELA)?);
    Some((start, image.read(start, usize::try_from(value(elf::DT_RELASZ)?).ok()?)?))
}

/// The first change that `output` does not have.
pub(crate) fn missing(writes: &[RetargetWrite], input: &Image, output: &Image) -> Option<Svma> {
    let symbols: HashMap<Svma, (Svma, u64)> =
        input.exported().iter().zip(output.exported()).map(|(i, o)| (i.entry, (o.value, o.len))).collect();
    let is_there = |w: &RetargetWrite| {
        let relocated = match w.retarget.kind {
            RetargetKind::Displacement | RetargetKind::Lea => true,
            RetargetKind::Pointer | RetargetKind::Function => {
                let says = output.relocation_at(w.retarget.at).map(|r| &r.kind);
                says == Some(&RelocationKind::Relative { target: w.retarget.to })
            }
            RetargetKind::Symbol => {
                let entry = Svma::new(w.at.get() - ExportedSymbol::VALUE);
                let says = symbols.get(&entry).is_some_and(|says| Some(says.1) == u64_at(&w.after, 8));
                says && symbols[&entry].0 == w.retarget.to
            }
        };
        relocated && (w.moved || output.read(w.at, w.after.len()) == Some(&w.after))
    };
    writes.iter().find(|w| !is_there(w)).map(|w| w.retarget.at)
}
