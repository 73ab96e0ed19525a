//! What `attach` and `run` are asked to do.

use crate::make::{DUPLICATE, PREFETCH};
use crate::verdict::Metric;
use crate::{LargePages, Source};
use restitch_apply_process::RetargetedSlots;
use restitch_layout::LayoutChoice;
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
    /// How long to profile, sampling and counting together; without it until the profile has settled, six seconds at most.
    pub duration: Option<Duration>,
    /// Plan only; nothing is touched. The profile is then of samples alone; a counting version is made and checked, and goes nowhere.
    pub dry_run: bool,
    /// Take it back if it was shown to be slower, or could not be judged.
    pub revert_if_slower: bool,
    /// What to judge by.
    pub metric: Option<Metric>,
    /// How long to measure after; before is measured while sampling.
    pub measure: Duration,
    /// How to lay out.
    pub layout: LayoutChoice,
    /// Calls through slots of the global offset table that cannot change any more become direct ones; other calls of stubs go through the stubs' slots.
    pub direct_calls: bool,
    /// Which slots that cannot change any more lead into the new layout.
    pub slots: RetargetedSlots,
    /// Large pages for hot code.
    pub huge_pages: LargePages,
    /// Hot code is placed within cache lines by how often it runs.
    pub align: bool,
    /// Conditional branches of which neither way stands behind them are turned so that the usual one needs no jump.
    pub turn: bool,
    /// Jump tables of placed jumps get copies that lead to copies; else such jumps go by the original tables, and round by redirects where these lead.
    pub copy_tables: bool,
    /// Indirect calls with one usual target compare with it and call it directly.
    pub promote_calls: bool,
    /// Functions stay where they are if the way round by their redirect costs more than a new order gains.
    pub stay: bool,
    /// Blocks behind hot jumps get a second copy in place of the jump.
    pub duplicate: bool,
    /// Lines that the models of the second-level cache miss are fetched ahead.
    pub prefetch: bool,
    /// A profile in restitch's own format that says what indirect calls call: for machines without branch records, since counting
    /// does not tell.
    pub call_targets: Option<PathBuf>,
}

/// What branch records may cost without a word of the user's: tracing ends with the session, so it is more than for a profile that is taken
/// all day.
const OVERHEAD: f64 = 0.05;

impl AttachOptions {
    /// The defaults for a process: ten seconds in all, at most.
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
            layout: LayoutChoice::default(),
            direct_calls: true,
            huge_pages: LargePages::default(),
            align: true,
            turn: true,
            copy_tables: true,
            promote_calls: false,
            slots: RetargetedSlots::None,
            stay: true,
            duplicate: DUPLICATE,
            prefetch: PREFETCH,
            call_targets: None,
        }
    }
}
