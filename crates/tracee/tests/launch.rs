//! Programs that are started as tracees.

mod common;

use restitch_tracee::{ExitStatus, LaunchOptions, TraceEvent, TraceEvents};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long an event may take to come on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(120);

fn run(command: Command, options: LaunchOptions) -> Vec<String> {
    let mut events = TraceEvents::spawn(command, options).unwrap();
    let root = events.root().pid;
    let who = |pid| if pid == root { "root" } else { "child" };
    let mut log = Vec::new();
    while let Some(event) = events.next_event(LIMIT).unwrap() {
        log.push(match event {
            TraceEvent::Exec(stopped) => {
                let auxv = restitch_procfs::auxv(stopped.pid()).unwrap();
                let rip = stopped.registers(stopped.pid()).unwrap().rip;
                // Static programs begin at their entry, others in the dynamic loader.
                let base = auxv.interpreter_base();
                assert!(base.map_or(auxv.entry() == Some(rip), |base| rip >= base));
                let text = format!("exec {}", who(stopped.pid()));
                stopped.resume();
                text
            }
            TraceEvent::Reached(stopped) => format!("reached {}", who(stopped.pid())),
            TraceEvent::NewProcess { parent, .. } => format!("new from {}", who(parent)),
            TraceEvent::Exiting(stop) => {
                let auxv = restitch_procfs::auxv(stop.pid()).unwrap();
                let headers = auxv.program_headers().unwrap();
                assert!(stop.memory().read_u64(headers).is_ok(), "memory is gone");
                format!("exiting {} {:?}", who(stop.pid()), stop.status())
            }
            TraceEvent::Exited { pid, status } => format!("exited {} {status:?}", who(pid)),
        });
    }
    assert!(events.is_empty());
    log
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdout(Stdio::null());
    command
}

#[test]
fn exec_and_exit_are_reported() {
    let log = run(shell("exit 3"), LaunchOptions::default());
    let code = ExitStatus::Code(3);
    assert_eq!(
        log,
        ["exec root".to_owned(), format!("exiting root {code:?}"), format!("exited root {code:?}")]
    );
    let log = run(shell("kill -TERM $$"), LaunchOptions::default());
    assert_eq!(log.last().unwrap(), &format!("exited root {:?}", ExitStatus::Signal(15)));
}

#[test]
fn a_second_exec_is_a_second_event() {
    let log = run(shell("exec /bin/true"), LaunchOptions::default());
    assert_eq!(log.iter().filter(|line| *line == "exec root").count(), 2);
}

#[test]
fn children_are_followed_when_asked_for() {
    let script = "/bin/true; /bin/false; exit 0";
    let log = run(shell(script), LaunchOptions::default());
    assert_eq!(log.len(), 3, "{log:?}");
    let log = run(shell(script), LaunchOptions { follow_children: true });
    let count = |text: &str| log.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("new from root"), count("exec child"), count("exited child")), (2, 2, 2), "{log:?}");
    assert_eq!(count("exiting child Code(1)"), 1, "{log:?}");
}

/// Each program is held at its entry point, in front of its own first instruction, and goes on undisturbed.
#[test]
fn programs_are_held_at_their_entry_points() {
    let mut events =
        TraceEvents::spawn(shell("/bin/true; /bin/false; exit 5"), LaunchOptions { follow_children: true })
            .unwrap();
    let (mut reached, mut last) = (0, None);
    while let Some(event) = events.next_event(LIMIT).unwrap() {
        match event {
            TraceEvent::Exec(stopped) => {
                let entry = restitch_procfs::auxv(stopped.pid()).unwrap().entry().unwrap();
                events.run_to(stopped, entry).unwrap();
            }
            TraceEvent::Reached(stopped) => {
                let entry = restitch_procfs::auxv(stopped.pid()).unwrap().entry().unwrap();
                assert_eq!(stopped.registers(stopped.pid()).unwrap().rip, entry);
                assert_ne!(stopped.memory().read_vec(entry, 1).unwrap(), [0xcc]);
                reached += 1;
                stopped.resume();
            }
            TraceEvent::Exited { status, .. } => last = Some(status),
            _ => {}
        }
    }
    assert_eq!((reached, last), (3, Some(ExitStatus::Code(5))));
}

/// A process that is let go before it got there has its own bytes.
#[test]
fn a_breakpoint_does_not_outlive_the_tracer() {
    let mut events = TraceEvents::spawn(shell("exit 7"), LaunchOptions::default()).unwrap();
    let root = events.root();
    let Some(TraceEvent::Exec(stopped)) = events.next_event(LIMIT).unwrap() else { panic!("no exec") };
    let entry = restitch_procfs::auxv(stopped.pid()).unwrap().entry().unwrap();
    events.run_to(stopped, entry).unwrap();
    events.detach();
    assert_eq!(restitch_tracee::wait_for_child(root).unwrap(), 7);
}

