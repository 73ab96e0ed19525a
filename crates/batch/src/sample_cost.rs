//! What the samples of a command cost it.
//!
//! Where a sample costs 100 microseconds (timers of virtual machines), 250 a second are 2.5 % of the
//! processor's time. So what one costs is measured, kept, and charged to what may be spent. (Fewer samples a
//! second do not do from the beginning, see [`pace`](super::pace): the kernel's timer begins anew in each
//! process, so one that ends before the first sample is never seen. With 50 a second a loop of runs of 12 ms,
//! 1.8 s in all, had 0.02 s.)

use crate::own_files::{MOST_OF_NOTE, read_own};
use restitch_perf::SampleEvent;
use restitch_pipeline::disk::write_whole;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

/// What a sample is taken to cost until that is known, in seconds: much.
const UNKNOWN_COST: f64 = 100e-6;
/// For so long what was measured holds, if the machine has not been started anew.
const HOLDS: Duration = Duration::from_secs(7 * 24 * 3600);

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
        let kept = || serde_json::from_slice::<Kept>(&read_own(&file, MOST_OF_NOTE).ok()?).ok();
        if let Some(kept) = kept().filter(|k| is_recent && k.boot == boot && k.microseconds >= 0.0) {
            return Self { seconds: kept.microseconds / 1e6, measured: None };
        }
        let (sender, measured) = channel();
        // Where there may be no more threads, it stays unknown.
        let measuring = std::thread::Builder::new().spawn(move || {
            let Ok(cost) = restitch_perf::sample_cost(SampleEvent::CpuClock, false) else { return };
            let kept = Kept { boot, microseconds: cost.as_secs_f64() * 1e6 };
            if let Ok(bytes) = serde_json::to_vec(&kept) {
                // Failing, the next command measures it again.
                let _ = write_whole(&file, &bytes, 0o600);
            }
            // The session may be over.
            let _ = sender.send(cost.as_secs_f64());
        });
        drop(measuring);
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
