//! Which jump tables can have a copy, and how large it is.

use crate::reach::Reach;
use crate::request::Request;
use restitch_address::Svma;
use restitch_image::ImageKind;
use restitch_program::{Block, JumpTable, TableEncoding};
use restitch_x86::{displaced_load, encode, relocate_field};

/// Bytes of an entry.
fn entry_size(table: &JumpTable) -> u64 {
    match table.encoding {
        TableEncoding::Absolute8 => 8,
        TableEncoding::Relative4 => 4,
    }
}

/// Bytes of a copy.
pub(crate) fn size(table: &JumpTable) -> u64 {
    entry_size(table) * (table.targets.len() + table.tail.len()) as u64
}

/// Whether the table that ends `block` can have a copy that is right wherever in `reach` things come to
/// stand.
pub(crate) fn may_copy(request: &Request<'_>, block: &Block, table: &JumpTable, reach: Reach) -> bool {
    if !table.copyable || table.load_at < block.start || table.load_at > table.jump_at {
        return false;
    }
    if table.jump_at != block.terminator_at() {
        return false;
    }
    let entries = || table.targets.iter().chain(&table.tail);
    let entries_fit = match table.encoding {
        TableEncoding::Absolute8 => request.bias.is_some() || request.image.kind() == ImageKind::Executable,
        TableEncoding::Relative4 => {
            let fits = |to: Svma| encode::fits_near(to.offset_from(table.base));
            fits(reach.range.start) && fits(reach.range.end) && entries().all(|to| fits(*to))
        }
    };
    let load = (block.end().offset_from(table.load_at)) as usize;
    let Some(bytes) = request.image.read(table.load_at, load) else { return false };
    let goes = |copy: Svma| displaced_load(bytes, table.load_at, copy.offset_from(table.table)).is_some();
    entries_fit && goes(reach.range.start) && goes(reach.range.end)
}

/// Length of the load at the start of `bytes`, now and with a 32-bit displacement.
pub(crate) fn load_lengths(bytes: &[u8], at: Svma) -> Option<(u32, u32)> {
    let (insn, _) = relocate_field(bytes, at)?;
    Some((u32::from(insn.len), displaced_load(bytes, at, 0)?.len() as u32))
}
