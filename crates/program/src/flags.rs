//! Liveness of the status flags at block starts: where a counter may overwrite them.
//!
//! A backward data-flow over blocks. Flags are dead at returns and across calls by the calling convention
//! (System V ABI 3.2.1), but hand-written assembly returns results in them, so that is verified, not assumed: if code
//! right behind any call reads flags before it writes them, the callee's returns (all returns, for an indirect call)
//! count as reads; a function that reads flags on entry makes its calls reads.

use crate::model::{Block, BlockAttrs, Edge, Function, Movability, Terminator};
use crate::sweep::{Kind, Mini, Sweep};
use restitch_address::Svma;
use restitch_x86::ALL_FLAGS;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Default)]
struct Transfer {
    reads: u8,
    kills: u8,
}

/// Marks [`BlockAttrs::FLAGS_LIVE_IN`]. `minis[b]` is the range of the block's instructions in the sweep.
pub(crate) fn mark(
    functions: &[Function],
    blocks: &mut [Block],
    edges: &[Edge],
    sweep: &Sweep,
    minis: &[(u32, u32)],
) {
    let mut returns = Returns { has_labels: vec![false; functions.len()], ..Returns::default() };
    // What a function without blocks reads is not known.
    returns.readers.extend(functions.iter().filter(|f| f.blocks.is_empty()).map(|f| f.range.start));
    for b in blocks.iter().filter(|b| b.attrs.contains(BlockAttrs::INDIRECT)) {
        // The lazy-binding halves of PLT stubs are labels in name only.
        returns.has_labels[b.function.index()] =
            functions[b.function.index()].movability != Movability::Linkage;
    }
    let predecessors = Predecessors::new(blocks.len(), edges);
    loop {
        let live = solve(blocks, edges, sweep, minis, &predecessors, &returns);
        let found = flag_passing_calls(blocks, sweep, minis, &live);
        if !returns.learn(found) {
            for (block, live) in blocks.iter_mut().zip(&live) {
                block.attrs.set(BlockAttrs::FLAGS_LIVE_IN, *live != 0);
            }
            return;
        }
    }
}

/// Functions that pass flags across calls: whose returns carry them, and whose entries read them.
#[derive(Default)]
struct Returns {
    all: bool,
    functions: BTreeSet<Svma>,
    readers: BTreeSet<Svma>,
    /// By function: whether un-understood indirect jumps may stay inside it.
    has_labels: Vec<bool>,
}

impl Returns {
    fn learn(&mut self, found: Self) -> bool {
        let size = |r: &Self| (r.all, r.functions.len(), r.readers.len());
        let before = size(self);
        self.all |= found.all;
        self.functions.extend(found.functions);
        self.readers.extend(found.readers);
        before != size(self)
    }
}

fn minis_of<'a>(sweep: &'a Sweep, minis: &[(u32, u32)], block: usize) -> &'a [Mini] {
    &sweep.minis[minis[block].0 as usize..minis[block].1 as usize]
}

fn transfer(sweep: &Sweep, minis: &[Mini], returns: &Returns) -> Transfer {
    let mut t = Transfer::default();
    for m in minis {
        t.reads |= m.reads & !t.kills;
        t.kills |= m.writes;
        if matches!(m.kind, Kind::Call | Kind::IndirectCall) {
            let target = if returns.readers.is_empty() { None } else { sweep.target_of(sweep.address(m)) };
            if target.is_some_and(|t| returns.readers.contains(&t)) {
                t.reads |= ALL_FLAGS & !t.kills;
            }
            t.kills = ALL_FLAGS;
        }
    }
    t
}

