//! Indirect calls of a counting version that vote for their usual target ([`restitch_x86::vote_stub`]).
//!
//! A countdown and a branch stand in front of the call. The rest is out of line, and runs once in
//! [`restitch_x86::VOTE_PERIOD`] executions. Everything equals standing at the call, but for where a register
//! holds the distance to the target; what that register is follows from the operand.

use crate::counter_area::votes_offset;
use crate::direct::Form;
use crate::request::{CounterRequest, Request};
use crate::select::Selection;
use restitch_address::Svma;
use restitch_profile::VoteArea;
use restitch_program::{Block, CallId, CallTarget};
use restitch_x86::{VoteStub, VoteWord, vote_stub};

/// A call that votes.
#[derive(Debug, Clone)]
pub(crate) struct Voting {
    /// Which call: an index into what was asked for.
    pub index: usize,
    /// The call in the original code.
    pub site: Svma,
    /// The code of its stub.
    pub code: VoteStub,
    /// The slot of the stub.
    pub stub: u32,
}

/// The calls in `block` that are to vote, with their indices in the request.
pub(crate) fn in_block<'a>(
    request: &Request<'a>,
    block: &Block,
) -> impl Iterator<Item = (usize, CallId)> + use<'a> {
    let (first, count) = (block.first_call.0, block.call_count);
    let asked = request.counters.map_or(&[][..], |c| c.votes);
    let from = asked.partition_point(|c| *c < CallId(first));
    let calls = asked.iter().copied().enumerate().skip(from);
    calls.take_while(move |(_, c)| *c < CallId(first + count))
}

/// The stub of a call of the block in slot number `slot`. `None` if the call stays as it is.
pub(crate) fn stub(
    request: &Request<'_>,
    selection: &Selection<'_>,
    slot: usize,
    call: CallId,
) -> Option<VoteStub> {
    let site = request.program.calls.get(call.index()).filter(|s| s.target == CallTarget::Indirect)?;
    let at = site.at.offset_from(request.program.block(site.block).start) as u32;
    let inside = at..at + u32::from(site.len);
    let becomes_direct = |f: &crate::select::Fix| inside.contains(&f.field) && f.form != Form::Operand;
    if !selection.reach.covers(site.at) || selection.fixes_of(slot).iter().any(becomes_direct) {
        return None;
    }
    vote_stub(request.image.read(site.at, site.len.into())?)
}

/// The address that a displacement in a stub of call number `index` leads to.
pub(crate) fn word(asked: &CounterRequest<'_>, voting: &Voting, word: VoteWord) -> Svma {
    let (area, i) = (VoteArea { calls: asked.votes.len() }, voting.index);
    let offset = match word {
        VoteWord::Site => return voting.site,
        VoteWord::Countdown => area.countdown(i),
        VoteWord::Candidate => area.candidate(i),
        VoteWord::Samples => area.samples(i),
        VoteWord::Hits => area.hits(i),
        VoteWord::Balance => area.balance(i),
    };
    asked.area_start + votes_offset(asked.width, asked.counted.len()) + offset
}
