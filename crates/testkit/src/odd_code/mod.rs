//! Programs that no compiler writes, for the whole pipeline: data among the code, code that reads its return
//! address or its own bytes, odd unwind tables, several entries, instructions that the loader changes.
//!
//! * [`OddProgram::generate`] makes one of a seed: a list of functions as assembler text, and how it is
//!   linked. Each function takes two words and returns one. `main.c` calls each of them again and again, and
//!   prints a checksum of each, which depends on no address.
//! * [`Bench::try_seed`] builds it, runs it as it is, recorded, optimized, instrumented and attached to, and
//!   compares what it prints.
//!
//! Right is the same output, or a refusal of restitch with one of its documented exit codes; see [`Verdict`].

mod function;
mod pieces;
mod program;
mod text;
mod trial;

pub use program::{Linking, OddProgram};
pub use trial::{Bench, Tally, Verdict};
