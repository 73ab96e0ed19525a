//! The thread in the background that makes overlays, one after the other, at low priority.

use super::cache::{Cache, Entry};
use super::is_old;
use super::work::{Job, optimize, read_module};
use crate::SessionError;
use crate::analysis::analyze_image;
use restitch_address::FileOffset;
use restitch_layout::LayoutChoice;
use restitch_tracee::be_nice;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often counts are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The thread's nice value: the command's processes go first.
const NICE: i32 = 5;

/// What the thread tells.
pub(crate) enum Message {
    /// The next runs of this module are counted.
    Counting(PathBuf),
    /// The module is optimized; or, with an empty layout, its profile is kept for the next session.
    Done(Box<Entry>),
    /// The module is left alone, for this reason.
    Left(PathBuf, String),
}

/// What it is given.
enum Task {
    Module { path: PathBuf, samples: BTreeMap<FileOffset, u64>, seconds_per_run: f64 },
    Pending(Entry),
}

pub(crate) struct Worker {
    tasks: Option<Sender<Task>>,
    messages: Receiver<Message>,
    thread: Option<JoinHandle<f64>>,
}

impl Worker {
    pub fn start(cache: Cache, layout: LayoutChoice) -> Self {
        let ((tasks, given), (tell, messages)) = (channel(), channel());
        let thread = std::thread::spawn(move || {
            // Where the system refuses, the thread competes with the command's.
            be_nice(NICE);
            Thread { cache, layout, tell, jobs: Vec::new() }.run(&given);
            cpu_seconds()
        });
        Self { tasks: Some(tasks), messages, thread: Some(thread) }
    }

    /// A module that is worth it.
    pub fn module(&self, path: PathBuf, samples: BTreeMap<FileOffset, u64>, seconds_per_run: f64) {
        self.give(Task::Module { path, samples, seconds_per_run });
    }

    /// A module whose profile was made before.
    pub fn pending(&self, entry: Entry) {
        self.give(Task::Pending(entry));
    }

    fn give(&self, task: Task) {
        // A thread that has ended takes no tasks: nothing is optimized then, and the command runs on.
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(task);
        }
    }

    pub fn message(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// The command has ended: what can be kept is kept. The processor seconds that the thread has used.
    pub fn stop(mut self, mut hear: impl FnMut(Message)) -> f64 {
        self.tasks = None;
        let seconds = self.thread.take().and_then(|t| t.join().ok()).unwrap_or_default();
        self.messages.try_iter().for_each(&mut hear);
        seconds
    }
}

struct Thread {
    cache: Cache,
    layout: LayoutChoice,
    tell: Sender<Message>,
    /// Modules whose runs are being counted, with the seconds of a run and the processor seconds spent on them.
    jobs: Vec<(Job, f64, f64)>,
}

impl Thread {
    fn run(mut self, given: &Receiver<Task>) {
        loop {
            match given.recv_timeout(LOOK) {
                Ok(Task::Module { path, samples, seconds_per_run }) => {
                    self.begin(path, &samples, seconds_per_run);
                }
                Ok(Task::Pending(entry)) => self.optimize_pending(entry),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // What was counted is kept; to make overlays of it now would keep the user waiting.
        for (mut job, seconds, _) in std::mem::take(&mut self.jobs) {
            let _ = job.look(&self.cache);
            let path = job.path().to_path_buf();
            match job.keep_profile(&self.cache, seconds) {
                Ok(entry) => self.tell(Message::Done(Box::new(entry))),
                Err(error) => {
                    job.abandon(&self.cache);
                    self.tell(Message::Left(path, error.to_string()));
                }
            }
        }
    }

    fn tell(&self, message: Message) {
        // Nobody listens any more when the session is over.
        let _ = self.tell.send(message);
    }

    fn begin(&mut self, path: PathBuf, samples: &BTreeMap<FileOffset, u64>, seconds_per_run: f64) {
        let start = cpu_seconds();
        let begun = read_module(&path).and_then(|image| {
            let id = image.build_id().map(ToString::to_string).unwrap_or_default();
            if self.cache.entry(&id).is_some_and(|e| !e.layout.is_empty() && !is_old(&e)) {
                return Err(SessionError::NothingToDo("it is optimized already".into()));
            }
            Job::begin(&self.cache, &path, image, samples)
        });
        match begun {
            Ok(job) => {
                self.tell(Message::Counting(path));
                self.jobs.push((job, seconds_per_run, cpu_seconds() - start));
            }
            Err(error) => self.tell(Message::Left(path, why(&error))),
        }
    }

    fn look(&mut self) {
        let mut index = 0;
        while index < self.jobs.len() {
            let start = cpu_seconds();
            let (job, _, spent) = &mut self.jobs[index];
            let complete = job.look(&self.cache);
            *spent += cpu_seconds() - start;
            match complete {
                Ok(false) => index += 1,
                Ok(true) => {
                    let (job, seconds, spent) = self.jobs.remove(index);
                    self.finish(job, seconds, spent);
                }
                Err(error) => {
                    let (job, ..) = self.jobs.remove(index);
                    self.tell(Message::Left(job.path().to_path_buf(), why(&error)));
                    job.abandon(&self.cache);
                }
            }
        }
    }

    fn finish(&mut self, mut job: Job, seconds: f64, spent: f64) {
        let (start, path) = (cpu_seconds(), job.path().to_path_buf());
        let done = job.keep_profile(&self.cache, seconds).and_then(|entry| {
            let cost = move || spent + cpu_seconds() - start;
            optimize(&self.cache, entry, &job.into_module(), self.layout, cost)
        });
        self.report(&path, done);
    }

    fn optimize_pending(&mut self, entry: Entry) {
        let (start, path) = (cpu_seconds(), entry.path.clone());
        let done = self.load(&path, &entry.build_id).and_then(|module| {
            let _lock = self
                .cache
                .lock(&entry.build_id)
                .ok_or_else(|| SessionError::NothingToDo("another session is working on it".into()))?;
            optimize(&self.cache, entry, &module, self.layout, || cpu_seconds() - start)
        });
        self.report(&path, done);
    }

    fn load(&self, path: &Path, build_id: &str) -> Result<crate::Analyzed, SessionError> {
        let bad = |why: String| SessionError::BadFile { path: path.into(), why };
        let image = read_module(path)?;
        if image.build_id().is_none_or(|id| id.to_string() != build_id) {
            self.cache.remove(build_id);
            return Err(bad("it has changed since it was profiled".into()));
        }
        analyze_image(Arc::new(image)).map_err(bad)
    }

    fn report(&self, path: &Path, done: Result<Entry, SessionError>) {
        self.tell(match done {
            Ok(entry) => Message::Done(Box::new(entry)),
            Err(error) => Message::Left(path.into(), why(&error)),
        });
    }
}

/// What went wrong, without the file's name, which stands beside it in the report.
fn why(error: &SessionError) -> String {
    match error {
        SessionError::BadFile { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

/// Processor seconds of this thread.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |nanoseconds| nanoseconds / 1e9)
}
