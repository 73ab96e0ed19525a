//! A user who may have no more threads (`ulimit -u`): what needs one does without, or says so.

mod common;

use common::target::stoppable;
use common::{PATIENCE, Restitch, code, finish};
use restitch_testkit::{
    Finished, Guarded, TempDir, copy_program, find_program, require, scratch, wait_until,
};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A user who has no other processes.
const USER: u32 = 61_735;

/// Restitch as that user, and a folder of the user's own.
struct OtherUser {
    folder: TempDir,
    prlimit: PathBuf,
}

impl OtherUser {
    fn new(prlimit: PathBuf) -> Self {
        let folder = scratch();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).expect("our own");
        let user = Self { folder, prlimit };
        user.gets(Path::new(env!("CARGO_BIN_EXE_restitch")), "restitch");
        chown(user.folder.path(), Some(USER), Some(USER)).expect("root may");
        user
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn gets(&self, file: &Path, name: &str) {
        copy_program(file, &self.at(name)).expect("room for a copy");
        chown(self.at(name), Some(USER), Some(USER)).expect("root may");
    }

    /// The command by a user who may have so many threads.
    fn with(&self, most: u32, arguments: &[&str]) -> Finished {
        let mut command = Command::new(&self.prlimit);
        command.arg(format!("--nproc={most}")).arg(self.at("restitch")).args(arguments);
        command.env("RESTITCH_STATE_DIR", self.at("state")).env("RESTITCH_CACHE_DIR", self.at("cache"));
        finish(command.current_dir(self.folder.path()).uid(USER).gid(USER))
    }

    /// It ends with a code of the list, and without a panic, whatever it comes to.
    fn is_orderly(&self, most: u32, arguments: &[&str]) -> i32 {
        let done = self.with(most, arguments);
        let said = format!("{arguments:?} with {most}: {:?}\n{}\n{}", done.status, done.stdout, done.stderr);
        assert!(!done.stderr.contains("panicked"), "{said}");
        let ended = done.status.code().filter(|code| (0..=9).contains(code) || (126..128).contains(code));
        ended.unwrap_or_else(|| panic!("{said}"))
    }
}

#[test]
fn who_may_have_no_more_threads_is_served_or_told() {
    if !std::fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0) {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let prlimit = require!(find_program("prlimit"), "prlimit");
    let program = require!(stoppable("switch.c", &["-O2"]), "a compiler");
    let user = OtherUser::new(prlimit);
    user.gets(&program, "program");
    let recording = Restitch::new();
    let mut record = recording.command(&["record", "-o"]);
    record.arg(user.at("profile")).arg("--").arg(&program);
    finish(&mut record);
    chown(user.at("profile"), Some(USER), Some(USER)).expect("root may");
    let mut command = Command::new(user.at("program"));
    command.args(["--seconds", "600"]).stdin(Stdio::null()).stdout(Stdio::null()).uid(USER).gid(USER);
    let process = Guarded::spawn(&mut command).expect("started");
    let executes = || {
        std::fs::read_link(format!("/proc/{}/exe", process.pid())).is_ok_and(|exe| exe == user.at("program"))
    };
    assert!(wait_until(PATIENCE, || executes().then_some(())).is_some());
    let pid = process.pid().to_string();
    for most in 1..=8 {
        user.is_orderly(most, &["optimize", "program", "--profile", "profile", "-o", "faster"]);
        user.is_orderly(most, &["batch", "--", "/bin/true"]);
        let attach = ["attach", &pid, "--profile", "profile", "--measure", "0"];
        user.is_orderly(most, &attach);
        user.is_orderly(most, &["attach", &pid, "--duration", "1", "--measure", "0"]);
        user.is_orderly(most, &["status", &pid]);
    }
    // With enough of them all goes well, so that is what the others lacked.
    user.with(1000, &["attach", &pid, "--profile", "profile", "--measure", "0"]).expect(code::DONE);
    user.with(1000, &["revert", &pid]).expect(code::DONE);
}
