//! What came of a run, and whether it helped.

use serde::{Deserialize, Serialize};

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Less is better: cycles per request.
    Lower,
    /// More is better: requests a second.
    Higher,
}

/// Whether it helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Helped {
    /// The whole interval is on the better side.
    Yes,
    /// The whole interval is on the worse side.
    No,
    /// The interval holds 1: no difference was shown.
    Unclear,
}

/// Before and after, measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What was measured.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// Median before; of a metric that counts in steps, the totals' quotient.
    pub before: f64,
    /// The same after.
    pub after: f64,
    /// After divided by before.
    pub ratio: f64,
    /// Lower end of the ratio's interval.
    pub ratio_low: f64,
    /// Upper end of it.
    pub ratio_high: f64,
    /// Probability with which the interval holds the true ratio, 0 to 1.
    pub confidence: f64,
    /// Measurements before.
    pub samples_before: u64,
    /// Measurements after.
    pub samples_after: u64,
    /// Whether it helped.
    pub helped: Helped,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The new layout is active.
    InForce,
    /// The file that was asked for is written (`record`, `instrument`, `optimize`).
    Written,
    /// Nothing was to be changed (`--dry-run`, `analyze`).
    Planned,
    /// The new layout was taken back, because it did not help, because that could not be judged, or because
    /// it was asked for.
    Reverted,
    /// There was nothing worth moving; the target is as it was.
    NothingToDo,
    /// Something failed; the target is as it was.
    Failed,
}
