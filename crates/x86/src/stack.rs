//! What an instruction does with the stack pointer, and with memory at a constant distance from it: enough to
//! see, beside the unwind table's rows, whether a function looks at its return address.
//! [`crate::memory_uses`] is the exact and slow form, for what looks odd.

use crate::reg::Reg;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// The compact fact, of one instruction. Of `rsp` and `rbp`, each in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StackUse {
    /// It neither writes the stack pointer nor names memory by it or by `rbp`.
    #[default]
    None,
    /// It adds so many bytes to the stack pointer and reads none of the stack (`push` of a register, `add`,
    /// `sub`, `lea`).
    Moves(i32),
    /// It reads the 8 bytes at the stack pointer and adds 8 to it (`pop` of a register, `popf`).
    Pops,
    /// It writes the stack pointer in another way.
    Sets,
    /// `to` = `rsp` (or `rbp`, with `frame`) + `disp`: `mov`, `lea`.
    Address {
        /// The register that gets the address.
        to: Reg,
        /// From `rbp`, not `rsp`.
        frame: bool,
        /// Bytes.
        disp: i32,
    },
    /// It writes the stack pointer to memory that is not beside it or `rbp` (`mov`).
    Kept,
    /// It reads or writes memory at `rsp` (or `rbp`, with `frame`) + `disp`.
    Memory {
        /// From `rbp`, not `rsp`.
        frame: bool,
        /// Bytes, from the register's value before the instruction.
        disp: i32,
        /// Bytes that it reads or writes.
        size: u16,
        /// What it adds to the stack pointer besides (`push` of memory).
        moves: i8,
    },
}

/// The fact about `i`.
pub(crate) fn stack_use(i: &Instruction) -> StackUse {
    let named = named(i);
    match i.mnemonic() {
        Mnemonic::Push => match named {
            Some((frame, disp)) => StackUse::Memory { frame, disp, size: 8, moves: -8 },
            None => StackUse::Moves(i.stack_pointer_increment()),
        },
        Mnemonic::Pushfq => StackUse::Moves(-8),
        Mnemonic::Pop if i.op0_kind() == OpKind::Register && i.op0_register() != Register::RSP => {
            StackUse::Pops
        }
        Mnemonic::Popfq => StackUse::Pops,
        Mnemonic::Pop | Mnemonic::Leave | Mnemonic::Enter => StackUse::Sets,
        Mnemonic::Nop => StackUse::None,
        _ if writes_stack_pointer(i) => moved(i, named).map_or(StackUse::Sets, StackUse::Moves),
        Mnemonic::Lea => match (named, wide(i)) {
            (Some((frame, disp)), Some(to)) => StackUse::Address { to, frame, disp },
            _ => StackUse::None,
        },
        Mnemonic::Mov if i.op1_kind() == OpKind::Register && i.op1_register() == Register::RSP => {
            match wide(i) {
                Some(to) => StackUse::Address { to, frame: false, disp: 0 },
                None if named.is_none() && i.op0_kind() == OpKind::Memory => StackUse::Kept,
                None => named.map_or(StackUse::None, |(frame, disp)| StackUse::Memory {
                    frame,
                    disp,
                    size: 8,
                    moves: 0,
                }),
            }
        }
        _ => match named {
            // What says no size saves registers: those of the processor's legacy area are 512 bytes.
            Some((frame, disp)) => {
                let size = i.memory_size().size();
                StackUse::Memory { frame, disp, size: if size == 0 { 512 } else { size as u16 }, moves: 0 }
            }
            None => StackUse::None,
        },
    }
}

/// The 64-bit register that is the first operand.
fn wide(i: &Instruction) -> Option<Reg> {
    (i.op0_kind() == OpKind::Register && i.op0_register().is_gpr64())
        .then(|| Reg(i.op0_register().number() as u8))
}

/// Whether a memory operand is relative to `rbp` (not `rsp`), and how far from it; `None` if there is no such
/// operand.
fn named(i: &Instruction) -> Option<(bool, i32)> {
    let base = i.memory_base();
    let plain = (base == Register::RSP || base == Register::RBP)
        && i.memory_index() == Register::None
        && !matches!(i.segment_prefix(), Register::FS | Register::GS);
    plain.then(|| (base == Register::RBP, i.memory_displacement64() as i32))
}

fn writes_stack_pointer(i: &Instruction) -> bool {
    let is = |op: u32| {
        i.op_count() > op
            && i.op_kind(op) == OpKind::Register
            && i.op_register(op).full_register() == Register::RSP
    };
    let swaps = matches!(i.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd | Mnemonic::Cmpxchg);
    is(0) && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt) || swaps && is(1)
}

