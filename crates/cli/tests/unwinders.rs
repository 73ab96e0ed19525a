//! Unwinders of all kinds and debuggers on processes that are changed again and again: exceptions through
//! LLVM's libunwind, backtraces by nongnu libunwind, namespaces of `dlmopen` beside the list of versions for
//! debuggers.

mod common;

use common::{PATIENCE, Restitch, Target, code, look, stoppable};
use restitch_testkit::{Error, Guarded, compile_with, find_program, program, require, run, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `source` of tests/programs by clang, made to end when its test does. `None`, with a message, if that is
/// missing.
fn stoppable_by_clang(source: &str, flags: &[&str]) -> Option<PathBuf> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut all = vec!["-D_GNU_SOURCE", "-DSTOPPABLE=1", "-include", header];
    all.extend(flags);
    match compile_with("clang++", &program(source), &all) {
        Ok(path) => Some(path),
        Err(Error::Missing { tool }) => {
            restitch_testkit::skipped(&format!("{tool} is missing"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Attaches and reverts `rounds` times; the target's self-check goes on all the time. Versions may stay
/// mapped.
#[track_caller]
fn cycles(target: &mut Target, rounds: u32) {
    let restitch = Restitch::new();
    let pid = target.pid();
    for round in 1..=rounds {
        let attached = restitch.attach(pid, &[]);
        let told = format!("{}\n{}", attached.stdout, attached.stderr);
        target.assert_running(&format!("after attach {round}: {told}"));
        attached.expect(code::DONE);
        assert!(!look::ours(pid).is_empty(), "{told}");
        target.assert_computing(&format!("in layout {round}"));
        restitch.revert(pid).expect(code::DONE);
        assert_eq!(look::differences_but_hook(pid), [], "{} after revert {round}", target.name);
        target.assert_computing(&format!("after revert {round}"));
    }
}

/// The linker's flags for LLVM's libunwind, linked statically: so that all of the program's unwinding is its.
const LLVM: &[&str] = &["-O2", "-stdlib=libc++", "-Wl,--no-as-needed", "-l:libunwind.a", "-ldl", "-w"];

fn has_llvm_libraries() -> bool {
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|e| e.path());
    versions
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("llvm-")))
        .any(|p| p.join("lib/libc++.so").exists() && p.join("lib/libunwind.a").exists())
}

#[test]
fn exceptions_by_llvms_unwinder_pass_moved_frames() {
    if !has_llvm_libraries() {
        return restitch_testkit::skipped("libc++ and LLVM's libunwind are missing");
    }
    let Some(program) = stoppable_by_clang("throw.cc", LLVM) else { return };
    let mut target = Target::start_with(&program, &["--threads", "4"]);
    cycles(&mut target, 4);
    target.stop();
}

#[test]
fn backtraces_by_nongnu_libunwind_are_complete() {
    let Some(program) = stoppable("backtrace.c", &["-O2"]) else { return };
    let alone = run(Command::new(&program).args(["--nongnu", "1"]), PATIENCE);
    if alone.stderr.contains("library != NULL") {
        return restitch_testkit::skipped("libunwind.so.8 is missing");
    }
    let mut target = Target::start_with(&program, &["--nongnu", "1"]);
    cycles(&mut target, 4);
    target.stop();
}

#[test]
fn exceptions_of_static_programs_pass_moved_frames_in_many_threads() {
    for flags in [&["-O2", "-static"], &["-O2", "-static-pie"]] {
        let Some(program) = stoppable("throw.cc", flags) else { return };
        let bare = restitch_testkit::strip(&program).expect("strip is there where g++ is");
        let mut target = Target::start_with(&bare, &["--threads", "4"]);
        cycles(&mut target, 2);
        target.stop();
    }
}

/// The stripped program; `None`, with a message, if the tools to make it are missing.
fn stripped(made: Result<PathBuf, Error>) -> Option<PathBuf> {
    match made {
        Ok(path) => Some(restitch_testkit::strip(&path).expect("strip is there where compilers are")),
        Err(error @ Error::Missing { .. }) => {
            restitch_testkit::skipped(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn exceptions_by_llvms_unwinder_in_stripped_static_programs_pass_moved_frames() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    for kind in [&["-static"][..], &["-static-pie", "-fPIE"]] {
        let mut flags = vec!["-O2", "-D_GNU_SOURCE", "-DSTOPPABLE=1", "-include", header];
        flags.extend(kind);
        let made = restitch_testkit::compile_with_llvm_runtime(&program("throw.cc"), &flags);
        let Some(bare) = stripped(made) else { return };
        let mut target = Target::start_with(&bare, &["--threads", "4"]);
        cycles(&mut target, 2);
        target.stop();
    }
}

#[test]
fn panics_in_stripped_static_rust_programs_pass_moved_frames() {
    let made = restitch_testkit::compile_rust_with_musl(&program("panics.rs"));
    let Some(bare) = stripped(made) else { return };
    let mut target = Target::start_with(&bare, &["--threads", "4"]);
    cycles(&mut target, 3);
    target.stop();
}

/// A program that makes and removes namespaces of objects when it is told to: for each file FOLDER/N, N
/// rising.
const NAMESPACES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile unsigned work;
__attribute__((noinline)) static unsigned spin(unsigned n) {
    unsigned s = n;
    for (unsigned i = 0; i < 200000; i++) s = s * 1664525u + (i & s ? 1013904223u : 7u);
    return s;
}
static int namespaces(unsigned n) {
    void *library = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    if (!library) { fprintf(stderr, "%u: %s\n", n, dlerror()); return 1; }
    double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
    return !cosine || cosine(0.0) != 1.0 || dlclose(library) ? 2 : 0;
}
int main(int argc, char **argv) {
    char name[4096];
    unsigned next = 0;
    for (unsigned n = 0; getppid() != 1; n++) {
        work += spin(n);
        snprintf(name, sizeof name, "%s/%u", argv[1], next);
        if (access(name, F_OK)) continue;
        for (int i = 0; i < 5; i++)
            if (namespaces(n)) return 1;
        if (remove(name)) return 2;
        if (next++ == 9) return 42;
    }
    return 3;
}
"#;

#[test]
fn namespaces_come_and_go_beside_the_list_for_debuggers() {
    let folder = restitch_testkit::scratch();
    let source = folder.path().join("namespaces.c");
    std::fs::write(&source, NAMESPACES).expect("the folder is writable");
    let program = match compile_with("gcc", &source, &["-O2", "-ldl"]) {
        Ok(program) => program,
        Err(Error::Missing { tool }) => return restitch_testkit::skipped(&format!("{tool} is missing")),
        Err(error) => panic!("{error}"),
    };
    let mut process = Guarded::spawn(Command::new(&program).arg(folder.path())).expect("it starts");
    common::target::linger(300);
    let restitch = Restitch::new();
    let mut names = 0..10;
    let mut make = |process: &mut Guarded, when: &str| {
        let file = folder.path().join(names.next().expect("few steps").to_string());
        std::fs::write(&file, "").expect("the folder is writable");
        let made = wait_until(PATIENCE, || (!file.exists() || !process.is_running()).then_some(()));
        assert!(made.is_some() && !file.exists(), "{when}: it ended");
    };
    // The chain of lists: as the loader made it, with ours, and both ways of taking ours out: before and
    // after another was appended.
    for round in 1..=3 {
        restitch.attach(process.pid(), &[]).expect(code::DONE);
        if find_program("gdb").is_some() {
            assert!(gdb_sees(process.pid(), restitch.state()), "round {round}");
        }
        make(&mut process, "attached");
        make(&mut process, "attached, again");
        restitch.revert(process.pid()).expect(code::DONE);
        make(&mut process, "reverted");
        assert!(!look::ours(process.pid()).is_empty() || !gdb_sees(process.pid(), restitch.state()));
    }
    make(&mut process, "at the end");
    let status = process.wait_within(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(42));
}

/// Where the C library is there several times, the process is refused with the reason, or exceptions pass.
#[test]
fn a_process_with_two_c_libraries_is_told_apart_from_a_static_one() {
    let Some(program) = stoppable("loaded/namespaces.cc", &["-O2", "-ldl"]) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let attached = restitch.attach(target.pid(), &[]);
    target.assert_computing(&format!("after attach: {}", attached.stderr));
    match attached.status.code() {
        Some(code::DONE) => restitch.revert(target.pid()).expect(code::DONE),
        _ => common::expect_message(&attached, code::REFUSED, &["dlmopen"]),
    }
    assert_eq!(look::differences_but_hook(target.pid()), []);
    target.stop();
}

/// Whether gdb lists a version among the process's objects. Without gdb: no.
fn gdb_sees(pid: u32, state: &Path) -> bool {
    let Some(gdb) = find_program("gdb") else { return false };
    let mut command = Command::new(gdb);
    command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", &pid.to_string()]);
    let text = run(command.args(["-ex", "info sharedlibrary"]), PATIENCE).stdout;
    text.lines().any(|l| l.contains(&*state.to_string_lossy()))
}

#[test]
fn gdb_names_moved_functions_by_itself() {
    let gdb = require!(find_program("gdb"), "gdb");
    let Some(program) = stoppable("virt.cc", &["-O2"]) else { return };
    let mut target = Target::start(&program);
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let status = restitch.status(target.pid()).stdout;
    assert!(!status.contains("add-symbol-file"), "{status}");
    named_frames(&gdb, &mut target, &[]);
    target.stop();
}

#[test]
fn status_says_what_gdb_needs_for_a_static_program() {
    let gdb = require!(find_program("gdb"), "gdb");
    let Some(program) = stoppable("virt.cc", &["-O2", "-static"]) else { return };
    let mut target = Target::start(&program);
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let status = restitch.status(target.pid()).stdout;
    let commands: Vec<&str> = status.lines().filter_map(|l| Some(&l[l.find("add-symbol-file")?..])).collect();
    assert!(!commands.is_empty(), "{status}");
    named_frames(&gdb, &mut target, &commands);
    target.stop();
}

/// Looks at the process until it stands in moved code; each frame up to `main` has a name then.
#[track_caller]
fn named_frames(gdb: &Path, target: &mut Target, commands: &[&str]) {
    for _ in 0..20 {
        let mut command = Command::new(gdb);
        command.args([
            "-nx",
            "-batch",
            "-iex",
            "set debuginfod enabled off",
            "-p",
            &target.pid().to_string(),
        ]);
        command.args(commands.iter().flat_map(|c| ["-ex", c]));
        command.args(["-ex", "printf \"PC=%#lx\\n\", (unsigned long)$pc", "-ex", "backtrace"]);
        let text = run(&mut command, PATIENCE).stdout;
        let pc = text.lines().find_map(|l| l.strip_prefix("PC=0x"));
        let pc = pc.and_then(|p| u64::from_str_radix(p, 16).ok()).expect("gdb attaches");
        let frames: Vec<&str> = text.lines().filter(|l| l.starts_with('#')).collect();
        assert!(frames.iter().any(|f| f.contains("main")), "{pc:#x}:\n{text}");
        assert!(!frames.iter().any(|f| f.contains("??")), "{pc:#x}:\n{text}");
        if look::ours(target.pid()).iter().any(|v| v.start <= pc && pc < v.end) {
            return target.assert_computing("after gdb");
        }
    }
    panic!("the process was never found in moved code");
}
