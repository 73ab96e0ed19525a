//! `attach --tree` with a profile of branch records: of the processes that work, where the one that is named
//! only waits.

mod common;

use common::{Random, Restitch, Target, code, look, stoppable};
use restitch_report::RunResult;
use restitch_testkit::{Finished, Guarded, scratch, skipped, wait_until};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The processes of workers.c that are there for as long as the program is: the first one, and three that
/// work. (A fourth one is always another.)
const LASTING: usize = 4;

/// One test at a time: each has four processes that work all the time, beside which what restitch does after
/// a recording would take minutes if there were four times as many.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first process, and those that it has forked.
fn processes(target: &Target) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", target.pid());
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let mut all = vec![target.pid()];
    all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    all
}

/// Those that do not end.
fn lasting(target: &Target) -> Vec<u32> {
    let first = wait_until(common::PATIENCE, || Some(processes(target)).filter(|all| all.len() > LASTING));
    let mut all = first.expect("it forks");
    // They were forked before the one that ends, and numbers rise (or begin anew, once in four million).
    all.truncate(LASTING);
    all
}

fn without_breakpoints(source: &str, told: &str) -> bool {
    let without = source == "trace" && told.contains("hardware breakpoints");
    if without {
        skipped("no hardware breakpoints");
    }
    without
}

/// Of `14 branches in 2 bursts of 7, in 3 processes` the first and the last number.
fn recorded(attached: &Finished) -> Option<(u64, u64)> {
    let line = attached.stderr.split("restitch: ").find(|line| line.contains(" branches in "))?;
    let branches = line.split_whitespace().next()?.parse().ok()?;
    let processes = line.trim_end().strip_suffix(" processes")?.rsplit_once(' ')?.1.parse().ok()?;
    Some((branches, processes))
}

/// `attach --tree` of the first process, which waits, for more and more seconds until there is a profile.
fn attach(restitch: &Restitch, target: &Target, source: &str) -> Finished {
    let pid = target.pid().to_string();
    common::with_time(["6", "18", "54"], |duration| {
        let mut command = restitch.command(&["attach", &pid, "--tree", "--source", source]);
        command.args(["--overhead", "10%", "--duration", duration, "--measure", "0", "--json", "-"]);
        command
    })
}

#[track_caller]
fn revert(restitch: &Restitch, target: &Target) {
    let is_clean = |_: &str| processes(target).into_iter().all(|pid| look::ours(pid).is_empty());
    common::revert_tree_until(restitch, target.pid(), is_clean);
}

/// The relatives are recorded, the first process gets the layout that they need, and so does whoever is
/// forked later; the one that ends while it is recorded is no error.
fn relatives_are_recorded(source: &str) {
    let Some(program) = stoppable("workers.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let lasting = lasting(&target);
    let before: Vec<_> = lasting.iter().map(|pid| (*pid, look::Snapshot::of(*pid))).collect();
    let attached = attach(&restitch, &target, source);
    let told = format!("{}\n{}\n{}", attached.status, attached.stdout, attached.stderr);
    if without_breakpoints(source, &told) {
        return;
    }
    assert_eq!(attached.status.code(), Some(code::DONE), "{told}");
    let result = RunResult::from_json(&attached.stdout).unwrap();
    assert_eq!(result.profile.map(|profile| profile.source).as_deref(), Some("branch records"), "{told}");
    let (branches, processes) = recorded(&attached).expect(&told);
    assert!(branches >= 1000 && processes >= 3, "{told}");
    assert!(!told.contains("stay mapped") && !told.contains("not recorded"), "{told}");
    target.assert_computing("in the new layout");
    for pid in &lasting {
        assert!(!look::differences(*pid).is_empty(), "process {pid} is not in the new layout: {told}");
    }
    revert(&restitch, &target);
    for (pid, snapshot) in before {
        let changes = snapshot.changes(&look::Snapshot::of(pid));
        assert!(changes.is_empty(), "process {pid} after revert --tree: {changes:?}");
    }
    target.assert_computing("after revert");
    assert!(restitch.journals().is_empty(), "{:?}", restitch.journals());
    target.stop();
}

#[test]
fn traces_are_of_the_processes_that_work() {
    let _alone = alone();
    relatives_are_recorded("trace");
}

#[test]
fn bursts_are_of_the_processes_that_work() {
    let _alone = alone();
    relatives_are_recorded("burst");
}

/// The same for `record`, which leaves all processes as they were.
#[test]
fn record_takes_relatives_in_and_leaves_nothing() {
    let _alone = alone();
    let Some(program) = stoppable("workers.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let mut target = Target::start(&program);
    let lasting = lasting(&target);
    let before: Vec<_> = lasting.iter().map(|pid| (*pid, look::Snapshot::of(*pid))).collect();
    let pid = target.pid().to_string();
    for source in ["trace", "burst"] {
        let profile = folder.path().join(source);
        let recorded = common::with_time(["6", "18", "54"], |duration| {
            let mut command = restitch.command(&["record", "-p", &pid, "--tree", "--source", source]);
            command.args(["--overhead", "10%", "--duration", duration, "-o"]).arg(&profile);
            command
        });
        let told = format!("{}\n{}", recorded.status, recorded.stderr);
        if without_breakpoints(source, &told) {
            continue;
        }
        assert_eq!(recorded.status.code(), Some(code::DONE), "{told}");
        let processes = told.split("recorded in ").nth(1).and_then(|rest| rest.split(' ').next());
        assert!(processes.and_then(|n| n.parse().ok()).is_some_and(|n: u32| n >= 3), "{told}");
        assert!(profile.exists() && !told.contains("stay mapped"), "{told}");
        for (pid, snapshot) in &before {
            let changes = snapshot.changes(&look::Snapshot::of(*pid));
            assert!(changes.is_empty(), "process {pid}: {changes:?}: {told}");
            assert!(look::ours(*pid).is_empty(), "process {pid}: {told}");
        }
        assert!(restitch.journals().is_empty(), "{:?}", restitch.journals());
    }
    target.assert_computing("after all");
    target.stop();
}

/// Killed while relatives are recorded: all go on with right results, what is mapped is known, and can be
/// taken out.
#[test]
fn restitch_may_be_killed_while_relatives_are_recorded() {
    let _alone = alone();
    let number = std::env::var("RESTITCH_KILLS").ok().and_then(|v| v.parse().ok()).unwrap_or(6);
    let Some(program) = stoppable("workers.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let mut random = Random::new(0x7ee);
    let pid = target.pid().to_string();
    for round in 0..number {
        let source = if round % 3 == 0 { "trace" } else { "burst" };
        let mut command = restitch.command(&["attach", &pid, "--tree", "--source", source]);
        command.args(["--overhead", "30", "--duration", "30", "--measure", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = Guarded::spawn(&mut command).unwrap();
        if source == "burst" {
            let _ = wait_until(common::PATIENCE, || {
                (!restitch.journals().is_empty() || !run.is_running()).then_some(())
            });
        } else {
            common::target::linger(10_500);
        }
        std::thread::sleep(Duration::from_micros(random.below(3_000_000)));
        let _ = run.kill();
        target.assert_computing(&format!("after kill {round}"));
        for pid in lasting(&target) {
            let left = look::ours(pid);
            assert!(left.is_empty() || !restitch.journals().is_empty(), "after kill {round}: {left:?}");
            assert_eq!(look::differences_after_a_kill(pid), [], "process {pid} after kill {round}");
        }
    }
    revert(&restitch, &target);
    target.assert_computing("after revert");
    for pid in lasting(&target) {
        assert_eq!(look::differences(pid), [], "process {pid} after revert");
    }
    target.stop();
}
