//! What a table holds, and how it is laid out.
//!
//! Header, 48 bytes: magic `RSTBRTAB`, u32 version, u32 number of branches, u64 first address, u64 length of
//! the code, u32 number of operands, u32 bytes per index entry's stretch, u64 zero. Then for each stretch of
//! 256 bytes of code, and once more at the end, the u32 number of its first branch; then the branches; then
//! (at a multiple of 8) the operands.
//!
//! Branch, 8 bytes: bits 0 to 7 the place in the stretch, 8 to 11 the kind, 12 to 15 the detail (condition
//! code), 16 to 19 the length; 32 to 63 the target as an offset from the first address (wrapping in 32 bits),
//! the number of the operand, or the bytes that a return pops. Operand, 16 bytes: u8 base, u8 index (register
//! numbers, 255 for none), u8 scale, u8 place (0 register, 1 memory, 2 RIP-relative memory), u8 segment (0
//! none, 1 fs, 2 gs), 3 zero bytes, i64 displacement (from the first address for 2).

use restitch_address::Svma;
use restitch_x86::Condition;

/// The version of the layout above.
pub const VERSION: u32 = 1;
pub(crate) const MAGIC: [u8; 8] = *b"RSTBRTAB";
pub(crate) const HEADER: usize = 48;
pub(crate) const STRETCH: u64 = 256;
pub(crate) const BRANCH: usize = 8;
pub(crate) const OPERAND: usize = 16;
/// No register.
pub(crate) const NONE: u8 = 255;

// The sums of the fields above.
const _: () = assert!(HEADER == 8 + 4 + 4 + 8 + 8 + 4 + 4 + 8);
const _: () = assert!(BRANCH == size_of::<u64>() && OPERAND == 5 + 3 + size_of::<i64>());
const _: () = assert!(STRETCH == 1 << 8);

/// What the counting branches (`loop`, `jrcxz`) depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Times {
    /// `loop`.
    Loop,
    /// `loope`.
    LoopEqual,
    /// `loopne`.
    LoopNotEqual,
    /// `jrcxz`.
    IfZero,
    /// `jecxz`.
    IfZero32,
}

/// A segment whose base counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Segment {
    /// fs.
    Fs,
    /// gs.
    Gs,
}

/// Where an indirect target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a register (encoding order).
    Register(u8),
    /// In 8 bytes of memory at `base + index * scale + displacement`.
    Memory {
        /// Base register.
        base: Option<u8>,
        /// Index register.
        index: Option<u8>,
        /// 1, 2, 4 or 8.
        scale: u8,
        /// Displacement.
        displacement: i64,
    },
    /// In 8 bytes of memory at a stated address.
    Stated(Svma),
}

/// The operand of an indirect branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Where the target is.
    pub place: Place,
    /// Its segment.
    pub segment: Option<Segment>,
}

/// What a branch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `jmp target`.
    Jump(Svma),
    /// `call target`.
    Call(Svma),
    /// `jcc target`.
    Conditional(Condition, Svma),
    /// `loop` and its relatives.
    Counting(Times, Svma),
    /// `jmp` through an operand.
    JumpTo(Operand),
    /// `call` through an operand.
    CallTo(Operand),
    /// `ret`, and the bytes that it pops besides the address.
    Return(u16),
    /// Control does not go on in a way that could be told, or the code is not known from here on.
    Unknown,
}

impl Kind {
    /// Whether the instruction alone decides where it goes (the paper's statically resolvable branches).
    pub fn is_fixed(&self) -> bool {
        matches!(self, Self::Jump(_) | Self::Call(_))
    }
}

/// A branch instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Branch {
    /// Its address.
    pub at: Svma,
    /// Its length in bytes; 0 for a gap.
    pub len: u8,
    /// What it does.
    pub kind: Kind,
}

impl Branch {
    /// First address behind it.
    pub fn end(&self) -> Svma {
        self.at + u64::from(self.len)
    }
}

/// Numbers of the kinds.
pub(crate) mod number {
    pub const JUMP: u64 = 0;
    pub const CALL: u64 = 1;
    pub const CONDITIONAL: u64 = 2;
    pub const COUNTING: u64 = 3;
    pub const JUMP_TO: u64 = 4;
    pub const CALL_TO: u64 = 5;
    pub const RETURN: u64 = 6;
    pub const UNKNOWN: u64 = 7;
}

/// The counting branches by their detail.
pub(crate) const TIMES: [Times; 5] =
    [Times::Loop, Times::LoopEqual, Times::LoopNotEqual, Times::IfZero, Times::IfZero32];
