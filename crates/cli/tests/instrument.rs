//! Counting copies: they do what their original does, in whatever way their counts file is there or not;
//! their counts are those of all processes that run them.

mod common;

use common::{PATIENCE, Restitch, code, expect_message, finish};
use restitch_report::{Outcome, RunResult};
use restitch_testkit::{
    SUCCESS, TempDir, compile, program, require, run, scratch, strip, without_section_headers,
};
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

/// A counting copy and its file.
struct Copy {
    folder: TempDir,
    restitch: Restitch,
}

impl Copy {
    #[track_caller]
    fn of(original: &Path) -> Self {
        let (folder, restitch) = (scratch(), Restitch::new());
        let mut command = restitch.command(&["instrument"]);
        command.arg(original).arg("-o").arg(folder.path().join("copy"));
        command.arg("--counts").arg(folder.path().join("counts")).args(["--json", "-"]);
        let finished = finish(&mut command);
        finished.expect(code::DONE);
        let result = RunResult::from_json(&finished.stdout).expect("the JSON form of a result");
        assert_eq!(result.outcome, Outcome::Written);
        assert!(result.modules[0].counting.as_ref().is_some_and(|c| c.counters > 0));
        Self { folder, restitch }
    }
    fn program(&self) -> PathBuf {
        self.folder.path().join("copy")
    }
    fn counts(&self) -> PathBuf {
        self.folder.path().join("counts")
    }
    fn profile(&self) -> PathBuf {
        self.folder.path().join("profile")
    }
    /// The profile of what was counted so far.
    #[track_caller]
    fn record(&self) -> RunResult {
        let mut command = self.restitch.command(&["record", "-o"]);
        command.arg(self.profile()).arg("--from-counts").arg(self.counts()).args(["--json", "-"]);
        let finished = finish(&mut command);
        finished.expect(code::DONE);
        RunResult::from_json(&finished.stdout).expect("the JSON form of a result")
    }
    /// The sum of all counters.
    fn total(&self) -> u64 {
        let bytes = std::fs::read(self.counts()).expect("readable");
        let at = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        let counters = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        bytes[at..].chunks_exact(8).take(counters).map(|w| u64::from_le_bytes(w.try_into().unwrap())).sum()
    }
}

#[track_caller]
fn counts_and_optimizes(original: &Path) {
    let copy = Copy::of(original);
    run(&mut Command::new(copy.program()), PATIENCE).expect(SUCCESS);
    let once = copy.total();
    assert!(once > 100, "{}: only {once} counts", original.display());
    let result = copy.record();
    let counting = result.modules[0].counting.as_ref().expect("how it was counted");
    assert!(counting.functions_run > 0 && counting.exact_edge_share > 0.5, "{counting:?}");
    let output = copy.folder.path().join("fast");
    let mut command = copy.restitch.command(&["optimize"]);
    command.arg(original).arg("--profile").arg(copy.profile()).arg("-o").arg(&output);
    finish(&mut command).expect(code::DONE);
    run(&mut Command::new(&output), PATIENCE).expect(SUCCESS);
}

#[test]
fn programs_of_every_kind_count() {
    for (source, flags) in [
        ("switch.c", &["-O2", "-pie", "-fPIE"][..]),
        ("goto.c", &["-O2", "-no-pie"]),
        ("throw.cc", &["-O2"]),
        ("personality.c", &["-O2"]),
        ("throw.cc", &["-O2", "-static"]),
        ("virt.cc", &["-O2", "-static-pie"]),
        ("threads.c", &["-O2"]),
        ("signals.c", &["-O2"]),
        ("setjmp.c", &["-O2"]),
        ("fork.c", &["-O2"]),
    ] {
        println!("{source} {flags:?}");
        counts_and_optimizes(&require!(compiled(source, flags), "a compiler"));
    }
}

#[test]
fn stripped_programs_and_those_without_section_headers_count() {
    let original = require!(compiled("throw.cc", &["-O2"]), "a compiler");
    counts_and_optimizes(&require!(strip(&original).ok(), "no strip"));
    let original = require!(compiled("goto.c", &["-O2"]), "a compiler");
    counts_and_optimizes(&without_section_headers(&original).expect("a copy"));
}

#[test]
fn a_counting_copy_can_be_stripped() {
    let original = require!(compiled("throw.cc", &["-O2"]), "a compiler");
    let copy = Copy::of(&original);
    let stripped = require!(strip(&copy.program()).ok(), "no strip");
    run(&mut Command::new(stripped), PATIENCE).expect(SUCCESS);
    assert!(copy.total() > 100);
}

#[test]
fn all_runs_count_in_one_file() {
    let copy = Copy::of(&require!(compiled("goto.c", &["-O2"]), "a compiler"));
    run(&mut Command::new(copy.program()), PATIENCE).expect(SUCCESS);
    let once = copy.total();
    run(&mut Command::new(copy.program()), PATIENCE).expect(SUCCESS);
    let twice = copy.total();
    // The same work, but for what the environment and the clock change.
    let share = (twice - once) as f64 / once as f64;
    assert!((0.9..1.1).contains(&share), "{once}, then {twice}");
    // At the same time: none is lost but by races between processors.
    let mut running: Vec<_> = (0..4).map(|_| Command::new(copy.program()).spawn().expect("starts")).collect();
    for child in &mut running {
        assert_eq!(child.wait().expect("ends").code(), Some(SUCCESS));
    }
    let all = copy.total();
    assert!(all > twice && all - twice <= 5 * once, "{once}, {twice}, {all}");
}

