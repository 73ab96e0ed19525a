//! Jump tables: which indirect jumps go through one, where it is, and how far it goes.
//!
//! Problem: a version dispatches through its own copy of a table, so the table has to be found, its base has
//! to be known, and a copy must not be shorter than what the program may index.
//!
//! Idea: evaluate the straight-line code before the jump on symbols (constants and "entry of table T"). If
//! the jump's target is an entry, the load that fetched it is the one instruction that a copy has to change.
//! The table is then read forward for as long as its entries point to instruction boundaries of known
//! functions, or to the end of one (what clang knows to be unreachable). It may run on into the next table,
//! which costs bytes but no correctness (entries behind the believed end make no edges,
//! [`JumpTable::tail`]).
//!
//! What was read may be too little where a check of the index itself allows more, or where entries behind
//! the believed end are so many that they are hardly others' ([`MOST_TAIL`]). Such a table is not copied:
//! its jump leads to the original code.
//!
//! The believed end is the bound of the nearest preceding unsigned compare, else the next table, else the
//! first entry that leaves the function's family. It only serves the edges of the flow graph.
//!
//! What stands in front of the address that the code names belongs to the table if its index may be negative
//! ([`TableIndex`]).
//!
//! Limits: base registers that are set in another block are followed only when every definition of the
//! register in the function gives the same constant (restoring pops apart). Tables of 1- or 2-byte entries
//! are not recognised. An entry that leads to no known instruction ends a table of which no check is seen.

use crate::model::{JumpTable, TableEncoding};
use crate::sweep::{Kind, Mini, Span, Sweep};
use crate::table_index::TableIndex;
use restitch_address::Svma;
use restitch_image::{Image, RelocationKind};
use restitch_x86::{Condition, Decoded, Mem, Op, Reg, decode_one};

/// How many instructions before an indirect jump are looked at.
const WINDOW: usize = 24;
/// How many instructions before a table load may hold its bounds check.
const BOUND_WINDOW: usize = 40;
/// No table is believed to have more entries than this.
const MOST_ENTRIES: usize = 1 << 20;
/// A copy holds at most this many entries behind the believed end. With more that look like such, the end is
/// not believed: no copy is made.
const MOST_TAIL: usize = 1_024;

/// What is known of a register.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    Unknown,
    Constant(u64),
    /// A 4-byte entry that is not sign-extended yet.
    Raw4 {
        load: Svma,
        table: u64,
    },
    /// A sign-extended 4-byte entry of the table at this address.
    Entry4 {
        load: Svma,
        table: u64,
    },
    /// `Entry4` plus a constant: a target.
    Target4 {
        load: Svma,
        table: u64,
        base: u64,
    },
    /// An 8-byte entry.
    Entry8 {
        load: Svma,
        table: u64,
    },
}

/// A table that was found, before its extent is known.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Found {
    jump_at: Svma,
    load_at: Svma,
    table: Svma,
    base: Svma,
    encoding: TableEncoding,
}

/// All recognised tables, sorted by jump. `copyable` is settled later, when all leaders are known.
pub(crate) fn find_tables(image: &Image, sweep: &Sweep) -> Vec<JumpTable> {
    let mut found = Vec::new();
    for &i in &sweep.indirect {
        let mini = &sweep.minis[i as usize];
        if mini.kind == Kind::IndirectJump
            && let Some(s) = sweep.span_at(sweep.address(mini))
            && let Some(f) = recognise(image, sweep, &sweep.spans[s], i as usize - sweep.spans[s].first)
        {
            found.push(f);
        }
    }
    let mut known = Known { image, sweep, starts: Vec::new(), ends: Vec::new() };
    let measured: Vec<(Found, Option<Bound>)> = found.into_iter().map(|f| (f, known.note(&f))).collect();
    known.settle();
    let mut index = TableIndex::new(image, sweep);
    measured.iter().filter_map(|(found, bound)| known.measure(found, *bound, &mut index)).collect()
}

fn decode(image: &Image, sweep: &Sweep, mini: &Mini) -> Option<Decoded> {
    let at = sweep.address(mini);
    decode_one(image.read(at, mini.len.into())?, at)
}

