//! Debuggers and profilers on an attached process: gdb, perf, readelf.
//!
//! What works by itself: unwinding and symbols in perf (it reads the mapped version file), `backtrace()` in the process. What gdb
//! needs: it does not learn of files mapped behind the loader's back, so `add-symbol-file FILE -o ADDRESS` for each version,
//! with file and address from `/proc/PID/maps`; with it backtraces go through moved frames up to `main`.

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
fn gdb_unwinds_through_moved_frames() {
    let gdb = require!(find_program("gdb"), "gdb");
    let restitch = Restitch::new();
    let mut target = require!(attached(&restitch), "g++");
    let pid = target.pid().to_string();
    let mut seen_moved = 0;
    for _ in 0..10 {
        let versions = look::ours(target.pid());
        let mut command = Command::new(&gdb);
        command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", &pid]);
        for v in versions.iter().filter(|v| v.permissions.contains('x')) {
            command.args(["-ex", &format!("add-symbol-file {} -o {:#x}", v.name, v.start)]);
        }
        command.args(["-ex", "printf \"PC=%#lx\\n\", (unsigned long)$pc", "-ex", "backtrace"]);
        let finished = run(&mut command, PATIENCE);
        let text = finished.stdout;
        let pc = text.lines().find_map(|l| l.strip_prefix("PC=0x"));
        let pc = pc.and_then(|p| u64::from_str_radix(p, 16).ok()).expect("gdb attaches");
        let frames: Vec<&str> = text.lines().filter(|l| l.starts_with('#')).collect();
        assert!(frames.iter().any(|f| f.contains("main")), "{pc:#x}:\n{text}");
        assert!(!frames.iter().any(|f| f.contains("??")), "{pc:#x}:\n{text}");
        seen_moved += usize::from(versions.iter().any(|v| v.start <= pc && pc < v.end));
        if seen_moved >= 2 {
            break;
        }
    }
    assert!(seen_moved > 0, "the process was never found in moved code");
    target.assert_computing("after gdb");
    target.stop();
}

#[test]
fn perf_finds_the_names_of_moved_functions() {
    let perf = require!(find_program("perf"), "perf");
    let restitch = Restitch::new();
    let mut target = require!(attached(&restitch), "g++");
    let folder = scratch();
    let data = folder.path().join("perf.data");
    let pid = target.pid().to_string();
    let mut record = Command::new(&perf);
    record.args(["record", "-e", "cpu-clock:u", "-p", &pid, "-o"]).arg(&data).args(["--", "sleep", "1"]);
    let recorded = run(&mut record, PATIENCE);
    if !recorded.status.success() {
        restitch_testkit::skip_unsupported!("perf cannot record here: {}", recorded.stderr.trim());
    }
    let mut report = Command::new(&perf);
    report.args(["report", "--stdio", "--sort", "dso,symbol", "-i"]).arg(&data);
    let text = run(&mut report, PATIENCE).stdout;
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
