//! IP samples: which modules and functions matter.

use crate::SessionError;
use crate::process_set::ProcessSet;
use crate::verdict::Windows;
use restitch_address::Avma;
use restitch_perf::{IpSampler, Record, SampleOptions};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Samples of user code, by address in the first process of the set. (Processes of a set share their layout through
/// `fork`; those that do not are translated by module.)
#[derive(Debug, Clone, Default)]
pub(crate) struct IpSamples {
    /// Samples by module index and stated address.
    pub by_module: BTreeMap<usize, BTreeMap<restitch_address::Svma, u64>>,
    /// Samples of user code in all.
    pub total: u64,
}

/// Samples all processes of the set for `duration`, taking a measurement `window` now and then.
pub(crate) fn sample(
    set: &ProcessSet,
    duration: Duration,
    windows: &mut Windows,
) -> Result<IpSamples, SessionError> {
    let options =
        SampleOptions { frequency: 4000, inherit: true, exclude_kernel: true, ..SampleOptions::default() };
    let mut sampler = IpSampler::open(&set.pids(), options)?;
    sampler.enable()?;
    let mut out = IpSamples::default();
    let end = Instant::now() + duration;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
        sampler.wait(left.min(windows.until_next()));
        windows.tick();
        for record in sampler.drain() {
            if let Record::Sample(s) = record {
                out.add(set, s.pid, s.ip);
            }
        }
        if !set.leader_is_alive() {
            break;
        }
    }
    sampler.disable()?;
    for record in sampler.drain() {
        if let Record::Sample(s) = record {
            out.add(set, s.pid, s.ip);
        }
    }
    Ok(out)
}

impl IpSamples {
    fn add(&mut self, set: &ProcessSet, pid: i32, ip: Avma) {
        self.total += 1;
        if let Some((module, at)) = set.locate(pid, ip) {
            *self.by_module.entry(module).or_default().entry(at).or_default() += 1;
        }
    }

    /// Samples in a module.
    pub fn in_module(&self, module: usize) -> u64 {
        self.by_module.get(&module).map_or(0, |m| m.values().sum())
    }
}
