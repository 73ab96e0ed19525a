//! Input that is missing, foreign or broken, and processes that cannot be changed: a message that names the
//! thing, the documented exit code, and nothing touched.

mod common;

use common::{Random, Restitch, Target, code, expect_message, finish, stoppable};
use restitch_testkit::{Finished, Guarded, TempDir, compile, program, require, scratch, skip, wait_until};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder with a good program and a good profile of it, to be broken.
struct Files {
    folder: TempDir,
    restitch: Restitch,
}

impl Files {
    fn new() -> Option<Self> {
        let source = compile(&program("switch.c"), &["-O2"]).ok()?;
        let files = Self { folder: scratch(), restitch: Restitch::new() };
        std::fs::copy(source, files.at("program")).expect("copied");
        let mut command = files.restitch.command(&["record", "-o"]);
        finish(command.arg(files.at("profile")).arg("--").arg(files.at("program"))).expect(42);
        std::fs::write(files.at("existing"), "precious").expect("writable");
        Some(files)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.at(name), bytes).expect("writable");
        self.at(name)
    }
    fn optimize(&self, program: &Path, profile: &Path) -> Finished {
        let mut command = self.restitch.command(&["optimize"]);
        finish(command.arg(program).arg("--profile").arg(profile).arg("-o").arg(self.at("existing")))
    }
    fn analyze(&self, file: &Path) -> Finished {
        self.restitch.run(&[OsStr::new("analyze"), file.as_os_str()])
    }
    /// The output that was there before is still there.
    #[track_caller]
    fn assert_output_is_as_before(&self) {
        assert_eq!(std::fs::read(self.at("existing")).expect("readable"), b"precious");
        let temporary = std::fs::read_dir(self.folder.path()).expect("readable").flatten();
        let temporary: Vec<_> =
            temporary.filter(|e| e.file_name().to_string_lossy().contains(".tmp")).collect();
        assert!(temporary.is_empty(), "{temporary:?}");
    }
}

/// Broken variants of an ELF file: name, bytes.
fn broken(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.to_vec();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    vec![
        ("empty", Vec::new()),
        ("text", b"#!/bin/sh\nexit 0\n".to_vec()),
        ("short", good[..40].to_vec()),
        ("headers-only", good[..200].to_vec()),
        ("half", good[..good.len() / 2].to_vec()),
        ("arm64", with(18, &[183, 0])),
        ("class32", with(4, &[1])),
        ("big-endian", with(5, &[2])),
        ("wild-program-headers", with(32, &[0xff; 8])),
        ("many-program-headers", with(56, &[0xff, 0xff])),
    ]
}

#[test]
fn files_that_are_no_usable_programs() {
    let files = require!(Files::new(), "gcc");
    let good = std::fs::read(files.at("program")).expect("readable");
    for (name, bytes) in broken(&good) {
        let path = files.write(name, &bytes);
        expect_message(&files.analyze(&path), code::BAD_INPUT, &[name]);
        expect_message(&files.optimize(&path, &files.at("profile")), code::BAD_INPUT, &[name]);
    }
    let missing = files.at("missing");
    expect_message(&files.analyze(&missing), code::FAILURE, &["missing", "check the path"]);
    expect_message(&files.optimize(&missing, &files.at("profile")), code::FAILURE, &["missing"]);
    expect_message(&files.analyze(files.folder.path()), code::FAILURE, &["name a file"]);
    // It has no end.
    let endless = Path::new("/dev/zero");
    expect_message(&files.analyze(endless), code::BAD_INPUT, &["/dev/zero", "device"]);
    expect_message(&files.optimize(&files.at("program"), endless), code::BAD_INPUT, &["/dev/zero"]);
    files.assert_output_is_as_before();
}

