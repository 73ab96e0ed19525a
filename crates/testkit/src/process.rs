//! Child processes with an end.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long [`wait_until`] sleeps between two looks.
const POLL: Duration = Duration::from_millis(2);

/// What `look` finds, or none if it found nothing until `limit` was over. The last look is after that.
pub fn wait_until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        let is_last = Instant::now() >= end;
        if let Some(found) = look() {
            return Some(found);
        }
        if is_last {
            return None;
        }
        std::thread::sleep(POLL);
    }
}

/// Copies a program so that it can be executed at once. Another process does it: a file that is open for
/// writing here may be inherited by a child that another test is just starting, and until that child has
/// executed something else nobody can execute the file (`ETXTBSY`).
///
/// # Errors
/// If `cp` cannot be started or fails.
pub fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    let done = Command::new("cp").arg(from).arg(to).stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned())),
    }
}

/// A child process that is killed and reaped when this is dropped. Its own children are not.
#[derive(Debug)]
pub struct Guarded(Child);

impl Guarded {
    /// Starts `command`.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        command.spawn().map(Self)
    }
    /// Starts `program` with `arguments`, without input and output.
    pub fn start(program: &Path, arguments: &[&str]) -> std::io::Result<Self> {
        Self::spawn(Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()))
    }
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }
    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
    /// Its exit status, if it ends within `limit`. It goes on running if not.
    pub fn wait_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait_until(limit, || self.0.try_wait().ok().flatten())
    }
    /// Kills it and waits for its end.
    pub fn kill(&mut self) -> std::io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Fails only if it has been reaped already.
        let _ = self.kill();
    }
}

/// What a finished process left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

impl Finished {
    /// Panics, with all that the process wrote, if it did not exit with `code`.
    #[track_caller]
    pub fn expect(&self, code: i32) {
        assert_eq!(self.status.code(), Some(code), "{}\n{}\n{}", self.status, self.stdout, self.stderr);
    }
}

/// Runs `command` to its end without input. Panics if it cannot be started or takes longer than `limit`.
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Finished {
    run_within(command, limit).unwrap_or_else(|| panic!("{command:?} did not end within {limit:?}"))
}

/// As [`run`]; none if it takes longer than `limit`, which ends it and what it has started.
#[track_caller]
pub fn run_within(command: &mut Command, limit: Duration) -> Option<Finished> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match Guarded::spawn(command) {
        Ok(child) => child,
        Err(error) => panic!("cannot start {command:?}: {error}"),
    };
    let stdout = collect(child.child().stdout.take());
    let stderr = collect(child.child().stderr.take());
    let Some(status) = child.wait_within(limit) else {
        let group = format!("-{}", child.pid());
        // (If it cannot be started, the child alone is killed.)
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        return None;
    };
    let text = |reader: std::thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Some(Finished { status, stdout: text(stdout), stderr: text(stderr) })
}

/// Reads a pipe in a thread of its own, so that a full one cannot block the child.
fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is worth showing.
        let _ = pipe.map(|mut p| p.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
