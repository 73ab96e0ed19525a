//! Code that looks at its return address does what it does, under every command that runs it in a version:
//! positions by `call` and `pop`, data behind calls, callees that come back elsewhere (`returns.c`), and
//! split stacks, whose `__morestack` does all of that.

mod common;

use common::{PATIENCE, Restitch, Target, code, finish, look, stoppable, with_time};
use restitch_testkit::{compile, compile_with, find_program, program, run, scratch, skipped, strip};
use std::path::{Path, PathBuf};
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

/// Hooks of `-finstrument-functions` are told the function and the place of the call: the original's.
#[test]
fn hooks_of_functions_are_told_original_places() {
    let folder = scratch();
    let source = folder.path().join("hooked.c");
    let text = "#include <stdio.h>\n\
        #define BARE __attribute__((no_instrument_function))\n\
        extern const char __executable_start[], etext[];\n\
        static unsigned long entered, left, places, elsewhere;\n\
        BARE static void note(void *function, void *place) {\n\
            const char *at = place;\n\
            if ((const char *)function < __executable_start || (const char *)function >= etext) elsewhere++;\n\
            /* The C library calls `main`. */\n\
            if (at >= __executable_start && at < etext) places += (unsigned long)(at - __executable_start);\n\
            else elsewhere++;\n\
        }\n\
        BARE void __cyg_profile_func_enter(void *f, void *at) { entered++; note(f, at); }\n\
        BARE void __cyg_profile_func_exit(void *f, void *at) { left++; note(f, at); }\n\
        __attribute__((noinline)) static unsigned odd(unsigned x) { return x * 3 + (x >> 7); }\n\
        __attribute__((noinline)) static unsigned even(unsigned x) { return odd(x) ^ 5; }\n\
        int main(int argc, char **argv) {\n\
            unsigned x = (unsigned)argc + (argv == NULL);\n\
            for (int i = 0; i < 10000000; i++) x = i % 3 ? even(x) : odd(x);\n\
            printf(\"%u %lu %lu %lu %lu\\n\", x, entered, left, places, elsewhere);\n\
            return elsewhere != 1;\n\
        }\n";
    std::fs::write(&source, text).expect("writable");
    for flags in [&["-O2"][..], &["-O1", "-fno-pie", "-no-pie", "-s"]] {
        let flags = [flags, &["-finstrument-functions"]].concat();
        match compile_with("gcc", &source, &flags) {
            Ok(program) => files_of(&program),
            Err(error) => skipped(&error.to_string()),
        }
    }
}

/// Libraries whose functions look at who called them: by a jump to `dlsym`, by themselves, by a jump to what
/// the other library does, and through pointers to `dlsym` that the loader has set.
const ASKED: &str = "
const void *asked(void) { return __builtin_return_address(0); }
";
const ASKING: &str = "
#include <dlfcn.h>
const void *asked(void);
void *next_of(const char *name) { return dlsym(RTLD_NEXT, name); }
const void *handed_on(void) { return asked(); }
static void *(*volatile look_up)(void *, const char *) = dlsym;
void *next_by_pointer(const char *name) { return look_up(RTLD_NEXT, name); }
int has_next_by_pointer(const char *name) { return look_up(RTLD_NEXT, name) != 0; }
";
const CALLER: &str = r#"
#include "check.h"
#include <dlfcn.h>
const void *asked(void), *handed_on(void);
void *next_of(const char *name), *next_by_pointer(const char *name);
int has_next_by_pointer(const char *name);
static void *(*volatile look_up)(void *, const char *) = dlsym;
NOINLINE static uint32_t step(uint32_t x, uint32_t i) { return x % 3 == 0 ? x * 5 + i : x + (x >> 3) + 1; }
static int is_ours(const void *place) {
    Dl_info at, own;
    return dladdr(place, &at) && dladdr((void *)step, &own) && at.dli_fbase == own.dli_fbase;
}
static void one_round(unsigned round) {
    uint32_t x = round | 1;
    for (unsigned i = 0; i < 300000; i++) {
        x = step(x, i);
        OPAQUE(x);
        if (i % 1024 == 0) {
            CHECK(is_ours(asked()));
            CHECK(is_ours(handed_on()));
            CHECK(next_of("malloc") != NULL);
            CHECK(look_up(RTLD_NEXT, "malloc") != NULL);
            CHECK(next_by_pointer("malloc") != NULL);
            CHECK(has_next_by_pointer("malloc"));
        }
    }
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

/// The program with its two libraries in `folder`.
fn calling_others(folder: &Path) -> Option<PathBuf> {
    let path = |name: &str| folder.join(name);
    let built = |name: &str, text: &str, flags: &[&str]| {
        let source = path(&format!("{name}.c"));
        std::fs::write(&source, text).expect("writable");
        let mut command = Command::new("gcc");
        command.args(["-O2", "-D_GNU_SOURCE", "-o"]).arg(path(name)).arg(source).args(flags);
        command.current_dir(folder).status().is_ok_and(|status| status.success())
    };
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let here = format!("-Wl,-rpath,{}", folder.display());
    let shared = ["-shared", "-fPIC", "-L."];
    let first = built("libasked.so", ASKED, &shared);
    let second = first && built("libasking.so", ASKING, &[&shared[..], &["-lasked"]].concat());
    let flags = ["-I", programs, "-include", header, "-L.", "-lasking", "-lasked", &here];
    (second && built("caller", CALLER, &flags)).then(|| path("caller"))
}

#[test]
fn libraries_are_told_original_places() {
    let folder = scratch();
    let Some(program) = calling_others(folder.path()) else { return skipped("gcc is missing") };
    let restitch = Restitch::new();
    let profile = folder.path().join("profile");
    let mut record = restitch.command(&["record", "-o"]);
    finish(record.arg(profile).arg("--").arg(&program)).expect(restitch_testkit::SUCCESS);
    let mut target = Target::start(&program);
    let attached = restitch.attach(target.pid(), &["--keep-in-place", "off"]);
    target.assert_computing(&format!("after attach: {}\n{}", attached.stdout, attached.stderr));
    attached.expect(code::DONE);
    target.assert_goes_back(&restitch);
    target.stop();
}
