//! The look-ahead table: for each address of a module the next branch instruction, without decoding anything.
//!
//! Marin et al., "Break Dancing" (LCTES 2021), sections 2.2 and 3.3: handlers that trace branches need the
//! next branch and its machine-independent form, and should decode each instruction once. This table is made
//! of a module beforehand.
//!
//! **What you do**: [`build`] the bytes of a table from an [`Image`](restitch_image::Image) and its
//! [`Program`](restitch_program::Program), keep or share them in any form, and look branches up with
//! [`Table`].
//!
//! **What it is**: a header, an index entry for each 256 bytes of code, eight bytes for each branch, sixteen
//! for each distinct indirect operand; little-endian, without pointers, in stated coordinates. So it can be
//! mapped from a file. A table of 22 MB of code takes about 9 MB.
//!
//! **What it promises**: [`Table`] and [`Branch::resolve`] allocate nothing, never panic on any bytes, and
//! read the table only. Code that does not decode is a gap: looking ahead ends there.
//!
//! **What it will not do**: know code that lies between the instructions of the linear decoding (overlapping
//! code), or code that was changed after the table was made.

mod build;
mod format;
mod resolve;
mod table;

pub use build::build;
pub use format::{Branch, Kind, Operand, Place, Segment, Times, VERSION};
pub use resolve::{Outcome, Thread};
pub use table::{Table, TableError};
