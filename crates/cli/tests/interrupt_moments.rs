//! restitch asked to end at a certain system call of its main thread, by whom a process or a terminal
//! signals: whatever it was at, it ends as asked, and so does its command.
//!
//! `strace` stops it there; it gets the signal while it stands, so nothing depends on time.
//! `RESTITCH_MOMENTS` sets how many moments of each command are tried.

mod common;

use common::{PATIENCE, Restitch, Target, code, look, stoppable};
use restitch_testkit::{Guarded, compile_with, find_program, require, scratch, wait_until};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Makes the file that its argument names, and waits. Small, so that its analysis takes no time.
const WAITS: &str = r#"
static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
__attribute__((used, noreturn)) static void begin(long *stack) {
    call(2, stack[2], 0101, 0600);
    for (;;) call(34, 0, 0, 0);
}
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
"#;

/// A library in whose constructor the program stays, while its loader is at work.
const STAYS: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void stay(void) {
    const char *ready = getenv("RESTITCH_TEST_READY");
    if (!ready) return;
    close(open(ready, O_CREAT | O_WRONLY, 0600));
    for (;;) pause();
}
int library(void) { return 3; }
"#;

/// Runs a command in a terminal of its own: what it reads is typed there.
const TERMINAL: &str = r#"
import os, pty, select, sys
command, terminal = pty.fork()
if command == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
inputs = [terminal, 0]
while terminal in inputs:
    for source in select.select(inputs, [], [])[0]:
        try:
            data = os.read(source, 4096)
        except OSError:
            data = b""
        if not data:
            inputs.remove(source)
        else:
            os.write(1 if source == terminal else terminal, data)
status = os.waitpid(command, 0)[1]
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
"#;

/// In the environment of everything that a restitch under test starts: its folder.
const MARK: &str = "RESTITCH_TEST_FOLDER";

fn built(folder: &Path, name: &str, text: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = folder.join(name);
    std::fs::write(&source, text).expect("writable");
    compile_with("gcc", &source, flags).ok()
}

/// A system call of the main thread: which one, and the how manieth of its name.
type Moment = (String, usize);

/// Who sends the signal.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// `kill`, to restitch alone.
    Process(&'static str, i32),
    /// ^C, to all that run in the terminal.
    Terminal,
}

impl By {
    fn number(self) -> i32 {
        match self {
            Self::Process(_, number) => number,
            Self::Terminal => 2,
        }
    }
}

const ALL: [By; 4] = [By::Process("TERM", 15), By::Process("INT", 2), By::Process("HUP", 1), By::Terminal];

/// Whether those who have started the tests have restitch ignore a signal.
fn is_ignored(by: By) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).expect("in every kernel").trim();
    u64::from_str_radix(ignored, 16).expect("a mask") & 1 << (by.number() - 1) != 0
}

/// A restitch under strace, in a terminal if ^C is to end it.
struct Session {
    process: Guarded,
    by: By,
    folder: PathBuf,
}

