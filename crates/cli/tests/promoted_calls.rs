//! Promoted calls in a live process: function pointers that threads change meanwhile, virtual calls that
//! throw through the promoted call, jumps out of it, signals that unwind in the middle of it. What calls call
//! is given in a profile, or was found by a counting version: no branch records are needed.

mod common;

use common::{PATIENCE, Restitch, Target, code, finish, look};
use restitch_address::Svma;
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_profile::{ModuleProfile, Profile, ProfileFile};
use restitch_program::{CallId, CallTarget, Program, analyze};
use restitch_testkit::{Finished, SUCCESS, TempDir, find_program, require, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = r#"
#include "check.h"
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

typedef uint32_t (*Step)(uint32_t, unsigned);
struct Base {
    virtual ~Base() {}
    virtual uint32_t step(uint32_t x, unsigned n) = 0;
};
static jmp_buf out;

extern "C" {
NOINLINE uint32_t usual(uint32_t x, unsigned n) { OPAQUE(x); return x * 3 + n; }
NOINLINE uint32_t other(uint32_t x, unsigned n) { OPAQUE(x); return x * 3 + n + 0; }
NOINLINE uint32_t leaps(uint32_t x, unsigned n) {
    OPAQUE(x);
    if (n % 16 == 3) longjmp(out, (int)(n + 1));
    return x + n;
}
/* Threads exchange it all the time; both functions give the same. */
Step pointer = usual;
Step table[4] = {usual, other, usual, usual};

NOINLINE uint32_t by_variable(uint32_t x, unsigned n) { return pointer(x, n) ^ 1; }
NOINLINE uint32_t by_table(uint32_t x, unsigned n) { return table[n & 3](x, n) ^ 2; }
NOINLINE uint32_t by_register(Step s, uint32_t x, unsigned n) {
    for (unsigned i = 0; i < n; i++) x = s(x, i) ^ 4;
    return x;
}
NOINLINE uint32_t by_object(Base *b, uint32_t x, unsigned n) {
    try { return b->step(x, n) + 1; } catch (unsigned thrown) { return x - thrown; }
}
NOINLINE uint32_t by_jump(Step s, uint32_t x, unsigned n) {
    int came = setjmp(out);
    if (came) return x ^ (uint32_t)came;
    return by_register(s, x, 1) + s(x, n);
}
}
struct Usual : Base {
    uint32_t step(uint32_t x, unsigned n) override;
};
struct Other : Base {
    uint32_t step(uint32_t x, unsigned n) override { OPAQUE(x); return x ^ n; }
};
NOINLINE uint32_t Usual::step(uint32_t x, unsigned n) {
    OPAQUE(x);
    if (n % 61 == 7) throw n;
    return x + 2 * n;
}

static void *exchange(void *) {
    for (unsigned n = 0;; n++) {
        Step next = n % 8 ? &usual : &other;
        __atomic_store_n(&pointer, next, __ATOMIC_RELAXED);
        for (volatile int i = 0; i < 100; i++) {}
        if (n % 1024 == 0) usleep(1000);
    }
    return 0;
}
static volatile unsigned depth;
/* The C library's longjmp and the end of an unwinder have no unwind tables that hold at each instruction. */
static volatile bool leaving;
static void unwinds(int) {
    if (leaving) return;
    void *frames[64];
    depth = backtrace(frames, 64);
}

static void one_round(unsigned round) {
    static bool started;
    if (!started) {
        started = true;
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, exchange, 0) == 0);
        unwinds(0);
        struct sigaction action = {};
        action.sa_handler = unwinds;
        action.sa_flags = SA_RESTART;
        CHECK(sigaction(SIGPROF, &action, 0) == 0);
        struct itimerval often = {{0, 2000}, {0, 2000}};
        CHECK(setitimer(ITIMER_PROF, &often, 0) == 0);
    }
    Usual one;
    Other two;
    uint32_t x = round, y = round;
    for (unsigned n = 0; n < 2000; n++) {
        x = by_variable(x, n);
        y = (y * 3 + n) ^ 1;
        x = by_table(x, n);
        y = (y * 3 + n) ^ 2;
        /* by_jump calls it for another target, once: of 17 calls nearly 16 are of the usual one. */
        x = by_register(n % 64 ? &usual : &other, x, 16);
        for (unsigned i = 0; i < 16; i++) y = (y * 3 + i) ^ 4;
        bool rare = n % 32 == 5;
        leaving = true;
        x = by_object(rare ? (Base *)&two : &one, x, n);
        y = rare ? (y ^ n) + 1 : n % 61 == 7 ? y - n : y + 2 * n + 1;
        x = by_jump(leaps, x, n);
        leaving = false;
        y = n % 16 == 3 ? y ^ (n + 1) : ((y + 0) ^ 4) + y + n;
        CHECK(x == y);
    }
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

/// Who calls whom, mostly.
const CALLS: &[(&str, &str)] = &[
    ("by_variable", "usual"),
    ("by_table", "usual"),
    ("by_register", "usual"),
    ("by_object", "_ZN5Usual4stepEjj"),
    ("by_jump", "leaps"),
];

fn build(folder: &Path, flags: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("program.cc"), folder.join("program"));
    std::fs::write(&source, PROGRAM).expect("writable");
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut command = Command::new("g++");
    command.args(["-O2", "-pthread", "-Wl,--build-id", "-I", programs, "-include", header]).args(flags);
    let built = command.arg("-o").arg(&program).arg(&source).status();
    assert!(built.expect("it starts").success());
    program
}

