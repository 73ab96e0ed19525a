//! `record -- COMMAND`: counts every program image that the command and its descendants execute, from the
//! entry point to the end.
//!
//! Problem: at `exec` only the program and the loader are mapped; the libraries, and the C library whose
//! lookup function the unwinder's hook needs, come later. Idea: each process runs to its program's entry
//! point (the loader jumps there when everything is mapped and relocated), is held, and gets its counting
//! versions in that stop. It stays a tracee, so that the programs that it starts are seen.
//!
//! Children that are forked count in their parent's counters. An image's counters are read when the last
//! process that has them has ended or executed something else. What cannot be counted runs as it is and is
//! named in the report. Processes that go on after the command's end get their original code back.

use crate::counted_images::{CountedImages, InForce};
use restitch_apply::Why;
use restitch_apply_process::{AttachedProcess, StateDir};
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::refusal::{refuse, with_what_is_left};
use restitch_processes::start::launch;
use restitch_procfs as procfs;
use restitch_tracee::{AskedToEnd, ExitStatus, LaunchOptions, Stopped, TraceError, TraceEvent, TraceEvents};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long descendants may outlive the command before they are left.
const GRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(500);
/// Programs that could not be counted are named up to this number.
const MOST_NAMED: usize = 12;

/// What came of following a command.
pub(crate) struct Followed {
    pub images: CountedImages,
    /// The command's exit status as a shell gives it.
    pub status: i32,
    /// The command's program.
    pub program: String,
    /// Program images that were counted.
    pub counted: u32,
    /// What ran uncounted, and why.
    pub warnings: Vec<String>,
}

/// An executed program image with its counters, and the number of processes that count in them.
struct Instance {
    live: AttachedProcess,
    versions: InForce,
    processes: u32,
}

struct Follower<'w> {
    dir: StateDir,
    only: &'w [String],
    watcher: &'w mut dyn Watcher,
    images: CountedImages,
    instances: Vec<Option<Instance>>,
    /// The instance of each process.
    of: BTreeMap<i32, usize>,
    counted: u32,
    /// By program: how often, and why.
    uncounted: BTreeMap<String, (u32, String)>,
}

/// Runs `command` to its end. With `only`, programs of other names (or paths) run uncounted, and are not
/// named.
///
/// # Errors
/// If it cannot be started, or tracing fails.
pub(crate) fn follow(
    command: Command,
    only: &[String],
    watcher: &mut dyn Watcher,
) -> Result<Followed, SessionError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut events = launch(command, LaunchOptions { follow_children: true })?;
    AskedToEnd::stand_for(events.root().pid);
    let root = events.root().pid;
    let program = program_of(root).unwrap_or(name);
    let mut follower = Follower {
        dir: StateDir::open()?,
        only,
        watcher,
        images: CountedImages::default(),
        instances: Vec::new(),
        of: BTreeMap::new(),
        counted: 0,
        uncounted: BTreeMap::new(),
    };
    let status = follower.run(&mut events, root);
    let trap = events.trap_in_code().map(|why| {
        format!(
            "hardware breakpoints are not available ({why}), so programs were stopped at their entry points by traps in their code: \
             had restitch been killed meanwhile, one of them could have ended by SIGTRAP"
        )
    });
    drop(events);
    follower.leave_the_rest();
    follower.dir.collect_garbage();
    let warnings = trap.into_iter().chain(follower.warnings()).collect();
    let Follower { images, counted, .. } = follower;
    Ok(Followed { images, status: status?, program, counted, warnings })
}

