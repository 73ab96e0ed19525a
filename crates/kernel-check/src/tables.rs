//! The special tables: those of the kernel, read from its memory between the symbols that bound them, and
//! those of a module. One reader of entries for both, since their formats are the same.

use crate::facts::WarningForm;
use crate::finding::Problem;
use crate::kernel::{Kernel, from_itself, long, word};
use crate::load::{Entry, Loaded};
use restitch_address::Svma;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of entries: `struct exception_table_entry`, `jump_entry`, `static_call_site`, `orc_entry`.
const EXCEPTION: usize = 12;
const KEY: usize = 16;
const STATIC_CALL: usize = 8;
const ROW: usize = 6;
/// Bytes of an entry that is a distance, and of one that is an address.
const PLACE: usize = 4;
const ADDRESS: usize = 8;

/// An instruction whose fault is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) fixup: Svma,
    pub(crate) data: u32,
}

/// A branch that the kernel rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) target: Svma,
    pub(crate) key: Svma,
    /// The two low bits: the branch is inverted; the code is gone after the start.
    pub(crate) flags: u64,
}

/// A call that the kernel rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StaticCall {
    pub(crate) key: Svma,
    /// The two low bits: it is a jump; the code is gone after the start.
    pub(crate) flags: u64,
}

impl StaticCall {
    pub(crate) fn is_jump(self) -> bool {
        self.flags & 1 != 0
    }
}

/// A trap that reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning {
    /// Where the entry is.
    pub(crate) entry: Svma,
    /// Control goes on behind it.
    pub(crate) goes_on: bool,
    /// The entry's bytes but for those that are distances, and whether it was reported once.
    pub(crate) rest: Vec<u8>,
    pub(crate) pointers: Vec<Svma>,
}

/// A row of the unwinder.
pub(crate) type Row = [u8; ROW];

/// The row where one more word is on the stack: distances from the stack pointer are larger.
pub(crate) fn lowered(row: Row) -> Row {
    /// Numbers of registers of rows: the stack pointer, and a word that it points to.
    const STACK_POINTERS: [u8; 2] = [5, 9];
    const WORD: i16 = 8;
    let mut lowered = row;
    if STACK_POINTERS.contains(&(row[4] & 0xf)) {
        let distance = i16::from_le_bytes([row[0], row[1]]).wrapping_add(WORD);
        lowered[..2].copy_from_slice(&distance.to_le_bytes());
    }
    lowered
}

/// Rows, each from a place on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    pub(crate) list: Vec<(Svma, Row)>,
}

impl Rows {
    fn new(mut list: Vec<(Svma, Row)>) -> Self {
        // Stable: of two for one place the last one holds, as for the kernel.
        list.sort_by_key(|(at, _)| *at);
        Self { list }
    }
    /// The row that holds at an address.
    pub(crate) fn at(&self, address: Svma) -> Option<Row> {
        let behind = self.list.partition_point(|(at, _)| *at <= address);
        Some(self.list[behind.checked_sub(1)?].1)
    }
}

/// Tables that both have.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) exceptions: BTreeMap<Svma, Exception>,
    pub(crate) keys: BTreeMap<Svma, Key>,
    pub(crate) calls: BTreeMap<Svma, StaticCall>,
    pub(crate) warnings: BTreeMap<Svma, Warning>,
    pub(crate) rows: Rows,
    /// What two entries of one table are about.
    doubled: BTreeSet<Svma>,
}

impl Tables {
    /// Those of a running kernel.
    pub(crate) fn of_kernel(kernel: &dyn Kernel, form: &WarningForm) -> Result<Self, Problem> {
        let bounded = |start: &str, stop: &str, len: usize| Bounded::read(kernel, start, stop, len);
        let exceptions = bounded("__start___ex_table", "__stop___ex_table", EXCEPTION)?;
        let keys = bounded("__start___jump_table", "__stop___jump_table", KEY)?;
        let calls = bounded("__start_static_call_sites", "__stop_static_call_sites", STATIC_CALL)?;
        let warnings = bounded("__start___bug_table", "__stop___bug_table", form.len as usize)?;
        let places = bounded("__start_orc_unwind_ip", "__stop_orc_unwind_ip", PLACE)?;
        let rows = bounded("__start_orc_unwind", "__stop_orc_unwind", ROW)?;
        let source = Source {
            exceptions: exceptions.entries().collect(),
            keys: keys.entries().collect(),
            calls: calls.entries().collect(),
            warnings: warnings.entries().collect(),
            places: places.entries().collect(),
            rows: rows.entries().collect(),
        };
        source.tables(form).ok_or(Problem::Kernel("its tables are not of the form that is known"))
    }