/// Evaluates the straight-line code before `minis[jump]`.
fn recognise(image: &Image, sweep: &Sweep, span: &Span, jump: usize) -> Option<Found> {
    let minis = sweep.minis_of(span);
    let mut first = jump;
    while first > 0 && jump - first < WINDOW && !minis[first - 1].kind.ends_block() {
        first -= 1;
    }
    let mut registers = [Value::Unknown; 16];
    for mini in &minis[first..jump] {
        let insn = decode(image, sweep, mini)?;
        step(image, sweep, span, &insn, &mut registers);
    }
    let insn = decode(image, sweep, &minis[jump])?;
    let jump_at = insn.insn.at;
    match insn.op {
        Op::JumpRegister(Reg(r)) => match registers[r as usize] {
            Value::Target4 { load, table, base } => Some(Found {
                jump_at,
                load_at: load,
                table: Svma::new(table),
                base: Svma::new(base),
                encoding: TableEncoding::Relative4,
            }),
            Value::Entry8 { load, table } => Some(Found {
                jump_at,
                load_at: load,
                table: Svma::new(table),
                base: Svma::new(0),
                encoding: TableEncoding::Absolute8,
            }),
            _ => None,
        },
        Op::JumpMemory(mem) => {
            let table = table_of(image, sweep, span, &insn, &mem, 8, &registers)?;
            Some(Found {
                jump_at,
                load_at: jump_at,
                table: Svma::new(table),
                base: Svma::new(0),
                encoding: TableEncoding::Absolute8,
            })
        }
        _ => None,
    }
}

/// The table that an indexed operand reads, if its base is known.
fn table_of(
    image: &Image,
    sweep: &Sweep,
    span: &Span,
    insn: &Decoded,
    mem: &Mem,
    scale: u8,
    registers: &[Value; 16],
) -> Option<u64> {
    if mem.rip || mem.index.is_none() {
        return None;
    }
    if mem.scale != scale {
        return scaled_before(mem, registers);
    }
    let base = match mem.base {
        None => 0,
        Some(reg) => match registers[reg.0 as usize] {
            Value::Constant(c) => c,
            Value::Unknown => hoisted_constant(image, sweep, span, insn.insn.at, reg)?,
            _ => return None,
        },
    };
    Some(base.wrapping_add(mem.disp as u64))
}

/// The table where the index was multiplied by an instruction of its own, as unoptimized code does.
fn scaled_before(mem: &Mem, registers: &[Value; 16]) -> Option<u64> {
    let constant = |r: Option<Reg>| match registers[r?.0 as usize] {
        Value::Constant(c) => Some(c),
        _ => None,
    };
    let base = match (constant(mem.base), constant(mem.index)) {
        (Some(c), None) | (None, Some(c)) if mem.scale == 1 => c,
        _ => return None,
    };
    Some(base.wrapping_add(mem.disp as u64))
}

fn step(image: &Image, sweep: &Sweep, span: &Span, insn: &Decoded, registers: &mut [Value; 16]) {
    let value = |r: Reg, registers: &[Value; 16]| registers[r.0 as usize];
    let result = match insn.op {
        Op::Constant(dst, c) => Some((dst, Value::Constant(c))),
        Op::Copy(dst, src, 64) => Some((dst, value(src, registers))),
        Op::AddConstant(dst, src, c) => match value(src, registers) {
            Value::Constant(base) => Some((dst, Value::Constant(base.wrapping_add(c as u64)))),
            _ => None,
        },
        Op::Load { dst, ref mem, size: 4, signed: true } => {
            table_of(image, sweep, span, insn, mem, 4, registers)
                .map(|table| (dst, Value::Entry4 { load: insn.insn.at, table }))
        }
        Op::Load { dst, ref mem, size: 4, signed: false } => {
            table_of(image, sweep, span, insn, mem, 4, registers)
                .map(|table| (dst, Value::Raw4 { load: insn.insn.at, table }))
        }
        Op::SignExtend(dst, src) => match value(src, registers) {
            Value::Raw4 { load, table } => Some((dst, Value::Entry4 { load, table })),
            _ => None,
        },
        Op::Load { dst, ref mem, size: 8, .. } => table_of(image, sweep, span, insn, mem, 8, registers)
            .map(|table| (dst, Value::Entry8 { load: insn.insn.at, table })),
        Op::Add(dst, src) => sum(image, sweep, span, insn, dst, src, registers).map(|v| (dst, v)),
        Op::Sum(dst, a, b) => sum(image, sweep, span, insn, a, b, registers).map(|v| (dst, v)),
        _ => None,
    };
    let is_call = matches!(insn.insn.flow, restitch_x86::Flow::Call(_) | restitch_x86::Flow::IndirectCall);
    for (r, value) in registers.iter_mut().enumerate() {
        if insn.writes >> r & 1 == 1 || is_call {
            *value = Value::Unknown;
        }
    }
    if let Some((dst, v)) = result {
        registers[dst.0 as usize] = v;
    }
}

