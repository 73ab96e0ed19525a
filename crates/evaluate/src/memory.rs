//! Memory as an evaluation sees it: the thread's own, under what the evaluation has stored.

use crate::Value;
use restitch_address::Avma;
use std::collections::HashMap;

/// The thread's memory.
pub trait Memory {
    /// Fills `buffer` with the bytes at `at`; false if they cannot be read.
    fn read(&mut self, at: Avma, buffer: &mut [u8]) -> bool;
}

/// Eight aligned bytes of the overlay.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    bits: u64,
    written: u8,
    known: u8,
}

/// What has been stored, and whether the rest can still be relied upon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    words: HashMap<u64, Word>,
    /// Something was written nobody knows where: the memory below may have changed.
    lost: bool,
}

impl Overlay {
    /// Forgets all contents of memory.
    pub fn lose(&mut self) {
        self.words.clear();
        self.lost = true;
    }

    /// Whether memory is still known.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// The `size` bytes (1 to 8) at `at`.
    pub fn load(&self, at: Avma, size: u8, memory: &mut impl Memory) -> Value {
        let mut below = [0u8; 8];
        let size_bytes = usize::from(size.min(8));
        let readable = !self.lost && memory.read(at, &mut below[..size_bytes]);
        let (mut bits, mut known) = (0u64, 0u8);
        for (i, &byte) in below[..size_bytes].iter().enumerate() {
            let stored = self.byte(at + i as u64);
            let (byte, is_known) = stored.unwrap_or((byte, readable));
            bits |= u64::from(byte) << (8 * i);
            known |= u8::from(is_known) << i;
        }
        Value::partly(bits, known)
    }

    /// A stored byte, and whether it is known.
    fn byte(&self, at: Avma) -> Option<(u8, bool)> {
        let word = self.words.get(&at.align_down(8).get())?;
        let i = at.get() & 7;
        let bit = 1u8 << i;
        (word.written & bit != 0).then_some(((word.bits >> (8 * i)) as u8, word.known & bit != 0))
    }

    /// Stores the low `size` bytes of `value`.
    pub fn store(&mut self, at: Avma, size: u8, value: Value) {
        for i in 0..u64::from(size.min(8)) {
            let place = at + i;
            let word = self.words.entry(place.align_down(8).get()).or_default();
            let (shift, bit) = (8 * (place.get() & 7), 1u8 << (place.get() & 7));
            let is_known = value.known_bytes() >> i & 1 != 0;
            word.bits = (word.bits & !(0xff << shift)) | (value.bits() >> (8 * i) & 0xff) << shift;
            word.written |= bit;
            word.known = if is_known { word.known | bit } else { word.known & !bit };
        }
    }

    /// Marks `size` bytes as unknown.
    pub fn forget(&mut self, at: Avma, size: u16) {
        let mut done = 0;
        while done < size {
            let piece = (size - done).min(8);
            self.store(at + u64::from(done), piece as u8, Value::UNKNOWN);
            done += piece;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Flat(Vec<u8>);

    impl Memory for Flat {
        fn read(&mut self, at: Avma, buffer: &mut [u8]) -> bool {
            let from = at.get() as usize;
            match self.0.get(from..from + buffer.len()) {
                Some(bytes) => {
                    buffer.copy_from_slice(bytes);
                    true
                }
                None => false,
            }
        }
    }

    proptest! {
        /// The overlay is a memory of its own above the other one: a plain array is the oracle.
        #[test]
        fn loads_give_what_was_stored_last(ops in proptest::collection::vec((0u64..56, 1u8..=8, any::<Option<u64>>()), 0..60), at in 0u64..56, size in 1u8..=8) {
            let mut flat = Flat((0..64).collect());
            let mut oracle: Vec<Option<u8>> = flat.0.iter().map(|&b| Some(b)).collect();
            let mut overlay = Overlay::default();
            for (at, size, bits) in ops {
                overlay.store(Avma::new(at), size, Value::maybe(bits));
                for i in 0..usize::from(size) {
                    oracle[at as usize + i] = bits.map(|b| (b >> (8 * i)) as u8);
                }
            }
            let value = overlay.load(Avma::new(at), size, &mut flat);
            for i in 0..usize::from(size) {
                let expected = oracle[at as usize + i];
                prop_assert_eq!(value.known_bytes() >> i & 1 != 0, expected.is_some());
                if let Some(byte) = expected {
                    prop_assert_eq!((value.bits() >> (8 * i)) as u8, byte);
                }
            }
            overlay.lose();
            prop_assert_eq!(overlay.load(Avma::new(at), size, &mut flat), Value::UNKNOWN);
        }
    }
}
