//! What the tests of the command share: the command with a state directory of its own, test programs that run
//! until they are told to end, and looks at a process from outside that owe nothing to restitch's own code.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part of this module")]

pub mod batching;
pub mod look;
pub mod moving;
pub mod oracle;
pub mod target;

#[allow(unused_imports, reason = "each test binary uses its part of this module")]
pub use target::{Target, linked, stoppable};

use restitch_testkit::{Finished, TempDir, wait_until};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a command may take on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A library whose numbers FIRST and SECOND are given when it is compiled: two such libraries are of the same
/// size, and have functions at the same places that do different things.
pub const LIBRARY: &str = "
static int table[16];
__attribute__((noinline)) static int one(int x, int i) {
    switch ((x ^ i) & 7) {
    case 0: return x + FIRST;
    case 1: return x * 3 + SECOND;
    case 2: return x ^ (i * SECOND);
    case 3: table[i & 15] += x; return x - FIRST;
    case 4: return x + table[x & 15];
    default: return x * 5 + i * FIRST;
    }
}
int work(int n) {
    int x = SECOND;
    for (int i = 0; i < n; i++) x = one(x, i) & 0xffffff;
    for (int i = 0; i < 16; i++) table[i] = 0;
    return x;
}
";

/// The documented exit codes.
pub mod code {
    pub const DONE: i32 = 0;
    pub const FAILURE: i32 = 1;
    pub const USAGE: i32 = 2;
    pub const BAD_INPUT: i32 = 3;
    pub const VANISHED: i32 = 4;
    pub const NOT_PERMITTED: i32 = 5;
    pub const REFUSED: i32 = 6;
    pub const NOTHING_TO_DO: i32 = 7;
    pub const TAKEN_BACK: i32 = 8;
    pub const NOT_STARTED: i32 = 126;
    pub const NOT_FOUND: i32 = 127;
    pub const INTERRUPTED: i32 = 130;
    pub const TERMINATED: i32 = 143;
}

/// The command, with a state directory that nobody else uses.
pub struct Restitch {
    state: TempDir,
}

impl Restitch {
    pub fn new() -> Self {
        Self { state: restitch_testkit::scratch() }
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// The command with `arguments`, not started yet.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.args(arguments).env("RESTITCH_STATE_DIR", self.state.path());
        command
    }

    /// Runs it to its end. Whatever it was given, it must not panic.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        finish(&mut self.command(arguments))
    }

    /// `attach` in its shortest form, with `more` options. A target that got too little time of a busy
    /// machine is watched again, longer.
    #[track_caller]
    pub fn attach(&self, pid: u32, more: &[&str]) -> Finished {
        let pid = pid.to_string();
        with_time(["1", "3", "10"], |duration| {
            let mut arguments = vec!["attach", &pid, "--duration", duration, "--measure", "0"];
            arguments.extend(more);
            self.command(&arguments)
        })
    }

    /// `revert`, again and again until no version stays mapped or `tries` are used up. The last output.
    #[track_caller]
    pub fn revert(&self, pid: u32) -> Finished {
        self.run(&["revert", &pid.to_string()])
    }

    #[track_caller]
    pub fn status(&self, pid: u32) -> Finished {
        self.run(&["status", &pid.to_string()])
    }

    /// Journals in the state directory.
    pub fn journals(&self) -> Vec<PathBuf> {
        self.files().into_iter().filter(|p| p.extension() == Some(OsStr::new("json"))).collect()
    }

    /// Everything in the state directory but what is kept for core files.
    pub fn files(&self) -> Vec<PathBuf> {
        let all = self.all_files();
        let is_kept = |path: &PathBuf| all.contains(&path.with_extension("restitch-ended"));
        all.iter().filter(|path| !is_kept(path)).cloned().collect()
    }

    /// Asserts that no files stay. They go with the last process that has them mapped: children that were
    /// forked while there was a version live a little longer than it.
    #[track_caller]
    pub fn assert_no_files(&self, when: &str) {
        wait_until(PATIENCE, || {
            self.files().is_empty().then_some(()).or_else(|| {
                self.run(&["status"]);
                None
            })
        });
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "{when}: files stay");
    }

    /// Everything in the state directory but the file for locks, which stays.
    pub fn all_files(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.state()).into_iter().flatten().flatten().map(|e| e.path());
        let mut out: Vec<PathBuf> = all.filter(|path| path.file_name() != Some(OsStr::new("lock"))).collect();
        out.sort();
        out
    }
}

/// Runs the `command` for a number of seconds to its end, with more of them as long as the target got too
/// little time of a busy machine.
#[track_caller]
pub fn with_time<'s>(
    seconds: impl IntoIterator<Item = &'s str>,
    command: impl Fn(&'s str) -> Command,
) -> Finished {
    let mut last = None;
    for seconds in seconds {
        let finished = finish(&mut command(seconds));
        if finished.status.code() != Some(code::NOTHING_TO_DO) {
            return finished;
        }
        last = Some(finished);
    }
    last.expect("it ran")
}

/// Runs a command of restitch to its end; it must end in an orderly way.
#[track_caller]
pub fn finish(command: &mut Command) -> Finished {
    let finished = restitch_testkit::run(command, PATIENCE);
    let told = format!("{command:?}: {}\n{}\n{}", finished.status, finished.stdout, finished.stderr);
    assert!(finished.status.code().is_some_and(|c| c != 101), "it was killed or panicked: {told}");
    assert!(!finished.stderr.contains("panicked at"), "{told}");
    finished
}

/// `inner`, to be started with other `settings` of its signals (options of `env`).
pub fn with_signals(settings: &[&str], inner: &Command) -> Command {
    let mut outer = Command::new("env");
    outer.args(settings).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        outer.env(name, value.expect("set"));
    }
    outer
}

/// Asserts the exit code and that the message names each of `words`.
#[track_caller]
pub fn expect_message(finished: &Finished, code: i32, words: &[&str]) {
    finished.expect(code);
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is missing in the message: {}", finished.stderr);
    }
}

/// A repeatable source of random numbers (xorshift64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

/// Reverts the processes of a tree again and again until `is_done`, which gets what was printed; what was
/// printed last.
#[track_caller]
pub fn revert_tree_until(
    restitch: &Restitch,
    pid: impl ToString,
    mut is_done: impl FnMut(&str) -> bool,
) -> String {
    let pid = pid.to_string();
    let mut last = String::new();
    let reverted = wait_until(PATIENCE, || {
        let finished = restitch.run(&["revert", &pid, "--tree"]);
        // A keeper that gets no processor for long.
        if finished.stderr.contains("another restitch is at work on it") {
            return None;
        }
        assert!(
            matches!(finished.status.code(), Some(code::DONE | code::NOTHING_TO_DO)),
            "{}",
            finished.stderr
        );
        last = finished.stdout;
        is_done(&last).then_some(())
    });
    assert!(reverted.is_some(), "{last}");
    last
}
