//! The threads in the background: makers make overlays, one after the other, the accountant looks after the runs that count.
//!
//! **Priority.** There are two makers: an ordinary one, whose time is paid for out of the [`Budget`], and one that does with what
//! the command's processes leave. Where a build keeps every core busy the latter gets about 1.5 % of one.
//!
//! **The end.** When the command ends, what was counted becomes a profile, which is the matter of a moment. Overlays that are not made yet are
//! made now, by another process, or the next time ([`Finish`]); a thread that is at it is left behind, and ends with the process: nothing that
//! it does can be seen half done.

use super::budget::{Budget, COUNTING_COSTS};
use super::cache::{Cache, Entry};
use super::work::{Held, Job, optimize, optimize_stored, read_module};
use super::{Finish, Making, is_old, optimize_cost};
use crate::SessionError;
use restitch_address::FileOffset;
use restitch_tracee::{be_lowest, be_nice};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often counts are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The nice value of the ordinary maker and of the accountant: the command's processes go first.
const NICE: i32 = 5;

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// It is paid for.
    Ordinary,
    /// With what the command leaves.
    Lowest,
}

/// What the threads tell.
pub(crate) enum Message {
    /// The next runs of this module are counted.
    Counting(PathBuf),
    /// The module is optimized; or, with an empty layout, its profile is kept.
    Done(Box<Entry>),
    /// The module is left alone, for this reason.
    Left(PathBuf, String),
}

/// What the maker is given.
enum Task {
    Begin { path: PathBuf, samples: BTreeMap<FileOffset, u64>, seconds_per_run: f64 },
    Pending(Entry),
    Optimize { entry: Entry, held: Box<Held>, spent: f64 },
}

/// A module whose runs are counted.
struct Counting {
    job: Job,
    seconds_per_run: f64,
    /// Processor seconds that were spent on it.
    spent: f64,
}

pub(crate) struct Worker {
    makers: Option<Makers>,
    messages: Receiver<Message>,
    stop: Arc<AtomicBool>,
    accountant: JoinHandle<()>,
    threads: [JoinHandle<()>; 2],
}

/// The ways to the makers.
#[derive(Clone)]
struct Makers {
    ordinary: Sender<Task>,
    lowest: Sender<Task>,
}

impl Makers {
    fn give(&self, haste: Haste, task: Task) {
        // A thread that has ended takes no tasks: nothing is optimized then, and the command runs on.
        let _ = match haste {
            Haste::Ordinary => self.ordinary.send(task),
            Haste::Lowest => self.lowest.send(task),
        };
    }
}

impl Worker {
    pub fn start(cache: &Cache, making: Making, budget: Arc<Budget>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ((tell, messages), (begun, jobs)) = (channel(), channel());
        let ((ordinary, first), (lowest, second)) = (channel(), channel());
        let makers = Makers { ordinary, lowest };
        let start = |haste: Haste, given: Receiver<Task>| {
            let (cache, tell, begun, stop) = (cache.clone(), tell.clone(), begun.clone(), stop.clone());
            // Where the system refuses a lower priority, the threads compete with the command's.
            std::thread::spawn(move || {
                match haste {
                    Haste::Ordinary => be_nice(NICE),
                    Haste::Lowest => be_lowest(),
                };
                Maker { cache, making, tell, begun, stop }.run(&given);
            })
        };
        let threads = [start(Haste::Ordinary, first), start(Haste::Lowest, second)];
        let (cache, next, stopped) = (cache.clone(), makers.clone(), stop.clone());
        let accountant = std::thread::spawn(move || {
            be_nice(NICE);
            Accountant { cache, making, tell, counting: Vec::new(), next, stop: stopped, budget }.run(&jobs);
        });
        Self { makers: Some(makers), messages, stop, accountant, threads }
    }

    /// A module that is worth it.
    pub fn module(
        &self,
        haste: Haste,
        path: PathBuf,
        samples: BTreeMap<FileOffset, u64>,
        seconds_per_run: f64,
    ) {
        self.give(haste, Task::Begin { path, samples, seconds_per_run });
    }

    /// A module whose profile was made before.
    pub fn pending(&self, haste: Haste, entry: Entry) {
        self.give(haste, Task::Pending(entry));
    }

    fn give(&self, haste: Haste, task: Task) {
        if let Some(makers) = &self.makers {
            makers.give(haste, task);
        }
    }

