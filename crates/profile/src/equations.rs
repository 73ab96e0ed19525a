//! The flow equations of a program: where *count = sum of the edges* holds.
//!
//! For each block two equations may hold: its count equals the sum of its incoming edges, and the sum of its
//! outgoing edges. An equation is *closed* if all the ways in (out) are edges of the program:
//! * in: not for function entries, landing pads, blocks that un-understood indirect jumps reach, and targets
//!   of calls;
//! * out: not for returns, stops, indirect jumps and branches to places that are no block of the module.
//!
//! A closed outgoing equation is *lossy* where the block holds a call, because a call need not return
//! (exceptions, `longjmp`, `exit`). A call at the very end of a block that falls through into a landing pad,
//! a function entry or padding does not return, so that such a block's equation is open. Incoming equations
//! are never lossy. For every block, closed or not, neither sum can exceed the count.

use std::collections::HashSet;

use restitch_program::{BlockAttrs, BlockId, CallTarget, EdgeId, Program, Terminator};

/// Which flow equations hold in a program, and the incoming edges of each block.
#[derive(Debug, Clone)]
pub struct Equations {
    in_first: Vec<u32>,
    in_edges: Vec<EdgeId>,
    closed_in: Vec<bool>,
    closed_out: Vec<bool>,
}

impl Equations {
    /// The equations of `program`. Where `scope` is given, those of blocks outside of it are open.
    pub fn new(program: &Program, scope: Option<&[bool]>) -> Self {
        let (in_first, in_edges) = incoming(program);
        let called: HashSet<_> = program
            .calls
            .iter()
            .filter_map(|call| match call.target {
                CallTarget::Direct(to) => Some(to),
                CallTarget::Indirect => None,
            })
            .collect();
        let elsewhere = BlockAttrs::ENTRY | BlockAttrs::LANDING_PAD | BlockAttrs::INDIRECT;
        let in_scope = |b: BlockId| scope.is_none_or(|s| s.get(b.index()).copied().unwrap_or(false));
        let closed_in = program.block_ids().map(|id| {
            let block = program.block(id);
            in_scope(id) && !block.attrs.intersects(elsewhere) && !called.contains(&block.start)
        });
        let closed_out = program.block_ids().map(|id| in_scope(id) && all_ways_out_are_edges(program, id));
        Self { closed_in: closed_in.collect(), closed_out: closed_out.collect(), in_first, in_edges }
    }

    /// Incoming edges of `block`, by index.
    pub fn in_edges(&self, block: BlockId) -> &[EdgeId] {
        let i = block.index();
        &self.in_edges[self.in_first[i] as usize..self.in_first[i + 1] as usize]
    }
    /// Whether the block's count equals the sum of its incoming edges.
    pub fn closed_in(&self, block: BlockId) -> bool {
        self.closed_in[block.index()]
    }
    /// Whether the block's count equals the sum of its outgoing edges (apart from calls that do not return).
    pub fn closed_out(&self, block: BlockId) -> bool {
        self.closed_out[block.index()]
    }
}

/// Incoming edges in compressed rows.
fn incoming(program: &Program) -> (Vec<u32>, Vec<EdgeId>) {
    let mut first = vec![0u32; program.blocks.len() + 1];
    for edge in &program.edges {
        first[edge.to.index() + 1] += 1;
    }
    for i in 1..first.len() {
        first[i] += first[i - 1];
    }
    let mut next = first.clone();
    let mut edges = vec![EdgeId(0); program.edges.len()];
    for (id, edge) in program.edges.iter().enumerate() {
        let slot = &mut next[edge.to.index()];
        edges[*slot as usize] = EdgeId::from_index(id);
        *slot += 1;
    }
    (first, edges)
}

fn all_ways_out_are_edges(program: &Program, id: BlockId) -> bool {
    let block = program.block(id);
    match block.terminator {
        Terminator::FallThrough => block.edge_count == 1 && !ends_in_a_call_that_does_not_return(program, id),
        Terminator::Jump(_) => block.edge_count == 1,
        Terminator::Conditional(..) | Terminator::ShortConditional(_) => block.edge_count == 2,
        Terminator::Table(table) => {
            let mut targets = program.table(table).targets.clone();
            targets.retain(|to| !program.is_unreachable_entry(*to));
            targets.sort_unstable();
            targets.dedup();
            !targets.is_empty() && targets.len() == block.edge_count as usize
        }
        Terminator::IndirectJump | Terminator::Return | Terminator::Stop => false,
    }
}

fn ends_in_a_call_that_does_not_return(program: &Program, id: BlockId) -> bool {
    let block = program.block(id);
    let odd = BlockAttrs::ENTRY | BlockAttrs::LANDING_PAD | BlockAttrs::PADDING;
    program.calls_of(id).last().is_some_and(|call| call.at + u64::from(call.len) == block.end())
        && program.out_edges(id).all(|(_, edge)| program.block(edge.to).attrs.intersects(odd))
}
