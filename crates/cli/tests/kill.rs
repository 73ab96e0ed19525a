//! restitch killed at any moment: the target goes on, `status` tells what was left, `revert` and the next
//! `attach` put it right.
//!
//! The moments are random ones of the whole run, and random ones just after each change of the journal,
//! around which the switches are. `RESTITCH_KILLS` sets the number of kills (default 60), `RESTITCH_SEED` the
//! random numbers.

mod common;

use common::oracle::assert_truthful;
use common::{Random, Restitch, Target, code, look, stoppable};
use restitch_testkit::{Guarded, Server, compile, program, require, wait_until};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// A moment at which to kill.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So long after the start.
    Time(Duration),
    /// So long after the journal has changed so many times.
    Journal(u64, Duration),
}

impl Moment {
    fn any(random: &mut Random, longest: u64) -> Self {
        let micros = |n| Duration::from_micros(n);
        match random.below(4) {
            0 => Self::Time(micros(random.below(longest))),
            _ => {
                // Mostly at once, sometimes up to 8 ms later.
                let most = 1 << random.below(14);
                Self::Journal(1 + random.below(5), micros(random.below(most)))
            }
        }
    }
}

/// Which file the journal is now: it is replaced at each change.
fn journal_state(restitch: &Restitch) -> Option<(u64, i64)> {
    let meta = std::fs::metadata(restitch.journals().first()?).ok()?;
    Some((meta.ino(), meta.mtime_nsec()))
}

/// Starts restitch with `arguments` and kills it at `moment`, or lets it end if it does so before. Its
/// keeper, which gives the process back, is killed just before it (`alone`), so that all is left to the next
/// command; or its end is waited for.
fn killed(restitch: &Restitch, arguments: &[&str], moment: Moment, alone: bool) {
    let mut command = restitch.command(arguments);
    let mut last = journal_state(restitch);
    let mut run =
        Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
    let wait = match moment {
        Moment::Time(wait) => wait,
        Moment::Journal(changes, wait) => {
            let mut seen = 0;
            // Busy, since the moments are short; over when restitch is.
            while seen < changes && run.is_running() {
                let now = journal_state(restitch);
                if now != last {
                    (seen, last) = (seen + 1, now);
                }
            }
            wait
        }
    };
    std::thread::sleep(wait);
    let keeper = keeper_of(run.pid());
    if let (Some(keeper), true) = (keeper, alone) {
        let _ = Command::new("kill").args(["-KILL", &keeper.to_string()]).stderr(Stdio::null()).status();
    }
    let _ = run.kill();
    let is_there = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    let ended = wait_until(common::PATIENCE, || keeper.is_none_or(|pid| !is_there(pid)).then_some(()));
    assert!(ended.is_some(), "the keeper does not end");
}

/// The process that gives a process back when restitch `pid` is killed, if it has been started.
fn keeper_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let is_keeper = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).nth(1) == Some(b"keep")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_keeper)
}

/// A process under test, and how to find out that it is well.
trait Subject {
    fn pid(&self) -> u32;
    fn assert_well(&mut self, when: &str);
    fn assert_untouched(&self, when: &str);
}

impl Subject for Target {
    fn pid(&self) -> u32 {
        Target::pid(self)
    }
    fn assert_well(&mut self, when: &str) {
        self.assert_computing(when);
    }
    fn assert_untouched(&self, when: &str) {
        Target::assert_untouched(self, when);
    }
}

/// One kill and what follows.
fn one_kill(restitch: &Restitch, subject: &mut dyn Subject, random: &mut Random, round: u64) {
    let when = kill_and_look(restitch, subject, random, round);
    back_to_original(restitch, subject, &when);
}

