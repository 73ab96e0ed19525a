//! What is not ours: few crates, from one source, each with a reason.

use super::TEST_FILES;
use crate::source::code_only;
use crate::{File, Finding, Tree};

/// The crates that the workspace asks for itself, with what for. What they bring with them is in
/// `Cargo.lock`.
pub const DIRECT: [(&str, &str); 25] = [
    ("arrayvec", "lists of bounded length without the heap, in hot loops of the models"),
    ("bitflags", "sets of attributes of blocks"),
    ("clap", "the command line"),
    ("clap_complete", "completions for shells"),
    ("clap_mangen", "manual pages"),
    ("crc32fast", "checksums of .gnu_debuglink"),
    ("gimli", "the second reader of unwind tables, in tests"),
    ("iced-x86", "the decoder of instructions"),
    ("indicatif", "progress bars"),
    ("libc", "system calls and their structures"),
    ("libfuzzer-sys", "fuzz targets"),
    ("lzma-rs", ".gnu_debugdata"),
    ("memchr", "search for the marks of run times in constants"),
    ("object", "structures of ELF files"),
    ("perf-event-open-sys", "structures of perf events"),
    ("plotters", "diagrams of the lab"),
    ("proptest", "properties, in tests"),
    ("rustc-hash", "maps by address"),
    (
        "rustix",
        "files looked up by directory descriptors, without following links of others; loading kernel modules",
    ),
    ("ruzstd", "compressed perf.data, in Rust alone"),
    ("serde", "JSON and TOML"),
    ("serde_json", "JSON"),
    ("sha2", "checksums of cached files"),
    ("thiserror", "errors"),
    ("toml", "restitch.toml, and these rules"),
];

/// Others of that kind, for files that tests make and for profiles of other tools.
pub const MORE: [(&str, &str); 4] = [
    ("semver", "versions that advisories name"),
    ("tempfile", "folders that tests remove again"),
    ("terminal_size", "the width that messages are wrapped at; clap has it too"),
    ("yaml-rust2", "profiles of BOLT"),
];

/// Crates of which there are two versions, with the reason.
const TWICE: [(&str, &str); 2] = [
    ("foldhash", "comes with each hashbrown"),
    ("hashbrown", "the writer of object has an older one than indexmap"),
];

/// Where crates come from.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// All crates come from one registry, with checksums; there is one version of each; the workspace asks for
/// none without a reason.
pub fn dependencies(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let table = || file.text.parse::<toml::Table>().unwrap_or_default();
        let said = match file.path.as_str() {
            "Cargo.lock" => locked(&table()),
            "Cargo.toml" => asked(&table()),
            path if path.ends_with("/Cargo.toml") => from_the_workspace(&table()),
            _ => continue,
        };
        findings.extend(said.into_iter().map(|what| Finding { path: file.path.clone(), line: 0, what }));
    }
    findings
}

/// What is wrong with a lock file.
fn locked(lock: &toml::Table) -> Vec<String> {
    let packages = lock.get("package").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let text = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    let mut said = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for package in &packages {
        let name = text(package, "name").unwrap_or_default();
        match (text(package, "source"), text(package, "checksum")) {
            // A crate of the workspace.
            (None, _) => {}
            (Some(source), Some(_)) if source == SOURCE => {}
            (Some(source), _) => said.push(format!("{name} comes from {source}, or has no checksum")),
        }
        names.push(name);
    }
    names.sort();
    let twice = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]);
    for name in twice.filter(|name| TWICE.iter().all(|(known, _)| known != name)) {
        said.push(format!(
            "there are two versions of {name}; agree on one, or add it to TWICE with the reason"
        ));
    }
    said
}

/// What is wrong with the workspace's own list.
fn asked(manifest: &toml::Table) -> Vec<String> {
    let list = manifest.get("workspace").and_then(|w| w.get("dependencies")).and_then(toml::Value::as_table);
    let mut said = Vec::new();
    for (name, value) in list.into_iter().flatten().filter(|(name, _)| !name.starts_with("restitch-")) {
        if DIRECT.iter().chain(&MORE).all(|(known, _)| known != name) {
            said.push(format!("{name} is asked for without a reason; add it to DIRECT with one"));
        }
        if ["git", "path", "registry"].iter().any(|key| value.get(key).is_some()) {
            said.push(format!("{name} does not come from the registry"));
        }
    }
    said
}

