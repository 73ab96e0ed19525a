//! From the decoder's instructions to [`Action`]s.

use crate::decode::{Flow, Insn, all_flags_of, classify};
use crate::operand::{Operand, address, first, first_part, operand, part, second, second_part, used_address};
use crate::semantics::{
    Action, Binary, BitChange, CountBranch, Effects, LowBit, Scan, Semantic, Shift, Stores, Unary,
};
use crate::vector_decode::vector;
use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic as M, OpAccess, OpKind,
    Register, RflagsBits, UsedMemory,
};
use restitch_address::Svma;

/// Decodes the instruction at the start of `bytes`, which stands at `at`. `None` if there is none.
pub fn decode_semantic(bytes: &[u8], at: Svma) -> Option<Semantic> {
    let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let insn: Insn = classify(&instruction);
    Some(Semantic { at, len: insn.len, action: action_of(&instruction, &insn) })
}

fn action_of(i: &Instruction, insn: &Insn) -> Action {
    if insn.flow != Flow::Next {
        return transfer(i, insn).unwrap_or(Action::Stop);
    }
    integer(i).or_else(|| vector(i).map(Action::Vector)).unwrap_or_else(|| Action::Opaque(effects(i)))
}

fn transfer(i: &Instruction, insn: &Insn) -> Option<Action> {
    // A near branch with operand-size or odd prefixes would truncate the target: `classify` has sorted those
    // out.
    Some(match insn.flow {
        Flow::Jump(target) => Action::Jump(target),
        Flow::Conditional(condition, target) => Action::JumpIf(condition, target),
        Flow::ShortConditional(target) => Action::CountBranch(count_branch(i), target),
        Flow::Call(target) => Action::Call(target),
        Flow::IndirectJump if is_near_indirect(i) => Action::JumpTo(operand(i, 0)?),
        Flow::IndirectCall if is_near_indirect(i) => Action::CallTo(operand(i, 0)?),
        Flow::Return => match i.code() {
            Code::Retnq => Action::Return(0),
            Code::Retnq_imm16 => Action::Return(i.immediate16()),
            _ => Action::Stop,
        },
        _ => Action::Stop,
    })
}

fn is_near_indirect(i: &Instruction) -> bool {
    matches!(i.code(), Code::Jmp_rm64 | Code::Call_rm64)
}

fn count_branch(i: &Instruction) -> CountBranch {
    match i.code() {
        Code::Loop_rel8_64_RCX => CountBranch::Loop,
        Code::Loope_rel8_64_RCX => CountBranch::LoopEqual,
        Code::Loopne_rel8_64_RCX => CountBranch::LoopNotEqual,
        Code::Jrcxz_rel8_64 => CountBranch::IfZero,
        Code::Jecxz_rel8_64 => CountBranch::IfZero32,
        _ => CountBranch::Odd,
    }
}

/// The precise forms; `None` for all others.
fn integer(i: &Instruction) -> Option<Action> {
    if i.has_rep_prefix() || i.has_repne_prefix() {
        // `repz` on `tzcnt` and the like is part of their opcode and not reported as a prefix.
        return repeated(i);
    }
    moves(i).or_else(|| arithmetic(i)).or_else(|| bits(i)).or_else(|| other(i))
}

/// The string instructions that only store, with 64-bit registers and without a segment.
fn repeated(i: &Instruction) -> Option<Action> {
    let plain = i.segment_prefix() == Register::None
        && (i.op0_kind() == OpKind::MemoryESRDI)
        && matches!(i.op1_kind(), OpKind::MemorySegRSI | OpKind::Register);
    plain.then_some(())?;
    match i.mnemonic() {
        M::Stosb => Some(Action::RepeatStore(1)),
        M::Stosw => Some(Action::RepeatStore(2)),
        M::Stosd => Some(Action::RepeatStore(4)),
        M::Stosq => Some(Action::RepeatStore(8)),
        M::Movsb => Some(Action::RepeatMove(1)),
        M::Movsw => Some(Action::RepeatMove(2)),
        M::Movsd => Some(Action::RepeatMove(4)),
        M::Movsq => Some(Action::RepeatMove(8)),
        _ => None,
    }
}

