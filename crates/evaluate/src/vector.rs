//! What vector instructions do to a state.

use crate::memory::Memory;
use crate::state::{Flags, State};
use crate::strings;
use crate::value::{Value, mask};
use crate::wide::{FULL, Wide, low};
use restitch_address::{Avma, LoadBias};
use restitch_x86::{
    ALL_FLAGS, Asks, Flag, Lanes, MaskOp, MaskPlace, Operand, Part, Reg, Under, Vector, VectorOp,
    VectorSource,
};

const RCX: Part = Part { reg: Reg(1), size: 4, high: false };

impl State {
    fn load_wide(&self, at: Option<Avma>, size: u8, memory: &mut impl Memory) -> Wide {
        let mut wide = Wide::UNKNOWN;
        let Some(at) = at else { return wide };
        for first in (0..usize::from(size)).step_by(8) {
            let piece = (usize::from(size) - first).min(8) as u8;
            wide.put(first, self.load(at + first as u64, piece, memory));
        }
        wide
    }

    /// `size` bytes of a source.
    fn source(&self, source: VectorSource, size: u8, bias: LoadBias, memory: &mut impl Memory) -> Wide {
        match source {
            VectorSource::Register(register) => *self.vectors.get(register),
            VectorSource::Memory(address) => self.load_wide(self.address(&address, bias), size, memory),
            VectorSource::General(part) => Wide::of_value(self.read_part(part)),
        }
    }

    pub(crate) fn vector(&mut self, action: &Vector, bias: LoadBias, memory: &mut impl Memory) {
        match *action {
            Vector::Move(to, from, size) => {
                let value = self.source(from, size, bias, memory).cut(size.into());
                self.vectors.set(to, value);
            }
            Vector::MoveUnder(to, from, under) => {
                let value = self.source(from, to.width, bias, memory);
                let value = self.masked(value, to, Some(under));
                self.vectors.set(to, value);
            }
            Vector::Store(address, from, size) => {
                let (at, wide) = (self.address(&address, bias), *self.vectors.get(from));
                for first in (0..size).step_by(8) {
                    let place = at.map(|at| at + u64::from(first));
                    self.store(place, (size - first).min(8), wide.get(first.into()));
                }
            }
            Vector::ToGeneral(part, from) => self.write_part(part, self.vectors.get(from).get(0)),
            Vector::Broadcast(to, from, size) => {
                let one = self.source(from, size, bias, memory).element(0, size);
                let mut all = Wide::UNKNOWN;
                (0..FULL / usize::from(size)).for_each(|i| all.set_element(i, size, one));
                self.vectors.set(to, all);
            }
            Vector::Combine(op, to, a, b, under) => {
                let same = b == VectorSource::Register(a);
                let (a, b) = (*self.vectors.get(a), self.source(b, to.width, bias, memory));
                let result = combine(op, &a, &b, same);
                let result = self.masked(result, to, under);
                self.vectors.set(to, result);
            }
            Vector::Ternary(to, b, c, table) => {
                let same = b == to.number && c == VectorSource::Register(b);
                let (a, b) = (*self.vectors.get(to.number), *self.vectors.get(b));
                let c = self.source(c, to.width, bias, memory);
                self.vectors.set(to, ternary(&a, &b, &c, table, same));
            }
            _ => self.masks_and_flags(action, bias, memory),
        }
    }

