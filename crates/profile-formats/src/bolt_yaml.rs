//! BOLT's YAML profile: counts of blocks, edges and calls by the index of the block in its function.
//!
//! **How blocks are named.** By their number in BOLT's flow graph: in layout order (`dfs-order: false`, what
//! perf2bolt writes), or in depth-first order, which is not read. [`BoltBlocks`] rebuilds the layout order; a
//! function whose number of blocks differs (`nblocks`) is left out, because its indices would mean other
//! blocks.
//!
//! **Hashes.** BOLT compares each function with a hash over the instructions as LLVM names them; that cannot
//! be computed here, so 0 is written and llvm-bolt needs `--profile-ignore-hash`. fdata needs no such option.
//!
//! As `bolt/include/bolt/Profile/ProfileYAMLMapping.h` of LLVM describes it.

use crate::bolt_blocks::BoltBlocks;
use crate::error::FormatError;
use crate::names::Names;
use crate::records::Records;
use restitch_address::Svma;
use restitch_profile::Profile;
use restitch_program::{BlockId, CallTarget, EdgeKind, FuncId, Program};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use yaml_rust2::{Yaml, YamlLoader};

const FORMAT: &str = "BOLT YAML";

/// The head of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About<'a> {
    /// The program's path.
    pub file: &'a str,
    /// Its build id in hexadecimal.
    pub build_id: Option<&'a str>,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Read {
    /// Edges, calls and entries.
    pub records: Records,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Reads a profile of `program`.
///
/// # Errors
/// [`FormatError::Content`] if it is no YAML, no profile of version 1, or in depth-first order.
pub fn read(text: &str, program: &Program, names: &Names, blocks: &BoltBlocks) -> Result<Read, FormatError> {
    const NEXT: &str = "make it with perf2bolt -w or `restitch profile convert`, or use fdata";
    let wrong = |what: String| FormatError::Content { format: FORMAT, what, next: NEXT };
    check_depth(text).map_err(wrong)?;
    let no_yaml = |source| FormatError::Yaml { format: FORMAT, source, next: NEXT };
    let documents = YamlLoader::load_from_str(text).map_err(no_yaml)?;
    let root = documents.first().ok_or_else(|| wrong("it is empty".into()))?;
    let header = &root["header"];
    if header["profile-version"].as_i64() != Some(1) {
        return Err(wrong("it has no header with profile-version 1".into()));
    }
    // LLVM's default, when the key is missing, is depth-first order.
    if header["dfs-order"].as_bool() != Some(false) {
        return Err(wrong("its blocks are numbered in depth-first order (dfs-order is not false)".into()));
    }
    let functions = root["functions"].as_vec().ok_or_else(|| wrong("it has no list of functions".into()))?;
    let mut reader = Reader { program, names, blocks, by_id: HashMap::new(), read: Read::default() };
    let mut found = reader.functions(functions);
    blocks.complete(program, &mut found.records);
    Ok(found)
}

/// The loader recurses; a profile is five levels deep, so deeper brackets or indents are not followed.
fn check_depth(text: &str) -> Result<(), String> {
    let mut depth = 0usize;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start_matches([' ', '-', '?']).len();
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        if depth > 32 || indent > 64 {
            return Err(format!("line {} is nested deeper than a profile can be", number + 1));
        }
    }
    Ok(())
}

struct Reader<'a> {
    program: &'a Program,
    names: &'a Names,
    blocks: &'a BoltBlocks,
    by_id: HashMap<i64, Svma>,
    read: Read,
}

