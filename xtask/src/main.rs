//! Repository chores: `cargo run -p xtask -- tidy`.

use std::process::ExitCode;
use xtask::{Tree, tidy};

fn main() -> ExitCode {
    if std::env::args().skip(1).ne(["tidy".to_string()]) {
        eprintln!(
            "usage: cargo run -p xtask -- tidy\n\n  tidy  checks the repository's own rules; cargo test does so too"
        );
        return ExitCode::from(2);
    }
    let tree = match Tree::of_this_repository() {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut clean = true;
    for (name, rule) in tidy::RULES {
        for finding in rule(&tree) {
            println!("{name}: {finding}");
            clean = false;
        }
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
