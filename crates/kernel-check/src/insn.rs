//! Single instructions.

use crate::flag_use::Flags;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use restitch_address::Svma;

/// No instruction is longer.
pub(crate) const LONGEST: usize = 15;
/// What stands between pieces of code: `int3`.
pub(crate) const FILLER: u8 = 0xcc;
/// Bytes of a place that the kernel rewrites as one.
pub(crate) const SITE: u64 = 5;
/// `nop` of that length, as the kernel writes it.
pub(crate) const SITE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `call` and `jmp` of that length, and the prefix that branches through the higher registers have.
pub(crate) const CALL: u8 = 0xe8;
pub(crate) const JUMP: u8 = 0xe9;
pub(crate) const PREFIX: u8 = 0x2e;
/// The lock prefix, and the one without a meaning that the kernel writes over it.
const LOCK: u8 = 0xf0;
const NO_LOCK: u8 = 0x3e;
/// `lea 8(%rsp),%rsp` with a long displacement: drops a return address.
pub(crate) const DROP_RETURN_ADDRESS: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x08, 0x00, 0x00, 0x00];

/// An instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Insn {
    pub(crate) at: Svma,
    pub(crate) len: u64,
    pub(crate) does: Does,
    /// What an operand relative to the instruction names.
    pub(crate) names: Option<Svma>,
    /// The flags that it uses.
    pub(crate) flags: Flags,
    /// Its bytes, those zeroed that say where it leads or what it names.
    pub(crate) form: [u8; LONGEST],
}

/// What control does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// Goes on, and nothing else happens.
    Nothing,
    /// The same, and it may be reached by a branch through a register.
    Marks,
    /// Goes on.
    Next,
    /// Goes on, behind a barrier.
    Fence,
    Jump(Svma),
    /// By a condition of the flags, a number from 0; its opposite is the same with bit 0 flipped.
    Conditional(u8, Svma),
    /// By a register (`jrcxz`, `loop`).
    Counted(Svma),
    Call(Svma),
    /// Through a register that holds the address.
    Through(Through),
    /// To the address on the stack.
    Return,
    /// A trap that a table may know (`ud2`, `ud1`).
    Trap,
    Breakpoint,
    /// Goes elsewhere, in a way that a copy of the instruction does, too.
    Elsewhere,
}

/// A branch through a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Through {
    pub(crate) register: Register,
    pub(crate) is_call: bool,
}

impl Insn {
    pub(crate) fn end(&self) -> Svma {
        self.at + self.len
    }

    /// The instruction that `bytes` begin with, its lock put back, if the kernel has taken one out, as it
    /// does while there is only one processor (`alternatives_smp_unlock`). A copy without it would be wrong
    /// as soon as there is a second one. In place of a prefix that was no lock, one changes nothing but the
    /// time that it takes.
    pub(crate) fn locked(bytes: &[u8], at: Svma) -> Option<Self> {
        let (first, rest) = bytes.split_first()?;
        let bytes = [&[LOCK], rest].concat();
        let mut decoder = Decoder::with_ip(64, &bytes, at.get(), DecoderOptions::NONE);
        let insn = decoder.decode();
        let writes = insn.has_lock_prefix() && insn.op0_kind() == OpKind::Memory;
        (*first == NO_LOCK && !insn.is_invalid() && writes).then(|| Self::decode(&bytes, at))?
    }

    /// The instruction that `bytes` begin with; none if it is not understood.
    pub(crate) fn decode(bytes: &[u8], at: Svma) -> Option<Self> {
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
        let insn = decoder.decode();
        if insn.is_invalid() {
            return None;
        }
        let does = does(&insn)?;
        let offsets = decoder.get_constant_offsets(&insn);
        let mut form = [0; LONGEST];
        form[..insn.len()].copy_from_slice(&bytes[..insn.len()]);
        let names = insn.is_ip_rel_memory_operand().then(|| Svma::new(insn.ip_rel_memory_address()));
        if names.is_some() {
            if insn.memory_base() != Register::RIP || offsets.displacement_size() != 4 {
                return None;
            }
            form[offsets.displacement_offset()..][..4].fill(0);
        }
        if insn.op0_kind() == OpKind::NearBranch64 {
            form[offsets.immediate_offset()..insn.len()].fill(0);
        }
        Some(Self { at, len: insn.len() as u64, does, names, flags: Flags::of(&insn), form })
    }
}

