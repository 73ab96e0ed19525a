//! Duplicates in a live process: control falls into second copies of blocks that call, throw, are unwound
//! through by signals and are returned into after the layout has changed or gone.

mod common;

use common::{Restitch, Target, code, look, target::stoppable};
use restitch_testkit::{Finished, TempDir, find_program, require, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Both ways of each `if` run equally often and meet in a block that calls: one of them needs a jump, or a
/// duplicate.
const PROGRAM: &str = r#"
#include "check.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

static volatile unsigned depth, deepest;
/* The end of an unwinder has no unwind tables that hold at each instruction. */
static volatile bool leaving;
static void unwinds(int) {
    if (leaving) return;
    void *frames[64];
    depth = backtrace(frames, 64);
    if (depth > deepest) deepest = depth;
}

extern "C" {
NOINLINE uint32_t leaf(uint32_t x, unsigned n) {
    OPAQUE(x);
    if (n % 509 == 17) throw n;
    return x * 5 + n;
}
#define JOINS(NAME, CALL)                                                     \
    NOINLINE uint32_t NAME(uint32_t x, unsigned n) {                          \
        uint32_t y = x;                                                       \
        OPAQUE(y);                                                            \
        if (x & 4) { y = y * 7 + 1; OPAQUE(y); } else { y = y ^ 99; OPAQUE(y); } \
        uint32_t z = CALL(y, n);                                              \
        OPAQUE(z);                                                            \
        if (z & 8) { z = z + n; OPAQUE(z); } else { z = z - n; OPAQUE(z); }   \
        return z * 3;                                                         \
    }
JOINS(joins0, leaf)
JOINS(joins1, joins0)
JOINS(joins2, joins1)
JOINS(joins3, joins2)
NOINLINE uint32_t catches(uint32_t x, unsigned n) {
    try { return joins3(x, n); } catch (unsigned thrown) { return x ^ thrown; }
}
}

/* What the same gives when nothing is shared. */
static uint32_t expected(uint32_t x, unsigned n) {
    uint32_t y = x;
    if (n % 509 == 17) return x ^ n;
    for (int i = 0; i < 4; i++) y = y & 4 ? y * 7 + 1 : y ^ 99;
    y = y * 5 + n;
    for (int i = 0; i < 4; i++) y = 3 * (y & 8 ? y + n : y - n);
    return y;
}

static void one_round(unsigned round) {
    static bool started;
    if (!started) {
        started = true;
        unwinds(0);
        deepest = 0;
        struct sigaction action = {};
        action.sa_handler = unwinds;
        action.sa_flags = SA_RESTART;
        CHECK(sigaction(SIGPROF, &action, 0) == 0);
        struct itimerval often = {{0, 2000}, {0, 2000}};
        CHECK(setitimer(ITIMER_PROF, &often, 0) == 0);
    }
    uint32_t x = round;
    for (unsigned n = 0; n < 5000; n++) {
        uint32_t want = expected(x, n);
        leaving = n % 509 == 17;
        x = catches(x, n);
        leaving = false;
        CHECK(x == want);
        x += n * 0x9e3779b9u;
    }
    CHECK(round < 2000 || deepest > 6);
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

fn build(folder: &Path, flags: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("program.cc"), folder.join("program"));
    std::fs::write(&source, PROGRAM).expect("writable");
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut command = Command::new("g++");
    command.args(["-O2", "-Wl,--build-id", "-I", programs, "-include", header]).args(flags);
    let built = command.arg("-o").arg(&program).arg(&source).status();
    assert!(built.expect("it starts").success());
    program
}

/// How many duplicates the layouts have, in a result as JSON.
fn duplicates(finished: &Finished) -> u64 {
    finished.expect(code::DONE);
    let result: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let modules = result["modules"].as_array().expect("modules");
    modules.iter().filter_map(|m| m["layout"]["duplicates"].as_u64()).sum()
}

/// Attaches with each of `switches`, over one another, and reverts; how many duplicates the last layout had.
fn cycle(program: &Path, switches: &[&str], more: &[&str]) -> u64 {
    let mut last = 0;
    let restitch = Restitch::new();
    let mut target = Target::start(program);
    let pid = target.pid();
    for switch in switches {
        // Over one another, without going back in between.
        let attached = restitch.attach(pid, &[&["--json", "-", "--duplicate", switch], more].concat());
        let found = duplicates(&attached);
        assert!(found == 0 || *switch == "on", "{} {switch}: {found}", program.display());
        last = found;
        assert!(!look::differences(pid).is_empty());
        target.assert_computing("in the new layout");
        common::target::linger(500);
        target.assert_running("in the new layout");
    }
    target.assert_goes_back(&restitch);
    target.assert_computing("after revert");
    target.stop();
    last
}

#[test]
fn programs_that_unwind_from_duplicates_go_on() {
    require!(find_program("g++"), "g++");
    let folder: TempDir = scratch();
    assert!(cycle(&build(folder.path(), &["-fPIE", "-pie"]), &["on", "off", "on"], &[]) > 0);
    assert!(
        cycle(
            &build(folder.path(), &["-no-pie", "-fcf-protection=none"]),
            &["on"],
            &["--keep-in-place", "on"]
        ) > 0
    );
}

#[test]
fn exceptions_go_on() {
    if let Some(program) = stoppable("throw.cc", &["-O2"]) {
        // (Whether this one has any depends on the unwinder's library.)
        cycle(&program, &["on"], &[]);
    }
}
