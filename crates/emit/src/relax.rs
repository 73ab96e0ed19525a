//! Branch relaxation: every branch begins short and grows to its long form where its target turns out to be
//! too far.
//!
//! Growing never goes back, so the fixpoint is reached after at most as many rounds as there are branches; in
//! practice five to eight. The result need not be the smallest (alignment), but it is always right.

use crate::areas::HEADERS;
use crate::plan::{Dest, Op, Plan};
use restitch_x86::encode;

/// Between hot and cold code, in bytes: a cache line is not shared.
const COLD_ALIGN: u32 = 64;

/// Gives every slot its place and every branch its length.
pub(crate) fn relax(plan: &mut Plan) {
    if let Some(slot) = plan.first_cold() {
        plan.slots[slot].align = plan.slots[slot].align.max(COLD_ALIGN);
    }
    loop {
        place(plan);
        if !grow(plan) {
            return;
        }
    }
}

fn place(plan: &mut Plan) {
    let mut at = HEADERS;
    for i in 0..plan.slots.len() {
        let slot = plan.nth(i);
        let len: u32 = plan.ops[plan.ops_of(slot)].iter().map(Op::len).sum();
        let slot = &mut plan.slots[slot];
        slot.start = at.next_multiple_of(slot.align);
        if let Some(place) = slot.in_line {
            slot.start += u32::from(place).wrapping_sub(slot.start) % 64;
        }
        slot.end = slot.start + len;
        at = slot.end;
    }
}

fn grow(plan: &mut Plan) -> bool {
    let mut grown = false;
    for slot in 0..plan.slots.len() {
        let mut at = plan.slots[slot].start;
        for i in plan.ops_of(slot) {
            let op = &mut plan.ops[i];
            let end = at + op.len();
            if let Op::Branch { near: near @ false, dest: Dest::Slot(to), .. } = op
                && !encode::fits_short(i64::from(plan.slots[*to as usize].start) - i64::from(end))
            {
                *near = true;
                grown = true;
            }
            at = end;
        }
    }
    grown
}
