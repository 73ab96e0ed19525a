//! BOLT's pre-aggregated text (`perf2bolt --pa`): branches and runs by address, summed up.
//!
//! ```text
//! B <from> <to> <count> <mispredicted>     a taken branch
//! F <from> <to> <count>                    a run without a taken branch, from a target to the next branch
//! f, r                                     the same, entered from outside, or by a return from outside
//! T|R <branch> <from> <to> <count>         a branch and the run behind it
//! S <address> <count>                      samples
//! E <name>                                 the event of what follows
//! ```
//!
//! Places are hexadecimal addresses as in the ELF file, or `id:offset`, where `id` is the build id of another
//! module or `X` (unknown). As `bolt/include/bolt/Profile/DataAggregator.h` of LLVM describes it. Written:
//! `B` and `F`, and `S` for samples without branches (LLVM 19 reads `B`, `F` and `f` only).

use crate::error::FormatError;
use crate::records::Records;
use restitch_address::Svma;
use std::fmt::Write as _;

const FORMAT: &str = "pre-aggregated text";
const NEXT: &str = "a line is like \"B 401000 401020 7 0\" or \"F 401020 401030 7\"; see perf2bolt --pa";

/// Reads the text. Branches and runs in other modules (`id:offset`) count as outside.
///
/// # Errors
/// [`FormatError::Line`] for the first line that is not in the format.
pub fn read(text: &str) -> Result<Records, FormatError> {
    let mut records = Records::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        read_line(line, &mut records).map_err(|what| FormatError::Line {
            format: FORMAT,
            line: number + 1,
            what,
            next: NEXT,
        })?;
    }
    Ok(records)
}

fn read_line(line: &str, records: &mut Records) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["E", _] => {}
        ["S", at, count] => {
            let count = number(count)?;
            place(at)?.into_iter().for_each(|at| records.add_ip(at, count));
        }
        ["B", from, to, count, missed] => {
            records.add_branch(place(from)?, place(to)?, number(count)?, number(missed)?);
        }
        ["F" | "f" | "r", from, to, count] => add_run(records, place(from)?, place(to)?, number(count)?),
        ["T" | "R", branch, from, to, count] => {
            let (branch, from, to, count) = (place(branch)?, place(from)?, place(to)?, number(count)?);
            records.add_branch(branch, from, count, 0);
            add_run(records, from, to, count);
        }
        _ => return Err(format!("cannot read \"{line}\"")),
    }
    Ok(())
}

fn add_run(records: &mut Records, from: Option<Svma>, to: Option<Svma>, count: u64) {
    if let (Some(from), Some(to)) = (from, to) {
        records.add_range(from, to, count);
    }
}

fn place(text: &str) -> Result<Option<Svma>, String> {
    let (foreign, offset) = text.rsplit_once(':').map_or((false, text), |(_, offset)| (true, offset));
    let at = u64::from_str_radix(offset.trim_start_matches("0x"), 16);
    let at = at.map_err(|_| format!("\"{text}\" is not a hexadecimal address"))?;
    Ok((!foreign).then_some(Svma::new(at)))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a count"))
}

/// Writes the records. Where there are no branches, their samples are written as `S` lines, which LLVM reads
/// from 20 on.
pub fn write(records: &Records) -> String {
    let mut out = String::new();
    let place = |at: Option<Svma>| at.map_or("X:0".to_string(), |at| format!("{:x}", at.get()));
    for (&(from, to), taken) in &records.branches {
        let _ = writeln!(out, "B {} {} {} {}", place(from), place(to), taken.count, taken.mispredicted);
    }
    for (&(from, to), count) in records.ranges.iter().chain(&records.fall_throughs) {
        let _ = writeln!(out, "F {:x} {:x} {count}", from.get(), to.get());
    }
    if !records.has_branches() {
        for (at, count) in &records.ips {
            let _ = writeln!(out, "S {:x} {count}", at.get());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_lines_are_read() {
        let text = "E cycles\nB 10 20 3 1\nB X:0 30 2 0\nF 20 24 3\nf 30 34 1\nT 24 40 44 5\nS 41 9\nB ab12:77 88 1 0\n\n";
        let records = read(text).unwrap();
        let at = |a| Some(Svma::new(a));
        assert_eq!(records.branches[&(at(0x10), at(0x20))].mispredicted, 1);
        assert_eq!(records.branches[&(None, at(0x30))].count, 2);
        assert_eq!(records.branches[&(None, at(0x88))].count, 1);
        assert_eq!(records.branches[&(at(0x24), at(0x40))].count, 5);
        assert_eq!(records.ranges.len(), 3);
        assert_eq!(records.ips[&Svma::new(0x41)], 9);
    }

    #[test]
    fn errors_name_the_line() {
        for bad in ["B 10 20 3", "Q 1 2 3", "F 10 zz 3", "B 10 20 -3 0", "F 10 20"] {
            let error = read(&format!("F 1 2 3\n{bad}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("perf2bolt --pa"), "{error}");
        }
    }
}
