//! Arithmetic with status flags, on values that are wholly known.
//!
//! Reference: AMD64 Architecture Programmer's Manual volume 3. Flags that it calls undefined become unknown.

use crate::state::Flags;
use crate::value::mask;
use restitch_x86::{Binary, Flag, LowBit, Scan, Shift, Unary};

fn bits_of(size: u8) -> u32 {
    8 * u32::from(size)
}

fn sign(value: u64, size: u8) -> bool {
    value >> (bits_of(size) - 1) & 1 != 0
}

/// ZF, SF and PF of a result.
fn result_flags(flags: &mut Flags, result: u64, size: u8) {
    flags.set(Flag::Zero, Some(result == 0));
    flags.set(Flag::Sign, Some(sign(result, size)));
    flags.set(Flag::Parity, Some((result as u8).count_ones().is_multiple_of(2)));
}

fn set_all(flags: &mut Flags, carry: bool, adjust: Option<bool>, overflow: bool) {
    flags.set(Flag::Carry, Some(carry));
    flags.set(Flag::Adjust, adjust);
    flags.set(Flag::Overflow, Some(overflow));
}

fn add(a: u64, b: u64, carry: bool, size: u8, flags: &mut Flags) -> u64 {
    let sum = u128::from(a) + u128::from(b) + u128::from(carry);
    let result = sum as u64 & mask(size);
    let overflow = sign((a ^ result) & (b ^ result), size);
    set_all(flags, sum >> bits_of(size) != 0, Some((a ^ b ^ result) >> 4 & 1 != 0), overflow);
    result_flags(flags, result, size);
    result
}

fn subtract(a: u64, b: u64, borrow: bool, size: u8, flags: &mut Flags) -> u64 {
    let result = a.wrapping_sub(b).wrapping_sub(u64::from(borrow)) & mask(size);
    let carry = u128::from(a) < u128::from(b) + u128::from(borrow);
    let overflow = sign((a ^ b) & (a ^ result), size);
    set_all(flags, carry, Some((a ^ b ^ result) >> 4 & 1 != 0), overflow);
    result_flags(flags, result, size);
    result
}

fn logic(result: u64, size: u8, flags: &mut Flags) -> u64 {
    set_all(flags, false, None, false);
    result_flags(flags, result, size);
    result
}

/// `a op b` on `size` bytes; both operands are within them. `None` where the carry flag is needed and not
/// known.
pub(crate) fn binary(op: Binary, a: u64, b: u64, size: u8, flags: &mut Flags) -> Option<u64> {
    Some(match op {
        Binary::Add => add(a, b, false, size, flags),
        Binary::Adc => add(a, b, flags.get(Flag::Carry)?, size, flags),
        Binary::Sub | Binary::Cmp => subtract(a, b, false, size, flags),
        Binary::Sbb => subtract(a, b, flags.get(Flag::Carry)?, size, flags),
        Binary::And | Binary::Test => logic(a & b, size, flags),
        Binary::Or => logic(a | b, size, flags),
        Binary::Xor => logic(a ^ b, size, flags),
    })
}

/// `op a`.
pub(crate) fn unary(op: Unary, a: u64, size: u8, flags: &mut Flags) -> u64 {
    let carry = flags.get(Flag::Carry);
    match op {
        Unary::Not => !a & mask(size),
        Unary::Neg => subtract(0, a, false, size, flags),
        Unary::Inc => {
            let result = add(a, 1, false, size, flags);
            flags.set(Flag::Carry, carry);
            result
        }
        Unary::Dec => {
            let result = subtract(a, 1, false, size, flags);
            flags.set(Flag::Carry, carry);
            result
        }
    }
}

/// The flags that `op` may write.
pub(crate) fn unary_flags(op: Unary) -> u8 {
    match op {
        Unary::Not => 0,
        Unary::Neg => restitch_x86::ALL_FLAGS,
        Unary::Inc | Unary::Dec => restitch_x86::ALL_FLAGS & !Flag::Carry.bit(),
    }
}

