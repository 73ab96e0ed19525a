//! Code that no compiler writes: it computes what it did, under every command; what cannot be understood
//! stays, with a reason.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, finish, stoppable};
use restitch_report::RunResult;
use restitch_testkit::{SUCCESS, compile, compile_with, program, run, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sources of tests/programs/odd with flags. GNU ld makes no search table of entries that overlap.
const CASES: &[(&str, &[&str])] = &[
    ("odd/constants.c", &["-O2"]),
    ("odd/constants.c", &["-O1", "-no-pie", "-s"]),
    ("odd/table.c", &["-O2"]),
    ("odd/table.c", &["-O2", "-no-pie"]),
    ("odd/entries.c", &["-O2", "-Wl,--no-eh-frame-hdr"]),
    ("odd/entries.c", &["-O2", "-fuse-ld=gold"]),
    ("odd/flags.c", &["-O2"]),
    ("odd/labels.c", &["-O2"]),
    ("odd/labels.c", &["-O1", "-s"]),
    ("odd/unknown.c", &["-O2"]),
    ("odd/unknown.c", &["-O1", "-no-pie", "-s"]),
    ("odd/computed.c", &["-O2"]),
    ("odd/computed.c", &["-O2", "-mcmodel=large", "-fPIE", "-pie"]),
    ("odd/computed.c", &["-O1", "-mcmodel=large", "-fPIE", "-pie", "-s"]),
    ("odd/computed.c", &["-O2", "-mcmodel=large", "-fno-pie", "-no-pie"]),
    ("odd/long.c", &["-O2"]),
    ("odd/long.c", &["-O1", "-s"]),
    ("odd/backward.c", &["-O2"]),
    ("odd/backward.c", &["-O1", "-no-pie", "-s"]),
    ("odd/steps.c", &["-O2"]),
    ("odd/steps.c", &["-O1", "-no-pie", "-s"]),
    ("odd/tagged.c", &["-O2"]),
    ("odd/tagged.c", &["-O1", "-s"]),
    ("odd/unrolled.c", &["-O2"]),
    ("odd/unrolled.c", &["-O2", "-fno-pie", "-no-pie", "-s"]),
    ("odd/position.c", &["-O2"]),
    ("odd/position.c", &["-O1", "-no-pie", "-s"]),
    ("odd/dispatch.c", &["-O2", "-pthread"]),
    ("odd/patched.c", &["-O2", "-fcf-protection=none"]),
    ("odd/patched.c", &["-O1", "-fcf-protection=none", "-DABSOLUTE", "-s"]),
    ("odd/patched.c", &["-O2", "-fcf-protection=none", "-no-pie", "-s"]),
];

/// Why code stays, in the words of `analyze`.
const DATA: &str = "there may be data in it";
const OVERLAPS: &str = "overlaps another function's";
const COMPUTED: &str = "a jump goes to places in it that are computed";
const POSITION: &str = "it looks at its own program counter";
const PATCHED: &str = "made to be changed while the program runs";
const WRITABLE: &str = "its code is writable";

fn compiled(source: &str, flags: &[&str]) -> Option<PathBuf> {
    match compile(&program(source), flags) {
        Ok(path) => Some(path),
        Err(error @ restitch_testkit::Error::Missing { .. }) => {
            restitch_testkit::skipped(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs what is there, which checks itself.
#[track_caller]
fn works(file: &Path) {
    run(&mut Command::new(file), PATIENCE).expect(SUCCESS);
}

/// The result of the command, which has to be done.
#[track_caller]
fn done(command: &mut Command) -> RunResult {
    let finished = finish(command.args(["--json", "-"]));
    finished.expect(code::DONE);
    RunResult::from_json(&finished.stdout).expect("the JSON form of a result")
}

#[test]
fn odd_programs_compute_what_they_did_recorded_optimized_and_counting() {
    for (source, flags) in CASES {
        let Some(original) = compiled(source, flags) else { continue };
        computes(&original, &format!("{source} {flags:?}"));
    }
}

/// A program that checks itself, recorded, optimized and counting.
#[track_caller]
fn computes(original: &Path, what: &str) {
    let (restitch, folder) = (Restitch::new(), scratch());
    let path = |name: &str| folder.path().join(name);
    let profile = path("profile");
    let recorded = finish(restitch.command(&["record", "-o"]).arg(&profile).arg("--").arg(original));
    recorded.expect(SUCCESS);
    for (name, more) in [
        ("plain", &["--keep-in-place", "off", "--pointers", "off"][..]),
        ("retargeted", &["--keep-in-place", "off", "--pointers", "on"]),
    ] {
        let mut command = restitch.command(&["optimize"]);
        command.arg(original).arg("--profile").arg(&profile).arg("-o").arg(path(name)).args(more);
        let result = done(&mut command);
        let version = result.modules[0].version.as_ref().expect("a version");
        assert!(version.redirects > 0, "{what}: {version:?}");
        works(&path(name));
    }
    let mut command = restitch.command(&["instrument"]);
    command.arg(original).arg("-o").arg(path("counting")).arg("--counts").arg(path("counts"));
    finish(&mut command).expect(code::DONE);
    works(&path("counting"));
}

/// Cases of the switch below.
const MANY: u32 = 2_000;

/// A switch over all values that a number can have, behind a comparison of the same number with a small one:
/// the compiler drops the check of the index, and that comparison stands nearest in front of the table.
fn switch_without_a_check() -> String {
    let cases: String =
        (0..MANY).map(|i| format!("case {i}: y = y * {} + {i}; break;\n", 2 * i + 3)).collect();
    let header = program("odd/odd.h");
    format!(
        "#include \"{}\"\n\
        NOINLINE static void small(uint32_t *y) {{ *y += 3; }}\n\
        NOINLINE static uint32_t chosen(uint32_t x, uint32_t y) {{\n\
            if (x >= {MANY}) return y;\n\
            if (x < 3) small(&y);\n\
            switch (x) {{ {cases} default: __builtin_unreachable(); }}\n\
            return y;\n\
        }}\n\
        static void one_round(unsigned round) {{\n\
            uint32_t y = usual(round, 7);\n\
            for (uint32_t x = 0; x < {MANY} + 3; x++) {{\n\
                uint32_t wanted = x >= {MANY} ? y : (x < 3 ? y + 3 : y) * (2 * x + 3) + x;\n\
                y = chosen(x, y);\n\
                CHECK(y == wanted);\n\
                if (x % 8 == 0) y += usual(y, x);\n\
            }}\n\
        }}\n\
        int main(int argc, char **argv) {{ return run_rounds(argc, argv, one_round); }}\n",
        header.display()
    )
}

#[test]
fn switches_whose_check_the_compiler_has_dropped_are_whole() {
    let folder = scratch();
    let source = folder.path().join("switch.c");
    std::fs::write(&source, switch_without_a_check()).expect("writable");
    for (compiler, flags) in [("clang", &["-O2"][..]), ("gcc", &["-O2", "-fno-pie", "-no-pie", "-s"])] {
        match compile_with(compiler, &source, flags) {
            Ok(original) => computes(&original, &format!("{compiler} {flags:?}")),
            Err(error) => restitch_testkit::skipped(&error.to_string()),
        }
    }
}

#[test]
fn odd_programs_are_attached_to_and_given_back() {
    for (source, flags) in CASES {
        let Some(original) = stoppable(source, flags) else { continue };
        let (restitch, mut target) = (Restitch::new(), Target::start(&original));
        let attached = restitch.attach(target.pid(), &["--keep-in-place", "off"]);
        target.assert_running(&attached.stderr);
        attached.expect(code::DONE);
        target.assert_computing("in the new layout");
        target.assert_goes_back(&restitch);
        target.stop();
    }
}

/// Wherever its thread stands when it is stopped: a loop that is never left would stay in the old layout for
/// ever.
#[test]
fn threads_between_the_load_and_the_jump_of_a_dispatch_are_taken_along() {
    let Some(program) = stoppable("odd/dispatch.c", &["-O2", "-pthread"]) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid().to_string();
    for _ in 0..8 {
        let attach = ["attach", &pid, "--duration", "0.5", "--measure", "0", "--keep-in-place", "off"];
        let apply = done(&mut restitch.command(&attach)).apply.expect("it was moved");
        assert_eq!((apply.moved_to_counting, apply.moved_to_layout), (1, 1), "{apply:?}");
        target.assert_goes_back(&restitch);
    }
    target.stop();
}

/// What `analyze` says of the file, in one line.
fn analyzed(file: &Path) -> String {
    let finished = finish(Restitch::new().command(&["analyze"]).arg(file));
    finished.expect(code::DONE);
    finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_stays_has_a_reason() {
    for (source, flags) in CASES {
        let Some(original) = compiled(source, flags) else { continue };
        let told = analyzed(&original);
        let expected: &[&str] = match *source {
            "odd/constants.c" | "odd/table.c" | "odd/unknown.c" => &[DATA],
            "odd/entries.c" => &[OVERLAPS],
            "odd/unrolled.c" => &[COMPUTED],
            "odd/patched.c" => &[PATCHED],
            "odd/position.c" => &[POSITION],
            _ => &[],
        };
        for reason in [DATA, OVERLAPS, COMPUTED, PATCHED, POSITION] {
            assert_eq!(told.contains(reason), expected.contains(&reason), "{source} {flags:?}: {told}");
        }
    }
}

/// Makes all code of a file writable, as `-z rwx` does in linkers that have it.
fn with_writable_code(file: &Path, to: &Path) {
    let mut bytes = std::fs::read(file).expect("readable");
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (headers, count) = (word(&bytes, 32) as usize, usize::from(bytes[56]));
    for header in (0..count).map(|i| headers + 56 * i) {
        // PT_LOAD with PF_X gets PF_W.
        if word(&bytes, header) == 1 && word(&bytes, header + 4) & 1 != 0 {
            bytes[header + 4] |= 2;
        }
    }
    restitch_testkit::copy_program(file, to).expect("writable");
    std::fs::write(to, bytes).expect("writable");
}

#[test]
fn files_whose_code_is_writable_stay_as_they_are() {
    let Some(closed) = stoppable("odd/rewritten.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let path = |name: &str| folder.path().join(name);
    with_writable_code(&closed, &path("open"));
    assert!(analyzed(&path("open")).contains(WRITABLE));
    let recorded =
        finish(restitch.command(&["record", "-o"]).arg(path("profile")).arg("--").arg(path("open")));
    recorded.expect(SUCCESS);
    let mut optimize = restitch.command(&["optimize"]);
    optimize.arg(path("open")).arg("--profile").arg(path("profile")).arg("-o").arg(path("out"));
    let mut instrument = restitch.command(&["instrument"]);
    instrument.arg(path("open")).arg("-o").arg(path("out")).arg("--counts").arg(path("counts"));
    for command in [&mut optimize, &mut instrument] {
        expect_message(&finish(command), code::REFUSED, &[WRITABLE, "omagic"]);
        assert!(!path("out").exists());
    }
    let mut target = Target::start(&path("open"));
    // It may be that the C library is worth it.
    let attached = restitch.attach(target.pid(), &["--json", "-"]);
    assert!((attached.stdout + &attached.stderr).contains(WRITABLE), "{}", attached.status);
    target.assert_computing("beside restitch");
    target.stop();
}

#[test]
fn code_that_a_process_has_made_writable_stays() {
    let Some(original) = stoppable("odd/rewritten.c", &["-O2"]) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start_with(&original, &["--open", "1"]));
    let attached = restitch.attach(target.pid(), &["--keep-in-place", "off", "--json", "-"]);
    target.assert_running(&attached.stderr);
    attached.expect(code::DONE);
    assert!(attached.stdout.contains(WRITABLE), "{}", attached.stdout);
    target.assert_computing("in the new layout");
    target.assert_goes_back(&restitch);
    target.stop();
}