    /// Instructions whose results are masks or flags.
    fn masks_and_flags(&mut self, action: &Vector, bias: LoadBias, memory: &mut impl Memory) {
        match *action {
            Vector::Mask(to, from, width) => {
                let mask = sign_mask(self.vectors.get(from), width.into());
                self.write_part(to, Value::maybe(mask));
            }
            Vector::Test(a, b, width) => {
                let (a, b) = (*self.vectors.get(a), self.source(b, width, bias, memory));
                self.flags = test(&a, &b, width.into());
            }
            Vector::Compare { to, asks, element, width, a, b, under } => {
                let (a, b) = (*self.vectors.get(a), self.source(b, width, bias, memory));
                let under = under.map(|k| self.vectors.mask(k));
                let number = usize::from(width / element);
                self.vectors.set_mask(to, compare(asks, element, number, &a, &b, under));
            }
            Vector::MoveMask(to, from, size) => self.move_mask(to, from, size, bias, memory),
            Vector::CombineMasks(op, to, a, b, size) => {
                let (a, b) = (self.vectors.mask(a), self.vectors.mask(b));
                self.vectors.set_mask(to, combine_masks(op, a, b, size));
            }
            Vector::CompareScalars(a, b, size) => {
                let (a, b) = (*self.vectors.get(a), self.source(b, size, bias, memory));
                self.flags = scalar_flags(a.element(0, size), b.element(0, size), size);
            }
            Vector::OrTest(a, b, size) => {
                let (a, b) = (self.vectors.mask(a).low(size), self.vectors.mask(b).low(size));
                let both = a.zip(b).map(|(a, b)| a | b);
                self.flags = mask_flags(both.map(|v| v == 0), both.map(|v| v == mask(size)));
            }
            Vector::MaskTest(a, b, size) => {
                let (a, b) = (self.vectors.mask(a).low(size), self.vectors.mask(b).low(size));
                let both = a.zip(b);
                self.flags = mask_flags(both.map(|(a, b)| a & b == 0), both.map(|(a, b)| !a & b == 0));
            }
            Vector::FindInString(a, b, control) => {
                let (a, b) = (*self.vectors.get(a), self.source(b, 16, bias, memory));
                let found = strings::find(&a, &b, control);
                self.flags = found.map_or_else(Flags::default, |found| found.flags);
                self.write_part(RCX, Value::maybe(found.map(|found| found.index.into())));
            }
            Vector::ClearUpper(kept) => {
                self.vectors.clear_upper(kept);
            }
            _ => {}
        }
    }

    fn move_mask(
        &mut self,
        to: MaskPlace,
        from: MaskPlace,
        size: u8,
        bias: LoadBias,
        memory: &mut impl Memory,
    ) {
        let value = match from {
            MaskPlace::Mask(k) => self.vectors.mask(k),
            MaskPlace::General(part) => self.read_part(part),
            MaskPlace::Memory(address) => self.read(&Operand::Memory(address, size), bias, memory),
        };
        let value = value.zero_extended(size);
        match to {
            MaskPlace::Mask(k) => self.vectors.set_mask(k, value),
            MaskPlace::General(part) => self.write_part(part, value),
            MaskPlace::Memory(address) => self.write(&Operand::Memory(address, size), bias, value),
        }
    }

    /// The elements that a mask names from `result`, the others cleared or as they were.
    fn masked(&self, result: Wide, to: Lanes, under: Option<Under>) -> Wide {
        let Some(Under { mask, element, zeroing }) = under else { return result };
        let other = if zeroing { Wide::ZERO } else { *self.vectors.get(to.number) };
        let number = FULL / usize::from(element);
        let mut out = Wide::UNKNOWN;
        for i in 0..number {
            let chosen = match bit(self.vectors.mask(mask), i) {
                Some(true) => result.element(i, element),
                Some(false) => other.element(i, element),
                None => None,
            };
            out.set_element(i, element, chosen);
        }
        out
    }
}

fn bit(mask: Value, number: usize) -> Option<bool> {
    let is_known = mask.known_bytes() >> (number / 8) & 1 != 0;
    is_known.then_some(mask.bits() >> number & 1 != 0)
}