/// An entry plus a constant, in either order; the constant may sit in a hoisted register.
fn sum(
    image: &Image,
    sweep: &Sweep,
    span: &Span,
    insn: &Decoded,
    a: Reg,
    b: Reg,
    registers: &[Value; 16],
) -> Option<Value> {
    let known = |r: Reg| match registers[r.0 as usize] {
        Value::Unknown => hoisted_constant(image, sweep, span, insn.insn.at, r).map(Value::Constant),
        v => Some(v),
    };
    let entry = |r: Reg| matches!(registers[r.0 as usize], Value::Entry4 { .. });
    if !entry(a) && !entry(b) {
        return None;
    }
    match (known(a)?, known(b)?) {
        (Value::Entry4 { load, table }, Value::Constant(base))
        | (Value::Constant(base), Value::Entry4 { load, table }) => {
            Some(Value::Target4 { load, table, base })
        }
        _ => None,
    }
}

/// The constant that `reg` holds throughout the function: every instruction that may write it loads this
/// constant, or is a `pop` (restoring the caller's value before a return). Only for registers that calls
/// preserve (System V ABI 3.2.1: rbx, rbp, r12 to r15); at least one definition has to stand before `at`.
fn hoisted_constant(image: &Image, sweep: &Sweep, span: &Span, at: Svma, reg: Reg) -> Option<u64> {
    const PRESERVED: u16 = 1 << 3 | 1 << 5 | 0xf000;
    if PRESERVED >> reg.0 & 1 == 0 {
        return None;
    }
    let mut constant = None;
    for mini in sweep.minis_of(span) {
        let insn = decode(image, sweep, mini)?;
        if insn.writes >> reg.0 & 1 == 0 {
            continue;
        }
        match insn.op {
            Op::Constant(_, c) if constant.is_none_or(|known| known == c) => {
                if constant.is_none() && insn.insn.at > at {
                    return None;
                }
                constant = Some(c);
            }
            _ if is_pop(image, mini, sweep) => {}
            _ => return None,
        }
    }
    constant
}

fn is_pop(image: &Image, mini: &Mini, sweep: &Sweep) -> bool {
    let at = sweep.address(mini);
    match image.read(at, mini.len.into()) {
        Some([op]) => (0x58..=0x5f).contains(op),
        Some([0x41, op]) => (0x58..=0x5f).contains(op),
        _ => false,
    }
}

/// What is known of all tables before their extents are.
struct Known<'a> {
    image: &'a Image,
    sweep: &'a Sweep,
    /// Addresses that code names, sorted.
    starts: Vec<Svma>,
    /// Behind the last entries that checks of indices allow, sorted.
    ends: Vec<Svma>,
}

