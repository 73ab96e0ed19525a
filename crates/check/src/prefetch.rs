//! Lines that are fetched ahead: `prefetcht1 disp32(%rip)` in front of a block, which changes no state and
//! cannot fault.
//!
//! It has to stand where the layout asks for it and nowhere else, and to name the byte that the layout names,
//! which makes every changed bit of it a finding. (For the program it would be enough that it is a prefetch.)

use crate::finding::Problem;
use crate::map::Boundary;
use crate::row::RowAt;
use crate::walk::{Current, Walk};
use restitch_address::Svma;

/// The instruction without its displacement.
const OPCODE: [u8; 3] = [0x0f, 0x18, 0x15];
/// Its length.
pub(crate) const LEN: u32 = 7;

impl<'a> Walk<'_, 'a> {
    /// Steps over the prefetch at `v`, the start of a block's copy, if the layout wants one there. `None` if
    /// there is none then.
    pub fn prefetch(&mut self, c: &Current<'a>, v: Svma) -> Option<Svma> {
        let o = c.block.start;
        let Some(want) = self.fetched_at(c.index) else { return Some(v) };
        let (opcode, field) = (self.s.text(v, OPCODE.len()), self.s.text(v + OPCODE.len() as u64, 4));
        let field: Option<[u8; 4]> = field.and_then(|f| f.try_into().ok());
        let Some(field) = field.filter(|_| opcode == Some(&OPCODE)) else {
            self.findings.at(v, o, Problem::Prefetch("the layout asks for one, and here is something else"));
            return None;
        };
        let end = v + u64::from(LEN);
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(v, o, Problem::Placement("the copy is longer than its range"));
        }
        let to = end.offset(i32::from_le_bytes(field).into());
        if to != want {
            self.findings.at(v, o, Problem::Prefetch("it is of another place than the layout's"));
        }
        if !self.s.version.text.contains(to) {
            self.findings.at(v, o, Problem::Prefetch("it is of something that is no code of the version"));
        }
        self.visit(v, LEN, Boundary::Inserted(o, None), RowAt::of(o));
        self.report.prefetches += 1;
        Some(end)
    }

    /// The byte of the version that is to be fetched in front of the block that is number `index` of the
    /// version. Duplicates, counting versions, blocks that are nothing but a branch and blocks whose target
    /// was not placed fetch nothing.
    pub fn fetched_at(&self, index: usize) -> Option<Svma> {
        let placed = self.s.version.blocks[index];
        let block = self.s.program.blocks.get(placed.block.index())?;
        if placed.duplicate || self.s.version.counters.is_some() || block.terminator_at() == block.start {
            return None;
        }
        let wanted = self.s.layout.prefetch_at(placed.block)?;
        let range = self.s.version.blocks[self.s.place(wanted.target)?].version;
        Some(range.start + u64::from(wanted.offset).min(range.len().saturating_sub(1)))
    }
}