/// How far a shift by `count` goes.
pub(crate) fn shift_count(count: u64, size: u8) -> u32 {
    (count & if size == 8 { 0x3f } else { 0x1f }) as u32
}

/// The flags that a shift by an unknown or not 0 count may write.
pub(crate) fn shift_flags(op: Shift) -> u8 {
    match op {
        Shift::Rol | Shift::Ror => Flag::Carry.bit() | Flag::Overflow.bit(),
        Shift::Shl | Shift::Shr | Shift::Sar => restitch_x86::ALL_FLAGS,
    }
}

/// `a` shifted by `count` (from [`shift_count`]).
pub(crate) fn shift(op: Shift, a: u64, count: u32, size: u8, flags: &mut Flags) -> u64 {
    if count == 0 {
        return a;
    }
    match op {
        Shift::Rol | Shift::Ror => rotate(op, a, count, size, flags),
        Shift::Shl | Shift::Shr | Shift::Sar => straight_shift(op, a, count, size, flags),
    }
}

fn straight_shift(op: Shift, a: u64, count: u32, size: u8, flags: &mut Flags) -> u64 {
    let bits = bits_of(size);
    let wide = ((a << (64 - bits)) as i64 >> (64 - bits)) as i128;
    let (result, carry) = match op {
        Shift::Shl => {
            let wide = u128::from(a) << count;
            (wide as u64 & mask(size), (count < bits).then(|| wide >> bits & 1 != 0))
        }
        Shift::Shr => ((u128::from(a) >> count) as u64, (count < bits).then(|| a >> (count - 1) & 1 != 0)),
        _ => ((wide >> count) as u64 & mask(size), (count < bits).then(|| wide >> (count - 1) & 1 != 0)),
    };
    let overflow = match (op, count) {
        (Shift::Shl, 1) => carry.map(|carry| sign(result, size) != carry),
        (Shift::Shr, 1) => Some(sign(a, size)),
        (Shift::Sar, 1) => Some(false),
        _ => None,
    };
    flags.set(Flag::Carry, carry);
    flags.set(Flag::Adjust, None);
    flags.set(Flag::Overflow, overflow);
    result_flags(flags, result, size);
    result
}

fn rotate(op: Shift, a: u64, count: u32, size: u8, flags: &mut Flags) -> u64 {
    let bits = bits_of(size);
    let left = if op == Shift::Rol { count % bits } else { (bits - count % bits) % bits };
    let doubled = u128::from(a) << bits | u128::from(a);
    let result = (doubled << left >> bits) as u64 & mask(size);
    let (carry, next) = match op {
        Shift::Rol => (result & 1 != 0, sign(result, size)),
        _ => (sign(result, size), result >> (bits - 2) & 1 != 0),
    };
    flags.set(Flag::Carry, Some(carry));
    flags.set(Flag::Overflow, (count == 1).then_some(carry != next));
    result
}

/// After a multiplication CF and OF say whether the upper half counts; the rest is undefined.
pub(crate) fn multiply_flags(flags: &mut Flags, overflow: bool) {
    flags.forget(restitch_x86::ALL_FLAGS);
    flags.set(Flag::Carry, Some(overflow));
    flags.set(Flag::Overflow, Some(overflow));
}

fn signed(a: u64, size: u8) -> i128 {
    let shift = 64 - bits_of(size);
    i128::from((a << shift) as i64 >> shift)
}

/// The lower and upper half of a product.
pub(crate) fn multiply(a: u64, b: u64, size: u8, is_signed: bool, flags: &mut Flags) -> (u64, u64) {
    let bits = bits_of(size);
    let product = match is_signed {
        true => (signed(a, size) * signed(b, size)) as u128,
        false => u128::from(a) * u128::from(b),
    };
    let (low, high) = (product as u64 & mask(size), (product >> bits) as u64 & mask(size));
    let expected = if is_signed && sign(low, size) { mask(size) } else { 0 };
    multiply_flags(flags, high != expected);
    (low, high)
}