/// What is wrong with a crate's list: versions are chosen in one place.
fn from_the_workspace(manifest: &toml::Table) -> Vec<String> {
    let lists = LISTS.iter().filter_map(|table| manifest.get(*table)?.as_table());
    let own = lists.flatten().filter(|(name, value)| {
        let shared = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
        let ours = value.get("path").is_some() && value.get("version").is_none();
        !shared && !ours && name.as_str() != "libfuzzer-sys"
    });
    own.map(|(name, _)| format!("{name} is not taken from the workspace's list (name.workspace = true)"))
        .collect()
}

/// Each dependency of a crate is named by some source of it, by one besides tests if it is not for these
/// alone; and each of the workspace by a crate.
pub fn unused_dependencies(tree: &Tree) -> Vec<Finding> {
    let mut findings = unasked(tree);
    for manifest in &tree.files {
        let Some(folder) = manifest.path.strip_suffix("Cargo.toml").filter(|folder| !folder.is_empty())
        else {
            continue;
        };
        let sources: Vec<&File> = tree.rust().filter(|file| file.path.starts_with(folder)).collect();
        let all: Vec<String> = sources.iter().map(|file| code_only(&file.text)).collect();
        let shipped: Vec<String> = sources
            .iter()
            .filter(|file| !is_for_tests(&file.path[folder.len()..]))
            .map(|file| code_only(file.before_tests()))
            .collect();
        let table = manifest.text.parse::<toml::Table>().unwrap_or_default();
        for (list, sources, whose) in [
            ("dependencies", &shipped, "no source of the crate besides tests names it"),
            ("dev-dependencies", &all, "no source of the crate names it"),
            ("build-dependencies", &all, "no source of the crate names it"),
        ] {
            for name in listed(&table, &[list]) {
                if !sources.iter().any(|source| names(source, &name.replace('-', "_"))) {
                    let what = format!("{name} is asked for, and {whose}");
                    findings.push(Finding { path: manifest.path.clone(), line: 0, what });
                }
            }
        }
    }
    findings
}

/// Whether a file of a crate, by its path in the crate's folder, is compiled for tests or examples alone.
fn is_for_tests(path: &str) -> bool {
    ["tests/", "examples/", "benches/"].iter().any(|folder| path.starts_with(folder))
        || TEST_FILES.iter().any(|name| path.ends_with(name))
}

/// What is on the workspace's list, and on that of none of its crates.
fn unasked(tree: &Tree) -> Vec<Finding> {
    let table = |file: &File| file.text.parse::<toml::Table>().unwrap_or_default();
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let asked: Vec<String> = manifests.flat_map(|manifest| listed(&table(manifest), &LISTS)).collect();
    let root = tree.files.iter().find(|file| file.path == "Cargo.toml").map(table).unwrap_or_default();
    let all = root
        .get("workspace")
        .and_then(toml::Value::as_table)
        .map(|table| listed(table, &LISTS))
        .unwrap_or_default();
    let unused = all.into_iter().filter(|name| !asked.contains(name));
    let what = |name| format!("{name} is on the workspace's list, and no crate asks for it");
    unused.map(|name| Finding { path: "Cargo.toml".into(), line: 0, what: what(name) }).collect()
}

/// The lists of a manifest.
const LISTS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// What `lists` of a manifest name, those for one target included.
fn listed(manifest: &toml::Table, lists: &[&str]) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|t| t.values()).filter_map(toml::Value::as_table);
    let tables = std::iter::once(manifest).chain(targets);
    let found = tables.flat_map(|table| lists.iter().filter_map(|list| table.get(*list)?.as_table()));
    found.flatten().map(|(name, _)| name.clone()).collect()
}

/// Whether `word` stands in `source` as a whole identifier.
fn names(source: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    source
        .match_indices(word)
        .any(|(at, _)| !source[..at].ends_with(is_part) && !source[at + word.len()..].starts_with(is_part))
}
