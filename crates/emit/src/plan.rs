//! The version as a list of small operations: what is copied, which branches are written, where counters stand.
//!
//! A *slot* is one block's copy, or a stub: a counter on a taken branch, the original of a promoted call or the vote of one that is counted, out of line. Slots are numbered in layout order,
//! stubs last; they are emitted hot ones first, each with its stubs near, then the other stubs, then cold ones.
//!
//! Each block ends in an explicit transfer unless its successor is the next slot, so control never runs into filler.

use crate::counters::{Counter, Counters};
use crate::ends::copied_len;
use crate::select::{Chosen, NONE, Selection};
use crate::table_copy::load_lengths;
use crate::votes::{self, Voting};
use crate::{BoundSlot, Promotion, Request, promote};
use restitch_address::Svma;
use restitch_program::{Block, BlockId, CallId, EdgeKind, FuncId, TableId, Terminator};
use restitch_x86::{GuardedCall, VOTE, VoteStub, encode};
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
        condition: Option<u8>,
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
    /// The offset in the block at which control is behind it, if it copies original instructions or stands in front of a call.
    pub fn copied_to(&self) -> Option<u32> {
        match *self {
            Self::Copy { from, len, .. } => Some(from + len),
            Self::Load { from, old, .. } | Self::Guarded { from, old, .. } => Some(from + u32::from(old)),
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
    /// Where a branch goes.
    pub fn target(&self, dest: Dest) -> Svma {
        match dest {
            Dest::Slot(slot) => self.address(slot),
            Dest::Behind { slot, op } => self.at(self.behind(slot, op)),
            Dest::Outside(at) => at,
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
}

/// Makes the plan. `edges`: executions by edge.
pub(crate) fn build(
    request: &Request<'_>,
    selection: &Selection<'_>,
    counters: &Counters,
    edges: &[u64],
) -> Plan {
    let placed = selection.chosen.len();
    let plan = Plan {
        start: request.start,
        slots: Vec::with_capacity(placed),
        ops: Vec::with_capacity(placed * 5 / 2),
        hot: selection.hot,
        placed,
        order: Vec::new(),
        hot_len: 0,
        copies: Vec::new(),
        used: Vec::new(),
        guarded: Vec::new(),
        voting: Vec::new(),
    };
    let mut builder = Builder { request, selection, counters, edges, plan, stubs: Vec::new() };
    for slot in 0..placed {
        builder.slot(slot);
    }
    for (block, stub) in std::mem::take(&mut builder.stubs) {
        builder.stub(block, stub);
    }
    let mut plan = builder.plan;
    set_order(&mut plan, &selection.slot_of);
    plan
}

/// Puts the slots in order of address: the stubs of hot code that lead to hot code behind the fragment of their branch, so that
/// they share its lines and pages; all others in front of the cold code.
fn set_order(plan: &mut Plan, slot_of: &[u32]) {
    let source = |stub: usize| slot_of[plan.slots[stub].block.index()] as usize;
    let is_hot = |op: &Op| matches!(op, Op::Branch { dest: Dest::Slot(to), .. } if (*to as usize) < plan.hot);
    let stays = |stub: usize| source(stub) < plan.hot && plan.ops[plan.ops_of(stub)].iter().any(is_hot);
    let (near, far): (Vec<usize>, Vec<usize>) =
        (plan.placed..plan.slots.len()).partition(|&stub| stays(stub));
    let mut near = near.into_iter().peekable();
    let mut order = Vec::with_capacity(plan.slots.len());
    for slot in 0..plan.hot {
        // Nothing falls into a slot that is aligned (`Builder::next`).
        if plan.slots[slot].align > 1 {
            order.extend(std::iter::from_fn(|| near.next_if(|&stub| source(stub) < slot)));
        }
        order.push(slot);
    }
    order.extend(near);
    let hot_len = order.len();
    order.extend(far);
    order.extend(plan.hot..plan.placed);
    plan.order = order.into_iter().map(|slot| slot as u32).collect();
    plan.hot_len = hot_len;
}

/// One way out of a block.
#[derive(Clone, Copy)]
struct Arm {
    dest: Dest,
    /// The original address of the target.
    original: Svma,
    counter: Option<Counter>,
}

/// What stands out of line.
#[derive(Clone, Copy)]
enum Stub {
    /// A way out with its counter.
    Way(Arm),
    /// The original of a promoted call, and the way back behind it.
    Call {
        /// Offset in the block.
        from: u32,
        /// Length.
        len: u32,
        /// Where it goes on.
        back: Dest,
    },
    /// The vote of a call.
    Vote {
        /// The vote itself.
        ballot: Op,
        /// The call.
        back: Dest,
    },
}

/// A slot without a place yet.
fn empty(id: BlockId, block: &Block, ops: (u32, u32)) -> Slot {
    let function = block.function;
    Slot {
        block: id,
        function,
        ops,
        align: 1,
        in_line: None,
        stub: false,
        duplicate: false,
        start: 0,
        end: 0,
    }
}

struct Builder<'r, 'a> {
    request: &'r Request<'a>,
    selection: &'r Selection<'a>,
    counters: &'r Counters,
    /// Executions by edge.
    edges: &'r [u64],
    plan: Plan,
    /// The source block of each stub, and what the stub does.
    stubs: Vec<(BlockId, Stub)>,
}

impl Builder<'_, '_> {
    fn slot(&mut self, slot: usize) {
        let chosen = self.selection.chosen[slot];
        let block = self.request.program.block(chosen.block);
        let first = self.plan.ops.len() as u32;
        self.body(slot, block, chosen.copies_table);
        self.tail(chosen, block, self.next(slot));
        let ops = (first, self.plan.ops.len() as u32);
        self.close(Slot {
            align: chosen.align,
            duplicate: chosen.duplicate,
            ..empty(chosen.block, block, ops)
        });
    }

    fn stub(&mut self, block: BlockId, stub: Stub) {
        let first = self.plan.ops.len() as u32;
        match stub {
            Stub::Way(arm) => self.straight(arm, None),
            Stub::Call { from, len, back } => {
                self.plan.ops.push(Op::Copy { from, len, opaque: false });
                self.branch(None, back, true);
            }
            Stub::Vote { ballot, back } => {
                self.plan.ops.push(ballot);
                self.branch(None, back, true);
            }
        }
        let ops = (first, self.plan.ops.len() as u32);
        self.close(Slot { stub: true, ..empty(block, self.request.program.block(block), ops) });
    }

    fn close(&mut self, slot: Slot) {
        self.plan.slots.push(slot);
    }

    /// The slot that stands directly behind this one.
    fn next(&self, slot: usize) -> Option<Dest> {
        let next = slot + 1;
        let directly = next != self.plan.hot && self.selection.chosen.get(next).is_some_and(|c| c.align == 1);
        directly.then_some(Dest::Slot(next as u32))
    }

    /// What is copied, with the block's own counter in it.
    fn body(&mut self, slot: usize, block: &Block, copies_table: bool) {
        let id = self.selection.chosen[slot].block;
        self.prefetch(slot, block);
        let mut from = 0;
        if let Some((at, counter)) = self.counters.in_block(id) {
            self.copy(0, at, false);
            self.plan.ops.push(Op::Count { counter, original: block.start + u64::from(at) });
            from = at;
        }
        for promotion in promote::in_block(self.request, block) {
            let at = self.request.program.calls[promotion.call.index()].at.offset_from(block.start) as u32;
            if at >= from
                && let Some(code) = promote::guard(self.request, self.selection, slot, promotion)
            {
                self.copy(from, at, false);
                from = self.guarded(slot, id, at, promotion, code);
            }
        }
        for (index, call) in votes::in_block(self.request, block) {
            let at = self.request.program.calls[call.index()].at.offset_from(block.start) as u32;
            if at >= from
                && let Some(code) = votes::stub(self.request, self.selection, slot, call)
            {
                self.copy(from, at, false);
                from = at;
                self.vote(slot, (index, call), at, code);
            }
        }
        let len = copied_len(block);
        match block.terminator {
            Terminator::Table(table) if copies_table => self.through_copy(block, from, table),
            _ => self.copy(from, len, false),
        }
    }

    /// What is fetched ahead in front of the block. A counting version fetches nothing.
    fn prefetch(&mut self, slot: usize, block: &Block) {
        let chosen = self.selection.chosen[slot];
        let wanted = self.request.layout.prefetch_at(chosen.block);
        let wanted = wanted.filter(|_| self.request.counters.is_none() && !chosen.duplicate);
        let Some(wanted) = wanted.filter(|_| block.terminator_at() != block.start) else { return };
        match self.selection.slot_of.get(wanted.target.index()) {
            None | Some(&NONE) => {}
            Some(&target) => self.plan.ops.push(Op::Prefetch {
                slot: target,
                offset: wanted.offset,
                original: block.start,
            }),
        }
    }

    /// A promoted call at offset `from`, and its stub. Gives the offset behind the original.
    fn guarded(
        &mut self,
        slot: usize,
        id: BlockId,
        from: u32,
        promotion: Promotion,
        code: GuardedCall,
    ) -> u32 {
        let old = self.request.program.calls[promotion.call.index()].len;
        let stub = (self.plan.placed + self.stubs.len()) as u32;
        let back = Dest::Behind { slot: slot as u32, op: self.plan.ops.len() as u32 };
        self.stubs.push((id, Stub::Call { from, len: old.into(), back }));
        let (new, call) = (code.bytes.len() as u8, self.plan.guarded.len() as u32);
        self.plan.ops.push(Op::Guarded { from, old, new, call });
        self.plan.guarded.push(Guarded { code, target: promotion.target, stub });
        from + u32::from(old)
    }

    /// What stands in front of a call at offset `from`, number `index` of those that vote, and its stub.
    fn vote(&mut self, slot: usize, (index, id): (usize, CallId), from: u32, code: VoteStub) {
        let site = self.request.program.calls[id.index()];
        let stub = (self.plan.placed + self.stubs.len()) as u32;
        let back = Dest::Behind { slot: slot as u32, op: self.plan.ops.len() as u32 };
        let (new, call) = (code.bytes.len() as u8, self.plan.voting.len() as u32);
        let ballot = Op::Ballot { from, old: site.len, new, call };
        self.stubs.push((site.block, Stub::Vote { ballot, back }));
        self.plan.ops.push(Op::Vote { from, call });
        self.plan.voting.push(Voting { index, site: site.at, code, stub });
    }

    fn copy(&mut self, from: u32, to: u32, opaque: bool) {
        if from < to {
            self.plan.ops.push(Op::Copy { from, len: to - from, opaque });
        }
    }

    fn through_copy(&mut self, block: &Block, from: u32, id: TableId) {
        let load_at = self.request.program.table(id).load_at;
        let load = load_at.offset_from(block.start) as u32;
        let lengths = self
            .request
            .image
            .read(load_at, (block.len - load) as usize)
            .and_then(|bytes| load_lengths(bytes, load_at));
        // `may_copy` has seen that the load can be displaced.
        let Some((old, new)) = lengths else { return self.copy(from, block.len, false) };
        self.copy(from, load, false);
        let copy = self.plan.copies.len() as u32;
        self.plan.copies.push(id);
        self.plan.ops.push(Op::Load { from: load, old: old as u8, new: new as u8, copy });
        self.copy(load + old, block.len, true);
    }

    /// The way out over edges of this kind, which leads to `target`: to a duplicate of it that stands `next`, else to the other copy.
    fn arm(&self, id: BlockId, kind: EdgeKind, target: Svma, next: Option<Dest>) -> Arm {
        let mut arm = Arm { dest: Dest::Outside(target), original: target, counter: None };
        if let Some((edge, to)) = self.request.program.out_edges(id).find(|(_, edge)| edge.kind == kind) {
            let slot = self.selection.slot_of[to.to.index()];
            match next {
                Some(Dest::Slot(next)) if self.is_duplicate(next, to.to) => arm.dest = Dest::Slot(next),
                _ if slot != NONE => arm.dest = Dest::Slot(slot),
                _ => {}
            }
            arm.counter = self.counters.on_edge(edge);
        }
        arm
    }

    fn is_duplicate(&self, slot: u32, of: BlockId) -> bool {
        self.selection.chosen.get(slot as usize).is_some_and(|c| c.duplicate && c.block == of)
    }

    /// The way out of a branch to `target`. A tail call of a stub goes to what its slot is bound to.
    fn taken(&mut self, id: BlockId, target: Svma, next: Option<Dest>) -> Arm {
        let mut arm = self.arm(id, EdgeKind::Taken, target, next);
        if arm.dest == Dest::Outside(target)
            && arm.counter.is_none()
            && let Some(bound) = self.selection.direct.stub(target)
        {
            arm.dest = self.selection.slot_at(bound.target).map_or(Dest::Outside(bound.target), Dest::Slot);
            self.plan.used.push(bound);
        }
        arm
    }

    /// The transfers at the end of a block.
    fn tail(&mut self, chosen: Chosen, block: &Block, next: Option<Dest>) {
        let id = chosen.block;
        let fall = |builder: &Self, next| builder.arm(id, EdgeKind::FallThrough, block.end(), next);
        match block.terminator {
            Terminator::FallThrough => {
                let arm = fall(self, next);
                self.straight(arm, next);
            }
            Terminator::Jump(to) => {
                let arm = self.taken(id, to, next);
                if arm.counter.is_some() {
                    self.straight(arm, next);
                } else if next != Some(arm.dest) {
                    self.branch(None, arm.dest, false);
                }
            }
            Terminator::Conditional(condition, to) => {
                let (fall, taken) = (fall(self, next), self.taken(id, to, next));
                let turned = chosen.turned || self.mostly_falls(id);
                if (next == Some(taken.dest) || turned) && next != Some(fall.dest) {
                    self.fork(id, encode::invert(condition), fall, taken, next);
                } else {
                    // Nobody branches to a duplicate, even where both ways lead to it.
                    let away = if next == Some(taken.dest) { self.taken(id, to, None) } else { taken };
                    self.fork(id, condition, away, fall, next);
                }
            }
            Terminator::ShortConditional(to) => {
                let (fall, taken) = (fall(self, None), self.arm(id, EdgeKind::Taken, to, None));
                self.short_fork(block, fall, taken, next);
            }
            Terminator::Table(_) | Terminator::IndirectJump | Terminator::Return | Terminator::Stop => {}
        }
    }

    /// Whether the conditional branch at the end of a block is taken less often than not. (Where neither way stands behind it, one of them
    /// takes a branch, and the other one a branch that is not taken and a jump.)
    fn mostly_falls(&self, id: BlockId) -> bool {
        let count = |kind: EdgeKind| {
            let ways = self.request.program.out_edges(id).filter(|(_, edge)| edge.kind == kind);
            let counts = ways.map(|(edge, _)| self.edges.get(edge.index()).copied().unwrap_or(0));
            counts.fold(0, u64::saturating_add)
        };
        count(EdgeKind::FallThrough) > count(EdgeKind::Taken)
    }

    /// `jcc away; straight on`. A counter on the way away goes out of line, so that the other way does not pass it.
    fn fork(&mut self, id: BlockId, condition: u8, away: Arm, on: Arm, next: Option<Dest>) {
        let mut dest = away.dest;
        if away.counter.is_some() {
            dest = Dest::Slot((self.plan.placed + self.stubs.len()) as u32);
            self.stubs.push((id, Stub::Way(away)));
        }
        self.branch(Some(condition), dest, false);
        self.straight(on, next);
    }

    /// `loop island; jmp fall; island: jmp taken`, both with their counters. The second jump goes if its target is next.
    fn short_fork(&mut self, block: &Block, fall: Arm, taken: Arm, next: Option<Dest>) {
        let over = 1 + u8::from(fall.counter.is_some());
        self.plan.ops.push(Op::Short { over, len: block.terminator_len });
        self.straight(fall, None);
        self.straight(taken, next);
    }

    /// Control goes on to `arm`: its counter, and a jump if it does not stand next.
    fn straight(&mut self, arm: Arm, next: Option<Dest>) {
        if let Some(counter) = arm.counter {
            self.plan.ops.push(Op::Count { counter, original: arm.original });
        }
        if next != Some(arm.dest) {
            self.branch(None, arm.dest, true);
        }
    }

    fn branch(&mut self, condition: Option<u8>, dest: Dest, added: bool) {
        let near = !matches!(dest, Dest::Slot(_));
        self.plan.ops.push(Op::Branch { condition, near, added, dest });
    }
}
