//! Bytes of instructions and numbers of one processor's files stay in the crates of the instruction set, so
//! that another one is one more crate (`docs/extending.md`).

use super::{DECODING, TEST_FILES};
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
/// Opcodes that mean something in a list of one: direct calls and jumps, returns, breakpoints, `int`, `nop`.
const OPCODES: [&str; 7] = ["0xe8", "0xe9", "0xeb", "0xc3", "0xcc", "0xcd", "0x90"];
/// What else there is one of for each instruction set.
const WORDS: [&str; 3] = ["EM_X86_64", "R_X86_64_", "[u8; 5]"];
/// What code names a processor by that needs no bytes: registers of stopped threads and of unwind tables,
/// instructions and intrinsics in its own source.
const REGISTERS: [&str; 10] = ["rip", "rsp", "rbp", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "eflags"];
const DWARF_REGISTERS: [&str; 7] = ["RAX", "RCX", "RDX", "RBX", "RBP", "RSP", "RIP"];
const OWN_CODE: [&str; 3] = ["core::arch", "std::arch", "asm!"];
/// The page that lists all places, and its heading over those outside of the instruction set's crate.
const PAGE: &str = "docs/extending.md";
const OUTSIDE: &str = "### Outside of the crate";

/// A library of its own, whose sources are not where crates have theirs.
const AGENT: &str = "crates/preload/agent/";

/// The product's files outside of the crates that may know the instruction set.
fn elsewhere(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.rust().filter(|file| {
        let krate = file.krate().unwrap_or_default();
        let is_exempt = DECODING.contains(&krate) || TOOLS.contains(&krate);
        let is_product = file.is_product() || file.path.starts_with(AGENT);
        is_product && !is_exempt && !TEST_FILES.iter().any(|name| file.path.ends_with(name))
    })
}

/// No bytes of instructions outside of the instruction set's crates; each exception is needed.
pub fn instruction_set(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in elsewhere(tree) {
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

/// Code that names registers of one processor, or has instructions in its source, is on the page on
/// instruction sets: the file, or a folder that it is in.
pub fn named_places(tree: &Tree) -> Vec<Finding> {
    let Some(page) = text(tree, PAGE) else { return Vec::new() };
    let table = page.split(OUTSIDE).nth(1).unwrap_or_default().split("\n#").next().unwrap_or_default();
    let is_listed = |path: &str| table.contains(&format!("`{path}`"));
    let mut findings = Vec::new();
    for file in elsewhere(tree) {
        let parents = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
        if let Some(line) = names_processor(file)
            && !parents.chain([file.path.as_str()]).any(is_listed)
        {
            let what =
                format!("names what one processor has; the table of {PAGE}, \"{OUTSIDE}\", does not list it");
            findings.push(Finding { path: file.path.clone(), line, what });
        }
    }
    findings
}

/// The first line that does.
fn names_processor(file: &File) -> Option<usize> {
    let code = code_only(file.before_tests());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let behind = |mark: &str, names: &[&str]| {
        let words = code.match_indices(mark).map(|(at, _)| (at, &code[at + mark.len()..]));
        let mut named =
            words.filter(|(_, rest)| names.contains(&rest.split(|c| !is_word(c)).next().unwrap_or("")));
        named.next().map(|(at, _)| at)
    };
    let own = OWN_CODE.iter().filter_map(|word| code.find(word)).min();
    let first =
        [behind(".", &REGISTERS), behind("Register::", &DWARF_REGISTERS), own].into_iter().flatten().min()?;
    Some(code[..first].matches('\n').count() + 1)
}

fn text<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    tree.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
}

/// The page on instruction sets names each item of the contract, and all modules and functions of the crate.
pub fn contract(tree: &Tree) -> Vec<Finding> {
    const CONTRACT: &str = "crates/x86/src/isa.rs";
    const CRATE: &str = "crates/x86/src/lib.rs";
    let Some(page) = text(tree, PAGE) else { return Vec::new() };
    let mut findings = Vec::new();
    for (path, items) in [(CONTRACT, duties as fn(&str) -> Vec<(usize, &str)>), (CRATE, offered)] {
        let code = text(tree, path).map(code_only).unwrap_or_default();
        let missing = items(&code).into_iter().filter(|(_, name)| !page.contains(&format!("`{name}`")));
        let what = |name| format!("{name} is what an instruction set gives, and {PAGE} does not name it");
        findings.extend(missing.map(|(line, name)| Finding { path: path.into(), line, what: what(name) }));
    }
    findings
}

/// The items of the trait, with their lines.
fn duties(code: &str) -> Vec<(usize, &str)> {
    let items = code.lines().enumerate().skip_while(|(_, line)| !line.starts_with("pub trait Isa"));
    let items = items.take_while(|(_, line)| *line != "}").filter_map(|(number, line)| {
        let line = line.trim_start();
        let rest = ["fn ", "const ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
        Some((number + 1, rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?))
    });
    items.collect()
}

/// The modules and functions that a crate offers.
fn offered(code: &str) -> Vec<(usize, &str)> {
    let is_function = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
    let mut items = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let names =
            line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("pub use ")?.split("::").nth(1));
        let names =
            names.into_iter().flat_map(|names| names.split(|c: char| !c.is_alphanumeric() && c != '_'));
        items.extend(names.filter(is_function).map(|name| (number + 1, name)));
    }
    items
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
