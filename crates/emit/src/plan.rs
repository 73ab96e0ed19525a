//! The version as a list of small operations: what is copied, which branches are written, where counters
//! stand.
//!
//! A *slot* is one block's copy, or a stub: a counter on a taken branch, the original of a promoted call or
//! the vote of one that is counted, out of line. Slots are numbered in layout order, stubs last; they are
//! emitted hot ones first, each with its stubs near, then the other stubs, then cold ones.

use crate::counters::Counter;
use crate::direct::STUB_CALL;
use crate::model::BoundSlot;
use crate::target_value_profile::Voting;
use restitch_address::Svma;
use restitch_program::{BlockId, FuncId, TableId};
use restitch_x86::slot::BY_SLOT;
use restitch_x86::{Condition, GuardedCall, VOTE, encode};
use std::ops::Range;

/// Where a branch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dest {
    /// The start of a slot.
    Slot(u32),
    /// Behind an operation of a slot: a promoted call, or what leads to a vote.
    Behind {
        /// The slot.
        slot: u32,
        /// The operation, as an index into [`Plan::ops`].
        op: u32,
    },
    /// The original code, or an unknown place.
    Outside(Svma),
    /// What the slot of the stub holds. For jumps without condition.
    BySlot {
        /// The stub.
        stub: Svma,
        /// Its slot.
        slot: Svma,
    },
}

/// One step of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    /// Original bytes, with their displacements fixed.
    Copy {
        /// Offset in the block.
        from: u32,
        /// Bytes.
        len: u32,
        /// Behind the load of a copied table's entry.
        opaque: bool,
    },
    /// The load of a jump-table entry, from the copy.
    Load {
        /// Offset in the block.
        from: u32,
        /// Its length there.
        old: u8,
        /// Its length now.
        new: u8,
        /// Index into [`Plan::copies`].
        copy: u32,
    },
    /// A promoted call: comparison, branch to the stub with the original, direct call.
    Guarded {
        /// Offset in the block of the original call.
        from: u32,
        /// Its length there.
        old: u8,
        /// Its length now.
        new: u8,
        /// Index into [`Plan::guarded`].
        call: u32,
    },
    /// A call of a stub that goes through the stub's slot.
    BySlot {
        /// Offset in the block of the original call.
        from: u32,
        /// The slot.
        slot: Svma,
    },
    /// What leads to the vote of an indirect call now and then, in front of it.
    Vote {
        /// Offset in the block of the call.
        from: u32,
        /// Index into [`Plan::voting`].
        call: u32,
    },
    /// The vote of an indirect call, without the way back.
    Ballot {
        /// Offset in the block of the call.
        from: u32,
        /// The call's length there.
        old: u8,
        /// Bytes of code.
        new: u8,
        /// Index into [`Plan::voting`].
        call: u32,
    },
    /// A counter.
    Count {
        /// Which, and of what form.
        counter: Counter,
        /// What standing at its start equals.
        original: Svma,
    },
    /// A line that is fetched ahead.
    Prefetch {
        /// The slot whose line it is.
        slot: u32,
        /// Bytes from its start.
        offset: u32,
        /// What standing at its start equals.
        original: Svma,
    },
    /// A direct branch.
    Branch {
        /// `None`: always.
        condition: Option<Condition>,
        /// In its long form. Only grows.
        near: bool,
        /// Not in the original code.
        added: bool,
        /// Where to.
        dest: Dest,
    },
    /// `loop` and its relatives, over the next operations.
    Short {
        /// How many.
        over: u8,
        /// Length of the instruction.
        len: u8,
    },
}

impl Op {
    /// The offset in the block at which control is behind it, if it copies original instructions or stands in
    /// front of a call.
    pub fn copied_to(&self) -> Option<u32> {
        match *self {
            Self::Copy { from, len, .. } => Some(from + len),
            Self::Load { from, old, .. } | Self::Guarded { from, old, .. } => Some(from + u32::from(old)),
            Self::BySlot { from, .. } => Some(from + STUB_CALL),
            Self::Vote { from, .. } | Self::Ballot { from, .. } => Some(from),
            Self::Count { .. } | Self::Prefetch { .. } | Self::Branch { .. } | Self::Short { .. } => None,
        }
    }
    /// Bytes that it takes now.
    pub fn len(&self) -> u32 {
        match *self {
            Self::Copy { len, .. } => len,
            Self::Load { new, .. } | Self::Guarded { new, .. } | Self::Ballot { new, .. } => u32::from(new),
            Self::Vote { .. } => VOTE,
            Self::BySlot { .. } | Self::Branch { dest: Dest::BySlot { .. }, .. } => BY_SLOT,
            Self::Count { counter, .. } => counter.len(),
            Self::Prefetch { .. } => encode::PREFETCH,
            Self::Branch { condition: None, near: false, .. } => encode::JMP_SHORT,
            Self::Branch { condition: None, near: true, .. } => encode::JMP_NEAR,
            Self::Branch { condition: Some(_), near: false, .. } => encode::JCC_SHORT,
            Self::Branch { condition: Some(_), near: true, .. } => encode::JCC_NEAR,
            Self::Short { len, .. } => u32::from(len),
        }
    }
}

/// A promoted call.
#[derive(Debug, Clone)]
pub(crate) struct Guarded {
    /// Its code.
    pub code: GuardedCall,
    /// The usual target.
    pub target: Svma,
    /// The slot of the stub with the original call.
    pub stub: u32,
}

