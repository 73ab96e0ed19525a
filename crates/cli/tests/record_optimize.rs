//! The off-line way: a profile of a run or of a process, and the file that is made with it.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, finish, stoppable, with_time};
use restitch_report::{Outcome, RunResult, SCHEMA_VERSION};
use restitch_testkit::{SUCCESS, compile, program, require, run, scratch, strip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn compiled(source: &str, flags: &[&str]) -> Option<PathBuf> {
    match compile(&program(source), flags) {
        Ok(path) => Some(path),
        Err(restitch_testkit::Error::Missing { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Records a run of `program`, which must end with its own status.
#[track_caller]
fn record(restitch: &Restitch, program: &Path, profile: &Path) {
    let recorded =
        finish(restitch.command(&["record", "-o"]).arg(profile).arg("--").arg(program).env("LC_ALL", "C"));
    recorded.expect(SUCCESS);
    assert!(profile.exists(), "{}", recorded.stderr);
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "files stay in the state directory");
}

#[track_caller]
fn optimize(restitch: &Restitch, program: &Path, profile: &Path, output: &Path) -> RunResult {
    let mut command = restitch.command(&["optimize"]);
    command.arg(program).arg("--profile").arg(profile).arg("-o").arg(output).args(["--json", "-"]);
    let finished = finish(&mut command);
    finished.expect(code::DONE);
    let result = RunResult::from_json(&finished.stdout).expect("the JSON form of a result");
    assert_eq!((result.schema_version, result.outcome), (SCHEMA_VERSION, Outcome::Written));
    assert_eq!(result.exit_code, code::DONE);
    result
}

fn recorded_and_optimized(source: &str, flags: &[&str]) {
    let original = require!(compiled(source, flags), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, output) = (folder.path().join("profile"), folder.path().join("output"));
    record(&restitch, &original, &profile);
    let result = optimize(&restitch, &original, &profile, &output);
    let version = result.modules[0].version.as_ref().expect("a version");
    assert!(version.redirects > 0 && version.checked.instructions > 0, "{source}: {version:?}");
    run(Command::new(&output).args(["--seconds", "1"]), PATIENCE).expect(SUCCESS);
    // Stripping the output keeps it working.
    if let Ok(stripped) = strip(&output) {
        run(&mut Command::new(stripped), PATIENCE).expect(SUCCESS);
    }
}

#[test]
fn programs_are_recorded_and_optimized() {
    for source in ["switch.c", "goto.c", "virt.cc", "signals.c", "setjmp.c", "tail.c"] {
        recorded_and_optimized(source, &["-O2"]);
    }
}

#[test]
fn a_program_that_throws_is_recorded_and_optimized() {
    recorded_and_optimized("throw.cc", &["-O2"]);
    recorded_and_optimized("throw.cc", &["-O3", "-no-pie"]);
}

#[test]
fn llvms_unwinder_has_nothing_to_say_of_a_file() {
    let made = restitch_testkit::compile_with_llvm_runtime(&program("throw.cc"), &["-O2", "-static"]);
    let original = match made {
        Err(error @ restitch_testkit::Error::Missing { .. }) => {
            return restitch_testkit::skipped(&error.to_string());
        }
        made => made.expect("compiled"),
    };
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, output) = (folder.path().join("profile"), folder.path().join("output"));
    record(&restitch, &original, &profile);
    optimize(&restitch, &original, &profile, &output);
    let ran = run(Command::new(&output).args(["--seconds", "1"]), PATIENCE);
    ran.expect(SUCCESS);
    assert_eq!(ran.stderr, "", "exceptions pass code of the version");
}

#[test]
fn programs_with_threads_and_children_are_recorded_and_optimized() {
    for source in ["threads.c", "fork.c", "server.c", "cancel.cc"] {
        recorded_and_optimized(source, &["-O2"]);
    }
}

#[test]
fn a_stripped_program_is_recorded_and_optimized() {
    let original = require!(compiled("throw.cc", &["-O2"]).and_then(|p| strip(&p).ok()), "g++ and strip");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, output) = (folder.path().join("profile"), folder.path().join("output"));
    record(&restitch, &original, &profile);
    optimize(&restitch, &original, &profile, &output);
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

#[test]
fn a_running_process_is_recorded_and_left_as_it_was() {
    let original = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, output) = (folder.path().join("profile"), folder.path().join("output"));
    let mut target = Target::start(&original);
    let pid = target.pid().to_string();
    let path = profile.to_str().expect("a UTF-8 path");
    let record = |duration| restitch.command(&["record", "-p", &pid, "--duration", duration, "-o", path]);
    with_time(["2", "6", "20"], record).expect(code::DONE);
    target.assert_untouched("after record");
    optimize(&restitch, &original, &profile, &output);
    target.stop();
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

const LIBRARY: &str = "\
#include <stdint.h>
uint32_t step(uint32_t x, unsigned n) {
    switch (n & 7) {
    case 0: return x * 3 + 1;
    case 1: return x ^ (x >> 5);
    case 2: return x + 0x9e3779b9u;
    case 3: return x << 9 | x >> 23;
    case 4: return ~x;
    case 5: return x * 5 - 3;
    case 6: return x ^ n;
    default: return x - n;
    }
}
";
const USER: &str = "\
#include <stdint.h>
uint32_t step(uint32_t x, unsigned n);
static uint32_t plain(uint32_t x, unsigned n) {
    uint32_t r[8] = {x * 3 + 1, x ^ (x >> 5), x + 0x9e3779b9u, x << 9 | x >> 23, ~x, x * 5 - 3, x ^ n, x - n};
    return r[n & 7];
}
int main(void) {
    uint32_t x = 1, y = 1;
    for (unsigned i = 0; i < 2000000; i++) x = step(x, x ^ i), y = plain(y, y ^ i);
    return x == y ? 42 : 1;
}
";

#[test]
fn a_shared_library_is_recorded_and_optimized() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("lib.c"), LIBRARY).expect("writable");
    std::fs::write(at("user.c"), USER).expect("writable");
    let gcc = |arguments: &[&str]| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-Wl,--build-id"]).args(arguments).current_dir(folder.path());
        restitch_testkit::compiled(&mut gcc)
    };
    require!(gcc(&["-shared", "-fPIC", "-o", "libstep.so", "lib.c"]), "gcc");
    require!(gcc(&["-o", "user", "user.c", "./libstep.so", "-Wl,-rpath,$ORIGIN"]), "gcc");
    let mut command = restitch.command(&["record", "-o"]);
    command.arg(at("profile")).arg("--").arg("./user").current_dir(folder.path());
    finish(&mut command).expect(SUCCESS);
    optimize(&restitch, &at("libstep.so"), &at("profile"), &at("new.so"));
    optimize(&restitch, &at("user"), &at("profile"), &at("new-user"));
    std::fs::rename(at("new.so"), at("libstep.so")).expect("writable");
    run(Command::new("./user").current_dir(folder.path()), PATIENCE).expect(SUCCESS);
    run(Command::new("./new-user").current_dir(folder.path()), PATIENCE).expect(SUCCESS);
}

