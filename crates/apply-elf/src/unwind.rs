//! The unwind tables of the output: one `.eh_frame` with all records of the input and those of the version.
//!
//! The run time finds them in one of two ways:
//! * PT_GNU_EH_FRAME leads to `.eh_frame_hdr`, a sorted table: it is written anew over old and new entries;
//! * GCC's static programs at fixed addresses have none. There, `crtbeginT.o` passes the start of its part of
//!   the `.eh_frame` to `__register_frame_info` (and again to `__deregister_frame_info`), which then walks
//!   the records up to the terminator: the two `mov $address,%edi` are changed to the same record of the new
//!   table.

use crate::error::ElfError;
use crate::segment::NewSegment;
use object::elf;
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{EhFrame, UnwindInfo, read_eh_frame_hdr, relocate_eh_frame, write_eh_frame_hdr};
use restitch_emit::Version;
use restitch_image::bytes::{u32_at, u64_at};
use restitch_image::raw;
use restitch_image::{Image, ImageKind};
use restitch_x86::possible::{ARGUMENT, ARGUMENT_NUMBER_AT, Argument, possible_argument};

/// The new tables and what has to lead to them.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub eh_frame_hdr: Option<SvmaRange>,
    pub registrations: Vec<Registration>,
}

/// A 32-bit operand that holds the address of the registered unwind tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registration {
    pub operand: Svma,
    pub before: u32,
    pub after: u32,
}

/// Appends the new tables to `segment`.
pub(crate) fn append(image: &Image, version: &Version, segment: &mut NewSegment) -> Result<Tables, ElfError> {
    let Some(old) = image.eh_frame() else { return Ok(Tables::default()) };
    if image.kind() != ImageKind::Executable && !image.relocations_in(old).is_empty() {
        return Err(ElfError::RelocatedUnwindTables(old));
    }
    let old_bytes = usize::try_from(old.len()).ok().and_then(|len| image.read(old.start, len));
    let old_bytes = old_bytes.ok_or(ElfError::Malformed { what: "its unwind tables are not in the file" })?;
    let registered =
        has_header(image).then(Vec::new).map_or_else(|| sites(image, version, old, old_bytes), Ok)?;

    let at = segment.aligned_end(8);
    let moved = relocate_eh_frame(old_bytes, old.start, at)?;
    let added = version_tables(version, at + moved.bytes.len() as u64)?;
    let mut bytes = moved.bytes.clone();
    bytes.extend(&added.bytes);
    bytes.extend([0; 4]);
    let range = segment.append(&bytes);
    segment.name_part(".eh_frame", range, elf::SHT_PROGBITS, 8);

    let eh_frame_hdr = match image.eh_frame_hdr().filter(|_| has_header(image)) {
        None => None,
        Some(hdr) => {
            let mut entries = old_entries(image, hdr, old, &moved, range.start);
            entries.extend(&added.entries);
            let at = segment.aligned_end(4);
            let hdr = segment.append(&write_eh_frame_hdr(at, range.start, &entries)?);
            segment.name_part(".eh_frame_hdr", hdr, elf::SHT_PROGBITS, 4);
            Some(hdr)
        }
    };
    let registrations = registered
        .into_iter()
        .map(|(operand, before)| {
            let after = range.start + (u64::from(before) - old.start.get());
            let after = u32::try_from(after.get()).map_err(|_| ElfError::UnreachableUnwindTables)?;
            Ok(Registration { operand, before, after })
        })
        .collect::<Result<_, ElfError>>()?;
    Ok(Tables { eh_frame_hdr, registrations })
}

fn has_header(image: &Image) -> bool {
    image.program_headers().iter().any(|h| h.kind == elf::PT_GNU_EH_FRAME)
}

/// The version's own records, for the address `at`.
fn version_tables(version: &Version, at: Svma) -> Result<EhFrame, ElfError> {
    let offset = version.eh_frame.start.offset_from(version.range.start) as u64;
    let bytes = raw::slice(&version.bytes, offset, version.eh_frame.len());
    let bytes = bytes.ok_or(ElfError::Misplaced {
        at: version.range.start,
        why: "its unwind tables lie outside its bytes",
    })?;
    Ok(relocate_eh_frame(bytes, version.eh_frame.start, at)?)
}

