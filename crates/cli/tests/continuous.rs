//! `attach --continuous`: a process that works in other ways by and by, and the ends that a session can have.

mod common;

use common::look::{differences, ours};
use common::moving::Moving;
use common::{PATIENCE, Restitch, code};
use restitch_testkit::{Finished, Guarded, TempDir, compile, require, scratch, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Works in one of four ways until there is a file; with each SIGUSR1 in the next one. With one more argument
/// it does nothing before the first. Ends with 0 if all results were right.
const PROGRAM: &str = "
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#define STEP(name, a, b) \\
    __attribute__((noinline)) static int name(int x, int i) { \\
        switch ((x ^ i) & 7) { \\
        case 0: return x + a; \\
        case 1: return x * 3 + b; \\
        case 2: return x ^ (i * b); \\
        case 3: return x - a; \\
        case 4: return x / 3 + i; \\
        default: return x * 5 + i * a; \\
        } \\
    }
#define WORK(name, a, b) \\
    STEP(name##_one, a, b) STEP(name##_two, a + 2, b + 2) STEP(name##_three, a + 4, b + 6) \\
    __attribute__((noinline)) int name(int n) { \\
        int x = b; \\
        for (int i = 0; i < n; i++) x = name##_three(name##_two(name##_one(x, i) & 0xffffff, i) & 0xffffff, i) & 0xffffff; \\
        return x; \\
    }
WORK(north, 11, 101) WORK(east, 23, 211) WORK(south, 31, 307) WORK(west, 43, 401)
static int (*const works[4])(int) = {north, east, south, west};
static volatile sig_atomic_t way;
static void next(int signal) { way = (way + 1) & 3; }
int main(int argc, char **argv) {
    int expected[4];
    for (int i = 0; i < 4; i++) expected[i] = works[i](1000);
    signal(SIGUSR1, next);
    alarm(900);
    if (argc > 2) pause();
    while (access(argv[1], F_OK) != 0)
        for (int k = 0; k < 300; k++) {
            int i = way, result = works[i](1000);
            if (result != expected[i]) { printf(\"%d instead of %d by %d\\n\", result, expected[i], i); return 1; }
        }
    return 0;
}
";

/// The program at work, and where the code of each of its ways begins and ends.
struct Working {
    target: Guarded,
    ways: Vec<(u64, u64)>,
    stop: PathBuf,
    _folder: TempDir,
}

impl Working {
    /// At work at once, if it is not `idle`. `None` without a compiler.
    fn start(idle: bool) -> Option<Self> {
        let folder = scratch();
        let source = folder.path().join("ways.c");
        std::fs::write(&source, PROGRAM).unwrap();
        let program = compile(&source, &["-O2", "-no-pie"]).ok()?;
        let symbols = Command::new("nm").arg(&program).output().ok()?;
        let symbols = String::from_utf8(symbols.stdout).unwrap();
        let find = |name: &str| {
            let line = symbols.lines().find(|l| l.ends_with(&format!(" {name}"))).expect("the symbol");
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        let way = |name: &str| {
            let parts = ["one", "two", "three"].map(|part| find(&format!("{name}_{part}")));
            (*parts.iter().min().unwrap(), find(name))
        };
        let ways = ["north", "east", "south", "west"].map(way).to_vec();
        let stop = folder.path().join("stop");
        let mut run = Command::new(&program);
        run.arg(&stop).args(idle.then_some("idle"));
        let target = Guarded::spawn(run.stdin(Stdio::null())).unwrap();
        Some(Self { target, ways, stop, _folder: folder })
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// It works in the next way from now on.
    fn next(&self) {
        signal("USR1", self.pid());
    }

    /// Whether the code of each way leads into a version.
    fn redirected(&self) -> Vec<bool> {
        let all = differences(self.pid());
        let leads = |(low, high): &(u64, u64)| {
            all.iter().any(|d| *low <= d.at && d.at <= *high && d.target().is_some())
        };
        self.ways.iter().map(leads).collect()
    }

    /// It has had the right results all the time.
    fn end(mut self) {
        std::fs::write(&self.stop, "").unwrap();
        assert_eq!(self.target.child().wait().unwrap().code(), Some(0), "a wrong result");
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("started").success());
}

/// What ends a session from a terminal; TERM where whoever has started the tests has them ignore that (a
/// shell's background jobs), as restitch then does, too.
fn interrupting() -> &'static str {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("in every kernel");
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    // Signal number 2.
    if ignored & 1 << 1 == 0 { "INT" } else { "TERM" }
}

/// A session that is under way.
struct Session {
    restitch: Guarded,
    json: PathBuf,
    notes: PathBuf,
}

impl Session {
    fn start(restitch: &Restitch, pid: u32) -> Self {
        Self::start_with(restitch, pid, &[])
    }

    fn start_with(restitch: &Restitch, pid: u32, more: &[&str]) -> Self {
        let json = restitch.state().join("result");
        let (pid, file) = (pid.to_string(), json.to_str().unwrap());
        let how = ["--continuous", "--rest", "0", "--watch-rate", "2000", "--measure", "0", "--json", file];
        let mut command = restitch.command(&[&["attach", &pid], &how[..], more].concat());
        let notes = restitch.state().join("notes");
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&notes).unwrap());
        Self { restitch: Guarded::spawn(&mut command).unwrap(), json, notes }
    }

    fn result(&self) -> Option<Value> {
        serde_json::from_slice(&std::fs::read(&self.json).ok()?).ok()
    }

    /// Waits for so many rounds that have come to something.
    fn waits_for(&self, rounds: usize) {
        let in_force = |result: &Value| {
            let all = result["continuous"]["rounds"].as_array().map_or(&[][..], Vec::as_slice);
            all.iter().filter(|r| r["outcome"] == "in_force").count()
        };
        let done = || self.result().filter(|result| in_force(result) >= rounds);
        wait_until(PATIENCE, done).unwrap_or_else(|| panic!("round {rounds}: {:?}", self.result()));
    }

    fn waits_for_note(&self, words: &str) {
        let notes = || std::fs::read_to_string(&self.notes).ok().filter(|notes| notes.contains(words));
        wait_until(PATIENCE, notes).unwrap_or_else(|| panic!("{words}: {:?}", self.result()));
    }

    /// Its end, and the result.
    fn ends(mut self) -> (Finished, Value) {
        let child = self.restitch.child();
        let ended = wait_until(PATIENCE, || child.try_wait().unwrap());
        let status = ended.expect("the session ends");
        let stderr = std::fs::read_to_string(&self.notes).unwrap();
        (Finished { status, stdout: String::new(), stderr }, self.result().expect("a result"))
    }
}

#[test]
fn new_ways_of_working_are_added_to_the_layout_and_known_ones_are_no_reason() {
    let working = require!(Working::start(false), "gcc and nm");
    let restitch = Restitch::new();
    let session = Session::start(&restitch, working.pid());
    session.waits_for(1);
    assert_eq!(working.redirected(), [true, false, false, false]);
    working.next();
    session.waits_for(2);
    assert_eq!(working.redirected(), [true, true, false, false], "both ways are in the layout");
    working.next();
    session.waits_for(3);
    assert_eq!(working.redirected(), [true, true, true, false]);
    // Old versions go, also when the process works in the same way for ever.
    let versions = || ours(working.pid()).into_iter().map(|line| line.name).collect::<BTreeSet<_>>();
    let gone = wait_until(PATIENCE, || (versions().len() <= 1).then_some(()));
    assert!(gone.is_some(), "{:?}", ours(working.pid()));
    // On to west, which is new, and round again: all are known then.
    working.next();
    session.waits_for(4);
    assert_eq!(working.redirected(), [true; 4]);
    for _ in 0..4 {
        working.next();
        std::thread::sleep(Duration::from_secs(5));
    }
    signal("TERM", session.restitch.pid());
    let (done, result) = session.ends();
    done.expect(code::TERMINATED);
    assert_eq!(result["exit_code"], code::TERMINATED, "{result:#}");
    let all = &result["continuous"];
    // (There is none if it was asked to end in a fifth round.)
    let rounds = all["rounds"].as_array().map_or(0, Vec::len);
    assert_eq!(rounds, 4, "{result:#}\n{}", done.stderr);
    let why = |i: usize| all["rounds"][i]["why"].as_str().unwrap().to_owned();
    assert!(why(0).contains("began") && (1..4).all(|i| why(i).contains("not known")), "{all:#}");
    assert_eq!(all["behaviours"], 4, "{all:#}");
    assert!(all["ended"].as_str().unwrap().contains("asked"), "{all:#}");
    assert_eq!(working.redirected(), [true; 4], "the layout stays");
    restitch.revert(working.pid()).expect(code::DONE);
    assert_eq!(differences(working.pid()), []);
    working.end();
}

/// The round that was under way is one of those in the result; what it counted with is gone.
#[test]
fn a_session_that_is_asked_to_end_in_a_later_round_tells_of_those_before() {
    let working = require!(Working::start(false), "gcc and nm");
    let restitch = Restitch::new();
    let session = Session::start_with(&restitch, working.pid(), &["--duration", "4"]);
    session.waits_for(1);
    let counts = |wanted: bool| {
        let is_counting = || ours(working.pid()).iter().any(|line| line.name.contains("restitch-counters"));
        let is_so = wait_until(PATIENCE, || (is_counting() == wanted).then_some(()));
        is_so.unwrap_or_else(|| panic!("{wanted}: {:?}", ours(working.pid())));
    };
    counts(false);
    working.next();
    counts(true);
    signal("TERM", session.restitch.pid());
    let (done, result) = session.ends();
    done.expect(code::TERMINATED);
    assert_eq!(result["exit_code"], code::TERMINATED, "{result:#}");
    assert_eq!(result["outcome"], "reverted", "{result:#}");
    let all = &result["continuous"];
    let rounds = all["rounds"].as_array().expect("the rounds");
    let came_to: Vec<_> = rounds.iter().map(|r| (r["outcome"].as_str(), r["error"].is_string())).collect();
    assert_eq!(came_to, [(Some("in_force"), false), (Some("nothing_to_do"), true)], "{result:#}");
    assert!(all["ended"].as_str().unwrap().contains("has its original code"), "{all:#}");
    assert_eq!(differences(working.pid()), []);
    working.end();
}

/// Records are of the original code, which later rounds give back first.
#[test]
fn each_round_can_record() {
    let working = require!(Working::start(false), "gcc and nm");
    let restitch = Restitch::new();
    let more = ["--source", "burst", "--duration", "1"];
    let session = Session::start_with(&restitch, working.pid(), &more);
    session.waits_for(1);
    working.next();
    session.waits_for(2);
    assert_eq!(working.redirected()[1..], [true, false, false]);
    signal("TERM", session.restitch.pid());
    session.ends().0.expect(code::TERMINATED);
    restitch.revert(working.pid()).expect(code::DONE);
    working.end();
}

#[test]
fn a_revert_ends_the_session() {
    let working = require!(Working::start(false), "gcc and nm");
    let restitch = Restitch::new();
    let session = Session::start(&restitch, working.pid());
    session.waits_for(1);
    restitch.status(working.pid()).expect(code::DONE);
    let reverted = wait_until(PATIENCE, || {
        // It may be at work once more.
        let done = restitch.revert(working.pid());
        (done.status.code() == Some(code::DONE)).then_some(())
    });
    reverted.expect("reverted");
    let (done, result) = session.ends();
    done.expect(code::TAKEN_BACK);
    assert_eq!(result["outcome"], "reverted");
    assert!(result["continuous"]["ended"].as_str().unwrap().contains("another restitch"), "{result:#}");
    assert_eq!(differences(working.pid()), []);
    working.end();
}

#[test]
fn the_end_of_the_process_ends_the_session() {
    let working = require!(Working::start(false), "gcc and nm");
    let restitch = Restitch::new();
    let session = Session::start(&restitch, working.pid());
    session.waits_for(1);
    working.end();
    let (done, result) = session.ends();
    done.expect(code::DONE);
    assert!(result["continuous"]["ended"].as_str().unwrap().contains("has ended"), "{result:#}");
}

#[test]
fn a_process_that_is_idle_is_optimized_when_it_works() {
    let working = require!(Working::start(true), "gcc and nm");
    let restitch = Restitch::new();
    let session = Session::start(&restitch, working.pid());
    session.waits_for_note("too little CPU time");
    working.next();
    session.waits_for(1);
    assert_eq!(working.redirected(), [false, true, false, false]);
    let name = interrupting();
    signal(name, session.restitch.pid());
    let (done, result) = session.ends();
    done.expect(if name == "INT" { code::INTERRUPTED } else { code::TERMINATED });
    let rounds = &result["continuous"]["rounds"];
    assert!(rounds[0]["error"].is_string() && rounds[1]["error"].is_null(), "{rounds:#}");
    restitch.revert(working.pid()).expect(code::DONE);
    working.end();
}

#[test]
fn a_session_that_has_optimized_nothing_says_so() {
    let working = require!(Working::start(true), "gcc and nm");
    let restitch = Restitch::new();
    let session = Session::start(&restitch, working.pid());
    session.waits_for_note("too little CPU time");
    let (name, number) = if interrupting() == "INT" { ("INT", 2) } else { ("TERM", 15) };
    signal(name, session.restitch.pid());
    let (done, result) = session.ends();
    done.expect(128 + number);
    let told = format!("ended by SIG{name}: process {} has its original code", working.pid());
    assert!(done.stderr.contains(&told) && !done.stderr.contains("stays"), "{}", done.stderr);
    assert_eq!(result["exit_code"], 128 + number, "{result:#}");
    assert_eq!(differences(working.pid()), []);
    working.next();
    working.end();
}

#[test]
fn libraries_that_were_opened_anew_are_optimized_again() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    let session = Session::start(&restitch, moving.pid());
    session.waits_for(1);
    // A round in which one of them has counted too little is followed by another one only if the program does
    // something else.
    let all = moving.redirected();
    session.waits_for_note("is done in the new layout");
    moving.moves();
    let again = wait_until(PATIENCE, || (moving.redirected() == all).then_some(()));
    assert!(again.is_some(), "{:?}", session.result());
    // In the middle of a round the original code would be given back.
    session.waits_for(2);
    signal("TERM", session.restitch.pid());
    let (done, result) = session.ends();
    done.expect(code::TERMINATED);
    let rounds = &result["continuous"]["rounds"];
    assert!(rounds[1]["why"].as_str().unwrap().contains("less of the work"), "{rounds:#}");
    restitch.revert(moving.pid()).expect(code::DONE);
    moving.end();
}
