//! Which crate may depend on which.

use super::{DECODING, EDGE, PURE};
use crate::{Finding, Tree};

/// The crates by layer, lowest first: a crate may depend on crates of lower layers only.
pub const LAYERS: [&[&str]; 21] = [
    &["address", "demo-workload", "preload", "report", "testkit"],
    &["guest", "x86"],
    &["procfs"],
    &["perf"],
    &["tracee"],
    &["cfi", "image", "kernel", "kernel-check", "kernel-group"],
    &["evaluate", "kernel-control", "program"],
    &["branch-table"],
    &["profile"],
    &["profile-formats"],
    &["layout"],
    &["kernel-position", "lab"],
    &["emit"],
    &["check"],
    &["apply"],
    &["apply-elf", "apply-preload", "apply-process"],
    &["trace"],
    &["pipeline"],
    &["batch", "processes"],
    &["recording"],
    &["session", "cli"],
];

/// Crates that are for tests: a table of branches that `trace` is compared with, and what tests share.
pub const DEVELOPMENT: [&str; 2] = ["branch-table", "testkit"];

/// Checkers, and what they share no code with: what makes what they check.
const APART: [(&str, &[&str]); 2] = [("check", &["x86"]), ("kernel-check", &["kernel-group", "x86"])];

/// Crates outside the workspace that reach the operating system.
const SYSTEM: [&str; 4] = ["libc", "memmap2", "perf-event-open-sys", "nix"];

/// Dependencies point downwards; crates that compute depend on nothing that reaches out; checkers share no
/// code with what makes what they check.
pub fn layers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let Some(krate) = file.krate() else { continue };
        let finding = |what: String| Finding { path: file.path.clone(), line: 0, what };
        let manifest = match file.text.parse::<toml::Table>() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.push(finding(format!("not readable: {error}")));
                continue;
            }
        };
        let Some(own) = layer(krate) else {
            findings.push(finding("in no layer; add the crate to LAYERS in xtask/src/tidy/layers.rs".into()));
            continue;
        };
        for name in dependencies(&manifest) {
            let problem = match name.strip_prefix("restitch-") {
                Some(other) => internal(krate, own, other),
                None => external(krate, &name),
            };
            findings.extend(problem.map(finding));
        }
    }
    findings
}

/// The layer of a crate; `cli` stands above `session`, in whose row it is.
fn layer(krate: &str) -> Option<usize> {
    let row = LAYERS.iter().position(|row| row.contains(&krate))?;
    Some(if krate == "cli" { row + 1 } else { row })
}

/// The names in `[dependencies]`, `[build-dependencies]` and their target-specific forms. Tests may look
/// anywhere.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut tables = vec![manifest];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    tables.extend(targets.into_iter().flat_map(|t| t.values()).filter_map(toml::Value::as_table));
    tables
        .iter()
        .flat_map(|table| [table.get("dependencies"), table.get("build-dependencies")])
        .filter_map(|value| value?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

fn internal(krate: &str, own: usize, other: &str) -> Option<String> {
    let Some(theirs) = layer(other) else {
        return Some(format!("depends on restitch-{other}, which is in no layer"));
    };
    if theirs >= own {
        return Some(format!("{krate} may not depend on {other}: dependencies point downwards only"));
    }
    if DEVELOPMENT.contains(&other) {
        return Some(format!("{krate} may not depend on {other}, which is for tests: [dev-dependencies]"));
    }
    if PURE.contains(&krate) && EDGE.contains(&other) {
        return Some(format!("{krate} only computes and may not depend on {other}"));
    }
    let is_own = |(checker, _): &&(&str, &[&str])| *checker == krate;
    let apart = APART.iter().find(is_own).filter(|(_, from)| from.contains(&other));
    apart.map(|_| format!("{krate} may not share the code of what it checks: {other}"))
}

fn external(krate: &str, name: &str) -> Option<String> {
    if PURE.contains(&krate) && SYSTEM.contains(&name) {
        return Some(format!("{krate} only computes and may not depend on {name}"));
    }
    (name == "iced-x86" && !DECODING.contains(&krate))
        .then(|| format!("{krate} may not depend on iced-x86: instructions are decoded in x86 and checkers"))
}
