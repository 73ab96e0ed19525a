//! All test programs of the workspace, two at a time.
//!
//! **Why**: `cargo test` runs one program after the other, and each has an end in which a single test is
//! left. **It does not** select or repeat tests: that is cargo's and the harness' work, and each program runs
//! as under cargo, in the folder of its package.

use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Instant;

/// What runs at one time. Each program uses all processors while it has tests for them.
const AT_ONCE: usize = 2;

/// A program that holds tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// What is to be executed.
    pub executable: PathBuf,
    /// Where its package is: tests find their files from there.
    pub package: PathBuf,
    /// Its source file, from the package: `tests/kill.rs`.
    pub source: PathBuf,
}

impl TestProgram {
    /// How it is named in what is printed: `crates/cli/tests/kill.rs`, for a package below `root`.
    fn name(&self, root: &Path) -> String {
        let package = self.package.strip_prefix(root).unwrap_or(&self.package);
        package.join(&self.source).display().to_string()
    }

    fn command(&self, options: &[String]) -> Command {
        let mut command = Command::new(&self.executable);
        command.args(options).current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

/// One thing to be run, and what it is called.
struct Job {
    name: String,
    command: Command,
}

/// The test programs that `cargo test --no-run --message-format=json` tells of, those of one package
/// together.
///
/// Lines that are no messages of the compiler are left out: cargo prints nothing else, tools around it might.
pub fn test_programs(messages: &str) -> Vec<TestProgram> {
    let mut programs: Vec<TestProgram> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| test_program(&message))
        .collect();
    programs.sort_by(|one, other| (&one.package, &one.source).cmp(&(&other.package, &other.source)));
    programs
}

fn test_program(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    Some(TestProgram {
        executable: message["executable"].as_str()?.into(),
        package: package.into(),
        source: source.strip_prefix(package).unwrap_or(source).into(),
    })
}

/// Builds all test programs below `root` and runs them and the tests in documents, each with the harness'
/// `options`. What one prints goes to a file in `target/tests`, and is shown when it has ended, in one piece.
/// Returns what failed: names of test programs by their source files, or the build.
///
/// # Errors
///
/// Cargo or a test program cannot be started, or what it printed cannot be kept or shown.
pub fn run_all(root: &Path, options: &[String]) -> io::Result<Vec<String>> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.arg("test").current_dir(root);
        command
    };
    let build = ["--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let built = cargo().args(build).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Ok(vec!["the build".into()]);
    }
    let mut jobs: Vec<Job> = test_programs(&String::from_utf8_lossy(&built.stdout))
        .iter()
        .map(|program| Job { name: program.name(root), command: program.command(options) })
        .collect();
    let mut documents = cargo();
    documents.args(["--workspace", "--no-fail-fast", "--doc", "--"]).args(options);
    jobs.push(Job { name: "tests in documents".into(), command: documents });
    let logs = root.join("target/tests");
    fs::create_dir_all(&logs)?;
    run_jobs(jobs, &logs)
}

/// Runs all, [`AT_ONCE`] at a time; the names of those that failed.
fn run_jobs(jobs: Vec<Job>, logs: &Path) -> io::Result<Vec<String>> {
    let slots = AT_ONCE.min(available_parallelism().map_or(1, usize::from));
    let jobs = Mutex::new(jobs.into_iter());
    let failed = Mutex::new(Vec::new());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let run_some = || -> io::Result<()> {
            while let Some(job) = next() {
                if !run_job(job.command, &job.name, logs)?.success() {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(job.name);
                }
            }
            Ok(())
        };
        let workers: Vec<_> = (0..slots).map(|_| scope.spawn(run_some)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs `command`, and shows what it printed between a line that names it and one that says how it ended.
fn run_job(mut command: Command, name: &str, logs: &Path) -> io::Result<ExitStatus> {
    println!("     Running {name}");
    let log = logs.join(name.replace('/', "-")).with_extension("log");
    let (start, printed) = (Instant::now(), File::create(&log)?);
    let status = command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed).status()?;
    let took = start.elapsed().as_secs();
    let mut out = io::stdout().lock();
    writeln!(out, "\n     Output of {name}")?;
    io::copy(&mut File::open(&log)?, &mut out)?;
    writeln!(out, "     Ended {name}: {status}, {took} s")?;
    Ok(status)
}
