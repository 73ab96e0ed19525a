//! What an instruction does to the integer state, in a form that can be executed by looking at it.
//!
//! Problem: following a program ahead of its execution needs the effect of each instruction on general
//! registers, status flags and memory. Idea: the integer instructions that decide most branches get a precise
//! [`Action`]; every other one is [`Action::Opaque`], with the registers, flags and memory that it may
//! change, so that what is known stays sound.
//!
//! Reference: AMD64 Architecture Programmer's Manual volume 3, "General-Purpose Instruction Reference".

use crate::condition::Condition;
use crate::operand::{Address, Operand, Part};
use crate::vector::Vector;
use restitch_address::Svma;

/// Two-operand arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the instructions that they are named after")]
pub enum Binary {
    Add,
    Adc,
    Sub,
    Sbb,
    And,
    Or,
    Xor,
    /// `sub` without the result.
    Cmp,
    /// `and` without the result.
    Test,
}

/// One-operand arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the instructions that they are named after")]
pub enum Unary {
    Inc,
    Dec,
    Neg,
    Not,
}

/// Shifts and rotations. Rotations through carry are opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the instructions that they are named after")]
pub enum Shift {
    Shl,
    Shr,
    Sar,
    Rol,
    Ror,
}

/// What `bt` and its relatives do with the bit that they copy to the carry flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BitChange {
    /// Nothing (`bt`).
    Keep,
    /// `bts`.
    Set,
    /// `btr`.
    Reset,
    /// `btc`.
    Complement,
}

/// Counting instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the instructions that they are named after")]
pub enum Scan {
    Bsf,
    Bsr,
    Tzcnt,
    Lzcnt,
    Popcnt,
}

/// The instructions on the lowest set bit (BMI1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LowBit {
    /// `blsr`: cleared.
    Reset,
    /// `blsmsk`: it and all bits below it.
    Mask,
    /// `blsi`: alone.
    Isolate,
}

/// The conditional branches with 8-bit displacement only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CountBranch {
    /// `loop`: rcx is counted down and not 0.
    Loop,
    /// `loope`: and ZF.
    LoopEqual,
    /// `loopne`: and not ZF.
    LoopNotEqual,
    /// `jrcxz`: rcx is 0.
    IfZero,
    /// `jecxz`: ecx is 0.
    IfZero32,
    /// With a 32-bit counter (address-size prefix): not evaluated.
    Odd,
}

/// Memory that an opaque instruction may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stores {
    /// None.
    Nothing,
    /// So many bytes at one address.
    One(Address, u16),
    /// It is not known where.
    Anywhere,
}

/// What an opaque instruction may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Effects {
    /// General registers, as a set by number.
    pub registers: u16,
    /// Status flags.
    pub flags: u8,
    /// Memory.
    pub stores: Stores,
    /// Vector registers, as a set by number.
    pub vectors: u32,
    /// Mask registers, as a set by number.
    pub masks: u8,
    /// The direction flag of string instructions.
    pub direction: bool,
    /// It enters the kernel (`syscall`, `int`, `sysenter`): anybody may run meanwhile, and it may not come
    /// back here.
    pub kernel: bool,
}

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing that counts here: `nop`, `endbr64`, prefetches, fences.
    Nothing,
    /// `dst = src`, zero-extended or (`signed`) sign-extended.
    Move {
        /// Where to.
        dst: Operand,
        /// From where.
        src: Operand,
        /// Sign-extended.
        signed: bool,
    },
    /// `lea`.
    LoadAddress(Part, Address),
    /// `dst = dst op src`, with flags.
    Binary(Binary, Operand, Operand),
    /// `dst = op dst`.
    Unary(Unary, Operand),
    /// `dst = dst op count`; flags change only where the masked count is not 0.
    Shift(Shift, Operand, Operand),
    /// `dst = a * b`, truncated, signed (`imul` with two or three operands).
    Multiply(Part, Operand, Operand),
    /// `rdx:rax = rax * operand` of the operand's size (for bytes `ax = al * operand`).
    MultiplyWide(Operand, bool),
    /// `rax, rdx = rdx:rax / operand, rdx:rax % operand`, signed or not. Sizes 4 and 8 only.
    Divide(Operand, bool),
    /// `setcc`.
    SetIf(Condition, Operand),
    /// `cmovcc`. (The source is read in any case, and a 4-byte destination is zero-extended in any case.)
    MoveIf(Condition, Part, Operand),
    /// `push` of 8 bytes.
    Push(Operand),
    /// `pop` of 8 bytes.
    Pop(Operand),
    /// `leave`.
    Leave,
    /// `xchg`.
    Exchange(Operand, Part),
    /// `xadd`.
    ExchangeAdd(Operand, Part),
    /// `cmpxchg`.
    CompareExchange(Operand, Part),
    /// `cbw`, `cwde`, `cdqe`: rax of this many bytes = its lower half, sign-extended.
    WidenAccumulator(u8),
    /// `cwd`, `cdq`, `cqo`: rdx of this many bytes = the sign of rax.
    SignAccumulator(u8),
    /// `bt`, `bts`, `btr`, `btc` of a register, or of memory with a constant bit number.
    BitTest(BitChange, Operand, Operand),
    /// `bsf`, `bsr`, `tzcnt`, `lzcnt`, `popcnt`.
    Scan(Scan, Part, Operand),
    /// `dst = a shifted by b`, without flags (`shlx` and its relatives, `rorx`).
    ShiftTo(Shift, Part, Operand, Operand),
    /// `andn`: not the register, and the operand.
    AndNot(Part, Part, Operand),
    /// `blsr`, `blsmsk`, `blsi`.
    LowBit(LowBit, Part, Operand),
    /// `bzhi`: the bits of the operand below the number in the register.
    ZeroHigh(Part, Operand, Part),
    /// `rep stos` of elements of so many bytes, upwards or downwards by the direction flag.
    RepeatStore(u8),
    /// `rep movs` of elements of so many bytes.
    RepeatMove(u8),
    /// `bswap`.
    SwapBytes(Part),
    /// `clc`, `stc`, `cmc`: 0, 1, complement.
    SetCarry(Option<bool>),
    /// `jmp target`.
    Jump(Svma),
    /// `jcc target`.
    JumpIf(Condition, Svma),
    /// `loop`, `jrcxz`.
    CountBranch(CountBranch, Svma),
    /// `jmp` through a register or memory.
    JumpTo(Operand),
    /// `call target`.
    Call(Svma),
    /// `call` through a register or memory.
    CallTo(Operand),
    /// `ret`, with the number of bytes that it pops besides the address.
    Return(u16),
    /// Control does not go on here, or nowhere that could be told: `ud2`, `hlt`, `int3`, far transfers,
    /// `xbegin`.
    Stop,
    /// A vector instruction that is understood.
    Vector(Vector),
    /// Anything else.
    Opaque(Effects),
}

/// One instruction with its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Semantic {
    /// Its address.
    pub at: Svma,
    /// Length in bytes.
    pub len: u8,
    /// What it does.
    pub action: Action,
}

impl Semantic {
    /// First address behind the instruction.
    pub fn end(&self) -> Svma {
        self.at + u64::from(self.len)
    }

    /// Whether it is a branch, call, return, or a stop.
    pub fn is_transfer(&self) -> bool {
        matches!(
            self.action,
            Action::Jump(_)
                | Action::JumpIf(..)
                | Action::CountBranch(..)
                | Action::JumpTo(_)
                | Action::Call(_)
                | Action::CallTo(_)
                | Action::Return(_)
                | Action::Stop
        )
    }
}
