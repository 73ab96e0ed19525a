//! BOLT's `fdata`: branches between functions and offsets, summed up; or samples (`no_lbr`).
//!
//! ```text
//! 1 main 1c 1 main 30 0 10      from main+0x1c to main+0x30: mispredicted 0 times, taken 10 times
//! 0 [unknown] 0 1 main 0 0 1    from somewhere to the start of main
//! no_lbr cycles                 (first line) the rest are samples of this event:
//! 1 main 1c 10                  main+0x1c, 10 samples
//! ```
//!
//! A step into the block behind is written like a branch, from the last instruction of the one block to the
//! first of the other. Lines of memory events (they begin with 3, 4 or 5) are skipped. In names, blanks and
//! backslashes are escaped by a backslash. As `bolt/lib/Profile/DataReader.cpp` of LLVM reads it.
//!
//! **What BOLT wants.** It takes no profile of a function in which one step or branch does not fit its own
//! flow graph. So steps are written only into blocks that BOLT sees as well ([`BoltBlocks`]).

use crate::bolt_blocks::BoltBlocks;
use crate::error::FormatError;
use crate::names::Names;
use crate::records::Records;
use restitch_address::Svma;
use restitch_profile::Profile;
use restitch_profile::ways::run_between;
use restitch_program::{BlockId, Edge, EdgeKind, Program};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const FORMAT: &str = "fdata";
const NEXT: &str =
    "a line is like \"1 main 1c 1 main 30 0 10\"; make the file with perf2bolt or `restitch profile convert`";
const UNKNOWN: &str = "[unknown]";

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Read {
    /// The counts.
    pub records: Records,
    /// Names that the module does not have, with the counts of their lines.
    pub unknown: BTreeMap<String, u64>,
    /// The event of a `no_lbr` file.
    pub event: Option<String>,
    /// Whether the file says that it was collected in a program that BOLT wrote.
    pub of_bolted: bool,
}

/// Reads the text of either mode. Steps within BOLT's blocks, which the format leaves out, are added. A
/// branch that `program` can only take as a step into the next block is one.
///
/// # Errors
/// [`FormatError::Line`] for the first line that is not in the format; [`FormatError::Content`] for a profile
/// of a program that BOLT wrote, whose offsets are those of its output.
pub fn read(text: &str, names: &Names, program: &Program, blocks: &BoltBlocks) -> Result<Read, FormatError> {
    let mut found = Read::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        if number <= 1 && found.header(line) {
            continue;
        }
        found.line(line, names, program).map_err(|what| FormatError::Line {
            format: FORMAT,
            line: number + 1,
            what,
            next: NEXT,
        })?;
    }
    if found.of_bolted {
        let what =
            "it was collected in a program that BOLT had written, in other blocks than the original has"
                .into();
        let next = "collect it in the original program, or translate it with perf2bolt and the original";
        return Err(FormatError::Content { format: FORMAT, what, next });
    }
    blocks.complete(program, &mut found.records);
    Ok(found)
}

impl Read {
    fn header(&mut self, line: &str) -> bool {
        if let Some(event) = line.strip_prefix("no_lbr") {
            self.event = Some(event.trim().to_string());
            return true;
        }
        let bolted = line == "boltedcollection";
        self.of_bolted |= bolted;
        bolted
    }

    fn line(&mut self, line: &str, names: &Names, program: &Program) -> Result<(), String> {
        if line.starts_with(['3', '4', '5']) {
            return Ok(());
        }
        let words = split(line);
        let short = || format!("cannot read \"{line}\"");
        if self.event.is_some() {
            let [kind, name, offset, count] = &words[..] else { return Err(short()) };
            let count = number(count)?;
            if let Some(at) = self.place(kind, name, offset, count, names)? {
                self.records.add_ip(at, count);
            }
            return Ok(());
        }
        let [kind, name, offset, to_kind, to_name, to_offset, missed, count] = &words[..] else {
            return Err(short());
        };
        let (missed, count) = (number(missed)?, number(count)?);
        let from = self.place(kind, name, offset, count, names)?;
        let to = self.place(to_kind, to_name, to_offset, count, names)?;
        match (from, to) {
            (Some(from), Some(to)) if is_step(program, from, to) => {
                self.records.add_fall_through(from, to, count)
            }
            (None, None) => {}
            _ => self.records.add_branch(from, to, count, missed),
        }
        Ok(())
    }