/// Random damage: any documented exit code, never a panic, and never a half-written output.
#[test]
fn damaged_programs_never_cause_a_panic() {
    let files = require!(Files::new(), "gcc");
    let good = std::fs::read(files.at("program")).expect("readable");
    let mut random = Random::new(5);
    for round in 0..40 {
        let mut bytes = good.clone();
        // The tables at both ends and in the middle are all hit in the long run.
        for _ in 0..=random.below(16) {
            let region = if random.below(2) == 0 { 1024 } else { bytes.len() as u64 };
            let at = random.below(region.min(bytes.len() as u64)) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let path = files.write("damaged", &bytes);
        let analyzed = files.analyze(&path);
        assert!(matches!(analyzed.status.code(), Some(0 | 3)), "round {round}: {}", analyzed.stderr);
        let mut command = files.restitch.command(&["optimize"]);
        command.arg(&path).arg("--profile").arg(files.at("profile")).arg("-o").arg(files.at("new"));
        let optimized = finish(&mut command);
        assert!(
            matches!(optimized.status.code(), Some(0 | 1 | 3 | 6 | 9)),
            "round {round}: {}",
            optimized.stderr
        );
        assert_eq!(files.at("new").exists(), optimized.status.success(), "round {round}");
        let _ = std::fs::remove_file(files.at("new"));
    }
}

#[test]
fn profiles_that_do_not_fit() {
    let files = require!(Files::new(), "gcc");
    let (good, program) = (std::fs::read(files.at("profile")).expect("readable"), files.at("program"));
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    for (name, bytes) in [
        ("empty-profile", Vec::new()),
        ("text-profile", b"a b c\n".to_vec()),
        ("short-profile", good[..good.len() - 3].to_vec()),
        ("flipped-profile", flipped),
        ("long-profile", [&good[..], b"x"].concat()),
    ] {
        let path = files.write(name, &bytes);
        expect_message(&files.optimize(&program, &path), code::BAD_INPUT, &[name, "record"]);
    }
    let other = require!(compile(&program_of("goto.c"), &["-O2"]).ok(), "gcc");
    let refused = files.optimize(&other, &files.at("profile"));
    expect_message(&refused, code::BAD_INPUT, &["no profile for this build", "restitch record"]);
    let missing = files.optimize(&program, &files.at("missing"));
    expect_message(&missing, code::FAILURE, &["missing", "check the path", "restitch record"]);
    let missing = files.restitch.run(&["profile", "show", "missing"]);
    expect_message(&missing, code::FAILURE, &["missing", "check the path", "restitch record"]);
    files.assert_output_is_as_before();
}

fn program_of(source: &str) -> PathBuf {
    program(source)
}

#[test]
fn outputs_that_cannot_be_written_are_found_out_first() {
    let files = require!(Files::new(), "gcc");
    let mut target = Target::start(&require!(stoppable("switch.c", &["-O2"]), "gcc"));
    let pid = target.pid().to_string();
    let nowhere = "/nonexistent/folder/file";
    for arguments in [
        vec!["attach", &pid, "--json", nowhere],
        vec!["attach", &pid, "--html", nowhere],
        vec!["record", "-p", &pid, "-o", nowhere],
        vec!["record", "-o", nowhere, "--", "true"],
    ] {
        expect_message(&files.restitch.run(&arguments), code::FAILURE, &[nowhere, "check the path"]);
        target.assert_untouched("after an impossible output");
    }
    let mut command = files.restitch.command(&["optimize"]);
    command.arg(files.at("program")).arg("--profile").arg(files.at("profile")).args(["-o", nowhere]);
    expect_message(&finish(&mut command), code::FAILURE, &[nowhere]);
    target.stop();
}

/// What is done is done, and said by the exit code, whether anybody reads the rest or not.
#[test]
fn output_that_nobody_reads_or_that_has_no_room() {
    let files = require!(Files::new(), "gcc");
    let program = files.at("program").to_string_lossy().into_owned();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let analyze = ["analyze", &program];
    let help = [&["--help"][..], &["-V"], &["help", "attach"], &["kernel", "find", "-h"]];
    let cache = files.at("c").to_string_lossy().into_owned();
    std::fs::create_dir(&cache).expect("the folder is writable");
    let results = [&analyze[..], &["status"], &["cache", "list", "--cache", &cache]];
    for arguments in results.into_iter().chain(help) {
        let mut command = files.restitch.command(arguments);
        let shown = command.stdout(full()).stderr(Stdio::piped()).output().expect("started");
        let said = String::from_utf8_lossy(&shown.stderr);
        assert_eq!(shown.status.code(), Some(code::FAILURE), "{arguments:?}: {said}");
        assert!(said.contains("standard output") && !said.contains("panicked"), "{said}");
    }
    // A reader who has gone.
    for arguments in [&analyze[..], help[0]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let shown = files.restitch.command(arguments).stdout(writer).stderr(Stdio::piped()).output();
        let shown = shown.expect("started");
        assert_eq!((shown.status.code(), &*shown.stderr), (Some(code::DONE), &b""[..]));
    }
    // Messages that cannot be written are no reason to lose the command's exit code.
    let mut command = files.restitch.command(&["run", "--", "sh", "-c", "exit 5"]);
    assert_eq!(command.stdout(full()).stderr(full()).status().expect("started").code(), Some(5));
}

#[test]
fn a_state_directory_that_cannot_be_used() {
    let mut target = Target::start(&require!(stoppable("switch.c", &["-O2"]), "gcc"));
    let pid = target.pid().to_string();
    let restitch = Restitch::new();
    let file = restitch.state().join("file");
    std::fs::write(&file, "").expect("writable");
    for command in ["attach", "revert", "status"] {
        let mut command = restitch.command(&[command, &pid]);
        let finished = finish(command.env("RESTITCH_STATE_DIR", &file));
        expect_message(&finished, code::FAILURE, &["RESTITCH_STATE_DIR"]);
    }
    target.assert_untouched("without a state directory");
    target.stop();
}

/// The commands that take a process.
fn on_process(restitch: &Restitch, pid: &str) -> Vec<Finished> {
    let profile = restitch.state().join("profile.out");
    let profile = profile.to_str().expect("UTF-8");
    let all = vec![
        restitch.run(&["attach", pid, "--duration", "1"]),
        restitch.run(&["revert", pid]),
        restitch.run(&["status", pid]),
        restitch.run(&["record", "-p", pid, "--duration", "1", "-o", profile]),
    ];
    assert!(!Path::new(profile).exists(), "a profile was written");
    all
}

#[test]
fn processes_that_are_not_there() {
    let restitch = Restitch::new();
    let mut ended = Guarded::start(Path::new("/bin/true"), &[]).expect("started");
    let pid = ended.pid().to_string();
    ended.wait_within(common::PATIENCE).expect("it ends");
    for finished in on_process(&restitch, &pid) {
        expect_message(&finished, code::VANISHED, &[&pid, "look its number up"]);
    }
    let named = restitch.run(&["attach", "nginx"]);
    expect_message(&named, code::USAGE, &["a process number is wanted", "`pgrep -a nginx`"]);
    for wrong in ["-5", "x", "99999999999"] {
        restitch.run(&["attach", wrong]).expect(code::USAGE);
    }
    for finished in on_process(&restitch, "0") {
        expect_message(&finished, code::USAGE, &["a process number is wanted"]);
    }
}

/// What belongs to a process that has ended and was not collected yet belongs to root; that is no lack of
/// permission.
#[test]
fn processes_that_have_ended_and_were_not_collected() {
    let mut zombie = Guarded::start(Path::new("/bin/true"), &[]).expect("started");
    let pid = zombie.pid();
    let ended = wait_until(common::PATIENCE, || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.contains(") Z ").then_some(())
    });
    assert!(ended.is_some(), "it does not end");
    let restitch = Restitch::new();
    for finished in on_process(&restitch, &pid.to_string()) {
        expect_message(&finished, code::VANISHED, &[&pid.to_string(), "ended"]);
    }
    zombie.wait_within(common::PATIENCE).expect("it ends");
}

