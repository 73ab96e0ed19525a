//! Test programs that run until the test ends them.

use super::look::Snapshot;
use super::{PATIENCE, Restitch, code, look};
use restitch_testkit::{Error, Guarded, SUCCESS, TempDir, compile, program, scratch, wait_until};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rises when `stoppable.h` changes, since compiled programs are cached by their flags.
const HEADER: &str = "-DSTOPPABLE=1";

/// `source` of tests/programs, compiled so that [`Target::stop`] ends it. `None`, with a message, if that is
/// impossible here (no static libraries, say).
pub fn stoppable(source: &str, flags: &[&str]) -> Option<PathBuf> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut all = vec!["-D_GNU_SOURCE", HEADER, "-include", header];
    all.extend(flags);
    match compile(&program(source), &all) {
        Ok(path) => Some(path),
        Err(Error::Missing { tool }) => {
            restitch_testkit::skipped(&format!("{tool} is missing"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// `program` (C), linked with liblibrary.so, made of `library` (name of the source and text) with more
/// `flags`, both in `folder`; ended by [`Target::stop`].
pub fn linked(folder: &Path, library: (&str, &str), program: &str, flags: &[&str]) -> PathBuf {
    let path = |name: &str| folder.join(name);
    let (source, text) = library;
    std::fs::write(path(source), text).expect("writable");
    std::fs::write(path("program.c"), program).expect("writable");
    let built = |command: &mut Command| assert!(command.status().expect("it starts").success());
    let shared = path("liblibrary.so");
    let mut command = Command::new("g++");
    command.args(["-O2", "-fPIC", "-shared"]).args(flags).arg("-o").arg(&shared).arg(path(source));
    built(&mut command);
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut command = Command::new("gcc");
    command.args(["-O2", "-D_GNU_SOURCE", "-I", programs, "-include", header, "-o"]).arg(path("program"));
    command.arg(path("program.c")).arg(&shared).arg(format!("-Wl,-rpath,{}", folder.display()));
    built(&mut command);
    path("program")
}

/// A running test program.
pub struct Target {
    process: Guarded,
    folder: TempDir,
    /// What it is, for messages.
    pub name: String,
    before: Option<Snapshot>,
    /// Its number, where that is not the one of the process that was started.
    contained: Option<u32>,
}

impl Target {
    /// Starts `program` and waits until it computes. It ends by itself after ten minutes.
    pub fn start(program: &Path) -> Self {
        Self::start_with(program, &[])
    }

    /// The same with more arguments.
    pub fn start_with(program: &Path, arguments: &[&str]) -> Self {
        Self::launch(program, arguments, &[])
    }

    /// The same with more in its environment.
    pub fn start_in(program: &Path, environment: &[(&str, &str)]) -> Self {
        Self::launch(program, &[], environment)
    }

    fn launch(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command.args(["--seconds", "600"]).args(arguments).envs(environment.iter().copied());
        Self::launched(command, program, Some)
    }

    /// Starts `program` as in a container (`contain.c`), where the state directory of `restitch` is not to be
    /// seen. `None`, with a message, if this machine does not permit that, or restitch may not ask what
    /// filters permit.
    pub fn contained(restitch: &Restitch, program: &Path) -> Option<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/contain.c");
        let contain = compile(&source, &["-O1"]).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(contain);
        command.arg(restitch.state()).arg(program).args(["--seconds", "600"]);
        let mut out = Self::launched(command, program, |starter| executing(starter, program));
        let status = out.process.child().try_wait().ok().flatten();
        if status.is_some_and(|status| status.code() == Some(77)) {
            restitch_testkit::unsupported(
                "namespaces and filters of one's own are not permitted here (not root?)",
            );
            return None;
        }
        Some(out)
    }

    /// Starts a command, by which `program` runs as a process with the number that `pid` gives, once it is
    /// there.
    fn launched(mut command: Command, program: &Path, pid: impl Fn(u32) -> Option<u32>) -> Self {
        let folder = scratch();
        command.env("RESTITCH_TEST_STOP", folder.path().join("stop")).stdin(Stdio::null());
        command.stderr(File::create(folder.path().join("stderr")).expect("the folder is writable"));
        let mut process = Guarded::spawn(&mut command).expect("a compiled program starts");
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let contained = wait_until(PATIENCE, || pid(process.pid()).or((!process.is_running()).then_some(0)));
        let mut out = Self { process, folder, name, before: None, contained };
        let pid = out.pid();
        let began = wait_until(PATIENCE, || (cpu_ticks(pid) >= 5 || !out.is_running()).then_some(()));
        assert!(began.is_some() || !out.is_running(), "{} does not compute", out.name);
        if out.is_running() {
            out.before = Some(Snapshot::of(pid));
        }
        out
    }

    pub fn pid(&self) -> u32 {
        self.contained.unwrap_or(self.process.pid())
    }

    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    #[track_caller]
    pub fn assert_running(&mut self, when: &str) {
        let ended = self.process.child().try_wait().ok().flatten();
        assert!(
            ended.is_none(),
            "{} ended ({}) {when}: {}",
            self.name,
            ended.unwrap_or_default(),
            self.said()
        );
    }

    /// What it has written to its standard error: the check that did not hold.
    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Asserts that the process is as it was before restitch came: all read-only bytes, all mappings.
    #[track_caller]
    pub fn assert_untouched(&self, when: &str) {
        let differences = look::differences_that_stay(self.pid());
        assert_eq!(differences, [], "{} {when}: its code is not the file's", self.name);
        assert_eq!(look::ours(self.pid()), [], "{} {when}: versions stay mapped", self.name);
        let before = self.before.as_ref().expect("taken at the start");
        let changes = before.changes(&Snapshot::of(self.pid()));
        assert!(changes.is_empty(), "{} {when}: {changes:?}", self.name);
    }

    /// Reverts it, until versions that somebody might return into are unmapped, too, and asserts that it is
    /// as it was.
    #[track_caller]
    pub fn assert_goes_back(&self, restitch: &Restitch) {
        let reverted = restitch.revert(self.pid());
        reverted.expect(code::DONE);
        let mut said = vec![reverted.stdout];
        for _ in 0..40 {
            if look::ours(self.pid()).is_empty() {
                break;
            }
            linger(50);
            let reverted = restitch.run(&["revert", &self.pid().to_string()]);
            said.push(reverted.stdout + &reverted.stderr);
        }
        println!("{}: {said:#?}", self.name);
        self.assert_untouched(&format!("after revert, which said {said:?}"));
    }

    /// Tells it to end; all its checks have to have held.
    #[track_caller]
    pub fn stop(&mut self) {
        std::fs::write(self.folder.path().join("stop"), "").expect("the folder is writable");
        let status = self.process.wait_within(PATIENCE);
        let status = status.unwrap_or_else(|| panic!("{} does not end", self.name));
        assert_eq!(status.code(), Some(SUCCESS), "{}: {status}: {}", self.name, self.said());
    }

    /// Asserts that it goes on computing.
    #[track_caller]
    pub fn assert_computing(&mut self, when: &str) {
        let (pid, before) = (self.pid(), cpu_ticks(self.pid()));
        let goes_on = wait_until(PATIENCE, || (cpu_ticks(pid) > before).then_some(()));
        self.assert_running(when);
        assert!(goes_on.is_some(), "{} stands still {when}", self.name);
    }
}

/// The child of a process that executes `program`.
fn executing(starter: u32, program: &Path) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{starter}/task/{starter}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    (std::fs::read_link(format!("/proc/{child}/exe")).ok()? == program).then_some(child)
}

/// CPU time of a process in clock ticks, its waited-for children included; 0 when it has ended.
pub fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime, stime, cutime, cstime: fields 14 to 17 of proc(5), the third is the first behind the name.
    (11..15).filter_map(|i| fields.get(i)?.parse::<u64>().ok()).sum()
}

/// Waits a little: for races that have to be given a chance, never for a result.
pub fn linger(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
