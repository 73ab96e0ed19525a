//! Moving an existing `.eh_frame` to another address.

use crate::error::CfiError;
use crate::memory::{Cursor, DW_EH_PE_OMIT, fixed_size};
use crate::program::{Factors, Instruction, decode};
use crate::records::{Cie, Fde, Records};
use crate::write::EhFrame;
use restitch_address::Svma;
use std::collections::HashMap;
use std::ops::Range;

const WHAT: &str = ".eh_frame";

/// Copies all records of the `.eh_frame` at `old_at` for the address `new_at`; what its PC-relative pointers
/// mean stays the same, whatever encoding they use. The result has no terminator, so that more records can
/// follow: append the bytes of a [`write_eh_frame`](crate::write_eh_frame) for the address behind it.
///
/// Entries of empty ranges are copied but not listed.
///
/// # Errors
/// If the chain of records is broken, a record is not understood, or a pointer does not reach from its new
/// place.
pub fn relocate_eh_frame(eh_frame: &[u8], old_at: Svma, new_at: Svma) -> Result<EhFrame, CfiError> {
    let mut records = Records::new(eh_frame, old_at);
    let mut mover = Mover { old: eh_frame, old_at, new_at, new: eh_frame.to_vec() };
    let mut cies: HashMap<usize, Cie> = HashMap::new();
    let mut entries = Vec::new();
    while let Some(record) = records.next()? {
        let Some(start) = record.cie else {
            let cie = Cie::parse(eh_frame, old_at, record.start)?;
            if let Some((pos, encoding)) = cie.personality_field {
                mover.pointer(pos, encoding)?;
            }
            mover.program(cie.program, &cie.factors)?;
            continue;
        };
        let cie = match cies.entry(start) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(Cie::parse(eh_frame, old_at, start)?)
            }
        };
        let fde = Fde::parse(eh_frame, old_at, &record, cie)?;
        mover.pointer(fde.start_field, cie.factors.pointer_encoding)?;
        if let Some(pos) = fde.lsda_field {
            mover.pointer(pos, cie.lsda_encoding)?;
        }
        mover.program(fde.program, &cie.factors)?;
        if !fde.range.is_empty() {
            entries.push((fde.range.start, new_at + record.start as u64));
        }
    }
    let mut bytes = mover.new;
    bytes.truncate(records.position());
    Ok(EhFrame { bytes, entries })
}

struct Mover<'a> {
    old: &'a [u8],
    old_at: Svma,
    new_at: Svma,
    new: Vec<u8>,
}

impl Mover<'_> {
    /// Re-encodes the pointer at offset `pos` in place.
    fn pointer(&mut self, pos: usize, encoding: u8) -> Result<(), CfiError> {
        if encoding == DW_EH_PE_OMIT || encoding & 0x70 == 0 {
            return Ok(());
        }
        let mut c = Cursor::over(WHAT, self.old, self.old_at, pos..self.old.len())?;
        let size = fixed_size(encoding).ok_or_else(|| c.unsupported(encoding))?;
        let Some(target) = c.pointer(encoding)? else { return Ok(()) };
        let place = self.new_at + pos as u64;
        let raw = target.offset_from(place);
        let fits = match encoding & 0x0f {
            0x02 => u16::try_from(raw).is_ok(),
            0x03 => u32::try_from(raw).is_ok(),
            0x0a => i16::try_from(raw).is_ok(),
            0x0b => i32::try_from(raw).is_ok(),
            _ => true,
        };
        // A raw 0 would read as the null pointer.
        if !fits || raw == 0 {
            return Err(CfiError::OutOfReach { what: WHAT, from: place, to: target });
        }
        self.new[pos..pos + size].copy_from_slice(&raw.to_le_bytes()[..size]);
        Ok(())
    }

    /// Re-encodes the operands of `DW_CFA_set_loc`, the one instruction that holds a pointer.
    fn program(&mut self, range: Range<usize>, factors: &Factors) -> Result<(), CfiError> {
        if factors.pointer_encoding & 0x70 == 0 {
            return Ok(());
        }
        let mut c = Cursor::over("call frame program", self.old, self.old_at, range)?;
        while !c.is_empty() {
            let at = c.pos();
            if let Instruction::SetLocation(_) = decode(&mut c, factors)? {
                self.pointer(at + 1, factors.pointer_encoding)?;
            }
        }
        Ok(())
    }
}
