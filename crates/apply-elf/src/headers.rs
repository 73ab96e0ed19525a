//! The program headers of the output.
//!
//! Problem: one more PT_LOAD is needed, and the table has no room: the linker puts `.interp` or notes right
//! behind it.
//!
//! Idea: some headers can be spared. In the order in which they are taken:
//! 1. a PT_NULL or an empty PT_LOAD: nothing reads it;
//! 2. a PT_GNU_PROPERTY whose bytes a PT_NOTE also covers: glibc reads the note when there is no
//!    PT_GNU_PROPERTY (`_dl_process_pt_note`), and the x86 kernel reads neither;
//! 3. a PT_NOTE that holds nothing but an ABI tag: glibc up to 2.35 compares it with the kernel's version;
//! 4. none: the table grows in place, where what is behind it can be moved (`grow.rs`);
//! 5. a PT_GNU_PROPERTY on its own: costs the IBT and shadow-stack marks, so that the process runs without;
//! 6. PT_PHDR of a program at fixed addresses: loaders take the load bias from it, which is 0 without.
//!
//! Never taken: PT_GNU_STACK (glibc would make stacks executable), PT_GNU_RELRO, PT_TLS, PT_DYNAMIC,
//! PT_INTERP, the PT_NOTE of the build id.
//!
//! If nothing helps, the table moves into the new segment. Kernels before 5.18 compute AT_PHDR as the first
//! segment's address plus `e_phoff`, newer ones look for the segment that holds `e_phoff`, and glibc takes
//! the load bias from AT_PHDR minus PT_PHDR's address: all agree if the table's file offset is its address
//! minus that of the file's first byte.

use crate::grow::Growth;
use crate::options::OutputOptions;
use crate::segment::NewSegment;
use object::elf;
use restitch_address::{FileOffset, Svma, SvmaRange};
use restitch_image::raw;
use restitch_image::{Image, ImageKind, ProgramHeader};

/// Where the new segment's header goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// In place of the header with this index.
    Reuse(usize),
    /// Into a longer table in the same place.
    Grow(Growth),
    /// Into a longer table in the new segment.
    Move,
}

impl Slot {
    pub fn choose(image: &Image, options: &OutputOptions) -> Self {
        if options.move_program_headers {
            return Self::Move;
        }
        let headers = image.program_headers();
        let find = |test: &dyn Fn(&ProgramHeader) -> bool| headers.iter().position(test).map(Self::Reuse);
        let unused = |h: &ProgramHeader| match h.kind {
            elf::PT_NULL => true,
            elf::PT_LOAD => h.memory_len == 0,
            _ => false,
        };
        let is_property = |h: &ProgramHeader| h.kind == elf::PT_GNU_PROPERTY;
        let redundant = |h: &ProgramHeader| {
            is_property(h) && headers.iter().any(|n| n.kind == elf::PT_NOTE && covers(n, h))
        };
        let abi_tag = |h: &ProgramHeader| holds_only(image, h, elf::NT_GNU_ABI_TAG);
        let fixed = image.kind() == ImageKind::Executable;
        let phdr = |h: &ProgramHeader| fixed && h.kind == elf::PT_PHDR;
        find(&unused)
            .or_else(|| find(&redundant))
            .or_else(|| find(&abi_tag))
            .or_else(|| Growth::find(image).map(Self::Grow))
            .or_else(|| find(&is_property))
            .or_else(|| find(&phdr))
            .unwrap_or(Self::Move)
    }

    /// Whether the header with this index gives way.
    fn replaces(&self, index: usize) -> bool {
        *self == Self::Reuse(index)
    }

    /// What moves within the file so that the table can grow.
    pub fn growth(&self) -> Option<&Growth> {
        if let Self::Grow(growth) = self { Some(growth) } else { None }
    }
}

fn covers(outer: &ProgramHeader, inner: &ProgramHeader) -> bool {
    outer.offset <= inner.offset
        && inner.offset.get().saturating_add(inner.file_len)
            <= outer.offset.get().saturating_add(outer.file_len)
}

/// Whether `header` is a PT_NOTE of GNU notes of this type only.
fn holds_only(image: &Image, header: &ProgramHeader, kind: u32) -> bool {
    let Some(bytes) = note_bytes(image, header) else { return false };
    let mut notes = raw::notes(bytes, header.align).peekable();
    notes.peek().is_some() && notes.all(|n| n.kind == kind && n.name == b"GNU\0")
}