impl Session {
    /// `stop`: where it is stopped, if anywhere. Its system calls are in `log`.
    fn start(restitch: &Restitch, arguments: &[&str], by: By, folder: &Path, stop: Option<&Moment>) -> Self {
        let log = folder.join("log");
        // The tracer is a process and a group of its own: what is started is restitch itself.
        let mut words: Vec<String> =
            ["strace", "-DD", "-I4", "-qq", "-o", log.to_str().expect("text")].map(String::from).into();
        if let Some((call, number)) = stop {
            words.extend(["-e".into(), format!("inject={call}:signal=STOP:when={number}")]);
        }
        words.push(env!("CARGO_BIN_EXE_restitch").into());
        words.extend(arguments.iter().map(|word| word.to_string()));
        let mut command = match by {
            By::Process(..) => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).stdin(Stdio::null());
                command
            }
            By::Terminal => {
                let mut command = Command::new("python3");
                command.args(["-c", TERMINAL]).args(&words).stdin(Stdio::piped());
                command
            }
        };
        let said = std::fs::File::create(folder.join("said")).expect("writable");
        command.env("RESTITCH_STATE_DIR", restitch.state()).env("RESTITCH_CACHE_DIR", folder.join("cache"));
        command.env(MARK, folder).stdout(said.try_clone().expect("a copy")).stderr(said);
        let process = Guarded::spawn(&mut command).expect("strace and python3 are there");
        Self { process, by, folder: folder.into() }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.join("said")).unwrap_or_default()).into_owned()
    }

    /// restitch's number, once it runs.
    fn pid(&self) -> Option<u32> {
        let own = self.process.pid();
        let all = match self.by {
            By::Process(..) => vec![own],
            By::Terminal => {
                let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
                children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
            }
        };
        all.into_iter().find(|pid| {
            std::fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_restitch")))
        })
    }

    /// Whether it came to the place where it is to be stopped.
    fn is_stopped(&self) -> bool {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).contains("--- stopped by SIGSTOP")
    }

    /// Waits until it is stopped, or until `is_late`. Whether it is.
    fn await_stop(&mut self, is_late: &dyn Fn() -> bool) -> bool {
        let stopped = wait_until(PATIENCE, || {
            let is_stopped = self.is_stopped();
            let is_over = is_late() || !self.process.is_running();
            (is_stopped || is_over).then_some(is_stopped)
        });
        stopped.unwrap_or_else(|| panic!("neither stopped nor done: {}", self.said()))
    }

    /// Sends the signal, and lets it go on if it `stands`.
    fn ask(&mut self, stands: bool) {
        match self.by {
            By::Process(name, _) => signal(name, self.process.pid()),
            By::Terminal => {
                let terminal = self.process.child().stdin.as_mut().expect("a pipe");
                // An error: it has ended before.
                let _ = terminal.write_all(b"\x03").and_then(|()| terminal.flush());
                let pid = self.pid();
                let has_it = || {
                    let status = std::fs::read_to_string(format!("/proc/{}/status", pid?)).ok()?;
                    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?.trim();
                    (u64::from_str_radix(pending, 16).ok()? & 2 != 0).then_some(())
                };
                if stands {
                    wait_until(PATIENCE, has_it).expect("^C reaches it");
                }
            }
        }
        if let Some(pid) = self.pid().filter(|_| stands) {
            signal("CONT", pid);
        }
    }

    /// Its end.
    fn end(mut self, when: &str) -> (ExitStatus, String) {
        let status = wait_until(PATIENCE, || {
            // It may come to the place where it is to be stopped after it has got the signal.
            if let Some(pid) = self.pid().filter(|_| self.is_stopped()) {
                signal("CONT", pid);
            }
            self.process.wait_within(Duration::ZERO)
        });
        let status = status.unwrap_or_else(|| panic!("{when}: it does not end: {}", self.said()));
        (status, self.said())
    }
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// As a shell gives it.
fn as_shell(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

/// Processes that a restitch in `folder` has started and that are there still.
fn left(folder: &Path) -> Vec<String> {
    let mark = format!("{MARK}={}", folder.display());
    let all = std::fs::read_dir("/proc").expect("it is there").flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|word| word == mark.as_bytes())
    };
    let line = |path: PathBuf| std::fs::read(path.join("cmdline")).unwrap_or_default();
    all.filter(is_ours).map(line).map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

/// The system calls of a log up to the signal that ended what it is of.
fn moments(log: &Path) -> Vec<Moment> {
    let text = String::from_utf8_lossy(&std::fs::read(log).expect("a log")).into_owned();
    let mut counts = BTreeMap::new();
    let before = text.lines().take_while(|line| !line.starts_with("--- SIGTERM"));
    let call = |line: &str| {
        let (name, _) = line.split_once('(')?;
        let number = counts.entry(name.to_owned()).or_insert(0);
        *number += 1;
        name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_').then(|| (name.to_owned(), *number))
    };
    before.filter_map(call).filter(|(name, _)| name != "execve" && name != "rt_sigreturn").collect()
}

