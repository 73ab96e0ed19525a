//! Where a version of a file has to start.
//!
//! Above the last segment, `.bss` included: the loaders of glibc, musl and the kernel reserve from the first
//! to the last PT_LOAD in one piece, so nothing else can be there, and the kernel starts the heap (`brk`)
//! behind the last one.

use crate::error::ElfError;
use crate::headers::{Slot, congruent_offset};
use crate::options::OutputOptions;
use crate::startup;
use restitch_address::{PAGE, Svma};
use restitch_emit::LARGE_PAGE;
use restitch_image::Image;

/// Highest distance of a 32-bit displacement, less room for the unwind tables that follow the version.
pub(crate) const REACH: u64 = (1 << 31) - (64 << 20);

/// Where a version of `estimated_size` bytes has to start to be written into the file `image`.
///
/// # Errors
/// [`ElfError::OutOfReach`], if code there could not reach all of the module with 32-bit displacements.
pub fn place(image: &Image, estimated_size: u64, options: &OutputOptions) -> Result<Svma, ElfError> {
    place_behind(image, image.span().end, estimated_size, options)
}

/// Where `counters` bytes of counters and then a counting version of `estimated_size` bytes have to start.
///
/// # Errors
/// As for [`place`]; and [`ElfError::NoRoomForCounters`], if the last segment is not one of data.
pub fn place_counting(
    image: &Image,
    estimated_size: u64,
    counters: u64,
    options: &OutputOptions,
) -> Result<(Svma, Svma), ElfError> {
    if !startup::can_grow(image) {
        return Err(ElfError::NoRoomForCounters);
    }
    // Whatever alignment the linker chose for the other segments: the ABI does not ask them to agree.
    let area = image.span().end.align_up(PAGE);
    let end = area.get().checked_add(counters).map(Svma::new);
    let end = end.ok_or_else(|| out_of_reach(image, counters))?;
    Ok((area, place_behind(image, end, estimated_size, options)?))
}

fn place_behind(
    image: &Image,
    end: Svma,
    estimated_size: u64,
    options: &OutputOptions,
) -> Result<Svma, ElfError> {
    let span = image.span();
    let align = if options.large_pages { LARGE_PAGE } else { PAGE };
    let mut start = end.align_up(align);
    if Slot::choose(image, options) == Slot::Move {
        // A moved table lies at offset = address - base, and the file's own bytes end where they end.
        let behind_file =
            |at| congruent_offset(image, at).is_some_and(|o| o.get() >= image.data().len() as u64);
        if !behind_file(start) {
            let base = congruent_offset(image, start).map_or(0, |o| start.get().wrapping_sub(o.get()));
            start = Svma::new(base.wrapping_add(image.data().len() as u64)).align_up(align);
        }
    }
    let needed = start.get().checked_sub(span.start.get()).and_then(|n| n.checked_add(estimated_size));
    match needed {
        Some(n) if n <= REACH => Ok(start),
        _ => Err(out_of_reach(image, estimated_size)),
    }
}

fn out_of_reach(image: &Image, size: u64) -> ElfError {
    let near_code = image.span_within(REACH.saturating_sub(size)).is_some();
    ElfError::OutOfReach { span: image.span(), size, near_code }
}
