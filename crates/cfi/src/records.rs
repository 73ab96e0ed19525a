//! The records of an `.eh_frame`: CIEs and FDEs (LSB core specification, section 10.6.1).

use crate::error::CfiError;
use crate::memory::{Cursor, DW_EH_PE_INDIRECT, DW_EH_PE_OMIT};
use crate::program::Factors;
use crate::registers::Register;
use restitch_address::{Svma, SvmaRange};
use std::ops::Range;

const WHAT: &str = ".eh_frame";

/// The routine that handles exceptions for a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Personality {
    /// `address` is that of an 8-byte slot which holds the routine's address at run time.
    pub indirect: bool,
    /// Of the routine, or of the slot.
    pub address: Svma,
}

/// A CIE or FDE, its header decoded. All positions are offsets into the section.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Of the length field.
    pub start: usize,
    /// What follows the CIE id or CIE pointer, up to the record's end.
    pub body: Range<usize>,
    /// `None` for a CIE, else where the FDE's CIE starts.
    pub cie: Option<usize>,
}

/// Walks the records up to the terminator or the end of the bytes.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    at: Svma,
    pos: usize,
}

impl<'a> Records<'a> {
    pub fn new(bytes: &'a [u8], at: Svma) -> Self {
        Self { bytes, at, pos: 0 }
    }
    /// Where the next record would start: after the walk, the length of what was walked, terminator excluded.
    pub fn position(&self) -> usize {
        self.pos
    }
    pub fn next(&mut self) -> Result<Option<Record>, CfiError> {
        if self.pos >= self.bytes.len() {
            return Ok(None);
        }
        let record = record_at(self.bytes, self.at, self.pos)?;
        if let Some(record) = &record {
            self.pos = record.body.end;
        }
        Ok(record)
    }
}

/// The record at offset `start`; `None` for a terminator.
pub(crate) fn record_at(bytes: &[u8], at: Svma, start: usize) -> Result<Option<Record>, CfiError> {
    let mut c = Cursor::over(WHAT, bytes, at, start..bytes.len())?;
    let mut len = u64::from(c.u32()?);
    if len == 0 {
        return Ok(None);
    }
    let wide = len == 0xffff_ffff;
    if wide {
        len = c.u64()?;
    }
    let id_at = c.pos();
    if len > c.remaining() as u64 {
        return Err(c.malformed("a record is longer than the section"));
    }
    let end = id_at + len as usize;
    let mut c = Cursor::over(WHAT, bytes, at, id_at..end)?;
    // libgcc reads 4 bytes here even in the 64-bit form.
    let id = c.u32()?;
    let cie = match usize::try_from(id).unwrap_or(usize::MAX) {
        0 => None,
        back if back <= id_at => Some(id_at - back),
        _ => return Err(c.malformed("an FDE points to a CIE outside the section")),
    };
    Ok(Some(Record { start, body: c.pos()..end, cie }))
}

/// A CIE, decoded.
#[derive(Debug, Clone)]
pub(crate) struct Cie {
    pub factors: Factors,
    /// Whether its FDEs have an augmentation data block.
    pub sized_augmentation: bool,
    pub lsda_encoding: u8,
    pub personality: Option<Personality>,
    /// Offset in the section and encoding of the personality pointer.
    pub personality_field: Option<(usize, u8)>,
    pub signal_frame: bool,
    /// The initial instructions.
    pub program: Range<usize>,
}

impl Cie {
    /// Decodes the CIE at offset `start`.
    pub fn parse(bytes: &[u8], at: Svma, start: usize) -> Result<Self, CfiError> {
        let record = record_at(bytes, at, start)?;
        let record = match record {
            Some(record) if record.cie.is_none() => record,
            _ => {
                let at = at + start as u64;
                return Err(CfiError::Malformed {
                    what: WHAT,
                    at,
                    why: "an FDE points to something that is no CIE",
                });
            }
        };
        let mut c = Cursor::over(WHAT, bytes, at, record.body.clone())?;
        let version = c.u8()?;
        if !matches!(version, 1 | 3 | 4) {
            return Err(c.malformed("an unknown CIE version"));
        }
        let augmentation = c_string(&mut c)?;
        if version == 4 && (c.u8()?, c.u8()?) != (8, 0) {
            return Err(c.malformed("a CIE whose addresses are not 8 bytes long"));
        }
        let code_align = c.uleb()?;
        let data_align = c.sleb()?;
        let return_address = if version == 1 { u64::from(c.u8()?) } else { c.uleb()? };
        let return_address = match u16::try_from(return_address) {
            Ok(column @ 0..=255) => Register(column),
            _ => return Err(c.malformed("a return-address column that x86-64 does not have")),
        };
        let mut cie = Self {
            factors: Factors { code_align, data_align, return_address, pointer_encoding: 0 },
            sized_augmentation: false,
            lsda_encoding: DW_EH_PE_OMIT,
            personality: None,
            personality_field: None,
            signal_frame: false,
            program: record.body,
        };
        cie.augment(augmentation, &mut c)?;
        cie.program.start = c.pos();
        Ok(cie)
    }

