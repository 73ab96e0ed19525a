//! `record --source burst`: every test program goes on with right results while threads are put into tracing
//! versions and out of them, and is as it was afterwards; also when restitch is killed at any moment.

mod common;

use common::{Random, Restitch, Target, code, look, stoppable};
use restitch_testkit::{Guarded, SUCCESS, scratch, skipped, wait_until};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Signals that interrupt recording code, exceptions that are thrown from bursts, forks, threads, `longjmp`,
/// computed gotos, jump tables, tail calls, virtual calls, stack walks, cancellation, branches over lock
/// prefixes, readers of headers, readers of clocks in the vdso.
const PROGRAMS: &[&str] = &[
    "backtrace.c",
    "cancel.cc",
    "clock.c",
    "fork.c",
    "goto.c",
    "locked.c",
    "loops.c",
    "noncall.cc",
    "setjmp.c",
    "signals.c",
    "switch.c",
    "tail.c",
    "threads.c",
    "throw.cc",
    "virt.cc",
];

/// Programs that spend their time in the kernel: there may be too few samples of their own code.
const MOSTLY_KERNEL: &[&str] = &["cancel.cc", "threads.c", "fork.c"];

fn record(restitch: &Restitch, pid: u32, profile: &Path, duration: &str) -> Command {
    record_at("30", restitch, pid, profile, duration)
}

fn record_at(overhead: &str, restitch: &Restitch, pid: u32, profile: &Path, duration: &str) -> Command {
    let pid = pid.to_string();
    let mut command = restitch.command(&["record", "-p", &pid, "--source", "burst", "--overhead", overhead]);
    command.args(["--depth", "500", "--duration", duration, "-o"]).arg(profile);
    command
}

fn bursts_of(source: &str, flags: &[&str]) {
    bursts_with(source, flags, &[]);
}

fn bursts_with(source: &str, flags: &[&str], arguments: &[&str]) {
    let Some(program) = stoppable(source, flags) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let mut target = Target::start_with(&program, arguments);
    target.name = format!("{source} {}", flags.join(" "));
    let (pid, profile) = (target.pid(), folder.path().join("profile"));
    let recorded = common::with_time(["2", "6", "20"], |duration| record(&restitch, pid, &profile, duration));
    let told = format!("{}\n{}", recorded.status, recorded.stderr);
    target.assert_running(&told);
    match recorded.status.code() {
        Some(code::DONE) => assert!(told.contains("branches in") && told.contains("bursts ended"), "{told}"),
        Some(code::NOTHING_TO_DO) if MOSTLY_KERNEL.contains(&source) => {}
        _ => panic!("{}: {told}", target.name),
    }
    target.assert_computing("after bursts");
    if told.contains("stay mapped") {
        // A burst that did not end in time; as long as its version is mapped unwinders know of it.
        assert_eq!(look::differences_but_hook(target.pid()), [], "{}: {told}", target.name);
    } else {
        target.assert_untouched(&told);
        restitch.assert_no_files(&format!("{}: {told}", target.name));
    }
    target.stop();
}

#[test]
fn programs_go_on_with_right_results() {
    PROGRAMS.iter().for_each(|source| bursts_of(source, &["-O2"]));
}

