//! `record -- COMMAND` counts what the command executes, in whatever process.

mod common;

use common::{PATIENCE, Restitch, code, expect_message, finish};
use restitch_report::RunResult;
use restitch_testkit::{SUCCESS, compile, copy_program, program, require, run, scratch, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn compiled(source: &str, flags: &[&str]) -> Option<PathBuf> {
    match compile(&program(source), flags) {
        Ok(path) => Some(path),
        Err(restitch_testkit::Error::Missing { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Records a shell script in which `$1`, `$2` ... are `programs`; its exit status and the result.
#[track_caller]
fn record(
    restitch: &Restitch,
    profile: &Path,
    options: &[&str],
    script: &str,
    programs: &[&Path],
) -> (i32, RunResult) {
    let json = profile.with_extension("json");
    let mut command = restitch.command(&["record", "-o"]);
    command.arg(profile).arg("--json").arg(&json).args(options).args(["--", "/bin/sh", "-c", script, "sh"]);
    let finished = finish(command.args(programs));
    let status = finished.status.code().expect("an exit code");
    // For whoever reads of a failure.
    println!("{}", finished.stderr);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("no result: {}", finished.stderr));
    (status, RunResult::from_json(&text).expect("the JSON form of a result"))
}

/// Functions that ran in a module, if it is in the result.
fn ran(result: &RunResult, path: &Path) -> Option<u64> {
    let path = std::fs::canonicalize(path).expect("a file");
    let module = result.modules.iter().find(|m| Path::new(&m.path) == path)?;
    module.counting.as_ref().map(|c| c.functions_run)
}

#[test]
fn programs_that_a_script_starts_are_counted_and_optimized() {
    let switch = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let throw = require!(compiled("throw.cc", &["-O2"]), "a compiler");
    let fork = require!(compiled("fork.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let script = "\"$1\"; [ $? = 42 ] || exit 1; (\"$2\"; [ $? = 42 ] || exit 2) || exit 2; \"$3\" & wait $!; \
                  [ $? = 42 ] || exit 3; exec \"$1\"";
    let (status, result) = record(&restitch, &profile, &[], script, &[&switch, &throw, &fork]);
    assert_eq!(status, SUCCESS);
    assert!(result.target.processes >= 5, "{:?}", result.target);
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "files stay in the state directory");
    for program in [&switch, &throw, &fork] {
        assert!(ran(&result, program).is_some_and(|n| n > 0), "{}: {:?}", program.display(), result.warnings);
        let output = folder.path().join("output");
        let mut command = restitch.command(&["optimize"]);
        command.arg(program).arg("--profile").arg(&profile).arg("-o").arg(&output);
        finish(&mut command).expect(code::DONE);
        run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
    }
}

#[test]
fn only_the_named_programs_are_counted() {
    let switch = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let throw = require!(compiled("throw.cc", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let name = throw.file_name().unwrap().to_str().unwrap();
    let script = "\"$1\"; \"$2\"";
    let (status, result) = record(&restitch, &profile, &["--program", name], script, &[&switch, &throw]);
    assert_eq!((status, result.target.processes), (SUCCESS, 1));
    assert_eq!(ran(&result, &switch), None);
    assert!(ran(&result, &throw).is_some_and(|n| n > 0));
    assert_eq!(result.warnings, Vec::<String>::new());
    let missing = restitch.run(&[
        "record",
        "-o",
        profile.to_str().unwrap(),
        "--program",
        "nobody",
        "--",
        "/bin/sh",
        "-c",
        "exit 3",
    ]);
    expect_message(&missing, code::NOTHING_TO_DO, &["nothing was counted"]);
}

#[test]
fn what_cannot_be_counted_runs_and_is_named() {
    let privileged = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let fixed = require!(compiled("throw.cc", &["-O2", "-static"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let program = folder.path().join("privileged");
    copy_program(&privileged, &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let profile = folder.path().join("profile");
    let script = "\"$1\"; [ $? = 42 ] || exit 1; \"$1\"; \"$2\"";
    let (status, result) = record(&restitch, &profile, &[], script, &[&program, &fixed]);
    assert_eq!(status, SUCCESS);
    let said = result.warnings.join("\n");
    assert!(said.contains("privileged ran uncounted 2 times: it is a set-user-id"), "{said}");
    assert_eq!(ran(&result, &program), None);
    assert!(ran(&result, &fixed).is_some_and(|n| n > 0), "static programs are counted: {said}");
}

#[test]
fn a_process_that_outlives_the_command_gets_its_code_back() {
    let switch = require!(compiled("switch.c", &["-O2"]), "a compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let (profile, end) = (folder.path().join("profile"), folder.path().join("end"));
    // The command ends once the program has its counting version; what was forked off to execute it has the
    // shell's before.
    let script = "(\"$1\" --seconds 8 & p=$!; echo $p >\"$2.pid\"; wait $p; echo $? >\"$2\") </dev/null >/dev/null 2>&1 &
        until [ -s \"$2.pid\" ] && read p <\"$2.pid\" && grep -q \"${1##*/}\" /proc/$p/maps && grep -q restitch- /proc/$p/maps || [ -s \"$2\" ]; do sleep 0.05; done; exit 5";
    let (status, result) = record(&restitch, &profile, &[], script, &[&switch, &end]);
    assert_eq!(status, 5);
    assert!(ran(&result, &switch).is_some_and(|n| n > 0));
    // Retired versions may stay mapped while somebody returns into them; none is in force.
    let left = restitch.run(&["status"]).stdout;
    let in_force =
        |line: &&str| line.contains("version ") && !line.contains("retired") || line.contains("left in");
    assert_eq!(left.lines().find(in_force), None, "{left}");
    let code = wait_until(PATIENCE, || std::fs::read_to_string(&end).ok().filter(|t| t.ends_with('\n')));
    assert_eq!(code.as_deref(), Some("42\n"));
}
