//! Tracing real programs: their results stay right, records are paths of their code, and nothing is left behind.

use restitch_address::Svma;
use restitch_testkit::{Guarded, compile, find_program, program, skipped};
use restitch_trace::{LookAhead, Record, RecordEnd, Taken, TraceOptions, TraceReport, trace};
use restitch_tracee::{ExitStatus, Memory};
use restitch_x86::{Flow, scan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Records of a run.
struct Seen {
    report: TraceReport,
    records: Vec<(Vec<Taken>, RecordEnd)>,
}

/// Many records: the cost is of no interest here.
fn busy(seconds: f64) -> TraceOptions {
    TraceOptions {
        depth: 24,
        period: Some(400_000),
        duration: Some(Duration::from_secs_f64(seconds)),
        check_every: 4,
        ..TraceOptions::default()
    }
}

fn traced(pid: i32, options: TraceOptions) -> Option<Seen> {
    let mut records = Vec::new();
    let mut sink = |r: Record<'_>| records.push((r.branches.to_vec(), r.end));
    match trace(pid, options, &AtomicBool::new(false), &mut sink) {
        Ok(report) => Some(Seen { report, records }),
        Err(error @ restitch_trace::BranchTraceError::Perf(_)) => {
            skipped(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn start(program: &Path, arguments: &[&str]) -> Guarded {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    Guarded::spawn(&mut command).unwrap()
}

/// Each record is a path: from where a branch goes, the code runs straight to the next branch, which can go there.
fn assert_paths(pid: i32, seen: &Seen) {
    let memory = Memory::open_read_only(pid).unwrap();
    let mut checked = 0;
    let mut known: BTreeMap<(u64, u64), bool> = BTreeMap::new();
    for (branches, _) in &seen.records {
        for pair in branches.windows(2) {
            let (start, end) = (pair[0].to.get(), pair[1].from.get());
            let right = *known.entry((start, end)).or_insert_with(|| is_straight(&memory, start, end));
            assert!(right, "no straight way from {start:#x} to {end:#x}");
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} pairs of branches");
}

fn is_straight(memory: &Memory, start: u64, end: u64) -> bool {
    if end < start || end - start > 10_000 {
        return false;
    }
    let Ok(bytes) = memory.read_vec(restitch_address::Avma::new(start), (end - start) as usize + 1) else {
        return false;
    };
    // The last byte may cut an instruction off; all before `end` have to be whole and none an unconditional branch.
    let mut at_end = start == end;
    let mut passes = true;
    let _ = scan(&bytes[..bytes.len() - 1], Svma::new(start), |insn| {
        passes &= matches!(insn.flow, Flow::Next | Flow::Conditional(..) | Flow::ShortConditional(_));
        at_end |= insn.end().get() == end;
    });
    passes && at_end
}

/// Traces a program that checks itself until it ends; its status must be that of success.
fn ends_well(program: &Path, arguments: &[&str], options: TraceOptions) -> Option<Seen> {
    let child = start(program, arguments);
    std::thread::sleep(Duration::from_millis(50));
    let options = TraceOptions { duration: Some(Duration::from_secs(60)), ..options };
    let seen = traced(child.pid() as i32, options)?;
    assert_eq!(seen.report.exit, Some(ExitStatus::Code(42)), "{arguments:?}");
    println!("{} {arguments:?}: {:?}", program.display(), seen.report);
    Some(seen)
}

/// The same for a mode of the odd program, until the report is as it should be: on a busy machine the program may get next to no
/// processor time, and it gets more of it then.
fn ends_well_until(odd: &Path, mode: &str, enough: impl Fn(&TraceReport) -> bool) {
    for seconds in ["1.5", "6", "20"] {
        let Some(seen) = ends_well(odd, &[mode, seconds], busy(0.0)) else { return };
        if enough(&seen.report) {
            return;
        }
        assert!(seconds != "20", "{mode}: {:?}", seen.report);
    }
}

fn odd() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/odd.c");
    match compile(&source, &["-O1"]) {
        Ok(path) => Some(path),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

#[test]
fn records_are_paths_in_both_ways_of_looking_ahead() {
    let Some(dash) = find_program("dash") else { return skipped("no dash") };
    let script = "i=0; while :; do i=$((i+1)); case $i in *7*) x=$i;; *) y=a$i;; esac; set -- $i $x $y; done";
    for look_ahead in [LookAhead::Evaluate, LookAhead::Fixed] {
        let child = start(&dash, &["-c", script]);
        std::thread::sleep(Duration::from_millis(50));
        let Some(seen) = traced(child.pid() as i32, TraceOptions { look_ahead, ..busy(1.5) }) else { return };
        assert_paths(child.pid() as i32, &seen);
        assert!(seen.report.full() > 5, "{:?}", seen.report);
        assert!(seen.records.iter().filter(|r| r.1 == RecordEnd::Full).all(|r| r.0.len() == 24));
        assert_eq!(seen.report.contradicted, 0, "one thread, nobody interferes: {:?}", seen.report);
        if look_ahead == LookAhead::Evaluate {
            assert!(seen.report.usefulness() > 2.0 * seen.report.usefulness_without_evaluation());
        }
    }
}

#[test]
fn test_programs_do_not_notice() {
    for name in ["switch.c", "threads.c", "signals.c", "fork.c", "setjmp.c"] {
        let binary = match compile(&program(name), &["-O2"]) {
            Ok(binary) => binary,
            Err(error) => {
                skipped(&error.to_string());
                continue;
            }
        };
        ends_well(&binary, &["--seconds", "1.5"], busy(0.0));
    }
}

#[test]
fn static_programs_are_traced_too() {
    let Ok(binary) = compile(&program("switch.c"), &["-O2", "-static"]) else {
        return skipped("no static libc");
    };
    if let Some(seen) = ends_well(&binary, &["--seconds", "1.5"], busy(0.0)) {
        assert!(seen.report.full() > 5, "{:?}", seen.report);
    }
}

#[test]
fn odd_signals_end_records_and_nothing_else() {
    let Some(odd) = odd() else { return };
    for mode in ["returns", "leaves", "blocked", "urgent"] {
        ends_well_until(&odd, mode, |report| report.branches > 100);
    }
}

#[test]
fn threads_that_start_while_tracing_are_traced() {
    let Some(odd) = odd() else { return };
    if let Some(seen) = ends_well(&odd, &["threads", "1.5"], busy(0.0)) {
        assert!(seen.report.threads > 4, "{:?}", seen.report);
    }
}

#[test]
fn another_program_is_traced_after_exec() {
    let Some(odd) = odd() else { return };
    let child = start(&odd, &["exec", "0.7"]);
    let Some(seen) =
        traced(child.pid() as i32, TraceOptions { duration: Some(Duration::from_secs(30)), ..busy(0.0) })
    else {
        return;
    };
    assert_eq!(seen.report.exit, Some(ExitStatus::Code(42)));
    // Position-independent: before and after the exec the same code is elsewhere.
    let pages: std::collections::BTreeSet<u64> =
        seen.records.iter().flat_map(|r| &r.0).map(|b| b.from.get() >> 24).collect();
    assert!(pages.len() >= 2, "{pages:x?}");
}

/// Forked children, and what they execute, have records of their own, with their own process's number.
#[test]
fn children_and_what_they_execute_are_traced() {
    let Some(odd) = odd() else { return };
    let child = start(&odd, &["children", "1.5"]);
    std::thread::sleep(Duration::from_millis(50));
    let (mut by_process, mut forked, mut executed) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let mut family = Family { records: &mut by_process, forked: &mut forked, executed: &mut executed };
    let options = TraceOptions { duration: Some(Duration::from_secs(60)), ..busy(0.0) };
    let pid = child.pid() as i32;
    let report = match trace(pid, options, &AtomicBool::new(false), &mut family) {
        Ok(report) => report,
        Err(error @ restitch_trace::BranchTraceError::Perf(_)) => return skipped(&error.to_string()),
        Err(error) => panic!("{error}"),
    };
    println!("{report:?}");
    assert_eq!(report.exit, Some(ExitStatus::Code(42)));
    assert!(forked.len() >= 2 && forked.values().all(|parent| *parent == pid), "{forked:?}");
    assert_eq!(report.processes, forked.len() + 1);
    assert!(executed.iter().all(|pid| forked.contains_key(pid)) && executed.len() + 1 >= forked.len());
    let with_records = forked.keys().filter(|pid| by_process.get(pid).is_some_and(|n| *n > 100));
    assert!(with_records.count() >= 2, "{by_process:?}");
    // Left alone if that is asked for.
    let child = start(&odd, &["children", "0.7"]);
    let options = TraceOptions { children: false, duration: Some(Duration::from_secs(60)), ..busy(0.0) };
    let seen = traced(child.pid() as i32, options).unwrap();
    assert_eq!((seen.report.exit, seen.report.processes), (Some(ExitStatus::Code(42)), 1));
}

struct Family<'a> {
    records: &'a mut BTreeMap<i32, usize>,
    forked: &'a mut BTreeMap<i32, i32>,
    executed: &'a mut Vec<i32>,
}

impl restitch_trace::Sink for Family<'_> {
    fn record(&mut self, record: Record<'_>) {
        *self.records.entry(record.pid).or_default() += record.branches.len();
    }

    fn forked(&mut self, pid: i32, parent: i32) {
        self.forked.insert(pid, parent);
    }

    fn executed(&mut self, pid: i32) {
        self.executed.push(pid);
    }
}

#[test]
fn sixty_four_threads_are_traced() {
    let Some(odd) = odd() else { return };
    let child = start(&odd, &["many", "3"]);
    std::thread::sleep(Duration::from_millis(300));
    let mut threads = std::collections::BTreeSet::new();
    let mut sink = |r: Record<'_>| {
        threads.insert(r.tid);
    };
    let options = TraceOptions { duration: Some(Duration::from_secs(60)), ..busy(0.0) };
    let report = match trace(child.pid() as i32, options, &AtomicBool::new(false), &mut sink) {
        Ok(report) => report,
        Err(error @ restitch_trace::BranchTraceError::Perf(_)) => return skipped(&error.to_string()),
        Err(error) => panic!("{error}"),
    };
    assert_eq!((report.exit, report.missed_threads), (Some(ExitStatus::Code(42)), 0));
    assert!(report.threads >= 65 && threads.len() >= 32, "{} seen of {report:?}", threads.len());
}

/// Being stopped in a restartable sequence aborts it: no breakpoint may stand in there, or it would never end.
#[test]
fn restartable_sequences_get_no_breakpoints() {
    let Some(odd) = odd() else { return };
    let ends = |report: &TraceReport| report.records.get(&RecordEnd::Restartable).copied().unwrap_or(0);
    ends_well_until(&odd, "rseq", |report| ends(report) > 0 && report.branches > 100);
}

/// Code that the process may write is not looked into; records end there.
#[test]
fn records_end_where_the_process_writes_its_own_code() {
    let Some(odd) = odd() else { return };
    if let Some(seen) = ends_well(&odd, &["jit", "1.5"], busy(0.0)) {
        let ends = seen.report.records.get(&RecordEnd::UnknownCode).copied().unwrap_or(0);
        assert!(ends > 0, "{:?}", seen.report);
        assert_eq!(seen.report.contradicted, 0, "{:?}", seen.report);
    }
}

#[test]
fn code_of_the_kernel_is_followed_or_ends_records() {
    let Some(odd) = odd() else { return };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let modes = if maps.contains("[vsyscall]") { &["vdso", "vsyscall"][..] } else { &["vdso"] };
    for mode in modes {
        let child = start(&odd, &[mode, "1.5"]);
        std::thread::sleep(Duration::from_millis(50));
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
        let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap().split([' ', '-']);
        let vdso: Vec<u64> = vdso.take(2).map(|at| u64::from_str_radix(at, 16).unwrap()).collect();
        let options = TraceOptions { duration: Some(Duration::from_secs(60)), ..busy(0.0) };
        let Some(seen) = traced(child.pid() as i32, options) else { return };
        assert_eq!(seen.report.exit, Some(ExitStatus::Code(42)), "{mode}");
        let inside = |b: &&Taken| (vdso[0]..vdso[1]).contains(&b.from.get());
        let branches = seen.records.iter().flat_map(|r| &r.0).filter(inside).count();
        assert!(branches > 20, "{mode}: {:?}", seen.report);
        let ends = seen.report.records.get(&RecordEnd::UnknownCode).copied().unwrap_or(0);
        assert!(*mode == "vdso" || ends > 0, "{mode}: {:?}", seen.report);
    }
}

/// Runs in a process of its own, which the test below kills. Does nothing when the tests run as usual.
#[test]
fn tracer_that_gets_killed() {
    let Ok(pid) = std::env::var("TRACE_UNTIL_KILLED") else { return };
    let fixed = std::env::var("TRACE_FIXED").is_ok();
    let look_ahead = if fixed { LookAhead::Fixed } else { LookAhead::Evaluate };
    let options = TraceOptions { look_ahead, period: Some(100_000), ..busy(60.0) };
    let _ = trace(pid.parse().unwrap(), options, &AtomicBool::new(false), &mut |_: Record<'_>| {});
}

#[test]
fn the_target_survives_the_death_of_the_tracer_at_any_moment() {
    let Ok(binary) = compile(&program("threads.c"), &["-O2"]) else { return skipped("no compiler") };
    let Some(odd) = odd() else { return };
    let Ok(signals) = compile(&program("signals.c"), &["-O2"]) else { return skipped("no compiler") };
    let Ok(jumps) = compile(&program("setjmp.c"), &["-O2"]) else { return skipped("no compiler") };
    for (target, arguments) in [
        (&binary, ["--seconds", "4"]),
        // These miss a single signal that is lost.
        (&signals, ["--seconds", "4"]),
        (&jumps, ["--seconds", "4"]),
        (&odd, ["returns", "4"]),
        (&odd, ["threads", "4"]),
        (&odd, ["children", "4"]),
    ] {
        let mut child = start(target, &arguments);
        let begun = Instant::now();
        let mut kills = 0u64;
        while begun.elapsed() < Duration::from_secs(3) {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", "tracer_that_gets_killed"])
                .env("TRACE_UNTIL_KILLED", child.pid().to_string());
            if kills % 2 == 1 {
                command.env("TRACE_FIXED", "1");
            }
            let mut tracer = Guarded::spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
            std::thread::sleep(Duration::from_micros(20_000 + kills * 7919 % 60_000));
            tracer.kill().unwrap();
            kills += 1;
            // On a busy machine its seconds may be over before the last kill; its status is looked at below.
            let in_time = begun.elapsed() < Duration::from_secs(4);
            assert!(child.is_running() || !in_time, "{} died after kill {kills}", target.display());
        }
        let status = child.wait_within(Duration::from_secs(20)).expect("it ends");
        assert_eq!(status.code(), Some(42), "after {kills} kills of the tracer: {status:?}");
        println!("{} survived {kills} kills", target.display());
    }
}
