//! The operand-level view of single instructions that jump-table recognition needs.

use crate::decode::{Insn, classify};
use crate::lock_skip::LockSkip;
use crate::reg::Reg;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use restitch_address::Svma;

/// A memory operand without segment: `base + index * scale + disp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mem {
    /// Base register.
    pub base: Option<Reg>,
    /// Index register.
    pub index: Option<Reg>,
    /// 1, 2, 4 or 8.
    pub scale: u8,
    /// Displacement, sign-extended; for RIP-relative operands the absolute address.
    pub disp: i64,
    /// Whether it is RIP-relative.
    pub rip: bool,
}

/// What an instruction does, as far as jump tables are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `lea disp(%rip), dst` or `mov $address, dst`: a constant.
    Constant(Reg, u64),
    /// `lea disp(base), dst`, `add`/`sub $imm`: `dst = base + disp`.
    AddConstant(Reg, Reg, i64),
    /// A load of `size` bytes into `dst`, sign-extended to 64 bits or not (32-bit loads zero-extend).
    Load {
        /// Destination.
        dst: Reg,
        /// Operand.
        mem: Mem,
        /// Bytes read.
        size: u8,
        /// Sign-extended to 64 bits.
        signed: bool,
    },
    /// `add src, dst` in 64 bits.
    Add(Reg, Reg),
    /// `lea (a,b,1), dst` in 64 bits: `dst = a + b`.
    Sum(Reg, Reg, Reg),
    /// `mov`, `movzx`, `movsx` between registers: `(dst, src, source bits)`.
    Copy(Reg, Reg, u8),
    /// `movslq src, dst`: sign-extend 32 to 64 bits.
    SignExtend(Reg, Reg),
    /// `cmp $imm, reg` of `bits`.
    CompareConstant(Reg, i64, u8),
    /// `cmp $imm, mem` of `bits`.
    CompareMemory(Mem, i64, u8),
    /// `and $imm, dst`.
    And(Reg, i64),
    /// `jmp *reg`.
    JumpRegister(Reg),
    /// `jmp *mem`.
    JumpMemory(Mem),
    /// `mov src, mem`, `push src`, a move into a vector register: the value is kept somewhere.
    Keep(Reg),
    /// `cmov src, dst` of 64 bits.
    Select(Reg, Reg),
    /// `cmp` or `test` of whole registers, or of one with memory.
    Compare,
    /// Anything else.
    Other,
}

/// One instruction with its operand-level meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// The compact record.
    pub insn: Insn,
    /// The meaning.
    pub op: Op,
    /// General-purpose registers that it may write, as a bit set by [`Reg`] number.
    pub writes: u16,
    /// General-purpose registers that it reads.
    pub reads: u16,
    /// Those that are part of the address of memory that it reads or writes.
    pub addresses: u16,
    /// The memory operand that it reads or writes, if it has one without segment.
    pub memory: Option<Mem>,
}

fn reg(register: Register) -> Option<Reg> {
    let full = register.full_register();
    full.is_gpr64().then(|| Reg(full.number() as u8))
}

fn mem(i: &Instruction) -> Option<Mem> {
    if i.segment_prefix() != Register::None && i.segment_prefix() != Register::DS {
        return None;
    }
    let rip = i.is_ip_rel_memory_operand();
    let pick = |r: Register| {
        if r == Register::None || rip {
            Some(None)
        } else if r.is_gpr64() {
            Some(reg(r))
        } else {
            None
        }
    };
    Some(Mem {
        base: pick(i.memory_base())?,
        index: pick(i.memory_index())?,
        scale: i.memory_index_scale() as u8,
        disp: if rip { i.ip_rel_memory_address() as i64 } else { i.memory_displacement64() as i64 },
        rip,
    })
}

/// Decodes the instruction at the start of `bytes`, which stands at `at`; a lock skip
/// ([`crate::scan_lock_skips`]) is one instruction. `None` if there is none.
pub fn decode_one(bytes: &[u8], at: Svma) -> Option<Decoded> {
    if let Some(skip) = LockSkip::at(bytes, at) {
        let locked = decode_instruction(skip.locked(bytes), skip.locked_at())?;
        return Some(Decoded { insn: skip.insn(&locked.insn), op: Op::Other, ..locked });
    }
    decode_instruction(bytes, at)
}

fn decode_instruction(bytes: &[u8], at: Svma) -> Option<Decoded> {
    let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let (mut reads, mut writes) = (0u16, 0u16);
    let mut factory = InstructionInfoFactory::new();
    for used in factory.info(&instruction).used_registers() {
        if let Some(Reg(n)) = reg(used.register()) {
            match used.access() {
                OpAccess::Read | OpAccess::CondRead => reads |= 1 << n,
                OpAccess::Write => writes |= 1 << n,
                OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                    reads |= 1 << n;
                    writes |= 1 << n;
                }
                _ => {}
            }
        }
    }
    let mut addresses = 0u16;
    for used in factory.info(&instruction).used_memory() {
        for Reg(n) in [used.base(), used.index()].into_iter().filter_map(reg) {
            addresses |= 1 << n;
        }
    }
    Some(Decoded {
        insn: classify(&instruction),
        op: op_of(&instruction).unwrap_or(Op::Other),
        writes,
        reads,
        addresses,
        memory: accessed_operand(&instruction),
    })
}