/// An operation on whole registers. `same`: both operands are one register, so some results do not depend on
/// its value.
fn combine(op: VectorOp, a: &Wide, b: &Wide, same: bool) -> Wide {
    match op {
        VectorOp::Xor | VectorOp::AndNot | VectorOp::Subtract(_) | VectorOp::Greater(_) if same => {
            return Wide::ZERO;
        }
        VectorOp::Equal(_) if same => return Wide { bytes: [0xff; FULL], known: u64::MAX },
        _ => {}
    }
    match op {
        VectorOp::And => a.bytewise(b, |a, b| a & b),
        VectorOp::AndNot => a.bytewise(b, |a, b| !a & b),
        VectorOp::Or => a.bytewise(b, |a, b| a | b),
        VectorOp::Xor => a.bytewise(b, |a, b| a ^ b),
        VectorOp::Min(1) => a.bytewise(b, u8::min),
        VectorOp::Max(1) => a.bytewise(b, u8::max),
        VectorOp::Add(1) => a.bytewise(b, u8::wrapping_add),
        VectorOp::Subtract(1) => a.bytewise(b, u8::wrapping_sub),
        VectorOp::Equal(1) => a.bytewise(b, |a, b| if a == b { 0xff } else { 0 }),
        VectorOp::Greater(1) => a.bytewise(b, |a, b| if a as i8 > b as i8 { 0xff } else { 0 }),
        VectorOp::Min(size) => a.elementwise(b, size, u64::min),
        VectorOp::Max(size) => a.elementwise(b, size, u64::max),
        VectorOp::Add(size) => a.elementwise(b, size, u64::wrapping_add),
        VectorOp::Subtract(size) => a.elementwise(b, size, u64::wrapping_sub),
        VectorOp::Equal(size) => a.elementwise(b, size, |a, b| if a == b { u64::MAX } else { 0 }),
        VectorOp::Greater(size) => {
            let greater = |a, b| signed(a, size) > signed(b, size);
            a.elementwise(b, size, |a, b| if greater(a, b) { u64::MAX } else { 0 })
        }
        _ => shuffle(op, a, b),
    }
}

/// Operations that move bytes within each 16 bytes.
fn shuffle(op: VectorOp, a: &Wide, b: &Wide) -> Wide {
    type Lane = [Option<u8>; 16];
    let from = |f: &dyn Fn(&Lane, &Lane, usize) -> Option<u8>| {
        a.by_16(b, |a, b| std::array::from_fn(|i| f(a, b, i)))
    };
    let unpack = |size: u8, half: usize| {
        let size = usize::from(size);
        from(&|a, b, i| {
            let (element, within) = (i / size, i % size);
            let lane = if element % 2 == 0 { a } else { b };
            lane[half + element / 2 * size + within]
        })
    };
    match op {
        VectorOp::UnpackLow(size) => unpack(size, 0),
        VectorOp::UnpackHigh(size) => unpack(size, 8),
        VectorOp::Align(n) => from(&|a, b, i| match i + usize::from(n) {
            at @ 0..16 => b[at],
            at @ 16..32 => a[at - 16],
            _ => Some(0),
        }),
        VectorOp::ShuffleDoubles(order) => {
            from(&|_, b, i| b[usize::from(order >> (2 * (i / 4)) & 3) * 4 + i % 4])
        }
        VectorOp::ShiftBytesLeft(n) => from(&|_, b, i| match i.checked_sub(n.into()) {
            Some(at) => b[at],
            None => Some(0),
        }),
        VectorOp::ShiftBytesRight(n) => from(&|_, b, i| match i + usize::from(n) {
            at @ 0..16 => b[at],
            _ => Some(0),
        }),
        VectorOp::ShuffleBytes => from(&|a, b, i| match b[i]? {
            0x80.. => Some(0),
            at => a[usize::from(at & 15)],
        }),
        _ => Wide::UNKNOWN,
    }
}

fn signed(value: u64, size: u8) -> i64 {
    let shift = 64 - 8 * u32::from(size);
    (value << shift) as i64 >> shift
}

/// `same`: all three operands are one register, of which two entries of the table are left.
fn ternary(a: &Wide, b: &Wide, c: &Wide, table: u8, same: bool) -> Wide {
    match (same, table) {
        (_, 0xff) => return Wide { bytes: [0xff; FULL], known: u64::MAX },
        (_, 0) => return Wide::ZERO,
        _ => {}
    }
    let known = a.known & b.known & c.known;
    let byte = |at: usize| {
        if known >> at & 1 == 0 {
            return 0;
        }
        (0..8).fold(0u8, |sum, bit| {
            let index =
                (a.bytes[at] >> bit & 1) << 2 | (b.bytes[at] >> bit & 1) << 1 | (c.bytes[at] >> bit & 1);
            sum | (table >> index & 1) << bit
        })
    };
    Wide { bytes: std::array::from_fn(byte), known }
}

/// The highest bits of the low `width` bytes, if all are known.
fn sign_mask(wide: &Wide, width: usize) -> Option<u64> {
    (wide.known & low(width) == low(width)).then_some(())?;
    Some((0..width).fold(0, |sum, i| sum | u64::from(wide.bytes[i] >> 7) << i))
}

