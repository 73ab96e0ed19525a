//! Rules about documents and about words in any file.

use crate::{Finding, Tree};
use std::collections::BTreeSet;

/// Endings by which a word in a document is taken for a file of the repository.
const FILES: [&str; 9] = [".c", ".cc", ".html", ".json", ".md", ".py", ".rs", ".sh", ".toml"];

/// Every path that documents name (`docs`, and those that stand [`ELSEWHERE`]) exists.
///
/// A word counts as a path if it stands in backticks, in a code block or as the target of a link, and either
/// begins with a folder that the repository has at its top, or has a slash and ends like a source file, or is
/// a link. The name of a Rust file alone has to be that of one somewhere.
pub fn named_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|f| is_document(&f.path)) {
        let mut fenced = false;
        for (number, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                continue;
            }
            let mut missing: Vec<String> =
                code_words(line, fenced).into_iter().filter(|w| names_missing(tree, w)).collect();
            if !fenced {
                missing.extend(
                    links(line).filter(|target| !link_exists(tree, &file.path, target)).map(String::from),
                );
            }
            findings.extend(missing.into_iter().map(|word| Finding {
                path: file.path.clone(),
                line: number + 1,
                what: format!("names {word}, which does not exist"),
            }));
        }
    }
    findings
}

/// Documents of the project outside of `docs`: not the history, and not results, which are written once.
const ELSEWHERE: [&str; 6] = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/README.md",
    "bench/results/README.md",
    "kernel/module/README.md",
];

/// Whether it is a document of the project.
pub(super) fn is_document(path: &str) -> bool {
    ELSEWHERE.contains(&path) || (path.starts_with("docs/") && path.ends_with(".md"))
}

/// Tests that documents of the design name exist: what holds a rule can be looked up.
///
/// A word in backticks counts as the name of a test if it begins with a letter, has small letters only,
/// and three underscores or more.
pub fn named_tests(tree: &Tree) -> Vec<Finding> {
    const DESIGN: [&str; 4] = ["CONTRIBUTING.md", "SECURITY.md", "docs/DESIGN.md", "docs/extending.md"];
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_sentence =
        |word: &String| word.matches('_').count() >= 3 && word.chars().all(is_part) && !word.starts_with('_');
    let declared: BTreeSet<&str> = tree.rust().flat_map(|file| functions(&file.text)).collect();
    let mut findings = Vec::new();
    let is_of_design = |path: &str| DESIGN.contains(&path) || path.starts_with("docs/design/");
    for file in tree.files.iter().filter(|f| is_of_design(&f.path)) {
        for (number, line) in file.text.lines().enumerate() {
            for word in code_words(line, false).into_iter().filter(is_sentence) {
                if !declared.contains(word.as_str()) {
                    let what = format!("names {word}, and there is no function of that name");
                    findings.push(Finding { path: file.path.clone(), line: number + 1, what });
                }
            }
        }
    }
    findings
}

/// The names behind `fn`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split("fn ").skip(1).map(move |rest| rest.split(|c| !is_part(c)).next().unwrap_or_default())
}

/// Every idea that was given up is told of where somebody would have it again: a page of the design links it.
pub fn linked_decisions(tree: &Tree) -> Vec<Finding> {
    let folder = |path: &str, folder: &str| path.starts_with(folder) && path.ends_with(".md");
    let pages = || tree.files.iter().filter(|f| folder(&f.path, "docs/design/"));
    let linked = |decision: &str| {
        pages().any(|page| links(&page.text).any(|target| link_path(&page.path, target) == decision))
    };
    let alone = tree.files.iter().filter(|f| folder(&f.path, "docs/decisions/") && !linked(&f.path));
    let what = "no page of docs/design links it: add the link where the rule stands that it explains";
    alone.map(|f| Finding { path: f.path.clone(), line: 0, what: what.into() }).collect()
}

