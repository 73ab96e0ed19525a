//! The bytes of a file by address.

use crate::bytes::{i32_at, slice, u32_at, u64_at};
use crate::header::Segment;
use restitch_address::Svma;

/// The file seen through its segments: bytes by [`Svma`].
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub data: &'a [u8],
    /// Sorted by address, free of overlaps, file ranges inside `data`.
    pub segments: &'a [Segment],
}

impl<'a> View<'a> {
    pub fn segment_at(&self, at: Svma) -> Option<&'a Segment> {
        let i = self.segments.partition_point(|s| s.range.start <= at).checked_sub(1)?;
        let segment = &self.segments[i];
        segment.range.contains(at).then_some(segment)
    }

    /// The file-backed bytes from `at` to the end of its segment's file part.
    pub fn tail(&self, at: Svma) -> Option<&'a [u8]> {
        let segment = self.segment_at(at)?;
        let into = at.get() - segment.range.start.get();
        let len = segment.file_len.checked_sub(into)?;
        slice(self.data, segment.file_offset.get() + into, len)
    }

    pub fn read(&self, at: Svma, len: usize) -> Option<&'a [u8]> {
        self.tail(at)?.get(..len)
    }

    /// At most `len` bytes at `at`: what a table of that stated size really has in the file.
    pub fn up_to(&self, at: Svma, len: u64) -> &'a [u8] {
        let tail = self.tail(at).unwrap_or_default();
        &tail[..usize::try_from(len).unwrap_or(usize::MAX).min(tail.len())]
    }

    pub fn u64(&self, at: Svma) -> Option<u64> {
        u64_at(self.tail(at)?, 0)
    }

    pub fn u32(&self, at: Svma) -> Option<u32> {
        u32_at(self.tail(at)?, 0)
    }

    pub fn i32(&self, at: Svma) -> Option<i32> {
        i32_at(self.tail(at)?, 0)
    }
}