/// A thread that computes for ever, while the first one waits.
const THREAD: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
static volatile uint32_t sink;
__attribute__((noinline)) static uint32_t step(uint32_t x) {
    switch (x & 3) { case 0: return x * 5 + 1; case 1: return x ^ (x >> 7); case 2: return x + 99; default: return ~x; }
}
static void *compute(void *none) {
    printf("%d\n", (int)gettid());
    fflush(stdout);
    for (uint32_t x = 1;;) sink = x = step(x);
    return none;
}
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, compute, 0)) return 3;
    pthread_join(thread, 0);
}
"#;

/// A thread's number stands for its process, also in the journal: a thread may end before its process does.
#[test]
fn a_number_of_a_thread_names_its_process() {
    use std::io::{BufRead, BufReader};
    let (restitch, folder) = (Restitch::new(), scratch());
    let (source, path) = (folder.path().join("thread.c"), folder.path().join("thread"));
    std::fs::write(&source, THREAD).expect("writable");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-D_GNU_SOURCE", "-pthread", "-o"]).arg(&path).arg(&source);
    require!(restitch_testkit::compiled(&mut gcc), "gcc");
    let mut process = Guarded::spawn(Command::new(&path).stdout(Stdio::piped())).expect("started");
    let mut line = String::new();
    BufReader::new(process.child().stdout.take().expect("a pipe")).read_line(&mut line).expect("a number");
    let (pid, tid): (u32, u32) = (process.pid(), line.trim().parse().expect("a number"));
    restitch.attach(tid, &[]).expect(code::DONE);
    let shown = restitch.status(tid);
    assert!(shown.stdout.starts_with(&format!("{pid} ")), "{}", shown.stdout);
    assert_eq!(restitch.status(pid).stdout, shown.stdout);
    let journals = restitch.journals();
    let name = journals[0].file_name().expect("a name").to_string_lossy().into_owned();
    assert!(journals.len() == 1 && name.starts_with(&format!("{pid}-")), "{journals:?}");
    let reverted = restitch.revert(tid);
    reverted.expect(code::DONE);
    assert!(reverted.stdout.contains(&format!("process {pid} ")), "{}", reverted.stdout);
    assert!(process.is_running(), "it has ended");
}

