//! The probability of each way of a branch, by what its ways look like.
//!
//! Ball and Larus, *Branch prediction for free*, 1993.
//!
//! **Confession.** The probabilities below are the best of ten sets tried on exact profiles of cc1plus,
//! python3 and dash as Debian builds them (GCC puts what it believes unlikely behind the function's end or in
//! a `.cold` part). `bench/bench counting` measures the time of counting with them.

use restitch_program::{BlockAttrs, BlockId, Edge, EdgeId, EdgeKind, Program, Terminator};

/// A branch backwards goes back to the start of a loop.
const LOOP: f64 = 0.88;
/// A way that ends the program or throws, or leaves for a cold part.
const COLD: f64 = 0.01;
/// A branch to a block that stands apart: nothing falls into it.
const APART: f64 = 0.2;
/// Any other branch forwards.
const FORWARD: f64 = 0.4;

/// The probability of each edge, given that its source runs.
pub(crate) fn shares(program: &Program) -> Vec<f64> {
    let mut shares = vec![1.0; program.edges.len()];
    for block in program.block_ids() {
        let ways: Vec<(EdgeId, &Edge)> = program.out_edges(block).collect();
        match (program.block(block).terminator, &ways[..]) {
            (Terminator::Conditional(..) | Terminator::ShortConditional(_), [a, b]) => {
                let (taken, other) = if a.1.kind == EdgeKind::Taken { (a, b) } else { (b, a) };
                let share = taken_share(program, taken.1, other.1);
                shares[taken.0.index()] = share;
                shares[other.0.index()] = 1.0 - share;
            }
            (_, []) => {}
            (_, ways) => ways.iter().for_each(|(id, _)| shares[id.index()] = 1.0 / ways.len() as f64),
        }
    }
    shares
}

fn taken_share(program: &Program, taken: &Edge, other: &Edge) -> f64 {
    match (is_cold(program, taken), is_cold(program, other)) {
        (true, false) => return COLD,
        (false, true) => return 1.0 - COLD,
        _ => {}
    }
    if taken.to <= taken.from {
        LOOP
    } else if stands_apart(program, taken.to) {
        APART
    } else {
        FORWARD
    }
}

/// Whether the way leads to a block that does not return, to a landing pad, or into a part of another
/// function.
fn is_cold(program: &Program, edge: &Edge) -> bool {
    let (from, to) = (program.block(edge.from), program.block(edge.to));
    let elsewhere = from.function != to.function && !to.attrs.contains(BlockAttrs::ENTRY);
    elsewhere || to.attrs.contains(BlockAttrs::LANDING_PAD) || to.terminator == Terminator::Stop
}

/// Whether the block before it does not fall into it.
fn stands_apart(program: &Program, block: BlockId) -> bool {
    let Some(before) = block.index().checked_sub(1) else { return true };
    let falls = |(_, e): (EdgeId, &Edge)| e.kind == EdgeKind::FallThrough && e.to == block;
    !program.out_edges(BlockId::from_index(before)).any(falls)
}
