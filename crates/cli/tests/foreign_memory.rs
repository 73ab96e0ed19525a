//! Restitch takes out of a process what it has mapped, and nothing else.

mod common;

use common::look::{Line, maps};
use common::{PATIENCE, Restitch, Target, code, stoppable};
use restitch_testkit::{require, wait_until};

/// The program's own data: the writable mappings of its file and what follows them.
fn data_of(pid: u32) -> Vec<Line> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap().to_string_lossy().into_owned();
    maps(pid).into_iter().filter(|l| l.permissions.starts_with("rw-p") && l.name == program).collect()
}

/// A restitch that is killed between mapping a counting version and mapping its counters leaves a journal
/// that names memory in which the program may map something of its own later.
#[test]
fn counters_that_were_never_mapped_are_not_unmapped() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid();
    restitch.attach(pid, &[]).expect(code::DONE);
    let own = data_of(pid).remove(0);
    let journal = restitch.journals().remove(0);
    let mut value: serde_json::Value = serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
    for version in value["versions"].as_array_mut().unwrap() {
        version["counters"] = serde_json::json!([own.start, own.end - own.start]);
    }
    std::fs::write(&journal, serde_json::to_vec(&value).unwrap()).unwrap();
    let reverted = wait_until(PATIENCE, || {
        let finished = restitch.revert(pid);
        target.assert_running(&finished.stdout);
        (!finished.stdout.contains("stays mapped")).then_some(())
    });
    assert!(reverted.is_some(), "a version stays mapped");
    assert_eq!(data_of(pid).first(), Some(&own), "the program's own memory was unmapped");
    target.assert_computing("after the revert");
    target.assert_untouched("after the revert");
    target.stop();
}