#[test]
fn the_first_process_and_kernel_threads_are_left_alone() {
    let restitch = Restitch::new();
    let kernel_thread = std::fs::read_dir("/proc").expect("mounted").flatten().find_map(|e| {
        let stat = std::fs::read_to_string(e.path().join("stat")).ok()?;
        // Flag PF_KTHREAD of the ninth field.
        let flags: u64 = stat.rsplit(')').next()?.split_whitespace().nth(6)?.parse().ok()?;
        (flags & 0x0020_0000 != 0).then(|| e.file_name().to_string_lossy().into_owned())
    });
    if let Some(pid) = kernel_thread {
        for finished in on_process(&restitch, &pid) {
            let code = finished.status.code();
            assert!(matches!(code, Some(3 | 5 | 6)), "kernel thread {pid}: {code:?} {}", finished.stderr);
            assert!(finished.stderr.contains(&pid), "{}", finished.stderr);
        }
    }
    // Whatever this user may do to it, it is not profiled by a test; what has to hold is the orderly end.
    let status = restitch.run(&["revert", "1"]);
    assert!(matches!(status.status.code(), Some(3 | 5 | 6 | 7)), "{}", status.stderr);
    assert!(!status.stderr.contains("as root"), "root is told to be root: {}", status.stderr);
}

#[test]
fn restitch_does_not_attach_to_itself() {
    let restitch = Restitch::new();
    // The shell becomes restitch, so that it knows its own number.
    let script = "exec \"$0\" attach $$ --duration 1";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_restitch")]);
    let finished = finish(command.env("RESTITCH_STATE_DIR", restitch.state()));
    assert!(matches!(finished.status.code(), Some(6 | 7)), "{}", finished.stderr);
    let script = "exec \"$0\" revert $$";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_restitch")]);
    finish(command.env("RESTITCH_STATE_DIR", restitch.state())).expect(code::NOTHING_TO_DO);
}

