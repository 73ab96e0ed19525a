//! `plan_output`: everything about the output file, computed before a byte of it is written.

use crate::appended::appended;
use crate::error::ElfError;
use crate::grow::Growth;
use crate::headers::{self, Slot, Targets, congruent_offset};
use crate::note::{self, Changed, NOTE_SECTION, RestitchNote, is_restitch_output};
use crate::options::OutputOptions;
use crate::place;
use crate::retarget::{self, RetargetWrite};
use crate::sections::{self, TEXT_SECTION, Tail};
use crate::segment::{NewSegment, Part};
use crate::startup::{self, CountsSource, Startup};
use crate::unwind::{self, Registration};
use object::elf;
use restitch_address::{FileOffset, PAGE, Svma, SvmaRange};
use restitch_apply::{CheckedVersion, Purpose, Write, redirect_write};
use restitch_emit::{LARGE_PAGE, Redirect, RedirectKind, Version};
use restitch_image::raw::{self, FileHeader, PHDR_LEN};
use restitch_image::{Image, ProgramHeader};
use restitch_x86::patch::Patch;

/// An output file, ready to be written.
#[derive(Debug, Clone)]
pub struct ElfPlan {
    pub(crate) original: Image,
    pub(crate) segment: NewSegment,
    pub(crate) headers: Vec<ProgramHeader>,
    pub(crate) table_offset: FileOffset,
    pub(crate) tail: Tail,
    pub(crate) note: RestitchNote,
    pub(crate) slot: Slot,
    pub(crate) redirects: Vec<Write>,
    pub(crate) retargets: Vec<RetargetWrite>,
    pub(crate) registrations: Vec<Registration>,
    /// Each place of the original that changes, except for headers, with its new bytes.
    pub(crate) patches: Vec<(FileOffset, Vec<u8>)>,
    /// For a counting file.
    pub(crate) startup: Option<Startup>,
}

impl ElfPlan {
    /// The bytes of the output file.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(self.original.data());
        for (offset, bytes) in &self.patches {
            put(&mut out, *offset, bytes);
        }
        out.resize(self.segment.file_offset.get() as usize, 0);
        out.extend_from_slice(&self.segment.bytes);
        out.extend_from_slice(&self.tail.bytes);
        put(&mut out, self.table_offset, &raw::program_header_bytes(&self.headers));
        self.file_header().write(&mut out);
        out
    }

    /// Length of the output file in bytes.
    pub fn len(&self) -> usize {
        self.segment.file_offset.get() as usize + self.segment.bytes.len() + self.tail.bytes.len()
    }
    /// Whether the output file is empty: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The addresses of the added segment.
    pub fn added(&self) -> SvmaRange {
        self.segment.range()
    }
    /// The jumps into the version, sorted by address.
    pub fn redirects(&self) -> &[Write] {
        &self.redirects
    }
    /// What the output will say about itself.
    pub fn note(&self) -> &RestitchNote {
        &self.note
    }
    /// Whether the program header table moves into the added segment, which some tools do not understand.
    pub fn moves_program_headers(&self) -> bool {
        self.slot == Slot::Move
    }

    fn file_header(&self) -> FileHeader {
        // `Image` has read the header, and the plan has checked it.
        let old = FileHeader::read(self.original.data()).unwrap_or_default();
        let (sh_offset, sh_count, sh_names) =
            self.tail.table.unwrap_or((old.sh_offset, old.sh_count, old.sh_names));
        let entry = self.startup.as_ref().and_then(Startup::entry).map(Svma::get);
        FileHeader {
            entry: entry.unwrap_or(old.entry),
            ph_offset: self.table_offset.get(),
            ph_count: self.headers.len() as u16,
            sh_offset,
            sh_count,
            sh_names,
            ..old
        }
    }
}

/// Overwrites bytes that the plan has placed inside the file.
fn put(out: &mut [u8], offset: FileOffset, bytes: &[u8]) {
    out[offset.get() as usize..][..bytes.len()].copy_from_slice(bytes);
}

/// Plans the file that is `image` with `version` in it. Same input, same plan.
///
/// # Errors
/// [`ElfError`], if the version does not belong to the file or place, or the file cannot take it.
pub fn plan_output(
    image: &Image,
    version: &CheckedVersion,
    options: &OutputOptions,
) -> Result<ElfPlan, ElfError> {
    if version.counters.is_some() {
        return Err(ElfError::CountingVersion { number: version.number });
    }
    build(image, version, None, options)
}

