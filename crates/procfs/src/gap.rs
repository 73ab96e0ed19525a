//! Free address ranges near a module.
//!
//! A code version has to lie within the reach of a 32-bit displacement of everything that it refers to, and
//! must not stand in the way of what grows: the `brk` heap upwards, the main stack downwards. A place *below*
//! the module is best: nothing grows into it and landing pads left in the original code are positive offsets.

use crate::maps::Mapping;
use restitch_address::{Avma, AvmaRange, PAGE};

/// First address that user space cannot map (4-level paging; 5-level programs keep below it unless they ask).
const USER_TOP: u64 = 0x7fff_ffff_f000;

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct GapRequest {
    /// The module to be near to: from its first to behind its last mapped byte.
    pub near: AvmaRange,
    /// Wanted length in bytes; rounded up to pages.
    pub len: u64,
    /// Alignment of the start, a power of two of at least a page.
    pub align: u64,
    /// Longest distance in bytes from the lowest to the highest byte of module and gap together.
    pub reach: u64,
    /// Where the `brk` heap starts, if known ([`crate::Stat::heap_start`]); an empty heap has no line in the
    /// maps.
    pub heap_start: Option<Avma>,
    /// Bytes behind the heap's present end that are left to it.
    pub heap_room: u64,
    /// Bytes below the main stack's present end that are left to it.
    pub stack_room: u64,
    /// The lowest address that may be used: at least [`crate::system::mmap_min_addr`].
    pub lowest: Avma,
}

impl GapRequest {
    /// A request with the usual room: page alignment, a reach of 2 GiB less 1 MiB for what refers a little
    /// beyond the module, half a GiB for the heap, 1 GiB for the stack.
    pub fn near(near: AvmaRange, len: u64) -> Self {
        Self {
            near,
            len,
            align: PAGE,
            reach: (1 << 31) - (1 << 20),
            heap_start: None,
            heap_room: 512 << 20,
            stack_room: 1 << 30,
            lowest: Avma::new(1 << 16),
        }
    }
}

/// On which side of the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Side {
    /// At lower addresses.
    Below,
    /// At higher addresses.
    Above,
}

/// A free range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The range, of the wanted length (in pages) and alignment.
    pub range: AvmaRange,
    /// Where it lies.
    pub side: Side,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GapError {
    /// The address space near the module is full.
    #[error(
        "no {len} free bytes within {reach} bytes of the module at {near}: its surroundings are mapped; ask for less or optimize fewer functions"
    )]
    Full {
        /// Wanted length.
        len: u64,
        /// Permitted reach.
        reach: u64,
        /// The module.
        near: AvmaRange,
    },
    /// The request contradicts itself.
    #[error(
        "a gap request needs a length above 0, a power of two as alignment and a module inside the user address space"
    )]
    Invalid,
}

/// The best free range for `request` among the mappings of a process (ascending, as [`crate::maps`] gives
/// them): the nearest one below the module, else the nearest one above.
pub fn find_gap(maps: &[Mapping], request: &GapRequest) -> Result<Gap, GapError> {
    let gaps = find_gaps(maps, request)?;
    let full = GapError::Full { len: request.len, reach: request.reach, near: request.near };
    gaps.into_iter().next().ok_or(full)
}

/// All candidates, one for each free range, best first: below the module from near to far, then above. For
/// trying the next one when a mapping appeared in the first meanwhile.
pub fn find_gaps(maps: &[Mapping], request: &GapRequest) -> Result<Vec<Gap>, GapError> {
    Ok(spans(maps, request)?.iter().map(|span| span.gap(span.nearest, request)).collect())
}

/// All aligned places of all free ranges, best first: those below the module from near to far, then those
/// above. They overlap each other, and there may be half a million of them.
pub fn find_places(maps: &[Mapping], request: &GapRequest) -> Result<impl Iterator<Item = Gap>, GapError> {
    let (request, step) = (*request, request.align.max(PAGE));
    let places = spans(maps, &request)?.into_iter().flat_map(move |span| {
        let count = span.nearest.abs_diff(span.farthest) / step + 1;
        (0..count).map(move |i| {
            let start = match span.side {
                Side::Below => span.nearest - i * step,
                Side::Above => span.nearest + i * step,
            };
            span.gap(start, &request)
        })
    });
    Ok(places)
}

/// The aligned starts that a place may have in a free range.
struct Span {
    nearest: u64,
    farthest: u64,
    side: Side,
}

impl Span {
    fn gap(&self, start: u64, request: &GapRequest) -> Gap {
        let len = request.len.next_multiple_of(PAGE);
        Gap { range: AvmaRange::new(Avma::new(start), len), side: self.side }
    }
}

fn spans(maps: &[Mapping], request: &GapRequest) -> Result<Vec<Span>, GapError> {
    let (low, high) = (request.near.start.get(), request.near.end.get());
    let valid = request.len > 0 && request.align.is_power_of_two() && low <= high && high <= USER_TOP;
    if !valid || request.len > USER_TOP {
        return Err(GapError::Invalid);
    }
    let len = request.len.next_multiple_of(PAGE);
    let align = request.align.max(PAGE);
    let free = free_ranges(maps, request);
    let below = free.iter().rev().filter_map(|&(start, end)| {
        let nearest = end.min(low).checked_sub(len)? & !(align - 1);
        let farthest = start.max(high.saturating_sub(request.reach)).checked_next_multiple_of(align)?;
        (farthest <= nearest).then_some(Span { nearest, farthest, side: Side::Below })
    });
    let above = free.iter().filter_map(|&(start, end)| {
        let nearest = start.max(high).checked_next_multiple_of(align)?;
        let farthest = end.min(low.saturating_add(request.reach)).checked_sub(len)? & !(align - 1);
        (nearest <= farthest).then_some(Span { nearest, farthest, side: Side::Above })
    });
    Ok(below.chain(above).collect())
}

/// The ranges that are neither mapped nor kept for growth, ascending.
fn free_ranges(maps: &[Mapping], request: &GapRequest) -> Vec<(u64, u64)> {
    let mut taken: Vec<(u64, u64)> = maps.iter().map(|mapping| with_room(mapping, request)).collect();
    if let Some(heap) = request.heap_start.map(Avma::get) {
        taken.push((heap, heap.saturating_add(request.heap_room)));
    }
    taken.push((request.near.start.get(), request.near.end.get()));
    taken.sort_unstable();
    let mut free = Vec::new();
    let mut cursor = request.lowest.get().min(USER_TOP).next_multiple_of(PAGE);
    for (start, end) in taken {
        if start > cursor {
            free.push((cursor, start.min(USER_TOP)));
        }
        cursor = cursor.max(end);
    }
    if cursor < USER_TOP {
        free.push((cursor, USER_TOP));
    }
    free
}

fn with_room(mapping: &Mapping, request: &GapRequest) -> (u64, u64) {
    let (start, end) = (mapping.range.start.get(), mapping.range.end.get());
    if mapping.is_special("[heap]") {
        (start, end.saturating_add(request.heap_room))
    } else if mapping.is_special("[stack]") {
        (start.saturating_sub(request.stack_room), end)
    } else {
        (start, end)
    }
}
