//! A module whose new version the checker refuses stays as it is; the others are changed all the same.

mod common;

use common::{Restitch, Target, code, expect_message, look};
use restitch_testkit::{Finished, TempDir, find_program, require, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command line's help gives this code where the checker has refused everything.
const CHECK_FAILED: i32 = 9;

/// Unwind information of a version that there is not, which no function uses. The analysis reads what
/// functions use only; the checker reads it all.
const UNKNOWN: &str = r#"
__asm__(".pushsection .eh_frame,\"a\"\n"
        "1: .long 3f-2f\n2: .long 0\n .byte 9\n .asciz \"zR\"\n .uleb128 1\n .sleb128 -8\n .uleb128 16\n .uleb128 1\n"
        " .byte 0x1b, 0x0c, 7, 8, 0x90, 1\n .balign 8\n3:\n"
        ".popsection\n");
"#;

const LIBRARY: &str = r#"
unsigned work(unsigned x, unsigned n) {
    for (unsigned i = 0; i < 300; i++)
        switch ((x ^ i * n) & 3) {
        case 0: x = x * 3 + 1; break;
        case 1: x ^= x >> 5; break;
        case 2: x += 0x9e3779b9u; break;
        default: x = x << 9 | x >> 23;
        }
    return x;
}
"#;

const PROGRAM: &str = r#"
#include "check.h"
unsigned work(unsigned x, unsigned n);
__attribute__((noinline)) static unsigned own(unsigned x, unsigned n) {
    for (unsigned i = 0; i < 600; i++)
        x = x & 1 + (n & 1) ? x * 7 + i : (x >> 1) ^ 0x5bd1e995u;
    return x;
}
static void one_round(unsigned round) {
    unsigned x = round;
    for (unsigned n = 0; n < 40; n++)
        x = work(own(x, n), n);
    OPAQUE(x);
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

/// The program, linked with the library; `refused` tells which of both the checker will refuse.
fn build(folder: &Path, refused: (bool, bool)) -> PathBuf {
    let path = |name: &str| folder.join(name);
    let write = |name: &str, text: &str, unknown: bool| {
        std::fs::write(path(name), format!("{text}{}", if unknown { UNKNOWN } else { "" }))
            .expect("writable");
    };
    write("program.c", PROGRAM, refused.0);
    write("library.c", LIBRARY, refused.1);
    let built = |command: &mut Command| assert!(command.status().expect("it starts").success());
    // The linker makes no search table of what it does not know.
    let table = |unknown: bool| if unknown { "-Wl,--no-eh-frame-hdr" } else { "-Wl,--eh-frame-hdr" };
    let library = path("liblibrary.so");
    let mut command = Command::new("gcc");
    command.args(["-O1", "-fPIC", "-shared", table(refused.1), "-o"]).arg(&library).arg(path("library.c"));
    built(&mut command);
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut command = Command::new("gcc");
    command.args(["-O1", "-D_GNU_SOURCE", "-I", programs, "-include", header, table(refused.0), "-o"]);
    command.arg(path("program")).arg(path("program.c")).arg(&library);
    built(command.arg(format!("-Wl,-rpath,{}", folder.display())));
    path("program")
}

fn attach(folder: &TempDir, refused: (bool, bool)) -> (Restitch, Target, Finished) {
    let program = build(folder.path(), refused);
    let (restitch, target) = (Restitch::new(), Target::start(&program));
    let attached = restitch.attach(target.pid(), &["--json", "-"]);
    (restitch, target, attached)
}

#[test]
fn a_module_that_the_checker_refuses_stays_and_the_others_move() {
    require!(find_program("gcc"), "gcc");
    for refused in [(false, true), (true, false)] {
        let folder = scratch();
        let (restitch, mut target, attached) = attach(&folder, refused);
        target.assert_running("after the attach");
        let told = format!("{}\n{}", attached.stdout, attached.stderr);
        assert_eq!(attached.status.code(), Some(code::DONE), "{refused:?}: {told}");
        let result: serde_json::Value = serde_json::from_str(&attached.stdout).expect("JSON");
        let (stays, moves) =
            if refused.0 { ("program", "liblibrary.so") } else { ("liblibrary.so", "program") };
        let paths = |list: &str| -> Vec<String> {
            let list = result[list].as_array().expect("a list");
            list.iter().filter_map(|m| m["path"].as_str()).map(str::to_owned).collect()
        };
        let named = |list: &[String], name: &str| list.iter().any(|p| p.ends_with(&format!("/{name}")));
        let (modules, left_out) = (paths("modules"), paths("left_out"));
        assert!(named(&modules, moves) && !named(&modules, stays), "{refused:?}: {told}");
        assert!(named(&left_out, stays) && !named(&left_out, moves), "{refused:?}: {told}");
        let warnings = result["warnings"].as_array().expect("a list");
        let warns = |w: &serde_json::Value| {
            w.as_str().is_some_and(|w| w.contains(stays) && w.contains("the checker refused"))
        };
        assert!(warnings.iter().any(warns), "{refused:?}: {told}");
        assert!(!look::differences(target.pid()).is_empty(), "{refused:?}: nothing is patched: {told}");
        target.assert_computing("in the new layout");
        // The retired counting version is gone, and the one in force has a number of its own.
        let status = restitch.status(target.pid()).stdout;
        assert_eq!(status.matches("version ").count(), 1, "{refused:?}: {status}");
        restitch.revert(target.pid()).expect(code::DONE);
        target.assert_computing("after the revert");
        target.stop();
    }
}

#[test]
fn where_the_checker_refuses_everything_nothing_is_changed() {
    require!(find_program("gcc"), "gcc");
    let folder = scratch();
    let (_, mut target, attached) = attach(&folder, (true, true));
    expect_message(&attached, CHECK_FAILED, &["the checker refused", "unwind tables", "nothing was changed"]);
    target.assert_computing("after the refusal");
    target.assert_untouched("after the refusal");
    target.stop();
}

/// A plan has every sample somewhere, and the program in any case; and nothing is touched.
#[test]
fn a_dry_run_says_the_plan_and_touches_nothing() {
    require!(find_program("gcc"), "gcc");
    let folder = scratch();
    let program = build(folder.path(), (false, false));
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let planned = restitch.attach(target.pid(), &["--dry-run", "--json", "-"]);
    planned.expect(code::DONE);
    let result = restitch_report::RunResult::from_json(&planned.stdout).expect("the JSON form of a result");
    assert_eq!(result.outcome, restitch_report::Outcome::Planned);
    let others = result.other_modules.as_ref().expect("a process was sampled");
    let samples = result.profile.as_ref().expect("samples").samples;
    let named = result.modules.iter().map(|m| m.samples).chain(result.left_out.iter().map(|m| m.samples));
    assert_eq!(named.sum::<u64>() + others.samples + others.outside, samples, "{}", planned.stdout);
    let mut paths = result.modules.iter().map(|m| &m.path).chain(result.left_out.iter().map(|m| &m.path));
    assert!(paths.any(|path| *path == result.target.program), "{}", planned.stdout);
    assert!(!result.modules.is_empty());
    for module in &result.modules {
        let plan = module.plan.as_ref().expect("a plan");
        assert!(module.samples > 0 && plan.sampled_functions > 0 && plan.sampled_bytes > 0, "{module:?}");
        assert!(plan.functions >= plan.sampled_functions && plan.blocks > 0 && plan.bytes > 0, "{module:?}");
        assert!(!module.hottest.is_empty() && module.version.is_none(), "{module:?}");
        // Where the machine has branch records nothing is counted.
        let counting = module.counting.as_ref().map(|c| c.counters > 0);
        assert_eq!(counting, plan.counting_bytes.map(|bytes| bytes > 0), "{module:?}");
        assert!(plan.counting_mapped_bytes >= plan.counting_bytes, "{module:?}");
    }
    let mapped: u64 = result.modules.iter().filter_map(|m| m.plan.as_ref()?.counting_mapped_bytes).sum();
    match &result.planned_memory {
        Some(planned) => assert!(planned.for_counting && planned.needed_bytes > mapped, "{planned:?}"),
        None => assert_eq!(mapped, 0, "{}", planned.stdout),
    }
    target.assert_untouched("after a plan");
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "a plan leaves files");
    target.stop();
}
