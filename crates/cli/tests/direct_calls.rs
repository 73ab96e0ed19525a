//! Calls through the global offset table that become direct ones: a library whose functions call each other,
//! the C library and throw exceptions through its stubs goes on being right, and gets its bytes back.

mod common;

use common::{Restitch, Target, code, linked, look};
use restitch_testkit::{Finished, TempDir, find_program, require, scratch};

/// Every function can be preempted, so that each call goes through a slot, those of the library's own
/// functions too.
const LIBRARY: &str = r#"
#include <cstdint>
#include <cstdlib>
#include <cstring>
extern "C" {
uint32_t mix(uint32_t x, unsigned n) {
    switch (n & 3) {
    case 0: return x * 3 + 1;
    case 1: return x ^ (x >> 5);
    case 2: return x + 0x9e3779b9u;
    default: return x << 9 | x >> 23;
    }
}
/* A tail call. */
uint32_t step(uint32_t x, unsigned n) { return mix(x ^ n, n >> 2); }
uint32_t may_throw(uint32_t x, unsigned n) {
    if (n % 61 == 7) throw (int)n;
    return step(x, n);
}
uint32_t caught(uint32_t x, unsigned n) {
    try { return may_throw(x, n); } catch (int) { return x - n; }
}
static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}
uint32_t work(uint32_t x) {
    uint32_t words[8];
    char text[32];
    for (unsigned i = 0; i < 200; i++) x = caught(x, i);
    for (unsigned i = 0; i < 8; i++) words[i] = step(x, i);
    qsort(words, 8, sizeof words[0], compare);
    memset(text, 'a', sizeof text);
    text[x % 31] = 0;
    return words[x & 7] + (uint32_t)strlen(text) + (uint32_t)abs((int)x);
}
}
"#;

/// The same once more without calls, to compare with.
const PROGRAM: &str = r#"
#include "check.h"
uint32_t work(uint32_t);
static inline uint32_t mix1(uint32_t x, unsigned n) {
    uint32_t r[4] = {x * 3 + 1, x ^ (x >> 5), x + 0x9e3779b9u, x << 9 | x >> 23};
    return r[n & 3];
}
NOINLINE static uint32_t plain(uint32_t x) {
    uint32_t words[8];
    for (unsigned i = 0; i < 200; i++) x = i % 61 == 7 ? x - i : mix1(x ^ i, i >> 2);
    for (unsigned i = 0; i < 8; i++) words[i] = mix1(x ^ i, i >> 2);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 7; j++)
            if (words[j] > words[j + 1]) { uint32_t t = words[j]; words[j] = words[j + 1]; words[j + 1] = t; }
    uint32_t magnitude = (int)x < 0 ? -x : x;
    return words[x & 7] + x % 31 + magnitude;
}
static void one_round(unsigned n) {
    uint32_t x = n;
    for (unsigned i = 0; i < 200; i++) {
        uint32_t y = work(x);
        CHECK(y == plain(x));
        x = y;
    }
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

/// What the checker counted of direct calls and jumps, and of those through stubs' slots, in the library's
/// version, in a result as JSON.
fn ways(attached: &Finished) -> [u64; 2] {
    attached.expect(code::DONE);
    let result: serde_json::Value = serde_json::from_str(&attached.stdout).expect("JSON");
    let modules = result["modules"].as_array().expect("modules");
    let library = modules.iter().find(|m| m["path"].as_str().is_some_and(|p| p.ends_with("liblibrary.so")));
    let checked = &library.expect("the library is hot")["version"]["checked"];
    ["direct", "by_slot"].map(|way| checked[way].as_u64().expect("a number"))
}

/// `slots`: slots of the library's linkage table may lead into versions.
fn cycle(flags: &[&str], bound: bool, slots: bool) {
    let folder: TempDir = scratch();
    let program = linked(folder.path(), ("library.cc", LIBRARY), PROGRAM, flags);
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let pid = target.pid();
    for (options, wanted) in [
        (&["--json", "-", "--direct-calls", "on"][..], bound),
        (&["--json", "-", "--direct-calls", "off"], false),
        (&["--json", "-", "--slots", "on"], bound),
        (&["--json", "-", "--slots", "on"], bound),
        (&["--json", "-"], bound),
        (&["--json", "-", "--slots", "on"], bound),
    ] {
        // Over one another, without going back in between.
        let attached =
            restitch.attach(pid, &[options, &["--keep-in-place", "off", "--align", "off"]].concat());
        let [direct, by_slot] = ways(&attached);
        assert_eq!(direct >= 6, wanted, "{flags:?} {options:?}: {direct}");
        assert!(wanted || direct == 0, "{flags:?} {options:?}: {direct}");
        // What is not known for good is called through its slot.
        let off = options.contains(&"--direct-calls") && options.contains(&"off");
        assert_eq!(by_slot >= 6, !bound && !off, "{flags:?} {options:?}: {by_slot}");
        assert!(!off || by_slot == 0, "{flags:?} {options:?}: {by_slot}");
        assert!(!look::differences(pid).is_empty());
        let lead = look::words_into_versions(pid, "liblibrary.so");
        assert_eq!(lead > 0, slots && options.contains(&"--slots"), "{flags:?} {options:?}: {lead}");
        target.assert_computing("in the new layout");
        common::target::linger(300);
        target.assert_running("in the new layout");
    }
    target.assert_goes_back(&restitch);
    target.assert_computing("after revert");
    target.stop();
}

#[test]
fn stubs_of_slots_that_are_read_only_are_passed_by() {
    require!(find_program("g++"), "g++");
    cycle(&["-Wl,-z,relro", "-Wl,-z,now"], true, true);
}

#[test]
fn calls_without_stubs_become_direct() {
    require!(find_program("g++"), "g++");
    cycle(&["-Wl,-z,relro", "-fno-plt", "-fcf-protection=none"], true, false);
}

#[test]
fn slots_that_are_bound_lazily_stay_and_are_called_through() {
    require!(find_program("g++"), "g++");
    cycle(&["-Wl,-z,relro", "-Wl,-z,lazy"], false, false);
}
