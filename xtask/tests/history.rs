//! What the history of the repository has to show.

use std::collections::BTreeSet;
use std::process::Command;

/// Results that were changed after they had been added, before this was held.
const CHANGED: [&str; 5] = [
    "bench/results/2026-11-29-simulated-kernel-counts.md",
    "bench/results/2026-11-29-simulated-kernel-footprint.md",
    "bench/results/2026-11-29-simulated-kernel-groups-in-force.md",
    "bench/results/2026-11-29-xeon-attach-after-the-split.md",
    "bench/results/2026-11-30-simulated-kernel-and-autofdo.md",
];

/// What one machine printed one day is written once; what is found out later is a file of its own. (Their
/// list is no result.)
#[test]
fn results_are_written_once() {
    let mut git = Command::new("git");
    git.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    git.args(["log", "--diff-filter=M", "--format=", "--name-only", "--", "bench/results/*.md"]);
    let Some(log) = git.output().ok().filter(|done| done.status.success()) else {
        return println!("SKIPPED: there is no history here, as in a package of the sources");
    };
    let log = String::from_utf8(log.stdout).expect("names are text");
    let changed: BTreeSet<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    let known = |path: &str| CHANGED.contains(&path) || path == "bench/results/README.md";
    let new: Vec<&str> = changed.into_iter().filter(|path| !known(path)).collect();
    assert!(new.is_empty(), "changed after they were added; write a new file instead: {new:?}");
}