    pub fn message(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// The command has ended: what was counted is kept, and what is not made yet is waited for only if that is wanted.
    pub fn stop(mut self, wait: bool, mut hear: impl FnMut(Message)) {
        self.stop.store(true, Ordering::Relaxed);
        self.makers = None;
        // A thread that has panicked has told what it could.
        let _ = self.accountant.join();
        if wait {
            self.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        self.messages.try_iter().for_each(&mut hear);
    }
}

/// Makes overlays.
struct Maker {
    cache: Cache,
    making: Making,
    tell: Sender<Message>,
    begun: Sender<Counting>,
    stop: Arc<AtomicBool>,
}

impl Maker {
    fn run(self, given: &Receiver<Task>) {
        while let Ok(task) = given.recv() {
            match task {
                Task::Begin { .. } if self.stop.load(Ordering::Relaxed) => {}
                Task::Begin { path, samples, seconds_per_run } => self.begin(path, &samples, seconds_per_run),
                Task::Pending(entry) => {
                    let start = cpu_seconds();
                    let path = entry.path.clone();
                    let done =
                        optimize_stored(&self.cache, entry, self.making.layout, || cpu_seconds() - start);
                    report(&self.tell, &path, done);
                }
                Task::Optimize { entry, held, spent } => {
                    let (start, path) = (cpu_seconds(), entry.path.clone());
                    let cost = || spent + cpu_seconds() - start;
                    let done = optimize(&self.cache, entry, &held.module, self.making.layout, cost);
                    report(&self.tell, &path, done);
                }
            }
        }
    }

    fn begin(&self, path: PathBuf, samples: &BTreeMap<FileOffset, u64>, seconds_per_run: f64) {
        let start = cpu_seconds();
        let begun = read_module(&path).and_then(|image| {
            let id = image.build_id().map(ToString::to_string).unwrap_or_default();
            if self.cache.entry(&id).is_some_and(|e| !e.layout.is_empty() && !is_old(&e)) {
                return Err(SessionError::NothingToDo("it is optimized already".into()));
            }
            Job::begin(&self.cache, &path, image, samples, self.making.runs)
        });
        match begun {
            Ok(job) => {
                tell(&self.tell, Message::Counting(path));
                let counting = Counting { job, seconds_per_run, spent: cpu_seconds() - start };
                if let Err(late) = self.begun.send(counting) {
                    late.0.job.abandon(&self.cache);
                }
            }
            Err(error) => tell(&self.tell, Message::Left(path, why(&error))),
        }
    }
}

/// Looks after the runs that count.
struct Accountant {
    cache: Cache,
    making: Making,
    tell: Sender<Message>,
    counting: Vec<Counting>,
    /// Profiles that are complete go there.
    next: Makers,
    stop: Arc<AtomicBool>,
    budget: Arc<Budget>,
}

impl Accountant {
    fn run(mut self, jobs: &Receiver<Counting>) {
        while !self.stop.load(Ordering::Relaxed) {
            match jobs.recv_timeout(LOOK) {
                Ok(begun) => self.counting.push(begun),
                Err(RecvTimeoutError::Timeout) => self.look(false),
                // The maker is gone: nothing new will come, but what is being counted is looked after.
                Err(RecvTimeoutError::Disconnected) => {
                    self.look(false);
                    std::thread::sleep(LOOK);
                }
            }
        }
        self.counting.extend(jobs.try_iter());
        self.look(true);
    }

    /// Takes those modules further whose profiles are complete; at the end, all.
    fn look(&mut self, at_end: bool) {
        let mut index = 0;
        while index < self.counting.len() {
            let start = cpu_seconds();
            let (counting, budget) = (&mut self.counting[index], &self.budget);
            let seconds_per_run = counting.seconds_per_run;
            let affordable = |runs: u64| budget.take(runs as f64 * seconds_per_run * COUNTING_COSTS);
            let complete = counting.job.look(&self.cache, at_end, affordable);
            counting.spent += cpu_seconds() - start;
            match complete {
                Ok(false) if !at_end => index += 1,
                Ok(_) => {
                    let counting = self.counting.remove(index);
                    self.finish(counting, at_end);
                }
                Err(error) => {
                    let job = self.counting.remove(index).job;
                    tell(&self.tell, Message::Left(job.path().to_path_buf(), why(&error)));
                    job.abandon(&self.cache);
                }
            }
        }
    }

    fn finish(&self, counting: Counting, at_end: bool) {
        let Counting { mut job, seconds_per_run, spent } = counting;
        let (start, path) = (cpu_seconds(), job.path().to_path_buf());
        match job.keep_profile(&self.cache, seconds_per_run) {
            Ok(entry) => {
                tell(&self.tell, Message::Done(Box::new(entry.clone())));
                if !at_end || self.making.finish == Finish::Wait {
                    let paid = at_end || self.budget.take(optimize_cost(&path));
                    let haste = if paid { Haste::Ordinary } else { Haste::Lowest };
                    let spent = spent + cpu_seconds() - start;
                    self.next.give(haste, Task::Optimize { entry, held: Box::new(job.into_held()), spent });
                }
            }
            Err(error) => {
                job.abandon(&self.cache);
                tell(&self.tell, Message::Left(path, why(&error)));
            }
        }
    }
}

fn tell(listener: &Sender<Message>, message: Message) {
    // Nobody listens any more when the session is over.
    let _ = listener.send(message);
}

fn report(listener: &Sender<Message>, path: &Path, done: Result<Entry, SessionError>) {
    let message = match done {
        Ok(entry) => Message::Done(Box::new(entry)),
        Err(error) => Message::Left(path.into(), why(&error)),
    };
    tell(listener, message);
}

/// What went wrong, without the file's name, which stands beside it in the report.
fn why(error: &SessionError) -> String {
    match error {
        SessionError::BadFile { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

/// Processor seconds of this thread.
pub(super) fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |nanoseconds| nanoseconds / 1e9)
}
