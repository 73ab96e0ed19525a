//! Signals: what commands find of those that restitch was started with.

mod common;

use common::{Restitch, Target, code, finish, stoppable, with_signals};
use restitch_testkit::{SUCCESS, require, scratch};
use std::path::Path;
use std::process::Command;

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
