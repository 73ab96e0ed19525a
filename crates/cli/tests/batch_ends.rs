//! How `batch` starts its command and ends with it: signals, exit codes, and results that cannot be written.

mod common;

use common::batching::Batch;
use common::{PATIENCE, code, finish, with_signals};
use restitch_testkit::{Guarded, wait_until};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

/// The signals that end a command, as a terminal's shell has them: who starts these tests in the background
/// may ignore some, and all that they start would, too.
const HEEDED: [&str; 1] = ["--default-signal=INT,QUIT,TERM,HUP"];

/// A `batch` of its own group whose command has set up its traps: what it does first is `script`, then it
/// waits.
fn waiting(batch: &Batch, script: &str) -> (Guarded, u32) {
    let ready = batch.folder.path().join("ready");
    let script = format!(
        "{script}\necho $$ >\"$READY.new\"; mv \"$READY.new\" \"$READY\"; while :; do sleep 0.05; done"
    );
    let mut command = batch.command(&[]);
    command.args(["sh", "-c", &script]).env("READY", &ready);
    let mut heeding = with_signals(&HEEDED, &command);
    let running = Guarded::spawn(heeding.process_group(0).stderr(Stdio::null())).expect("it starts");
    let pid = wait_until(PATIENCE, || std::fs::read_to_string(&ready).ok()).expect("the command runs");
    (running, pid.trim().parse().expect("a number"))
}

fn send(signal: &str, to: &str) {
    let sent = Command::new("kill").args(["-s", signal, "--", to]).status().expect("kill");
    assert!(sent.success());
}

#[test]
fn what_a_terminal_sends_ends_the_command_and_not_the_report() {
    for signal in ["INT", "QUIT"] {
        let batch = Batch::new();
        let (mut running, _) = waiting(&batch, &format!("trap 'sleep 0.2; exit 7' {signal}"));
        send(signal, &format!("-{}", running.pid()));
        let status = running.wait_within(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(7), "{status}");
        assert_eq!(batch.report()["status"], 7);
    }
}

#[test]
fn a_request_to_end_is_passed_on() {
    for (script, expected) in [("trap 'exit 9' TERM HUP INT", 9), (":", 0)] {
        for (signal, number) in [("TERM", 15), ("HUP", 1), ("INT", 2)] {
            let batch = Batch::new();
            let (mut running, command) = waiting(&batch, script);
            send(signal, &running.pid().to_string());
            let expected = if expected == 0 { 128 + number } else { expected };
            let status = running.wait_within(PATIENCE).expect("it ends");
            assert_eq!(status.code(), Some(expected), "{status}");
            assert_eq!(batch.report()["status"], expected);
            assert!(!std::path::Path::new(&format!("/proc/{command}")).exists(), "it is no orphan");
        }
    }
}

#[test]
fn a_command_that_is_too_short_to_say_anything_of_is_told_so() {
    let batch = Batch::new();
    let done = finish(batch.command(&[]).args(["sh", "-c", "exit 3"]));
    assert_eq!(done.status.code(), Some(3));
    let report = batch.report();
    let notes = report["notes"].as_array().expect("a list");
    let note = notes.first().and_then(|note| note.as_str()).expect("a note");
    assert!(notes.len() == 1 && note.contains("processor time"), "{notes:?}");
    assert!(done.stderr.contains(note), "{}", done.stderr);
}

/// The result goes into a pipe that nobody reads any more when the command ends.
#[test]
fn after_the_command_restitch_can_be_interrupted() {
    let batch = Batch::new();
    let (pipe, stop) = (batch.folder.path().join("pipe"), batch.folder.path().join("stop"));
    let ready = batch.folder.path().join("ready");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let mut command = batch.restitch.command(&["batch", "--quiet", "--finish", "later", "--json"]);
    command.arg(&pipe).env("RESTITCH_CACHE_DIR", batch.cache());
    command.args(["--", "sh", "-c", "echo >\"$READY\"; while [ ! -e \"$STOP\" ]; do sleep 0.05; done"]);
    command.env("READY", &ready).env("STOP", &stop);
    let mut running = Guarded::spawn(&mut with_signals(&HEEDED, &command)).expect("it starts");
    // It is looked whether the pipe can be written to, before the command runs.
    let reader = std::fs::File::open(&pipe).expect("opened");
    wait_until(PATIENCE, || ready.exists().then_some(())).expect("the command runs");
    drop(reader);
    std::fs::write(&stop, "").expect("written");
    let pid = running.pid().to_string();
    let ended = wait_until(PATIENCE, || {
        let _ = Command::new("kill").args(["-s", "INT", &pid]).stderr(Stdio::null()).status();
        (!running.is_running()).then_some(())
    });
    assert!(ended.is_some());
    let status = running.wait_within(PATIENCE).expect("it has ended");
    assert_eq!(status.signal(), Some(2), "{status}");
}

