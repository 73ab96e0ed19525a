//! Branches and runs of code, by address, as counts of a program.

use crate::Profile;
use restitch_address::Svma;
use restitch_program::{BlockId, CallId, CallTarget, EdgeId, EdgeKind, Program, Terminator};

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

/// The edge that a branch at `from` to `to` takes; `None` for calls and what is no branch of the program.
pub fn taken_edge(program: &Program, from: Svma, to: Svma) -> Option<EdgeId> {
    edge_to(program, program.block_at(from)?, from, to)
}

/// The edge of `block` that a branch at `from` to `to` takes.
fn edge_to(program: &Program, block: BlockId, from: Svma, to: Svma) -> Option<EdgeId> {
    if program.block(block).terminator_at() != from {
        return None;
    }
    let taken = |kind| kind != EdgeKind::FallThrough;
    let mut edges = program.out_edges(block);
    edges.find(|(_, e)| taken(e.kind) && program.block(e.to).start == to).map(|(id, _)| id)
}

/// The edge by which `block` falls into the block at `to`.
pub fn fall_through_to(program: &Program, block: BlockId, to: Svma) -> Option<EdgeId> {
    let mut edges = program.out_edges(block);
    edges.find(|(_, e)| e.kind == EdgeKind::FallThrough && program.block(e.to).start == to).map(|(id, _)| id)
}

/// The block that holds `start`, and the fall-through edges from there to the block that holds `end`; `None`
/// if there is no such way.
pub fn run_between(program: &Program, start: Svma, end: Svma) -> Option<(BlockId, Vec<EdgeId>)> {
    let (first, last) = (program.block_at(start)?, program.block_at(end)?);
    if first > last {
        return None;
    }
    let step = |b: u32| {
        let (from, to) = (BlockId(b), BlockId(b + 1));
        if matches!(program.block(from).terminator, Terminator::Jump(_)) {
            return None;
        }
        fall_through_to(program, from, program.block(to).start)
    };
    let edges: Option<Vec<EdgeId>> = (first.0..last.0).map(step).collect();
    Some((first, edges?))
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
