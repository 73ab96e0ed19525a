//! The file formats that the agent reads, for it and for those who write them. No more than `core`.
//!
//! An **overlay** is one file of whole pages: the version (an ELF image, so that profilers find its symbols),
//! the module's code with redirects, and one page with the [`Meta`], which is last.
//!
//! A **counts** file is a page with [`Counts`] and then the counters. It is mapped shared by every process
//! that counts.

/// Bytes of a page: `restitch_address::PAGE`, for the agent, which uses no crate.
pub const PAGE: u64 = 4096;
/// Number of the format that is written and read.
pub const FORMAT: u64 = 2;
/// Longest build id that has an overlay, in bytes.
pub const MAX_BUILD_ID: usize = 64;
/// Bytes in front of the counters.
pub const COUNTS_HEADER: u64 = PAGE;

/// The agent's file name. Overlays are looked for in the folder that it was loaded from.
pub const AGENT_NAME: &str = "librestitch-preload.so";
/// The name for `LD_PRELOAD` that each kind of process finds its library by: the loader puts its platform in
/// (ld.so(8), "Dynamic string tokens").
pub const AGENT_OF_EVERY_KIND: &str = "librestitch-$PLATFORM.so";

/// When the agent has looked at all modules of a process it maps a page of its own file from here on, far
/// behind its end, as code, for a moment: perf records of mappings tell by that what was loaded with the
/// program and what the program has opened itself.
pub const TOLD_AT: u64 = 1 << 30;

/// Where an overlay is on trial, a process that is held out maps a page of it from here on, far behind its
/// end, as code, for a moment, and nothing else of it: so it is known from outside which runs of the original
/// code are to be compared with those in the overlay.
pub const HELD_AT: u64 = 1 << 31;
/// Where [`Meta::held_out`] stands in its page. It alone is changed in place.
pub const HELD_OUT_AT: u64 = FIELDS_AT as u64 + 8 * 14;

const MAGIC: [u8; 16] = *b"restitch overlay";
const FIELDS_AT: usize = 96;

/// What an overlay says of itself. Addresses are stated ones (as in the module's ELF file), wrapping around
/// where a version lies below a module that starts at 0; lengths are bytes and, like places in the file,
/// multiples of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The module: its build id, or the identity of its content.
    pub build_id: [u8; MAX_BUILD_ID],
    /// Bytes of the build id.
    pub build_id_len: u64,
    /// Length of the file, this page included.
    pub file_len: u64,
    /// `p_vaddr` of the module's executable segment.
    pub segment_start: u64,
    /// `p_filesz` of the module's executable segment.
    pub segment_len: u64,
    /// First address of the pages that are replaced.
    pub text_start: u64,
    /// Their length.
    pub text_len: u64,
    /// Where their new content is in the file.
    pub text_offset: u64,
    /// Where the version goes. It is at the beginning of the file.
    pub version_start: u64,
    /// Its length.
    pub version_len: u64,
    /// Its `.eh_frame_hdr`.
    pub eh_frame_hdr: u64,
    /// Where the counters go; of no meaning without.
    pub counters_start: u64,
    /// Their length; 0 for a version that does not count.
    pub counters_len: u64,
    /// A number that the counts file has to have too.
    pub identity: u64,
    /// Checksum of all that stands in front of this page ([`hash_of`](crate::content::hash_of)). It tells
    /// damage, not malice: overlays are trusted by their owner and mode.
    pub checksum: u64,
    /// Of 256 processes so many run the original code, for comparison, chosen by chance. 0 but for overlays
    /// on trial.
    pub held_out: u64,
    /// [`ContentHash`](crate::content::ContentHash) of the module that it was made of: it takes the place of
    /// no other.
    pub original: u64,
}

impl Meta {
    /// The page.
    pub fn encode(&self) -> [u8; PAGE as usize] {
        let mut page = [0; PAGE as usize];
        let (head, rest) = page.split_at_mut(FIELDS_AT);
        head[..16].copy_from_slice(&MAGIC);
        head[16..24].copy_from_slice(&FORMAT.to_le_bytes());
        head[32..].copy_from_slice(&self.build_id);
        for (slot, field) in rest.chunks_exact_mut(8).zip(self.fields()) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        page
    }

