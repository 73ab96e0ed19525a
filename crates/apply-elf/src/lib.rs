//! The ELF-file applier: a program or library in, the same file with a code version in it out.
//!
//! **You** ask [`place`] where a version of the file has to start, have it made and checked for that address,
//! and hand both to [`plan_output`]; [`ElfPlan::write`] gives the bytes of the new file, [`verify`] reads
//! them again, and [`write_atomically`](restitch_apply::write_atomically) puts them on disk.
//!
//! **What this crate does.** Every byte of the input stays where it is. Behind it come a new read-execute
//! segment (the version, complete unwind tables for old and new code, a note) and new symbols and section
//! headers. Changed are the ELF header, the program headers, five bytes for each redirect and what leads
//! straight into the version: displacements, relocated addresses, values of dynamic symbols. The original
//! bytes are kept in the output, so that [`original_bytes`] can turn it back into exactly the input. The
//! build id stays, so debug information still matches. `strip`, `gdb`, `perf` and `readelf` work on the
//! output; one that was stripped is still recognised by [`is_restitch_output`], but cannot be turned back.
//!
//! **What it will not do**: read or write any other file, judge a version (only a
//! [`CheckedVersion`](restitch_apply::CheckedVersion) can be planned), add a second version to its own output
//! (start from [`original_bytes`]), change files that carry data behind what their headers describe
//! ([`appended`]), or touch the dynamic loader. It does not make the file that a counting version counts in
//! ([`plan_counting`], [`CountsSource`]) either.
//!
//! Invariants, each held by a test: `original_bytes(write(plan)) == input`; same input, same bytes; PT_LOADs
//! stay sorted; each FDE of the input is found in the output.
//!
//! References: System V ABI, chapters 4 and 5; Linux `fs/binfmt_elf.c` and glibc `elf/rtld.c`,
//! `elf/dl-load.c`, whose behaviour decides which program headers can be spared (`headers.rs`).

mod appended;
mod applier;
mod error;
mod grow;
mod headers;
mod mismatch;
mod note;
mod options;
mod place;
mod plan;
mod retarget;
mod sections;
mod segment;
mod startup;
mod unwind;
mod verify;

pub use appended::{Appended, appended};
pub use applier::ElfFile;
pub use error::ElfError;
pub use mismatch::Mismatch;
pub use note::{RestitchNote, is_restitch_output, original_bytes};
pub use options::OutputOptions;
pub use place::{place, place_counting};
pub use plan::{ElfPlan, plan_counting, plan_output};
pub use startup::CountsSource;
pub use verify::verify;
