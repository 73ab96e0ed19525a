//! Coroutines, whose return addresses lie on stacks that no thread is on, under attach and revert again and
//! again.
//!
//! `RESTITCH_CYCLES` sets how often (default 12).

mod common;

use common::{Restitch, Target, code, look, stoppable};

fn rounds() -> u32 {
    std::env::var("RESTITCH_CYCLES").ok().and_then(|v| v.parse().ok()).unwrap_or(12)
}

/// Cycles, with the versions that stay mapped told; the target's checks go on all the time.
fn cycles(flags: &[&str]) {
    let Some(program) = stoppable("coroutine.c", flags) else { return };
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    target.name = format!("coroutine.c {}", flags.join(" "));
    let pid = target.pid();
    for round in 1..=rounds() {
        let attached = restitch.attach(pid, &[]);
        target.assert_computing(&format!("after attach {round}: {}\n{}", attached.stdout, attached.stderr));
        attached.expect(code::DONE);
        for _ in 0..3 {
            let reverted = restitch.revert(pid);
            target.assert_computing(&format!("after revert {round}: {}", reverted.stdout));
            assert!(matches!(reverted.status.code(), Some(code::DONE | code::NOTHING_TO_DO)));
            assert_eq!(look::differences_but_hook(pid), [], "{} after revert {round}", target.name);
        }
    }
    target.stop();
}

#[test]
fn coroutines_come_back_to_mapped_code() {
    cycles(&["-O2"]);
}

#[test]
fn coroutines_of_static_programs_come_back_to_mapped_code() {
    cycles(&["-O1", "-static"]);
}

#[test]
fn coroutines_whose_stacks_are_closed_while_they_rest_come_back_to_mapped_code() {
    cycles(&["-O2", "-DRESTING"]);
}
