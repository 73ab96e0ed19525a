//! Reading an output file back.

use crate::mismatch::Mismatch;
use crate::note::{is_restitch_output, original_bytes};
use crate::plan::ElfPlan;
use object::elf;
use restitch_address::Svma;
use restitch_cfi::{UnwindInfo, read_eh_frame_hdr};
use restitch_image::Image;
use std::collections::HashMap;
use std::ops::Range;

/// Compares `output`, read back from a file, with its plan, and proves that it can be turned back.
///
/// # Errors
/// The first [`Mismatch`].
pub fn verify(plan: &ElfPlan, output: &Image) -> Result<(), Mismatch> {
    segment(plan, output)?;
    patches(plan, output)?;
    headers(plan, output)?;
    if is_restitch_output(output).as_ref() != Some(&plan.note) {
        return Err(Mismatch::Note);
    }
    let restored = original_bytes(output).map_err(|e| Mismatch::Revert(e.into()))?;
    if restored != plan.original.data() {
        return Err(Mismatch::Revert("some bytes differ".into()));
    }
    unwinding(plan, output)
}

fn segment(plan: &ElfPlan, output: &Image) -> Result<(), Mismatch> {
    let range = plan.segment.range();
    let there = output.read(range.start, plan.segment.bytes.len());
    let mapped = output.segment_at(range.start).is_some_and(|s| s.executable && !s.writable);
    let planned = &plan.segment.bytes;
    let equal = there.is_some_and(|there| match moved_table(plan) {
        None => there == planned,
        Some(table) => {
            there[..table.start] == planned[..table.start] && there[table.end..] == planned[table.end..]
        }
    });
    if equal && mapped { Ok(()) } else { Err(Mismatch::Segment(range)) }
}

/// Where a moved program header table lies in the segment; it is compared as headers.
fn moved_table(plan: &ElfPlan) -> Option<Range<usize>> {
    let start = plan.table_offset.get().checked_sub(plan.segment.file_offset.get())? as usize;
    let end = start + plan.headers.len() * restitch_image::raw::PHDR_LEN;
    (plan.moves_program_headers() && end <= plan.segment.bytes.len()).then_some(start..end)
}

fn patches(plan: &ElfPlan, output: &Image) -> Result<(), Mismatch> {
    for write in &plan.redirects {
        if output.read(write.at, write.after.len()) != Some(&write.after) {
            return Err(Mismatch::Patch(write.at));
        }
    }
    if let Some(at) = crate::retarget::missing(&plan.retargets, &plan.original, output) {
        return Err(Mismatch::Patch(at));
    }
    for (offset, bytes) in plan.startup.iter().filter_map(|s| s.patch()) {
        let at = output.address_of(offset).unwrap_or_default();
        if output.read(at, bytes.len()) != Some(&bytes) {
            return Err(Mismatch::Patch(at));
        }
    }
    for r in &plan.registrations {
        if output.read_u32(r.operand) != Some(r.after) {
            return Err(Mismatch::Patch(r.operand));
        }
    }
    Ok(())
}

fn headers(plan: &ElfPlan, output: &Image) -> Result<(), Mismatch> {
    let there = output.program_headers();
    if there != plan.headers {
        return Err(Mismatch::Headers("they are not the planned ones"));
    }
    let entry = plan.startup.as_ref().and_then(|s| s.entry()).unwrap_or(plan.original.entry());
    if output.entry() != entry {
        return Err(Mismatch::Headers("the entry point is another one"));
    }
    let loads: Vec<_> = there.iter().filter(|h| h.kind == elf::PT_LOAD).map(|h| h.address).collect();
    if !loads.is_sorted() {
        return Err(Mismatch::Headers("segments are not sorted"));
    }
    let count = |image: &Image, kind| image.program_headers().iter().filter(|h| h.kind == kind).count();
    let kept = [elf::PT_GNU_STACK, elf::PT_TLS, elf::PT_GNU_RELRO, elf::PT_INTERP, elf::PT_DYNAMIC];
    if kept.iter().any(|kind| count(output, *kind) != count(&plan.original, *kind)) {
        return Err(Mismatch::Headers("one that is needed is missing"));
    }
    if output.build_id() != plan.original.build_id() || output.kind() != plan.original.kind() {
        return Err(Mismatch::Headers("the build id or the kind of file is another one"));
    }
    Ok(())
}

/// Every entry of the input is there with the same range and handlers, and the search table is sorted and
/// complete.
fn unwinding(plan: &ElfPlan, output: &Image) -> Result<(), Mismatch> {
    let Some(new) = plan.segment.parts.iter().find(|p| p.name == ".eh_frame") else { return Ok(()) };
    let failed = |at, why| Mismatch::Unwind { at, why };
    // A section may end without a terminator, so its end counts, where it is known.
    let read = |image: &Image| {
        let range = image.eh_frame().unwrap_or_default();
        let bytes = usize::try_from(range.len()).ok().and_then(|len| image.read(range.start, len));
        UnwindInfo::parse(bytes.unwrap_or_default(), range.start)
    };
    let new_info = read(output).map_err(|_| failed(new.range.start, "the tables are damaged"))?;
    let old_at = plan.original.eh_frame().map_or(new.range.start, |r| r.start);
    let old_info = read(&plan.original).map_err(|_| failed(old_at, "the original tables are damaged"))?;
    for old in old_info.entries() {
        let same = new_info.find(old.range.start).is_some_and(|e| {
            (e.range, e.personality, e.lsda, e.signal_frame)
                == (old.range, old.personality, old.lsda, old.signal_frame)
        });
        if !same {
            return Err(failed(old.range.start, "an entry of the original is missing or differs"));
        }
    }
    let Some(hdr) = output.eh_frame_hdr().filter(|_| plan.original.eh_frame_hdr().is_some()) else {
        return Ok(());
    };
    let hdr = read_eh_frame_hdr(&|at: Svma| output.read_tail(at), hdr.start)
        .map_err(|_| failed(hdr.start, "the search table is damaged"))?;
    if !hdr.entries.is_sorted() {
        return Err(failed(hdr.eh_frame, "the search table is not sorted"));
    }
    let table: HashMap<_, _> = hdr.entries.into_iter().collect();
    let added = plan.segment.range();
    for entry in new_info.entries().iter().filter(|e| added.contains(e.range.start)) {
        if table.get(&entry.range.start) != Some(&entry.fde) {
            return Err(failed(entry.range.start, "an entry of the version is not in the search table"));
        }
    }
    Ok(())
}
