//! The tables that a kernel keeps about its own code: faults that are expected, static keys and calls, traps
//! that report, unwinding.
//!
//! **Where they are** is in kallsyms (`__start___jump_table` and the like), which has names of data on
//! kernels with CONFIG_KALLSYMS_ALL. `__start___ex_table` is in all of those: without it the tables are not
//! known, and no code is taken for understood. A table whose names are missing beside it is one that the
//! kernel does not have. **How they are built** is in the kernel's types (BTF); where it has none, they are
//! taken to be as they were in all kernels that were looked at, and the length of a bug entry is found by
//! trying.
//!
//! Tables that kernels give back after they have started are not there: alternatives, sites of returns, of
//! branches through registers, of the function tracer.

use crate::btf::{Structure, structures};
use crate::error::KernelError;
use crate::memory::{Memory, relative};
use crate::symbols::Symbols;
use restitch_address::{Svma, SvmaRange};
use std::collections::BTreeMap;

/// An instruction whose fault is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExceptionEntry {
    /// The instruction.
    pub at: Svma,
    /// Where control goes on.
    pub fixup: Svma,
    /// What the handler does, as the kernel encodes it.
    pub data: u32,
}

/// A branch that a static key switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyEntry {
    /// The branch.
    pub at: Svma,
    /// Where it leads when it is a jump.
    pub target: Svma,
    /// The key.
    pub key: Svma,
    /// Whether the jump stands there while the key is off.
    pub is_inverted: bool,
}

/// A call that the kernel rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEntry {
    /// The call.
    pub at: Svma,
    /// Its key.
    pub key: Svma,
    /// Whether it ends its function.
    pub is_tail: bool,
}

/// A trap that reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BugEntry {
    /// The trap.
    pub at: Svma,
    /// The entry itself.
    pub entry: Svma,
    /// Whether control goes on behind it (`WARN`).
    pub goes_on: bool,
}

/// A row of the unwinder, which holds from a place on. Its bytes are not looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnwindEntry {
    /// From here.
    pub at: Svma,
    /// The row.
    pub row: [u8; 6],
}

/// The tables, each by place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// `__ex_table`.
    pub exceptions: Vec<ExceptionEntry>,
    /// `__jump_table`, without keys that cannot be switched any more.
    pub keys: Vec<KeyEntry>,
    /// `.static_call_sites`.
    pub calls: Vec<CallEntry>,
    /// `__bug_table`.
    pub bugs: Vec<BugEntry>,
    /// `.orc_unwind_ip` with `.orc_unwind`.
    pub unwind: Vec<UnwindEntry>,
    /// Bytes of an entry of the bug table.
    pub bug_len: usize,
    /// Offset in it of the flags, in 2 bytes.
    pub bug_flags_at: u32,
    /// Offsets in it of words that point from themselves to something.
    pub bug_pointers: Vec<u32>,
    /// Where a static key says what it was made as.
    pub key_kind_at: u64,
    /// Tables that this kernel has no names of.
    pub missing: Vec<&'static str>,
    /// Whether structures were described by the kernel's types.
    pub has_types: bool,
}

/// Entries of a table by place.
pub trait Placed {
    /// Where the code is that the entry is about.
    fn place(&self) -> Svma;
}

macro_rules! placed {
    ($($entry:ident),*) => { $(impl Placed for $entry { fn place(&self) -> Svma { self.at } })* };
}
placed!(ExceptionEntry, KeyEntry, CallEntry, BugEntry, UnwindEntry);

/// The entry of a sorted table at a place.
pub fn entry_at<E: Placed>(table: &[E], at: Svma) -> Option<&E> {
    table.binary_search_by_key(&at, Placed::place).ok().map(|index| &table[index])
}

/// The entries of a sorted table in a range.
pub fn entries_in<E: Placed>(table: &[E], range: SvmaRange) -> &[E] {
    let from = table.partition_point(|entry| entry.place() < range.start);
    let to = table.partition_point(|entry| entry.place() < range.end);
    &table[from..to.max(from)]
}

impl Tables {
    /// Reads them. `types` is the file of the kernel's types.
    ///
    /// # Errors
    /// If it is not known where they are.
    pub fn read(memory: &Memory, symbols: &Symbols, types: Option<&[u8]>) -> Result<Self, KernelError> {
        if symbols.range("__start___ex_table", "__stop___ex_table").is_none() {
            let what = "names of its tables in /proc/kallsyms (CONFIG_KALLSYMS_ALL is not set)";
            return Err(KernelError::Missing { what: what.into() });
        }
        let types = Shapes::read(types.unwrap_or_default());
        let mut reader = Reader { memory, symbols, missing: Vec::new() };
        let mut tables =
            Self { has_types: types.are_known, key_kind_at: types.key_kind_at, ..Self::default() };
        tables.exceptions = reader.exceptions(&types);
        tables.keys = reader.keys(&types);
        tables.calls = reader.calls(&types);
        reader.bugs(&types, &mut tables);
        tables.unwind = reader.unwind();
        tables.missing = reader.missing;
        tables.leave_out_sealed(symbols);
        tables.sort();
        Ok(tables)
    }