/// One kill, after which all has to be well, and perhaps an attach. What it was.
fn kill_and_look(restitch: &Restitch, subject: &mut dyn Subject, random: &mut Random, round: u64) -> String {
    let pid = subject.pid().to_string();
    let reverting = random.below(3) == 0;
    // What a killed one has left by slots, the next one undoes, whatever it wants itself.
    let mut slots = || ["--slots", ["off", "on"][random.below(2) as usize]];
    let (first, then) = (slots(), slots());
    let (arguments, longest) = match reverting {
        true => {
            restitch.attach(subject.pid(), &first).expect(code::DONE);
            (vec!["revert", &pid], 60_000)
        }
        false => (vec!["attach", &pid, "--duration", "1", "--measure", "0", first[0], first[1]], 1_800_000),
    };
    let moment = Moment::any(random, longest);
    let alone = random.below(2) == 0;
    killed(restitch, &arguments, moment, alone);
    let keeper = if alone { "with its keeper" } else { "and its keeper not" };
    let when = format!("kill {round}: {} at {moment:?}, {keeper}", arguments[0]);
    subject.assert_well(&when);
    if !alone {
        let said = restitch.status(subject.pid()).stdout;
        assert!(!said.contains("left in a counting version"), "{when}: {said}");
    }
    assert_truthful(restitch, subject.pid(), &when);
    if random.below(4) == 0 {
        // The next attach works on whatever was left.
        restitch.attach(subject.pid(), &then).expect(code::DONE);
        assert!(!look::differences(subject.pid()).is_empty(), "{when}, then attach: nothing is in force");
        subject.assert_well(&format!("{when}, then attach"));
        assert_truthful(restitch, subject.pid(), &format!("{when}, then attach"));
    }
    when
}

#[track_caller]
fn back_to_original(restitch: &Restitch, subject: &mut dyn Subject, when: &str) {
    let mut last = String::new();
    let reverted = wait_until(common::PATIENCE, || {
        let finished = restitch.revert(subject.pid());
        let code = finished.status.code();
        assert!(matches!(code, Some(code::DONE | code::NOTHING_TO_DO)), "{when}: {}", finished.stderr);
        assert_eq!(look::differences_but_hook(subject.pid()), [], "{when}: {}", finished.stdout);
        last = finished.stdout;
        (!last.contains("stays mapped")).then_some(())
    });
    assert!(reverted.is_some(), "{when}: a version stays mapped for ever: {last}");
    subject.assert_well(when);
    subject.assert_untouched(when);
    assert_eq!(restitch.journals(), Vec::<std::path::PathBuf>::new(), "{when}: the journal stays");
}

fn kills(subject: &mut dyn Subject, seed: u64) {
    let restitch = Restitch::new();
    let seed = number("RESTITCH_SEED", seed);
    let mut random = Random::new(seed);
    for round in 0..number("RESTITCH_KILLS", 60) / 2 {
        one_kill(&restitch, subject, &mut random, round);
    }
}

#[test]
fn a_program_that_throws_survives_every_kill() {
    let throw = require!(stoppable("throw.cc", &["-O2", "-Wl,-z,relro", "-Wl,-z,now"]), "g++");
    let mut target = Target::start(&throw);
    kills(&mut target, 1);
    target.stop();
}

/// Its unwinder's lookup function is found by its shape alone, also by the run that has to undo what the
/// killed one did. Versions stay mapped in such a program, so each kill has one of its own.
#[test]
fn a_stripped_static_rust_program_that_panics_survives_every_kill() {
    let program = match restitch_testkit::compile_rust_with_musl(&program("panics.rs")) {
        Ok(program) => restitch_testkit::strip(&program).expect("strip is there where linkers are"),
        Err(error) => return restitch_testkit::skipped(&error.to_string()),
    };
    let restitch = Restitch::new();
    let mut random = Random::new(number("RESTITCH_SEED", 4));
    for round in 0..number("RESTITCH_KILLS", 60) / 8 {
        let mut target = Target::start_with(&program, &["--threads", "2"]);
        let when = kill_and_look(&restitch, &mut target, &mut random, round);
        let finished = restitch.revert(target.pid());
        let code = finished.status.code();
        assert!(matches!(code, Some(code::DONE | code::NOTHING_TO_DO)), "{when}: {}", finished.stderr);
        assert_eq!(look::differences_but_hook(target.pid()), [], "{when}: {}", finished.stdout);
        target.assert_computing(&when);
        target.stop();
    }
}

/// The server, and clients that check its answers all the time.
struct Busy<'a> {
    pid: u32,
    before: common::look::Snapshot,
    answers: &'a AtomicU64,
    wrong: &'a AtomicU64,
}

