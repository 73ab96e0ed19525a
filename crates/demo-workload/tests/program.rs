//! The program as its users start it.

use restitch_demo_workload::{LAP, LAP_CHECKSUM, Progress};
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_restitch-demo-workload"))
        .args(args)
        .output()
        .expect("the program starts")
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_lap_has_the_known_checksum_with_any_number_of_threads() {
    let expected = format!("{LAP} requests, checksum {LAP_CHECKSUM:016x}\n");
    for threads in ["1", "2", "7"] {
        assert_eq!(text(&["--requests", &LAP.to_string(), "--threads", threads]), expected);
    }
}

#[test]
fn a_part_of_a_lap_depends_on_its_length_only() {
    let one = text(&["--requests", "1000"]);
    assert_eq!(one, text(&["--requests", "1000", "--threads", "3"]));
    assert_ne!(one[5..], text(&["--requests", "1001"])[5..]);
    assert_eq!(text(&["--requests", "0"]), "0 requests, checksum 0000000000000000\n");
}

#[test]
fn progress_counts_what_was_served() {
    let folder = std::env::temp_dir().join(format!("restitch-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("progress");
    assert_eq!(text(&["--seconds", "0.3", "--threads", "2", "--progress", file.to_str().unwrap()]), "");
    let progress = Progress::read(&file).unwrap();
    assert!(progress.requests > 0 && progress.elapsed.as_millis() >= 300, "{progress:?}");
    text(&["--requests", "100", "--progress", file.to_str().unwrap()]);
    assert_eq!(Progress::read(&file).unwrap().requests, 100);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn refusals_say_why() {
    let output = run(&["--progress", "/nowhere/at/all", "--requests", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("cannot write the progress file /nowhere/at/all"), "{message}");
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage:"));
    assert!(text(&["--help"]).starts_with("usage:"));
}

#[test]
fn a_second_lap_repeats_the_first() {
    let twice = LAP_CHECKSUM.wrapping_mul(2);
    assert_eq!(
        text(&["--requests", &(2 * LAP).to_string()]),
        format!("{} requests, checksum {twice:016x}\n", 2 * LAP)
    );
}