    /// A key that cannot be written any more (`__ro_after_init`) switches nothing: its branches are plain
    /// code. Up to 6.9 a module that lists one makes the loader write to it, which is the kernel's end.
    fn leave_out_sealed(&mut self, symbols: &Symbols) {
        if let Some(sealed) = symbols.range("__start_ro_after_init", "__end_ro_after_init") {
            self.keys.retain(|entry| !sealed.contains(entry.key));
        }
    }

    fn sort(&mut self) {
        self.exceptions.sort_by_key(Placed::place);
        self.keys.sort_by_key(Placed::place);
        self.calls.sort_by_key(Placed::place);
        self.bugs.sort_by_key(Placed::place);
        self.unwind.sort_by_key(Placed::place);
    }

    /// The row of the unwinder that holds at a place.
    pub fn unwind_at(&self, at: Svma) -> Option<&UnwindEntry> {
        self.unwind[..self.unwind.partition_point(|entry| entry.at <= at)].last()
    }

    /// The rows of the unwinder that begin in a range.
    pub fn unwind_in(&self, range: SvmaRange) -> &[UnwindEntry] {
        entries_in(&self.unwind, range)
    }

    /// Whether no table says anything of a range.
    pub fn are_silent(&self, range: SvmaRange) -> bool {
        entries_in(&self.exceptions, range).is_empty()
            && entries_in(&self.keys, range).is_empty()
            && entries_in(&self.calls, range).is_empty()
            && entries_in(&self.bugs, range).is_empty()
    }
}

/// How entries are built.
struct Shapes {
    known: BTreeMap<String, Structure>,
    are_known: bool,
    key_kind_at: u64,
}

impl Shapes {
    fn read(types: &[u8]) -> Self {
        let names = ["exception_table_entry", "jump_entry", "static_call_site", "bug_entry", "static_key"];
        let known = structures(types, &names);
        // Behind the count, of 4 bytes and as many of padding.
        let kind =
            known.get("static_key").and_then(|key| key.fields.values().copied().filter(|at| *at > 0).min());
        Self { are_known: !known.is_empty(), key_kind_at: kind.unwrap_or(8) as u64, known }
    }

    fn len(&self, name: &str, usual: usize) -> usize {
        self.known.get(name).map_or(usual, |structure| structure.len)
    }

    fn field(&self, name: &str, field: &str, usual: usize) -> usize {
        self.known.get(name).and_then(|structure| structure.fields.get(field)).copied().unwrap_or(usual)
    }
}

struct Reader<'a> {
    memory: &'a Memory,
    symbols: &'a Symbols,
    missing: Vec<&'static str>,
}

/// An entry and where it is.
struct Entry<'a> {
    at: Svma,
    bytes: &'a [u8],
}

impl Entry<'_> {
    fn pointer(&self, offset: usize) -> Option<Svma> {
        relative(self.bytes, offset, self.at)
    }

    fn word(&self, offset: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(offset..)?.first_chunk()?))
    }

    fn long_pointer(&self, offset: usize) -> Option<u64> {
        let word = u64::from_le_bytes(*self.bytes.get(offset..)?.first_chunk()?);
        Some(self.at.get().wrapping_add(offset as u64).wrapping_add(word))
    }
}

