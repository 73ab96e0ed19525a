//! Compiles and starts the small C programs that the tests work on.

#![allow(dead_code, reason = "each test file uses another part")]

use restitch_address::Avma;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Compiles `tests/programs/NAME.c`; `None` (with a note) where there is no C compiler.
pub fn compile(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(format!("{name}-{}-{:?}", std::process::id(), std::thread::current().id()));
    let compiled =
        Command::new("cc").args(["-O1", "-g", "-pthread", "-Wall", "-o"]).arg(&program).arg(&source).status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "{name}.c does not compile");
            Some(program)
        }
        Err(_) => {
            eprintln!("SKIPPED: no C compiler `cc`");
            None
        }
    }
}

/// A started program that has said `ready`.
pub struct Target {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
    pub padding: Avma,
    program: PathBuf,
}

impl Target {
    pub fn start(name: &str, arguments: &[&str]) -> Option<Self> {
        Self::start_or(name, arguments, "nothing else")
    }

    /// `None` also where it says `otherwise` in place of `ready`.
    pub fn start_or(name: &str, arguments: &[&str], otherwise: &str) -> Option<Self> {
        let program = compile(name)?;
        let mut child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("readable");
        if line.trim() == otherwise {
            child.wait().expect("waitable");
            return None;
        }
        assert!(line.starts_with("ready"), "{line}");
        let address = line.trim().strip_prefix("ready 0x").unwrap_or("0");
        let padding = Avma::new(u64::from_str_radix(address, 16).expect("an address"));
        Some(Self { child, input, output, padding, program })
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("waitable").is_some()
    }

    /// Whether its other threads have ended, and with them its work.
    pub fn is_done(&self) -> bool {
        restitch_procfs::threads(self.pid()).is_ok_and(|threads| threads.len() == 1)
    }

    /// Closes its input, waits for its end and asserts that it found everything in order.
    pub fn assert_ok(self) {
        self.end();
    }

    /// The same; what it said.
    pub fn end(mut self) -> String {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("readable");
        let status = self.child.wait().expect("waitable");
        assert!(
            status.success() && rest.lines().last().is_some_and(|l| l.starts_with("ok")),
            "{status}: {rest}"
        );
        rest
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.program);
    }
}