fn does(insn: &Instruction) -> Option<Does> {
    let target = (insn.op_count() > 0 && insn.op0_kind() == OpKind::NearBranch64)
        .then(|| Svma::new(insn.near_branch64()));
    let by_register = insn.op_count() > 0 && insn.op0_kind() == OpKind::Register;
    let through = |is_call| Does::Through(Through { register: insn.op0_register(), is_call });
    Some(match insn.flow_control() {
        FlowControl::Next => match insn.mnemonic() {
            Mnemonic::Nop => Does::Nothing,
            Mnemonic::Endbr64 => Does::Marks,
            Mnemonic::Lfence => Does::Fence,
            _ => Does::Next,
        },
        FlowControl::UnconditionalBranch => match target {
            Some(to) => Does::Jump(to),
            None if insn.is_jmp_far() => Does::Elsewhere,
            None => return None,
        },
        FlowControl::ConditionalBranch if insn.is_jcc_short_or_near() => {
            Does::Conditional((insn.condition_code() as u8).checked_sub(1)?, target?)
        }
        FlowControl::ConditionalBranch => Does::Counted(target?),
        FlowControl::Call if insn.is_call_near() => Does::Call(target?),
        FlowControl::Call => Does::Next,
        FlowControl::IndirectCall if by_register && is_plain(insn) => through(true),
        FlowControl::IndirectCall => Does::Next,
        FlowControl::IndirectBranch if by_register && is_plain(insn) => through(false),
        FlowControl::IndirectBranch => Does::Elsewhere,
        FlowControl::Return if insn.code() == Code::Retnq => Does::Return,
        FlowControl::Return => Does::Elsewhere,
        FlowControl::Interrupt if insn.mnemonic() == Mnemonic::Int3 => Does::Breakpoint,
        FlowControl::Interrupt => Does::Next,
        FlowControl::Exception => Does::Trap,
        FlowControl::XbeginXabortXend => return None,
    })
}

/// Whether it is `call *%reg` or `jmp *%reg` of a whole register.
fn is_plain(insn: &Instruction) -> bool {
    matches!(insn.code(), Code::Call_rm64 | Code::Jmp_rm64)
}

/// The name of a register in the names of thunks.
pub(crate) fn register_named(name: &str) -> Option<Register> {
    const REGISTERS: [(&str, Register); 15] = [
        ("rax", Register::RAX),
        ("rbx", Register::RBX),
        ("rcx", Register::RCX),
        ("rdx", Register::RDX),
        ("rsi", Register::RSI),
        ("rdi", Register::RDI),
        ("rbp", Register::RBP),
        ("r8", Register::R8),
        ("r9", Register::R9),
        ("r10", Register::R10),
        ("r11", Register::R11),
        ("r12", Register::R12),
        ("r13", Register::R13),
        ("r14", Register::R14),
        ("r15", Register::R15),
    ];
    REGISTERS.iter().find(|(own, _)| *own == name).map(|(_, register)| *register)
}

