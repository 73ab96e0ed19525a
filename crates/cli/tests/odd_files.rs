//! Files with more in them than compilers of today write: code that the loader writes into, data behind the
//! end.

mod common;

use common::{PATIENCE, Restitch, code, expect_message, finish};
use restitch_report::RunResult;
use restitch_testkit::{Finished, TempDir, compile_with, require, run, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code that holds addresses of its own module, which the loader has to fill in where the module can be
/// anywhere.
const WRITTEN: &str = r#"
__asm__(
    ".text\n.type absolute, @function\n.p2align 4\nabsolute: .cfi_startproc\n"
    "movabs $table, %rdx\nmov %esi, %ecx\nand $3, %ecx\nmov (%rdx,%rcx,8), %rax\ntest $4, %sil\nje 1f\n"
    "movabs $other, %rcx\npush %rdi\n.cfi_adjust_cfa_offset 8\ncall *%rcx\npop %rdi\n.cfi_adjust_cfa_offset -8\n"
    "add %rdi, %rax\nret\n"
    "1: movabs counter, %rax\ninc %rax\nmovabs %rax, counter\nxor %rdi, %rax\nret\n.cfi_endproc\n.size absolute, .-absolute\n"
    ".type other, @function\n.p2align 4\nother: .cfi_startproc\nlea 77(%rax,%rdi), %rax\ntest $1, %dil\nje 2f\nnot %rax\n"
    "2: ret\n.cfi_endproc\n.size other, .-other\n"
    ".data\n.p2align 3\ntable: .quad 3, 5, 7, 11\ncounter: .quad 0\n.text\n");
#include <stdio.h>
unsigned long absolute(unsigned long, unsigned long);
__attribute__((noinline)) static unsigned long mix(unsigned long a, unsigned long i) { return a % 3 ? a * 3 + i : a >> 1; }
int main(void) {
    unsigned long a = 1;
    for (unsigned long i = 0; i < 300000; i++) a = mix(absolute(a, i), i);
    printf("%016lx\n", a);
    return 42;
}
"#;

/// Prints how many bytes its file has in front of a trailer of 8 bytes that says so, and their sum.
const CARRYING: &str = r#"
#include <stdio.h>
#include <string.h>
__attribute__((noinline)) static unsigned mix(unsigned a, int c) { return c & 1 ? a * 31 + c : (a ^ c) + (a >> 5); }
int main(void) {
    static char trailer[8], data[4096];
    FILE *f = fopen("/proc/self/exe", "rb");
    unsigned a = 1;
    if (!f || fseek(f, -8, SEEK_END) || fread(trailer, 8, 1, f) != 1 || memcmp(trailer, "PAYLOAD!", 8)) return puts("none"), 41;
    if (fseek(f, -4104, SEEK_END) || fread(data, 4096, 1, f) != 1) return 40;
    for (int round = 0; round < 500; round++) for (int i = 0; i < 4096; i++) a = mix(a, data[i]);
    printf("%08x\n", a);
    return 42;
}
"#;

/// A program with three gigabytes of zeroed data behind its code.
const FAR: &str = r#"
#include <stdio.h>
__attribute__((noinline)) static unsigned long step(unsigned long a, long i) { return i & 1 ? a * 3 + i : a ^ i; }
static char room[3UL << 30];
int main(void) {
    unsigned long a = 1;
    room[sizeof room - 1] = 5;
    for (long i = 0; i < 300000; i++) a = i % 3 ? step(a, i) : a * 7 + room[(i * 4097) % sizeof room];
    printf("%016lx %d\n", a, room[sizeof room - 1]);
    return 42;
}
"#;

/// A program with code in two places that are gigabytes apart.
const APART: &str = r#"
#include <stdio.h>
__attribute__((section("far_code"), noinline)) static int far_away(void) { return 42; }
int main(void) { puts("runs"); return far_away(); }
"#;

struct Files {
    restitch: Restitch,
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { restitch: Restitch::new(), folder: scratch() }
    }
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    fn compile(&self, name: &str, text: &str, flags: &[&str]) -> Option<PathBuf> {
        let source = self.at(name).with_extension("c");
        std::fs::write(&source, text).expect("writable");
        match compile_with("gcc", &source, flags) {
            Ok(path) => Some(path),
            Err(restitch_testkit::Error::Missing { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }
    fn record(&self, program: &Path) -> Finished {
        finish(self.restitch.command(&["record", "-o"]).arg(self.at("profile")).arg("--").arg(program))
    }
    fn optimize(&self, program: &Path) -> Finished {
        let mut command = self.restitch.command(&["optimize"]);
        command.arg(program).arg("--profile").arg(self.at("profile")).arg("-o").arg(self.at("fast"));
        finish(command.args(["--json", "-"]))
    }
    fn instrument(&self, program: &Path) -> Finished {
        let mut command = self.restitch.command(&["instrument"]);
        let counts = self.at("counts");
        finish(command.arg(program).arg("-o").arg(self.at("counting")).arg("--counts").arg(counts))
    }
}

/// Runs a program to its end, which has to be as it is meant; what it prints.
#[track_caller]
fn output(program: &Path) -> String {
    let finished = run(&mut Command::new(program), PATIENCE);
    finished.expect(42);
    finished.stdout
}

#[test]
fn functions_that_the_loader_writes_into_stay() {
    for flags in [&["-O2", "-Wl,-z,notext"][..], &["-O2", "-Wl,-z,notext", "-s"], &["-O2", "-no-pie"]] {
        let files = Files::new();
        let program = require!(files.compile("written", WRITTEN, flags), "gcc");
        let want = output(&program);
        let recorded = files.record(&program);
        recorded.expect(42);
        assert_eq!(recorded.stdout, want, "{flags:?}: recorded");
        let optimized = files.optimize(&program);
        optimized.expect(code::DONE);
        let result = RunResult::from_json(&optimized.stdout).expect("the JSON form of a result");
        let stay = result.modules[0].not_movable.iter().find(|r| r.reason.contains("text relocations"));
        let stay = stay.map_or(0, |reason| reason.functions);
        assert_eq!(stay, if flags.contains(&"-no-pie") { 0 } else { 1 }, "{flags:?}");
        assert_eq!(output(&files.at("fast")), want, "{flags:?}: optimized");
        files.instrument(&program).expect(code::DONE);
        assert_eq!(output(&files.at("counting")), want, "{flags:?}: instrumented");
    }
}

#[test]
fn files_that_carry_data_behind_their_end_are_recorded_and_not_changed() {
    let files = Files::new();
    let program = require!(files.compile("carrying", CARRYING, &["-O2"]), "gcc");
    let bare = std::fs::read(&program).expect("readable");
    let carrying = files.at("carrying");
    let with = |data: &[u8]| {
        // A copy that keeps the permissions.
        std::fs::copy(&program, &carrying).expect("copied");
        std::fs::write(&carrying, [&bare, data].concat()).expect("writable");
    };
    let mut data = b"hsqs".to_vec();
    data.resize(4096, 7);
    data.extend(b"PAYLOAD!");
    with(&data);
    let want = output(&carrying);
    let recorded = files.record(&carrying);
    recorded.expect(42);
    assert_eq!(recorded.stdout, want);
    files.restitch.run(&["analyze", carrying.to_str().expect("a name")]).expect(code::DONE);
    let words = ["4104 bytes", &format!("offset {}", bare.len()), "squashfs", "restitch attach"];
    expect_message(&files.optimize(&carrying), code::REFUSED, &words);
    expect_message(&files.instrument(&carrying), code::REFUSED, &words);
    assert!(!files.at("fast").exists() && !files.at("counting").exists() && !files.at("counts").exists());
    // An output of restitch to which data were appended.
    files.optimize(&program).expect(code::DONE);
    let output_with = [std::fs::read(files.at("fast")).expect("readable"), data].concat();
    std::fs::write(&carrying, output_with).expect("writable");
    assert_eq!(output(&carrying), want, "data may be appended to an output");
    expect_message(&files.optimize(&carrying), code::REFUSED, &["4104 bytes", "squashfs"]);
    // Padding is nothing.
    with(&[0; 100]);
    files.optimize(&carrying).expect(code::DONE);
}

#[test]
fn modules_that_are_longer_than_branches_reach_are_recorded_and_not_changed() {
    for flags in [&["-O2", "-mcmodel=medium"][..], &["-O2", "-mcmodel=medium", "-no-pie"]] {
        let files = Files::new();
        let program = require!(files.compile("far", FAR, flags), "gcc");
        let want = output(&program);
        let recorded = files.record(&program);
        recorded.expect(42);
        assert_eq!(recorded.stdout, want, "{flags:?}");
        assert!(files.at("profile").exists(), "{}", recorded.stderr);
        let words = ["2 GiB", "restitch attach", "room below the code"];
        expect_message(&files.optimize(&program), code::REFUSED, &words);
        expect_message(&files.instrument(&program), code::REFUSED, &words);
    }
}

#[test]
fn code_that_is_too_far_apart_is_refused_before_it_runs() {
    let files = Files::new();
    let flags = ["-O2", "-mcmodel=large", "-no-pie", "-fno-asynchronous-unwind-tables"];
    let flags = [&flags[..], &["-Wl,--section-start=far_code=0x150000000"]].concat();
    let program = require!(files.compile("apart", APART, &flags), "gcc");
    assert_eq!(output(&program), "runs\n");
    let recorded = files.record(&program);
    expect_message(&recorded, code::REFUSED, &["more than 2 GiB apart", "not started"]);
    assert_eq!(recorded.stdout, "");
}
