//! restitch asked to end, or killed, in the middle of its work: processes have their original code or a
//! finished layout, recordings are written, and commands get what was meant for them. The same where the
//! process itself ends in the middle, or executes something else.

mod common;

use common::{PATIENCE, Restitch, Target, code, look, stoppable};
use restitch_testkit::{Finished, Guarded, require, scratch, wait_until};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const TERM: i32 = 15;

/// The signals that ask to end, and their names; those that whoever has started the tests ignores, restitch
/// ignores as well.
fn signals() -> Vec<(i32, &'static str)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap().trim();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    let all = [(1, "HUP"), (2, "INT"), (TERM, "TERM")];
    all.into_iter().filter(|(signal, _)| ignored & 1 << (signal - 1) == 0).collect()
}

fn send(name: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// A restitch at work, whose messages are kept.
struct Working(Guarded);

impl Working {
    fn start(restitch: &Restitch, arguments: &[&str]) -> Self {
        let mut command = restitch.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Guarded::spawn(&mut command).unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Its keeper.
    fn keeper(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let is_it = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|b| *b == 0).nth(1) == Some(b"keep")
        };
        let find = || {
            let children = std::fs::read_to_string(&children).unwrap_or_default();
            children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it)
        };
        wait_until(PATIENCE, find).expect("a keeper")
    }

    #[track_caller]
    fn finish(mut self) -> Finished {
        let read = |pipe: Option<&mut dyn Read>| {
            let mut text = String::new();
            pipe.map(|pipe| pipe.read_to_string(&mut text).unwrap());
            text
        };
        let child = self.0.child();
        let (stdout, stderr) = (
            read(child.stdout.as_mut().map(|p| p as &mut dyn Read)),
            read(child.stderr.as_mut().map(|p| p as &mut dyn Read)),
        );
        let status = self.0.wait_within(PATIENCE).expect("it ends");
        Finished { status, stdout, stderr }
    }
}

/// Waits until a version of this kind leads somewhere in `target`.
#[track_caller]
fn await_version(restitch: &Restitch, target: &Target, kind: &str) {
    let is_there = || {
        let said = restitch.status(target.pid()).stdout;
        (said.contains(&format!(": {kind},")) && !look::differences(target.pid()).is_empty()).then_some(())
    };
    wait_until(PATIENCE, is_there).unwrap_or_else(|| panic!("no {kind} version comes"));
}

/// No version stays mapped that a later command would not unmap, and no code is changed.
#[track_caller]
fn assert_original(restitch: &Restitch, target: &mut Target, when: &str) {
    assert_eq!(look::differences_but_hook(target.pid()), [], "{when}");
    target.assert_computing(when);
    if !look::ours(target.pid()).is_empty() {
        target.assert_goes_back(restitch);
    }
    target.assert_untouched(when);
}

fn switch() -> Option<Target> {
    stoppable("switch.c", &["-O2"]).map(|program| Target::start(&program))
}

#[test]
fn an_attach_that_is_asked_to_end_while_it_counts_gives_the_code_back() {
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    for (signal, name) in signals() {
        let working = Working::start(&restitch, &["attach", &pid, "--duration", "600", "--measure", "0"]);
        await_sampled(&working);
        send(name, working.pid());
        let done = working.finish();
        done.expect(128 + signal);
        assert!(done.stderr.contains(&format!("ended by SIG{name}: process {pid} has its original code")));
        assert_original(&restitch, &mut target, name);
    }
    let working = Working::start(&restitch, &["attach", &pid, "--duration", "600", "--measure", "0"]);
    await_version(&restitch, &target, "counting");
    send("TERM", working.pid());
    let done = working.finish();
    done.expect(128 + TERM);
    let told = format!("ended by SIGTERM: process {pid} has its original code again");
    assert!(done.stderr.contains(&told), "{}", done.stderr);
    assert_original(&restitch, &mut target, "while it counts");
    target.stop();
}

/// Waits until it handles signals.
#[track_caller]
fn await_sampled(working: &Working) {
    // The keeper is started behind that.
    working.keeper();
}

