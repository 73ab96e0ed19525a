//! Programs that no compiler writes (`restitch_testkit::odd_code`), by the whole pipeline: each prints what
//! it prints without restitch, or is refused in words. `cargo run -p restitch-fuzz --bin odd_code` tries as
//! many as you like.

mod common;

use restitch_testkit::odd_code::{Bench, Tally};
use restitch_testkit::{find_program, require, scratch};
use std::path::Path;

/// Programs tried, each as it is, recorded, optimized and instrumented.
const PROGRAMS: u64 = 120;
/// Programs that were wrong once.
const FOUND: [u64; 1] = [2_003_146];
/// Every so many are attached to and reverted as well.
const LIVE: u64 = 12;

#[test]
fn programs_that_no_compiler_writes_do_what_they_did() {
    require!(find_program("gcc"), "gcc");
    let folder = scratch();
    let bench = Bench::new(Path::new(env!("CARGO_BIN_EXE_restitch")), folder.path());
    let mut tally = Tally::default();
    for seed in (0..PROGRAMS).chain(FOUND) {
        tally.add(seed, bench.try_seed(seed, seed % LIVE == 0));
    }
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{tally}");
    // Refusing all of them would be right, too, but no test.
    assert!(tally.unusable * 10 <= tally.tried, "{tally}");
    assert!(tally.unrefused * 10 >= tally.tried * 7, "{tally}");
    let no_room = tally.refusals.keys().find(|(_, message)| message.contains("known to be dead"));
    assert!(no_room.is_none(), "there is room for a stub in all of them: {tally}");
}
