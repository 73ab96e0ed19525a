//! Counters that outlive the process: a shared file mapped over them at the start.
//!
//! Problem: a counting version's counters are words of the module's memory, lost when the process ends.
//!
//! Idea: the file's last data segment grows (in memory only, like `.bss`) by the counter area, so that
//! counting is right from the first instruction on, whatever happens. A routine of 242 bytes (`startup.s`)
//! runs before anything else of the module and maps a file over that area, shared, if the file is there, is
//! the one that was made for this version, and has the right length. All processes that run the module then
//! count in the same words.
//!
//! Where it is entered: in programs at `e_entry`; in libraries as DT_INIT, which loaders call before the
//! constructors, added in place of a spare DT_NULL where there is none. What runs before that (resolvers of
//! indirect functions) is counted in private memory and lost.
//!
//! The path is fixed when the file is written; nothing of the process's environment decides which file is
//! opened.

use crate::error::ElfError;
use crate::segment::NewSegment;
use object::elf;
use restitch_address::{FileOffset, PAGE, Svma, SvmaRange};
use restitch_emit::Version;
use restitch_image::raw;
use restitch_image::{Image, ImageKind};
use restitch_x86::patch::{BREAKPOINT, Patch};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file that a counting version counts in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountsSource {
    /// Its absolute path, at run time.
    pub path: PathBuf,
    /// Its first bytes. A file that begins with others is left alone.
    pub identity: [u8; 64],
    /// Where its counters start: a multiple of the page size. They take whole pages.
    pub counters: FileOffset,
    /// Its length in bytes. A file of another length is left alone.
    pub len: u64,
}

/// Where the loader goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// A program's entry point, and what it was.
    Program(Svma),
    /// The dynamic entry at this file offset becomes DT_INIT; what it was.
    Initializer(FileOffset, Option<Svma>),
}

/// What a counting file has beside its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Startup {
    /// The routine, with its data.
    pub range: SvmaRange,
    pub entrance: Entrance,
    /// New end of the last data segment: that of the counters.
    pub data_end: Svma,
}

impl Startup {
    /// The new entry point, if it is one.
    pub fn entry(&self) -> Option<Svma> {
        matches!(self.entrance, Entrance::Program(_)).then_some(self.range.start)
    }
    /// The change of the dynamic section, if it is one.
    pub fn patch(&self) -> Option<(FileOffset, Vec<u8>)> {
        let Entrance::Initializer(at, _) = self.entrance else { return None };
        let mut entry = u64::from(elf::DT_INIT).to_le_bytes().to_vec();
        entry.extend(self.range.start.get().to_le_bytes());
        Some((at, entry))
    }
}

/// The pages of a counter area.
pub(crate) fn pages(area: SvmaRange) -> SvmaRange {
    SvmaRange::between(area.start, area.end.align_up(PAGE))
}

/// Appends the routine for `version`'s counters to `segment`.
pub(crate) fn append(
    image: &Image,
    version: &Version,
    source: &CountsSource,
    segment: &mut NewSegment,
) -> Result<Startup, ElfError> {
    let misplaced = |why| ElfError::Misplaced { at: version.range.start, why };
    let counters = version.counters.as_ref().ok_or(misplaced("it counts nothing"))?;
    let area = pages(counters.area);
    if !can_grow(image) {
        return Err(ElfError::NoRoomForCounters);
    }
    if area.start < image.span().end
        || version.range.start < area.end
        || !area.start.get().is_multiple_of(PAGE)
    {
        return Err(misplaced("its counters are not behind the last segment and before it"));
    }
    check_source(source, area.len())?;
    let entrance = entrance(image)?;
    let start = segment.aligned_end(16);
    let range = segment.append(&routine(start, area, source, entrance)?);
    segment.name_executable(".init.restitch", range, 16);
    Ok(Startup { range, entrance, data_end: area.end })
}

/// Whether the last segment is one of data, so that it can be longer in memory.
pub(crate) fn can_grow(image: &Image) -> bool {
    image.segments().last().is_some_and(|s| s.writable && !s.executable)
}

fn check_source(source: &CountsSource, area: u64) -> Result<(), ElfError> {
    let bytes = source.path.as_os_str().as_bytes();
    let offset = source.counters.get();
    let fits = offset.checked_add(area).is_some_and(|end| end <= source.len);
    if !source.path.is_absolute() || bytes.contains(&0) || bytes.len() >= 4096 {
        return Err(ElfError::CountsPath(source.path.clone()));
    }
    if !fits || offset < 64 || !offset.is_multiple_of(PAGE) {
        return Err(ElfError::Malformed { what: "the counts file does not hold the counters" });
    }
    Ok(())
}

fn entrance(image: &Image) -> Result<Entrance, ElfError> {
    let is_program = match image.kind() {
        ImageKind::Executable => true,
        _ => image.dynamic().pie || (image.interpreter().is_some() && image.soname().is_none()),
    };
    if is_program {
        return match image.segment_at(image.entry()) {
            Some(s) if s.executable => Ok(Entrance::Program(image.entry())),
            _ => Err(ElfError::Malformed { what: "its entry point is not in its code" }),
        };
    }
    initializer(image).ok_or(ElfError::NoInitializer)
}

/// DT_INIT, or the first of two DT_NULLs.
fn initializer(image: &Image) -> Option<Entrance> {
    let header = image.program_headers().iter().find(|h| h.kind == elf::PT_DYNAMIC)?;
    let table = raw::slice(image.data(), header.offset.get(), header.file_len)?;
    let mut entries = raw::dynamic_entries(table).enumerate();
    let is_end = |tag: u64| tag == u64::from(elf::DT_NULL);
    let (index, (tag, value)) =
        entries.find(|(_, entry)| is_end(entry.0) || entry.0 == u64::from(elf::DT_INIT))?;
    let offset = header.offset + (index * raw::DYN_LEN) as u64;
    if !is_end(tag) {
        return Some(Entrance::Initializer(offset, Some(Svma::new(value))));
    }
    let (_, (next, _)) = entries.next()?;
    is_end(next).then_some(Entrance::Initializer(offset, None))
}

