//! A state directory that takes nothing any more in the middle: the process gets its original code back all
//! the same, also by a later `revert`. A result that cannot be written hides nothing of what is done.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, look, stoppable};
use restitch_testkit::{Guarded, SUCCESS, TempDir, compile, program, require, scratch, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small file system of its own at `state`, gone when this is dropped.
struct Small {
    _folder: TempDir,
    state: PathBuf,
}

impl Small {
    /// `None`, with a message, where nothing may be mounted.
    fn mount() -> Option<Self> {
        let folder = scratch();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let mounted = mount(&["-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs"], &state);
        if !mounted {
            restitch_testkit::unsupported("file systems may not be mounted here (not root?)");
            return None;
        }
        Some(Self { _folder: folder, state })
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.state.join("filler")).unwrap();
        let zeros = vec![0; 4096];
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
    }

    /// By a mount over it: the file system itself has a file that is open for writing, the lock of the
    /// restitch that is at work.
    fn make_read_only(&self) {
        let path = self.state.to_str().expect("a plain name");
        assert!(mount(&["--bind", path], &self.state) && mount(&["-o", "remount,bind,ro"], &self.state));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.args(arguments).env("RESTITCH_STATE_DIR", &self.state);
        command
    }

    fn run(&self, arguments: &[&str]) -> restitch_testkit::Finished {
        common::finish(&mut self.command(arguments))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // One, and perhaps another one over it.
        for _ in 0..2 {
            let _ = Command::new("umount").arg("-l").arg(&self.state).stderr(Stdio::null()).status();
        }
    }
}

fn mount(how: &[&str], at: &Path) -> bool {
    let status = Command::new("mount").args(how).arg(at).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

type Spoil = fn(&Small);

/// What can happen to a state directory.
const WAYS: [(&str, Spoil); 2] = [("full", Small::fill), ("read-only", Small::make_read_only)];

fn version_is(small: &Small, target: &Target, kind: &str) {
    let pid = target.pid().to_string();
    let is_there = || {
        let said = small.run(&["status", &pid]).stdout;
        (said.contains(&format!(": {kind},")) && !look::differences(target.pid()).is_empty()).then_some(())
    };
    wait_until(PATIENCE, is_there).expect("a version comes");
}

#[track_caller]
fn assert_original(small: &Small, target: &mut Target, when: &str) {
    assert_eq!(look::differences_but_hook(target.pid()), [], "{when}");
    target.assert_computing(when);
    // What is mapped still goes, without room as well.
    let pid = target.pid().to_string();
    let gone = wait_until(PATIENCE, || {
        look::ours(target.pid()).is_empty().then_some(()).or_else(|| {
            small.run(&["revert", &pid]);
            None
        })
    });
    assert!(gone.is_some(), "{when}: versions stay");
    target.assert_untouched(when);
    let status = small.run(&["status", &pid]);
    status.expect(code::DONE);
    assert!(status.stdout.contains("original code"), "{when}: {}", status.stdout);
}

#[test]
fn an_attach_whose_state_directory_fills_up_gives_the_code_back() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    for (way, spoil) in WAYS {
        let Some(small) = Small::mount() else { return };
        let mut target = Target::start(&program);
        let pid = target.pid().to_string();
        let mut command = small.command(&["attach", &pid, "--duration", "45", "--measure", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut working = Guarded::spawn(&mut command).unwrap();
        version_is(&small, &target, "counting");
        spoil(&small);
        let mut stderr = String::new();
        std::io::Read::read_to_string(working.child().stderr.as_mut().unwrap(), &mut stderr).unwrap();
        let status = working.wait_within(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(code::FAILURE), "{way}: {stderr}");
        let place = small.state.to_str().unwrap();
        assert!(stderr.contains(place), "{way}: {stderr}");
        assert_original(&small, &mut target, way);
        target.stop();
    }
}

/// Of what restitch was started with, not of the process.
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let pid = target.pid().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_restitch")]);
    command.args(["attach", &pid, "--duration", "1", "--measure", "0"]);
    command.env("RESTITCH_STATE_DIR", restitch.state()).stdout(Stdio::piped());
    let failed = common::finish(&mut command);
    expect_message(&failed, code::FAILURE, &["File too large"]);
    target.assert_untouched("after a failure");
    assert!(restitch.journals().is_empty(), "{:?}", restitch.journals());
    target.stop();
}

#[test]
fn a_layout_is_taken_out_without_room() {
    let program = require!(stoppable("throw.cc", &["-O2"]), "g++");
    for (way, spoil) in WAYS {
        let Some(small) = Small::mount() else { return };
        let mut target = Target::start(&program);
        let pid = target.pid().to_string();
        small.run(&["attach", &pid, "--duration", "2", "--measure", "0"]).expect(code::DONE);
        spoil(&small);
        small.run(&["revert", &pid]).expect(code::DONE);
        assert_original(&small, &mut target, way);
        // Nothing new comes into it, and it is as it was.
        let refused = small.run(&["attach", &pid, "--duration", "2", "--measure", "0"]);
        refused.expect(code::FAILURE);
        assert_original(&small, &mut target, way);
        target.stop();
    }
}

/// Can be opened, and not be written.
const FULL: &str = "/dev/full";

#[test]
fn a_layout_whose_result_cannot_be_written_is_active_and_said_to_be() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let undo = format!("`restitch revert {}`", target.pid());
    for option in ["--json", "--html"] {
        let done = restitch.attach(target.pid(), &[option, FULL]);
        expect_message(&done, code::FAILURE, &[FULL, "No space left", "active all the same", &undo]);
        assert!(!done.stdout.is_empty(), "the result is printed");
        assert!(!look::differences(target.pid()).is_empty(), "{}", done.stderr);
        target.assert_goes_back(&restitch);
    }
    target.stop();
}