    fn augment(&mut self, augmentation: &[u8], c: &mut Cursor<'_>) -> Result<(), CfiError> {
        let Some((first, letters)) = augmentation.split_first() else { return Ok(()) };
        if *first != b'z' {
            return Err(c.malformed("an unknown CIE augmentation"));
        }
        self.sized_augmentation = true;
        let len = c.uleb()?;
        if len > c.remaining() as u64 {
            return Err(c.malformed("augmentation data longer than its record"));
        }
        let end = c.pos() + len as usize;
        for letter in letters {
            match letter {
                b'R' => self.factors.pointer_encoding = c.u8()?,
                b'L' => self.lsda_encoding = c.u8()?,
                b'S' => self.signal_frame = true,
                b'P' => {
                    let encoding = c.u8()?;
                    if encoding == DW_EH_PE_OMIT {
                        continue;
                    }
                    self.personality_field = Some((c.pos(), encoding));
                    let indirect = encoding & DW_EH_PE_INDIRECT != 0;
                    self.personality = c.pointer(encoding)?.map(|address| Personality { indirect, address });
                }
                _ => return Err(c.malformed("an unknown CIE augmentation")),
            }
        }
        if c.pos() > end {
            return Err(c.malformed("augmentation data shorter than its string says"));
        }
        c.take(end - c.pos())?;
        Ok(())
    }
}

fn c_string<'a>(c: &mut Cursor<'a>) -> Result<&'a [u8], CfiError> {
    let mut ahead = c.clone();
    let mut len = 0;
    while ahead.u8()? != 0 {
        len += 1;
    }
    let text = c.take(len)?;
    c.take(1)?;
    Ok(text)
}

/// An FDE, decoded but for its instructions.
#[derive(Debug, Clone)]
pub(crate) struct Fde {
    pub range: SvmaRange,
    pub lsda: Option<Svma>,
    /// Offset of the start address.
    pub start_field: usize,
    /// Offset of the LSDA pointer.
    pub lsda_field: Option<usize>,
    pub program: Range<usize>,
}

impl Fde {
    /// Decodes the FDE with this body.
    pub fn parse(bytes: &[u8], at: Svma, record: &Record, cie: &Cie) -> Result<Self, CfiError> {
        let mut c = Cursor::over(WHAT, bytes, at, record.body.clone())?;
        let encoding = cie.factors.pointer_encoding;
        if encoding & DW_EH_PE_INDIRECT != 0 {
            return Err(c.unsupported(encoding));
        }
        let start_field = c.pos();
        let start = c.pointer(encoding)?.unwrap_or(Svma::new(0));
        let len = c.encoded(encoding)?;
        let (mut lsda, mut lsda_field) = (None, None);
        if cie.sized_augmentation {
            let block = c.uleb()?;
            if block > c.remaining() as u64 {
                return Err(c.malformed("augmentation data longer than its record"));
            }
            let end = c.pos() + block as usize;
            if cie.lsda_encoding != DW_EH_PE_OMIT {
                if cie.lsda_encoding & DW_EH_PE_INDIRECT != 0 {
                    return Err(c.unsupported(cie.lsda_encoding));
                }
                lsda_field = Some(c.pos());
                lsda = c.pointer(cie.lsda_encoding)?;
            }
            if c.pos() > end {
                return Err(c.malformed("augmentation data too short for an LSDA pointer"));
            }
            c.take(end - c.pos())?;
        }
        let program = c.pos()..record.body.end;
        Ok(Self { range: SvmaRange::new(start, len), lsda, start_field, lsda_field, program })
    }
}
