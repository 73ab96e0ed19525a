//! `batch` with commands that are too short: what one has begun the next one goes on with, and runs that do
//! next to nothing decide nothing.

mod common;

use common::batching::{Batch, compiled, processes_begun};
use common::{PATIENCE, code, finish};
use restitch_testkit::{copy_program, program, wait_until};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What there is of `program`, by its ending.
fn stored(batch: &Batch, program: &Path, ending: &str) -> Option<PathBuf> {
    batch.files_of(ending, program).into_iter().next()
}

/// Processes that have begun to count.
fn started(batch: &Batch, program: &Path) -> u64 {
    let counts = batch.files_of("counts", program).into_iter().next();
    counts.and_then(|p| processes_begun(&p)).unwrap_or(0)
}

/// Runs `program` again and again until `done` says so, or for too long.
fn until(batch: &Batch, finish: &str, options: &[&str], program: &Path, done: impl Fn() -> bool) -> bool {
    let stop = batch.folder.path().join("stop");
    let script = "while [ ! -e \"$STOP\" ]; do \"$0\" --seconds 0.2; [ $? = 42 ] || exit 9; done";
    let mut command = batch.command_that_finishes(finish, options);
    command.args(["sh", "-c", script]).arg(program).env("STOP", &stop);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let is_done = wait_until(PATIENCE * 2, || done().then_some(())).is_some();
    std::fs::write(&stop, "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(code::DONE), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&stop).expect("removed");
    is_done
}

#[test]
fn the_next_command_goes_on_with_a_counting() {
    let Some(module) = compiled(&program("switch.c"), &["-O2"]) else { return };
    let batch = Batch::new();
    let options = ["--eager", "--profile-runs", "1000000"];
    assert!(until(&batch, "later", &options, &module, || started(&batch, &module) > 1));
    // It is not over: what runs now counts as well, and nothing is in force that was made of it.
    let first = started(&batch, &module);
    assert!(stored(&batch, &module, "counting").is_some() && stored(&batch, &module, "optimized").is_none());
    assert!(until(&batch, "later", &options, &module, || started(&batch, &module) > first + 1));
    assert!(stored(&batch, &module, "counting").is_some() && stored(&batch, &module, "optimized").is_none());
    // The one that is waited for makes the profile of all of them, and lays out.
    let second = started(&batch, &module);
    assert!(until(&batch, "wait", &options, &module, || started(&batch, &module) > second));
    assert_eq!(stored(&batch, &module, "counting"), None);
    let entry = std::fs::read(stored(&batch, &module, "json").expect("an entry")).expect("read");
    let entry: serde_json::Value = serde_json::from_slice(&entry).expect("JSON");
    assert!(entry["profiled_runs"].as_u64() > Some(second), "{entry:#}, after {second} runs");
    assert!(batch.in_force().contains(&module), "{entry:#}");
    assert_eq!(batch.kinds(&module), (0, 2));
    assert!(batch.cache_command(&["verify"]).stdout.contains(": sound"));
}

#[test]
fn a_counting_ends_with_the_build_that_it_was_of() {
    let builds: Vec<PathBuf> =
        ["switch.c", "virt.cc"].iter().filter_map(|s| compiled(&program(s), &["-O2"])).collect();
    let [first, second] = &builds[..] else { return };
    let batch = Batch::new();
    let place = batch.folder.path().join("program");
    let put = |build: &Path| {
        let new = batch.folder.path().join("new");
        copy_program(build, &new).expect("copied");
        std::fs::rename(&new, &place).expect("renamed");
    };
    let options = ["--eager", "--profile-runs", "1000000"];
    put(first);
    assert!(until(&batch, "later", &options, &place, || started(&batch, &place) > 1));
    let before = batch.files_of("counts", &place);
    assert_eq!(before.len(), 1);
    // The same build once more goes on.
    put(first);
    let begun = started(&batch, &place);
    assert!(until(&batch, "later", &options, &place, || started(&batch, &place) > begun + 1));
    assert_eq!(batch.files_of("counts", &place), before);
    // Of another one nothing is known, and what was counted says nothing of it.
    put(second);
    let is_new = || batch.files_of("counts", &place).iter().all(|c| !before.contains(c));
    assert!(until(&batch, "later", &options, &place, || is_new() && started(&batch, &place) > 1));
    assert_eq!(batch.files_of("counts", &place).len(), 1);
    assert!(until(&batch, "wait", &options, &place, || started(&batch, &place) > 3));
    assert_eq!(batch.kinds(&place), (0, 2));
}

#[test]
fn what_is_being_counted_is_listed_and_pruned() {
    let Some(module) = compiled(&program("switch.c"), &["-O2"]) else { return };
    let batch = Batch::new();
    let options = ["--eager", "--profile-runs", "1000000"];
    assert!(until(&batch, "later", &options, &module, || started(&batch, &module) > 1));
    let of = |command: &[&str]| {
        let done = batch.cache_command(command);
        done.expect(code::DONE);
        done.stdout
    };
    let line = format!("{}: is being counted", module.display());
    // Lines end where there are enough words in them.
    let listed = of(&["list"]);
    assert!(listed.split_whitespace().collect::<Vec<_>>().join(" ").contains(&line), "{listed}");
    // There is room for it.
    assert!(of(&["prune", "--size", "500"]).starts_with("0 of "));
    assert!(batch.counted().contains(&module));
    let said = of(&["prune", "--size", "0"]);
    assert!(!said.starts_with("0 of "), "{said}");
    for left in ["counts", "counting", "earlier", "overlay", "path"] {
        assert_eq!(batch.files(left), Vec::<PathBuf>::new());
    }
    assert_eq!(of(&["list"]).trim_end(), "0 modules, 0.0 MiB");
    assert_eq!(batch.kinds(&module), (2, 0));
}

#[test]
fn a_command_that_ends_at_once_completes_what_was_counted() {
    let Some(module) = compiled(&program("switch.c"), &["-O2"]) else { return };
    let batch = Batch::new();
    let options = ["--eager", "--profile-runs", "1000000"];
    assert!(until(&batch, "later", &options, &module, || started(&batch, &module) > 1));
    finish(batch.command_that_finishes("wait", &options).arg("true")).expect(code::DONE);
    assert_eq!(stored(&batch, &module, "counting"), None);
    assert!(batch.in_force().contains(&module));
}

#[test]
fn a_command_that_runs_a_program_once_is_optimized_after_some_of_them() {
    let Some(module) = compiled(&program("switch.c"), &["-O2"]) else { return };
    let batch = Batch::new();
    let mut command = 0;
    while !batch.in_force().contains(&module) {
        let script = "\"$0\" --busy 0.4; [ $? = 42 ]";
        let mut once = batch.command_that_finishes("wait", &[]);
        finish(once.args(["sh", "-c", script]).arg(&module)).expect(code::DONE);
        command += 1;
        assert!(command < 30, "{:#}", batch.report());
    }
    assert!(command > 2, "one run says nothing yet");
    assert_eq!(batch.kinds(&module), (0, 2));
    // A program in its place is another one: nothing is known of it.
    let usage = std::fs::read_to_string(batch.cache().join("v1/store/usage")).unwrap_or_default();
    assert!(!usage.contains(&*module.to_string_lossy()), "what is optimized is not remembered: {usage}");
}

#[test]
fn runs_that_do_next_to_nothing_decide_nothing() {
    let Some(module) = compiled(&program("switch.c"), &["-O2"]) else { return };
    let batch = Batch::new();
    let folder = batch.folder.path().to_path_buf();
    // Typical runs until runs are counted (the module is noted just before that; at most one of these runs
    // begins in between), then such that end at once, until some of them were counted, with time enough for a
    // profile to be made of them; then typical ones.
    let script = "until grep -lqF \"$0\" \"$STORE\"/*.path 2>/dev/null; do \"$0\" --busy 0.4; [ $? = 42 ] || exit 9; done; sleep 1
        while [ ! -e \"$MARKS/enough\" ]; do \"$0\"; sleep 0.3; done; sleep 2; : > \"$MARKS/short\"
        while [ ! -e \"$MARKS/go\" ]; do sleep 0.1; done
        while [ ! -e \"$MARKS/stop\" ]; do \"$0\" --busy 0.4; [ $? = 42 ] || exit 9; done";
    let mut command = batch.command(&["--eager"]);
    command.args(["sh", "-c", script]).arg(&module).env("MARKS", &folder);
    command.env("STORE", batch.cache().join("v1/store"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mark = |name: &str| std::fs::write(folder.join(name), "").expect("written");
    let counted = wait_until(PATIENCE * 2, || (started(&batch, &module) > 3).then_some(()));
    mark("enough");
    let short = wait_until(PATIENCE, || folder.join("short").exists().then_some(()));
    let (ran, made) = (started(&batch, &module), stored(&batch, &module, "optimized"));
    mark("go");
    let optimized = wait_until(PATIENCE * 2, || stored(&batch, &module, "optimized"));
    mark("stop");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(short.is_some() && output.status.code() == Some(code::DONE), "{said}");
    assert!(counted.is_some() && ran > 3, "those that end at once were counted as well: {ran}");
    assert_eq!(made, None, "a profile was made of runs that did nothing: {said}");
    assert!(optimized.is_some(), "{said}");
    assert_eq!(batch.kinds(&module), (0, 2));
}
