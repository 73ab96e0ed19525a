//! Values of which each byte is known or not.

/// Up to eight bytes. The bits of unknown bytes are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Value {
    bits: u64,
    /// One bit a byte.
    known: u8,
}

/// The mask of the low `size` bytes of a word (`size` 1 to 8).
pub(crate) fn mask(size: u8) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

/// The set of the low `size` bytes.
pub(crate) fn bytes(size: u8) -> u8 {
    if size >= 8 { 0xff } else { (1 << size) - 1 }
}

/// The bits of the bytes in a set.
pub(crate) fn spread(set: u8) -> u64 {
    // Each byte gets the set and keeps its own bit of it; adding 0x7f makes that its highest one.
    let own = (u64::from(set) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    ((own + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101) * 0xff
}

impl Value {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { bits: 0, known: 0 };

    /// All eight bytes are known.
    pub const fn known(bits: u64) -> Self {
        Self { bits, known: 0xff }
    }

    /// The bytes in the set `known` of `bits` are known.
    pub fn partly(bits: u64, known: u8) -> Self {
        Self { bits: bits & spread(known), known }
    }

    /// `bits` if they are given, nothing otherwise.
    pub fn maybe(bits: Option<u64>) -> Self {
        bits.map_or(Self::UNKNOWN, Self::known)
    }

    /// The low `size` bytes, if all of them are known.
    pub fn low(self, size: u8) -> Option<u64> {
        (self.known & bytes(size) == bytes(size)).then_some(self.bits & mask(size))
    }

    /// The bits of the known bytes.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// Which bytes are known, one bit each.
    pub fn known_bytes(self) -> u8 {
        self.known
    }

    /// The low `size` bytes, zero-extended.
    pub fn zero_extended(self, size: u8) -> Self {
        Self::partly(self.bits & mask(size), self.known | !bytes(size))
    }

    /// The low `size` bytes, sign-extended: the upper ones are known if the highest of the low ones is.
    pub fn sign_extended(self, size: u8) -> Self {
        if size >= 8 {
            return self;
        }
        if self.known & 1 << (size - 1) == 0 {
            return Self::partly(self.bits, self.known & bytes(size));
        }
        let shift = 64 - 8 * u32::from(size);
        let bits = ((self.bits << shift) as i64 >> shift) as u64;
        Self::partly(bits, self.known | !bytes(size))
    }

    /// This value with its low `size` bytes from `part`.
    pub fn with_low(self, size: u8, part: Self) -> Self {
        let set = bytes(size);
        let bits = (self.bits & !mask(size)) | (part.bits & mask(size));
        Self { bits, known: (self.known & !set) | (part.known & set) }
    }

    /// This value with its second byte from the lowest of `part`.
    pub fn with_second(self, part: Self) -> Self {
        let bits = (self.bits & !0xff00) | (part.bits & 0xff) << 8;
        Self { bits, known: (self.known & !2) | (part.known & 1) << 1 }
    }

    /// The second byte, as the lowest, zero-extended.
    pub fn second(self) -> Self {
        Self::partly(self.bits >> 8, self.known >> 1).zero_extended(1)
    }

    /// Whether `real` has other bytes where this value knows them.
    pub fn contradicts(self, real: u64) -> bool {
        real & spread(self.known) != self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_of_a_set_are_spread() {
        for set in 0..=u8::MAX {
            let expected = (0..8).filter(|i| set & 1 << i != 0).fold(0, |sum, i| sum | 0xff << (8 * i));
            assert_eq!(spread(set), expected, "{set:08b}");
        }
    }

    proptest! {
        #[test]
        fn parts_agree_with_the_whole(bits: u64, known: u8, part: u64, size in prop_oneof![Just(1u8), Just(2), Just(4), Just(8)]) {
            let value = Value::partly(bits, known);
            prop_assert!(!value.contradicts(bits));
            prop_assert_eq!(value.zero_extended(size).low(8).is_some(), value.low(size).is_some());
            if let Some(low) = value.low(size) {
                prop_assert_eq!(low, bits & mask(size));
                let shift = 64 - 8 * u32::from(size);
                prop_assert_eq!(value.sign_extended(size).low(8), Some(((bits << shift) as i64 >> shift) as u64));
            }
            let joined = value.with_low(size, Value::known(part));
            prop_assert_eq!(joined.low(size), Some(part & mask(size)));
            prop_assert!(!joined.contradicts((bits & !mask(size)) | (part & mask(size))));
            prop_assert_eq!(value.with_second(Value::known(part)).second().low(1), Some(part & 0xff));
        }
    }
}