/// The end of the tracing thread is what the death of the tracer is to its tracees. The process is on its way
/// to its entry point then; it has to get past it, and on to its own end.
#[test]
fn a_process_on_its_way_to_its_entry_point_outlives_the_tracer() {
    for _ in 0..20 {
        let tracer = std::thread::spawn(|| {
            let mut events = TraceEvents::spawn(shell("exit 7"), LaunchOptions::default()).unwrap();
            let root = events.root();
            let Some(TraceEvent::Exec(stopped)) = events.next_event(LIMIT).unwrap() else {
                panic!("no exec")
            };
            let entry = restitch_procfs::auxv(stopped.pid()).unwrap().entry().unwrap();
            events.run_to(stopped, entry).unwrap();
            let trap = events.trap_in_code().map(str::to_owned);
            // Nothing is cleaned up, as after SIGKILL.
            std::mem::forget(events);
            (root, trap)
        });
        let (root, trap) = tracer.join().unwrap();
        if let Some(why) = trap {
            println!("SKIPPED: no hardware breakpoints here: {why}");
            return;
        }
        assert_eq!(restitch_tracee::wait_for_child(root).unwrap(), 7);
    }
}

/// What a process reports as the tracee of one of our threads is seen by every other thread that waits for
/// it, and is no end.
#[test]
fn a_stop_that_another_thread_is_to_see_is_no_end() {
    let (send, started) = std::sync::mpsc::channel();
    let tracer = std::thread::spawn(move || {
        let command = shell("trap : USR1; kill -USR1 $$; exit 7");
        let mut events = TraceEvents::spawn(command, LaunchOptions::default()).unwrap();
        let Some(TraceEvent::Exec(stopped)) = events.next_event(LIMIT).unwrap() else { panic!("no exec") };
        let pid = stopped.pid();
        stopped.resume();
        // It stands in front of the signal, which nobody looks at.
        let is_stopped =
            || restitch_procfs::status(pid).unwrap().state == Some(restitch_procfs::ProcessState::Traced);
        let since = Instant::now();
        while !is_stopped() && since.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_stopped());
        send.send(events.root()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        events.detach();
    });
    let root = started.recv().unwrap();
    assert_eq!(restitch_tracee::wait_for_child(root).unwrap(), 7);
    tracer.join().unwrap();
}

/// A process that is stopped and let go again, over and over, on its way to its entry point still gets there.
#[test]
fn stops_on_the_way_to_the_entry_point_lose_nothing() {
    for _ in 0..10 {
        let mut events = TraceEvents::spawn(shell("exit 6"), LaunchOptions::default()).unwrap();
        let pid = events.root().pid;
        let Some(TraceEvent::Exec(stopped)) = events.next_event(LIMIT).unwrap() else { panic!("no exec") };
        let entry = restitch_procfs::auxv(stopped.pid()).unwrap().entry().unwrap();
        events.run_to(stopped, entry).unwrap();
        let mut log = Vec::new();
        while !events.is_empty() {
            if let Ok(stopped) = events.stop(pid, LIMIT) {
                stopped.resume();
            }
            match events.next_event(Duration::from_micros(50)).unwrap() {
                Some(TraceEvent::Reached(_)) => log.push("reached".to_owned()),
                Some(TraceEvent::Exited { status, .. }) => log.push(format!("{status:?}")),
                _ => {}
            }
        }
        assert_eq!(log, ["reached", "Code(6)"]);
    }
}

#[test]
fn threads_and_signals_pass_through() {
    let Some(program) = common::compile("signals") else { return };
    let mut command = Command::new(&program);
    command.arg("3000").stdout(Stdio::null());
    let log = run(command, LaunchOptions::default());
    std::fs::remove_file(program).unwrap();
    let code = ExitStatus::Code(0);
    assert_eq!(
        log,
        ["exec root".to_owned(), format!("exiting root {code:?}"), format!("exited root {code:?}")]
    );
}

