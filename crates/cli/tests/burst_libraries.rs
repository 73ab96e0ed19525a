//! `record --source burst` in a program that opens and closes libraries (`dlopen`, `dlclose`): what has gone
//! is not executed in its copy, whatever has come in its place.

mod common;

use common::{LIBRARY, Restitch, code};
use restitch_testkit::{Guarded, compile, scratch, skipped, wait_until};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Opens one after the other until there is a file: ends with 0 if all results were right, with 3 if two
/// never stood at the same address.
const PROGRAM: &str = "
// flags: -ldl
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int expected[2] = {0, 0}, (*before)(int) = 0, same = 0;
    for (int i = 0; access(argv[3], F_OK) != 0; i++) {
        void *library = dlopen(argv[1 + i % 2], RTLD_NOW);
        int (*work)(int) = (int (*)(int)) dlsym(library, \"work\");
        if (!work) return 2;
        for (int k = 0; k < 400; k++) {
            int x = work(1000);
            if (i < 2) expected[i] = x;
            if (x != expected[i % 2]) { printf(\"%d instead of %d in round %d\\n\", x, expected[i % 2], i); return 1; }
        }
        same += i > 0 && work == before;
        before = work;
        dlclose(library);
    }
    return same ? 0 : 3;
}
";

/// Opens one and stays in it, with a second thread that only waits if a second argument is given.
const STAYS: &str = "
// flags: -ldl -pthread
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
static void *wait(void *data) { for (;;) pause(); }
int main(int argc, char **argv) {
    pthread_t thread;
    if (argc > 2) pthread_create(&thread, 0, wait, 0);
    int (*work)(int) = (int (*)(int)) dlsym(dlopen(argv[1], RTLD_NOW), \"work\");
    volatile int sum = 0;
    alarm(600);
    close(0);
    for (;;) sum += work(1000);
}
";

/// Lets the loader wait before it looks for a library. It has none itself, so there is one of each only.
const SLOW: &str = "
// flags: -O1 -shared -fPIC -nostdlib -fno-stack-protector
unsigned la_version(unsigned version) { return version; }
char *la_objsearch(const char *name, unsigned long *cookie, unsigned flag) {
    long pause[2] = {0, 400000000}, done;
    if (flag == 1)
        __asm__ volatile(\"syscall\" : \"=a\"(done) : \"a\"(35), \"D\"(pause), \"S\"(0) : \"rcx\", \"r11\", \"memory\");
    return (char *)name;
}
";

/// Works in its library for so many seconds of CPU time.
const WORKS: &str = "
#include <stdlib.h>
#include <time.h>
int work(int);
int main(int argc, char **argv) {
    volatile int sum = 0;
    while (clock() / CLOCKS_PER_SEC < atoi(argv[1])) sum += work(1000);
    return 0;
}
";

fn made(folder: &Path, name: &str, text: &str, flags: &[&str]) -> Option<std::path::PathBuf> {
    let source = folder.join(name);
    std::fs::write(&source, text).unwrap();
    compile(&source, flags).map_err(|error| skipped(&error.to_string())).ok()
}

#[test]
fn what_has_gone_is_not_executed_in_its_copy() {
    let folder = scratch();
    let library = |name, numbers: [&str; 2]| {
        made(folder.path(), name, LIBRARY, &["-O2", "-shared", "-fPIC", numbers[0], numbers[1]])
    };
    let Some(first) = library("first.c", ["-DFIRST=11", "-DSECOND=101"]) else { return };
    let Some(second) = library("second.c", ["-DFIRST=23", "-DSECOND=211"]) else { return };
    let Some(program) = made(folder.path(), "opens.c", PROGRAM, &["-O2"]) else { return };
    let stop = folder.path().join("stop");
    let mut run = Command::new(program);
    run.args([&first, &second, &stop]).stdin(Stdio::null());
    let mut target = Guarded::spawn(&mut run).unwrap();
    let restitch = Restitch::new();
    let (pid, profile) = (target.pid().to_string(), folder.path().join("profile"));
    let profile = profile.to_str().unwrap();
    let (mut recorded, begun) = (0, Instant::now());
    while target.is_running() && recorded < 6 && (recorded == 0 || begun.elapsed() < Duration::from_secs(20))
    {
        // Half of the times the library has gone that was to be copied.
        assert!(begun.elapsed() < 3 * common::PATIENCE, "nothing was recorded");
        let how = ["--source", "burst", "--overhead", "30", "--depth", "500", "--duration", "4"];
        let done = restitch.run(&[&["record", "-p", &pid, "-o", profile][..], &how[..]].concat());
        match done.status.code() {
            Some(code::DONE) => recorded += 1,
            Some(code::VANISHED | code::NOTHING_TO_DO) => {}
            _ => panic!("{}\n{}", done.status, done.stderr),
        }
        // What was recorded is told of the library that was there.
        assert!(!done.stderr.contains("do not fit"), "{}", done.stderr);
    }
    std::fs::write(&stop, "").unwrap();
    match target.child().wait().unwrap().code() {
        Some(0) => {}
        Some(3) => skipped("the libraries never came to the same address"),
        other => panic!("{other:?}: a library's function had a wrong result"),
    }
}

#[test]
fn a_library_that_stays_is_recorded_where_nobody_can_close_it_meanwhile() {
    let folder = scratch();
    let flags = ["-O2", "-shared", "-fPIC", "-DFIRST=11", "-DSECOND=101"];
    let Some(library) = made(folder.path(), "stays-library.c", LIBRARY, &flags) else { return };
    let Some(program) = made(folder.path(), "stays.c", STAYS, &["-O2"]) else { return };
    let restitch = Restitch::new();
    for threads in [1, 2] {
        let mut run = Command::new(&program);
        run.arg(&library).args((threads == 2).then_some("thread")).stdin(Stdio::null());
        let target = Guarded::spawn(&mut run).unwrap();
        // It has opened the library when its standard input is closed.
        let input = format!("/proc/{}/fd/0", target.pid());
        wait_until(common::PATIENCE, || (!std::fs::exists(&input).unwrap_or(true)).then_some(())).unwrap();
        let (pid, profile) = (target.pid().to_string(), folder.path().join("profile"));
        let profile = profile.to_str().unwrap();
        let record = |duration| {
            let how = ["--source", "burst", "--overhead", "30", "--duration", duration];
            restitch.command(&[&["record", "-p", &pid, "-o", profile][..], &how[..]].concat())
        };
        let mut recorded = common::finish(&mut record("2"));
        for duration in ["6", "20"] {
            // Too few samples: the machine is busy.
            if recorded.stderr.contains("too little") {
                recorded = common::finish(&mut record(duration));
            }
        }
        let told = &recorded.stderr;
        match threads {
            1 => {
                assert_eq!(recorded.status.code(), Some(code::DONE), "{told}");
                assert!(told.contains("branches in") && !told.contains("do not fit"), "{told}");
            }
            _ => {
                assert_eq!(recorded.status.code(), Some(code::NOTHING_TO_DO), "{told}");
                assert!(told.contains("dlopen") && told.contains("--source trace"), "{told}");
            }
        }
    }
}

/// A command executes a program whose loader takes long for its last library, as from a slow disk: all that
/// is needed to change it is there long before.
#[test]
fn a_library_that_comes_late_to_a_program_that_a_command_executes_is_recorded() {
    let folder = scratch();
    let flags = ["-O2", "-shared", "-fPIC", "-DFIRST=11", "-DSECOND=101"];
    let Some(library) = made(folder.path(), "late-library.c", LIBRARY, &flags) else { return };
    let Some(slow) = made(folder.path(), "slow.c", SLOW, &[]) else { return };
    let library = library.to_str().expect("text");
    let Some(program) = made(folder.path(), "works.c", WORKS, &["-O2", "-Wl,--no-as-needed", "-lc", library])
    else {
        return;
    };
    let (restitch, profile) = (Restitch::new(), folder.path().join("profile"));
    let recorded = common::with_time(["4", "10", "30"], |seconds| {
        let mut command = restitch.command(&["record", "--source", "burst", "-o"]);
        command.arg(&profile).args(["--", "env"]).arg(format!("LD_AUDIT={}", slow.display()));
        command.arg(&program).arg(seconds);
        command
    });
    recorded.expect(0);
    let shown = common::finish(restitch.command(&["profile", "show"]).arg(&profile));
    assert!(shown.stdout.contains("late-library"), "{}\n{}", recorded.stderr, shown.stdout);
}
