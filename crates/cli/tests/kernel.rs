//! `restitch kernel`, on made-up kernels, and on copies of real ones where `RESTITCH_KERNEL_VIEWS` names a
//! folder with folders of them.

use restitch_testkit::small_kernel::SmallKernel;
use restitch_testkit::{TempDir, scratch};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn kernel(arguments: &[&str], view: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    command.arg("kernel").args(arguments).arg("--view").arg(view).output().expect("it starts")
}

fn view() -> TempDir {
    let folder = scratch();
    SmallKernel::new().write_view(folder.path());
    folder
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[track_caller]
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    text(output)
}

/// What the message says of a failure with that exit code.
#[track_caller]
fn failed(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let message = String::from_utf8(output.stderr.clone()).expect("text");
    assert!(message.starts_with("restitch: ") && message.lines().count() == 1, "{message}");
    message
}

/// Lines keep to 80 columns.
#[track_caller]
fn assert_is_narrow(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

fn json(arguments: &[&str], view: &Path) -> Value {
    let output = kernel(&[arguments, &["--json", "-"]].concat(), view);
    serde_json::from_str(&text(&output)).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn the_whole_kernel_is_told_in_figures() {
    let folder = view();
    let said = done(&kernel(&["analyze"], folder.path()));
    assert_is_narrow(&said);
    for words in [
        "Linux 6.99.0-small",
        "functions       16,",
        "2 share their name with others",
        "static keys     1, 1 of them in 2 bytes; 0 are jumps now",
        "faults          expected of 1 instruction",
        "a jump whose targets are not known",
        "bytes in it are no instruction",
    ] {
        assert!(said.contains(words), "{words:?} is missing in {said}");
    }
    let survey = &json(&["analyze"], folder.path())["survey"];
    assert_eq!((survey["functions"].as_u64(), survey["counts"]["bugs"].as_u64()), (Some(16), Some(2)));
}

#[test]
fn functions_are_told_by_name_or_address() {
    let folder = view();
    let said = done(&kernel(&["analyze", "work", "jumps_by_table"], folder.path()));
    assert_is_narrow(&said);
    for words in
        ["__work_alias at 0xffffffff81000000", "in 2 parts", "movable         yes", "goes to", "fail"]
    {
        assert!(said.contains(words), "{words:?} is missing in {said}");
    }
    let second = format!("{:#x}", SmallKernel::new().place(10));
    let found = json(&["analyze", &second], folder.path());
    assert_eq!(found["functions"][0]["name"], "same");
    let work = &json(&["analyze", "work"], folder.path())["functions"][0];
    let ends: Vec<&str> =
        work["blocks"].as_array().expect("blocks").iter().filter_map(|b| b["end"].as_str()).collect();
    assert_eq!(ends, ["conditional", "next", "static_key", "conditional", "return", "call_without_return"]);
}

#[test]
fn what_a_kernel_allows_is_told_with_commands() {
    let folder = view();
    let said = done(&kernel(&["doctor"], folder.path()));
    assert_is_narrow(&said);
    for words in [
        "yes symbols",
        "no  unsigned modules       are refused by lockdown",
        "      to allow more: sudo mokutil --import /var/lib/dkms/mok.pub, and reboot",
        "no  lockdown               integrity",
        "restitch kernel analyze works here; for copies in force,",
    ] {
        assert!(said.contains(words), "{words:?} is missing in {said}");
    }
    let facts = json(&["doctor"], folder.path());
    assert_eq!((&facts["can_analyze"], &facts["can_redirect"]), (&Value::Bool(true), &Value::Bool(false)));
    // An empty folder allows nothing, and says so.
    let empty = scratch();
    let output = kernel(&["doctor"], empty.path());
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(text(&output).contains("restitch kernel analyze does not work here"));
}

#[test]
fn the_running_kernel_is_asked_by_any_user() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_restitch")).args(["kernel", "doctor"]).output().expect("it starts");
    assert!(matches!(output.status.code(), Some(0 | 5)), "{output:?}");
    assert_is_narrow(&text(&output));
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// What is not permitted says so; else the exit code is `code`.
#[test]
fn where_the_running_kernels_time_goes_is_told_or_why_it_is_not() {
    let find = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.args(["kernel", "find"]).args(arguments).output().expect("it starts")
    };
    for (arguments, code) in [(&["--for", "0.2"][..], 0), (&["--", "sh", "-c", "exit 3"], 3)] {
        let output = find(arguments);
        if output.status.code() == Some(5) {
            assert!(failed(&output, 5).contains("root"), "{output:?}");
            continue;
        }
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let said = text(&output);
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.starts_with("sampled     Linux ") && words.contains("of the kernel in"), "{said}");
        assert_is_narrow(&said);
    }
    let both = find(&["--pid", "1", "--", "true"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[test]
fn what_is_counted_first_has_roots_and_no_other_order() {
    let position = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.args(["kernel", "position"]).args(arguments).output().expect("it starts")
    };
    for wrong in [
        &[][..],
        &["do_sys_poll", "--hottest", "5"],
        &["do_sys_poll", "--order", "kept", "--pid", "1"],
        &["do_sys_poll", "--counts", "x", "--count-for", "3"],
        &["do_sys_poll", "--anyway", "--bottleneck", "3%"],
        &["do_sys_poll", "--hot", "0"],
    ] {
        let output = position(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}

#[test]
fn wrong_names_and_broken_files_are_refused_with_their_exit_codes() {
    let folder = view();
    let path = |name: &str| folder.path().join(name);
    assert!(failed(&kernel(&["analyze", "work_"], folder.path()), 2).contains("no function work_"));
    assert!(failed(&kernel(&["analyze", "same"], folder.path()), 2).contains("name one by its address"));
    let core = fs::read(path("proc/kcore")).expect("a file");
    let broken = |bytes: &[u8], words: &str| {
        fs::write(path("proc/kcore"), bytes).expect("written");
        let said = failed(&kernel(&["analyze"], folder.path()), 3);
        assert!(said.contains(words), "{said}");
    };
    broken(&core[..core.len() / 2], "it ends before");
    broken(b"\x7fELF", "it ends before");
    broken(&vec![0; 4096], "it is no core file");
    fs::remove_file(path("proc/kcore")).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", path("proc/kcore")).expect("linked");
    assert!(failed(&kernel(&["analyze"], folder.path()), 3).contains("it is no ordinary file"));
    fs::remove_file(path("proc/kcore")).expect("removed");
    fs::write(path("proc/kcore"), &core).expect("written");
    fs::write(path("proc/kallsyms"), "0000000000000000 T _stext\n0000000000000000 T _etext\n")
        .expect("written");
    assert!(failed(&kernel(&["analyze"], folder.path()), 5).contains("shows no addresses"));
    fs::write(path("proc/kallsyms"), [0xff; 64]).expect("written");
    failed(&kernel(&["analyze"], folder.path()), 3);
    fs::write(path("proc/kallsyms"), "ffffffff81000000 T main\n").expect("written");
    failed(&kernel(&["analyze"], folder.path()), 6);
    fs::remove_file(path("proc/kallsyms")).expect("removed");
    failed(&kernel(&["analyze"], folder.path()), 1);
}

/// A folder with a made-up kernel, whose types are not told, and a module file of it.
fn view_with_module(example: &[u8]) -> TempDir {
    let folder = view();
    let modules = folder.path().join("lib/modules/6.99.0-small/kernel");
    fs::create_dir_all(&modules).expect("a folder");
    fs::write(modules.join("example.ko"), example).expect("written");
    folder
}

#[test]
fn modules_are_told_what_they_lack() {
    let folder = view();
    let file = folder.path().join("group.ko");
    let write = file.to_str().expect("a name");
    let position = |arguments: &[&str], view: &Path| {
        kernel(&[&["position", "--write", write], arguments].concat(), view)
    };
    let said = failed(&position(&["work"], folder.path()), 6);
    assert!(said.contains("lib/modules/6.99.0-small holds no module file"), "{said}");
    let folder = view_with_module(b"no module");
    let said = failed(&position(&["work"], folder.path()), 3);
    assert!(said.contains("give one that was built for the running kernel"), "{said}");
    fs::write(folder.path().join("counts"), "x\n").expect("written");
    let counts = folder.path().join("counts").display().to_string();
    let said = failed(&position(&["work", "--counts", &counts], folder.path()), 3);
    assert!(said.contains("line 1: an address in hexadecimal"), "{said}");
    assert!(!file.exists(), "nothing is written");
}

#[test]
fn modules_of_real_kernels_are_written_and_not_loaded() {
    let Some(views) = std::env::var_os("RESTITCH_KERNEL_VIEWS").map(PathBuf::from) else {
        restitch_testkit::skip_unsupported!("RESTITCH_KERNEL_VIEWS names no folder with views of kernels");
    };
    // The others compare checksums of the control module, which is not in the view.
    let view = views.join("7.3");
    let folder = scratch();
    let file = folder.path().join("poll.ko");
    let write = file.to_str().expect("a name");
    let position = |arguments: &[&str]| kernel(&[&["position", "--write", write], arguments].concat(), &view);
    let mut lengths = BTreeSet::new();
    for order in ["kept", "reversed"] {
        let said = done(&position(&["do_sys_poll", "--callees", "1", "--order", order]));
        assert_is_narrow(&said);
        for words in ["restitch_do_sys_poll", "led to copies   do_sys_poll\n", "Nothing was loaded"] {
            assert!(said.contains(words), "{words:?} is missing in {said}");
        }
        lengths.insert(fs::read(&file).expect("written").len());
    }
    assert_eq!(lengths.len(), 2, "orders differ");
    // By counts there is a picture, in all forms.
    let [counts, json, html] = ["counts", "poll.json", "poll.html"].map(|name| folder.path().join(name));
    let symbols = fs::read_to_string(view.join("proc/kallsyms")).expect("symbols");
    let line = symbols.lines().find(|line| line.ends_with(" do_sys_poll")).expect("it has it");
    fs::write(&counts, format!("{} 4 1000\n", &line[..16])).expect("written");
    let [counts, json, html] = [&counts, &json, &html].map(|path| path.to_str().expect("a name"));
    let outputs = ["--counts", counts, "--json", json, "--html", html];
    let said = done(&position(&[&["do_sys_poll", "--callees", "1"][..], &outputs].concat()));
    assert_is_narrow(&said);
    assert!(said.contains("do_sys_poll (root)") && said.contains("of the cache; 0 sets overfull"), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(json).expect("written")).expect("JSON");
    assert_eq!((&report["name"], &report["led_by"]), (&"restitch_do_sys_poll".into(), &Value::Null));
    let lines = report["cache"]["after"]["sets"].as_array().expect("sets").iter().filter_map(Value::as_u64);
    let lines = lines.sum::<u64>();
    let least = report["functions"][0]["hot_bytes"].as_u64().expect("a number").div_ceil(64);
    assert!((least..=least + 1).contains(&lines), "the entry alone is hot, in one piece: {report}");
    assert!(fs::read_to_string(html).expect("written").contains("Group restitch_do_sys_poll"));
    let said = failed(&position(&["schedule"]), 6);
    assert!(said.contains("schedule: the kernel tells waiting tasks by its address"), "{said}");
    let old = failed(&kernel(&["position", "--write", write, "do_sys_poll"], &views.join("6.1")), 6);
    assert!(old.contains("wants a checksum of restitch_kernel_register"), "{old}");
}

/// The paths of a JSON value's fields, as `docs/json.md` writes them.
fn paths(value: &Value, at: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                paths(field, &path, out);
                out.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{at}[]"), out)),
        _ => {}
    }
}

#[test]
fn the_document_names_exactly_the_fields_that_there_are() {
    let folder = view();
    let mut there = BTreeSet::new();
    for arguments in [&["doctor"][..], &["analyze"], &["analyze", "work", "knows_itself"]] {
        paths(&json(arguments, folder.path()), "", &mut there);
    }
    // They are said to be the same as those of a function.
    there.retain(|path| !path.starts_with("survey.counts."));
    let document = include_str!("../../../docs/json.md").split_once("\n## The kernel\n").expect("a part").1;
    let document = document.split("\n## ").next().unwrap_or_default();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<String> = rows.map(str::to_owned).collect();
    assert_eq!(there, documented);
}

#[test]
fn copies_of_real_kernels_are_understood() {
    let Some(views) = std::env::var_os("RESTITCH_KERNEL_VIEWS") else {
        restitch_testkit::skip_unsupported!(
            "RESTITCH_KERNEL_VIEWS names no folder with views of kernels (`restitch-guest view` makes some)"
        );
    };
    let views: Vec<PathBuf> =
        fs::read_dir(views).expect("a folder").map(|view| view.expect("readable").path()).collect();
    assert!(!views.is_empty());
    for view in views {
        assert_is_narrow(&done(&kernel(&["doctor"], &view)));
        assert_is_narrow(&done(&kernel(&["analyze"], &view)));
        let survey = &json(&["analyze"], &view)["survey"];
        let number = |name: &str| survey[name].as_u64().unwrap_or_else(|| panic!("no {name}")) as f64;
        assert!(
            number("functions") > 30_000.0 && number("movable_bytes") / number("code_bytes") > 0.97,
            "{survey}"
        );
        // No place that the kernel rewrites is missed or misread.
        let reasons =
            survey["not_movable"].as_array().expect("reasons").iter().filter_map(|r| r["reason"].as_str());
        let reasons: Vec<&str> = reasons.collect();
        for wrong in ["in an unknown state", "middle of an instruction", "no instruction"] {
            assert!(!reasons.iter().any(|reason| reason.contains(wrong)), "{reasons:?}");
        }
        let poll = done(&kernel(&["analyze", "do_sys_poll", "tcp_v4_rcv", "vfs_read"], &view));
        assert_eq!(poll.matches("movable         yes").count(), 3, "{poll}");
    }
}

/// Where no control module is, that is what all say, and how to get it.
#[test]
fn groups_of_a_kernel_without_the_control_module_are_asked_for_in_vain() {
    if Path::new("/dev/restitch-kernel").exists() {
        println!("SKIPPED: this kernel has the control module");
        return;
    }
    let all: [&[&str]; 4] = [
        &["kernel", "status"],
        &["kernel", "revert", "poll"],
        &["kernel", "position", "do_sys_poll"],
        &["kernel", "run", "do_sys_poll", "--", "true"],
    ];
    for arguments in all {
        let output =
            Command::new(env!("CARGO_BIN_EXE_restitch")).args(arguments).output().expect("it starts");
        let message = failed(&output, 6);
        assert!(message.contains("modprobe restitch-kernel"), "{message}");
    }
}

#[test]
fn files_that_tell_where_the_kernel_is_are_their_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = view();
    let file = folder.path().join("analysis.json");
    done(&kernel(&["analyze", "work", "--json", file.to_str().expect("text")], folder.path()));
    assert_eq!(fs::metadata(&file).expect("written").permissions().mode() & 0o777, 0o600);
}
