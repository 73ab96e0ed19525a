//! Building and running the programs, plain and by restitch.

use super::{Linking, OddProgram};
use crate::find::find_program;
use crate::process::{Finished, Guarded, run_within};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rounds of a run.
const ROUNDS: &str = "400";
/// Laps of a run that is attached to: more than it comes to.
const LAPS: &str = "1000000000000";
/// So many runs in which a program prints the same show that this does not depend on where it is loaded: one
/// in three places was another one, where it did.
const MANY: usize = 100;
/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Codes with which restitch may end: documented, and neither those of a refusing checker nor those of a
/// command that was not started.
const ORDERLY: std::ops::RangeInclusive<i32> = 0..=8;

/// What became of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It does not build here (a linker of another version), or does not run by itself: nothing is said about
    /// restitch.
    Unusable(String),
    /// Everything was right. The steps that restitch refused, with the beginnings of its messages.
    Right(Vec<(&'static str, String)>),
    /// What was wrong: the step, and what it did.
    Wrong(&'static str, String),
}

/// What many programs have come to.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Programs that were tried.
    pub tried: usize,
    /// Programs of which every step was right.
    pub right: usize,
    /// Programs of which no step was refused.
    pub unrefused: usize,
    /// Those that could not be tried.
    pub unusable: usize,
    /// Refusals, by step and message.
    pub refusals: BTreeMap<(&'static str, String), usize>,
    /// Seeds of wrong programs, with what was wrong.
    pub wrong: Vec<(u64, &'static str, String)>,
}

impl Tally {
    /// Adds one verdict.
    pub fn add(&mut self, seed: u64, verdict: Verdict) {
        self.tried += 1;
        match verdict {
            Verdict::Unusable(_) => self.unusable += 1,
            Verdict::Right(refused) => {
                self.right += 1;
                self.unrefused += usize::from(refused.is_empty());
                refused.into_iter().for_each(|refusal| *self.refusals.entry(refusal).or_default() += 1);
            }
            Verdict::Wrong(step, what) => self.wrong.push((seed, step, what)),
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tried, right, unrefused, unusable, .. } = self;
        writeln!(
            out,
            "{tried} programs: {right} right ({unrefused} without any refusal), {} wrong, {unusable} not usable",
            self.wrong.len()
        )?;
        for ((step, message), count) in &self.refusals {
            writeln!(out, "  refused {count} times: {step}: {message}")?;
        }
        for (seed, step, what) in &self.wrong {
            writeln!(out, "  WRONG: seed {seed}: {step}: {what}")?;
        }
        Ok(())
    }
}

/// Where programs are tried: restitch, and a folder of its own.
pub struct Bench {
    restitch: PathBuf,
    folder: PathBuf,
    lld: bool,
}

impl Bench {
    /// Tries `restitch` in `folder`, which exists.
    pub fn new(restitch: &Path, folder: &Path) -> Self {
        Self { restitch: restitch.into(), folder: folder.into(), lld: find_program("ld.lld").is_some() }
    }

    /// Builds the program of `seed` and tries it; also attaches to it, if it is to be `live`.
    pub fn try_seed(&self, seed: u64, live: bool) -> Verdict {
        let program = match self.build(&OddProgram::generate(seed)) {
            Ok(program) => program,
            Err(why) => return Verdict::Unusable(why),
        };
        let plain = self.output(Command::new(&program).arg(ROUNDS));
        let Some(wanted) = plain.clone().ok().filter(|output| output.starts_with("f00 ")) else {
            return Verdict::Unusable(format!("{plain:?}"));
        };
        let depends = || Verdict::Unusable("what it prints depends on where it is loaded".into());
        if !self.always_prints(&program, &wanted, 1) {
            return depends();
        }
        let mut trial = Trial { bench: self, program, wanted, refused: Vec::new() };
        match trial.offline().and_then(|()| if live { trial.live() } else { Ok(()) }) {
            Ok(()) => Verdict::Right(trial.refused),
            Err(_) if !self.always_prints(&trial.program, &trial.wanted, MANY) => depends(),
            Err((step, what)) => Verdict::Wrong(step, what),
        }
    }

    /// Whether the plain program prints that in each of so many runs. (It may read bytes of code that the
    /// loader has written an address into.)
    fn always_prints(&self, program: &Path, wanted: &str, runs: usize) -> bool {
        (0..runs).all(|_| self.output(Command::new(program).arg(ROUNDS)).as_deref() == Ok(wanted))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn build(&self, program: &OddProgram) -> Result<PathBuf, String> {
        let (source, out) = (self.path("odd.s"), self.path("odd"));
        std::fs::write(&source, &program.assembly).map_err(|e| e.to_string())?;
        let _ = std::fs::remove_file(&out);
        let main = self.main(program.linking)?;
        let mut command = Command::new("gcc");
        command.args(flags(program.linking, self.lld)).arg("-o").args([&out, &main, &source]);
        built(&mut command)?;
        Ok(out)
    }

    /// What all programs of a kind of linking share, compiled once.
    fn main(&self, linking: Linking) -> Result<PathBuf, String> {
        let out = self.path(if linking.fixed { "main.fixed.o" } else { "main.pie.o" });
        if !out.exists() {
            let (source, new) = (self.path("main.c"), self.path("main.o"));
            std::fs::write(&source, include_str!("main.c")).map_err(|e| e.to_string())?;
            let mut command = Command::new("gcc");
            command.args(["-O1", "-w", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-c"]);
            command.arg(if linking.fixed { "-fno-pie" } else { "-fPIE" }).arg("-o").args([&new, &source]);
            built(&mut command)?;
            std::fs::rename(&new, &out).map_err(|e| e.to_string())?;
        }
        Ok(out)
    }

    /// What a command prints, if it ends well; else how it ended.
    fn output(&self, command: &mut Command) -> Result<String, String> {
        match finish(command)? {
            done if done.status.success() => Ok(done.stdout),
            done => Err(ended(&done)),
        }
    }

    fn restitch(&self) -> Command {
        let mut command = Command::new(&self.restitch);
        command.env("RESTITCH_STATE_DIR", self.path("state")).env("RESTITCH_CACHE_DIR", self.path("cache"));
        command
    }
}

/// Runs a compiler; what it said, if it failed.
fn built(command: &mut Command) -> Result<(), String> {
    match finish(command)? {
        done if done.status.success() => Ok(()),
        done => Err(done.stderr),
    }
}

fn flags(linking: Linking, has_lld: bool) -> Vec<&'static str> {
    let mut flags = match linking.fixed {
        true => vec!["-nostdlib", "-no-pie", "-static"],
        false => vec!["-nostdlib", "-pie"],
    };
    if linking.text_relocations {
        flags.push("-Wl,-z,notext");
    }
    if linking.stripped {
        flags.push("-s");
    }
    if linking.lld && has_lld {
        flags.push("-fuse-ld=lld");
    }
    flags
}

type Wrong = (&'static str, String);

/// One program at work.
struct Trial<'a> {
    bench: &'a Bench,
    program: PathBuf,
    wanted: String,
    refused: Vec<(&'static str, String)>,
}

impl Trial<'_> {
    fn offline(&mut self) -> Result<(), Wrong> {
        let bench = self.bench;
        let (profile, fast) = (bench.path("profile"), bench.path("fast"));
        let (counting, counts) = (bench.path("counting"), bench.path("counts"));
        for old in [&profile, &fast, &counting, &counts] {
            let _ = std::fs::remove_file(old);
        }
        let mut record = bench.restitch();
        record.arg("record").arg("-o").arg(&profile).arg("--").arg(&self.program).arg(ROUNDS);
        self.recorded("record", &mut record)?;
        let mut optimize = bench.restitch();
        optimize.arg("optimize").arg(&self.program).arg("--profile").arg(&profile).arg("-o").arg(&fast);
        if profile.exists() && self.asked("optimize", &mut optimize)? {
            self.same("optimized", &mut Command::new(&fast))?;
        }
        let mut instrument = bench.restitch();
        instrument.arg("instrument").arg(&self.program).arg("-o").arg(&counting).arg("--counts").arg(&counts);
        if self.asked("instrument", &mut instrument)? {
            self.same("instrumented", &mut Command::new(&counting))?;
        }
        Ok(())
    }

    /// Runs it under a command of restitch that stands in for it: what it prints is the program's, unless it
    /// was refused.
    fn recorded(&mut self, step: &'static str, command: &mut Command) -> Result<(), Wrong> {
        let done = finish(command).map_err(|why| (step, why))?;
        let is_right = done.stdout == self.wanted;
        match done.status.code() {
            Some(0) if is_right => Ok(()),
            Some(0) => Err((step, difference(&self.wanted, &done.stdout))),
            Some(code) if ORDERLY.contains(&code) && (is_right || done.stdout.is_empty()) => {
                self.refused.push((step, message(&done.stderr)));
                Ok(())
            }
            _ => Err((step, ended(&done))),
        }
    }

    /// Runs a command of restitch: whether it has done it. What it refuses is noted.
    fn asked(&mut self, step: &'static str, command: &mut Command) -> Result<bool, Wrong> {
        let done = finish(command).map_err(|why| (step, why))?;
        match done.status.code() {
            Some(0) => Ok(true),
            Some(code) if ORDERLY.contains(&code) => {
                self.refused.push((step, message(&done.stderr)));
                Ok(false)
            }
            _ => Err((step, ended(&done))),
        }
    }

    /// The output of a changed file is that of the program.
    fn same(&self, step: &'static str, command: &mut Command) -> Result<(), Wrong> {
        match self.bench.output(command.arg(ROUNDS)) {
            Ok(output) if output == self.wanted => Ok(()),
            Ok(output) => Err((step, difference(&self.wanted, &output))),
            Err(ended) => Err((step, ended)),
        }
    }

    /// Attaches to it and reverts it while it works: it compares each checksum with that of its first lap,
    /// and ends where one differs.
    fn live(&mut self) -> Result<(), Wrong> {
        let mut process = self.start()?;
        let pid = process.pid().to_string();
        let mut attach = self.bench.restitch();
        // (Much of what such programs run is found to be well where it is.)
        attach.args(["attach", &pid, "--duration", "0.6", "--measure", "0", "--keep-in-place", "off"]);
        if self.asked("attach", &mut attach)? {
            self.works_on(&mut process, "attached to")?;
            let mut revert = self.bench.restitch();
            self.asked("revert", revert.args(["revert", &pid]))?;
        }
        self.works_on(&mut process, "reverted")
    }

    /// The program, past its first lap.
    fn start(&self) -> Result<Guarded, Wrong> {
        let failed = |error: std::io::Error| ("start", error.to_string());
        let mut command = Command::new(&self.program);
        command.args([ROUNDS, LAPS]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Guarded::spawn(&mut command).map_err(failed)?;
        let mut lap = vec![0; self.wanted.len()];
        let pipe = process.child().stdout.as_mut().expect("it was asked for");
        pipe.read_exact(&mut lap).map_err(failed)?;
        Ok(process)
    }

    /// The process goes on for some laps.
    fn works_on(&self, process: &mut Guarded, step: &'static str) -> Result<(), Wrong> {
        let Some(status) = process.wait_within(Duration::from_millis(100)) else { return Ok(()) };
        let mut last = String::new();
        let pipe = process.child().stdout.as_mut().expect("it was asked for");
        pipe.read_to_string(&mut last).map_err(|error| (step, error.to_string()))?;
        Err((step, format!("the process ended with {status}, the last sum {:?}", last.trim())))
    }
}

/// The first line in which two outputs differ.
fn difference(wanted: &str, got: &str) -> String {
    let mut pairs = wanted.lines().zip(got.lines());
    match pairs.find(|(wanted, got)| wanted != got) {
        Some((wanted, got)) => format!("printed {got:?} in place of {wanted:?}"),
        None => format!("printed {} lines in place of {}", got.lines().count(), wanted.lines().count()),
    }
}

/// Runs a command to its end, unless it takes too long.
fn finish(command: &mut Command) -> Result<Finished, String> {
    run_within(command, PATIENCE).ok_or_else(|| format!("it did not end within {PATIENCE:?}"))
}

/// How a command ended, in words.
fn ended(done: &Finished) -> String {
    format!("{}: {}", done.status, message(&done.stderr))
}

/// What a command said, without what is different in each run: the line of a panic or of restitch's own
/// error.
fn message(stderr: &str) -> String {
    let mut lines = stderr.lines().filter(|line| !line.trim().is_empty());
    // (The last one: progress is told in such lines, too.)
    let line = lines.clone().rfind(|line| line.contains("panicked at") || line.starts_with("restitch:"));
    let line = line.or_else(|| lines.next()).unwrap_or_default();
    let without_numbers = |word: &str| !word.bytes().any(|b| b.is_ascii_digit()) && !word.contains('/');
    let words: Vec<&str> =
        line.split(' ').filter(|word| without_numbers(word) || word.contains(".rs:")).collect();
    words.join(" ").chars().take(200).collect()
}
