//! What is copied, and in which order: plain data. Addresses are those of the running kernel.

use restitch_address::Svma;
use restitch_x86::Condition;
use restitch_x86::module_code::{CounterMemory, ThunkRegister};
use std::collections::BTreeMap;

/// Functions whose blocks are copied together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// The module's name, and what the control module knows the group by: letters, digits, `_`.
    pub name: String,
    /// The functions. Chunks name them by index.
    pub functions: Vec<Function>,
    /// The new order.
    pub chunks: Vec<Chunk>,
    /// What copies need of the kernel.
    pub kernel: KernelPlaces,
    /// What binds the file to this boot of this kernel. At least one.
    pub anchors: Vec<Anchor>,
    /// Counters, if executions are counted.
    pub counters: Option<Counters>,
}

/// The counters of a group: words of 8 bytes, zero when the module is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Where they are.
    pub memory: CounterMemory,
    /// How many.
    pub number: u32,
}

/// A function of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// Where it starts.
    pub address: Svma,
    /// Whether calls of it are led to its copy; else only the group's own calls go there.
    pub is_redirected: bool,
}

/// Whether code is executed often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Heat {
    /// It is.
    Hot,
    /// It is not.
    Cold,
}

/// Blocks of one function that stand together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Index of the function.
    pub function: usize,
    /// All hot chunks stand before all cold ones, each kind in the order given.
    pub heat: Heat,
    /// Of the first block, in bytes; a power of two.
    pub align: u32,
    /// In their new order.
    pub blocks: Vec<Block>,
}

/// A basic block: code that is copied byte for byte but for its fix-ups, and how it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Where the original is; of a counter on an edge, which has none, [`Block::on_edge`]; of a callee in
    /// place of its call, [`Block::inlined`].
    pub address: Svma,
    /// Its instructions, without the branch at the end.
    pub code: Vec<u8>,
    /// What in the code depends on where it stands, or is rewritten by the kernel. By offset.
    pub fixups: Vec<Fixup>,
    /// How it ends.
    pub end: End,
    /// The unwinder's rows, by offset; the first is at 0. One at the code's length is that of the end.
    pub unwind: Vec<UnwindRow>,
    /// Instructions whose faults are expected.
    pub exceptions: Vec<Exception>,
    /// Traps that report.
    pub warnings: Vec<Warning>,
}

impl Block {
    /// Stand-ins below are of edges, those from here on of blocks in place of a call.
    const INLINED: u64 = 1 << 31;

    /// The address that stands for a block of no original, which counts on an edge: one that no code of a
    /// kernel has. Ends and faults of other blocks lead to it in place of where the edge goes, and its own
    /// end leads there. Below 2 to the power of 31.
    pub fn on_edge(number: u32) -> Svma {
        Svma::new(u64::from(number) % Self::INLINED)
    }

    /// Whether an address stands for such a block.
    pub fn is_on_edge(address: Svma) -> bool {
        address.get() < Self::INLINED
    }

    /// The address that stands for a block of a callee which is copied in place of a call, besides the copy
    /// at its own. Below 2 to the power of 31.
    pub fn inlined(number: u32) -> Svma {
        Svma::new(Self::INLINED + u64::from(number) % Self::INLINED)
    }

    /// Whether an address stands for a block of one of these kinds.
    pub fn is_stand_in(address: Svma) -> bool {
        address.get() < 2 * Self::INLINED
    }
}

impl Fixup {
    /// Where it is.
    pub fn at(&self) -> u32 {
        match *self {
            Self::Relative { field: at, .. }
            | Self::Call { at, .. }
            | Self::Trace { at }
            | Self::IndirectCall { at, .. }
            | Self::StaticCall { at, .. }
            | Self::Count { at, .. } => at,
        }
    }

    /// Moves it towards the block's start, where `len` bytes are missing by now.
    pub fn shift_down(&mut self, len: u32) {
        match self {
            Self::Relative { field, end, .. } => (*field, *end) = (*field - len, *end - len),
            Self::Call { at, .. }
            | Self::Trace { at }
            | Self::IndirectCall { at, .. }
            | Self::StaticCall { at, .. }
            | Self::Count { at, .. } => *at -= len,
        }
    }
}

/// A part of a block's code that is no plain copy. Offsets count from the block's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixup {
    /// A displacement of 4 bytes.
    Relative {
        /// Where it is.
        field: u32,
        /// The end of the instruction, from which it counts.
        end: u32,
        /// What it leads to.
        target: Target,
    },
    /// A direct call, of 5 bytes.
    Call {
        /// Where it is.
        at: u32,
        /// The callee.
        target: Svma,
    },
    /// The site of the function tracer, of 5 bytes, in whatever state.
    Trace {
        /// Where it is.
        at: u32,
    },
    /// A call through a register: 5 bytes, 6 for `r8` and above, in whatever form the kernel has given it.
    IndirectCall {
        /// Where it is.
        at: u32,
        /// The register.
        register: ThunkRegister,
    },
    /// A static call, of 5 bytes, in whatever state.
    StaticCall {
        /// Where it is.
        at: u32,
        /// Its key.
        key: Svma,
        /// A callee that stands for the state until the loader writes it; the trampoline, say.
        target: Svma,
    },
    /// A counter: room of [`COUNTING`](restitch_x86::module_code::COUNTING) bytes, or of those of the form
    /// that keeps the flags. In that form the stack is lower for a moment, and rows of the unwinder have to
    /// say so ([`UnwindRow::lowered`]).
    Count {
        /// Where it is.
        at: u32,
        /// Which counter.
        number: u32,
        /// Whether the flags are live there.
        keeps_flags: bool,
    },
}