/// Some of them: those around the command's start, and others all along.
fn some(moments: &[Moment]) -> Vec<Moment> {
    let wanted = std::env::var("RESTITCH_MOMENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let starts = |(name, _): &&Moment| ["clone", "clone3", "vfork", "fork", "pidfd_open"].contains(&&**name);
    let step = (moments.len() / wanted).max(1);
    let mut all: Vec<Moment> = moments.iter().filter(starts).rev().take(wanted).cloned().collect();
    all.extend(moments.iter().step_by(step).cloned());
    all
}

fn has_tools() -> bool {
    let missing: Vec<&str> =
        ["strace", "python3"].into_iter().filter(|name| find_program(name).is_none()).collect();
    missing.iter().for_each(|name| restitch_testkit::skipped(&format!("{name} is missing")));
    missing.is_empty()
}

/// A command is asked to end at each of some moments, by each in turn.
fn command_at_moments(arguments: &[&str]) {
    let program = scratch();
    let program = require!(
        built(program.path(), "waits.c", WAITS, &["-O1", "-nostdlib", "-static", "-fno-stack-protector"]),
        "gcc"
    );
    if !has_tools() {
        return;
    }
    let restitch = Restitch::new();
    let one = |by: By, stop: Option<&Moment>| {
        let folder = scratch();
        let (ready, output) = (folder.path().join("ready"), folder.path().join("profile"));
        let mut words: Vec<&str> = arguments
            .iter()
            .map(|word| if *word == "OUTPUT" { output.to_str().expect("text") } else { word })
            .collect();
        words.extend(["--", program.to_str().expect("text"), ready.to_str().expect("text")]);
        let when = format!("{by:?} at {stop:?} of {}", arguments.join(" "));
        let mut session = Session::start(&restitch, &words, by, folder.path(), stop);
        let is_reached = session.await_stop(&|| ready.exists());
        session.ask(is_reached);
        let (status, said) = session.end(&when);
        assert_eq!(as_shell(status), Some(128 + by.number()), "{when}: {said}");
        let gone = wait_until(PATIENCE, || left(folder.path()).is_empty().then_some(()));
        assert!(gone.is_some(), "{when}: {:?} are left: {said}", left(folder.path()));
        let moments = if stop.is_none() { moments(&folder.path().join("log")) } else { Vec::new() };
        (is_reached, moments)
    };
    let by: Vec<By> = ALL.into_iter().filter(|by| !is_ignored(*by)).collect();
    let (_, moments) = one(ALL[0], None);
    let (all, mut reached) = (some(&moments), 0);
    for (number, moment) in all.iter().enumerate() {
        reached += usize::from(one(by[number % by.len()], Some(moment)).0);
    }
    assert!(reached > all.len() / 3, "{reached} of {}: too few moments were reached", all.len());
}

#[test]
fn a_command_that_is_counted_ends_with_restitch_at_any_moment() {
    command_at_moments(&["record", "--source", "count", "-o", "OUTPUT"]);
}

#[test]
fn a_command_that_is_traced_ends_with_restitch_at_any_moment() {
    command_at_moments(&["record", "--source", "trace", "-o", "OUTPUT"]);
}

#[test]
fn a_command_that_is_traced_in_bursts_ends_with_restitch_at_any_moment() {
    command_at_moments(&["record", "--source", "burst", "-o", "OUTPUT"]);
}

#[test]
fn a_command_that_is_sampled_ends_with_restitch_at_any_moment() {
    command_at_moments(&["record", "--source", "ip", "-o", "OUTPUT"]);
}

#[test]
fn a_command_that_is_run_ends_with_restitch_at_any_moment() {
    command_at_moments(&["run", "--warm-up", "600"]);
}

#[test]
fn a_batch_ends_with_restitch_at_any_moment() {
    command_at_moments(&["batch", "--finish", "later", "--quiet"]);
}

/// While the loader of a command is at work, the command is there, and nothing of it has been recorded.
#[test]
fn a_command_whose_loader_is_at_work_ends_with_restitch() {
    let folder = scratch();
    let library = require!(built(folder.path(), "stays.c", STAYS, &["-O1", "-shared", "-fPIC"]), "gcc");
    let user = "int library(void); int main(void) { return library(); }";
    let rpath = format!("-Wl,-rpath,{}", library.parent().expect("a folder").display());
    let library = library.to_str().expect("text");
    let program = require!(built(folder.path(), "user.c", user, &["-O1", library, &rpath]), "gcc");
    if !has_tools() {
        return;
    }
    let restitch = Restitch::new();
    for source in ["count", "trace", "burst", "ip"] {
        for by in ALL.into_iter().filter(|by| !is_ignored(*by)) {
            let folder = scratch();
            let (ready, output) = (folder.path().join("ready"), folder.path().join("profile"));
            let ready_is = format!("RESTITCH_TEST_READY={}", ready.display());
            let program = program.to_str().expect("text");
            let output = output.to_str().expect("text");
            let arguments = [
                "record",
                "--source",
                source,
                "-o",
                output,
                "--program",
                "user",
                "--",
                "env",
                &ready_is,
                program,
            ];
            let arguments: Vec<&str> = match source {
                "count" => arguments.to_vec(),
                // The loader of the very command.
                _ => arguments.iter().filter(|word| !["--program", "user"].contains(word)).copied().collect(),
            };
            let mut session = Session::start(&restitch, &arguments, by, folder.path(), None);
            session.await_stop(&|| ready.exists());
            session.ask(false);
            let (status, said) = session.end(source);
            assert_eq!(as_shell(status), Some(128 + by.number()), "{source}, {by:?}: {said}");
            let gone = wait_until(PATIENCE, || left(folder.path()).is_empty().then_some(()));
            assert!(gone.is_some(), "{source}, {by:?}: {:?} are left", left(folder.path()));
        }
    }
}

/// What works on a process ends as asked at any moment, and the process goes on in its original code or in a
/// finished layout.
#[test]
fn what_changes_a_process_ends_as_asked_at_any_moment() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    if !has_tools() {
        return;
    }
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let pid = target.pid().to_string();
    let once = ["attach", &pid, "--duration", "1", "--measure", "0"];
    let again = ["attach", &pid, "--continuous", "--rest", "0", "--duration", "1", "--measure", "0"];
    let record = ["record", "-p", &pid, "-o", "/dev/null", "--duration", "1"];
    for arguments in [&once[..], &again, &record] {
        let mut one = |by: By, stop: Option<&Moment>| {
            let folder = scratch();
            let when = format!("{by:?} at {stop:?} of {}", arguments.join(" "));
            let mut session = Session::start(&restitch, arguments, by, folder.path(), stop);
            let said = folder.path().join("said");
            let is_active =
                || std::fs::read_to_string(&said).is_ok_and(|said| said.contains("layout is active"));
            // One that goes on for ever is asked in any case; the others have ended, if they were not
            // stopped.
            let goes_on = arguments.contains(&"--continuous");
            let is_reached = session.await_stop(&|| goes_on && is_active());
            if is_reached || goes_on {
                session.ask(is_reached);
            }
            let (status, said) = session.end(&when);
            let expected = if is_reached || goes_on { 128 + by.number() } else { code::DONE };
            assert_eq!(as_shell(status), Some(expected), "{when}: {said}");
            target.assert_computing(&when);
            let status = restitch.status(target.pid()).stdout;
            assert!(!status.contains("left in a counting version"), "{when}: {status}");
            restitch.revert(target.pid());
            assert_eq!(look::differences_but_hook(target.pid()), [], "{when}");
            let log = folder.path().join("log");
            (is_reached, if stop.is_none() { moments(&log) } else { Vec::new() })
        };
        let (_, moments) = one(ALL[0], None);
        let (all, mut reached) = (some(&moments), 0);
        let by: Vec<By> = ALL.into_iter().filter(|by| !is_ignored(*by) && *by != By::Terminal).collect();
        for (number, moment) in all.iter().enumerate() {
            reached += usize::from(one(by[number % by.len()], Some(moment)).0);
        }
        assert!(reached > all.len() / 3, "{reached} of {}: too few moments were reached", all.len());
    }
    target.stop();
}

