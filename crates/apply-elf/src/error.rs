//! Why there is no output file.

use crate::appended::Appended;
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::CfiError;
use restitch_image::ImageError;
use std::path::PathBuf;
use thiserror::Error;

/// Why an output file could not be planned, written or turned back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ElfError {
    /// The input was written by restitch.
    #[error(
        "planning an output file: the input already holds version {number} of restitch; \
         restore the original file first, or optimize the file that it was made from"
    )]
    AlreadyRestitched {
        /// The version in the file.
        number: u32,
    },
    /// The file is no restitch output.
    #[error("restoring the original file: this file was not written by restitch; give one that was")]
    NotRestitched,
    /// A newer restitch wrote the note.
    #[error(
        "restoring the original file: it was written in format {0}, which this restitch does not know; use a newer restitch"
    )]
    UnknownFormat(u32),
    /// The file was stripped or edited after restitch wrote it.
    #[error(
        "restoring the original file: {why}, so it was changed (stripped?) after restitch wrote it; \
         take the original from where you have it, for example from its package"
    )]
    Changed {
        /// What does not fit.
        why: &'static str,
    },
    /// glibc's dynamic loader takes its own size from a symbol, not from its program headers.
    #[error(
        "planning an output file: {0} is the dynamic loader, which cannot find code in an added segment; optimize the programs that it loads"
    )]
    DynamicLoader(String),
    /// Programs look for such data from the end of the file, or at offsets that are written down.
    #[error(
        "planning an output file: the file carries {0}, which the program would not find in a changed file; optimize its processes \
         instead (restitch attach, restitch batch), which leaves the file as it is"
    )]
    Appended(Appended),
    /// A counting version without a file to count in.
    #[error(
        "planning an output file: version {number} is a counting version, and no file was given to count in; \
         counts would be lost with the process"
    )]
    CountingVersion {
        /// The version.
        number: u32,
    },
    /// A version that goes by what a process holds.
    #[error(
        "planning an output file: version {number} calls other modules where one process has them; emit it without bound slots"
    )]
    OneProcess {
        /// The version.
        number: u32,
    },
    /// There is no data segment that could hold the counters.
    #[error(
        "planning a counting file: its last segment is not one of data, so that it cannot grow by the counters; \
         count in a live process instead (restitch record -- COMMAND)"
    )]
    NoRoomForCounters,
    /// A library that nothing of restitch's could be called in.
    #[error(
        "planning a counting file: the library has neither an initializer (DT_INIT) nor room in its dynamic section for one; \
         count in a live process instead (restitch record -- COMMAND)"
    )]
    NoInitializer,
    /// A path that cannot be opened at run time.
    #[error("planning a counting file: {} cannot be the path of the counts file; give an absolute one of less than 4096 bytes", .0.display())]
    CountsPath(PathBuf),
    /// An applier for one file takes one version.
    #[error(
        "planning an output file: {0} versions were given, one file holds exactly one; plan one file for each module"
    )]
    VersionCount(usize),
    /// The version was made for an address where it cannot be.
    #[error(
        "planning an output file: the version is at {at}, but {why}; make it for the address that place() gives"
    )]
    Misplaced {
        /// Where the version is.
        at: Svma,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The program is too large for 32-bit displacements to its end.
    #[error(
        "placing a version: behind the last segment, {span} with {size} bytes more is larger than the 2 GiB that a branch can reach; {}",
        if *near_code { "its processes can be optimized, where there is room below the code (restitch attach)" }
        else { "its own code is that far apart, so it cannot be optimized at all" }
    )]
    OutOfReach {
        /// The program.
        span: SvmaRange,
        /// Bytes asked for.
        size: u64,
        /// Whether its code alone could be reached from somewhere.
        near_code: bool,
    },
    /// There is no header to spare, and the table cannot move either.
    #[error(
        "planning an output file: its program headers have no room for one more segment, and {why}; \
         relink the file with a recent linker, or optimize the live process instead"
    )]
    NoHeaderRoom {
        /// Why the table cannot move.
        why: &'static str,
    },
    /// A redirect does not fit the image.
    #[error(
        "planning an output file: the redirect at {at} {why}; make the version from the same file that it is applied to"
    )]
    BadRedirect {
        /// Where it is.
        at: Svma,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Exceptions would not find the handlers of moved code.
    #[error(
        "planning an output file: the program has exception handlers but no PT_GNU_EH_FRAME header, and the call that registers its \
         unwind tables was not found, so exceptions could not pass moved code; relink it with -Wl,--eh-frame-hdr"
    )]
    UnreachableUnwindTables,
    /// The unwind tables hold pointers that the loader fills in.
    #[error(
        "planning an output file: the unwind tables at {0} need dynamic relocations, so that they cannot be copied; relink with -Wl,--eh-frame-hdr"
    )]
    RelocatedUnwindTables(SvmaRange),
    /// The unwind tables could not be read or written.
    #[error("planning an output file: {0}")]
    Unwind(#[from] CfiError),
    /// A header of the input contradicts itself.
    #[error("planning an output file: {what}; the file is corrupt, copy or install it again")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
    /// More sections than the ELF header can count.
    #[error(
        "planning an output file: the file has {0} sections, too many to add more; remove debug sections with strip first"
    )]
    TooManySections(usize),
    /// Larger than the undo record can express.
    #[error(
        "planning an output file: a file of {0} bytes is too large (4 GiB at most); remove debug sections with strip first"
    )]
    TooLarge(u64),
    /// The output does not say what was planned.
    #[error("checking the output file: {0}; do not use it, and report this with the input file")]
    Mismatch(#[from] crate::mismatch::Mismatch),
    /// The bytes are no ELF image.
    #[error(transparent)]
    Image(#[from] ImageError),
}