/// One that cannot stop when it is to be let go, as it waits for its vfork child, is let go as soon as it
/// can, and may be stopped by others then.
#[test]
fn who_stops_late_is_let_go_too() {
    let Some(program) = common::compile("special") else { return };
    let end = program.with_extension("end");
    let _ = std::fs::remove_file(&end);
    let (input, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new(&program);
    command.arg("vfork").arg(&end).stdin(std::os::fd::OwnedFd::from(theirs));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut events = TraceEvents::spawn(command, LaunchOptions { follow_children: true }).unwrap();
    let root = events.root();
    let Some(TraceEvent::Exec(stopped)) = events.next_event(LIMIT).unwrap() else { panic!("no exec") };
    stopped.resume();
    let Some(TraceEvent::NewProcess { child, .. }) = events.next_event(LIMIT).unwrap() else {
        panic!("no child")
    };
    let state = || restitch_procfs::thread_stat(root.pid, root.pid).unwrap().state;
    while state() != restitch_procfs::ProcessState::Uninterruptible {
        // The child has to get away from where it begins.
        assert!(events.next_event(Duration::from_millis(1)).unwrap().is_none());
    }
    let told = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        std::fs::write(&end, "").unwrap();
        end
    });
    events.detach();
    assert_eq!(restitch_procfs::status(root.pid).unwrap().tracer, Some(0), "still traced");
    restitch_tracee::Stopped::seize_all(root.pid).unwrap().resume();
    assert!(
        restitch_procfs::status(child).is_ok_and(|s| s.tracer == Some(0))
            || restitch_procfs::has_ended(child)
    );
    std::fs::remove_file(told.join().unwrap()).unwrap();
    drop(input);
    assert_eq!(restitch_tracee::wait_for_child(root).unwrap(), 0);
    std::fs::remove_file(program).unwrap();
}

#[test]
fn a_program_that_cannot_be_started_is_an_error_in_words() {
    let error = TraceEvents::spawn(Command::new("/no/such/program"), LaunchOptions::default());
    let text = error.expect_err("refused").to_string();
    assert!(text.contains("cannot start /no/such/program") && text.contains("No such file"), "{text}");
}

#[test]
fn calls_can_be_made_at_the_exec() {
    use restitch_tracee::{Backing, Placement, Protection, StubPlace};
    let Some(program) = common::compile("selfcheck") else { return };
    let mut command = Command::new(&program);
    command.args(["vector"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut events = TraceEvents::spawn(command, LaunchOptions::default()).unwrap();
    let Some(TraceEvent::Exec(mut stopped)) = events.next_event(LIMIT).unwrap() else { panic!("no exec") };
    let maps = stopped.maps().unwrap();
    let code = maps.iter().find(|m| m.permissions.execute && m.path() == Some(&program)).unwrap();
    let bytes = stopped.memory().read_vec(code.range.start, code.range.len() as usize).unwrap();
    // The program's 64 bytes of int3.
    let at = bytes.windows(64).position(|window| window == [0xcc; 64]).unwrap();
    let place = StubPlace::new(stopped.pid(), code.range.start + at as u64, &maps).unwrap();
    let mut borrow = stopped.borrow_thread(place).unwrap();
    borrow.mmap(Placement::Anywhere, 4096, Protection::Read, Backing::Anonymous).unwrap();
    borrow.finish().unwrap();
    stopped.resume();
    let Some(TraceEvent::Exiting(stop)) = events.next_event(LIMIT).unwrap() else { panic!("no end") };
    assert_eq!(stop.status(), ExitStatus::Code(0));
    drop(stop);
    assert!(matches!(events.next_event(LIMIT).unwrap(), Some(TraceEvent::Exited { .. })));
    std::fs::remove_file(program).unwrap();
}

#[test]
fn a_followed_process_is_stopped_again_and_again() {
    let Some(program) = common::compile("storm") else { return };
    let mut command = Command::new(&program);
    // It ends with its input.
    let (input, open) = std::io::pipe().unwrap();
    command.stdin(input).stdout(Stdio::null());
    let mut events = TraceEvents::spawn(command, LaunchOptions::default()).unwrap();
    let pid = events.root().pid;
    let (mut stops, mut end, mut open) = (0, None, Some(open));
    while end.is_none() {
        open = open.filter(|_| stops < 20);
        match events.next_event(Duration::from_millis(3)).unwrap() {
            Some(TraceEvent::Exited { status, .. }) => end = Some(status),
            Some(_) => {}
            None => match events.stop(pid, LIMIT) {
                Ok(stopped) => {
                    let states = stopped.threads().map(|tid| restitch_procfs::thread_status(pid, tid));
                    let traced = Some(restitch_procfs::ProcessState::Traced);
                    assert!(states.into_iter().all(|status| status.unwrap().state == traced));
                    stopped.resume();
                    stops += 1;
                }
                Err(error) => assert!(error.is_gone(), "{error}"),
            },
        }
    }
    std::fs::remove_file(program).unwrap();
    assert_eq!(end, Some(ExitStatus::Code(0)));
    assert!(stops >= 20, "{stops} stops");
}
