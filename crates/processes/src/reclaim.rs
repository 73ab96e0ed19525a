//! Unmapping of retired versions in all processes of a session, and what is told of those that stay.

use crate::process_set::{ProcessSet, has_left};
use restitch_apply_process::AttachedProcess;
use std::fmt;
use std::time::{Duration, Instant};

/// Pauses before the tries to unmap retired versions.
const SWEEP_WAITS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(300)];

/// After so long it is not tried again: the processes have much memory to look through.
const LONG_SWEEP: Duration = Duration::from_secs(1);

/// So long threads may take to leave versions that were taken out for good.
const LEAVING: Duration = Duration::from_secs(3);

/// A retired version that stays mapped in a process, unused. Shown as a sentence without a next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptVersion {
    /// The process.
    pub pid: i32,
    /// Which version of it.
    pub number: u32,
    /// Why it stays.
    pub why: String,
}

impl fmt::Display for KeptVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}: version {} stays mapped, unused: {}", self.pid, self.number, self.why)
    }
}

impl ProcessSet {
    /// Unmaps retired versions, in a few tries where they are short. What has to stay comes back with the
    /// reason, as does what stays because its process could not be looked through.
    pub fn reclaim(&mut self) -> Vec<KeptVersion> {
        let (mut kept, begun) = (Vec::new(), Instant::now());
        for wait in SWEEP_WAITS {
            if begun.elapsed() > LONG_SWEEP {
                break;
            }
            std::thread::sleep(wait);
            kept.clear();
            for live in self.all_mut() {
                kept.extend(reclaim_of(live));
            }
            if kept.is_empty() {
                break;
            }
        }
        self.leader.forget_ended();
        kept
    }

    /// The same for versions that were just taken out of force for good: threads get a moment to leave what
    /// they still look into, so that nothing stays behind.
    pub fn reclaim_patiently(&mut self) -> Vec<KeptVersion> {
        let end = Instant::now() + LEAVING;
        loop {
            let kept = self.reclaim();
            if kept.is_empty() || Instant::now() > end {
                return kept;
            }
            // Not cut short by a request to end: each look stops the processes.
            std::thread::sleep(LEAVING / 10);
        }
    }
}

/// Unmaps retired versions of one process; those that stay.
fn reclaim_of(live: &mut AttachedProcess) -> Vec<KeptVersion> {
    let pid = live.target().pid();
    let kept: Vec<(u32, String)> = match live.reclaim() {
        Ok(report) => report.kept,
        Err(_) if !live.target().process.is_alive() || has_left(live) => Vec::new(),
        Err(error) => {
            let retired = live.journal().versions.iter().filter(|version| version.retired);
            retired.map(|version| (version.number, error.to_string())).collect()
        }
    };
    kept.into_iter().map(|(number, why)| KeptVersion { pid, number, why }).collect()
}