#[test]
fn a_session_that_cannot_write_its_result_goes_on() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let said = restitch.state().join("said");
    let pid = target.pid().to_string();
    let how = ["attach", &pid, "--continuous", "--rest", "0", "--measure", "0", "--json", FULL];
    let mut command = restitch.command(&how);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
    let mut session = Guarded::spawn(&mut command).unwrap();
    let text = || std::fs::read_to_string(&said).unwrap();
    let told = || text().contains("the session goes on").then_some(());
    wait_until(PATIENCE, told).unwrap_or_else(|| panic!("{}", text()));
    assert!(session.is_running() && !look::differences(target.pid()).is_empty(), "{}", text());
    assert!(Command::new("kill").args(["-TERM", &session.pid().to_string()]).status().unwrap().success());
    let status = session.wait_within(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(code::TERMINATED), "{}", text());
    assert!(text().contains(&format!("`restitch revert {pid}`")), "{}", text());
    assert_eq!(text().matches("the session goes on").count(), 1, "{}", text());
    target.assert_goes_back(&restitch);
    target.stop();
}

#[test]
fn files_that_are_written_are_said_to_be_if_the_result_is_not() {
    let original = require!(compile(&program("switch.c"), &["-O2"]).ok(), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (original, profile) = (original.to_str().unwrap(), path("profile"));
    // Its own exit code says more.
    let recorded = restitch.run(&["record", "-o", &profile, "--json", FULL, "--", original]);
    expect_message(&recorded, SUCCESS, &[FULL, &format!("{profile} is written all the same")]);
    let (output, counting, counts) = (path("output"), path("counting"), path("counts"));
    let optimize = ["optimize", original, "--profile", &profile, "-o", &output, "--json", FULL];
    let instrument = ["instrument", original, "-o", &counting, "--counts", &counts, "--json", FULL];
    for (arguments, output) in [(optimize, &output), (instrument, &counting)] {
        let done = restitch.run(&arguments);
        expect_message(&done, code::FAILURE, &[FULL, &format!("{output} is written all the same")]);
        restitch_testkit::run(&mut Command::new(output), PATIENCE).expect(SUCCESS);
    }
}
