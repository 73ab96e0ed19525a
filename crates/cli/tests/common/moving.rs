//! A program that closes its libraries and opens them elsewhere.

use super::look::{Difference, differences, maps};
use super::{LIBRARY, PATIENCE};
use restitch_testkit::{Guarded, TempDir, compile, scratch, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Works in itself and in two libraries until there is a file. With each SIGUSR1 it closes both and opens
/// them in the other order, and every other time a page lower. Ends with 0 if all results were right, with 3
/// if a library did not move though it was to.
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
pub struct Moving {
    target: Guarded,
    pub libraries: [PathBuf; 2],
    pub program: PathBuf,
    stop: PathBuf,
    _folder: TempDir,
}

impl Moving {
    /// `None` without a compiler.
    pub fn start() -> Option<Self> {
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

    pub fn pid(&self) -> u32 {
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

    pub fn ask(&self) {
        let sent = Command::new("kill").args(["-USR1", &self.pid().to_string()]).status();
        assert!(sent.expect("started").success());
    }

    /// Asks it to move its libraries, and waits until it has.
    pub fn moves(&self) {
        let before = self.place();
        self.ask();
        wait_until(PATIENCE, || self.place().filter(|at| Some(*at) != before)).expect("the libraries move");
    }

    /// Which of its files have redirects.
    pub fn redirected(&self) -> [bool; 3] {
        let all = differences(self.pid());
        let of = |path: &Path| all.iter().any(|d: &Difference| d.file == path && d.target().is_some());
        [of(&self.libraries[0]), of(&self.libraries[1]), of(&self.program)]
    }

    /// It has had the right results all the time.
    pub fn end(mut self) {
        std::fs::write(&self.stop, "").unwrap();
        let status = self.target.child().wait().unwrap();
        assert_eq!(status.code(), Some(0), "a wrong result, or a library that stayed");
    }
}
