//! Starting a program as a tracee and following it from its exec to its exit.

use crate::breakpoint::Breakpoint;
use crate::child::expect_end;
use crate::disposition::give_back;
use crate::error::TraceError;
use crate::memory::Memory;
use crate::seize::{OPTIONS, hold_thread, remember_stragglers};
use crate::status::{ExitStatus, StopKind, decode};
use crate::stopped::{Release, StopTimes, Stopped};
use crate::sys::{self, Resume, Waited};
use crate::urgent::Urgent;
use crate::wait::{Patience, WaitOutcome, wait_for, wait_for_keeping_signals};
use restitch_procfs::{self as procfs, ProcessId};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchOptions {
    /// Follow processes that the program starts, too.
    pub follow_children: bool,
}

/// Something that happened. The process stands still until the value that comes with it is dropped or
/// resumed.
#[derive(Debug)]
pub enum TraceEvent {
    /// A process has loaded a new program and is about to execute its first instruction (that of the dynamic
    /// loader, if it has one). Resuming or dropping lets it run on as a tracee.
    Exec(Stopped),
    /// A process that [`TraceEvents::run_to`] let run is about to execute the instruction there. All its
    /// threads stand still. Resuming or dropping lets it run on as a tracee.
    Reached(Stopped),
    /// A followed process created another one, which is followed too.
    NewProcess {
        /// The creator.
        parent: i32,
        /// The new process.
        child: i32,
    },
    /// A process is about to end and its memory can be read for the last time.
    Exiting(ExitStop),
    /// A process has ended.
    Exited {
        /// The process.
        pid: i32,
        /// How it ended.
        status: ExitStatus,
    },
}

/// A process that is held at its end. Dropping it lets the process end.
#[derive(Debug)]
pub struct ExitStop {
    pid: i32,
    tid: i32,
    status: ExitStatus,
    memory: Memory,
    not_send: PhantomData<*const ()>,
}

impl ExitStop {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How it is ending.
    pub fn status(&self) -> ExitStatus {
        self.status
    }

    /// Its memory, still complete. Other threads of the process may be running still.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for ExitStop {
    fn drop(&mut self) {
        // A thread that was killed meanwhile needs nothing.
        let _ = sys::resume(self.tid, Resume::Continue, 0);
    }
}

/// The events of a program that was started here, and of the processes that it starts.
///
/// If this program dies, the tracees go on without it. All calls must come from the thread that called
/// [`TraceEvents::spawn`]; the type is not `Send`.
#[derive(Debug)]
pub struct TraceEvents {
    root: ProcessId,
    options: LaunchOptions,
    /// The process of each followed thread.
    pub(crate) tasks: BTreeMap<i32, i32>,
    /// Reports that came while another one was waited for.
    pub(crate) early: VecDeque<(i32, StopKind)>,
    /// Events that came while a process was being stopped.
    pub(crate) queued: VecDeque<TraceEvent>,
    /// Where processes are to be reported, by process.
    pub(crate) breakpoints: BTreeMap<i32, Breakpoint>,
    /// Why the first `int3` was written.
    pub(crate) trap_in_code: Option<String>,
    not_send: PhantomData<*const ()>,
}

fn pipe() -> io::Result<(File, File)> {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two descriptors into `fds`.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are new, open and owned by nobody else.
    let [read, write] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((File::from(read), File::from(write)))
}

