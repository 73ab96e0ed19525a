//! The sections and symbols that a module may have: closed lists, since the loader gives meaning to many
//! names.

use crate::elf::{
    ALLOC, EXECUTE, FUNCTION, GLOBAL, Home, LOCAL, OF_SECTION, Object, PROGBITS, Section, UNTYPED, WRITE,
};
use crate::facts::STRUCTURE;
use crate::finding::Problem;

/// Code that copies stand in.
pub(crate) const CODE: [&str; 2] = [".text", ".text.unlikely"];
/// Code that the loader runs.
pub(crate) const INIT: &str = ".init.text";
pub(crate) const EXIT: &str = ".exit.text";
/// What binds the module to the kernel.
pub(crate) const ANCHORS: &str = ".restitch.anchors";
/// What the control module is given.
pub(crate) const DESCRIBED: &str = ".rodata";
pub(crate) const VERSIONS: &str = "__versions";
/// Where counters are, and what is said of them.
pub(crate) const SHARED_COUNTERS: &str = ".data";
pub(crate) const OWN_COUNTERS: &str = ".data..percpu";
pub(crate) const COUNTED: &str = ".restitch.counters";

/// Numbers of relocations (psABI): an address of 8 bytes, a distance of 4, an address of 4, a distance of 8.
pub(crate) const ADDRESS: u32 = 1;
pub(crate) const DISTANCE: u32 = 2;
pub(crate) const ADDRESS_32: u32 = 10;
pub(crate) const DISTANCE_64: u32 = 24;

/// A section that may be there.
struct Allowed {
    name: &'static str,
    flags: u64,
    /// At least.
    align: u64,
    relocations: &'static [u32],
}

const fn allowed(name: &'static str, more: u64, align: u64, relocations: &'static [u32]) -> Allowed {
    Allowed { name, flags: ALLOC | more, align, relocations }
}

/// What the loader does with each is in the kernel's `kernel/module/main.c` and `arch/x86/kernel/module.c`.
const ALLOWED: [Allowed; 22] = [
    allowed(CODE[0], EXECUTE, 16, &[DISTANCE]),
    allowed(CODE[1], EXECUTE, 16, &[DISTANCE]),
    allowed(INIT, EXECUTE, 1, &[DISTANCE]),
    allowed(EXIT, EXECUTE, 1, &[DISTANCE]),
    allowed(".modinfo", 0, 1, &[]),
    allowed(ANCHORS, 0, 1, &[ADDRESS_32]),
    allowed(VERSIONS, 0, 8, &[]),
    allowed(DESCRIBED, 0, 8, &[ADDRESS]),
    allowed("__mcount_loc", 0, 8, &[ADDRESS]),
    allowed(".return_sites", 0, 4, &[DISTANCE]),
    allowed(".retpoline_sites", 0, 4, &[DISTANCE]),
    allowed(".call_sites", 0, 4, &[DISTANCE]),
    allowed(".orc_unwind", 0, 2, &[]),
    allowed(".orc_unwind_ip", 0, 4, &[DISTANCE]),
    allowed("__ex_table", 0, 4, &[DISTANCE]),
    allowed("__bug_table", WRITE, 4, &[DISTANCE]),
    allowed("__jump_table", WRITE, 8, &[DISTANCE, DISTANCE_64]),
    allowed(".static_call_sites", WRITE, 4, &[DISTANCE]),
    allowed(SHARED_COUNTERS, WRITE, 8, &[]),
    allowed(OWN_COUNTERS, WRITE, 8, &[]),
    allowed(COUNTED, 0, 8, &[ADDRESS, DISTANCE]),
    allowed(STRUCTURE, WRITE, 8, &[ADDRESS]),
];
/// No section asks for more than a page.
const MOST_ALIGN: u64 = 4096;

/// Checks the lists of sections and symbols, and the kinds of fields in each section.
pub(crate) fn check(object: &Object<'_>) -> Result<(), Problem> {
    let loaded = || object.sections.iter().filter(|section| section.is_loaded());
    for section in object.sections.iter().filter(|section| !object.is_bookkeeping(section)) {
        let wrong = |what| Err(Problem::Section { section: section.name.into(), what });
        let Some(allowed) = ALLOWED.iter().find(|allowed| allowed.name == section.name) else {
            return wrong("is none that a group has");
        };
        if section.kind != PROGBITS || section.flags != allowed.flags {
            return wrong("has other flags");
        }
        if !section.align.is_power_of_two() || !(allowed.align..=MOST_ALIGN).contains(&section.align) {
            return wrong("has another alignment");
        }
        if loaded().filter(|other| other.name == section.name).count() > 1 {
            return wrong("is there twice");
        }
    }
    relocations(object)?;
    symbols(object)
}

/// Functions and sections of the module, one symbol that the kernel's places count from, and imports.
fn symbols(object: &Object<'_>) -> Result<(), Problem> {
    /// What the kernel's places count from, so it is at 0.
    const KERNEL: &str = "kernel";
    for (number, symbol) in object.symbols.iter().enumerate() {
        let is_empty = symbol.value == 0 && symbol.size == 0 && symbol.other == 0;
        let is_known = match (symbol.home, symbol.kind, symbol.binding) {
            (Home::Undefined, UNTYPED, LOCAL) => number == 0 && is_empty && symbol.name.is_empty(),
            (Home::Undefined, UNTYPED, GLOBAL) => number > 0 && is_empty && !symbol.name.is_empty(),
            (Home::Absolute, UNTYPED, LOCAL) => is_empty && symbol.name == KERNEL,
            (Home::Section(_), OF_SECTION, LOCAL) => is_empty && symbol.name.is_empty(),
            (Home::Section(_), FUNCTION, LOCAL) => symbol.other == 0,
            _ => false,
        };
        if !is_known {
            let what = "is none that a group has";
            return Err(Problem::Symbol { symbol: symbol.name.into(), what });
        }
    }
    Ok(())
}

fn relocations(object: &Object<'_>) -> Result<(), Problem> {
    let mut targets: Vec<usize> = object.relocated().collect();
    targets.sort_unstable();
    if targets.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Problem::Relocation("a section by two lists"));
    }
    for target in targets {
        let section = object.sections.get(target).filter(|section| section.is_loaded());
        let section: &Section<'_> = section.ok_or(Problem::Relocation("what it does not load"))?;
        let allowed = ALLOWED.iter().find(|allowed| allowed.name == section.name);
        let kinds = allowed.map_or(&[][..], |allowed| allowed.relocations);
        if object.relocations(target).any(|field| !kinds.contains(&field.kind)) {
            let what = "is to be filled in, in a way that a group does not need";
            return Err(Problem::Section { section: section.name.into(), what });
        }
    }
    Ok(())
}
