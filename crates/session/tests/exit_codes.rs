//! The exit codes that the README lists are those that the code has. (Help and manual pages are made from these.)

use restitch_session::ExitCode;

#[test]
fn the_readme_lists_every_exit_code_with_its_meaning() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    for code in ExitCode::ALL {
        let row = readme.lines().find(|l| l.starts_with(&format!("| {} |", code.number())));
        let row = row.unwrap_or_else(|| panic!("the README does not list exit code {}", code.number()));
        assert!(row.contains(code.meaning()), "README: {row:?} does not say {:?}", code.meaning());
    }
}

#[test]
fn numbers_are_distinct() {
    let mut numbers: Vec<i32> = ExitCode::ALL.iter().map(|c| c.number()).collect();
    numbers.dedup();
    assert_eq!(numbers, (0..10).chain([126, 127, 129, 130, 143]).collect::<Vec<_>>());
}
