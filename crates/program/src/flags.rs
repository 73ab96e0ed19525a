//! Liveness of the status flags at block starts: where a counter may overwrite them.
//!
//! A backward data-flow over blocks. Flags are dead at returns and across calls by the calling convention
//! (System V ABI 3.2.1), but hand-written assembly returns results in them, so that is verified, not assumed:
//! if code right behind any call reads flags before it writes them, the callee's returns (all returns, for an
//! indirect call) count as reads; a function that reads flags on entry makes its calls reads, which may be
//! right behind another call. Code that is not understood is asked what it does behind its calls
//! ([`crate::flag_use`]): what it may read counts.
//!
//! Limits: what is called through a pointer is taken to read none, and what is jumped to through one to leave
//! none.

use crate::address_set::Ranked;
use crate::flag_use::{FlagUse, UnknownCaller};
use crate::model::{
    Block, BlockAttrs, BlockId, CallSite, CallTarget, Edge, FuncId, Function, Movability, Terminator,
    behind_trap,
};
use crate::sweep::{Kind, Mini, Sweep};
use restitch_address::Svma;
use restitch_image::Image;
use restitch_x86::ALL_FLAGS;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Default)]
struct Transfer {
    reads: u8,
    kills: u8,
}

/// What is looked at.
pub(crate) struct Code<'a> {
    pub image: &'a Image,
    pub functions: &'a [Function],
    pub blocks: &'a [Block],
    pub edges: &'a [Edge],
    pub calls: &'a [CallSite],
    /// Starts of the blocks.
    pub starts: &'a Ranked,
    pub sweep: &'a Sweep,
    /// By block: the range of its instructions in the sweep.
    pub minis: &'a [(u32, u32)],
    /// Calls of code without blocks.
    pub unknown_callers: &'a [UnknownCaller],
}

/// By block: the flags that are live at its start.
pub(crate) fn live_in(code: &Code<'_>) -> Vec<u8> {
    let mut returns = Returns { has_labels: vec![false; code.functions.len()], ..Returns::default() };
    // What a function without blocks reads is not known, nor what code between functions does.
    returns.readers.extend(code.functions.iter().filter(|f| f.blocks.is_empty()).map(|f| f.range.start));
    let called = code.calls.iter().filter_map(|call| match call.target {
        CallTarget::Direct(to) => Some(to),
        CallTarget::Indirect => None,
    });
    let next = code.unknown_callers.iter().filter_map(|caller| match caller.then {
        FlagUse::PassedTo(to) => Some(to),
        _ => None,
    });
    returns.readers.extend(called.chain(next).filter(|to| code.is_unknown(*to)));
    for b in code.blocks.iter().filter(|b| b.attrs.contains(BlockAttrs::INDIRECT)) {
        // The lazy-binding halves of PLT stubs are labels in name only.
        returns.has_labels[b.function.index()] =
            code.functions[b.function.index()].movability != Movability::Linkage;
    }
    let predecessors = Predecessors::new(code);
    let mut transfers: Vec<Transfer> =
        (0..code.blocks.len()).map(|b| transfer(code.sweep, code.minis_of(b), &returns)).collect();
    let mut live = vec![0; code.blocks.len()];
    loop {
        solve(code, &transfers, &predecessors, &returns, &mut live);
        let found = flag_passing_calls(code, &live, &returns);
        let new_readers: BTreeSet<Svma> = found.readers.difference(&returns.readers).copied().collect();
        if !returns.learn(code, found) {
            return live;
        }
        for block in blocks_that_call(code, &new_readers) {
            transfers[block.index()] = transfer(code.sweep, code.minis_of(block.index()), &returns);
        }
    }
}

/// Functions that pass flags across calls: whose returns carry them, and whose entries read them.
#[derive(Default)]
struct Returns {
    all: bool,
    functions: BTreeSet<FuncId>,
    readers: BTreeSet<Svma>,
    /// By function: whether un-understood indirect jumps may stay inside it.
    has_labels: Vec<bool>,
}

