//! Test programs are found in what cargo says of a build.

use serde_json::json;
use std::path::Path;
use xtask::test_programs::{TestProgram, test_programs};

/// What cargo says of one thing that it built in the package `/r/PACKAGE`.
fn artifact(package: &str, source: &str, test: bool, executable: Option<&str>) -> String {
    json!({
        "reason": "compiler-artifact",
        "manifest_path": format!("/r/{package}/Cargo.toml"),
        "target": { "src_path": format!("/r/{package}/{source}") },
        "profile": { "test": test },
        "executable": executable,
    })
    .to_string()
}

#[test]
fn what_holds_tests_is_run_and_nothing_else() {
    let messages = [
        artifact("b", "tests/z.rs", true, Some("/t/z")),
        artifact("b", "src/main.rs", false, Some("/t/program")),
        artifact("b", "src/lib.rs", true, None),
        "not a message".into(),
        json!({ "reason": "build-finished", "success": true }).to_string(),
        artifact("b", "tests/a.rs", true, Some("/t/a")),
        artifact("a", "src/lib.rs", true, Some("/t/lib")),
    ];
    let program = |package: &str, source: &str, executable: &str| TestProgram {
        executable: executable.into(),
        package: Path::new("/r").join(package),
        source: source.into(),
    };
    let expected = [
        program("a", "src/lib.rs", "/t/lib"),
        program("b", "tests/a.rs", "/t/a"),
        program("b", "tests/z.rs", "/t/z"),
    ];
    assert_eq!(test_programs(&messages.join("\n")), expected);
}