/// A block's copy or a stub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// The block; for a stub, the one that branches to it.
    pub block: BlockId,
    /// Its function.
    pub function: FuncId,
    /// Its operations in [`Plan::ops`].
    pub ops: (u32, u32),
    /// Alignment in bytes.
    pub align: u32,
    /// Where in a cache line it starts, if that was chosen; nothing falls into it then.
    pub in_line: Option<u8>,
    /// A stub.
    pub stub: bool,
    /// A second copy of its block.
    pub duplicate: bool,
    /// Offset of its first byte from the start of the version (set by relaxation).
    pub start: u32,
    /// Offset behind its last byte.
    pub end: u32,
}

/// The version before it is bytes.
pub(crate) struct Plan {
    /// Address of the version.
    pub start: Svma,
    pub slots: Vec<Slot>,
    pub ops: Vec<Op>,
    /// Slots below this are hot.
    pub hot: usize,
    /// Slots from here on are stubs.
    pub placed: usize,
    /// Slot numbers in order of address: hot code, then cold code.
    order: Vec<u32>,
    /// How many of them are hot code.
    hot_len: usize,
    /// Tables to copy.
    pub copies: Vec<TableId>,
    /// Slots that direct jumps in place of jumps to stubs rely on; some more than once.
    pub used: Vec<BoundSlot>,
    /// Promoted calls.
    pub guarded: Vec<Guarded>,
    /// Calls that vote.
    pub voting: Vec<Voting>,
}

impl Plan {
    /// One without operations; its first `placed` slots will be blocks, `hot` of them hot.
    pub fn new(start: Svma, placed: usize, hot: usize) -> Self {
        Self {
            start,
            slots: Vec::with_capacity(placed),
            ops: Vec::with_capacity(placed * 5 / 2),
            hot,
            placed,
            order: Vec::new(),
            hot_len: 0,
            copies: Vec::new(),
            used: Vec::new(),
            guarded: Vec::new(),
            voting: Vec::new(),
        }
    }
    /// The slot that is number `i` in order of address.
    pub fn nth(&self, i: usize) -> usize {
        self.order[i] as usize
    }
    /// How many slots the hot code has in order of address, stubs among them.
    pub fn hot_len(&self) -> usize {
        self.hot_len
    }
    /// The first slot behind the hot code.
    pub fn first_cold(&self) -> Option<usize> {
        self.order.get(self.hot_len).map(|&slot| slot as usize)
    }
    /// Slot numbers in order of address.
    pub fn order(&self) -> impl Iterator<Item = usize> + '_ {
        self.order.iter().map(|&slot| slot as usize)
    }
    /// Where a slot starts.
    pub fn address(&self, slot: u32) -> Svma {
        self.at(self.slots[slot as usize].start)
    }
    /// The address at an offset.
    pub fn at(&self, offset: u32) -> Svma {
        self.start + u64::from(offset)
    }
    /// Where a branch goes; the slot that it goes through.
    pub fn target(&self, dest: Dest) -> Svma {
        match dest {
            Dest::Slot(slot) => self.address(slot),
            Dest::Behind { slot, op } => self.at(self.behind(slot, op)),
            Dest::Outside(at) => at,
            Dest::BySlot { slot, .. } => slot,
        }
    }
    /// The offset behind an operation of a slot.
    fn behind(&self, slot: u32, op: u32) -> u32 {
        let slot = &self.slots[slot as usize];
        slot.start + self.ops[slot.ops.0 as usize..=op as usize].iter().map(Op::len).sum::<u32>()
    }
    /// A byte of a slot: the last one, if it has not so many.
    pub fn byte_of(&self, slot: u32, offset: u32) -> Svma {
        let slot = &self.slots[slot as usize];
        self.at(slot.start + offset.min((slot.end - slot.start).saturating_sub(1)))
    }
    /// The operations of a slot, as indices.
    pub fn ops_of(&self, slot: usize) -> Range<usize> {
        self.slots[slot].ops.0 as usize..self.slots[slot].ops.1 as usize
    }
    /// The operations of a slot with the offsets at which they start.
    pub fn walk(&self, slot: usize) -> impl Iterator<Item = (u32, &Op)> {
        let mut at = self.slots[slot].start;
        self.ops[self.ops_of(slot)].iter().map(move |op| {
            let start = at;
            at += op.len();
            (start, op)
        })
    }
    /// Puts the slots in order of address: the stubs of hot code that lead to hot code behind the fragment of
    /// their branch, so that they share its lines and pages; all others in front of the cold code.
    pub fn set_order(&mut self, slot_of: &[u32]) {
        let source = |stub: usize| slot_of[self.slots[stub].block.index()] as usize;
        let is_hot =
            |op: &Op| matches!(op, Op::Branch { dest: Dest::Slot(to), .. } if (*to as usize) < self.hot);
        let stays = |stub: usize| source(stub) < self.hot && self.ops[self.ops_of(stub)].iter().any(is_hot);
        let (near, far): (Vec<usize>, Vec<usize>) =
            (self.placed..self.slots.len()).partition(|&stub| stays(stub));
        let mut near = near.into_iter().peekable();
        let mut order = Vec::with_capacity(self.slots.len());
        for slot in 0..self.hot {
            // Nothing falls into a slot that is aligned (`Planner::next`).
            if self.slots[slot].align > 1 {
                order.extend(std::iter::from_fn(|| near.next_if(|&stub| source(stub) < slot)));
            }
            order.push(slot);
        }
        order.extend(near);
        let hot_len = order.len();
        order.extend(far);
        order.extend(self.hot..self.placed);
        self.order = order.into_iter().map(|slot| slot as u32).collect();
        self.hot_len = hot_len;
    }
}
