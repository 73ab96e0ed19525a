//! The textual form of a [`Program`]: for tests, dumps and bug reports.
//!
//! ```text
//! function 0x1000..0x1040 main movable redirectable
//!   0x1000 +16 entry cond(4)/2 -> 0x1020
//!     call 0x1004 +5 -> 0x2000
//!   0x1010 +16 - fall
//!   0x1020 +32 target,flags-in table(0)/2
//!     call 0x1022 +2 indirect
//! table 0x103e load 0x1028 at 0x3000 base 0x3000 relative4 copyable: 0x1000 0x1020 tail 0x1010
//! ```
//!
//! One function, block, call or table a line; calls follow their block, blocks their function; tables come
//! last and are numbered in order. `#` begins a comment. `/n` is the length of the terminator. A function
//! without a name has `-`. Indices and edges are not written: they follow from the order and the terminators
//! ([`build_edges`]). What is written is lossless for every valid program, and what is read need not be valid
//! ([`Program::validate`]).

use std::fmt::Write as _;

use restitch_address::{Svma, SvmaRange};
use restitch_x86::Condition;

use crate::edges::build_edges;
use crate::model::{
    Block, BlockRange, CallSite, CallTarget, Function, JumpTable, Movability, Program, TableEncoding,
    Terminator,
};
use crate::{BlockAttrs, BlockId, CallId, EdgeId, FuncId, TableId};

/// A line that is not in the textual form of a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "program text, line {line}: {what} in \"{text}\"; see the head of the text form's documentation for the grammar"
)]
pub struct TextError {
    /// Line number, from 1.
    pub line: usize,
    /// What was expected or is wrong.
    pub what: String,
    /// The line.
    pub text: String,
}

const MOVABILITY: [(Movability, &str); 20] = [
    (Movability::Movable, "movable"),
    (Movability::Undecodable, "undecodable"),
    (Movability::RestartableSequence, "restartable-sequence"),
    (Movability::OddUnwindInfo, "odd-unwind-info"),
    (Movability::ComparedByRuntime, "compared-by-runtime"),
    (Movability::UnwinderLookup, "unwinder-lookup"),
    (Movability::Linkage, "linkage"),
    (Movability::WrittenByLoader, "written-by-loader"),
    (Movability::PatchPoint, "patch-point"),
    (Movability::WritableCode, "writable-code"),
    (Movability::ChangedInMemory, "changed-in-memory"),
    (Movability::ReturnsElsewhere, "returns-elsewhere"),
    (Movability::Overlapping, "overlapping"),
    (Movability::RunTime, "run-time"),
    (Movability::KnownLabels, "known-labels"),
    (Movability::ComputedTargets, "computed-targets"),
    (Movability::OwnPosition, "own-position"),
    (Movability::UnknownPersonality, "unknown-personality"),
    (Movability::DataInside, "data-inside"),
    (Movability::Skipped, "skipped"),
];

const ATTRS: [(BlockAttrs, &str); 8] = [
    (BlockAttrs::ENTRY, "entry"),
    (BlockAttrs::LANDING_PAD, "landing-pad"),
    (BlockAttrs::INDIRECT, "indirect"),
    (BlockAttrs::BRANCH_TARGET, "target"),
    (BlockAttrs::PADDING, "padding"),
    (BlockAttrs::FLAGS_LIVE_IN, "flags-in"),
    (BlockAttrs::PINNED, "pinned"),
    (BlockAttrs::UNREACHED, "unreached"),
];

impl Program {
    /// The textual form.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for id in self.function_ids() {
            self.write_function(id, &mut out);
        }
        for table in &self.tables {
            write_table(table, &mut out);
        }
        out
    }

    /// Reads the textual form. Indices, edges and call lists are made anew.
    pub fn from_text(text: &str) -> Result<Program, TextError> {
        let mut reader = Reader::default();
        for (number, raw) in text.lines().enumerate() {
            let line = raw.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                reader.line(line).map_err(|what| TextError {
                    line: number + 1,
                    what,
                    text: raw.trim().chars().take(120).collect(),
                })?;
            }
        }
        let mut program = reader.program;
        program.edges = build_edges(&mut program.blocks, &program.tables);
        Ok(program)
    }

    fn write_function(&self, id: FuncId, out: &mut String) {
        let function = self.function(id);
        let name = function.name.as_deref().map_or("-".to_owned(), escape);
        let redirectable = if function.redirectable { " redirectable" } else { "" };
        let movable = name_in(&MOVABILITY, function.movability);
        let _ = writeln!(out, "function {} {name} {movable}{redirectable}", function.range);
        for block in self.blocks_of(id) {
            let b = self.block(block);
            let _ = writeln!(
                out,
                "  {} +{} {} {}",
                b.start,
                b.len,
                attrs_text(b.attrs),
                terminator_text(b.terminator, b.terminator_len)
            );
            for call in self.calls_of(block) {
                let target = match call.target {
                    CallTarget::Direct(to) => format!("-> {to}"),
                    CallTarget::Indirect => "indirect".to_owned(),
                };
                let _ = writeln!(out, "    call {} +{} {target}", call.at, call.len);
            }
        }
    }
}