#[test]
fn a_process_that_does_nothing() {
    let restitch = Restitch::new();
    let idle = Guarded::start(Path::new("/bin/sleep"), &["600"]).expect("started");
    let pid = idle.pid().to_string();
    let json = restitch.state().join("result.json");
    let arguments = ["attach", &pid, "--duration", "1", "--json", json.to_str().expect("UTF-8")];
    expect_message(&restitch.run(&arguments), code::NOTHING_TO_DO, &[&pid, "CPU time", "under load"]);
    // Whoever asked for a result finds one.
    let text = std::fs::read_to_string(&json).expect("written");
    let result = restitch_report::RunResult::from_json(&text).expect("the JSON form of a result");
    assert_eq!((result.outcome, result.exit_code), (restitch_report::Outcome::NothingToDo, 7));
    assert_eq!(result.target.pid, Some(idle.pid()));
    assert!(result.warnings.iter().any(|w| w.contains("CPU time")), "{:?}", result.warnings);
    std::fs::remove_file(&json).expect("removed");
    let path = restitch.state().join("p.out");
    let recorded =
        restitch.run(&["record", "-p", &pid, "--duration", "1", "-o", path.to_str().expect("UTF-8")]);
    expect_message(&recorded, code::NOTHING_TO_DO, &[&pid]);
    assert_eq!(common::look::differences(idle.pid()), []);
    assert_eq!(restitch.files(), Vec::<PathBuf>::new());
}

/// One that waits for SIGCONT would never have samples; that is said at once.
#[test]
fn a_process_that_is_stopped() {
    let restitch = Restitch::new();
    let stopped = Guarded::start(Path::new("/bin/sleep"), &["600"]).expect("started");
    let pid = stopped.pid().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().expect("started").success());
    let is_stopped = wait_until(common::PATIENCE, || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.contains("State:\tT").then_some(())
    });
    assert!(is_stopped.is_some(), "it does not stop");
    let path = restitch.state().join("p.out").display().to_string();
    let record = |source: &'static [&'static str]| {
        let words = ["record", "-p", &*pid, "--duration", "1", "-o", &*path].into_iter();
        words.chain(source.iter().copied()).collect::<Vec<&str>>()
    };
    let ways = [
        vec!["attach", &pid],
        record(&[]),
        record(&["--source", "trace"]),
        record(&["--source", "burst"]),
        record(&["--source", "ip"]),
    ];
    for way in ways {
        expect_message(&restitch.run(&way), code::REFUSED, &[&pid, "stopped", "kill -CONT"]);
    }
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "a refusal leaves files");
}

#[test]
fn a_process_that_is_traced_already() {
    let restitch = Restitch::new();
    let target = Target::start(&require!(stoppable("switch.c", &["-O2"]), "gcc"));
    let pid = target.pid();
    let Ok(tracer) = gdb_on(pid) else { skip!("gdb is not available") };
    let traced = wait_until(common::PATIENCE, || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        (!status.contains("TracerPid:\t0\n")).then_some(())
    });
    assert!(traced.is_some(), "gdb does not attach");
    let attached = restitch.attach(pid, &[]);
    expect_message(&attached, code::REFUSED, &[&pid.to_string(), "traced", "gdb"]);
    let planned = restitch.attach(pid, &["--dry-run"]);
    expect_message(&planned, code::REFUSED, &["traced"]);
    // gdb has a breakpoint of its own in the loader.
    let mut patched = common::look::differences(pid);
    patched.retain(|d| !d.file.to_string_lossy().contains("ld-linux"));
    assert_eq!(patched, []);
    assert_eq!(common::look::ours(pid), []);
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "a refusal leaves files");
    // Killed, gdb leaves its breakpoint in place, so the process is not asked for its checks.
    drop(tracer);
}

/// gdb that lets the process run.
fn gdb_on(pid: u32) -> std::io::Result<Guarded> {
    let pid = pid.to_string();
    let arguments = ["-nx", "-batch", "-p", &pid, "-ex", "continue"];
    Guarded::spawn(
        Command::new("gdb").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()),
    )
}

/// Starts the program that its first argument names with `mmap` of executable memory forbidden on pain of
/// death.
const SECCOMP: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
static volatile uint32_t sink;
__attribute__((noinline)) static uint32_t step(uint32_t x) {
    switch (x & 3) { case 0: return x * 5 + 1; case 1: return x ^ (x >> 7); case 2: return x + 99; default: return ~x; }
}
int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {5, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;
    write(1, "ready", 5);
    for (uint32_t x = 1;;) sink = x = step(x);
}
"#;

