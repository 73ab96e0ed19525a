//! The vector instructions that are understood, from the decoder's mnemonics, in all three encodings.

use crate::operand::{address, part};
use crate::vector::{Asks, Lanes, MaskOp, MaskPlace, Under, Vector, VectorOp, VectorSource};
use iced_x86::{EncodingKind, Instruction, Mnemonic as M, OpKind, Register};

fn register(r: Register) -> Option<u8> {
    r.is_vector_register().then(|| r.number() as u8)
}

fn mask_register(r: Register) -> Option<u8> {
    r.is_k().then(|| r.number() as u8)
}

fn lanes(i: &Instruction, op: u32) -> Option<Lanes> {
    let r = i.op_register(op);
    let clears = i.encoding() != EncodingKind::Legacy;
    Some(Lanes { number: register(r)?, width: r.size() as u8, clears })
}

fn source(i: &Instruction, op: u32) -> Option<VectorSource> {
    match i.op_kind(op) {
        OpKind::Memory => Some(VectorSource::Memory(address(i)?)),
        OpKind::Register => Some(VectorSource::Register(register(i.op_register(op))?)),
        _ => None,
    }
}

fn operand_register(i: &Instruction, op: u32) -> Option<u8> {
    (i.op_kind(op) == OpKind::Register).then(|| register(i.op_register(op)))?
}

/// The vector instruction, if it is one of those that are understood.
pub(crate) fn vector(i: &Instruction) -> Option<Vector> {
    // One element of memory for all: rare.
    if i.is_broadcast() {
        return None;
    }
    let plain = || if i.has_op_mask() { move_under(i) } else { moves(i).or_else(|| other(i)) };
    plain().or_else(|| compare(i)).or_else(|| combine(i)).or_else(|| masks(i))
}

fn moves(i: &Instruction) -> Option<Vector> {
    match i.mnemonic() {
        M::Movdqu | M::Movdqa | M::Movups | M::Movaps | M::Movupd | M::Movapd | M::Lddqu | M::Movntdqa => {
            whole(i)
        }
        M::Vmovdqu | M::Vmovdqa | M::Vmovups | M::Vmovaps | M::Vmovupd | M::Vmovapd | M::Vlddqu => whole(i),
        M::Vmovdqu8 | M::Vmovdqu16 | M::Vmovdqu32 | M::Vmovdqu64 | M::Vmovdqa32 | M::Vmovdqa64 => whole(i),
        M::Movntdq | M::Movntps | M::Movntpd | M::Vmovntdq | M::Vmovntps | M::Vmovntpd | M::Vmovntdqa => {
            whole(i)
        }
        M::Movq | M::Vmovq => scalar(i, 8),
        M::Movd | M::Vmovd => scalar(i, 4),
        // Between registers these merge.
        M::Movsd | M::Vmovsd if has_memory(i) => scalar(i, 8),
        M::Movss | M::Vmovss if has_memory(i) => scalar(i, 4),
        M::Movlps | M::Movlpd | M::Vmovlps | M::Vmovlpd if i.op0_kind() == OpKind::Memory => scalar(i, 8),
        _ => None,
    }
}

/// Loads and moves of the elements that a mask names.
fn move_under(i: &Instruction) -> Option<Vector> {
    let element = match i.mnemonic() {
        M::Vmovdqu8 => 1,
        M::Vmovdqu16 => 2,
        M::Vmovdqu32 | M::Vmovdqa32 | M::Vmovups | M::Vmovaps => 4,
        M::Vmovdqu64 | M::Vmovdqa64 | M::Vmovupd | M::Vmovapd => 8,
        _ => return None,
    };
    let under = Under { mask: mask_register(i.op_mask())?, element, zeroing: i.zeroing_masking() };
    (i.op0_kind() == OpKind::Register).then_some(())?;
    Some(Vector::MoveUnder(lanes(i, 0)?, source(i, 1)?, under))
}

fn has_memory(i: &Instruction) -> bool {
    i.op_count() == 2 && (i.op0_kind() == OpKind::Memory || i.op1_kind() == OpKind::Memory)
}

fn whole(i: &Instruction) -> Option<Vector> {
    if i.op0_kind() == OpKind::Memory {
        let r = i.op1_register();
        return Some(Vector::Store(address(i)?, register(r)?, r.size() as u8));
    }
    let to = lanes(i, 0)?;
    Some(Vector::Move(to, source(i, 1)?, to.width))
}