/// The flags of `ptest`: ZF if no bit is common, CF if the second operand has no bit that the first has not.
fn test(a: &Wide, b: &Wide, width: usize) -> Flags {
    // A difference decides as soon as one byte shows it.
    let all = |holds: &dyn Fn(u8, u8) -> bool| {
        let mut result = Some(true);
        for i in 0..width {
            match (a.byte(i), b.byte(i)) {
                (Some(a), Some(b)) if holds(a, b) => {}
                (Some(_), Some(_)) => return Some(false),
                _ => result = None,
            }
        }
        result
    };
    mask_flags(all(&|a, b| a & b == 0), all(&|a, b| !a & b == 0))
}

/// ZF and CF as given, the others cleared.
fn mask_flags(zero: Option<bool>, carry: Option<bool>) -> Flags {
    let mut flags = Flags::from_rflags(0);
    flags.forget(ALL_FLAGS & (Flag::Zero.bit() | Flag::Carry.bit()));
    flags.set(Flag::Zero, zero);
    flags.set(Flag::Carry, carry);
    flags
}

/// The flags of `ucomisd`: ZF, PF, CF all set for "unordered", CF for less, ZF for equal. Denormal numbers
/// count as 0 if a control register says so, which is not known here.
fn scalar_flags(a: Option<u64>, b: Option<u64>, size: u8) -> Flags {
    let number = |bits: u64| match size {
        4 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    };
    let is_denormal = |bits: u64| match size {
        4 => f32::from_bits(bits as u32).is_subnormal(),
        _ => f64::from_bits(bits).is_subnormal(),
    };
    let (Some(a), Some(b)) = (a, b) else { return Flags::default() };
    if is_denormal(a) || is_denormal(b) {
        return Flags::default();
    }
    let order = number(a).partial_cmp(&number(b));
    let mut flags = Flags::from_rflags(0);
    flags.set(Flag::Zero, Some(order.is_none_or(|o| o.is_eq())));
    flags.set(Flag::Parity, Some(order.is_none()));
    flags.set(Flag::Carry, Some(order.is_none_or(|o| o.is_lt())));
    flags
}

fn asked(asks: Asks, size: u8, a: u64, b: u64) -> bool {
    let (predicate, is_signed) = match asks {
        Asks::Common => return a & b != 0,
        Asks::NoCommon => return a & b == 0,
        Asks::Order { predicate, signed } => (predicate, signed),
    };
    let order = if is_signed { signed(a, size).cmp(&signed(b, size)) } else { a.cmp(&b) };
    let holds = match predicate & 3 {
        0 => order.is_eq(),
        1 => order.is_lt(),
        2 => order.is_le(),
        _ => false,
    };
    holds != (predicate & 4 != 0)
}

/// The mask of a comparison of `number` elements: known byte by byte.
fn compare(asks: Asks, size: u8, number: usize, a: &Wide, b: &Wide, under: Option<Value>) -> Value {
    let (mut bits, mut known) = (0u64, 0xffu8);
    for i in 0..number {
        let chosen = under.map_or(Some(true), |mask| bit(mask, i));
        let result = match chosen {
            Some(false) => Some(false),
            _ => a.element(i, size).zip(b.element(i, size)).map(|(a, b)| asked(asks, size, a, b)),
        };
        match (chosen, result) {
            // Of an element that may be chosen or not only "no" is known.
            (None, Some(true)) | (_, None) => known &= !(1 << (i / 8)),
            (_, Some(result)) => bits |= u64::from(result) << i,
        }
    }
    Value::partly(bits, known)
}

