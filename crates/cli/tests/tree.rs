//! A process and those that were forked off it: children from before, from the time of counting and from
//! afterwards.

mod common;

use common::{PATIENCE, Restitch, Target, code, look, with_time};
use restitch_testkit::{Guarded, TempDir, require, scratch, skipped, wait_until};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A server in the manner of PostgreSQL: the parent waits, and forks a child for each line that it reads; the
/// children compute until their parent is gone, check their results, and write a line for every hundred
/// rounds. For an `x` it executes itself anew.
const FORKER: &str = r#"
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile uint32_t spin;
__attribute__((noinline)) static uint32_t step(uint32_t x, unsigned n) {
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
__attribute__((noinline)) static uint32_t plain(uint32_t x, unsigned n) {
    uint32_t r[8] = {x * 3 + 1, x ^ (x >> 5), x + 0x9e3779b9u, x << 9 | x >> 23, ~x, x * 5 - 3, x ^ n, x - n};
    return r[n & 7];
}
static int child(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t round = 1;; round++) {
        uint32_t x = round, y = round;
        for (unsigned i = 0; i < 2000; i++) x = step(x, x ^ i), y = plain(y, y ^ i);
        if (x != y) return 1;
        usleep(100);
    }
}
int main(int argc, char **argv) {
    char line[16];
    pid_t child_pid;
    if (argc > 1) {
        printf("0\n");
        fflush(stdout);
    }
    /* The parent computes a little too, so that it can be profiled by itself. */
    for (uint32_t i = 0; i < 1000; i++) spin = step(spin, i);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'f') {
            if ((child_pid = fork()) == 0) _exit(child());
            printf("%d\n", (int)child_pid);
        } else if (line[0] == 'x') {
            execl("/proc/self/exe", argv[0], "again", NULL);
            return 1;
        } else {
            int status, bad = 0;
            while (waitpid(-1, &status, WNOHANG) > 0) bad++;
            printf("%d\n", bad);
        }
        fflush(stdout);
    }
    return 42;
}
"#;

struct Forker {
    process: Guarded,
    output: std::io::BufReader<std::process::ChildStdout>,
    _folder: TempDir,
    children: Vec<u32>,
}

impl Forker {
    fn start() -> Option<Self> {
        let folder = scratch();
        let (source, program) = (folder.path().join("forker.c"), folder.path().join("forker"));
        std::fs::write(&source, FORKER).expect("writable");
        let built = Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(&source).status().ok()?;
        assert!(built.success());
        let mut command = Command::new(&program);
        let mut process = Guarded::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).ok()?;
        let output = std::io::BufReader::new(process.child().stdout.take()?);
        Some(Self { process, output, _folder: folder, children: Vec::new() })
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn ask(&mut self, line: &str) -> u32 {
        use std::io::{BufRead, Write};
        let input = self.process.child().stdin.as_mut().expect("a pipe");
        input.write_all(line.as_bytes()).expect("the parent reads");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the parent answers");
        answer.trim().parse().expect("a number")
    }

    fn fork(&mut self) -> u32 {
        let pid = self.ask("f\n");
        self.children.push(pid);
        let began = wait_until(PATIENCE, || (common::target::cpu_ticks(pid) >= 2).then_some(()));
        assert!(began.is_some(), "child {pid} does not compute");
        pid
    }

    #[track_caller]
    fn assert_well(&mut self, when: &str) {
        for pid in self.children.clone() {
            let before = common::target::cpu_ticks(pid);
            let goes_on = wait_until(PATIENCE, || (common::target::cpu_ticks(pid) != before).then_some(()));
            assert!(goes_on.is_some(), "child {pid} stands still {when}");
        }
        assert_eq!(self.ask("?\n"), 0, "children have ended {when}");
    }

    fn all(&self) -> Vec<u32> {
        std::iter::once(self.pid()).chain(self.children.iter().copied()).collect()
    }
}

