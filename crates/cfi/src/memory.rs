//! Reading bytes: the module's memory, and a cursor over a part of it.

use crate::error::CfiError;
use restitch_address::Svma;

/// Read access to a module's bytes by address, so that this crate needs neither a file nor a process.
///
/// Implemented for closures `Fn(Svma) -> Option<&[u8]>` and for [`Bytes`]. Where a module's pointers are
/// filled in by dynamic relocations (absolute pointers in position-independent code), the bytes should be the
/// relocated ones.
pub trait Memory<'m> {
    /// All bytes that are stored contiguously from `at` on (as a rule: to the end of the segment); `None` if
    /// `at` is not in the module.
    fn bytes_from(&self, at: Svma) -> Option<&'m [u8]>;

    /// The `len` bytes at `at`, if all of them are there.
    fn read(&self, at: Svma, len: usize) -> Option<&'m [u8]> {
        self.bytes_from(at)?.get(..len)
    }
}

impl<'m, F: Fn(Svma) -> Option<&'m [u8]>> Memory<'m> for F {
    fn bytes_from(&self, at: Svma) -> Option<&'m [u8]> {
        self(at)
    }
}

/// One piece of memory: a section or a table that was just written.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    /// Address of the first byte.
    pub at: Svma,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'m> Memory<'m> for Bytes<'m> {
    fn bytes_from(&self, at: Svma) -> Option<&'m [u8]> {
        let offset = usize::try_from(at.get().wrapping_sub(self.at.get())).ok()?;
        self.bytes.get(offset..).filter(|rest| !rest.is_empty())
    }
}

/// "Value is absent", as a pointer encoding.
pub(crate) const DW_EH_PE_OMIT: u8 = 0xff;
/// The pointer is the address of the pointer.
pub(crate) const DW_EH_PE_INDIRECT: u8 = 0x80;
/// Relative to the field itself, 4 bytes, signed.
pub(crate) const PCREL_SDATA4: u8 = 0x1b;

/// A reader of consecutive fields that knows its address.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    what: &'static str,
    bytes: &'a [u8],
    pos: usize,
    /// Address of `bytes[0]`.
    base: Svma,
}

impl<'a> Cursor<'a> {
    pub fn new(what: &'static str, bytes: &'a [u8], base: Svma) -> Self {
        Self { what, bytes, pos: 0, base }
    }
    /// A cursor over `range` of `bytes`, which must lie within.
    pub fn over(
        what: &'static str,
        bytes: &'a [u8],
        base: Svma,
        range: std::ops::Range<usize>,
    ) -> Result<Self, CfiError> {
        let truncated = CfiError::Truncated { what, at: base + bytes.len() as u64 };
        let bytes = bytes.get(..range.end).filter(|b| range.start <= b.len()).ok_or(truncated)?;
        Ok(Self { what, bytes, pos: range.start, base })
    }
    pub fn pos(&self) -> usize {
        self.pos
    }
    pub fn address(&self) -> Svma {
        self.base + self.pos as u64
    }
    pub fn is_empty(&self) -> bool {
        self.pos >= self.bytes.len()
    }
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }
    pub fn malformed(&self, why: &'static str) -> CfiError {
        CfiError::Malformed { what: self.what, at: self.address(), why }
    }
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], CfiError> {
        let end = self.pos.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end =
            end.ok_or(CfiError::Truncated { what: self.what, at: self.base + self.bytes.len() as u64 })?;
        let taken = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], CfiError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }
    pub fn u8(&mut self) -> Result<u8, CfiError> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Result<u16, CfiError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Result<u32, CfiError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Result<u64, CfiError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// An unsigned LEB128 number; padding bytes are allowed, values over 64 bits are not.
    pub fn uleb(&mut self) -> Result<u64, CfiError> {
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits != 0 && (shift > 63 || (bits << shift) >> shift != bits) {
                return Err(self.malformed("a LEB128 number does not fit in 64 bits"));
            }
            if shift < 64 {
                value |= bits << shift;
            }
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift = shift.saturating_add(7);
        }
    }
    /// A signed LEB128 number; bits above the 64th are ignored.
    pub fn sleb(&mut self) -> Result<i64, CfiError> {
        let (mut value, mut shift) = (0i64, 0u32);
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= i64::from(byte & 0x7f) << shift;
            }
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                if shift < 64 && byte & 0x40 != 0 {
                    value |= -1 << shift;
                }
                return Ok(value);
            }
        }
    }
    /// A length-prefixed block.
    pub fn block(&mut self) -> Result<&'a [u8], CfiError> {
        let len = self.uleb()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }
    /// A value in the format (low four bits) of `encoding`, not yet relative to anything.
    pub fn encoded(&mut self, encoding: u8) -> Result<u64, CfiError> {
        Ok(match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.u64()?,
            0x01 => self.uleb()?,
            0x02 => u64::from(self.u16()?),
            0x03 => u64::from(self.u32()?),
            0x09 => self.sleb()? as u64,
            0x0a => self.u16()? as i16 as u64,
            0x0b => self.u32()? as i32 as u64,
            _ => return Err(self.unsupported(encoding)),
        })
    }
    /// A pointer in `encoding`; the `indirect` bit is not followed. `None` is the null pointer (a raw value
    /// of 0, whatever it is relative to: libgcc's `read_encoded_value_with_base`).
    pub fn pointer(&mut self, encoding: u8) -> Result<Option<Svma>, CfiError> {
        let place = self.address();
        let base = match encoding & 0x70 {
            0x00 => Svma::new(0),
            0x10 => place,
            _ => return Err(self.unsupported(encoding)),
        };
        let raw = self.encoded(encoding)?;
        Ok((raw != 0).then(|| base + raw))
    }
    pub fn unsupported(&self, encoding: u8) -> CfiError {
        CfiError::UnsupportedEncoding { what: self.what, at: self.address(), encoding }
    }
}

/// Size in bytes of a pointer in this encoding, if it is fixed.
pub(crate) fn fixed_size(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => Some(8),
        0x02 | 0x0a => Some(2),
        0x03 | 0x0b => Some(4),
        _ => None,
    }
}

/// Appends an unsigned LEB128 number.
pub(crate) fn put_uleb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed LEB128 number.
pub(crate) fn put_sleb(out: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8 & 0x7f);
}

/// Appends a pointer to `to` as `pcrel | sdata4`; `base` is the address of `out[0]`.
pub(crate) fn put_pcrel(what: &'static str, out: &mut Vec<u8>, base: Svma, to: Svma) -> Result<(), CfiError> {
    let from = base + out.len() as u64;
    let distance = distance32(what, from, to)?;
    out.extend(distance.to_le_bytes());
    Ok(())
}

/// `to - from` if 32 bits can hold it.
pub(crate) fn distance32(what: &'static str, from: Svma, to: Svma) -> Result<i32, CfiError> {
    i32::try_from(to.offset_from(from)).map_err(|_| CfiError::OutOfReach { what, from, to })
}
