//! Sampling and counting of a real program. Works without a PMU.

use restitch_address::{Avma, AvmaRange};
use restitch_perf::{
    Availability, CounterEvent, CounterOptions, Counters, IpSampler, PerfError, Pmu, Record, SampleEvent,
    SampleOptions,
};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A program that spins in one function, in the main thread and (after a line of input) in two later ones and
/// a child.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline, section("spinning"))) void *spin(void *count) {
    volatile unsigned long x = 0;
    for (unsigned long i = 0; i < (unsigned long)count; i++) x += i;
    return 0;
}
extern char __start_spinning[], __stop_spinning[];
int main(void) {
    printf("%p %p\n", (void *)__start_spinning, (void *)__stop_spinning);
    fflush(stdout);
    if (getchar() == EOF) return 1;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, spin, (void *)300000000ul);
    int child = fork();
    if (child == 0) { spin((void *)300000000ul); _exit(0); }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    spin((void *)100000000ul);
    if (waitpid(child, 0, 0) != child) return 2;
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

struct Spinner {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    code: AvmaRange,
    program: PathBuf,
}

impl Spinner {
    fn start() -> Option<Self> {
        let name = format!("spin-{}-{:?}", std::process::id(), std::thread::current().id());
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let source = program.with_extension("c");
        std::fs::write(&source, SOURCE).unwrap();
        let compiled = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).status();
        std::fs::remove_file(&source).unwrap();
        let Ok(status) = compiled else {
            eprintln!("SKIPPED: no C compiler `cc`");
            return None;
        };
        assert!(status.success());
        let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let mut ends = line
            .split_whitespace()
            .map(|word| Avma::new(u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()));
        let code = AvmaRange::between(ends.next().unwrap(), ends.next().unwrap());
        Some(Self { child, output, code, program })
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn wait_until_done(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.program);
    }
}

/// Whether this machine lets us measure at all; in a locked-down container the tests would test nothing.
fn may_measure() -> bool {
    match Pmu::probe().cpu_clock {
        Availability::Yes => true,
        no => {
            eprintln!("SKIPPED: sampling is not possible here: {no}");
            false
        }
    }
}

#[test]
fn most_samples_fall_into_the_busy_function_of_all_threads_and_children() {
    if !may_measure() {
        return;
    }
    let Some(mut spinner) = Spinner::start() else { return };
    let pid = spinner.child.id() as i32;
    let options = SampleOptions { event: SampleEvent::CpuClock, frequency: 1999, ..SampleOptions::default() };
    let mut sampler = IpSampler::open(&[pid], options).unwrap();
    assert_eq!(sampler.event(), SampleEvent::CpuClock);
    spinner.go();
    spinner.wait_until_done();
    sampler.wait(Duration::from_millis(1));
    let records = sampler.drain();
    let samples: Vec<_> = records
        .iter()
        .filter_map(|record| if let Record::Sample(sample) = record { Some(sample) } else { None })
        .collect();
    let inside = samples.iter().filter(|sample| spinner.code.contains(sample.ip)).count();
    assert!(samples.len() > 200, "{} samples", samples.len());
    assert!(inside * 10 > samples.len() * 9, "{inside} of {} samples in the function", samples.len());
    let threads: BTreeSet<i32> = samples.iter().map(|sample| sample.tid).collect();
    let processes: BTreeSet<i32> = samples.iter().map(|sample| sample.pid).collect();
    assert_eq!((threads.len(), processes.len()), (4, 2), "{threads:?} {processes:?}");
    let times: Vec<u64> = records.iter().filter_map(Record::time).collect();
    assert!(times.is_sorted());
    let forks = records.iter().filter(|record| matches!(record, Record::Fork { .. })).count();
    let exits = records.iter().filter(|record| matches!(record, Record::Exit { .. })).count();
    assert!(forks >= 3 && exits >= 3, "{forks} forks, {exits} exits");
}