/// `attach --tree`, its exit code, and children that are forked while the command works: some of them while
/// the counting version is in force.
fn attach_while_it_forks(restitch: &Restitch, forker: &mut Forker, pid: &str, duration: &str) -> Option<i32> {
    let mut command = restitch.command(&["attach", pid, "--tree", "--duration", duration, "--measure", "0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut running = Guarded::spawn(&mut command).expect("started");
    let mut meanwhile = 0;
    while running.is_running() {
        if meanwhile < 6 {
            forker.fork();
            meanwhile += 1;
        }
        common::target::linger(300);
    }
    running.wait_within(PATIENCE).expect("it ends").code()
}

#[test]
fn a_tree_is_moved_and_given_back() {
    let mut forker = require!(Forker::start(), "gcc");
    let restitch = Restitch::new();
    let (first, second) = (forker.fork(), forker.fork());
    let before: Vec<_> = forker.all().into_iter().map(|p| (p, look::Snapshot::of(p))).collect();
    let pid = forker.pid().to_string();
    // Longer, where the processes got too little time of a busy machine.
    let done = ["3", "9", "27"].into_iter().any(|duration| {
        let status = attach_while_it_forks(&restitch, &mut forker, &pid, duration);
        assert!(matches!(status, Some(code::DONE | code::NOTHING_TO_DO)), "{status:?}");
        status == Some(code::DONE)
    });
    assert!(done, "there were too few samples");
    forker.assert_well("after attach --tree");
    for pid in [forker.pid(), first, second] {
        assert!(!look::differences(pid).is_empty(), "process {pid} is not in the new layout");
    }
    for pid in forker.all() {
        assert_no_counting(&restitch, pid);
    }
    // Those that are forked now start in the new layout.
    let late = forker.fork();
    assert!(!look::differences(late).is_empty(), "a late child is not in the new layout");
    let shown = restitch.status(late);
    shown.expect(code::DONE);
    assert!(shown.stdout.contains("optimized"), "{}", shown.stdout);
    // Without a number it lists all of them, each once.
    let listed = restitch.run(&["status"]).stdout;
    for pid in forker.all() {
        let of_it = listed.lines().filter(|line| line.starts_with(&format!("{pid} "))).count();
        assert_eq!(of_it, 1, "{pid}: {listed}");
    }
    let told = restitch.run(&["revert", &pid, "--tree"]);
    told.expect(code::DONE);
    for pid in forker.all() {
        let line = format!("process {pid} has its original code");
        assert!(told.stdout.contains(&line), "{line:?} is missing in {}", told.stdout);
    }
    revert_tree(&restitch, &mut forker);
    for (pid, snapshot) in before {
        let changes = snapshot.changes(&look::Snapshot::of(pid));
        assert!(changes.is_empty(), "process {pid} after revert --tree: {changes:?}");
    }
    assert_eq!(restitch.journals(), Vec::<PathBuf>::new());
}

/// Somebody has removed the state directory while one of the processes was in a layout.
#[test]
fn a_member_whose_state_is_lost_is_named_and_stays() {
    let mut forker = require!(Forker::start(), "gcc");
    let (before, restitch) = (Restitch::new(), Restitch::new());
    let (lost, other) = (forker.fork(), forker.fork());
    before.attach(lost, &[]).expect(code::DONE);
    // Its state is in a directory that the second one does not know.
    let changed = look::differences(lost);
    let attached = restitch.attach(forker.pid(), &["--tree"]);
    attached.expect(code::DONE);
    let words = attached.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(&format!("of {lost}: process {lost}: a layout of restitch")),
        "{}",
        attached.stdout
    );
    assert!(!look::differences(other).is_empty(), "process {other} is not in the new layout");
    assert_eq!(look::differences(lost), changed);
    let reverted = restitch.run(&["revert", &forker.pid().to_string(), "--tree"]);
    common::expect_message(&reverted, code::REFUSED, &[&format!("process {lost}: a layout of restitch")]);
    for pid in [forker.pid(), other] {
        assert_eq!(look::differences(pid), [], "process {pid} keeps the layout");
    }
    assert_eq!(look::differences(lost), changed);
    forker.assert_well("after revert --tree");
    before.revert(lost).expect(code::DONE);
    forker.assert_well("after the revert");
}

/// As HAProxy does: the first process executes itself anew and waits, and those that work have the addresses
/// that it had before.
#[test]
fn children_of_a_process_that_executed_itself_anew_are_found() {
    let mut forker = require!(Forker::start(), "gcc");
    let restitch = Restitch::new();
    forker.fork();
    forker.fork();
    let before: Vec<_> = forker.children.iter().map(|p| (*p, look::Snapshot::of(*p))).collect();
    assert_eq!(forker.ask("x\n"), 0);
    let program = |pid: u32| look::maps(pid).into_iter().map(|line| line.start).min();
    let apart = program(forker.pid()) != program(forker.children[0]);
    if !apart {
        skipped("addresses are not random");
    }
    let pid = forker.pid().to_string();
    let attached = with_time(["3", "9", "27"], |duration| {
        restitch.command(&["attach", &pid, "--tree", "--duration", duration, "--measure", "0"])
    });
    attached.expect(code::DONE);
    forker.assert_well("after attach --tree");
    for pid in &forker.children {
        assert!(
            !look::differences(*pid).is_empty(),
            "process {pid} is not in the new layout: {}",
            attached.stdout
        );
    }
    assert_eq!(attached.stderr.contains("hardly works"), apart, "{}", attached.stderr);
    revert_tree(&restitch, &mut forker);
    for (pid, snapshot) in before {
        let changes = snapshot.changes(&look::Snapshot::of(pid));
        assert!(changes.is_empty(), "process {pid} after revert --tree: {changes:?}");
    }
    assert_eq!(restitch.journals(), Vec::<PathBuf>::new());
}

#[track_caller]
fn assert_no_counting(restitch: &Restitch, pid: u32) {
    let status = restitch.status(pid);
    assert!(!status.stdout.contains("left in a counting version"), "{}", status.stdout);
}

#[track_caller]
fn revert_tree(restitch: &Restitch, forker: &mut Forker) {
    let last = common::revert_tree_until(restitch, forker.pid(), |printed| !printed.contains("stays mapped"));
    forker.assert_well("after revert --tree");
    for pid in forker.all() {
        assert_eq!(look::differences(pid), [], "process {pid}: {last}");
        assert_eq!(look::ours(pid), [], "process {pid}: {last}");
    }
}

#[test]
fn a_child_can_be_reverted_by_itself() {
    let mut forker = require!(Forker::start(), "gcc");
    let restitch = Restitch::new();
    let child = forker.fork();
    let pid = forker.pid().to_string();
    let attached = with_time(["2", "6", "20"], |duration| {
        restitch.command(&["attach", &pid, "--tree", "--duration", duration, "--measure", "0"])
    });
    attached.expect(code::DONE);
    let late = forker.fork();
    for one in [late, child] {
        restitch.revert(one).expect(code::DONE);
        assert_eq!(look::differences_but_hook(one), []);
    }
    forker.assert_well("after reverting the children");
    assert!(!look::differences(forker.pid()).is_empty(), "the parent keeps its layout");
    revert_tree(&restitch, &mut forker);
}

#[test]
fn without_tree_only_the_process_is_moved() {
    let mut forker = require!(Forker::start(), "gcc");
    let restitch = Restitch::new();
    let (child, other) = (forker.fork(), forker.fork());
    restitch.attach(child, &[]).expect(code::DONE);
    assert!(!look::differences(child).is_empty());
    assert_eq!(look::differences(other), []);
    assert_eq!(look::differences(forker.pid()), []);
    restitch.revert(child).expect(code::DONE);
    assert_eq!(look::differences_but_hook(child), []);
    forker.assert_well("after all");
}

/// fork.c checks every child's result; children live for milliseconds and begin in whatever version is in
/// force.
#[test]
fn children_of_all_moments_compute_right() {
    let path = require!(common::stoppable("fork.c", &["-O2"]), "gcc");
    let restitch = Restitch::new();
    let mut target = Target::start(&path);
    for tree in [true, false] {
        let more: &[&str] = if tree { &["--tree"] } else { &[] };
        restitch.attach(target.pid(), more).expect(code::DONE);
        target.assert_computing("after attach");
        let pid = target.pid().to_string();
        let mut arguments = vec!["revert", &pid];
        arguments.extend(more);
        restitch.run(&arguments).expect(code::DONE);
        assert_eq!(look::differences_but_hook(target.pid()), []);
    }
    target.stop();
}
