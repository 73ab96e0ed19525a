//! The audit of dependencies notices what is known of the versions that are used, and nothing else.

use std::path::Path;
use xtask::audit::{Advisory, audit, locked};

const LOCK: &str = r#"
version = 4
[[package]]
name = "of-the-workspace"
version = "0.1.0"
[[package]]
name = "rand"
version = "0.9.2"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "00"
[[package]]
name = "quiet"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "00"
"#;

/// An advisory with such lines.
fn advisory(about: &str, versions: &str) -> String {
    format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2026-0097\"\npackage = \"rand\"\n{about}\n[versions]\n{versions}\n```\n\n\
        # Unsound with a logger\n\nWords.\n"
    )
}

const VERSIONS: &str =
    "patched = [\">= 0.10.1\", \"< 0.10.0, >= 0.9.3\", \"< 0.9.0, >= 0.8.6\"]\nunaffected = [\"< 0.7.0\"]";

/// A database that says `text` of `rand`.
fn database(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let of_crate = folder.path().join("crates/rand");
    std::fs::create_dir_all(&of_crate).expect("writable");
    std::fs::write(of_crate.join("RUSTSEC-2026-0097.md"), text).expect("writable");
    folder
}

#[test]
fn versions_between_those_that_are_right_are_found() {
    let known = Advisory::parse(&advisory("", VERSIONS)).expect("an advisory").expect("in force");
    for wrong in ["0.10.0", "0.9.2", "0.8.5", "0.7.0"] {
        assert!(known.applies_to(&wrong.parse().expect("a version")), "{wrong}");
    }
    for right in ["0.10.1", "1.0.0", "0.9.3", "0.8.6", "0.6.9"] {
        assert!(!known.applies_to(&right.parse().expect("a version")), "{right}");
    }
    // No version is right.
    let known = Advisory::parse(&advisory("", "patched = []")).expect("an advisory").expect("in force");
    assert!(known.applies_to(&"9.9.9".parse().expect("a version")));
}

#[test]
fn crates_with_advisories_are_named_and_those_of_the_workspace_are_not_looked_up() {
    let crates = locked(LOCK).expect("a lock file");
    assert_eq!(crates.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["rand", "quiet"]);
    let found = audit(&crates, database(&advisory("", VERSIONS)).path()).expect("a database");
    assert_eq!((found.crates, found.advisories, found.findings.len()), (2, 1, 1));
    for part in ["rand 0.9.2", "RUSTSEC-2026-0097", "Unsound with a logger", "ACCEPTED"] {
        assert!(found.findings[0].contains(part), "{}", found.findings[0]);
    }
    let withdrawn = database(&advisory("withdrawn = \"2026-05-01\"", VERSIONS));
    assert_eq!(audit(&crates, withdrawn.path()).expect("a database").findings, Vec::<String>::new());
}

#[test]
fn what_cannot_be_understood_is_said_and_not_passed_over() {
    let crates = locked(LOCK).expect("a lock file");
    for (text, why) in [
        ("# No table", "table"),
        (&advisory("", "patched = [\"new ones\"]"), "patched"),
        (&advisory("", "").replace("[versions]", ""), "[versions]"),
    ] {
        let error = audit(&crates, database(text).path()).expect_err(text);
        assert!(error.contains("RUSTSEC-2026-0097.md") && error.contains(why), "{error}");
    }
    let error = audit(&crates, Path::new("/nowhere")).expect_err("there is none");
    assert!(error.contains("/nowhere is no advisory database"), "{error}");
    assert!(locked("nonsense").is_err() && locked("").is_err());
}
