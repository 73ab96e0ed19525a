//! Signals: what commands find of those that restitch was started with, and what suspending restitch (Ctrl-Z)
//! does to the process that it works on: nothing.

mod common;

use common::{PATIENCE, Random, Restitch, Target, code, finish, look, stoppable, with_signals};
use restitch_testkit::{Guarded, SUCCESS, require, scratch, wait_until};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Options of `env` by which restitch finds other dispositions and another mask than a shell has.
const GIVEN: [&[&str]; 3] = [
    &["--ignore-signal=PIPE,HUP,INT,QUIT,CHLD,TSTP", "--block-signal=USR1,USR2"],
    &["--ignore-signal=PIPE"],
    &[],
];

/// The ways to start a command; what they write goes to `folder`.
fn ways(folder: &Path) -> Vec<Vec<String>> {
    let profile = folder.join("profile").display().to_string();
    let record = |source: &[&str]| {
        let words = ["record", "-o", &profile].into_iter().chain(source.iter().copied()).chain(["--"]);
        words.map(String::from).collect()
    };
    let run = ["run", "--duration", "0.2", "--measure", "0", "--"].map(String::from);
    vec![
        run.to_vec(),
        record(&[]),
        record(&["--source", "trace"]),
        record(&["--source", "burst"]),
        record(&["--source", "ip"]),
    ]
}

/// Signals that the C library keeps for itself and handles in programs with threads (nptl(7)): of these a
/// command finds what the C library leaves.
const OF_LIBRARY: u64 = 0b11 << 31;

/// What is blocked, ignored and caught, by its names in `/proc/self/status`.
fn masks(lines: &str) -> Vec<(String, u64)> {
    let mask = |line: &str| {
        let (name, mask) = line.split_once(':')?;
        Some((name.to_owned(), u64::from_str_radix(mask.trim(), 16).ok()? & !OF_LIBRARY))
    };
    lines.lines().filter_map(mask).collect()
}

/// What `command` sees, by itself.
fn plain(given: &[&str], command: &[&str]) -> Vec<(String, u64)> {
    let seen = masks(&finish(Command::new("env").args(given).args(command)).stdout);
    assert_eq!(seen.len(), 3, "{seen:?}");
    seen
}

#[test]
fn commands_start_with_the_signals_that_restitch_was_started_with() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let look = ["grep", "^Sig[BIC]", "/proc/self/status"];
    for given in GIVEN {
        let expected = plain(given, &look);
        for way in ways(folder.path()) {
            let mut command = restitch.command(&way);
            command.args(look);
            let done = finish(&mut with_signals(given, &command));
            let seen: Vec<&str> = done.stdout.lines().filter(|line| line.starts_with("Sig")).collect();
            assert_eq!(masks(&seen.join("\n")), expected, "{given:?} {way:?}: {}", done.stderr);
        }
    }
}

#[test]
fn ends_of_commands_are_seen_where_restitch_was_told_to_ignore_them() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    for way in ways(folder.path()) {
        let mut command = restitch.command(&way);
        command.arg(&program).args(["--seconds", "2"]);
        let done = finish(&mut with_signals(GIVEN[0], &command));
        assert_eq!(done.status.code(), Some(SUCCESS), "{way:?}: {}", done.stderr);
    }
}

#[test]
fn a_metric_starts_with_the_signals_that_restitch_was_started_with() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder, mut target) = (Restitch::new(), scratch(), Target::start(&program));
    let seen = folder.path().join("seen");
    let look = "grep '^Sig[BIC]' /proc/self/status";
    let metric = format!("{look} >{}; date +%s%N", seen.display());
    let pid = target.pid().to_string();
    for given in GIVEN {
        let expected = plain(given, &["sh", "-c", &format!("{look}; true")]);
        let words = ["attach", &pid, "--duration", "1", "--measure", "0.2", "--metric", &metric];
        let done = finish(&mut with_signals(given, &restitch.command(&words)));
        assert_eq!(done.status.code(), Some(code::DONE), "{given:?}: {}", done.stderr);
        let found = std::fs::read_to_string(&seen).expect("it was written");
        assert_eq!(masks(&found), expected, "{given:?}");
        std::fs::remove_file(&seen).expect("it is there");
    }
    target.assert_goes_back(&restitch);
    target.stop();
}

