//! IP samples: which modules and functions matter.

use crate::SessionError;
use crate::process_set::ProcessSet;
use restitch_address::{Avma, Svma};
use restitch_apply_process::VersionMaps;
use restitch_perf::{IpSampler, Pmu, Record, Sample, SampleOptions};
use restitch_procfs as procfs;
use restitch_profile::BranchSamples;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Samples of user code, by address in the first process of the set. (Processes of a set share their layout through
/// `fork`; those that do not are translated by module.)
#[derive(Debug, Clone, Default)]
pub(crate) struct IpSamples {
    /// Samples by module index and stated address.
    pub by_module: BTreeMap<usize, BTreeMap<Svma, u64>>,
    /// Samples of user code in all.
    pub total: u64,
    /// Of them, those in code of versions; by module they are where its original is.
    pub in_versions: u64,
    /// Hardware branch records by module index, where the machine has them.
    pub branches: BTreeMap<usize, BranchSamples>,
    /// Number of those records.
    pub records: u64,
}

/// Sampling that is under way.
pub(crate) struct Sampling<'s> {
    set: &'s ProcessSet,
    sampler: IpSampler,
    samples: IpSamples,
    maps: VersionMaps,
    /// Where all that runs is sampled: the processes that count.
    counted: Option<BTreeSet<i32>>,
}

/// Size of each processor's ring where few samples are taken, in 4 KiB pages.
const SMALL_RING: usize = 16;

/// Samples a second and thread for a profile.
const FOR_A_PROFILE: u64 = 4000;

/// So many processors are looked at, at most, for each one that the processes keep busy.
const MOST_LOOKED_AT: f64 = 4.0;

/// How long it is looked at how busy they are. The kernel brings times up to date at each of its ticks, which come each 1 to 10 ms.
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

impl<'s> Sampling<'s> {
    /// Begins to sample all processes of the set, for a profile. Where the hardware counts no cycles, what runs on each processor is looked at if that is permitted: a timer that is set
    /// whenever a thread runs costs servers that often wait a quarter of their processor time. But where they keep few of many processors busy, those of others would pay.
    pub fn start(set: &'s ProcessSet) -> Result<Self, SessionError> {
        let options = SampleOptions { frequency: FOR_A_PROFILE, ..SampleOptions::default() };
        let pays = || busy_processors(set) * MOST_LOOKED_AT >= IpSampler::processors() as f64;
        let of_machine = match !Pmu::probe().cycles.is_yes() && pays() {
            true => Self::of_machine(set, options),
            false => None,
        };
        of_machine.map_or_else(|| Self::at(set, FOR_A_PROFILE), Ok)
    }

    /// Begins to sample all processes of the set, and those that they start, so often a second while they run, by looking at what runs on each processor; where that is not permitted, by events of
    /// their own, which cost those much that often wait.
    pub fn watching(set: &'s ProcessSet, frequency: u64) -> Result<Self, SessionError> {
        let options = SampleOptions { frequency, ring_pages: SMALL_RING, ..SampleOptions::default() };
        Self::of_machine(set, options).map_or_else(|| Self::at(set, frequency), Ok)
    }

    /// Begins to sample all that runs; `None` where that is not permitted.
    fn of_machine(set: &'s ProcessSet, options: SampleOptions) -> Option<Self> {
        let sampler = IpSampler::open_machine(options).ok()?;
        let counted = Some(set.pids().into_iter().collect());
        Some(Self { set, sampler, samples: IpSamples::default(), maps: VersionMaps::default(), counted })
    }

    /// Whether all that runs is sampled.
    pub fn is_of_machine(&self) -> bool {
        self.counted.is_some()
    }

