//! Looking branches up.

use crate::format::{
    BRANCH, Branch, HEADER, Kind, MAGIC, NONE, OPERAND, Operand, Place, STRETCH, Segment, TIMES, VERSION,
    number,
};
use restitch_address::{Svma, SvmaRange};
use restitch_x86::Condition;

/// Why bytes are no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// They do not begin as one.
    #[error("these bytes are no branch table (they do not begin with its magic number); make it again")]
    NotATable,
    /// It is of another version.
    #[error("this branch table has version {found}, this program reads version {VERSION}; make it again")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Its parts do not fit its length.
    #[error("this branch table is damaged: {what}; make it again")]
    Damaged {
        /// What does not fit.
        what: &'static str,
    },
}

/// A table in somebody's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    start: Svma,
    len: u64,
    /// u32 each, one more than there are stretches.
    index: &'a [u8],
    branches: &'a [u8],
    operands: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Table<'a> {
    /// The table in `bytes`. Looks at the header and the sizes only; damage further in makes wrong answers,
    /// never a panic.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, TableError> {
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(TableError::NotATable);
        }
        let damaged = |what| TableError::Damaged { what };
        let cut = damaged("its header is cut off");
        match u32_at(bytes, 8).ok_or(cut)? {
            VERSION => {}
            found => return Err(TableError::Version { found }),
        }
        let count = u32_at(bytes, 12).ok_or(cut)? as usize;
        let (start, len) = (u64_at(bytes, 16).ok_or(cut)?, u64_at(bytes, 24).ok_or(cut)?);
        let operands = u32_at(bytes, 32).ok_or(cut)? as usize;
        if u64::from(u32_at(bytes, 36).ok_or(cut)?) != STRETCH || len > 1 << 32 {
            return Err(damaged("its stretches have another size, or it is too long"));
        }
        let index_len = 4 * (len.div_ceil(STRETCH) as usize + 1);
        let rest = bytes.get(HEADER..).ok_or(cut)?;
        let (index, rest) = rest.split_at_checked(index_len).ok_or(damaged("its index is cut off"))?;
        let padding = index_len % 8;
        let rest = rest.get(padding..).ok_or(damaged("its index is cut off"))?;
        let (branches, rest) =
            rest.split_at_checked(BRANCH * count).ok_or(damaged("its branches are cut off"))?;
        let operands = rest.get(..OPERAND * operands).ok_or(damaged("its operands are cut off"))?;
        Ok(Self { start: Svma::new(start), len, index, branches, operands })
    }

    /// The code that the table covers.
    pub fn range(&self) -> SvmaRange {
        SvmaRange::new(self.start, self.len)
    }

    /// Number of branches and gaps.
    pub fn count(&self) -> usize {
        self.branches.len() / BRANCH
    }

    fn first_of(&self, stretch: u64) -> Option<usize> {
        u32_at(self.index, usize::try_from(stretch).ok()?.checked_mul(4)?).map(|n| n as usize)
    }

    /// The first branch at or behind `at`, which has to be the start of an instruction. `None` outside of the
    /// covered range; [`Kind::Unknown`] where the code is not known.
    pub fn next(&self, at: Svma) -> Option<Branch> {
        let offset = at.offset_from(self.start) as u64;
        if offset >= self.len {
            return None;
        }
        let mut stretch = offset / STRETCH;
        let (mut at_branch, mut end) = (self.first_of(stretch)?, self.first_of(stretch + 1)?);
        loop {
            while at_branch >= end {
                stretch += 1;
                end = self.first_of(stretch + 1)?;
            }
            let word = u64_at(self.branches, at_branch.checked_mul(BRANCH)?)?;
            let place = stretch * STRETCH + (word & 0xff);
            if place >= offset {
                return self.decode(word, place);
            }
            at_branch += 1;
        }
    }

    fn decode(&self, word: u64, place: u64) -> Option<Branch> {
        let (detail, value) = ((word >> 12 & 15) as u8, (word >> 32) as u32);
        // Targets lie within 2 GiB of their branch, before or behind the start of the code.
        let near = (value as i32).wrapping_sub(place as u32 as i32);
        let target = self.start + place;
        let target = target.offset(near.into());
        let kind = match word >> 8 & 15 {
            number::JUMP => Kind::Jump(target),
            number::CALL => Kind::Call(target),
            number::CONDITIONAL => Kind::Conditional(Condition::from_code(detail)?, target),
            number::COUNTING => Kind::Counting(*TIMES.get(usize::from(detail))?, target),
            number::JUMP_TO => Kind::JumpTo(self.operand(value)?),
            number::CALL_TO => Kind::CallTo(self.operand(value)?),
            number::RETURN => Kind::Return(value as u16),
            _ => Kind::Unknown,
        };
        Some(Branch { at: self.start + place, len: (word >> 16 & 15) as u8, kind })
    }

    fn operand(&self, number: u32) -> Option<Operand> {
        let bytes = self.operands.get(OPERAND * number as usize..)?.get(..OPERAND)?;
        let displacement = i64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
        let register = |n: u8| (n != NONE).then_some(n & 15);
        let place = match bytes[3] {
            0 => Place::Register(bytes[0] & 15),
            1 => Place::Memory {
                base: register(bytes[0]),
                index: register(bytes[1]),
                scale: bytes[2],
                displacement,
            },
            _ => Place::Stated(self.start.offset(displacement)),
        };
        let segment = match bytes[4] {
            1 => Some(Segment::Fs),
            2 => Some(Segment::Gs),
            _ => None,
        };
        Some(Operand { place, segment })
    }
}
