//! Stopping and resuming leaves programs as they were.

mod common;

use common::Target;
use restitch_tracee::{StopOptions, Stopped, TraceError, cut_calls};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long something may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_storm_of_threads_is_stopped_as_a_whole() {
    let Some(mut target) = Target::start("storm", &[]) else { return };
    let mut stops = 0;
    while stops < 200 {
        let stopped = match Stopped::seize_all(target.pid()) {
            Ok(stopped) => stopped,
            Err(error) => panic!("stop {stops}: {error}"),
        };
        let mut listed: Vec<i32> =
            restitch_procfs::threads(target.pid()).unwrap().iter().map(|t| t.tid).collect();
        listed.retain(|&tid| {
            let status = restitch_procfs::thread_status(target.pid(), tid);
            status.is_ok_and(|status| !status.state.is_some_and(|state| state.is_ended()))
        });
        assert_eq!(listed, stopped.threads().collect::<Vec<_>>(), "a thread was missed");
        stopped.resume();
        stops += 1;
        std::thread::sleep(Duration::from_micros(stops * 5));
    }
    assert!(!target.has_ended(), "it goes on until it is told to end");
    target.assert_ok();
}

#[test]
fn waiting_threads_see_no_eintr() {
    let Some(target) = Target::start("sleepers", &[]) else { return };
    for round in 0..400u64 {
        let begun = Instant::now();
        let stopped = Stopped::seize_all(target.pid()).unwrap();
        let most = begun.elapsed();
        assert_eq!(stopped.threads().count(), 17);
        if round % 2 == 0 {
            drop(stopped);
        } else {
            let times = stopped.resume();
            assert!(times.threads == 17 && times.stopping <= most, "{times:?} of {most:?}");
        }
        std::thread::sleep(Duration::from_micros(round * 37 % 6000));
    }
    target.assert_ok();
}

/// What a call had moved by the time of a stop is all that it gives. Moments without such calls are waited
/// for, and each that is cut all the same is counted.
#[test]
fn calls_that_move_bytes_are_seldom_cut_short_and_then_counted() {
    let Some(target) = Target::start("cutting", &[]) else { return };
    let before = cut_calls();
    const STOPS: usize = 20;
    for round in 0..STOPS as u64 {
        Stopped::seize_all(target.pid()).unwrap().resume();
        std::thread::sleep(Duration::from_millis(30 + round * 7));
    }
    let counted = cut_calls() - before;
    let said = target.end();
    let seen: usize = said.split(' ').next().unwrap().parse().unwrap();
    assert!(seen <= counted, "{seen} were cut, {counted} counted");
    assert!(seen * 2 <= STOPS, "{seen} of {STOPS} stops cut a call");
}

/// One that does not come to an end does not keep anybody waiting for long.
#[test]
fn calls_that_wait_for_ever_are_cut_and_counted() {
    let Some(target) = Target::start("cutting", &["stuck"]) else { return };
    let writer = || {
        let threads = restitch_procfs::threads(target.pid()).unwrap();
        let call = |tid: i32| std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/syscall"));
        threads.iter().any(|thread| call(thread.tid).is_ok_and(|call| call.starts_with("1 "))).then_some(())
    };
    restitch_testkit::wait_until(PATIENCE, writer).expect("it writes");
    let before = cut_calls();
    Stopped::seize_all(target.pid()).unwrap().resume();
    assert!(cut_calls() > before, "the call was cut");
    target.assert_ok();
}

/// A moment at which a 64-bit program runs 32-bit code is no reason to refuse it.
#[test]
fn programs_that_call_32_bit_code_are_stopped_when_they_are_out_of_it() {
    let Some(target) = Target::start_or("mixed", &[], "no 32-bit code") else {
        return restitch_testkit::skipped("32-bit code cannot be called here");
    };
    for round in 0..50u64 {
        let stopped = Stopped::seize_all(target.pid()).unwrap_or_else(|error| panic!("{round}: {error}"));
        for tid in stopped.threads() {
            assert!(stopped.registers(tid).unwrap().is_64_bit());
        }
        stopped.resume();
        std::thread::sleep(Duration::from_micros(round * 37));
    }
    target.assert_ok();
}

/// One that does not come out of it is told of, time and again, and nobody stays stopped or traced: the
/// others were asked to stop as well.
#[test]
fn threads_that_stay_in_32_bit_code_are_told_and_all_run_on() {
    let Some(target) = Target::start_or("mixed", &["stay"], "no 32-bit code") else {
        return restitch_testkit::skipped("32-bit code cannot be called here");
    };
    let threads = restitch_procfs::threads(target.pid()).unwrap();
    assert_eq!(threads.len(), 4);
    let stop = || match Stopped::seize_all(target.pid()) {
        Err(TraceError::InThirtyTwoBitCode { .. }) => Some(()),
        Ok(_) => None,
        Err(error) => panic!("{error}"),
    };
    restitch_testkit::wait_until(Duration::from_secs(60), stop).expect("it is on its way there");
    for round in 0..4 {
        assert!(stop().is_some(), "{round}");
        for thread in &threads {
            let status = restitch_procfs::thread_status(target.pid(), thread.tid).unwrap();
            assert_eq!(status.tracer.unwrap_or(0), 0, "{round}: {status:?}");
        }
    }
    target.assert_ok();
}

