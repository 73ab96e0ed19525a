//! The result of a run, as plain data. `docs/json.md` describes every field; a test keeps the two equal.

use crate::branches::{BranchRecords, Samples};
use crate::continuous::Continuous;
use crate::verdict::{Helped, Outcome, Verdict};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of the JSON form. Rises when a field changes its meaning or goes away, not when one is added.
pub const SCHEMA_VERSION: u32 = 1;

/// What a run did. A part that the run did not come to is absent (`null` in JSON).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of restitch.
    pub restitch_version: String,
    /// The subcommand: `attach`, `run`, `optimize`, ...
    pub command: String,
    /// What it worked on.
    pub target: Target,
    /// The program and its shared libraries, the most executed first.
    pub modules: Vec<Module>,
    /// Where the counts come from.
    pub profile: Option<ProfileSummary>,
    /// Branch records that software has made.
    #[serde(default)]
    pub branch_records: Option<BranchRecords>,
    /// What the kernel has sampled (`record --source ip`, `lbr`).
    #[serde(default)]
    pub samples: Option<Samples>,
    /// What was changed in the target.
    pub apply: Option<ApplySummary>,
    /// Whether it helped.
    pub verdict: Option<Verdict>,
    /// What was measured beside that, and did not decide.
    #[serde(default)]
    pub verdict_beside: Option<Verdict>,
    /// What a session that goes on has done so far, and found; the rest is of its last round that came to
    /// something.
    #[serde(default)]
    pub continuous: Option<Continuous>,
    /// How long each phase took, in order.
    pub phases: Vec<Phase>,
    /// The most memory that restitch itself had resident, in bytes.
    pub peak_memory_bytes: u64,
    /// What the next change would take of a process's memory (`--dry-run`), where it is known.
    #[serde(default)]
    pub planned_memory: Option<PlannedMemory>,
    /// Modules with a share of the work that stay as they are, though others are changed, and the program
    /// itself if it stays. Each is a warning, too.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// Modules with too few samples to be looked at, and samples in no module.
    #[serde(default)]
    pub other_modules: Option<OtherModules>,
    /// What the user should know, in words.
    pub warnings: Vec<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The process's exit code.
    pub exit_code: i32,
}

/// A module that stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path.
    pub path: String,
    /// Why, in words that follow the path.
    pub why: String,
    /// Samples in it.
    #[serde(default)]
    pub samples: u64,
}

/// Samples elsewhere than in the modules that are named.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OtherModules {
    /// Modules that have samples, each too few.
    pub modules: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their share of all samples, 0 to 1.
    pub share: f64,
    /// Samples in no module: code that the process has made itself, say.
    pub outside: u64,
    /// Their share of all samples, 0 to 1.
    pub outside_share: f64,
}

/// What a run worked on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Path of the program.
    pub program: String,
    /// Its process id, if it is a process.
    pub pid: Option<u32>,
    /// Number of processes that were changed (more than one with `--tree`).
    pub processes: u32,
    /// Number of threads in them.
    pub threads: u32,
}

impl Target {
    /// A file, which no process runs for this.
    pub fn file(program: &Path) -> Self {
        Self { program: program.display().to_string(), pid: None, processes: 0, threads: 0 }
    }
}

/// One ELF file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Its path.
    pub path: String,
    /// Its GNU build id in hexadecimal.
    pub build_id: Option<String>,
    /// Functions.
    pub functions: u64,
    /// Basic blocks.
    pub blocks: u64,
    /// Bytes of code.
    pub code_bytes: u64,
    /// Share of the code bytes that may be moved, 0 to 1.
    pub movable_share: f64,
    /// Why the rest may not.
    pub not_movable: Vec<Reason>,
    /// The layout's estimated cost.
    pub layout: Option<LayoutSummary>,
    /// The new code.
    pub version: Option<VersionSummary>,
    /// How it was counted.
    pub counting: Option<Counting>,
    /// Samples in it, where a process was sampled.
    #[serde(default)]
    pub samples: u64,
    /// What would be done with it (`--dry-run`).
    #[serde(default)]
    pub plan: Option<Plan>,
    /// The most executed functions, in falling order.
    pub hottest: Vec<HotFunction>,
}

