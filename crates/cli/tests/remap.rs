//! Code is exchanged by remapping: the memory map stays as it was, what others have changed stays changed,
//! and a revert gives private page copies back.

mod common;

use common::look::{Line, maps};
use common::{Restitch, Target, code, look, stoppable};
use restitch_testkit::require;
use std::os::unix::fs::FileExt;

/// The code mappings of the program itself.
fn code_of(pid: u32) -> Vec<Line> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let name = program.to_string_lossy().replace(" (deleted)", "");
    maps(pid).into_iter().filter(|l| l.permissions.starts_with("r-x") && l.name.starts_with(&name)).collect()
}

/// Its first code mapping's bytes.
fn code_bytes(pid: u32) -> Vec<u8> {
    let line = &code_of(pid)[0];
    let mut bytes = vec![0; (line.end - line.start) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut bytes, line.start).unwrap();
    bytes
}

/// KiB of private copies in the program's code mapping.
fn private_kib(pid: u32) -> u64 {
    let start = format!("{:x}-", code_of(pid)[0].start);
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let line = lines.find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_memory_map_stays_and_private_copies_are_given_back() {
    let program = require!(stoppable("throw.cc", &["-O2"]), "g++");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid();
    let (before, private) = (code_of(pid), private_kib(pid));
    restitch.attach(pid, &[]).expect(code::DONE);
    assert_eq!(code_of(pid), before);
    assert!(!look::differences(pid).is_empty());
    // Where the program itself has redirects: its libraries may have them all.
    let own = |at: u64| before.iter().any(|line| line.start <= at && at < line.end);
    let redirected = look::differences(pid).iter().any(|place| own(place.at));
    assert_eq!(private_kib(pid) > private, redirected);
    target.assert_computing("after the attach");
    restitch.revert(pid).expect(code::DONE);
    assert_eq!(code_of(pid), before);
    assert_eq!(private_kib(pid), private);
    target.assert_computing("after the revert");
    target.stop();
}

#[test]
fn what_somebody_else_has_changed_stays_changed() {
    let program = require!(stoppable("throw.cc", &["-O2"]), "g++");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid();
    // Dead bytes behind the program's code.
    let at = code_of(pid)[0].end - 1;
    let memory = std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    memory.write_all_at(&[0x11], at).unwrap();
    let changed = look::differences(pid);
    assert_eq!(changed.len(), 1);
    let mut byte = [0];
    restitch.attach(pid, &[]).expect(code::DONE);
    memory.read_exact_at(&mut byte, at).unwrap();
    assert_eq!(byte, [0x11], "lost by the attach");
    target.assert_computing("after the attach");
    restitch.revert(pid).expect(code::DONE);
    assert_eq!(look::differences_but_hook(pid), changed);
    target.stop();
}

#[test]
fn a_program_whose_file_was_removed_is_moved_and_given_back() {
    let built = require!(stoppable("throw.cc", &["-O2"]), "g++");
    let folder = restitch_testkit::scratch();
    let program = folder.path().join("removed");
    restitch_testkit::copy_program(&built, &program).unwrap();
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid();
    std::fs::remove_file(&program).unwrap();
    let (lines, before) = (code_of(pid), code_bytes(pid));
    restitch.attach(pid, &[]).expect(code::DONE);
    assert_eq!(code_of(pid), lines);
    target.assert_computing("after the attach");
    restitch.revert(pid).expect(code::DONE);
    target.assert_computing("after the revert");
    assert_eq!(code_of(pid), lines);
    assert!(code_bytes(pid) == before, "the code is not as it was");
    target.stop();
}
