//! The tracer dies while a signal is on its way through it: the process gets the signal nevertheless. The end
//! of the tracing thread is what the death of the tracer is to its tracees.

mod common;

use common::{Target, compile};
use restitch_address::{Avma, AvmaRange};
use restitch_tracee::{Children, FollowEvent, Followed, LaunchOptions, Stopped, TraceEvent, TraceEvents};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program counts its signals and says at its end whether one is missing.
const SIGNALS: &str = "40000";

fn everything() -> Vec<AvmaRange> {
    vec![AvmaRange::between(Avma::new(0), Avma::new(u64::MAX))]
}

/// Follows the threads of `pid` until a signal is caught, and ends without resuming that thread; whether
/// there was one.
fn dies_with_a_caught_signal(pid: i32) -> bool {
    let mut followed = match Followed::seize(pid, libc::SIGURG, Children::Leave) {
        Ok(followed) => followed,
        Err(error) if error.is_gone() => return false,
        Err(error) => panic!("{error}"),
    };
    followed.hold_signals_in(everything());
    loop {
        match followed.next_event(Duration::from_millis(500)).unwrap() {
            Some(FollowEvent::Caught { .. }) => return true,
            Some(FollowEvent::Started { tid }) => followed.resume(tid).unwrap(),
            Some(FollowEvent::Exited { .. }) | None => return false,
            Some(_) => {}
        }
    }
}

/// A thread can be joined a little before the kernel lets its tracees go.
fn await_end_of_tracing(pid: i32) {
    let is_free = |status: String| !status.contains("TracerPid:") || status.contains("TracerPid:\t0\n");
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let start = Instant::now();
    while !tasks().all(|t| is_free(std::fs::read_to_string(t.path().join("status")).unwrap_or_default())) {
        assert!(start.elapsed() < Duration::from_secs(30), "it stays traced");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_caught_signal_outlives_the_tracer() {
    let Some(target) = Target::start("signals", &[SIGNALS]) else { return };
    let pid = target.pid();
    let mut caught = 0;
    while !target.is_done() && caught < 500 {
        caught += i32::from(std::thread::spawn(move || dies_with_a_caught_signal(pid)).join().unwrap());
        await_end_of_tracing(pid);
    }
    assert!(caught > 0, "no signal was caught, the test tested nothing");
    println!("{caught} deaths");
    target.assert_ok();
}

/// A signal that is caught and not resumed at once is reported once; resumed later, it is delivered.
#[test]
fn a_caught_signal_is_reported_once() {
    let Some(target) = Target::start("signals", &["4000"]) else { return };
    let pid = target.pid();
    let follow = move || {
        let mut followed = Followed::seize(pid, libc::SIGURG, Children::Leave).unwrap();
        followed.hold_signals_in(everything());
        let mut waiting: Vec<(i32, i32)> = Vec::new();
        for _ in 0..2000 {
            match followed.next_event(Duration::from_millis(20)).unwrap() {
                Some(FollowEvent::Caught { tid, signal }) => {
                    assert!(waiting.iter().all(|&(other, _)| other != tid), "reported twice");
                    waiting.push((tid, signal));
                }
                Some(FollowEvent::Started { tid }) => followed.resume(tid).unwrap(),
                Some(FollowEvent::Exited { .. }) => return,
                // All that may get signals are held.
                Some(_) | None => {}
            }
            if waiting.len() > 2 {
                let (tid, signal) = waiting.remove(0);
                followed.resume_with(tid, signal).unwrap();
            }
        }
        for (tid, signal) in waiting {
            followed.resume_with(tid, signal).unwrap();
        }
    };
    std::thread::spawn(follow).join().unwrap();
    target.assert_ok();
}

/// What an event of ours does: bytes that come in on the socket send SIGURG to thread `tid`.
fn alarm(tid: i32) -> (UnixStream, UnixStream) {
    const F_SETOWN_EX: libc::c_int = 15;
    const F_SETSIG: libc::c_int = 10;
    let (alarmed, sender) = UnixStream::pair().unwrap();
    // F_OWNER_TID and the thread's number.
    let owner = [0, tid];
    // SAFETY: `fcntl` on an open descriptor; the first call reads the live local `owner`, the others take
    // numbers.
    let results = unsafe {
        let fd = alarmed.as_raw_fd();
        [
            libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()),
            libc::fcntl(fd, F_SETSIG, libc::SIGURG),
            libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC),
        ]
    };
    assert_eq!(results, [0; 3]);
    (alarmed, sender)
}