fn write_table(table: &JumpTable, out: &mut String) {
    let encoding = match table.encoding {
        TableEncoding::Absolute8 => "absolute8",
        TableEncoding::Relative4 => "relative4",
    };
    let copyable = if table.copyable { "copyable" } else { "fixed" };
    let _ = write!(
        out,
        "table {} load {} at {} base {} {encoding} {copyable}:",
        table.jump_at, table.load_at, table.table, table.base
    );
    for target in &table.targets {
        let _ = write!(out, " {target}");
    }
    if !table.tail.is_empty() {
        out.push_str(" tail");
    }
    for target in &table.tail {
        let _ = write!(out, " {target}");
    }
    out.push('\n');
}

fn name_in<T: Copy + PartialEq>(names: &[(T, &'static str)], value: T) -> &'static str {
    names.iter().find(|(v, _)| *v == value).map_or("?", |(_, name)| name)
}

fn value_of<T: Copy>(names: &[(T, &'static str)], name: &str) -> Result<T, String> {
    names.iter().find(|(_, n)| *n == name).map(|(v, _)| *v).ok_or_else(|| format!("unknown word \"{name}\""))
}

fn attrs_text(attrs: BlockAttrs) -> String {
    let words: Vec<&str> = ATTRS.iter().filter(|(a, _)| attrs.contains(*a)).map(|(_, word)| *word).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

fn terminator_text(terminator: Terminator, len: u8) -> String {
    let len = if len == 0 { String::new() } else { format!("/{len}") };
    match terminator {
        Terminator::FallThrough => format!("fall{len}"),
        Terminator::Jump(to) => format!("jump{len} -> {to}"),
        Terminator::Conditional(cc, to) => format!("cond({}){len} -> {to}", cc.code()),
        Terminator::ShortConditional(to) => format!("short{len} -> {to}"),
        Terminator::Table(id) => format!("table({}){len}", id.0),
        Terminator::IndirectJump => format!("indirect{len}"),
        Terminator::Return => format!("return{len}"),
        Terminator::Stop => format!("stop{len}"),
    }
}

/// A name as one word: everything but printable ASCII, and what has a meaning of its own, becomes `\u{...}`.
fn escape(name: &str) -> String {
    match name {
        "" => return r"\e".to_owned(),
        "-" => return r"\u{2d}".to_owned(),
        _ => {}
    }
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_ascii_graphic() && c != '\\' && c != '#' {
            out.push(c);
        } else {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
    }
    out
}

fn unescape(word: &str) -> Result<Box<str>, String> {
    if word == r"\e" {
        return Ok("".into());
    }
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest[at..]
            .strip_prefix(r"\u{")
            .and_then(|s| s.split_once('}'))
            .and_then(|(hex, tail)| Some((char::from_u32(u32::from_str_radix(hex, 16).ok()?)?, tail)));
        let (c, tail) = code.ok_or_else(|| format!("bad escape in name \"{word}\""))?;
        out.push(c);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out.into())
}

/// Reads line after line into a program without edges.
#[derive(Default)]
struct Reader {
    program: Program,
}

type Words<'a> = std::str::SplitWhitespace<'a>;

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        match first {
            "function" => self.function(&mut words)?,
            "call" => self.call(&mut words)?,
            "table" => self.table(&mut words)?,
            _ => self.block(first, &mut words)?,
        }
        match words.next() {
            None => Ok(()),
            Some(word) => Err(format!("unexpected \"{word}\"")),
        }
    }

    fn function(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let range = word(words, "an address range")?;
        let (start, end) = range.split_once("..").ok_or("expected an address range START..END")?;
        let name = word(words, "a name")?;
        let name = if name == "-" { None } else { Some(unescape(name)?) };
        let movability = value_of(&MOVABILITY, word(words, "a movability")?)?;
        let redirectable = optional(words, "redirectable")?;
        self.program.functions.push(Function {
            range: SvmaRange::between(svma(start)?, svma(end)?),
            name,
            blocks: BlockRange::new(BlockId::from_index(self.program.blocks.len()), 0),
            movability,
            redirectable,
        });
        Ok(())
    }

    fn block(&mut self, start: &str, words: &mut Words<'_>) -> Result<(), String> {
        let start = svma(start)?;
        let len = plus(word(words, "a length")?)?;
        let attrs = match word(words, "attributes, or -")? {
            "-" => BlockAttrs::empty(),
            list => list
                .split(',')
                .try_fold(BlockAttrs::empty(), |all, w| Ok(all | value_of(&ATTRS, w)?))
                .map_err(|e: String| e)?,
        };
        let (terminator, terminator_len) = terminator(words)?;
        let function = self.program.functions.last_mut().ok_or("a block before the first function")?;
        function.blocks.grow();
        self.program.blocks.push(Block {
            start,
            len,
            terminator_len,
            attrs,
            function: FuncId::from_index(self.program.functions.len() - 1),
            terminator,
            first_edge: EdgeId(0),
            edge_count: 0,
            first_call: CallId::from_index(self.program.calls.len()),
            call_count: 0,
        });
        Ok(())
    }

    fn call(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let at = svma(word(words, "an address")?)?;
        let len = plus(word(words, "a length")?)?;
        let target = match word(words, "\"indirect\" or \"-> TARGET\"")? {
            "indirect" => CallTarget::Indirect,
            "->" => CallTarget::Direct(svma(word(words, "a target")?)?),
            other => return Err(format!("expected \"indirect\" or \"->\", found \"{other}\"")),
        };
        let block = self.program.blocks.last_mut().ok_or("a call before the first block")?;
        block.call_count += 1;
        let block = BlockId::from_index(self.program.blocks.len() - 1);
        self.program.calls.push(CallSite { at, len, block, target });
        Ok(())
    }

    fn table(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let jump_at = svma(word(words, "the address of the jump")?)?;
        let mut address_after = |name| {
            keyword(words, name)?;
            svma(word(words, "an address")?)
        };
        let load_at = address_after("load")?;
        let table = address_after("at")?;
        let base = address_after("base")?;
        let encoding = match word(words, "an encoding")? {
            "absolute8" => TableEncoding::Absolute8,
            "relative4" => TableEncoding::Relative4,
            other => return Err(format!("unknown encoding \"{other}\"")),
        };
        let copyable = match word(words, "\"copyable:\" or \"fixed:\"")? {
            "copyable:" => true,
            "fixed:" => false,
            other => return Err(format!("expected \"copyable:\" or \"fixed:\", found \"{other}\"")),
        };
        let targets = words.by_ref().take_while(|w| *w != "tail").map(svma).collect::<Result<_, _>>()?;
        let tail = words.map(svma).collect::<Result<_, _>>()?;
        self.program.tables.push(JumpTable {
            jump_at,
            load_at,
            table,
            base,
            encoding,
            targets,
            tail,
            copyable,
        });
        Ok(())
    }
}

fn terminator(words: &mut Words<'_>) -> Result<(Terminator, u8), String> {
    let shape = word(words, "a terminator")?;
    let (shape, len) = match shape.split_once('/') {
        Some((shape, len)) => (shape, number(len)?),
        None => (shape, 0),
    };
    let (name, argument) = match shape.strip_suffix(')').and_then(|s| s.split_once('(')) {
        Some((name, argument)) => (name, Some(argument)),
        None => (shape, None),
    };
    let mut target = || {
        keyword(words, "->")?;
        svma(word(words, "a target")?)
    };
    let terminator = match (name, argument) {
        ("fall", None) => Terminator::FallThrough,
        ("jump", None) => Terminator::Jump(target()?),
        ("cond", Some(cc)) => Terminator::Conditional(condition(cc)?, target()?),
        ("short", None) => Terminator::ShortConditional(target()?),
        ("table", Some(id)) => Terminator::Table(TableId(number(id)?)),
        ("indirect", None) => Terminator::IndirectJump,
        ("return", None) => Terminator::Return,
        ("stop", None) => Terminator::Stop,
        _ => return Err(format!("unknown terminator \"{shape}\"")),
    };
    Ok((terminator, len))
}

fn condition(text: &str) -> Result<Condition, String> {
    number(text)
        .ok()
        .and_then(Condition::from_code)
        .ok_or_else(|| format!("condition code \"{text}\" is not 0 to 15"))
}

fn word<'a>(words: &mut Words<'a>, what: &str) -> Result<&'a str, String> {
    words.next().ok_or_else(|| format!("expected {what}"))
}

fn keyword(words: &mut Words<'_>, expected: &str) -> Result<(), String> {
    match word(words, expected)? {
        found if found == expected => Ok(()),
        found => Err(format!("expected \"{expected}\", found \"{found}\"")),
    }
}

fn optional(words: &mut Words<'_>, expected: &str) -> Result<bool, String> {
    match words.next() {
        None => Ok(false),
        Some(found) if found == expected => Ok(true),
        Some(found) => Err(format!("expected \"{expected}\" or nothing, found \"{found}\"")),
    }
}

fn svma(text: &str) -> Result<Svma, String> {
    text.strip_prefix("0x")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .map(Svma::new)
        .ok_or_else(|| format!("\"{text}\" is not an address like 0x1000"))
}

fn plus<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.strip_prefix('+').ok_or_else(|| format!("expected +LENGTH, found \"{text}\"")).and_then(number)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "\
function 0x1000..0x1040 main movable redirectable
  0x1000 +16 entry cond(4)/2 -> 0x1020
    call 0x1004 +5 -> 0x2000
  0x1010 +16 - fall
  0x1020 +32 target,flags-in table(0)/2
    call 0x1022 +2 indirect
function 0x1040..0x1050 - undecodable
function 0x1050..0x1058 a\\u{20}b\\u{23} compared-by-runtime
  0x1050 +2 entry,indirect short/2 -> 0x1000
  0x1052 +6 landing-pad,padding jump/5 -> 0x9000
table 0x103e load 0x1028 at 0x3000 base 0x3000 relative4 copyable: 0x1020 0x1010 0x1020 tail 0x1010
";

    #[test]
    fn the_example_is_read_and_written_back() {
        let program = Program::from_text(EXAMPLE).unwrap();
        assert_eq!(program.to_text(), EXAMPLE);
        assert_eq!(program.validate(), Ok(()));
        assert_eq!(program.functions[2].name.as_deref(), Some("a b#"));
        let edges: Vec<_> = program.edges.iter().map(|e| (e.from.0, e.kind, e.to.0)).collect();
        use crate::model::EdgeKind::*;
        assert_eq!(
            edges,
            [
                (0, FallThrough, 1),
                (0, Taken, 2),
                (1, FallThrough, 2),
                (2, Table, 1),
                (2, Table, 2),
                (3, FallThrough, 4),
                (3, Taken, 0)
            ]
        );
        assert_eq!(program.calls[1].block, BlockId(2));
    }

    #[test]
    fn each_broken_invariant_is_named() {
        type Breaker = fn(&mut Program);
        let breakers: [(Breaker, &str); 9] = [
            (|p| p.functions[1].range.start = Svma::new(0x103f), "does not lie behind function"),
            (|p| p.blocks[1].start = Svma::new(0x1011), "gap or overlaps"),
            (|p| p.blocks[1].attrs |= BlockAttrs::ENTRY, "ENTRY"),
            (|p| p.blocks[1].len = 17, "does not lie behind block"),
            (|p| p.edges.swap(0, 1), "in order"),
            (|p| p.blocks[0].edge_count = 1, "its terminator implies"),
            (|p| p.calls[0].at = Svma::new(0x100a), "does not lie in block"),
            (|p| p.tables[0].targets[0] = Svma::new(0x1021), "starts no block"),
            (|p| p.tables[0].jump_at = Svma::new(0x1030), "another jump"),
        ];
        for (breaker, expected) in breakers {
            let mut program = Program::from_text(EXAMPLE).unwrap();
            breaker(&mut program);
            let wrong = program.validate().unwrap_err();
            assert!(wrong.iter().any(|w| w.contains(expected)), "{expected}: {wrong:?}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        let error = Program::from_text("function 0x0..0x10 f movable\n  0x0 +16 entry cond(16)/2 -> 0x0\n")
            .unwrap_err();
        assert_eq!(error.line, 2);
        assert!(error.to_string().contains("condition code \"16\" is not 0 to 15"), "{error}");
        assert!(Program::from_text("0x0 +1 - fall").unwrap_err().what.contains("before the first function"));
        assert!(
            Program::from_text("table 0x1 load 0x1 at 0x2 base 0x2 relative8")
                .unwrap_err()
                .what
                .contains("encoding")
        );
    }

    fn any_terminator() -> impl Strategy<Value = (Terminator, u8)> {
        let at = any::<u16>().prop_map(|a| Svma::new(u64::from(a)));
        prop_oneof![
            Just((Terminator::FallThrough, 0)),
            (at.clone(), 1u8..9).prop_map(|(a, l)| (Terminator::Jump(a), l)),
            (0..16usize, at.clone(), 1u8..9)
                .prop_map(|(c, a, l)| (Terminator::Conditional(Condition::ALL[c], a), l)),
            (at, 1u8..9).prop_map(|(a, l)| (Terminator::ShortConditional(a), l)),
            (0u32..3, 1u8..9).prop_map(|(t, l)| (Terminator::Table(TableId(t)), l)),
            (1u8..9).prop_map(|l| (Terminator::IndirectJump, l)),
            (1u8..9).prop_map(|l| (Terminator::Return, l)),
            (1u8..9).prop_map(|l| (Terminator::Stop, l)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            functions in prop::collection::vec(
                (any::<Option<String>>(), 0usize..10, any::<bool>(),
                 prop::collection::vec((any_terminator(), 0u8..128, prop::collection::vec(any::<Option<u64>>(), 0..3)), 0..5)),
                0..5),
            tables in prop::collection::vec((any::<u64>(), any::<bool>(), any::<bool>(), prop::collection::vec(any::<u64>(), 0..3), prop::collection::vec(any::<u64>(), 0..5)), 0..3),
        ) {
            let mut p = Program::default();
            let mut at = Svma::new(0);
            for (name, movability, redirectable, blocks) in functions {
                let start = at;
                let function = FuncId::from_index(p.functions.len());
                let first_block = BlockId::from_index(p.blocks.len());
                for ((terminator, terminator_len), attrs, calls) in &blocks {
                    let block = BlockId::from_index(p.blocks.len());
                    let first_call = CallId::from_index(p.calls.len());
                    for target in calls {
                        let target = target.map_or(CallTarget::Indirect, |t| CallTarget::Direct(Svma::new(t)));
                        p.calls.push(CallSite { at: at + p.calls.len() as u64, len: 5, block, target });
                    }
                    p.blocks.push(Block {
                        start: at, len: 16, terminator_len: *terminator_len, attrs: BlockAttrs::from_bits_truncate(*attrs),
                        function, terminator: *terminator, first_edge: EdgeId(0), edge_count: 0,
                        first_call, call_count: calls.len() as u32,
                    });
                    at = at + 16;
                }
                p.functions.push(Function {
                    range: SvmaRange::between(start, at), name: name.map(Into::into),
                    blocks: BlockRange::new(first_block, blocks.len() as u32), movability: MOVABILITY[movability].0, redirectable,
                });
            }
            for (address, absolute, copyable, tail, targets) in tables {
                p.tables.push(JumpTable {
                    jump_at: Svma::new(address), table: Svma::new(!address),
                    encoding: if absolute { TableEncoding::Absolute8 } else { TableEncoding::Relative4 },
                    targets: targets.into_iter().map(Svma::new).collect(),
                    load_at: Svma::new(address / 2), base: Svma::new(address / 3),
                    tail: tail.into_iter().map(Svma::new).collect(), copyable,
                });
            }
            p.edges = build_edges(&mut p.blocks, &p.tables);
            let text = p.to_text();
            prop_assert_eq!(Program::from_text(&text).unwrap(), p, "{}", text);
        }

        #[test]
        fn mutated_text_is_read_or_refused(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = EXAMPLE.as_bytes().to_vec();
            for (at, value) in changes {
                let i = at.index(bytes.len());
                bytes[i] = value;
            }
            if let Ok(program) = Program::from_text(&String::from_utf8_lossy(&bytes)) {
                let _ = program.validate();
                let again = Program::from_text(&program.to_text()).unwrap();
                prop_assert_eq!(again.to_text(), program.to_text());
            }
        }
    }
}
