//! Sessions that optimize again and again.

use crate::units::{count, counted, digits};
use crate::verdict::{Outcome, Verdict};
use serde::{Deserialize, Serialize};

/// A session that optimizes again when the process works in another way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Continuous {
    /// The optimizations, in order.
    pub rounds: Vec<Round>,
    /// How long it has gone on, in seconds.
    pub seconds: f64,
    /// Samples by which the process was watched between the rounds.
    pub samples: u64,
    /// Sets of them that were compared.
    pub sample_sets: u64,
    /// Program phases (ways of working) that are known.
    #[serde(rename = "behaviours")]
    pub program_phases: u64,
    /// Why it ended, in words; `None` while it goes on.
    pub ended: Option<String>,
}

/// One optimization of several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// When it began, in seconds since the session did.
    pub at_seconds: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What it was for, in words.
    pub why: String,
    /// What it came to.
    pub outcome: Outcome,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// Whether it helped, against the layout that was active before it.
    pub verdict: Option<Verdict>,
}

impl Continuous {
    /// What there is to say, as labels and words.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows: Vec<_> = self.rounds.iter().map(|round| ("round", round.words())).collect();
        let ended = match &self.ended {
            Some(why) => format!("; ended: {why}"),
            None => String::new(),
        };
        rows.push((
            "watched",
            format!(
                "{} s: {} in {} that were compared, {} of working known{ended}",
                digits(self.seconds),
                counted(self.samples, "sample"),
                counted(self.sample_sets, "set"),
                counted(self.program_phases, "way"),
            ),
        ));
        rows
    }
}

impl Round {
    fn words(&self) -> String {
        let came_to = match (&self.error, &self.verdict) {
            (Some(error), _) => error.clone(),
            (None, Some(verdict)) => format!(
                "{}, {} {} times as before",
                self.outcome.words(),
                verdict.metric,
                digits(verdict.ratio)
            ),
            (None, None) => self.outcome.words().into(),
        };
        format!(
            "at {} s, {}: {came_to} (took {} s)",
            count(self.at_seconds as u64),
            self.why,
            digits(self.seconds)
        )
    }
}