/// The stop of an alarm is looked at only. A thread that stays held in it is reported once nevertheless, and
/// one that is resumed goes on where its registers say, whatever happens to others meanwhile.
#[test]
fn an_alarm_is_reported_once() {
    let Some(target) = Target::start("signals", &["4000"]) else { return };
    let pid = target.pid();
    let follow = move || {
        let mut followed = Followed::seize(pid, libc::SIGURG, Children::Leave).unwrap();
        let (alarmed, mut sender) = alarm(pid);
        for round in 0..50 {
            sender.write_all(b"!").unwrap();
            let (mut held, mut others) = (None, 0);
            let limit = |held: &Option<i32>| Duration::from_millis(if held.is_some() { 5 } else { 2000 });
            while let Some(event) = followed.next_event(limit(&held)).unwrap() {
                match event {
                    FollowEvent::Notified { tid, number } => {
                        assert_eq!((held, tid, number), (None, pid, alarmed.as_raw_fd()), "round {round}");
                        held = Some(tid);
                    }
                    FollowEvent::Started { tid } => followed.resume(tid).unwrap(),
                    FollowEvent::Exited { .. } => return round,
                    _ => others += 1,
                }
                if held.is_some() && others > 20 {
                    break;
                }
            }
            let tid = held.unwrap_or_else(|| panic!("round {round}: no alarm"));
            let registers = followed.registers(tid).unwrap();
            assert_eq!(followed.registers(tid).unwrap(), registers);
            followed.set_registers(tid, &registers).unwrap();
            assert_eq!(followed.registers(tid).unwrap(), registers, "read again");
            followed.resume(tid).unwrap();
            assert!(followed.registers(tid).is_err(), "a running thread's registers are not known");
        }
        50
    };
    let rounds = std::thread::spawn(follow).join().unwrap();
    assert!(rounds > 0, "the program ended before the first alarm");
    target.assert_ok();
}

#[test]
fn a_signal_met_by_a_stop_outlives_the_tracer() {
    let Some(target) = Target::start("signals", &[SIGNALS]) else { return };
    let pid = target.pid();
    let mut met = 0;
    for _ in 0..20_000 {
        if target.is_done() || met >= 100 {
            break;
        }
        let stop = move || match Stopped::seize_all(pid) {
            Ok(stopped) => {
                let held = |tid: &i32| stopped.held_signal(*tid).unwrap().is_some();
                let met = stopped.threads().filter(held).count();
                // Dying releases nothing.
                std::mem::forget(stopped);
                met
            }
            Err(error) if error.is_gone() => 0,
            Err(error) => panic!("{error}"),
        };
        met += std::thread::spawn(stop).join().unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(met > 0, "no stop met a signal on its way, the test tested nothing");
    println!("{met} signals met");
    target.assert_ok();
}

/// Starts the program as a tracee, stops it until a stop meets a signal on its way, and dies with it in hand:
/// its number, and how many were met.
fn starts_it_and_dies(program: &Path, output: &Path) -> (i32, usize) {
    let mut command = Command::new(program);
    command.arg("8000").stdin(Stdio::null()).stdout(std::fs::File::create(output).unwrap());
    let mut events = TraceEvents::spawn(command, LaunchOptions::default()).unwrap();
    let pid = events.root().pid;
    loop {
        match events.next_event(Duration::from_millis(1)).unwrap() {
            Some(TraceEvent::Exec(stopped)) => drop(stopped.resume()),
            Some(TraceEvent::Exited { .. }) => return (pid, 0),
            Some(_) => {}
            None => match events.stop(pid, Duration::from_secs(120)) {
                Ok(stopped) => {
                    let held = |tid: &i32| stopped.held_signal(*tid).unwrap().is_some();
                    let met = stopped.threads().filter(held).count();
                    if met == 0 {
                        stopped.resume();
                        continue;
                    }
                    std::mem::forget((stopped, events));
                    return (pid, met);
                }
                Err(error) if error.is_gone() => return (pid, 0),
                Err(error) => panic!("{error}"),
            },
        }
    }
}

#[test]
fn a_signal_met_by_a_stop_of_a_followed_command_outlives_the_tracer() {
    const LIMIT: Duration = Duration::from_secs(120);
    let Some(program) = compile("signals") else { return };
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("followed-{}", std::process::id()));
    let mut met = 0;
    for _ in 0..12 {
        let (program, written) = (program.clone(), output.clone());
        let (pid, number) =
            std::thread::spawn(move || starts_it_and_dies(&program, &written)).join().unwrap();
        met += number;
        let begun = Instant::now();
        let end = loop {
            let text = std::fs::read_to_string(&output).unwrap();
            if let Some(last) = text.lines().last().filter(|last| !last.starts_with("ready")) {
                break last.to_owned();
            }
            if begun.elapsed() > LIMIT {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
                panic!("it does not end: signals are missing");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(end, "ok");
    }
    let _ = (std::fs::remove_file(&program), std::fs::remove_file(&output));
    assert!(met > 0, "no stop met a signal on its way, the test tested nothing");
    println!("{met} signals met");
}
