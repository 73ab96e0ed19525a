//! Programs that close their libraries and open them elsewhere while versions of them are in place, as
//! servers do that read their configuration anew: what is mapped in their old places by then is left alone,
//! and the process can be reverted and attached to as before.

mod common;

use common::look::{differences, differences_but_hook, ours};
use common::moving::Moving;
use common::{PATIENCE, Restitch, code};
use restitch_testkit::{Finished, require, wait_until};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Attaches until all three files are in the new layout: on a busy machine one may be left out, which has
/// counted too little. What is said to be in force is.
fn attached(restitch: &Restitch, moving: &Moving) {
    let json = restitch.state().join("result");
    let mut told = Vec::new();
    for _ in 0..5 {
        let done = restitch.attach(moving.pid(), &["--json", json.to_str().unwrap()]);
        done.expect(code::DONE);
        let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let lists = |path: &Path| {
            result["modules"]
                .as_array()
                .unwrap()
                .iter()
                .any(|m| m["path"].as_str().map(Path::new) == Some(path))
        };
        let said = [lists(&moving.libraries[0]), lists(&moving.libraries[1]), lists(&moving.program)];
        assert_eq!(moving.redirected(), said, "{result}\n{}", done.stderr);
        if said == [true; 3] {
            return;
        }
        println!("not all in force: {}", result["left_out"]);
        told.push(format!("{}\n{}", result["left_out"], done.stderr));
    }
    panic!("never all of them: {told:#?}");
}

/// `revert` until nothing stays mapped.
fn reverted(restitch: &Restitch, moving: &Moving) {
    let gone = wait_until(PATIENCE, || {
        let done = restitch.revert(moving.pid());
        assert!(matches!(done.status.code(), Some(code::DONE | code::NOTHING_TO_DO)), "{}", done.stderr);
        ours(moving.pid()).is_empty().then_some(())
    });
    assert!(gone.is_some(), "a version stays mapped");
    assert_eq!(differences(moving.pid()), []);
}

#[test]
fn a_layout_of_libraries_that_have_moved_can_be_taken_back() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    attached(&restitch, &moving);
    for _ in 0..2 {
        moving.moves();
        assert_eq!(
            moving.redirected(),
            [false, false, true],
            "its own code stays in the layout, theirs is as in the files"
        );
        restitch.status(moving.pid()).expect(code::DONE);
        attached(&restitch, &moving);
    }
    moving.moves();
    reverted(&restitch, &moving);
    attached(&restitch, &moving);
    reverted(&restitch, &moving);
    moving.end();
}

/// Attaches, and asks for a move once a counting version is in place. What it printed.
fn moved_while_counting(restitch: &Restitch, moving: &Moving) -> Finished {
    let pid = moving.pid().to_string();
    let mut command = restitch.command(&["attach", &pid, "--duration", "6", "--measure", "0"]);
    std::thread::scope(|scope| {
        let attach = scope.spawn(move || common::finish(&mut command));
        let counts =
            || (!differences_but_hook(moving.pid()).is_empty() || attach.is_finished()).then_some(());
        wait_until(PATIENCE, counts).expect("it counts or ends");
        moving.moves();
        attach.join().unwrap()
    })
}

#[test]
fn libraries_that_move_while_they_are_counted_are_attached_to_anew() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    let seen = (0..4).any(|_| {
        let done = moved_while_counting(&restitch, &moving);
        // On a busy machine it may have ended before, or got no samples.
        let anew = done.status.code() == Some(code::DONE) && done.stderr.contains("begins again");
        match anew {
            true => assert_ne!(moving.redirected(), [false; 3], "{}", done.stderr),
            false => assert!(
                matches!(done.status.code(), Some(code::DONE | code::NOTHING_TO_DO)),
                "{}",
                done.stderr
            ),
        }
        reverted(&restitch, &moving);
        anew
    });
    assert!(seen, "none of four attaches was begun again");
    moving.end();
}

/// Runs a command, and asks for a move ten times a second meanwhile.
fn moved_all_the_time(moving: &Moving, mut command: Command) -> Finished {
    std::thread::scope(|scope| {
        let done = scope.spawn(move || common::finish(&mut command));
        while !done.is_finished() {
            moving.ask();
            std::thread::sleep(Duration::from_millis(100));
        }
        done.join().unwrap()
    })
}

#[test]
fn libraries_that_move_all_the_time_are_left_out() {
    let moving = require!(Moving::start(), "gcc");
    let restitch = Restitch::new();
    let (pid, profile) = (moving.pid().to_string(), restitch.state().join("profile"));
    let attach = ["attach", &pid, "--duration", "4", "--measure", "0"];
    let record = ["record", "-p", &pid, "--duration", "4", "-o", profile.to_str().unwrap()];
    for arguments in [&attach[..], &record[..]] {
        let done = moved_all_the_time(&moving, restitch.command(arguments));
        match done.status.code() {
            Some(code::DONE) if arguments[0] == "attach" => {
                assert_ne!(moving.redirected(), [false; 3], "{}", done.stderr)
            }
            Some(code::DONE) => assert_eq!(moving.redirected(), [false; 3], "{}", done.stderr),
            // On a busy machine.
            Some(code::NOTHING_TO_DO) => assert_eq!(moving.redirected(), [false; 3], "{}", done.stderr),
            _ => panic!("{}\n{}", done.status, done.stderr),
        }
        reverted(&restitch, &moving);
    }
    moving.end();
}
