//! Operands of instructions: parts of general registers, memory, constants.

use crate::reg::Reg;
use iced_x86::{Instruction, OpKind, Register, UsedMemory};

/// A general register or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    /// The register.
    pub reg: Reg,
    /// Bytes: 1, 2, 4 or 8. Writing 4 bytes clears the upper half, writing 1 or 2 leaves the rest alone.
    pub size: u8,
    /// Bits 8 to 15 (`ah`, `ch`, `dh`, `bh`).
    pub high: bool,
}

/// A segment whose base is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Segment {
    /// The thread's own memory in most programs.
    Fs,
    /// The other one.
    Gs,
}

/// The address of a memory operand: `segment + base + index * scale + disp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Base register.
    pub base: Option<Reg>,
    /// Index register.
    pub index: Option<Reg>,
    /// 1, 2, 4 or 8.
    pub scale: u8,
    /// Displacement; the stated address itself where `rip` is set.
    pub disp: i64,
    /// RIP-relative.
    pub rip: bool,
    /// Segment.
    pub segment: Option<Segment>,
}

/// An operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Part(Part),
    /// Memory, with the number of bytes (1, 2, 4 or 8).
    Memory(Address, u8),
    /// A constant, sign-extended to 64 bits.
    Immediate(u64),
}

impl Operand {
    /// Bytes that the operand has; 8 for a constant.
    pub fn size(&self) -> u8 {
        match self {
            Self::Part(part) => part.size,
            Self::Memory(_, size) => *size,
            Self::Immediate(_) => 8,
        }
    }
}

pub(crate) fn part(r: Register) -> Option<Part> {
    let full = r.full_register();
    if !full.is_gpr64() || !r.is_gpr() {
        return None;
    }
    let high = matches!(r, Register::AH | Register::CH | Register::DH | Register::BH);
    Some(Part { reg: Reg(full.number() as u8), size: r.size() as u8, high })
}

fn gpr64(r: Register) -> Option<Option<Reg>> {
    match r {
        Register::None => Some(None),
        r if r.is_gpr64() => Some(Some(Reg(r.number() as u8))),
        _ => None,
    }
}

fn segment(prefix: Register) -> Option<Segment> {
    match prefix {
        Register::FS => Some(Segment::Fs),
        Register::GS => Some(Segment::Gs),
        // The other segments have base 0 in 64-bit code.
        _ => None,
    }
}

pub(crate) fn address(i: &Instruction) -> Option<Address> {
    let segment = segment(i.memory_segment());
    if i.is_ip_rel_memory_operand() {
        if i.memory_base() == Register::EIP {
            return None;
        }
        let disp = i.ip_rel_memory_address() as i64;
        return Some(Address { base: None, index: None, scale: 1, disp, rip: true, segment });
    }
    Some(Address {
        base: gpr64(i.memory_base())?,
        index: gpr64(i.memory_index())?,
        scale: i.memory_index_scale() as u8,
        disp: i.memory_displacement64() as i64,
        rip: false,
        segment,
    })
}

/// A memory operand as the instruction information gives it.
pub(crate) fn used_address(used: &UsedMemory) -> Option<Address> {
    if used.vsib_size() != 0 {
        return None;
    }
    let segment = segment(used.segment());
    if used.base() == Register::RIP {
        // The displacement is the absolute address already.
        let disp = used.displacement() as i64;
        return Some(Address { base: None, index: None, scale: 1, disp, rip: true, segment });
    }
    Some(Address {
        base: gpr64(used.base())?,
        index: gpr64(used.index())?,
        scale: used.scale() as u8,
        disp: used.displacement() as i64,
        rip: false,
        segment,
    })
}

pub(crate) fn operand(i: &Instruction, op: u32) -> Option<Operand> {
    match i.op_kind(op) {
        OpKind::Register => part(i.op_register(op)).map(Operand::Part),
        OpKind::Memory => {
            let size = i.memory_size().size();
            matches!(size, 1 | 2 | 4 | 8).then_some(())?;
            Some(Operand::Memory(address(i)?, size as u8))
        }
        OpKind::Immediate8 => Some(Operand::Immediate(i.immediate8() as i8 as u64)),
        OpKind::Immediate16 => Some(Operand::Immediate(i.immediate16() as i16 as u64)),
        OpKind::Immediate32 => Some(Operand::Immediate(i.immediate32() as i32 as u64)),
        OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64
        | OpKind::Immediate64 => Some(Operand::Immediate(i.immediate(op))),
        _ => None,
    }
}

pub(crate) fn first(i: &Instruction) -> Option<Operand> {
    operand(i, 0)
}

pub(crate) fn second(i: &Instruction) -> Option<Operand> {
    operand(i, 1)
}

pub(crate) fn first_part(i: &Instruction) -> Option<Part> {
    (i.op0_kind() == OpKind::Register).then(|| part(i.op0_register()))?
}

pub(crate) fn second_part(i: &Instruction) -> Option<Part> {
    (i.op1_kind() == OpKind::Register).then(|| part(i.op1_register()))?
}
