//! `--skip-functions`: what the user names stays as it is, in processes and in files.

mod common;

use common::target::{Target, stoppable};
use common::{PATIENCE, Restitch, code, finish, look};
use restitch_testkit::{SUCCESS, compile, find_program, program, require, run, scratch};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// Where the function is in the file.
fn range_of(file: &Path, name: &str) -> Range<u64> {
    let symbols = Command::new("nm").arg("-S").arg(file).output().expect("nm starts");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("the symbol");
    let mut numbers = line.split(' ').map(|word| u64::from_str_radix(word, 16));
    let mut next = || numbers.next().and_then(Result::ok).expect("a number");
    let start = next();
    start..start + next()
}

/// Of a module's hottest functions, why this one stays; `None` if it does not.
fn why_it_stays(result: &Value, name: &str) -> Option<String> {
    let hottest = result["modules"][0]["hottest"].as_array().expect("a list");
    let found = hottest.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("{name}: {hottest:#?}"));
    found["stays"].as_str().map(str::to_owned)
}

fn warns(result: &Value, word: &str) -> bool {
    let warnings = result["warnings"].as_array().expect("a list");
    warnings.iter().filter_map(Value::as_str).any(|warning| warning.contains(word))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn named_functions_of_a_process_are_neither_counted_nor_moved() {
    let program = require!(stoppable("switch.c", &["-O2", "-no-pie"]), "a compiler");
    require!(find_program("nm"), "nm");
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let [dense, byte] = ["dense", "whole_byte"].map(|name| range_of(&program, name));
    let led = |range: &Range<u64>| {
        let all = look::differences(target.pid());
        all.iter().any(|d| range.contains(&d.at) && d.target().is_some())
    };
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    assert!(led(&dense) && led(&byte), "they are laid out where nothing is said");
    restitch.revert(target.pid()).expect(code::DONE);
    let names = format!("dense,{:#x},nobody_has_this", byte.start + 3);
    let attached = restitch.attach(target.pid(), &["--skip-functions", &names, "--json", "-"]);
    attached.expect(code::DONE);
    assert!(!led(&dense) && !led(&byte) && !look::differences(target.pid()).is_empty());
    let result = json(&attached.stdout);
    assert!(warns(&result, "no module that is laid out has \"nobody_has_this\";"), "{result:#}");
    assert!(why_it_stays(&result, "negative_base").is_none(), "{result:#}");
    target.assert_computing("with functions that stay");
    restitch.revert(target.pid()).expect(code::DONE);
    target.stop();
}

#[test]
fn named_functions_of_a_file_stay() {
    let program = require!(compile(&program("switch.c"), &["-O2"]).ok(), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, output) = (folder.path().join("profile"), folder.path().join("output"));
    finish(restitch.command(&["record", "-o"]).arg(&profile).arg("--").arg(&program)).expect(SUCCESS);
    let mut command = restitch.command(&["optimize", "--json", "-", "--skip-functions", "dense"]);
    let done = finish(command.arg(&program).arg("--profile").arg(&profile).arg("-o").arg(&output));
    done.expect(code::DONE);
    let result = json(&done.stdout);
    assert!(why_it_stays(&result, "dense").is_some_and(|why| why.contains("--skip-functions")), "{result:#}");
    assert!(
        why_it_stays(&result, "whole_byte").is_none() && !warns(&result, "--skip-functions"),
        "{result:#}"
    );
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}
