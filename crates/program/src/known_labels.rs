//! Functions that somebody knows the insides of, and not to jump there.
//!
//! Problem: a handler of faults (of SIGSEGV, SIGBUS, SIGFPE, ...) may compare the program counter that it is
//! shown with places that it knows: safe fetches of virtual machines, traps of WebAssembly code, system calls
//! that a signal is to begin anew, copies from memory that may not be there. It knows them by a table of
//! addresses, or by two labels around them. In a copy the program counter is another one, and the handler
//! ends the process.
//!
//! Idea: what such a handler knows is in the file. An address *in the middle* of a function that data or an
//! operand holds is either one to jump to (a label of a computed goto, then the function or one that it
//! shares branches with has an indirect jump that no recognised table serves alone), or one to compare with.
//! So a function without such a jump stays as a whole. The same goes for code whose end is named where no
//! function begins, for sections of code whose bounds the linker offers (`__start_NAME`, for names that are C
//! identifiers), and for sections of such names that hold nothing but addresses of instructions, also
//! relative ones (like the kernel's `__ex_table`).
//!
//! At fixed addresses any number may be an address. There, numbers in operands count where one function names
//! two places of another (the bounds of a range), words of data where a neighbour is an address of code as
//! well (a row of a table), and both where a symbol is at the address (each single number that was taken for
//! an address kept 80 functions of `cc1plus` in place, and 27 of `python3`, by words of text). In other files
//! numbers in operands are none.
//!
//! Limits: labels beside an indirect jump; relative tables among other data; ranges whose bounds are entries
//! of functions. docs/usage/run-times.md says so to users.

use crate::address_set::{AddressSet, Ranked};
use crate::model::JumpTable;
use crate::sweep::{Kind, Named, Sweep};
use crate::words::TableWords;
use restitch_address::{Svma, SvmaRange};
use restitch_image::{Image, ImageKind, RelocationKind, Section, Segment};
use restitch_x86::Naming;
use std::collections::{BTreeMap, BTreeSet};

/// The spans, by index, that stay for this reason.
/// `branched_to`: targets of direct branches.
pub(crate) fn known_labels(
    image: &Image,
    sweep: &Sweep,
    tables: &[JumpTable],
    branched_to: &AddressSet,
) -> Vec<usize> {
    let computed = with_computed_jumps(sweep, tables, branched_to);
    let labels: BTreeSet<Svma> = image.labels().into_iter().collect();
    let mut named = operands(image, sweep, &labels);
    named.extend(words(image, sweep, tables, &labels));
    let mut sections = Vec::new();
    for section in image.sections().iter().filter(|s| is_identifier(&s.name) && s.is_loaded()) {
        if section.is_code() {
            sections.extend(spans_in(sweep, section.range));
        } else {
            named.extend(addresses(image, sweep, section));
        }
    }
    let inside = named.into_iter().filter_map(|at| known_inside(sweep, at)).filter(|span| !computed[*span]);
    inside.chain(sections).collect()
}

/// The span that `at` is known to be inside of, or at the end of; none for an entry, and for what is no
/// boundary of instructions.
fn known_inside(sweep: &Sweep, at: Svma) -> Option<usize> {
    match sweep.span_at(at) {
        Some(span) => (!sweep.is_head(at) && sweep.starts.contains(at)).then_some(span),
        None => sweep.span_at(at.offset(-1)),
    }
}

/// Whether each span has an indirect jump that no recognised table serves alone, or is a part of a function
/// that has one: branches lead from the one into the middle of the other. (One jump serves many loads in
/// unoptimized code: all computed gotos of a function share it. Branches lead there, behind the load that
/// stands in front of it.)
fn with_computed_jumps(sweep: &Sweep, tables: &[JumpTable], branched_to: &AddressSet) -> Vec<bool> {
    let is_shared = |t: &JumpTable| branched_to.any_between(t.load_at + 1, t.jump_at + 1);
    let by_table = |at: Svma| {
        tables.binary_search_by_key(&at, |t| t.jump_at).is_ok_and(|found| !is_shared(&tables[found]))
    };
    let mut found = vec![false; sweep.spans.len()];
    for mini in sweep.indirect.iter().map(|i| &sweep.minis[*i as usize]) {
        let at = sweep.address(mini);
        if mini.kind == Kind::IndirectJump
            && !by_table(at)
            && let Some(span) = sweep.span_at(at)
        {
            found[span] = true;
        }
    }
    let pairs = parts(sweep);
    loop {
        let before = found.clone();
        for &(a, b) in &pairs {
            found[a] |= found[b];
            found[b] |= found[a];
        }
        if found == before {
            return found;
        }
    }
}

