//! The patches that lead from the original code into the version.

use crate::counters::Counters;
use crate::entry;
use crate::model::{AddressMap, Redirect, RedirectKind, SkipReason, Skipped};
use crate::plan::Plan;
use crate::request::Request;
use crate::select::{NONE, Selection};
use restitch_address::{Svma, SvmaRange};
use restitch_program::{BlockAttrs, BlockId, FuncId};
use restitch_x86::entry::entry_marker;
use restitch_x86::patch::Patch;

/// Chooses them, sorted by address, and notes the functions whose entry cannot take one.
pub(crate) fn choose(
    request: &Request<'_>,
    selection: &mut Selection<'_>,
    plan: &Plan,
    map: &AddressMap,
    counters: &Counters,
) -> Vec<Redirect> {
    let program = request.program;
    let chooser = Chooser { request, selection, map, counters };
    let mut out = Vec::new();
    let mut refused = Vec::new();
    for id in program.function_ids() {
        let function = program.function(id);
        let placed = function.entry_block().is_some_and(|entry| chooser.is_placed(entry));
        match chooser.entry(id) {
            _ if !placed => {}
            Some(redirect) => out.push(redirect),
            None => refused.push(Skipped { function: id, block: None, why: SkipReason::NotRedirectable }),
        }
    }
    let landings = chooser.landings(plan);
    selection.skipped.extend(refused);
    merge(out, landings)
}

/// Entries come first; what overlaps an earlier redirect is left out.
fn merge(entries: Vec<Redirect>, landings: Vec<Redirect>) -> Vec<Redirect> {
    let bytes = |r: &Redirect| SvmaRange::new(r.at, Patch::LEN as u64);
    let mut all: Vec<Redirect> = Vec::with_capacity(entries.len() + landings.len());
    let near = |landing: &Redirect| {
        let i = entries.partition_point(|e| e.at < landing.at);
        [i.wrapping_sub(1), i]
            .iter()
            .any(|i| entries.get(*i).is_some_and(|e| bytes(e).overlaps(&bytes(landing))))
    };
    let mut last: Option<Redirect> = None;
    for landing in landings {
        if near(&landing) || last.is_some_and(|last| bytes(&last).overlaps(&bytes(&landing))) {
            continue;
        }
        last = Some(landing);
        all.push(landing);
    }
    all.extend(entries);
    all.sort_unstable();
    all
}

struct Chooser<'r, 'a> {
    request: &'r Request<'a>,
    selection: &'r Selection<'a>,
    map: &'r AddressMap,
    counters: &'r Counters,
}

impl Chooser<'_, '_> {
    fn is_placed(&self, block: BlockId) -> bool {
        self.selection.slot_of[block.index()] != NONE
    }

    fn entry(&self, id: FuncId) -> Option<Redirect> {
        let function = self.request.program.function(id);
        if !function.redirectable {
            return None;
        }
        let start = function.range.start;
        self.behind_the_first(id).or_else(|| self.redirect(start, function.range, RedirectKind::Entry))
    }

    /// The redirect of a function behind its first instructions, if there is room for one; a counting
    /// version's not behind the block's counter.
    fn behind_the_first(&self, id: FuncId) -> Option<Redirect> {
        let places = entry::behind_the_first(self.request, &self.selection.lookup, id);
        let start = self.request.program.function(id).range.start;
        let block = self.selection.lookup.starting_at(start)?;
        let counted = self.counters.in_block(block).map(|(offset, _)| start + u64::from(offset));
        let at = places.into_iter().find(|at| counted.is_none_or(|counted| *at <= counted))?;
        Some(Redirect { at, to: self.map.to_version(at)?, kind: RedirectKind::Entry })
    }

    /// Landing pads, and blocks that indirect jumps reach which still go through the original code.
    fn landings(&self, plan: &Plan) -> Vec<Redirect> {
        let program = self.request.program;
        let mut through_copies = vec![false; program.blocks.len()];
        for table in &plan.copies {
            for target in &program.table(*table).targets {
                if let Some(block) = self.selection.lookup.starting_at(*target) {
                    through_copies[block.index()] = true;
                }
            }
        }
        let lands = |id: &BlockId| {
            let attrs = program.block(*id).attrs;
            let jumped_to = attrs.contains(BlockAttrs::INDIRECT) && !through_copies[id.index()];
            (jumped_to || attrs.contains(BlockAttrs::LANDING_PAD))
                && !attrs.contains(BlockAttrs::ENTRY)
                && self.is_placed(*id)
        };
        let redirect = |id: BlockId| {
            let block = program.block(id);
            self.redirect(block.start, program.function(block.function).range, RedirectKind::Landing)
        };
        program.block_ids().filter(lands).filter_map(redirect).collect()
    }

    /// The redirect of what starts at `start`, if there is room for one.
    fn redirect(&self, start: Svma, function: SvmaRange, kind: RedirectKind) -> Option<Redirect> {
        let marker = self.request.image.read_tail(start).map_or(0, entry_marker);
        let at = start + marker as u64;
        if !entry::has_room(self.request, at, function) {
            return None;
        }
        // Where a branch goes to the instruction behind it, the marker is a block of its own. Its copy is
        // entered then, so that it is counted; to run the marker again changes nothing.
        let is_block = marker > 0 && self.selection.lookup.starting_at(at).is_some();
        Some(Redirect { at, to: self.map.to_version(if is_block { start } else { at })?, kind })
    }
}
