//! Branches and runs of code, by address, as counts of a program.

use crate::model::Profile;
use crate::ways::{edge_to, run_between};
use restitch_address::Svma;
use restitch_program::{CallId, CallTarget, Program};

fn add(slot: &mut u64, count: u64) {
    *slot = slot.saturating_add(count);
}

/// Counts a taken branch at `from`: as a call, wherever it goes, or as an edge to the block at `to`. False if
/// it is neither.
pub fn count_branch(
    program: &Program,
    profile: &mut Profile,
    from: Svma,
    to: Option<Svma>,
    count: u64,
) -> bool {
    let Some(block) = program.block_at(from) else { return false };
    if let Ok(call) = program.calls.binary_search_by_key(&from, |c| c.at) {
        add(&mut profile.calls[call], count);
        if program.calls[call].target == CallTarget::Indirect
            && let Some(to) = to.filter(|to| count > 0 && program.block_at(*to).is_some())
        {
            profile.add_target(CallId(call as u32), to, count);
        }
        return true;
    }
    let edge = to.and_then(|to| edge_to(program, block, from, to));
    if let Some(edge) = edge {
        add(&mut profile.edges[edge.index()], count);
    }
    edge.is_some()
}

/// Counts the blocks and fall-through edges from `start` to the branch at `end`; false if there is no such
/// way.
pub fn count_run(program: &Program, profile: &mut Profile, start: Svma, end: Svma, count: u64) -> bool {
    let Some((first, way)) = run_between(program, start, end) else { return false };
    way.iter().for_each(|edge| add(&mut profile.edges[edge.index()], count));
    // A range that begins inside a block is the continuation behind a call: the block was counted before.
    let entered = if program.block(first).start == start { first.0 } else { first.0 + 1 };
    (entered..=first.0 + way.len() as u32).for_each(|b| add(&mut profile.blocks[b as usize], count));
    true
}

/// Whether `at` is in a function without blocks, whose code is not understood: runs through it are no ways,
/// and say nothing of whether this is the code that was recorded.
pub fn is_not_understood(program: &Program, at: Svma) -> bool {
    program.function_at(at).is_some_and(|function| program.entry_block(function).is_none())
}

/// Raises the counts of blocks to what goes in (`entered`, by block, from elsewhere, and by edges), what goes
/// out, and their calls.
pub fn raise_blocks(program: &Program, profile: &mut Profile, entered: &[u64]) {
    let mut inward = entered.to_vec();
    inward.resize(program.blocks.len(), 0);
    let mut outward = vec![0u64; program.blocks.len()];
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        add(&mut outward[edge.from.index()], count);
        add(&mut inward[edge.to.index()], count);
    }
    for (block, count) in profile.blocks.iter_mut().enumerate() {
        *count = (*count).max(inward[block]).max(outward[block]);
    }
    for (call, count) in program.calls.iter().zip(&profile.calls) {
        let block = &mut profile.blocks[call.block.index()];
        *block = (*block).max(*count);
    }
}
