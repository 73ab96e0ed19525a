//! `restitch profile`: formats of other tools, with those tools where they are installed.

mod common;

use common::{PATIENCE, Restitch, code, expect_message, finish};
use restitch_report::Comparison;
use restitch_session::profiles::Format;
use restitch_testkit::{
    SUCCESS, TempDir, compile, program, require, run, scratch, skip, skip_unsupported, strip,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A recorded program, in a folder of its own.
struct Recorded {
    restitch: Restitch,
    folder: TempDir,
    program: PathBuf,
}

impl Recorded {
    /// Compiles, with relocations kept, and records one run.
    fn new(source: &str, flags: &[&str]) -> Option<Self> {
        let program = match compile(&program(source), flags) {
            Ok(path) => path,
            Err(restitch_testkit::Error::Missing { .. }) => return None,
            Err(error) => panic!("{error}"),
        };
        let recorded = Self { restitch: Restitch::new(), folder: scratch(), program };
        recorded.record("profile");
        Some(recorded)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn record(&self, name: &str) {
        let mut command = self.restitch.command(&["record", "-o"]);
        finish(command.arg(self.at(name)).arg("--").arg(&self.program)).expect(SUCCESS);
    }

    fn profile(&self, arguments: &[&str]) -> restitch_testkit::Finished {
        let mut command = self.restitch.command(&["profile"]);
        finish(command.args(arguments).arg("--program").arg(&self.program).current_dir(self.folder.path()))
    }

    fn convert(&self, from: &str, to: &str) {
        self.profile(&["convert", from, "-o", to]).expect(code::DONE);
    }

    fn compare(&self, names: &[&str]) -> Comparison {
        let mut arguments = vec!["compare", "--json", "-"];
        arguments.extend(names);
        let finished = self.profile(&arguments);
        finished.expect(code::DONE);
        Comparison::from_json(&finished.stdout).expect("the JSON form")
    }
}

/// BOLT 19 as Debian and apt.llvm.org install it. Too large for every machine that runs the tests.
fn bolt(tool: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/lib/llvm-19/bin").join(tool);
    path.exists().then_some(path)
}

#[test]
fn counts_survive_every_format_that_holds_them() {
    let recorded = require!(Recorded::new("switch.c", &["-O2"]), "gcc");
    let names =
        ["a.fdata", "a.pa", "a.yaml", "a.perf.data", "a.no_lbr.fdata", "a.afdo", "a.order", "a.restitch"];
    names.iter().for_each(|name| recorded.convert("profile", name));
    let is_written = |format: &Format| names.iter().any(|name| Format::of_file_name(name) == Some(*format));
    let others: Vec<Format> = Format::ALL.into_iter().filter(|format| !is_written(format)).collect();
    assert_eq!(others, [Format::PropellerClusters], "only this one asks for a map of blocks in the program");
    let edges = |name| recorded.compare(&["profile", name]).edge_overlap[0][1];
    assert!(edges("a.restitch") > 0.999_999);
    assert!(edges("a.pa") > 0.999_999);
    assert!(edges("a.fdata") > 0.99, "{}", edges("a.fdata"));
    assert!(edges("a.yaml") > 0.99, "{}", edges("a.yaml"));
    assert!(edges("a.perf.data") > 0.95, "{}", edges("a.perf.data"));
    // And back into the store, from which a new file can be made.
    for name in ["a.fdata", "a.pa", "a.yaml", "a.perf.data"] {
        recorded.convert(name, "back.profile");
        let mut optimize = recorded.restitch.command(&["optimize"]);
        optimize.arg(&recorded.program).args(["-o", "new", "--profile", "back.profile"]);
        finish(optimize.current_dir(recorded.folder.path())).expect(code::DONE);
        run(&mut Command::new(recorded.at("new")), PATIENCE).expect(SUCCESS);
    }
    // Directly, too.
    let mut optimize = recorded.restitch.command(&["optimize"]);
    optimize.arg(&recorded.program).args(["-o", "new", "--profile", "a.fdata"]);
    finish(optimize.current_dir(recorded.folder.path())).expect(code::DONE);
    run(&mut Command::new(recorded.at("new")), PATIENCE).expect(SUCCESS);
}

#[test]
fn merged_profiles_are_between_their_parts() {
    let recorded = require!(Recorded::new("virt.cc", &["-O2"]), "g++");
    recorded.record("second.profile");
    recorded.profile(&["merge", "profile", "second.profile", "-o", "both.profile"]).expect(code::DONE);
    recorded
        .profile(&["merge", "--sum", "profile", "second.profile", "-o", "sum.profile"])
        .expect(code::DONE);
    let comparison = recorded.compare(&["profile", "second.profile", "both.profile", "sum.profile"]);
    assert_eq!(comparison.profiles.len(), 4);
    assert!(comparison.block_overlap.iter().flatten().all(|n| *n > 0.98), "{:?}", comparison.block_overlap);
    let drawn = recorded.profile(&["compare", "profile", "both.profile", "--svg", "likeness.svg"]);
    drawn.expect(code::DONE);
    assert!(drawn.stdout.contains("cosine, branches"));
    let svg = std::fs::read_to_string(recorded.at("likeness.svg")).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
}

#[test]
fn what_cannot_be_done_says_what_can() {
    let recorded = require!(Recorded::new("switch.c", &["-O2"]), "gcc");
    let no = |arguments: &[&str], code, words: &[&str]| {
        let mut command = recorded.restitch.command(&["profile"]);
        expect_message(&finish(command.args(arguments).current_dir(recorded.folder.path())), code, words);
    };
    recorded.convert("profile", "a.fdata");
    recorded.convert("profile", "a.order");
    no(&["convert", "profile", "-o", "something"], code::USAGE, &["--format", "fdata"]);
    no(&["convert", "a.fdata", "-o", "b.profile"], code::BAD_INPUT, &["--program"]);
    no(&["convert", "a.order", "-o", "b.fdata"], code::BAD_INPUT, &["how often", "symbol order"]);
    no(&["convert", "absent", "-o", "b.fdata"], code::FAILURE, &["absent", "check the path"]);
    no(&["convert", "profile", "-o", "b.fdata", "--format", "gcov"], code::USAGE, &["gcov", "bolt-yaml"]);
    let program = recorded.program.to_str().expect("a UTF-8 path");
    no(
        &["convert", "profile", "-o", "b.propeller", "--program", program],
        code::BAD_INPUT,
        &["llvm_bb_addr_map"],
    );
    no(&["convert", "profile", "-o", "b.fdata", "--program", "/bin/true"], code::BAD_INPUT, &["--program"]);
    no(&["merge", "profile", "--weights", "1,2", "-o", "b.profile"], code::USAGE, &["2 weights for 1"]);
    no(&["compare", "profile"], code::USAGE, &[]);
    std::fs::write(recorded.at("noise"), "what is this\n").expect("writable");
    no(&["show", "noise"], code::BAD_INPUT, &["profile formats"]);
    no(&["show", "/etc/passwd"], code::BAD_INPUT, &["profile formats"]);
    recorded.restitch.run(&["profile", "formats"]).expect(code::DONE);
}

/// Names that occur in no function of the program make no layout, and no copy of it.
#[test]
fn profiles_by_names_that_the_program_does_not_have_are_refused() {
    let recorded = require!(Recorded::new("switch.c", &["-O2"]), "gcc");
    let write = |name: &str, text: &str| std::fs::write(recorded.at(name), text).expect("writable");
    write("words", "one\ntwo\n");
    write("other.fdata", "1 one 1c 1 one 30 0 10\n1 two 1c 1 two 30 0 10\n");
    write("other.afdo", "one:184019:0\n 4: 534\n");
    write("no_lbr.fdata", "no_lbr cycles:\n1 one 1c 10\n");
    for (name, words) in [
        ("words", "none of the 2 names"),
        ("other.fdata", "2 names of the profile are not in"),
        ("other.afdo", "1 of 1 functions"),
        ("no_lbr.fdata", "nothing that it counts"),
    ] {
        let program = recorded.program.display().to_string();
        let refused = |finished| expect_message(&finished, code::BAD_INPUT, &[name, words, &program]);
        refused(recorded.profile(&["show", name]));
        refused(recorded.profile(&["convert", name, "-o", "out.order"]));
        for arguments in [&["optimize", "-o", "new"][..], &["lab"]] {
            let mut command = recorded.restitch.command(arguments);
            command.arg(&recorded.program).args(["--profile", name]);
            refused(finish(command.current_dir(recorded.folder.path())));
        }
        assert!(!recorded.at("new").exists() && !recorded.at("out.order").exists());
    }
}

#[test]
fn perf_reads_what_is_written() {
    let perf = require!(restitch_testkit::find_program("perf"), "perf");
    let recorded = require!(Recorded::new("switch.c", &["-O2"]), "gcc");
    for depth in [16, 1024] {
        let name = format!("{depth}.perf.data");
        recorded
            .profile(&["convert", "profile", "-o", &name, "--depth", &depth.to_string()])
            .expect(code::DONE);
        let mut script = Command::new(&perf);
        script.args(["script", "-i", &name, "-F", "ip,brstack"]).current_dir(recorded.folder.path());
        let stacks = run(&mut script, PATIENCE);
        stacks.expect(0);
        let first = stacks.stdout.lines().next().expect("samples");
        assert_eq!(first.split_whitespace().filter(|w| w.starts_with("0x")).count(), depth, "{first}");
    }
    let mut report = Command::new(&perf);
    report.args(["report", "-i", "16.perf.data", "--stdio", "--branch-history", "--percent-limit", "5"]);
    let report = run(report.current_dir(recorded.folder.path()), PATIENCE);
    report.expect(0);
    assert!(report.stdout.contains("cycles:u") && report.stdout.contains("main"), "{}", report.stdout);
    let mut list = Command::new(&perf);
    let list =
        run(list.args(["buildid-list", "-i", "16.perf.data"]).current_dir(recorded.folder.path()), PATIENCE);
    assert!(list.stdout.contains(recorded.program.to_str().expect("a UTF-8 path")), "{}", list.stdout);
}

/// llvm-bolt makes a working program of each form, and takes the profile of (nearly) every function.
#[test]
fn bolt_optimizes_with_what_is_written() {
    let (Some(llvm_bolt), Some(perf2bolt)) = (bolt("llvm-bolt"), bolt("perf2bolt")) else {
        skip!("llvm-bolt 19 is not installed (apt-get install bolt-19)");
    };
    for source in ["virt.cc", "switch.c"] {
        let recorded = require!(Recorded::new(source, &["-O2", "-Wl,-q"]), "a compiler");
        for name in ["a.fdata", "a.pa", "a.yaml", "a.perf.data", "a.no_lbr.fdata"] {
            recorded.convert("profile", name);
        }
        let tool = |tool: &Path, arguments: &[&str]| {
            let mut command = Command::new(tool);
            command.arg(&recorded.program).args(arguments).current_dir(recorded.folder.path());
            let done = run(&mut command, PATIENCE);
            done.expect(0);
            format!("{}{}", done.stdout, done.stderr)
        };
        tool(&perf2bolt, &["--pa", "-p", "a.pa", "-o", "pa.fdata"]);
        tool(&perf2bolt, &["-p", "a.perf.data", "-o", "perf.fdata"]);
        for (data, more) in [
            ("a.fdata", ""),
            ("a.no_lbr.fdata", ""),
            ("pa.fdata", ""),
            ("perf.fdata", ""),
            ("a.yaml", "--profile-ignore-hash"),
        ] {
            let mut arguments = vec!["-data", data, "-o", "bolted", "--reorder-blocks=ext-tsp"];
            arguments.extend(Some(more).filter(|m| !m.is_empty()));
            let said = tool(&llvm_bolt, &arguments);
            assert!(said.contains("have non-empty execution profile"), "{data}: {said}");
            assert!(!said.contains("invalid (possibly stale) profile"), "{data}: {said}");
            run(&mut Command::new(recorded.at("bolted")), PATIENCE).expect(SUCCESS);
        }
        // Ours and perf2bolt's from the same counts are the same lines.
        let lines = |name: &str| {
            let text = std::fs::read_to_string(recorded.at(name)).expect("readable");
            let mut lines: Vec<String> = text.lines().map(String::from).collect();
            lines.sort();
            lines
        };
        let (ours, theirs) = (lines("a.fdata"), lines("pa.fdata"));
        let same = ours.iter().filter(|l| theirs.binary_search(l).is_ok()).count();
        assert!(same * 100 >= ours.len() * 98, "{source}: {same} of {} lines", ours.len());
        assert!(recorded.compare(&["profile", "perf.fdata"]).edge_overlap[0][1] > 0.95);
    }
}

/// Branch records of a run, traced, as `perf.data`, `fdata` and pre-aggregated text: `perf` and BOLT take all
/// of them for what a processor has recorded.
#[test]
fn perf_and_bolt_read_traced_records() {
    // Profiles of AutoFDO are of source lines; llvm-profgen 14 knows DWARF 4.
    let recorded = require!(Recorded::new("virt.cc", &["-O2", "-gdwarf-4", "-Wl,-q"]), "g++");
    let told = recorded.restitch.run(&["doctor"]).stdout;
    if !told.lines().any(|line| line.starts_with("yes hardware breakpoints")) {
        skip_unsupported!("no hardware breakpoints");
    }
    let trace = |name: &str, more: &[&str], busy: &str| {
        let _ = std::fs::remove_file(recorded.at(name));
        let mut command = recorded.restitch.command(&["record", "--source", "trace", "--overhead", "30%"]);
        command.args(more).arg("-o").arg(recorded.at(name)).arg("--").arg(&recorded.program);
        finish(command.args(["--busy", busy])).expect(SUCCESS);
        recorded.compare(&["profile", name]).edge_overlap[0][1]
    };
    for (name, more) in [
        ("traced.perf.data", &["--depth", "32"][..]),
        ("deep", &["--depth", "1024", "--format", "perf.data"]),
        ("traced.fdata", &[]),
        ("traced.pa", &[]),
    ] {
        // What a stop takes counts in full, also while others have the processor: few of them on a busy
        // machine.
        let mut overlaps = Vec::new();
        for busy in ["2", "8", "30"] {
            overlaps.push(trace(name, more, busy));
            if overlaps.last() > Some(&0.9) {
                break;
            }
        }
        assert!(overlaps.last() > Some(&0.9), "{name}: {overlaps:?}");
    }
    if let Some(perf) = restitch_testkit::find_program("perf") {
        let tool = |arguments: &[&str]| {
            let done = run(Command::new(&perf).args(arguments).current_dir(recorded.folder.path()), PATIENCE);
            done.expect(0);
            done.stdout
        };
        for (name, depth) in [("traced.perf.data", 32), ("deep", 1024)] {
            let stacks = tool(&["script", "-i", name, "-F", "comm,ip,brstack"]);
            let depths: Vec<usize> = stacks.lines().map(|l| l.matches("0x").count() / 2).collect();
            assert_eq!(depths.iter().max(), Some(&depth), "{name}");
        }
        let named = tool(&["script", "-i", "traced.perf.data", "-F", "comm,brstacksym"]);
        assert!(named.contains("main+"), "{}", named.lines().next().unwrap_or_default());
        // It looks a source line up for each record, some milliseconds each: a short recording of its own.
        trace("short.perf.data", &["--depth", "32"], "1");
        let options = ["--stdio", "--branch-history", "--percent-limit", "5"];
        let report = tool(&[&["report", "-i", "short.perf.data"][..], &options].concat());
        assert!(report.contains("cycles:u"), "{report}");
        let list = tool(&["buildid-list", "-i", "traced.perf.data"]);
        assert!(list.contains(recorded.program.to_str().expect("a UTF-8 path")), "{list}");
    }
    let profgen = ["llvm-profgen", "llvm-profgen-19", "llvm-profgen-14"];
    if let Some(profgen) = profgen.iter().find_map(|name| restitch_testkit::find_program(name)) {
        let mut command = Command::new(profgen);
        command.arg("--binary").arg(&recorded.program).args(["--perfdata", "traced.perf.data"]);
        command.args(["--output", "autofdo", "--format", "text"]).current_dir(recorded.folder.path());
        run(&mut command, PATIENCE).expect(0);
        let text = std::fs::read_to_string(recorded.at("autofdo")).expect("written");
        let main = text.lines().find_map(|line| line.strip_prefix("main:")?.split(':').next()?.parse().ok());
        assert!(main.is_some_and(|samples: u64| samples > 1_000), "{text}");
    }
    let (Some(llvm_bolt), Some(perf2bolt)) = (bolt("llvm-bolt"), bolt("perf2bolt")) else {
        skip!("llvm-bolt 19 is not installed (apt-get install bolt-19)");
    };
    let tool = |tool: &Path, arguments: &[&str]| {
        let mut command = Command::new(tool);
        let done =
            run(command.arg(&recorded.program).args(arguments).current_dir(recorded.folder.path()), PATIENCE);
        done.expect(0);
        format!("{}{}", done.stdout, done.stderr)
    };
    tool(&perf2bolt, &["-p", "traced.perf.data", "-o", "perf.fdata"]);
    tool(&perf2bolt, &["-p", "deep", "-o", "deep.fdata"]);
    tool(&perf2bolt, &["--pa", "-p", "traced.pa", "-o", "pa.fdata"]);
    // The upper bound: exact counts.
    recorded.convert("profile", "exact.fdata");
    for data in ["exact.fdata", "traced.fdata", "perf.fdata", "deep.fdata", "pa.fdata"] {
        let said = tool(&llvm_bolt, &["-data", data, "-o", "bolted", "--reorder-blocks=ext-tsp"]);
        assert!(said.contains("have non-empty execution profile"), "{data}: {said}");
        assert!(!said.contains("invalid (possibly stale) profile"), "{data}: {said}");
        run(&mut Command::new(recorded.at("bolted")), PATIENCE).expect(SUCCESS);
    }
}

/// Functions without symbols have the names that BOLT gives them.
#[test]
fn bolt_knows_the_functions_of_a_stripped_program() {
    let Some(llvm_bolt) = bolt("llvm-bolt") else {
        skip!("llvm-bolt 19 is not installed (apt-get install bolt-19)");
    };
    let mut recorded = require!(Recorded::new("switch.c", &["-O2"]), "gcc");
    recorded.program = require!(strip(&recorded.program).ok(), "strip");
    recorded.record("stripped.profile");
    recorded.convert("stripped.profile", "a.fdata");
    let fdata = std::fs::read_to_string(recorded.at("a.fdata")).expect("readable");
    assert!(fdata.contains("__BOLT_FDE_FUNCat"), "{fdata}");
    let mut command = Command::new(llvm_bolt);
    command.arg(&recorded.program).args(["-data", "a.fdata", "-o", "bolted", "--allow-stripped"]);
    let done = run(command.current_dir(recorded.folder.path()), PATIENCE);
    done.expect(0);
    let said = format!("{}{}", done.stdout, done.stderr);
    let profiled = said.lines().find(|l| l.contains("have non-empty execution profile")).unwrap_or_default();
    assert!(!profiled.contains(" 0 out of") && !said.contains("possibly stale"), "{said}");
    let named = fdata
        .lines()
        .map(|l| l.split(' ').nth(1).unwrap_or_default())
        .collect::<std::collections::BTreeSet<_>>();
    assert!(!profiled.is_empty() && named.len() > 1, "{said}");
}
