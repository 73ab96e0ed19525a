//! Generates the workload's code: request handlers, the stages and helpers that they call, and error paths.
//!
//! The point is a program with the front-end behaviour of a large server: every request runs through more
//! code than the first-level instruction cache holds, straight-line stretches are short, and the code that is
//! never or seldom executed stands between the code that always is, because the compiler is told nothing
//! about likelihood.

mod body;
mod rng;

use body::{Callees, Writer};
use rng::Rng;
use std::{env, fs, path::Path};

/// How many functions each level of the call tree has; a function calls functions of the next level only.
const LEVELS: [usize; 5] = [128, 416, 576, 640, 448];
/// How many calls a function of each level makes: 1 + 4 + 12 + 36 + 72 = 125 functions run for a request.
const CALLS: [usize; 5] = [4, 3, 3, 2, 0];
/// How many functions the error paths call.
const FAILURES: usize = 96;
/// How many functions one table for indirect calls holds.
const TABLE: usize = 8;
/// How many source files the functions are spread over, as in a program with many translation units.
const FILES: usize = 16;
/// Decides everything about the generated program; the checksums in `src/lib.rs` belong to this value.
const SEED: u64 = 0x7265_7374_6974_6368;

fn main() {
    println!("cargo::rerun-if-changed=build");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    for (name, text) in generate(&mut Rng::new(SEED)) {
        let path = Path::new(&out).join(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    }
}

/// All files of the program: the parts, and the root that includes them.
fn generate(rng: &mut Rng) -> Vec<(String, String)> {
    let mut functions = Vec::new();
    for (level, &count) in LEVELS.iter().enumerate() {
        for index in 0..count {
            let name = format!("l{level}_{index}");
            let mut callees =
                Callees::new(rng, level + 1, LEVELS.get(level + 1).copied(), CALLS[level], TABLE);
            functions.push(Writer::new(rng, FAILURES).function(&name, &mut callees));
        }
    }
    for index in 0..FAILURES {
        functions.push(Writer::new(rng, FAILURES).failure(index));
    }
    // A caller and its callees are rarely neighbours in a program of many files.
    rng.shuffle(&mut functions);
    let mut files: Vec<(String, String)> = Vec::new();
    for (part, chunk) in functions.chunks(functions.len().div_ceil(FILES)).enumerate() {
        let text = format!("use super::super::State;\nuse super::*;\n{}", chunk.concat());
        files.push((format!("part_{part}.rs"), text));
    }
    files.push(("code.rs".into(), root(files.len())));
    files
}

/// The file that includes the parts and names the handlers.
fn root(parts: usize) -> String {
    let mut text = String::new();
    for part in 0..parts {
        text += &format!(
            "mod part_{part} {{ include!(concat!(env!(\"OUT_DIR\"), \"/part_{part}.rs\")); }}\nuse part_{part}::*;\n"
        );
    }
    text += &format!("pub(crate) static HANDLERS: [fn(&mut super::State, u64) -> u64; {}] = [\n", LEVELS[0]);
    for index in 0..LEVELS[0] {
        text += &format!("l0_{index},\n");
    }
    text + "];\n"
}