/// The kernel's threads of a process that uses io_uring are not stopped (what they wait for would end, and
/// the program see an error), nor taken for threads that can be borrowed.
#[test]
fn threads_that_stay_in_the_kernel_are_let_be() {
    let folder = restitch_testkit::scratch();
    let pipe = folder.path().join("pipe");
    let pipe = pipe.to_str().expect("a plain path");
    let Some(mut target) = Target::start_or("rings", &[pipe], "no io_uring") else {
        return restitch_testkit::skipped("io_uring is not permitted here");
    };
    let pid = target.pid();
    let mut seen = 0;
    for round in 0..300 {
        let stopped = Stopped::seize_all(pid).unwrap();
        let threads: Vec<i32> = stopped.threads().collect();
        for thread in restitch_procfs::threads(pid).unwrap() {
            let stat = restitch_procfs::thread_stat(pid, thread.tid).unwrap();
            let of_kernel = stat.name.starts_with("iou-");
            assert_eq!(threads.contains(&thread.tid), !of_kernel, "{}", stat.name);
            let tracer = restitch_procfs::thread_status(pid, thread.tid).unwrap().tracer;
            assert_eq!(tracer.is_some_and(|tracer| tracer != 0), !of_kernel, "{}", stat.name);
            seen += u32::from(of_kernel);
        }
        drop(stopped);
        std::thread::sleep(Duration::from_micros(round * 37 % 4000));
    }
    // One that polls and one that opens.
    assert!(seen >= 300, "they were not there: {seen}");
    assert!(!target.has_ended(), "it goes on until it is told to end");
    target.assert_ok();
}

