//! How much of the time instruction samples know, in several modules together.

use restitch_address::Svma;
use restitch_profile::sample_coverage;
use restitch_program::Program;
use std::collections::BTreeMap;

/// Takes in modules, one after the other.
#[derive(Default)]
pub struct Covered {
    samples: f64,
    known: f64,
}

impl Covered {
    /// Takes in the samples of a module.
    pub fn add(&mut self, program: &Program, samples: &BTreeMap<Svma, u64>) {
        if let Some(share) = sample_coverage(program, samples) {
            let samples = samples.values().sum::<u64>() as f64;
            self.samples += samples;
            self.known += share * samples;
        }
    }

    /// The share of the time that is spent in blocks with a sample, 0 to 1; nothing, if no sample was in a
    /// block.
    pub fn share(&self) -> Option<f64> {
        (self.samples > 0.0).then(|| self.known / self.samples)
    }
}
