//! Retargeted functions, of which all pointers lead to the copy: which ones, where these stand, and what has
//! to be changed.

use crate::model::{Redirect, Retarget, RetargetKind, RetargetedFunction};
use crate::plan::Plan;
use crate::pointers::LEA;
use crate::request::Request;
use crate::select::{NONE, RetargetedEntry, Selection};

use restitch_address::{Svma, SvmaRange};
use restitch_program::Program;
use restitch_x86::patch::Patch;

/// Chooses those of the functions that are asked for whose entry is placed and not run into from above, and
/// aligns them.
pub(crate) fn choose(request: &Request<'_>, selection: &mut Selection<'_>) {
    let program = request.program;
    let asked = request.pointers.filter(|_| request.bias.is_none() && request.counters.is_none());
    let Some(pointers) = asked else { return };
    for &function in pointers.functions() {
        let Some(first) = program.entry_block(function) else { continue };
        let entry = program.function(function).range.start;
        let slot = selection.slot_of[first.index()];
        if slot == NONE || runs_into(program, selection, slot as usize) {
            continue;
        }
        let chosen = &mut selection.chosen[slot as usize];
        chosen.align = chosen.align.max(pointers.alignment_of(entry));
        selection.retargeted.push(RetargetedEntry { entry, slot, function });
    }
    selection.retargeted.sort_unstable_by_key(|chosen| chosen.entry);
}

/// Whether what stands in front of a slot may go on to it.
fn runs_into(program: &Program, selection: &Selection<'_>, slot: usize) -> bool {
    let Some(before) = slot.checked_sub(1).filter(|_| slot != selection.hot) else { return false };
    let (before, block) = (selection.chosen[before].block, selection.chosen[slot].block);
    program.out_edges(before).any(|(_, edge)| edge.to == block)
}

/// Where the copies of retargeted functions have come to stand.
pub(crate) fn placed(selection: &Selection<'_>, plan: &Plan) -> Vec<RetargetedFunction> {
    if selection.retargeted.is_empty() {
        return Vec::new();
    }
    let mut behind = vec![None; plan.slots.len()];
    plan.order().zip(plan.order().skip(1)).for_each(|(slot, next)| behind[slot] = Some(next));
    let place = |entry: &RetargetedEntry| {
        let mut last = entry.slot as usize;
        while let Some(next) = behind[last].filter(|next| {
            let (next, last) = (&plan.slots[*next], &plan.slots[last]);
            next.function == entry.function && next.start == last.end && !next.stub
        }) {
            last = next;
        }
        let (start, end) = (plan.slots[entry.slot as usize].start, plan.slots[last].end);
        RetargetedFunction { original: entry.entry, to: plan.at(start), len: u64::from(end - start) }
    };
    selection.retargeted.iter().map(place).collect()
}

/// What makes the addresses of the retargeted functions, but for what a redirect overwrites, which is never
/// executed again.
pub(crate) fn retargets(
    request: &Request<'_>,
    retargeted: &[RetargetedFunction],
    selection: &Selection<'_>,
    redirects: &[Redirect],
) -> Vec<Retarget> {
    let Some(pointers) = request.pointers else { return Vec::new() };
    let overwritten = |at: Svma| {
        let lea = SvmaRange::between(at + 4 - LEA, at + 4);
        let i = redirects.partition_point(|r| r.at + Patch::LEN as u64 <= lea.start);
        redirects.get(i).is_some_and(|r| r.at < lea.end)
    };
    let mut out = Vec::new();
    for (entry, function) in selection.retargeted.iter().zip(retargeted) {
        let makers = pointers.makers_of(entry.function).iter();
        let lasting = makers.filter(|m| m.kind != RetargetKind::Lea || !overwritten(m.at));
        out.extend(lasting.map(|m| Retarget {
            at: m.at,
            original: function.original,
            to: function.to,
            kind: m.kind,
        }));
    }
    out
}
