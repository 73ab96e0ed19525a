//! Time and memory of every layout on generated programs of 100,000, 300,000 and 1,000,000 executed blocks
//! with three edges each.
//!
//! ```sh
//! cargo run --release -p restitch-layout --example scale            # all layouts
//! cargo run --release -p restitch-layout --example scale stitch c3  # some
//! cargo run --release -p restitch-layout --example scale 50000      # of another size
//! ```
//!
//! Seconds are CPU time. Memory is the process's peak so far, so that it only says something for the first
//! layout that raises it.

use restitch_address::Svma;
use restitch_layout::{LayoutChoice, Score};
use restitch_profile::Profile;
use restitch_profile::testing::{Random, RandomProgram, Shape};
use restitch_program::{Block, BlockId, JumpTable, Program, TableEncoding, TableId, Terminator, build_edges};

fn main() {
    let wanted: Vec<LayoutChoice> = std::env::args().skip(1).filter_map(|name| name.parse().ok()).collect();
    let wanted = if wanted.is_empty() { LayoutChoice::all() } else { wanted };
    println!(
        "{:>9} {:>9} {:>8}  {:<21} {:>8} {:>9} {:>7}",
        "blocks", "edges", "calls", "layout", "seconds", "peak MiB", "falls"
    );
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    for blocks in if sizes.is_empty() { vec![100_000, 300_000, 1_000_000] } else { sizes } {
        // A function has 10.5 blocks on average.
        let shape = Shape { functions: blocks * 2 / 21, blocks: 20, unmovable: 0.0 };
        let program = with_switches(RandomProgram::shaped(1, shape).program);
        let profile = everything_runs(&program);
        for choice in &wanted {
            let started = cpu_seconds();
            let layout = choice.layout(&program, &profile);
            let seconds = cpu_seconds() - started;
            let falls = 100.0 * Score::of(&program, &profile, &layout).fall_through_share();
            println!(
                "{:>9} {:>9} {:>8}  {:<21} {seconds:>8.2} {:>9} {falls:>6.1}%",
                program.blocks.len(),
                program.edges.len(),
                program.calls.len(),
                choice.to_string(),
                peak_mib()
            );
        }
    }
}

/// Turns every third block's end into a switch of seven ways within its function, so that there are three
/// edges for each block.
fn with_switches(mut program: Program) -> Program {
    let mut random = Random::new(5);
    for id in (0..program.blocks.len()).step_by(3) {
        let function = &program.functions[program.blocks[id].function.index()];
        let (first, count) = (function.blocks.indices().start, function.blocks.len());
        let targets = (0..7).map(|_| program.blocks[first + random.below(count)].start).collect();
        let jump_at = program.blocks[id].end().offset(-2);
        let (table, encoding) = (Svma::new(0x10_0000), TableEncoding::Absolute8);
        let tail = Vec::new();
        program.tables.push(JumpTable {
            jump_at,
            load_at: jump_at,
            table,
            base: table,
            encoding,
            targets,
            tail,
            copyable: true,
        });
        program.blocks[id].terminator = Terminator::Table(TableId::from_index(program.tables.len() - 1));
        program.blocks[id].terminator_len = 2;
    }
    program.edges = build_edges(&mut program.blocks, &program.tables);
    program
}

/// Every block runs: each function's blocks between once and some million times, edges and calls accordingly.
fn everything_runs(program: &Program) -> Profile {
    let mut random = Random::new(9);
    let heat: Vec<usize> = program.functions.iter().map(|_| random.below(20)).collect();
    let mut count = |b: &Block| 1u64 << (heat[b.function.index()] + random.below(3));
    let blocks: Vec<u64> = program.blocks.iter().map(&mut count).collect();
    let ends = |from: BlockId, to: BlockId| blocks[from.index()].min(blocks[to.index()]).div_ceil(2);
    Profile {
        edges: program.edges.iter().map(|e| ends(e.from, e.to)).collect(),
        calls: program.calls.iter().map(|c| blocks[c.block.index()]).collect(),
        blocks,
        ..Profile::default()
    }
}

/// CPU time of this thread (`/proc/PID/schedstat`, in nanoseconds).
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
