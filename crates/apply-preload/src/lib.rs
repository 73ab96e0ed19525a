//! The applier for processes that are only about to begin: a checked version becomes an *overlay*, one file
//! that the [preloaded agent](restitch_preload) maps into every process that loads the module.
//!
//! **You** ask [`place`] where a version of a module has to start, have it made and checked for that address,
//! and hand it to [`Overlay::plan`]; [`Overlay::bytes`] is the file. [`verify`] reads it again and compares
//! it with the module, also years later.
//!
//! **What this crate does.** An overlay holds the version, a copy of the module's code with the version's
//! redirects in it, and a page that says where they go. The place is the same distance from the module in
//! every process; where it is taken, the agent leaves that process alone.
//!
//! **What it will not do**: touch any file or process. It refuses modules whose code is not the same bytes in
//! every process (text relocations), is in several segments; and programs without a dynamic loader, into
//! which nothing is preloaded.

mod place;

pub use place::{Places, place};

use restitch_address::Svma;
use restitch_apply::{CheckedVersion, Purpose, redirect_write};
use restitch_emit::{RedirectKind, RetargetKind, Version};
use restitch_image::{Image, Segment};
use restitch_preload::content::{ContentHash, hash_of};
use restitch_preload::{COUNTS_HEADER, Counts, MAX_BUILD_ID, Meta, PAGE, code_samples};
use restitch_x86::patch::{Branch, DISPLACEMENT, Patch, displacement};

/// Why a module has no overlay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    /// Nothing is preloaded into it.
    #[error("it is linked statically; use `restitch optimize` on the file")]
    Static,
    /// Its code is not in one segment, or a segment of an unusual form.
    #[error("its code is not in one read-only segment of whole pages; use `restitch optimize` on the file")]
    Segments,
    /// The dynamic loader changes its code.
    #[error("the dynamic loader writes into its code (text relocations); link it with -z text")]
    TextRelocations,
    /// It is an output of restitch, whose code is laid out already.
    #[error("it was written by restitch; use the original file")]
    Output,
    /// There is no place for a version near it.
    #[error("a version of {size} bytes at any free place would be too far from it for 32-bit displacements")]
    OutOfReach {
        /// Bytes wanted.
        size: u64,
    },
    /// The version was made for another place or module.
    #[error("the version does not fit the module: {0}")]
    Version(&'static str),
    /// An overlay is damaged, or another module's.
    #[error("the overlay is damaged: {0}; remove it, it is made again when it is needed")]
    Damaged(&'static str),
}

/// An overlay that can be written.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// What it says of itself.
    pub meta: Meta,
    bytes: Vec<u8>,
}

