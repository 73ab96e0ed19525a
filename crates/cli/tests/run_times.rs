//! Programs whose run time looks code addresses up in tables of its own: every command that would make
//! versions refuses them, and says why; what does not change the program profiles it. docs/usage/run-times.md
//! is the table of those that were tried.

mod common;

use common::{Restitch, code, expect_message, finish, with_time};
use restitch_testkit::{
    Finished, Guarded, TempDir, compile_with, find_program, require, run, scratch, skipped, strip,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes trees of short-lived data, so that garbage is collected; prints what it has counted.
const OCAML: &str = "
type t = L | N of t * t
let rec make d = if d = 0 then L else let a = make (d-1) in N (a, make (d-1))
let rec size = function L -> 1 | N (a, b) -> size a + size b
let () = for _ = 1 to int_of_string Sys.argv.(1) do print_int (size (make 14)); print_newline () done
";

/// The same in Go, without any package, so that the compiler makes little more than the run time.
const GO: &str = "package main
type t struct{ l, r *t }
func tree(d int) *t { if d == 0 { return &t{} }; return &t{tree(d - 1), tree(d - 1)} }
func (x *t) size() int { if x == nil { return 0 }; return 1 + x.l.size() + x.r.size() }
func main() { for i := 0; i < ROUNDS; i++ { println(tree(14).size()) } }
";

fn built(command: &mut Command) {
    let finished = run(command, common::PATIENCE);
    assert!(finished.status.success(), "{command:?}: {}", finished.stderr);
}

/// The OCaml program, with its symbols and without.
fn ocaml(folder: &Path) -> Option<[PathBuf; 2]> {
    let compiler = find_program("ocamlopt")?;
    std::fs::write(folder.join("trees.ml"), OCAML).unwrap();
    built(Command::new(compiler).args(["trees.ml", "-o", "trees"]).current_dir(folder));
    let path = folder.join("trees");
    Some([strip(&path).unwrap(), path])
}

/// The Go program for so many rounds. The compiler keeps what it has made of the run time in a folder of all
/// tests.
fn go(folder: &Path, rounds: u64) -> Option<PathBuf> {
    let compiler = find_program("go")?;
    std::fs::write(folder.join("trees.go"), GO.replace("ROUNDS", &rounds.to_string())).unwrap();
    let path = folder.join(format!("trees{rounds}"));
    let mut command = Command::new(compiler);
    command.args(["build", "-o", text(&path), "trees.go"]).current_dir(folder);
    let cache = std::env::temp_dir().join("restitch-tests-go");
    command.env("GO111MODULE", "off").env("GOCACHE", cache).env("GOFLAGS", "");
    let finished = run(&mut command, 10 * common::PATIENCE);
    assert!(finished.status.success(), "{command:?}: {}", finished.stderr);
    Some(path)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Rounds of a recorded run: enough work for a few samples on any machine.
const ROUNDS: &str = "1500";

/// `record` of `program` with `options`; it has to have printed what it prints.
#[track_caller]
fn recorded(program: &Path, options: &[&str]) -> (Finished, TempDir) {
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let mut arguments = vec!["record", "-o", text(&profile)];
    arguments.extend(options);
    arguments.extend(["--", text(program), ROUNDS]);
    let finished = restitch.run(&arguments);
    let own = run(Command::new(program).arg(ROUNDS), common::PATIENCE);
    let printed = |finished: &Finished| {
        let all = format!("{}{}", finished.stdout, finished.stderr);
        all.lines().filter(|line| line.parse::<u64>().is_ok()).count()
    };
    assert_eq!(printed(&finished), printed(&own), "{options:?}: {} {}", finished.stdout, finished.stderr);
    (finished, folder)
}

/// The commands that write a changed copy of a file.
fn refuses_copies(program: &Path, why: &str) {
    let (restitch, folder) = (Restitch::new(), scratch());
    let path = |name: &str| folder.path().join(name);
    let (counts, copy) = (path("counts"), path("copy"));
    let finished = restitch.run(&["instrument", text(program), "--counts", text(&counts), "-o", text(&copy)]);
    expect_message(&finished, code::REFUSED, &[why, "--source trace", text(program)]);
    assert!(!counts.exists() && !copy.exists(), "instrument leaves files");
    // It is not even asked for.
    let profile = path("profile");
    let finished = restitch.run(&["optimize", text(program), "--profile", text(&profile), "-o", text(&copy)]);
    expect_message(&finished, code::REFUSED, &[why]);
    assert!(!copy.exists(), "optimize leaves a file");
    let finished = restitch.run(&["lab", text(program), "--profile", text(&profile)]);
    expect_message(&finished, code::REFUSED, &[why]);
}

/// All that a command said, in one line.
fn said(finished: &Finished) -> String {
    let all = format!("{} {}", finished.stdout, finished.stderr);
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A running program, attached to and recorded in all ways that would change it; it has to go on. Libraries
/// with enough samples may be moved ([`code::DONE`]): then the program is named as left out.
fn refuses_processes(program: &Path, why: &str, codes: &[i32]) {
    let mut command = Command::new(program);
    command.arg("100000000").stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Guarded::spawn(&mut command).unwrap();
    let (restitch, folder) = (Restitch::new(), scratch());
    let (pid, profile) = (process.pid().to_string(), folder.path().join("profile"));
    let profile = text(&profile);
    let told = |finished: &Finished, what: &str| {
        let ended = finished.status.code().unwrap();
        assert!(codes.contains(&ended), "{what}: {} {}", finished.status, finished.stderr);
        assert!(said(finished).contains(why), "{what}: {} {}", finished.stdout, finished.stderr);
        if ended == code::DONE {
            restitch.run(&["revert", &pid]);
        }
        assert!(common::look::ours(process.pid()).is_empty(), "{what} leaves something");
    };
    let attach = with_time_of(&restitch, &["attach", &pid, "--measure", "0", "--duration"], why);
    told(&attach, "attach");
    let record = with_time_of(&restitch, &["record", "-p", &pid, "-o", profile, "--duration"], why);
    told(&record, "record -p");
    let burst = with_time_of(
        &restitch,
        &["record", "-p", &pid, "-o", profile, "--source", "burst", "--duration"],
        why,
    );
    told(&burst, "record --source burst");
    let sampled = with_time(["1", "3"], |seconds| {
        restitch.command(&["record", "-p", &pid, "-o", profile, "--source", "ip", "--duration", seconds])
    });
    // Not every machine permits sampling.
    assert!(!sampled.stderr.contains(why), "{}", sampled.stderr);
    assert!(process.is_running(), "the program has ended");
}

/// Runs a command with more and more seconds until it says `why`.
fn with_time_of(restitch: &Restitch, arguments: &[&str], why: &str) -> Finished {
    let mut last = None;
    for seconds in ["1", "3", "10"] {
        let all: Vec<&str> = arguments.iter().copied().chain([seconds]).collect();
        let finished = finish(&mut restitch.command(&all));
        let told = said(&finished).contains(why);
        last = Some(finished);
        if told {
            break;
        }
    }
    last.unwrap()
}

const OF_OCAML: &str =
    "native code of OCaml, whose garbage collector looks return addresses up in tables of its own";

#[test]
fn ocaml_is_left_alone() {
    let folder = scratch();
    for program in require!(ocaml(folder.path()), "ocamlopt") {
        // Its libraries may be counted, and it says that the program is not.
        let (counted, _profile) = recorded(&program, &[]);
        let all = said(&counted);
        assert!(all.contains("ran uncounted") && all.contains(OF_OCAML), "{all}");
        let (burst, _profile) = recorded_or_refused(&program, &["--source", "burst"]);
        expect_message(&burst, code::REFUSED, &[OF_OCAML]);
        let (traced, _profile) = recorded(&program, &["--source", "trace"]);
        traced.expect(code::DONE);
        refuses_copies(&program, OF_OCAML);
        refuses_processes(&program, OF_OCAML, &[code::DONE, code::NOTHING_TO_DO, code::REFUSED]);
    }
}

/// `record` of a program that may not run at all for it.
fn recorded_or_refused(program: &Path, options: &[&str]) -> (Finished, TempDir) {
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let mut arguments = vec!["record", "-o", text(&profile)];
    arguments.extend(options);
    arguments.extend(["--", text(program), ROUNDS]);
    (restitch.run(&arguments), folder)
}

const OF_GO: &str = "a Go program, whose run time walks stacks by tables of its own";

#[test]
fn go_is_left_alone() {
    let folder = scratch();
    let (program, endless) = (go(folder.path(), 30), go(folder.path(), 1 << 60));
    let (program, endless) = require!(program.zip(endless), "go");
    let (counted, _profile) = recorded_or_refused(&program, &[]);
    expect_message(&counted, code::NOTHING_TO_DO, &[OF_GO]);
    let (burst, _profile) = recorded_or_refused(&program, &["--source", "burst"]);
    expect_message(&burst, code::REFUSED, &[OF_GO]);
    has_no_profile(&endless, &["a Go program", "no unwind tables", "FILE.perf.data"]);
    refuses_copies(&program, OF_GO);
    refuses_processes(&endless, OF_GO, &[code::REFUSED]);
}

/// Samples of a running program are in no profile, but in perf's format.
fn has_no_profile(program: &Path, words: &[&str]) {
    let mut command = Command::new(program);
    let process = Guarded::spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
    let (restitch, folder) = (Restitch::new(), scratch());
    let pid = process.pid().to_string();
    // It may have had no processor for a while.
    let recorded = |name: &str, is_done: &dyn Fn(&Finished) -> bool| {
        let output = folder.path().join(name);
        let record = |duration: &str| {
            let mut command = restitch.command(&["record", "--source", "ip", "-p", &pid, "-o"]);
            finish(command.arg(&output).args(["--duration", duration]))
        };
        let finished = ["2", "8", "30"].into_iter().map(record).find(is_done).expect("it was sampled");
        (finished, output.exists())
    };
    let says_why = |finished: &Finished| words.iter().all(|word| finished.stderr.contains(word));
    let (finished, is_there) = recorded("profile", &says_why);
    finished.expect(code::NOTHING_TO_DO);
    assert!(!is_there, "an empty profile was written");
    let (_, is_there) = recorded("samples.perf.data", &|finished| finished.status.code() == Some(code::DONE));
    assert!(is_there);
}

/// Calls two functions of its own, so many ten thousand times.
const COUNTED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) unsigned odd(unsigned x) { return x * 3 + (x >> 7); }
__attribute__((noinline)) unsigned even(unsigned x) { return odd(x) ^ 5; }
int main(int argc, char **argv) {
    unsigned x = (unsigned)argc;
    for (long i = 0, end = atol(argv[1]) * 10000; i < end; i++) x = i % 3 ? even(x) : odd(x);
    printf("%u\n", x);
    return 0;
}
"#;

/// How often the two functions were called, as gprof says of what the program has left in `folder`.
fn calls_of(program: &Path, folder: &Path) -> Vec<String> {
    let graph = folder.join("gmon.out");
    let mut gprof = Command::new("gprof");
    let told = run(gprof.args(["-bp", text(program)]).arg(&graph), common::PATIENCE);
    std::fs::remove_file(graph).expect("the program has written it");
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_ours = words.last().is_some_and(|name| ["odd", "even"].contains(name));
        is_ours.then(|| format!("{} {}", words[words.len() - 1], words[3]))
    };
    let mut rows: Vec<String> = told.stdout.lines().filter_map(row).collect();
    rows.sort();
    rows
}

const OF_GPROF: &str = "built for gprof (-pg), which counts calls by return addresses";

#[test]
fn programs_that_count_their_calls_are_left_alone() {
    require!(find_program("gprof"), "gprof");
    let folder = scratch();
    let source = folder.path().join("counted.c");
    std::fs::write(&source, COUNTED).unwrap();
    for flags in [&["-O2", "-pg"][..], &["-O1", "-pg", "-mfentry", "-no-pie"], &["-O2", "-pg", "-static"]] {
        let program = match compile_with("gcc", &source, flags) {
            Ok(program) => program,
            Err(error) => return skipped(&error.to_string()),
        };
        for program in [strip(&program).unwrap(), program.clone()] {
            refuses_copies(&program, OF_GPROF);
        }
        let within = |mut command: Command| finish(command.current_dir(folder.path()));
        let mut alone = Command::new(&program);
        alone.arg(ROUNDS);
        let expected = within(alone).stdout;
        let calls = calls_of(&program, folder.path());
        assert_eq!(calls.len(), 2, "{calls:?}");
        let (restitch, profile) = (Restitch::new(), folder.path().join("profile"));
        let recorded =
            within(restitch.command(&["record", "-o", text(&profile), "--", text(&program), ROUNDS]));
        assert!(recorded.stdout.contains(&expected), "{flags:?}: {}", recorded.stdout);
        let all = format!("{} {}", recorded.stdout, recorded.stderr);
        let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(all.contains(OF_GPROF), "{flags:?}: {all}");
        assert_eq!(calls_of(&program, folder.path()), calls, "{flags:?}: recorded");
        // In others the C library, which counts, may be worth it.
        if flags.contains(&"-static") {
            refuses_processes(&program, OF_GPROF, &[code::NOTHING_TO_DO, code::REFUSED]);
        }
    }
}
