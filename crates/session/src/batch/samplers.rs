//! The two samplers of a command.
//!
//! **Problem.** Samples say two things: which functions of a module run, for which thousands are needed once, and how much time each run takes, for which some dozen a run do, always.
//! Where a sample costs 100 microseconds (timers of virtual machines), 250 a second are 2.5 % of the processor's time for ever.
//!
//! **Idea.** One sampler is *steady* and slow; times are told by its samples alone, so that all of them stand for the same time. Another one *finds* functions, while there are any
//! to be found. Processes inherit both, and the second is halted and started in all of them at once.

use crate::SessionError;
use crate::disk::write_whole;
use restitch_perf::{IpSampler, Record, SampleEvent, SampleOptions};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

/// Steady samples of each thread in a second of processor time.
pub(crate) const STEADY: u64 = 50;
/// Samples a second that are added while functions are looked for.
const FINDING: u64 = 200;
/// What a sample is taken to cost until that is known, in seconds: much.
const UNKNOWN_COST: f64 = 100e-6;
/// For so long what was measured holds, if the machine has not been started anew.
const HOLDS: Duration = Duration::from_secs(7 * 24 * 3600);

/// Where a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The steady sampler: its samples are time, and it tells of programs, mappings and ends.
    Steady,
    /// The one that finds functions.
    Finding,
}

/// Both.
#[derive(Debug)]
pub(crate) struct Samplers {
    steady: IpSampler,
    /// `None` where no more events can be had: the steady one finds functions, too, only later.
    finding: Option<IpSampler>,
    is_finding: bool,
}

impl Samplers {
    /// On process `own` and all that it starts from now on; both run.
    ///
    /// # Errors
    /// If sampling is not permitted.
    pub fn start(own: i32) -> Result<Self, SessionError> {
        let options = SampleOptions {
            frequency: STEADY,
            event: SampleEvent::CpuClock,
            times: true,
            ring_pages: 256,
            ..SampleOptions::default()
        };
        let steady = IpSampler::open(&[own], options)?;
        let faster =
            SampleOptions { frequency: FINDING, tasks: false, times: false, ring_pages: 64, ..options };
        let finding = IpSampler::open(&[own], faster).ok();
        Ok(Self { steady, is_finding: finding.is_some(), finding })
    }

    /// Whether functions are looked for from now on.
    pub fn find(&mut self, find: bool) {
        let Some(sampler) = self.finding.as_ref().filter(|_| find != self.is_finding) else { return };
        // Failing, it goes on as before.
        if (if find { sampler.enable() } else { sampler.disable() }).is_ok() {
            self.is_finding = find;
        }
    }

    /// What has come since the last time, in the order of time.
    pub fn drain(&mut self) -> Vec<(By, Record)> {
        // This one first: of each of its samples the other one knows the process by now.
        let found = self.finding.as_mut().map(IpSampler::drain).unwrap_or_default();
        let by = |by| move |record| (by, record);
        let steady = self.steady.drain().into_iter().map(by(By::Steady));
        let mut all: Vec<_> = found.into_iter().map(by(By::Finding)).chain(steady).collect();
        all.sort_by_key(|(_, record)| record.time());
        all
    }
}

/// What the samples of a command cost it.
#[derive(Debug)]
pub(crate) struct SampleCost {
    /// Seconds of one sample.
    seconds: f64,
    measured: Option<Receiver<f64>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Which start of the machine it was measured after.
    boot: String,
    microseconds: f64,
}

impl SampleCost {
    /// As it was measured not long ago; else it is measured now, beside the command.
    /// It is kept in `file`.
    pub fn of(file: PathBuf) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let is_old = |at: SystemTime| at.elapsed().is_ok_and(|age| age > HOLDS);
        let is_recent = std::fs::metadata(&file).and_then(|m| m.modified()).is_ok_and(|at| !is_old(at));
        let kept = || serde_json::from_slice::<Kept>(&std::fs::read(&file).ok()?).ok();
        if let Some(kept) = kept().filter(|k| is_recent && k.boot == boot && k.microseconds >= 0.0) {
            return Self { seconds: kept.microseconds / 1e6, measured: None };
        }
        let (sender, measured) = channel();
        std::thread::spawn(move || {
            let Ok(cost) = restitch_perf::sample_cost() else { return };
            let kept = Kept { boot, microseconds: cost.as_secs_f64() * 1e6 };
            if let Ok(bytes) = serde_json::to_vec(&kept) {
                // Failing, the next command measures it again.
                let _ = write_whole(&file, &bytes, 0o600);
            }
            // The session may be over.
            let _ = sender.send(cost.as_secs_f64());
        });
        Self { seconds: UNKNOWN_COST, measured: Some(measured) }
    }

    /// Seconds of processor time that so many samples have taken.
    pub fn seconds(&mut self, samples: u64) -> f64 {
        if let Some(cost) = self.measured.as_ref().and_then(|m| m.try_recv().ok()) {
            (self.seconds, self.measured) = (cost, None);
        }
        samples as f64 * self.seconds
    }
}
