//! The one crate that knows the x86-64 instruction set: decoding, classification and the few encodings that
//! we write.
//!
//! * [`scan`] decodes a stretch of code once and yields one compact [`Insn`] per instruction: length, control
//!   flow, status-flag use. It is the fast path of program analysis (tens of nanoseconds per instruction).
//! * [`scan_lock_skips`] does so with a branch over the next instruction's `lock` prefix as one instruction
//!   together with that; so do [`decode_one`] and [`relocate_field`]. It is what code is copied by.
//! * [`decode_one`] and [`Op`] give the operand-level view that jump-table recognition needs.
//! * [`decode_semantic`] gives the effect of an instruction on integer registers, flags and memory, for
//!   evaluation.
//! * [`StackUse`] and [`memory_uses`] say what an instruction does beside the stack pointer, where return
//!   addresses are.
//! * [`relocate_field`] says where an instruction's RIP-relative displacement is, so that a copy can keep its
//!   target.
//! * [`encode`] writes direct jumps, conditional branches and counters; [`guarded_call`] a comparison and a
//!   direct call in front of an indirect one; [`vote_stub`] what looks now and then at what one calls.
//!
//! * [`patch`] has the bytes that are written over code, and reads them; [`slot`] calls and jumps through the
//!   global offset table; [`entry`], [`filler`] and [`kernel`] what functions begin with, gaps consist of and
//!   the kernel is entered by; [`possible`] what bytes would do if they were code; [`record`] the
//!   instructions of tracing versions, [`system_call`] routines for borrowed threads; [`elf`] the numbers of
//!   files.
//! * [`module_code`] has the instructions of modules for the Linux kernel, [`kernel_code`] those of kernels.
//! * [`isa::Isa`] lists what of this another instruction set has to give.
//!
//! It does not know about functions, profiles or processes, and it never allocates per instruction.

mod condition;
mod decode;
pub mod elf;
pub mod encode;
pub mod entry;
pub mod filler;
mod guarded;
pub mod isa;
pub mod kernel;
pub mod kernel_code;
mod lock_skip;
mod memory_uses;
pub mod module_code;
mod operand;
mod ops;
pub mod patch;
pub mod position;
pub mod possible;
pub mod record;
mod reg;
mod relocate;
mod semantics;
mod semantics_decode;
pub mod slot;
mod stack;
pub mod system_call;
mod vector;
mod vector_decode;
mod vote;

pub use condition::{Condition, Flag};
pub use decode::{Flow, Insn, Naming, first_insn, scan};
pub use guarded::{Compare, GuardedCall, guarded_call};
pub use lock_skip::scan_lock_skips;
pub use memory_uses::{MemoryUse, memory_uses};
pub use operand::{Address, Operand, Part, Segment};
pub use ops::{Decoded, Mem, Op, decode_one, displaced_load};
pub use reg::Reg;
pub use relocate::{RipField, relocate_field};
pub use semantics::{
    Action, Binary, BitChange, CountBranch, Effects, LowBit, Scan, Semantic, Shift, Stores, Unary,
};
pub use semantics_decode::decode_semantic;
pub use stack::StackUse;
pub use vector::{Asks, Lanes, MaskOp, MaskPlace, Under, Vector, VectorOp, VectorSource};
pub use vote::{VOTE, VOTE_PERIOD, VOTE_SAVED, VoteField, VoteStub, VoteWord, vote, vote_stub};

/// Bytes of the longest instruction.
pub const LONGEST: usize = 15;

/// Status flags CF, PF, AF, ZF, SF, OF as a bit set of our own (bit order is private to this crate).
pub const ALL_FLAGS: u8 = 0x3f;
/// ZF in such a set.
pub const ZERO_FLAG: u8 = 1 << 3;