impl<'a> Reader<'a> {
    /// The bytes between two names.
    fn table(&mut self, name: &'static str, start: &str, end: &str) -> Entry<'a> {
        let range = self.symbols.range(start, end);
        let bytes = range.and_then(|range| self.memory.bytes(range));
        if bytes.is_none() {
            self.missing.push(name);
        }
        Entry { at: range.map_or(Svma::new(0), |range| range.start), bytes: bytes.unwrap_or_default() }
    }

    fn entries(&mut self, name: &'static str, start: &str, end: &str, len: usize) -> Vec<Entry<'a>> {
        let table = self.table(name, start, end);
        let entries = table.bytes.chunks_exact(len.max(1)).enumerate();
        entries.map(|(i, bytes)| Entry { at: table.at + (i * len) as u64, bytes }).collect()
    }

    fn exceptions(&mut self, types: &Shapes) -> Vec<ExceptionEntry> {
        let name = "exception_table_entry";
        let field = |field, usual| types.field(name, field, usual);
        let (insn, fixup, data) = (field("insn", 0), field("fixup", 4), field("data", 8));
        let len = types.len(name, 12);
        let entries = self.entries("__ex_table", "__start___ex_table", "__stop___ex_table", len);
        let entry = |e: &Entry<'_>| {
            let (at, fixup) = (e.pointer(insn)?, e.pointer(fixup)?);
            Some(ExceptionEntry { at, fixup, data: e.word(data)? })
        };
        entries.iter().filter_map(entry).collect()
    }

    fn keys(&mut self, types: &Shapes) -> Vec<KeyEntry> {
        let name = "jump_entry";
        let field = |field, usual| types.field(name, field, usual);
        let (code, target, key) = (field("code", 0), field("target", 4), field("key", 8));
        let len = types.len(name, 16);
        let entries = self.entries("__jump_table", "__start___jump_table", "__stop___jump_table", len);
        let entry = |e: &Entry<'_>| {
            let (at, target, key) = (e.pointer(code)?, e.pointer(target)?, e.long_pointer(key)?);
            // Bit 1: the code was there while the kernel started only.
            (key & 2 == 0).then_some(KeyEntry {
                at,
                target,
                key: Svma::new(key & !3),
                is_inverted: key & 1 != 0,
            })
        };
        entries.iter().filter_map(entry).collect()
    }

    fn calls(&mut self, types: &Shapes) -> Vec<CallEntry> {
        let name = "static_call_site";
        let (code, key) = (types.field(name, "addr", 0), types.field(name, "key", 4));
        let (start, end) = ("__start_static_call_sites", "__stop_static_call_sites");
        let entries = self.entries(".static_call_sites", start, end, types.len(name, 8));
        let entry = |e: &Entry<'_>| {
            let (at, key) = (e.pointer(code)?, e.pointer(key)?.get());
            (key & 2 == 0).then_some(CallEntry { at, key: Svma::new(key & !3), is_tail: key & 1 != 0 })
        };
        entries.iter().filter_map(entry).collect()
    }

    fn bugs(&mut self, types: &Shapes, tables: &mut Tables) {
        let name = "bug_entry";
        let table = self.table("__bug_table", "__start___bug_table", "__stop___bug_table");
        let known = types.known.get(name).map(|structure| structure.len);
        let Some(len) = known.or_else(|| self.bug_len(&table)).filter(|len| *len > 4) else { return };
        let at = types.field(name, "bug_addr_disp", 0);
        let flags = types.field(name, "flags", len - 2);
        let entries = table.bytes.chunks_exact(len).enumerate();
        let entry = |(i, bytes): (usize, &[u8])| {
            let entry = Entry { at: table.at + (i * len) as u64, bytes };
            let flags = u16::from_le_bytes(*bytes.get(flags..)?.first_chunk()?);
            Some(BugEntry { at: entry.pointer(at)?, entry: entry.at, goes_on: flags & 1 != 0 })
        };
        tables.bugs = entries.filter_map(entry).collect();
        (tables.bug_len, tables.bug_flags_at) = (len, flags as u32);
        let pointers = types.known.get(name).into_iter().flat_map(|structure| &structure.fields);
        let pointers = pointers.filter(|(name, _)| name.ends_with("_disp") && *name != "bug_addr_disp");
        tables.bug_pointers = pointers.map(|(_, at)| *at as u32).collect();
        tables.bug_pointers.sort_unstable();
    }

    /// The length with which all first words lead into the text.
    fn bug_len(&self, table: &Entry<'_>) -> Option<usize> {
        let text = self.symbols.range("_stext", "_etext")?;
        let leads = |len: usize| {
            let mut places = table
                .bytes
                .chunks_exact(len)
                .enumerate()
                .map(|(i, bytes)| relative(bytes, 0, table.at + (i * len) as u64));
            table.bytes.len().is_multiple_of(len) && places.all(|at| at.is_some_and(|at| text.contains(at)))
        };
        (8..=32).step_by(4).find(|len| leads(*len))
    }

    fn unwind(&mut self) -> Vec<UnwindEntry> {
        let places = self.entries(".orc_unwind_ip", "__start_orc_unwind_ip", "__stop_orc_unwind_ip", 4);
        let rows = self.entries(".orc_unwind", "__start_orc_unwind", "__stop_orc_unwind", 6);
        let entry = |(place, row): (&Entry<'_>, &Entry<'_>)| {
            Some(UnwindEntry { at: place.pointer(0)?, row: *row.bytes.first_chunk()? })
        };
        places.iter().zip(&rows).filter_map(entry).collect()
    }
}