    /// Those of a module.
    pub(crate) fn of_module(module: &Loaded<'_>, form: &WarningForm) -> Result<Self, Problem> {
        let source = Source {
            exceptions: module.entries("__ex_table", EXCEPTION)?,
            keys: module.entries("__jump_table", KEY)?,
            calls: module.entries(".static_call_sites", STATIC_CALL)?,
            warnings: module.entries("__bug_table", form.len as usize)?,
            places: module.entries(".orc_unwind_ip", PLACE)?,
            rows: module.entries(".orc_unwind", ROW)?,
        };
        let tables = source.tables(form);
        let tables = tables.ok_or(Problem::Table { table: ".orc_unwind", what: "is of another length" })?;
        match tables.doubled.is_empty() {
            true => Ok(tables),
            false => Err(Problem::Table { table: "of one kind", what: "has two entries of one place" }),
        }
    }

    /// Whether an entry is about this place.
    pub(crate) fn knows(&self, at: Svma) -> bool {
        self.exceptions.contains_key(&at) || self.warnings.contains_key(&at) || self.rewrites(at)
    }
    /// Whether the kernel rewrites what stands there.
    pub(crate) fn rewrites(&self, at: Svma) -> bool {
        self.keys.contains_key(&at) || self.calls.contains_key(&at)
    }
    /// Whether what entries say about the bytes from `at` up to `end` can be followed: no two of one kind,
    /// and none about the middle.
    pub(crate) fn is_plain(&self, at: Svma, end: Svma) -> bool {
        let inside = at + 1..end;
        let is_free = inside.is_empty()
            || (self.exceptions.range(inside.clone()).next().is_none()
                && self.keys.range(inside.clone()).next().is_none()
                && self.calls.range(inside.clone()).next().is_none()
                && self.warnings.range(inside).next().is_none());
        is_free && !self.doubled.contains(&at)
    }
}

/// A table in the kernel's memory.
struct Bounded {
    at: Svma,
    bytes: Vec<u8>,
    len: usize,
}

impl Bounded {
    fn read(kernel: &dyn Kernel, start: &str, stop: &str, len: usize) -> Result<Self, Problem> {
        /// No table of a kernel is as long.
        const MOST: u64 = 1 << 28;
        let symbols = kernel.symbols();
        let bounds = symbols.address(start).zip(symbols.address(stop));
        let (at, stop) = bounds.ok_or(Problem::Kernel("the bounds of a table are not among its symbols"))?;
        let size = stop.get().wrapping_sub(at.get());
        if len == 0 || size > MOST || !size.is_multiple_of(len as u64) {
            return Err(Problem::Kernel("a table ends in the middle of an entry"));
        }
        let mut bytes = vec![0; size as usize];
        match kernel.read(at, &mut bytes) {
            true => Ok(Self { at, bytes, len }),
            false => Err(Problem::Kernel("a table is not in what can be read")),
        }
    }
    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let entries = self.bytes.chunks_exact(self.len).enumerate();
        entries.map(|(i, bytes)| Entry { at: self.at + (i * self.len) as u64, bytes })
    }
}

/// Entries of all tables.
struct Source<'s> {
    exceptions: Vec<Entry<'s>>,
    keys: Vec<Entry<'s>>,
    calls: Vec<Entry<'s>>,
    warnings: Vec<Entry<'s>>,
    places: Vec<Entry<'s>>,
    rows: Vec<Entry<'s>>,
}

