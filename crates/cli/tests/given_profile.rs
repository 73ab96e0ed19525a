//! `attach --profile`: a process gets the layout for a profile that was recorded before, without being
//! profiled.

mod common;

use common::target::stoppable;
use common::{Restitch, Target, code, expect_message, finish, look};
use restitch_testkit::{Finished, require, scratch};
use std::path::Path;
use std::process::Command;

fn record(restitch: &Restitch, pid: u32, file: &Path) {
    let pid = pid.to_string();
    let file = file.to_str().expect("UTF-8");
    restitch.run(&["record", "-p", &pid, "--duration", "2", "-o", file]).expect(code::DONE);
}

fn attach(restitch: &Restitch, pid: u32, profile: &Path, more: &[&str]) -> Finished {
    let profile = profile.to_str().expect("UTF-8");
    let pid = pid.to_string();
    restitch.run(
        &[&["attach", &pid, "--profile", profile, "--measure", "0", "--keep-in-place", "off"], more].concat(),
    )
}

fn json(finished: &Finished) -> serde_json::Value {
    finished.expect(code::DONE);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[test]
fn another_process_of_the_same_program_is_moved_at_once() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let file = folder.path().join("profile");
    let mut first = Target::start(&program);
    record(&restitch, first.pid(), &file);
    first.stop();

    let mut target = Target::start(&program);
    let planned = json(&attach(&restitch, target.pid(), &file, &["--dry-run", "--json", "-"]));
    assert_eq!(planned["outcome"], "planned", "{planned}");
    target.assert_untouched("after --dry-run");
    let moved = json(&attach(&restitch, target.pid(), &file, &["--json", "-"]));
    assert_eq!(
        (&moved["outcome"], &moved["profile"]["source"]),
        (&"in_force".into(), &file.to_str().expect("UTF-8").into()),
        "{moved}"
    );
    assert_eq!(moved["profile"]["samples"], 0, "{moved}");
    let parts = moved["apply"]["pause_parts"].as_array().expect("parts of the pause");
    let counting = parts.iter().find(|part| part["name"] == "to the counting version").expect("a part");
    assert_eq!(counting["us"], 0.0, "it is stopped once");
    assert!(!look::differences(target.pid()).is_empty());
    target.assert_computing("in the new layout");
    let in_force = look::differences(target.pid());
    attach(&restitch, target.pid(), &file, &["--dry-run"]).expect(code::DONE);
    assert_eq!(look::differences(target.pid()), in_force, "--dry-run touches nothing");
    // Over itself.
    attach(&restitch, target.pid(), &file, &[]).expect(code::DONE);
    target.assert_computing("in the new layout again");
    target.assert_goes_back(&restitch);
    target.assert_computing("after revert");
    target.stop();
}

/// `--profile <(zcat ...)`, in formats that are read with the program's code, too; a writer may be late.
#[test]
fn a_profile_may_come_through_a_pipe() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (file, pipe) = (folder.path().join("profile"), folder.path().join("pipe"));
    let mut target = Target::start(&program);
    record(&restitch, target.pid(), &file);
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let text = folder.path().join("it.fdata");
    let convert = ["profile", "convert", "-o"].map(String::from).to_vec();
    let paths = [&text, &file].map(|path| path.display().to_string());
    let program = ["--program".into(), program.display().to_string()];
    restitch.run(&[&convert[..], &paths, &program].concat()).expect(code::DONE);
    for profile in [&file, &text] {
        let script = "exec \"$0\" attach \"$1\" --measure 0 --keep-in-place off --profile <(cat \"$2\")";
        let mut bash = Command::new("bash");
        bash.args(["-c", script, env!("CARGO_BIN_EXE_restitch"), &target.pid().to_string()]).arg(profile);
        finish(bash.env("RESTITCH_STATE_DIR", restitch.state())).expect(code::DONE);
        assert!(!look::differences(target.pid()).is_empty(), "{}", profile.display());
        target.assert_goes_back(&restitch);
        let writer = std::thread::spawn({
            let (profile, pipe) = (profile.clone(), pipe.clone());
            // It is opened once somebody reads.
            move || std::fs::write(pipe, std::fs::read(profile).expect("there")).expect("read")
        });
        attach(&restitch, target.pid(), &pipe, &[]).expect(code::DONE);
        writer.join().expect("it has written");
        assert!(!look::differences(target.pid()).is_empty(), "{}", profile.display());
        target.assert_goes_back(&restitch);
    }
    target.stop();
}