fn note_bytes<'a>(image: &'a Image, header: &ProgramHeader) -> Option<&'a [u8]> {
    (header.kind == elf::PT_NOTE).then(|| raw::slice(image.data(), header.offset.get(), header.file_len))?
}

/// The PT_NOTE, other than `slot`, that can move into the new segment to share it with restitch's note: one
/// that holds nothing that the kernel wants in the file's first page (the build id), for example the GNU
/// property.
pub(crate) fn note_host<'a>(image: &'a Image, slot: &Slot) -> Option<(usize, &'a [u8])> {
    image.program_headers().iter().enumerate().find_map(|(i, h)| {
        let movable =
            holds_only(image, h, elf::NT_GNU_PROPERTY_TYPE_0) || holds_only(image, h, elf::NT_GNU_ABI_TAG);
        let bytes = note_bytes(image, h)?;
        let whole = bytes.len().is_multiple_of(if h.align == 8 { 8 } else { 4 });
        (movable && whole && !slot.replaces(i)).then_some((i, bytes))
    })
}

/// The file offset at which all loaders find a program header table at `at`.
pub(crate) fn congruent_offset(image: &Image, at: Svma) -> Option<FileOffset> {
    let first = image.segments().first()?;
    let base = first.range.start.get().wrapping_sub(first.file_offset.get());
    at.get().checked_sub(base).map(FileOffset::new)
}

/// Places in the new segment that headers point to.
pub(crate) struct Targets {
    /// The header (by index in the original table) that becomes the note's, and where its notes are.
    pub note: Option<(usize, SvmaRange)>,
    /// The new `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<SvmaRange>,
    /// The moved table itself.
    pub table: Option<SvmaRange>,
    /// Where the last segment of the original ends in memory, if it grows by counters.
    pub data_end: Option<Svma>,
}

/// The headers of the output, in order.
pub(crate) fn build(
    image: &Image,
    slot: &Slot,
    segment: &NewSegment,
    targets: &Targets,
) -> Vec<ProgramHeader> {
    let mut out = Vec::with_capacity(image.program_headers().len() + 1);
    let last_load = image
        .program_headers()
        .iter()
        .enumerate()
        .rposition(|(i, h)| h.kind == elf::PT_LOAD && !slot.replaces(i));
    for (i, header) in image.program_headers().iter().enumerate() {
        if !slot.replaces(i) {
            let mut header = slot.growth().map_or(*header, |growth| grown(header, growth));
            if let Some(end) = targets.data_end.filter(|_| Some(i) == last_load) {
                header.memory_len = end.get() - header.address.get();
            }
            out.push(redirected(i, &header, segment, targets));
        }
        if Some(i) == last_load {
            out.push(load(segment));
        }
    }
    out
}

/// `header` after the table has grown in place.
fn grown(header: &ProgramHeader, growth: &Growth) -> ProgramHeader {
    match header.kind {
        elf::PT_PHDR => ProgramHeader {
            file_len: header.file_len + Growth::BY,
            memory_len: header.memory_len + Growth::BY,
            ..*header
        },
        elf::PT_LOAD => *header,
        _ if growth.shifts(header.offset) && header.file_len != 0 => ProgramHeader {
            offset: header.offset + Growth::BY,
            address: header.address + Growth::BY,
            ..*header
        },
        _ => *header,
    }
}

fn load(segment: &NewSegment) -> ProgramHeader {
    let len = segment.bytes.len() as u64;
    ProgramHeader {
        kind: elf::PT_LOAD,
        flags: elf::PF_R | elf::PF_X,
        offset: segment.file_offset,
        address: segment.start,
        file_len: len,
        memory_len: len,
        align: segment.align,
    }
}

/// `header`, pointing into the new segment if what it describes is there now.
fn redirected(
    index: usize,
    header: &ProgramHeader,
    segment: &NewSegment,
    targets: &Targets,
) -> ProgramHeader {
    let new = match header.kind {
        elf::PT_GNU_EH_FRAME => targets.eh_frame_hdr,
        elf::PT_PHDR => targets.table,
        elf::PT_NOTE => targets.note.filter(|n| n.0 == index).map(|n| n.1),
        _ => None,
    };
    let Some(range) = new else { return *header };
    ProgramHeader {
        offset: segment.offset_of(range.start),
        address: range.start,
        file_len: range.len(),
        memory_len: range.len(),
        ..*header
    }
}
