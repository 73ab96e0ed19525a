//! The two functions that unwinders ask which object holds a program counter, and where its unwind tables
//! are.
//!
//! Problem: code that moves while a process runs has to be found by the process's own unwinders. They ask
//! glibc's `_dl_find_object` (libgcc since 12) or `dl_iterate_phdr` (LLVM's and nongnu libunwind, older
//! libgcc, all on musl). Who hooks these functions has to find them, also in static programs without symbols,
//! and their own code must not move: a copy would be called past the hook.
//!
//! Idea for static programs without symbols: libgcc's `_Unwind_Find_FDE` compares the encodings of an
//! `.eh_frame_hdr` with constants (`cmpb $0x3b,3(header)`), and the last call before it whose result is
//! tested is that of `_dl_find_object`. The callee has to look like it: its first instructions load two
//! neighbouring words, the address range of the program in `_dlfo_main`.
//!
//! `dl_iterate_phdr` is found by its callers there (`iterate_by_shape`).

use crate::iterate_by_shape::iterate_by_shape;
use restitch_address::Svma;
use restitch_cfi::UnwindForm;
use restitch_image::Image;
use restitch_x86::possible::tests_result;
use restitch_x86::{Flow, Insn, Op, decode_one, scan};

/// Where a module has these functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnwinderLookups {
    /// `_dl_find_object`.
    pub find_object: Option<Svma>,
    /// `dl_iterate_phdr`.
    pub iterate: Option<Svma>,
}

/// Finds the unwinders' lookup functions that `image` defines.
pub fn unwinder_lookups(image: &Image, unwind: &dyn UnwindForm) -> UnwinderLookups {
    let named = |name: &str| {
        let mut symbols = image.symbols_with_aliases().iter();
        let is = |n: &str| n.split('@').next() == Some(name);
        symbols.find(|s| s.is_function() && is(&s.name)).map(|s| s.range.start)
    };
    let by_shape = |find: fn(&Image, &dyn UnwindForm) -> Option<Svma>| {
        if image.is_static() { find(image, unwind) } else { None }
    };
    UnwinderLookups {
        find_object: named("_dl_find_object").or_else(|| by_shape(find_object_by_shape)),
        iterate: named("dl_iterate_phdr").or_else(|| by_shape(iterate_by_shape)),
    }
}

/// `_dl_find_object` by what `_Unwind_Find_FDE` does with its result.
fn find_object_by_shape(image: &Image, unwind: &dyn UnwindForm) -> Option<Svma> {
    for range in image.executable_ranges() {
        let bytes = image.read(range.start, range.len() as usize)?;
        for (i, window) in bytes.windows(4).enumerate() {
            // cmpb $0x3b,3(reg): opcode 80 /7 ib, one byte of displacement.
            if window[0] != 0x80 || window[1] & 0xf8 != 0x78 || window[2..] != [3, 0x3b] {
                continue;
            }
            let found = tested_call(image, unwind, range.start + i as u64);
            if let Some(callee) = found.filter(|c| main_range(image, unwind, *c).is_some()) {
                return Some(callee);
            }
        }
    }
    None
}

/// The last direct call in front of `at`, in the same function, that `test %eax,%eax` follows.
fn tested_call(image: &Image, unwind: &dyn UnwindForm, at: Svma) -> Option<Svma> {
    let start = unwind.piece_at(at)?.range.start;
    let bytes = image.read(start, at.offset_from(start) as usize)?;
    let mut last = None;
    let mut call: Option<Insn> = None;
    // The bytes may end inside the comparison's prefix: what was decoded up to there counts.
    let _ = scan(bytes, start, |insn| {
        if let Some(Flow::Call(to)) = call.map(|c| c.flow)
            && image.read_tail(insn.at).is_some_and(tests_result)
        {
            last = Some(to);
        }
        call = Some(insn);
    });
    last.filter(|to| unwind.piece_at(*to).is_some_and(|piece| piece.range.start == *to))
}

/// How many instructions of `_dl_find_object` are looked at.
const FIRST_INSTRUCTIONS: usize = 16;

/// The address of glibc's `_dlfo_main`, from the first instructions of a static program's `_dl_find_object`:
/// the first of two neighbouring words, which it loads to compare the program counter with the program's own
/// range. Behind them it holds the program's link map.
pub fn main_range(image: &Image, unwind: &dyn UnwindForm, find_object: Svma) -> Option<Svma> {
    let end = unwind.piece_at(find_object)?.range.end;
    let (mut at, mut loads) = (find_object, Vec::new());
    for _ in 0..FIRST_INSTRUCTIONS {
        if at >= end {
            break;
        }
        let bytes = image.read_tail(at)?;
        let decoded = decode_one(&bytes[..bytes.len().min(15)], at)?;
        if let Op::Load { mem, size: 8, .. } = decoded.op
            && mem.rip
        {
            loads.push(Svma::new(mem.disp as u64));
        }
        at = decoded.insn.end();
    }
    loads.iter().copied().find(|first| loads.contains(&(*first + 8)) && image.is_writable(*first))
}
