//! The version's image header, ranges, symbols, the set of placed blocks and the form of the map.

use crate::finding::{Findings, Problem};
use crate::subject::Subject;
use restitch_address::{PAGE, Svma, SvmaRange};
use restitch_emit::Version;
use std::collections::HashSet;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// `PF_R | PF_X`.
const READ_EXECUTE: u32 = 5;

/// Checks everything that has to hold before the text can be walked. `false`: it makes no sense to go on.
pub(crate) fn check(s: &Subject<'_>, findings: &mut Findings) -> bool {
    let before = findings.total;
    ranges(s, findings);
    if findings.total != before {
        return false;
    }
    header(s.version, findings);
    placement(s, findings);
    map_form(s, findings);
    symbols(s, findings);
    counters(s, findings);
    true
}

/// Checks the file and its ranges alone. `false`: it makes no sense to go on.
pub(crate) fn check_file(s: &Subject<'_>, findings: &mut Findings) -> bool {
    let before = findings.total;
    ranges(s, findings);
    if findings.total == before {
        header(s.version, findings);
        symbols(s, findings);
    }
    findings.total == before
}

fn ranges(s: &Subject<'_>, findings: &mut Findings) {
    let v = s.version;
    let mut bad = |why| findings.version(v.range.start, Problem::Elf(why));
    if v.range.len() != v.bytes.len() as u64 {
        bad("its range is not as long as its bytes");
    }
    if !v.range.start.get().is_multiple_of(PAGE)
        || !v.loaded_len.is_multiple_of(PAGE)
        || v.loaded_len > v.bytes.len() as u64
    {
        bad("it is not made of whole pages");
    }
    let loaded = SvmaRange::new(v.range.start, v.loaded_len);
    let parts = [v.text, v.tables, v.eh_frame, v.eh_frame_hdr, v.lsda];
    if parts.iter().any(|part| !part.is_empty() && !loaded.covers(part)) {
        bad("a part is outside what is mapped");
    }
    for (i, a) in parts.iter().enumerate() {
        if parts[i + 1..].iter().any(|b| a.overlaps(b)) {
            bad("two parts overlap");
        }
    }
    if v.large > v.loaded_len || !v.large.is_multiple_of(restitch_emit::LARGE_PAGE) {
        bad("its large pages are not all mapped");
    }
    if !v.text.covers(&v.hot_text) {
        bad("the hot text is outside the text");
    }
    if s.program.functions.iter().any(|f| f.range.overlaps(&v.range)) || v.range.overlaps(&s.image.span()) {
        bad("it overlaps the module");
    }
}