#[test]
fn an_active_layout_stays_when_its_measurement_is_ended() {
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    let folder = scratch();
    let gate = folder.path().join("gate");
    // Behind the gate the metric never ends.
    let metric = format!("test -e {} && exec sleep 1000; date +%s%N", gate.display());
    let arguments = ["attach", &pid, "--duration", "1", "--measure", "600", "--metric", &metric];
    let json = folder.path().join("json");
    for safe in [false, true] {
        for hangs in [false, true] {
            let mut all = arguments.to_vec();
            all.extend(["--json", json.to_str().unwrap()]);
            all.extend(safe.then_some("--revert-if-slower"));
            let working = Working::start(&restitch, &all);
            await_version(&restitch, &target, "optimized");
            if hangs {
                std::fs::write(&gate, "").unwrap();
            }
            send("TERM", working.pid());
            let done = working.finish();
            done.expect(128 + TERM);
            let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
            assert_eq!(result["exit_code"], 128 + TERM, "{result}");
            let is_there = !look::differences(target.pid()).is_empty();
            assert_eq!(is_there, !safe, "{}{}", done.stdout, done.stderr);
            let told = if safe { "has its original code again" } else { "active and stays" };
            assert!(result["warnings"].to_string().contains(told), "{result}");
            let _ = std::fs::remove_file(&gate);
            restitch.revert(target.pid());
        }
    }
    target.stop();
}

#[test]
fn a_recording_that_is_asked_to_end_writes_what_it_has() {
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    let folder = scratch();
    for source in ["count", "trace", "burst", "ip"] {
        let output = folder.path().join(source);
        let path = output.to_str().unwrap();
        let arguments =
            ["record", "-p", &pid, "-o", path, "--duration", "600", "--source", source, "--overhead", "10%"];
        let working = Working::start(&restitch, &arguments);
        match source {
            "count" => await_version(&restitch, &target, "counting"),
            "burst" => {
                wait_until(PATIENCE, || (!look::ours(target.pid()).is_empty()).then_some(()))
                    .expect("a version");
            }
            _ => await_sampled(&working),
        }
        // Enough is recorded after a moment; if not, there is nothing to write, and that is said.
        common::target::linger(1500);
        send("TERM", working.pid());
        let done = working.finish();
        done.expect(128 + TERM);
        assert_original(&restitch, &mut target, source);
        assert!(done.stderr.contains("ended by SIGTERM"), "{}", done.stderr);
        assert_eq!(output.exists(), done.stderr.contains("profile written"), "{source}: {}", done.stderr);
        if source == "count" {
            assert!(output.exists(), "{}", done.stderr);
            restitch.run(&["profile", "show", path]).expect(code::DONE);
        }
    }
    target.stop();
}

/// Opening a pipe waits for its other end, and a handler lets calls go on.
#[test]
fn pipes_at_whose_other_end_nobody_is_do_not_keep_it_from_ending() {
    let mut target = require!(switch(), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (pid, path) = (target.pid().to_string(), pipe.to_str().unwrap());
    let waiting = [
        &["attach", &pid, "--profile", path, "--measure", "0"][..],
        &["attach", &pid, "--json", path],
        &["attach", &pid, "--html", path],
        &["record", "-p", &pid, "-o", path],
        &["record", "-p", &pid, "-o", path, "--source", "trace"],
    ];
    for arguments in waiting {
        let working = Working::start(&restitch, arguments);
        await_sampled(&working);
        send("TERM", working.pid());
        let done = working.finish();
        done.expect(128 + TERM);
        assert!(done.stderr.contains("ended by SIGTERM"), "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(path), "{arguments:?}: {}", done.stderr);
    }
    target.assert_untouched("while a pipe was waited for");
    target.stop();
}

#[test]
fn a_full_pipe_that_nobody_reads_does_not_keep_it_from_ending() {
    let mut target = require!(switch(), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // A reader, and so much that there is no room for more.
    let mut full = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    std::io::Write::write_all(&mut full, &[0; 1 << 16]).unwrap();
    let (pid, path) = (target.pid().to_string(), pipe.to_str().unwrap());
    let working = Working::start(&restitch, &["attach", &pid, "--measure", "0", "--json", path]);
    await_version(&restitch, &target, "optimized");
    let opened = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", working.pid())).ok()?;
        files.flatten().find(|file| std::fs::read_link(file.path()).is_ok_and(|end| end == pipe))
    };
    wait_until(PATIENCE, opened).expect("it opens the pipe");
    send("TERM", working.pid());
    let done = working.finish();
    done.expect(128 + TERM);
    assert!(done.stderr.contains("ended by SIGTERM") && done.stderr.contains(path), "{}", done.stderr);
    target.assert_computing("while a pipe was full");
    target.stop();
}

/// The same of standard output, which was opened by somebody else: for JSON and for text.
#[test]
fn a_full_standard_output_that_nobody_reads_does_not_keep_it_from_ending() {
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    for more in [&["--json", "-"][..], &[]] {
        let (_reader, mut full) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut full, &[0; 1 << 16]).unwrap();
        let mut command = restitch.command(&["attach", &pid, "--measure", "0"]);
        command.args(more).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
        let working = Working(Guarded::spawn(&mut command).unwrap());
        drop(command);
        await_version(&restitch, &target, "optimized");
        // It opens the pipe for itself.
        let ends = format!("/proc/{}/fd", working.pid());
        let own = std::fs::read_link(format!("{ends}/1")).unwrap();
        let opened = || {
            let files = std::fs::read_dir(&ends).ok()?.flatten();
            let same = files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|end| end == own));
            (same.count() > 1).then_some(())
        };
        wait_until(PATIENCE, opened).expect("it writes");
        send("TERM", working.pid());
        let done = working.finish();
        assert_eq!(done.status.code(), Some(128 + TERM), "{more:?}: {}", done.stderr);
        assert!(done.stderr.contains("writing to standard output"), "{more:?}: {}", done.stderr);
        target.assert_computing("while standard output was full");
        target.assert_goes_back(&restitch);
    }
    target.stop();
}

