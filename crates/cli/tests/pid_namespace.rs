//! Numbers of processes mean others in another PID namespace: whoever sees that one's `/proc` is refused.

mod common;

use common::{Restitch, Target, code, expect_message, finish, stoppable};
use restitch_testkit::skip_unsupported;
use std::process::Command;

/// restitch in a new PID namespace.
fn inside(restitch: &Restitch, options: &[&str], arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).args(options);
    command.arg(env!("CARGO_BIN_EXE_restitch")).args(arguments);
    command.env("RESTITCH_STATE_DIR", restitch.state());
    command
}

#[test]
fn the_processes_of_another_namespace_are_not_taken_for_those_of_the_own_one() {
    let restitch = Restitch::new();
    let status = finish(&mut inside(&restitch, &["--mount-proc"], &["status"]));
    if status.stderr.contains("unshare") {
        skip_unsupported!("no new namespaces: {}", status.stderr);
    }
    status.expect(code::DONE);
    for arguments in [
        &["attach", "1"][..],
        &["attach", "1", "--dry-run"],
        &["revert", "1"],
        &["status"],
        &["status", "1"],
        &["record", "-p", "1", "-o", "/dev/null"],
        &["record", "-o", "/dev/null", "--", "true"],
        &["run", "--", "true"],
    ] {
        let refused = finish(&mut inside(&restitch, &[], arguments));
        expect_message(&refused, code::REFUSED, &["another PID namespace", "--mount-proc"]);
    }
}

/// Who does not see the processes does not know that their files are needed.
#[test]
fn the_state_of_processes_outside_of_a_namespace_is_left_alone() {
    let program = restitch_testkit::require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let files = || {
        let entries = std::fs::read_dir(restitch.state()).expect("it is there").flatten();
        entries.map(|entry| entry.file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = files();
    let pid_namespace = inside(&restitch, &["--mount-proc"], &["status"]);
    let mut time_namespace = Command::new("unshare");
    time_namespace.args(["--time", "--boottime", "100000", "--fork"]);
    time_namespace
        .args([env!("CARGO_BIN_EXE_restitch"), "status"])
        .env("RESTITCH_STATE_DIR", restitch.state());
    for mut command in [pid_namespace, time_namespace] {
        let status = finish(&mut command);
        if status.stderr.contains("unshare") {
            skip_unsupported!("no new namespaces: {}", status.stderr);
        }
        status.expect(code::DONE);
        assert_eq!(files(), before, "{command:?}");
    }
    target.assert_goes_back(&restitch);
    target.stop();
}