/// `ret`.
const RETURN: u8 = 0xc3;

/// The routine's bytes for the address `start`.
fn routine(
    start: Svma,
    area: SvmaRange,
    source: &CountsSource,
    entrance: Entrance,
) -> Result<Vec<u8>, ElfError> {
    let mut out = CODE.to_vec();
    let end = start + out.len() as u64;
    let next = match entrance {
        Entrance::Program(at) | Entrance::Initializer(_, Some(at)) => Some(at),
        Entrance::Initializer(_, None) => None,
    };
    match next {
        Some(at) => {
            let far = ElfError::BadRedirect { at, why: "is not in reach of the routine in front of it" };
            out.extend(Patch::jump(at.offset_from(end)).ok_or(far)?.bytes());
        }
        None => {
            out.push(RETURN);
            out.resize(CODE.len() + Patch::LEN, BREAKPOINT);
        }
    }
    out.resize(out.len().next_multiple_of(8), BREAKPOINT);
    out.extend(area.start.offset_from(start).to_le_bytes());
    for field in [area.len(), source.counters.get(), source.len - 1] {
        out.extend(field.to_le_bytes());
    }
    out.extend(source.identity);
    out.extend(source.path.as_os_str().as_bytes());
    out.push(0);
    Ok(out)
}

/// `startup.s`, up to the label `end`.
#[rustfmt::skip]
const CODE: [u8; 242] = [
    0xf3, 0x0f, 0x1e, 0xfa, 0x9c, 0xfc, 0x50, 0x51, 0x52, 0x53, 0x56, 0x57, 0x41, 0x50, 0x41, 0x51,
    0x41, 0x52, 0x41, 0x53, 0x48, 0x83, 0xec, 0x40, 0xb8, 0x01, 0x01, 0x00, 0x00, 0xbf, 0x9c, 0xff,
    0xff, 0xff, 0x48, 0x8d, 0x35, 0x2f, 0x01, 0x00, 0x00, 0xba, 0x02, 0x09, 0x08, 0x00, 0x45, 0x31,
    0xd2, 0x0f, 0x05, 0x85, 0xc0, 0x0f, 0x88, 0xa4, 0x00, 0x00, 0x00, 0x89, 0xc3, 0xb8, 0x11, 0x00,
    0x00, 0x00, 0x89, 0xdf, 0x48, 0x89, 0xe6, 0xba, 0x40, 0x00, 0x00, 0x00, 0x45, 0x31, 0xd2, 0x0f,
    0x05, 0x48, 0x83, 0xf8, 0x40, 0x75, 0x7f, 0x48, 0x8d, 0x35, 0xba, 0x00, 0x00, 0x00, 0x48, 0x89,
    0xe7, 0xb9, 0x08, 0x00, 0x00, 0x00, 0xf3, 0x48, 0xa7, 0x75, 0x6b, 0xb8, 0x11, 0x00, 0x00, 0x00,
    0x89, 0xdf, 0x48, 0x89, 0xe6, 0xba, 0x02, 0x00, 0x00, 0x00, 0x4c, 0x8b, 0x15, 0x8f, 0x00, 0x00,
    0x00, 0x0f, 0x05, 0x48, 0x83, 0xf8, 0x01, 0x75, 0x4d, 0xb8, 0x09, 0x00, 0x00, 0x00, 0x48, 0x8d,
    0x3d, 0x6b, 0xff, 0xff, 0xff, 0x48, 0x03, 0x3d, 0x5c, 0x00, 0x00, 0x00, 0x48, 0x8b, 0x35, 0x5d,
    0x00, 0x00, 0x00, 0xba, 0x03, 0x00, 0x00, 0x00, 0x41, 0xba, 0x11, 0x00, 0x00, 0x00, 0x41, 0x89,
    0xd8, 0x4c, 0x8b, 0x0d, 0x50, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x39, 0xf8, 0x74, 0x17, 0xb8,
    0x09, 0x00, 0x00, 0x00, 0x41, 0xba, 0x32, 0x00, 0x00, 0x00, 0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff,
    0xff, 0x45, 0x31, 0xc9, 0x0f, 0x05, 0xb8, 0x03, 0x00, 0x00, 0x00, 0x89, 0xdf, 0x0f, 0x05, 0x48,
    0x83, 0xc4, 0x40, 0x41, 0x5b, 0x41, 0x5a, 0x41, 0x59, 0x41, 0x58, 0x5f, 0x5e, 0x5b, 0x5a, 0x59,
    0x58, 0x9d,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_source() {
        let folder = restitch_testkit::scratch();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/startup.s");
        let object = folder.path().join("startup.o");
        let assembled = std::process::Command::new("as").arg(source).arg("-o").arg(&object).status();
        let status = restitch_testkit::require!(assembled.ok(), "no assembler");
        assert!(status.success());
        let bytes = std::fs::read(&object).unwrap();
        let sections = raw::FileHeader::read(&bytes).unwrap().sh_offset as usize;
        // The first section after the null one is .text.
        let text = raw::SectionHeader::read(&bytes[sections + raw::SHDR_LEN..]).unwrap();
        let text = text.bytes(&bytes).unwrap();
        assert_eq!(&text[..CODE.len()], CODE);
        assert_eq!(text.len(), (CODE.len() + 5).next_multiple_of(8) + 4 * 8 + 64);
    }
}
