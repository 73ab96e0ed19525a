//! The tracer dies while a signal is on its way through it: the process gets the signal nevertheless. The end of the tracing
//! thread is what the death of the tracer is to its tracees.

mod common;

use common::Target;
use restitch_address::{Avma, AvmaRange};
use restitch_tracee::{Children, FollowEvent, Followed, Stopped};
use std::time::Duration;

/// The program counts its signals and says at its end whether one is missing.
const SIGNALS: &str = "40000";

fn everything() -> Vec<AvmaRange> {
    vec![AvmaRange::between(Avma::new(0), Avma::new(u64::MAX))]
}

/// Follows the threads of `pid` until a signal is caught, and ends without resuming that thread; whether there was one.
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

#[test]
fn a_caught_signal_outlives_the_tracer() {
    let Some(target) = Target::start("signals", &[SIGNALS]) else { return };
    let pid = target.pid();
    let mut caught = 0;
    while !target.is_done() && caught < 500 {
        caught += i32::from(std::thread::spawn(move || dies_with_a_caught_signal(pid)).join().unwrap());
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
