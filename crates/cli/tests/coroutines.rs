//! Coroutines, whose return addresses lie on stacks that no thread is on, under attach and revert again and
//! again.
//!
//! `RESTITCH_CYCLES` sets how often (default 12).

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, look, stoppable, with_time};
use restitch_testkit::{scratch, wait_until};
use std::process::Command;

fn rounds() -> u32 {
    std::env::var("RESTITCH_CYCLES").ok().and_then(|v| v.parse().ok()).unwrap_or(12)
}

/// Cycles, with the versions that stay mapped told; the target's checks go on all the time.
fn cycles(source: &str, flags: &[&str], rounds: u32) {
    let Some(program) = stoppable(source, flags) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    target.name = format!("{source} {}", flags.join(" "));
    let pid = target.pid();
    for round in 1..=rounds {
        let attached = restitch.attach(pid, &[]);
        let told = format!("after attach {round}: {}\n{}", attached.stdout, attached.stderr);
        target.assert_running(&told);
        target.assert_computing(&told);
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
    cycles("coroutine.c", &["-O2"], rounds());
}

#[test]
fn coroutines_of_static_programs_come_back_to_mapped_code() {
    cycles("coroutine.c", &["-O1", "-static"], rounds());
}

#[test]
fn coroutines_whose_stacks_are_closed_while_they_rest_come_back_to_mapped_code() {
    cycles("coroutine.c", &["-O2", "-DRESTING"], rounds());
}

/// Threads that a signal has interrupted rest at any instruction, on stacks that no thread is on.
#[test]
fn preempted_threads_go_on_where_they_rest() {
    cycles("preempted.c", &["-O2"], rounds().div_ceil(3));
}

#[test]
fn preempted_threads_of_static_programs_go_on_where_they_rest() {
    cycles("preempted.c", &["-O1", "-static"], rounds().div_ceil(3));
}

#[test]
fn preempted_threads_are_recorded_by_counting() {
    let Some(program) = stoppable("preempted.c", &["-O2"]) else { return };
    let (restitch, mut target, folder) = (Restitch::new(), Target::start(&program), scratch());
    let pid = target.pid().to_string();
    for round in 1..=rounds().min(4) {
        let recorded = with_time(["1", "3", "10"], |duration| {
            let mut command = restitch.command(&["record", "--source", "count", "-p", &pid]);
            command.args(["--duration", duration, "-o"]).arg(folder.path().join("profile"));
            command
        });
        target.assert_running(&format!("after record {round}: {}\n{}", recorded.stdout, recorded.stderr));
        recorded.expect(code::DONE);
        target.assert_computing(&format!("after record {round}"));
        let told = recorded.stdout + &recorded.stderr;
        assert!(
            told.split_whitespace().collect::<Vec<_>>().join(" ").contains("rest in the process"),
            "{told}"
        );
        assert_eq!(look::differences_but_hook(target.pid()), [], "after record {round}");
    }
    target.stop();
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

/// A coroutine rests in a layout: it is taken out and stays mapped, and bursts are refused with what has
/// become of the process.
#[test]
fn what_has_to_stay_of_a_layout_is_told_when_bursts_are_asked_for() {
    let Some(program) = stoppable("resting.c", &["-O2", "-pthread"]) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    tell(&mut target, "resting");
    let refused = restitch.attach(target.pid(), &["--source", "burst"]);
    let parts = ["has its original code, but version", "stays mapped", "try again later", "--source trace"];
    expect_message(&refused, code::FAILURE, &parts);
    assert!(!refused.stderr.contains("take them out first"), "{}", refused.stderr);
    assert_eq!(look::differences_but_hook(target.pid()), []);
    tell(&mut target, "working");
    target.assert_computing("after it was refused");
    target.stop();
}