/// Plans the file that is `image` with the counting version `version` in it, which counts in the file
/// `source`. The version was made for the place that [`place_counting`](crate::place_counting) gave.
///
/// # Errors
/// [`ElfError`], if the version does not belong to the file or place, or the file cannot take it.
pub fn plan_counting(
    image: &Image,
    version: &CheckedVersion,
    source: &CountsSource,
    options: &OutputOptions,
) -> Result<ElfPlan, ElfError> {
    build(image, version, Some(source), options)
}

/// The phases of planning.
pub(crate) fn build(
    image: &Image,
    version: &Version,
    source: Option<&CountsSource>,
    options: &OutputOptions,
) -> Result<ElfPlan, ElfError> {
    refuse(image, version)?;
    if !version.assumes.is_empty() {
        return Err(ElfError::OneProcess { number: version.number });
    }
    let slot = Slot::choose(image, options);
    let file_offset = segment_offset(image, version, &slot)?;
    let mut segment = start_segment(version, file_offset)?;
    let startup = source.map(|source| startup::append(image, version, source, &mut segment)).transpose()?;
    let code = segment.range();
    let tables = unwind::append(image, version, &mut segment)?;
    let redirects = redirects(image, version)?;
    let retargets = retarget::writes(image, version, slot.growth())?;
    let mut patches = patches(image, &redirects, &retargets, &tables.registrations)?;
    patches.extend(startup.as_ref().and_then(Startup::patch));
    let moved = slot
        .growth()
        .map(|growth| make_room(image, growth, &retargets, &mut segment, &mut patches))
        .transpose()?;
    patches.sort();
    let (note, note_target) = append_records(image, version, &slot, code, &patches, &mut segment)?;
    let table = (slot == Slot::Move).then(|| {
        let at = segment.aligned_end(8);
        segment.append(&vec![0; (image.program_headers().len() + 1) * PHDR_LEN]);
        SvmaRange::between(at, segment.range().end)
    });
    // A large page has to be in the file whole.
    segment.bytes.resize(segment.bytes.len().max(version.large as usize), 0);
    let data_end = startup.as_ref().map(|s| s.data_end);
    let targets = Targets { note: note_target, eh_frame_hdr: tables.eh_frame_hdr, table, data_end };
    let headers = headers::build(image, &slot, &segment, &targets);
    let in_place = FileHeader::read(image.data()).map_or(0, |h| h.ph_offset);
    let table_offset = table.map_or(FileOffset::new(in_place), |t| segment.offset_of(t.start));
    let counters = version.counters.as_ref().map(|c| startup::pages(c.area));
    let tail = sections::build(image, &segment, version, slot.growth().zip(moved.as_deref()), counters)?;
    let registrations = tables.registrations;
    let original = image.clone();
    Ok(ElfPlan {
        original,
        segment,
        headers,
        table_offset,
        tail,
        note,
        slot,
        redirects,
        retargets,
        registrations,
        patches,
        startup,
    })
}

/// Refuses what can be told from image and version alone.
fn refuse(image: &Image, version: &Version) -> Result<(), ElfError> {
    if let Some(note) = is_restitch_output(image) {
        return Err(ElfError::AlreadyRestitched { number: note.number });
    }
    if let Some(soname) = image.soname().filter(|s| s.starts_with("ld-linux")) {
        return Err(ElfError::DynamicLoader(soname.into()));
    }
    if let Some(appended) = appended(image) {
        return Err(ElfError::Appended(appended));
    }
    let at = version.range.start;
    let misplaced = |why| Err(ElfError::Misplaced { at, why });
    if !at.get().is_multiple_of(PAGE) {
        return misplaced("that is not the start of a page");
    }
    if at < image.span().end.align_up(PAGE) {
        return misplaced("that is not behind the last segment");
    }
    if at.get() - image.span().start.get() > place::REACH {
        return misplaced("that is more than 2 GiB behind the first one");
    }
    Ok(())
}

