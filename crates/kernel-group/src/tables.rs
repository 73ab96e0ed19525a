//! Tables that tie places of the copies to what happens there: the unwinder's rows, exceptions, warnings.

use crate::arrange::{Arrangement, PlacedBlock, PlacedChunk};
use crate::error::GroupError;
use crate::group::UnwindRow;
use crate::section::{Form, Kind, Reference, Sections};
use restitch_address::Svma;
use std::collections::HashMap;

/// The row of what is no code.
const NO_ROW: [u8; UnwindRow::LEN] = [0; UnwindRow::LEN];
/// Bytes of a pointer in a table.
const WORD: u32 = 4;

/// Offsets of entries in the table of warnings, by the original trap.
pub(crate) fn warnings(arrangement: &Arrangement<'_>) -> Result<HashMap<Svma, u64>, GroupError> {
    let (mut offsets, mut len) = (HashMap::new(), None);
    for block in arrangement.chunks.iter().flat_map(|chunk| &chunk.blocks).map(|placed| placed.block) {
        for warning in &block.warnings {
            let own = warning.entry.len() as u64;
            if own < WORD.into() || own != *len.get_or_insert(own) {
                return Err(GroupError::block(block.address, "the entries of its warnings differ in length"));
            }
            let trap = block.address + u64::from(warning.offset);
            offsets.insert(trap, offsets.len() as u64 * own);
        }
    }
    Ok(offsets)
}

/// Writes the tables.
pub(crate) fn write(arrangement: &Arrangement<'_>, sections: &mut Sections) -> Result<(), GroupError> {
    let mut last: Option<(Kind, u64)> = None;
    for chunk in &arrangement.chunks {
        if let Some((section, end)) = last.filter(|(section, _)| *section != chunk.section()) {
            row(sections, section, end, NO_ROW);
        }
        unwind_rows(chunk, last.map_or(0, |(_, end)| end), sections)?;
        last = Some((chunk.section(), chunk.end()));
        for block in &chunk.blocks {
            exceptions(arrangement, chunk.section(), block, sections)?;
            bugs(chunk.section(), block, sections)?;
        }
    }
    if let Some((section, end)) = last {
        row(sections, section, end, NO_ROW);
    }
    Ok(())
}

fn row(sections: &mut Sections, section: Kind, offset: u64, row: [u8; UnwindRow::LEN]) {
    sections.of(Kind::UnwindPlaces).push(Form::Distance, Reference::Own { section, offset }, 0);
    sections.of(Kind::UnwindRows).data.extend_from_slice(&row);
}

/// The rows of a chunk; what lies between `gap` and it is no code.
fn unwind_rows(chunk: &PlacedChunk<'_>, gap: u64, sections: &mut Sections) -> Result<(), GroupError> {
    let section = chunk.section();
    let Some(first) = chunk.blocks[0].block.unwind.first() else { return without_rows(chunk) };
    let start = chunk.called_at().unwrap_or(chunk.start());
    if gap < start {
        row(sections, section, gap, NO_ROW);
    }
    if let Some(at) = chunk.called_at() {
        row(sections, section, at, called(first.row));
    }
    let mut before = None;
    for placed in &chunk.blocks {
        let block = placed.block;
        if block.unwind.first().is_none_or(|first| first.offset != 0) {
            return without_rows(chunk);
        }
        for own in &block.unwind {
            if u64::from(own.offset) > block.code.len() as u64 {
                return Err(GroupError::block(block.address, "a row of the unwinder is behind its end"));
            }
            let at = placed.at + u64::from(own.offset);
            // Nothing stands there: that place is the next block's, and a place has one row.
            if at == placed.end() {
                continue;
            }
            if before != Some(own.row) {
                row(sections, section, at, own.row);
            }
            before = Some(own.row);
        }
    }
    Ok(())
}

fn without_rows(chunk: &PlacedChunk<'_>) -> Result<(), GroupError> {
    let block = &chunk.blocks[0].block;
    Err(GroupError::block(block.address, "its chunk has a block without a row of the unwinder"))
}

/// The row of an entry, with one more return address on the stack.
fn called(row: [u8; UnwindRow::LEN]) -> [u8; UnwindRow::LEN] {
    /// Bytes of a return address.
    const ADDRESS: i16 = 8;
    let mut out = row;
    let distance = i16::from_le_bytes([row[0], row[1]]).wrapping_add(ADDRESS);
    out[..2].copy_from_slice(&distance.to_le_bytes());
    out
}

fn exceptions(
    arrangement: &Arrangement<'_>,
    section: Kind,
    placed: &PlacedBlock<'_>,
    sections: &mut Sections,
) -> Result<(), GroupError> {
    for exception in &placed.block.exceptions {
        inside(placed, exception.offset)?;
        let table = sections.of(Kind::Exceptions);
        let offset = placed.at + u64::from(exception.offset);
        table.push(Form::Distance, Reference::Own { section, offset }, 0);
        table.push(Form::Distance, arrangement.code(exception.fixup), 0);
        table.data.extend_from_slice(&exception.data.to_le_bytes());
    }
    Ok(())
}

fn bugs(section: Kind, placed: &PlacedBlock<'_>, sections: &mut Sections) -> Result<(), GroupError> {
    for warning in &placed.block.warnings {
        inside(placed, warning.offset)?;
        let table = sections.of(Kind::Warnings);
        let start = table.len();
        table.data.extend_from_slice(&warning.entry);
        let offset = placed.at + u64::from(warning.offset);
        let trap = Reference::Own { section, offset };
        let pointers = warning.pointers.iter().map(|(field, to)| (*field, Reference::Kernel(*to)));
        for (field, to) in [(0, trap)].into_iter().chain(pointers) {
            let at = start + u64::from(field);
            let end = at as usize + WORD as usize;
            let Some(bytes) = table.data.get_mut(at as usize..end) else {
                return Err(GroupError::block(
                    placed.block.address,
                    "a warning's pointer is behind its entry",
                ));
            };
            bytes.fill(0);
            table.fields.push(crate::section::Field { at, form: Form::Distance, to, plus: 0 });
        }
    }
    Ok(())
}

/// An entry is of an instruction of the block.
fn inside(placed: &PlacedBlock<'_>, offset: u32) -> Result<(), GroupError> {
    if (offset as usize) < placed.block.code.len() {
        return Ok(());
    }
    Err(GroupError::block(placed.block.address, "an entry of a table is behind its end"))
}