/// Whether the branch through it is written with a prefix, for one byte more of room.
pub(crate) fn has_prefix(register: Register) -> bool {
    register.number() >= 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn does_of(bytes: &[u8]) -> Option<Does> {
        Insn::decode(bytes, Svma::new(0x1000)).map(|insn| insn.does)
    }

    #[test]
    fn control_flow_is_told_apart() {
        let through = |register, is_call| Some(Does::Through(Through { register, is_call }));
        let to = |offset: u64| Svma::new(0x1000 + offset);
        for (bytes, does) in [
            (&[0x90][..], Some(Does::Nothing)),
            (&SITE_NOP, Some(Does::Nothing)),
            (&[0x0f, 0x1f, 0x40, 0xd6], Some(Does::Nothing)),
            (&[0xf3, 0x90], Some(Does::Next)),
            (&[0xf3, 0x0f, 0x1e, 0xfa], Some(Does::Marks)),
            (&[0x0f, 0xae, 0xe8], Some(Does::Fence)),
            (&[0xeb, 0x10], Some(Does::Jump(to(0x12)))),
            (&[0x74, 0x10], Some(Does::Conditional(4, to(0x12)))),
            (&[0x0f, 0x85, 0x10, 0, 0, 0], Some(Does::Conditional(5, to(0x16)))),
            (&[0xe3, 0x10], Some(Does::Counted(to(0x12)))),
            (&[0xe8, 0x10, 0, 0, 0], Some(Does::Call(to(0x15)))),
            (&[0xff, 0xd0], through(Register::RAX, true)),
            (&[0x41, 0xff, 0xe0], through(Register::R8, false)),
            (&[0xff, 0x15, 0, 0, 0, 0], Some(Does::Next)),
            (&[0xff, 0x24, 0xc5, 0, 0, 0, 0], Some(Does::Elsewhere)),
            (&[0xc3], Some(Does::Return)),
            (&[0xc2, 8, 0], Some(Does::Elsewhere)),
            (&[0x48, 0xcf], Some(Does::Elsewhere)),
            (&[0x0f, 0x05], Some(Does::Next)),
            (&[0xcc], Some(Does::Breakpoint)),
            (&[0xcd, 0x80], Some(Does::Next)),
            (&[0x0f, 0x0b], Some(Does::Trap)),
            (&[0x67, 0x48, 0x0f, 0xb9, 0x3a], Some(Does::Trap)),
            (&[0xd6], None),
            (&[0xf0, 0x74, 0x10], None),
            (&[0x48], None),
            (&[], None),
        ] {
            assert_eq!(does_of(bytes), does, "{bytes:x?}");
        }
    }

    #[test]
    fn a_lock_that_was_taken_out_is_put_back() {
        let at = Svma::new(0x1000);
        // orb $1,(%rdi)
        let insn = Insn::locked(&[NO_LOCK, 0x80, 0x0f, 0x01, 0x90], at).unwrap();
        assert_eq!((insn.len, &insn.form[..4]), (4, &[LOCK, 0x80, 0x0f, 0x01][..]));
        // The same with its lock, mov %eax,(%rdi), jmp: nothing was taken out.
        for bytes in [&[LOCK, 0x80, 0x0f, 0x01][..], &[NO_LOCK, 0x89, 0x07], &[NO_LOCK, 0xeb, 0x00], &[]] {
            assert!(Insn::locked(bytes, at).is_none(), "{bytes:x?}");
        }
    }

    #[test]
    fn what_is_relative_is_named_and_no_part_of_the_form() {
        let load = [0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
        let insn = Insn::decode(&load, Svma::new(0x1000)).unwrap();
        assert_eq!((insn.names, insn.end()), (Some(Svma::new(0x1017)), Svma::new(0x1007)));
        let other = Insn::decode(&[0x48, 0x8b, 0x05, 0, 0, 0, 0], Svma::new(0x1010)).unwrap();
        assert_eq!((other.form, other.names), (insn.form, insn.names));
        let store = [0xc7, 0x05, 0x10, 0, 0, 0, 7, 0, 0, 0];
        let insn = Insn::decode(&store, Svma::new(0x1000)).unwrap();
        assert_eq!((insn.names, insn.form[6]), (Some(Svma::new(0x101a)), 7));
    }
}
