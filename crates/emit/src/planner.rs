//! Makes the [plan](crate::plan): which operations each block becomes.
//!
//! Each block ends in an explicit transfer unless its successor is the next slot, so control never runs into
//! filler.

use crate::counters::{Counter, Counters};
use crate::direct::{Form, STUB_CALL};
use crate::ends::copied_len;
use crate::model::Promotion;
use crate::plan::{Dest, Guarded, Op, Plan, Slot};
use crate::promote;
use crate::request::Request;
use crate::select::{Chosen, NONE, Selection};
use crate::table_copy::load_lengths;
use crate::target_value_profile::{self, Voting};
use restitch_address::Svma;
use restitch_program::{Block, BlockId, CallId, EdgeKind, TableId, Terminator};
use restitch_x86::{Condition, GuardedCall, VoteStub};

/// Makes the plan. `edges`: executions by edge.
pub(crate) fn build(
    request: &Request<'_>,
    selection: &Selection<'_>,
    counters: &Counters,
    edges: &[u64],
) -> Plan {
    let placed = selection.chosen.len();
    let plan = Plan::new(request.start, placed, selection.hot);
    let mut planner = Planner { request, selection, counters, edges, plan, stubs: Vec::new() };
    for slot in 0..placed {
        planner.slot(slot);
    }
    for (block, stub) in std::mem::take(&mut planner.stubs) {
        planner.stub(block, stub);
    }
    let mut plan = planner.plan;
    plan.set_order(&selection.slot_of);
    plan
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

struct Planner<'r, 'a> {
    request: &'r Request<'a>,
    selection: &'r Selection<'a>,
    counters: &'r Counters,
    /// Executions by edge.
    edges: &'r [u64],
    plan: Plan,
    /// The source block of each stub, and what the stub does.
    stubs: Vec<(BlockId, Stub)>,
}

impl Planner<'_, '_> {
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
            self.copy(slot, 0, at);
            self.plan.ops.push(Op::Count { counter, original: block.start + u64::from(at) });
            from = at;
        }
        for promotion in promote::in_block(self.request, block) {
            let at = self.request.program.calls[promotion.call.index()].at.offset_from(block.start) as u32;
            if at >= from
                && let Some(code) = promote::guard(self.request, self.selection, slot, promotion)
            {
                self.copy(slot, from, at);
                from = self.guarded(slot, id, at, promotion, code);
            }
        }
        for (index, call) in target_value_profile::in_block(self.request, block) {
            let at = self.request.program.calls[call.index()].at.offset_from(block.start) as u32;
            if at >= from
                && let Some(code) = target_value_profile::stub(self.request, self.selection, slot, call)
            {
                self.copy(slot, from, at);
                from = at;
                self.vote(slot, index, call, at, code);
            }
        }
        let len = copied_len(block);
        match block.terminator {
            Terminator::Table(table) if copies_table => self.through_copy(slot, from, table),
            _ => self.copy(slot, from, len),
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
    fn vote(&mut self, slot: usize, index: usize, id: CallId, from: u32, code: VoteStub) {
        let site = self.request.program.calls[id.index()];
        let stub = (self.plan.placed + self.stubs.len()) as u32;
        let back = Dest::Behind { slot: slot as u32, op: self.plan.ops.len() as u32 };
        let (new, call) = (code.bytes.len() as u8, self.plan.voting.len() as u32);
        let ballot = Op::Ballot { from, old: site.len, new, call };
        self.stubs.push((site.block, Stub::Vote { ballot, back }));
        self.plan.ops.push(Op::Vote { from, call });
        self.plan.voting.push(Voting { index, site: site.at, code, stub });
    }

    /// What is copied as it is, but for calls of stubs that go through their slots.
    fn copy(&mut self, slot: usize, mut from: u32, to: u32) {
        let selection = self.selection;
        for fix in selection.fixes_of(slot) {
            let start = fix.end - STUB_CALL.min(fix.end);
            if let Form::BySlot(slot) = fix.form
                && start >= from
                && fix.end <= to
            {
                self.as_it_is(from, start, false);
                self.plan.ops.push(Op::BySlot { from: start, slot });
                from = fix.end;
            }
        }
        self.as_it_is(from, to, false);
    }

    fn as_it_is(&mut self, from: u32, to: u32, opaque: bool) {
        if from < to {
            self.plan.ops.push(Op::Copy { from, len: to - from, opaque });
        }
    }

    fn through_copy(&mut self, slot: usize, from: u32, id: TableId) {
        let block = self.request.program.block(self.selection.chosen[slot].block);
        let load_at = self.request.program.table(id).load_at;
        let load = load_at.offset_from(block.start) as u32;
        let lengths = self
            .request
            .image
            .read(load_at, (block.len - load) as usize)
            .and_then(|bytes| load_lengths(bytes, load_at));
        // `may_copy` has seen that the load can be displaced.
        let Some((old, new)) = lengths else { return self.copy(slot, from, block.len) };
        self.copy(slot, from, load);
        let copy = self.plan.copies.len() as u32;
        self.plan.copies.push(id);
        self.plan.ops.push(Op::Load { from: load, old: old as u8, new: new as u8, copy });
        self.as_it_is(load + old, block.len, true);
    }

    /// The way out over edges of this kind, which leads to `target`: to a duplicate of it that stands `next`,
    /// else to the other copy.
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
        let fall = |planner: &Self, next| planner.arm(id, EdgeKind::FallThrough, block.end(), next);
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
                    self.fork(id, condition.inverted(), fall, taken, next);
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
            // A handler that goes on behind the trap comes to the original code.
            Terminator::Stop => self.branch(None, Dest::Outside(block.end()), true),
            Terminator::Table(_) | Terminator::IndirectJump | Terminator::Return => {}
        }
    }

    /// Whether the conditional branch at the end of a block is taken less often than not. (Where neither way
    /// stands behind it, one of them takes a branch, and the other one a branch that is not taken and a
    /// jump.)
    fn mostly_falls(&self, id: BlockId) -> bool {
        let count = |kind: EdgeKind| {
            let ways = self.request.program.out_edges(id).filter(|(_, edge)| edge.kind == kind);
            let counts = ways.map(|(edge, _)| self.edges.get(edge.index()).copied().unwrap_or(0));
            counts.fold(0, u64::saturating_add)
        };
        count(EdgeKind::FallThrough) > count(EdgeKind::Taken)
    }

    /// `jcc away; straight on`. A counter on the way away goes out of line, so that the other way does not
    /// pass it.
    fn fork(&mut self, id: BlockId, condition: Condition, away: Arm, on: Arm, next: Option<Dest>) {
        let mut dest = away.dest;
        if away.counter.is_some() {
            dest = Dest::Slot((self.plan.placed + self.stubs.len()) as u32);
            self.stubs.push((id, Stub::Way(away)));
        }
        self.branch(Some(condition), dest, false);
        self.straight(on, next);
    }

    /// `loop island; jmp fall; island: jmp taken`, both with their counters. The second jump goes if its
    /// target is next.
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

    fn branch(&mut self, condition: Option<Condition>, dest: Dest, added: bool) {
        let by_slot = |stub| Some(Dest::BySlot { stub, slot: self.selection.direct.slot_of_stub(stub)? });
        let dest = match dest {
            Dest::Outside(stub) if condition.is_none() => by_slot(stub).unwrap_or(dest),
            _ => dest,
        };
        let near = !matches!(dest, Dest::Slot(_));
        self.plan.ops.push(Op::Branch { condition, near, added, dest });
    }
}
