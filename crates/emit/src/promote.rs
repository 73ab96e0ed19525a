//! Indirect calls that become a comparison with their usual target and a direct call
//! ([`restitch_x86::guarded_call`]).
//!
//! What is compared is what the program would call: the address of the target in the original code. The
//! direct call goes to the target's copy, past the redirect at its entry. Any other target is called by the
//! original instruction, in a stub among cold code. Both calls return to the equivalent of the one return
//! address. No register and no stack word is needed but those that a call overwrites, so unwind rows stay as
//! they are.

use crate::direct::Form;
use crate::model::Promotion;
use crate::request::Request;
use crate::select::Selection;
use restitch_image::ImageKind;
use restitch_program::{Block, BlockAttrs, CallId, CallTarget};
use restitch_x86::{Compare, GuardedCall, guarded_call};

/// The promotions that are asked for in `block`.
pub(crate) fn in_block<'a>(
    request: &Request<'a>,
    block: &Block,
) -> impl Iterator<Item = Promotion> + use<'a> {
    let (first, count) = (block.first_call.0, block.call_count);
    let asked = if request.counters.is_some() { &[][..] } else { request.promote };
    let from = asked.partition_point(|p| p.call < CallId(first));
    asked[from..].iter().copied().take_while(move |p| p.call < CallId(first + count))
}

/// The code of a promoted call in slot number `slot`. `None` if it stays as it is.
pub(crate) fn guard(
    request: &Request<'_>,
    selection: &Selection<'_>,
    slot: usize,
    promotion: Promotion,
) -> Option<GuardedCall> {
    let program = request.program;
    let site = program.calls.get(promotion.call.index()).filter(|s| s.target == CallTarget::Indirect)?;
    let target = selection.lookup.starting_at(promotion.target)?;
    let attrs = program.block(target).attrs;
    // A function that takes something in the flags, against all conventions, is not met by a comparison.
    if !attrs.contains(BlockAttrs::ENTRY) || attrs.contains(BlockAttrs::FLAGS_LIVE_IN) {
        return None;
    }
    let at = site.at.offset_from(program.block(site.block).start) as u32;
    let inside = at..at + u32::from(site.len);
    let becomes_direct = |f: &&crate::select::Fix| inside.contains(&f.field) && f.form != Form::Operand;
    if !selection.reach.covers(promotion.target)
        || selection.fixes_of(slot).iter().find(becomes_direct).is_some()
    {
        return None;
    }
    let fixed = request.image.kind() == ImageKind::Executable;
    let number = i32::try_from(promotion.target.get()).ok().filter(|_| fixed);
    let compare = number.map_or(Compare::Relative, Compare::Number);
    guarded_call(request.image.read(site.at, site.len.into())?, compare)
}