#[test]
fn a_process_under_seccomp_is_refused_and_lives() {
    use std::io::Read;
    let (restitch, folder) = (Restitch::new(), scratch());
    let (source, path) = (folder.path().join("strict.c"), folder.path().join("strict"));
    std::fs::write(&source, SECCOMP).expect("writable");
    let mut gcc = Command::new("gcc");
    require!(restitch_testkit::compiled(gcc.arg("-O1").arg("-o").arg(&path).arg(&source)), "gcc");
    let mut strict = Guarded::spawn(Command::new(&path).stdout(Stdio::piped())).expect("started");
    let mut ready = [0; 5];
    let read = strict.child().stdout.as_mut().expect("a pipe").read_exact(&mut ready);
    if read.is_err() {
        skip!("seccomp filters are not available");
    }
    let attached = restitch.attach(strict.pid(), &[]);
    expect_message(&attached, code::REFUSED, &[&strict.pid().to_string(), "seccomp"]);
    let planned = restitch.attach(strict.pid(), &["--dry-run"]);
    expect_message(&planned, code::REFUSED, &["seccomp"]);
    assert!(strict.is_running(), "its filter has killed it");
    assert_eq!(common::look::differences(strict.pid()), []);
    assert_eq!(common::look::ours(strict.pid()), []);
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "a refusal leaves files");
}

#[test]
fn a_process_of_32_bits_is_refused() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let (source, path) = (folder.path().join("small.c"), folder.path().join("small"));
    std::fs::write(&source, "void _start(void) { for (;;) __asm__ volatile(\"\"); }\n").expect("writable");
    let mut gcc = Command::new("gcc");
    gcc.args(["-m32", "-nostdlib", "-static", "-O1", "-fno-pie", "-no-pie"])
        .arg("-o")
        .arg(&path)
        .arg(&source);
    require!(restitch_testkit::compiled(&mut gcc), "gcc -m32");
    let Ok(mut small) = Guarded::start(&path, &[]) else {
        restitch_testkit::skip_unsupported!("this kernel runs no 32-bit programs");
    };
    let pid = small.pid().to_string();
    for finished in on_process(&restitch, &pid) {
        expect_message(&finished, code::REFUSED, &[&pid, "32-bit"]);
    }
    assert!(small.is_running());
}

/// A process that is ending has no mappings any more, and is no zombie yet: the more memory it had, the
/// longer.
#[test]
fn a_process_that_is_ending() {
    const LARGE: &str = "
        #include <stdio.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(void) {
            void *at = mmap(0, 1L << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
            puts(at == MAP_FAILED ? \"none\" : \"ready\");
            fflush(stdout);
            for (;;) pause();
        }";
    let folder = scratch();
    let source = folder.path().join("large.c");
    std::fs::write(&source, LARGE).expect("written");
    let program = require!(compile(&source, &["-O2"]).ok(), "gcc");
    let restitch = Restitch::new();
    for command in ["attach", "record", "status", "revert"] {
        let mut run = Command::new(&program);
        let mut large = Guarded::spawn(run.stdout(Stdio::piped())).expect("started");
        let mut ready = [0; 5];
        std::io::Read::read_exact(large.child().stdout.as_mut().expect("a pipe"), &mut ready)
            .expect("it says so");
        let (pid, profile) = (large.pid().to_string(), folder.path().join("profile"));
        let profile = profile.to_str().expect("UTF-8");
        large.child().kill().expect("a signal");
        // On a busy machine it takes a while until it notices.
        let maps = format!("/proc/{pid}/maps");
        let is_ending = || std::fs::read(&maps).map_or(true, |lines| lines.is_empty()).then_some(());
        assert!(wait_until(common::PATIENCE, is_ending).is_some(), "{command}");
        let finished = match command {
            "record" => restitch.run(&["record", "-p", &pid, "--duration", "1", "-o", profile]),
            _ => restitch.run(&[command, &pid]),
        };
        expect_message(&finished, code::VANISHED, &[&pid]);
    }
}

#[test]
fn a_process_that_ends_meanwhile() {
    let restitch = Restitch::new();
    let path = require!(stoppable("switch.c", &["-O2"]), "gcc");
    for milliseconds in [300, 700, 1100, 1500] {
        let mut target = Target::start(&path);
        let pid = target.pid().to_string();
        std::thread::scope(|scope| {
            let attach = scope.spawn(|| restitch.run(&["attach", &pid, "--duration", "1", "--measure", "1"]));
            common::target::linger(milliseconds);
            target.stop();
            let finished = attach.join().expect("no panic");
            let code = finished.status.code();
            assert!(matches!(code, Some(0 | 4 | 7)), "{milliseconds}: {code:?}: {}", finished.stderr);
        });
        restitch.run(&["status"]).expect(code::DONE);
        assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "ended after {milliseconds} ms: files stay");
    }
}

