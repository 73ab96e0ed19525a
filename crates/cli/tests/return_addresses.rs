//! Code that looks at its return address does what it does, under every command that runs it in a version:
//! positions by `call` and `pop`, data behind calls, callees that come back elsewhere (`returns.c`), and
//! split stacks, whose `__morestack` does all of that.

mod common;

use common::{PATIENCE, Restitch, Target, code, finish, look, stoppable, with_time};
use restitch_testkit::{compile, compile_with, find_program, program, run, scratch, skipped, strip};
use std::path::Path;
use std::process::Command;

/// Runs `original` under `record`, and the files that `optimize` and `instrument` make of it: all end as
/// `original` does, and say the same.
#[track_caller]
fn files_of(original: &Path) {
    let (restitch, folder) = (Restitch::new(), scratch());
    let path = |name: &str| folder.path().join(name);
    let expected = run(&mut Command::new(original), PATIENCE);
    let same = |what: &str, command: &mut Command| {
        let finished = run(command, PATIENCE);
        let told = format!("{what} {}: {}\n{}", original.display(), finished.status, finished.stderr);
        assert_eq!(finished.status, expected.status, "{told}");
        assert_eq!(finished.stdout, expected.stdout, "{told}");
    };
    same("record", restitch.command(&["record", "-o"]).arg(path("profile")).arg("--").arg(original));
    for layout in ["ph.bb", "hot-cold", "stitch", "original"] {
        let mut command = restitch.command(&["optimize", "--layout", layout]);
        command.arg(original).arg("--profile").arg(path("profile")).arg("-o").arg(path("fast"));
        finish(&mut command).expect(code::DONE);
        same(layout, &mut Command::new(path("fast")));
    }
    let mut command = restitch.command(&["instrument"]);
    command.arg(original).arg("-o").arg(path("counting")).arg("--counts").arg(path("counts"));
    finish(&mut command).expect(code::DONE);
    same("instrument", &mut Command::new(path("counting")));
}

#[test]
fn files_keep_return_addresses() {
    for flags in [&["-O2"][..], &["-O2", "-no-pie"], &["-O2", "-static"]] {
        let program = match compile(&program("returns.c"), flags) {
            Ok(program) => program,
            Err(error) => return skipped(&error.to_string()),
        };
        files_of(&program);
        if let Ok(stripped) = strip(&program) {
            files_of(&stripped);
        }
    }
}

#[test]
fn processes_keep_return_addresses() {
    let Some(program) = stoppable("returns.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    for round in 1..=2 {
        let attached = restitch.attach(target.pid(), &[]);
        target.assert_computing(&format!("after attach {round}: {}\n{}", attached.stdout, attached.stderr));
        attached.expect(code::DONE);
        let reverted = restitch.revert(target.pid());
        target.assert_computing(&format!("after revert {round}: {}", reverted.stdout));
    }
    target.stop();
}

/// Branches of each way of recording them: their versions, or what follows the process, push and know
/// original return addresses.
fn recorded_by(source: &str) {
    let Some(program) = stoppable("returns.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let mut target = Target::start(&program);
    target.name = format!("returns.c, --source {source}");
    let (pid, profile) = (target.pid().to_string(), folder.path().join("profile"));
    let recorded = with_time(["2", "6", "20"], |duration| {
        let mut command =
            restitch.command(&["record", "-p", &pid, "--source", source, "--duration", duration]);
        command.arg("-o").arg(&profile);
        command
    });
    let told = format!("{}\n{}", recorded.status, recorded.stderr);
    target.assert_computing(&told);
    match recorded.status.code() {
        Some(code::DONE) => {}
        Some(code::REFUSED | code::NOT_PERMITTED) => skipped(&told),
        _ => panic!("{told}"),
    }
    assert_eq!(look::differences_but_hook(target.pid()), [], "{told}");
    target.stop();
}

#[test]
fn bursts_keep_return_addresses() {
    recorded_by("burst");
}

#[test]
fn traces_keep_return_addresses() {
    recorded_by("trace");
}

/// Deep recursion on a split stack, by the linkers that are there.
#[test]
fn split_stacks_grow_in_versions() {
    let folder = scratch();
    let source = folder.path().join("split.c");
    let text = "#include <stdio.h>\n#include <stdlib.h>\n\
        __attribute__((noinline)) static long deep(long n, long a) {\n\
            volatile char room[200]; room[n & 127] = (char)a;\n\
            if (n == 0) return a + room[0];\n\
            if (n % 3 == 0) return deep(n - 1, a * 3 + 1) + room[n & 127];\n\
            return deep(n - 1, a ^ n) - 1;\n\
        }\n\
        int main(void) {\n\
            long s = 0;\n\
            for (long i = 0; i < 2000; i++) s += deep(i, s);\n\
            printf(\"%lx\\n\", s);\n\
        }\n";
    std::fs::write(&source, text).expect("writable");
    for flags in [&["-O2"][..], &["-O2", "-fuse-ld=gold"], &["-O2", "-no-pie", "-s"], &["-O0"]] {
        let flags = [flags, &["-fsplit-stack", "-pthread"]].concat();
        match compile_with("gcc", &source, &flags) {
            Ok(program) => files_of(&program),
            Err(error) => skipped(&error.to_string()),
        }
    }
}

/// Programs of gccgo have split stacks in all their functions.
#[test]
fn goroutines_run_in_versions() {
    let Some(compiler) = ["gccgo", "gccgo-12"].into_iter().find(|name| find_program(name).is_some()) else {
        return skipped("gccgo is missing");
    };
    match compile_with(compiler, &program("split.go"), &["-O2"]) {
        Ok(program) => files_of(&program),
        Err(error) => skipped(&error.to_string()),
    }
}
