//! Processes with limits and locks: the attach does without what it cannot have, or says why not and leaves
//! the process as it was.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, look, stoppable};
use restitch_testkit::{Finished, copy_program, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that becomes special by `RESTITCH_TEST_SPECIAL`.
fn special_program() -> Option<PathBuf> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/special.h");
    stoppable("switch.c", &["-O2", "-DSPECIAL=2", "-include", header])
}

/// The program, running as `what`; `None` with a message if that cannot be had here.
fn start(what: &str) -> Option<Target> {
    let program = special_program()?;
    let mut target = Target::start_in(&program, &[("RESTITCH_TEST_SPECIAL", what)]);
    if !target.is_running() {
        restitch_testkit::skipped(&format!("no process can be made {what} here"));
        return None;
    }
    target.name = what.to_owned();
    Some(target)
}

fn told(finished: &Finished) -> String {
    format!("{}\n{}\n{}", finished.status, finished.stdout, finished.stderr)
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Attach works; revert gives everything back. What the attach said.
#[track_caller]
fn there_and_back(restitch: &Restitch, target: &mut Target) -> String {
    let pid = target.pid();
    let attached = restitch.attach(pid, &[]);
    target.assert_running(&told(&attached));
    attached.expect(code::DONE);
    assert!(!look::differences(pid).is_empty(), "{}: nothing is patched: {}", target.name, told(&attached));
    target.assert_computing("in the new layout");
    let mut last = String::new();
    let reverted = wait_until(PATIENCE, || {
        let finished = restitch.revert(pid);
        last = told(&finished);
        (!last.contains("stays mapped")).then_some(())
    });
    assert!(reverted.is_some(), "{}: a version stays: {last}", target.name);
    target.assert_computing("after the revert");
    target.assert_untouched("after the revert");
    // Lines are broken anywhere.
    told(&attached).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Attach is refused in words, and the process is as it was.
#[track_caller]
fn refused(restitch: &Restitch, target: &mut Target, exit: i32, words: &[&str]) {
    let attached = restitch.attach(target.pid(), &[]);
    target.assert_running(&told(&attached));
    expect_message(&attached, exit, words);
    assert!(attached.stderr.contains(&target.pid().to_string()), "{}", attached.stderr);
    target.assert_computing("after the refusal");
    target.assert_untouched("after the refusal");
    assert_eq!(restitch.journals(), Vec::<PathBuf>::new(), "{}: a refusal leaves a journal", target.name);
}

#[test]
fn a_process_that_locks_its_memory_is_moved_and_given_back() {
    let Some(mut target) = start("locked") else { return };
    there_and_back(&Restitch::new(), &mut target);
    target.stop();
}

#[test]
fn where_no_more_memory_may_be_locked_nothing_is_changed() {
    if !is_root() {
        return restitch_testkit::skipped("only root can attach to the process of another user");
    }
    let Some(mut target) = start("lock-limit:8192") else { return };
    let restitch = Restitch::new();
    std::fs::set_permissions(restitch.state(), PermissionsExt::from_mode(0o755)).expect("our own");
    refused(&restitch, &mut target, code::REFUSED, &["mmap", "RLIMIT_MEMLOCK"]);
    target.stop();
}

#[test]
fn where_the_address_space_is_limited_nothing_is_changed() {
    let Some(mut target) = start("address-space:8192") else { return };
    refused(&Restitch::new(), &mut target, code::REFUSED, &["mmap", "RLIMIT_AS"]);
    target.stop();
}

#[test]
fn where_the_address_space_suffices_for_versions_the_process_is_moved() {
    let Some(mut target) = start("address-space:4000000") else { return };
    there_and_back(&Restitch::new(), &mut target);
    target.stop();
}

#[test]
fn with_nearly_as_many_mappings_as_there_may_be_code_is_written_in_the_stop() {
    let Some(mut target) = start("mappings:40") else { return };
    let said = there_and_back(&Restitch::new(), &mut target);
    assert!(said.contains("written page by page") && said.contains("vm.max_map_count"), "{said}");
    target.stop();
}

#[test]
fn without_room_near_the_code_nothing_is_changed() {
    let Some(mut target) = start("full") else { return };
    refused(&Restitch::new(), &mut target, code::REFUSED, &["no free address range", "nothing was changed"]);
    target.stop();
}

/// Attaches, looks whether versions are memory files, and gives everything back.
#[track_caller]
fn there_in_memory_and_back(restitch: &Restitch, what: &str) {
    let Some(mut target) = start(what) else { return };
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it lives");
    let versions: Vec<&str> = maps.lines().filter(|line| line.contains(".restitch-version")).collect();
    assert!(
        !versions.is_empty() && versions.iter().all(|line| line.contains("/memfd:")),
        "{what}: {versions:?}"
    );
    there_and_back(restitch, &mut target);
    target.stop();
}

#[test]
fn a_process_that_may_not_read_the_state_directory_has_versions_in_memory() {
    if !is_root() {
        return restitch_testkit::skipped("only root can attach to the process of another user");
    }
    let restitch = Restitch::new();
    std::fs::set_permissions(restitch.state(), PermissionsExt::from_mode(0o700)).expect("our own");
    there_in_memory_and_back(&restitch, "nobody");
}

#[test]
fn where_nothing_in_the_state_directory_may_be_executed_versions_are_in_memory() {
    let restitch = Restitch::new();
    let on_state = |command: &str, options: &[&str]| {
        let done = Command::new(command).args(options).arg(restitch.state()).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !on_state("mount", &["-t", "tmpfs", "-o", "noexec,mode=755", "tmpfs"]) {
        return restitch_testkit::skipped("nothing can be mounted here");
    }
    let result = std::panic::catch_unwind(|| there_in_memory_and_back(&restitch, "ordinary"));
    assert!(on_state("umount", &["--lazy"]), "it stays mounted");
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Restitch as another user than the target's, or for a process that nobody may look into.
#[test]
fn without_permission_the_message_says_what_would_help() {
    if !is_root() {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let restitch = Restitch::new();
    std::fs::set_permissions(restitch.state(), PermissionsExt::from_mode(0o1777)).expect("our own");
    let Some(mut root) = start("locked") else { return };
    let as_nobody = |pid: u32| {
        let binary = restitch.state().join("restitch");
        copy_program(Path::new(env!("CARGO_BIN_EXE_restitch")), &binary).expect("room for a copy");
        let mut command = Command::new(binary);
        command.args(["attach", &pid.to_string(), "--duration", "1", "--measure", "0"]);
        command.env("RESTITCH_STATE_DIR", restitch.state().join("nobody")).uid(65534).gid(65534);
        common::finish(&mut command)
    };
    let refusal = as_nobody(root.pid());
    expect_message(&refusal, code::NOT_PERMITTED, &[&root.pid().to_string(), "belongs to user 0", "sudo"]);
    root.assert_computing("after the refusal");
    root.assert_untouched("after the refusal");
    root.stop();
    // Root may look into a process that forbids it.
    let Some(mut target) = start("undumpable") else { return };
    there_and_back(&Restitch::new(), &mut target);
    target.stop();
}