    /// Whether a page is the last one of an overlay, of whatever format.
    pub fn is_any(page: &[u8]) -> bool {
        page.get(..16).is_some_and(|magic| magic == MAGIC)
    }

    /// What a page says; nothing if it is none of this format, or contradicts itself.
    pub fn decode(page: &[u8]) -> Option<Self> {
        if page.get(..16)? != MAGIC || word(page, 16)? != FORMAT {
            return None;
        }
        let field = |n: usize| word(page, FIELDS_AT + 8 * n);
        let meta = Self {
            build_id: page.get(32..FIELDS_AT)?.try_into().ok()?,
            build_id_len: field(0)?,
            file_len: field(1)?,
            segment_start: field(2)?,
            segment_len: field(3)?,
            text_start: field(4)?,
            text_len: field(5)?,
            text_offset: field(6)?,
            version_start: field(7)?,
            version_len: field(8)?,
            eh_frame_hdr: field(9)?,
            counters_start: field(10)?,
            counters_len: field(11)?,
            identity: field(12)?,
            checksum: field(13)?,
            held_out: field(14)?,
            original: field(15)?,
        };
        meta.is_sound().then_some(meta)
    }

    fn fields(&self) -> [u64; 16] {
        [
            self.build_id_len,
            self.file_len,
            self.segment_start,
            self.segment_len,
            self.text_start,
            self.text_len,
            self.text_offset,
            self.version_start,
            self.version_len,
            self.eh_frame_hdr,
            self.counters_start,
            self.counters_len,
            self.identity,
            self.checksum,
            self.held_out,
            self.original,
        ]
    }

    /// Whole pages, inside the file, one behind the other; the text is what the segment's pages are.
    fn is_sound(&self) -> bool {
        let pages = [
            self.file_len,
            self.text_start,
            self.text_len,
            self.text_offset,
            self.version_start,
            self.version_len,
            self.counters_start,
            self.counters_len,
        ];
        let Some(text_end) = self.text_offset.checked_add(self.text_len) else { return false };
        let Some(file_len) = text_end.checked_add(PAGE) else { return false };
        let Some(end) = self.segment_start.checked_add(self.segment_len) else { return false };
        let Some(text) = self.text_start.checked_add(self.text_len) else { return false };
        pages.iter().all(|n| n % PAGE == 0)
            && self.build_id_len > 0
            && self.build_id_len <= MAX_BUILD_ID as u64
            && self.file_len == file_len
            && self.version_len > 0
            && self.version_len <= self.text_offset
            && self.text_len > 0
            && self.text_start == self.segment_start & !(PAGE - 1)
            && text == end.wrapping_add(PAGE - 1) & !(PAGE - 1)
            && self.eh_frame_hdr.wrapping_sub(self.version_start) < self.version_len
            && self.counters_len < 1 << 32
    }
}

/// The head of a counts file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// That of the overlay.
    pub identity: u64,
    /// Bytes of the counters.
    pub len: u64,
}

impl Counts {
    /// Where the number of processes is that may still count: a 64-bit integer that each one lowers by one.
    pub const TICKETS_AT: u64 = 32;
    /// Where the number of processes is that have begun to count.
    pub const STARTED_AT: u64 = 40;
    /// Where the number of processes is that have ended in order since.
    pub const ENDED_AT: u64 = 48;

    const MAGIC: [u8; 16] = *b"restitch counts\0";

    /// The first page.
    pub fn encode(&self) -> [u8; PAGE as usize] {
        let mut page = [0; PAGE as usize];
        page[..16].copy_from_slice(&Self::MAGIC);
        page[16..24].copy_from_slice(&self.identity.to_le_bytes());
        page[24..32].copy_from_slice(&self.len.to_le_bytes());
        page
    }

    /// What a first page says; nothing if it is none.
    pub fn decode(page: &[u8]) -> Option<Self> {
        if page.get(..16)? != Self::MAGIC {
            return None;
        }
        Some(Self { identity: word(page, 16)?, len: word(page, 24)? })
    }
}

/// A number of eight bytes.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
