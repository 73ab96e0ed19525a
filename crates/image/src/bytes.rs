//! Little-endian reads from foreign bytes that never panic, whatever the offset.

use crate::Segment;
use restitch_address::Svma;

/// `len` bytes at `at`, if all are there.
pub(crate) fn slice(data: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let from = usize::try_from(at).ok()?;
    let to = usize::try_from(at.checked_add(len)?).ok()?;
    data.get(from..to)
}

fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array(data, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    array(data, at).map(u32::from_le_bytes)
}

pub(crate) fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    array(data, at).map(i32::from_le_bytes)
}

pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    array(data, at).map(u64::from_le_bytes)
}

/// The NUL-terminated string at `at`; without a terminator it is none. Bytes that are not UTF-8 are replaced.
pub(crate) fn c_string(data: &[u8], at: u64) -> Option<std::borrow::Cow<'_, str>> {
    let rest = data.get(usize::try_from(at).ok()?..)?;
    let len = rest.iter().position(|&b| b == 0)?;
    Some(String::from_utf8_lossy(&rest[..len]))
}

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