impl Subject for Busy<'_> {
    fn pid(&self) -> u32 {
        self.pid
    }
    fn assert_well(&mut self, when: &str) {
        let before = self.answers.load(Ordering::SeqCst);
        let answered = wait_until(common::PATIENCE, || {
            (self.answers.load(Ordering::SeqCst) > before + 20 || self.wrong.load(Ordering::SeqCst) > 0)
                .then_some(())
        });
        assert!(answered.is_some(), "the server does not answer {when}");
        assert_eq!(self.wrong.load(Ordering::SeqCst), 0, "wrong or missing answers {when}");
    }
    fn assert_untouched(&self, when: &str) {
        assert_eq!(look::ours(self.pid), [], "versions stay mapped {when}");
        let changes = self.before.changes(&common::look::Snapshot::of(self.pid));
        assert!(changes.is_empty(), "{when}: {changes:?}");
    }
}

#[test]
fn a_busy_server_survives_every_kill() {
    let server = require!(compile(&program("server.c"), &["-O2", "-Wl,-z,relro", "-Wl,-z,now"]).ok(), "gcc");
    let mut server = Server::start(&server).expect("the server starts");
    let (answers, wrong, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop = Stop(&end);
        for client in 0..3 {
            let mut connection = server.connect().expect("the server listens");
            let (answers, wrong, end) = (&answers, &wrong, &end);
            scope.spawn(move || {
                let mut seed = client;
                while !end.load(Ordering::SeqCst) {
                    seed += 3;
                    match connection.check(seed, 2000) {
                        Ok(true) => answers.fetch_add(1, Ordering::SeqCst),
                        _ => wrong.fetch_add(1, Ordering::SeqCst),
                    };
                }
            });
        }
        let pid = server.pid();
        wait_until(common::PATIENCE, || (answers.load(Ordering::SeqCst) > 20).then_some(()));
        let before = common::look::Snapshot::of(pid);
        kills(&mut Busy { pid, before, answers: &answers, wrong: &wrong }, 2);
        drop(stop);
    });
    assert!(server.process().is_running());
}

/// Programs come and go under a `record` that is killed at any moment; all of them do their work, also those
/// that were on their way to their entry points.
#[test]
fn commands_that_record_follows_survive_every_kill() {
    const ROUNDS: u32 = 40;
    let script = format!(
        "echo begin; i=0; while [ $i -lt {ROUNDS} ]; do /bin/echo $i; /usr/bin/env true || echo \"bad: $?\"; i=$((i+1)); done; echo end"
    );
    let numbers: String = (0..ROUNDS).map(|i| format!("{i}\n")).collect();
    let expected = format!("begin\n{numbers}end\n");
    let restitch = Restitch::new();
    let mut random = Random::new(number("RESTITCH_SEED", 3));
    let folder = restitch_testkit::scratch();
    let mut killed_midway = 0;
    for round in 0..number("RESTITCH_KILLS", 60) / 2 {
        let output = folder.path().join(round.to_string());
        let said = || std::fs::read_to_string(&output).unwrap_or_default();
        let mut command = restitch.command(&["record", "-o"]);
        command
            .arg(folder.path().join("profile"))
            .args(["--", "/bin/sh", "-c", &script])
            .stdin(Stdio::null());
        command.stdout(std::fs::File::create(&output).unwrap()).stderr(Stdio::null());
        let mut run = Guarded::spawn(&mut command).unwrap();
        // Mostly while the programs run, however long it takes until they do.
        if random.below(4) != 0 {
            let _ = wait_until(common::PATIENCE, || {
                (said().starts_with("begin\n") || !run.is_running()).then_some(())
            });
        }
        std::thread::sleep(Duration::from_micros(random.below(1_500_000)));
        let _ = run.kill();
        if said().is_empty() {
            // Killed before the command was started: then it never is, or begins just now.
            common::target::linger(1000);
        }
        killed_midway += u32::from(!said().is_empty() && !said().contains("end\n"));
        let whole =
            wait_until(common::PATIENCE, || (said().is_empty() || said().contains("end\n")).then_some(()));
        assert!(whole.is_some(), "kill {round}: the command does not end: {}", said());
        let said = said();
        // The command's output; restitch's own, if it came to its end, is behind it.
        assert!(said.is_empty() || said.starts_with(&expected), "kill {round}: {said}");
    }
    assert!(killed_midway > 0, "no kill came while programs ran");
}

/// Ends the clients, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
