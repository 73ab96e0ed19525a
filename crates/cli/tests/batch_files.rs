//! `batch` with programs and libraries that have no build id: they are known by their files, and a file that
//! has changed is another one. And with libraries that programs open themselves: they are left alone.

mod common;

use common::batching::Batch;
use common::{PATIENCE, code};
use restitch_testkit::{require, wait_until};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Works for some seconds; says what it has computed, and whether it and its library run in overlays.
const MAIN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
unsigned work(unsigned);
__attribute__((noipa)) unsigned own(unsigned n) {
    unsigned s = 0;
    for (unsigned i = 0; i < n; i++) switch ((s + i) % 7) {
        case 0: s += 3; break; case 1: s ^= 7; break; case 2: s = s * 31 + 1; break; case 3: s += NUMBER; break;
        case 4: s |= n & 5; break; case 5: s -= i; break; default: s += 11; }
    return s;
}
static int overlaid(void *at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[5000];
    unsigned long start, end;
    int found = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (unsigned long)at && (unsigned long)at < end)
            found = strstr(line, ".optimized") != 0;
    return found;
}
int main(int argc, char **argv) {
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    unsigned sum = own(100000) + work(100000), again;
    do again = own(100000) + work(100000); while (clock() < seconds * CLOCKS_PER_SEC);
    printf("%u %d %d\n", sum, overlaid((void *)own), overlaid((void *)work));
    return again == sum ? 42 : 1;
}
"#;

const LIBRARY: &str = r#"
static int turn(unsigned n) {
    switch (n % 7) { case 0: return 3; case 1: return NUMBER; case 2: return 1; case 3: return 9; case 4: return n & 5; case 5: return n | 3; default: return 11; }
}
unsigned work(unsigned n) { unsigned s = 0; for (unsigned i = 0; i < n; i++) s = s * 31 + turn(s >> 3); return s; }
"#;

struct Built {
    program: PathBuf,
    library: PathBuf,
}

