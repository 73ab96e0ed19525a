//! `batch` around builds and scripts: whatever is written is the same to the byte, with and without.

mod common;

use common::batching::Batch;
use common::{PATIENCE, code, finish};
use restitch_testkit::{find_program, require, wait_until};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A copy of the small project.
fn project(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/project");
    let copy = folder.join("project");
    std::fs::create_dir(&copy).expect("made");
    for entry in std::fs::read_dir(source).expect("tests/project is part of the repository") {
        let entry = entry.expect("read");
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copied");
    }
    copy
}

/// Everything in a folder, by name.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("read").path());
    files.map(|p| (p.clone(), std::fs::read(&p).expect("read"))).collect()
}

/// The lines of what was printed: which of two jobs prints first is chance.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    lines.sort();
    lines
}

/// What one build has written and printed.
type Built = (BTreeMap<PathBuf, Vec<u8>>, Vec<String>, String);

#[track_caller]
fn build(make: &mut Command, folder: &Path) -> Built {
    finish(Command::new("make").args(["-s", "clean"]).current_dir(folder)).expect(code::DONE);
    let done = finish(make.current_dir(folder));
    done.expect(code::DONE);
    (contents(folder), lines(&done.stdout), done.stderr)
}

#[track_caller]
fn expect_same(plain: &Built, other: &Built, what: &str) {
    let names = |b: &Built| b.0.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(plain), names(other), "{what}");
    for (path, bytes) in &plain.0 {
        assert!(other.0[path] == *bytes, "{what}: {} differs", path.display());
    }
    assert_eq!((&plain.1, &plain.2), (&other.1, &other.2), "{what}");
}

/// Builds again and again until a module whose name begins so is optimized; every build has to give the same.
fn until_optimized(batch: &Batch, folder: &Path, compiler: &str, options: &[&str], wanted: &str) {
    let stop = batch.folder.path().join("stop");
    let script = "while [ ! -e \"$STOP\" ]; do make -s clean; make -s -j2 CXX=\"$0\" || exit 9; sha256sum *.o *.d *.a program result.txt; done";
    let output = batch.folder.path().join("digests");
    let mut command = batch.command(&[&["--eager"], options].concat());
    command.args(["sh", "-c", script, compiler]).env("STOP", &stop).current_dir(folder);
    command.stdout(std::fs::File::create(&output).expect("made")).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let is_wanted = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(wanted));
    let ready = wait_until(PATIENCE * 4, || {
        (batch.optimized().iter().any(is_wanted) || child.try_wait().is_ok_and(|s| s.is_some())).then_some(())
    });
    std::fs::write(&stop, "").expect("written");
    let done = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(ready.is_some() && done.status.success(), "{}: {said}", done.status);
    assert!(batch.optimized().iter().any(is_wanted), "{wanted} was optimized: {said}");
    let digests = std::fs::read_to_string(output).expect("read");
    let distinct: std::collections::BTreeSet<&str> = digests.lines().collect();
    let files: std::collections::BTreeSet<&str> =
        digests.lines().filter_map(|l| l.split_whitespace().nth(1)).collect();
    assert_eq!(distinct.len(), files.len(), "a build in between was different: {distinct:#?}");
}

#[test]
fn a_build_with_gcc_is_the_same_to_the_byte() {
    require!(find_program("make"), "make");
    let compiler = require!(find_program("g++"), "g++");
    let batch = Batch::new();
    let folder = project(batch.folder.path());
    let compiler = format!("CXX={}", compiler.display());
    let plain = build(Command::new("make").args(["-j2", &compiler]), &folder);
    // Beginning, counting and optimizing; then from a warm cache.
    until_optimized(&batch, &folder, compiler.trim_start_matches("CXX="), &[], "cc1plus");
    let warm = build(batch.command(&["--quiet"]).args(["make", "-j2", &compiler]), &folder);
    expect_same(&plain, &warm, "warm cache");
    let report = batch.report();
    let runs = report["optimized"].as_array().into_iter().flatten().find_map(|m| {
        m["path"].as_str().is_some_and(|p| p.ends_with("/cc1plus")).then(|| m["optimized"]["runs"].as_u64())
    });
    assert!(runs.flatten().is_some_and(|n| n >= 3), "the compiler ran in its optimized code: {report:#}");
    // An empty cache, and no sampling worth mentioning.
    let other = Batch::new();
    let first = build(other.command(&["--quiet"]).args(["make", "-j2", &compiler]), &folder);
    expect_same(&plain, &first, "empty cache");
}

