//! Unwind tables: reading, translating and writing `.eh_frame`, `.eh_frame_hdr` and language-specific data
//! areas (LSDA, `.gcc_except_table`), and walking one frame with them.
//!
//! **What you do**: give the bytes. [`UnwindInfo::parse`] takes those of an `.eh_frame` and the address at
//! which they are stored; what is elsewhere is read through [`Memory`], which a closure can be.
//!
//! **What this crate does**: it resolves everything that is relative to something into canonical [`Svma`]
//! addresses, so that a state, a row or a call site means the same wherever it is written again. The writers
//! produce self-contained tables: [`write_eh_frame`] for runs of moved code, [`write_lsda`] for their
//! exceptions, [`relocate_eh_frame`] for the existing table of a file that moves to make room.
//!
//! Who only asks what unwinders know of a place asks a [`UnwindForm`], of which `.eh_frame` is one.
//!
//! **What it will not do**: input or output; follow the `indirect` bit of personality and type pointers (the
//! slots are filled at run time); judge whether a state is true at an address; add call sites for code that
//! the caller forgot (the C++ personality terminates there).
//!
//! What holds it together is tested: `tests/real_files.rs` (every entry and LSDA of installed programs
//! survives reading, writing and relocating, and gimli reads the same), `tests/throwing.rs` (the C++ run time
//! catches by written tables), `tests/random_rows.rs` (random states; damaged input).
//!
//! References: DWARF 5 section 6.4; Linux Standard Base core specification section 10.6; GCC's
//! `unwind-dw2.c`, `unwind-pe.h` and `eh_personality.cc`, whose behaviour decides where the texts are silent.
//!
//! [`Svma`]: restitch_address::Svma

mod error;
mod expression;
mod form;
mod hdr;
mod info;
mod lsda;
mod memory;
mod program;
mod records;
mod registers;
mod relocate;
mod state;
mod step;
mod write;
mod write_lsda;

pub use error::{CfiError, ExpressionError};
pub use form::{NoUnwindTables, UnwindForm, UnwindPiece};
pub use hdr::{EhFrameHdr, read_eh_frame_hdr, write_eh_frame_hdr};
pub use info::{Dropped, FrameEntry, UnwindInfo, row_at};
pub use lsda::{Lsda, LsdaCallSite, TypeInfo};
pub use memory::{Bytes, Memory};
pub use records::Personality;
pub use registers::{Register, Registers};
pub use relocate::relocate_eh_frame;
pub use state::{Cfa, ExpressionBytes, FrameAddress, FrameState, RegisterRule, Row};
pub use step::{Step, step};
pub use write::{EhFrame, EhFrameWriter, Run, write_eh_frame};
pub use write_lsda::write_lsda;