#[test]
fn command_lines_that_make_no_sense() {
    let restitch = Restitch::new();
    for arguments in [
        &["attach"][..],
        &["attach", "1", "--duration", "-1"],
        &["attach", "1", "--duration", "nan"],
        &["attach", "1", "--unknown"],
        &["record", "-o", "x"],
        &["record", "-o", "x", "-p", "1", "--", "true"],
        &["optimize", "x"],
        &["optimize", "x", "--profile", "y", "-o", "z", "--layout", "nonsense"],
        &["lab", "x", "--profile", "y", "--machine", "z80"],
        &["frobnicate"],
        &[],
    ] {
        restitch.run(arguments).expect(code::USAGE);
    }
    for arguments in [&["--help"][..], &["--version"], &["attach", "--help"], &["doctor"]] {
        let finished = restitch.run(arguments);
        assert!(matches!(finished.status.code(), Some(code::DONE | code::NOT_PERMITTED)), "{arguments:?}");
        assert!(!finished.stdout.is_empty());
    }
}

/// Where restitch stands in for a command, it ends as a shell, env(1) and timeout(1) do.
#[test]
fn commands_that_cannot_be_started() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("our own");
        path.to_string_lossy().into_owned()
    };
    let cases = [
        ("/no/such/program".into(), code::NOT_FOUND, "check the path"),
        ("no-such-program".into(), code::NOT_FOUND, "PATH"),
        (String::new(), code::NOT_FOUND, "name a command"),
        (file("script", "#!/no/interpreter\n", 0o755), code::NOT_FOUND, "/no/interpreter"),
        (folder.path().to_string_lossy().into_owned(), code::NOT_STARTED, "folder"),
        (file("data", "", 0o644), code::NOT_STARTED, "not executable"),
        // What a shell can run runs.
        (file("plain", "exit 5\n", 0o755), 5, ""),
        (file("killed", "#!/bin/sh\nkill -9 $$\n", 0o755), 128 + 9, ""),
    ];
    let (output, cache) = (folder.path().join("profile"), folder.path().join("cache"));
    for (command, code, words) in &cases {
        let mut ways =
            vec![restitch.command(&["run", "--warm-up", "0.1"]), restitch.command(&["record", "-o"])];
        ways[1].arg(&output);
        ways.push(restitch.command(&["batch", "--quiet", "--finish", "later", "--cache"]));
        ways[2].arg(&cache);
        if *code >= code::NOT_STARTED && *code <= code::NOT_FOUND {
            for source in ["trace", "burst"] {
                let mut way = restitch.command(&["record", "--source", source, "-o"]);
                way.arg(&output);
                ways.push(way);
            }
        }
        for mut way in ways {
            let finished = finish(way.arg("--").arg(command));
            let told = format!("{way:?}: {} {}", finished.status, finished.stderr);
            assert_eq!(finished.status.code(), Some(*code), "{told}");
            assert!(finished.stderr.contains(words), "{told}");
            assert!(words.is_empty() || finished.stderr.contains(command.as_str()), "{told}");
        }
    }
    // Nothing stays of commands that have ended.
    let short = folder.path().join("killed");
    let mut record = restitch.command(&["record", "--source", "burst", "-o"]);
    let finished = finish(record.arg(&output).arg("--").arg(short));
    assert_eq!(restitch.files(), Vec::<PathBuf>::new(), "{}", finished.stderr);
}

