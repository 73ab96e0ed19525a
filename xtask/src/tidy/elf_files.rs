//! A rule about files of the format ELF: one crate reads them (`docs/design/files.md`).

use crate::{Finding, Tree, code_only};

/// The reader, and who takes the format's numbers from the same list as it does.
const NAMING: [&str; 2] = ["apply-elf", "image"];

/// Who reads and writes relocatable files of the kernel, by the library `object`.
const RELOCATABLE: [&str; 1] = ["kernel-group"];

/// Who else may hold the mark that ELF files begin with, and why.
const MARKS: [(&str, &str); 11] = [
    ("crates/apply-elf/src/appended.rs", "it says what may lie behind a program in its file"),
    ("crates/apply-process/src/hook/page.rs", "it writes one for debuggers"),
    ("crates/check/src/elf.rs", "what judges a version shares no code with what made it"),
    ("crates/emit/src/elf.rs", "it writes versions"),
    ("crates/guest/src/kcore.rs", "it writes a smaller core file of a kernel"),
    (
        "crates/kernel/src/kcore.rs",
        "it reads memory of a kernel from a core file without end, of which segments are all it needs",
    ),
    ("crates/image/src/header.rs", "it is the reader"),
    ("crates/image/src/raw.rs", "it is the reader"),
    ("crates/kernel-check/src/elf.rs", "what judges a module shares no code with what made it"),
    ("crates/preload/src/empty.rs", "it writes a library of 32 bits, and uses no crate"),
    ("crates/tracee/src/seize.rs", "it tells programs of 32 bits by the first bytes alone"),
];

/// Tools of tests.
const TOOLS: [&str; 1] = ["testkit"];

/// ELF files are read in crate image; each exception is needed.
pub fn elf_files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_product = |krate: &str| !TOOLS.contains(&krate);
    for file in tree.rust().filter(|file| file.is_product() && file.krate().is_some_and(is_product)) {
        let krate = file.krate().unwrap_or_default();
        let text = file.before_tests();
        let code = code_only(text);
        let mut found = |at: usize, what: &str| {
            let line = text[..at].matches('\n').count() + 1;
            findings.push(Finding { path: file.path.clone(), line, what: what.into() });
        };
        let named = code.match_indices("object::").filter(|(at, _)| !code[..*at].ends_with(is_part));
        for (at, name) in named {
            if !RELOCATABLE.contains(&krate)
                && (!NAMING.contains(&krate) || !code[at + name.len()..].starts_with("elf"))
            {
                found(at, "ELF files are read by restitch_image; of object only the numbers in elf are used");
            }
        }
        if krate == "apply-elf" {
            for (at, _) in code.match_indices("from_le_bytes") {
                found(at, "fields of ELF files are read by restitch_image::raw");
            }
        }
        let mark = marks(text, &code).min();
        match (mark, MARKS.iter().find(|(path, _)| *path == file.path)) {
            (Some(at), None) => found(at, "ELF files are known by restitch_image"),
            (None, Some((_, why))) => {
                found(0, &format!("holds no mark of ELF files; it is excepted as {why}"))
            }
            _ => {}
        }
    }
    findings
}

/// Where the first bytes of ELF files are written down, in whatever form.
fn marks<'t>(text: &'t str, code: &'t str) -> impl Iterator<Item = usize> {
    let line = |at: usize| text[..at].rsplit('\n').next().unwrap_or_default().trim_start();
    let in_literal = move |at: &usize| code[*at..].starts_with(' ') && !line(*at).starts_with("//");
    let texts = text.match_indices("\\x7fELF").map(|(at, _)| at).filter(in_literal);
    let bytes =
        code.match_indices("0x7f, ").map(|(at, _)| at).filter(|at| text[*at..].starts_with("0x7f, b'E'"));
    texts.chain(bytes).chain(code.match_indices("ELFMAG").map(|(at, _)| at))
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