fn send(signal: &str, to: u32) {
    assert!(Command::new("kill").args(["-s", signal, &to.to_string()]).status().expect("kill").success());
}

/// A line of `/proc/PID/status`; nothing of a process that has ended.
fn said(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().into()
}

/// Suspends a restitch at work on `target` and lets it go on; false if it has ended before. Whatever it was
/// doing, the target works meanwhile.
#[track_caller]
fn suspend(working: &mut Guarded, target: &mut Target) -> bool {
    let (own, pid) = (working.pid(), target.pid());
    send("TSTP", own);
    let is_suspended = wait_until(PATIENCE, || match said(own, "State").chars().next() {
        Some('T') => Some(true),
        None | Some('Z') => Some(false),
        _ => None,
    });
    if !is_suspended.expect("it is suspended, or ends") {
        return false;
    }
    // The tracing thread may be on its last way, which no stop interrupts.
    wait_until(PATIENCE, || (said(pid, "TracerPid") == "0").then_some(())).expect("it was let go");
    target.assert_computing("while restitch is suspended");
    assert!(said(own, "State").starts_with('T'));
    send("CONT", own);
    true
}

/// A restitch of a process group of its own whose parent is not in it, as that of a shell's job.
fn job(restitch: &Restitch, arguments: &[&str]) -> Guarded {
    let mut command = restitch.command(arguments);
    let heeding = ["--default-signal=TSTP,CONT"];
    let mut command = with_signals(&heeding, command.stdin(Stdio::null()));
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    Guarded::spawn(&mut command).expect("it starts")
}

#[test]
fn a_process_that_is_traced_works_while_restitch_is_suspended() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile").display().to_string();
    for source in ["trace", "burst"] {
        let mut target = Target::start(&program);
        let pid = target.pid().to_string();
        let words = ["record", "--source", source, "--duration", "20", "-o", &profile, "-p", &pid];
        let mut working = job(&restitch, &words);
        for _ in 0..2 {
            let traced = || (said(target.pid(), "TracerPid") != "0").then_some(());
            wait_until(PATIENCE, traced).expect("it is traced, also after it went on");
            assert!(suspend(&mut working, &mut target), "{source}");
        }
        let status = working.wait_within(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(code::DONE), "{source}");
        restitch.run(&["profile", "show", &profile, "--program", &program.display().to_string()]).expect(0);
        assert_eq!(look::differences(target.pid()), [], "{source}");
        target.stop();
    }
}

#[test]
fn a_process_that_is_attached_to_works_whenever_restitch_is_suspended() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid().to_string();
    let mut random = Random::new(34);
    for _ in 0..3 {
        let mut working = job(&restitch, &["attach", &pid, "--duration", "0.5", "--measure", "0"]);
        loop {
            std::thread::sleep(Duration::from_millis(random.below(400)));
            if !suspend(&mut working, &mut target) {
                break;
            }
        }
        let status = working.wait_within(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(code::DONE));
    }
    target.assert_goes_back(&restitch);
    target.stop();
}

/// A suspension that was noted, and did not come to be, is over with SIGCONT.
#[test]
fn who_is_told_to_go_on_is_not_suspended_later() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder, mut target) = (Restitch::new(), scratch(), Target::start(&program));
    let profile = folder.path().join("profile").display().to_string();
    let pid = target.pid().to_string();
    let words = ["record", "--source", "trace", "--duration", "3", "-o", &profile, "-p", &pid];
    let mut working = job(&restitch, &words);
    let own = working.pid();
    let traced = || (said(target.pid(), "TracerPid") != "0").then_some(());
    wait_until(PATIENCE, traced).expect("it is traced");
    for _ in 0..50 {
        let both = format!("kill -s TSTP {own}; kill -s CONT {own}");
        let _ = Command::new("sh").args(["-c", &both]).stderr(Stdio::null()).status();
    }
    let status = working.wait_within(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(code::DONE));
    target.stop();
}
