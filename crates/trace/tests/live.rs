//! Tracing real programs: their results stay right, records are paths of their code, and nothing is left
//! behind.

use restitch_address::Svma;
use restitch_perf::PerfError;
use restitch_procfs::ProcError;
use restitch_testkit::{Guarded, compile, find_program, program, skipped};
use restitch_trace::{
    BranchTraceError, LookAhead, Record, RecordEnd, Relative, Sink, Taken, TraceOptions, TraceReport, trace,
    trace_together,
};
use restitch_tracee::{ExitStatus, Memory};
use restitch_x86::{Flow, scan};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Records of a run.
struct Seen {
    report: TraceReport,
    records: Vec<(Vec<Taken>, RecordEnd)>,
}

/// For so many seconds programs run (or are traced): longer ones if they got too little of a busy machine's
/// processors before.
const SECONDS: [&str; 4] = ["1.5", "6", "20", "60"];
/// How long a program that ends by itself is traced at most.
const PATIENCE: Duration = Duration::from_secs(300);

/// Many records: the cost is of no interest here.
fn busy() -> TraceOptions {
    TraceOptions {
        depth: 24,
        period: Some(400_000),
        duration: Some(PATIENCE),
        check_every: 4,
        ..TraceOptions::default()
    }
}

/// Why there is nothing to look at.
enum Missing {
    /// This machine cannot do it.
    Impossible,
    /// The program had ended before it was traced.
    Late,
}

fn traced_into(pid: i32, options: TraceOptions, sink: &mut impl Sink) -> Result<TraceReport, Missing> {
    match trace(pid, options, &AtomicBool::new(false), sink) {
        Ok(report) => Ok(report),
        Err(BranchTraceError::Trace(error)) if error.is_gone() => Err(Missing::Late),
        Err(
            BranchTraceError::Perf(PerfError::NoProcess { .. })
            | BranchTraceError::Proc(ProcError::Gone { .. }),
        ) => Err(Missing::Late),
        Err(error @ BranchTraceError::Perf(_)) => {
            skipped(&error.to_string());
            Err(Missing::Impossible)
        }
        Err(error) => panic!("{error}"),
    }
}

fn traced(pid: i32, options: TraceOptions) -> Result<Seen, Missing> {
    let mut records = Vec::new();
    let mut sink = |r: Record<'_>| records.push((r.branches.to_vec(), r.end));
    let report = traced_into(pid, options, &mut sink)?;
    Ok(Seen { report, records })
}

/// What `run` gives for a number of seconds, with more and more of them until it is `enough`; in the end
/// whatever there is. Nothing if it is impossible here.
fn until<T>(mut run: impl FnMut(&str) -> Result<T, Missing>, enough: impl Fn(&T) -> bool) -> Option<T> {
    let mut last = None;
    for seconds in SECONDS {
        match run(seconds) {
            Ok(seen) if enough(&seen) => return Some(seen),
            Ok(seen) => last = Some(seen),
            Err(Missing::Late) => {}
            Err(Missing::Impossible) => return None,
        }
    }
    Some(last.expect("a program that runs for a minute is traced before it ends"))
}

fn start(program: &Path, arguments: &[&str]) -> Guarded {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    Guarded::spawn(&mut command).unwrap()
}

/// Each record is a path: from where a branch goes, the code runs straight to the next branch, which can go
/// there.
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
    // The last byte may cut an instruction off; all before `end` have to be whole and none an unconditional
    // branch.
    let mut at_end = start == end;
    let mut passes = true;
    let _ = scan(&bytes[..bytes.len() - 1], Svma::new(start), |insn| {
        passes &= matches!(insn.flow, Flow::Next | Flow::Conditional(..) | Flow::ShortConditional(_));
        at_end |= insn.end().get() == end;
    });
    passes && at_end
}

