//! Every test program under attach, revert and attach again: its self-check goes on, and revert gives its
//! bytes back. In some variants of compiling a program may be refused; then it has to be untouched.

mod common;

use common::{Restitch, Target, code, look, stoppable};
use restitch_testkit::Finished;
use std::sync::Mutex;

/// All programs.
const PROGRAMS: &[&str] = &[
    "backtrace.c",
    "cancel.cc",
    "clock.c",
    "coroutine.c",
    "faults.c",
    "fork.c",
    "goto.c",
    "locked.c",
    "loops.c",
    "noncall.cc",
    "objects.c",
    "odd.c",
    "personality.c",
    "pointers.cc",
    "preempted.c",
    "probes.c",
    "repeated.c",
    "resting.c",
    "returns.c",
    "server.c",
    "setjmp.c",
    "signals.c",
    "switch.c",
    "tail.c",
    "threads.c",
    "throw.cc",
    "virt.cc",
    "workers.c",
];

/// Programs whose first process only waits: `tree_records.rs` has them.
const WAITING: &[&str] = &["workers.c"];

/// Programs that spend their time in the kernel, starting and ending threads: there may be too few samples of
/// their own code.
const MOSTLY_KERNEL: &[&str] = &["cancel.cc", "threads.c"];

#[test]
fn the_list_is_complete() {
    let found: Vec<String> = restitch_testkit::programs()
        .iter()
        .map(|p| p.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, PROGRAMS);
}

fn text(finished: &Finished) -> String {
    format!("{}\n{}\n{}", finished.status, finished.stdout, finished.stderr)
}

/// A whole cycle with one program.
fn cycle(source: &str, flags: &[&str]) {
    cycle_with(source, flags, &[]);
}

/// The same with options of `attach`.
fn cycle_with(source: &str, flags: &[&str], options: &[&str]) {
    let Some(program) = stoppable(source, flags) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    target.name = format!("{source} {}", flags.join(" "));
    let pid = target.pid();
    for round in 1..=2 {
        let attached = restitch.attach(pid, options);
        target.assert_running(&format!("after attach {round}: {}", text(&attached)));
        match attached.status.code() {
            Some(code::DONE) => {}
            Some(code::NOTHING_TO_DO) if MOSTLY_KERNEL.contains(&source) => {
                target.assert_untouched(&format!("after a refusal: {}", attached.stderr));
                assert_eq!(restitch.files(), Vec::<std::path::PathBuf>::new(), "a refusal leaves files");
                return target.stop();
            }
            _ => panic!("{}: attach {round}: {}", target.name, text(&attached)),
        }
        in_force(&restitch, &mut target, &attached);
        reverted(&restitch, &mut target, round);
    }
    target.stop();
}

/// The new layout is in force: status says so and the bytes say so.
#[track_caller]
fn in_force(restitch: &Restitch, target: &mut Target, attached: &Finished) {
    let pid = target.pid();
    let patched = look::differences(pid);
    assert!(!patched.is_empty(), "{}: nothing is patched: {}", target.name, text(attached));
    let status = restitch.status(pid);
    status.expect(code::DONE);
    assert!(status.stdout.contains("optimized"), "{}: {}", target.name, text(&status));
    assert!(!status.stdout.contains("left in a counting version"), "{}: {}", target.name, text(&status));
    let versions = look::ours(pid);
    for place in &patched {
        let to = place.target().unwrap_or_else(|| panic!("{}: {place:x?} is no jump", target.name));
        assert!(
            versions.iter().any(|v| v.start <= to && to < v.end) || look::is_hook(pid, to),
            "{}: {place:x?} leads to no version",
            target.name
        );
    }
    let all = restitch.run(&["status"]);
    assert!(all.stdout.contains(&pid.to_string()), "{}", text(&all));
    target.assert_computing("in the new layout");
}

/// Revert gives everything back; versions that somebody may return into are reported and go later.
#[track_caller]
fn reverted(restitch: &Restitch, target: &mut Target, round: usize) {
    let pid = target.pid();
    let mut last = restitch.revert(pid);
    last.expect(code::DONE);
    assert_eq!(look::differences_but_hook(pid), [], "{} after revert {round}: {}", target.name, text(&last));
    for _ in 0..40 {
        if !last.stdout.contains("stays mapped") {
            break;
        }
        common::target::linger(50);
        last = restitch.revert(pid);
        last.expect(code::DONE);
    }
    target.assert_running(&format!("after revert {round}"));
    if last.stdout.contains("stays mapped") {
        // Kept and said so: the process must have a reason that does not go away.
        assert!(!look::ours(pid).is_empty(), "{}: {}", target.name, text(&last));
        assert!(may_keep(&target.name), "{}: {}", target.name, text(&last));
    } else {
        target.assert_untouched(&format!("after revert {round}"));
        restitch.assert_no_files(&target.name);
        let status = restitch.status(pid);
        assert!(status.stdout.contains("original code"), "{}", text(&status));
        restitch.revert(pid).expect(code::NOTHING_TO_DO);
    }
    target.assert_computing("after revert");
}

/// Coroutines keep return addresses on stacks that no thread is on, and so do user threads that a signal has
/// interrupted; what is left of an exception in freed memory, often of threads that have ended, keeps its
/// landing pad (in a static program nearly all that throws is one module, and so one version). Versions of a
/// static program at a fixed address lie below 4 MiB, where plain numbers look like addresses (a size in the
/// C library does).
fn may_keep(name: &str) -> bool {
    let at_fixed_address = name.ends_with("-static");
    name.starts_with("setjmp.c")
        || name.starts_with("coroutine.c")
        || name.starts_with("preempted.c")
        || at_fixed_address
        || name.starts_with("throw.cc") && name.contains("-static")
}

/// Programs in one variant, three at a time; every failure is told.
fn cycles(programs: &[&str], flags: &[&str]) {
    let working = programs.iter().filter(|source| !WAITING.contains(source));
    let (next, failed) = (Mutex::new(working), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(source) = next.lock().expect("not poisoned").next() else { break };
                    let result = std::panic::catch_unwind(|| cycle(source, flags));
                    if result.is_err() {
                        failed.lock().expect("not poisoned").push(*source);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("not poisoned");
    assert!(failed.is_empty(), "{flags:?}: {failed:?}; their messages are above");
}

#[test]
fn optimized_programs() {
    cycles(PROGRAMS, &["-O2"]);
}

#[test]
fn programs_at_fixed_addresses() {
    cycles(PROGRAMS, &["-O3", "-no-pie"]);
}

#[test]
fn static_programs() {
    cycles(&["goto.c", "loops.c", "throw.cc"], &["-O0", "-static"]);
}

#[test]
fn static_optimized_programs() {
    let programs = [
        "backtrace.c",
        "coroutine.c",
        "server.c",
        "setjmp.c",
        "signals.c",
        "switch.c",
        "throw.cc",
        "virt.cc",
    ];
    cycles(&programs, &["-O2", "-static"]);
}

#[test]
fn static_programs_at_any_address() {
    cycles(&["backtrace.c", "throw.cc"], &["-O2", "-static-pie"]);
}

/// Their jumps go by the original tables, to redirects or the original code.
#[test]
fn programs_whose_jump_tables_have_no_copies() {
    for flags in [["-O2", "-pie"], ["-O2", "-no-pie"]] {
        for source in ["switch.c", "throw.cc"] {
            cycle_with(source, &flags, &["--copy-tables", "off", "--keep-in-place", "off"]);
        }
    }
}
