//! The bytes of the code.

use crate::areas::{Areas, HEADERS};
use crate::counter_area::CounterWidth;
use crate::counters::{Counter, Counters};
use crate::direct::Form;
use crate::error::EmitError;
use crate::plan::{Dest, Guarded, Op, Plan};
use crate::request::Request;
use crate::select::Selection;
use crate::target_value_profile::{self, Voting};
use restitch_address::Svma;
use restitch_x86::patch::BREAKPOINT;
use restitch_x86::slot::{BY_SLOT, SlotBranch};
use restitch_x86::{Condition, VOTE, VoteField, VoteWord, displaced_load, encode};

/// What stands between fragments: control never gets there.
const FILLER: u8 = BREAKPOINT;

/// Writes everything up to the end of the code; room for the headers is left at the start.
pub(crate) fn write(
    request: &Request<'_>,
    selection: &Selection<'_>,
    plan: &Plan,
    areas: &Areas,
    counters: &Counters,
) -> Result<Vec<u8>, EmitError> {
    let mut out = Vec::with_capacity(areas.tables_end as usize * 5 / 4 + (1 << 16));
    out.resize(HEADERS as usize, 0);
    let mut writer = Writer { request, selection, plan, areas, counters, out };
    for slot in plan.order() {
        writer.slot(slot)?;
    }
    Ok(writer.out)
}

struct Writer<'r, 'a> {
    request: &'r Request<'a>,
    selection: &'r Selection<'a>,
    plan: &'r Plan,
    areas: &'r Areas,
    counters: &'r Counters,
    out: Vec<u8>,
}

impl Writer<'_, '_> {
    fn slot(&mut self, slot: usize) -> Result<(), EmitError> {
        let place = self.plan.slots[slot];
        let block = self.request.program.block(place.block);
        let bytes = self.request.image.read(block.start, block.len as usize);
        let bytes = bytes.ok_or(EmitError::Unreadable(block.start))?;
        self.out.resize(place.start as usize, FILLER);
        let ops = &self.plan.ops[self.plan.ops_of(slot)];
        for (i, op) in ops.iter().enumerate() {
            match *op {
                Op::Copy { from, len, .. } => self.copy(slot, bytes, from, len),
                Op::Guarded { from, call, .. } => self.guarded(slot, from, &self.plan.guarded[call as usize]),
                Op::BySlot { slot, .. } => self.by_slot(SlotBranch::Call, slot),
                Op::Vote { call, .. } => self.vote(&self.plan.voting[call as usize]),
                Op::Ballot { from, call, .. } => self.ballot(slot, from, &self.plan.voting[call as usize]),
                Op::Load { from, copy, .. } => {
                    self.load(&bytes[from as usize..], block.start + from.into(), copy)
                }
                Op::Count { counter, .. } => self.count(counter),
                Op::Prefetch { slot, offset, .. } => {
                    let end = self.here() + u64::from(encode::PREFETCH);
                    encode::prefetch(&mut self.out, Self::near(self.plan.byte_of(slot, offset), end));
                }
                Op::Branch { dest: Dest::BySlot { slot, .. }, .. } => self.by_slot(SlotBranch::Jump, slot),
                Op::Branch { condition, near, dest, .. } => {
                    let len = op.len();
                    self.branch(condition, near, len, self.plan.target(dest));
                }
                Op::Short { over, len } => {
                    let skipped: u32 = ops[i + 1..].iter().take(over.into()).map(Op::len).sum();
                    let at = (block.len - u32::from(block.terminator_len)) as usize;
                    self.out.extend_from_slice(&bytes[at..at + usize::from(len) - 1]);
                    // At most a counter and a jump.
                    self.out.push(skipped as u8);
                }
            }
        }
        Ok(())
    }

    /// The address of the next byte.
    fn here(&self) -> Svma {
        self.plan.start + self.out.len() as u64
    }

    /// The displacement that leads to `to` from `end`. In reach: selection has seen to it.
    fn near(to: Svma, end: Svma) -> i32 {
        let displacement = to.offset_from(end);
        debug_assert!(encode::fits_near(displacement), "{to} from {end}");
        displacement as i32
    }

    fn copy(&mut self, slot: usize, bytes: &[u8], from: u32, len: u32) {
        let origin = self.here().offset(-i64::from(from));
        let offset = self.out.len();
        self.out.extend_from_slice(&bytes[from as usize..(from + len) as usize]);
        // What a stub copies is of the block that it belongs to.
        let source = match self.plan.slots[slot].stub {
            true => self.selection.slot_of[self.plan.slots[slot].block.index()] as usize,
            false => slot,
        };
        for fix in self.selection.fixes_of(source).iter().filter(|f| f.field >= from && f.field < from + len)
        {
            let copied = match fix.form {
                Form::Operand => self.selection.retargeted_at(fix.target),
                _ => self.selection.slot_at(fix.target),
            };
            let to = copied.map_or(fix.target, |slot| self.plan.address(slot));
            let displacement = Self::near(to, origin + u64::from(fix.end));
            let field = offset + (fix.field - from) as usize;
            self.out[field..field + 4].copy_from_slice(&displacement.to_le_bytes());
            if let Form::Direct(transfer) = fix.form {
                self.out[field - 2..field].copy_from_slice(&transfer.direct_opcode());
            }
        }
    }

