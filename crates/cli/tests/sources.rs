//! `record --source`: branch records without branch hardware, and what is said where a source is not to be
//! had.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, finish, look, stoppable, with_time};
use restitch_report::RunResult;
use restitch_testkit::{Finished, Guarded, SUCCESS, compile, program, run, scratch, skipped, wait_until};
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn compiled(source: &str) -> Option<PathBuf> {
    match compile(&program(source), &["-O2"]) {
        Ok(path) => Some(path),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

/// A machine that forbids breakpoints is no reason to fail.
fn has_breakpoints(restitch: &Restitch) -> bool {
    let told = restitch.run(&["doctor"]).stdout;
    let has = told.lines().any(|line| line.starts_with("yes hardware breakpoints"));
    if !has {
        skipped("no hardware breakpoints");
    }
    has
}

#[test]
fn a_program_is_traced_from_start_to_end_and_optimized_with_the_profile() {
    let Some(original) = compiled("switch.c") else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let (profile, output) = (folder.path().join("profile"), folder.path().join("output"));
    let recorded = with_time(["2", "10", "50"], |seconds| {
        let mut command = restitch.command(&["record", "--source", "trace", "--overhead", "20%", "-o"]);
        command.arg(&profile).arg("--").arg(&original).args(["--seconds", seconds]);
        command
    });
    expect_message(&recorded, SUCCESS, &["branches in", "overhead", "contradicted"]);
    let mut command = restitch.command(&["optimize"]);
    finish(command.arg(&original).arg("--profile").arg(&profile).arg("-o").arg(&output)).expect(code::DONE);
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

/// What one program has executed is not counted as another's that has the same addresses.
#[test]
fn programs_that_execute_each_other_are_told_apart() {
    let flags = ["-O1", "-static", "-no-pie"];
    let one = compile(&program("odd/takes_turns.c"), &flags);
    let other = compile(&program("odd/takes_turns.c"), &[&flags[..], &["-DOTHER"]].concat());
    let (Ok(one), Ok(other)) = (one, other) else { return skipped("no static libraries for gcc") };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let profile = folder.path().join("profile");
    let mut command = restitch.command(&["record", "--source", "trace", "--overhead", "20%", "-o"]);
    command.arg(&profile).arg("--").arg(&one).arg("100").arg(&other);
    let recorded = finish(&mut command);
    assert_eq!(recorded.status.code(), Some(42), "{}", recorded.stderr);
    assert!(!recorded.stderr.contains("do not fit"), "{}", recorded.stderr);
}

#[test]
fn a_running_process_is_traced_and_not_touched() {
    let Some(original) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let profile = folder.path().join("profile");
    let mut target = Target::start(&original);
    let pid = target.pid().to_string();
    let (json, html) = (folder.path().join("json"), folder.path().join("html"));
    let recorded = with_time(["3", "9", "27"], |duration| {
        let mut command = restitch.command(&["record", "-p", &pid, "--source", "trace", "--overhead", "20"]);
        command.args(["--depth", "64", "--duration", duration, "-o"]).arg(&profile);
        command.arg("--json").arg(&json).arg("--html").arg(&html);
        command
    });
    recorded.expect(code::DONE);
    assert!(profile.exists());
    let told = RunResult::from_json(&std::fs::read_to_string(json).unwrap()).unwrap();
    let records = told.branch_records.expect("the result tells of records");
    assert_eq!((told.target.pid, told.target.program), (Some(target.pid()), original.display().to_string()));
    assert!(records.records > 0 && records.branches >= records.full_records * 64, "{records:?}");
    assert_eq!(records.ends.iter().map(|e| e.count).sum::<u64>(), records.records, "{records:?}");
    assert!(told.peak_memory_bytes > 1 << 20);
    assert!(
        records.held_ms > 0.0 && records.overhead > Some(0.0) && records.cpu_ms > records.held_ms,
        "{records:?}"
    );
    assert!(std::fs::read_to_string(html).unwrap().contains("<th>overhead</th>"));
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "nothing is in the state directory");
    target.stop();
}

/// Records `pid` from `source` for longer and longer, until it says `words`: it may have had no processor, or
/// have been seen in code of its file by chance, of which there is a profile then.
#[track_caller]
fn expect_no_profile(restitch: &Restitch, source: &str, pid: u32, code: i32, words: &[&str]) {
    let (folder, pid) = (scratch(), pid.to_string());
    let profile = folder.path().join("profile");
    let record = |duration: &str| {
        let _ = std::fs::remove_file(&profile);
        let mut command = restitch.command(&["record", "-p", &pid, "--source", source, "-o"]);
        finish(command.arg(&profile).args(["--duration", duration]))
    };
    let is_said = |recorded: &Finished| words.iter().all(|word| recorded.stderr.contains(word));
    let mut all = ["2", "8", "30"].into_iter().map(record);
    let recorded = all.by_ref().find(is_said).unwrap_or_else(|| record("60"));
    expect_message(&recorded, code, words);
    assert!(!profile.exists(), "{source}: a profile was written");
}

/// As programs do that are compiled while they run, or run under a translator (valgrind, qemu-user).
#[test]
fn a_process_that_works_in_code_of_no_file_is_said_to_do_so() {
    let Some(original) = stoppable("odd/generated.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&original);
    let sources = ["ip", "burst", "count"].into_iter().chain(has_breakpoints(&restitch).then_some("trace"));
    for source in sources {
        let words = ["in no file", "translator"];
        expect_no_profile(&restitch, source, target.pid(), code::NOTHING_TO_DO, &words);
    }
    let attached = restitch.run(&["attach", &target.pid().to_string(), "--duration", "2"]);
    expect_message(&attached, code::NOTHING_TO_DO, &["in no file"]);
    target.assert_untouched("without a profile");
    target.stop();
}

/// As valgrind has it for what runs under it.
#[test]
fn a_process_that_works_and_cannot_be_interrupted_is_not_said_to_be_idle() {
    let Some(original) = stoppable("odd/generated.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    if !has_breakpoints(&restitch) {
        return;
    }
    let mut target = Target::start_with(&original, &["--blocked"]);
    let words = ["not available", "blocks the signals", "--source ip"];
    expect_no_profile(&restitch, "trace", target.pid(), code::REFUSED, &words);
    target.stop();
}

/// Original code is traced: a layout that is in force is taken out, and said so.
#[test]
fn a_layout_goes_before_its_process_is_traced() {
    let Some(original) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let profile = folder.path().join("profile");
    let mut target = Target::start(&original);
    let pid = target.pid().to_string();
    for tree in [&[][..], &["--tree"]] {
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        assert!(!look::differences(target.pid()).is_empty());
        let record = |duration| {
            let mut command = restitch.command(&["record", "-p", &pid, "--source", "trace"]);
            command.args(tree).args(["--overhead", "20", "--duration", duration, "-o"]).arg(&profile);
            command
        };
        let first = finish(&mut record("1"));
        assert!(first.stderr.contains("its layout is taken out for the recording"), "{}", first.stderr);
        with_time(["3", "9", "27"], record).expect(code::DONE);
        assert_eq!(look::differences_but_hook(target.pid()), []);
        let shown = finish(restitch.command(&["profile", "show"]).arg(&profile));
        assert!(shown.stdout.contains(&*original.file_name().unwrap().to_string_lossy()), "{}", shown.stdout);
    }
    target.stop();
}

/// One that traces a process and one that counts it are at work on it.
#[test]
fn restitches_that_record_the_same_process_know_of_each_other() {
    let Some(original) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let output = folder.path().join("profile");
    let output = output.to_str().unwrap();
    let mut target = Target::start(&original);
    let pid = target.pid().to_string();
    for (first, then) in [("trace", "count"), ("count", "trace")] {
        let record = |source: &str, duration: &str| {
            restitch.command(&[
                "record",
                "-p",
                &pid,
                "--source",
                source,
                "--duration",
                duration,
                "-o",
                output,
            ])
        };
        let mut working = record(first, "600");
        let mut working = Guarded::spawn(working.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
        let is_at_work = || match first {
            "trace" => {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                !status.lines().any(|line| line == "TracerPid:\t0")
            }
            _ => !look::differences(target.pid()).is_empty(),
        };
        wait_until(PATIENCE, || is_at_work().then_some(())).expect("the first one begins");
        expect_message(&finish(&mut record(then, "1")), code::REFUSED, &["another restitch", "is at work"]);
        let asked = Command::new("kill").args(["-TERM", &working.pid().to_string()]).status().unwrap();
        assert!(asked.success() && working.wait_within(PATIENCE).is_some());
        assert_eq!(look::differences_but_hook(target.pid()), []);
    }
    target.stop();
}

/// The kernel says nothing of a thread that has ended, and this one ends before anybody asks.
#[test]
fn the_processor_time_of_a_short_command_is_known_to_its_end() {
    let Some(original) = compiled("switch.c") else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let (profile, json) = (folder.path().join("profile"), folder.path().join("json"));
    let recorded = with_time(["0.05", "0.5", "5"], |busy| {
        let mut command = restitch.command(&["record", "--source", "trace", "--overhead", "30%", "-o"]);
        command.arg(&profile).arg("--json").arg(&json).arg("--").arg(&original).args(["--busy", busy]);
        command
    });
    recorded.expect(SUCCESS);
    let told = RunResult::from_json(&std::fs::read_to_string(json).unwrap()).unwrap();
    let records = told.branch_records.expect("the result tells of records");
    // Half of what it uses at least: the loader's share is not traced.
    assert!(records.cpu_ms > 25.0 && records.overhead.is_some(), "{records:?}");
}

#[test]
fn records_come_each_so_often_and_code_is_followed_as_asked() {
    let Some(original) = compiled("switch.c") else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let (profile, json) = (folder.path().join("profile"), folder.path().join("json"));
    let record = |how: &str| {
        let recorded = with_time(["1", "4", "16"], |busy| {
            let mut command = restitch.command(&["record", "--source", "trace", "--period", "20ms"]);
            command.args(["--depth", "16", "--look-ahead", how, "--json"]).arg(&json).arg("-o").arg(&profile);
            command.arg("--").arg(&original).args(["--busy", busy]);
            command
        });
        recorded.expect(SUCCESS);
        let told = RunResult::from_json(&std::fs::read_to_string(&json).unwrap()).unwrap();
        told.branch_records.expect("the result tells of records")
    };
    let (evaluated, fixed) = (record("evaluate"), record("fixed"));
    for records in [&evaluated, &fixed] {
        // The jitter of a period is a quarter; alarms that fall into the kernel are late.
        assert!(records.alarms as f64 <= records.cpu_ms / 15.0 + 2.0, "{records:?}");
        assert!(records.full_records * 16 <= records.branches, "{records:?}");
    }
    assert!(fixed.breakpoints * 3 > fixed.branches, "each branch that depends on values has one: {fixed:?}");
    assert!(evaluated.breakpoints * 3 < evaluated.branches, "{evaluated:?}");
    let bad = restitch.run(&["record", "--source", "burst", "--period", "500k", "-o", "x", "--", "true"]);
    expect_message(&bad, code::REFUSED, &["does not count them", "--period 5ms"]);
    let bad = restitch.run(&["record", "--period", "5ms", "-o", "x", "--", "true"]);
    expect_message(&bad, code::REFUSED, &["name a source"]);
    restitch.run(&["record", "--period", "5 m", "-o", "x", "--", "true"]).expect(code::USAGE);
    restitch
        .run(&["record", "--period", "5ms", "--overhead", "1%", "-o", "x", "--", "true"])
        .expect(code::USAGE);
}

#[test]
fn sources_that_are_not_there_name_another_one() {
    let restitch = Restitch::new();
    let told = restitch.run(&["doctor"]).stdout;
    if !told.lines().any(|line| line.starts_with("yes branch records")) {
        for arguments in [&["record", "-o", "/nonexistent/profile", "-p"][..], &["attach"]] {
            let refused = restitch.run(&[arguments, &["1", "--source", "lbr"]].concat());
            expect_message(&refused, code::REFUSED, &["not available", "--source trace"]);
        }
    }
    restitch.run(&["record", "-p", "1", "--source", "best", "-o", "x"]).expect(code::USAGE);
    restitch
        .run(&["record", "-p", "1", "--source", "trace", "--overhead", "90%", "-o", "x"])
        .expect(code::USAGE);
}

/// How many branches it says that it has recorded.
fn branches(recorded: &Finished) -> u64 {
    let mut lines = recorded.stderr.split("restitch: ");
    lines.find_map(|line| line.split_once(" branches in")?.0.parse().ok()).unwrap_or(0)
}

/// All code of a small program is copied before it runs: what it does in two seconds is recorded from its
/// beginning on, however long the making takes, and bursts do not end at code that nobody has thought of.
#[test]
fn a_short_command_gives_bursts_or_says_why_not() {
    let Some(original) = compiled("switch.c") else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let record = |arguments: &[&str]| {
        let mut command = restitch.command(&["record", "--source", "burst", "--overhead", "20%", "-o"]);
        finish(command.arg(&profile).arg("--").arg(&original).args(arguments))
    };
    // One round of it, a few milliseconds: there may be an alarm in them.
    let short = record(&[]);
    if short.status.code() == Some(SUCCESS) {
        expect_message(&short, SUCCESS, &["branches in"]);
    } else {
        expect_message(&short, code::NOTHING_TO_DO, &["--source trace"]);
        assert!(!profile.exists());
    }
    // Longer, where the program got too little time of a busy machine.
    let long = ["2", "10", "50"].map(|seconds| ["--seconds", seconds]);
    let mut recorded = long.iter().map(|seconds| record(seconds));
    let recorded = recorded.find(|r| branches(r) > 1000).expect("more than 1000 branches in 50 seconds");
    expect_message(&recorded, SUCCESS, &["branches in", "bursts ended"]);
    let ends = recorded.stderr.split("bursts ended: ").nth(1).unwrap();
    let full: u64 = ends.split_once(" full").map_or(0, |(n, _)| n.parse().unwrap());
    let early: u64 = [" at code that is not copied", " at a return or indirect branch"]
        .iter()
        .filter_map(|end| ends.split_once(end)?.0.rsplit([' ', ',']).next()?.parse::<u64>().ok())
        .sum();
    assert!(full > early, "{}", recorded.stderr);
    let output = folder.path().join("output");
    let mut command = restitch.command(&["optimize"]);
    finish(command.arg(&original).arg("--profile").arg(&profile).arg("-o").arg(&output)).expect(code::DONE);
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

/// Threads that come when the recording is under way, and all work.
const THREADS: &str = r#"
#include <pthread.h>
static pthread_barrier_t all_there;
static void *work(void *argument) {
    pthread_barrier_wait(&all_there);
    volatile unsigned long sum = 0;
    for (unsigned long i = 0; i < 3000000; i++) sum += i & 1 ? i : 3 * i;
    return argument;
}
int main(void) {
    pthread_t threads[100];
    pthread_barrier_init(&all_there, 0, 100);
    for (int i = 0; i < 100; i++) if (pthread_create(&threads[i], 0, work, 0)) return 1;
    for (int i = 0; i < 100; i++) pthread_join(threads[i], 0);
    return 42;
}
"#;

/// Processes of which the same holds.
const PROCESSES: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int all_there[2];
    char byte;
    if (pipe(all_there)) return 1;
    for (int i = 0; i < 100; i++) {
        int child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            close(all_there[1]);
            if (read(all_there[0], &byte, 1)) _exit(1);
            volatile unsigned long sum = 0;
            for (unsigned long i = 0; i < 3000000; i++) sum += i & 1 ? i : 3 * i;
            _exit(0);
        }
    }
    close(all_there[1]);
    for (int status, i = 0; i < 100; i++) if (wait(&status) < 0 || status) return 1;
    return 42;
}
"#;

/// There are descriptors for some of them only.
#[test]
fn threads_that_are_left_out_for_want_of_descriptors_are_told() {
    let Some(program) = many(THREADS) else { return };
    all_are_recorded_or_told(&["--", &program.to_string_lossy()], SUCCESS);
}

#[test]
fn processes_that_are_left_out_for_want_of_descriptors_are_told() {
    let Some(program) = many(PROCESSES) else { return };
    all_are_recorded_or_told(&["--", &program.to_string_lossy()], SUCCESS);
}

/// The same of threads that are there when the recording begins.
#[test]
fn threads_that_are_there_and_left_out_for_want_of_descriptors_are_told() {
    let Some(program) = many(&THREADS.replace("i < 3000000", "1")) else { return };
    let mut running = Guarded::spawn(&mut Command::new(&program)).expect("it starts");
    let pid = running.pid();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    wait_until(PATIENCE, || (threads() == 101).then_some(())).expect("its threads");
    all_are_recorded_or_told(&["-p", &pid.to_string(), "--duration", "1"], code::DONE);
    assert!(running.is_running());
}

/// A program of a thread, or process, and a hundred others.
fn many(text: &str) -> Option<PathBuf> {
    let folder = scratch();
    let source = folder.path().join("many.c");
    std::fs::write(&source, text).expect("writable");
    let program = restitch_testkit::compile_with("gcc", &source, &["-O1", "-pthread"]).ok();
    if program.is_none() {
        skipped("no gcc");
    }
    program
}

/// Records it.
fn all_are_recorded_or_told(what: &[&str], status: i32) {
    let (restitch, folder) = (Restitch::new(), scratch());
    if !has_breakpoints(&restitch) {
        return;
    }
    let (profile, json) = (folder.path().join("profile"), folder.path().join("json"));
    let recording = restitch.command(&["record", "--source", "trace", "--overhead", "20%", "-o"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(recording.get_program());
    command.args(recording.get_args()).arg(&profile).arg("--json").arg(&json).args(what);
    let recorded = finish(command.env("RESTITCH_STATE_DIR", restitch.state()));
    expect_message(&recorded, status, &["threads were not recorded", "RLIMIT_NOFILE", "`ulimit -n`"]);
    let result: RunResult =
        serde_json::from_slice(&std::fs::read(&json).expect("it is written")).expect("a result");
    let missed = result.branch_records.as_ref().expect("it was traced").missed_threads;
    // Each of the recorded ones takes a descriptor at least.
    assert!((101 - 64..101).contains(&missed), "{missed}");
    assert!(result.warnings.iter().any(|w| w.starts_with(&format!("{missed} threads"))), "{result:?}");
}