impl Reader<'_> {
    fn functions(&mut self, functions: &[Yaml]) -> Read {
        for function in functions {
            let at = function["name"].as_str().and_then(|name| self.names.address_of(name));
            if let Some((id, at)) = function["fid"].as_i64().zip(at) {
                self.by_id.insert(id, at);
            }
        }
        let (mut unknown, mut different) = (0, 0);
        let mut called: HashMap<Svma, u64> = HashMap::new();
        for function in functions {
            let at = function["name"].as_str().and_then(|name| self.names.address_of(name));
            let known = at.and_then(|at| self.program.function_at(at));
            match known {
                None => unknown += 1,
                Some(id) if !self.function(function, id, &mut called) => different += 1,
                Some(_) => {}
            }
        }
        for function in functions {
            // What direct calls of the file do not explain came from outside.
            let at = function["name"].as_str().and_then(|name| self.names.address_of(name));
            if let Some(at) = at {
                let outside = count(&function["exec"]).saturating_sub(called.get(&at).copied().unwrap_or(0));
                if outside > 0 {
                    self.read.records.add_branch(None, Some(at), outside, 0);
                }
            }
        }
        let mut note = |n: u32, what: &str| {
            if n > 0 {
                self.read.notes.push(format!("{n} of {} functions {what}", functions.len()));
            }
        };
        note(unknown, "are not in the program");
        note(different, "have another number of blocks than BOLT counts; only their entries are used");
        std::mem::take(&mut self.read)
    }

    /// Reads the blocks of a function; false if it has others.
    fn function(&mut self, function: &Yaml, id: FuncId, called: &mut HashMap<Svma, u64>) -> bool {
        let groups = self.blocks.groups(self.program, id);
        if function["nblocks"].as_i64() != Some(groups.len() as i64) {
            return false;
        }
        for block in function["blocks"].as_vec().into_iter().flatten() {
            let group = |index: &Yaml| index.as_i64().and_then(|i| groups.get(usize::try_from(i).ok()?));
            let Some(from) = group(&block["bid"]) else { continue };
            for successor in block["succ"].as_vec().into_iter().flatten() {
                if let Some(to) = group(&successor["bid"]) {
                    self.edge(from, to[0], count(&successor["cnt"]), count(&successor["mis"]));
                }
            }
            for call in block["calls"].as_vec().into_iter().flatten() {
                self.call(self.program.block(from[0]).start, call, called);
            }
        }
        true
    }

    fn edge(&mut self, from: &[BlockId], to: BlockId, count: u64, missed: u64) {
        if count == 0 {
            return;
        }
        let target = self.program.block(to).start;
        let find = |kind: fn(EdgeKind) -> bool| {
            let edges = from.iter().flat_map(|b| self.program.out_edges(*b).map(move |(_, e)| (*b, e)));
            let mut fitting = edges.filter(|(_, e)| e.to == to && kind(e.kind));
            fitting.next().map(|(block, _)| block)
        };
        let taken = find(|kind| kind != EdgeKind::FallThrough);
        let fell = find(|kind| kind == EdgeKind::FallThrough);
        if let Some(block) = taken {
            let at = self.program.block(block).terminator_at();
            self.read.records.add_branch(Some(at), Some(target), count, missed);
            // A `jmp` of its own behind a conditional branch runs as often as it is taken.
            if let [conditional, .., jump] = from
                && *jump == block
            {
                let (at, next) = (self.program.block(*conditional), self.program.block(*jump).start);
                self.read.records.add_fall_through(at.terminator_at(), next, count);
            }
        } else if let Some(block) = fell {
            let last = self.blocks.step(self.program, block, to);
            let at = last.unwrap_or(self.program.block(block).start);
            self.read.records.add_fall_through(at, target, count);
        }
    }

    fn call(&mut self, block: Svma, call: &Yaml, called: &mut HashMap<Svma, u64>) {
        let Some(offset) = call["off"].as_i64().and_then(|o| u64::try_from(o).ok()) else { return };
        let target = call["fid"].as_i64().and_then(|id| self.by_id.get(&id)).copied();
        let taken = count(&call["cnt"]);
        if let Some(target) = target {
            let slot = called.entry(target).or_default();
            *slot = slot.saturating_add(taken);
        }
        self.read.records.add_branch(Some(block + offset), target, taken, count(&call["mis"]));
    }
}

