//! The low 128 bits of vector registers.
//!
//! They are not known at first: reading them from a stopped thread costs as much as a stop's other requests together, and
//! what decides branches is mostly loaded after that.

use crate::Value;
use crate::memory::Memory;
use crate::state::State;
use restitch_address::{Avma, LoadBias};
use restitch_x86::{Vector, VectorOp, VectorSource};

/// 16 bytes: the lower and the upper half.
pub(crate) type Wide = [Value; 2];

/// The low `size` (4, 8 or 16) bytes, the rest cleared.
fn cut(wide: Wide, size: u8) -> Wide {
    match size {
        16 => wide,
        size => [wide[0].zero_extended(size), Value::known(0)],
    }
}

impl State {
    fn wide(&self, register: u8) -> Wide {
        self.vectors[usize::from(register & 15)]
    }

    fn set_wide(&mut self, register: u8, value: Wide) {
        self.vectors[usize::from(register & 15)] = value;
    }

    /// Makes a set of vector registers (by number) unknown.
    pub(crate) fn forget_vectors(&mut self, set: u32) {
        for (i, vector) in self.vectors.iter_mut().enumerate() {
            if set & 1 << i != 0 {
                *vector = [Value::UNKNOWN; 2];
            }
        }
    }

    fn load_wide(&self, at: Option<Avma>, size: u8, memory: &mut impl Memory) -> Wide {
        let Some(at) = at else { return cut([Value::UNKNOWN; 2], size) };
        let low = self.load(at, size.min(8), memory);
        let high = if size == 16 { self.load(at + 8, 8, memory) } else { Value::known(0) };
        cut([low, high], size)
    }

    pub(crate) fn vector(&mut self, action: &Vector, bias: LoadBias, memory: &mut impl Memory) {
        match *action {
            Vector::Load(dst, address, size) => {
                let value = self.load_wide(self.address(&address, bias), size, memory);
                self.set_wide(dst, value);
            }
            Vector::Store(address, src, size) => {
                let (at, [low, high]) = (self.address(&address, bias), self.wide(src));
                self.store(at, size.min(8), low);
                if size == 16 {
                    self.store(at.map(|at| at + 8), 8, high);
                }
            }
            Vector::Move(dst, src, size) => self.set_wide(dst, cut(self.wide(src), size)),
            Vector::FromGeneral(dst, part) => {
                let value = self.read_part(part);
                self.set_wide(dst, cut([value, Value::UNKNOWN], part.size));
            }
            Vector::ToGeneral(part, src) => self.write_part(part, self.wide(src)[0]),
            Vector::Combine(op, dst, source) => {
                let other = match source {
                    VectorSource::Register(src) => self.wide(src),
                    VectorSource::Memory(address) => self.load_wide(self.address(&address, bias), 16, memory),
                };
                let same = source == VectorSource::Register(dst);
                let own = self.wide(dst);
                self.set_wide(dst, [0, 1].map(|half| combine(op, own[half], other[half], same)));
            }
            Vector::Mask(part, src) => {
                let mask = mask(self.wide(src));
                self.write_part(part, Value::maybe(mask));
            }
        }
    }
}

/// One half of a [`VectorOp`]. `same`: both operands are one register, so some results do not depend on its value.
fn combine(op: VectorOp, a: Value, b: Value, same: bool) -> Value {
    match op {
        VectorOp::Xor if same => return Value::known(0),
        VectorOp::AndNot if same => return Value::known(0),
        VectorOp::Equal(_) if same => return Value::known(u64::MAX),
        _ => {}
    }
    let (x, y, known) = (a.bits(), b.bits(), a.known_bytes() & b.known_bytes());
    match op {
        VectorOp::And => Value::partly(x & y, known),
        VectorOp::AndNot => Value::partly(!x & y, known),
        VectorOp::Or => Value::partly(x | y, known),
        VectorOp::Xor => Value::partly(x ^ y, known),
        VectorOp::MinBytes => {
            let (x, y) = (x.to_le_bytes(), y.to_le_bytes());
            Value::partly(u64::from_le_bytes(std::array::from_fn(|i| x[i].min(y[i]))), known)
        }
        VectorOp::Equal(size) => equal(x, y, known, size),
    }
}

/// Elements of `size` bytes; an element is known if all of its bytes are.
fn equal(x: u64, y: u64, known: u8, size: u8) -> Value {
    let size = size.clamp(1, 4);
    let (mut bits, mut all) = (0, 0);
    for first in (0..8).step_by(usize::from(size)) {
        let set = ((1u8 << size) - 1) << first;
        let ones = ((1u64 << (8 * size)) - 1) << (8 * first);
        if known & set == set {
            all |= set;
            bits |= if (x ^ y) & ones == 0 { ones } else { 0 };
        }
    }
    Value::partly(bits, all)
}

/// The highest bits of all bytes, if all bytes are known.
fn mask(wide: Wide) -> Option<u64> {
    let half = |value: Value| -> Option<u64> {
        let bytes = value.low(8)?.to_le_bytes();
        Some(bytes.iter().enumerate().fold(0, |sum, (i, byte)| sum | u64::from(byte >> 7) << i))
    };
    Some(half(wide[0])? | half(wide[1])? << 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is claimed of partly known operands holds for each way of filling in the rest.
        #[test]
        fn partial_knowledge_is_sound(a: u64, b: u64, ka: u8, kb: u8, fill_a: u64, fill_b: u64, n in 0usize..8) {
            let op = [VectorOp::And, VectorOp::AndNot, VectorOp::Or, VectorOp::Xor, VectorOp::MinBytes,
                VectorOp::Equal(1), VectorOp::Equal(2), VectorOp::Equal(4)][n];
            let whole = |known: Value, fill: u64| {
                (0..8).fold(0u64, |sum, i| {
                    let from = if known.known_bytes() >> i & 1 != 0 { known.bits() } else { fill };
                    sum | (from & 0xff << (8 * i))
                })
            };
            let (pa, pb) = (Value::partly(a, ka), Value::partly(b, kb));
            let (wa, wb) = (Value::known(whole(pa, fill_a)), Value::known(whole(pb, fill_b)));
            let exact = combine(op, wa, wb, false).low(8);
            prop_assert!(exact.is_some());
            prop_assert!(!combine(op, pa, pb, false).contradicts(exact.unwrap_or(0)));
            let same = combine(op, wa, wa, true).low(8);
            prop_assert_eq!(same.is_some(), true);
            prop_assert_eq!(same, combine(op, wa, wa, false).low(8));
        }
    }
}