impl Overlay {
    /// Makes an overlay. `identity` is any number by which a counting overlay and its counts find each other.
    ///
    /// # Errors
    /// [`OverlayError`]: the module has a form that an agent cannot replace, or the version is another's.
    pub fn plan(image: &Image, version: &CheckedVersion, identity: u64) -> Result<Self, OverlayError> {
        let (build_id, build_id_len) = identity_of(image);
        let segment = code_segment(image)?;
        let text_start = segment.range.start.align_down(PAGE);
        let text_len = segment.range.end.align_up(PAGE).get() - text_start.get();
        let mut text = code_pages(image, &segment);
        redirect(&mut text, text_start, version)?;
        retarget(&mut text, text_start, version)?;

        let mut bytes = version.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        let text_offset = bytes.len() as u64;
        bytes.extend(text);
        let (counters_start, counters_len) = version
            .counters
            .as_ref()
            .map_or((0, 0), |c| (c.area.start.get(), c.area.len().next_multiple_of(PAGE)));
        let meta = Meta {
            build_id,
            build_id_len,
            file_len: bytes.len() as u64 + PAGE,
            segment_start: segment.range.start.get(),
            segment_len: segment.file_len,
            text_start: text_start.get(),
            text_len,
            text_offset,
            version_start: version.range.start.get(),
            version_len: version.loaded_len,
            eh_frame_hdr: version.eh_frame_hdr.start.get(),
            counters_start,
            counters_len,
            identity,
            checksum: hash_of(&bytes),
            held_out: 0,
            original: content(image),
        };
        if Meta::decode(&meta.encode()) != Some(meta) {
            return Err(OverlayError::Version("its parts are not whole pages"));
        }
        bytes.extend(meta.encode());
        Ok(Self { meta, bytes })
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The file that the processes of a counting overlay count in, with no tickets and all counters zero.
    pub fn counts(&self) -> Vec<u8> {
        let mut bytes =
            Counts { identity: self.meta.identity, len: self.meta.counters_len }.encode().to_vec();
        bytes.resize((COUNTS_HEADER + self.meta.counters_len) as usize, 0);
        bytes
    }
}

/// Checks a file that claims to be an overlay of `image`: it is undamaged, and its code is the module's, but
/// for jumps into the version and direct calls that lead there.
///
/// # Errors
/// [`OverlayError::Damaged`] with what is wrong, or why the module can have none.
pub fn verify(overlay: &[u8], image: &Image) -> Result<Meta, OverlayError> {
    let damaged = OverlayError::Damaged;
    let meta = undamaged(overlay)?;
    let content = &overlay[..overlay.len() - PAGE as usize];
    if (meta.build_id, meta.build_id_len) != identity_of(image) {
        return Err(damaged("it is another module's"));
    }
    if meta.original != self::content(image) {
        return Err(damaged("it is of another file with the same build id"));
    }
    let segment = code_segment(image)?;
    let original = code_pages(image, &segment);
    let text = content.get(meta.text_offset as usize..).unwrap_or_default();
    if text.len() != original.len() || meta.segment_start != segment.range.start.get() {
        return Err(damaged("its code is not as long as the module's"));
    }
    let mut at = 0;
    while let Some(differs) = (at..text.len()).find(|&i| text[i] != original[i]) {
        at = branch_over(text, &original, differs, &meta)
            .ok_or(damaged("its code differs from the module's"))?;
    }
    Ok(meta)
}

/// Checks a file that claims to be an overlay, of whatever module: it is as it was written.
///
/// # Errors
/// [`OverlayError::Damaged`] with what is wrong.
pub fn undamaged(overlay: &[u8]) -> Result<Meta, OverlayError> {
    let damaged = OverlayError::Damaged;
    let end = overlay.len().checked_sub(PAGE as usize).ok_or(damaged("it is shorter than a page"))?;
    let (content, page) = overlay.split_at(end);
    let meta = Meta::decode(page).ok_or(damaged("its last page is not one of this format"))?;
    match meta.file_len == overlay.len() as u64 && meta.checksum == hash_of(content) {
        true => Ok(meta),
        false => Err(damaged("its length or checksum is wrong")),
    }
}

/// The end of the branch into the version that the byte at `differs` is part of: a jump, or a call where the
/// module has a call too.
fn branch_over(text: &[u8], original: &[u8], differs: usize, meta: &Meta) -> Option<usize> {
    (differs.saturating_sub(Patch::LEN - 1)..=differs).rev().find_map(|from| {
        let (branch, distance) = Patch::beginning_of(text.get(from..)?)?.as_branch()?;
        let to = Svma::new(meta.text_start + from as u64).offset(distance);
        let within = to.get().wrapping_sub(meta.version_start) < meta.version_len;
        let called = || original.get(from).copied().and_then(Branch::beginning_with) == Some(Branch::Call);
        let known = branch == Branch::Jump || called();
        (known && within).then_some(from + Patch::LEN)
    })
}

fn identity_of(image: &Image) -> ([u8; MAX_BUILD_ID], u64) {
    let id = image.identity().as_bytes();
    let mut out = [0; MAX_BUILD_ID];
    out.iter_mut().zip(id).for_each(|(slot, byte)| *slot = *byte);
    (out, id.len() as u64)
}

/// [`ContentHash`] of what is loaded of a module: processes use its overlay where they have loaded the same.
pub fn content(image: &Image) -> u64 {
    let mut hash = ContentHash::new();
    for segment in image.segments().iter().filter(|s| s.file_len > 0) {
        let offset = segment.file_offset.get();
        let bytes = offset as usize..(offset + segment.file_len) as usize;
        hash.segment(offset, segment.range.start.get(), segment.file_len);
        hash.bytes(offset, image.data().get(bytes).unwrap_or_default());
    }
    hash.finish()
}

/// [`code_samples`] of a module's code, by which its file is told from another in memory.
///
/// # Errors
/// [`OverlayError`] if its form is none that an agent could replace.
pub fn samples(image: &Image) -> Result<u64, OverlayError> {
    let segment = code_segment(image)?;
    let start = segment.file_offset.get();
    let word = |at: u64| {
        let from = (start + at) as usize;
        image.data().get(from..from + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
    };
    Ok(code_samples(segment.file_len, word))
}

/// The one executable segment of a module that is loaded by a dynamic loader.
fn code_segment(image: &Image) -> Result<Segment, OverlayError> {
    if image.is_static() {
        return Err(OverlayError::Static);
    }
    let code: Vec<&Segment> = image.segments().iter().filter(|s| s.executable).collect();
    let [segment] = code[..] else { return Err(OverlayError::Segments) };
    let congruent = segment.range.start.get() % PAGE == segment.file_offset.get() % PAGE;
    if segment.writable || segment.file_len != segment.range.len() || !congruent {
        return Err(OverlayError::Segments);
    }
    // The pages of two segments do not overlap: what is replaced is code alone.
    let (start, end) = (segment.range.start.align_down(PAGE), segment.range.end.align_up(PAGE));
    let apart = |s: &Segment| s.range.end.align_up(PAGE) <= start || end <= s.range.start.align_down(PAGE);
    if !image.segments().iter().all(|s| s.executable || apart(s)) {
        return Err(OverlayError::Segments);
    }
    if !image.relocations_in(segment.range).is_empty() {
        return Err(OverlayError::TextRelocations);
    }
    Ok(*segment)
}

/// The pages of the segment as the loader maps them: whole pages of the file, zero behind its end.
fn code_pages(image: &Image, segment: &Segment) -> Vec<u8> {
    let start = segment.file_offset.align_down(PAGE).get() as usize;
    let end = (segment.file_offset.get() + segment.file_len).next_multiple_of(PAGE) as usize;
    let data = image.data();
    let mut pages = data.get(start..end.min(data.len())).unwrap_or_default().to_vec();
    pages.resize(end - start, 0);
    pages
}

/// Puts the version's redirects into the code.
fn redirect(text: &mut [u8], text_start: Svma, version: &Version) -> Result<(), OverlayError> {
    for r in &version.redirects {
        let at = r.at.get().wrapping_sub(text_start.get()) as usize;
        let place = at.checked_add(Patch::LEN).and_then(|end| text.get_mut(at..end));
        let place = place.ok_or(OverlayError::Version("a redirect lies outside of the code"))?;
        let purpose = match r.kind {
            RedirectKind::Entry => Purpose::EntryRedirect,
            RedirectKind::Landing => Purpose::LandingRedirect,
        };
        let before = Patch::new([0; Patch::LEN]);
        let write = redirect_write(r.at, r.to, before, purpose);
        let write = write.ok_or(OverlayError::Version("a redirect is too far"))?;
        place.copy_from_slice(&write.after);
    }
    Ok(())
}

/// Leads direct calls and jumps of the code that stays straight to copies, as the checker has proved them.
/// Addresses in data are left: each process has data of its own, which would have to be written at its start.
fn retarget(text: &mut [u8], text_start: Svma, version: &Version) -> Result<(), OverlayError> {
    let branches = version.retargets.iter().filter(|s| s.kind == RetargetKind::Displacement);
    for s in branches {
        let at = s.at.get().wrapping_sub(text_start.get()) as usize;
        let place = at.checked_add(DISPLACEMENT).and_then(|end| text.get_mut(at..end));
        let place = place.ok_or(OverlayError::Version("a retarget lies outside of the code"))?;
        let displacement = displacement(s.to.offset_from(s.at));
        place.copy_from_slice(&displacement.ok_or(OverlayError::Version("a retarget is too far"))?);
    }
    Ok(())
}