fn count(value: &Yaml) -> u64 {
    value.as_i64().and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

/// Writes the functions that ran.
pub fn write(
    about: &About<'_>,
    program: &Program,
    profile: &Profile,
    names: &Names,
    blocks: &BoltBlocks,
) -> String {
    let ran = |f: &FuncId| program.blocks_of(*f).any(|b| profile.block(b) > 0);
    let named = |f: &FuncId| names.place(program, program.function(*f).range.start).is_some();
    let functions: Vec<FuncId> = program.function_ids().filter(|f| ran(f) && named(f)).collect();
    // 0 stands for an unknown function, and BOLT has room for as many as there are functions.
    let ids: HashMap<FuncId, usize> = functions.iter().enumerate().map(|(i, f)| (*f, i + 1)).collect();
    let mut out = String::from("---\nheader:\n  profile-version: 1\n");
    let _ = writeln!(out, "  binary-name: {}", quoted(about.file));
    let _ = writeln!(out, "  binary-build-id: {}", quoted(about.build_id.unwrap_or("<unknown>")));
    out.push_str(
        "  profile-flags: [ lbr ]\n  profile-origin: restitch\n  profile-events: ''\n  dfs-order: false\n",
    );
    out.push_str("  hash-func: xxh3\nfunctions:");
    out.push_str(if functions.is_empty() { " []\n" } else { "\n" });
    let writer = Writer { program, profile, names, blocks, ids };
    functions.iter().for_each(|f| writer.function(&mut out, *f));
    out.push_str("...\n");
    out
}

/// A scalar in quotes: in double ones with escapes (YAML 1.2, 7.3.1) where lines would be torn else.
fn quoted(text: &str) -> String {
    if !text.contains(char::is_control) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\x{:02X}", u32::from(c)),
        c => c.into(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

struct Writer<'a> {
    program: &'a Program,
    profile: &'a Profile,
    names: &'a Names,
    blocks: &'a BoltBlocks,
    ids: HashMap<FuncId, usize>,
}

impl Writer<'_> {
    fn function(&self, out: &mut String, id: FuncId) {
        let function = self.program.function(id);
        let groups = self.blocks.groups(self.program, id);
        let number: HashMap<BlockId, usize> =
            groups.iter().enumerate().flat_map(|(i, group)| group.iter().map(move |b| (*b, i))).collect();
        let name = self.names.name_at(function.range.start).unwrap_or_default();
        let _ = writeln!(out, "  - name: {}\n    fid: {}\n    hash: 0x0", quoted(name), self.ids[&id]);
        let _ = writeln!(
            out,
            "    exec: {}\n    nblocks: {}",
            self.profile.entries(self.program, id),
            groups.len()
        );
        let mut any = false;
        for (index, group) in groups.iter().enumerate() {
            let exec = group.iter().map(|b| self.profile.block(*b)).max().unwrap_or(0);
            if exec == 0 {
                continue;
            }
            if !any {
                out.push_str("    blocks:\n");
                any = true;
            }
            let instructions: u32 = group.iter().map(|b| self.blocks.instructions(*b)).sum();
            let _ =
                writeln!(out, "      - bid: {index}\n        insns: {instructions}\n        exec: {exec}");
            self.calls(out, id, group);
            self.successors(out, group, &number);
        }
    }

    fn calls(&self, out: &mut String, function: FuncId, group: &[BlockId]) {
        let start = self.program.block(group[0]).start;
        let mut calls: Vec<String> = Vec::new();
        let mut call = |at: Svma, target: Option<Svma>, count: u64| {
            let callee = target.and_then(|t| self.program.function_at(t)).and_then(|f| self.ids.get(&f));
            let (offset, id) = (at.offset_from(start), callee.copied().unwrap_or(0));
            calls.push(format!("{{ off: 0x{offset:X}, fid: {id}, cnt: {count} }}"));
        };
        for block in group {
            let first = self.program.block(*block).first_call.index();
            for (i, site) in self.program.calls_of(*block).iter().enumerate() {
                let target = match site.target {
                    CallTarget::Direct(target) => Some(target),
                    CallTarget::Indirect => None,
                };
                if self.profile.calls[first + i] > 0 {
                    call(site.at, target, self.profile.calls[first + i]);
                }
            }
            for (edge, e) in self.program.out_edges(*block) {
                let to = self.program.block(e.to);
                if to.function != function && e.kind == EdgeKind::Taken && self.profile.edge(edge) > 0 {
                    call(self.program.block(*block).terminator_at(), Some(to.start), self.profile.edge(edge));
                }
            }
        }
        if !calls.is_empty() {
            let _ = writeln!(out, "        calls: [ {} ]", calls.join(", "));
        }
    }

    fn successors(&self, out: &mut String, group: &[BlockId], number: &HashMap<BlockId, usize>) {
        let mut successors: BTreeMap<usize, u64> = BTreeMap::new();
        for block in group {
            for (edge, e) in self.program.out_edges(*block) {
                let inside = group.contains(&e.to) && group[0] != e.to;
                if let Some(to) = number.get(&e.to).filter(|_| !inside) {
                    let slot = successors.entry(*to).or_default();
                    *slot = slot.saturating_add(self.profile.edge(edge));
                }
            }
        }
        if !successors.is_empty() {
            let list: Vec<String> =
                successors.iter().map(|(to, count)| format!("{{ bid: {to}, cnt: {count} }}")).collect();
            let _ = writeln!(out, "        succ: [ {} ]", list.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_profile::testing::{RandomProgram, walk};

    /// A program may be called anything.
    const FILE: &str = "it's\nheader: \"\\x\u{1b}[31m\u{85}";

    fn names_of(program: &Program) -> Names {
        let pairs: Vec<(Svma, String)> = program
            .functions
            .iter()
            .map(|f| (f.range.start, format!("f{:x}", f.range.start.get())))
            .collect();
        Names::of(pairs.iter().map(|(at, name)| (*at, name.as_str())))
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        let program = Program::default();
        let read = |text: &str| super::read(text, &program, &Names::default(), &BoltBlocks::default());
        for bad in
            ["", "---\nx: [", "---\nheader:\n  profile-version: 2\n", "---\nheader:\n  profile-version: 1\n"]
        {
            assert!(read(bad).unwrap_err().to_string().contains("perf2bolt"), "{bad}");
        }
        let deep = format!("---\nx: {}", "[".repeat(100_000));
        assert!(read(&deep).unwrap_err().to_string().contains("deeper"));
        let deep: String = (0..10_000).map(|i| format!("{}- \n", "-".repeat(i % 500))).collect();
        assert!(read(&format!("---\n{deep}")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn edges_of_blocks_that_bolt_sees_come_back(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let profile = walk(&program, seed, 50, 0.0);
            let (names, blocks) = (names_of(&program), BoltBlocks::of_program(&program));
            let text = write(&About { file: FILE, build_id: None }, &program, &profile, &names, &blocks);
            let read = read(&text, &program, &names, &blocks).unwrap();
            prop_assert_eq!(read.notes, Vec::<String>::new());
            let (back, _) = read.records.to_profile(&program);
            prop_assert_eq!(&back.calls, &profile.calls);
        }
    }
}
