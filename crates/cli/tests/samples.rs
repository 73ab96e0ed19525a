//! `--source ip`: profiles of what the kernel samples, of processes and of commands with all that they start.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, finish, look, stoppable, with_time};
use restitch_report::{Outcome, RunResult, Samples};
use restitch_testkit::{SUCCESS, compile, find_program, program, require, run, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

fn compiled(folder: &Path, source: &str) -> Option<PathBuf> {
    let built = compile(&program(source), &["-O2"]).ok()?;
    let path = folder.join(Path::new(source).file_stem()?);
    std::fs::copy(built, &path).ok()?;
    Some(path)
}

fn told(json: &Path) -> RunResult {
    RunResult::from_json(&std::fs::read_to_string(json).expect("written")).expect("a result")
}

#[test]
fn a_process_is_sampled_untouched_and_laid_out_by_samples() {
    let original = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, json) = (folder.path().join("profile"), folder.path().join("json"));
    let html = folder.path().join("html");
    let mut target = Target::start(&original);
    let pid = target.pid().to_string();
    let recorded = with_time(["2", "8", "30"], |duration| {
        let mut command = restitch.command(&["record", "-p", &pid, "--source", "ip", "--overhead", "20"]);
        command.args(["--duration", duration, "-o"]).arg(&profile).arg("--json").arg(&json);
        command.arg("--html").arg(&html);
        command
    });
    expect_message(&recorded, code::DONE, &["samples", "a second", "overhead", "% of the time"]);
    let result = told(&json);
    let Samples { source, samples, per_second, cost_us, overhead, coverage, .. } =
        result.samples.expect("the result tells of samples");
    assert!(samples > 0 && per_second > 0 && cost_us >= 1.0, "{samples} {per_second} {cost_us}");
    assert!(source == "ip" && overhead > 0.0 && overhead <= 0.2 + 1e-4, "{source} {overhead}");
    assert!(coverage.is_some_and(|share| (0.0..=1.0).contains(&share)), "{coverage:?}");
    assert!(std::fs::read_to_string(html).expect("written").contains("<th>samples</th>"));
    assert_eq!(look::differences(target.pid()), []);
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "nothing is in the state directory");

    // Twice: of a process in a layout, samples count where the original code is.
    for _ in 0..2 {
        let mut command = restitch.command(&["attach", &pid, "--source", "ip", "--overhead", "20%"]);
        command.args(["--measure", "0", "--json"]).arg(&json);
        expect_message(&finish(&mut command), code::DONE, &["instruction samples"]);
        let result = told(&json);
        assert_eq!(result.outcome, Outcome::InForce);
        assert_eq!(result.profile.expect("there is one").source, "instruction samples");
    }
    let recorded = with_time(["2", "8", "30"], |duration| {
        let mut command = restitch.command(&["record", "-p", &pid, "--source", "ip", "--overhead", "20"]);
        command.args(["--duration", duration, "-o"]).arg(&profile).arg("--json").arg(&json);
        command
    });
    recorded.expect(code::DONE);
    let again = told(&json).samples.expect("samples");
    assert!(again.elsewhere * 2 < again.samples, "most are where the original code is: {again:?}");
    restitch.revert(target.pid()).expect(code::DONE);
    assert_eq!(look::differences(target.pid()), []);
    target.stop();
}

#[test]
fn all_that_a_command_starts_is_sampled() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let names = ["switch.c", "loops.c"];
    let programs: Vec<PathBuf> = names.iter().filter_map(|name| compiled(folder.path(), name)).collect();
    let [first, second] = &require!((programs.len() == 2).then_some(programs), "gcc")[..] else { return };
    let (profile, json) = (folder.path().join("profile"), folder.path().join("json"));
    let recorded = with_time(["0.3", "2", "10"], |busy| {
        // The second one in a process of its own, the first in that of the shell; what it ends with is told
        // on.
        let (first, second) = (first.display(), second.display());
        let script = format!("{second} --busy {busy}; test $? = {SUCCESS} && exec {first} --busy {busy}");
        let mut command = restitch.command(&["record", "--source", "ip", "--overhead", "20%", "-o"]);
        command.arg(&profile).arg("--json").arg(&json).args(["--", "sh", "-c", &script]);
        command
    });
    recorded.expect(SUCCESS);
    let result = told(&json);
    assert!(result.target.processes >= 2, "{:?}", result.target);
    let shown = restitch.run(&["profile".as_ref(), "show".as_ref(), profile.as_os_str()]);
    shown.expect(code::DONE);
    for program in [first, second] {
        assert!(shown.stdout.contains(&program.display().to_string()), "{}", shown.stdout);
    }
    // And it is a profile to optimize by.
    let output = folder.path().join("output");
    let mut command = restitch.command(&["optimize"]);
    finish(command.arg(first).arg("--profile").arg(&profile).arg("-o").arg(&output)).expect(code::DONE);
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

#[test]
fn perf_reads_the_samples_and_so_do_we() {
    let perf = require!(find_program("perf"), "perf");
    let (restitch, folder) = (Restitch::new(), scratch());
    let original = require!(compiled(folder.path(), "switch.c"), "gcc");
    let (data, json) = (folder.path().join("x.perf.data"), folder.path().join("json"));
    let recorded = with_time(["0.3", "2", "10"], |busy| {
        let mut command = restitch.command(&["record", "--source", "ip", "--overhead", "20%", "-o"]);
        command.arg(&data).arg("--json").arg(&json).arg("--").arg(&original).args(["--busy", busy]);
        command
    });
    expect_message(&recorded, SUCCESS, &["samples"]);
    let samples = told(&json).samples.expect("samples").samples;
    let mut script = Command::new(&perf);
    script.args(["script", "-F", "event,ip,sym", "-i"]).arg(&data);
    let finished = run(&mut script, PATIENCE);
    finished.expect(0);
    let lines: Vec<&str> = finished.stdout.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len() as u64, samples, "{}", finished.stdout);
    assert!(lines.iter().all(|l| l.contains("cpu-clock:u:") || l.contains("cycles:u:")), "{}", lines[0]);
    assert!(lines.iter().any(|line| !line.contains("[unknown]")), "{}", lines[0]);
    let output = folder.path().join("output");
    let mut command = restitch.command(&["optimize"]);
    let optimized = finish(command.arg(&original).arg("--profile").arg(&data).arg("-o").arg(&output));
    optimized.expect(code::DONE);
    assert!(optimized.stdout.contains("only instruction samples"), "{}", optimized.stdout);
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

#[test]
fn a_process_that_does_nothing_gives_no_profile() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let mut command = restitch.command(&["record", "--source", "ip", "-o"]);
    let recorded = finish(command.arg(&profile).args(["--", "sleep", "0.1"]));
    if recorded.status.code() == Some(0) {
        // Its few instructions met a sample.
        expect_message(&recorded, 0, &["samples"]);
    } else {
        expect_message(&recorded, code::NOTHING_TO_DO, &["too little CPU time", "--overhead"]);
        assert!(!profile.exists());
    }
}