/// Traces a program that checks itself, started with `arguments` and a number of seconds, until it ends; its
/// status must be that of success. With more seconds, until there is `enough` to look at.
fn ends_well(program: &Path, arguments: &[&str], enough: impl Fn(&Seen) -> bool) -> Option<Seen> {
    let run = |seconds: &str| {
        let child = start(program, &[arguments, &[seconds]].concat());
        std::thread::sleep(Duration::from_millis(50));
        let seen = traced(child.pid() as i32, busy())?;
        assert_eq!(seen.report.exit, Some(ExitStatus::Code(42)), "{arguments:?}");
        println!("{} {arguments:?} {seconds}: {:?}", program.display(), seen.report);
        Ok(seen)
    };
    until(run, enough)
}

/// The same for a mode of the odd program, whose report has to be as it should be in the end.
fn ends_well_until(odd: &Path, mode: &str, enough: impl Fn(&TraceReport) -> bool) -> Option<Seen> {
    let seen = ends_well(odd, &[mode], |seen| enough(&seen.report))?;
    assert!(enough(&seen.report), "{mode}: {:?}", seen.report);
    Some(seen)
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
        let run = |seconds: &str| {
            let duration = Some(Duration::from_secs_f64(seconds.parse().expect("a number")));
            traced(child.pid() as i32, TraceOptions { look_ahead, duration, ..busy() })
        };
        let pairs = |seen: &Seen| seen.records.iter().map(|r| r.0.len().saturating_sub(1)).sum::<usize>();
        let Some(seen) = until(run, |seen| seen.report.full() > 5 && pairs(seen) > 20) else { return };
        println!("{:?}", seen.report);
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
        ends_well(&binary, &["--seconds"], |_| true);
    }
}

#[test]
fn static_programs_are_traced_too() {
    let Ok(binary) = compile(&program("switch.c"), &["-O2", "-static"]) else {
        return skipped("no static libc");
    };
    if let Some(seen) = ends_well(&binary, &["--seconds"], |seen| seen.report.full() > 5) {
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
    ends_well_until(&odd, "threads", |report| report.threads > 4);
}

#[test]
fn another_program_is_traced_after_exec() {
    let Some(odd) = odd() else { return };
    // Position-independent: before and after the exec the same code is elsewhere.
    let pages = |seen: &Seen| -> BTreeSet<u64> {
        seen.records.iter().flat_map(|r| &r.0).map(|b| b.from.get() >> 24).collect()
    };
    let run = |seconds: &str| {
        let child = start(&odd, &["exec", seconds]);
        traced(child.pid() as i32, busy())
    };
    let Some(seen) = until(run, |seen| pages(seen).len() >= 2) else { return };
    assert_eq!(seen.report.exit, Some(ExitStatus::Code(42)));
    assert!(pages(&seen).len() >= 2, "{:x?}", pages(&seen));
}

/// Forked children, and what they execute, have records of their own, with their own process's number.
#[test]
fn children_and_what_they_execute_are_traced() {
    let Some(odd) = odd() else { return };
    let run = |seconds: &str| {
        let child = start(&odd, &["children", seconds]);
        std::thread::sleep(Duration::from_millis(50));
        let (pid, mut family) = (child.pid() as i32, Family::default());
        Ok((pid, traced_into(pid, busy(), &mut family)?, family))
    };
    let with_records = |family: &Family| {
        family.forked.keys().filter(|pid| family.records.get(pid).is_some_and(|n| *n > 100)).count()
    };
    let Some((pid, report, family)) = until(run, |(_, _, family)| with_records(family) >= 2) else { return };
    println!("{report:?}");
    let Family { records, forked, executed } = &family;
    assert_eq!(report.exit, Some(ExitStatus::Code(42)));
    assert!(forked.len() >= 2 && forked.values().all(|parent| *parent == pid), "{forked:?}");
    assert_eq!(report.processes, forked.len() + 1);
    // Each has one thread, which is the same one after an exec.
    assert!(
        report.threads <= report.processes,
        "{} threads of {} processes",
        report.threads,
        report.processes
    );
    assert!(executed.iter().all(|pid| forked.contains_key(pid)) && executed.len() + 1 >= forked.len());
    assert!(with_records(&family) >= 2, "{records:?}");
    // Left alone if that is asked for.
    let run = |seconds: &str| {
        let child = start(&odd, &["children", seconds]);
        traced(child.pid() as i32, TraceOptions { children: false, ..busy() })
    };
    let Some(seen) = until(run, |_| true) else { return };
    assert_eq!((seen.report.exit, seen.report.processes), (Some(ExitStatus::Code(42)), 1));
}

#[derive(Default)]
struct Family {
    records: BTreeMap<i32, usize>,
    forked: BTreeMap<i32, i32>,
    executed: Vec<i32>,
}

impl Sink for Family {
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
    let run = |seconds: &str| {
        let child = start(&odd, &["many", seconds]);
        std::thread::sleep(Duration::from_millis(300));
        let mut threads = BTreeSet::new();
        let mut sink = |r: Record<'_>| {
            threads.insert(r.tid);
        };
        let report = traced_into(child.pid() as i32, busy(), &mut sink)?;
        Ok((report, threads))
    };
    let enough =
        |(report, threads): &(TraceReport, BTreeSet<i32>)| report.threads >= 65 && threads.len() >= 32;
    let Some((report, threads)) = until(run, enough) else { return };
    assert_eq!((report.exit, report.missed.threads), (Some(ExitStatus::Code(42)), 0));
    assert!(report.threads >= 65 && threads.len() >= 32, "{} seen of {report:?}", threads.len());
}

