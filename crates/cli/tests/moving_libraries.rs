//! Programs that close their libraries and open them elsewhere while versions of them are in place, as servers do that read their configuration anew: what is
//! mapped in their old places by then is left alone, and the process can be reverted and attached to as before.

mod common;

use common::look::{Difference, differences, differences_but_hook, maps, ours};
use common::{LIBRARY, PATIENCE, Restitch, code};
use restitch_testkit::{Finished, Guarded, TempDir, compile, require, scratch, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Works in itself and in two libraries until there is a file. With each SIGUSR1 it closes both and opens them in the other order, and every other time a page
/// lower. Ends with 0 if all results were right, with 3 if a library did not move though it was to.
const PROGRAM: &str = "
// flags: -ldl
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
static volatile sig_atomic_t asked;
static void ask(int signal) { asked++; }
typedef int (*Work)(int);
static void *handles[2];
static Work works[3] = {0, 0, work};
static void open_both(char **paths, int first) {
    for (int i = 0; i < 2; i++) {
        int which = i ^ first;
        handles[which] = dlopen(paths[which], RTLD_NOW);
        works[which] = (Work) dlsym(handles[which], \"work\");
    }
}
int main(int argc, char **argv) {
    int expected[3] = {0, 0, 0}, known = 0, done = 0, moves = 0, stayed = 0;
    signal(SIGUSR1, ask);
    alarm(900);
    open_both(argv + 1, 0);
    while (access(argv[3], F_OK) != 0) {
        for (int k = 0; k < 300; k++) {
            int i = k % 3, result = works[i](1000);
            if (!known) expected[i] = result;
            if (result != expected[i]) { printf(\"%d instead of %d by %d\\n\", result, expected[i], i); return 1; }
            known |= k == 2;
        }
        if (done != asked) {
            Work before = works[0];
            // What was asked twice meanwhile is done once.
            done = asked, moves++;
            dlclose(handles[1]);
            dlclose(handles[0]);
            if (moves % 2 == 0) mmap((void *) ((long) before & -4096), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            open_both(argv + 1, moves % 2);
            stayed |= works[0] == before;
        }
    }
    return stayed ? 3 : 0;
}
";

/// The program at work, and what it is made of.
struct Moving {
    target: Guarded,
    libraries: [PathBuf; 2],
    program: PathBuf,
    stop: PathBuf,
    _folder: TempDir,
}

impl Moving {
    /// `None` without a compiler.
    fn start() -> Option<Self> {
        let folder = scratch();
        let made = |name: &str, text: &str, flags: &[&str]| {
            let source = folder.path().join(name);
            std::fs::write(&source, text).unwrap();
            compile(&source, flags).ok()
        };
        let library = |name: &str, numbers: [&str; 2]| {
            made(name, LIBRARY, &["-O2", "-shared", "-fPIC", numbers[0], numbers[1]])
        };
        let first = library("first.c", ["-DFIRST=11", "-DSECOND=101"])?;
        let second = library("second.c", ["-DFIRST=23", "-DSECOND=211"])?;
        let own = ["-DFIRST=31", "-DSECOND=307"];
        let program = made("moves.c", &[LIBRARY, PROGRAM].concat(), &["-O2", own[0], own[1]])?;
        let stop = folder.path().join("stop");
        let mut run = Command::new(&program);
        let target = Guarded::spawn(run.args([&first, &second, &stop]).stdin(Stdio::null())).unwrap();
        let moving = Self { target, libraries: [first, second], program, stop, _folder: folder };
        wait_until(PATIENCE, || moving.place().map(drop)).expect("it opens its libraries");
        Some(moving)
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Where the first library's code is, while both are mapped.
    fn place(&self) -> Option<u64> {
        let lines = maps(self.pid());
        let code = |path: &Path| {
            lines.iter().find(|l| Path::new(&l.name) == path && l.permissions.starts_with("r-x"))
        };
        code(&self.libraries[1])?;
        Some(code(&self.libraries[0])?.start)
    }

    fn ask(&self) {
        let sent = Command::new("kill").args(["-USR1", &self.pid().to_string()]).status();
        assert!(sent.expect("started").success());
    }

    /// Asks it to move its libraries, and waits until it has.
    fn moves(&self) {
        let before = self.place();
        self.ask();
        wait_until(PATIENCE, || self.place().filter(|at| Some(*at) != before)).expect("the libraries move");
    }

    /// Which of its files have redirects.
    fn redirected(&self) -> [bool; 3] {
        let all = differences(self.pid());
        let of = |path: &Path| all.iter().any(|d: &Difference| d.file == path && d.target().is_some());
        [of(&self.libraries[0]), of(&self.libraries[1]), of(&self.program)]
    }

    /// It has had the right results all the time.
    fn end(mut self) {
        std::fs::write(&self.stop, "").unwrap();
        let status = self.target.child().wait().unwrap();
        assert_eq!(status.code(), Some(0), "a wrong result, or a library that stayed");
    }
}

/// Attaches until all three files are in the new layout: on a busy machine one may be left out, which has counted too little. What is said to be in force is.
fn attached(restitch: &Restitch, moving: &Moving) {
    let json = restitch.state().join("result");
    let mut told = Vec::new();
    for _ in 0..5 {
        let done = restitch.attach(moving.pid(), &["--json", json.to_str().unwrap()]);
        done.expect(code::DONE);
        let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let lists = |path: &Path| {
            result["modules"]
                .as_array()
                .unwrap()
                .iter()
                .any(|m| m["path"].as_str().map(Path::new) == Some(path))
        };
        let said = [lists(&moving.libraries[0]), lists(&moving.libraries[1]), lists(&moving.program)];
        assert_eq!(moving.redirected(), said, "{result}\n{}", done.stderr);
        if said == [true; 3] {
            return;
        }
        println!("not all in force: {}", result["left_out"]);
        told.push(format!("{}\n{}", result["left_out"], done.stderr));
    }
    panic!("never all of them: {told:#?}");
}

/// `revert` until nothing stays mapped.
fn reverted(restitch: &Restitch, moving: &Moving) {
    let gone = wait_until(PATIENCE, || {
        let done = restitch.revert(moving.pid());
        assert!(matches!(done.status.code(), Some(code::DONE | code::NOTHING_TO_DO)), "{}", done.stderr);
        ours(moving.pid()).is_empty().then_some(())
    });
    assert!(gone.is_some(), "a version stays mapped");
    assert_eq!(differences(moving.pid()), []);
}

#[test]
fn a_layout_of_libraries_that_have_moved_can_be_taken_back() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    attached(&restitch, &moving);
    for _ in 0..2 {
        moving.moves();
        assert_eq!(
            moving.redirected(),
            [false, false, true],
            "its own code stays in the layout, theirs is as in the files"
        );
        restitch.status(moving.pid()).expect(code::DONE);
        attached(&restitch, &moving);
    }
    moving.moves();
    reverted(&restitch, &moving);
    attached(&restitch, &moving);
    reverted(&restitch, &moving);
    moving.end();
}

/// Attaches, and asks for a move once a counting version is in place. What it printed.
fn moved_while_counting(restitch: &Restitch, moving: &Moving) -> Finished {
    let pid = moving.pid().to_string();
    let mut command = restitch.command(&["attach", &pid, "--duration", "6", "--measure", "0"]);
    std::thread::scope(|scope| {
        let attach = scope.spawn(move || common::finish(&mut command));
        let counts =
            || (!differences_but_hook(moving.pid()).is_empty() || attach.is_finished()).then_some(());
        wait_until(PATIENCE, counts).expect("it counts or ends");
        moving.moves();
        attach.join().unwrap()
    })
}

#[test]
fn libraries_that_move_while_they_are_counted_are_attached_to_anew() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    let seen = (0..4).any(|_| {
        let done = moved_while_counting(&restitch, &moving);
        // On a busy machine it may have ended before, or got no samples.
        let anew = done.status.code() == Some(code::DONE) && done.stderr.contains("begins again");
        match anew {
            true => assert_ne!(moving.redirected(), [false; 3], "{}", done.stderr),
            false => assert!(
                matches!(done.status.code(), Some(code::DONE | code::NOTHING_TO_DO)),
                "{}",
                done.stderr
            ),
        }
        reverted(&restitch, &moving);
        anew
    });
    assert!(seen, "none of four attaches was begun again");
    moving.end();
}

/// Runs a command, and asks for a move ten times a second meanwhile.
fn moved_all_the_time(moving: &Moving, mut command: Command) -> Finished {
    std::thread::scope(|scope| {
        let done = scope.spawn(move || common::finish(&mut command));
        while !done.is_finished() {
            moving.ask();
            std::thread::sleep(Duration::from_millis(100));
        }
        done.join().unwrap()
    })
}

#[test]
fn libraries_that_move_all_the_time_are_left_out() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    let (pid, profile) = (moving.pid().to_string(), restitch.state().join("profile"));
    let attach = ["attach", &pid, "--duration", "4", "--measure", "0"];
    let record = ["record", "-p", &pid, "--duration", "4", "-o", profile.to_str().unwrap()];
    for arguments in [&attach[..], &record[..]] {
        let done = moved_all_the_time(&moving, restitch.command(arguments));
        match done.status.code() {
            Some(code::DONE) if arguments[0] == "attach" => {
                assert_ne!(moving.redirected(), [false; 3], "{}", done.stderr)
            }
            Some(code::DONE) => assert_eq!(moving.redirected(), [false; 3], "{}", done.stderr),
            // On a busy machine.
            Some(code::NOTHING_TO_DO) => assert_eq!(moving.redirected(), [false; 3], "{}", done.stderr),
            _ => panic!("{}\n{}", done.status, done.stderr),
        }
        reverted(&restitch, &moving);
    }
    moving.end();
}