#[test]
fn a_build_with_clang_is_the_same_to_the_byte() {
    require!(find_program("make"), "make");
    let names = ["clang++", "clang++-19", "clang++-14"];
    // By its name: the file behind it is that of clang, which takes its language from the name.
    let compiler = *require!(names.iter().find(|n| find_program(n).is_some()), "clang++");
    let batch = Batch::new();
    let folder = project(batch.folder.path());
    let variable = format!("CXX={compiler}");
    let plain = build(Command::new("make").args(["-j2", &variable]), &folder);
    // Its libraries are so large that a test would take minutes; bench/bench batch has them.
    let large: Vec<String> = libraries_of(compiler);
    let options: Vec<&str> = large.iter().flat_map(|l| ["--exclude", l.as_str()]).collect();
    until_optimized(&batch, &folder, compiler, &options, "");
    let mut make = batch.command(&[&["--quiet"], &options[..]].concat());
    let warm = build(make.args(["make", "-j2", &variable]), &folder);
    expect_same(&plain, &warm, "warm cache");
}

/// The file names of clang's own libraries.
fn libraries_of(compiler: &str) -> Vec<String> {
    let said = finish(Command::new("ldd").arg(find_program(compiler).expect("it was found"))).stdout;
    let names = said.lines().filter_map(|l| l.split("=> ").nth(1)?.split(" (").next().map(PathBuf::from));
    let real = names.filter_map(|p| std::fs::canonicalize(p).ok());
    let name = |p: PathBuf| p.file_name().map(|n| n.to_string_lossy().into_owned());
    real.filter_map(name).filter(|n| n.contains("LLVM") || n.contains("clang")).collect()
}

const SCRIPT: &str = r#"
use strict; my %count; my @words = map { chr(97 + $_ % 26) x (1 + $_ % 5) . ($_ % 97) } 1 .. 250000;
for my $w (@words) { $count{$w}++; my $r = reverse $w; $count{$r} .= "x" if $w =~ /^([a-f]+)(\d*)$/; }
print join(",", map { "$_=$count{$_}" } sort keys %count), "\n";
"#;

#[test]
fn scripts_and_git_print_the_same_and_what_is_left_alone_has_a_reason() {
    let (perl, git) = (require!(find_program("perl"), "perl"), require!(find_program("git"), "git"));
    let batch = Batch::new();
    let script = batch.folder.path().join("script.pl");
    std::fs::write(&script, SCRIPT).expect("written");
    let work = "set -e; rm -rf repository; $GIT init -q -b main repository; cd repository; i=0
        while [ $i -lt 12 ]; do i=$((i + 1)); $PERL $SCRIPT $i > file$i; $GIT add file$i; $GIT commit -q -m \"number $i\"; done
        $GIT log --format='%H %s'; $GIT fsck; cat file1 | $PERL -ne 'print length, qq(\\n)'; echo problem >&2";
    let run = |mut command: Command| {
        command.args(["sh", "-c", work]).current_dir(batch.folder.path());
        command.env("PERL", &perl).env("GIT", &git).env("SCRIPT", &script).env("HOME", batch.folder.path());
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "name").env(format!("GIT_{who}_EMAIL"), "a@b");
            command.env(format!("GIT_{who}_DATE"), "2001-02-03T04:05:06Z");
        }
        let done = finish(&mut command);
        done.expect(code::DONE);
        (done.stdout, done.stderr)
    };
    let plain = run(Command::new("env"));
    // A loop of the same, eagerly, is optimized on the way; then from the warm cache, and in one that does
    // nothing at a loss.
    for options in [&["--quiet", "--eager"][..], &["--quiet", "--eager"], &["--quiet"]] {
        assert_eq!(run(batch.command(options)), plain, "{options:?}");
    }
    let other = Batch::new();
    assert_eq!(run(other.command(&["--quiet"])), plain);
    let report = other.report();
    let left = report["left"].as_array().expect("a list");
    let perls = left.iter().find(|l| l["path"].as_str().is_some_and(|p| p.contains("perl")));
    let optimized = report["optimized"].as_array().expect("a list");
    assert!(perls.is_some() || !optimized.is_empty(), "perl used more than half a second: {report:#}");
    for l in left {
        assert!(l["why"].as_str().is_some_and(|why| why.len() > 10), "{report:#}");
    }
}
