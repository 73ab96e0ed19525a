//! The exit codes that the README and the help list are those that the code has.

use restitch_session::ExitCode;

#[test]
fn the_readme_lists_every_exit_code_with_its_meaning() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let help = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/src/args.rs")).unwrap();
    for code in ExitCode::ALL {
        let row = readme.lines().find(|l| l.starts_with(&format!("| {} |", code.number())));
        let row = row.unwrap_or_else(|| panic!("the README does not list exit code {}", code.number()));
        assert!(row.contains(code.meaning()), "README: {row:?} does not say {:?}", code.meaning());
        let line = format!("  {}  {}", code.number(), code.meaning());
        assert!(help.contains(&line), "the help does not have {line:?}");
    }
}

#[test]
fn numbers_are_distinct() {
    let mut numbers: Vec<i32> = ExitCode::ALL.iter().map(|c| c.number()).collect();
    numbers.dedup();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
}
