//! `record --source burst` in a program that opens and closes libraries (`dlopen`, `dlclose`): what has gone is not executed in its copy, whatever has come
//! in its place.

mod common;

use common::{Restitch, code};
use restitch_testkit::{Guarded, compile, scratch, skipped};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Two libraries of the same size, whose functions stand at the same places and do different things.
const LIBRARY: &str = "
static int table[16];
__attribute__((noinline)) static int one(int x, int i) {
    switch ((x ^ i) & 7) {
    case 0: return x + FIRST;
    case 1: return x * 3 + SECOND;
    case 2: return x ^ (i * SECOND);
    case 3: table[i & 15] += x; return x - FIRST;
    case 4: return x + table[x & 15];
    default: return x * 5 + i * FIRST;
    }
}
int work(int n) {
    int x = SECOND;
    for (int i = 0; i < n; i++) x = one(x, i) & 0xffffff;
    for (int i = 0; i < 16; i++) table[i] = 0;
    return x;
}
";

/// Opens one after the other for so many seconds: ends with 0 if all results were right, with 3 if two never stood at the same address.
const PROGRAM: &str = "
// flags: -ldl
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(int argc, char **argv) {
    int expected[2] = {0, 0}, (*before)(int) = 0, same = 0;
    time_t end = time(0) + atoi(argv[3]);
    for (int i = 0; time(0) < end; i++) {
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
    let mut run = Command::new(program);
    run.args([&first, &second]).arg("25").stdin(Stdio::null());
    let mut target = Guarded::spawn(&mut run).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let restitch = Restitch::new();
    let (pid, profile) = (target.pid().to_string(), folder.path().join("profile"));
    let profile = profile.to_str().unwrap();
    let mut recorded = 0;
    while target.is_running() {
        let how = ["--source", "burst", "--overhead", "30", "--depth", "500", "--duration", "4"];
        let done = restitch.run(&[&["record", "-p", &pid, "-o", profile][..], &how[..]].concat());
        match done.status.code() {
            Some(code::DONE) => recorded += 1,
            Some(code::VANISHED | code::NOTHING_TO_DO) => {}
            _ => panic!("{}\n{}", done.status, done.stderr),
        }
        println!("{}", done.stderr);
    }
    match target.child().wait().unwrap().code() {
        Some(0) => assert!(recorded > 0, "the program ended before anything was recorded"),
        Some(3) => skipped("the libraries never came to the same address"),
        other => panic!("{other:?}: a library's function had a wrong result"),
    }
}