fn combine_masks(op: MaskOp, a: Value, b: Value, size: u8) -> Value {
    let known = a.known_bytes() & b.known_bytes();
    let (x, y) = (a.bits(), b.bits());
    let bitwise = |bits: u64| Value::partly(bits, known).zero_extended(size);
    let whole = |bits: Option<u64>| Value::maybe(bits).zero_extended(size);
    let by = |n: u8, op: fn(u64, u32) -> Option<u64>| a.low(size).map(|v| op(v, n.into()).unwrap_or(0));
    match op {
        MaskOp::And => bitwise(x & y),
        MaskOp::AndNot => bitwise(!x & y),
        MaskOp::Or => bitwise(x | y),
        MaskOp::Xor => bitwise(x ^ y),
        MaskOp::XorNot => bitwise(!(x ^ y)),
        MaskOp::Not => Value::partly(!x, a.known_bytes()).zero_extended(size),
        MaskOp::Add => whole(a.low(size).zip(b.low(size)).map(|(a, b)| a.wrapping_add(b))),
        MaskOp::ShiftLeft(n) => whole(by(n, u64::checked_shl)),
        MaskOp::ShiftRight(n) => whole(by(n, u64::checked_shr)),
        MaskOp::Unpack => {
            let half = size / 2;
            let joined = a.low(half).zip(b.low(half)).map(|(a, b)| a << (8 * half) | b);
            whole(joined)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPS: [VectorOp; 22] = [
        VectorOp::And,
        VectorOp::AndNot,
        VectorOp::Or,
        VectorOp::Xor,
        VectorOp::Min(1),
        VectorOp::Min(4),
        VectorOp::Max(1),
        VectorOp::Add(1),
        VectorOp::Add(4),
        VectorOp::Subtract(1),
        VectorOp::Subtract(8),
        VectorOp::Equal(1),
        VectorOp::Equal(2),
        VectorOp::Equal(4),
        VectorOp::Greater(1),
        VectorOp::UnpackLow(1),
        VectorOp::UnpackLow(2),
        VectorOp::UnpackHigh(8),
        VectorOp::Align(5),
        VectorOp::ShuffleDoubles(0x1b),
        VectorOp::ShiftBytesRight(3),
        VectorOp::ShuffleBytes,
    ];

    fn wide() -> impl Strategy<Value = [u8; FULL]> {
        // Few values, so that elements are equal now and then.
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0x80), any::<u8>()], FULL)
            .prop_map(|bytes| bytes.try_into().unwrap())
    }

    fn partly(bytes: [u8; FULL], known: u64) -> Wide {
        let mut wide = Wide { bytes, known: u64::MAX };
        (0..FULL).filter(|i| known >> i & 1 == 0).for_each(|i| wide.set_byte(i, None));
        wide
    }

    fn sound(claimed: &Wide, exact: &Wide) -> bool {
        exact.known == u64::MAX
            && (0..FULL).all(|i| claimed.byte(i).is_none_or(|byte| byte == exact.bytes[i]))
    }

    proptest! {
        /// What is claimed of partly known operands holds for each way of filling in the rest.
        #[test]
        fn partial_knowledge_is_sound(a in wide(), b in wide(), ka: u64, kb: u64, n in 0usize..22) {
            let (wa, wb) = (partly(a, u64::MAX), partly(b, u64::MAX));
            let (pa, pb) = (partly(a, ka), partly(b, kb));
            let op = OPS[n];
            prop_assert!(sound(&combine(op, &pa, &pb, false), &combine(op, &wa, &wb, false)));
            prop_assert_eq!(combine(op, &wa, &wa, true), combine(op, &wa, &wa, false));
            prop_assert!(sound(&ternary(&pa, &pb, &wa, a[0], false), &ternary(&wa, &wb, &wa, a[0], false)));
        }

        /// The same for masks and flags.
        #[test]
        fn partial_masks_are_sound(a in wide(), b in wide(), ka: u64, kb: u64, predicate in 0u8..8, under: Option<u64>, ku: u8) {
            let (wa, wb) = (partly(a, u64::MAX), partly(b, u64::MAX));
            let (pa, pb) = (partly(a, ka), partly(b, kb));
            for asks in [Asks::Common, Asks::NoCommon, Asks::Order { predicate, signed: predicate & 1 != 0 }] {
                for size in [1u8, 2, 4, 8] {
                    let number = FULL / usize::from(size);
                    let exact = compare(asks, size, number, &wa, &wb, under.map(Value::known));
                    let claimed = compare(asks, size, number, &pa, &pb, under.map(|bits| Value::partly(bits, ku)));
                    prop_assert!(!claimed.contradicts(exact.low(8).unwrap()));
                }
            }
            let (exact, claimed) = (test(&wa, &wb, 32), test(&pa, &pb, 32));
            for flag in [Flag::Zero, Flag::Carry] {
                prop_assert!(claimed.get(flag).is_none() || claimed.get(flag) == exact.get(flag));
            }
        }
    }
}