/// A profile that knows what [`CALLS`] call, and that each call has other targets now and then.
fn targets(program: &Path, file: &Path) {
    let image = Image::parse(std::fs::read(program).expect("readable")).expect("an ELF image");
    let at = image.eh_frame().expect("unwind tables");
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap_or_default(), at.start);
    let code: Program = analyze(&image, &unwind.expect("unwind tables")).expect("analysable");
    let start = |name: &str| -> Option<Svma> {
        let mut functions = code.functions.iter();
        functions.find(|f| f.name.as_deref() == Some(name)).map(|f| f.range.start)
    };
    let mut profile = Profile::empty(&code);
    for (i, call) in code.calls.iter().enumerate().filter(|(_, c)| c.target == CallTarget::Indirect) {
        let caller = code.function_at(call.at).and_then(|f| code.function(f).name.as_deref());
        let Some((_, callee)) = CALLS.iter().find(|(c, _)| Some(*c) == caller) else { continue };
        profile.calls[i] = 1000;
        profile.add_target(CallId(i as u32), start(callee).expect("it is in the program"), 950);
    }
    assert!(profile.targets.len() >= 4, "{:?}", profile.targets);
    let id = image.build_id().expect("a build id");
    let module = ModuleProfile::of(&code, &profile, id.as_bytes(), "program");
    std::fs::write(file, ProfileFile { modules: vec![module] }.write()).expect("writable");
}

/// How many calls are promoted, in a result as JSON.
fn promoted(attached: &Finished) -> u64 {
    attached.expect(code::DONE);
    let result: serde_json::Value = serde_json::from_str(&attached.stdout).expect("JSON");
    let modules = result["modules"].as_array().expect("modules");
    modules.iter().filter_map(|m| m["version"]["checked"]["promoted"].as_u64()).sum()
}

/// Attaches over and over. With `known`, a profile says what calls call, else the votes of the counting
/// version do.
fn cycle(flags: &[&str], known: bool) {
    let folder: TempDir = scratch();
    let program = build(folder.path(), flags);
    let file = folder.path().join("targets");
    targets(&program, &file);
    let file = file.to_str().expect("a plain path");
    let source = match known {
        true => &["--call-targets", file][..],
        false => &["--source", "count", "--keep-in-place", "off"],
    };
    // By counting, those of objects and by register for certain: what the variable holds is a matter of time,
    // and behind setjmp little is counted.
    let least = if known { 3 } else { 2 };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let pid = target.pid();
    for switch in ["on", "off", "on"] {
        // Over one another, without going back in between.
        let options = [&["--json", "-", "--promote-calls", switch][..], source].concat();
        let attached = restitch.attach(pid, &options);
        let promoted = promoted(&attached);
        // How often each ran is counted: the coldest may be left out.
        assert_eq!(promoted >= least, switch == "on", "{flags:?} {switch}: {promoted}");
        assert!(!look::differences(pid).is_empty());
        target.assert_computing("in the new layout");
        common::target::linger(500);
        target.assert_running("in the new layout");
    }
    target.assert_goes_back(&restitch);
    target.assert_computing("after revert");
    target.stop();
}

#[test]
fn position_independent_programs_go_on() {
    require!(find_program("g++"), "g++");
    cycle(&["-fPIE", "-pie"], true);
}

#[test]
fn programs_at_fixed_addresses_go_on() {
    require!(find_program("g++"), "g++");
    cycle(FIXED, true);
}

const FIXED: &[&str] = &["-no-pie", "-fcf-protection=none"];

#[test]
fn what_calls_call_is_found_by_counting() {
    require!(find_program("g++"), "g++");
    cycle(&["-fPIE", "-pie"], false);
}

#[test]
fn what_calls_call_is_found_by_counting_at_fixed_addresses() {
    require!(find_program("g++"), "g++");
    cycle(FIXED, false);
}

/// A counting copy and a followed command know what calls call; a new file is made of that.
#[test]
fn files_promote_calls_by_what_was_counted() {
    require!(find_program("g++"), "g++");
    let folder: TempDir = scratch();
    build(folder.path(), &["-fPIE", "-pie"]);
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let (original, copy, counts) = (path("program"), path("copy"), path("counts"));
    let restitch = Restitch::new();
    let run = |arguments: &[&str]| finish(&mut restitch.command(arguments));
    run(&["instrument", &original, "-o", &copy, "--counts", &counts]).expect(code::DONE);
    // Processes whose modules are at different places.
    for _ in 0..2 {
        restitch_testkit::run(&mut Command::new(&copy), PATIENCE).expect(SUCCESS);
    }
    run(&["record", "-o", &path("copied"), "--from-counts", &counts]).expect(code::DONE);
    // It ends as the command does.
    run(&["record", "-o", &path("followed"), "--", &original]).expect(SUCCESS);
    for profile in ["copied", "followed"] {
        for (switch, least) in [("on", 2), ("off", 0)] {
            let output = path("output");
            let optimized = run(&[
                "optimize",
                &original,
                "--profile",
                &path(profile),
                "-o",
                &output,
                "--promote-calls",
                switch,
                "--keep-in-place",
                "off",
                "--json",
                "-",
            ]);
            let promoted = promoted(&optimized);
            assert!(promoted >= least && (least > 0 || promoted == 0), "{profile} {switch}: {promoted}");
            restitch_testkit::run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
        }
    }
}
