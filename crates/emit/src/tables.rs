//! Copies of jump tables.
//!
//! A copy's entries mean: the target's copy, or the original target. Registers keep their original values, so that
//! entries stay relative to the *original* table's base, and only the load's displacement says where the copy is.

use crate::plan::Plan;
use crate::select::{Reach, Selection};
use crate::{Request, elf};
use restitch_address::Svma;
use restitch_image::ImageKind;
use restitch_program::{Block, JumpTable, TableEncoding, TableId};
use restitch_x86::{displaced_load, encode, relocate_field};
use std::collections::BTreeMap;

/// Bytes of an entry.
pub(crate) fn entry_size(table: &JumpTable) -> u64 {
    match table.encoding {
        TableEncoding::Absolute8 => 8,
        TableEncoding::Relative4 => 4,
    }
}

/// Bytes of a copy.
pub(crate) fn size(table: &JumpTable) -> u64 {
    entry_size(table) * (table.targets.len() + table.tail.len()) as u64
}

/// Where code and tables are, in offsets from the start of the version.
#[derive(Debug, Clone)]
pub(crate) struct Areas {
    /// End of the hot code.
    pub hot_end: u32,
    /// End of all code.
    pub text_end: u32,
    /// Start of the tables.
    pub tables: u32,
    /// Start of the copy for each of [`Plan::copies`]; jumps through one table share one copy.
    pub copies: Vec<u32>,
    /// The copies themselves: start, and the longest of the tables that begin there.
    pub shared: Vec<(u32, TableId)>,
    /// End of the tables.
    pub tables_end: u32,
}

/// Finds room for the copies behind the code.
pub(crate) fn areas(request: &Request<'_>, plan: &Plan) -> Areas {
    let end_of = |slot: Option<usize>| slot.map(|slot| plan.slots[slot].end);
    let hot_end = end_of(plan.hot.checked_sub(1)).unwrap_or(elf::HEADERS);
    let text_end = end_of(plan.order().last()).unwrap_or(elf::HEADERS);
    let tables = text_end.next_multiple_of(elf::PAGE as u32);
    // An interpreter has hundreds of jumps through one table: it is one table in the version, too.
    let mut longest: BTreeMap<(Svma, Svma), TableId> = BTreeMap::new();
    for &copy in &plan.copies {
        let table = request.program.table(copy);
        let known = longest.entry((table.table, table.base)).or_insert(copy);
        if size(table) > size(request.program.table(*known)) {
            *known = copy;
        }
    }
    let mut at = tables;
    let mut starts: BTreeMap<TableId, u32> = BTreeMap::new();
    let mut shared = Vec::with_capacity(longest.len());
    let mut copies = Vec::with_capacity(plan.copies.len());
    for &copy in &plan.copies {
        let table = request.program.table(copy);
        let longest = longest[&(table.table, table.base)];
        let start = *starts.entry(longest).or_insert_with(|| {
            let start = at.next_multiple_of(8);
            shared.push((start, longest));
            at = start + size(request.program.table(longest)) as u32;
            start
        });
        copies.push(start);
    }
    Areas { hot_end, text_end, tables, copies, shared, tables_end: at }
}

/// Whether the table that ends `block` can have a copy that is right wherever in `reach` things come to stand.
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

/// Writes the copies into their area of `bytes`.
pub(crate) fn write(
    request: &Request<'_>,
    selection: &Selection<'_>,
    plan: &Plan,
    areas: &Areas,
    bytes: &mut Vec<u8>,
) {
    bytes.resize(areas.tables as usize, 0);
    for &(at, copy) in &areas.shared {
        bytes.resize(at as usize, 0);
        let table = request.program.table(copy);
        for target in table.targets.iter().chain(&table.tail) {
            let to = match selection.slot_at(*target) {
                Some(slot) => plan.address(slot),
                None => *target,
            };
            match table.encoding {
                TableEncoding::Relative4 => {
                    // In reach: see `may_copy`.
                    bytes.extend((to.offset_from(table.base) as i32).to_le_bytes());
                }
                TableEncoding::Absolute8 => {
                    let to = request.bias.map_or(to.get(), |bias| bias.to_actual(to).get());
                    bytes.extend(to.to_le_bytes());
                }
            }
        }
    }
}