#[test]
fn a_recording_that_is_ended_before_there_is_anything_says_that_there_is_no_profile() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let file = folder.path().join("it.profile");
    std::fs::write(&file, "old").unwrap();
    let path = file.to_str().unwrap();
    let idle = Guarded::spawn(Command::new("sleep").arg("600")).unwrap();
    let pid = idle.pid().to_string();
    for source in ["count", "trace", "ip"] {
        let arguments = ["record", "-p", &pid, "-o", path, "--duration", "600", "--source", source];
        let working = Working::start(&restitch, &arguments);
        await_sampled(&working);
        send("TERM", working.pid());
        let done = working.finish();
        done.expect(128 + TERM);
        let told = format!("ended by SIGTERM: no profile was written to {path}; ");
        assert!(done.stderr.contains(&told), "{source}: {}", done.stderr);
        assert_eq!(std::fs::read(&file).unwrap(), b"old", "{source}");
    }
    // A command that has ended by that.
    for source in ["count", "trace", "ip"] {
        let arguments = ["record", "-o", path, "--source", source, "--", "sleep", "600"];
        let working = Working::start(&restitch, &arguments);
        await_sampled(&working);
        send("TERM", working.pid());
        let done = working.finish();
        done.expect(128 + TERM);
        assert!(
            done.stderr.contains(&format!("no profile was written to {path}; ")),
            "{source}: {}",
            done.stderr
        );
        assert_eq!(std::fs::read(&file).unwrap(), b"old", "{source}");
    }
}

#[test]
fn a_command_gets_the_signals_and_its_end_is_that_of_restitch() {
    let restitch = Restitch::new();
    let folder = scratch();
    let script = |ready: &Path| {
        format!("trap 'exit 7' TERM; trap 'exit 8' HUP; : > {}; while :; do :; done", ready.display())
    };
    let record = |source: &'static str| {
        let output = folder.path().join("profile").to_str().unwrap().to_owned();
        vec!["record".to_owned(), "-o".into(), output, "--source".into(), source.into()]
    };
    let mut all = vec![
        vec!["run".to_owned(), "--duration".into(), "600".into()],
        vec!["run".into(), "--warm-up".into(), "600".into()],
    ];
    all.extend(["count", "trace", "burst", "ip"].map(record));
    for (round, arguments) in all.iter().enumerate() {
        let ready = folder.path().join(round.to_string());
        let script = script(&ready);
        let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        words.extend(["--", "/bin/sh", "-c", &script]);
        let working = Working::start(&restitch, &words);
        wait_until(PATIENCE, || ready.exists().then_some(())).expect("the command begins");
        send("TERM", working.pid());
        let done = working.finish();
        assert_eq!(done.status.code(), Some(7), "{arguments:?}: {}{}", done.stdout, done.stderr);
    }
}

/// A process that [`a_panic_gives_the_code_back`] is to attach to, in a process of its own, which has a state
/// directory of its own.
const INNER: &str = "RESTITCH_TEST_PANIC";

/// Panics when the process counts.
struct Panics;

impl restitch_session::Watcher for Panics {
    fn phase(&mut self, name: &str, _: Option<f64>) {
        assert_ne!(name, "laying out", "a panic in the middle");
    }
    fn note(&mut self, _: &str) {}
}