/// The memory operand, unless only its address is used.
fn accessed_operand(i: &Instruction) -> Option<Mem> {
    let has_one = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if has_one && !matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) { mem(i) } else { None }
}

fn is_cmov(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

fn op_of(i: &Instruction) -> Option<Op> {
    let dst = || reg(i.op0_register());
    let src = || reg(i.op1_register());
    let kinds = (i.op0_kind(), i.op1_kind());
    let immediate = matches!(
        kinds.1,
        OpKind::Immediate8
            | OpKind::Immediate32
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
            | OpKind::Immediate64
            | OpKind::Immediate16
            | OpKind::Immediate8to16
    );
    let bits = |r: Register| (r.size() * 8) as u8;
    let wide = |r: Register| r.size() >= 4;
    Some(match (i.mnemonic(), kinds) {
        (Mnemonic::Lea, _) if wide(i.op0_register()) => {
            let m = mem(i)?;
            match (m.base, m.index) {
                _ if m.rip => Op::Constant(dst()?, m.disp as u64),
                (None, None) => Op::Constant(dst()?, m.disp as u64),
                (Some(base), None) => Op::AddConstant(dst()?, base, m.disp),
                (Some(a), Some(b)) if m.scale == 1 && m.disp == 0 => Op::Sum(dst()?, a, b),
                _ => Op::Other,
            }
        }
        (Mnemonic::Mov, (OpKind::Register, _)) if immediate && wide(i.op0_register()) => {
            Op::Constant(dst()?, i.immediate(1))
        }
        (Mnemonic::Mov, (OpKind::Register, OpKind::Register)) if wide(i.op0_register()) => {
            Op::Copy(dst()?, src()?, bits(i.op1_register()))
        }
        (Mnemonic::Movzx | Mnemonic::Movsx, (OpKind::Register, OpKind::Register))
            if wide(i.op0_register()) =>
        {
            Op::Copy(dst()?, src()?, bits(i.op1_register()))
        }
        (Mnemonic::Movsxd, (OpKind::Register, OpKind::Register)) => Op::SignExtend(dst()?, src()?),
        (Mnemonic::Cdqe, _) => Op::SignExtend(Reg(0), Reg(0)),
        (
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd,
            (OpKind::Register, OpKind::Memory),
        ) => Op::Load {
            dst: dst()?,
            mem: mem(i)?,
            size: i.memory_size().size() as u8,
            signed: matches!(i.mnemonic(), Mnemonic::Movsx | Mnemonic::Movsxd)
                && i.op0_register().size() == 8,
        },
        (Mnemonic::Add, (OpKind::Register, OpKind::Register)) if i.op0_register().size() == 8 => {
            Op::Add(dst()?, src()?)
        }
        (Mnemonic::Add, (OpKind::Register, _)) if immediate && wide(i.op0_register()) => {
            Op::AddConstant(dst()?, dst()?, i.immediate(1) as i64)
        }
        (Mnemonic::Sub, (OpKind::Register, _)) if immediate && wide(i.op0_register()) => {
            Op::AddConstant(dst()?, dst()?, (i.immediate(1) as i64).wrapping_neg())
        }
        (Mnemonic::And, (OpKind::Register, _)) if immediate => Op::And(dst()?, i.immediate(1) as i64),
        (Mnemonic::Mov, (OpKind::Memory, OpKind::Register)) if i.op1_register().is_gpr64() => {
            Op::Keep(src()?)
        }
        (Mnemonic::Push, (OpKind::Register, _)) => Op::Keep(dst()?),
        (Mnemonic::Movq | Mnemonic::Vmovq, (OpKind::Register, OpKind::Register))
            if i.op1_register().is_gpr64() =>
        {
            Op::Keep(src()?)
        }
        (Mnemonic::Pinsrq, (_, OpKind::Register)) => Op::Keep(src()?),
        (Mnemonic::Vpinsrq, _) if i.op2_kind() == OpKind::Register => Op::Keep(reg(i.op2_register())?),
        (_, (OpKind::Register, OpKind::Register)) if is_cmov(i.mnemonic()) && i.op0_register().is_gpr64() => {
            Op::Select(dst()?, src()?)
        }
        (Mnemonic::Cmp | Mnemonic::Test, (a, b))
            if !immediate && (a, b) != (OpKind::Memory, OpKind::Memory) =>
        {
            Op::Compare
        }
        (Mnemonic::Cmp, (OpKind::Register, _)) if immediate => {
            Op::CompareConstant(dst()?, i.immediate(1) as i64, bits(i.op0_register()))
        }
        (Mnemonic::Cmp, (OpKind::Memory, _)) if immediate => {
            Op::CompareMemory(mem(i)?, i.immediate(1) as i64, (i.memory_size().size() * 8) as u8)
        }
        (Mnemonic::Jmp, (OpKind::Register, _)) => Op::JumpRegister(dst()?),
        (Mnemonic::Jmp, (OpKind::Memory, _)) => Op::JumpMemory(mem(i)?),
        _ => Op::Other,
    })
}

/// Re-encodes the load or jump at the start of `bytes` so that its memory operand
/// (`base + index*scale + disp`, not RIP-relative) reads `delta` bytes further on: the displacement becomes
/// 32 bits wide. All else stays as it is.
///
/// Used for jump-table copies: registers keep their original values and only the load goes elsewhere. Returns
/// `None` if the operand has another form or the new displacement does not fit.
pub fn displaced_load(bytes: &[u8], at: Svma, delta: i64) -> Option<Vec<u8>> {
    let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
    let i = decoder.decode();
    let m = if i.is_invalid() { None } else { mem(&i) }?;
    if m.rip || i.op_count() == 0 {
        return None;
    }
    let offsets = decoder.get_constant_offsets(&i);
    if offsets.has_immediate() {
        return None;
    }
    let disp = i32::try_from(m.disp.checked_add(delta)?).ok()?;
    let bytes = &bytes[..i.len()];
    // The operand ends the instruction: opcode, ModRM, [SIB], [displacement].
    let disp_size = if offsets.has_displacement() { offsets.displacement_size() } else { 0 };
    let body = i.len() - disp_size;
    let has_sib = m.index.is_some() || m.base.is_none() || matches!(m.base, Some(Reg(4 | 12)));
    let modrm_at = body.checked_sub(1 + usize::from(has_sib))?;
    let modrm = bytes[modrm_at];
    let rm_says_sib = modrm & 7 == 4;
    if rm_says_sib != has_sib || modrm >> 6 == 3 {
        return None;
    }
    let mut out = bytes[..body].to_vec();
    // Without a base (mod 00, SIB base 101) the displacement is 32 bits wide already.
    if m.base.is_some() {
        out[modrm_at] = (modrm & 0x3f) | 0x80;
    }
    out.extend_from_slice(&disp.to_le_bytes());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_the_parts_of_a_relative_switch() {
        let lea = decode_one(&[0x48, 0x8d, 0x15, 0x10, 0, 0, 0], Svma::new(0x1000)).unwrap();
        assert_eq!(lea.op, Op::Constant(Reg(2), 0x1017));
        let load = decode_one(&[0x48, 0x63, 0x04, 0x82], Svma::new(0x1007)).unwrap();
        assert!(matches!(load.op, Op::Load { dst: Reg(0), size: 4, signed: true, .. }));
        let add = decode_one(&[0x48, 0x01, 0xd0], Svma::new(0x100b)).unwrap();
        assert_eq!(add.op, Op::Add(Reg(0), Reg(2)));
        let jump = decode_one(&[0x3e, 0xff, 0xe0], Svma::new(0x100e)).unwrap();
        assert_eq!(jump.op, Op::JumpRegister(Reg(0)));
    }

    #[test]
    fn a_displaced_load_reads_elsewhere_and_is_otherwise_the_same() {
        let cases: &[&[u8]] = &[
            &[0x48, 0x63, 0x04, 0x82],                         // movslq (%rdx,%rax,4),%rax
            &[0x49, 0x63, 0x04, 0x84],                         // movslq (%r12,%rax,4),%rax
            &[0x49, 0x63, 0x44, 0x85, 0x00],                   // movslq 0(%r13,%rax,4),%rax
            &[0xff, 0x24, 0xc5, 0x00, 0x10, 0x40, 0x00],       // jmp *0x401000(,%rax,8)
            &[0x3e, 0xff, 0x24, 0xc2],                         // notrack jmp *(%rdx,%rax,8)
            &[0x48, 0x8b, 0x04, 0xc5, 0x00, 0x10, 0x40, 0x00], // mov 0x401000(,%rax,8),%rax
            &[0x48, 0x63, 0x02],                               // movslq (%rdx),%rax
        ];
        for bytes in cases {
            let at = Svma::new(0x40_2000);
            let before = decode_one(bytes, at).unwrap();
            let moved = displaced_load(bytes, at, 0x1234).unwrap();
            let after = decode_one(&moved, at).unwrap();
            assert_eq!(after.insn.len as usize, moved.len());
            let shift = |op| match op {
                Op::Load { dst, mem, size, signed } => {
                    Op::Load { dst, mem: Mem { disp: mem.disp + 0x1234, ..mem }, size, signed }
                }
                Op::JumpMemory(mem) => Op::JumpMemory(Mem { disp: mem.disp + 0x1234, ..mem }),
                other => other,
            };
            assert_eq!(shift(before.op), after.op, "{bytes:x?}");
        }
    }

    #[test]
    fn a_displaced_load_refuses_what_it_cannot_express() {
        let at = Svma::new(0x1000);
        assert_eq!(displaced_load(&[0x48, 0x8b, 0x05, 0, 0, 0, 0], at, 8), None, "RIP-relative");
        assert_eq!(displaced_load(&[0x48, 0x63, 0x04, 0x82], at, 1 << 40), None, "out of reach");
        assert_eq!(displaced_load(&[0x48], at, 8), None, "cut off");
    }
}
