//! Linear decoding into compact records.

use crate::condition::Condition;
use crate::stack::{StackUse, stack_use};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits,
};
use restitch_address::Svma;

/// Where control goes after an instruction. `C`: the conditions of the instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flow<C = Condition> {
    /// To the next instruction.
    Next,
    /// `jmp target`.
    Jump(Svma),
    /// `jcc target`.
    Conditional(C, Svma),
    /// `loop`, `loope`, `loopne`, `jcxz` family: one encoding only, 8-bit displacement.
    ShortConditional(Svma),
    /// `jmp` through a register or memory, far jumps included.
    IndirectJump,
    /// `call target`.
    Call(Svma),
    /// `call` through a register or memory.
    IndirectCall,
    /// `ret`, `iret`.
    Return,
    /// `ud2`, `hlt`, `int3`: control does not go on. (Other instructions that only the kernel may execute are
    /// taken for [`Flow::Next`].)
    Stop,
    /// Something that ordinary copying cannot express (`xbegin`, 16-bit operand-size branches, far calls).
    Unsupported,
}

/// What an instruction does with the address that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `lea` relative to the program counter, or an instruction that does not look (`nop`): the address is
    /// made only.
    Address,
    /// An operand relative to the program counter: it is read or written, or control goes to what it holds.
    Access,
    /// An immediate, or the displacement of a `lea`: a number that is an address in a file at fixed addresses
    /// only.
    Number,
    /// The displacement of a memory operand, maybe with base and index: likewise, and read or written.
    Displacement,
}

impl Naming {
    /// Whether memory is read or written there.
    pub fn is_access(self) -> bool {
        matches!(self, Self::Access | Self::Displacement)
    }
}

/// One decoded instruction, compact. `C`: the conditions of the instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn<C = Condition> {
    /// Its address.
    pub at: Svma,
    /// Length in bytes, 1 to 15; up to 17 for a lock skip ([`crate::scan_lock_skips`]).
    pub len: u8,
    /// Control flow.
    pub flow: Flow<C>,
    /// Status flags that it reads (see [`crate::ALL_FLAGS`]).
    pub flags_read: u8,
    /// Status flags that it writes for certain, or leaves undefined.
    pub flags_written: u8,
    /// The address named by a RIP-relative operand or by a 32-bit immediate or absolute displacement: what
    /// might be an address taken. `None` for most instructions.
    pub names: Option<Svma>,
    /// What it does with that.
    pub naming: Naming,
    /// Bytes that it reads or writes there: none unless [`Self::naming`] says so.
    pub accessed: u8,
    /// Only the kernel may execute it, or compilers never write it: ports, far transfers, `add %al,(%rax)`
    /// (two zeros).
    pub odd: bool,
    /// `nop`, `endbr64` excluded; `int3` included: may stand between functions as filler.
    pub padding: bool,
    /// What it does with the stack pointer and with memory beside it.
    pub stack: StackUse,
}

impl<C> Insn<C> {
    /// First address behind the instruction.
    pub fn end(&self) -> Svma {
        self.at + u64::from(self.len)
    }
}

pub(crate) fn all_flags_of(bits: u32) -> u8 {
    let mut out = 0;
    for (i, flag) in
        [RflagsBits::CF, RflagsBits::PF, RflagsBits::AF, RflagsBits::ZF, RflagsBits::SF, RflagsBits::OF]
            .into_iter()
            .enumerate()
    {
        if bits & flag != 0 {
            out |= 1 << i;
        }
    }
    out
}

/// Decodes `bytes`, which stand at `at`, to the end and hands each instruction to `sink`, as the processor
/// sees them: a branch into the middle of the next instruction is just that (see [`crate::scan_lock_skips`]).
///
/// # Errors
/// The address of the first byte sequence that is not an instruction, or that the end of `bytes` cuts off.
pub fn scan(bytes: &[u8], at: Svma, mut sink: impl FnMut(Insn)) -> Result<(), Svma> {
    let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return Err(Svma::new(instruction.ip()));
        }
        sink(classify(&instruction));
    }
    Ok(())
}

/// The instruction at the start of `bytes`, which stand at `at`; none if there is none.
pub fn first_insn(bytes: &[u8], at: Svma) -> Option<Insn> {
    let instruction = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then(|| classify(&instruction))
}

