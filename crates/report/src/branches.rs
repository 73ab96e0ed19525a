//! Branch records that software has made (`record --source trace`, `burst`).

use crate::units::{counted, digits, precise};
use serde::{Deserialize, Serialize};

/// The figures of a recording of branches.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BranchRecords {
    /// `trace` (breakpoints and evaluation) or `burst` (tracing versions).
    pub source: String,
    /// Records: branches that one thread took one after the other.
    pub records: u64,
    /// Of these, those that are as long as was asked for.
    pub full_records: u64,
    /// Taken branches in all records.
    pub branches: u64,
    /// Of these, those that are in no module.
    pub elsewhere: u64,
    /// Of all, those in the vdso, which is a module without a file: `perf.data` files have them, profiles of
    /// files do not.
    #[serde(default)]
    pub in_vdso: u64,
    /// The estimated share of the branches executed meanwhile that the records have, weighed by how often
    /// they are executed (sample coverage, Good 1953).
    pub coverage: f64,
    /// Alarms that went off; each begins a record, if it can.
    pub alarms: u64,
    /// How records ended, or why an alarm began none.
    pub ends: Vec<End>,
    /// Breakpoints that were reached (`trace`).
    pub breakpoints: u64,
    /// Of these, those at which the evaluation ahead was contradicted; its branches were dropped (`trace`).
    pub contradicted: u64,
    /// Taken branches for each breakpoint that the paper's static look-ahead would give on the same code
    /// (`trace`).
    pub static_usefulness: f64,
    /// Processor time of the threads meanwhile, in milliseconds.
    pub cpu_ms: f64,
    /// How long threads were held for records, in milliseconds.
    pub held_ms: f64,
    /// Of that, looking ahead, in milliseconds (`trace`).
    pub looking_ms: f64,
    /// What running in tracing versions is estimated to have cost, in milliseconds (`burst`).
    pub recording_ms: f64,
    /// What it has cost, as a share of the processor time: held and recording. `None` if that time could not
    /// be read.
    pub overhead: Option<f64>,
    /// Bytes of tracing versions (`burst`).
    pub version_bytes: u64,
    /// Threads that block the signal that interrupts them, and so were not seen (`trace`).
    pub blocked_threads: u64,
    /// Threads that were not recorded, as no events could be opened for them; a warning says why.
    #[serde(default)]
    pub missed_threads: u64,
}

/// What the kernel has sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// `ip` (instructions alone) or `lbr` (with branch records of the hardware).
    pub source: String,
    /// Samples of user code.
    pub samples: u64,
    /// Taken branches that came with them (`lbr`).
    pub branches: u64,
    /// Samples (`lbr`: branches) that are in no module.
    pub elsewhere: u64,
    /// Of all, those in the vdso, which is a module without a file: `perf.data` files have them, profiles of
    /// files do not.
    pub in_vdso: u64,
    /// Records that the kernel had no room for.
    pub lost: u64,
    /// Samples a second of a thread's running.
    pub per_second: u64,
    /// What a sample takes from the sampled thread, measured beforehand, in microseconds.
    pub cost_us: f64,
    /// What samples have cost, as a share of the running time: how often they are taken, times what one
    /// costs.
    pub overhead: f64,
    /// The estimated share of the time (`lbr`: of the branches executed) that is spent in code that the
    /// profile knows, 0 to 1; `None` where that was not found out (`perf.data`).
    pub coverage: Option<f64>,
}

impl Samples {
    /// What there is to say, as labels and words.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let branches = if self.branches > 0 {
            format!(" with {}", counted(self.branches, "branch"))
        } else {
            String::new()
        };
        let mut rows = vec![
            ("samples", format!("{}{branches} ({})", self.samples, self.source)),
            (
                "overhead",
                format!(
                    "{}: {} a second, {} us each",
                    precise(self.overhead),
                    self.per_second,
                    digits(self.cost_us)
                ),
            ),
        ];
        if let Some(share) = self.coverage {
            rows.push((
                "coverage",
                format!("{} of the time is spent in code that the profile knows, estimated", precise(share)),
            ));
        }
        if self.lost > 0 {
            rows.push(("lost", format!("{} that the kernel had no room for", counted(self.lost, "record"))));
        }
        rows
    }
}

/// How often something ended a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// What it was, in words.
    pub why: String,
    /// How often.
    pub count: u64,
}

/// There is nothing to compare the cost with.
const UNKNOWN_OVERHEAD: &str = "unknown: the threads' processor time could not be read";

impl BranchRecords {
    /// What there is to say, as labels and words.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![(
            "branches",
            format!(
                "{} in {} of {} on average, {} full ({})",
                self.branches,
                counted(self.records, "record"),
                digits(self.branches as f64 / self.records.max(1) as f64),
                self.full_records,
                self.source
            ),
        )];
        let share = |ms: f64| precise(ms / self.cpu_ms.max(1e-9));
        let mut parts = vec![format!("held {}", share(self.held_ms))];
        if self.looking_ms > 0.0 {
            parts.push(format!("of it looking ahead {}", share(self.looking_ms)));
        }
        if self.recording_ms > 0.0 {
            parts.push(format!("recording {}, estimated", share(self.recording_ms)));
        }
        let overhead = match self.overhead {
            Some(all) => format!(
                "{} of {} s of processor time: {}",
                precise(all),
                digits(self.cpu_ms / 1e3),
                parts.join(", ")
            ),
            None => UNKNOWN_OVERHEAD.into(),
        };
        rows.push(("overhead", overhead));
        rows.push((
            "coverage",
            format!("{} of what is executed is in the profile, estimated", precise(self.coverage)),
        ));
        if self.breakpoints > 0 {
            rows.push((
                "breakpoints",
                format!(
                    "{}: {} branches for each ({} without evaluating ahead), {} contradicted",
                    self.breakpoints,
                    digits(self.branches as f64 / self.breakpoints as f64),
                    digits(self.static_usefulness),
                    self.contradicted
                ),
            ));
        }
        let ends: Vec<String> = self.ends.iter().map(|e| format!("{} {}", e.count, e.why)).collect();
        if !ends.is_empty() {
            rows.push(("ends", ends.join(", ")));
        }
        rows
    }
}
