//! Tries restitch on programs that no compiler writes ([`restitch_testkit::odd_code`]), for as long as is
//! asked:
//!
//! ```text
//! cargo build --release -p restitch
//! cargo run --release -p restitch-fuzz --bin odd_code -- target/release/restitch 0 100000
//! ```
//!
//! Arguments: restitch, the first seed, how many; then, if wanted, every which program is attached to as well
//! (20; 0: none). One argument, a seed, prints its program. Ends with 1 if any program was wrong.

use restitch_testkit::odd_code::{Bench, OddProgram, Tally, Verdict};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Which programs are tried.
struct Seeds {
    next: AtomicU64,
    end: u64,
    /// Every so many are attached to.
    live: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|text| text.parse::<u64>().ok());
    match (number(0), number(1), number(2)) {
        (Some(seed), None, None) => {
            let program = OddProgram::generate(seed);
            println!("# {:?}\n{}", program.linking, program.assembly);
            ExitCode::SUCCESS
        }
        (None, Some(first), Some(count)) => {
            let (next, end) = (AtomicU64::new(first), first.saturating_add(count));
            try_all(Path::new(&arguments[0]), &Seeds { next, end, live: number(3).unwrap_or(20) })
        }
        _ => {
            eprintln!("usage: odd_code RESTITCH FIRST COUNT [EVERY], or odd_code SEED");
            ExitCode::from(2)
        }
    }
}

fn try_all(restitch: &Path, seeds: &Seeds) -> ExitCode {
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| work(restitch, seeds, &tally));
        }
    });
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    print!("{tally}");
    if tally.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn work(restitch: &Path, seeds: &Seeds, tally: &Mutex<Tally>) {
    let folder = restitch_testkit::scratch();
    let bench = Bench::new(restitch, folder.path());
    loop {
        let seed = seeds.next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end {
            return;
        }
        let live = seeds.live != 0 && seed.is_multiple_of(seeds.live);
        let verdict = bench.try_seed(seed, live);
        if let Verdict::Wrong(step, what) = &verdict {
            eprintln!("seed {seed}: {step}: {what}");
        }
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.add(seed, verdict);
        if tally.tried.is_multiple_of(1000) {
            eprintln!("{tally}");
        }
    }
}