/// Being stopped in a restartable sequence aborts it: no breakpoint may stand in there, or it would never
/// end.
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
    let ends = |report: &TraceReport| report.records.get(&RecordEnd::UnknownCode).copied().unwrap_or(0);
    if let Some(seen) = ends_well_until(&odd, "jit", |report| ends(report) > 0) {
        assert_eq!(seen.report.contradicted, 0, "{:?}", seen.report);
    }
}

#[test]
fn code_of_the_kernel_is_followed_or_ends_records() {
    let Some(odd) = odd() else { return };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let modes = if maps.contains("[vsyscall]") { &["vdso", "vsyscall"][..] } else { &["vdso"] };
    for mode in modes {
        let run = |seconds: &str| {
            let child = start(&odd, &[mode, seconds]);
            std::thread::sleep(Duration::from_millis(50));
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
            let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).ok_or(Missing::Late)?;
            let ends = vdso.split([' ', '-']).take(2);
            let ends: Vec<u64> = ends.map(|at| u64::from_str_radix(at, 16).unwrap()).collect();
            let seen = traced(child.pid() as i32, busy())?;
            assert_eq!(seen.report.exit, Some(ExitStatus::Code(42)), "{mode}");
            Ok((seen, ends[0]..ends[1]))
        };
        let inside = |(seen, vdso): &(Seen, Range<u64>)| {
            seen.records.iter().flat_map(|r| &r.0).filter(|b| vdso.contains(&b.from.get())).count()
        };
        let ends = |seen: &Seen| seen.report.records.get(&RecordEnd::UnknownCode).copied().unwrap_or(0);
        let enough = |both: &(Seen, Range<u64>)| inside(both) > 20 && (*mode == "vdso" || ends(&both.0) > 0);
        let Some(both) = until(run, enough) else { return };
        assert!(enough(&both), "{mode}: {} branches inside, {:?}", inside(&both), both.0.report);
    }
}