/// The words in code: all of a line in a fenced block, else what stands in backticks.
fn code_words(line: &str, fenced: bool) -> Vec<String> {
    let spans: Vec<&str> = if fenced { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
    let words = spans.iter().flat_map(|span| span.split_whitespace());
    words
        .map(|word| word.trim_matches(|c: char| "\"'(),;:".contains(c)).trim_end_matches('/').to_string())
        .collect()
}

/// Whether `word` is a path of this repository that does not exist.
fn names_missing(tree: &Tree, word: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "._-/".contains(c);
    if word.is_empty() || !word.chars().all(plain) || word.starts_with(['/', '-']) {
        return false;
    }
    let Some((top, _)) = word.split_once('/') else {
        let is_somewhere = || tree.paths.iter().any(|path| path.rsplit('/').next() == Some(word));
        let is_at_top = || [word.into(), format!("docs/{word}")].iter().any(|path| tree.paths.contains(path));
        return word.ends_with(".md") && !is_at_top() || word.ends_with(".rs") && !is_somewhere();
    };
    let built = ["target", "out"].contains(&top);
    let ours = tree.paths.contains(top) || FILES.iter().any(|ending| word.ends_with(ending));
    !built && ours && !tree.paths.contains(word)
}

/// The targets of links that stay in the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#', ' ']).next())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

fn link_exists(tree: &Tree, document: &str, target: &str) -> bool {
    tree.paths.contains(&link_path(document, target))
}

/// What a link of `document` leads to, from the repository's root.
fn link_path(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A rule of the design says why it is one, and what would fail if it were broken.
pub fn reasoned_rules(tree: &Tree) -> Vec<Finding> {
    const PARTS: [&str; 2] = ["*Why*", "*Held by*"];
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|f| f.path.starts_with("docs/design/") && f.path.ends_with(".md")) {
        for (line, section) in sections(&file.text).filter(|(_, section)| section.contains("**Rule.**")) {
            for part in PARTS.iter().filter(|part| !section.contains(**part)) {
                let what = format!("a section with a rule and without {part}");
                findings.push(Finding { path: file.path.clone(), line, what });
            }
        }
    }
    findings
}

/// What stands under each heading of a page up to the next one, with the heading's line.
fn sections(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut sections: Vec<(usize, String)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        match sections.last_mut() {
            Some((_, section)) if !line.starts_with('#') => section.push_str(&format!("{line}\n")),
            _ => sections.push((i + 1, String::new())),
        }
    }
    sections.into_iter()
}

/// No file names a folder of somebody's machine.
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    // Written in two parts, so that this file keeps its own rule.
    let folders = ["work", "root", "home"].map(|name| format!("/{name}"));
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            if folders.iter().any(|folder| begins_path(line, folder)) {
                let what =
                    "names a folder of one machine; use a temporary folder or a path from the repository";
                findings.push(Finding { path: file.path.clone(), line: number + 1, what: what.into() });
            }
        }
    }
    findings
}

/// Whether `line` holds a path whose first component is `folder`.
fn begins_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-./}>)*~$".contains(c))
            && !after.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c))
    })
}

/// Every crate is in the table for contributors.
pub fn listed_crates(tree: &Tree) -> Vec<Finding> {
    const PAGE: &str = "CONTRIBUTING.md";
    let page = tree.files.iter().find(|file| file.path == PAGE).map_or("", |file| &file.text);
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let missing = manifests.filter(|f| f.krate().is_some_and(|krate| !page.contains(&format!("`{krate}`"))));
    let what = || format!("is not in the table of crates in {PAGE}");
    missing.map(|file| Finding { path: file.path.clone(), line: 0, what: what() }).collect()
}

/// Every crate says at its top what it is for.
pub fn crate_docs(tree: &Tree) -> Vec<Finding> {
    let roots = tree.rust().filter(|file| {
        let parts: Vec<&str> = file.path.split('/').collect();
        matches!(
            parts[..],
            ["crates", _, "src", "lib.rs" | "main.rs"] | ["xtask", "src", "lib.rs" | "main.rs"]
        )
    });
    let undocumented = roots.filter(|file| !file.text.starts_with("//! "));
    let findings = undocumented.map(|file| Finding {
        path: file.path.clone(),
        line: 1,
        what:
            "begins without a crate doc: say what the user must do, what the crate does, what it will not do"
                .into(),
    });
    findings.collect()
}
