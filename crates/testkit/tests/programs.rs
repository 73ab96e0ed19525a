//! The test programs themselves: each variant compiles, runs and holds its own checks.

use restitch_testkit::{
    Error, Guarded, SUCCESS, Server, VARIANTS, compile, compile_with, find_program, program, programs,
    require, run, skip, strip, wait_until, without_section_headers,
};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

fn holds(file: &Path, arguments: &[&str]) {
    let finished = run(Command::new(file).args(arguments), LIMIT);
    assert_eq!(finished.status.code(), Some(SUCCESS), "{}: {finished:?}", file.display());
}

#[test]
fn all_are_there() {
    let names: Vec<_> =
        programs().iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
    let expected = "backtrace.c cancel.cc clock.c coroutine.c faults.c fork.c goto.c locked.c loops.c noncall.cc objects.c odd.c personality.c pointers.cc preempted.c probes.c repeated.c resting.c returns.c server.c setjmp.c signals.c switch.c tail.c threads.c throw.cc virt.cc workers.c";
    assert_eq!(names.join(" "), expected);
}

fn every_program(flags: &[&str]) {
    require!(find_program("gcc").and(find_program("g++")), "gcc and g++");
    for source in programs() {
        let file = compile(&source, flags).unwrap_or_else(|e| panic!("{flags:?}: {e}"));
        holds(&file, &[]);
    }
}

#[test]
fn without_optimization() {
    every_program(VARIANTS[0]);
}
#[test]
fn optimized() {
    every_program(VARIANTS[1]);
}
#[test]
fn static_programs() {
    every_program(VARIANTS[2]);
}
#[test]
fn at_fixed_addresses() {
    every_program(VARIANTS[3]);
}

#[test]
fn by_clang() {
    require!(find_program("clang").and(find_program("clang++")), "clang");
    // clang makes no unwind tables for exceptions of instructions that are no calls.
    for source in programs().iter().filter(|p| !p.ends_with("noncall.cc")) {
        let compiler = if source.extension().unwrap() == "c" { "clang" } else { "clang++" };
        let file = compile_with(compiler, source, &["-O2"]).unwrap_or_else(|e| panic!("{e}"));
        holds(&file, &[]);
    }
}

#[test]
fn stripped_and_bare_programs_run() {
    let file = require!(compile(&program("throw.cc"), &["-O2"]).ok(), "g++");
    let stripped = require!(strip(&file).ok(), "strip");
    let bare = without_section_headers(&stripped).unwrap();
    assert!(stripped.metadata().unwrap().len() < file.metadata().unwrap().len());
    assert_ne!(std::fs::read(&bare).unwrap(), std::fs::read(&stripped).unwrap());
    holds(&stripped, &[]);
    holds(&bare, &[]);
}

#[test]
fn seconds_are_kept() {
    let file = require!(compile(&program("switch.c"), &["-O2"]).ok(), "gcc");
    let start = Instant::now();
    holds(&file, &["--seconds", "0.5"]);
    assert!(start.elapsed() >= Duration::from_millis(500));
}

#[test]
fn compiling_again_gives_the_cached_file() {
    let source = program("tail.c");
    let file = require!(compile(&source, &["-O2"]).ok(), "gcc");
    let made = file.metadata().unwrap().modified().unwrap();
    assert_eq!(compile(&source, &["-O2"]).unwrap(), file);
    assert_eq!(file.metadata().unwrap().modified().unwrap(), made);
    assert_ne!(compile(&source, &["-O1"]).unwrap(), file);
}

#[test]
fn errors_say_what_to_do() {
    let missing = compile_with("no-such-compiler", &program("tail.c"), &[]).unwrap_err();
    assert!(matches!(missing, Error::Missing { .. }));
    assert_eq!(missing.to_string(), "cannot start no-such-compiler; install it");
    if find_program("gcc").is_none() {
        skip!("gcc is not available");
    }
    let absent = compile(&program("tail.c"), &["-lno-such-library"]).unwrap_err();
    assert!(matches!(absent, Error::Missing { .. }), "{absent}");
    assert!(absent.to_string().contains("-lno-such-library"), "{absent}");
}

#[test]
fn a_compiler_that_refuses_fails_the_test() {
    if find_program("gcc").is_none() {
        skip!("gcc is not available");
    }
    let folder = restitch_testkit::scratch();
    let wrong = folder.path().join("wrong.c");
    std::fs::write(&wrong, "int main(void) { return nothing; }").unwrap();
    let told = |source: &Path, flags: &[&str]| {
        let panic = std::panic::catch_unwind(|| compile(source, flags)).expect_err("it fails");
        panic.downcast_ref::<String>().expect("words").clone()
    };
    assert!(told(&program("tail.c"), &["-no-such-flag"]).contains("no-such-flag"));
    let refused = told(&wrong, &[]);
    assert!(refused.starts_with("gcc failed on ") && refused.contains("nothing"), "{refused}");
    assert!(told(&program("absent.c"), &[]).contains("absent.c"));
    assert!(!std::panic::catch_unwind(|| restitch_testkit::strip(&wrong)).is_ok_and(|made| made.is_ok()));
}

#[test]
fn the_server_answers() {
    let file = require!(compile(&program("server.c"), &["-O2"]).ok(), "gcc");
    let mut server = Server::start(&file).unwrap();
    let (mut one, mut two) = (server.connect().unwrap(), server.connect().unwrap());
    assert_eq!(one.ask("ping").unwrap(), "pong");
    for seed in 0..20 {
        assert!(one.check(seed, 1000).unwrap() && two.check(seed * 7, 100).unwrap());
    }
    assert_eq!(two.ask("nonsense").unwrap(), "error");
    assert_eq!(one.ask("stats").unwrap(), "83");
    assert!(two.ask("quit").is_err());
    let status = server.process().wait_within(LIMIT).unwrap();
    assert_eq!(status.code(), Some(SUCCESS));
}

#[test]
fn a_dropped_child_is_gone() {
    let file = require!(compile(&program("switch.c"), &["-O2"]).ok(), "gcc");
    let mut child = Guarded::start(&file, &["--seconds", "600"]).unwrap();
    assert!(child.is_running());
    assert!(child.wait_within(Duration::from_millis(20)).is_none());
    let entry = format!("/proc/{}/stat", child.pid());
    assert!(Path::new(&entry).exists());
    drop(child);
    assert!(!Path::new(&entry).exists());
}

#[test]
fn waiting_has_an_end() {
    let mut looks = 0;
    assert_eq!(
        wait_until(LIMIT, || (looks == 3).then_some(7).or_else(|| {
            looks += 1;
            None
        })),
        Some(7)
    );
    assert_eq!(wait_until(Duration::ZERO, || None::<()>), None);
}

#[test]
fn programs_are_found() {
    assert!(find_program("sh").is_some_and(|p| p.is_absolute()));
    assert_eq!(find_program("no-such-program"), None);
}