/// What the next change would take of the memory of a process, of the one with the least left.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlannedMemory {
    /// Bytes that have to be left in its memory cgroups: all versions with what they write, pages that
    /// change, and a reserve.
    pub needed_bytes: u64,
    /// Whether that is for counting versions: what the new code takes is known when they have counted.
    pub for_counting: bool,
    /// Bytes that are left in the tightest of its memory cgroups; `None` if none has a limit that can be
    /// seen.
    pub left_bytes: Option<u64>,
    /// That group's limit.
    pub limit_bytes: Option<u64>,
    /// That group's folder.
    pub group: Option<String>,
}

/// What would be done with a module.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Its share of all samples, 0 to 1.
    pub sample_share: f64,
    /// Functions with samples.
    pub sampled_functions: u64,
    /// Code in them.
    pub sampled_bytes: u64,
    /// Of these, functions that cannot be moved.
    pub fixed_functions: u64,
    /// The share of the module's samples that these have, 0 to 1.
    pub fixed_share: f64,
    /// Functions that would be profiled: those with samples, and those around them.
    pub functions: u64,
    /// Their blocks that may be moved.
    pub blocks: u64,
    /// Code in these blocks.
    pub bytes: u64,
    /// Code of the counting version; `None` if the module would not be counted by one.
    pub counting_bytes: Option<u64>,
    /// What it takes of the process's memory: its code, its tables and the counters.
    #[serde(default)]
    pub counting_mapped_bytes: Option<u64>,
}

/// How a module was counted, and how much of its profile follows exactly. What is said of edges and functions
/// is said of the functions that ran.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Counting {
    /// Blocks of the counting version.
    pub blocks: u64,
    /// Counters in its code.
    pub counters: u64,
    /// Counters planned for each block.
    pub counters_per_block: f64,
    /// Branches that were taken, in code that was counted: jumps, calls and returns.
    #[serde(default)]
    pub taken_branches: u64,
    /// Functions that ran.
    pub functions_run: u64,
    /// Their control-flow edges.
    pub edges: u64,
    /// Share of them whose count is exact, 0 to 1.
    pub exact_edge_share: f64,
    /// Share of the functions whose edges all are.
    pub exact_function_share: f64,
    /// The share of edges that would be exact if only blocks were counted (the measure of Tamches and
    /// Miller).
    pub block_edge_share: f64,
    /// That of functions.
    pub block_function_share: f64,
    /// Sum of the differences between the counts of blocks and the sums of their incoming edges, divided by
    /// the sum of the counts.
    pub flow_error_in: f64,
    /// The same for outgoing edges; calls that do not return are part of it.
    pub flow_error_out: f64,
}

/// A reason and how often it applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// The reason in words.
    pub reason: String,
    /// Functions that it applied to.
    pub functions: u64,
    /// Their bytes of code.
    pub bytes: u64,
}

/// The cost model's opinion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayoutSummary {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Score of the original order; higher is better.
    pub score_before: f64,
    /// Score of the new order.
    pub score_after: f64,
    /// Blocks in the hot part: what ran, or most of it.
    pub hot_blocks: u64,
    /// Other blocks of functions that ran, placed at the far end.
    pub cold_blocks: u64,
    /// Second copies of blocks, which make taken branches superfluous.
    #[serde(default)]
    pub duplicates: u64,
    /// Their bytes.
    #[serde(default)]
    pub duplicate_bytes: u64,
    /// Instructions that fetch a line ahead.
    #[serde(default)]
    pub prefetches: u64,
}

/// The new code of a module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionSummary {
    /// Number of the version.
    pub number: u32,
    /// Bytes that are mapped.
    pub bytes: u64,
    /// Of those, instructions.
    pub text_bytes: u64,
    /// Blocks copied.
    pub blocks: u64,
    /// Entries redirected.
    pub redirects: u64,
    /// What the independent checker compared.
    pub checked: CheckCounts,
    /// Bytes that the processor reads by large pages, as the kernel says at the end of a run; 0 for files.
    #[serde(default)]
    pub large_page_bytes: u64,
}