/// The child between fork and exec: tells its pid and waits until it is traced.
fn wait_for_tracer(ready: i32, go: i32) -> io::Result<()> {
    // SAFETY: `getpid`, `write` and `read` are async-signal-safe; the buffers are live locals of the stated
    // sizes and the descriptors were inherited from the parent, which keeps them open until the spawn has
    // returned.
    unsafe {
        let pid = libc::getpid().to_ne_bytes();
        let written = libc::write(ready, pid.as_ptr().cast(), pid.len());
        let mut byte = 0u8;
        let read = libc::read(go, (&raw mut byte).cast(), 1);
        match (written, read) {
            (4, 1) => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }
}

impl TraceEvents {
    /// Starts `command` as a tracee, which finds the signals [as this program did](crate::as_started). The
    /// first event is its [`TraceEvent::Exec`].
    pub fn spawn(command: Command, options: LaunchOptions) -> Result<Self, TraceError> {
        Self::spawn_looking(command, options, START_POLL)
    }

    /// The same; it is looked in turns for so long for the exec, and then whether that has failed.
    fn spawn_looking(
        mut command: Command,
        options: LaunchOptions,
        poll: Duration,
    ) -> Result<Self, TraceError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let launch = |source| TraceError::Launch { program: program.clone(), source };
        let (mut ready, ready_write) = pipe().map_err(launch)?;
        let (go_read, go) = pipe().map_err(launch)?;
        let (ready_fd, go_fd, own_go_fd) = (ready_write.as_raw_fd(), go_read.as_raw_fd(), go.as_raw_fd());
        // SAFETY: the closure calls async-signal-safe functions only and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                // Or the read below would not see the parent's death.
                libc::close(own_go_fd);
                give_back()?;
                wait_for_tracer(ready_fd, go_fd)
            });
        }
        // `Command::spawn` returns after the exec only, which has to wait for this thread: it needs one of
        // its own.
        let helper = std::thread::Builder::new().spawn(move || {
            let result = command.spawn();
            drop((ready_write, go_read));
            result
        });
        let helper = helper.map_err(launch)?;
        let mut start = Start::Unknown(helper);
        let mut pid = [0; 4];
        if ready.read_exact(&mut pid).is_err() {
            return Err(launch(start.error()));
        }
        let pid = i32::from_ne_bytes(pid);
        expect_end(pid);
        Self::trace_start(pid, options, go)?;
        let root = ProcessId::of(pid)?;
        let mut events = Self {
            root,
            options,
            tasks: BTreeMap::from([(pid, pid)]),
            early: VecDeque::new(),
            queued: VecDeque::new(),
            breakpoints: BTreeMap::new(),
            trap_in_code: None,
            not_send: PhantomData,
        };
        match events.wait_for_exec(&mut start, poll)? {
            true => Ok(events),
            false => {
                events.tasks.clear();
                Err(launch(start.error()))
            }
        }
    }

    fn trace_start(pid: i32, options: LaunchOptions, mut go: File) -> Result<(), TraceError> {
        sys::seize(pid, ptrace_options(options))?;
        go.write_all(&[1]).map_err(|source| TraceError::Ptrace { request: "start", tid: pid, source })
    }

    /// Lets the child run up to its exec; false if there is none.
    ///
    /// After a failed exec `Command::spawn` waits for the child's end in the helper thread, and may get the
    /// child's stop at its exit instead of us (a wait looks at the tracees of all threads of its process).
    /// Whoever gets it: the child is let go, and the end is left to `Command::spawn` or collected after it.
    ///
    /// After a successful one it returns as soon as the kernel has closed its descriptor, and the exec's
    /// report comes when the program is mapped, which may take its time.
    fn wait_for_exec(&mut self, start: &mut Start, poll: Duration) -> Result<bool, TraceError> {
        let pid = self.root.pid;
        let begun = Instant::now();
        loop {
            match wait_for(pid, poll) {
                WaitOutcome::Stop(stop @ StopKind::Event(libc::PTRACE_EVENT_EXEC)) => {
                    self.early.push_back((pid, stop));
                    return Ok(true);
                }
                WaitOutcome::Stop(StopKind::Event(libc::PTRACE_EVENT_EXIT)) => {
                    let _ = sys::detach(pid, 0);
                    return Ok(false);
                }
                WaitOutcome::Stop(StopKind::Ended(_)) | WaitOutcome::Gone => return Ok(false),
                WaitOutcome::Stop(StopKind::Signal(signal)) => {
                    sys::resume(pid, Resume::Continue, signal)?;
                }
                WaitOutcome::Stop(_) => sys::resume(pid, Resume::Continue, 0)?,
                WaitOutcome::TimedOut if start.has_failed() => {
                    let _ = sys::detach(pid, 0);
                    let _ = wait_for(pid, Duration::from_secs(1));
                    return Ok(false);
                }
                WaitOutcome::TimedOut if begun.elapsed() > START_LIMIT => {
                    let waited_ms = START_LIMIT.as_millis() as u64;
                    let state = "starting".to_owned();
                    return Err(TraceError::NotStopping { pid, tid: pid, waited_ms, state });
                }
                WaitOutcome::TimedOut => {}
            }
        }
    }

    /// The process that was started.
    pub fn root(&self) -> ProcessId {
        self.root
    }

    /// Whether any followed process is left.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next event, or `None` when `limit` has passed without one or nothing is followed any more. Values
    /// of earlier events must have been dropped or resumed, else their processes report nothing, or run on: a
    /// signal on its way to a held thread stays with the kernel, which reports it until the thread is
    /// resumed.
    pub fn next_event(&mut self, limit: Duration) -> Result<Option<TraceEvent>, TraceError> {
        if let Some(event) = self.queued.pop_front() {
            return Ok(Some(event));
        }
        let mut patience = Patience::new(limit);
        while !self.is_empty() {
            let Some((tid, stop)) = self.poll() else {
                if patience.is_over() {
                    return Ok(None);
                }
                patience.pause();
                continue;
            };
            match self.handle(tid, stop) {
                Ok(Some(event)) => return Ok(Some(event)),
                // Killed while it was handled: its end is reported next.
                Ok(None) | Err(TraceError::Vanished { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// A report of any followed thread. A signal in front of its delivery is only looked at, so that the
    /// kernel delivers it should this program die. They are asked one by one, so that children that are none
    /// of ours here are not taken from whoever waits for them.
    fn poll(&mut self) -> Option<(i32, StopKind)> {
        if let Some(early) = self.early.pop_front() {
            return Some(early);
        }
        let mut gone = Vec::new();
        let mut found = None;
        for &tid in self.tasks.keys() {
            match sys::wait_keeping_signals(tid, false) {
                Waited::Status(tid, status) => {
                    found = Some((tid, decode(status)));
                    break;
                }
                Waited::NoChild => gone.push(tid),
                Waited::Nothing => {}
            }
        }
        self.tasks.retain(|tid, _| !gone.contains(tid));
        found
    }

    pub(crate) fn handle(&mut self, tid: i32, stop: StopKind) -> Result<Option<TraceEvent>, TraceError> {
        let pid = self.tasks.get(&tid).copied().unwrap_or(tid);
        match stop {
            StopKind::Ended(status) => {
                self.tasks.remove(&tid);
                if tid == pid {
                    self.breakpoints.remove(&pid);
                }
                return Ok((tid == pid).then_some(TraceEvent::Exited { pid, status }));
            }
            StopKind::Event(libc::PTRACE_EVENT_EXEC) => return self.exec_stop(pid).map(Some),
            StopKind::Event(libc::PTRACE_EVENT_EXIT) => {
                if let Some(stop) = self.exit_stop(pid, tid)? {
                    return Ok(Some(TraceEvent::Exiting(stop)));
                }
                sys::resume(tid, Resume::Continue, 0)?;
            }
            StopKind::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
            ) => {
                let event = self.new_task(pid, tid)?;
                sys::resume(tid, Resume::Continue, 0)?;
                return Ok(event);
            }
            StopKind::Group(_) => sys::listen(tid)?,
            StopKind::Signal(signal) => return self.notified(pid, tid, signal),
            _ => sys::resume(tid, Resume::Continue, 0)?,
        }
        Ok(None)
    }

    /// Registers the thread or process that `tid` has created; it is attached already and starts stopped.
    fn new_task(&mut self, pid: i32, tid: i32) -> Result<Option<TraceEvent>, TraceError> {
        let child = sys::event_message(tid)? as i32;
        let group = procfs::status(child).ok().and_then(|status| status.tgid).unwrap_or(child);
        if group == pid {
            self.tasks.insert(child, pid);
            return Ok(None);
        }
        if self.options.follow_children {
            self.tasks.insert(child, group);
            self.inherit_breakpoint(pid, group);
            return Ok(Some(TraceEvent::NewProcess { parent: pid, child }));
        }
        // `clone` without CLONE_THREAD: a process, which was not asked for.
        if let WaitOutcome::Stop(StopKind::Interrupt | StopKind::Group(_)) =
            wait_for(child, Duration::from_secs(1))
        {
            let _ = sys::detach(child, 0);
        }
        Ok(None)
    }

    /// After an exec one thread is left, with the process's number. It is brought from the event, which is in
    /// the middle of the system call, to a stop from which it can be borrowed.
    fn exec_stop(&mut self, pid: i32) -> Result<TraceEvent, TraceError> {
        self.tasks.retain(|&task, &mut group| group != pid || task == pid);
        self.tasks.insert(pid, pid);
        self.breakpoints.remove(&pid);
        sys::interrupt(pid)?;
        sys::resume(pid, Resume::Continue, 0)?;
        let begun = Instant::now();
        let signal = match wait_for_keeping_signals(pid, Duration::from_secs(10)) {
            WaitOutcome::Stop(StopKind::Signal(signal)) => signal,
            WaitOutcome::Stop(StopKind::Interrupt | StopKind::Group(_)) => 0,
            WaitOutcome::Stop(stop) => {
                self.early.push_back((pid, stop));
                return Err(TraceError::Vanished { tid: pid, operation: "starting a program" });
            }
            _ => return Err(TraceError::Vanished { tid: pid, operation: "starting a program" }),
        };
        let held = hold_thread(pid, signal)?;
        if !held.original.is_64_bit() {
            sys::resume(pid, Resume::Continue, signal)?;
            return Err(TraceError::ThirtyTwoBit { pid });
        }
        Ok(TraceEvent::Exec(Stopped {
            process: ProcessId::of(pid)?,
            threads: vec![held],
            memory: Memory::open(pid)?.of_stopped(),
            others_run: false,
            release: Release::Continue,
            times: StopTimes { stopping: begun.elapsed(), passes: 1, ..StopTimes::default() },
            since: Instant::now(),
            _urgent: Urgent::begin(),
            holds: None,
            not_send: PhantomData,
        }))
    }

    /// Whether this thread's end is that of the process: it is the last one, it called `exit_group`, or a
    /// signal ends it.
    fn exit_stop(&self, pid: i32, tid: i32) -> Result<Option<ExitStop>, TraceError> {
        let status = ExitStatus::from_raw(sys::event_message(tid)? as i32);
        let others = self.tasks.iter().any(|(&task, &group)| group == pid && task != tid);
        let call = sys::get_registers(tid)?.system_call();
        let alone = others && call == Some(libc::SYS_exit) && matches!(status, ExitStatus::Code(_));
        if alone {
            return Ok(None);
        }
        let memory = Memory::open(tid)?;
        Ok(Some(ExitStop { pid, tid, status, memory, not_send: PhantomData }))
    }

    /// Stops following: all processes run on untraced.
    pub fn detach(mut self) {
        self.let_all_go();
    }

    /// Forgets a process that this thread goes on tracing in another way.
    pub(crate) fn give_up(&mut self, pid: i32) {
        self.tasks.retain(|_, process| *process != pid);
        self.breakpoints.remove(&pid);
    }

    /// Interrupts everyone, and lets go who has stopped. One that does not stop at once waits for a vfork
    /// child, which may be one that stops now, or gets no processor. One that has just created another is let
    /// go together with that.
    fn let_all_go(&mut self) {
        self.queued.clear();
        for (tid, stop) in std::mem::take(&mut self.early) {
            let signal = if let StopKind::Signal(signal) = stop { signal } else { 0 };
            let _ = sys::detach(tid, signal);
        }
        let mut left: Vec<(i32, i32)> = std::mem::take(&mut self.tasks).into_iter().collect();
        left.iter().for_each(|(tid, _)| drop(sys::interrupt(*tid)));
        let mut patience = Patience::new(LET_GO);
        while !left.is_empty() {
            let (is_last, mut waiting) = (patience.is_over(), Vec::new());
            for (tid, pid) in left {
                match sys::wait_keeping_signals(tid, false) {
                    Waited::Nothing => waiting.push((tid, pid)),
                    Waited::NoChild => {}
                    Waited::Status(_, status) => waiting.extend(self.let_go(pid, tid, decode(status))),
                }
            }
            left = waiting;
            if is_last {
                break;
            }
            patience.pause();
        }
        // They stop some day.
        remember_stragglers(left.into_iter().map(|(tid, _)| tid));
    }

    /// Lets one go that has stopped; whom it has just created, which is attached by that.
    fn let_go(&mut self, pid: i32, tid: i32, stop: StopKind) -> Option<(i32, i32)> {
        let signal = if let StopKind::Signal(signal) = stop { signal } else { 0 };
        let created = match stop {
            StopKind::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
            ) => sys::event_message(tid).ok(),
            _ => None,
        };
        let signal = self.leave_breakpoint(pid, tid, signal);
        let _ = sys::detach(tid, signal);
        created.map(|child| (child as i32, pid))
    }
}

impl Drop for TraceEvents {
    fn drop(&mut self) {
        self.let_all_go();
    }
}

fn ptrace_options(options: LaunchOptions) -> i32 {
    let children = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
    OPTIONS
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACECLONE
        | if options.follow_children { children } else { 0 }
}

/// How long those that are let go may take to stop for that.
const LET_GO: Duration = Duration::from_secs(10);

/// How often the start of a program looks whether it has failed.
const START_POLL: Duration = Duration::from_millis(20);
/// When it gives up.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What is known of [`Command::spawn`], which runs in a thread of its own.
enum Start {
    Unknown(JoinHandle<io::Result<Child>>),
    Known(io::Result<Child>),
}

impl Start {
    /// Whether the program could not be started. (That the thread has ended says nothing: it ends with a
    /// successful exec, too.)
    fn has_failed(&mut self) -> bool {
        if let Self::Unknown(helper) = self
            && helper.is_finished()
        {
            self.settle();
        }
        matches!(self, Self::Known(Err(_)))
    }

    /// Waits for the thread's end.
    fn settle(&mut self) {
        let lost = || io::Error::from_raw_os_error(libc::ECHILD);
        if let Self::Unknown(helper) = std::mem::replace(self, Self::Known(Err(lost()))) {
            *self = Self::Known(helper.join().unwrap_or_else(|_| Err(lost())));
        }
    }

    /// Why the program was not started.
    fn error(mut self) -> io::Error {
        if matches!(self, Self::Unknown(_)) {
            self.settle();
        }
        match self {
            Self::Known(Err(error)) => error,
            _ => io::Error::from_raw_os_error(libc::ECHILD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread that starts a program has mostly ended when the exec is reported.
    #[test]
    fn a_program_that_takes_its_time_to_be_mapped_is_started() {
        for _ in 0..300 {
            let command = Command::new("/bin/true");
            let started = TraceEvents::spawn_looking(command, LaunchOptions::default(), Duration::ZERO);
            let events = started.expect("it is there and can be executed");
            let root = events.root();
            events.detach();
            assert_eq!(crate::child::wait_for_child(root).expect("our child"), 0);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_not_started() {
        for poll in [Duration::ZERO, START_POLL] {
            let command = Command::new("/no/such/program");
            let error = TraceEvents::spawn_looking(command, LaunchOptions::default(), poll).err();
            assert!(error.expect("not there").to_string().contains("No such file"));
        }
    }
}