/// SF and ZF of a BMI result; OF is cleared, AF and PF are undefined.
fn bmi_flags(flags: &mut Flags, result: u64, carry: bool, size: u8) {
    set_all(flags, carry, None, false);
    result_flags(flags, result, size);
    flags.set(Flag::Parity, None);
}

/// `andn`.
pub(crate) fn and_not(a: u64, b: u64, size: u8, flags: &mut Flags) -> u64 {
    let result = !a & b & mask(size);
    bmi_flags(flags, result, false, size);
    result
}

/// `blsr`, `blsmsk`, `blsi`.
pub(crate) fn low_bit(op: LowBit, a: u64, size: u8, flags: &mut Flags) -> u64 {
    let below = a.wrapping_sub(1);
    let (result, carry) = match op {
        LowBit::Reset => (a & below, a == 0),
        LowBit::Mask => (a ^ below, a == 0),
        LowBit::Isolate => (a & a.wrapping_neg(), a != 0),
    };
    let result = result & mask(size);
    bmi_flags(flags, result, carry, size);
    result
}

/// `bzhi`: the bits of `a` below bit `from` (its low byte counts).
pub(crate) fn zero_high(a: u64, from: u64, size: u8, flags: &mut Flags) -> u64 {
    let from = (from & 0xff) as u32;
    let beyond = from >= bits_of(size);
    let result = if beyond { a } else { a & ((1 << from) - 1) };
    bmi_flags(flags, result, beyond, size);
    result
}

/// Quotient and remainder of `high:low / by`; `None` where the processor would fault.
pub(crate) fn divide(high: u64, low: u64, by: u64, size: u8, is_signed: bool) -> Option<(u64, u64)> {
    let bits = bits_of(size);
    let whole = u128::from(high) << bits | u128::from(low);
    if !is_signed {
        let (quotient, rest) = (whole.checked_div(by.into())?, whole.checked_rem(by.into())?);
        return (quotient <= mask(size).into()).then_some((quotient as u64, rest as u64));
    }
    let shift = 128 - 2 * bits;
    let (whole, by) = ((whole << shift) as i128 >> shift, signed(by, size));
    let (quotient, rest) = (whole.checked_div(by)?, whole.checked_rem(by)?);
    let fits = quotient == signed(quotient as u64 & mask(size), size);
    fits.then_some((quotient as u64 & mask(size), rest as u64 & mask(size)))
}

/// The result of a counting instruction; `None` for one that leaves its destination undefined.
pub(crate) fn scan(op: Scan, a: u64, size: u8, flags: &mut Flags) -> Option<u64> {
    let bits = bits_of(size);
    flags.forget(restitch_x86::ALL_FLAGS);
    let leading = a.leading_zeros() - (64 - bits);
    match op {
        Scan::Bsf | Scan::Bsr => {
            flags.set(Flag::Zero, Some(a == 0));
            let index =
                if op == Scan::Bsf { a.trailing_zeros() } else { 63u32.wrapping_sub(a.leading_zeros()) };
            (a != 0).then_some(index.into())
        }
        Scan::Tzcnt | Scan::Lzcnt => {
            let count = if op == Scan::Tzcnt { a.trailing_zeros().min(bits) } else { leading };
            flags.set(Flag::Carry, Some(a == 0));
            flags.set(Flag::Zero, Some(count == 0));
            Some(count.into())
        }
        Scan::Popcnt => {
            set_all(flags, false, Some(false), false);
            flags.set(Flag::Zero, Some(a == 0));
            flags.set(Flag::Sign, Some(false));
            flags.set(Flag::Parity, Some(false));
            Some(a.count_ones().into())
        }
    }
}
