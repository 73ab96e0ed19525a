//! The edges that terminators and jump tables imply: the only place that makes them.

use restitch_address::Svma;

use crate::model::{Block, Edge, EdgeKind, JumpTable, Terminator};
use crate::{BlockId, EdgeId};

/// Makes the edges of `blocks` (sorted by address) and fills in their `first_edge` and `edge_count`.
///
/// A fall-through edge goes to the block that starts at the source's end, a taken edge to the block that
/// starts at the branch target, and a table has one edge for each distinct target. What does not start a
/// block of the module gives no edge. The result is sorted: by source block, then kind, then target.
pub fn build_edges(blocks: &mut [Block], tables: &[JumpTable]) -> Vec<Edge> {
    build_edges_with(blocks, tables, &by_search)
}

/// Finds the block that starts at an address.
pub(crate) type Find<'a> = dyn Fn(&[Block], Svma) -> Option<BlockId> + 'a;

/// [`build_edges`], with a faster way to find blocks.
pub(crate) fn build_edges_with(blocks: &mut [Block], tables: &[JumpTable], find: &Find<'_>) -> Vec<Edge> {
    let mut edges = Vec::with_capacity(blocks.len() * 3 / 2);
    for index in 0..blocks.len() {
        let first = edges.len();
        implied_edges(blocks, tables, index, find, &mut edges);
        blocks[index].first_edge = EdgeId::from_index(first);
        blocks[index].edge_count = (edges.len() - first) as u32;
    }
    edges
}

/// Appends the outgoing edges of block number `index`, sorted.
pub(crate) fn implied_edges(
    blocks: &[Block],
    tables: &[JumpTable],
    index: usize,
    find: &Find<'_>,
    edges: &mut Vec<Edge>,
) {
    let block = &blocks[index];
    let from = BlockId::from_index(index);
    let mut push = |kind, target| {
        if let Some(to) = starting_at(blocks, index, target, find) {
            edges.push(Edge { from, kind, to });
        }
    };
    match block.terminator {
        Terminator::FallThrough => push(EdgeKind::FallThrough, block.end()),
        Terminator::Jump(target) => push(EdgeKind::Taken, target),
        Terminator::Conditional(_, target) | Terminator::ShortConditional(target) => {
            push(EdgeKind::FallThrough, block.end());
            push(EdgeKind::Taken, target);
        }
        Terminator::Table(table) => {
            let mut targets =
                tables.get(table.index()).map(|table| table.targets.clone()).unwrap_or_default();
            targets.sort_unstable();
            targets.dedup();
            targets.into_iter().for_each(|target| push(EdgeKind::Table, target));
        }
        Terminator::IndirectJump | Terminator::Return | Terminator::Stop => {}
    }
}

/// The block that starts at `target`; the neighbour of block number `near` is tried first.
fn starting_at(blocks: &[Block], near: usize, target: Svma, find: &Find<'_>) -> Option<BlockId> {
    if blocks.get(near + 1).is_some_and(|next| next.start == target) {
        return Some(BlockId::from_index(near + 1));
    }
    find(blocks, target)
}

/// The block that starts at `target`, by a search in `blocks`.
pub(crate) fn by_search(blocks: &[Block], target: Svma) -> Option<BlockId> {
    blocks.binary_search_by_key(&target, |b| b.start).ok().map(BlockId::from_index)
}