/// What a displacement leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Code that control goes to: the copy, if there is one of a block that starts there.
    Code(Svma),
    /// Anything that is named: the original.
    Data(Svma),
    /// The entry in the table of warnings, of the trap whose original is at this address.
    Warning(Svma),
}

/// How a block ends. Addresses are of original blocks, or of code that is not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It flows into the next block; so behind a call or a trap that goes on.
    Next(Svma),
    /// A direct jump, a tail call included.
    Jump(Svma),
    /// A conditional branch.
    Conditional {
        /// When it is taken.
        condition: Condition,
        /// Then.
        taken: Svma,
        /// Else.
        next: Svma,
    },
    /// A branch that the kernel switches by rewriting it.
    StaticKey {
        /// Its key.
        key: Svma,
        /// Where the `jmp` leads.
        taken: Svma,
        /// Where the `nop` leads.
        next: Svma,
        /// Bit 0 of the entry's key: the `jmp` stands there when the key is off.
        is_inverted: bool,
        /// What the key was made as: bit 0 of what follows its count.
        is_initially_on: bool,
    },
    /// A return, in whatever form the kernel has given it.
    Return,
    /// A jump through a register, in whatever form.
    IndirectJump(ThunkRegister),
    /// A static call at the end of the function.
    StaticJump {
        /// Its key.
        key: Svma,
        /// A callee that stands for the state until the loader writes it.
        target: Svma,
    },
    /// Nothing: control does not come to the end of the code.
    Stop,
}

/// A row of the unwinder (ORC), which holds from here on. But for the first word, the distance of the frame
/// from its register, it is not looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnwindRow {
    /// From the block's start.
    pub offset: u32,
    /// As the kernel has it.
    pub row: [u8; UnwindRow::LEN],
}

impl UnwindRow {
    /// Bytes of a row.
    pub const LEN: usize = 6;

    /// What `row` of a callee is where the callee stands in place of a call, at which the caller has the row
    /// `frame`: the callee's frame, without a return address, is below the caller's. None where the callee's
    /// is not found by the stack pointer alone, or the caller's neither by that nor by the frame pointer.
    pub fn in_callee(frame: [u8; Self::LEN], row: [u8; Self::LEN]) -> Option<[u8; Self::LEN]> {
        /// Numbers of registers in the kernel's `orc_entry`.
        const FRAME_POINTER: u8 = 4;
        const STACK_POINTER: u8 = 5;
        const RETURN_ADDRESS: i16 = 8;
        let distance = |row: [u8; Self::LEN]| i16::from_le_bytes([row[0], row[1]]);
        // The frame pointer is as it was, and the kind is that of the caller's.
        if row[2..5] != [0, 0, STACK_POINTER] || row[5] != frame[5] {
            return None;
        }
        let mut out = frame;
        match frame[4] & 0xf {
            STACK_POINTER => {
                let own = distance(row).checked_sub(RETURN_ADDRESS)?;
                out[..2].copy_from_slice(&distance(frame).checked_add(own)?.to_le_bytes());
            }
            FRAME_POINTER => {}
            _ => return None,
        }
        Some(out)
    }

    /// What `row` is where one more word is on the stack: frames that are found from the stack pointer are
    /// that much farther away.
    pub fn lowered(row: [u8; Self::LEN]) -> [u8; Self::LEN] {
        /// Registers of the kernel's `orc_entry`: the stack pointer, and what it points to.
        const STACK_POINTERS: [u8; 2] = [5, 9];
        const WORD: i16 = 8;
        let mut out = row;
        if STACK_POINTERS.contains(&(row[4] & 0xf)) {
            let distance = i16::from_le_bytes([row[0], row[1]]).wrapping_add(WORD);
            out[..2].copy_from_slice(&distance.to_le_bytes());
        }
        out
    }
}

/// An instruction whose fault is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    /// From the block's start.
    pub offset: u32,
    /// Where control goes on.
    pub fixup: Svma,
    /// What the handler does, as the kernel encodes it.
    pub data: u32,
}

/// A trap that reports (`WARN`, `BUG`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// From the block's start.
    pub offset: u32,
    /// The entry of the kernel's table. Its first word, which points to the trap, and those of `pointers`
    /// are written anew.
    pub entry: Vec<u8>,
    /// Other words of the entry that point from themselves to something: offset in the entry, and to what.
    pub pointers: Vec<(u32, Svma)>,
}

/// Places of the kernel that copies lead to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelPlaces {
    /// `__fentry__`, which calls of the function tracer lead to before the kernel rewrites them.
    pub trace: Option<Svma>,
    /// `__x86_return_thunk`; none if returns are plain.
    pub return_thunk: Option<Svma>,
    /// `__x86_indirect_thunk_REGISTER`.
    pub thunks: BTreeMap<ThunkRegister, Svma>,
}

/// An exported symbol and where it is. The loader refuses the file where it is elsewhere: on another kernel,
/// or after another boot with addresses at random.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// The symbol.
    pub symbol: String,
    /// Its address.
    pub address: Svma,
}