    fn place(
        &mut self,
        kind: &str,
        name: &str,
        offset: &str,
        count: u64,
        names: &Names,
    ) -> Result<Option<Svma>, String> {
        let offset = u64::from_str_radix(offset, 16);
        let offset = offset.map_err(|_| format!("\"{name}\" has no hexadecimal offset behind it"))?;
        match kind {
            "0" => Ok(None),
            "1" | "2" => {
                let start = names.address_of(name);
                if start.is_none() {
                    let slot = self.unknown.entry(name.into()).or_default();
                    *slot = slot.saturating_add(count);
                }
                Ok(start.map(|start| start + offset))
            }
            other => Err(format!("\"{other}\" is no kind of place (0, 1 or 2)")),
        }
    }
}

/// Whether control can only have come from `from` to `to` by not branching: `to` is where `from`'s block
/// falls to.
fn is_step(program: &Program, from: Svma, to: Svma) -> bool {
    let Some(id) = program.block_at(from) else { return false };
    let falls = |e: &Edge| e.kind == EdgeKind::FallThrough && program.block(e.to).start == to;
    let same = program.function_at(to) == Some(program.block(id).function);
    program.block(id).end() == to && same && program.out_edges(id).any(|(_, e)| falls(e))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a count"))
}

/// Words between blanks; a backslash takes the character behind it as it is.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let last = words.len() - 1;
        match c {
            '\\' => words[last].extend(characters.next()),
            ' ' | '\t' if words[last].is_empty() => {}
            ' ' | '\t' => words.push(String::new()),
            c => words[last].push(c),
        }
    }
    if words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    words
}

fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace(' ', "\\ ")
}

/// Writes branches and steps. Ranges are taken apart into the steps between blocks that BOLT sees.
pub fn write(records: &Records, program: &Program, names: &Names, blocks: &BoltBlocks) -> String {
    // A branch to the next block and a step into it are one line, as perf2bolt writes them.
    let mut table = records.branches.clone();
    let mut step = |block: BlockId, count: u64| {
        let next = BlockId(block.0 + 1);
        if let Some(from) = blocks.step(program, block, next) {
            let taken = table.entry((Some(from), Some(program.block(next).start))).or_default();
            taken.count = taken.count.saturating_add(count);
        }
    };
    for (&(start, end), &count) in &records.ranges {
        if let Some((first, way)) = run_between(program, start, end) {
            (first.0..first.0 + way.len() as u32).for_each(|b| step(BlockId(b), count));
        }
    }
    for (&(from, _), &count) in &records.fall_throughs {
        if let Some(block) = program.block_at(from) {
            step(block, count);
        }
    }
    let mut out = String::new();
    for (&(from, to), taken) in &table {
        if let Some(line) = branch_line(from, to, program, names) {
            let _ = writeln!(out, "{line} {} {}", taken.mispredicted, taken.count);
        }
    }
    out
}

/// From and to; none if neither is known, or if it is a return into the middle of a function.
fn branch_line(from: Option<Svma>, to: Option<Svma>, program: &Program, names: &Names) -> Option<String> {
    let place = |at: Option<Svma>| {
        let known = at.and_then(|at| names.place(program, at));
        known.map_or(format!("0 {UNKNOWN} 0"), |(name, offset)| format!("1 {} {offset:x}", escape(name)))
    };
    let (from_text, to_text) = (place(from), place(to));
    let unknown = |text: &str| text.starts_with('0');
    let into_the_middle = to.is_some_and(|to| program.block_starting_at(to).is_none() && unknown(&from_text));
    let says_nothing = unknown(&from_text) && unknown(&to_text);
    (!says_nothing && !into_the_middle).then(|| format!("{from_text} {to_text}"))
}

