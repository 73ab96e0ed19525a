//! Where the unwind tables are (Linux Standard Base, `.eh_frame_hdr`). Their content belongs to the unwind
//! crate.

use crate::bytes::{i32_at, u32_at, u64_at};
use crate::raw::ProgramHeader;
use crate::section::Section;
use crate::view::View;
use object::elf;
use restitch_address::{Svma, SvmaRange};

/// `.eh_frame_hdr`: by PT_GNU_EH_FRAME, as the run-time system finds it, or by section.
pub(crate) fn eh_frame_hdr(
    view: View<'_>,
    headers: &[ProgramHeader],
    sections: &[Section],
) -> Option<SvmaRange> {
    let header = headers.iter().find(|p| p.kind == elf::PT_GNU_EH_FRAME);
    let stated = header.map(|p| SvmaRange::new(p.address, p.memory_len));
    let named = || loaded_section(sections, ".eh_frame_hdr");
    stated.or_else(named).filter(|r| is_in_file(view, r))
}

/// `.eh_frame`: by section, or by the pointer in `.eh_frame_hdr`, then up to the end of the segment.
pub(crate) fn eh_frame(view: View<'_>, sections: &[Section], hdr: Option<SvmaRange>) -> Option<SvmaRange> {
    let named = loaded_section(sections, ".eh_frame").filter(|r| is_in_file(view, r));
    named.or_else(|| {
        let start = eh_frame_pointer(view, hdr?.start)?;
        let tail = view.tail(start).filter(|t| !t.is_empty())?;
        Some(SvmaRange::new(start, tail.len() as u64))
    })
}

fn loaded_section(sections: &[Section], name: &str) -> Option<SvmaRange> {
    sections.iter().find(|s| s.name == name && s.is_loaded() && s.kind != elf::SHT_NOBITS).map(|s| s.range)
}

fn is_in_file(view: View<'_>, range: &SvmaRange) -> bool {
    !range.is_empty() && usize::try_from(range.len()).is_ok_and(|len| view.read(range.start, len).is_some())
}

/// The `eh_frame_ptr` field, in the encodings that linkers use: 4 or 8 bytes, absolute or relative to the
/// field or to the header.
fn eh_frame_pointer(view: View<'_>, hdr: Svma) -> Option<Svma> {
    let bytes = view.tail(hdr)?;
    let (version, encoding) = (*bytes.first()?, *bytes.get(1)?);
    if version != 1 {
        return None;
    }
    let value = match encoding & 0xf {
        0x0 | 0x4 | 0xc => u64_at(bytes, 4)? as i64,
        0x3 => i64::from(u32_at(bytes, 4)?),
        0xb => i64::from(i32_at(bytes, 4)?),
        _ => return None,
    };
    match encoding & 0xf0 {
        0x00 => Some(Svma::new(value as u64)),
        0x10 => Some((hdr + 4).offset(value)),
        0x30 => Some(hdr.offset(value)),
        _ => None,
    }
}