/// Pairs of spans between which a branch leads into the middle of the second.
fn parts(sweep: &Sweep) -> Vec<(usize, usize)> {
    let (mut pairs, mut from) = (Vec::new(), 0);
    for &(at, to) in &sweep.targets {
        while from + 1 < sweep.spans.len() && sweep.spans[from].range.end <= at {
            from += 1;
        }
        if sweep.spans[from].range.contains(to) {
            continue;
        }
        if let Some(span) = sweep.span_at(to).filter(|_| !sweep.is_head(to)) {
            pairs.push((from, span));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Addresses that operands of instructions name. (What they access is no label.)
fn operands(image: &Image, sweep: &Sweep, labels: &BTreeSet<Svma>) -> Vec<Svma> {
    let inside = |naming: Naming| {
        let named = sweep.named.iter().filter(move |n| n.naming == naming);
        named.filter(|n| known_inside(sweep, n.to).is_some())
    };
    let mut found: Vec<Svma> = inside(Naming::Address).map(|n| n.to).collect();
    if image.kind() == ImageKind::Executable {
        let numbers: Vec<&Named> = inside(Naming::Number).collect();
        let of_range = bounds(sweep, &numbers);
        let between = |n: &Named| Some((sweep.span_at(n.at)?, known_inside(sweep, n.to)?));
        let is_bound = |n: &Named| between(n).is_some_and(|b| of_range.contains(&b));
        found.extend(numbers.into_iter().filter(|n| labels.contains(&n.to) || is_bound(n)).map(|n| n.to));
    }
    found
}

/// Functions, each with one of which it names two places, at least one of them not the entry.
fn bounds(sweep: &Sweep, inside: &[&Named]) -> BTreeSet<(usize, usize)> {
    let mut places: BTreeMap<(usize, usize), BTreeSet<Svma>> = BTreeMap::new();
    for named in inside {
        if let (Some(from), Some(to)) = (sweep.span_at(named.at), known_inside(sweep, named.to)) {
            places.entry((from, to)).or_default().insert(named.to);
        }
    }
    for named in &sweep.named {
        if sweep.is_head(named.to)
            && let (Some(from), Some(to)) = (sweep.span_at(named.at), sweep.span_at(named.to))
            && let Some(known) = places.get_mut(&(from, to))
        {
            known.insert(named.to);
        }
    }
    places.into_iter().filter(|(_, places)| places.len() > 1).map(|(pair, _)| pair).collect()
}

/// Addresses that words of data hold, but for those of recognised tables.
fn words(image: &Image, sweep: &Sweep, tables: &[JumpTable], labels: &BTreeSet<Svma>) -> Vec<Svma> {
    let in_table = TableWords::with_tails(tables);
    let by_loader = image.relocations().iter().filter(|r| !in_table.contains(r.at));
    let by_loader = by_loader.filter_map(|r| match &r.kind {
        RelocationKind::Relative { target } => Some(*target),
        RelocationKind::Symbolic { addend, definition, .. } => Some(definition.as_ref()?.offset(*addend)),
        _ => None,
    });
    let mut found: Vec<Svma> = by_loader.collect();
    let fixed = |s: &&Segment| image.kind() == ImageKind::Executable && !s.executable;
    for segment in image.segments().iter().filter(fixed) {
        let start = segment.range.start;
        let bytes = image.read(start, segment.file_len as usize).unwrap_or_default();
        let value = |i: usize| {
            let word = bytes.get(8 * i..8 * i + 8)?;
            Some(Svma::new(u64::from_le_bytes(word.try_into().expect("8 bytes"))))
        };
        let is_code = |i: Option<usize>| i.and_then(value).is_some_and(|at| sweep.starts.contains(at));
        for i in 0..bytes.len() / 8 {
            let Some(at) = value(i).filter(|at| known_inside(sweep, *at).is_some()) else { continue };
            let of_row = || is_code(i.checked_sub(1)) || is_code(Some(i + 1));
            if !in_table.contains(start + 8 * i as u64) && (labels.contains(&at) || of_row()) {
                found.push(at);
            }
        }
    }
    found
}

/// Whether a linker offers bounds of a section of this name as `__start_NAME` and `__stop_NAME`.
fn is_identifier(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn spans_in(sweep: &Sweep, range: SvmaRange) -> impl Iterator<Item = usize> {
    let first = sweep.spans.partition_point(|s| s.range.end <= range.start);
    let last = sweep.spans.partition_point(|s| s.range.start < range.end);
    first..last.max(first)
}

/// The addresses in a section that holds nothing else, in one of the forms of four bytes: from their own
/// place on, or (in a file at fixed addresses) the address itself.
fn addresses(image: &Image, sweep: &Sweep, section: &Section) -> Vec<Svma> {
    let bytes = image.read(section.range.start, section.range.len() as usize).unwrap_or_default();
    if bytes.is_empty() || !bytes.len().is_multiple_of(8) {
        return Vec::new();
    }
    let places = bytes.chunks_exact(4).enumerate().map(|(i, word)| {
        let word: [u8; 4] = word.try_into().expect("4 bytes");
        (section.range.start + 4 * i as u64, word)
    });
    let relative = places.clone().map(|(at, word)| at.offset(i64::from(i32::from_le_bytes(word))));
    let absolute = places.map(|(_, word)| Svma::new(u64::from(u32::from_le_bytes(word))));
    let all =
        |found: Vec<Svma>, starts: &Ranked| found.iter().all(|at| starts.contains(*at)).then_some(found);
    all(relative.collect(), &sweep.starts)
        .or_else(|| all(absolute.collect(), &sweep.starts))
        .unwrap_or_default()
}