/// Writes samples (`no_lbr`) of the event `event`, whose name BOLT looks at: it divides samples of `cycles`
/// and `instructions` by the number of instructions in a block.
pub fn write_no_lbr(samples: &BTreeMap<Svma, u64>, event: &str, program: &Program, names: &Names) -> String {
    let mut out = format!("no_lbr {event}\n");
    for (&at, count) in samples {
        if let Some((name, offset)) = names.place(program, at) {
            let _ = writeln!(out, "1 {} {offset:x} {count}", escape(name));
        }
    }
    out
}

/// A sample at the start of each block that BOLT sees, for each of its executions: what `no_lbr` can hold of
/// a profile of counts.
pub fn block_samples(program: &Program, profile: &Profile, blocks: &BoltBlocks) -> BTreeMap<Svma, u64> {
    let seen = program.block_ids().filter(|b| blocks.is_leader(*b) && profile.block(*b) > 0);
    seen.map(|b| (program.block(b).start, profile.block(b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_profile::testing::TWO_FUNCTIONS;

    fn setting() -> (Program, Names) {
        let names = Names::of([(Svma::new(0x1000), "f name\\x"), (Svma::new(0x1040), "g/1")]);
        (Program::from_text(TWO_FUNCTIONS).unwrap(), names)
    }

    #[test]
    fn branches_and_steps_are_told_apart() {
        let (program, names) = setting();
        let text = "1 f\\ name\\\\x e 1 f\\ name\\\\x 20 1 3\n1 f\\ name\\\\x e 1 f\\ name\\\\x 10 0 2\n\
                    1 f\\ name\\\\x 14 1 g/1 0 0 2\n0 [unknown] 0 1 f\\ name\\\\x 0 0 5\n\
                    4 f\\ name\\\\x 0 3 heap 0 1\n1 other 0 1 g/1 0 0 7\n";
        let read = read(text, &names, &program, &BoltBlocks::of_program(&program)).unwrap();
        assert_eq!(read.records.fall_throughs, BTreeMap::from([((Svma::new(0x100e), Svma::new(0x1010)), 2)]));
        assert_eq!(read.records.branches.len(), 4);
        assert_eq!(read.unknown, BTreeMap::from([("other".to_string(), 7)]));
        let blocks = BoltBlocks::of_program(&program);
        let text = write(&read.records, &program, &names, &blocks);
        let again = super::read(&text, &names, &program, &blocks).unwrap();
        assert_eq!(again.records, read.records);
    }

    #[test]
    fn samples_are_read_and_written() {
        let (program, names) = setting();
        let text = "no_lbr cycles\n1 f\\ name\\\\x 14 10\n1 g/1 0 3\n";
        let read = read(text, &names, &program, &BoltBlocks::of_program(&program)).unwrap();
        assert_eq!(read.event.as_deref(), Some("cycles"));
        assert_eq!(read.records.ips[&Svma::new(0x1014)], 10);
        assert_eq!(write_no_lbr(&read.records.ips, "cycles", &program, &names), text);
    }

    #[test]
    fn errors_say_what_to_do() {
        let (program, names) = setting();
        for bad in ["1 f 0 1 g 0 0", "7 f 0 1 g 0 0 1", "1 f zz 1 g 0 0 1", "1 f 0 1 g 0 0 -1"] {
            let error = read(&format!("\n{bad}\n"), &names, &program, &BoltBlocks::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains("line 2") && error.contains("perf2bolt"), "{error}");
        }
        let text = "boltedcollection\n1 g/1 0 1 g/1 0 0 1\n";
        let bolted = read(text, &names, &program, &BoltBlocks::default()).unwrap_err();
        assert!(bolted.to_string().contains("original"));
    }
}
