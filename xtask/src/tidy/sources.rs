//! Rules about Rust source.

use super::{DECODING, EDGE, PURE};
use crate::{File, Finding, Tree, code_only, heads_behind};

/// Lines that a source file may have before its unit tests.
const MOST_LINES: usize = 799;

/// Parts of the standard library that reach out of the process.
const OUTSIDE: [&str; 4] = ["fs", "net", "os", "process"];

/// `unsafe` is written in the crates of the operating-system edge only, tests included.
pub fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let elsewhere = tree.rust().filter(|file| !file.krate().is_some_and(|krate| EDGE.contains(&krate)));
    words(elsewhere, "unsafe", "unsafe code belongs into procfs, tracee, perf or preload")
}

/// The decoder's crate is named in [`DECODING`] only, so that another instruction set is one more crate.
pub fn decoder(tree: &Tree) -> Vec<Finding> {
    let elsewhere =
        tree.rust().filter(|file| file.is_product() && !file.krate().is_some_and(|k| DECODING.contains(&k)));
    words(elsewhere, "iced_x86", "instructions are decoded in crate x86 (and, independently, in checkers)")
}

fn words<'a>(files: impl Iterator<Item = &'a File>, word: &str, what: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in code_only(&file.text).lines().enumerate() {
            if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word) {
                findings.push(Finding { path: file.path.clone(), line: number + 1, what: what.into() });
            }
        }
    }
    findings
}

/// Crates that compute use neither files, processes, networks nor the operating system's types.
pub fn no_io(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|f| f.is_product() && f.krate().is_some_and(|k| PURE.contains(&k))) {
        let code = code_only(file.before_tests());
        for (at, name) in heads_behind("std::", &code) {
            if OUTSIDE.contains(&name) {
                let what =
                    format!("std::{name} in a crate that only computes: take bytes or a closure instead");
                findings.push(Finding { path: file.path.clone(), line: line_of(&code, at), what });
            }
        }
    }
    findings
}

/// The size of a page is written once; the agent, which uses no crate, has its own.
pub fn page_size(tree: &Tree) -> Vec<Finding> {
    const PLACES: [&str; 2] = ["crates/address/", "crates/preload/src/format.rs"];
    const AGENT: &str = "crates/preload/agent/";
    let elsewhere = tree.rust().filter(|file| {
        let is_product = file.is_product() || file.path.starts_with(AGENT);
        is_product && !PLACES.iter().any(|place| file.path.starts_with(place))
    });
    let mut findings = Vec::new();
    for file in elsewhere {
        for (number, line) in code_only(file.before_tests()).lines().enumerate() {
            let declared = line.contains("const PAGE: ") && line.contains("= 4096");
            let rounded = ["align_up(4096", "align_down(4096", "multiple_of(4096", "& !4095"];
            if declared || rounded.iter().any(|word| line.contains(word)) {
                let what = "the size of a page is restitch_address::PAGE (in the agent format::PAGE)".into();
                findings.push(Finding { path: file.path.clone(), line: number + 1, what });
            }
        }
    }
    findings
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Columns of a line, as rustfmt.toml has it.
const WIDTH: usize = 110;

/// Descriptors are looked up in the thread's own table: one that traces has descriptors of its own
/// (`restitch_tracee::own_descriptors`), and a number means another file, or none, in the others'.
pub fn descriptor_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.is_product()) {
        for (number, line) in file.before_tests().lines().enumerate() {
            if line.contains("/proc/self/fd") {
                let what = "descriptors are at /proc/thread-self/fd: a thread may have its own".into();
                findings.push(Finding { path: file.path.clone(), line: number + 1, what });
            }
        }
    }
    findings
}

/// Threads are started by `std::thread::Builder`, which gives an error where a user may have no more of them;
/// the functions beside it panic then. (The demo's program and what tests use are not product.)
pub fn threads(tree: &Tree) -> Vec<Finding> {
    const OUTSIDE: [&str; 2] = ["crates/demo-workload/", "crates/testkit/"];
    let mut findings = Vec::new();
    for file in tree
        .rust()
        .filter(|file| file.is_product() && !OUTSIDE.iter().any(|krate| file.path.starts_with(krate)))
    {
        for (number, line) in code_only(file.before_tests()).lines().enumerate() {
            if line.contains("thread::spawn(") || line.contains("scope.spawn(") {
                let what =
                    "a thread that cannot be started is no panic: start it by std::thread::Builder".into();
                findings.push(Finding { path: file.path.clone(), line: number + 1, what });
            }
        }
    }
    findings
}

/// A source file has fewer than 800 lines before its tests.
pub fn length(tree: &Tree) -> Vec<Finding> {
    let sources = tree.rust().filter(|file| file.path.contains("/src/") || file.path.contains("/build/"));
    sources
        .map(|file| (file, file.before_tests().lines().count()))
        .filter(|&(_, lines)| lines > MOST_LINES)
        .map(|(file, lines)| Finding {
            path: file.path.clone(),
            line: lines,
            what: format!("{lines} lines before its tests; split it (at most {MOST_LINES})"),
        })
        .collect()
}

/// Comments keep to the width that code keeps to, apart from tables, examples and single words of code.
pub fn comment_width(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let mut fenced = false;
        for (i, line) in file.text.lines().enumerate() {
            let Some(text) = comment(line) else {
                fenced = false;
                continue;
            };
            fenced ^= text.starts_with("```");
            if !fenced && !text.starts_with('|') && line.chars().count() > WIDTH && is_breakable(text) {
                let what = format!("a comment of more than {WIDTH} columns");
                findings.push(Finding { path: file.path.clone(), line: i + 1, what });
            }
        }
    }
    findings
}

/// What a line says that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark))?;
    Some(text.trim())
}

/// Whether there is a space outside of spans of code.
fn is_breakable(text: &str) -> bool {
    text.split('`').step_by(2).any(|outside| outside.trim().contains(' '))
}