    /// Begins to sample all processes of the set, so often a second while they run.
    fn at(set: &'s ProcessSet, frequency: u64) -> Result<Self, SessionError> {
        let options =
            SampleOptions { frequency, inherit: true, exclude_kernel: true, ..SampleOptions::default() };
        let branch_stack = Pmu::probe().branch_stack.is_yes();
        // Where the probe was too hopeful (a container, an odd hypervisor), plain samples do.
        let sampler = match IpSampler::open(&set.pids(), SampleOptions { branch_stack, ..options }) {
            Err(_) if branch_stack => IpSampler::open(&set.pids(), options)?,
            other => other?,
        };
        sampler.enable()?;
        let (samples, maps) = (IpSamples::default(), VersionMaps::default());
        Ok(Self { set, sampler, samples, maps, counted: None })
    }

    /// Waits for samples, `at_most` so long, and takes them in.
    pub fn step(&mut self, at_most: Duration) {
        self.sampler.wait(at_most);
        self.drain();
    }

    fn drain(&mut self) {
        for record in self.sampler.drain() {
            match (record, &mut self.counted) {
                (Record::Fork { pid, parent_pid, .. }, Some(counted)) if counted.contains(&parent_pid) => {
                    counted.insert(pid);
                }
                (Record::Sample(s), counted) if counted.as_ref().is_none_or(|c| c.contains(&s.pid)) => {
                    self.samples.add(self.set, &mut self.maps, &s);
                }
                _ => {}
            }
        }
    }

    /// What has been sampled so far.
    pub fn samples(&self) -> &IpSamples {
        &self.samples
    }

    /// Ends it.
    pub fn finish(mut self) -> Result<IpSamples, SessionError> {
        self.sampler.disable()?;
        self.drain();
        Ok(self.samples)
    }
}

/// Samples all processes of the set for `duration`.
pub(crate) fn sample(set: &ProcessSet, duration: Duration) -> Result<IpSamples, SessionError> {
    let mut sampling = Sampling::start(set)?;
    let end = Instant::now() + duration;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
        sampling.step(left);
        if !set.leader_is_alive() {
            break;
        }
    }
    sampling.finish()
}

impl IpSamples {
    fn add(&mut self, set: &ProcessSet, maps: &mut VersionMaps, sample: &Sample) {
        self.total += 1;
        let mut place = set.locate(sample.pid, sample.ip);
        if place.is_none() {
            place = set.locate_in_version(maps, sample.pid, sample.ip);
            self.in_versions += u64::from(place.is_some());
        }
        if let Some((module, at)) = place {
            *self.by_module.entry(module).or_default().entry(at).or_default() += 1;
        }
        if sample.branches.is_empty() {
            return;
        }
        // Each module sees the whole stack, with the places of other modules left blank.
        self.records += sample.branches.len() as u64;
        let place = |at: Avma| set.locate(sample.pid, at);
        let stack: Vec<_> = sample.branches.iter().map(|b| (place(b.from), place(b.to))).collect();
        let modules: BTreeSet<usize> =
            stack.iter().flat_map(|(f, t)| [f, t]).flatten().map(|p| p.0).collect();
        for module in modules {
            let own = |p: &Option<(usize, Svma)>| p.filter(|p| p.0 == module).map(|p| p.1);
            let seen: Vec<_> = stack.iter().map(|(from, to)| (own(from), own(to))).collect();
            self.branches.entry(module).or_default().add_stack(&seen);
        }
    }

    /// Adds what another round has given.
    pub fn merge(&mut self, more: Self) {
        self.total += more.total;
        self.in_versions += more.in_versions;
        self.records += more.records;
        for (module, addresses) in more.by_module {
            let own = self.by_module.entry(module).or_default();
            for (at, n) in addresses {
                *own.entry(at).or_default() += n;
            }
        }
        for (module, records) in more.branches {
            let own = self.branches.entry(module).or_default();
            for (branch, n) in records.branches {
                *own.branches.entry(branch).or_default() += n;
            }
            for (range, n) in records.ranges {
                *own.ranges.entry(range).or_default() += n;
            }
        }
    }

    /// Samples in a module.
    pub fn in_module(&self, module: usize) -> u64 {
        self.by_module.get(&module).map_or(0, |m| m.values().sum())
    }
}