/// The program and its library, without build ids; with another number the files differ in some bytes only.
fn build(folder: &Path, number: u32) -> Option<Built> {
    let gcc = restitch_testkit::find_program("gcc").or_else(|| {
        restitch_testkit::skipped("gcc is missing");
        None
    })?;
    std::fs::create_dir(folder).expect("made");
    let compile = |name: &str, text: &str, output: &Path, more: &[&str]| {
        let source = folder.join(name);
        std::fs::write(&source, text).expect("written");
        let mut gcc = Command::new(&gcc);
        gcc.args(["-O2", "-fPIE", "-Wl,--build-id=none", &format!("-DNUMBER={number}"), "-o"]);
        let done = gcc.arg(output).arg(&source).args(more).output().expect("gcc starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let (program, library) = (folder.join("program"), folder.join("libwork.so"));
    compile("library.c", LIBRARY, &library, &["-shared", "-fPIC"]);
    let search = format!("-Wl,-rpath,$ORIGIN,-L{}", folder.display());
    compile("main.c", MAIN, &program, &[&search, &format!("-L{}", folder.display()), "-lwork"]);
    Some(Built { program, library })
}

impl Built {
    /// What it computes, and whether program and library run in overlays, when it is started beside a cache.
    #[track_caller]
    fn run(&self, batch: &Batch) -> (u32, bool, bool) {
        self.run_as(&self.program, batch)
    }

    #[track_caller]
    fn run_as(&self, name: &Path, batch: &Batch) -> (u32, bool, bool) {
        let agent = batch.cache().join("v1/librestitch-preload.so");
        let done = Command::new(name).env("LD_PRELOAD", agent).output().expect("it starts");
        assert_eq!((done.status.code(), &*done.stderr), (Some(42), &b""[..]));
        let said = String::from_utf8(done.stdout).expect("text");
        let numbers: Vec<u32> = said.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        (numbers[0], numbers[1] == 1, numbers[2] == 1)
    }

    /// Runs it in batches until `done`.
    #[track_caller]
    fn until(&self, batch: &Batch, done: impl Fn() -> bool) {
        let stop = batch.folder.path().join("stop");
        let script = "while [ ! -e \"$STOP\" ]; do \"$0\" --seconds 0.3; [ $? = 42 ] || exit 9; done";
        let mut command = batch.command(&["--eager"]);
        command.args(["sh", "-c", script]).arg(&self.program).env("STOP", &stop);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let is_done = wait_until(PATIENCE * 2, || done().then_some(())).is_some();
        std::fs::write(&stop, "").expect("written");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(is_done && output.status.code() == Some(code::DONE), "{said}");
        std::fs::remove_file(&stop).expect("removed");
    }

    /// A batch in which program and library are optimized; nothing where files are not known by their times.
    fn optimized(&self) -> Option<(Batch, u32)> {
        let batch = Batch::new();
        let kept = File::open(&self.program).and_then(|f| restitch_procfs::change_times(&f)).expect("read");
        if kept != restitch_procfs::ChangeTimes::Kept {
            restitch_testkit::skipped("the file system of temporary files does not keep times");
            return None;
        }
        self.until(&batch, || [&self.program, &self.library].iter().all(|p| batch.in_force().contains(p)));
        let (sum, ..) = self.run(&batch);
        Some((batch, sum))
    }
}

/// Other bytes in the same file, which says that nothing has happened.
fn overwrite(file: &Path, bytes: &[u8]) {
    let before = std::fs::metadata(file).expect("there");
    let open = File::options().write(true).open(file).expect("opened");
    open.write_all_at(bytes, 0).expect("written");
    open.set_len(bytes.len() as u64).expect("truncated");
    open.set_modified(before.modified().expect("a time")).expect("set");
    let after = std::fs::metadata(file).expect("there");
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
}

fn replace(file: &Path, bytes: &[u8]) {
    let new = file.with_extension("new");
    std::fs::write(&new, bytes).expect("written");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).expect("permitted");
    std::fs::rename(&new, file).expect("renamed");
}

#[test]
fn they_run_in_overlays_for_as_long_as_their_files_are_the_same() {
    let folder = restitch_testkit::scratch();
    let Some(built) = build(&folder.path().join("one"), 5) else { return };
    let Some(other) = build(&folder.path().join("two"), 6) else { return };
    let Some((batch, sum)) = built.optimized() else { return };
    assert_eq!(built.run(&batch), (sum, true, true));
    let (other_sum, ..) = other.run(&batch);
    assert_ne!(other_sum, sum);
    let read = |file: &Path| std::fs::read(file).expect("read");
    let (program, library) = (read(&built.program), read(&built.library));
    assert_eq!(program.len(), read(&other.program).len(), "the files differ in some bytes only");

    // A copy is another file, a second name the same; but to give it one is a change, and it has to be looked
    // at again.
    let copy = folder.path().join("one/copy");
    std::fs::copy(&built.program, &copy).expect("copied");
    assert_eq!(built.run_as(&copy, &batch), (sum, false, true));
    let link = folder.path().join("one/link");
    std::fs::hard_link(&built.program, &link).expect("linked");
    assert_eq!(built.run(&batch), (sum, false, true));
    let counted = |path: &Path| {
        let report = batch.cache_command(&["list"]).stdout;
        // What is said of it, and its build, are below its path.
        let entry = report.lines().skip_while(|l| !l.contains(&*path.to_string_lossy())).take(3);
        let entry: Vec<&str> = entry.collect();
        (!entry.is_empty()).then(|| entry.join("\n"))
    };
    let before = counted(&built.program);
    assert!(before.is_some());
    built.until(&batch, || built.run(&batch) == (sum, true, true));
    assert_eq!(built.run_as(&link, &batch), (sum, true, true));
    assert_eq!(
        counted(&built.program),
        before,
        "what was made of the content is used, nothing is counted again"
    );

    // Other content is never met by the old overlay, whether it was written in place with the old time, or
    // renamed into it.
    for change in [overwrite, replace] {
        change(&built.program, &read(&other.program));
        let (_, by_program, by_library) = built.run(&batch);
        assert!(!by_program && by_library);
        change(&built.library, &read(&other.library));
        assert_eq!(built.run(&batch), (other_sum, false, false));
        // The old content is known again when a session has looked at it.
        change(&built.program, &program);
        change(&built.library, &library);
        assert_eq!(built.run(&batch), (sum, false, false));
        built.until(&batch, || built.run(&batch) == (sum, true, true));
    }
    let verified = batch.cache_command(&["verify"]).stdout;
    assert!(verified.matches(": sound").count() >= 2 && !verified.contains("removed"), "{verified}");
    // Elsewhere the files are others: nothing of them is exported.
    let exported = folder.path().join("exported");
    let mut export = batch.command(&["--export", &exported.to_string_lossy()]);
    assert!(export.arg("true").status().expect("it starts").success());
    let names = std::fs::read_dir(&exported).expect("a folder").flatten().map(|e| e.file_name());
    assert!(names.filter(|n| n.to_string_lossy().contains("7265737469746368")).count() == 0);
}

#[test]
fn a_note_that_does_not_fit_what_is_mapped_is_not_used() {
    let folder = restitch_testkit::scratch();
    let Some(built) = build(&folder.path().join("one"), 5) else { return };
    let Some((batch, sum)) = built.optimized() else { return };
    assert_eq!(built.run(&batch), (sum, true, true));
    let notes = batch.files("file");
    assert!(notes.len() >= 2, "{notes:?}");
    // Device, inode, length and times of the file; device and inode in the maps (another file was mapped than
    // the path names now); length of the identity; samples of the code (the content is another one).
    for field in 0..11 {
        for note in &notes {
            let mut bytes = std::fs::read(note).expect("read");
            bytes[24 + 8 * field] ^= 1;
            std::fs::write(note, &bytes).expect("written");
        }
        assert_eq!(built.run(&batch), (sum, false, false), "field {field}");
        for note in &notes {
            let mut bytes = std::fs::read(note).expect("read");
            bytes[24 + 8 * field] ^= 1;
            std::fs::write(note, &bytes).expect("written");
        }
    }
    assert_eq!(built.run(&batch), (sum, true, true));
    // Short ones, and those that others may write to.
    let first = std::fs::read(&notes[0]).expect("read");
    for end in [0, 16, 255] {
        std::fs::write(&notes[0], &first[..end]).expect("written");
        let (same, by_program, by_library) = built.run(&batch);
        assert!(same == sum && !(by_program && by_library), "{end}");
    }
    std::fs::write(&notes[0], &first).expect("written");
    let mode = |mode| {
        for note in &notes {
            std::fs::set_permissions(note, std::fs::Permissions::from_mode(mode)).expect("permitted");
        }
    };
    mode(0o622);
    assert_eq!(built.run(&batch), (sum, false, false));
    mode(0o600);
    assert_eq!(built.run(&batch), (sum, true, true));
}

#[test]
fn the_linker_of_a_compiler_makes_programs_without_one_that_are_optimized_too() {
    let clang = require!(restitch_testkit::find_program("clang"), "clang");
    require!(restitch_testkit::find_program("ld.lld"), "ld.lld");
    let folder = restitch_testkit::scratch();
    let Some(built) = build(&folder.path().join("one"), 5) else { return };
    let (source, fixed) = (folder.path().join("one/main.c"), folder.path().join("one/program"));
    let mut clang = Command::new(clang);
    clang.args(["-O2", "-DNUMBER=5", "-no-pie", "-Wl,-rpath,$ORIGIN", "-o"]).arg(&fixed).arg(&source);
    clang
        .args(["-fuse-ld=lld", "-Wl,--build-id=none"])
        .arg("-L")
        .arg(folder.path().join("one"))
        .arg("-lwork");
    let done = clang.output().expect("clang starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let Some((batch, sum)) = built.optimized() else { return };
    assert!(built.run(&batch).1, "{sum}");
}

const OPENS: &str = r#"
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
    unsigned (*work)(unsigned) = library ? (unsigned (*)(unsigned))dlsym(library, "work") : 0;
    if (!work) return 1;
    for (unsigned sum = work(1000); clock() < 0.5 * CLOCKS_PER_SEC;) if (work(1000) != sum) return 2;
    return 42;
}
"#;

#[test]
fn what_programs_open_themselves_is_left_alone_and_said() {
    let folder = restitch_testkit::scratch();
    let Some(built) = build(&folder.path().join("one"), 5) else { return };
    let (source, opens) = (folder.path().join("opens.c"), folder.path().join("opens"));
    std::fs::write(&source, OPENS).expect("written");
    let mut gcc = Command::new("gcc");
    assert!(gcc.args(["-O2", "-o"]).args([&opens, &source]).arg("-ldl").status().expect("gcc").success());
    let batch = Batch::new();
    let script = "for i in 1 2 3 4 5 6; do \"$0\" \"$1\"; [ $? = 42 ] || exit 9; done";
    let mut command = batch.command(&["--eager"]);
    command.args(["sh", "-c", script]).args([&opens, &built.library]);
    let done = common::finish(&mut command);
    assert_eq!(done.status.code(), Some(code::DONE), "{}", done.stderr);
    let report = batch.report();
    let left = report["left"].as_array().into_iter().flatten();
    let why =
        left.filter(|m| m["path"] == *built.library.to_string_lossy()).map(|m| m["why"].to_string()).next();
    assert!(why.is_some_and(|why| why.contains("dlopen")), "{report:#}");
    let begun = batch.files("path").into_iter().filter_map(|p| std::fs::read_to_string(p).ok());
    assert!(begun.map(PathBuf::from).all(|p| p != built.library), "no work is done for it: {}", done.stderr);
}