/// Runs in a process of its own, which the test below kills. Does nothing when the tests run as usual.
#[test]
fn tracer_that_gets_killed() {
    let Ok(pid) = std::env::var("TRACE_UNTIL_KILLED") else { return };
    let fixed = std::env::var("TRACE_FIXED").is_ok();
    let look_ahead = if fixed { LookAhead::Fixed } else { LookAhead::Evaluate };
    let options = TraceOptions { look_ahead, period: Some(100_000), ..busy() };
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
        let begun = Instant::now();
        let mut child = start(target, &arguments);
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
            // The clock is looked at last.
            let ended = child.wait_within(Duration::ZERO);
            assert!(
                ended.is_none() || begun.elapsed() >= Duration::from_secs(4),
                "{} died after kill {kills}: {ended:?}",
                target.display()
            );
        }
        let status = child.wait_within(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(42), "after {kills} kills of the tracer: {status:?}");
        println!("{} survived {kills} kills", target.display());
    }
}

/// Where a hypervisor loses the cause of a breakpoint, the kernel takes it for the program's own trap.
#[test]
fn traps_without_a_cause_are_swallowed_and_a_programs_own_are_not() {
    let Ok(traps) = compile(&program("odd/traps.c"), &["-O2"]) else { return skipped("no compiler") };
    for own in ["0", "1"] {
        let (mut shell, pid) = start_below(&traps, &["--own", own]);
        match traced(pid, busy()) {
            Ok(_) => {}
            Err(Missing::Impossible) => return,
            Err(Missing::Late) => unreachable!("it waits for its tracer"),
        }
        let status = shell.wait_within(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(42), "own traps: {own}: {status:?}");
    }
}

/// The program as the child of a shell, which ends as it does: a process that is traced by its own parent
/// tells its end to the tracer only.
fn start_below(program: &Path, arguments: &[&str]) -> (Guarded, i32) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "\"$@\" & echo $!; wait $!", "sh"]).arg(program).args(arguments);
    let mut shell = Guarded::spawn(shell.stdin(Stdio::null()).stdout(Stdio::piped())).unwrap();
    let mut line = String::new();
    BufReader::new(shell.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = line.trim().parse().expect("the shell says the number of its child");
    (shell, pid)
}

/// Of several processes each is recorded, within one budget; that one of them ends, or has ended before, is
/// no error.
#[test]
fn processes_are_traced_together() {
    let Ok(program) = compile(&program("switch.c"), &["-O2"]) else { return skipped("no compiler") };
    let run = |seconds: &str| {
        let lasting = ["600", "600"].map(|seconds| start(&program, &["--seconds", seconds]));
        let pids = lasting.each_ref().map(|process| process.pid() as i32);
        let (mut parent, early) = start_below(&program, &["--busy", "0.2"]);
        let mut gone = start(&program, &[]);
        let relative = |pid| Relative { pid, restartable: Vec::new() };
        let others = [pids[1], early, gone.pid() as i32].map(relative);
        gone.wait_within(PATIENCE).expect("it ends");
        let mut seen: BTreeMap<i32, usize> = BTreeMap::new();
        let mut sink = |r: Record<'_>| *seen.entry(r.pid).or_default() += r.branches.len();
        let duration = Some(Duration::from_secs_f64(seconds.parse().expect("a number")));
        let options = TraceOptions { duration, period: None, overhead: 0.1, ..busy() };
        let traced = trace_together(pids[0], &others, options, &AtomicBool::new(false), &mut sink);
        let report = match traced {
            Ok(report) => report,
            Err(BranchTraceError::Perf(error)) => {
                skipped(&error.to_string());
                return Err(Missing::Impossible);
            }
            Err(error) => panic!("{error}"),
        };
        println!("{seconds}: {seen:?}, {report:?}");
        let ended = parent.wait_within(PATIENCE).and_then(|status| status.code());
        assert_eq!(ended, Some(42), "the one that ends meanwhile");
        Ok((report, pids.iter().all(|pid| seen.contains_key(pid))))
    };
    let enough = |seen: &(TraceReport, bool)| seen.1 && seen.0.branches > 100;
    let Some((report, all)) = until(run, enough) else { return };
    assert!(all, "{report:?}");
    assert!(report.left_out.is_empty(), "{report:?}");
    assert!((2..=3).contains(&report.processes), "{report:?}");
    assert_eq!(report.exit, None);
}
