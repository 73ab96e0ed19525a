//! Compiles the agent, a freestanding shared library, with the compiler that compiles this crate.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=agent");
    println!("cargo::rerun-if-changed=src/content.rs");
    println!("cargo::rerun-if-changed=src/format.rs");
    println!("cargo::rerun-if-changed=src/known.rs");
    let variable = |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("{name} is set by cargo"));
    let output = PathBuf::from(variable("OUT_DIR")).join("librestitch-preload.so");
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "--crate-name=restitch_preload",
        "agent/main.rs",
    ]);
    // No panics, no start files, no library: it has to be loadable beside any C library, and to bring none
    // along.
    compiler.args(["-Cpanic=abort", "-Copt-level=2", "-Cforce-unwind-tables=yes", "-Cstrip=symbols"]);
    // All is seen at once, so that nothing of the core library stays that is called by nothing.
    compiler.arg("-Ccodegen-units=1");
    compiler.args(["-Clink-arg=-nostdlib", "-Clink-arg=-Wl,-z,now,-z,relro,-soname,librestitch-preload.so"]);
    // Initialized first (ld(1), `-z initfirst`): what the libraries' own initialization executes is overlaid,
    // too, and its pages are not mapped twice. The loader keeps the promise to one library, the last one that
    // asks for it.
    compiler.arg("-Clink-arg=-Wl,-z,initfirst");
    compiler.arg("--target").arg(variable("TARGET")).arg("-o").arg(&output);
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut argument = std::ffi::OsString::from("-Clinker=");
        argument.push(linker);
        compiler.arg(argument);
    }
    let status = compiler.status().unwrap_or_else(|e| panic!("starting {compiler:?}: {e}"));
    assert!(status.success(), "{compiler:?} failed: {status}");
}
