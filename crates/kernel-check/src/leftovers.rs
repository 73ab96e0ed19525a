//! What a walk must not leave over: entries of tables that speak of nothing, code that nothing leads to, and
//! symbols that do not say whose copy is where.

use crate::describe::Redirect;
use crate::elf::{FUNCTION, Home, Object, Symbol};
use crate::finding::{Finding, Problem};
use crate::insn::DROP_RETURN_ADDRESS;
use crate::sections::{EXIT, INIT};
use crate::tables::Sites;
use crate::walk::{Paired, Walk};
use restitch_address::{Svma, SvmaRange};

/// Names of chunks end so; of cold ones, too; and of what drops a return address.
const OF_COPY: &str = ".restitch";
const COLD: &str = ".cold";
const CALLED: &str = ".restitch.called";

/// What a pass over a finished walk finds.
pub(crate) fn check(walk: &mut Walk<'_>, object: &Object<'_>, redirects: &[Redirect]) {
    for redirect in redirects {
        if let Err(problem) = walk.marks.claim(redirect.called, DROP_RETURN_ADDRESS.len() as u64) {
            at(walk, redirect.called, problem);
        }
    }
    if let Err(free) = walk.marks.account(walk.original.text) {
        at(walk, free, Problem::Unaccounted);
    }
    entries(walk);
    counters(walk);
    calls(walk);
    rows(walk);
    if let Err(problem) = symbols(walk, object, redirects) {
        walk.findings.push(problem.into());
    }
}

fn at(walk: &mut Walk<'_>, copy: Svma, problem: Problem) {
    let place = walk.copies.module.place(copy);
    walk.findings.push(Finding { function: None, original: None, place, problem });
}

/// Each entry is about an instruction that was proved, and the walk has compared it with the original's.
fn entries(walk: &mut Walk<'_>) {
    let copies = walk.copies;
    let (tables, sites) = (&copies.tables, &copies.sites);
    let mut left = Vec::new();
    let mut look = |table: &'static str, places: Vec<Svma>| {
        left.extend(places.into_iter().filter(|at| !walk.paired.contains_key(at)).map(|at| (table, at)));
    };
    look("__ex_table", tables.exceptions.keys().copied().collect());
    look("__bug_table", tables.warnings.keys().copied().collect());
    look("__jump_table", tables.keys.keys().copied().collect());
    look(".static_call_sites", tables.calls.keys().copied().collect());
    look(Sites::TRACES, sites.traces.iter().copied().collect());
    look(Sites::RETURNS, sites.returns.iter().copied().collect());
    look(Sites::THUNKS, sites.thunks.iter().copied().collect());
    for (table, place) in left {
        at(walk, place, Problem::Table { table, what: "speaks of no instruction that was proved" });
    }
}

/// Each place that is said to count was passed, and no two count by one counter.
fn counters(walk: &mut Walk<'_>) {
    let places = walk.copies.counting.places.iter().copied();
    let left: Vec<Svma> = places.filter(|place| !walk.counted.contains_key(place)).collect();
    for place in left {
        at(walk, place, Problem::Counter("is at a place that was not proved"));
    }
    let numbers: std::collections::BTreeSet<u64> = walk.counted.values().copied().collect();
    if numbers.len() != walk.counted.len() {
        walk.findings.push(Problem::Counter("counts what another one counts").into());
    }
}

/// Direct calls of the kernel are listed, all of them, where modules of the kernel do so.
fn calls(walk: &mut Walk<'_>) {
    const TABLE: &str = Sites::CALLS;
    let copies = walk.copies;
    let called: std::collections::BTreeSet<Svma> = walk.calls.iter().map(|pair| pair.copy).collect();
    for place in copies.sites.calls.difference(&called) {
        at(walk, *place, Problem::Table { table: TABLE, what: "speaks of no call of the kernel" });
    }
    let lists = walk.original.facts.module.lists_calls;
    for pair in walk.calls.clone().into_iter().filter(|_| lists) {
        if !copies.sites.calls.contains(&pair.copy) {
            walk.find(pair, Problem::Table { table: TABLE, what: "does not have it" });
        }
    }
}

