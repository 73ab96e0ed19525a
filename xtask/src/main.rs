//! Repository chores: `cargo run -p xtask -- tidy`, `... test`, `... audit DATABASE`.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use xtask::{Tree, audit, root, test_programs, tidy};

const USAGE: &str = "usage: cargo run -p xtask -- tidy | test [OPTIONS] | audit DATABASE

  tidy   checks the repository's own rules; cargo test does so too
  test   builds all test programs and runs two at a time, with the harness' OPTIONS (scripts/test)
  audit  looks the crates of Cargo.lock up in a copy of RustSec's advisory database (scripts/audit brings one)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let findings = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => broken_rules(),
        ["test", ..] => failed_tests(&arguments[1..]),
        ["audit", database] => known_faults(Path::new(database)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match findings {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            findings.iter().for_each(|finding| println!("{finding}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What breaks a rule, a line each.
fn broken_rules() -> Result<Vec<String>, Box<dyn Error>> {
    let tree = Tree::of_this_repository()?;
    let of = |(name, rule): &(&str, tidy::Rule)| {
        let said = rule(&tree).into_iter().map(|finding| format!("{name}: {finding}"));
        said.collect::<Vec<_>>()
    };
    Ok(tidy::RULES.iter().flat_map(of).collect())
}

/// What holds a test that failed, a line each.
fn failed_tests(options: &[String]) -> Result<Vec<String>, Box<dyn Error>> {
    let failed = test_programs::run_all(root(), options)?;
    Ok(failed.into_iter().map(|name| format!("failed: {name}")).collect())
}

/// Crates with advisories, a line each. Says how many were looked up.
fn known_faults(database: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let lock = root().join("Cargo.lock");
    let text = std::fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let found = audit::audit(&audit::locked(&text)?, database)?;
    let (crates, known, apply) = (found.crates, found.advisories, found.findings.len());
    println!(
        "{crates} crates in Cargo.lock, {known} advisories on some version of them, {apply} on those used"
    );
    Ok(found.findings)
}
