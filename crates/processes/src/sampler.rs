//! What takes samples of processes: by which events, and whose samples count.
//!
//! **Problem.** Where the hardware counts no cycles, a sample comes from a timer that the kernel sets anew
//! whenever a thread begins to run: servers that often wait pay a quarter of their processor time. **Idea.**
//! What runs on each processor is looked at instead, if that is permitted, and what is not of the processes
//! is dropped. Where they keep few of many processors busy, those of others would pay: then their own events.

use crate::error::SessionError;
use crate::process_set::ProcessSet;
use restitch_perf::{IpSampler, Pmu, Record, SampleEvent, SampleOptions};
use restitch_procfs as procfs;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Samples that count.
pub struct Sampler {
    sampler: IpSampler,
    /// The processes that count, if not all do that are sampled.
    counted: Option<BTreeSet<i32>>,
    /// All that runs is sampled.
    of_machine: bool,
}

/// Size of each processor's ring where few samples are taken, in 4 KiB pages.
const SMALL_RING: usize = 16;

/// So many processors are looked at, at most, for each one that the processes keep busy.
const MOST_LOOKED_AT: f64 = 4.0;

/// How long it is looked at how busy they are. The kernel brings times up to date at each of its ticks, which
/// come each 1 to 10 ms.
const GLANCE: Duration = Duration::from_millis(50);

/// How many processors the processes of the set keep busy just now.
fn busy_processors(set: &ProcessSet) -> f64 {
    let (before, began) = (processor_time(set), Instant::now());
    std::thread::sleep(GLANCE);
    processor_time(set).saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64()
}

/// The processor time of all present threads of the set.
fn processor_time(set: &ProcessSet) -> Duration {
    let threads = set.pids().into_iter().filter_map(|pid| Some((pid, procfs::threads(pid).ok()?)));
    let threads = threads.flat_map(|(pid, threads)| threads.into_iter().map(move |t| (pid, t.tid)));
    threads.filter_map(|(pid, tid)| procfs::thread_cpu_time(pid, tid).ok()).sum()
}

impl Sampler {
    /// Of all processes of the set, and those that they fork, so often a second while they run: by whatever
    /// is cheapest for them. With `stacks`, branch records of the hardware come along where it has them.
    pub fn of(set: &ProcessSet, frequency: u64, stacks: bool) -> Result<Self, SessionError> {
        let options = SampleOptions { frequency, ..SampleOptions::default() };
        let pays = || busy_processors(set) * MOST_LOOKED_AT >= IpSampler::processors() as f64;
        let of_machine = match !Pmu::probe().cycles.is_yes() && pays() {
            true => Self::of_machine(set, options),
            false => None,
        };
        of_machine.map_or_else(|| Self::of_own_events(set, frequency, stacks), Ok)
    }

    /// The same for few samples: by looking at what runs on each processor, where that is permitted.
    pub fn of_few(set: &ProcessSet, frequency: u64) -> Result<Self, SessionError> {
        let options = SampleOptions { frequency, ring_pages: SMALL_RING, ..SampleOptions::default() };
        Self::of_machine(set, options).map_or_else(|| Self::of_own_events(set, frequency, false), Ok)
    }

    fn of_own_events(set: &ProcessSet, frequency: u64, stacks: bool) -> Result<Self, SessionError> {
        let counted = Some(set.pids().into_iter().collect());
        Ok(Self { counted, ..Self::of_threads(&set.pids(), frequency, stacks)? })
    }

    /// Of whatever runs on the machine; `None` where that is not permitted.
    fn of_machine(set: &ProcessSet, options: SampleOptions) -> Option<Self> {
        let sampler = IpSampler::open_machine(options).ok()?;
        Some(Self { sampler, counted: Some(set.pids().into_iter().collect()), of_machine: true })
    }

    /// Of all threads of these processes, and of those that they start, with the programs that they execute.
    pub fn of_threads(pids: &[i32], frequency: u64, stacks: bool) -> Result<Self, SessionError> {
        let options =
            SampleOptions { frequency, inherit: true, exclude_kernel: true, ..SampleOptions::default() };
        let branch_stack = stacks && Pmu::probe().branch_stack.is_yes();
        // Where the probe was too hopeful (a container, an odd hypervisor), plain samples do.
        let sampler = match IpSampler::open(pids, SampleOptions { branch_stack, ..options }) {
            Err(_) if branch_stack => IpSampler::open(pids, options)?,
            other => other?,
        };
        sampler.enable()?;
        Ok(Self { sampler, counted: None, of_machine: false })
    }

    /// Whether all that runs is sampled.
    pub fn is_of_machine(&self) -> bool {
        self.of_machine
    }

    /// What triggers the samples.
    pub fn event(&self) -> SampleEvent {
        self.sampler.event()
    }

    /// Waits until there is much to take in, `at_most` so long.
    pub fn wait(&self, at_most: Duration) {
        self.sampler.wait(at_most);
    }

    /// Samples nothing any more; what there is can be drained still.
    pub fn end(&self) -> Result<(), SessionError> {
        Ok(self.sampler.disable()?)
    }

    /// What has come since the last time, of processes that count.
    pub fn drain(&mut self) -> Vec<Record> {
        let mut records = self.sampler.drain();
        if let Some(counted) = &mut self.counted {
            records.retain(|record| counts(counted, record));
        }
        records
    }
}

/// Whether this is of a process that counts; a child of one is one, until it executes a program.
fn counts(counted: &mut BTreeSet<i32>, record: &Record) -> bool {
    match record {
        Record::Fork { pid, parent_pid, .. } => {
            counted.contains(parent_pid) && {
                counted.insert(*pid);
                true
            }
        }
        Record::Exec { pid, .. } => counted.remove(pid),
        Record::Sample(sample) => counted.contains(&sample.pid),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_address::Avma;
    use restitch_perf::Sample;

    #[test]
    fn samples_of_children_count_and_those_of_strangers_and_other_programs_do_not() {
        let mut counted = BTreeSet::from([7]);
        let fork = |pid, parent_pid| Record::Fork { pid, tid: pid, parent_pid, time: 1 };
        let sample = |pid| {
            Record::Sample(Sample {
                pid,
                tid: pid,
                ip: Avma::new(1),
                time: 1,
                callers: Vec::new(),
                branches: Vec::new(),
            })
        };
        let mut ask = |record: &Record| counts(&mut counted, record);
        assert!(ask(&sample(7)) && !ask(&sample(8)));
        assert!(!ask(&fork(10, 9)) && ask(&fork(8, 7)) && ask(&fork(9, 8)));
        assert!(ask(&sample(9)) && !ask(&sample(10)));
        assert!(ask(&Record::Exec { pid: 9, time: 1 }) && !ask(&Record::Exec { pid: 10, time: 1 }));
        assert!(!ask(&sample(9)) && ask(&sample(8)));
        assert!(ask(&Record::Lost { count: 1 }));
    }
}