#[test]
fn a_panic_gives_the_code_back() {
    if let Ok(pid) = std::env::var(INNER) {
        let mut options = restitch_session::AttachOptions::new(pid.parse().unwrap());
        options.duration = Some(std::time::Duration::from_secs(2));
        let error = restitch_session::attach(&options, &mut Panics).expect_err("it panics");
        let told = error.to_string();
        assert!(told.contains("a panic in the middle"), "{told}");
        assert!(told.contains(&format!("process {pid} has its original code again")), "{told}");
        return;
    }
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let mut inner = Command::new(std::env::current_exe().unwrap());
    inner.args(["--exact", "a_panic_gives_the_code_back"]).env("RESTITCH_STATE_DIR", restitch.state());
    restitch_testkit::run(inner.env(INNER, target.pid().to_string()), PATIENCE).expect(code::DONE);
    assert_original(&restitch, &mut target, "after a panic");
    target.stop();
}

/// No command of restitch comes after the kill: the keeper does it.
#[test]
fn a_killed_restitch_leaves_no_counting_version() {
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    for round in ["attach", "record"] {
        let arguments = match round {
            "record" => {
                vec!["record", "-p", &pid, "-o", "/dev/null", "--duration", "600", "--source", "burst"]
            }
            _ => vec!["attach", &pid, "--duration", "600", "--measure", "0"],
        };
        let working = Working::start(&restitch, &arguments);
        let keeper = working.keeper();
        match round {
            "record" => drop(wait_until(PATIENCE, || (!look::ours(target.pid()).is_empty()).then_some(()))),
            _ => await_version(&restitch, &target, "counting"),
        }
        // What asks to end does not end it.
        for name in ["HUP", "INT", "TERM"] {
            send(name, keeper);
        }
        send("KILL", working.pid());
        let done = working.finish();
        let told = format!("process {pid} has its original code again");
        assert!(done.stderr.contains(&told), "{}", done.stderr);
        assert_original(&restitch, &mut target, &format!("kill {round}"));
    }
    target.stop();
}

/// A process that a keeper's work is to be done for, and what comes between its two looks: it is done in a
/// process of its own, which has a state directory of its own.
const KEPT: &str = "RESTITCH_TEST_KEPT";

/// What a keeper does, with an attach between its looks.
fn keep(pid: i32, meanwhile: &str) {
    let found = restitch_session::unfinished().unwrap();
    assert_eq!(found.iter().map(restitch_session::Unfinished::pid).collect::<Vec<_>>(), [pid], "{meanwhile}");
    if meanwhile == "attach" {
        for duration in ["1", "3", "10"] {
            let mut attach = Command::new(env!("CARGO_BIN_EXE_restitch"));
            attach.args(["attach", &pid.to_string(), "--measure", "0", "--duration", duration]);
            if restitch_testkit::run(&mut attach, PATIENCE).status.code() != Some(code::NOTHING_TO_DO) {
                break;
            }
        }
    }
    let told = restitch_session::give_back(found);
    let is_given_back = matches!(told[..], [(of, restitch_session::GivenBack::Done(_))] if of == pid);
    assert_eq!(is_given_back, meanwhile == "nothing", "{meanwhile}: {told:?}");
    assert!(is_given_back || told.is_empty(), "{meanwhile}: {told:?}");
}

/// What another restitch has put in force since a keeper has looked, stays; what it is at work on, too.
#[test]
fn a_keeper_takes_out_what_is_left_by_then() {
    if let Ok(kept) = std::env::var(KEPT) {
        let (pid, meanwhile) = kept.split_once(' ').unwrap();
        return keep(pid.parse().unwrap(), meanwhile);
    }
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    for (meanwhile, is_changed) in [("nothing", false), ("attach", true), ("work", true)] {
        let working = Working::start(&restitch, &["attach", &pid, "--duration", "600", "--measure", "0"]);
        await_version(&restitch, &target, "counting");
        let at_work = if meanwhile == "work" {
            Some(working)
        } else {
            send("KILL", working.keeper());
            send("KILL", working.pid());
            working.finish();
            None
        };
        let mut inner = Command::new(std::env::current_exe().unwrap());
        inner.args(["--exact", "a_keeper_takes_out_what_is_left_by_then"]);
        inner.env("RESTITCH_STATE_DIR", restitch.state()).env(KEPT, format!("{pid} {meanwhile}"));
        restitch_testkit::run(&mut inner, PATIENCE).expect(code::DONE);
        assert_eq!(!look::differences_but_hook(target.pid()).is_empty(), is_changed, "{meanwhile}");
        let said = restitch.status(target.pid()).stdout;
        assert_eq!(said.contains(": optimized,"), meanwhile == "attach", "{meanwhile}: {said}");
        if let Some(working) = at_work {
            send("TERM", working.pid());
            working.finish().expect(128 + TERM);
        }
        restitch.revert(target.pid());
        assert_original(&restitch, &mut target, meanwhile);
    }
    target.stop();
}

