//! AutoFDO's sample profile as text (LLVM's `SampleProf` text form).
//!
//! ```text
//! main:184019:0
//!  4: 534
//!  4.2: 534 foo:300 bar:234
//!  5: inlined:1000
//!   1: 1000
//! ```
//!
//! **What it holds.** Counts of source lines, relative to the function's first line, with inlined calls
//! nested. A binary without debug information has no lines, so what is written is `function:total:head`
//! alone: `head` is how often the function was entered, `total` the sum of its block executions. That is what
//! function order and splitting decisions of a compiler use; which way a branch goes, and where inside a
//! function time is spent, cannot be said. For those, `create_llvm_prof` of AutoFDO reads the `perf.data`
//! that restitch writes, with the program's debug information.
//!
//! **What is read** is the same: entry counts. Lines and inlined calls are passed over.

use crate::error::FormatError;
use crate::names::Names;
use crate::records::Records;
use restitch_profile::Profile;
use restitch_program::Program;
use std::cmp::Reverse;
use std::fmt::Write as _;

/// What is lost on the way out.
pub const NOTE: &str = "AutoFDO text counts source lines, which need debug information: only function totals and entry counts were \
written; for lines, give create_llvm_prof a perf.data (`--format perf.data`) and the program with its debug information";

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Read {
    /// Entries of functions.
    pub records: Records,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Reads the functions' entry counts and totals.
///
/// # Errors
/// [`FormatError::Line`] for a function line that is not `name:total:head`, or a first line that is indented.
pub fn read(text: &str, names: &Names) -> Result<Read, FormatError> {
    let mut found = Read::default();
    let (mut bodies, mut unknown, mut functions) = (0u64, 0u64, 0u64);
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: String| FormatError::Line {
            format: "AutoFDO text",
            line: number + 1,
            what,
            next: "a function is like \"main:184019:0\"; binary profiles become text with `llvm-profdata merge --sample --text`",
        };
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with([' ', '\t']) {
            if functions == 0 {
                return Err(wrong("a line of a body before any function".into()));
            }
            bodies += 1;
            continue;
        }
        let (name, total, head) = header(line).ok_or_else(|| wrong(format!("cannot read \"{line}\"")))?;
        functions += 1;
        let Some(at) = names.address_of(name) else {
            unknown += 1;
            continue;
        };
        found.records.add_branch(None, Some(at), head, 0);
        found.records.add_ip(at, total);
    }
    if bodies > 0 {
        found
            .notes
            .push(format!("{bodies} lines of function bodies count source lines and were passed over"));
    }
    if unknown > 0 {
        found.notes.push(format!("{unknown} of {functions} functions are not in the program"));
    }
    Ok(found)
}

/// `name:total:head`; names may hold colons, and contexts in brackets are a function's own name at their end.
fn header(line: &str) -> Option<(&str, u64, u64)> {
    let mut parts = line.trim_end().rsplitn(3, ':');
    let (head, total, name) = (parts.next()?, parts.next()?, parts.next()?);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let own = name.rsplit(" @ ").next().unwrap_or(name);
    Some((own, total.trim().parse().ok()?, head.trim().parse().ok()?)).filter(|_| !own.is_empty())
}

/// Writes function totals and entry counts, the largest total first.
pub fn write(program: &Program, profile: &Profile, names: &Names) -> String {
    let mut lines: Vec<(u64, u64, &str)> = Vec::new();
    for function in program.function_ids() {
        let f = program.function(function);
        let total = program.blocks_of(function).fold(0u64, |sum, b| sum.saturating_add(profile.block(b)));
        let head = profile.entries(program, function);
        if let Some(name) =
            names.linker_name_at(f.range.start).filter(|name| total > 0 && !name.starts_with(' '))
        {
            lines.push((total, head, name));
        }
    }
    lines.sort_by_key(|(total, _, name)| (Reverse(*total), *name));
    let mut out = String::new();
    for (total, head, name) in lines {
        let _ = writeln!(out, "{name}:{total}:{head}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_address::Svma;

    #[test]
    fn functions_are_read() {
        let names = Names::of([(Svma::new(16), "main"), (Svma::new(32), "foo")]);
        let read =
            read("main:184019:7\n 4: 534\n 5: inlined:9\n  1: 9\n[main:3 @ foo]:10:2\nother:5:5\n", &names)
                .unwrap();
        let count = |at: u64| read.records.branches[&(None, Some(Svma::new(at)))].count;
        assert_eq!((count(16), count(32)), (7, 2));
        assert_eq!(read.records.ips[&Svma::new(16)], 184_019);
        assert_eq!(read.notes.len(), 2);
        for bad in [" 4: 534\n", "main\n", "main:x:1\n", ":1:1\n"] {
            assert!(super::read(bad, &names).unwrap_err().to_string().contains("llvm-profdata"), "{bad}");
        }
    }
}