/// Where no code is, no row says how to go on.
fn rows(walk: &mut Walk<'_>) {
    let copies = walk.copies;
    let rows = &copies.tables.rows.list;
    if rows.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        let what = "has two rows for one place";
        walk.findings.push(Problem::Table { table: ".orc_unwind_ip", what }.into());
    }
    for (place, row) in rows {
        let is_near = copies.module.code().any(|part| part.at <= *place && *place <= part.end());
        if !is_near || (walk.marks.is_free(*place) && row.iter().any(|byte| *byte != 0)) {
            let what = "has a row where no code is";
            at(walk, *place, Problem::Table { table: ".orc_unwind", what });
        }
    }
}

/// Each symbol of code is of a function's copy and named so; all code has one.
fn symbols(walk: &mut Walk<'_>, object: &Object<'_>, redirects: &[Redirect]) -> Result<(), Problem> {
    let mut ranges = Vec::new();
    for symbol in object.symbols.iter().filter(|symbol| symbol.kind == FUNCTION) {
        let wrong = |what| Err(Problem::Symbol { symbol: symbol.name.into(), what });
        let Home::Section(index) = symbol.home else { return wrong("is of nothing in the module") };
        let Some(part) = walk.copies.module.numbered(index) else { return wrong("is of no code") };
        let range = SvmaRange::new(part.at.offset(symbol.value as i64), symbol.size);
        let is_whole = range == SvmaRange::between(part.at, part.end());
        match symbol.name {
            "init_module" if part.name == INIT && is_whole => continue,
            "cleanup_module" if part.name == EXIT && is_whole => continue,
            _ => {}
        }
        if symbol.size == 0
            || symbol.value.checked_add(symbol.size).is_none_or(|end| end > part.data.len() as u64)
        {
            return wrong("is longer than its section");
        }
        if walk.copies.part(range.start).is_none() {
            return wrong("is of no copy");
        }
        check_owner(walk, symbol, range, redirects)?;
        ranges.push(range);
    }
    ranges.sort_by_key(|range| range.start);
    if ranges.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(Problem::Symbol { symbol: "of some code".into(), what: "lies over another one" });
    }
    covered(walk, &ranges)
}

fn covered(walk: &mut Walk<'_>, ranges: &[SvmaRange]) -> Result<(), Problem> {
    let is_covered = |place: &Svma| {
        let behind = ranges.partition_point(|range| range.start <= *place);
        behind > 0 && ranges[behind - 1].contains(*place)
    };
    match walk.marks.instructions().find(|place| !is_covered(place)) {
        None => Ok(()),
        Some(_) => Err(Problem::Symbol { symbol: "of some code".into(), what: "is missing" }),
    }
}

/// The name is that of the function whose code it is.
fn check_owner(
    walk: &Walk<'_>,
    symbol: &Symbol<'_>,
    range: SvmaRange,
    redirects: &[Redirect],
) -> Result<(), Problem> {
    let wrong = |what| Err(Problem::Symbol { symbol: symbol.name.into(), what });
    if let Some(function) = symbol.name.strip_suffix(CALLED) {
        let is_it = |redirect: &&Redirect| {
            let names = walk.original.names(redirect.original);
            redirect.called == range.start && names.iter().any(|name| name == function)
        };
        let is_right = range.len() == DROP_RETURN_ADDRESS.len() as u64 && redirects.iter().any(|r| is_it(&r));
        return if is_right { Ok(()) } else { wrong("is not of the entry for calls of that function") };
    }
    let name = symbol.name.strip_suffix(COLD).unwrap_or(symbol.name);
    let Some(function) = name.strip_suffix(OF_COPY) else { return wrong("is not named as a copy") };
    let is_of = |paired: &Paired| {
        let names = walk.original.names_around(walk.owner(paired));
        names.iter().any(|own| own == function || own.strip_suffix(COLD) == Some(function))
    };
    match walk.paired.range(range.start..range.end).all(|(_, paired)| is_of(paired)) {
        true => Ok(()),
        false => wrong("is of another function's code"),
    }
}
