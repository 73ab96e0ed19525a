//! The textual form of a [`Profile`]: for tests and dumps.
//!
//! ```text
//! block 0x1000 = 1001
//! edge 0x1000 fall 0x1010 = 1000
//! call 0x1004 = 1001
//! target 0x1004 0x2000 = 990
//! path 0x1000 fall 0x1010 taken 0x1030 = 800
//! together 0x1000 0x1030 = 12
//! ```
//!
//! One count a line, zeros left out, `#` begins a comment. Edges name the starts of their blocks, and `fall`,
//! `taken` or `table`; targets name an indirect call and what it called; paths name two edges that follow
//! each other; together, two blocks and the windows in which both ran.

use std::fmt::Write as _;

use restitch_address::Svma;
use restitch_program::{CallTarget, EdgeKind, Program};

use crate::model::Profile;
use crate::store::{ModuleProfile, find_edge, find_path};

/// A line that is not in the textual form of a profile, or has no place in the program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "profile text, line {line}: {what}; a line is like \"block 0x1000 = 7\" or \"edge 0x1000 taken 0x1020 = 7\""
)]
pub struct ProfileTextError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

const KINDS: [(EdgeKind, &str); 3] =
    [(EdgeKind::FallThrough, "fall"), (EdgeKind::Taken, "taken"), (EdgeKind::Table, "table")];

impl Profile {
    /// The textual form; the profile must be parallel to the tables of `program`.
    pub fn to_text(&self, program: &Program) -> String {
        let sparse = ModuleProfile::of(program, self, &[], "");
        let mut out = String::new();
        for (at, count) in &sparse.blocks {
            let _ = writeln!(out, "block {at} = {count}");
        }
        for ((from, to, kind), count) in &sparse.edges {
            let _ = writeln!(out, "edge {from} {} {to} = {count}", name(*kind));
        }
        for (at, count) in &sparse.calls {
            let _ = writeln!(out, "call {at} = {count}");
        }
        for ((at, to), count) in &sparse.targets {
            let _ = writeln!(out, "target {at} {to} = {count}");
        }
        for ((from, first, at, second, to), count) in &sparse.paths {
            let _ = writeln!(out, "path {from} {} {at} {} {to} = {count}", name(*first), name(*second));
        }
        for ((a, b), count) in &sparse.temporal_affinity {
            let _ = writeln!(out, "together {a} {b} = {count}");
        }
        out
    }

    /// Reads the textual form of a profile of `program`.
    pub fn from_text(text: &str, program: &Program) -> Result<Profile, ProfileTextError> {
        let mut sparse = ModuleProfile::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                read_line(line, program, &mut sparse)
                    .map_err(|what| ProfileTextError { line: number + 1, what })?;
            }
        }
        Ok(sparse.resolve(program).0)
    }
}

fn read_line(line: &str, program: &Program, sparse: &mut ModuleProfile) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (exists, slot, count) = match words[..] {
        ["block", at, "=", count] => {
            let at = svma(at)?;
            (program.block_starting_at(at).is_some(), sparse.blocks.entry(at).or_default(), count)
        }
        ["call", at, "=", count] => {
            let at = svma(at)?;
            let exists = program.calls.binary_search_by_key(&at, |c| c.at).is_ok();
            (exists, sparse.calls.entry(at).or_default(), count)
        }
        ["target", at, to, "=", count] => {
            let at = svma(at)?;
            let to = svma(to)?;
            let indirect = |i: usize| program.calls[i].target == CallTarget::Indirect;
            let exists = program.calls.binary_search_by_key(&at, |c| c.at).is_ok_and(indirect);
            (exists, sparse.targets.entry((at, to)).or_default(), count)
        }
        ["together", a, b, "=", count] => {
            let (a, b) = (svma(a)?, svma(b)?);
            let exists = [a, b].into_iter().all(|at| program.block_starting_at(at).is_some()) && a < b;
            (exists, sparse.temporal_affinity.entry((a, b)).or_default(), count)
        }
        ["edge", from, kind, to, "=", count] => {
            let key = (svma(from)?, svma(to)?, kind_of(kind, line)?);
            (find_edge(program, key.0, key.1, key.2).is_some(), sparse.edges.entry(key).or_default(), count)
        }
        ["path", from, first, at, second, to, "=", count] => {
            let key = (svma(from)?, kind_of(first, line)?, svma(at)?, kind_of(second, line)?, svma(to)?);
            (find_path(program, key).is_some(), sparse.paths.entry(key).or_default(), count)
        }
        _ => return Err(format!("cannot read \"{line}\"")),
    };
    if !exists {
        return Err(format!("the program has no such place: \"{line}\""));
    }
    *slot = slot.saturating_add(number(count)?);
    Ok(())
}

fn name(kind: EdgeKind) -> &'static str {
    KINDS.iter().find(|(k, _)| *k == kind).map_or("", |(_, name)| name)
}

fn kind_of(name: &str, line: &str) -> Result<EdgeKind, String> {
    let kind = KINDS.iter().find(|(_, n)| *n == name);
    kind.map(|(kind, _)| *kind).ok_or_else(|| format!("unknown edge kind in \"{line}\""))
}

fn svma(text: &str) -> Result<Svma, String> {
    let hex = text.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    hex.map(Svma::new).ok_or_else(|| format!("\"{text}\" is not an address like 0x1000"))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a count"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RandomProgram, walk};
    use proptest::prelude::*;

    #[test]
    fn errors_name_the_line() {
        let program = Program::from_text("function 0x0..0x10 f movable\n 0x0 +16 entry return/1\n").unwrap();
        let read = |text| Profile::from_text(text, &program);
        assert_eq!(read("block 0x0 = 7 # seven\n\n").unwrap().blocks, [7]);
        assert_eq!(read("\nblock 0x1 = 7").unwrap_err().line, 2);
        for bad in ["block 0x0 7", "edge 0x0 jump 0x0 = 1", "block 0 = 1", "block 0x0 = -1", "call 0x1 = 1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let profile = walk(&program, seed, 20, 0.1);
            prop_assert_eq!(Profile::from_text(&profile.to_text(&program), &program), Ok(profile));
        }
    }
}
