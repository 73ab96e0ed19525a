//! Static programs whose unwinder is LLVM's libunwind, which asks `dl_iterate_phdr` for unwind tables: C++
//! with glibc, and Rust with musl.

use crate::compile::{Error, Result, compile_with};
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
/// As [`compile_with`]; [`Error::Missing`] also without one of the libraries.
pub fn compile_with_llvm_runtime(source: &Path, flags: &[&str]) -> Result<PathBuf> {
    let all: Vec<&str> = flags.iter().copied().chain(LIBRARIES).collect();
    let absent = ["cannot find -l", "unable to find library", "file not found"];
    missing_if(compile_with("clang++", source, &all), &absent, "clang++ with static libc++ and libunwind")
}

/// The Rust program `source`, linked statically with musl.
///
/// # Errors
/// As [`compile_with`]; [`Error::Missing`] also without Rust's standard library for musl.
pub fn compile_rust_with_musl(source: &Path) -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let flags = ["--edition", "2024", "-O", "--target", TARGET];
    let made = compile_with("rustc", source, &flags);
    missing_if(
        made,
        &["can't find crate for `std`"],
        "rustc for x86_64-unknown-linux-musl (rustup target add)",
    )
}

/// A refusal that names what is not installed is [`Error::Missing`].
fn missing_if(made: Result<PathBuf>, absent: &[&str], tool: &str) -> Result<PathBuf> {
    made.map_err(|error| match &error {
        Error::Refused { messages, .. } if absent.iter().any(|a| messages.contains(a)) => {
            Error::Missing { tool: tool.into() }
        }
        _ => error,
    })
}
