//! Vector registers of which each byte is known or not.

use crate::value::{Value, mask};

/// Bytes of the largest vector register.
pub(crate) const FULL: usize = 64;

/// 64 bytes. The bits of unknown bytes are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wide {
    pub bytes: [u8; FULL],
    /// One bit a byte.
    pub known: u64,
}

/// The set of the low `n` bytes.
pub(crate) fn low(n: usize) -> u64 {
    if n >= FULL { u64::MAX } else { (1 << n) - 1 }
}

impl Wide {
    pub const UNKNOWN: Self = Self { bytes: [0; FULL], known: 0 };
    pub const ZERO: Self = Self { bytes: [0; FULL], known: u64::MAX };

    /// The low bytes of a value, the rest unknown.
    pub fn of_value(value: Value) -> Self {
        let mut wide = Self::UNKNOWN;
        wide.put(0, value);
        wide
    }

    /// Sets eight bytes.
    pub fn put(&mut self, at: usize, value: Value) {
        self.bytes[at..at + 8].copy_from_slice(&value.bits().to_le_bytes());
        self.known = (self.known & !(0xff << at)) | u64::from(value.known_bytes()) << at;
    }

    /// Eight bytes.
    pub fn get(&self, at: usize) -> Value {
        let bits = u64::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]));
        Value::partly(bits, (self.known >> at) as u8)
    }

    /// The element of `size` bytes with this number, if it is known.
    pub fn element(&self, number: usize, size: u8) -> Option<u64> {
        let (at, size_bytes) = (number * usize::from(size), usize::from(size));
        (self.known >> at & low(size_bytes) == low(size_bytes)).then_some(())?;
        Some((0..size_bytes).fold(0, |sum, i| sum | u64::from(self.bytes[at + i]) << (8 * i)))
    }

    /// Sets an element, or makes it unknown.
    pub fn set_element(&mut self, number: usize, size: u8, value: Option<u64>) {
        let (at, size_bytes) = (number * usize::from(size), usize::from(size));
        self.known &= !(low(size_bytes) << at);
        for i in 0..size_bytes {
            self.bytes[at + i] = value.map_or(0, |v| (v >> (8 * i)) as u8);
        }
        if value.is_some() {
            self.known |= low(size_bytes) << at;
        }
    }

    /// A byte, if it is known.
    pub fn byte(&self, at: usize) -> Option<u8> {
        (self.known >> at & 1 != 0).then_some(self.bytes[at])
    }

    /// Sets a byte, or makes it unknown.
    pub fn set_byte(&mut self, at: usize, value: Option<u8>) {
        self.bytes[at] = value.unwrap_or(0);
        self.known = (self.known & !(1 << at)) | u64::from(value.is_some()) << at;
    }

    /// The low `n` bytes of this, and the others of `rest`.
    pub fn over(mut self, n: usize, rest: &Self) -> Self {
        self.bytes[n..].copy_from_slice(&rest.bytes[n..]);
        self.known = (self.known & low(n)) | (rest.known & !low(n));
        self
    }

    /// The low `n` bytes, the rest cleared.
    pub fn cut(self, n: usize) -> Self {
        self.over(n, &Self::ZERO)
    }

    /// Byte for byte.
    pub fn bytewise(&self, other: &Self, op: impl Fn(u8, u8) -> u8) -> Self {
        let known = self.known & other.known;
        let byte = |i: usize| if known >> i & 1 != 0 { op(self.bytes[i], other.bytes[i]) } else { 0 };
        Self { bytes: std::array::from_fn(byte), known }
    }

    /// Element for element.
    pub fn elementwise(&self, other: &Self, size: u8, op: impl Fn(u64, u64) -> u64) -> Self {
        let mut out = Self::UNKNOWN;
        for i in 0..FULL / usize::from(size) {
            let result =
                self.element(i, size).zip(other.element(i, size)).map(|(a, b)| op(a, b) & mask(size));
            out.set_element(i, size, result);
        }
        out
    }

    /// Each 16 bytes on their own.
    pub fn by_16(
        &self,
        other: &Self,
        op: impl Fn(&[Option<u8>; 16], &[Option<u8>; 16]) -> [Option<u8>; 16],
    ) -> Self {
        let mut out = Self::UNKNOWN;
        for first in (0..FULL).step_by(16) {
            let piece = |w: &Self| std::array::from_fn(|i| w.byte(first + i));
            let result = op(&piece(self), &piece(other));
            (0..16).for_each(|i| out.set_byte(first + i, result[i]));
        }
        out
    }
}