    /// A promoted call, whose original is at offset `from` of its block.
    fn guarded(&mut self, slot: usize, from: u32, call: &Guarded) {
        let (start, code) = (self.out.len(), &call.code);
        let here = self.here();
        self.out.extend_from_slice(&code.bytes);
        let mut set = |field: u32, end: u32, to: Svma| {
            let displacement = Self::near(to, here + u64::from(end));
            let field = start + field as usize;
            self.out[field..field + 4].copy_from_slice(&displacement.to_le_bytes());
        };
        if let Some(field) = code.address {
            let slot = self.selection.retargeted_at(call.target);
            set(field, field + 4, slot.map_or(call.target, |slot| self.plan.address(slot)));
        }
        let operand = self.selection.fixes_of(slot).iter().find(|f| f.field > from);
        if let (Some((field, end)), Some(fix)) = (code.operand, operand) {
            set(field, end, fix.target);
        }
        set(code.call - 4, code.call, self.plan.address(call.stub));
        let end = code.bytes.len() as u32;
        let copied = self.selection.slot_at(call.target);
        set(end - 4, end, copied.map_or(call.target, |slot| self.plan.address(slot)));
    }

    /// A call or jump through a slot.
    fn by_slot(&mut self, branch: SlotBranch, slot: Svma) {
        let displacement = Self::near(slot, self.here() + u64::from(BY_SLOT));
        self.out.extend_from_slice(&branch.opcode());
        self.out.extend_from_slice(&displacement.to_le_bytes());
    }

    /// What leads to the vote of a call.
    fn vote(&mut self, voting: &Voting) {
        let Some(asked) = self.request.counters else { return };
        let half = u64::from(VOTE / 2);
        let countdown = target_value_profile::word(&asked, voting, VoteWord::Countdown);
        let countdown = Self::near(countdown, self.here() + half);
        let stub = Self::near(self.plan.address(voting.stub), self.here() + 2 * half);
        restitch_x86::vote(&mut self.out, countdown, stub);
    }

    /// The vote of the call at offset `from` of its block, in a stub.
    fn ballot(&mut self, slot: usize, from: u32, voting: &Voting) {
        let Some(asked) = self.request.counters else { return };
        let (start, here) = (self.out.len(), self.here());
        self.out.extend_from_slice(&voting.code.bytes);
        let mut set = |field: u32, end: u32, to: Svma| {
            let displacement = Self::near(to, here + u64::from(end));
            let field = start + field as usize;
            self.out[field..field + 4].copy_from_slice(&displacement.to_le_bytes());
        };
        for &VoteField { at, end, word } in &voting.code.words {
            set(at, end, target_value_profile::word(&asked, voting, word));
        }
        let source = self.selection.slot_of[self.plan.slots[slot].block.index()] as usize;
        let operand = self.selection.fixes_of(source).iter().find(|f| f.field > from);
        if let (Some((field, end)), Some(fix)) = (voting.code.operand, operand) {
            set(field, end, fix.target);
        }
    }

    fn load(&mut self, bytes: &[u8], at: Svma, copy: u32) {
        let table = self.request.program.table(self.plan.copies[copy as usize]);
        let delta = self.plan.at(self.areas.copies[copy as usize]).offset_from(table.table);
        let load = displaced_load(bytes, at, delta);
        debug_assert!(load.is_some(), "the load at {at} cannot be displaced by {delta}");
        self.out.extend(load.unwrap_or_default());
    }

    fn count(&mut self, counter: Counter) {
        let word = self.counters.word(counter);
        if !counter.keeps {
            let displacement = Self::near(word, self.here() + u64::from(counter.len()));
            return match counter.width {
                CounterWidth::Bits64 => encode::count(&mut self.out, displacement),
                CounterWidth::Bits32 => encode::count_narrow(&mut self.out, displacement),
            };
        }
        let mut keeping = match counter.width {
            CounterWidth::Bits64 => encode::keeping_count(),
            CounterWidth::Bits32 => encode::keeping_count().narrow(),
        };
        let displacement = Self::near(word, self.here() + u64::from(keeping.field_end));
        let field = keeping.field as usize;
        keeping.bytes[field..field + 4].copy_from_slice(&displacement.to_le_bytes());
        self.out.extend_from_slice(&keeping.bytes);
    }

    fn branch(&mut self, condition: Option<Condition>, near: bool, len: u32, to: Svma) {
        let displacement = Self::near(to, self.here() + u64::from(len));
        match (condition, near) {
            (None, false) => encode::jmp_short(&mut self.out, displacement as i8),
            (None, true) => encode::jmp_near(&mut self.out, displacement),
            (Some(condition), false) => encode::jcc_short(&mut self.out, condition, displacement as i8),
            (Some(condition), true) => encode::jcc_near(&mut self.out, condition, displacement),
        }
    }
}
