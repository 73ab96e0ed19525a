//! What instructions of recording code look like.

use iced_x86::{Code, Instruction, OpKind, Register};
use restitch_address::Svma;

/// Whether an operand is memory at this address, told relative to the 64-bit program counter, in no segment.
pub(crate) fn is_word(i: &Instruction, operand: u32, address: Svma) -> bool {
    i.op_kind(operand) == OpKind::Memory
        && i.memory_base() == Register::RIP
        && i.memory_index() == Register::None
        && i.ip_rel_memory_address() == address.get()
        && has_no_prefix(i)
}

/// `movzwl %cx,%ecx`.
pub(crate) fn is_test(i: &Instruction) -> bool {
    let registers = (i.op0_register(), i.op1_register());
    i.code() == Code::Movzx_r32_rm16
        && i.op1_kind() == OpKind::Register
        && registers == (Register::ECX, Register::CX)
        && has_no_prefix(i)
}

/// No segment, no lock, no repetition.
pub(crate) fn has_no_prefix(i: &Instruction) -> bool {
    let repeats = i.has_rep_prefix() || i.has_repne_prefix();
    i.segment_prefix() == Register::None && !i.has_lock_prefix() && !repeats
}

pub(crate) fn has_memory(i: &Instruction) -> bool {
    i.op_kinds().any(|kind| kind == OpKind::Memory)
}

/// Whether `load` is `mov operand,%rcx` for the operand of an indirect branch.
pub(crate) fn loads_target(load: &Instruction, branch: &Instruction) -> bool {
    let near = matches!(branch.code(), Code::Jmp_rm64 | Code::Call_rm64);
    if !near || load.code() != Code::Mov_r64_rm64 || load.op0_register() != Register::RCX {
        return false;
    }
    if branch.op0_kind() == OpKind::Register {
        return load.op1_kind() == OpKind::Register && load.op1_register() == branch.op0_register();
    }
    let operand = |i: &Instruction| {
        let place = (i.memory_base(), i.memory_index(), i.memory_index_scale());
        (place, i.memory_displacement64(), i.memory_segment())
    };
    load.op1_kind() == OpKind::Memory && operand(load) == operand(branch)
}