/// A thread of `threads.c` that is joined lives for less time than there is between two alarms, and `mix`
/// runs in nothing else that lives longer.
#[test]
fn threads_that_live_shortly_have_their_share() {
    let Some(program) = stoppable("threads.c", &["-O2", "-pthread"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let mut target = Target::start(&program);
    let (pid, profile) = (target.pid(), folder.path().join("profile"));
    let share = |duration: &str| {
        // At one percent, alarms are some ten milliseconds of processor time apart.
        let recorded = common::finish(&mut record_at("1", &restitch, pid, &profile, duration));
        if recorded.status.code() == Some(code::NOTHING_TO_DO) {
            return (0.0, recorded.stderr);
        }
        recorded.expect(code::DONE);
        let shown = common::finish(restitch.command(&["profile", "show"]).arg(&profile));
        let line = shown.stdout.lines().find(|line| line.contains("% mix/") || line.ends_with("% mix"));
        let percent = line.and_then(|line| line.split('%').next()?.trim().parse::<f64>().ok());
        (percent.unwrap_or_default(), recorded.stderr + &shown.stdout)
    };
    // A busy machine may leave time for a few bursts only.
    let mut told = (0.0, String::new());
    for duration in ["3", "10", "30"] {
        told = share(duration);
        if told.0 > 10.0 {
            break;
        }
    }
    assert!(told.0 > 10.0, "{}", told.1);
    target.assert_computing("after bursts");
    target.stop();
}

/// A command is all programs that it executes one after the other.
#[test]
fn what_a_command_executes_is_recorded() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let recorded = common::with_time(["4", "10", "30"], |seconds| {
        let mut command = restitch.command(&["record", "--source", "burst", "-o"]);
        command.arg(&profile).args(["--", "sh", "-c", r#"exec env "$0" "$@""#]);
        command.arg(&program).args(["--seconds", seconds]);
        command
    });
    recorded.expect(SUCCESS);
    let shown = common::finish(restitch.command(&["profile", "show"]).arg(&profile));
    assert!(shown.stdout.contains("switch-"), "{}\n{}", recorded.stderr, shown.stdout);
    restitch.assert_no_files(&recorded.stderr);
}

/// Somebody always reads the headers of what is taken out.
#[test]
fn so_do_programs_that_walk_their_objects() {
    (0..4).for_each(|_| bursts_with("objects.c", &["-O2"], &["--reads", "20000"]));
}

#[test]
fn so_do_programs_without_optimization() {
    ["signals.c", "throw.cc", "switch.c"].iter().for_each(|source| bursts_of(source, &["-O0"]));
}

/// The process runs in its original code until it gets its new layout.
#[test]
fn attach_takes_its_profile_from_records() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    for source in ["burst", "trace"] {
        let restitch = Restitch::new();
        let mut target = Target::start(&program);
        let done = restitch.attach(target.pid(), &["--source", source, "--json", "-"]);
        let told = format!("{}\n{}\n{}", done.status, done.stdout, done.stderr);
        if source == "trace" && told.contains("hardware breakpoints") {
            skipped("no hardware breakpoints");
            continue;
        }
        assert_eq!(done.status.code(), Some(code::DONE), "{told}");
        assert!(done.stdout.contains("branch records"), "{told}");
        target.assert_computing("in the new layout");
        assert_eq!(restitch.revert(target.pid()).status.code(), Some(code::DONE));
        target.assert_computing("after revert");
        target.stop();
    }
}

/// What goes on while restitch is killed: exceptions, cancellation, walks of stacks from inside of the vdso,
/// forks, threads that come and go, and programs that miss a single lost signal (signals.c, setjmp.c).
const KILLED: &[&str] = &[
    "throw.cc",
    "virt.cc",
    "cancel.cc",
    "clock.c",
    "fork.c",
    "locked.c",
    "threads.c",
    "noncall.cc",
    "signals.c",
    "setjmp.c",
];

#[test]
fn restitch_may_be_killed_at_any_moment() {
    let number = std::env::var("RESTITCH_KILLS").ok().and_then(|v| v.parse().ok()).unwrap_or(27);
    let mut random = Random::new(0x5eed);
    for &source in KILLED {
        let Some(program) = stoppable(source, &["-O2"]) else { return };
        let (restitch, folder) = (Restitch::new(), scratch());
        let mut target = Target::start(&program);
        for round in 0..number / KILLED.len() {
            let mut command = record(&restitch, target.pid(), &folder.path().join("profile"), "2");
            let mut run =
                Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
                    .unwrap();
            // Mostly while bursts are taken: the journal is there then.
            if random.below(4) != 0 {
                let _ = wait_until(common::PATIENCE, || {
                    (!restitch.journals().is_empty() || !run.is_running()).then_some(())
                });
            }
            std::thread::sleep(Duration::from_micros(random.below(900_000)));
            let _ = run.kill();
            target.assert_computing(&format!("after kill {round}"));
            // What is mapped is known.
            let left = look::ours(target.pid());
            assert!(
                left.is_empty() || !restitch.journals().is_empty(),
                "{source} after kill {round}: {left:?}"
            );
            // What leads to the unwinders' hook, and nothing else.
            assert_eq!(look::differences_after_a_kill(target.pid()), [], "{source} after kill {round}");
        }
        let mut told = String::new();
        let gone = || {
            let reverted = restitch.revert(target.pid());
            // Nothing to do: it was killed before it had mapped anything.
            assert!(
                matches!(reverted.status.code(), Some(code::DONE | code::NOTHING_TO_DO)),
                "{}",
                reverted.stderr
            );
            told = format!("{}{}", reverted.stdout, reverted.stderr);
            look::ours(target.pid()).is_empty().then_some(())
        };
        let gone = wait_until(common::PATIENCE, gone).is_some();
        target.assert_computing("after revert");
        assert!(gone, "{source}: {:?}: {told}", look::ours(target.pid()));
        target.assert_untouched("after revert");
        target.stop();
    }
}
