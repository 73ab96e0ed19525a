//! What the vector instructions that decide branches do: copies, comparisons of bytes, and the way of their
//! results into masks, general registers and flags.
//!
//! Problem: the C library's string functions find the end of a string with SSE2, AVX2 or AVX-512
//! instructions, whichever the processor has, and branch on the result. Idea: a handful of actions with
//! element size and width as parameters covers the three encodings. Floating point and shuffles by tables are
//! not here: they decide few branches.
//!
//! Reference: AMD64 Architecture Programmer's Manual volume 4; Intel SDM volume 2 for the forms with masks.

use crate::operand::{Address, Part};

/// The part of a vector register that an instruction writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lanes {
    /// The register, 0 to 31.
    pub number: u8,
    /// Bytes: 16, 32 or 64.
    pub width: u8,
    /// Whether what lies above is cleared (VEX and EVEX encodings) or kept (legacy ones).
    pub clears: bool,
}

/// Operations on elements (of so many bytes, where a number is given), or on all bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VectorOp {
    /// `pand`.
    And,
    /// `pandn`: not the first operand, and the second.
    AndNot,
    /// `por`.
    Or,
    /// `pxor`.
    Xor,
    /// `pminub`, `pminud`.
    Min(u8),
    /// `pmaxub`.
    Max(u8),
    /// `paddb` and its relatives.
    Add(u8),
    /// `psubb` and its relatives.
    Subtract(u8),
    /// `pcmpeqb` and its relatives: all ones where equal.
    Equal(u8),
    /// `pcmpgtb` and its relatives, signed.
    Greater(u8),
    /// `punpckl..`: the elements of the lower halves of each 16 bytes in turn.
    UnpackLow(u8),
    /// `punpckh..`.
    UnpackHigh(u8),
    /// `palignr`: of each 16 bytes, the pair first:second shifted right by so many bytes.
    Align(u8),
    /// `pshufd`: four-byte elements of the second operand, by number.
    ShuffleDoubles(u8),
    /// `pslldq`, of the second operand.
    ShiftBytesLeft(u8),
    /// `psrldq`, of the second operand.
    ShiftBytesRight(u8),
    /// `pshufb`: bytes of the first operand, by the numbers in the second.
    ShuffleBytes,
}

/// A source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VectorSource {
    /// Register number.
    Register(u8),
    /// Memory, as many bytes as the operation needs.
    Memory(Address),
    /// A general register.
    General(Part),
}

/// A mask register that chooses the elements that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Under {
    /// Its number, 1 to 7.
    pub mask: u8,
    /// Bytes of an element.
    pub element: u8,
    /// The others are cleared, not kept.
    pub zeroing: bool,
}

/// What a comparison into a mask register asks of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asks {
    /// By the number of `vpcmp`: equal, less, less or equal, never, and the opposites.
    Order {
        /// 0 to 7.
        predicate: u8,
        /// Of signed numbers.
        signed: bool,
    },
    /// `vptestm`: a common bit.
    Common,
    /// `vptestnm`: none.
    NoCommon,
}

/// Operations on mask registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the instructions that they are named after")]
pub enum MaskOp {
    And,
    AndNot,
    Or,
    Xor,
    XorNot,
    Not,
    Add,
    ShiftLeft(u8),
    ShiftRight(u8),
    /// The low halves: first above second.
    Unpack,
}

/// Where a mask is moved to or from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MaskPlace {
    /// A mask register.
    Mask(u8),
    /// A general register.
    General(Part),
    /// Memory.
    Memory(Address),
}

/// A vector instruction that is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vector {
    /// The low so many bytes of the source; the rest of the lanes is cleared.
    Move(Lanes, VectorSource, u8),
    /// A move of the elements that a mask names.
    MoveUnder(Lanes, VectorSource, Under),
    /// `ucomiss`, `comisd` and their relatives of so many bytes (4 or 8).
    CompareScalars(u8, VectorSource, u8),
    /// A store of the low so many bytes of a register.
    Store(Address, u8, u8),
    /// The low bytes to a general register.
    ToGeneral(Part, u8),
    /// One element everywhere.
    Broadcast(Lanes, VectorSource, u8),
    /// `lanes = register op source`.
    Combine(VectorOp, Lanes, u8, VectorSource, Option<Under>),
    /// `vpternlog`: each bit from the table by the bits of the destination, a register and the source.
    Ternary(Lanes, u8, VectorSource, u8),
    /// `pmovmskb`: the highest bit of each of so many bytes.
    Mask(Part, u8, u8),
    /// `ptest` of so many bytes.
    Test(u8, VectorSource, u8),
    /// Elements compared into a mask register.
    Compare {
        /// The mask register.
        to: u8,
        /// What is asked.
        asks: Asks,
        /// Bytes of an element.
        element: u8,
        /// Bytes of the operands.
        width: u8,
        /// First operand.
        a: u8,
        /// Second operand.
        b: VectorSource,
        /// A mask register; elements that it does not name give 0.
        under: Option<u8>,
    },
    /// `kmov` of so many bytes, the rest cleared.
    MoveMask(MaskPlace, MaskPlace, u8),
    /// `kand` and its relatives of so many bytes.
    CombineMasks(MaskOp, u8, u8, u8, u8),
    /// `kortest` of so many bytes: ZF if all bits are 0, CF if all are 1.
    OrTest(u8, u8, u8),
    /// `ktest` of so many bytes: ZF if no bit is common, CF if none is in the second one only.
    MaskTest(u8, u8, u8),
    /// `pcmpistri` with a control byte: the index into ecx.
    FindInString(u8, VectorSource, u8),
    /// `vzeroupper` (16) or `vzeroall` (0): the first sixteen registers keep so many bytes.
    ClearUpper(u8),
}
