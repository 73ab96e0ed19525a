//! A process in a memory cgroup that has next to nothing left is refused with the numbers, and lives.

mod common;

use common::{Restitch, Target, code, stoppable};
use restitch_report::{PlannedMemory, RunResult};
use restitch_testkit::require;
use std::path::{Path, PathBuf};

/// A memory cgroup of the test's own, removed when this is dropped.
struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    /// `None`, with a message, where none can be made.
    fn make() -> Option<Self> {
        let name = format!("restitch-test-memory-{}", std::process::id());
        let first = (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes");
        for (mount, limit) in [first, (Path::new("/sys/fs/cgroup"), "memory.max")] {
            let folder = mount.join(&name);
            if std::fs::create_dir(&folder).is_ok() {
                let group = Self { folder, limit };
                if group.folder.join(limit).exists() {
                    return Some(group);
                }
            }
        }
        restitch_testkit::unsupported("memory cgroups may not be made here");
        None
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It is empty: its only process has ended or was moved.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// What a dry run with `options` says of memory.
#[track_caller]
fn planned(restitch: &Restitch, target: &Target, options: &[&str]) -> Option<PlannedMemory> {
    let pid = target.pid().to_string();
    let mut arguments = vec!["attach", &pid, "--dry-run", "--json", "-"];
    arguments.extend(options);
    let finished = restitch.run(&arguments);
    finished.expect(code::DONE);
    RunResult::from_json(&finished.stdout).expect("the JSON form of a result").planned_memory
}

/// What docs/usage/containers.md promises, in the numbers by which a change is refused.
#[test]
fn a_dry_run_says_what_is_needed_and_what_is_left() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let Some(group) = Group::make() else { return };
    let mut target = Target::start(&program);
    let restitch = Restitch::new();
    group.write("cgroup.procs", &target.pid().to_string());
    let limit: u64 = 64 << 20;
    group.write(group.limit, &limit.to_string());
    let counting = planned(&restitch, &target, &["--source", "count"]).expect("it would be counted");
    assert!(counting.for_counting, "{counting:?}");
    assert_eq!((counting.limit_bytes, counting.group.as_deref()), (Some(limit), group.folder.to_str()));
    assert!(counting.left_bytes.is_some_and(|left| left > 0), "{counting:?}");
    // The new code of a profile that there is.
    let (pid, profile) = (target.pid().to_string(), restitch.state().join("of-it"));
    let profile = profile.to_str().expect("text");
    restitch.run(&["record", "-p", &pid, "-o", profile, "--duration", "2"]).expect(code::DONE);
    let given = planned(&restitch, &target, &["--profile", profile]).expect("it is known");
    assert!(!given.for_counting && given.needed_bytes > 0, "{given:?}");
    assert_eq!(given.limit_bytes, Some(limit));
    target.assert_computing("after the plans");
    target.stop();
}

#[test]
fn a_process_without_memory_is_refused_and_lives() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let Some(group) = Group::make() else { return };
    let mut target = Target::start(&program);
    group.write("cgroup.procs", &target.pid().to_string());
    group.write(group.limit, &(900 << 10).to_string());
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    let output = restitch.state().join("profile");
    let record = ["record", "-p", &pid, "-o", output.to_str().unwrap(), "--duration", "2"];
    for refused in [restitch.attach(target.pid(), &[]), restitch.run(&record)] {
        refused.expect(code::REFUSED);
        let folder = group.folder.to_str().unwrap();
        assert!(
            refused.stderr.contains(folder) && refused.stderr.contains(" of 900 KiB"),
            "{}",
            refused.stderr
        );
        target.assert_untouched("refused");
    }
    group.write(group.limit, &(64 << 20).to_string());
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    target.assert_goes_back(&restitch);
    target.stop();
}
