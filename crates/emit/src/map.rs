//! The map between the version's addresses and the original ones, both ways.

use crate::direct::STUB_CALL;
use crate::ends::copied_len;
use crate::model::{AddressMap, MapPiece, PieceKind, Place};
use crate::plan::{Dest, Op, Plan};
use crate::request::Request;
use crate::select::{NONE, Selection};
use restitch_address::Svma;
use restitch_program::Terminator;
use restitch_x86::slot::BY_SLOT;
use restitch_x86::{GuardedCall, VOTE, VOTE_SAVED, VoteStub, encode};
use std::ops::Range;

/// Makes the map.
pub(crate) fn build(request: &Request<'_>, selection: &Selection<'_>, plan: &Plan) -> AddressMap {
    AddressMap { pieces: pieces(request, plan), places: places(request, selection, plan) }
}

fn pieces(request: &Request<'_>, plan: &Plan) -> Vec<MapPiece> {
    let mut out: Vec<MapPiece> = Vec::with_capacity(plan.ops.len());
    for slot in plan.order() {
        let block = request.program.block(plan.slots[slot].block);
        for (at, op) in plan.walk(slot) {
            let version = plan.at(at);
            let whole = |original, kind| MapPiece { version, original, len: op.len(), kind };
            match *op {
                Op::Copy { opaque: false, from, .. } => {
                    push_linear(&mut out, whole(block.start + u64::from(from), PieceKind::Linear));
                }
                Op::Copy { opaque: true, from, .. } => {
                    out.push(whole(block.start + u64::from(from), PieceKind::Opaque));
                }
                Op::Load { from, .. } => out.push(whole(block.start + u64::from(from), PieceKind::Branch)),
                Op::Guarded { from, old, call, .. } => {
                    let original = block.start + u64::from(from);
                    guarded(&mut out, &plan.guarded[call as usize].code, version, original, old);
                }
                Op::BySlot { from, .. } => {
                    let original = block.start + u64::from(from);
                    // As a promoted call ends, so does this one: its last byte is that of the original.
                    let begins = MapPiece { len: BY_SLOT - 1, ..whole(original, PieceKind::Inserted) };
                    out.push(begins);
                    out.push(MapPiece {
                        version: version + u64::from(begins.len),
                        original: original + u64::from(STUB_CALL - 1),
                        len: 1,
                        kind: PieceKind::Linear,
                    });
                }
                Op::Vote { from, .. } => {
                    let (original, half) = (block.start + u64::from(from), VOTE / 2);
                    let first = MapPiece { len: half, ..whole(original, PieceKind::Inserted) };
                    out.extend([first, MapPiece { version: version + u64::from(half), ..first }]);
                }
                Op::Ballot { from, call, .. } => {
                    let code = &plan.voting[call as usize].code;
                    ballot(&mut out, code, version, block.start + u64::from(from));
                }
                Op::Count { counter, original } if !counter.keeps => {
                    out.push(whole(original, PieceKind::Inserted));
                }
                Op::Prefetch { original, .. } => out.push(whole(original, PieceKind::Inserted)),
                Op::Count { original, .. } => {
                    let first = encode::keeping_count().stack[0].0;
                    out.push(MapPiece { len: first, ..whole(original, PieceKind::Inserted) });
                    let rest = whole(original, PieceKind::Opaque);
                    out.push(MapPiece { version: version + u64::from(first), len: rest.len - first, ..rest });
                }
                Op::Branch { added: true, dest, .. } => {
                    out.push(whole(original_target(request, plan, dest), PieceKind::Added));
                }
                Op::Branch { .. } | Op::Short { .. } => {
                    out.push(whole(block.terminator_at(), PieceKind::Branch));
                }
            }
        }
    }
    out
}

/// The original address of a branch target.
fn original_target(request: &Request<'_>, plan: &Plan, dest: Dest) -> Svma {
    let block = |slot: u32| request.program.block(plan.slots[slot as usize].block).start;
    match dest {
        Dest::Slot(slot) => block(slot),
        Dest::Behind { slot, op } => block(slot) + u64::from(plan.ops[op as usize].copied_to().unwrap_or(0)),
        Dest::Outside(at) | Dest::BySlot { stub: at, .. } => at,
    }
}