/// By how much, if `i`, which writes the stack pointer, adds a constant to it.
fn moved(i: &Instruction, named: Option<(bool, i32)>) -> Option<i32> {
    let constant = || {
        let is = matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        (is && i.op0_register() == Register::RSP).then(|| i.immediate(1) as i32)
    };
    match i.mnemonic() {
        Mnemonic::Add => constant(),
        Mnemonic::Sub => constant()?.checked_neg(),
        Mnemonic::Lea => named.filter(|(frame, _)| !frame).map(|(_, disp)| disp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_address::Svma;

    fn of(bytes: &[u8]) -> StackUse {
        let mut out = None;
        crate::decode::scan(bytes, Svma::new(0), |insn| out = Some(insn.stack)).expect("one instruction");
        out.expect("one instruction")
    }

    #[test]
    fn moves_of_the_stack_pointer_are_known() {
        // push %rbx; push $1; pushf; sub $0x18,%rsp; add $0x100,%rsp; lea -0x80(%rsp),%rsp
        for (bytes, by) in [
            (&[0x53][..], -8),
            (&[0x6a, 1], -8),
            (&[0x9c], -8),
            (&[0x48, 0x83, 0xec, 0x18], -0x18),
            (&[0x48, 0x81, 0xc4, 0, 1, 0, 0], 0x100),
            (&[0x48, 0x8d, 0x64, 0x24, 0x80], -0x80),
        ] {
            assert_eq!(of(bytes), StackUse::Moves(by), "{bytes:x?}");
        }
        assert_eq!(of(&[0x59]), StackUse::Pops, "pop %rcx");
        // pop %rsp; leave; mov %rdi,%rsp; and $-32,%rsp; xchg %rsp,%rax; sub %rax,%rsp; mov %edi,%esp
        for bytes in [
            &[0x5c][..],
            &[0xc9],
            &[0x48, 0x89, 0xfc],
            &[0x48, 0x83, 0xe4, 0xe0],
            &[0x48, 0x94],
            &[0x48, 0x29, 0xc4],
            &[0x89, 0xfc],
        ] {
            assert_eq!(of(bytes), StackUse::Sets, "{bytes:x?}");
        }
        // nop; cmp %rax,%rsp; mov (%rax),%rcx; mov %fs:8(%rsp),%rax; ret
        for bytes in [
            &[0x90][..],
            &[0x48, 0x39, 0xc4],
            &[0x48, 0x8b, 0x08],
            &[0x64, 0x48, 0x8b, 0x44, 0x24, 8],
            &[0xc3],
        ] {
            assert_eq!(of(bytes), StackUse::None, "{bytes:x?}");
        }
    }

    #[test]
    fn memory_and_addresses_beside_it_are_known() {
        let memory = |frame, disp, size, moves| StackUse::Memory { frame, disp, size, moves };
        // mov (%rsp),%rcx; addq $4,(%rsp); mov 8(%rbp),%rax; push -8(%rbp); movups %xmm0,0x10(%rsp); jmp
        // *(%rsp)
        for (bytes, is) in [
            (&[0x48, 0x8b, 0x0c, 0x24][..], memory(false, 0, 8, 0)),
            (&[0x48, 0x83, 0x04, 0x24, 4], memory(false, 0, 8, 0)),
            (&[0x48, 0x8b, 0x45, 8], memory(true, 8, 8, 0)),
            (&[0xff, 0x75, 0xf8], memory(true, -8, 8, -8)),
            (&[0x0f, 0x11, 0x44, 0x24, 0x10], memory(false, 0x10, 16, 0)),
            (&[0xff, 0x24, 0x24], memory(false, 0, 8, 0)),
        ] {
            assert_eq!(of(bytes), is, "{bytes:x?}");
        }
        let address = |to, frame, disp| StackUse::Address { to: Reg(to), frame, disp };
        // mov %rsp,%rbp; lea 8(%rsp),%r10; lea 16(%rbp),%rdi
        assert_eq!(of(&[0x48, 0x89, 0xe5]), address(5, false, 0));
        assert_eq!(of(&[0x4c, 0x8d, 0x54, 0x24, 8]), address(10, false, 8));
        assert_eq!(of(&[0x48, 0x8d, 0x7d, 0x10]), address(7, true, 16));
        // mov %rsp,8(%rbx); mov %rsp,-8(%rbp); mov %esp,%eax
        assert_eq!(of(&[0x48, 0x89, 0x63, 8]), StackUse::Kept);
        assert_eq!(of(&[0x48, 0x89, 0x65, 0xf8]), memory(true, -8, 8, 0));
        assert_eq!(of(&[0x89, 0xe0]), StackUse::None);
    }
}