/// The process that is worked on is killed at one of some moments: it has ended, whatever could not be done
/// then. (One that was about to have ended in any case may be done with, or found to have worked too little.)
#[test]
fn a_process_that_is_killed_at_any_moment_has_ended() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    if !has_tools() {
        return;
    }
    let restitch = Restitch::new();
    let ways: [&[&str]; 3] = [
        &["attach", "PID", "--duration", "1", "--measure", "0"],
        &["record", "-p", "PID", "-o", "/dev/null", "--duration", "1"],
        &["record", "-p", "PID", "--source", "ip", "-o", "/dev/null", "--duration", "1"],
    ];
    for way in ways {
        let one = |stop: Option<&Moment>| {
            let (folder, mut target) = (scratch(), Target::start(&program));
            let pid = target.pid();
            let number = pid.to_string();
            let arguments: Vec<&str> =
                way.iter().map(|word| if *word == "PID" { number.as_str() } else { word }).collect();
            let when = format!("killed at {stop:?} of {}", way.join(" "));
            let mut session = Session::start(&restitch, &arguments, ALL[0], folder.path(), stop);
            let is_reached = session.await_stop(&|| false);
            if is_reached {
                signal("KILL", pid);
                wait_until(PATIENCE, || has_ended(pid).then_some(())).expect("it is killed");
                session.pid().into_iter().for_each(|pid| signal("CONT", pid));
            }
            let (status, said) = session.end(&when);
            let expected: &[i32] =
                if is_reached { &[code::VANISHED, code::DONE, code::NOTHING_TO_DO] } else { &[code::DONE] };
            assert!(status.code().is_some_and(|code| expected.contains(&code)), "{when}: {status}: {said}");
            if !is_reached {
                target.stop();
            }
            drop(target);
            restitch.run(&["status"]).expect(code::DONE);
            assert!(restitch.journals().is_empty(), "{when}: {:?}", restitch.journals());
            let log = folder.path().join("log");
            let moments = if stop.is_none() { moments(&log) } else { Vec::new() };
            (is_reached, status.code() == Some(code::VANISHED), moments)
        };
        let (_, _, moments) = one(None);
        let all = some(&moments);
        let (mut reached, mut ended) = (0, 0);
        for moment in &all {
            let (is_reached, has_ended, _) = one(Some(moment));
            reached += usize::from(is_reached);
            ended += usize::from(has_ended);
        }
        assert!(reached > all.len() / 3 && ended > all.len() / 6, "{reached}, {ended} of {}", all.len());
    }
}

/// Whether all of a process has ended, collected or not.
fn has_ended(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ended = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    tasks.map(|task| std::fs::read_to_string(task.path().join("stat"))).all(|stat| stat.map_or(true, ended))
}