/// The keeper has the process then, and may be tracing it.
#[test]
fn the_next_attach_waits_for_the_keeper_of_a_killed_one() {
    let mut target = require!(switch(), "gcc");
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    for _ in 0..3 {
        let working = Working::start(&restitch, &["attach", &pid, "--duration", "600", "--measure", "0"]);
        await_version(&restitch, &target, "counting");
        send("KILL", working.pid());
        let next = restitch.attach(target.pid(), &[]);
        // A keeper that gets no processor for long.
        if next.status.code() != Some(code::REFUSED) || !next.stderr.contains("another restitch") {
            next.expect(code::DONE);
        }
        working.finish();
        restitch.revert(target.pid());
    }
    assert_original(&restitch, &mut target, "after all");
    target.stop();
}

/// Computes until it is told to end, or to execute something.
struct Executing {
    process: Guarded,
    folder: restitch_testkit::TempDir,
}

impl Executing {
    fn start(then: &[&str]) -> Option<Self> {
        let program =
            restitch_testkit::compile(&restitch_testkit::program("odd/executes.c"), &["-O2"]).ok()?;
        let folder = scratch();
        let mut command = Command::new(program);
        command.arg(folder.path().join("go")).args(then).stdin(Stdio::null());
        Some(Self { process: Guarded::spawn(&mut command).unwrap(), folder })
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn go(&self) {
        std::fs::write(self.folder.path().join("go"), "").unwrap();
    }
}

/// Waits until a restitch that works with `source` is in the middle of its profile of `pid`.
fn await_profiling(pid: u32, source: &str) {
    let is_traced = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
    };
    let is_there = || match source {
        "trace" => is_traced(),
        "burst" => !look::ours(pid).is_empty(),
        _ => !look::differences(pid).is_empty(),
    };
    wait_until(PATIENCE, || is_there().then_some(())).unwrap_or_else(|| panic!("no {source} begins"));
}

#[test]
fn the_end_of_the_process_is_what_is_told() {
    for command in ["attach", "record"] {
        for source in ["sampling", "count", "burst", "trace"] {
            let restitch = Restitch::new();
            let process = require!(Executing::start(&[]), "gcc");
            let pid = process.pid().to_string();
            let mut arguments = vec![command, &pid, "--duration", "600", "--source"];
            arguments.push(if source == "sampling" { "count" } else { source });
            let output = restitch.state().join("profile");
            match command {
                "attach" => arguments.extend(["--measure", "0"]),
                _ => {
                    arguments.insert(1, "-p");
                    arguments.extend(["-o", output.to_str().unwrap()]);
                }
            }
            let working = Working::start(&restitch, &arguments);
            match source {
                "sampling" => await_sampled(&working),
                _ => await_profiling(process.pid(), source),
            }
            process.go();
            let done = working.finish();
            // What was recorded until then is worth something.
            let is_written = command == "record" && done.stderr.contains("profile written");
            let expected = if is_written { code::DONE } else { code::VANISHED };
            assert_eq!(done.status.code(), Some(expected), "{command} {source}: {}", done.stderr);
            // As it depends on where it is noticed, which is at any place.
            let told = ["process", "process or thread"].map(|what| format!("{what} {pid} "));
            assert!(is_written || told.iter().any(|told| done.stderr.contains(told)), "{}", done.stderr);
            assert!(!is_written || output.exists(), "{}", done.stderr);
        }
    }
}

#[test]
fn a_process_that_executes_another_program_is_told_of() {
    for source in ["count", "burst"] {
        let restitch = Restitch::new();
        let process = require!(Executing::start(&["/bin/sleep", "1000"]), "gcc");
        let pid = process.pid().to_string();
        let arguments = ["attach", &pid, "--duration", "20", "--measure", "0", "--source", source];
        let working = Working::start(&restitch, &arguments);
        await_profiling(process.pid(), source);
        process.go();
        let done = working.finish();
        assert_eq!(done.status.code(), Some(code::REFUSED), "{source}: {}", done.stderr);
        let told = format!("process {pid} has executed another program");
        assert!(done.stderr.contains(&told), "{source}: {}", done.stderr);
        assert_eq!(look::differences(process.pid()), [], "{source}");
        assert!(look::ours(process.pid()).is_empty(), "{source}");
    }
}