fn scalar(i: &Instruction, size: u8) -> Option<Vector> {
    let general = |op| part(i.op_register(op)).filter(|p| p.size == size);
    match (i.op0_kind(), i.op1_kind()) {
        (OpKind::Memory, OpKind::Register) => {
            Some(Vector::Store(address(i)?, register(i.op1_register())?, size))
        }
        (OpKind::Register, OpKind::Memory) => Some(Vector::Move(lanes(i, 0)?, source(i, 1)?, size)),
        (OpKind::Register, OpKind::Register) => {
            match (register(i.op0_register()), register(i.op1_register())) {
                (Some(_), Some(from)) => Some(Vector::Move(lanes(i, 0)?, VectorSource::Register(from), size)),
                (Some(_), None) => Some(Vector::Move(lanes(i, 0)?, VectorSource::General(general(1)?), size)),
                (None, Some(from)) => Some(Vector::ToGeneral(general(0)?, from)),
                (None, None) => None,
            }
        }
        _ => None,
    }
}

fn other(i: &Instruction) -> Option<Vector> {
    match i.mnemonic() {
        M::Pmovmskb | M::Vpmovmskb => {
            let from = i.op1_register();
            Some(Vector::Mask(part(i.op0_register())?, register(from)?, from.size() as u8))
        }
        M::Ptest | M::Vptest => {
            let a = i.op0_register();
            Some(Vector::Test(register(a)?, source(i, 1)?, a.size() as u8))
        }
        M::Vpbroadcastb => broadcast(i, 1),
        M::Vpbroadcastw => broadcast(i, 2),
        M::Vpbroadcastd => broadcast(i, 4),
        M::Vpbroadcastq => broadcast(i, 8),
        M::Vpternlogd | M::Vpternlogq => {
            Some(Vector::Ternary(lanes(i, 0)?, operand_register(i, 1)?, source(i, 2)?, i.immediate8()))
        }
        M::Pcmpistri | M::Vpcmpistri => {
            Some(Vector::FindInString(operand_register(i, 0)?, source(i, 1)?, i.immediate8()))
        }
        M::Ucomiss | M::Comiss | M::Vucomiss | M::Vcomiss => {
            Some(Vector::CompareScalars(operand_register(i, 0)?, source(i, 1)?, 4))
        }
        M::Ucomisd | M::Comisd | M::Vucomisd | M::Vcomisd => {
            Some(Vector::CompareScalars(operand_register(i, 0)?, source(i, 1)?, 8))
        }
        M::Vzeroupper => Some(Vector::ClearUpper(16)),
        M::Vzeroall => Some(Vector::ClearUpper(0)),
        _ => None,
    }
}

fn broadcast(i: &Instruction, element: u8) -> Option<Vector> {
    let from = match i.op1_kind() {
        OpKind::Register => match register(i.op1_register()) {
            Some(from) => VectorSource::Register(from),
            None => VectorSource::General(part(i.op1_register())?),
        },
        _ => source(i, 1)?,
    };
    Some(Vector::Broadcast(lanes(i, 0)?, from, element))
}

/// Comparisons into mask registers.
fn compare(i: &Instruction) -> Option<Vector> {
    let order = |predicate, signed| Asks::Order { predicate, signed };
    let stated = |signed| Asks::Order { predicate: i.immediate8() & 7, signed };
    let to = mask_register(i.op0_register())?;
    let (asks, element) = match i.mnemonic() {
        M::Vpcmpeqb => (order(0, true), 1),
        M::Vpcmpeqw => (order(0, true), 2),
        M::Vpcmpeqd => (order(0, true), 4),
        M::Vpcmpeqq => (order(0, true), 8),
        M::Vpcmpgtb => (order(6, true), 1),
        M::Vpcmpgtw => (order(6, true), 2),
        M::Vpcmpgtd => (order(6, true), 4),
        M::Vpcmpgtq => (order(6, true), 8),
        M::Vpcmpb => (stated(true), 1),
        M::Vpcmpw => (stated(true), 2),
        M::Vpcmpd => (stated(true), 4),
        M::Vpcmpq => (stated(true), 8),
        M::Vpcmpub => (stated(false), 1),
        M::Vpcmpuw => (stated(false), 2),
        M::Vpcmpud => (stated(false), 4),
        M::Vpcmpuq => (stated(false), 8),
        M::Vptestmb => (Asks::Common, 1),
        M::Vptestmw => (Asks::Common, 2),
        M::Vptestmd => (Asks::Common, 4),
        M::Vptestmq => (Asks::Common, 8),
        M::Vptestnmb => (Asks::NoCommon, 1),
        M::Vptestnmw => (Asks::NoCommon, 2),
        M::Vptestnmd => (Asks::NoCommon, 4),
        M::Vptestnmq => (Asks::NoCommon, 8),
        _ => return None,
    };
    let width = i.op1_register().size() as u8;
    let under = i.has_op_mask().then(|| mask_register(i.op_mask())).flatten();
    Some(Vector::Compare { to, asks, element, width, a: operand_register(i, 1)?, b: source(i, 2)?, under })
}

