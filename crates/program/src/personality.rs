//! Whose exception tables can be written anew.
//!
//! Problem: a personality routine reads its functions' tables (LSDAs) itself. Landing pads stay in the
//! original code, and where a version lies behind that, its call sites have to be written in signed numbers
//! (`DW_EH_PE_sleb128`). No compiler writes those, and a routine need not read them: Crystal's knows
//! `uleb128` and `udata4`, and ends the program at anything else.
//!
//! Idea: a routine is known by its name, or, where strip has taken the name, by its shape: the decoder of
//! pointer encodings that GCC's `unwind-pe.h`, libc++abi and Rust's `dwarf/eh.rs` have is a jump table over
//! the low four bits of the encoding. Functions of any other routine stay where they are.
//!
//! Limits: a nameless routine whose compiler made compares of that `switch` is not recognised. A program that
//! itself writes a routine into a slot in which the file has none is not foreseen.

use crate::model::JumpTable;
use crate::sweep::{Kind, Sweep};
use restitch_address::Svma;
use restitch_cfi::Personality;
use restitch_image::{Image, RelocationKind};
use std::collections::{BTreeSet, HashMap};

/// Routines whose source reads call sites in every encoding: libstdc++ `eh_personality.cc` (libobjc's,
/// libgo's and libgcc's `unwind-c.c` are made after it) and libc++abi `cxa_personality.cpp`; GNAT
/// `raise-gcc.c`; GDC `gcc/deh.d`; `rt/dwarfeh.d` of DMD and LDC (which has its own way with the table's
/// length, see `restitch_cfi::write_lsda`).
const KNOWN: [&str; 8] = [
    "__gxx_personality_v0",
    "__gcc_personality_v0",
    "__gnu_objc_personality_v0",
    "__gccgo_personality_v0",
    "__gnat_personality_v0",
    "__gdc_personality_v0",
    "__dmd_personality_v0",
    "_d_eh_personality",
];
/// Rust's, which newer compilers mangle (`_RNv...17rust_eh_personality`).
const RUST: &str = "rust_eh_personality";
/// How many calls may lead from a routine to its decoder.
const DEPTH: usize = 3;

/// Spans with a table for a routine that is not known to read all encodings.
pub(crate) fn unknown_personalities(image: &Image, sweep: &Sweep, tables: &[JumpTable]) -> Vec<usize> {
    let mut verdicts: HashMap<Personality, bool> = HashMap::new();
    let mut is_unknown = |span: usize| {
        let piece = sweep.spans[span].unwind;
        let (personality, lsda) = (piece.and_then(|p| p.personality), piece.and_then(|p| p.lsda));
        let (Some(personality), Some(_)) = (personality, lsda) else { return false };
        !*verdicts.entry(personality).or_insert_with(|| routine(image, personality).reads_all(sweep, tables))
    };
    (0..sweep.spans.len()).filter(|span| is_unknown(*span)).collect()
}

/// What is known of a routine.
enum Routine {
    /// It has a name, and whether that is a good one.
    Named(bool),
    /// A function of the module, without a name.
    Nameless(Svma),
    /// Not where it is.
    Nowhere,
    /// None: the slot holds no address, and unwinders call nothing.
    Absent,
}

fn is_known(name: &str) -> bool {
    KNOWN.contains(&name) || name.ends_with(RUST)
}

fn routine(image: &Image, personality: Personality) -> Routine {
    if !personality.indirect {
        return routine_at(image, personality.address);
    }
    match image.relocation_at(personality.address).map(|r| &r.kind) {
        Some(RelocationKind::Symbolic { name, addend: 0, .. }) if !name.is_empty() => {
            Routine::Named(is_known(name))
        }
        Some(RelocationKind::Relative { target }) => routine_at(image, *target),
        Some(_) => Routine::Nowhere,
        None => match image.read_u64(personality.address) {
            Some(0) => Routine::Absent,
            Some(at) => routine_at(image, Svma::new(at)),
            None => Routine::Nowhere,
        },
    }
}

