//! `dl_iterate_phdr` in static programs without symbols.
//!
//! Idea: its callers tell. An unwinder's callback looks for PT_GNU_EH_FRAME among the program headers, so it
//! (or what it calls) compares with that constant, and hardly anything else does. Whoever gets the address of
//! such a function as its first argument in a direct call is `dl_iterate_phdr`, if it also looks like it: it
//! calls through a pointer, and hands over the size of `struct dl_phdr_info` as second argument. That holds
//! for the callbacks of LLVM's and nongnu libunwind and of libgcc, and for the functions of glibc and musl
//! (which has no unwind tables: its code is followed). Tested are LLVM's with both; nongnu libunwind linked
//! statically and libgcc with musl are not.
//!
//! Limits: where an optimizer has put `dl_iterate_phdr` into its caller, or made a copy of it for one
//! callback, nothing is found; if callers disagree, nothing is believed.

use crate::reach::reachable_code;
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::UnwindForm;
use restitch_image::Image;
use restitch_x86::{Decoded, Flow, Op, Reg, decode_one, scan};
use std::collections::BTreeSet;

/// PT_GNU_EH_FRAME, as it stands in a comparison.
const EH_FRAME_TYPE: [u8; 4] = 0x6474_e550u32.to_le_bytes();
/// Size of `struct dl_phdr_info` since glibc 2.4, and in musl.
const INFO_SIZE: u64 = 64;
const RSI: Reg = Reg(6);
const RDI: Reg = Reg(7);
/// How many instructions may stand between a first argument and its call.
const MOST_BETWEEN: usize = 32;

/// The function that unwinders hand their callbacks to.
pub(crate) fn iterate_by_shape(image: &Image, unwind: &dyn UnwindForm) -> Option<Svma> {
    let callbacks = callbacks(image, unwind);
    let mut found: Option<Svma> = None;
    for at in named(image, &callbacks) {
        let Some(callee) = called_with(image, unwind, at, &callbacks) else { continue };
        if !looks_like_iterate(image, callee) {
            continue;
        }
        if found.is_some_and(|known| known != callee) {
            return None;
        }
        found = Some(callee);
    }
    found
}

/// Starts of the functions that compare with PT_GNU_EH_FRAME, and of those that call them directly.
fn callbacks(image: &Image, unwind: &dyn UnwindForm) -> BTreeSet<Svma> {
    let direct: BTreeSet<Svma> = code(image)
        .flat_map(|(start, bytes)| {
            let hits = bytes.windows(4).enumerate().filter(|(_, window)| *window == EH_FRAME_TYPE);
            hits.map(move |(i, _)| start + i as u64 + 4)
        })
        .filter_map(|end| Some(ending_at(image, unwind, end)?.0))
        .collect();
    let callers = named(image, &direct).into_iter().filter_map(|end| {
        let (function, decoded) = ending_at(image, unwind, end)?;
        matches!(decoded.insn.flow, Flow::Call(to) if direct.contains(&to)).then_some(function)
    });
    callers.chain(direct.iter().copied()).collect()
}

/// Code and where it stands.
fn code(image: &Image) -> impl Iterator<Item = (Svma, &[u8])> {
    let ranges = image.executable_ranges().into_iter();
    ranges.filter_map(|r: SvmaRange| Some((r.start, image.read(r.start, r.len() as usize)?)))
}

/// Places in code behind four bytes that may be the address of one of `functions`, absolute or from there.
fn named(image: &Image, functions: &BTreeSet<Svma>) -> Vec<Svma> {
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else { return Vec::new() };
    let is_one = |to: Svma| *first <= to && to <= *last && functions.contains(&to);
    let mut out = Vec::new();
    for (start, bytes) in code(image) {
        for (i, window) in bytes.windows(4).enumerate() {
            let end = start + i as u64 + 4;
            let value = i32::from_le_bytes([window[0], window[1], window[2], window[3]]);
            if is_one(end.offset(value.into())) || is_one(Svma::new(u64::from(value as u32))) {
                out.push(end);
            }
        }
    }
    out
}

/// The instruction that ends at `end`, with the start of its function (or part of a function) by the unwind
/// tables.
fn ending_at(image: &Image, unwind: &dyn UnwindForm, end: Svma) -> Option<(Svma, Decoded)> {
    let function = unwind.piece_at(end - 1)?.range.start;
    let bytes = image.read(function, end.offset_from(function) as usize)?;
    let mut last = None;
    scan(bytes, function, |insn| last = Some(insn)).ok()?;
    let at = last.filter(|insn| insn.end() == end)?.at;
    let decoded = decode_one(image.read(at, end.offset_from(at) as usize)?, at)?;
    Some((function, decoded))
}

/// The function that is called with one of `callbacks` as first argument, put there by the instruction that
/// ends at `end`.
fn called_with(
    image: &Image,
    unwind: &dyn UnwindForm,
    end: Svma,
    callbacks: &BTreeSet<Svma>,
) -> Option<Svma> {
    let (_, decoded) = ending_at(image, unwind, end)?;
    if !matches!(decoded.op, Op::Constant(RDI, value) if callbacks.contains(&Svma::new(value))) {
        return None;
    }
    let mut at = end;
    for _ in 0..MOST_BETWEEN {
        let bytes = image.read_tail(at)?;
        let decoded = decode_one(&bytes[..bytes.len().min(15)], at)?;
        match decoded.insn.flow {
            Flow::Call(to) => return Some(to),
            Flow::Next if decoded.writes & 1 << RDI.0 == 0 => at = decoded.insn.end(),
            _ => return None,
        }
    }
    None
}

/// Whether the function calls through a pointer, and sets the second argument to the size of
/// `struct dl_phdr_info` somewhere.
fn looks_like_iterate(image: &Image, function: Svma) -> bool {
    let code = reachable_code(image, function).unwrap_or_default();
    code.iter().any(|d| d.insn.flow == Flow::IndirectCall)
        && code.iter().any(|d| matches!(d.op, Op::Constant(RSI, INFO_SIZE)))
}