pub(crate) fn classify(instruction: &Instruction) -> Insn {
    let (mut read, mut written) = (0, 0);
    if instruction.rflags_read() | instruction.rflags_modified() != 0 {
        // `syscall` keeps the flags in r11 for the kernel's way back; nobody looks at them there.
        read = if instruction.mnemonic() == Mnemonic::Syscall {
            0
        } else {
            all_flags_of(instruction.rflags_read())
        };
        written = match instruction.mnemonic() {
            Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
                if may_shift_by_zero(instruction) =>
            {
                0
            }
            Mnemonic::Syscall => 0,
            _ if instruction.has_rep_prefix() || instruction.has_repne_prefix() => 0,
            _ => all_flags_of(instruction.rflags_modified()),
        };
    }
    let named = named_address(instruction);
    Insn {
        at: Svma::new(instruction.ip()),
        len: instruction.len() as u8,
        flow: flow_of(instruction),
        flags_read: read,
        flags_written: written,
        names: named.map(|named| named.0),
        naming: named.map_or(Naming::Address, |named| named.1),
        accessed: named.filter(|named| named.1.is_access()).map_or(0, |_| accessed_bytes(instruction)),
        odd: is_odd(instruction),
        padding: matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3),
        stack: stack_use(instruction),
    }
}

/// A shift by 0 changes no flag (Intel SDM vol. 2, SAL/SAR/SHL/SHR): one by CL may be that. The count is
/// taken modulo 64 for operands of 64 bits and modulo 32 for all others; a multiple of 32 counts as 0 here.
fn may_shift_by_zero(i: &Instruction) -> bool {
    let count = i.op_count().saturating_sub(1);
    i.op_kind(count) == OpKind::Register || i.try_immediate(count).map_or(true, |n| n & 31 == 0)
}

fn flow_of(i: &Instruction) -> Flow {
    let target = || Svma::new(i.near_branch_target());
    let wide = i.op0_kind() == OpKind::NearBranch64;
    match i.flow_control() {
        // For the kernel only: it ends a program, and compilers and C libraries put it where control does not
        // come.
        FlowControl::Next if i.mnemonic() == Mnemonic::Hlt => Flow::Stop,
        FlowControl::Next => Flow::Next,
        FlowControl::UnconditionalBranch if wide => Flow::Jump(target()),
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::ConditionalBranch if wide && (i.is_jcc_short() || i.is_jcc_near()) => {
            condition(i).map_or(Flow::Unsupported, |condition| Flow::Conditional(condition, target()))
        }
        FlowControl::ConditionalBranch if wide => Flow::ShortConditional(target()),
        FlowControl::Return => Flow::Return,
        FlowControl::Call => match i.code() {
            Code::Call_rel32_64 => Flow::Call(target()),
            // Supervisor-like "calls" (syscall, sysenter): control comes back to the next instruction.
            Code::Syscall
            | Code::Sysenter
            | Code::Vmcall
            | Code::Vmmcall
            | Code::Vmlaunch
            | Code::Vmresume => Flow::Next,
            _ => Flow::Unsupported,
        },
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Interrupt => match i.mnemonic() {
            Mnemonic::Int3 => Flow::Stop,
            _ => Flow::Next,
        },
        FlowControl::Exception => Flow::Stop,
        _ => Flow::Unsupported,
    }
}

/// The condition of a `jcc`, `setcc` or `cmovcc`.
pub(crate) fn condition(i: &Instruction) -> Option<Condition> {
    use iced_x86::ConditionCode as C;
    Some(match i.condition_code() {
        C::None => return None,
        C::o => Condition::Overflow,
        C::no => Condition::NoOverflow,
        C::b => Condition::Below,
        C::ae => Condition::AboveOrEqual,
        C::e => Condition::Equal,
        C::ne => Condition::NotEqual,
        C::be => Condition::BelowOrEqual,
        C::a => Condition::Above,
        C::s => Condition::Sign,
        C::ns => Condition::NoSign,
        C::p => Condition::Parity,
        C::np => Condition::NoParity,
        C::l => Condition::Less,
        C::ge => Condition::GreaterOrEqual,
        C::le => Condition::LessOrEqual,
        C::g => Condition::Greater,
    })
}

