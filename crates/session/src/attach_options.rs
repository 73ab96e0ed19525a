//! What `attach` and `run` are asked to do.

use restitch_apply_process::RetargetedSlots;
use restitch_pipeline::version_options::VersionOptions;
use restitch_processes::source::Source;
use restitch_processes::verdict::Metric;
use std::path::PathBuf;
use std::time::Duration;

/// What to do.
#[derive(Debug, Clone)]
pub struct AttachOptions {
    /// The process.
    pub pid: i32,
    /// Also all processes that run its program.
    pub tree: bool,
    /// A profile in a format that holds counts, in place of profiling the process.
    pub profile: Option<PathBuf>,
    /// Where the profile comes from.
    pub source: Source,
    /// The share of the running time that branch records may cost meanwhile, 0 to 1.
    pub overhead: f64,
    /// How long to profile, sampling and counting together; without it until the profile has settled, six
    /// seconds at most.
    pub duration: Option<Duration>,
    /// Plan only; nothing is touched. The profile is then of samples alone; a counting version is made and
    /// checked, and goes nowhere.
    pub dry_run: bool,
    /// Take it back if it was shown to be slower, or could not be judged.
    pub revert_if_slower: bool,
    /// What to judge by.
    pub metric: Option<Metric>,
    /// How long to measure after; before is measured while sampling.
    pub measure: Duration,
    /// How to make versions.
    pub version: VersionOptions,
    /// Which slots that cannot change any more lead into the new layout.
    pub slots: RetargetedSlots,
    /// A profile in restitch's own format that says what indirect calls call: for machines without branch
    /// records, since counting does not tell.
    pub call_targets: Option<PathBuf>,
}

/// What branch records may cost without a word of the user's: tracing ends with the session, so it is more
/// than for a profile that is taken all day.
const OVERHEAD: f64 = 0.05;

impl AttachOptions {
    /// The defaults for a process: up to six seconds of profiling, and three of measuring.
    pub fn new(pid: i32) -> Self {
        Self {
            pid,
            tree: false,
            profile: None,
            source: Source::default(),
            overhead: OVERHEAD,
            duration: None,
            dry_run: false,
            revert_if_slower: false,
            metric: None,
            measure: Duration::from_secs(3),
            version: VersionOptions::default(),
            slots: RetargetedSlots::None,
            call_targets: None,
        }
    }
}
