//! The patches that lead from the original code into the version.
//!
//! A redirect overwrites five bytes. Nothing but a thread that already stands there may come to the bytes behind the
//! first one: no call returns there and no block starts there. (A block that only control from above reaches would do
//! no harm now, but an older version that left it in the original code jumps to it. The strict rule costs less
//! than two entries in a thousand.)

use crate::plan::Plan;
use crate::select::{NONE, Selection};
use crate::{AddressMap, Redirect, RedirectKind, Request, SkipReason, Skipped};
use restitch_address::{Svma, SvmaRange};
use restitch_program::{BlockAttrs, BlockId, FuncId, Program};
use restitch_x86::{Flow, decode_one, encode};

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// The longest instruction.
const LONGEST: u64 = 15;

/// Chooses them, sorted by address, and notes the functions whose entry cannot take one.
pub(crate) fn choose(
    request: &Request<'_>,
    selection: &mut Selection<'_>,
    plan: &Plan,
    map: &AddressMap,
) -> Vec<Redirect> {
    let program = request.program;
    let chooser = Chooser { request, selection, map };
    let mut out = Vec::new();
    let mut refused = Vec::new();
    for id in program.function_ids() {
        let function = program.function(id);
        let placed = function.block_count > 0 && chooser.is_placed(function.first_block);
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
    let bytes = |r: &Redirect| SvmaRange::new(r.at, u64::from(encode::JMP_NEAR));
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

    /// The redirect of a function behind its first instruction, if there is room for one in its first block; behind those that make a frame, which debuggers
    /// pass by. Counting versions have none: it would pass the block's counter by.
    fn behind_the_first(&self, id: FuncId) -> Option<Redirect> {
        if self.request.counters.is_some() {
            return None;
        }
        let program = self.request.program;
        let function = program.function(id);
        let block = program.block(self.selection.lookup.starting_at(function.range.start)?);
        let bytes = self.request.image.read_tail(block.start)?;
        let first = decode_one(bytes, block.start)?.insn;
        let first = (first.flow == Flow::Next).then_some(u64::from(first.len));
        frame_made(bytes).into_iter().chain(first).map(|len| block.start + len).find_map(|at| {
            let redirect = self.redirect(at, function.range, RedirectKind::Entry)?;
            (at < block.end() && redirect.at == at).then_some(redirect)
        })
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
        let marked = self.request.image.read(start, ENDBR64.len()) == Some(&ENDBR64);
        let at = if marked { start + ENDBR64.len() as u64 } else { start };
        let bytes = SvmaRange::new(at, u64::from(encode::JMP_NEAR));
        if !function.covers(&bytes) || !self.is_free(bytes) || returns_into(self.request.program, bytes) {
            return None;
        }
        // Where a branch goes to the instruction behind it, the marker is a block of its own. Its copy is entered then, so
        // that it is counted; to run the marker again changes nothing.
        let is_block = marked && self.selection.lookup.starting_at(at).is_some();
        Some(Redirect { at, to: self.map.to_version(if is_block { start } else { at })?, kind })
    }

    /// Whether no block starts behind the first byte.
    fn is_free(&self, bytes: SvmaRange) -> bool {
        let blocks = &self.request.program.blocks;
        let next = blocks.partition_point(|b| b.start <= bytes.start);
        blocks.get(next).is_none_or(|b| b.start >= bytes.end)
    }
}

/// Bytes of the instructions at the start of a function that make its frame: `endbr64` or not, `push %rbp; mov %rsp,%rbp`.
fn frame_made(bytes: &[u8]) -> Option<u64> {
    const FRAME: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];
    let marker = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let makes = FRAME.iter().any(|frame| bytes[marker..].starts_with(frame));
    makes.then_some((marker + FRAME[0].len()) as u64)
}

/// Whether a call returns to a byte of `bytes` behind the first one.
fn returns_into(program: &Program, bytes: SvmaRange) -> bool {
    let first = program.calls.partition_point(|call| call.at + LONGEST < bytes.start);
    program.calls[first..].iter().take_while(|call| call.at < bytes.end).any(|call| {
        let back = call.at + u64::from(call.len);
        bytes.contains(back) && back != bytes.start
    })
}
