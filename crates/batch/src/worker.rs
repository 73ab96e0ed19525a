//! The threads in the background: makers make overlays, one after the other, the accountant looks after the
//! runs that count.
//!
//! **Priority.** There are two makers: an ordinary one, whose time is paid for out of the [`Budget`], and one
//! that does with what the command's processes leave. Where a build keeps every core busy the latter gets
//! about 1.5 % of one.
//!
//! **The end.** When the command ends, a counting that is complete becomes a profile, which is the matter of
//! a moment; others are suspended, and the next command goes on with them. Overlays that are not made yet are
//! made now, by another process, or the next time ([`Finish`]); a thread that is at it is left behind, and
//! ends with the process: nothing that it does can be seen half done.

use crate::budget::{Budget, begin_cost, optimize_cost};
use crate::build::Build;
use crate::cache::{Cache, Entry};
use crate::job::{Job, Look, Measured};
use crate::known::read_module;
use crate::observe::Usage;
use crate::work::{Held, optimize, optimize_stored, shows_nothing};
use crate::{Finish, Making, is_old};
use restitch_address::FileOffset;
use restitch_pipeline::PipelineError;
use restitch_tracee::{be_lowest, be_nice};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often counts are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The nice value of the ordinary maker and of the accountant: the command's processes go first.
const NICE: i32 = 5;

/// In the background, a counting becomes a profile when so many typical runs have counted, although more of
/// them may change it.
const SETTLE_FOR: f64 = 4.0;
/// One does when the command's user waits for it.
const SETTLE_FOR_AT_ONCE: f64 = 0.75;

/// What the session sees of the runs of modules that are being counted.
pub(crate) type Seen = Arc<Mutex<BTreeMap<PathBuf, Measured>>>;

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
    /// Nothing of what these samples, so many, show of the module can be counted.
    Uncounted(PathBuf, u64),
    /// Its counting goes on in the next session.
    Suspended(PathBuf),
}

/// What the maker is given.
enum Task {
    Begin {
        path: PathBuf,
        samples: BTreeMap<FileOffset, u64>,
        original: Usage,
    },
    Pending(Entry),
    /// A module without a build id is another file by now.
    Recognise(PathBuf),
    Optimize {
        entry: Entry,
        held: Box<Held>,
        spent: f64,
    },
    /// What another session has begun is complete.
    Complete(Box<Counting>),
}

/// A module whose runs are counted.
struct Counting {
    job: Job,
    original: Usage,
    /// Processor seconds that were spent on it.
    spent: f64,
}

/// What the accountant is given: modules whose runs begin to count, and nothing when it is to end.
type Given = Option<Counting>;