#[test]
fn what_the_machine_runs_is_sampled_with_threads_and_children() {
    if !may_measure() {
        return;
    }
    let Some(mut spinner) = Spinner::start() else { return };
    let pid = spinner.child.id() as i32;
    let options = SampleOptions { event: SampleEvent::CpuClock, ..SampleOptions::default() };
    let mut sampler = match IpSampler::open_machine(options) {
        Ok(sampler) => sampler,
        Err(error @ PerfError::Denied { .. }) => {
            eprintln!("SKIPPED: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    spinner.go();
    spinner.wait_until_done();
    sampler.disable().unwrap();
    let mut processes = BTreeSet::from([pid]);
    let mut samples = Vec::new();
    for record in sampler.drain() {
        match record {
            Record::Fork { pid, parent_pid, .. } if processes.contains(&parent_pid) => {
                _ = processes.insert(pid)
            }
            Record::Sample(sample) if processes.contains(&sample.pid) => samples.push(sample),
            Record::Mmap { .. } => panic!("nobody has asked for {record:?}"),
            _ => {}
        }
    }
    let inside = samples.iter().filter(|sample| spinner.code.contains(sample.ip)).count();
    assert!(samples.len() > 100, "{} samples", samples.len());
    assert!(inside * 10 > samples.len() * 9, "{inside} of {} samples in the function", samples.len());
    let threads: BTreeSet<i32> = samples.iter().map(|sample| sample.tid).collect();
    assert_eq!((threads.len(), processes.len()), (4, 2), "{threads:?} {processes:?}");
}

#[test]
fn an_overflowing_ring_is_reported_and_halting_halts() {
    if !may_measure() {
        return;
    }
    let Some(mut spinner) = Spinner::start() else { return };
    let pid = spinner.child.id() as i32;
    let options = SampleOptions { frequency: 20_000, ring_pages: 8, ..SampleOptions::default() };
    let mut sampler = IpSampler::open(&[pid], options).unwrap();
    spinner.go();
    spinner.wait_until_done();
    sampler.disable().unwrap();
    let records = sampler.drain();
    // 8 pages hold about 1,000 samples of 32 bytes.
    assert!((100..=1024 * 64).contains(&records.len()), "{}", records.len());
    assert!(sampler.drain().is_empty());
}

#[test]
fn the_task_clock_counts_threads_and_children() {
    if !may_measure() {
        return;
    }
    let Some(mut spinner) = Spinner::start() else { return };
    let pid = spinner.child.id() as i32;
    let wanted =
        [CounterEvent::TaskClock, CounterEvent::Cycles, CounterEvent::Instructions, CounterEvent::PageFaults];
    let counters = Counters::open(&[pid], &wanted, CounterOptions::default()).unwrap();
    assert_eq!(counters.events().len() + counters.unavailable().len(), wanted.len());
    let before = counters.read().unwrap();
    spinner.go();
    spinner.wait_until_done();
    let after = counters.read().unwrap();
    let clock = after[0].since(&before[0]);
    assert_eq!(clock.event, CounterEvent::TaskClock);
    let own: Duration = restitch_procfs::threads(pid)
        .unwrap()
        .iter()
        .map(|thread| restitch_procfs::thread_cpu_time(pid, thread.tid).unwrap())
        .sum();
    let counted = Duration::from_nanos(clock.scaled().unwrap() as u64);
    // Two more threads and a child ran three times as long as the main thread each.
    assert!(counted > own * 3, "{counted:?} counted, {own:?} in the main thread");
    for (event, error) in counters.unavailable() {
        assert!(error.to_string().contains("cannot measure"), "{event:?}: {error}");
    }
}

#[test]
fn without_a_pmu_the_task_clock_is_counted() {
    if !may_measure() {
        return;
    }
    let counters = Counters::open(
        &[std::process::id() as i32],
        &[CounterEvent::Raw(u64::MAX)],
        CounterOptions::default(),
    )
    .unwrap();
    if counters.unavailable().len() == 1 {
        assert_eq!(counters.events(), [CounterEvent::TaskClock]);
    }
    // Processor time: while others have the processor nothing is counted.
    let pid = std::process::id() as i32;
    let used = || -> Duration {
        let threads = restitch_procfs::threads(pid).unwrap();
        threads.iter().filter_map(|t| restitch_procfs::thread_cpu_time(pid, t.tid).ok()).sum()
    };
    let before = used();
    while used() < before + Duration::from_millis(20) {}
    let reading = counters.read().unwrap()[0];
    assert!(reading.event != CounterEvent::TaskClock || reading.value > 1_000_000, "{reading:?}");
}

#[test]
fn the_probe_gives_a_reason_for_everything_that_is_missing() {
    let facts = Pmu::probe();
    for availability in [&facts.cycles, &facts.branch_stack, &facts.hardware_breakpoints, &facts.cpu_clock] {
        if let Availability::No { reason, .. } = availability {
            assert!(!reason.is_empty() && availability.to_string().starts_with("no: "));
        }
    }
    let options =
        SampleOptions { event: SampleEvent::Cycles, branch_stack: true, ..SampleOptions::default() };
    if !facts.branch_stack.is_yes() {
        let error = IpSampler::open(&[std::process::id() as i32], options).unwrap_err();
        assert!(error.to_string().contains("hardware branch records"), "{error}");
    }
    let gone = IpSampler::open(&[i32::MAX], SampleOptions::default());
    assert!(matches!(gone, Err(PerfError::NoProcess { .. } | PerfError::Denied { .. })), "{gone:?}");
}

/// The processor time of a shell that counts, in seconds: as its parent is told, and as the sampler is, and
/// what has passed meanwhile.
fn counting_shell(sampler: &mut IpSampler) -> (f64, f64, f64) {
    let start = std::time::Instant::now();
    let script = "i=0; while [ $i -lt 40000 ]; do i=$((i + 1)); done";
    #[expect(clippy::zombie_processes, reason = "it is collected by wait4, which tells what it has used")]
    let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let pid = child.id() as i32;
    // SAFETY: both are plain data, for which zeros are values.
    let (mut status, mut usage): (i32, libc::rusage) = unsafe { std::mem::zeroed() };
    // SAFETY: waits for the child of this function alone, and writes to two live objects.
    let ended = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!((ended, status), (pid, 0));
    let elapsed = start.elapsed().as_secs_f64();
    let of = |record: &Record| match record {
        Record::Time { pid: of, value, .. } if *of == pid => *value as f64 / 1e9,
        _ => 0.0,
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), sampler.drain().iter().map(of).sum(), elapsed)
}

#[test]
fn ended_processes_tell_their_time() {
    if !may_measure() {
        return;
    }
    let options = SampleOptions {
        event: SampleEvent::CpuClock,
        frequency: 10,
        times: true,
        ..SampleOptions::default()
    };
    let mut sampler = IpSampler::open(&[std::process::id() as i32], options).unwrap();
    let mut told = 0;
    for _ in 0..6 {
        let (used, said, elapsed) = counting_shell(&mut sampler);
        assert!(said <= elapsed, "{said} s of {used} s in {elapsed} s");
        told += usize::from(said > 0.5 * used);
    }
    // A child may exchange its events with the thread that it was started by
    // (`perf_event_context_sched_out`), and takes those with it that tell nothing: once.
    assert!(told >= 4, "{told} of 6");
}

#[test]
fn the_kernel_is_sampled_with_its_callers() {
    if !may_measure() {
        return;
    }
    let options = SampleOptions {
        event: SampleEvent::CpuClock,
        frequency: 1999,
        exclude_kernel: false,
        exclude_user: true,
        kernel_stacks: true,
        ..SampleOptions::default()
    };
    // Who may not look into the kernel is told so.
    let mut sampler = match IpSampler::open(&[std::process::id() as i32], options) {
        Ok(sampler) => sampler,
        Err(error) => {
            eprintln!("SKIPPED: sampling the kernel is not possible here: {error}");
            return;
        }
    };
    let mut zeros = std::fs::File::open("/dev/zero").unwrap();
    let mut room = vec![0; 1 << 20];
    let mut samples = Vec::new();
    // By processor time: until there are some, however slow the machine.
    while samples.len() < 20 {
        std::io::Read::read_exact(&mut zeros, &mut room).unwrap();
        let records = sampler.drain().into_iter();
        samples.extend(records.filter_map(|record| match record {
            Record::Sample(sample) => Some(sample),
            _ => None,
        }));
    }
    let is_kernel = |at: &Avma| at.get() >= 1 << 63;
    assert!(samples.iter().all(|sample| is_kernel(&sample.ip) && sample.callers.iter().all(is_kernel)));
    assert!(samples.iter().any(|sample| sample.callers.len() > 1), "no stacks");
}
