//! The verdict of `attach`: what it is measured by, and what `--revert-if-slower` makes of it. The metrics
//! are scripts that look at the process's mappings, so that how fast the work seems to go is known whatever
//! the machine does.

mod common;

use common::{Restitch, Target, code, expect_message, look, stoppable, with_time};
use restitch_report::{Helped, Outcome, RunResult};
use restitch_testkit::{Finished, TempDir, scratch};
use std::path::{Path, PathBuf};

/// `attach` with `arguments`; the shortest duration leaves time for two windows.
fn attach(restitch: &Restitch, target: &Target, arguments: &[&str]) -> Finished {
    let pid = target.pid().to_string();
    with_time(["0.5", "3", "10"], |duration| {
        restitch.command(&[&["attach", &pid, "--duration", duration], arguments].concat())
    })
}

/// A metric that grows by a thousand each time that it is read; once a version is in the process, `then`
/// happens first.
struct Script {
    folder: TempDir,
    command: String,
}

impl Script {
    fn new(target: &Target, then: &str) -> Self {
        let folder = scratch();
        let (file, pid) = (folder.path().join("work").display().to_string(), target.pid());
        let command = format!(
            "by=1000; if grep -q restitch-version /proc/{pid}/maps; then {then}; fi; \
             n=$(($(cat '{file}' 2>/dev/null || echo 0) + by)); echo $n > '{file}'; echo $n"
        );
        Self { folder, command }
    }

    fn json(&self) -> PathBuf {
        self.folder.path().join("json")
    }
}

fn result(json: &Path) -> RunResult {
    RunResult::from_json(&std::fs::read_to_string(json).expect("a result is written")).expect("JSON")
}

fn target() -> Option<Target> {
    Some(Target::start(&stoppable("switch.c", &["-O2"])?))
}

#[track_caller]
fn judged(restitch: &Restitch, target: &Target, script: &Script) -> (Finished, RunResult) {
    let json = script.json();
    let json = json.to_str().expect("a path of ASCII");
    let options = ["--measure", "1", "--revert-if-slower", "--json", json, "--metric", &script.command];
    let finished = attach(restitch, target, &options);
    println!("{}", finished.stderr);
    (finished, result(Path::new(json)))
}

#[test]
fn a_metric_that_falls_takes_the_layout_back_however_short_the_duration() {
    let Some(mut target) = target() else { return };
    let restitch = Restitch::new();
    let (finished, result) = judged(&restitch, &target, &Script::new(&target, "by=200"));
    finished.expect(code::TAKEN_BACK);
    let verdict = result.verdict.expect("it was judged");
    assert!(verdict.samples_before >= 6 && verdict.samples_after >= 3, "{verdict:?}");
    assert!(verdict.helped == Helped::No && verdict.confidence > 0.9, "{verdict:?}");
    // Where the process's time can be counted, in cycles or by the task clock, both are told.
    assert!(verdict.metric.contains("per unit of") && result.verdict_beside.is_some(), "{verdict:?}");
    assert_eq!(result.outcome, Outcome::Reverted);
    assert_eq!(look::differences(target.pid()), []);
    target.stop();
}

#[test]
fn a_metric_that_grows_by_what_its_command_adds_is_not_judged() {
    let Some(mut target) = target() else { return };
    let restitch = Restitch::new();
    let (finished, result) = judged(&restitch, &target, &Script::new(&target, "by=1"));
    finished.expect(code::TAKEN_BACK);
    assert_eq!((result.verdict, result.outcome), (None, Outcome::Reverted));
    let told = result.warnings.join("\n");
    for words in ["could not be judged by this metric", "it grows in steps", "--measure 30", "taken back"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(look::differences(target.pid()), []);
    target.stop();
}

#[test]
fn a_metric_that_breaks_after_the_change_takes_the_layout_back() {
    let Some(mut target) = target() else { return };
    let restitch = Restitch::new();
    let (finished, result) = judged(&restitch, &target, &Script::new(&target, "exit 5"));
    finished.expect(code::TAKEN_BACK);
    assert_eq!((result.verdict, result.outcome), (None, Outcome::Reverted));
    let told = result.warnings.join("\n");
    assert!(told.contains("exit status: 5") && told.contains("could not be judged"), "{told}");
    assert_eq!(look::differences(target.pid()), []);
    target.stop();
}

#[test]
fn a_metric_that_gives_no_number_is_told_before_the_process_is_touched() {
    let Some(mut target) = target() else { return };
    let restitch = Restitch::new();
    for (metric, what) in [("exit 3", "exit status: 3, without a message"), ("", "it printed nothing")] {
        let refused = attach(&restitch, &target, &["--measure", "1", "--metric", metric]);
        expect_message(&refused, code::FAILURE, &["--metric", what, "prints one number"]);
    }
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "nothing is in the state directory");
    target.assert_untouched("after bad metrics");
    target.stop();
}

#[test]
fn whoever_wants_slower_layouts_back_has_to_say_how_to_judge() {
    let Some(mut target) = target() else { return };
    let restitch = Restitch::new();
    let refused = attach(&restitch, &target, &["--measure", "0", "--revert-if-slower", "--metric", "echo 1"]);
    expect_message(&refused, code::USAGE, &["--revert-if-slower", "--measure 0", "nothing was changed"]);
    target.assert_untouched("after a refusal");
    let finished = attach(&restitch, &target, &["--measure", "1", "--revert-if-slower"]);
    match finished.status.code() {
        // No cycle counter.
        Some(code::USAGE) => {
            expect_message(
                &finished,
                code::USAGE,
                &["--revert-if-slower", "--metric COMMAND", "nothing was changed"],
            );
            target.assert_untouched("after a refusal");
        }
        other => assert!([Some(code::DONE), Some(code::TAKEN_BACK)].contains(&other), "{}", finished.stderr),
    }
    target.stop();
}