/// What the independent checker compared.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckCounts {
    /// Block copies.
    pub blocks: u64,
    /// Instructions.
    pub instructions: u64,
    /// Branches.
    pub branches: u64,
    /// Jump tables.
    pub tables: u64,
    /// Unwind rows.
    pub rows: u64,
    /// Calls whose exception handling was compared.
    pub call_sites: u64,
    /// Redirects.
    pub redirects: u64,
    /// Calls and jumps through the global offset table that became direct.
    #[serde(default)]
    pub direct: u64,
    /// Calls and jumps of linkage stubs that go through the stub's slot.
    #[serde(default)]
    pub by_slot: u64,
    /// Indirect calls that compare with their usual target and call it directly.
    #[serde(default)]
    pub promoted: u64,
}

/// A function and what it ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HotFunction {
    /// Its name, or an invented one.
    pub name: String,
    /// Its address in the file, in hexadecimal with 0x.
    pub address: String,
    /// Share of all block executions of the module, 0 to 1.
    pub share: f64,
    /// Its blocks.
    pub blocks: u64,
    /// Of those, the ones that were moved.
    pub moved_blocks: u64,
    /// Why none was (or, in a plan, none would be).
    #[serde(default)]
    pub stays: Option<String>,
}

/// Where the counts come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileSummary {
    /// The source: `counting version`, `branch records`, `samples`, a file.
    pub source: String,
    /// How long it was watched, in seconds.
    pub seconds: f64,
    /// Samples or records.
    pub samples: u64,
    /// Share of the edges whose count is exact, 0 to 1.
    pub exact_edge_share: f64,
}

/// What was changed in the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplySummary {
    /// How: `process`, `file`.
    pub how: String,
    /// From the start of the session until the new layout is active, in milliseconds; 0 for a file.
    #[serde(default)]
    pub in_force_ms: f64,
    /// How long the target stood still in all, in microseconds; 0 for a file.
    pub pause_us: f64,
    /// What the pause was spent on.
    pub pause_parts: Vec<PausePart>,
    /// Places patched.
    pub patches: u64,
    /// Threads moved out of patched bytes or into the new code, in both stops: one that was moved in both
    /// counts twice.
    pub moved_threads: u64,
    /// Of these, those in the stop to the counting version.
    #[serde(default)]
    pub moved_to_counting: u64,
    /// Those in the stop to the new layout.
    #[serde(default)]
    pub moved_to_layout: u64,
}

/// A part of the pause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PausePart {
    /// What was done.
    pub name: String,
    /// How long, in microseconds.
    pub us: f64,
}

/// A phase of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How long it took, in milliseconds.
    pub ms: f64,
}

impl RunResult {
    /// What there is to say of branch records and samples, as labels and words.
    pub(crate) fn recorded_rows(&self) -> Vec<(&'static str, String)> {
        let branches = self.branch_records.iter().flat_map(BranchRecords::rows);
        branches.chain(self.samples.iter().flat_map(Samples::rows)).collect()
    }

    /// A result of `command` on `target` that has done nothing yet and counts as failed until it says
    /// otherwise.
    pub fn new(command: impl Into<String>, target: Target) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            restitch_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command.into(),
            target,
            modules: Vec::new(),
            profile: None,
            branch_records: None,
            samples: None,
            apply: None,
            verdict: None,
            verdict_beside: None,
            continuous: None,
            phases: Vec::new(),
            peak_memory_bytes: 0,
            planned_memory: None,
            left_out: Vec::new(),
            other_modules: None,
            warnings: Vec::new(),
            outcome: Outcome::Failed,
            exit_code: 1,
        }
    }

    /// The JSON form: one indented object and a line end. Numbers that are not finite become `null`, which
    /// [`RunResult::from_json`] does not read back.
    ///
    /// # Errors
    /// None that is known; the type is that of the serializer.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|json| json + "\n")
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// If the text is not JSON, or a field is missing or of another type. Unknown fields are ignored, so that
    /// newer results can be read.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

impl Outcome {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::InForce => "the new layout is active",
            Self::Written => "written",
            Self::Planned => "planned; nothing was changed",
            Self::Reverted => "taken back; the target is as it was",
            Self::NothingToDo => "nothing worth moving; the target is as it was",
            Self::Failed => "failed; the target is as it was",
        }
    }
}

impl Helped {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Yes => "it helped",
            Self::No => "it made things slower",
            Self::Unclear => "no difference could be shown",
        }
    }
}
