//! Where an overlay's version goes: at one distance from its module, which has to be free in (nearly) every
//! process.

use crate::OverlayError;
use restitch_address::Svma;
use restitch_image::{Image, ImageKind};
use restitch_preload::{COUNTS_HEADER, PAGE};

/// Highest distance of a 32-bit displacement, with some room.
const REACH: u64 = (1 << 31) - (16 << 20);
/// Lowest address that may be mapped (`vm.mmap_min_addr`).
const LOWEST: u64 = 0x1_0000;
const GIB: u64 = 1 << 30;

/// The places of a version and its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Where the version starts.
    pub start: Svma,
    /// Where the counters start; the page in front of them is theirs, too.
    pub counters: Svma,
}

/// Where a version of at most `size` bytes and `counters` bytes of counters go; the version starts at a
/// multiple of `align`, a power of two of at least a page. (In memory that is one too for programs at a fixed
/// address, and for modules of 2 MiB and more where the kernel maps files for large pages: Linux 6.7,
/// `thp_get_unmapped_area`.)
///
/// - A program at a fixed address: below it, where that is free and large enough; else 1.5 GiB behind it. The
///   heap begins at random within 1 GiB behind the program and finds other memory when it comes to the
///   version.
/// - A program at any address: right below it, where the kernel puts nothing.
/// - A library: between 1 and 1.5 GiB below it, since other libraries and mappings lie right below. Which of
///   32 places it is depends on the build id, so that neighbouring libraries do not meet.
///
/// # Errors
/// [`OverlayError::OutOfReach`] if 32-bit displacements cannot reach from there.
pub fn place(image: &Image, size: u64, counters: u64, align: u64) -> Result<Places, OverlayError> {
    let size = size.next_multiple_of(PAGE);
    let header = if counters == 0 { 0 } else { COUNTS_HEADER };
    let whole = size.saturating_add(counters.next_multiple_of(PAGE)).saturating_add(header);
    let out_of_reach = OverlayError::OutOfReach { size: whole };
    let span = image.span_within(REACH.saturating_sub(whole)).ok_or(out_of_reach.clone())?;
    let first = image.span().start.align_down(PAGE);
    let align = align.max(PAGE);
    let start = match image.kind() {
        ImageKind::Executable if first.get() >= LOWEST + align + whole => (first - whole).align_down(align),
        // Behind it there is no room, either, where more follows than has to be near.
        ImageKind::Executable if span != image.span() => return Err(out_of_reach),
        ImageKind::Executable => (span.end + GIB * 3 / 2).align_up(align),
        ImageKind::Pie => (first - (1 << 20) - whole).align_down(align),
        ImageKind::SharedObject => (first - GIB - slot(image) * (16 << 20) - whole).align_down(align),
    };
    let (start_distance, end_distance) =
        (start.offset_from(span.end), (start + whole).offset_from(span.start));
    if start_distance.unsigned_abs() > REACH || end_distance.unsigned_abs() > REACH || whole > REACH {
        return Err(out_of_reach);
    }
    Ok(Places { start, counters: start + size + header })
}

/// One of 32, by build id (or content).
fn slot(image: &Image) -> u64 {
    image.identity().as_bytes().iter().fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)))
        % 32
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_agent_has_pages_of_the_same_size() {
        assert_eq!(restitch_preload::PAGE, restitch_address::PAGE);
    }
}
