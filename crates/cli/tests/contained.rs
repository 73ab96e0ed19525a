//! Processes as containers and hardened services are: in namespaces of their own, without sight of the state
//! directory, under system call filters.

mod common;

use common::{Restitch, Target, code, expect_message, finish, look, stoppable};
use restitch_testkit::{find_program, require, scratch, wait_until};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The processes of workers.c that are there for as long as the program is.
const LASTING: usize = 4;

/// The first process, and those that it has forked.
fn processes(target: &Target) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", target.pid());
    let children = std::fs::read_to_string(path).unwrap_or_default();
    std::iter::once(target.pid())
        .chain(children.split_whitespace().filter_map(|pid| pid.parse().ok()))
        .collect()
}

fn attach_tree(restitch: &Restitch, target: &Target) {
    restitch.attach(target.pid(), &["--tree"]).expect(code::DONE);
    let told = restitch.status(target.pid());
    assert!(told.stdout.contains("optimized"), "{}", told.stdout);
}

/// Children that are forked after the switch have the versions as memory files that have no other trace of
/// where they come from than their names.
#[test]
fn a_tree_of_processes_is_moved_and_given_back() {
    let Some(program) = stoppable("workers.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let Some(mut target) = Target::contained(&restitch, &program) else { return };
    for _ in 0..2 {
        attach_tree(&restitch, &target);
        target.assert_computing("in the new layout");
        let before = processes(&target);
        let forked = wait_until(common::PATIENCE, || {
            let new = processes(&target).into_iter().find(|pid| !before.contains(pid));
            new.filter(|pid| !look::ours(*pid).is_empty())
        });
        assert!(forked.is_some(), "nobody was forked into the new layout");
    }
    let is_clean = |_: &str| processes(&target).into_iter().all(|pid| look::ours(pid).is_empty());
    common::revert_tree_until(&restitch, target.pid(), is_clean);
    // (The last one may end while it is looked at.)
    for pid in processes(&target).into_iter().take(LASTING) {
        assert_eq!(look::differences(pid), [], "process {pid} after revert --tree");
    }
    target.assert_untouched("after revert --tree");
    target.stop();
}

/// A memory file has the unwind tables, and exceptions pass through frames of its code.
#[test]
fn exceptions_are_thrown_through_moved_frames() {
    let Some(program) = stoppable("throw.cc", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let Some(mut target) = Target::contained(&restitch, &program) else { return };
    for _ in 0..2 {
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        target.assert_computing("in the new layout");
        target.assert_goes_back(&restitch);
    }
    target.stop();
}

/// Profiles of all kinds are taken, and nothing stays of what that takes.
#[test]
fn profiles_are_recorded() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let Some(mut target) = Target::contained(&restitch, &program) else { return };
    let (pid, path) = (target.pid().to_string(), folder.path().join("a.profile"));
    for source in ["count", "burst"] {
        let recorded = common::with_time(["2", "6", "18"], |seconds| {
            let mut command =
                restitch.command(&["record", "-p", &pid, "--source", source, "--duration", seconds]);
            command.args(["--overhead", "20%", "-o"]).arg(&path);
            command
        });
        recorded.expect(code::DONE);
        std::fs::remove_file(&path).expect("a profile was written");
        target.assert_computing("after it was recorded");
        // What is left is nothing, or waits for the next look (exit code 7 or 0).
        common::revert_tree_until(&restitch, target.pid(), |_| look::ours(target.pid()).is_empty());
        target.assert_untouched("after it was recorded");
    }
    target.stop();
}

/// Without the right to read filters nobody knows what they permit.
#[test]
fn filters_that_cannot_be_read_are_a_reason_to_refuse() {
    let setpriv = require!(find_program("setpriv"), "setpriv");
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let Some(mut target) = Target::contained(&restitch, &program) else { return };
    let plain = restitch.command(&["attach", &target.pid().to_string(), "--measure", "0"]);
    let mut command = Command::new(setpriv);
    command
        .args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.env("RESTITCH_STATE_DIR", restitch.state());
    expect_message(&finish(&mut command), code::REFUSED, &["CAP_SYS_ADMIN", "seccomp", "none was made"]);
    target.assert_untouched("after it was refused");
    target.assert_computing("after it was refused");
    target.stop();
}

/// Whoever is killed leaves a process that goes on under its filters, and that another restitch puts right.
#[test]
fn restitch_may_be_killed() {
    let Some(program) = stoppable("threads.c", &["-O2", "-pthread"]) else { return };
    let restitch = Restitch::new();
    let Some(mut target) = Target::contained(&restitch, &program) else { return };
    let pid = target.pid().to_string();
    for after in [700, 1100, 1300, 1500, 1700, 1900, 2100] {
        let mut command = restitch.command(&["attach", &pid, "--duration", "1", "--measure", "0"]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = restitch_testkit::Guarded::spawn(command).expect("started");
        std::thread::sleep(Duration::from_millis(after));
        let _ = running.kill();
        target.assert_computing("after its restitch was killed");
    }
    common::revert_tree_until(&restitch, target.pid(), |_| look::ours(target.pid()).is_empty());
    target.assert_untouched("after revert");
    target.stop();
}