fn moves(i: &Instruction) -> Option<Action> {
    let plain = |signed| Some(Action::Move { dst: first(i)?, src: second(i)?, signed });
    match i.mnemonic() {
        M::Mov | M::Movzx => plain(false),
        M::Movsx | M::Movsxd => plain(true),
        M::Lea => Some(Action::LoadAddress(first_part(i)?, address(i)?)),
        M::Push if i.stack_pointer_increment() == -8 => Some(Action::Push(first(i)?)),
        M::Pop if i.stack_pointer_increment() == 8 => Some(Action::Pop(first(i)?)),
        M::Leave if i.code() == Code::Leaveq => Some(Action::Leave),
        M::Xchg => match (second_part(i), first_part(i)) {
            (Some(part), _) => Some(Action::Exchange(first(i)?, part)),
            (None, Some(part)) => Some(Action::Exchange(second(i)?, part)),
            _ => None,
        },
        M::Xadd => Some(Action::ExchangeAdd(first(i)?, second_part(i)?)),
        M::Cmpxchg => Some(Action::CompareExchange(first(i)?, second_part(i)?)),
        M::Cbw => Some(Action::WidenAccumulator(2)),
        M::Cwde => Some(Action::WidenAccumulator(4)),
        M::Cdqe => Some(Action::WidenAccumulator(8)),
        M::Cwd => Some(Action::SignAccumulator(2)),
        M::Cdq => Some(Action::SignAccumulator(4)),
        M::Cqo => Some(Action::SignAccumulator(8)),
        _ => None,
    }
}

fn arithmetic(i: &Instruction) -> Option<Action> {
    let binary = |op| Some(Action::Binary(op, first(i)?, second(i)?));
    let unary = |op| Some(Action::Unary(op, first(i)?));
    match i.mnemonic() {
        M::Add => binary(Binary::Add),
        M::Adc => binary(Binary::Adc),
        M::Sub => binary(Binary::Sub),
        M::Sbb => binary(Binary::Sbb),
        M::And => binary(Binary::And),
        M::Or => binary(Binary::Or),
        M::Xor => binary(Binary::Xor),
        M::Cmp => binary(Binary::Cmp),
        M::Test => binary(Binary::Test),
        M::Inc => unary(Unary::Inc),
        M::Dec => unary(Unary::Dec),
        M::Neg => unary(Unary::Neg),
        M::Not => unary(Unary::Not),
        M::Imul => match i.op_count() {
            1 => Some(Action::MultiplyWide(first(i)?, true)),
            2 => Some(Action::Multiply(first_part(i)?, first(i)?, second(i)?)),
            _ => Some(Action::Multiply(first_part(i)?, second(i)?, operand(i, 2)?)),
        },
        M::Mul => Some(Action::MultiplyWide(first(i)?, false)),
        M::Div | M::Idiv => {
            let by = first(i)?;
            (by.size() >= 4).then_some(Action::Divide(by, i.mnemonic() == M::Idiv))
        }
        _ => None,
    }
}

fn bits(i: &Instruction) -> Option<Action> {
    let shift = |op| Some(Action::Shift(op, first(i)?, second(i)?));
    let scan = |op| Some(Action::Scan(op, first_part(i)?, second(i)?));
    match i.mnemonic() {
        M::Shl | M::Sal => shift(Shift::Shl),
        M::Shr => shift(Shift::Shr),
        M::Sar => shift(Shift::Sar),
        M::Rol => shift(Shift::Rol),
        M::Ror => shift(Shift::Ror),
        M::Bt => bit_test(i, BitChange::Keep),
        M::Bts => bit_test(i, BitChange::Set),
        M::Btr => bit_test(i, BitChange::Reset),
        M::Btc => bit_test(i, BitChange::Complement),
        M::Bsf => scan(Scan::Bsf),
        M::Bsr => scan(Scan::Bsr),
        M::Tzcnt => scan(Scan::Tzcnt),
        M::Lzcnt => scan(Scan::Lzcnt),
        M::Popcnt => scan(Scan::Popcnt),
        M::Shlx => shift_to(i, Shift::Shl),
        M::Shrx => shift_to(i, Shift::Shr),
        M::Sarx => shift_to(i, Shift::Sar),
        M::Rorx => shift_to(i, Shift::Ror),
        M::Andn => Some(Action::AndNot(first_part(i)?, second_part(i)?, operand(i, 2)?)),
        M::Blsr => Some(Action::LowBit(LowBit::Reset, first_part(i)?, second(i)?)),
        M::Blsmsk => Some(Action::LowBit(LowBit::Mask, first_part(i)?, second(i)?)),
        M::Blsi => Some(Action::LowBit(LowBit::Isolate, first_part(i)?, second(i)?)),
        M::Bzhi => Some(Action::ZeroHigh(first_part(i)?, second(i)?, part(i.op2_register())?)),
        M::Bswap => first_part(i).filter(|p| p.size >= 4).map(Action::SwapBytes),
        _ => None,
    }
}

