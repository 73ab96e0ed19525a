//! The ring of records that the kernel fills and we empty.

use crate::event::{Event, bindings};
use crate::record::{Record, RecordLayout, parse_record};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = restitch_address::PAGE as usize;
/// A record header: u32 type, u16 misc, u16 size.
const HEADER: usize = 8;

/// One mapped ring: a page of control words, then a power of two of data pages.
#[derive(Debug)]
pub(crate) struct Ring {
    base: NonNull<u8>,
    data_len: usize,
}

impl Ring {
    /// Maps the ring of `event` with `pages` data pages, or fewer (halving down to 8) if so much memory may
    /// not be locked (`kernel.perf_event_mlock_kb`).
    pub(crate) fn map(event: &Event, pages: usize) -> io::Result<Self> {
        let mut pages = pages.next_power_of_two().max(8);
        loop {
            match Self::map_exactly(event, pages) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && pages > 8 => pages /= 2,
                result => return result,
            }
        }
    }

    fn map_exactly(event: &Event, pages: usize) -> io::Result<Self> {
        let len = (pages + 1) * PAGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at a place that the kernel chooses overlaps nothing of ours.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, event.raw(), 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { base, data_len: pages * PAGE })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn control(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `base` is the live, page-aligned control page of this mapping, `offset` that of an aligned
        // u64 within it; kernel and user access the word atomically only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn head(&self) -> &AtomicU64 {
        self.control(std::mem::offset_of!(bindings::perf_event_mmap_page, data_head))
    }

    fn tail(&self) -> &AtomicU64 {
        self.control(std::mem::offset_of!(bindings::perf_event_mmap_page, data_tail))
    }

    /// Copies `out.len()` data bytes from `position`, wrapping at the end.
    fn copy(&self, position: u64, out: &mut [u8]) {
        let start = (position % self.data_len as u64) as usize;
        let first = out.len().min(self.data_len - start);
        // SAFETY: both pieces lie within the data pages (`start + first <= data_len`, the rest is shorter
        // than `out.len() <= data_len`), and the kernel does not write between tail and head.
        unsafe {
            let data = self.base.as_ptr().add(PAGE);
            data.add(start).copy_to_nonoverlapping(out.as_mut_ptr(), first);
            data.copy_to_nonoverlapping(out.as_mut_ptr().add(first), out.len() - first);
        }
    }

    /// Takes all records out. Records that cannot be parsed are counted as lost.
    pub(crate) fn drain(&self, layout: RecordLayout, into: &mut Vec<Record>) {
        // Pairs with the kernel's release of the data before the head (perf_event_open(2)).
        let head = self.head().load(Ordering::Acquire);
        let tail = self.tail().load(Ordering::Relaxed);
        let available = head.wrapping_sub(tail).min(self.data_len as u64) as usize;
        let mut bytes = vec![0; available];
        self.copy(tail, &mut bytes);
        // Gives the space back: the copies are done before the kernel sees this.
        self.tail().store(head, Ordering::Release);
        split(&bytes, layout, into);
    }
}

/// Splits bytes into records.
fn split(bytes: &[u8], layout: RecordLayout, into: &mut Vec<Record>) {
    let mut rest = bytes;
    while rest.len() >= HEADER {
        let kind = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let size = usize::from(u16::from_ne_bytes([rest[6], rest[7]]));
        if size < HEADER || size > rest.len() {
            into.push(Record::Lost { count: 1 });
            return;
        }
        let misc = u16::from_ne_bytes([rest[4], rest[5]]);
        let record = parse_record(kind, misc, &rest[HEADER..size], layout);
        into.push(record.unwrap_or(Record::Lost { count: 1 }));
        rest = &rest[size..];
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.data_len + PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]
        #[test]
        fn any_ring_content_is_split_without_panic(bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(9), Just(8), Just(32), any::<u8>()], 0..300)) {
            let mut records = Vec::new();
            split(&bytes, RecordLayout { callers: false, branches: true }, &mut records);
            prop_assert!(records.len() <= bytes.len() / HEADER + 1);
        }
    }
}