fn routine_at(image: &Image, at: Svma) -> Routine {
    if let Some(name) = image.plt_slot_at(at).and_then(|slot| slot.name.as_deref()) {
        return Routine::Named(is_known(name));
    }
    let names = || image.symbols_with_aliases().iter().filter(|s| s.range.start == at && s.is_function());
    match names().next() {
        Some(_) => Routine::Named(names().any(|symbol| is_known(&symbol.name))),
        None => Routine::Nameless(at),
    }
}

impl Routine {
    /// Whether it is known to read every encoding.
    fn reads_all(&self, sweep: &Sweep, tables: &[JumpTable]) -> bool {
        match self {
            Self::Named(known) => *known,
            Self::Nameless(at) => has_decoder(*at, sweep, tables),
            Self::Nowhere => false,
            Self::Absent => true,
        }
    }
}

/// Whether the function at `at`, or what it calls, decodes pointer encodings.
fn has_decoder(at: Svma, sweep: &Sweep, tables: &[JumpTable]) -> bool {
    let Some(first) = sweep.span_at(at).filter(|s| sweep.spans[*s].range.start == at) else { return false };
    let mut seen = BTreeSet::from([first]);
    let mut new = vec![first];
    for _ in 0..=DEPTH {
        let decodes = |span: &usize| {
            let range = sweep.spans[*span].range;
            tables.iter().any(|table| range.contains(table.jump_at) && decodes(&table.targets))
        };
        if new.iter().any(decodes) {
            return true;
        }
        let called: Vec<usize> = new.iter().flat_map(|span| called_by(*span, sweep)).collect();
        new = called.into_iter().filter(|span| seen.insert(*span)).collect();
    }
    false
}

/// The spans that a span calls or jumps to.
fn called_by(span: usize, sweep: &Sweep) -> impl Iterator<Item = usize> {
    let transfers = sweep.minis_of(&sweep.spans[span]).iter();
    let transfers = transfers.filter(|m| matches!(m.kind, Kind::Call | Kind::Jump | Kind::Conditional(_)));
    transfers.filter_map(|m| sweep.span_at(sweep.target_of(sweep.address(m))?))
}

/// Whether a jump table's targets are those of a switch over the format of a pointer encoding: formats 5 to 8
/// do not exist, and `uleb128` (1), `udata2`, `udata4`, `sleb128` (9), `sdata2` and `sdata4` are read each in
/// its own way.
fn decodes(targets: &[Svma]) -> bool {
    let Some(targets) = targets.get(..13) else { return false };
    let none = targets[5];
    let own: BTreeSet<Svma> = [1, 2, 3, 9, 10, 11].iter().map(|format| targets[*format]).collect();
    targets[6..=8].iter().all(|to| *to == none) && own.len() == 6 && !own.contains(&none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoder_reads_each_format_in_its_own_way() {
        let targets = |codes: [u64; 13]| codes.map(|code| Svma::new(0x1000 + code));
        assert!(decodes(&targets([1, 2, 3, 4, 1, 0, 0, 0, 0, 5, 6, 7, 1])));
        // Signed LEB128 is refused, or read as an unsigned one.
        assert!(!decodes(&targets([1, 2, 3, 4, 1, 0, 0, 0, 0, 0, 6, 7, 1])));
        assert!(!decodes(&targets([1, 2, 3, 4, 1, 0, 0, 0, 0, 2, 6, 7, 1])));
        assert!(!decodes(&targets([1, 2, 3, 4, 1, 0, 0, 9, 0, 5, 6, 7, 1])));
        assert!(!decodes(&targets([1, 2, 3, 4, 1, 0, 0, 0, 0, 5, 6, 7, 1])[..12]));
    }

    #[test]
    fn names_are_compared_whole_but_for_mangled_ones() {
        assert!(is_known("__gxx_personality_v0") && is_known("rust_eh_personality"));
        assert!(is_known("_RNvCs1lL2IlQr8IU_7___rustc17rust_eh_personality"));
        assert!(!is_known("__crystal_personality") && !is_known("") && !is_known("__gxx_personality_v0x"));
    }
}