/// The operation, and the size of elements for masks.
fn operation(i: &Instruction) -> Option<(VectorOp, u8)> {
    use VectorOp as V;
    let sized = |op: fn(u8) -> V, size| Some((op(size), size));
    match i.mnemonic() {
        M::Pand | M::Andps | M::Andpd | M::Vpand | M::Vandps | M::Vandpd | M::Vpandd => Some((V::And, 4)),
        M::Pandn | M::Andnps | M::Andnpd | M::Vpandn | M::Vandnps | M::Vandnpd | M::Vpandnd => {
            Some((V::AndNot, 4))
        }
        M::Por | M::Orps | M::Orpd | M::Vpor | M::Vorps | M::Vorpd | M::Vpord => Some((V::Or, 4)),
        M::Pxor | M::Xorps | M::Xorpd | M::Vpxor | M::Vxorps | M::Vxorpd | M::Vpxord => Some((V::Xor, 4)),
        M::Vpandq => Some((V::And, 8)),
        M::Vpandnq => Some((V::AndNot, 8)),
        M::Vporq => Some((V::Or, 8)),
        M::Vpxorq => Some((V::Xor, 8)),
        M::Pminub | M::Vpminub => sized(V::Min, 1),
        M::Pminud | M::Vpminud => sized(V::Min, 4),
        M::Pmaxub | M::Vpmaxub => sized(V::Max, 1),
        M::Paddb | M::Vpaddb => sized(V::Add, 1),
        M::Paddw | M::Vpaddw => sized(V::Add, 2),
        M::Paddd | M::Vpaddd => sized(V::Add, 4),
        M::Paddq | M::Vpaddq => sized(V::Add, 8),
        M::Psubb | M::Vpsubb => sized(V::Subtract, 1),
        M::Psubw | M::Vpsubw => sized(V::Subtract, 2),
        M::Psubd | M::Vpsubd => sized(V::Subtract, 4),
        M::Psubq | M::Vpsubq => sized(V::Subtract, 8),
        M::Pcmpeqb | M::Vpcmpeqb => sized(V::Equal, 1),
        M::Pcmpeqw | M::Vpcmpeqw => sized(V::Equal, 2),
        M::Pcmpeqd | M::Vpcmpeqd => sized(V::Equal, 4),
        M::Pcmpeqq | M::Vpcmpeqq => sized(V::Equal, 8),
        M::Pcmpgtb | M::Vpcmpgtb => sized(V::Greater, 1),
        M::Pcmpgtw | M::Vpcmpgtw => sized(V::Greater, 2),
        M::Pcmpgtd | M::Vpcmpgtd => sized(V::Greater, 4),
        M::Punpcklbw | M::Vpunpcklbw => sized(V::UnpackLow, 1),
        M::Punpcklwd | M::Vpunpcklwd => sized(V::UnpackLow, 2),
        M::Punpckldq | M::Vpunpckldq => sized(V::UnpackLow, 4),
        M::Punpcklqdq | M::Vpunpcklqdq => sized(V::UnpackLow, 8),
        M::Punpckhqdq | M::Vpunpckhqdq => sized(V::UnpackHigh, 8),
        _ => None,
    }
}

fn combine(i: &Instruction) -> Option<Vector> {
    let to = lanes(i, 0)?;
    let legacy = i.encoding() == EncodingKind::Legacy;
    if !i.has_op_mask()
        && let Some(by_number) = by_number(i, to, legacy)
    {
        return Some(by_number);
    }
    let (op, element) = operation(i)?;
    let (a, b) = if legacy { (to.number, source(i, 1)?) } else { (operand_register(i, 1)?, source(i, 2)?) };
    let under = match i.has_op_mask() {
        true => Some(Under { mask: mask_register(i.op_mask())?, element, zeroing: i.zeroing_masking() }),
        false => None,
    };
    Some(Vector::Combine(op, to, a, b, under))
}

/// Operations with a constant, and shuffles, which are not masked here.
fn by_number(i: &Instruction, to: Lanes, legacy: bool) -> Option<Vector> {
    let plain = |op, a, b| Some(Vector::Combine(op, to, a, b, None));
    // A shift has its operand in the register that it writes, or in the second one.
    let shifted = || source(i, if legacy { 0 } else { 1 });
    match i.mnemonic() {
        M::Pshufd | M::Vpshufd => plain(VectorOp::ShuffleDoubles(i.immediate8()), to.number, source(i, 1)?),
        M::Pslldq | M::Vpslldq => plain(VectorOp::ShiftBytesLeft(i.immediate8()), to.number, shifted()?),
        M::Psrldq | M::Vpsrldq => plain(VectorOp::ShiftBytesRight(i.immediate8()), to.number, shifted()?),
        M::Palignr => plain(VectorOp::Align(i.immediate8()), to.number, source(i, 1)?),
        M::Vpalignr => plain(VectorOp::Align(i.immediate8()), operand_register(i, 1)?, source(i, 2)?),
        M::Pshufb => plain(VectorOp::ShuffleBytes, to.number, source(i, 1)?),
        M::Vpshufb => plain(VectorOp::ShuffleBytes, operand_register(i, 1)?, source(i, 2)?),
        _ => None,
    }
}