impl Returns {
    fn learn(&mut self, code: &Code<'_>, found: Self) -> bool {
        let size = |r: &Self| (r.all, r.functions.len(), r.readers.len());
        let before = size(self);
        self.all |= found.all;
        self.readers.extend(found.readers);
        // What a function jumps to returns in its place.
        let mut new: Vec<FuncId> = found.functions.into_iter().collect();
        while let Some(function) = new.pop() {
            if self.functions.insert(function) {
                new.extend(code.jumped_to_from(function));
            }
        }
        before != size(self)
    }
}

impl Code<'_> {
    fn minis_of(&self, block: usize) -> &[Mini] {
        &self.sweep.minis[self.minis[block].0 as usize..self.minis[block].1 as usize]
    }
    /// The blocks that control goes on to from block number `block`: over edges, and behind a trap.
    fn next(&self, block: usize) -> impl Iterator<Item = usize> {
        let from = &self.blocks[block];
        let edges = &self.edges[from.first_edge.index()..][..from.edge_count as usize];
        let behind = behind_trap(self.blocks, block);
        edges.iter().map(|edge| edge.to.index()).chain(behind)
    }
    /// The function that has a block at `at`.
    fn function_at(&self, at: Svma) -> Option<FuncId> {
        Some(self.blocks[self.starts.index_of(at)?].function)
    }
    /// Whether flags are live at the block at `at`.
    fn reads_on_entry(&self, at: Svma, live: &[u8]) -> bool {
        self.starts.index_of(at).is_some_and(|block| live[block] != 0)
    }
    /// Other functions that a direct jump, a table, or the end of `function` leads to.
    fn jumped_to_from(&self, function: FuncId) -> impl Iterator<Item = FuncId> {
        let blocks = self.functions[function.index()].blocks.indices();
        let edges = blocks.flat_map(|b| {
            let block = &self.blocks[b];
            &self.edges[block.first_edge.index()..][..block.edge_count as usize]
        });
        edges.map(|edge| self.blocks[edge.to.index()].function).filter(move |to| *to != function)
    }
    /// Whether code at `to` is between functions and no linkage stub: nothing is known of what it reads.
    fn is_unknown(&self, to: Svma) -> bool {
        self.sweep.span_at(to).is_none() && self.image.plt_slot_at(to).is_none()
    }
}

/// Blocks with a direct call of one of `functions`.
fn blocks_that_call(code: &Code<'_>, functions: &BTreeSet<Svma>) -> Vec<BlockId> {
    let calls = |call: &&CallSite| match call.target {
        CallTarget::Direct(to) => functions.contains(&to),
        CallTarget::Indirect => false,
    };
    if functions.is_empty() {
        return Vec::new();
    }
    code.calls.iter().filter(calls).map(|call| call.block).collect()
}