fn solve(
    blocks: &[Block],
    edges: &[Edge],
    sweep: &Sweep,
    minis: &[(u32, u32)],
    predecessors: &Predecessors,
    returns: &Returns,
) -> Vec<u8> {
    let transfers: Vec<Transfer> =
        (0..blocks.len()).map(|b| transfer(sweep, minis_of(sweep, minis, b), returns)).collect();
    let mut live: Vec<u8> = transfers.iter().map(|t| t.reads).collect();
    // Every block once, from the back; then the predecessors of what changed. Flags only ever become live.
    let mut pending: Vec<u32> = (0..blocks.len() as u32).collect();
    while let Some(b) = pending.pop() {
        let b = b as usize;
        if transfers[b].kills == ALL_FLAGS || live[b] == ALL_FLAGS {
            continue;
        }
        let new = live[b] | live_out(blocks, edges, sweep, returns, &live, b) & !transfers[b].kills;
        if new != live[b] {
            live[b] = new;
            pending.extend_from_slice(predecessors.of(b));
        }
    }
    live
}

/// Source blocks of the edges into each block.
struct Predecessors {
    first: Vec<u32>,
    sources: Vec<u32>,
}

impl Predecessors {
    fn new(blocks: usize, edges: &[Edge]) -> Self {
        let mut first = vec![0u32; blocks + 1];
        for e in edges {
            first[e.to.index() + 1] += 1;
        }
        for i in 0..blocks {
            first[i + 1] += first[i];
        }
        let mut next = first.clone();
        let mut sources = vec![0; edges.len()];
        for e in edges {
            sources[next[e.to.index()] as usize] = e.from.0;
            next[e.to.index()] += 1;
        }
        Self { first, sources }
    }
    fn of(&self, block: usize) -> &[u32] {
        &self.sources[self.first[block] as usize..self.first[block + 1] as usize]
    }
}

fn live_out(blocks: &[Block], edges: &[Edge], sweep: &Sweep, returns: &Returns, live: &[u8], b: usize) -> u8 {
    let block = &blocks[b];
    let over_edges = edges[block.first_edge.index()..][..block.edge_count as usize]
        .iter()
        .fold(0, |a, e| a | live[e.to.index()]);
    let expected = match block.terminator {
        Terminator::Return => {
            let flags_matter = returns.all
                || sweep
                    .span_at(block.start)
                    .is_some_and(|s| returns.functions.contains(&sweep.spans[s].range.start));
            return if flags_matter { ALL_FLAGS } else { 0 };
        }
        Terminator::Stop => return 0,
        // Out of a function without computed-goto labels it is a tail call.
        Terminator::IndirectJump if !returns.has_labels[block.function.index()] => return 0,
        Terminator::IndirectJump => return ALL_FLAGS,
        Terminator::Table(_) => return over_edges,
        Terminator::FallThrough | Terminator::Jump(_) => 1,
        Terminator::Conditional(..) | Terminator::ShortConditional(_) => 2,
    };
    // A successor that is not a known block may read anything.
    if block.edge_count < expected { ALL_FLAGS } else { over_edges }
}

/// Calls behind which flags are read before they are written, and calls of functions that read them on entry.
fn flag_passing_calls(blocks: &[Block], sweep: &Sweep, minis: &[(u32, u32)], live: &[u8]) -> Returns {
    let mut found = Returns::default();
    for b in 0..blocks.len() {
        let minis = minis_of(sweep, minis, b);
        for (i, call) in
            minis.iter().enumerate().filter(|(_, m)| matches!(m.kind, Kind::Call | Kind::IndirectCall))
        {
            let target = sweep.target_of(sweep.address(call)).filter(|_| call.kind == Kind::Call);
            if let Some(t) = target
                && let Ok(entry) = blocks.binary_search_by_key(&t, |b| b.start)
                && live[entry] != 0
            {
                found.readers.insert(t);
            }
            // Only reads in the same block count: behind a call that never returns stands unrelated code.
            if transfer(sweep, &minis[i + 1..], &found).reads == 0 {
                continue;
            }
            match target {
                Some(target) => found.functions.insert(target),
                None => std::mem::replace(&mut found.all, true),
            };
        }
    }
    found
}
