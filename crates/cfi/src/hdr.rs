//! `.eh_frame_hdr`: the binary search table over an `.eh_frame` (LSB core specification, section 10.6.2).

use crate::error::CfiError;
use crate::memory::{Cursor, DW_EH_PE_INDIRECT, DW_EH_PE_OMIT, Memory, PCREL_SDATA4, distance32, put_pcrel};
use restitch_address::Svma;

const WHAT: &str = ".eh_frame_hdr";
/// Unsigned, 4 bytes, absolute: the count.
const UDATA4: u8 = 0x03;
/// Relative to the start of the header, 4 bytes, signed: the table.
const DATAREL_SDATA4: u8 = 0x3b;

/// A decoded `.eh_frame_hdr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EhFrameHdr {
    /// Where the `.eh_frame` is.
    pub eh_frame: Svma,
    /// (start of the code, address of the FDE), in the order of the table; empty if there is no table.
    pub entries: Vec<(Svma, Svma)>,
}

/// Reads the `.eh_frame_hdr` at `at` (the address of the `PT_GNU_EH_FRAME` segment).
///
/// # Errors
/// If it is cut short or not version 1, or uses an encoding that x86-64 linkers do not.
pub fn read_eh_frame_hdr<'m>(memory: &impl Memory<'m>, at: Svma) -> Result<EhFrameHdr, CfiError> {
    let bytes = memory.bytes_from(at).ok_or(CfiError::Unmapped { what: WHAT, at })?;
    let mut c = Cursor::new(WHAT, bytes, at);
    if c.u8()? != 1 {
        return Err(c.malformed("an unknown version"));
    }
    let (frame, count, table) = (c.u8()?, c.u8()?, c.u8()?);
    if frame & DW_EH_PE_INDIRECT != 0 {
        return Err(c.unsupported(frame));
    }
    let eh_frame = c.pointer(frame)?.ok_or_else(|| c.malformed("no pointer to the .eh_frame"))?;
    let mut entries = Vec::new();
    if count != DW_EH_PE_OMIT && table != DW_EH_PE_OMIT {
        if count & 0xf0 != 0 || table != DATAREL_SDATA4 {
            return Err(c.unsupported(if count & 0xf0 != 0 { count } else { table }));
        }
        let count = c.encoded(count)?;
        let table = c.take(usize::try_from(count.saturating_mul(8)).unwrap_or(usize::MAX))?;
        entries = table
            .chunks_exact(8)
            .map(|pair| {
                let field = |i: usize| i32::from_le_bytes([pair[i], pair[i + 1], pair[i + 2], pair[i + 3]]);
                (at.offset(field(0).into()), at.offset(field(4).into()))
            })
            .collect();
    }
    Ok(EhFrameHdr { eh_frame, entries })
}

/// Writes a version-1 header for the address `at`, with the encodings that every run-time reader knows
/// (`1b 03 3b`): a search table over `entries`, pairs of (start of the code, address of the FDE) in any
/// order.
///
/// # Errors
/// If the `.eh_frame`, an entry or its FDE is more than 2 GiB away.
pub fn write_eh_frame_hdr(at: Svma, eh_frame: Svma, entries: &[(Svma, Svma)]) -> Result<Vec<u8>, CfiError> {
    let mut out = vec![1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4];
    put_pcrel(WHAT, &mut out, at, eh_frame)?;
    let too_many = CfiError::Inexpressible { what: WHAT, at, why: "more than 2^32 entries" };
    out.extend(u32::try_from(entries.len()).map_err(|_| too_many)?.to_le_bytes());
    let mut table = Vec::with_capacity(entries.len());
    for (start, fde) in entries {
        table.push((distance32(WHAT, at, *start)?, distance32(WHAT, at, *fde)?));
    }
    // By distance, not by Svma: that is the order of the run-time addresses even where Svmas wrap below zero.
    table.sort_unstable();
    for (start, fde) in table {
        out.extend(start.to_le_bytes());
        out.extend(fde.to_le_bytes());
    }
    Ok(out)
}
