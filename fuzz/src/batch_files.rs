//! What `batch` keeps in its cache: overlays, and what is known of files, modules and counts. The agent reads
//! some of it in every process.

use restitch_apply_preload::{content, place, undamaged, verify};
use restitch_batch::testing;
use restitch_image::Image;
use restitch_preload::content::hash_of;
use restitch_preload::{COUNTS_HEADER, Counts, FileKey, Known, MAX_BUILD_ID, Meta, PAGE};

/// What is known of a file.
pub(crate) const KNOWN: Known = Known {
    key: FileKey { device: 1, inode: 2, len: 3, modified: [4, 5], changed: [6, 7] },
    mapped_device: 8,
    mapped_inode: 9,
    id: [10; MAX_BUILD_ID],
    id_len: 20,
    samples: 11,
    original: 12,
};

/// A file that claims to be an overlay: its last page is read as the agent reads it, the whole as sessions
/// do.
pub fn overlay(data: &[u8]) {
    let page = &data[data.len().saturating_sub(PAGE as usize)..];
    if let Some(meta) = Meta::decode(page) {
        assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        // What the agent maps lies in the file.
        assert!(meta.version_len + PAGE <= meta.file_len && meta.text_offset + meta.text_len < meta.file_len);
    }
    let _ = undamaged(data);
    let sealed = sealed(data);
    for image in images() {
        assert!(verify(data, image).is_err() || verify(&sealed, image).is_ok());
        let _ = verify(&sealed, image);
    }
}

/// A note of a file.
pub fn known_file(data: &[u8]) {
    if let Some(known) = Known::decode(data) {
        assert_eq!(Known::decode(&known.encode()), Some(known));
        assert!(known.id_len as usize <= MAX_BUILD_ID);
    }
}

/// A note of what is known of a module, of a suspended counting, of what was used.
pub fn batch_notes(data: &[u8]) {
    testing::read_note(data);
}

/// A counts file.
pub fn batch_counts(data: &[u8]) {
    testing::read_counts(data);
}

/// With a last page that says that all before it is right.
fn sealed(data: &[u8]) -> Vec<u8> {
    let end = data.len().saturating_sub(PAGE as usize);
    let mut bytes = data.to_vec();
    if let Some(meta) = Meta::decode(&data[end..]) {
        let checksum = hash_of(&bytes[..end]);
        bytes[end..].copy_from_slice(&Meta { checksum, ..meta }.encode());
    }
    bytes
}

/// Programs that overlays are made of.
fn images() -> &'static [Image] {
    static IMAGES: std::sync::OnceLock<Vec<Image>> = std::sync::OnceLock::new();
    IMAGES.get_or_init(|| {
        let images = crate::programs::files().into_iter().filter_map(|file| Image::parse(file).ok());
        images.filter(|i| place(i, PAGE, 0, PAGE).is_ok()).collect()
    })
}

/// Overlays without a version, but for one page.
pub(crate) fn overlays() -> Vec<Vec<u8>> {
    let of = |image: &Image| {
        let code = image.segments().iter().find(|s| s.executable)?;
        let (start, end) = (code.range.start.align_down(PAGE), code.range.end.align_up(PAGE));
        let from = code.file_offset.align_down(PAGE).get() as usize;
        let mut text = image.data().get(from..)?.to_vec();
        text.resize((end.get() - start.get()) as usize, 0);
        let text_len = text.len() as u64;
        let bytes = [vec![0; PAGE as usize], text].concat();
        let (mut build_id, id) = ([0; MAX_BUILD_ID], image.identity().as_bytes());
        build_id.iter_mut().zip(id).for_each(|(slot, byte)| *slot = *byte);
        let version_start = place(image, PAGE, 0, PAGE).ok()?.start.get();
        let meta = Meta {
            build_id,
            build_id_len: id.len() as u64,
            file_len: bytes.len() as u64 + PAGE,
            segment_start: code.range.start.get(),
            segment_len: code.file_len,
            text_start: start.get(),
            text_len,
            text_offset: PAGE,
            version_start,
            version_len: PAGE,
            eh_frame_hdr: version_start,
            counters_start: 0,
            counters_len: 0,
            identity: 0,
            checksum: hash_of(&bytes),
            held_out: 0,
            original: content(image),
        };
        Some([&bytes[..], &meta.encode()].concat())
    };
    images().iter().filter_map(of).collect()
}

/// A counts file of some counters.
pub(crate) fn counts() -> Vec<u8> {
    let mut bytes = Counts { identity: 1, len: 64 }.encode().to_vec();
    bytes.resize(COUNTS_HEADER as usize + 64, 1);
    bytes
}
