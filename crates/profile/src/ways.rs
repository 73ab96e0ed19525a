//! Branches and runs of code, by address, as edges of a program.

use restitch_address::Svma;
use restitch_program::{BlockId, EdgeId, EdgeKind, Program, Terminator};

/// The edge that a branch at `from` to `to` takes; `None` for calls and what is no branch of the program.
pub fn taken_edge(program: &Program, from: Svma, to: Svma) -> Option<EdgeId> {
    edge_to(program, program.block_at(from)?, from, to)
}

/// The edge of `block` that a branch at `from` to `to` takes.
pub(crate) fn edge_to(program: &Program, block: BlockId, from: Svma, to: Svma) -> Option<EdgeId> {
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
