//! The vector instructions that are understood, from the decoder's codes. Legacy SSE encodings only: those with VEX and EVEX
//! prefixes also write the bits above 128 and are opaque.

use crate::semantics::{Part, Vector, VectorOp, VectorSource};
use crate::semantics_decode::{address, part};
use iced_x86::{Code, Instruction, OpKind, Register};

fn register(r: Register) -> Option<u8> {
    r.is_xmm().then(|| r.number() as u8).filter(|&n| n < 16)
}

/// The vector instruction, if it is one of those that are understood.
pub(crate) fn vector(i: &Instruction) -> Option<Vector> {
    moves(i).or_else(|| combine(i))
}

fn moves(i: &Instruction) -> Option<Vector> {
    use Code as C;
    match i.code() {
        C::Movdqu_xmm_xmmm128
        | C::Movdqa_xmm_xmmm128
        | C::Movups_xmm_xmmm128
        | C::Movaps_xmm_xmmm128
        | C::Movupd_xmm_xmmm128
        | C::Movapd_xmm_xmmm128
        | C::Lddqu_xmm_m128 => load(i, 16),
        C::Movq_xmm_xmmm64 => load(i, 8),
        // Between registers these two merge.
        C::Movsd_xmm_xmmm64 if i.op1_kind() == OpKind::Memory => load(i, 8),
        C::Movss_xmm_xmmm32 if i.op1_kind() == OpKind::Memory => load(i, 4),
        C::Movdqu_xmmm128_xmm
        | C::Movdqa_xmmm128_xmm
        | C::Movups_xmmm128_xmm
        | C::Movaps_xmmm128_xmm
        | C::Movupd_xmmm128_xmm
        | C::Movapd_xmmm128_xmm => store(i, 16),
        C::Movq_xmmm64_xmm => store(i, 8),
        C::Movlps_m64_xmm | C::Movlpd_m64_xmm => store(i, 8),
        C::Movsd_xmmm64_xmm if i.op0_kind() == OpKind::Memory => store(i, 8),
        C::Movss_xmmm32_xmm if i.op0_kind() == OpKind::Memory => store(i, 4),
        C::Movq_xmm_rm64 => from_general(i, 8),
        C::Movd_xmm_rm32 => from_general(i, 4),
        C::Movq_rm64_xmm => to_general(i, 8),
        C::Movd_rm32_xmm => to_general(i, 4),
        C::Pmovmskb_r32_xmm => Some(Vector::Mask(part(i.op0_register())?, register(i.op1_register())?)),
        _ => None,
    }
}

fn load(i: &Instruction, size: u8) -> Option<Vector> {
    let dst = register(i.op0_register())?;
    match i.op1_kind() {
        OpKind::Memory => Some(Vector::Load(dst, address(i)?, size)),
        OpKind::Register => Some(Vector::Move(dst, register(i.op1_register())?, size)),
        _ => None,
    }
}

fn store(i: &Instruction, size: u8) -> Option<Vector> {
    let src = register(i.op1_register())?;
    match i.op0_kind() {
        OpKind::Memory => Some(Vector::Store(address(i)?, src, size)),
        OpKind::Register => Some(Vector::Move(register(i.op0_register())?, src, size)),
        _ => None,
    }
}

fn from_general(i: &Instruction, size: u8) -> Option<Vector> {
    let dst = register(i.op0_register())?;
    match i.op1_kind() {
        OpKind::Memory => Some(Vector::Load(dst, address(i)?, size)),
        OpKind::Register => Some(Vector::FromGeneral(dst, general(i.op1_register(), size)?)),
        _ => None,
    }
}

fn to_general(i: &Instruction, size: u8) -> Option<Vector> {
    let src = register(i.op1_register())?;
    match i.op0_kind() {
        OpKind::Memory => Some(Vector::Store(address(i)?, src, size)),
        OpKind::Register => Some(Vector::ToGeneral(general(i.op0_register(), size)?, src)),
        _ => None,
    }
}

fn general(r: Register, size: u8) -> Option<Part> {
    part(r).filter(|p| p.size == size)
}

fn combine(i: &Instruction) -> Option<Vector> {
    use Code as C;
    let op = match i.code() {
        C::Pand_xmm_xmmm128 | C::Andps_xmm_xmmm128 | C::Andpd_xmm_xmmm128 => VectorOp::And,
        C::Pandn_xmm_xmmm128 | C::Andnps_xmm_xmmm128 | C::Andnpd_xmm_xmmm128 => VectorOp::AndNot,
        C::Por_xmm_xmmm128 | C::Orps_xmm_xmmm128 | C::Orpd_xmm_xmmm128 => VectorOp::Or,
        C::Pxor_xmm_xmmm128 | C::Xorps_xmm_xmmm128 | C::Xorpd_xmm_xmmm128 => VectorOp::Xor,
        C::Pminub_xmm_xmmm128 => VectorOp::MinBytes,
        C::Pcmpeqb_xmm_xmmm128 => VectorOp::Equal(1),
        C::Pcmpeqw_xmm_xmmm128 => VectorOp::Equal(2),
        C::Pcmpeqd_xmm_xmmm128 => VectorOp::Equal(4),
        _ => return None,
    };
    let source = match i.op1_kind() {
        OpKind::Memory => VectorSource::Memory(address(i)?),
        _ => VectorSource::Register(register(i.op1_register())?),
    };
    Some(Vector::Combine(op, register(i.op0_register())?, source))
}
