//! What `lab` is asked for.

use restitch_lab::Machine;
use restitch_layout::LayoutChoice;
use std::ffi::OsString;
use std::path::PathBuf;

/// What to compare.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// The program or shared object.
    pub program: PathBuf,
    /// The profile file.
    pub profile: PathBuf,
    /// The layouts, in the order of the table.
    pub layouts: Vec<LayoutChoice>,
    /// The machine to model; `None` for this one.
    pub machine: Option<Machine>,
    /// Each layout without and with duplicates of blocks behind hot jumps; those once chosen by the counts of
    /// edges alone, and once, if the profile has them, by the ways that branch records show.
    pub duplicate: bool,
    /// Each layout three times: without and with lines fetched ahead, and with instructions that fetch
    /// nothing new. The lines are chosen by the first half of the records if there are some, and compared by
    /// the second; else by a walk of their own.
    pub prefetch: bool,
    /// The hot code of the layouts in large pages.
    pub large_pages: bool,
    /// Steps of the trace.
    pub steps: usize,
    /// Seed of the trace.
    pub seed: u64,
    /// A `perf.data` file with branch stacks: the execution, instead of a made-up one.
    pub records: Option<PathBuf>,
    /// What is run on the real processor, beside the models.
    pub runs: Option<LabRuns>,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct LabRuns {
    /// A command that runs the program. Where a word of it is `{}`, the file to run stands there; else it is
    /// run in place of the first word, which has to name the program, and is told that name.
    pub command: Vec<OsString>,
    /// How often each layout is run.
    pub rounds: usize,
}
