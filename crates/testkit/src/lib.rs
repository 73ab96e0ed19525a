//! What integration tests of the other crates share: compiled test programs, the programs that the machine
//! has, and processes that do not outlive their test.
//!
//! * [`program`] names a source in `tests/programs`, [`compile`] compiles it (once for each content and
//!   flags; the result is cached in the target directory), [`strip`] and [`without_section_headers`] make the
//!   poorer variants. Every program there ends with [`SUCCESS`] when its self-check held; `--seconds N` makes
//!   it run for that long, `--busy N` until it has used so much processor time.
//! * [`find_program`] finds the real test beds.
//! * [`require!`] and [`skip!`] end a test that cannot run, saying `SKIPPED: reason`. With
//!   `RESTITCH_NO_SKIP=1` they panic, so that a run can prove that nothing was skipped;
//!   [`skip_unsupported!`], for what a machine can never provide, does not.
//! * [`Guarded`] is a child process that is killed when dropped; [`run`] waits for one with a deadline;
//!   [`wait_until`] polls; [`copy_program`] makes a copy that can be executed; [`Server`] talks to
//!   `server.c`.
//! * [`small_kernel`] is a made-up Linux kernel of a few functions, as `/proc` shows a real one.
//!
//! For tests only: helpers panic where that is the clearest message.

mod compile;
mod find;
pub mod odd_code;
mod process;
mod random;
mod server;
mod skip;
pub mod small_kernel;
mod static_unwinders;

pub use compile::{
    Error, VARIANTS, compile, compile_with, compiled, program, programs, strip, without_section_headers,
};
pub use find::find_program;
pub use process::{Finished, Guarded, copy_program, run, run_within, wait_until};
pub use random::Random;
pub use server::{Connection, Server};
pub use skip::{skipped, unsupported};
pub use static_unwinders::{compile_rust_with_musl, compile_with_llvm_runtime};
pub use tempfile::TempDir;

/// The exit status with which a test program says that all its checks held.
pub const SUCCESS: i32 = 42;

/// A fresh directory that is removed when dropped.
pub fn scratch() -> TempDir {
    tempfile::tempdir().expect("cannot make a temporary directory; check that TMPDIR is writable")
}
