//! Programs that move their own code into anonymous memory: they are refused with the reason, and given their
//! original code back if they do it in a layout.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, stoppable};
use restitch_testkit::{require, scratch, wait_until};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/moved_text.h");
    stoppable("switch.c", &["-O2", "-pthread", "-include", header])
}

/// Where the program's code is, and how many of its bytes there differ from the file: (of the file, bytes).
fn code_of(pid: u32, file: &Path) -> Option<(bool, usize)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let text = std::fs::read(file).ok()?;
    let first = maps.lines().find(|line| line.ends_with(file.to_str().unwrap()))?;
    let start = u64::from_str_radix(first.split_once('-')?.0, 16).ok()?;
    // The executable line that is the next one in the file's addresses.
    let line = maps.lines().find(|line| {
        let at = line.split_once('-').and_then(|(at, _)| u64::from_str_radix(at, 16).ok());
        at.is_some_and(|at| at > start && at < start + text.len() as u64) && line.contains(" r-xp ")
    })?;
    let (from, rest) = line.split_once('-')?;
    let from = u64::from_str_radix(from, 16).ok()?;
    let to = u64::from_str_radix(rest.split_once(' ')?.0, 16).ok()?;
    let mut found = vec![0; (to - from) as usize];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut found, from).ok()?;
    // Position-independent: what is mapped lies at the same distance from the start as in the file.
    let expected = text[(from - start) as usize..].iter().copied().chain(std::iter::repeat(0));
    let differing = found.iter().zip(expected).filter(|(a, b)| **a != *b).count();
    Some((line.ends_with(file.to_str().unwrap()), differing))
}

#[test]
fn a_program_that_has_moved_its_code_is_refused_with_the_reason() {
    let program = require!(program(), "gcc");
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let words = ["lies in memory that is no mapping of the file", "nothing was changed"];
    expect_message(&restitch.attach(target.pid(), &[]), code::REFUSED, &words);
    expect_message(&restitch.status(target.pid()), code::REFUSED, &words);
    target.assert_computing("after it was refused");
    target.stop();
}

#[test]
fn code_that_was_moved_with_a_layout_in_force_is_given_back() {
    let program = require!(program(), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let signal = folder.path().join("move");
    let mut target = Target::start_in(&program, &[("RESTITCH_TEST_MOVE", signal.to_str().unwrap())]);
    let pid = target.pid();
    assert_eq!(code_of(pid, &program), Some((true, 0)));
    restitch.attach(pid, &[]).expect(code::DONE);
    let (_, redirected) = code_of(pid, &program).expect("it runs");
    assert!(redirected > 0, "nothing of the program was moved");
    std::fs::write(&signal, "").unwrap();
    let moved = || code_of(pid, &program).filter(|(of_file, _)| !of_file);
    assert_eq!(wait_until(PATIENCE, moved), Some((false, redirected)));
    let status = restitch.status(pid);
    status.expect(code::DONE);
    assert!(status.stdout.contains(": optimized,"), "{}", status.stdout);
    target.assert_computing("in moved code");
    expect_message(&restitch.attach(pid, &[]), code::REFUSED, &["no mapping of the file"]);
    let (_, still) = code_of(pid, &program).expect("it runs");
    assert!(still == redirected || still == 0, "{still} of {redirected}");
    let reverted = restitch.revert(pid);
    assert!(still == 0 || reverted.status.code() == Some(code::DONE), "{}", reverted.stderr);
    assert_eq!(code_of(pid, &program), Some((false, 0)));
    target.assert_computing("with its own code");
    target.stop();
}