pub(crate) struct Worker {
    makers: Option<Makers>,
    begun: Sender<Given>,
    messages: Receiver<Message>,
    stop: Arc<AtomicBool>,
    /// Gives back what was begun too late for it.
    accountant: Option<JoinHandle<Receiver<Given>>>,
    cache: Cache,
    threads: Vec<JoinHandle<()>>,
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
    pub fn start(cache: &Cache, making: Making, budget: Arc<Budget>, seen: Seen) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ((tell, messages), (begun, jobs)) = (channel(), channel());
        let ((ordinary, first), (lowest, second)) = (channel(), channel());
        let makers = Makers { ordinary, lowest };
        let start = |haste: Haste, given: Receiver<Task>| {
            let (cache, tell, begun, stop) = (cache.clone(), tell.clone(), begun.clone(), stop.clone());
            let budget = budget.clone();
            // Where the system refuses a lower priority, the threads compete with the command's.
            let run = move || {
                match haste {
                    Haste::Ordinary => be_nice(NICE),
                    Haste::Lowest => be_lowest(),
                };
                Maker { cache, making, tell, begun, stop, haste, budget }.run(&given);
            };
            Builder::new().spawn(run).ok()
        };
        let started = [start(Haste::Ordinary, first), start(Haste::Lowest, second)];
        let threads = started.into_iter().flatten().collect();
        let (own, cache) = (cache.clone(), cache.clone());
        let (next, paid) = (makers.clone(), budget.clone());
        let account = move || {
            be_nice(NICE);
            Accountant { cache, making, tell, counting: Vec::new(), next, budget: paid, seen }.run(&jobs);
            jobs
        };
        let accountant = Builder::new().spawn(account).ok();
        Self { makers: Some(makers), begun, messages, stop, accountant, cache: own, threads }
    }

    /// A module that is worth it.
    pub fn module(&self, haste: Haste, path: PathBuf, samples: BTreeMap<FileOffset, u64>, original: Usage) {
        self.give(haste, Task::Begin { path, samples, original });
    }

    /// A module without a build id is another file than the one that is known. If it has the same content,
    /// what was made of that serves it.
    pub fn recognise(&self, path: PathBuf) {
        self.give(Haste::Ordinary, Task::Recognise(path));
    }

    /// A module whose profile was made before.
    pub fn pending(&self, haste: Haste, entry: Entry) {
        self.give(haste, Task::Pending(entry));
    }

    /// A module that another session has begun to count.
    pub fn resume(&self, job: Job) {
        let (original, spent) = job.before();
        // An accountant that has ended takes none: it stays suspended.
        let _ = self.begun.send(Some(Counting { job, original, spent }));
    }

    fn give(&self, haste: Haste, task: Task) {
        if let Some(makers) = &self.makers {
            makers.give(haste, task);
        }
    }

    /// Whether all of its threads could be started. What those that are missing would do is not done.
    pub fn is_whole(&self) -> bool {
        self.accountant.is_some() && self.threads.len() == 2
    }

    pub fn message(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// The command has ended: what was counted is kept, and what is not made yet is waited for only if that
    /// is wanted.
    pub fn stop(mut self, wait: bool, mut hear: impl FnMut(Message)) {
        self.stop.store(true, Ordering::Relaxed);
        self.makers = None;
        // One that has ended need not be told.
        let _ = self.begun.send(None);
        // A thread that has panicked has told what it could.
        let late = self.accountant.map(JoinHandle::join);
        if wait {
            self.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        self.messages.try_iter().for_each(&mut hear);
        // What a maker has begun since is counted by the next command.
        let late = late.iter().flatten().flat_map(Receiver::try_iter).flatten();
        late.for_each(|counting| hear(suspend(&self.cache, counting)));
    }
}

/// Makes overlays.
struct Maker {
    cache: Cache,
    making: Making,
    tell: Sender<Message>,
    begun: Sender<Given>,
    stop: Arc<AtomicBool>,
    haste: Haste,
    budget: Arc<Budget>,
}

impl Maker {
    fn run(self, given: &Receiver<Task>) {
        while let Ok(task) = given.recv() {
            match task {
                Task::Begin { .. } if self.stop.load(Ordering::Relaxed) => {}
                Task::Begin { path, samples, original } => self.begin(path, &samples, original),
                Task::Recognise(path) => {
                    let start = cpu_seconds();
                    // What cannot be read, or is left alone, runs as it is.
                    let _ = read_module(&self.cache, &path);
                    self.budget.charge(cpu_seconds() - start);
                }
                Task::Pending(entry) => {
                    let (start, path) = (cpu_seconds(), entry.path.clone());
                    let done =
                        optimize_stored(&self.cache, entry, self.making.layout, || cpu_seconds() - start);
                    self.done(&path, done, start);
                }
                Task::Optimize { entry, held, spent } => {
                    let (start, path) = (cpu_seconds(), entry.path.clone());
                    let cost = || spent + cpu_seconds() - start;
                    let done = optimize(&self.cache, entry, &held.module, self.making.layout, cost);
                    self.done(&path, done, start);
                }
                Task::Complete(counting) => {
                    let Counting { job, original, spent } = *counting;
                    let (start, path) = (cpu_seconds(), job.path().to_path_buf());
                    let cost = || spent + cpu_seconds() - start;
                    let done = job.complete(&self.cache, original, self.making.layout, cost);
                    self.done(&path, done, start);
                }
            }
        }
    }

    /// An overlay was made, or not; the work is paid for.
    fn done(&self, path: &Path, done: Result<Entry, PipelineError>, start: f64) {
        self.pay(optimize_cost(path), cpu_seconds() - start);
        let message = match done {
            Ok(entry) => Message::Done(Box::new(entry)),
            Err(error) => Message::Left(path.into(), why(&error)),
        };
        tell(&self.tell, message);
    }

    fn pay(&self, estimate: f64, took: f64) {
        if self.haste == Haste::Ordinary {
            self.budget.settle(estimate, took);
        }
    }

    fn begin(&self, path: PathBuf, samples: &BTreeMap<FileOffset, u64>, original: Usage) {
        let start = cpu_seconds();
        let begun = read_module(&self.cache, &path).and_then(|image| {
            let build = Build::of(&image);
            self.cache.make_way(&path, &build)?;
            if self.cache.entry(&build.id).is_some_and(|e| !e.layout.is_empty() && !is_old(&e)) {
                return Err(PipelineError::NothingToDo("it is optimized already".into()));
            }
            Job::begin(&self.cache, &path, image, samples, self.making.runs)
        });
        let spent = cpu_seconds() - start;
        self.pay(begin_cost(&path), spent);
        match begun {
            Ok(job) => {
                tell(&self.tell, Message::Counting(path));
                let counting = Counting { job, original, spent };
                if let Err(SendError(Some(late))) = self.begun.send(Some(counting)) {
                    tell(&self.tell, suspend(&self.cache, late));
                }
            }
            uncounted if shows_nothing(&uncounted) => {
                tell(&self.tell, Message::Uncounted(path, samples.values().sum()));
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
    budget: Arc<Budget>,
    seen: Seen,
}

impl Accountant {
    fn run(mut self, jobs: &Receiver<Given>) {
        loop {
            // Where nothing is counted there is nothing to look after.
            let given = match self.counting.is_empty() {
                true => jobs.recv().map_err(RecvTimeoutError::from),
                false => jobs.recv_timeout(LOOK),
            };
            match given {
                Ok(Some(begun)) => self.counting.push(begun),
                Err(RecvTimeoutError::Timeout) => self.look(false),
                Ok(None) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.counting.extend(jobs.try_iter().flatten());
        self.look(true);
    }

    /// Takes those modules further whose profiles are complete; at the end, all.
    fn look(&mut self, at_end: bool) {
        let mut index = 0;
        while index < self.counting.len() {
            let start = cpu_seconds();
            let (counting, budget) = (&mut self.counting[index], &self.budget);
            let measured = measured(&self.seen, counting.job.path());
            let look = counting.job.look(&self.cache, measured, || !at_end && budget.is_sound());
            let look = match look {
                Ok(Look::Going) if at_end => self.settle(index, measured),
                other => other,
            };
            let took = cpu_seconds() - start;
            self.budget.charge(took);
            self.counting[index].spent += took;
            match look {
                Ok(Look::Going) if !at_end => index += 1,
                Ok(look) => {
                    let counting = self.counting.remove(index);
                    match look {
                        Look::Going => self.suspend(counting),
                        Look::Complete => self.finish(counting, at_end),
                    }
                }
                Err(error) => {
                    let job = self.counting.remove(index).job;
                    tell(&self.tell, Message::Left(job.path().to_path_buf(), why(&error)));
                    job.abandon(&self.cache);
                }
            }
        }
    }

    /// At the end of the command: what is not complete may do.
    fn settle(&mut self, index: usize, measured: Measured) -> Result<Look, PipelineError> {
        let least = match self.making.finish {
            Finish::Background => SETTLE_FOR,
            Finish::Wait => SETTLE_FOR_AT_ONCE,
            Finish::Later => return Ok(Look::Going),
        };
        let does = self.counting[index].job.settle_for(&self.cache, measured, least)?;
        Ok(if does { Look::Complete } else { Look::Going })
    }

    fn suspend(&self, counting: Counting) {
        tell(&self.tell, suspend(&self.cache, counting));
    }

    fn finish(&self, mut counting: Counting, at_end: bool) {
        let path = counting.job.path().to_path_buf();
        let paid = || at_end || self.budget.begin(optimize_cost(&path));
        let haste = || if paid() { Haste::Ordinary } else { Haste::Lowest };
        let now = !at_end || self.making.finish == Finish::Wait;
        if !counting.job.is_planned() {
            return match now {
                true => self.next.give(haste(), Task::Complete(Box::new(counting))),
                false => self.suspend(counting),
            };
        }
        let start = cpu_seconds();
        match counting.job.keep_profile(&self.cache, counting.original) {
            Ok(entry) => {
                tell(&self.tell, Message::Done(Box::new(entry.clone())));
                let spent = counting.spent + cpu_seconds() - start;
                if now && let Some(held) = counting.job.into_held() {
                    self.next.give(haste(), Task::Optimize { entry, held: Box::new(held), spent });
                }
            }
            Err(error) => {
                counting.job.abandon(&self.cache);
                tell(&self.tell, Message::Left(path, why(&error)));
            }
        }
    }
}

/// Leaves a counting to the next session; what is to be told of it.
fn suspend(cache: &Cache, counting: Counting) -> Message {
    let Counting { job, original, spent } = counting;
    let path = job.path().to_path_buf();
    match job.suspend(cache, original, spent) {
        Ok(()) => Message::Suspended(path),
        Err(error) => Message::Left(path, why(&error)),
    }
}

/// What the session has seen of a module. Nobody panics holding the list; if somebody did, it would still be
/// right.
fn measured(seen: &Seen, path: &Path) -> Measured {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(path).copied().unwrap_or_default()
}

fn tell(listener: &Sender<Message>, message: Message) {
    // Nobody listens any more when the session is over.
    let _ = listener.send(message);
}

/// What went wrong, without the file's name, which stands beside it in the report.
pub(crate) fn why(error: &PipelineError) -> String {
    match error {
        PipelineError::BadFile { why, .. } => why.to_string(),
        other => other.to_string(),
    }
}

/// Processor seconds of this thread.
pub(crate) fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |nanoseconds| nanoseconds / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::tests::{address, module};
    use std::time::Instant;

    /// What a maker begins takes seconds for a compiler's library: commands end meanwhile.
    #[test]
    fn what_is_begun_when_the_command_ends_is_counted_by_the_next_one() {
        let Some((folder, module)) = module() else { return };
        let offset = module.image.file_offset(address(&module, "walk")).expect("in the file");
        let (path, samples) = (folder.path().join("a"), BTreeMap::from([(offset, 10)]));
        let id = module.image.identity().to_string();
        let original = Usage { runs: 4, samples: 1000, pairs: 249_000, coarse: 0 };
        let making = Making { finish: Finish::Wait, ..Making::default() };
        let budget = Arc::new(Budget::new(0.0, true));

        // The accountant's end of the channel is still there, or it is gone.
        for is_there in [true, false] {
            let name = if is_there { "there" } else { "gone" };
            let cache = Cache::open(Some(&folder.path().join(name))).unwrap();
            let worker = Worker::start(&cache, making, budget.clone(), Seen::default());
            worker.begun.send(None).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while !worker.accountant.as_ref().is_none_or(JoinHandle::is_finished) && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Makers take no more tasks either: what one was at then is played by one of our own.
            let (kept, (gone, _)) = (worker.begun.clone(), channel());
            let (tell, told) = channel();
            let maker = Maker {
                cache: cache.clone(),
                making,
                tell,
                begun: if is_there { kept } else { gone },
                stop: worker.stop.clone(),
                haste: Haste::Ordinary,
                budget: budget.clone(),
            };
            maker.begin(path.clone(), &samples, original);
            let mut messages: Vec<Message> = told.try_iter().collect();
            worker.stop(true, |message| messages.push(message));
            let is_later = match &messages[..] {
                [Message::Counting(begun), Message::Suspended(later)] => *begun == path && *later == path,
                _ => false,
            };
            assert!(is_later, "{name}: {} messages", messages.len());
            assert!(cache.is_suspended(&id), "{name}: the next session goes on with it");
            assert_eq!(Job::resume(&cache, &id).expect("it is there").before().0, original);
        }
    }
}
