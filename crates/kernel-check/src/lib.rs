//! The independent checker of group modules: proves that a module file holds copies of the running kernel's
//! code, and nothing else.
//!
//! **You** hand over the finished file, the kernel ([`Kernel`]: memory and symbols), facts about it
//! ([`KernelFacts`]), and the functions whose calls are to be led to copies. **This crate** does with the
//! file what the kernel's loader would, and follows the copies beside the originals, instruction by
//! instruction; what it cannot show to be equal is a [`Finding`]. [`check()`], or a [`Checker`] for several
//! files, is the only way to a [`CheckedModule`]. **It does not** repair, load or read anything itself, or
//! share code with what writes modules: it reads ELF files and tables with readers of its own and decodes
//! with iced-x86.
//!
//! What is proved, for any address that the module is loaded at:
//! 1. From each entry, each copied instruction does what the original's does: same form, same data, same
//!    callee or a copy of it. `nop`s and jumps may be added and left out, conditions inverted. A callee may
//!    stand in place of a direct call of it, without its place of the tracer, if it knows nothing of that.
//! 2. Where the kernel rewrites code by the place that it stands at, the copy is in the form that the loader
//!    expects, and listed: returns, branches through registers, static keys in their first state, static
//!    calls, the function tracer. What lets the loader protect the original protects the copy.
//!    A lock prefix that it takes out of its code while there is one processor is in the copy.
//! 3. Entries about an original have one counterpart about each copy, equal in all that they say; no entry is
//!    left over. The unwinder's rows are those of the original.
//! 4. Each byte of code was proved, or is filler that nothing leads to.
//! 5. Calls are led to copies of the functions that were asked for, and of no others; besides copies the
//!    module runs what registers it and takes it back, and asks the loader for nothing else: sections,
//!    relocations, symbols and lines of `.modinfo` are of closed lists.
//! 6. The loader refuses the file where the kernel is elsewhere.
//! 7. Symbols of copies name the function that they are copies of.
//! 8. What counts, at places that the module lists, writes counters of the module's own and nothing else; the
//!    flags are kept, or nothing reads them.
//!
//! What is taken on trust: that the memory is that of the running kernel and stays as it is; the facts; that
//! no function of the group is in use by a tracer or live patch; that nobody whom a copy calls cares where it
//! is called from; the checksums of symbols, which the loader compares.

mod copies;
mod counting;
mod describe;
mod elf;
mod facts;
mod finding;
mod flag_use;
mod flags;
mod inlined;
mod insn;
mod kernel;
mod leftovers;
mod load;
mod marks;
mod original;
mod sections;
mod step;
mod tables;
mod walk;

pub use facts::{KernelFacts, ModuleForm, WarningForm};
pub use finding::{CheckError, Finding, MAX_FINDINGS, Place, Problem};
pub use kernel::{Kernel, Symbols};

use copies::Copies;
use elf::Object;
use load::{Loaded, PLACEMENTS, Placement};
use original::Original;
use restitch_address::Svma;
use std::collections::BTreeSet;
use walk::{Pair, Walk};

/// A module file that was proved. Made by a [`Checker`] only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedModule {
    file: Vec<u8>,
    report: CheckReport,
}

impl CheckedModule {
    /// The file.
    pub fn file(&self) -> &[u8] {
        &self.file
    }
    /// What was proved.
    pub fn report(&self) -> &CheckReport {
        &self.report
    }
}

/// What was proved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// The group's name.
    pub group: String,
    /// Functions whose calls are led to copies.
    pub redirected: u64,
    /// Instructions that were compared.
    pub instructions: u64,
    /// Counters.
    pub counters: u64,
}

/// Proves that `file` holds copies of code of `kernel`, and leads calls of the functions at `asked` to them.
///
/// # Errors
/// [`CheckError`] with what differs. The file is gone then: it must not be loaded.
pub fn check(
    file: Vec<u8>,
    kernel: &dyn Kernel,
    facts: &KernelFacts,
    asked: &BTreeSet<Svma>,
) -> Result<CheckedModule, CheckError> {
    Checker::new(kernel, facts)?.check(file, asked)
}

/// What checks modules against one kernel, whose tables it has read.
pub struct Checker<'k> {
    kernel: &'k dyn Kernel,
    original: Original<'k>,
}

impl<'k> Checker<'k> {
    /// Reads the kernel's tables.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn new(kernel: &'k dyn Kernel, facts: &'k KernelFacts) -> Result<Self, CheckError> {
        let original = Original::new(kernel, facts);
        let original = original.map_err(|problem| CheckError { findings: vec![problem.into()] })?;
        Ok(Self { kernel, original })
    }

    /// As [`check()`] does.
    ///
    /// # Errors
    /// As [`check()`] has them.
    pub fn check(&self, file: Vec<u8>, asked: &BTreeSet<Svma>) -> Result<CheckedModule, CheckError> {
        match self.examine(&file, asked) {
            Ok(report) => Ok(CheckedModule { file, report }),
            Err(findings) => Err(CheckError { findings }),
        }
    }

    /// The phases of a check.
    fn examine(&self, file: &[u8], asked: &BTreeSet<Svma>) -> Result<CheckReport, Vec<Finding>> {
        let one = |problem: Problem| vec![Finding::from(problem)];
        let object = Object::parse(file).map_err(one)?;
        sections::check(&object).map_err(one)?;
        let mut report = CheckReport::default();
        for placement in PLACEMENTS {
            report = placed(&object, placement, self.kernel, &self.original, asked)?;
        }
        Ok(report)
    }
}

/// The proof for one set of places of sections.
fn placed(
    object: &Object<'_>,
    placement: Placement,
    kernel: &dyn Kernel,
    original: &Original<'_>,
    asked: &BTreeSet<Svma>,
) -> Result<CheckReport, Vec<Finding>> {
    let one = |problem: Problem| vec![Finding::from(problem)];
    let anchors = describe::anchors(object, kernel).map_err(one)?;
    describe::check_anchors(object, &anchors).map_err(one)?;
    let module = Loaded::load(object, placement, &anchors).map_err(one)?;
    let copies = Copies::new(&module, original).map_err(one)?;
    let described = describe::described(object, &copies, kernel, original.facts, asked).map_err(one)?;
    let mut walk = Walk::new(&copies, original);
    walk.run(described.redirects.iter().map(|redirect| Pair::new(redirect.copy, redirect.original)));
    if walk.findings.is_empty() {
        leftovers::check(&mut walk, object, &described.redirects);
    }
    if !walk.findings.is_empty() {
        return Err(walk.findings);
    }
    let redirected = described.redirects.len() as u64;
    let (instructions, counters) = (walk.paired.len() as u64, walk.counted.len() as u64);
    Ok(CheckReport { group: described.name, redirected, instructions, counters })
}
