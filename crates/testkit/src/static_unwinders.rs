//! Static programs whose unwinder is LLVM's libunwind, which asks `dl_iterate_phdr` for unwind tables: C++
//! with glibc, and Rust with musl.

use crate::compile::{Result, attempt, or_missing};
use std::path::{Path, PathBuf};

/// All of a static C++ program's run time by its name. glibc's own clean-up code asks for the C personality
/// routine, which LLVM has in compiler-rt only; the one for C++ understands its tables, too.
const LIBRARIES: [&str; 13] = [
    "-stdlib=libc++",
    "-nodefaultlibs",
    "-Wl,--start-group",
    "-lc++",
    "-lc++abi",
    "-l:libunwind.a",
    "-lc",
    "-lpthread",
    "-lm",
    "-lgcc",
    "-Wl,--end-group",
    "-Wl,--defsym=__gcc_personality_v0=__gxx_personality_v0",
    "-w",
];

/// The C++ program `source`, linked with libc++, LLVM's libunwind and glibc by clang. `flags` say `-static`
/// or `-static-pie`.
///
/// # Errors
/// As [`compile_with`](crate::compile_with); [`Error::Missing`] also without one of the libraries.
pub fn compile_with_llvm_runtime(source: &Path, flags: &[&str]) -> Result<PathBuf> {
    let all: Vec<&str> = flags.iter().copied().chain(LIBRARIES).collect();
    let absent = ["cannot find -l", "unable to find library", "file not found"];
    or_missing(attempt("clang++", source, &all), &absent, "clang++ with static libc++ and libunwind")
}

/// The Rust program `source`, linked statically with musl.
///
/// # Errors
/// As [`compile_with`](crate::compile_with); [`Error::Missing`] also without Rust's standard library for
/// musl.
pub fn compile_rust_with_musl(source: &Path) -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let flags = ["--edition", "2024", "-O", "--target", TARGET];
    let made = attempt("rustc", source, &flags);
    or_missing(
        made,
        &["can't find crate for `std`"],
        "rustc for x86_64-unknown-linux-musl (rustup target add)",
    )
}