/// The pieces of a promoted call. Its comparison changes nothing that lives on, so all but where the scratch
/// register holds something else equals standing at the original call. The last byte of the direct call is
/// that of the original: a return address behind the one is equal to that behind the other. (Nobody is sent
/// to the direct call from the original code: it is no [`PieceKind::Branch`].)
fn guarded(out: &mut Vec<MapPiece>, code: &GuardedCall, version: Svma, original: Svma, old: u8) {
    let mut add = |from: u32, to: u32, original, kind| {
        out.push(MapPiece { version: version + u64::from(from), original, len: to - from, kind });
    };
    let ends = code.before.iter().skip(1).map(|b| b.0).chain([code.branch]);
    for (&(from, temporary), to) in code.before.iter().zip(ends) {
        add(from, to, original, if temporary { PieceKind::Opaque } else { PieceKind::Inserted });
    }
    add(code.branch, code.call, original, PieceKind::Inserted);
    let end = code.bytes.len() as u32;
    add(code.call, end - 1, original, PieceKind::Inserted);
    add(end - 1, end, original + u64::from(old) - 1, PieceKind::Linear);
}

/// The pieces of a vote: up to where the register holds something else, all is as at the call.
fn ballot(out: &mut Vec<MapPiece>, code: &VoteStub, version: Svma, original: Svma) {
    let Range { start, end } = code.temporary;
    for (from, to, kind) in [
        (0, VOTE_SAVED, PieceKind::Inserted),
        (VOTE_SAVED, start, PieceKind::Inserted),
        (start, end, PieceKind::Opaque),
    ] {
        out.push(MapPiece { version: version + u64::from(from), original, len: to - from, kind });
    }
}

/// Adds a linear piece, as part of the last one if it goes on there.
fn push_linear(out: &mut Vec<MapPiece>, piece: MapPiece) {
    if let Some(last) = out.last_mut()
        && last.kind == PieceKind::Linear
        && last.version + u64::from(last.len) == piece.version
        && last.original + u64::from(last.len) == piece.original
        && let Some(len) = last.len.checked_add(piece.len)
    {
        last.len = len;
        return;
    }
    out.push(piece);
}

/// Goes through the blocks in the order of the original code, so that nothing has to be sorted.
fn places(request: &Request<'_>, selection: &Selection<'_>, plan: &Plan) -> Vec<Place> {
    let mut out: Vec<Place> = Vec::with_capacity(plan.placed * 2);
    for (block, &slot) in request.program.blocks.iter().zip(&selection.slot_of) {
        if slot == NONE {
            continue;
        }
        let copied = copied_len(block);
        // Offset in the block behind what has been copied.
        let mut done = 0;
        for (at, op) in plan.walk(slot as usize) {
            let version = plan.at(at);
            match *op {
                Op::Copy { from, len, .. } => {
                    push_place(&mut out, Place { original: block.start + u64::from(from), version, len });
                    done = from + len;
                }
                Op::Load { from, old, .. } => {
                    out.push(Place { original: block.start + u64::from(from), version, len: 1 });
                    done = from + u32::from(old);
                }
                Op::Guarded { from, old, .. } => {
                    out.push(Place { original: block.start + u64::from(from), version, len: 1 });
                    done = from + u32::from(old);
                }
                Op::BySlot { from, .. } => {
                    out.push(Place { original: block.start + u64::from(from), version, len: 1 });
                    done = from + STUB_CALL;
                }
                // Behind a counter it has no place: whoever is sent there passes both.
                Op::Vote { from, .. } => {
                    let original = block.start + u64::from(from);
                    if out.last().is_none_or(|last| last.original != original) {
                        out.push(Place { original, version, len: 1 });
                    }
                }
                Op::Count { original, .. } | Op::Prefetch { original, .. } if done < copied => {
                    out.push(Place { original, version, len: 1 });
                }
                // The way out begins here: the branch, or whatever stands in its place.
                _ => {
                    out.extend(exit(block.terminator_at(), block.terminator, version));
                    done = u32::MAX;
                    break;
                }
            }
        }
        if done == copied {
            out.extend(exit(block.terminator_at(), block.terminator, plan.at(plan.slots[slot as usize].end)));
        }
    }
    out
}

/// The place of a branch that is written anew or left out.
fn exit(original: Svma, terminator: Terminator, version: Svma) -> Option<Place> {
    let rewritten = matches!(
        terminator,
        Terminator::Jump(_) | Terminator::Conditional(..) | Terminator::ShortConditional(_)
    );
    rewritten.then_some(Place { original, version, len: 1 })
}

fn push_place(out: &mut Vec<Place>, place: Place) {
    if let Some(last) = out.last_mut()
        && last.version + u64::from(last.len) == place.version
        && last.original + u64::from(last.len) == place.original
        && last.len > 1
        && let Some(len) = last.len.checked_add(place.len)
    {
        last.len = len;
        return;
    }
    out.push(place);
}