/// `N` bytes of the header as a little-endian number.
fn number(v: &Version, at: usize, len: usize) -> u64 {
    let bytes = v.bytes.get(at..at.saturating_add(len)).unwrap_or_default();
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn header(v: &Version, findings: &mut Findings) {
    let mut bad = |why| findings.version(v.range.start, Problem::Elf(why));
    let ident = [0x7f, b'E', b'L', b'F', 2, 1, 1];
    if !v.bytes.starts_with(&ident) || number(v, 16, 2) != 3 || number(v, 18, 2) != 62 {
        return bad("it is no ET_DYN of x86-64");
    }
    if number(v, 20, 4) != 1 || number(v, 52, 2) != 64 || number(v, 54, 2) != 56 {
        bad("the header's version or sizes are wrong");
    }
    let (first, count) = (number(v, 32, 8) as usize, number(v, 56, 2) as usize);
    let field =
        |i: usize, at: usize, len: usize| number(v, first.saturating_add(56 * i).saturating_add(at), len);
    let room = v.text.start.offset_from(v.range.start) as usize;
    if first < 64 || first.saturating_add(56 * count) > room {
        return bad("its program headers are not in front of the text");
    }
    let known = |t: u64| [PT_LOAD, PT_GNU_EH_FRAME, PT_NOTE, PT_GNU_STACK].iter().any(|k| u64::from(*k) == t);
    if (0..count).any(|i| !known(field(i, 0, 4))) {
        bad("it has a program header of an unexpected type");
    }
    let of_type = |t: u32| (0..count).filter(move |i| field(*i, 0, 4) == u64::from(t)).collect::<Vec<_>>();
    match of_type(PT_LOAD)[..] {
        [i] => {
            let sizes = field(i, 32, 8) == v.loaded_len && field(i, 40, 8) == v.loaded_len;
            let zero = field(i, 8, 8) == 0 && field(i, 16, 8) == 0;
            if !sizes || !zero || field(i, 4, 4) != u64::from(READ_EXECUTE) {
                bad("its PT_LOAD is not the mapped bytes at 0, read and execute");
            }
        }
        _ => bad("it does not have exactly one PT_LOAD"),
    }
    let offset = v.eh_frame_hdr.start.offset_from(v.range.start) as u64;
    match of_type(PT_GNU_EH_FRAME)[..] {
        [i] if [8, 16].iter().any(|at| field(i, *at, 8) != offset)
            || field(i, 40, 8) > v.eh_frame_hdr.len() =>
        {
            bad("its PT_GNU_EH_FRAME is somewhere else");
        }
        [_] => {}
        _ => bad("it does not have exactly one PT_GNU_EH_FRAME"),
    }
}

fn placement(s: &Subject<'_>, findings: &mut Findings) {
    let v = s.version;
    let mut bad = |at: Svma, why| findings.version(at, Problem::Placement(why));
    let mut end = v.text.start;
    let fragments = s.layout.hot.iter().chain(&s.layout.cold);
    let mut layout = fragments.flat_map(|f| s.layout.copies(f));
    for (i, p) in v.blocks.iter().enumerate() {
        let key = |a: Svma| a.offset_from(v.text.start);
        if key(p.version.start) < key(end) || !v.text.covers(&p.version) {
            bad(p.version.start, "a block overlaps the one before it, or is outside the text");
        }
        end = p.version.end;
        let known = s.place(p.block);
        if p.duplicate && v.counters.is_some() {
            bad(p.version.start, "a counting version has a duplicate");
        } else if p.duplicate && known.is_none() || !p.duplicate && known != Some(i) {
            bad(p.version.start, "a block is unknown, is there twice, or only as a duplicate");
        } else if !s.program.is_movable(p.block) {
            bad(p.version.start, "a block must not be moved");
        } else if !layout.any(|c| (c.block, c.duplicate) == (p.block, p.duplicate)) {
            bad(p.version.start, "a block is not in the layout, or in another order");
        }
    }
    let functions: HashSet<_> =
        v.skipped.iter().filter(|skip| skip.block.is_none()).map(|skip| skip.function).collect();
    let blocks: HashSet<_> = v.skipped.iter().filter_map(|skip| skip.block).collect();
    for block in s.layout.blocks().filter(|b| s.place(*b).is_none()) {
        let function = s.program.blocks.get(block.index()).map(|b| b.function);
        if !blocks.contains(&block) && function.is_none_or(|f| !functions.contains(&f)) {
            let at = s.program.blocks.get(block.index()).map(|b| b.start);
            findings.add(None, at, Problem::Placement("a block of the layout is missing without a reason"));
        }
    }
}

fn map_form(s: &Subject<'_>, findings: &mut Findings) {
    let v = s.version;
    let key = |a: Svma| a.offset_from(v.text.start);
    let mut end = v.text.start;
    for piece in &v.map.pieces {
        let range = SvmaRange::new(piece.version, piece.len.into());
        if piece.len == 0 || key(piece.version) < key(end) || !v.text.covers(&range) {
            let why = "pieces are empty, out of order, overlap or lie outside the text";
            findings.version(piece.version, Problem::Map(why));
            return;
        }
        end = range.end;
    }
}

fn symbols(s: &Subject<'_>, findings: &mut Findings) {
    let v = s.version;
    let mut bad = |at: Svma, why| findings.version(at, Problem::Symbol(why));
    let key = |a: Svma| a.offset_from(v.text.start);
    let mut end = v.text.start;
    for symbol in &v.symbols {
        if symbol.name.is_empty() || key(symbol.range.start) < key(end) || !v.text.covers(&symbol.range) {
            return bad(symbol.range.start, "one is nameless, out of order, overlaps or is outside the text");
        }
        end = symbol.range.end;
    }
    let mut next = 0;
    for p in v.blocks.iter().filter(|p| !p.version.is_empty()) {
        while v.symbols.get(next).is_some_and(|s| key(s.range.end) <= key(p.version.start)) {
            next += 1;
        }
        if !v.symbols.get(next).is_some_and(|s| s.range.covers(&p.version)) {
            return bad(p.version.start, "none names this block");
        }
    }
}

fn counters(s: &Subject<'_>, findings: &mut Findings) {
    let Some(table) = &s.version.counters else { return };
    let mut bad = |why| findings.version(table.area.start, Problem::Counter(why));
    if (table.counted.len() as u64).saturating_mul(table.width.bytes()) > table.area.len() {
        bad("the area is too small");
    }
    if table.area.overlaps(&s.version.range) || table.area.overlaps(&s.image.span()) {
        bad("the area overlaps the version or the module");
    }
    if !table.area.start.get().is_multiple_of(8) {
        bad("the area is not aligned");
    }
    if table.counted.iter().collect::<HashSet<_>>().len() != table.counted.len() {
        bad("something is counted twice");
    }
}
