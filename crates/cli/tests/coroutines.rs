//! Coroutines, whose return addresses lie on stacks that no thread is on, under attach and revert again and
//! again.
//!
//! `RESTITCH_CYCLES` sets how often (default 12).

mod common;

use common::{PATIENCE, Restitch, Target, code, look, stoppable};
use restitch_testkit::wait_until;
use std::process::Command;

fn rounds() -> u32 {
    std::env::var("RESTITCH_CYCLES").ok().and_then(|v| v.parse().ok()).unwrap_or(12)
}

/// Cycles, with the versions that stay mapped told; the target's checks go on all the time.
fn cycles(flags: &[&str]) {
    let Some(program) = stoppable("coroutine.c", flags) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    target.name = format!("coroutine.c {}", flags.join(" "));
    let pid = target.pid();
    for round in 1..=rounds() {
        let attached = restitch.attach(pid, &[]);
        target.assert_computing(&format!("after attach {round}: {}\n{}", attached.stdout, attached.stderr));
        attached.expect(code::DONE);
        for _ in 0..3 {
            let reverted = restitch.revert(pid);
            target.assert_computing(&format!("after revert {round}: {}", reverted.stdout));
            assert!(matches!(reverted.status.code(), Some(code::DONE | code::NOTHING_TO_DO)));
            assert_eq!(look::differences_but_hook(pid), [], "{} after revert {round}", target.name);
        }
    }
    target.stop();
}

#[test]
fn coroutines_come_back_to_mapped_code() {
    cycles(&["-O2"]);
}

#[test]
fn coroutines_of_static_programs_come_back_to_mapped_code() {
    cycles(&["-O1", "-static"]);
}

#[test]
fn coroutines_whose_stacks_are_closed_while_they_rest_come_back_to_mapped_code() {
    cycles(&["-O2", "-DRESTING"]);
}

/// Has the coroutine rest, or come back; waits until it says that it does.
#[track_caller]
fn tell(target: &mut Target, expected: &str) {
    let pid = target.pid();
    assert!(Command::new("kill").args(["-USR1", &pid.to_string()]).status().unwrap().success());
    let says =
        || std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|now| now.trim() == expected);
    let said = wait_until(PATIENCE, || (says() || !target.is_running()).then_some(()));
    target.assert_running(&format!("before it is {expected}"));
    assert!(said.is_some(), "{} is not {expected}", target.name);
}

/// A coroutine rests in a version, on a stack of the kind that `flags` make; all is taken back, and it comes
/// back.
fn rests(flags: &[&str]) {
    let mut all = vec!["-O2", "-pthread"];
    all.extend(flags);
    let Some(program) = stoppable("resting.c", &all) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    target.name = format!("resting.c {}", flags.join(" "));
    let pid = target.pid();
    restitch.attach(pid, &[]).expect(code::DONE);
    tell(&mut target, "resting");
    let said: Vec<String> = (0..3).map(|_| restitch.revert(pid).stdout).collect();
    tell(&mut target, "working");
    target.assert_computing(&format!("after reverts that said {said:?}"));
    target.stop();
}

#[test]
fn a_coroutine_that_rests_in_a_version_comes_back() {
    rests(&[]);
}

#[test]
fn a_coroutine_comes_back_on_a_stack_that_is_not_aligned() {
    rests(&["-DUNALIGNED"]);
}

#[test]
fn a_coroutine_comes_back_on_a_stack_that_was_copied_to_an_odd_place() {
    rests(&["-DCOPIED"]);
}

#[test]
fn a_coroutine_comes_back_on_a_stack_in_a_file_s_closed_mapping() {
    rests(&["-DCLOSED_FILE"]);
}

#[test]
fn a_coroutine_comes_back_on_a_small_stack_in_a_frame() {
    rests(&["-DSMALL=1024"]);
}

#[test]
fn a_coroutine_comes_back_on_a_stack_below_the_stack_pointer() {
    rests(&["-DBELOW"]);
}

#[test]
fn a_coroutine_comes_back_on_a_stack_below_a_thread_s_stack_pointer() {
    rests(&["-DBELOW", "-DTHREAD"]);
}
