//! How often blocks and edges probably run: where counters cost little.
//!
//! **Problem.** A spanning forest is as good as its weights. With the true counts a counting version of
//! cc1plus executes one counter for five blocks; with every block weighted alike, three.
//!
//! **Idea** (Ball and Larus, *Branch prediction for free*, 1993; Wu and Larus, *Static branch frequency and
//! program profile analysis*, 1994). Each branch gets a probability by what its two ways look like, and the
//! flow equations then give frequencies. They are solved by passes over the blocks in address order: forward
//! edges are done within a pass, and each further pass is one more iteration of the loops.

use crate::equations::Equations;
use crate::probabilities::shares;
use crate::repair::{EXECUTIONS_PER_SAMPLE, repair};
use crate::weights::Weights;
use restitch_program::{BlockAttrs, BlockId, Edge, EdgeId, Program};

/// Iterations of a loop that are followed.
const PASSES: usize = 12;
/// How often landing pads are entered, function entries being 1.
const LANDING: f64 = 0.001;
/// How much the guess counts against the flow over the ways of a branch: as much as a quarter of an IP sample
/// in a block of usual length does, in the unit of [`Weights::Blocks`]. (The flow is smoothed already; 400
/// and 150 give more counters, see `docs/benchmarks.md`.)
const PRIOR: f64 = 50.0;
/// Fixed point of the guess, and its upper end: below one measured execution.
const ONE: f64 = 256.0;
const MOST: u64 = MEASURED - 1;
/// What one measured execution weighs against the guess.
const MEASURED: u64 = 1 << 16;

/// Estimated executions, at least 1, so that counters that never run still count as something.
pub(crate) struct Estimate {
    blocks: Vec<u64>,
    edges: Vec<u64>,
}

impl Estimate {
    pub fn new(program: &Program, equations: &Equations, weights: Weights<'_>) -> Self {
        let mut shares = shares(program);
        if let Weights::Blocks(counts) = weights {
            correct(program, &mut shares, counts);
        }
        let guess = frequencies(program, equations, &shares);
        let fixed = |f: f64| 1 + ((f * ONE) as u64).min(MOST);
        let mut blocks: Vec<u64> = guess.iter().map(|f| fixed(*f)).collect();
        let guessed = |edge: (usize, &Edge)| fixed(guess[edge.1.from.index()] * shares[edge.0]);
        let mut edges: Vec<u64> = program.edges.iter().enumerate().map(guessed).collect();
        if let Weights::Profile(profile) = weights {
            add(&mut blocks, &profile.blocks);
            add(&mut edges, &profile.edges);
        }
        Self { blocks, edges }
    }

    pub fn block(&self, block: BlockId) -> u64 {
        self.blocks[block.index()]
    }
    pub fn edge(&self, edge: EdgeId) -> u64 {
        self.edges[edge.index()]
    }
}

fn add(weights: &mut [u64], counts: &[u64]) {
    for (weight, count) in weights.iter_mut().zip(counts) {
        *weight = weight.saturating_add(count.saturating_mul(MEASURED));
    }
}

/// Corrects the probabilities by the nearest flow to the samples ([`repair`]). Counts of blocks alone say
/// little about the ways of a branch whose targets are reached from elsewhere too. Frequencies of the
/// corrected probabilities agree with each other, which matters more than that they equal the counts: where
/// blocks and edges do not agree, the forest takes what is measured too high and leaves the rest to counters.
fn correct(program: &Program, shares: &mut [f64], counts: &[u64]) {
    let samples = |b: BlockId| {
        let count = counts.get(b.index()).copied().unwrap_or(0);
        count.saturating_mul(program.block(b).len.into()).div_ceil(EXECUTIONS_PER_SAMPLE)
    };
    let samples: Vec<u64> = program.block_ids().map(samples).collect();
    let flow = repair(program, &samples).profile;
    for block in program.block_ids() {
        let ways: Vec<(EdgeId, u64)> = program.out_edges(block).map(|(id, _)| (id, flow.edge(id))).collect();
        let all = ways.iter().map(|w| w.1).fold(0, u64::saturating_add) as f64;
        for (id, n) in ways {
            let share = &mut shares[id.index()];
            *share = (n as f64 + PRIOR * *share) / (all + PRIOR);
        }
    }
}

/// Executions of each block for one call of each function.
fn frequencies(program: &Program, equations: &Equations, shares: &[f64]) -> Vec<f64> {
    let source = |b: BlockId| match equations.closed_in(b) {
        true => 0.0,
        false if program.block(b).attrs.contains(BlockAttrs::LANDING_PAD) => LANDING,
        false => 1.0,
    };
    let sources: Vec<f64> = program.block_ids().map(source).collect();
    let mut out = vec![0.0; sources.len()];
    for _ in 0..PASSES {
        for block in program.block_ids() {
            let edges = equations.in_edges(block).iter();
            let inflow: f64 =
                edges.map(|e| out[program.edges[e.index()].from.index()] * shares[e.index()]).sum();
            out[block.index()] = sources[block.index()] + inflow;
        }
    }
    out
}