/// Whether no compiler writes the instruction for a program.
fn is_odd(i: &Instruction) -> bool {
    use Mnemonic::*;
    let ports = matches!(i.mnemonic(), In | Out | Insb | Insw | Insd | Outsb | Outsw | Outsd);
    let far = matches!(i.mnemonic(), Retf | Iret | Iretd | Iretq | Int1 | Into | Xlatb | Enter);
    let zeros = i.code() == Code::Add_rm8_r8
        && i.len() == 2
        && i.op0_kind() == OpKind::Memory
        && (i.memory_base(), i.op1_register()) == (Register::RAX, Register::AL);
    ports || far || zeros || i.is_privileged() && i.mnemonic() != Hlt
}

/// Bytes of the memory operand; where the decoder cannot tell (state areas of `fxsave` and the like), as for
/// the widest vector.
fn accessed_bytes(i: &Instruction) -> u8 {
    const WIDEST: usize = 64;
    match i.memory_size().size() {
        0 => WIDEST as u8,
        size => size.min(WIDEST) as u8,
    }
}

fn named_address(i: &Instruction) -> Option<(Svma, Naming)> {
    let computed = matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    let of_memory = |made, used| if computed { made } else { used };
    if i.is_ip_rel_memory_operand() {
        let naming = of_memory(Naming::Address, Naming::Access);
        return Some((Svma::new(i.ip_rel_memory_address()), naming));
    }
    // Non-PIE code names addresses by 32-bit immediates and displacements. Small values cannot be code
    // addresses.
    const LOWEST_CODE: u64 = 0x1_0000;
    for op in 0..i.op_count() {
        match i.op_kind(op) {
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => {
                let value = i.immediate(op);
                if value >= LOWEST_CODE {
                    return Some((Svma::new(value), Naming::Number));
                }
            }
            OpKind::Memory if i.memory_displ_size() >= 4 => {
                let value = i.memory_displacement64();
                if value >= LOWEST_CODE && !matches!(i.segment_prefix(), Register::FS | Register::GS) {
                    return Some((Svma::new(value), of_memory(Naming::Number, Naming::Displacement)));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_program_is_a_stop() {
        let flow = |bytes: &[u8]| {
            let mut out = Vec::new();
            scan(bytes, Svma::new(0), |i| out.push(i.flow)).unwrap();
            out[0]
        };
        // hlt; ud2; ud1 (%rax),%eax; int3
        for bytes in [&[0xf4][..], &[0x0f, 0x0b], &[0x0f, 0xb9, 0x00], &[0xcc]] {
            assert_eq!(flow(bytes), Flow::Stop, "{bytes:x?}");
        }
        // nop; cli; syscall; int $0x80
        for bytes in [&[0x90][..], &[0xfa], &[0x0f, 0x05], &[0xcd, 0x80]] {
            assert_eq!(flow(bytes), Flow::Next, "{bytes:x?}");
        }
    }

    #[test]
    fn shifts_write_flags_unless_the_count_may_be_zero() {
        let written = |bytes: &[u8]| {
            let mut out = Vec::new();
            scan(bytes, Svma::new(0), |i| out.push(i.flags_written)).unwrap();
            out[0]
        };
        // shr $62,%rax; shl $1,%eax (both forms); sar $1,(%rax); shld $3,%eax,%ecx
        for bytes in [
            &[0x48, 0xc1, 0xe8, 0x3e][..],
            &[0xd1, 0xe0],
            &[0xc1, 0xe0, 1],
            &[0xd1, 0x38],
            &[0x0f, 0xa4, 0xc1, 3],
        ] {
            assert_eq!(written(bytes), crate::ALL_FLAGS, "{bytes:x?}");
        }
        // rol $1,%eax leaves all but CF and OF alone; by %cl, by 0 and by 32 nothing is certain.
        assert_ne!(written(&[0xd1, 0xc0]), crate::ALL_FLAGS);
        for bytes in [&[0x48, 0xd3, 0xe8][..], &[0xc1, 0xe0, 0], &[0xc1, 0xe0, 32], &[0x0f, 0xa5, 0xc1]] {
            assert_eq!(written(bytes), 0, "{bytes:x?}");
        }
    }
}
