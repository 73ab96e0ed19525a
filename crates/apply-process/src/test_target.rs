//! A running program for tests of what is looked up in a process.

use crate::target::Target;
use restitch_testkit::{Guarded, compile, program, skipped, wait_until};
use std::time::Duration;

/// `source` of tests/programs, started, once the loader has mapped its libraries. `None`, with a message,
/// where there is no compiler.
pub(crate) fn running(source: &str) -> Option<(Guarded, Target)> {
    let Ok(path) = compile(&program(source), &["-O1"]) else {
        skipped("there is no C compiler");
        return None;
    };
    let process = Guarded::start(&path, &["--seconds", "600"]).expect("it starts");
    let open = || Target::open(process.pid() as i32).ok().filter(|target| target.modules.len() > 1);
    let target = wait_until(Duration::from_secs(120), open).expect("it runs");
    Some((process, target))
}
