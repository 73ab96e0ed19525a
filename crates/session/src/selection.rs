//! Which functions a counting version holds: those with samples, and around them the functions that sampling missed.
//!
//! "Not sampled" does not mean "cold": with a few thousand samples most of the functions that run have none. So the sampled
//! functions are joined by their direct callers and callees, step by step, and by the parts that branch into them.

use restitch_address::Svma;
use restitch_program::{CallTarget, FuncId, Program};
use std::collections::BTreeMap;

/// How far around the sampled functions to go.
pub(crate) const RINGS: usize = 2;

/// What sampling says of one program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Weights {
    /// Samples by function.
    pub functions: Vec<u64>,
    /// Estimated executions by block: samples over length, scaled.
    pub blocks: Vec<u64>,
}

/// Assigns samples to functions and blocks.
pub(crate) fn weigh(program: &Program, samples: &BTreeMap<Svma, u64>) -> Weights {
    let mut out =
        Weights { functions: vec![0; program.functions.len()], blocks: vec![0; program.blocks.len()] };
    for (&at, &n) in samples {
        if let Some(f) = program.function_at(at) {
            out.functions[f.index()] += n;
        }
        if let Some(b) = program.block_at(at) {
            // A block of `len` bytes is hit in proportion to its executions times its length.
            out.blocks[b.index()] += n * 4096 / u64::from(program.block(b).len.max(1));
        }
    }
    out
}

/// The functions to count, in address order.
pub(crate) fn select(program: &Program, weights: &Weights) -> Vec<FuncId> {
    let mut chosen: Vec<bool> = weights.functions.iter().map(|n| *n > 0).collect();
    let links = Links::of(program);
    for _ in 0..RINGS {
        let ring: Vec<usize> =
            (0..chosen.len()).filter(|f| chosen[*f]).flat_map(|f| links.of_function(f)).collect();
        for f in ring {
            chosen[f] = true;
        }
    }
    program.function_ids().filter(|f| chosen[f.index()]).collect()
}

/// Functions that call or branch to each other, both ways.
struct Links {
    pairs: Vec<(u32, u32)>,
}

impl Links {
    fn of(program: &Program) -> Self {
        let mut pairs = Vec::new();
        for call in &program.calls {
            if let CallTarget::Direct(target) = call.target
                && let Some(callee) = program.function_at(target)
            {
                pairs.push((program.block(call.block).function.0, callee.0));
            }
        }
        for edge in &program.edges {
            let (from, to) = (program.block(edge.from).function.0, program.block(edge.to).function.0);
            if from != to {
                pairs.push((from, to));
            }
        }
        let back: Vec<_> = pairs.iter().map(|&(a, b)| (b, a)).collect();
        pairs.extend(back);
        pairs.sort_unstable();
        pairs.dedup();
        Self { pairs }
    }

    fn of_function(&self, f: usize) -> impl Iterator<Item = usize> + '_ {
        let from = self.pairs.partition_point(|p| (p.0 as usize) < f);
        self.pairs[from..].iter().take_while(move |p| p.0 as usize == f).map(|p| p.1 as usize)
    }
}
