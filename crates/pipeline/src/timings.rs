//! How long the phases of a session took.

use restitch_report as report;
use std::time::Instant;

/// Times the phases.
#[derive(Debug)]
pub struct Timings {
    /// The phases that have ended.
    pub list: Vec<report::Phase>,
    since: Instant,
    began: Instant,
}

impl Default for Timings {
    fn default() -> Self {
        Self::new()
    }
}

impl Timings {
    /// It begins now.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { list: Vec::new(), since: now, began: now }
    }
    /// Milliseconds since the beginning.
    pub fn elapsed_ms(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e3
    }
    /// What has passed since the last end (or the beginning) was the phase `name`.
    pub fn end(&mut self, name: &str) {
        self.list.push(report::Phase { name: name.into(), ms: self.since.elapsed().as_secs_f64() * 1e3 });
        self.since = Instant::now();
    }
    /// Writes the phases, and this program's memory, into a result.
    pub fn finish(self, result: &mut report::RunResult) {
        result.phases = self.list;
        result.peak_memory_bytes = peak_memory();
    }
}

/// This program's own peak, from `/proc/self/status`.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}
