//! Serving threads, and the main thread that counts what they finish.

use crate::args::{Amount, Options};
use crate::progress;
use crate::state::State;
use crate::traffic::{LAP, LAP_CHECKSUM, Traffic};
use std::{
    fmt, io,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// How often the progress file is written.
const PERIOD: Duration = Duration::from_millis(2);
/// After so many requests a thread reports them; a batch takes well under a millisecond.
const BATCH: u64 = 32;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Requests finished.
    pub requests: u64,
    /// The wrapping sum of their results. It depends on the number of requests only (with
    /// [`Amount::Requests`]).
    pub checksum: u64,
}

/// Why the program cannot go on.
#[derive(Debug)]
pub enum Failed {
    /// The results of one lap were not those that correct code gives.
    WrongResult {
        /// The number of the first request of the lap.
        from: u64,
        /// The sum of its results.
        checksum: u64,
    },
    /// The progress file cannot be written.
    Progress {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongResult { from, checksum } => write!(
                f,
                "wrong result: requests {from} to {} have the checksum {checksum:016x} instead of {LAP_CHECKSUM:016x}; \
                 this process runs wrong code",
                from + LAP - 1
            ),
            Self::Progress { path, error } => {
                write!(f, "cannot write the progress file {}: {error}; name a writable file", path.display())
            }
        }
    }
}

impl std::error::Error for Failed {}

/// What the threads share.
#[derive(Default)]
struct Shared {
    finished: AtomicU64,
    /// Threads that are still serving.
    serving: AtomicU64,
    stop: AtomicBool,
}

/// Serves what `options` ask for, in threads of its own, and returns when all have ended.
pub fn serve(options: &Options) -> Result<Served, Failed> {
    let failed = |error| Failed::Progress { path: options.progress.clone().unwrap_or_default(), error };
    let writer = options.progress.as_deref().map(progress::Writer::create).transpose().map_err(failed)?;
    let (traffic, shared) = (Traffic::new(), Shared::default());
    let threads = options.threads as u64;
    shared.serving.store(threads, Relaxed);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let requests = match options.amount {
                    Amount::Requests(n) => share(n, index, threads)..share(n, index + 1, threads),
                    // Each thread begins with another lap, so that they do not walk in step.
                    Amount::Time(_) => index * LAP..u64::MAX,
                };
                let (traffic, shared) = (&traffic, &shared);
                scope.spawn(move || {
                    let sum = work(traffic, requests, shared);
                    shared.serving.fetch_sub(1, Relaxed);
                    sum
                })
            })
            .collect();
        let watched = watch(options.amount, writer.as_ref(), &shared).map_err(failed);
        shared.stop.store(true, Relaxed);
        let mut checksum = 0_u64;
        for worker in workers {
            checksum = checksum.wrapping_add(worker.join().expect("a serving thread does not panic")?);
        }
        watched.map(|()| Served { requests: shared.finished.load(Relaxed), checksum })
    })
}

/// Where the part of thread `index` begins when `n` requests are divided.
fn share(n: u64, index: u64, threads: u64) -> u64 {
    (u128::from(n) * u128::from(index) / u128::from(threads)) as u64
}

/// Writes the progress until the time is over or no thread serves any longer.
fn watch(amount: Amount, writer: Option<&progress::Writer>, shared: &Shared) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let serving = shared.serving.load(Relaxed) > 0;
        if let Some(writer) = writer {
            writer.write(shared.finished.load(Relaxed))?;
        }
        let over = match amount {
            Amount::Requests(_) => shared.stop.load(Relaxed),
            Amount::Time(time) => start.elapsed() >= time || shared.stop.load(Relaxed),
        };
        if over || !serving {
            return Ok(());
        }
        thread::sleep(PERIOD);
    }
}

/// Serves `requests` in order until told to stop; the sum of the results. Whole laps are checked.
fn work(traffic: &Traffic, requests: std::ops::Range<u64>, shared: &Shared) -> Result<u64, Failed> {
    let mut state = State::new();
    let (mut sum, mut lap, mut number) = (0_u64, 0_u64, requests.start);
    let mut lap_start = requests.start;
    while number < requests.end {
        let end = requests.end.min(number + BATCH - number % BATCH);
        for request in number..end {
            lap = lap.wrapping_add(traffic.serve(request, &mut state));
        }
        shared.finished.fetch_add(end - number, Relaxed);
        number = end;
        if number.is_multiple_of(LAP) {
            if number - lap_start == LAP && lap != LAP_CHECKSUM {
                shared.stop.store(true, Relaxed);
                return Err(Failed::WrongResult { from: lap_start, checksum: lap });
            }
            sum = sum.wrapping_add(std::mem::take(&mut lap));
            lap_start = number;
        }
        if shared.stop.load(Relaxed) {
            break;
        }
    }
    Ok(sum.wrapping_add(lap))
}
