//! What names hold commands no terminal: those of files, processes and functions with control characters in
//! them are shown with visible escapes, and are exact in JSON.

mod common;

use common::{Restitch, Target, code, stoppable};
use restitch_testkit::{Finished, compile, copy_program, find_program, program, require, scratch};
use std::path::{Path, PathBuf};

/// A window's title, a colour, and a mark that shows what follows from right to left.
const NAME: &str = "odd\u{1b}]0;title\u{7}\u{1b}[31m\u{202e}gnp.c";
/// As it is to be seen.
const SEEN: &str = "odd\\x1b]0;title\\x07\\x1b[31m\\u{202e}gnp.c";
/// A function of `odd.c` and a name of the same length for it.
const FUNCTION: (&[u8], &[u8]) = (b"\0one_round\0", b"\0\x1b[31m\x1b]0;\0");

/// A program with that name, and such a function.
fn named(folder: &Path) -> Option<PathBuf> {
    let built = stoppable("odd.c", &["-O2", "-pthread"])?;
    let mut bytes = std::fs::read(&built).expect("readable");
    let names = bytes.windows(FUNCTION.0.len()).rposition(|name| name == FUNCTION.0).expect("it has symbols");
    bytes[names..names + FUNCTION.1.len()].copy_from_slice(FUNCTION.1);
    let changed = folder.join("changed");
    std::fs::write(&changed, bytes).expect("writable");
    let path = folder.join(NAME);
    std::fs::set_permissions(&changed, std::fs::metadata(&built).expect("it is there").permissions())
        .expect("ours");
    copy_program(&changed, &path).expect("writable");
    Some(path)
}

/// Nothing but line ends and what shows itself.
#[track_caller]
fn assert_harmless(what: &str, text: &str) {
    let hidden = |c: &char| (c.is_control() && *c != '\n') || matches!(c, '\u{200b}'..='\u{206f}');
    let found: Vec<char> = text.chars().filter(hidden).collect();
    assert!(found.is_empty(), "{what}: {found:?} in {text:?}");
}

#[track_caller]
fn assert_shown(what: &str, finished: &Finished) {
    assert_harmless(what, &finished.stdout);
    assert_harmless(what, &finished.stderr);
    let all = [&*finished.stdout, &*finished.stderr].concat();
    assert!(all.contains(SEEN), "{what} does not name it: {all}");
}

#[test]
fn names_of_files_and_functions_are_shown_with_escapes() {
    let folder = scratch();
    let program = require!(named(folder.path()), "a C compiler");
    let restitch = Restitch::new();
    let path = program.to_str().expect("text");
    let [profile, output, html, json] =
        ["p", "o", "h", "j"].map(|name| folder.path().join(format!("{name}{NAME}")).display().to_string());
    let run = |arguments: &[&str]| {
        let finished = restitch.run(arguments);
        assert_shown(&format!("{arguments:?}"), &finished);
        finished
    };
    run(&["analyze", path]).expect(code::DONE);
    run(&["record", "-o", &profile, "--html", &html, "--json", &json, "--", path, "--busy", "1"]).expect(42);
    run(&["profile", "show", &profile, "--program", path]).expect(code::DONE);
    run(&["optimize", path, "--profile", &profile, "-o", &output]).expect(code::DONE);
    assert_harmless("HTML", &std::fs::read_to_string(&html).expect("written"));
    // Errors: of the command line, of files that are not there, of files that are something else.
    for wrong in [&["analyze", path, path][..], &[path]] {
        let finished = restitch.run(wrong);
        finished.expect(code::USAGE);
        assert_harmless("usage", &(finished.stdout + &finished.stderr));
    }
    run(&["analyze", &format!("{path}.not")]);
    run(&["optimize", &html, "--profile", &profile, "-o", &output]);
    run(&["record", "-o", &profile, "--", &format!("{path}.not")]).expect(code::NOT_FOUND);
}

#[test]
fn names_of_processes_are_shown_with_escapes() {
    let folder = scratch();
    let program = require!(named(folder.path()), "a C compiler");
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let attached = restitch.attach(target.pid(), &[]);
    attached.expect(code::DONE);
    assert_shown("attach", &attached);
    assert_shown("status", &restitch.status(target.pid()));
    assert_shown("status", &restitch.run(&["status"]));
    restitch.revert(target.pid()).expect(code::DONE);
    let json = restitch.attach(target.pid(), &["--json", "-"]);
    json.expect(code::DONE);
    assert_harmless("JSON", &json.stdout);
    assert_harmless("notes", &json.stderr);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).expect("it is JSON");
    assert_eq!(value["target"]["program"].as_str(), program.to_str(), "JSON is exact");
    target.assert_goes_back(&restitch);
    target.stop();
}

