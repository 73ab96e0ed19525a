//! The code of a function, understood: plain data, of which a group module can be made.

use crate::reason::Reason;
use crate::tables::ExceptionEntry;
use restitch_address::{Svma, SvmaRange};
use restitch_x86::Condition;
use restitch_x86::kernel_code::StaticCallForm;
use restitch_x86::module_code::ThunkRegister;

/// The code of a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Code {
    /// Its blocks, by address. Filler between them is in none.
    pub blocks: Vec<Block>,
    /// The ways from block to block, and in and out.
    pub edges: Vec<Edge>,
    /// What in it is no plain copy, by address; ends of blocks are not repeated here.
    pub sites: Vec<Site>,
    /// Why it cannot be moved.
    pub troubles: Vec<Trouble>,
    /// Addresses of other code that it uses, not by branches.
    pub uses: Vec<Svma>,
}

/// Why code cannot be moved, and where that is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trouble {
    /// Why.
    pub reason: Reason,
    /// Where.
    pub at: Svma,
}

/// A basic block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its bytes.
    pub range: SvmaRange,
    /// How it ends.
    pub end: End,
    /// Where the branch at its end begins; the end of the range if there is none.
    pub branch: Svma,
    /// Whether control comes there, as far as can be seen.
    pub is_reached: bool,
}

/// How a block ends. Addresses may be inside of the function or outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It flows into what follows.
    Next,
    /// A direct jump.
    Jump(Svma),
    /// A conditional branch.
    Conditional {
        /// When it is taken.
        condition: Condition,
        /// Where it leads then.
        taken: Svma,
    },
    /// A conditional branch that has a short form only (`loop`, `jrcxz`).
    ShortConditional(Svma),
    /// A branch that a static key switches.
    StaticKey {
        /// The key.
        key: Svma,
        /// Where it leads as a jump.
        taken: Svma,
        /// Whether the jump stands there while the key is off.
        is_inverted: bool,
        /// Whether the key was made as one that is on.
        is_initially_on: bool,
        /// Whether the jump stands there now.
        is_jump: bool,
    },
    /// A return, in whatever form.
    Return,
    /// A jump through a register, by a thunk or in place of one.
    IndirectJump(ThunkRegister),
    /// A jump whose targets are not known.
    TableJump,
    /// A static call at the end of the function.
    StaticJump {
        /// Its key.
        key: Svma,
    },
    /// A trap that does not go on.
    Trap,
    /// A call of a function that does not return.
    NoReturn,
}

impl End {
    /// The address that the branch names.
    pub fn target(&self) -> Option<Svma> {
        match *self {
            Self::Jump(to) | Self::ShortConditional(to) => Some(to),
            Self::Conditional { taken, .. } | Self::StaticKey { taken, .. } => Some(taken),
            _ => None,
        }
    }

    /// Whether control may go to what follows.
    pub fn flows_on(&self) -> bool {
        matches!(
            self,
            Self::Next | Self::Conditional { .. } | Self::ShortConditional(_) | Self::StaticKey { .. }
        )
    }
}

/// A way between blocks, by their numbers in [`Code::blocks`]; none stands for the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// From here.
    pub from: Option<usize>,
    /// To there.
    pub to: Option<usize>,
    /// What leads there.
    pub kind: EdgeKind,
    /// Whether it can be taken as the code stands: the other way of a static key's branch cannot.
    pub is_live: bool,
}

/// What leads along an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeKind {
    /// Callers, or code elsewhere that jumps there.
    Entry,
    /// A branch that is taken.
    Taken,
    /// No branch.
    Fall,
    /// A fault that is expected.
    Fault,
    /// A return, a tail call, a trap.
    Exit,
}

/// An instruction, or several that stand for one, that is no plain copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Where.
    pub at: Svma,
    /// Bytes.
    pub len: u8,
    /// What it is.
    pub kind: SiteKind,
}

/// What a site is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteKind {
    /// The function tracer's place.
    Trace,
    /// A direct call.
    Call(Svma),
    /// A call through a register, in whatever form; none for one through memory or without a thunk.
    IndirectCall(Option<ThunkRegister>),
    /// A static call.
    StaticCall {
        /// Its key.
        key: Svma,
        /// What stands there now.
        form: StaticCallForm,
    },
    /// An operand that counts from the program counter.
    Relative {
        /// Offset of the displacement in the instruction.
        field: u8,
        /// What it names.
        target: Svma,
    },
    /// An instruction whose lock prefix the kernel has taken out, and puts back when there is a second
    /// processor.
    Unlocked,
    /// An instruction whose fault is expected.
    Exception(ExceptionEntry),
    /// A trap with an entry in the table of bugs.
    Bug {
        /// The entry.
        entry: Svma,
        /// Whether control goes on.
        goes_on: bool,
    },
}

impl Code {
    /// Bytes of its blocks.
    pub fn len(&self) -> u64 {
        self.blocks.iter().map(|block| block.range.len()).sum()
    }

    /// Whether nothing of it is understood.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block that starts at an address.
    pub fn block_at(&self, at: Svma) -> Option<usize> {
        self.blocks.binary_search_by_key(&at, |block| block.range.start).ok()
    }

    /// The sites in a block.
    pub fn sites_in(&self, range: SvmaRange) -> &[Site] {
        let from = self.sites.partition_point(|site| site.at < range.start);
        let to = self.sites.partition_point(|site| site.at < range.end);
        &self.sites[from..to.max(from)]
    }
}