/// Whatever is at its path, the program runs; what is not its own file stays as it is.
#[test]
fn without_its_counts_file_a_copy_runs_uncounted() {
    let copy = Copy::of(&require!(compiled("throw.cc", &["-O2"]), "a compiler"));
    let good = std::fs::read(copy.counts()).unwrap();
    let mut wrong = vec![good[..good.len() - 4096].to_vec(), good.clone(), good.clone(), b"short".to_vec()];
    wrong[1].extend([0; 4096]);
    wrong[2][20] ^= 1;
    for bytes in wrong {
        std::fs::write(copy.counts(), &bytes).unwrap();
        run(&mut Command::new(copy.program()), PATIENCE).expect(SUCCESS);
        assert_eq!(std::fs::read(copy.counts()).unwrap(), bytes);
    }
    std::fs::remove_file(copy.counts()).unwrap();
    run(&mut Command::new(copy.program()), PATIENCE).expect(SUCCESS);
    assert!(!copy.counts().exists());
    std::fs::create_dir(copy.counts()).unwrap();
    run(&mut Command::new(copy.program()), PATIENCE).expect(SUCCESS);
    std::fs::remove_dir(copy.counts()).unwrap();
    // Without descriptors left over, and with standard input, output and error closed.
    std::fs::write(copy.counts(), &good).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" <&- >&- 2>&-"]).arg(copy.program());
    run(&mut shell, PATIENCE).expect(SUCCESS);
    assert!(copy.total() > 100);
}

#[test]
fn a_counts_file_that_does_not_fit_is_refused() {
    let original = require!(compiled("goto.c", &["-O2"]), "a compiler");
    let copy = Copy::of(&original);
    let record = |counts: &Path| {
        let mut command = copy.restitch.command(&["record", "-o"]);
        finish(command.arg(copy.profile()).arg("--from-counts").arg(counts))
    };
    expect_message(&record(&copy.counts()), code::NOTHING_TO_DO, &["all zero"]);
    let bad = copy.folder.path().join("bad");
    let good = std::fs::read(copy.counts()).unwrap();
    for bytes in [&b""[..], b"RSTCOUNT", b"something else", &good[..5000]] {
        std::fs::write(&bad, bytes).unwrap();
        expect_message(&record(&bad), code::BAD_INPUT, &["bad", "counts"]);
    }
    assert!(!copy.profile().exists());
}

const LIBRARY: &str = "
#include <stdexcept>
int work(int n) {
    if (n % 7 == 3) throw std::runtime_error(\"seven\");
    int sum = 0;
    for (int i = 0; i < n % 50; i++) sum += i & 1 ? n : -i;
    return sum;
}
";
const USER: &str = "
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
int work(int);
static int all() {
    int caught = 0;
    for (int i = 0; i < 70000; i++)
        try { work(i); } catch (const std::exception &) { caught++; }
    return caught == 10000 ? 42 : 1;
}
int main() {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(all());
    waitpid(child, &status, 0);
    return WEXITSTATUS(status) == 42 ? all() : 2;
}
";

/// With an initializer (DT_INIT), and with none: then there is one more.
#[test]
fn a_shared_library_counts() {
    for flags in [&[][..], &["-nostartfiles"]] {
        let (restitch, folder) = (Restitch::new(), scratch());
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("lib.cc"), LIBRARY).expect("writable");
        std::fs::write(at("user.cc"), USER).expect("writable");
        let gcc = |arguments: &[&str]| {
            let mut gcc = Command::new("g++");
            gcc.args(["-O2", "-Wl,--build-id"]).args(arguments).current_dir(folder.path());
            restitch_testkit::compiled(&mut gcc)
        };
        let mut shared = vec!["-shared", "-fPIC", "-o", "libwork.so", "lib.cc", "-Wl,-soname,libwork.so"];
        shared.extend(flags);
        require!(gcc(&shared), "g++");
        require!(gcc(&["-o", "user", "user.cc", "./libwork.so", "-Wl,-rpath,$ORIGIN"]), "g++");
        let mut command = restitch.command(&["instrument"]);
        command.arg(at("libwork.so")).arg("-o").arg(at("new.so")).arg("--counts").arg(at("counts"));
        finish(&mut command).expect(code::DONE);
        std::fs::rename(at("libwork.so"), at("original.so")).expect("writable");
        std::fs::copy(at("new.so"), at("libwork.so")).expect("writable");
        std::fs::set_permissions(at("libwork.so"), std::fs::Permissions::from_mode(0o755)).unwrap();
        run(Command::new("./user").current_dir(folder.path()), PATIENCE).expect(SUCCESS);
        // The counts name the original's path.
        std::fs::rename(at("original.so"), at("libwork.so")).expect("writable");
        let mut command = restitch.command(&["record", "-o"]);
        command.arg(at("profile")).arg("--from-counts").arg(at("counts")).args(["--json", "-"]);
        let finished = finish(&mut command);
        finished.expect(code::DONE);
        let result = RunResult::from_json(&finished.stdout).expect("the JSON form of a result");
        let counting = result.modules[0].counting.as_ref().expect("counted");
        assert!(counting.functions_run >= 1 && counting.flow_error_in < 0.01, "{counting:?}");
    }
}