#[test]
fn signals_are_neither_lost_nor_doubled() {
    let Some(target) = Target::start("signals", &["40000"]) else { return };
    let mut on_their_way = 0;
    for _ in 0..100_000 {
        if target.is_done() {
            break;
        }
        match Stopped::seize_all(target.pid()) {
            Ok(stopped) => {
                let held = |tid: &i32| stopped.held_signal(*tid).unwrap().is_some();
                on_their_way += stopped.threads().filter(held).count();
                stopped.resume();
            }
            Err(error) if error.is_gone() => break,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(on_their_way > 0, "no stop met a signal on its way, the test tested nothing");
    target.assert_ok();
}

#[test]
fn a_process_stopped_by_job_control_stays_stopped() {
    let Some(target) = Target::start("selfcheck", &["vector"]) else { return };
    let pid = target.pid();
    let state = || restitch_procfs::status(pid).unwrap().state.unwrap();
    // SAFETY: plain system call on a child of this test.
    let signal = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    // It has to run to stop. One that goes on never stops by itself.
    let is_stopped = || {
        let begun = Instant::now();
        while state() != restitch_procfs::ProcessState::Stopped && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        state() == restitch_procfs::ProcessState::Stopped
    };
    signal(libc::SIGSTOP);
    assert!(is_stopped());
    Stopped::seize_all(pid).unwrap().resume();
    assert!(is_stopped());
    signal(libc::SIGCONT);
    assert_ne!(state(), restitch_procfs::ProcessState::Stopped);
    target.assert_ok();
}

#[test]
fn dropping_takes_register_changes_back_and_resuming_keeps_them() {
    let Some(target) = Target::start("selfcheck", &["vector"]) else { return };
    let pid = target.pid();
    for _ in 0..50 {
        let mut stopped = Stopped::seize_all(pid).unwrap();
        let mut registers = stopped.registers(pid).unwrap();
        registers.r12 ^= 0xffff;
        registers.rbx ^= 0xffff;
        registers.rip = registers.rip + 1;
        stopped.set_registers(pid, registers).unwrap();
        assert_eq!(stopped.registers(pid).unwrap(), registers);
        drop(stopped);
    }
    // Kept: a harmless change of a register that the kernel shows again at the next stop.
    let mut stopped = Stopped::seize_all(pid).unwrap();
    let mut registers = stopped.registers(pid).unwrap();
    registers.gs_base = restitch_address::Avma::new(0x1000);
    stopped.set_registers(pid, registers).unwrap();
    stopped.resume();
    let stopped = Stopped::seize_all(pid).unwrap();
    assert_eq!(stopped.registers(pid).unwrap().gs_base.get(), 0x1000);
    drop(stopped);
    target.assert_ok();
}

#[test]
fn what_cannot_be_traced_is_refused_in_words() {
    let refusal = |pid| Stopped::seize_all(pid).expect_err("refused").to_string();
    assert!(refusal(std::process::id() as i32).contains("is this program itself"));
    assert!(refusal(i32::MAX).contains("does not exist"));
    if restitch_procfs::status(2).is_ok_and(|status| status.kernel_thread) {
        assert!(refusal(2).contains("kernel thread"));
    }
    let mut zombie = Command::new("true").spawn().unwrap();
    let state = |pid| restitch_procfs::status(pid).unwrap().state;
    while state(zombie.id() as i32) != Some(restitch_procfs::ProcessState::Zombie) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(refusal(zombie.id() as i32).contains("zombie"));
    zombie.wait().unwrap();
}

#[test]
fn another_tracer_is_named() {
    let Some(target) = Target::start("selfcheck", &["sleep"]) else { return };
    let pid = target.pid();
    let first = Stopped::seize_all(pid).unwrap();
    let second = std::thread::spawn(move || Stopped::seize_all(pid).map(drop)).join().unwrap();
    match second {
        Err(TraceError::AlreadyTraced { tracer, .. }) => assert!(tracer > 0),
        other => panic!("{other:?}"),
    }
    drop(first);
    target.assert_ok();
}

#[test]
fn stepping_goes_where_it_is_told_and_stops_before_system_calls() {
    use restitch_tracee::StepEnd;
    let Some(target) = Target::start("selfcheck", &["vector"]) else { return };
    for _ in 0..20 {
        let mut stopped = Stopped::seize_all(target.pid()).unwrap();
        let end = stopped.step_thread(target.pid(), 50, |_| false).unwrap();
        assert!(matches!(end, StepEnd::Limit(_) | StepEnd::SystemCall(_)), "{end:?}");
        let start = stopped.registers(target.pid()).unwrap().rip;
        let end = stopped.step_thread(target.pid(), 50, |rip| rip == start).unwrap();
        assert_eq!(end, StepEnd::Reached(start));
        drop(stopped);
        std::thread::sleep(Duration::from_millis(1));
    }
    target.assert_ok();
    let Some(target) = Target::start("signals", &["4000"]) else { return };
    while !target.is_done() {
        let mut stopped = Stopped::seize_all(target.pid()).unwrap();
        let _ = stopped.step_thread(target.pid(), 5, |_| false);
        stopped.resume();
        std::thread::sleep(Duration::from_millis(1));
    }
    target.assert_ok();
}

/// A control group that may use a processor for 20 ms of each second. `None`, with a note, where none can be
/// made.
struct Quota(PathBuf);

impl Quota {
    fn new() -> Option<Self> {
        let name = format!("restitch-test-{}", std::process::id());
        let (one, two) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let is_one = one.is_dir();
        let quota = Self(if is_one { one } else { two }.join(name));
        let write = |file: &str, text: &str| std::fs::write(quota.0.join(file), text);
        let made = std::fs::create_dir(&quota.0).and_then(|()| match is_one {
            true => write("cpu.cfs_period_us", "1000000").and_then(|()| write("cpu.cfs_quota_us", "20000")),
            false => write("cpu.max", "20000 1000000"),
        });
        if let Err(error) = made {
            eprintln!("SKIPPED: no control group with a quota: {error}");
            return None;
        }
        Some(quota)
    }

    fn add(&self, pid: i32) -> std::io::Result<()> {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // It is in use until the processes in it are really gone.
        let end = Instant::now() + PATIENCE;
        while std::fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A thread that is ready to run and gets no processor for longer than the limit is waited for: four times as
/// long.
#[test]
fn a_thread_that_gets_no_processor_is_waited_for() {
    const LIMIT: Duration = Duration::from_millis(600);
    let Some(quota) = Quota::new() else { return };
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let pid = busy.id() as i32;
    let added = quota.add(pid);
    for round in 0..8u64 {
        std::thread::sleep(Duration::from_millis(130 + 170 * round));
        match Stopped::seize_all_with(pid, StopOptions { limit: LIMIT }) {
            Ok(stopped) => _ = stopped.resume(),
            // A machine that is very busy otherwise, too.
            Err(TraceError::NotStopping { waited_ms, .. })
                if u128::from(waited_ms) >= 4 * LIMIT.as_millis() => {}
            Err(error) => {
                _ = busy.kill();
                panic!("stop {round}: {error}");
            }
        }
    }
    busy.kill().and_then(|()| busy.wait()).unwrap();
    if let Err(error) = added {
        eprintln!("SKIPPED: it cannot be put into a control group: {error}");
    }
}