/// Where the new segment is in the file.
fn segment_offset(image: &Image, version: &Version, slot: &Slot) -> Result<FileOffset, ElfError> {
    let len = image.data().len() as u64;
    if u32::try_from(len).is_err() {
        return Err(ElfError::TooLarge(len));
    }
    if *slot != Slot::Move {
        return Ok(FileOffset::new(len.next_multiple_of(if version.large > 0 { LARGE_PAGE } else { PAGE })));
    }
    if image.program_headers().len() + 1 > PAGE as usize / PHDR_LEN {
        return Err(ElfError::NoHeaderRoom { why: "the kernel accepts no longer table" });
    }
    let offset = congruent_offset(image, version.range.start);
    let offset = offset.filter(|o| o.get().is_multiple_of(PAGE));
    let offset = offset.ok_or(ElfError::NoHeaderRoom {
        why: "its first segment lies in a way in which loaders would not find a moved table",
    })?;
    if offset.get() < len {
        return Err(ElfError::Misplaced {
            at: version.range.start,
            why: "a moved program header table there would lie inside the file's own bytes",
        });
    }
    if u32::try_from(offset.get()).is_err() {
        return Err(ElfError::NoHeaderRoom {
            why: "its .bss is so large that a moved table would be 4 GiB away",
        });
    }
    Ok(offset)
}

/// The segment with the version's code, jump tables and exception tables. Its own unwind tables are left out
/// where they come last: they are part of the complete ones.
fn start_segment(version: &Version, file_offset: FileOffset) -> Result<NewSegment, ElfError> {
    let start = version.range.start;
    let kept = [version.text, version.tables, version.lsda];
    let end = kept.iter().filter(|r| !r.is_empty()).map(|r| r.end.offset_from(start)).max().unwrap_or(0);
    let bytes = u64::try_from(end).ok().filter(|end| *end <= version.loaded_len);
    let bytes = bytes.and_then(|end| raw::slice(&version.bytes, 0, end));
    let bytes = bytes
        .filter(|_| kept.iter().all(|r| r.is_empty() || r.start.offset_from(start) >= 0))
        .ok_or(ElfError::Misplaced { at: start, why: "its parts lie outside its bytes" })?
        .to_vec();
    // Loaders refuse an alignment to which address and offset are not congruent.
    let congruent = start.get() % LARGE_PAGE == file_offset.get() % LARGE_PAGE;
    let align = if version.large > 0 && congruent { LARGE_PAGE } else { PAGE };
    let mut segment = NewSegment { start, file_offset, align, bytes, parts: Vec::new() };
    let text = Part {
        name: TEXT_SECTION,
        range: version.text,
        kind: elf::SHT_PROGBITS,
        executable: true,
        align: 16,
    };
    segment.parts.push(Part { align: alignment(version.text.start, PAGE), ..text });
    let tables_align = alignment(version.tables.start, 8);
    segment.name_part(".rodata.restitch", version.tables, elf::SHT_PROGBITS, tables_align);
    let lsda_align = alignment(version.lsda.start, 4);
    segment.name_part(".gcc_except_table.restitch", version.lsda, elf::SHT_PROGBITS, lsda_align);
    Ok(segment)
}

/// The largest power of two up to `limit` that divides `at`.
fn alignment(at: Svma, limit: u64) -> u64 {
    1 << at.get().trailing_zeros().min(limit.trailing_zeros())
}

/// The jumps into the version, each over bytes that are there and that nothing else changes.
fn redirects(image: &Image, version: &Version) -> Result<Vec<Write>, ElfError> {
    let mut writes = version
        .redirects
        .iter()
        .filter(|r| image.relocations_in(SvmaRange::new(r.at.offset(-7), 12)).is_empty())
        .map(|r| redirect(image, version, r))
        .collect::<Result<Vec<_>, _>>()?;
    writes.sort_by_key(|w| w.at);
    if let Some(pair) = writes.windows(2).find(|pair| pair[1].at.offset_from(pair[0].at) < Patch::LEN as i64)
    {
        return Err(ElfError::BadRedirect { at: pair[1].at, why: "overlaps the one before it" });
    }
    Ok(writes)
}

fn redirect(image: &Image, version: &Version, r: &Redirect) -> Result<Write, ElfError> {
    let bad = |why| ElfError::BadRedirect { at: r.at, why };
    let before = image.read_tail(r.at).and_then(Patch::beginning_of);
    let before = before.ok_or_else(|| bad("is not in the file"))?;
    if !image.segment_at(r.at).is_some_and(|s| s.executable && !s.writable) {
        return Err(bad("is not in read-only code"));
    }
    if !version.text.contains(r.to) {
        return Err(bad("does not lead into the version"));
    }
    let purpose = match r.kind {
        RedirectKind::Entry => Purpose::EntryRedirect,
        RedirectKind::Landing => Purpose::LandingRedirect,
    };
    redirect_write(r.at, r.to, before, purpose).ok_or_else(|| bad("does not reach the version"))
}