impl Known<'_> {
    /// Takes in a table, and gives what the compare in front of it allows.
    fn note(&mut self, found: &Found) -> Option<Bound> {
        let span = self.sweep.span_at(found.jump_at)?;
        let bound = bound_before(self.image, self.sweep, span, found.load_at);
        self.starts.push(found.table);
        let checked = bound.filter(|bound| bound.of_index);
        let end = |bound: Bound| found.table + bound.entries as u64 * entry_width(found.encoding);
        self.ends.extend(checked.map(end));
        bound
    }

    fn settle(&mut self) {
        self.starts.sort_unstable();
        self.starts.dedup();
        self.ends.sort_unstable();
    }

    /// Reads the table and splits it at its believed end.
    fn measure(&self, found: &Found, bound: Option<Bound>, index: &mut TableIndex<'_>) -> Option<JumpTable> {
        let (image, sweep, width) = (self.image, self.sweep, entry_width(found.encoding));
        if !is_constant(image, found.table) {
            return None;
        }
        let span = sweep.span_at(found.jump_at)?;
        let following = self.starts.partition_point(|t| *t <= found.table);
        let index_of = |table: &Svma| (table.offset_from(found.table) as u64 / width) as usize;
        let next_table = self.starts.get(following).map_or(MOST_ENTRIES, index_of);
        // Two tables do not overlap, but a reference may point before its table's start, so look one table
        // further.
        let limit = self.starts.get(following + 1).map_or(MOST_ENTRIES, index_of);
        let limit = limit.max(bound.map_or(0, |bound| bound.entries)).min(MOST_ENTRIES);
        let checked = bound.filter(|bound| bound.of_index).map_or(0, |bound| bound.entries);
        let (mut entries, known) = read_entries(image, sweep, found, checked.min(limit), limit);
        let in_family = entries.iter().position(|t| !same_family(sweep, span, *t)).unwrap_or(entries.len());
        let end = match bound {
            Some(bound) if bound.entries <= known => bound.entries,
            // The check allows more than the table seems to hold: not the check of this table, or not a
            // table.
            _ => in_family.min(next_table).min(known),
        };
        let tail = entries.split_off(end);
        let head = self.head(found, span, index.bytes_below(span, found.load_at));
        let table = found.table.offset(-((width * head.entries.len() as u64) as i64));
        let targets = [head.entries, entries].concat();
        if targets.is_empty() {
            return None;
        }
        // What was read may be less than the code indexes, or leads somewhere that is not known.
        let is_whole = checked <= known && head.is_whole;
        let is_believed = is_whole && tail.len() <= MOST_TAIL && end + tail.len() < MOST_ENTRIES;
        let &Found { jump_at, load_at, base, encoding, .. } = found;
        Some(JumpTable { jump_at, load_at, table, base, encoding, targets, tail, copyable: is_believed })
    }

    /// Reads the entries of the `below` bytes that the index may reach in front of the address that the code
    /// names; if that is not known, those that lead into the jump's function, as far as no other table is
    /// there.
    fn head(&self, found: &Found, span: usize, below: Option<u64>) -> Head {
        let (image, sweep, width) = (self.image, self.sweep, entry_width(found.encoding));
        let most = below.map_or_else(|| self.room_before(found.table) / width, |bytes| bytes.div_ceil(width));
        let is_entry =
            |to: &Svma| is_target(sweep, *to) && (below.is_some() || same_family(sweep, span, *to));
        let places = (1..=most.min(MOST_ENTRIES as u64)).map(|i| found.table.offset(-((i * width) as i64)));
        let readable = places.take_while(|at| is_constant(image, *at));
        let entries = readable.map_while(|at| entry_at(image, found, at).filter(is_entry));
        let mut entries: Vec<Svma> = entries.collect();
        entries.reverse();
        let is_whole = below.is_none() || entries.len() as u64 == most;
        Head { entries, is_whole }
    }

    /// How many bytes in front of the table that code names by `start` may be the table's.
    fn room_before(&self, start: Svma) -> u64 {
        let before = self.starts.partition_point(|t| *t < start);
        // A reference may point before its table's start, so look one table further.
        let other = before.checked_sub(2).map(|i| self.starts[i]).unwrap_or_default();
        let ended = self.ends.partition_point(|end| *end <= start).checked_sub(1).map(|i| self.ends[i]);
        start.offset_from(other.max(ended.unwrap_or_default())) as u64
    }
}

/// The entries in front of the address that the code names.
struct Head {
    /// What they lead to, in the order of the table.
    entries: Vec<Svma>,
    /// Whether these are all that the index may reach, as far as that can be told.
    is_whole: bool,
}

/// Whether nothing changes what is at `at` when the loader is done.
fn is_constant(image: &Image, at: Svma) -> bool {
    !image.is_writable(at) || inside_relro(image, at)
}

fn inside_relro(image: &Image, at: Svma) -> bool {
    image.relro().is_some_and(|r| r.contains(at))
}

fn entry_width(encoding: TableEncoding) -> u64 {
    match encoding {
        TableEncoding::Absolute8 => 8,
        TableEncoding::Relative4 => 4,
    }
}

/// Reads entries for as long as they lead to instructions, `checked` ones in any case, and no more than
/// `limit`; and how many of them lead to instructions before the first that does not.
fn read_entries(
    image: &Image,
    sweep: &Sweep,
    found: &Found,
    checked: usize,
    limit: usize,
) -> (Vec<Svma>, usize) {
    let (mut out, mut known) = (Vec::new(), None);
    for i in 0..limit as u64 {
        let target = entry_at(image, found, found.table + i * entry_width(found.encoding));
        let Some(target) = target else { break };
        if !is_target(sweep, target) {
            known = known.or(Some(out.len()));
            if out.len() >= checked {
                break;
            }
        }
        out.push(target);
    }
    let known = known.unwrap_or(out.len());
    (out, known)
}

/// What the entry at `at` leads to.
fn entry_at(image: &Image, found: &Found, at: Svma) -> Option<Svma> {
    match found.encoding {
        TableEncoding::Relative4 => image.read_i32(at).map(|v| found.base.offset(v.into())),
        TableEncoding::Absolute8 => match image.relocation_at(at).map(|r| &r.kind) {
            Some(RelocationKind::Relative { target }) => Some(*target),
            Some(_) => None,
            None => image.read_u64(at).map(Svma::new),
        },
    }
}