fn shift_to(i: &Instruction, op: Shift) -> Option<Action> {
    Some(Action::ShiftTo(op, first_part(i)?, second(i)?, operand(i, 2)?))
}

/// A bit number in a register reaches beyond a memory operand; that form is opaque.
fn bit_test(i: &Instruction, change: BitChange) -> Option<Action> {
    let (dst, bit) = (first(i)?, second(i)?);
    match (dst, bit) {
        (Operand::Memory(..), Operand::Part(_)) => None,
        _ => Some(Action::BitTest(change, dst, bit)),
    }
}

fn other(i: &Instruction) -> Option<Action> {
    let condition = || crate::decode::condition(i);
    match i.mnemonic() {
        M::Nop | M::Endbr64 | M::Endbr32 | M::Pause | M::Mfence | M::Lfence | M::Sfence => {
            Some(Action::Nothing)
        }
        M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchnta | M::Prefetchw => {
            Some(Action::Nothing)
        }
        M::Clc => Some(Action::SetCarry(Some(false))),
        M::Stc => Some(Action::SetCarry(Some(true))),
        M::Cmc => Some(Action::SetCarry(None)),
        _ if i.is_set_if() => Some(Action::SetIf(condition()?, first(i)?)),
        _ if i.is_move_if() => Some(Action::MoveIf(condition()?, first_part(i)?, second(i)?)),
        _ => None,
    }
}

/// `setcc` and `cmovcc`, which iced knows by code only.
trait Conditional {
    fn is_set_if(&self) -> bool;
    fn is_move_if(&self) -> bool;
}

impl Conditional for Instruction {
    fn is_set_if(&self) -> bool {
        let code = self.code() as u32;
        (Code::Seto_rm8 as u32..=Code::Setg_rm8 as u32).contains(&code)
    }
    fn is_move_if(&self) -> bool {
        let code = self.code() as u32;
        (Code::Cmovo_r16_rm16 as u32..=Code::Cmovg_r64_rm64 as u32).contains(&code)
    }
}

/// What an instruction that is not understood may change.
fn effects(i: &Instruction) -> Effects {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let (mut registers, mut vectors, mut masks) = (0u16, 0u32, 0u8);
    for used in info.used_registers() {
        let full = used.register().full_register();
        if writes(used.access()) && full.is_gpr64() {
            registers |= 1 << full.number();
        }
        if writes(used.access()) && full.is_vector_register() {
            vectors |= 1 << full.number();
        }
        if writes(used.access()) && full.is_k() {
            masks |= 1 << full.number();
        }
    }
    let kernel = matches!(i.mnemonic(), M::Syscall | M::Sysenter | M::Int | M::Int1 | M::Into);
    if kernel {
        // rax: the result; rcx and r11: where `syscall` keeps rip and rflags.
        registers |= 1 | 1 << 1 | 1 << 11;
    }
    if restores_state(i.mnemonic()) {
        (vectors, masks) = (u32::MAX, u8::MAX);
    }
    let repeats =
        (i.has_rep_prefix() || i.has_repne_prefix()) && info.used_memory().iter().any(|m| writes(m.access()));
    let stores = if kernel || repeats { Stores::Anywhere } else { stores(info.used_memory()) };
    Effects {
        registers,
        flags: if kernel { 0 } else { all_flags_of(i.rflags_modified()) },
        stores,
        vectors,
        masks,
        direction: i.rflags_modified() & RflagsBits::DF != 0,
        kernel,
    }
}

/// Whether an instruction writes vector registers that depend on a mask.
fn restores_state(mnemonic: M) -> bool {
    matches!(mnemonic, M::Fxrstor | M::Fxrstor64 | M::Xrstor | M::Xrstor64 | M::Xrstors | M::Xrstors64)
}

fn stores(used: &[UsedMemory]) -> Stores {
    let mut found = Stores::Nothing;
    for memory in used.iter().filter(|m| writes(m.access())) {
        let size = memory.memory_size().size() as u16;
        let one = used_address(memory).filter(|_| size != 0).map(|at| Stores::One(at, size));
        found = match (found, one) {
            (Stores::Nothing, Some(one)) => one,
            _ => return Stores::Anywhere,
        };
    }
    found
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}