impl Source<'_> {
    fn tables(self, form: &WarningForm) -> Option<Tables> {
        /// Bits of addresses of keys that say something else.
        const FLAGS: u64 = 3;
        let mut tables = Tables::default();
        let mut doubled = BTreeSet::new();
        for entry in &self.exceptions {
            let exception = Exception { fixup: entry.leads(4)?, data: word(entry.bytes, 8)? };
            let at = entry.leads(0)?;
            doubled.extend(tables.exceptions.insert(at, exception).map(|_| at));
        }
        for entry in &self.keys {
            let key = (entry.at + 8).get().wrapping_add(long(entry.bytes, 8)?);
            let (key, flags) = (Svma::new(key & !FLAGS), key & FLAGS);
            let at = entry.leads(0)?;
            let own = Key { target: entry.leads(4)?, key, flags };
            doubled.extend(tables.keys.insert(at, own).map(|_| at));
        }
        for entry in &self.calls {
            let key = entry.leads(4)?.get();
            let own = StaticCall { key: Svma::new(key & !FLAGS), flags: key & FLAGS };
            let at = entry.leads(0)?;
            doubled.extend(tables.calls.insert(at, own).map(|_| at));
        }
        for entry in &self.warnings {
            let at = entry.leads(0)?;
            doubled.extend(tables.warnings.insert(at, warning(entry, form)?).map(|_| at));
        }
        if self.places.len() != self.rows.len() {
            return None;
        }
        let rows = self.places.iter().zip(&self.rows);
        let rows = rows.map(|(place, row)| Some((place.leads(0)?, *row.bytes.first_chunk()?)));
        tables.rows = Rows::new(rows.collect::<Option<_>>()?);
        tables.doubled = doubled;
        Some(tables)
    }
}

fn warning(entry: &Entry<'_>, form: &WarningForm) -> Option<Warning> {
    /// `BUGFLAG_WARNING`, and `BUGFLAG_DONE`: it was reported, and is not to be again.
    const GOES_ON: u8 = 1;
    const DONE: u8 = 4;
    let mut rest = entry.bytes.to_vec();
    let flags = rest.get_mut(form.flags_at as usize)?;
    let goes_on = *flags & GOES_ON != 0;
    *flags &= !DONE;
    let mut pointers = Vec::new();
    for at in [0].iter().chain(&form.pointers) {
        let at = *at as usize;
        pointers.push(entry.leads(at)?);
        rest.get_mut(at..at + PLACE)?.fill(0);
    }
    // The first leads to the trap.
    pointers.remove(0);
    Some(Warning { entry: entry.at, goes_on, rest, pointers })
}

impl Entry<'_> {
    /// Where the word at an offset leads to.
    pub(crate) fn leads(&self, at: usize) -> Option<Svma> {
        from_itself(self.bytes, self.at, at)
    }
}

/// Lists of places that the loader rewrites, in a module alone: the kernel's own are gone after its start.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    pub(crate) traces: BTreeSet<Svma>,
    pub(crate) returns: BTreeSet<Svma>,
    pub(crate) thunks: BTreeSet<Svma>,
    pub(crate) calls: BTreeSet<Svma>,
}

impl Sites {
    pub(crate) const TRACES: &str = "__mcount_loc";
    pub(crate) const RETURNS: &str = ".return_sites";
    pub(crate) const THUNKS: &str = ".retpoline_sites";
    pub(crate) const CALLS: &str = ".call_sites";

    pub(crate) fn of_module(module: &Loaded<'_>) -> Result<Self, Problem> {
        let addresses = |table| set(module, table, ADDRESS, |entry| long(entry.bytes, 0).map(Svma::new));
        let places = |table| set(module, table, PLACE, |entry| entry.leads(0));
        Ok(Self {
            traces: addresses(Self::TRACES)?,
            returns: places(Self::RETURNS)?,
            thunks: places(Self::THUNKS)?,
            calls: places(Self::CALLS)?,
        })
    }
}

fn set(
    module: &Loaded<'_>,
    table: &'static str,
    len: usize,
    place: impl Fn(&Entry<'_>) -> Option<Svma>,
) -> Result<BTreeSet<Svma>, Problem> {
    let entries = module.entries(table, len)?;
    let set: BTreeSet<Svma> = entries.iter().filter_map(place).collect();
    match set.len() == entries.len() {
        true => Ok(set),
        false => Err(Problem::Table { table, what: "has two entries of one place" }),
    }
}