fn transfer(sweep: &Sweep, minis: &[Mini], returns: &Returns) -> Transfer {
    let mut t = Transfer::default();
    for m in minis {
        t.reads |= m.reads & !t.kills;
        t.kills |= m.writes;
        if t.kills == ALL_FLAGS {
            break;
        }
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

/// Raises `live`, a solution for less that is read, to the smallest solution for `transfers` and `returns`.
fn solve(
    code: &Code<'_>,
    transfers: &[Transfer],
    predecessors: &Predecessors,
    returns: &Returns,
    live: &mut [u8],
) {
    live.iter_mut().zip(transfers).for_each(|(live, t)| *live |= t.reads);
    // Every block once, from the back; then the predecessors of what changed. Flags only ever become live.
    let mut pending: Vec<u32> = (0..code.blocks.len() as u32).collect();
    while let Some(b) = pending.pop() {
        let b = b as usize;
        if transfers[b].kills == ALL_FLAGS || live[b] == ALL_FLAGS {
            continue;
        }
        let new = live[b] | live_out(code, returns, live, b) & !transfers[b].kills;
        if new != live[b] {
            live[b] = new;
            pending.extend_from_slice(predecessors.of(b));
        }
    }
}

/// Source blocks of the edges into each block.
struct Predecessors {
    first: Vec<u32>,
    sources: Vec<u32>,
}

impl Predecessors {
    fn new(code: &Code<'_>) -> Self {
        let blocks = code.blocks.len();
        let ways = || (0..blocks).flat_map(|from| code.next(from).map(move |to| (from, to)));
        let mut first = vec![0u32; blocks + 1];
        for (_, to) in ways() {
            first[to + 1] += 1;
        }
        for i in 0..blocks {
            first[i + 1] += first[i];
        }
        let mut next = first.clone();
        let mut sources = vec![0; first[blocks] as usize];
        for (from, to) in ways() {
            sources[next[to] as usize] = from as u32;
            next[to] += 1;
        }
        Self { first, sources }
    }
    fn of(&self, block: usize) -> &[u32] {
        &self.sources[self.first[block] as usize..self.first[block + 1] as usize]
    }
}

fn live_out(code: &Code<'_>, returns: &Returns, live: &[u8], b: usize) -> u8 {
    let block = &code.blocks[b];
    let over_edges = live_in_next(code, live, b);
    let expected = match block.terminator {
        Terminator::Return => {
            let flags_matter = returns.all || returns.functions.contains(&block.function);
            return if flags_matter { ALL_FLAGS } else { 0 };
        }
        Terminator::Stop | Terminator::Table(_) => return over_edges,
        // Out of a function without computed-goto labels it is a tail call.
        Terminator::IndirectJump if !returns.has_labels[block.function.index()] => return 0,
        Terminator::IndirectJump => return ALL_FLAGS,
        Terminator::FallThrough | Terminator::Jump(_) => 1,
        Terminator::Conditional(..) | Terminator::ShortConditional(_) => 2,
    };
    // A successor that is not a known block may read anything.
    if block.edge_count < expected { ALL_FLAGS } else { over_edges }
}

/// The flags that are live where control goes on from block number `block`.
fn live_in_next(code: &Code<'_>, live: &[u8], block: usize) -> u8 {
    code.next(block).fold(0, |all, next| all | live[next])
}

/// Calls behind which flags are read before they are written, and calls of functions that read them on entry.
/// `known`: what was found before.
fn flag_passing_calls(code: &Code<'_>, live: &[u8], known: &Returns) -> Returns {
    let mut found = Returns::default();
    for call in code.calls {
        let target = match call.target {
            CallTarget::Direct(to) => Some(to),
            CallTarget::Indirect => None,
        };
        found.readers.extend(target.filter(|to| code.reads_on_entry(*to, live)));
        let end = code.minis[call.block.index()].1 as usize;
        let behind = code.sweep.mini_at(call.at).map_or(&[][..], |i| &code.sweep.minis[i + 1..end]);
        let behind = transfer(code.sweep, behind, known);
        // Behind a call that never returns stands unrelated code. To take it for what comes next does no harm
        // to a callee without returns; of indirect calls, whose callees may be all functions, only reads in
        // the same block count.
        let next = target.map_or(0, |_| live_in_next(code, live, call.block.index()) & !behind.kills);
        if behind.reads | next == 0 {
            continue;
        }
        match target {
            Some(target) => found.functions.extend(code.function_at(target)),
            None => found.all = true,
        }
    }
    for caller in code.unknown_callers {
        let may_read = match caller.then {
            FlagUse::Read | FlagUse::Unknown => true,
            FlagUse::Overwritten => false,
            FlagUse::PassedTo(next) => known.readers.contains(&next) || code.reads_on_entry(next, live),
        };
        match caller.target {
            Some(target) if may_read => found.functions.extend(code.function_at(target)),
            None if may_read => found.all = true,
            _ => {}
        }
    }
    found
}
