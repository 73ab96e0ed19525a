//! Threads on stacks below which nothing may be written, and that make no calls for others: what is refused
//! leaves the process as it was, and nobody waits.

mod common;

use common::{Restitch, Target, code, expect_message, stoppable};
use restitch_testkit::scratch;
use std::fs::File;

/// The program, on such a stack. `None`, with a message, if that is not possible here.
fn start(what: &str) -> Option<Target> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stack.h");
    let program = stoppable("switch.c", &["-O2", "-DSTACK=2", "-include", header])?;
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
    target.assert_computing(&attached.stderr);
    target.assert_untouched("after the refusal");
    target.stop();
}

#[test]
fn missing_pages_that_somebody_watches_are_not_touched() {
    expect_refused("watched", &["userfaultfd", "mapping 0x"]);
}

#[test]
fn memory_of_others_below_a_stack_is_not_written() {
    expect_refused("shared", &["shared", "mapping 0x"]);
}

#[test]
fn pages_of_files_below_a_stack_are_not_waited_for() {
    expect_refused("file", &["file system", "mapping 0x"]);
}

#[test]
fn small_stacks_are_named() {
    expect_refused("small", &["small stack", "try again"]);
}

#[test]
fn threads_whose_calls_come_back_to_them_make_none() {
    expect_refused("dispatch", &["PR_SET_SYSCALL_USER_DISPATCH"]);
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