#[test]
fn small_programs_have_sizes() {
    let files = require!(Files::new(), "gcc");
    let said = files.analyze(&files.at("program"));
    said.expect(code::DONE);
    let size = said.stdout.lines().find(|l| l.trim_start().starts_with("code")).expect("the code's size");
    assert!(size.contains(" B,") || size.contains(" KiB,"), "{size}");
    assert!(!size.contains(" 0"), "{size}");
}

/// Not the program, the process or the state directory.
#[test]
fn a_limit_of_open_files_is_what_is_named() {
    let Some(path) = stoppable("loops.c", &["-O2"]) else { return };
    let (restitch, target) = (Restitch::new(), Target::start(&path));
    let (pid, file) = (target.pid().to_string(), restitch.state().join("profile.out"));
    let file = file.to_str().expect("text");
    for arguments in [
        &["attach", &pid, "--measure", "0", "--duration", "0.5"][..],
        &["attach", &pid, "--dry-run", "--duration", "0.5"],
        &["record", "-p", &pid, "--source", "trace", "--duration", "0.5", "-o", file],
    ] {
        let mut named = 0;
        for limit in 5..12 {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]);
            command.arg(env!("CARGO_BIN_EXE_restitch")).args(arguments);
            let done = finish(command.env("RESTITCH_STATE_DIR", restitch.state()));
            let (code, said) = (done.status.code(), &done.stderr);
            if matches!(code, Some(code::FAILURE | code::REFUSED)) {
                assert!(
                    said.contains("`ulimit -n") && !said.contains("RESTITCH_STATE_DIR"),
                    "{limit}: {said}"
                );
                named += 1;
            }
            let is_known =
                matches!(code, Some(code::FAILURE | code::REFUSED | code::DONE | code::NOTHING_TO_DO));
            assert!(is_known, "{limit}, {arguments:?}: {code:?}: {said}");
            // What stays where an attach has failed is told.
            let left = restitch.run(&["status", &pid]).stdout;
            let failed = code != Some(code::DONE);
            assert!(!failed || !left.contains("retired") || said.contains("stays mapped"), "{said}{left}");
            restitch.revert(target.pid());
        }
        assert!(named > 0, "{arguments:?}: no limit was too low");
    }
}

/// With few descriptors something fails before the command runs, or the command runs.
#[test]
fn a_limit_that_keeps_a_command_from_being_started_is_not_its_fault() {
    let (restitch, folder) = (Restitch::new(), scratch());
    let profile = folder.path().join("profile");
    let profile = profile.to_str().expect("text");
    let ways = [
        vec!["run", "--warm-up", "600"],
        vec!["batch", "--quiet", "--finish", "later"],
        vec!["record", "--source", "trace", "-o", profile],
        // (Its code is not counted: that takes seconds.)
        vec!["record", "--source", "count", "--program", "another", "-o", profile],
    ];
    let mut told = [0; 4];
    for (limit, way) in (4..24).flat_map(|limit| (0..ways.len()).map(move |way| (limit, way))) {
        let words = &ways[way];
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_restitch")).args(words).args(["--", "/bin/true"]);
        command
            .env("RESTITCH_STATE_DIR", restitch.state())
            .env("RESTITCH_CACHE_DIR", folder.path().join("cache"));
        let done = finish(&mut command);
        let code = done.status.code();
        let is_fault_of_command = matches!(code, None | Some(code::NOT_STARTED | code::NOT_FOUND));
        assert!(!is_fault_of_command, "{limit} for {words:?}: {code:?}: {}", done.stderr);
        told[way] +=
            u32::from(done.stderr.contains("cannot start /bin/true") && done.stderr.contains("`ulimit -n`"));
    }
    assert!(told.iter().all(|told| *told > 0), "no limit kept the command from being started: {told:?}");
}
