//! Memory as an evaluation sees it: the thread's own, under what the evaluation has stored.

use crate::value::{Value, bytes, spread};
use restitch_address::Avma;
use rustc_hash::FxHashMap;

/// The thread's memory.
pub trait Memory {
    /// Fills `buffer` with the bytes at `at`; false if they cannot be read.
    fn read(&mut self, at: Avma, buffer: &mut [u8]) -> bool;
}

/// Eight aligned bytes of the overlay. The bits of bytes that are not known are 0.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    bits: u64,
    written: u8,
    known: u8,
}

impl Word {
    /// Writes the bytes in the set `written` from `bits`, of which those in `known` are known.
    fn write(&mut self, bits: u64, written: u8, known: u8) {
        let known = known & written;
        self.bits = (self.bits & !spread(written)) | bits & spread(known);
        self.written |= written;
        self.known = (self.known & !written) | known;
    }
}

/// What has been stored, and whether the rest can still be relied upon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    words: FxHashMap<u64, Word>,
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
        let size = size.min(8);
        let (stored, written, known) = self.stored(at, size);
        // What was stored is not read: it may be where nothing can be read.
        if written == bytes(size) {
            return Value::partly(stored, known);
        }
        let mut below = [0u8; 8];
        let readable = !self.lost && memory.read(at, &mut below[..usize::from(size)]);
        let from_below = if readable { bytes(size) & !written } else { 0 };
        Value::partly(u64::from_le_bytes(below) & spread(from_below) | stored, known | from_below)
    }

    /// What was stored of the `size` bytes at `at`: the bits of the known ones, which were written, and which
    /// of these are known.
    fn stored(&self, at: Avma, size: u8) -> (u64, u8, u8) {
        if self.words.is_empty() {
            return (0, 0, 0);
        }
        let (place, within) = (at.align_down(8), (at.get() & 7) as u8);
        let (mut bits, mut written, mut known) = (0, 0, 0);
        if let Some(word) = self.words.get(&place.get()) {
            (bits, written, known) =
                (word.bits >> (8 * within), word.written >> within, word.known >> within);
        }
        if within + size > 8
            && let Some(word) = self.words.get(&(place + 8).get())
        {
            let above = 8 - within;
            bits |= word.bits << (8 * above);
            written |= word.written << above;
            known |= word.known << above;
        }
        let asked = bytes(size);
        (bits & spread(known & asked), written & asked, known & asked)
    }

    /// Stores the low `size` bytes of `value`.
    pub fn store(&mut self, at: Avma, size: u8, value: Value) {
        let size = size.min(8);
        let (place, within) = (at.align_down(8), (at.get() & 7) as u8);
        let (written, known) = (bytes(size), value.known_bytes());
        let word = self.words.entry(place.get()).or_default();
        word.write(value.bits() << (8 * within), written << within, known << within);
        if within + size > 8 {
            let above = 8 - within;
            let word = self.words.entry((place + 8).get()).or_default();
            word.write(value.bits() >> (8 * above), written >> above, known >> above);
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
