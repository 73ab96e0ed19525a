//! Threads on stacks below which nothing may be written, and that make no calls for others: what is refused
//! leaves the process as it was, and nobody waits.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, stoppable};
use restitch_testkit::{scratch, wait_until};
use std::fs::File;
use std::process::Command;

/// The program, on such a stack. `None`, with a message, if that is not possible here.
fn start(what: &str) -> Option<Target> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stack.h");
    let program = stoppable("switch.c", &["-O2", "-DSTACK=4", "-include", header])?;
    let folder = scratch();
    let file = folder.path().join("stack");
    File::create(&file).expect("writable");
    let environment =
        [("RESTITCH_TEST_STACK", what), ("RESTITCH_TEST_FILE", file.to_str().expect("plain text"))];
    let mut target = Target::start_in(&program, &environment);
    if !target.is_running() {
        restitch_testkit::unsupported(&format!("a stack that is {what}: the kernel does not permit it"));
        return None;
    }
    Some(target)
}

/// Attaching is refused with these words, and changes nothing.
fn expect_refused(what: &str, words: &[&str]) {
    let Some(mut target) = start(what) else { return };
    let restitch = Restitch::new();
    let attached = restitch.attach(target.pid(), &[]);
    expect_message(&attached, code::REFUSED, words);
    let passes = words.contains(&"try again");
    assert_eq!(attached.stderr.contains("try again"), passes, "{}", attached.stderr);
    target.assert_computing(&attached.stderr);
    target.assert_untouched("after the refusal");
    target.stop();
}

#[test]
fn missing_pages_that_somebody_watches_are_not_touched() {
    expect_refused("watched", &["userfaultfd", "mapping 0x", "end what watches it"]);
}

/// Nobody knows where they return to. Every command ends, and the process goes on as it was.
#[test]
fn frames_that_somebody_watches_are_not_waited_for() {
    let Some(mut target) = start("watched-frames") else { return };
    let restitch = Restitch::new();
    let attached = restitch.attach(target.pid(), &[]);
    expect_message(&attached, code::REFUSED, &["userfaultfd", "restitch optimize"]);
    let (pid, folder) = (target.pid().to_string(), scratch());
    let file = folder.path().join("profile");
    let file = file.to_str().expect("plain text");
    for source in ["ip", "trace", "burst", "count"] {
        let arguments = ["record", "-p", &pid, "--source", source, "--duration", "1", "-o", file];
        let recorded = restitch.run(&arguments);
        target.assert_computing(&recorded.stderr);
        let ends = [code::DONE, code::REFUSED, code::NOTHING_TO_DO];
        assert!(recorded.status.code().is_some_and(|code| ends.contains(&code)), "{}", recorded.stderr);
    }
    restitch.status(target.pid()).expect(code::DONE);
    restitch.revert(target.pid()).expect(code::NOTHING_TO_DO);
    target.assert_computing("after all of them");
    target.assert_untouched("after all of them");
}

#[test]
fn a_layout_stays_while_somebody_watches_frames_that_may_lead_into_it() {
    let Some(mut target) = start("watched-frames-later") else { return };
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    send("-USR1", &target.pid().to_string());
    let reverted = wait_until(PATIENCE, || {
        let reverted = restitch.revert(target.pid());
        (reverted.status.code() != Some(code::DONE)).then_some(reverted).or_else(|| {
            restitch.attach(target.pid(), &[]).expect(code::DONE);
            None
        })
    });
    expect_message(&reverted.expect("it is refused"), code::REFUSED, &["userfaultfd"]);
    let status = restitch.status(target.pid());
    status.expect(code::DONE);
    assert!(status.stdout.contains("optimized"), "{}", status.stdout);
    target.assert_computing("after the refusal");
}

/// What cannot be read of them is no module, as with a list that lies.
#[test]
fn a_list_of_modules_that_somebody_watches_is_not_waited_for() {
    let Some(mut target) = start("watched-modules") else { return };
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    target.assert_computing("after the attach");
    target.assert_goes_back(&restitch);
    target.stop();
}

#[test]
fn memory_of_others_below_a_stack_is_not_written() {
    expect_refused("shared", &["shared", "mapping 0x", "restitch optimize"]);
}

#[test]
fn pages_of_files_below_a_stack_are_not_waited_for() {
    expect_refused("file", &["file system", "mapping 0x", "restitch optimize"]);
}

#[test]
fn small_stacks_are_named() {
    expect_refused("small", &["small stack", "try again"]);
}

#[test]
fn threads_whose_calls_come_back_to_them_make_none() {
    expect_refused(
        "dispatch",
        &["PR_SET_SYSCALL_USER_DISPATCH", "run the program without", "restitch optimize"],
    );
}

#[test]
fn processes_that_share_their_memory_are_refused() {
    expect_refused("sharer", &["shares its memory with process", "no thread of it"]);
}

/// It is no forked child with memory of its own either: to give it back would give back the other's, too.
#[test]
fn a_process_that_begins_to_share_its_memory_keeps_its_layout_meanwhile() {
    let Some(mut target) = start("sharer-later") else { return };
    let restitch = Restitch::new();
    let attached = restitch.attach(target.pid(), &[]);
    attached.expect(code::DONE);
    send("-USR1", &target.pid().to_string());
    let sharer = wait_until(PATIENCE, || child_of(target.pid())).expect("it begins to share");
    let refused = restitch.revert(target.pid());
    expect_message(&refused, code::REFUSED, &["shares its memory with process"]);
    target.assert_computing(&refused.stderr);
    send("-KILL", &sharer);
    target.assert_goes_back(&restitch);
    target.stop();
}

fn send(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().is_ok_and(|status| status.success()));
}

fn child_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

/// As shells and interpreters are that run functions in functions.
#[test]
fn a_first_stack_that_is_mapped_no_further_than_it_was_used_grows() {
    let Some(mut target) = start("far-down") else { return };
    let restitch = Restitch::new();
    for options in [&[][..], &["--source", "trace"]] {
        restitch.attach(target.pid(), options).expect(code::DONE);
        target.assert_computing("after the attach");
        target.assert_goes_back(&restitch);
    }
    target.stop();
}

/// Mostly the thread stands on the small stack; the moment at which it does not is waited for.
#[test]
fn a_small_stack_that_is_left_now_and_then_is_no_hindrance() {
    let Some(mut target) = start("small-often-left") else { return };
    let restitch = Restitch::new();
    for _ in 0..3 {
        let attached = restitch.attach(target.pid(), &[]);
        attached.expect(code::DONE);
        target.assert_computing(&attached.stderr);
        target.assert_goes_back(&restitch);
    }
    target.stop();
}
