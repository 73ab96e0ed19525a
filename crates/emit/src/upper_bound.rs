//! How long a version may become, before anything of it is made: what is in reach depends on it.

use crate::error::EmitError;
use crate::request::Request;
use restitch_layout::PlacedCopy;
use restitch_program::Terminator;
use restitch_x86::encode;

/// What a version of any kind may be at most, in bytes.
const LARGEST: u64 = 1 << 30;
/// The most that copying a block can add to it: both branches of a short conditional, a wider table load, ...
const COPIED: u64 = 24;
/// More bytes than a promoted call adds: its code, the stub's jump and what may stand in front of it.
const PROMOTED: u64 = 64;
/// More bytes than a vote adds: what leads to it, its code and the jump back.
const VOTES: u64 = 128;
/// What the alignment of the entry of a retargeted function takes.
const RETARGETED: u64 = 16;
/// Padding takes at most this part of the hot code.
pub(crate) const PADDING: u32 = 16;

/// More bytes than the code and the tables of the version can have. Checks the layout on the way.
pub(crate) fn upper_bound(request: &Request<'_>) -> Result<u64, EmitError> {
    let program = request.program;
    let mut total = 4096u64;
    for fragment in request.layout.hot.iter().chain(&request.layout.cold) {
        if !fragment.align.is_power_of_two() || fragment.align > 4096 {
            return Err(EmitError::Alignment(fragment.align));
        }
        total += u64::from(fragment.align);
        for PlacedCopy { block: id, .. } in request.layout.copies(fragment) {
            let block = program.blocks.get(id.index()).ok_or(EmitError::UnknownBlock(id))?;
            // A call of a stub becomes longer by a byte.
            total += u64::from(block.len) + COPIED + u64::from(block.call_count);
            if let Terminator::Table(table) = block.terminator
                && let Some(table) = program.tables.get(table.index())
            {
                total += 8 + 8 * (table.targets.len() + table.tail.len()) as u64;
            }
        }
    }
    total += RETARGETED * request.pointers.map_or(0, |p| p.functions().len()) as u64;
    total += PROMOTED * request.promote.len() as u64;
    total += u64::from(encode::PREFETCH) * request.layout.prefetches.len() as u64;
    let per_counter = u64::from(encode::KEEPING_COUNT + encode::JMP_NEAR);
    total += request.counters.map_or(0, |c| c.counted.len() as u64 * per_counter);
    total += VOTES * request.counters.map_or(0, |c| c.votes.len() as u64);
    total += total / u64::from(PADDING) + 64;
    if total > LARGEST { Err(EmitError::TooLarge(total)) } else { Ok(total) }
}
