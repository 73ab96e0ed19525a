//! What counting costs in counters that are executed: the measure that does not depend on the machine.
//!
//! ```sh
//! restitch instrument /usr/bin/python3 -o python3 --counts python3.counts && ./python3 script.py
//! cargo run --release -p restitch-session --example increments -- python3.counts
//! ```
//!
//! Takes counts files of instrumented programs that have run, derives the true counts, and says how many
//! counters would have been executed for each executed block if the counters had been placed by other
//! guesses.

use restitch_apply::Why;
use restitch_image::Image;
use restitch_profile::{Calls, Counted, CounterPlan, CountsFile, Profile, Weights, derive, plan_counters};
use restitch_program::{BlockAttrs, EdgeKind, Program};
use std::sync::Arc;

/// Numbers of IP samples that are simulated.
const SAMPLES: [u64; 2] = [2_000, 30_000];

fn main() -> Result<(), Why> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        return Err("usage: increments COUNTS-FILE... (see `restitch instrument --help`)".into());
    }
    paths.iter().try_for_each(|path| one(path))
}

fn one(path: &str) -> Result<(), Why> {
    let (counts, values) = CountsFile::read(&std::fs::read(path)?)?;
    let image = Arc::new(Image::parse(std::fs::read(&counts.path)?)?);
    let module = restitch_pipeline::analysis::analyze_image(image)?;
    let program = &module.program;
    let (plan, known) = counts.known(program, &values)?;
    let truth = derive(program, &known).profile;
    println!("{path}: {} block executions of {}", truth.blocks.iter().sum::<u64>(), counts.path);
    println!(
        "{:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "placed by", "counters", "executed", "in blocks", "falling", "taken", "on flags"
    );
    let placed = |weights: Weights<'_>| plan_counters(program, &plan.scope, weights, Calls::Return);
    show("the file", program, &truth, &plan);
    show("probabilities", program, &truth, &placed(Weights::Static));
    for number in SAMPLES {
        let weights = sampled(program, &truth, number);
        show(&format!("{number} samples"), program, &truth, &placed(Weights::Blocks(&weights)));
    }
    show("true counts", program, &truth, &placed(Weights::Profile(&truth)));
    Ok(())
}

/// One line: counters, and how many are executed for each executed block, by where they stand.
fn show(name: &str, program: &Program, truth: &Profile, plan: &CounterPlan) {
    let (mut blocks, mut falling, mut taken, mut flags) = (0u64, 0u64, 0u64, 0u64);
    for counted in &plan.counted {
        let (executed, into) = match *counted {
            Counted::Block(block) => {
                blocks += truth.block(block);
                (truth.block(block), block)
            }
            Counted::Edge(id) => {
                let edge = program.edges[id.index()];
                let sum = if edge.kind == EdgeKind::FallThrough { &mut falling } else { &mut taken };
                *sum += truth.edge(id);
                (truth.edge(id), edge.to)
            }
        };
        if program.block(into).attrs.contains(BlockAttrs::FLAGS_LIVE_IN) {
            flags += executed;
        }
    }
    let all = truth.blocks.iter().sum::<u64>().max(1) as f64;
    let share = |n: u64| n as f64 / all;
    println!(
        "{name:<16} {:>9} {:>9.4} {:>9.4} {:>9.4} {:>9.4} {:>9.4}",
        plan.counted.len(),
        share(blocks + falling + taken),
        share(blocks),
        share(falling),
        share(taken),
        share(flags)
    );
}

/// The weights of blocks that so many IP samples would give: a block is hit in proportion to its executions
/// times its bytes, and sessions divide by the bytes again.
fn sampled(program: &Program, truth: &Profile, number: u64) -> Vec<u64> {
    let executed = program.blocks.iter().zip(&truth.blocks);
    let mut sum = 0u128;
    let ends: Vec<u128> = executed
        .map(|(block, &count)| {
            sum += u128::from(count) * u128::from(block.len);
            sum
        })
        .collect();
    let mut weights = vec![0; program.blocks.len()];
    // Marsaglia, "Xorshift RNGs", 2003.
    let mut random = 12345u64;
    for _ in 0..number {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = (u128::from(random) * sum) >> 64;
        let hit = ends.partition_point(|&end| end <= at);
        if let Some(weight) = weights.get_mut(hit) {
            *weight += 4096 / u64::from(program.blocks[hit].len.max(1));
        }
    }
    weights
}
