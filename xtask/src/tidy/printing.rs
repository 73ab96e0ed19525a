//! What is printed goes through one place, where names are made harmless to terminals.

use crate::{File, Finding, Tree, code_only};

/// Where that is.
const PLACE: &str = "crates/cli/src/print.rs";
/// Programs that print what they make themselves, and tools that tests and examples run.
const OTHER_PROGRAMS: [&str; 3] = ["demo-workload", "guest", "testkit"];
/// Files of tests alone, which are declared so elsewhere.
const TEST_FILES: &str = "/oracle_tests.rs";
/// The standard library's ways out. The command line's crate has macros of its own under the first names.
const MACROS: [&str; 5] = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];
const STREAMS: [&str; 2] = ["stdout()", "stderr()"];

/// No crate writes to standard output or standard error but by the command line's macros.
pub fn printing(tree: &Tree) -> Vec<Finding> {
    let is_other = |file: &&File| {
        file.is_product()
            && file.path != PLACE
            && !file.path.ends_with(TEST_FILES)
            && !file.krate().is_some_and(|krate| OTHER_PROGRAMS.contains(&krate))
    };
    tree.rust().filter(is_other).flat_map(prints).collect()
}

fn prints(file: &File) -> Vec<Finding> {
    let macros: &[&str] = if file.krate() == Some("cli") { &["dbg!"] } else { &MACROS };
    let code = code_only(file.before_tests());
    let finds = |line: &str| macros.iter().chain(&STREAMS).any(|word| names(line, word));
    let found = code.lines().enumerate().filter(|(_, line)| finds(line));
    let what = || format!("prints past {PLACE}: give the text to the caller, or use the macros from there");
    found.map(|(number, _)| Finding { path: file.path.clone(), line: number + 1, what: what() }).collect()
}

/// Whether `word` stands in `line`, not as a part of a longer one and not as a method.
fn names(line: &str, word: &str) -> bool {
    let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_.".contains(c));
    line.match_indices(word).any(|(at, _)| begins(at))
}