impl Follower<'_> {
    /// Handles events until nobody is left, or the command has ended long enough ago.
    fn run(&mut self, events: &mut TraceEvents, root: i32) -> Result<i32, SessionError> {
        let (mut status, mut grace) = (None, GRACE);
        while !events.is_empty() && !grace.is_zero() {
            let begun = Instant::now();
            self.step(events, root, &mut status)?;
            if status.is_some() {
                // A step is longer than a poll where this program got no processor. Descendants are not to
                // suffer for that.
                grace = grace.saturating_sub(begun.elapsed().min(POLL));
            }
        }
        let gone =
            || SessionError::Command { command: "the command".into(), why: "its end was not seen".into() };
        status.ok_or_else(gone)
    }

    /// Handles the next event, if one comes soon. The command's `status` is set at its end.
    fn step(
        &mut self,
        events: &mut TraceEvents,
        root: i32,
        status: &mut Option<i32>,
    ) -> Result<(), SessionError> {
        match events.next_event(POLL) {
            Ok(Some(TraceEvent::Exited { pid, status: ended })) => {
                self.left(pid);
                if pid == root {
                    *status = Some(match ended {
                        ExitStatus::Code(code) => code,
                        ExitStatus::Signal(signal) => 128 + signal,
                    });
                }
            }
            Ok(Some(event)) => self.handle(events, event),
            Ok(None) => {}
            Err(TraceError::ThirtyTwoBit { pid }) => {
                self.left(pid);
                self.not_counted(pid, "it is a 32-bit program");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn handle(&mut self, events: &mut TraceEvents, event: TraceEvent) {
        match event {
            TraceEvent::Exec(stopped) => {
                let pid = stopped.pid();
                self.left(pid);
                match self.entry_of(pid) {
                    Ok(Some(entry)) => {
                        if let Err(error) = events.run_to(stopped, entry) {
                            self.not_counted(pid, &error.to_string());
                        }
                    }
                    Ok(None) => drop(stopped.resume()),
                    Err(why) => {
                        stopped.resume();
                        self.not_counted(pid, &why.to_string());
                    }
                }
            }
            TraceEvent::Reached(stopped) => {
                let pid = stopped.pid();
                match self.install(stopped) {
                    Ok(()) => self.counted += 1,
                    Err(error) => self.not_counted(pid, &error.to_string()),
                }
            }
            TraceEvent::NewProcess { parent, child } => {
                if let Some(&instance) = self.of.get(&parent)
                    && let Some(it) = &mut self.instances[instance]
                {
                    it.processes += 1;
                    self.of.insert(child, instance);
                }
            }
            TraceEvent::Exiting(_) | TraceEvent::Exited { .. } => {}
        }
    }

    /// Where the program of a process begins, if it is to be counted.
    fn entry_of(&self, pid: i32) -> Result<Option<restitch_address::Avma>, Why> {
        let path = program_of(pid).unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        if !self.only.is_empty() && !self.only.iter().any(|o| o == name || *o == path) {
            return Ok(None);
        }
        let mode = procfs::open_executable(pid)
            .ok()
            .and_then(|f| f.file.metadata().ok())
            .map_or(0, |m| m.permissions().mode());
        if mode & 0o6000 != 0 {
            return Err(privileged(may_trace_all()).into());
        }
        let entry = procfs::auxv(pid)?.entry();
        entry.map(Some).ok_or_else(|| "it has no entry point".into())
    }

    /// Installs the counting versions in a process that stands at its entry point; it runs on in any case.
    fn install(&mut self, stopped: Stopped) -> Result<(), SessionError> {
        let pid = stopped.pid();
        let mut live = AttachedProcess::open(pid, self.dir.clone())?;
        refuse(live.target())?;
        let found = self.images.versions_for(&live)?;
        if found.is_empty() {
            let nothing = SessionError::nothing_to_do(
                "none of its code can be counted; `restitch analyze FILE` says what keeps it in place",
            );
            return Err(with_what_is_left(nothing, live.target()));
        }
        live.switch_held(stopped, &self.images.incoming(&found))?;
        let versions = found.iter().map(|ready| (ready.image, ready.number)).collect();
        let instance = Some(Instance { live, versions, processes: 1 });
        let free = self.instances.iter().position(Option::is_none);
        let index = free.unwrap_or(self.instances.len());
        match free {
            Some(index) => self.instances[index] = instance,
            None => self.instances.push(instance),
        }
        self.of.insert(pid, index);
        Ok(())
    }

    /// A process has ended, or executes something else.
    fn left(&mut self, pid: i32) {
        let Some(index) = self.of.remove(&pid) else { return };
        let Some(instance) = &mut self.instances[index] else { return };
        instance.processes -= 1;
        if instance.processes == 0
            && let Some(Instance { live, versions, .. }) = self.instances[index].take()
        {
            self.images.collect(&live, &versions);
        }
    }

    fn not_counted(&mut self, pid: i32, why: &str) {
        let program = program_of(pid).unwrap_or_else(|| format!("process {pid}"));
        self.uncounted.entry(program).or_insert((0, why.into())).0 += 1;
    }

    /// Processes that outlive the command get their original code back.
    fn leave_the_rest(&mut self) {
        let left: Vec<i32> = self.of.keys().copied().collect();
        for instance in self.instances.iter_mut().filter_map(Option::take) {
            self.images.collect(&instance.live, &instance.versions);
        }
        for pid in left {
            // One that has ended meanwhile needs nothing; for one that resists there is `restitch revert`.
            let reverted = crate::status::revert(pid, false);
            let failure = match &reverted {
                Ok(reverted) => reverted.failure(),
                Err(error) => Some(error),
            };
            let note = match failure {
                None => format!("process {pid} outlives the command; it has its original code again"),
                Some(error) => {
                    format!("process {pid} goes on counting: {error}; try `restitch revert {pid}`")
                }
            };
            if procfs::status(pid).is_ok() {
                self.watcher.note(&note);
            }
        }
    }

    fn warnings(&self) -> Vec<String> {
        let one = |(program, (times, why)): (&String, &(u32, String))| match times {
            1 => format!("{program} ran uncounted: {why}"),
            n => format!("{program} ran uncounted {n} times: {why}"),
        };
        let mut out: Vec<String> = self.uncounted.iter().map(one).take(MOST_NAMED).collect();
        out.extend_from_slice(self.images.refused());
        if self.uncounted.len() > MOST_NAMED {
            out.push(format!("{} more programs ran uncounted", self.uncounted.len() - MOST_NAMED));
        }
        out
    }
}

/// The path of a process's program.
fn program_of(pid: i32) -> Option<String> {
    let link = procfs::executable_path(pid).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// Why a set-user-id program is not counted. One that is traced does not get the rights of its owner, but
/// where its tracer `may` trace all (`CAP_SYS_PTRACE`; execve(2)).
fn privileged(may: bool) -> &'static str {
    match may {
        true => "it is a set-user-id or set-group-id program",
        false => {
            "it is a set-user-id or set-group-id program, which had no more rights than its caller's, as under every tracer (root records it with those of its owner, and so do --source burst and --source ip)"
        }
    }
}

fn may_trace_all() -> bool {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let own = procfs::status(std::process::id() as i32).ok().and_then(|status| status.capabilities);
    own.is_some_and(|capabilities| capabilities & CAP_SYS_PTRACE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_that_a_tracer_takes_are_told() {
        assert!(!privileged(true).contains("rights"));
        assert!(privileged(false).contains("no more rights") && privileged(false).contains("--source ip"));
    }
}
