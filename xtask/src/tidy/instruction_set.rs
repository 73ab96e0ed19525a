//! Bytes of instructions and numbers of one processor's files stay in the crates of the instruction set, so
//! that another one is one more crate (`docs/extending.md`).

use super::DECODING;
use crate::{File, Finding, Tree, code_only};

/// Where bytes of instructions may stand besides the instruction set's crate, and why.
///
/// `check` is one of [`DECODING`]: it knows the instruction set by its own decoder and tables, on purpose,
/// since what judges a version must share no code with what made it; another instruction set needs another
/// checker.
const ROUTINES: [(&str, &str); 2] = [
    (
        "crates/apply-process/src/hook/page.rs",
        "a routine of machine code that is tested instruction by instruction",
    ),
    ("crates/apply-elf/src/startup.rs", "a routine of machine code that is tested against its source"),
];
/// Programs that tests are made with are written for one processor.
const TOOLS: [&str; 1] = ["testkit"];
/// Files of tests alone, which are declared so elsewhere.
const TEST_FILES: [&str; 2] = ["/testing.rs", "/oracle_tests.rs"];
/// Opcodes that mean something in a list of one: direct calls and jumps, returns, breakpoints, `int`, `nop`.
const OPCODES: [&str; 7] = ["0xe8", "0xe9", "0xeb", "0xc3", "0xcc", "0xcd", "0x90"];
/// What else there is one of for each instruction set.
const WORDS: [&str; 3] = ["EM_X86_64", "R_X86_64_", "[u8; 5]"];

/// No bytes of instructions outside of the instruction set's crates; each exception is needed.
pub fn instruction_set(tree: &Tree) -> Vec<Finding> {
    let elsewhere = tree.rust().filter(|file| {
        let krate = file.krate().unwrap_or_default();
        let is_exempt = DECODING.contains(&krate) || TOOLS.contains(&krate);
        file.is_product() && !is_exempt && !TEST_FILES.iter().any(|name| file.path.ends_with(name))
    });
    let mut findings = Vec::new();
    for file in elsewhere {
        let found = bytes_of_instructions(file);
        match ROUTINES.iter().find(|(path, _)| *path == file.path) {
            None => findings.extend(found),
            Some((_, why)) if found.is_empty() => {
                let what = format!("holds no bytes of instructions; it is excepted as {why}");
                findings.push(Finding { path: file.path.clone(), line: 0, what });
            }
            Some(_) => {}
        }
    }
    findings
}

/// The page on instruction sets names each item of the contract.
pub fn contract(tree: &Tree) -> Vec<Finding> {
    const CONTRACT: &str = "crates/x86/src/isa.rs";
    const PAGE: &str = "docs/extending.md";
    let text = |path| tree.files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let (Some(code), Some(page)) = (text(CONTRACT).map(code_only), text(PAGE)) else { return Vec::new() };
    let items = code.lines().enumerate().skip_while(|(_, line)| !line.starts_with("pub trait Isa"));
    let items = items.take_while(|(_, line)| *line != "}").filter_map(|(number, line)| {
        let line = line.trim_start();
        let rest = ["fn ", "const ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
        Some((number + 1, rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?))
    });
    let missing = items.filter(|(_, name)| !page.contains(&format!("`{name}`")));
    let what = |name| format!("{name} is a duty of an instruction set that {PAGE} does not name");
    missing.map(|(line, name)| Finding { path: CONTRACT.into(), line, what: what(name) }).collect()
}

fn bytes_of_instructions(file: &File) -> Vec<Finding> {
    let code = code_only(file.before_tests());
    let numbers = bytes(&code);
    let follows = |&(at, text): &(usize, &str), next: usize| code[at + text.len()..next].trim() == ",";
    let pairs = numbers.windows(2).filter(|pair| follows(&pair[0], pair[1].0)).map(|pair| pair[0].0);
    let opcodes = numbers.iter().filter(|(_, text)| OPCODES.contains(text)).map(|(at, _)| *at);
    let words = WORDS.iter().flat_map(|word| code.match_indices(word)).map(|(at, _)| at);
    let mut lines: Vec<usize> =
        pairs.chain(opcodes).chain(words).map(|at| code[..at].matches('\n').count() + 1).collect();
    lines.sort_unstable();
    lines.dedup();
    let what =
        "bytes of instructions, or numbers of one processor's files: ask crate x86 (docs/extending.md)";
    lines.into_iter().map(|line| Finding { path: file.path.clone(), line, what: what.into() }).collect()
}

/// The numbers of two hexadecimal digits, with where.
fn bytes(code: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let whole = |&(at, _): &(usize, &str)| !code[..at].ends_with(is_word);
    code.match_indices("0x")
        .filter(whole)
        .map(|(at, _)| (at, &code[at..at + code[at..].find(|c| !is_word(c)).unwrap_or(code.len() - at)]))
        .map(|(at, text)| (at, text.strip_suffix("u8").unwrap_or(text)))
        .filter(|(_, text)| text.len() == 4)
        .collect()
}