#[test]
fn the_command_starts_with_the_signals_that_restitch_was_started_with() {
    let batch = Batch::new();
    let settings = ["--ignore-signal=PIPE,HUP,CHLD", "--block-signal=USR1,TERM"];
    let look = ["grep", "^Sig[BIC]", "/proc/self/status"];
    for settings in [&settings[..], &settings[..1], &[]] {
        let plain = finish(Command::new("env").args(settings).args(look));
        plain.expect(code::DONE);
        let mut inner = batch.command(&["--quiet"]);
        inner.args(look);
        let within = finish(&mut with_signals(settings, &inner));
        within.expect(code::DONE);
        assert_eq!(within.stdout, plain.stdout, "{settings:?}");
    }
}

fn full() -> Stdio {
    Stdio::from(std::fs::File::options().write(true).open("/dev/full").expect("opened"))
}

#[test]
fn the_exit_code_is_the_commands_whatever_cannot_be_written() {
    let batch = Batch::new();
    let command = |options: &[&str]| {
        let mut command = batch.restitch.command(&["batch", "--finish", "later"]);
        command.env("RESTITCH_CACHE_DIR", batch.cache()).args(options).args(["--", "sh", "-c", "exit 7"]);
        command
    };
    let code = |command: &mut Command| command.status().expect("it starts").code();
    assert_eq!(code(command(&[]).stderr(full())), Some(7));
    assert_eq!(code(command(&["--json", "-"]).stdout(full()).stderr(Stdio::null())), Some(7));
    assert_eq!(code(command(&["--json", "/dev/full"]).stderr(Stdio::null())), Some(7));
    // Blanks in the path of a cache cannot be preloaded from; nothing is exported then.
    let folder = batch.folder.path().join("export");
    let unusable = batch.folder.path().join("with blanks");
    let mut command = batch.restitch.command(&["batch", "--finish", "later", "--export"]);
    command.arg(&folder).arg("--cache").arg(&unusable).args(["--", "true"]);
    let done = finish(&mut command);
    done.expect(code::DONE);
    assert!(done.stderr.contains("nothing is exported"), "{}", done.stderr);
}

#[test]
fn a_folder_that_cannot_be_exported_to_is_found_before_the_command_runs() {
    let batch = Batch::new();
    let (file, ran) = (batch.folder.path().join("file"), batch.folder.path().join("ran"));
    std::fs::write(&file, "").expect("written");
    for folder in [file.as_path(), "/proc/restitch".as_ref()] {
        let mut command = batch.restitch.command(&["batch", "--finish", "later", "--export"]);
        command.arg(folder).env("RESTITCH_CACHE_DIR", batch.cache()).args(["--", "touch"]).arg(&ran);
        finish(&mut command).expect(code::FAILURE);
        assert!(!ran.exists());
    }
}

#[test]
fn what_cannot_be_printed_is_an_error_and_no_panic() {
    let batch = Batch::new();
    for arguments in [&["analyze", "/bin/true"][..], &["doctor"], &["status"], &["profile", "formats"]] {
        let mut command = batch.restitch.command(arguments);
        let done = command.stdout(full()).stderr(Stdio::piped()).output().expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains("writing to standard output: No space left"), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert!(matches!(done.status.code(), Some(1 | 5)), "{arguments:?}: {}", done.status);
    }
    let done = batch.restitch.command(&["analyze", "/nowhere"]).stderr(full()).status().expect("it starts");
    assert!(done.code().is_some_and(|c| c != 101), "{done}");
}
