//! IP samples: which modules and functions matter.

use crate::error::SessionError;
use crate::process_set::ProcessSet;
use crate::sampler::Sampler;
use restitch_address::{Avma, PAGE, Svma};
use restitch_apply_process::VersionMaps;
use restitch_perf::{Record, Sample};
use restitch_profile::BranchSamples;
use restitch_tracee::AskedToEnd;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Samples of user code, by address in the first process of the set. (Processes of a set share their layout
/// through `fork`; those that do not are translated by module.)
#[derive(Debug, Clone, Default)]
pub struct IpSamples {
    /// Samples by module index and stated address.
    pub by_module: BTreeMap<usize, BTreeMap<Svma, u64>>,
    /// Samples of user code in all.
    pub total: u64,
    /// Of them, those in code of versions; by module they are where its original is.
    pub in_versions: u64,
    /// Samples of the first process that were in no module that it had when it was opened, by page.
    pub outside: BTreeMap<Avma, u64>,
    /// Hardware branch records by module index, where the machine has them.
    pub branches: BTreeMap<usize, BranchSamples>,
    /// Number of those records.
    pub records: u64,
}

/// Sampling that is under way.
pub struct Sampling<'s> {
    set: &'s ProcessSet,
    sampler: Sampler,
    samples: IpSamples,
    maps: VersionMaps,
}

/// Samples a second and thread for a profile.
const FOR_A_PROFILE: u64 = 4000;

impl<'s> Sampling<'s> {
    /// Begins to sample all processes of the set, to find out which code matters.
    pub fn start(set: &'s ProcessSet) -> Result<Self, SessionError> {
        Self::start_at(set, FOR_A_PROFILE, true)
    }

    /// The same, so often a second while they run; branch records of the hardware only with `stacks`.
    fn start_at(set: &'s ProcessSet, frequency: u64, stacks: bool) -> Result<Self, SessionError> {
        Ok(Self::by(set, Sampler::of(set, frequency, stacks)?))
    }

    /// Begins to sample all processes of the set, and those that they start, so seldom that it hardly costs
    /// them anything.
    pub fn watching(set: &'s ProcessSet, frequency: u64) -> Result<Self, SessionError> {
        Ok(Self::by(set, Sampler::of_few(set, frequency)?))
    }

    fn by(set: &'s ProcessSet, sampler: Sampler) -> Self {
        Self { set, sampler, samples: IpSamples::default(), maps: VersionMaps::default() }
    }

    /// Whether all that runs is sampled.
    pub fn is_of_machine(&self) -> bool {
        self.sampler.is_of_machine()
    }

    /// Waits for samples, `at_most` so long, and takes them in.
    pub fn step(&mut self, at_most: Duration) {
        self.sampler.wait(at_most);
        self.drain();
    }

    fn drain(&mut self) {
        for record in self.sampler.drain() {
            if let Record::Sample(sample) = record {
                self.samples.add(self.set, &mut self.maps, &sample);
            }
        }
    }

    /// What has been sampled so far.
    pub fn samples(&self) -> &IpSamples {
        &self.samples
    }

    /// Ends it.
    pub fn finish(mut self) -> Result<IpSamples, SessionError> {
        self.sampler.end()?;
        self.drain();
        Ok(self.samples)
    }
}

/// It is looked so often whether sampling is to end.
const STEP: Duration = Duration::from_millis(50);

/// Samples all processes of the set for `duration`, or until this program is asked to end.
pub fn sample(set: &ProcessSet, duration: Duration) -> Result<IpSamples, SessionError> {
    sample_at(set, FOR_A_PROFILE, true, duration)
}

/// The same, so often a second while they run, and with branch records of the hardware or without.
pub fn sample_at(
    set: &ProcessSet,
    frequency: u64,
    stacks: bool,
    duration: Duration,
) -> Result<IpSamples, SessionError> {
    let mut sampling = Sampling::start_at(set, frequency, stacks)?;
    let end = Instant::now() + duration;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
        sampling.step(left.min(STEP));
        if !set.leader_is_alive() || AskedToEnd::signal().is_some() {
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
        } else if sample.pid == set.leader.target().pid() {
            *self.outside.entry(sample.ip.align_down(PAGE)).or_default() += 1;
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
        for (page, n) in more.outside {
            *self.outside.entry(page).or_default() += n;
        }
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
