//! Starting a program so that a version can be in force from its first own instruction.
//!
//! Problem: at `exec` only the program and the loader are mapped; the libraries, and the C library whose lookup function the
//! unwinder's hook needs, come later. Idea: the program's entry point (which the loader jumps to when everything is
//! mapped and relocated) gets a two-byte jump to itself. When the first thread stands there, all is in place; the original
//! bytes come back in the same stop in which the version is installed.

use crate::SessionError;
use restitch_address::Avma;
use restitch_procfs::{self as procfs, ProcessId};
use restitch_tracee::{LaunchOptions, Memory, Stopped, TraceEvent, TraceEvents};
use std::process::Command;
use std::time::{Duration, Instant};

/// `jmp .`
const SPIN: [u8; 2] = [0xeb, 0xfe];
/// How long the loader may take.
const LOADER_LIMIT: Duration = Duration::from_secs(60);

/// A program that stands at its entry point.
#[derive(Debug)]
pub struct Launched {
    process: ProcessId,
    held: Option<Stopped>,
}

impl Launched {
    /// Starts `command` and lets it run up to its entry point.
    ///
    /// # Errors
    /// If it cannot be started or never gets there.
    pub fn start(command: Command) -> Result<Self, SessionError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let fail = |why: &str| SessionError::Command { command: name.clone(), why: why.into() };
        let mut events = TraceEvents::spawn(command, LaunchOptions::default())?;
        let process = events.root();
        let entry = loop {
            match events.next_event(LOADER_LIMIT)? {
                Some(TraceEvent::Exec(stopped)) => {
                    let at =
                        procfs::auxv(process.pid)?.entry().ok_or_else(|| fail("it has no entry point"))?;
                    break arm(stopped, at)?;
                }
                Some(TraceEvent::Exited { .. }) | None => return Err(fail("it ended before it began")),
                Some(_) => {}
            }
        };
        events.detach();
        let held = wait_at(process, &entry)?.ok_or_else(|| fail("it did not reach its entry point"))?;
        held.memory().write(entry.at, &entry.original)?;
        Ok(Self { process, held: Some(held) })
    }

    /// The process.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Hands the stopped process over, once.
    pub fn take_held(&mut self) -> Option<Stopped> {
        self.held.take()
    }
}

/// The entry point and the bytes that belong there.
struct Entry {
    at: Avma,
    original: Vec<u8>,
}

fn arm(stopped: Stopped, at: Avma) -> Result<Entry, SessionError> {
    let memory: &Memory = stopped.memory();
    let original = memory.read_vec(at, SPIN.len())?;
    memory.write(at, &SPIN)?;
    stopped.resume();
    Ok(Entry { at, original })
}

/// Polls until the first thread stands at the entry point. `None` when it never does.
fn wait_at(process: ProcessId, entry: &Entry) -> Result<Option<Stopped>, SessionError> {
    let end = Instant::now() + LOADER_LIMIT;
    let mut pause = Duration::from_micros(500);
    while Instant::now() < end && process.is_alive() {
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(20));
        let stopped = Stopped::seize_all(process.pid)?;
        if stopped.registers(process.pid)?.rip == entry.at {
            return Ok(Some(stopped));
        }
        stopped.resume();
    }
    Ok(None)
}

/// Waits for the end of a child of ours; its exit status as a shell gives it.
pub(crate) fn wait_for_end(process: ProcessId) -> Result<i32, SessionError> {
    Ok(restitch_tracee::wait_for_child(process)?)
}