#[test]
fn an_own_output_is_optimized_from_its_original() {
    let original = require!(compiled("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    record(&restitch, &original, &at("profile"));
    optimize(&restitch, &original, &at("profile"), &at("first"));
    optimize(&restitch, &at("first"), &at("profile"), &at("second"));
    run(&mut Command::new(at("second")), PATIENCE).expect(SUCCESS);
    let (first, second) = (std::fs::read(at("first")).unwrap(), std::fs::read(at("second")).unwrap());
    assert_eq!(first.len(), second.len(), "the second output holds more than the original and one version");
    // A profile of the output: recorded and used, or refused with a reason; never a broken program.
    let recorded = finish(restitch.command(&["record", "-o"]).arg(at("profile2")).arg("--").arg(at("first")));
    assert_eq!(recorded.status.code(), Some(SUCCESS), "{}", recorded.stderr);
    let mut command = restitch.command(&["optimize"]);
    command.arg(at("first")).arg("--profile").arg(at("profile2")).arg("-o").arg(at("third"));
    let optimized = finish(&mut command);
    match optimized.status.code() {
        Some(code::DONE) => run(&mut Command::new(at("third")), PATIENCE).expect(SUCCESS),
        _ => expect_message(&optimized, code::BAD_INPUT, &["profile2"]),
    }
    let analyzed = restitch.run(&[std::ffi::OsStr::new("analyze"), at("first").as_os_str()]);
    analyzed.expect(code::DONE);
    assert!(analyzed.stdout.contains("output of restitch"), "{}", analyzed.stdout);
}

/// It works as before, and that no original is left is said.
#[test]
fn an_output_in_place_of_its_original_is_told() {
    let original = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    let (profile, own) = (at("profile"), at("own"));
    std::fs::copy(&original, &own).expect("writable");
    record(&restitch, &own, &profile);
    let told = |result: &RunResult| result.warnings.iter().any(|said| said.contains("no copy is kept"));
    assert!(!told(&optimize(&restitch, &own, &profile, &at("other"))));
    std::os::unix::fs::symlink(&own, at("link")).expect("writable");
    assert!(told(&optimize(&restitch, &own, &profile, &at("link"))));
    run(&mut Command::new(&own), PATIENCE).expect(SUCCESS);
}

/// What is written is its writer's, so it does not run with the rights of the program's owner or group, and
/// nobody else may write to it.
#[test]
fn outputs_have_no_privileges() {
    use std::os::unix::fs::PermissionsExt;
    let original = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    std::fs::copy(&original, at("own")).expect("writable");
    record(&restitch, &at("own"), &at("profile"));
    for (theirs, expected) in [(0o6777, 0o755), (0o2755, 0o755), (0o4711, 0o711), (0o700, 0o700)] {
        allow(&at("own"), theirs).expect("our own");
        let (faster, counting) = (at("faster"), at("counting"));
        let result = optimize(&restitch, &at("own"), &at("profile"), &faster);
        let told = result.warnings.iter().any(|said| said.contains("is a set-user-id"));
        assert_eq!(
            (mode(&faster), told),
            (expected, theirs & 0o6000 != 0),
            "{theirs:o}: {:?}",
            result.warnings
        );
        let mut instrument = restitch.command(&["instrument"]);
        instrument.arg(at("own")).arg("-o").arg(&counting).arg("--counts").arg(at("counts"));
        finish(&mut instrument).expect(code::DONE);
        assert_eq!(mode(&counting), expected, "{theirs:o}");
    }
    // In place of the original, too.
    allow(&at("own"), 0o4755).expect("our own");
    optimize(&restitch, &at("own"), &at("profile"), &at("own"));
    assert_eq!(mode(&at("own")), 0o755);
}

#[test]
fn an_output_of_restitch_can_be_attached_to_or_is_refused() {
    let original = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    record(&restitch, &original, &at("profile"));
    optimize(&restitch, &original, &at("profile"), &at("output"));
    let mut target = Target::start(&at("output"));
    let attached = restitch.attach(target.pid(), &[]);
    match attached.status.code() {
        Some(code::DONE) => {
            target.assert_computing("after attach");
            let reverted = restitch.revert(target.pid());
            reverted.expect(code::DONE);
            println!("{}{}", attached.stdout, reverted.stdout);
        }
        _ => assert!(!attached.stderr.is_empty()),
    }
    target.assert_untouched("after revert or refusal");
    target.stop();
}

#[test]
fn the_json_of_attach_and_of_a_dry_run_can_be_read() {
    let original = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let mut target = Target::start(&original);
    let planned = restitch.attach(target.pid(), &["--dry-run", "--json", "-"]);
    planned.expect(code::DONE);
    let result = RunResult::from_json(&planned.stdout).expect("the JSON form of a result");
    assert_eq!((result.outcome, result.exit_code), (Outcome::Planned, 0));
    target.assert_untouched("after a dry run");
    assert_eq!(restitch.files(), Vec::<PathBuf>::new());
    let (json, html) = (folder.path().join("result.json"), folder.path().join("result.html"));
    let attached = restitch.attach(
        target.pid(),
        &["--json", json.to_str().expect("UTF-8"), "--html", html.to_str().expect("UTF-8")],
    );
    attached.expect(code::DONE);
    let text = std::fs::read_to_string(&json).expect("written");
    let result = RunResult::from_json(&text).expect("the JSON form of a result");
    assert_eq!((result.outcome, result.exit_code), (Outcome::InForce, 0));
    assert_eq!(result.target.pid, Some(target.pid()));
    let apply = result.apply.expect("what was changed");
    assert!(apply.patches > 0 && apply.pause_us > 0.0);
    assert!(std::fs::read_to_string(&html).expect("written").contains("<html"));
    target.stop();
}

#[test]
fn run_ends_with_the_status_of_its_program() {
    let original = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let restitch = Restitch::new();
    // The program goes on for some time after it is in its new layout, however long that takes.
    for (duration, seconds) in [("1", "8"), ("3", "30"), ("10", "100")] {
        let mut command =
            restitch.command(&["run", "--warm-up", "0.2", "--duration", duration, "--measure", "0", "--"]);
        command.arg(&original).args(["--seconds", seconds]);
        let finished = finish(&mut command);
        finished.expect(SUCCESS);
        if finished.stdout.contains("the new layout is active") {
            break;
        }
        assert!(seconds != "100", "{}\n{}", finished.stdout, finished.stderr);
    }
    // One that ends while it is recorded. (It is traced by its own parent then, whose tracing thread is told
    // of the end.)
    for source in ["trace", "burst"] {
        let arguments = ["run", "--warm-up", "0.2", "--duration", "6", "--measure", "0", "--source", source];
        let mut command = restitch.command(&arguments);
        finish(command.arg("--").arg(&original).args(["--seconds", "3"])).expect(SUCCESS);
    }
    // A program that is over before it could be profiled, and one that does not exist.
    finish(restitch.command(&["run", "--warm-up", "0.3", "--"]).arg("false")).expect(1);
    let missing = restitch.run(&["run", "--", "/nonexistent/program"]);
    expect_message(&missing, code::NOT_FOUND, &["/nonexistent/program"]);
}

#[test]
fn every_layout_makes_a_working_program_and_the_laboratory_compares_them() {
    let original = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    record(&restitch, &original, &at("profile"));
    let mut lab = restitch.command(&["lab"]);
    lab.arg(&original).arg("--profile").arg(at("profile")).args(["--steps", "20000", "--machine", "haswell"]);
    lab.arg("--json")
        .arg(at("lab.json"))
        .arg("--svg")
        .arg(at("lab.svg"))
        .arg("--occupancy")
        .arg(at("sets.svg"));
    let finished = finish(&mut lab);
    finished.expect(code::DONE);
    let json = std::fs::read(at("lab.json")).expect("written");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let names: Vec<&str> =
        json["entries"].as_array().expect("entries").iter().filter_map(|e| e["name"].as_str()).collect();
    assert!(names.len() > 10 && names[0] == "as it is" && json["machine"]["name"] == "haswell", "{names:?}");
    for picture in ["lab.svg", "sets.svg"] {
        assert!(std::fs::read_to_string(at(picture)).expect("written").starts_with("<svg"));
    }
    for name in &names[1..] {
        assert!(finished.stdout.contains(name), "{name}: {}", finished.stdout);
        let mut command = restitch.command(&["optimize", "--layout", name, "--profile"]);
        let output = at(&format!("output.{name}"));
        finish(command.arg(at("profile")).arg(&original).arg("-o").arg(&output)).expect(code::DONE);
        run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
    }
}

#[test]
fn the_laboratory_runs_on_branch_records() {
    let original = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    record(&restitch, &original, &at("profile"));
    let trace = ["record", "--source", "trace", "--overhead", "50%", "--depth", "256", "-o"];
    finish(restitch.command(&trace).arg(at("perf.data")).arg("--").arg(&original)).expect(SUCCESS);
    let lab = |records: &str| {
        let mut lab = restitch.command(&["lab"]);
        lab.arg(&original).arg("--profile").arg(at("profile")).arg("--records").arg(at(records));
        finish(lab.args(["--layouts", "ext-tsp", "--json", "-"]))
    };
    let finished = lab("perf.data");
    finished.expect(code::DONE);
    let json: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert!(json["seed"].is_null() && json["steps"].as_u64().is_some_and(|n| n > 100), "{}", json["steps"]);
    // In real execution too, a layout by the exact profile takes fewer branches than the compiler's order.
    let taken = |entry: usize| json["entries"][entry]["counts"]["taken"].as_u64().expect("a count");
    assert!(taken(1) < taken(0), "{} {}", taken(1), taken(0));
    expect_message(&lab("profile"), code::BAD_INPUT, &["perf.data"]);
}

#[test]
fn the_laboratory_runs_layouts_on_this_processor() {
    let original = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    record(&restitch, &original, &at("profile"));
    let lab = |more: &[&str]| {
        let mut lab = restitch.command(&["lab"]);
        lab.arg(&original).arg("--profile").arg(at("profile")).args(["--steps", "20000"]);
        lab.args(["--layouts", "ph,ext-tsp,ext-tsp-across"]);
        finish(lab.arg("--json").arg(at("lab.json")).arg("--svg").arg(at("lab.svg")).args(more))
    };
    let prog = original.display().to_string();
    // It ends with 42, as always, and so do all of them.
    let finished = lab(&["--rounds", "2", "--", &prog, "--busy", "0.05"]);
    finished.expect(code::DONE);
    let told = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in
        ["on this processor, 2 rounds of", "six rounds are the least", "warning: the command ended with 42"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    let json = std::fs::read(at("lab.json")).expect("written");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let measured = &json["measured"];
    let names: Vec<&str> =
        measured["layouts"].as_array().expect("layouts").iter().filter_map(|l| l["name"].as_str()).collect();
    assert_eq!(names, ["ph", "ext-tsp", "ext-tsp-across"]);
    for layout in measured["layouts"].as_array().expect("layouts") {
        let ratios = layout["ratios"].as_array().expect("ratios");
        assert_eq!(ratios.len(), measured["events"].as_array().expect("events").len());
        assert!(ratios.iter().all(|r| r["median"].as_f64().is_some_and(|m| m > 0.0)), "{layout}");
    }
    assert!(std::fs::read_to_string(at("lab.svg")).expect("written").contains("measured: "));
    // Whoever prints something else with a layout's file is not measured.
    let other = lab(&["--rounds", "1", "--", "sh", "-c", "echo $0", "{}"]);
    expect_message(&other, code::FAILURE, &["printed something else", "ph"]);
    let other = lab(&["--rounds", "1", "--", "sh", "-c", "test $0 = $1", "{}", &prog]);
    expect_message(&other, code::FAILURE, &["with the layout ph it ended with 1, and not with 0"]);
    let other = lab(&["--rounds", "1", "--", "sh", "-c", "test $0 = $1 || kill -SEGV $$", "{}", &prog]);
    expect_message(&other, code::FAILURE, &["with the layout ph it ended by signal 11, and not with 0"]);
    let fallen = lab(&["--rounds", "1", "--", "sh", "-c", "kill -SEGV $$", "{}"]);
    expect_message(&fallen, code::FAILURE, &["the original ended by signal 11", "ends by itself"]);
    let count = format!("echo >> {0}; exit $(wc -l < {0})", at("count").display());
    let changing = lab(&["--rounds", "1", "--", "sh", "-c", &count, "{}"]);
    expect_message(&changing, code::FAILURE, &["the original ended with 1 and then with 2"]);
    // The layouts do not take another program's place.
    let another = lab(&["--rounds", "1", "--", "/bin/echo", "hi"]);
    expect_message(&another, code::USAGE, &["begins with /bin/echo, which is not", &prog, "put {}"]);
    // What is another output each time by itself says nothing.
    let clock = lab(&["--rounds", "1", "--", "sh", "-c", "date +%N; $0 > /dev/null", "{}"]);
    expect_message(&clock, code::DONE, &["outputs are not compared"]);
}

#[test]
fn an_interrupted_laboratory_leaves_nothing() {
    let original = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name);
    record(&restitch, &original, &at("profile"));
    std::fs::create_dir(at("temporary")).expect("made");
    let mut lab = restitch.command(&["lab"]);
    lab.arg(&original).arg("--profile").arg(at("profile")).args(["--steps", "20000", "--layouts", "ph"]);
    lab.env("TMPDIR", at("temporary"));
    let script = format!("echo > {}; sleep 0.2; $0 > /dev/null", at("begun").display());
    lab.args(["--rounds", "1000", "--", "sh", "-c", &script, "{}"]);
    let mut lab = lab.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
    let patience = Instant::now() + PATIENCE;
    while !at("begun").exists() {
        assert!(Instant::now() < patience, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = Command::new("kill").args(["-TERM", &lab.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
    assert_eq!(lab.wait().expect("it ends").code(), Some(code::TERMINATED));
    let left: Vec<_> = std::fs::read_dir(at("temporary")).expect("readable").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