/// Whether an entry may lead to `at`: to an instruction, or, where clang sends what cannot happen
/// (`__builtin_unreachable`), to the end of a function, where no code is.
fn is_target(sweep: &Sweep, at: Svma) -> bool {
    sweep.starts.contains(at) || sweep.is_end(at)
}

/// Whether `target` lies in the jump's own function or in a function that branches into its middle
/// (`f.cold`).
fn same_family(sweep: &Sweep, span: usize, target: Svma) -> bool {
    match sweep.span_at(target) {
        Some(other) if other == span => true,
        // A split-off part begins anywhere; a table entry never is another function's entry.
        Some(other) => sweep.spans[other].range.start != target || is_split_part(sweep, span, other),
        None => sweep.spans[span].range.end == target,
    }
}

/// Whether some branch of `other` goes into the middle of `span`: a cold part going back.
fn is_split_part(sweep: &Sweep, span: usize, other: usize) -> bool {
    let (home, part) = (&sweep.spans[span], &sweep.spans[other]);
    sweep.targets_in(part.range).iter().any(|t| home.range.contains(t.1) && t.1 != home.range.start)
}

/// What an unsigned compare with a constant allows.
#[derive(Debug, Clone, Copy)]
struct Bound {
    entries: usize,
    /// Whether it compares what the table is indexed by, as far as straight-line code says.
    of_index: bool,
}

/// What the nearest preceding unsigned compare with a constant allows.
fn bound_before(image: &Image, sweep: &Sweep, span: usize, load_at: Svma) -> Option<Bound> {
    let minis = sweep.minis_of(&sweep.spans[span]);
    let load = sweep.starts.below(load_at) - sweep.spans[span].first;
    let from = load.saturating_sub(BOUND_WINDOW);
    (from..load).rev().find_map(|i| {
        let inclusive = match minis[i].kind {
            Kind::Conditional(Condition::BelowOrEqual | Condition::Above) => 1,
            Kind::Conditional(Condition::Below | Condition::AboveOrEqual) => 0,
            _ => return None,
        };
        let (at, compared, constant) =
            (from..i).rev().take(3).find_map(|j| match decode(image, sweep, &minis[j])?.op {
                Op::CompareConstant(reg, c, _) => Some((j, Some(reg), c)),
                Op::CompareMemory(_, c, _) => Some((j, None, c)),
                _ => None,
            })?;
        let entries = usize::try_from(constant.checked_add(inclusive)?).ok();
        let entries = entries.filter(|n| (1..=MOST_ENTRIES).contains(n))?;
        let code = |range: std::ops::Range<usize>| range.rev().map(|k| decode(image, sweep, &minis[k]));
        let of_index =
            index_of_load(image, sweep, &minis[load]).zip(compared).is_some_and(|(index, compared)| {
                let index = before_copies(code(at + 1..load), index);
                index == Some(compared)
                    || index.is_some_and(|index| is_copied_before(code(from..at), index, compared))
            });
        Some(Bound { entries, of_index })
    })
}

/// The register by which a load, or a jump through memory, indexes its table.
fn index_of_load(image: &Image, sweep: &Sweep, mini: &Mini) -> Option<Reg> {
    match decode(image, sweep, mini)?.op {
        Op::Load { mem, .. } | Op::JumpMemory(mem) if mem.scale > 1 => mem.index,
        _ => None,
    }
}

/// The register that what `reg` holds was in before `code`, which is given from its end: it is copied there
/// at most.
fn before_copies(code: impl Iterator<Item = Option<Decoded>>, mut reg: Reg) -> Option<Reg> {
    for insn in code {
        let insn = insn?;
        if insn.writes >> reg.0 & 1 == 1 {
            reg = copied(&insn, reg)?;
        }
    }
    Some(reg)
}

/// Whether `reg` is a copy of `source` behind `code`, which is given from its end.
fn is_copied_before(mut code: impl Iterator<Item = Option<Decoded>>, reg: Reg, source: Reg) -> bool {
    let last = code.find_map(|insn| match insn {
        Some(insn) if insn.writes >> reg.0 & 1 == 1 => Some(copied(&insn, reg)),
        Some(insn) if insn.writes >> source.0 & 1 == 0 => None,
        _ => Some(None),
    });
    last.flatten() == Some(source)
}

/// What the instruction, which writes `reg`, copies there.
fn copied(insn: &Decoded, reg: Reg) -> Option<Reg> {
    match insn.op {
        Op::Copy(to, from, _) | Op::SignExtend(to, from) if to == reg => Some(from),
        _ => None,
    }
}
