//! Profilers and tools on an attached process: perf, readelf.
//!
//! What works by itself: unwinding and symbols in perf (it reads the mapped version file). gdb is in
//! `unwinders.rs`.

mod common;

use common::{PATIENCE, Restitch, Target, code, look, stoppable};
use restitch_testkit::{find_program, require, run, scratch};
use std::process::Command;

/// switch.c spends its time in small functions beneath `main`.
fn attached(restitch: &Restitch) -> Option<Target> {
    let target = Target::start(&stoppable("virt.cc", &["-O2"])?);
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    Some(target)
}

#[test]
fn perf_finds_the_names_of_moved_functions() {
    let perf = require!(find_program("perf"), "perf");
    let restitch = Restitch::new();
    let mut target = require!(attached(&restitch), "g++");
    let folder = scratch();
    let data = folder.path().join("perf.data");
    let pid = target.pid().to_string();
    let mut text = String::new();
    // Longer, where the target got too little time of a busy machine.
    for seconds in ["1", "5", "25"] {
        let mut record = Command::new(&perf);
        record.args(["record", "-e", "cpu-clock:u", "-p", &pid, "-o"]).arg(&data);
        let recorded = run(record.args(["--", "sleep", seconds]), PATIENCE);
        if !recorded.status.success() {
            restitch_testkit::skip_unsupported!("perf cannot record here: {}", recorded.stderr.trim());
        }
        let mut report = Command::new(&perf);
        report.args(["report", "--stdio", "--sort", "dso,symbol", "-i"]).arg(&data);
        text = run(&mut report, PATIENCE).stdout;
        if text.contains("restitch-version") {
            break;
        }
    }
    let moved: Vec<&str> = text.lines().filter(|l| l.contains("restitch-version")).collect();
    assert!(!moved.is_empty(), "perf sees no sample in a version:\n{text}");
    let unresolved = moved.iter().filter(|l| l.contains("0x0000")).count();
    assert!(unresolved * 10 <= moved.len(), "perf finds no names for moved functions:\n{text}");
    target.stop();
}

#[test]
fn readelf_reads_version_files_without_a_complaint() {
    let readelf = require!(find_program("readelf"), "readelf");
    let restitch = Restitch::new();
    let mut target = require!(attached(&restitch), "g++");
    let versions = look::ours(target.pid());
    assert!(!versions.is_empty());
    for version in versions.iter().filter(|v| v.permissions.contains('x')) {
        let finished = run(Command::new(&readelf).args(["-aW", &version.name]), PATIENCE);
        finished.expect(0);
        assert_eq!(finished.stderr, "", "{}", version.name);
        for wanted in [".text", ".eh_frame", ".symtab"] {
            assert!(finished.stdout.contains(wanted), "{wanted} is missing in {}", version.name);
        }
        let frames = run(Command::new(&readelf).args(["--debug-dump=frames", &version.name]), PATIENCE);
        assert_eq!(frames.stderr, "", "{}", version.name);
        assert!(frames.stdout.contains("FDE"), "{}", version.name);
    }
    target.stop();
}
