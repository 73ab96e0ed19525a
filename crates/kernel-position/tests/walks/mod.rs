//! Walks through functions at random: how often each block and way is taken, what the counters of these would
//! say, and whether all follows from that.

use restitch_address::Svma;
use restitch_kernel::{Code, FunctionId, Kernel};
use restitch_kernel_position::{CountedPlace, Counting};
use std::collections::BTreeMap;

/// What walks have passed.
#[derive(Default)]
struct Passed {
    blocks: BTreeMap<Svma, u64>,
    ways: BTreeMap<(Svma, Svma), u64>,
}

/// Numbers at random, the same ones for a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Walks some times through each function, and asserts that its counts follow from its counters.
pub fn are_counted(kernel: &Kernel, functions: &[FunctionId], counting: &Counting, seed: u64) {
    let (mut passed, mut random) = (Passed::default(), Random(seed));
    for function in functions {
        let code = kernel.code(*function);
        let entry = code.block_at(kernel.functions.get(*function).start()).unwrap();
        (0..20).for_each(|_| passed.walk(&code, entry, &mut random));
    }
    let value = |place: &CountedPlace| match place {
        CountedPlace::Block(block) => passed.blocks.get(block),
        CountedPlace::Way { from, to } => passed.ways.get(&(*from, *to)),
    };
    let counted = counting.counted();
    let values: Vec<u64> = counted.iter().map(|place| value(place).copied().unwrap_or(0)).collect();
    for function in counting.counts(&values) {
        for block in &function.blocks {
            let true_count = passed.blocks.get(&block.range.start).copied().unwrap_or(0);
            assert_eq!(block.count, true_count, "{} at {}", function.name, block.range.start);
        }
        for way in &function.edges {
            let true_count = passed.ways.get(&(way.from, way.to)).copied().unwrap_or(0);
            assert!(way.is_exact && way.count == true_count, "{}: {way:?}, {true_count}", function.name);
        }
    }
}

impl Passed {
    /// One walk from an entry until it leaves the function; one that does not end soon is not counted.
    fn walk(&mut self, code: &Code, entry: usize, random: &mut Random) {
        const MOST: usize = 4000;
        let (mut at, mut way) = (entry, vec![entry]);
        loop {
            let leave = code.edges.iter().filter(|edge| edge.from == Some(at));
            let leave: Vec<_> = leave.collect();
            if way.len() > MOST || leave.is_empty() {
                return;
            }
            let Some(to) = leave[random.below(leave.len())].to else { break };
            way.push(to);
            at = to;
        }
        let start = |block: usize| code.blocks[block].range.start;
        way.iter().for_each(|block| *self.blocks.entry(start(*block)).or_default() += 1);
        for pair in way.windows(2) {
            *self.ways.entry((start(pair[0]), start(pair[1]))).or_default() += 1;
        }
    }
}
