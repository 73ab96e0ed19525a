//! Which files are read and written, and how.

use restitch_profile_formats::Format;
use std::path::PathBuf;

/// A profile file to read.
#[derive(Debug, Clone)]
pub struct ProfileInput {
    /// The file.
    pub path: PathBuf,
    /// Its format, if it is not to be found out.
    pub format: Option<Format>,
    /// How counts are made of instruction samples, if it has no more than these.
    pub sampled: Sampled,
}

/// How counts are made of instruction samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sampled {
    /// The nearest flow ([`restitch_profile::repair`]).
    #[default]
    Repaired,
    /// Block counts by samples and length, edges by the equations of Tamches and Miller
    /// ([`restitch_profile::derive()`]).
    Derived,
}

/// A profile file to write.
#[derive(Debug, Clone)]
pub struct ProfileOutput {
    /// The file.
    pub path: PathBuf,
    /// Its format; by the file's name if none.
    pub format: Option<Format>,
    /// Details of some formats.
    pub options: WriteOptions,
}

/// Details of some formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// perf.data: taken branches a sample.
    pub depth: usize,
    /// perf.data: the most branch records to synthesize.
    pub records: u64,
    /// perf.data: seed of the random walk.
    pub seed: u64,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { depth: 32, records: 1 << 20, seed: 1 }
    }
}
