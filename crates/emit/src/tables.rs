//! Copies of jump tables.
//!
//! A copy's entries mean: the target's copy, or the original target. Registers keep their original values, so
//! that entries stay relative to the *original* table's base, and only the load's displacement says where the
//! copy is.

use crate::areas::{Areas, HEADERS};
use crate::plan::Plan;
use crate::request::Request;
use crate::select::Selection;
use crate::table_copy::size;
use restitch_address::{PAGE, Svma};
use restitch_program::{TableEncoding, TableId};
use std::collections::BTreeMap;

/// Finds room for the copies behind the code.
pub(crate) fn areas(request: &Request<'_>, plan: &Plan) -> Areas {
    let end_of = |slot: Option<usize>| slot.map(|slot| plan.slots[slot].end);
    let hot_end = end_of(plan.hot.checked_sub(1)).unwrap_or(HEADERS);
    let text_end = end_of(plan.order().last()).unwrap_or(HEADERS);
    let tables = text_end.next_multiple_of(PAGE as u32);
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
                    // In reach: see `table_copy::may_copy`.
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