/// The entries of the input's table, pointing to the copies of their records. What is not in the copied part
/// (records behind a terminator) goes on pointing to the original ones. Without a table, all records.
fn old_entries(
    image: &Image,
    hdr: SvmaRange,
    old: SvmaRange,
    moved: &EhFrame,
    new: Svma,
) -> Vec<(Svma, Svma)> {
    let table = read_eh_frame_hdr(&|at: Svma| image.read_tail(at), hdr.start).map(|hdr| hdr.entries);
    let table = table.unwrap_or_default();
    if table.is_empty() {
        return moved.entries.clone();
    }
    let copied = SvmaRange::new(old.start, moved.bytes.len() as u64);
    let follow = |fde: Svma| if copied.contains(fde) { new.offset(fde.offset_from(old.start)) } else { fde };
    table.into_iter().map(|(code, fde)| (code, follow(fde))).collect()
}

/// The operands that hold the address of the registered records, and that address.
///
/// # Errors
/// If there are none although the program can catch exceptions or run cleanups.
fn sites(
    image: &Image,
    version: &Version,
    old: SvmaRange,
    bytes: &[u8],
) -> Result<Vec<(Svma, u32)>, ElfError> {
    let found = registration_sites(image, old, bytes);
    let copied = |at: Svma| version.to_version(at.offset(-1)).is_some();
    if !found.is_empty() && !found.iter().any(|(at, _)| copied(*at)) {
        return Ok(found);
    }
    let handles = |info: UnwindInfo| info.entries().iter().any(|e| e.personality.is_some());
    if UnwindInfo::parse(bytes, old.start).map_or(true, handles) {
        return Err(ElfError::UnreachableUnwindTables);
    }
    Ok(Vec::new())
}

/// All `mov $record,%edi` (or `%rdi`), if they agree in the record and one of them is next to a
/// `mov $object,%esi`, as the call of `__register_frame_info(record, object)` needs it.
fn registration_sites(image: &Image, old: SvmaRange, bytes: &[u8]) -> Vec<(Svma, u32)> {
    let starts = record_starts(bytes);
    let is_record = |value: u32| {
        let at = Svma::new(value.into());
        old.contains(at) && starts.binary_search(&(at.offset_from(old.start) as usize)).is_ok()
    };
    let mut found = Vec::new();
    let mut registers = false;
    for range in image.executable_ranges() {
        let Some(code) = image.read(range.start, range.len() as usize) else { continue };
        for at in code
            .iter()
            .enumerate()
            .filter(|(_, b)| possible_argument(**b) == Some(Argument::First))
            .map(|(i, _)| i)
        {
            if let Some(value) = u32_at(code, at + ARGUMENT_NUMBER_AT).filter(|v| is_record(*v)) {
                registers |= loads_second(code, at.checked_sub(ARGUMENT))
                    || loads_second(code, at.checked_add(ARGUMENT));
                found.push((range.start + (at + ARGUMENT_NUMBER_AT) as u64, value));
            }
        }
    }
    let agree = found.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if registers && agree { found } else { Vec::new() }
}

/// Whether the instruction at `at` of the code, if there is such a place, loads a second argument.
fn loads_second(code: &[u8], at: Option<usize>) -> bool {
    let first = at.and_then(|at| code.get(at));
    first.is_some_and(|first| possible_argument(*first) == Some(Argument::Second))
}

/// The offsets at which records start, sorted.
fn record_starts(bytes: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut at = 0usize;
    while let Some(len) = u32_at(bytes, at) {
        let len = match len {
            0 => break,
            0xffff_ffff => u64_at(bytes, at + 4).and_then(|n| n.checked_add(12)),
            n => Some(u64::from(n) + 4),
        };
        starts.push(at);
        let next = len.and_then(|len| at.checked_add(usize::try_from(len).ok()?));
        let Some(next) = next else { break };
        at = next;
    }
    starts
}