#[test]
fn what_has_no_counts_of_the_process_is_refused() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let other = require!(stoppable("switch.c", &["-O1"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let file = folder.path().join("profile");
    let mut first = Target::start(&other);
    // The same file name, another build.
    let renamed = folder.path().join("renamed");
    record(&restitch, first.pid(), &file);
    first.stop();

    let mut target = Target::start(&program);
    let refused = attach(&restitch, target.pid(), &file, &[]);
    // The C library may have been hot enough to be in it.
    if refused.status.code() == Some(code::DONE) {
        let said = format!("{}{}", refused.stdout, refused.stderr);
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("itself, which stays as it is"), "{said}");
        target.assert_goes_back(&restitch);
    } else {
        expect_message(&refused, code::NOTHING_TO_DO, &["has no counts of what process", "restitch record"]);
    }
    target.assert_untouched("after a profile of something else");

    std::fs::write(&renamed, b"no profile").expect("writable");
    expect_message(
        &attach(&restitch, target.pid(), &renamed, &[]),
        code::BAD_INPUT,
        &["renamed", "restitch profile formats"],
    );
    expect_message(
        &attach(&restitch, target.pid(), &folder.path().join("nowhere"), &[]),
        code::FAILURE,
        &["nowhere"],
    );
    for more in [&["--continuous"][..], &["--duration", "1"], &["--source", "trace"]] {
        attach(&restitch, target.pid(), &file, more).expect(code::USAGE);
    }
    target.assert_untouched("after refusals");
    target.assert_computing("after refusals");
    target.stop();
}

#[test]
fn profiles_of_other_formats_are_taken() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let other = require!(stoppable("switch.c", &["-O1"]), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let path = |name: &str| folder.path().join(name);
    let profile_of = |program: &Path, name: &str, formats: &[&str]| {
        let mut process = Target::start(program);
        record(&restitch, process.pid(), &path(name));
        process.stop();
        for ending in formats {
            let (from, to) = (path(name), path(&format!("{name}.{ending}")));
            let mut command = restitch.command(&["profile", "convert"]);
            finish(command.arg(from).arg("--program").arg(program).arg("-o").arg(to)).expect(code::DONE);
        }
    };
    let formats = ["perf.data", "fdata", "pa", "yaml", "no_lbr.fdata", "order"];
    // Both builds stood at one path, one after the other.
    let installed = path("program");
    let install = |built: &Path| {
        let _ = std::fs::remove_file(&installed);
        std::fs::copy(built, &installed).expect("writable");
    };
    install(&other);
    profile_of(&installed, "other", &["perf.data"]);
    install(&program);
    let program = installed.clone();
    profile_of(&program, "this", &formats);

    let mut target = Target::start(&program);
    for ending in &formats[..5] {
        let name = format!("this.{ending}");
        let moved = json(&attach(&restitch, target.pid(), &path(&name), &["--json", "-"]));
        assert_eq!(moved["outcome"], "in_force", "{name}: {moved}");
        let modules = moved["modules"].as_array().expect("modules");
        let hot = |m: &&serde_json::Value| m["path"].as_str() == program.to_str();
        let redirects = modules.iter().find(hot).and_then(|m| m["version"]["redirects"].as_u64());
        assert!(redirects.is_some_and(|n| n > 0), "{name}: {moved}");
        target.assert_computing(&format!("in the layout of {name}"));
    }
    target.assert_goes_back(&restitch);
    let in_what_order = attach(&restitch, target.pid(), &path("this.order"), &[]);
    expect_message(&in_what_order, code::BAD_INPUT, &["this.order", "in which order"]);
    let of_another = attach(&restitch, target.pid(), &path("other.perf.data"), &[]);
    expect_message(&of_another, code::NOTHING_TO_DO, &["of another build"]);
    target.assert_untouched("after refusals");
    target.stop();
}
