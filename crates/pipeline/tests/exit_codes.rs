//! The exit codes that `docs/usage/troubleshooting.md` lists are those that the code has. (Help and manual
//! pages are made from these.)

use restitch_pipeline::ExitCode;

#[test]
fn troubleshooting_lists_every_exit_code_with_its_meaning() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/usage/troubleshooting.md");
    let page = std::fs::read_to_string(page).unwrap();
    for code in ExitCode::ALL {
        let row = page.lines().find(|l| l.starts_with(&format!("| {} |", code.number())));
        let row = row.unwrap_or_else(|| panic!("exit code {} is not listed", code.number()));
        assert!(row.contains(code.meaning()), "{row:?} does not say {:?}", code.meaning());
    }
}

#[test]
fn numbers_are_distinct() {
    let mut numbers: Vec<i32> = ExitCode::ALL.iter().map(|c| c.number()).collect();
    numbers.dedup();
    assert_eq!(numbers, (0..10).chain([126, 127, 129, 130, 143]).collect::<Vec<_>>());
}