/// A line end in a name begins no line of its own.
#[test]
fn a_name_cannot_pass_for_a_line() {
    let folder = scratch();
    let file = folder.path().join("name\nrestitch: all is well");
    std::fs::write(&file, "no program").expect("writable");
    let finished = Restitch::new().run(&["analyze", file.to_str().expect("text")]);
    assert!(finished.stderr.contains("name\\nrestitch: all is well"), "{}", finished.stderr);
    assert_eq!(finished.stderr.trim_end().lines().count(), 1, "{}", finished.stderr);
}

/// Messages are wrapped where they are read, and are one line where scripts read them.
#[test]
fn messages_are_as_wide_as_the_terminal() {
    let script = require!(find_program("script"), "script");
    let restitch = Restitch::new();
    let file = "/a/path/of/a/profile/that/is/not/there/and/has/no/blank/anywhere";
    let whole = restitch.run(&["profile", "show", file]);
    assert_eq!(whole.stderr.lines().count(), 1, "{}", whole.stderr);
    let in_terminal = |columns: usize| {
        let line =
            format!("stty rows 24 cols {columns}; {} profile show {file}", env!("CARGO_BIN_EXE_restitch"));
        let mut command = std::process::Command::new(&script);
        command.args(["-qec", &line, "/dev/null"]).stdin(std::process::Stdio::null());
        common::finish(&mut command).stdout.replace('\r', "")
    };
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    for columns in [60, 100] {
        let shown = in_terminal(columns);
        assert_eq!(words(&shown), words(&whole.stderr), "{shown}");
        assert!(shown.lines().count() > 1, "{shown}");
        let is_fit = |line: &str| line.chars().count() <= columns || words(line).len() == 1;
        assert!(shown.lines().all(is_fit), "{shown}");
    }
    // Of a terminal that does not tell.
    assert!(in_terminal(0).lines().all(|line| line.chars().count() <= 80), "{}", in_terminal(0));
}

/// Whether or not anybody knows how wide a terminal is, results are for people.
#[test]
fn results_fit_into_eighty_columns() {
    let program = require!(compile(&program("switch.c"), &["-O2"]).ok(), "gcc");
    let (restitch, folder) = (Restitch::new(), scratch());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (program, profile, cache) = (program.display().to_string(), at("profile"), at("cache"));
    let recorded = restitch.run(&["record", "-o", &profile, "--", &program]);
    let batched = restitch.run(&["batch", "--cache", &cache, "--", "true"]);
    let lab = ["lab", &program, "--profile", &profile, "--layouts", "original,ext-tsp", "--steps", "20000"];
    let ways = [&lab[..], &["--duplicate", "on", "--prefetch", "on"]].concat();
    let runs = [&lab[..], &["--rounds", "1", "--", &program]].concat();
    let commands = [
        &lab[..],
        &ways,
        &runs,
        &["analyze", &program],
        &["profile", "formats"],
        &["profile", "show", &profile],
        &["doctor"],
        &["kernel", "doctor"],
        &["kernel", "status"],
    ];
    let results = commands.map(|arguments| restitch.run(arguments));
    let is_fit = |line: &str| line.chars().count() <= 80 || line.split_whitespace().count() == 1;
    // Those of `profile show` end with the names of functions, which have any length.
    for finished in [recorded, batched].iter().chain(&results) {
        let text = format!("{}{}", finished.stdout, finished.stderr);
        let long: Vec<&str> = text
            .lines()
            .filter(|line| !is_fit(line) && !line.starts_with("restitch: ") && !line.contains("% "))
            .collect();
        assert!(!text.is_empty() && long.is_empty(), "{long:#?}");
    }
    // In a terminal all lines do.
    let script = require!(find_program("script"), "script");
    let line = format!("stty rows 24 cols 80; {} profile show {profile}", env!("CARGO_BIN_EXE_restitch"));
    let mut command = std::process::Command::new(&script);
    command.args(["-qec", &line, "/dev/null"]).stdin(std::process::Stdio::null());
    let shown = common::finish(&mut command).stdout.replace('\r', "");
    assert!(shown.contains("block executions") && shown.lines().all(is_fit), "{shown}");
}