/// Instructions on mask registers.
fn masks(i: &Instruction) -> Option<Vector> {
    let k = |op| mask_register(i.op_register(op));
    let two = |op, size| Some(Vector::CombineMasks(op, k(0)?, k(1)?, k(2)?, size));
    let shift = |op: fn(u8) -> MaskOp, size| {
        Some(Vector::CombineMasks(op(i.immediate8()), k(0)?, k(1)?, k(1)?, size))
    };
    let not = |size| Some(Vector::CombineMasks(MaskOp::Not, k(0)?, k(1)?, k(1)?, size));
    let moved = |size| Some(Vector::MoveMask(mask_place(i, 0)?, mask_place(i, 1)?, size));
    match i.mnemonic() {
        M::Kmovb => moved(1),
        M::Kmovw => moved(2),
        M::Kmovd => moved(4),
        M::Kmovq => moved(8),
        M::Kandb => two(MaskOp::And, 1),
        M::Kandw => two(MaskOp::And, 2),
        M::Kandd => two(MaskOp::And, 4),
        M::Kandq => two(MaskOp::And, 8),
        M::Kandnb => two(MaskOp::AndNot, 1),
        M::Kandnw => two(MaskOp::AndNot, 2),
        M::Kandnd => two(MaskOp::AndNot, 4),
        M::Kandnq => two(MaskOp::AndNot, 8),
        M::Korb => two(MaskOp::Or, 1),
        M::Korw => two(MaskOp::Or, 2),
        M::Kord => two(MaskOp::Or, 4),
        M::Korq => two(MaskOp::Or, 8),
        M::Kxorb => two(MaskOp::Xor, 1),
        M::Kxorw => two(MaskOp::Xor, 2),
        M::Kxord => two(MaskOp::Xor, 4),
        M::Kxorq => two(MaskOp::Xor, 8),
        M::Kxnorb => two(MaskOp::XorNot, 1),
        M::Kxnorw => two(MaskOp::XorNot, 2),
        M::Kxnord => two(MaskOp::XorNot, 4),
        M::Kxnorq => two(MaskOp::XorNot, 8),
        M::Kaddb => two(MaskOp::Add, 1),
        M::Kaddw => two(MaskOp::Add, 2),
        M::Kaddd => two(MaskOp::Add, 4),
        M::Kaddq => two(MaskOp::Add, 8),
        M::Kunpckbw => two(MaskOp::Unpack, 2),
        M::Kunpckwd => two(MaskOp::Unpack, 4),
        M::Kunpckdq => two(MaskOp::Unpack, 8),
        M::Knotb => not(1),
        M::Knotw => not(2),
        M::Knotd => not(4),
        M::Knotq => not(8),
        M::Kshiftlb => shift(MaskOp::ShiftLeft, 1),
        M::Kshiftlw => shift(MaskOp::ShiftLeft, 2),
        M::Kshiftld => shift(MaskOp::ShiftLeft, 4),
        M::Kshiftlq => shift(MaskOp::ShiftLeft, 8),
        M::Kshiftrb => shift(MaskOp::ShiftRight, 1),
        M::Kshiftrw => shift(MaskOp::ShiftRight, 2),
        M::Kshiftrd => shift(MaskOp::ShiftRight, 4),
        M::Kshiftrq => shift(MaskOp::ShiftRight, 8),
        M::Kortestb => Some(Vector::OrTest(k(0)?, k(1)?, 1)),
        M::Kortestw => Some(Vector::OrTest(k(0)?, k(1)?, 2)),
        M::Kortestd => Some(Vector::OrTest(k(0)?, k(1)?, 4)),
        M::Kortestq => Some(Vector::OrTest(k(0)?, k(1)?, 8)),
        M::Ktestb => Some(Vector::MaskTest(k(0)?, k(1)?, 1)),
        M::Ktestw => Some(Vector::MaskTest(k(0)?, k(1)?, 2)),
        M::Ktestd => Some(Vector::MaskTest(k(0)?, k(1)?, 4)),
        M::Ktestq => Some(Vector::MaskTest(k(0)?, k(1)?, 8)),
        _ => None,
    }
}

fn mask_place(i: &Instruction, op: u32) -> Option<MaskPlace> {
    if i.op_kind(op) == OpKind::Memory {
        return Some(MaskPlace::Memory(address(i)?));
    }
    let r = i.op_register(op);
    mask_register(r).map(MaskPlace::Mask).or_else(|| part(r).map(MaskPlace::General))
}
