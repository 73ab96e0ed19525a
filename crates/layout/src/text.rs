//! The textual form of a [`Layout`]: for tests and dumps.
//!
//! ```text
//! hot align 16: 0x1000 0x1020
//! cold align 1: 0x1010 +0x1000 +0x1020!
//! prefetch at 0x1000: 0x1020+24
//! ```
//!
//! One fragment a line, by the start addresses of its blocks; `+` marks duplicates behind the block before
//! them, `!` a last one whose conditional branch is turned round ([`Tail::turned`]); `prefetch` a line that
//! is fetched ahead in front of a block ([`Prefetch`]); `#` begins a comment.

use std::fmt::Write as _;

use restitch_address::Svma;
use restitch_program::{BlockId, Program};

use crate::model::{Fragment, Layout, Prefetch, Tail};

/// A line that is not in the textual form of a layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layout text, line {line}: {what}; a line is like \"hot align 16: 0x1000 0x1020\"")]
pub struct LayoutTextError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl Layout {
    /// The textual form. All blocks must be of `program`.
    pub fn to_text(&self, program: &Program) -> String {
        let mut out = String::new();
        for (place, fragments) in [("hot", &self.hot), ("cold", &self.cold)] {
            for fragment in fragments {
                let _ = write!(out, "{place} align {}:", fragment.align);
                for copy in self.copies(fragment) {
                    let (mark, turned) =
                        (if copy.duplicate { "+" } else { "" }, if copy.turned { "!" } else { "" });
                    let _ = write!(out, " {mark}{}{turned}", program.block(copy.block).start);
                }
                out.push('\n');
            }
        }
        for Prefetch { at, target, offset } in &self.prefetches {
            let start = |block: &BlockId| program.block(*block).start;
            let _ = writeln!(out, "prefetch at {}: {}+{offset}", start(at), start(target));
        }
        out
    }

    /// Reads the textual form. What it says need not be valid ([`Layout::validate`]).
    pub fn from_text(text: &str, program: &Program) -> Result<Layout, LayoutTextError> {
        let mut layout = Layout::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |what| LayoutTextError { line: number + 1, what };
            if let Some(rest) = line.strip_prefix("prefetch ") {
                layout.prefetches.push(read_prefetch(rest, program).map_err(wrong)?);
                continue;
            }
            let (hot, fragment) = read_line(line, program, &mut layout.tails).map_err(wrong)?;
            if hot { layout.hot.push(fragment) } else { layout.cold.push(fragment) }
        }
        layout.tails.sort_by_key(|t| t.behind);
        layout.prefetches.sort_unstable();
        Ok(layout)
    }
}

fn read_prefetch(rest: &str, program: &Program) -> Result<Prefetch, String> {
    let parts = rest.strip_prefix("at ").and_then(|rest| rest.split_once(": "));
    let (at, (target, offset)) =
        parts.and_then(|(at, line)| Some((at, line.split_once('+')?))).ok_or_else(|| {
            format!("cannot read \"prefetch {rest}\"; it is like \"prefetch at 0x1000: 0x1020+24\"")
        })?;
    let offset = offset.parse().map_err(|_| format!("\"{offset}\" is no number of bytes"))?;
    Ok(Prefetch { at: block(at, program)?, target: block(target, program)?, offset })
}

fn read_line(line: &str, program: &Program, tails: &mut Vec<Tail>) -> Result<(bool, Fragment), String> {
    let (head, rest) = line.split_once(':').ok_or("no \":\"")?;
    let words: Vec<&str> = head.split_whitespace().collect();
    let (place, align) = match words[..] {
        [place, "align", align] => (place, align),
        _ => return Err(format!("cannot read \"{head}\"")),
    };
    let hot = match place {
        "hot" => true,
        "cold" => false,
        _ => return Err(format!("\"{place}\" is neither hot nor cold")),
    };
    let align = align.parse().map_err(|_| format!("\"{align}\" is not an alignment"))?;
    let mut blocks: Vec<BlockId> = Vec::new();
    let mut tail: Option<Tail> = None;
    for word in rest.split_whitespace() {
        let Some(duplicate) = word.strip_prefix('+') else {
            tails.extend(tail.take());
            blocks.push(block(word, program)?);
            continue;
        };
        let behind = *blocks.last().ok_or("a duplicate has no block in front of it")?;
        let tail = tail.get_or_insert(Tail { behind, blocks: Vec::new(), turned: false });
        if tail.turned {
            return Err("only the last duplicate is turned round".to_owned());
        }
        tail.turned = duplicate.ends_with('!');
        tail.blocks.push(block(duplicate.trim_end_matches('!'), program)?);
    }
    tails.extend(tail);
    Ok((hot, Fragment { blocks, align }))
}

fn block(word: &str, program: &Program) -> Result<BlockId, String> {
    let hex = word.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let at = hex.ok_or_else(|| format!("\"{word}\" is not an address like 0x1000"))?;
    program.block_starting_at(Svma::new(at)).ok_or_else(|| format!("no block starts at {word}"))
}
