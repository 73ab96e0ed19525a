//! Licences of the crates that end up in the program: such that it may be passed on under its own.

use std::process::Command;

/// Those that ask for no more than to be named.
const ALLOWED: [&str; 6] =
    ["Apache-2.0", "MIT", "Unicode-3.0", "Unlicense", "Zlib", "Apache-2.0 WITH LLVM-exception"];

/// Whether a licence expression (SPDX) can be met by what is allowed: all of the parts that AND joins, one of
/// those that OR joins.
fn is_allowed(expression: &str) -> bool {
    let parts =
        |text: &str, word: &str| text.split(word).map(str::trim).map(str::to_owned).collect::<Vec<_>>();
    let plain = expression.replace('/', " OR ").replace(['(', ')'], " ");
    parts(&plain, " AND ")
        .iter()
        .all(|all| parts(all, " OR ").iter().any(|one| ALLOWED.contains(&one.as_str())))
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    for good in ["MIT", "MIT/Apache-2.0", "LGPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_allowed(good), "{good}");
    }
    for bad in ["GPL-3.0", "", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND BSD-4-Clause"] {
        assert!(!is_allowed(bad), "{bad}");
    }
}

#[test]
fn all_crates_have_licences_that_are_allowed() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]);
    let output = cargo.current_dir(root).output().expect("cargo starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("download") {
        // Crates that this machine has never built, and no network.
        println!("SKIPPED: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    assert!(packages.len() > 50, "{} crates", packages.len());
    for package in packages {
        let (name, licence) = (package["name"].as_str(), package["license"].as_str());
        assert!(is_allowed(licence.unwrap_or_default()), "{name:?} has the licence {licence:?}");
    }
}
