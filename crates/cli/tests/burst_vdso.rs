//! `record --source burst` goes on through the vdso: programs that read the clock all the time have long
//! bursts, right results, and the vdso's branches in records of `perf`.

mod common;

use common::{Restitch, Target, code, stoppable};
use restitch_report::RunResult;
use restitch_testkit::{compile, program, scratch, skipped};
use std::path::Path;

/// What reads of these clocks need no system call for.
const FAST: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// Whether the vdso reads the machine's clock by itself.
fn is_fast() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(path).is_ok_and(|clock| FAST.contains(&clock.trim()))
}

fn has_vdso() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let has_it = maps.lines().any(|line| line.ends_with("[vdso]"));
    if !has_it {
        skipped("this kernel has no vdso");
    }
    has_it
}

/// Branches of the vdso were recorded, and bursts went on in it.
#[track_caller]
fn went_on_in_the_vdso(told: &str, json: &Path) {
    let result = RunResult::from_json(&std::fs::read_to_string(json).unwrap()).unwrap();
    let records = result.branch_records.expect("they were recorded");
    assert!(records.in_vdso > 0 && records.in_vdso < records.branches, "{records:?}: {told}");
    // What the vdso leaves to the kernel (clocks of processor time) ends a few; without a copy nearly all end
    // there.
    let ended = ended_in_the_vdso(told);
    assert!(!is_fast() || 10 * ended < records.records, "{ended} of {}: {told}", records.records);
}

/// Of `code without a copy was most often: one 0x10 (12), [vdso] 0x20 (3)` the numbers of the vdso.
fn ended_in_the_vdso(told: &str) -> u64 {
    let line =
        told.split("restitch: ").find(|line| line.starts_with("code without a copy")).unwrap_or_default();
    let counts = line.split("[vdso]").skip(1).filter_map(|place| place.split_once('(')?.1.split(')').next());
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

#[test]
fn bursts_of_a_process_go_on_in_the_vdso() {
    let Some(program) = stoppable("clock.c", &["-O2"]).filter(|_| has_vdso()) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, json) = (folder.path().join("profile"), folder.path().join("json"));
    let mut target = Target::start(&program);
    let pid = target.pid().to_string();
    let recorded = common::with_time(["4", "8", "20"], |duration| {
        let mut command = restitch.command(&["record", "-p", &pid, "--source", "burst"]);
        command.args(["--overhead", "20", "--depth", "1000", "--duration", duration, "-o"]).arg(&profile);
        command.arg("--json").arg(&json);
        command
    });
    let told = format!("{}\n{}", recorded.status, recorded.stderr);
    assert_eq!(recorded.status.code(), Some(code::DONE), "{told}");
    went_on_in_the_vdso(&told, &json);
    target.assert_computing("after bursts");
    if !told.contains("stay mapped") {
        target.assert_untouched(&told);
    }
    target.stop();
    // The profile is one of files.
    let shown = restitch.run(&["profile", "show", profile.to_str().unwrap()]);
    shown.expect(code::DONE);
    assert!(shown.stdout.contains("clock") && !shown.stdout.contains("[vdso]"), "{}", shown.stdout);
}

#[test]
fn so_do_those_of_a_command_and_records_name_it() {
    let Ok(program) = compile(&program("clock.c"), &["-O2"]) else { return skipped("no C compiler") };
    if !has_vdso() {
        return;
    }
    let (restitch, folder) = (Restitch::new(), scratch());
    let (records, json) = (folder.path().join("perf.data"), folder.path().join("json"));
    let mut command =
        restitch.command(&["record", "--source", "burst", "--overhead", "20", "--depth", "1000", "-o"]);
    command.arg(&records).arg("--json").arg(&json).arg("--").arg(&program).args(["--busy", "2"]);
    let recorded = common::finish(&mut command);
    assert_eq!(recorded.status.code(), Some(restitch_testkit::SUCCESS), "{}", recorded.stderr);
    went_on_in_the_vdso(&recorded.stderr, &json);
    let bytes = std::fs::read(&records).unwrap();
    assert!(bytes.windows(6).any(|name| name == b"[vdso]"));
    // Whoever reads them has code of files, and nothing to say of the vdso.
    let profile = folder.path().join("profile");
    let mut convert = restitch.command(&["profile", "convert", "--format", "restitch"]);
    common::finish(convert.arg(&records).arg("-o").arg(&profile)).expect(code::DONE);
}
