//! A state directory that takes nothing any more in the middle: the process gets its original code back all
//! the same, also by a later `revert`.

mod common;

use common::{PATIENCE, Target, code, look, stoppable};
use restitch_testkit::{Guarded, TempDir, require, scratch, wait_until};
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
