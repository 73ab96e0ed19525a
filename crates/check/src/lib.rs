//! The independent checker: proves that a [`Version`] does what its [`Program`] does.
//!
//! **You** hand over the image, its program, the layout, and the version that `restitch-emit` made of them.
//! **This crate** decodes the version's bytes beside the original's and follows every branch, jump table,
//! unwind row and exception table; what it cannot show to be equal is a [`Finding`]. Appliers take a
//! [`CheckedVersion`], and [`check`] is the only way to get one. **It does not** repair anything, do I/O, or
//! share code with what made the version: it decodes with iced-x86 and reads unwind tables with gimli and a
//! reader of its own.
//!
//! What is proved for a checked version ([`Version`] documents the parts):
//! 1. Every byte of text belongs to one instruction that was checked, or is filler that no checked
//!    instruction leads to.
//! 2. Each placed block, duplicates included, has the original's instructions in order, byte for byte, but
//!    for displacements that keep their absolute target; between them stand only counters of two known forms,
//!    which leave all live state alone, and in front of them a prefetch of a byte of the version's text,
//!    where the layout asks for one.
//! 3. Each way out of a block leads to the copy of the original destination, or to the original destination.
//! 4. Jump-table copies hold at least as many entries as the original, each to the equivalent of the
//!    original's.
//! 5. The address map is true and complete at each instruction boundary.
//! 6. Redirects start where code is entered, lead to its equivalent, and cover nothing else that is entered.
//! 7. At each boundary an unwinder finds the original's row (shifted where a counter has moved the stack),
//!    and at each call the original's exception handling.
//!
//! 8. A call or jump through a slot of the global offset table, or its stub, that became direct goes to what
//!    the version says that the slot holds ([`Version::assumes`]), or to its copy; and the loader makes such
//!    slots read-only.
//! 9. Each retarget replaces the target of a direct branch, or the address of a label or function, by the
//!    start of the target's copy; of a function, all that makes the address in the file and in the version,
//!    and nothing else is known to know it.
//!
//! 10. An indirect call that was promoted compares the very operand of the original, calls the function at
//!     the address that it was compared
//!     with, or its copy, and else executes the original.
//!
//! 11. What finds out what an indirect call usually calls, in a counting version, writes that call's own
//!     words and leaves all live state alone.
//!
//! 12. No copied call goes, directly or through a slot that the module fills itself, to code that is seen to
//!     read its return address.
//!
//! What is taken on trust: that the slots hold that (the process applier compares); that the original bytes
//! in the image are those that run; the program's claims about where indirect jumps go
//! ([`restitch_program::BlockAttrs::INDIRECT`]) and how long a jump table is (its entries are re-read, its
//! end is not re-derived); that functions do not *return* results in status flags, and that none are handed
//! to what an indirect call may call (the ABI); that no indirect call reads its target from below the stack
//! pointer by way of another register.

mod burst;
mod burst_cycles;
mod burst_forms;
mod burst_frames;
mod burst_window;
mod callee;
mod computed;
mod direct;
mod elf;
mod finding;
mod flags;
mod frames;
mod lock_skip;
mod lsda;
mod map;
mod path;
mod pointers;
mod prefetch;
mod promoted;
mod redirect;
mod retarget;
mod row;
mod subject;
mod tables;
mod target_value_profile;
mod unwind;
mod walk;

pub use finding::{CheckError, CheckReport, Finding, MAX_FINDINGS, Problem};

use finding::Findings;
use frames::Frames;
use restitch_address::LoadBias;
use restitch_emit::Version;
use restitch_image::Image;
use restitch_layout::Layout;
use restitch_program::Program;
use subject::Subject;
use walk::Walk;

/// A version that was proved equal to its program. Made by [`check`] only.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedVersion {
    version: Version,
    report: CheckReport,
}

impl CheckedVersion {
    /// What was checked.
    pub fn report(&self) -> &CheckReport {
        &self.report
    }
    /// The version, no longer known to be checked.
    pub fn into_inner(self) -> Version {
        self.version
    }
}

impl std::ops::Deref for CheckedVersion {
    type Target = Version;
    fn deref(&self) -> &Version {
        &self.version
    }
}

/// Proves that `version` equals `program` under `layout`.
///
/// `bias` is what the version was made for: copies of jump tables with absolute entries hold addresses of one
/// process. Without one, such copies are accepted in programs of fixed address only.
///
/// # Errors
/// [`CheckError`] with what differs. The version is gone then: it must not be applied.
pub fn check(
    image: &Image,
    program: &Program,
    layout: &Layout,
    version: Version,
    bias: Option<LoadBias>,
) -> Result<CheckedVersion, CheckError> {
    let (findings, report) = examine(image, program, layout, &version, bias);
    if findings.total == 0 {
        return Ok(CheckedVersion { version, report });
    }
    Err(CheckError { findings: findings.list, total: findings.total, checked: Box::new(report) })
}

/// The phases of a check.
fn examine(
    image: &Image,
    program: &Program,
    layout: &Layout,
    version: &Version,
    bias: Option<LoadBias>,
) -> (Findings, CheckReport) {
    let mut findings = Findings::default();
    let subject = Subject::new(image, program, layout, version, bias);
    if let Some(table) = &version.burst {
        let mut report = CheckReport::default();
        if elf::check_file(&subject, &mut findings) {
            report = burst::check(&subject, table, &mut findings);
        }
        return (findings, report);
    }
    if !elf::check(&subject, &mut findings) {
        return (findings, CheckReport::default());
    }
    direct::assumptions(&subject, &mut findings);
    let frames = Frames::read(&subject, &mut findings);
    let mut walk = Walk::new(&subject, frames, findings);
    walk.run();
    walk.redirects();
    walk.retargets();
    walk.pointers();
    (walk.findings, walk.report)
}
