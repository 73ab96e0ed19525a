//! Repository chores: `cargo run -p xtask -- tidy`, `cargo run -p xtask -- test`.

use std::io;
use std::process::ExitCode;
use xtask::{Tree, root, test_programs, tidy};

const USAGE: &str = "usage: cargo run -p xtask -- tidy | test [OPTIONS]

  tidy  checks the repository's own rules; cargo test does so too
  test  builds all test programs and runs two at a time, with the harness' OPTIONS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let clean = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => follows_rules(),
        ["test", ..] => test_programs::run_all(root(), &arguments[1..]),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match clean {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no rule is broken; what breaks one is printed.
fn follows_rules() -> io::Result<bool> {
    let tree = Tree::of_this_repository()?;
    let mut clean = true;
    for (name, rule) in tidy::RULES {
        for finding in rule(&tree) {
            println!("{name}: {finding}");
            clean = false;
        }
    }
    Ok(clean)
}