/// All changes of loaded bytes, by file offset.
fn patches(
    image: &Image,
    redirects: &[Write],
    retargets: &[RetargetWrite],
    registrations: &[Registration],
) -> Result<Vec<(FileOffset, Vec<u8>)>, ElfError> {
    let offset = |at| image.file_offset(at).ok_or(ElfError::BadRedirect { at, why: "is not in the file" });
    let mut patches = Vec::with_capacity(redirects.len() + registrations.len());
    for write in redirects {
        patches.push((offset(write.at)?, write.after.clone()));
    }
    for write in retargets.iter().filter(|w| !w.moved) {
        patches.push((offset(write.at)?, write.after.clone()));
    }
    for r in registrations {
        patches.push((offset(r.operand)?, r.after.to_le_bytes().to_vec()));
    }
    Ok(patches)
}

/// Moves what is behind the program header table, with the retargets in it; the new places of the dynamic
/// tables.
fn make_room(
    image: &Image,
    growth: &Growth,
    retargets: &[RetargetWrite],
    segment: &mut NewSegment,
    patches: &mut Vec<(FileOffset, Vec<u8>)>,
) -> Result<Vec<SvmaRange>, ElfError> {
    let outside = || ElfError::Malformed { what: "a section lies outside the file" };
    let (offset, shifted) = growth.shifted_bytes(image).ok_or_else(outside)?;
    if !shifted.is_empty() {
        patches.push((offset, shifted.to_vec()));
    }
    let mut places = Vec::new();
    for table in &growth.tables {
        segment.aligned_end(8);
        let mut bytes = Growth::table_bytes(image, table).ok_or_else(outside)?.to_vec();
        let range = image.sections().get(table.section).ok_or_else(outside)?.range;
        for write in retargets.iter().filter(|w| w.moved && range.contains(w.at)) {
            let at = write.at.offset_from(range.start) as usize;
            bytes.get_mut(at..at + write.after.len()).ok_or_else(outside)?.copy_from_slice(&write.after);
        }
        let place = segment.append(&bytes);
        patches.push((table.pointer, place.start.get().to_le_bytes().to_vec()));
        places.push(place);
    }
    Ok(places)
}

/// Appends the undo record and the note; for a PT_NOTE that shares its place with the note, its index and new
/// place.
fn append_records(
    image: &Image,
    version: &Version,
    slot: &Slot,
    code: SvmaRange,
    patches: &[(FileOffset, Vec<u8>)],
    segment: &mut NewSegment,
) -> Result<(RestitchNote, Option<(usize, SvmaRange)>), ElfError> {
    let mut changed: Vec<_> =
        patches.iter().map(|(offset, b)| Changed { offset: *offset, len: b.len() as u64 }).collect();
    changed.push(Changed { offset: FileOffset::new(0), len: raw::EHDR_LEN as u64 });
    if *slot != Slot::Move {
        let header = FileHeader::read(image.data());
        let offset = FileOffset::new(header.map_or(0, |h| h.ph_offset));
        let count = image.program_headers().len() + usize::from(slot.growth().is_some());
        changed.push(Changed { offset, len: (count * PHDR_LEN) as u64 });
    }
    let undo = note::encode_undo(image.data(), changed)?;
    segment.aligned_end(8);
    let undo = segment.append(&undo);
    segment.name_part(".undo.restitch", undo, elf::SHT_PROGBITS, 8);

    let note = note::describe(image, version.number, code, undo);
    let host = headers::note_host(image, slot);
    let mut notes = host.map_or(Vec::new(), |(_, bytes)| bytes.to_vec());
    notes.extend(note.encode());
    let align = host.map_or(8, |(i, _)| image.program_headers()[i].align.max(4));
    let range = segment.put_first(&notes).unwrap_or_else(|| {
        segment.aligned_end(8);
        segment.append(&notes)
    });
    segment.name_part(NOTE_SECTION, range, elf::SHT_NOTE, align);
    segment.parts.sort_by_key(|p| p.range.start);
    Ok((note, host.map(|(i, _)| (i, range))))
}
