//! Core files of attached processes: a debugger reads the moved code from the versions' files, which are kept
//! for a while.

mod common;

use common::{PATIENCE, Restitch, Target, code, look, stoppable};
use restitch_testkit::{find_program, require, run, skip_unsupported};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sets the limit of the target's core files.
fn limit(target: &Target, bytes: &str) {
    let pid = target.pid().to_string();
    run(Command::new("prlimit").args(["--pid", &pid, &format!("--core={bytes}:")]), PATIENCE).expect(0);
}

/// Whether cores go to a program, whatever a process's limit says.
fn are_handed_on() -> bool {
    std::fs::read("/proc/sys/kernel/core_pattern").is_ok_and(|p| p.starts_with(b"|") || p.starts_with(b"@"))
}

/// gdb without what the user has set up.
fn gdb(gdb: &Path) -> Command {
    let mut command = Command::new(gdb);
    command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    command
}

#[test]
fn a_core_file_of_an_ended_process_can_be_read() {
    let debugger = require!(find_program("gdb"), "gdb");
    let Some(program) = stoppable("virt.cc", &["-O2"]) else { return };
    let target = Target::start(&program);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", target.pid())).expect("it lives");
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).expect("as in proc(5)");
    let most = line.split_whitespace().nth(5).expect("the hard limit");
    if most == "0" {
        skip_unsupported!("no process may leave a core file here");
    }
    limit(&target, most);
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let versions = look::ours(target.pid());
    // The core is taken by gdb and not by a fault, so that the kernel's pattern for cores is no matter.
    let core = restitch.state().join("core");
    let is_in_moved_code = (0..20).any(|_| {
        let mut command = gdb(&debugger);
        command.args(["-p", &target.pid().to_string()]);
        command.args(["-ex", "printf \"PC=%#lx\\n\", (unsigned long)$pc"]);
        command.args(["-ex", &format!("generate-core-file {}", core.display())]);
        let text = run(&mut command, PATIENCE).stdout;
        let pc = text.lines().find_map(|l| l.strip_prefix("PC=0x")).expect("gdb attaches");
        let pc = u64::from_str_radix(pc, 16).expect("an address");
        versions.iter().any(|v| v.start <= pc && pc < v.end)
    });
    assert!(is_in_moved_code, "the process was never found in moved code");
    drop(target);

    // The next restitch, whatever it does, finds that it has ended.
    let said = restitch.run(&["status"]);
    assert!(said.stdout.contains("for core files"), "{}", said.stdout);
    assert_eq!(restitch.journals().len(), 0);
    let mut command = gdb(&debugger);
    let text = run(command.arg(&program).arg(&core).args(["-ex", "backtrace"]), PATIENCE).stdout;
    let frames: Vec<&str> = text.lines().filter(|l| l.starts_with('#')).collect();
    assert!(frames.iter().any(|f| f.contains("restitch-version")), "{text}");
    assert!(frames.iter().any(|f| f.contains("main")), "{text}");
    assert!(!frames.iter().any(|f| f.contains("??")), "{text}");

    // What a core needs, and no more.
    let ending = |path: &PathBuf| path.extension().unwrap_or_default().to_string_lossy().into_owned();
    let mut left: Vec<String> = restitch.all_files().iter().map(ending).collect();
    left.sort();
    left.dedup();
    assert_eq!(left, ["", "restitch-ended", "restitch-version"]);
}

#[test]
fn nothing_is_kept_of_a_process_that_leaves_no_core_file() {
    if are_handed_on() {
        skip_unsupported!("the kernel hands core files to a program here, which limits do not concern");
    }
    let Some(program) = stoppable("virt.cc", &["-O2"]) else { return };
    let target = Target::start(&program);
    limit(&target, "0");
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    drop(target);
    let said = restitch.run(&["status"]);
    assert!(!said.stdout.contains("for core files"), "{}", said.stdout);
    assert_eq!(restitch.all_files(), Vec::<PathBuf>::new());
}
