//! Profiles as files: `profile convert`, `merge`, `compare` and `show`, and the other formats of `record -o`.
//!
//! A file is loaded into what it says (`loaded.rs`), matched with the code of its modules (`code.rs`) where
//! the output needs that, and written ([`write`]).

mod code;
mod compare;
mod counts;
mod covered;
mod load;
mod loaded;
mod options;
mod show;
mod synth;
mod write;

pub use restitch_profile::MergeWeights;
pub use restitch_profile_formats::{Format, Holds};

pub use code::Code;
pub use compare::compare_profiles;
pub use covered::Covered;
pub use load::{counts_nothing, load, load_bytes, of_samples, only_samples, resolve, resolve_in};
pub use loaded::{Loaded, LoadedModule};
pub use options::{ProfileInput, ProfileOutput, Sampled, WriteOptions};
pub use show::{ModuleFacts, ProfileFacts, show_profile};

use crate::error::PipelineError;
use counts::counts;
use loaded::Content;
use restitch_profile::{MergeError, ProfileFile, merge_profiles};
use std::path::{Path, PathBuf};

/// What was done, for people.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Converted {
    /// The format that was written.
    pub format: Option<Format>,
    /// Bytes written.
    pub bytes: u64,
    /// Of instruction samples that were just taken: the share of the time that is spent in blocks with a
    /// sample, 0 to 1.
    pub coverage: Option<f64>,
    /// What the user should know, in words: what was left out, what does not fit.
    pub notes: Vec<String>,
}

/// Writes the profile `input` in another format.
///
/// # Errors
/// If it cannot be read, does not fit the module, or the format cannot hold it.
pub fn convert_profile(
    input: &ProfileInput,
    programs: &[PathBuf],
    output: &ProfileOutput,
) -> Result<Converted, PipelineError> {
    crate::disk::check_writable(&output.path)?;
    let mut code = Code::new(programs);
    let loaded = load(input, &mut code)?;
    save(&loaded, &mut code, output)
}

/// Writes the weighted sum of `inputs`. Without `weights` all weigh the same.
///
/// # Errors
/// As [`convert_profile`].
pub fn merge_profile_files(
    inputs: &[ProfileInput],
    weights: &MergeWeights,
    programs: &[PathBuf],
    output: &ProfileOutput,
) -> Result<Converted, PipelineError> {
    crate::disk::check_writable(&output.path)?;
    let mut code = Code::new(programs);
    let mut notes = Vec::new();
    let mut files = Vec::new();
    for input in inputs {
        let loaded = load(input, &mut code)?;
        files.push(counts(&loaded, &mut code, &mut notes)?);
    }
    let merged = merge_profiles(&files, weights).map_err(|error| unmerged(error, &inputs[0].path))?;
    let mut loaded = Loaded::of_counts(merged, &output.path);
    loaded.notes = notes;
    save(&loaded, &mut code, output)
}

/// Weights are of the command line, the rest of the files.
fn unmerged(error: MergeError, first: &Path) -> PipelineError {
    match error {
        MergeError::Number { .. } | MergeError::Weight { .. } => PipelineError::Usage(error.to_string()),
        _ => PipelineError::BadFile { path: first.into(), why: error.into() },
    }
}

/// Writes counts that were just recorded. A file name that tells no format gets restitch's own.
pub fn save_counts(file: ProfileFile, output: &ProfileOutput) -> Result<Converted, PipelineError> {
    let output = ProfileOutput { format: Some(format_of(output).unwrap_or(Format::Store)), ..output.clone() };
    if output.format == Some(Format::Store) {
        let bytes = file.write();
        crate::disk::write_result(&output.path, &bytes, 0o644)?;
        return Ok(Converted { format: output.format, bytes: bytes.len() as u64, ..Converted::default() });
    }
    let loaded = Loaded::of_counts(file, &output.path);
    save(&loaded, &mut Code::new(&[]), &output)
}

/// What was recorded of one module.
pub struct RecordedModule {
    /// Its file, in the view of the process.
    pub path: PathBuf,
    /// What the process had mapped.
    pub image: std::sync::Arc<restitch_image::Image>,
    /// By address in the file.
    pub records: restitch_profile_formats::Records,
}

/// Writes branch records that were just made. A file name that tells no format gets restitch's own.
///
/// # Errors
/// [`PipelineError::NothingToDo`] if none of the modules can be analysed; else as [`convert_profile`].
pub fn save_records(
    modules: Vec<RecordedModule>,
    output: &ProfileOutput,
) -> Result<Converted, PipelineError> {
    let output = ProfileOutput { format: Some(format_of(output).unwrap_or(Format::Store)), ..output.clone() };
    // Formats that hold one module get the program that ran most, not a library.
    let weight = |m: &&RecordedModule| {
        let branches = m.records.branches.values().map(|t| t.count);
        branches.chain(m.records.ips.values().copied()).sum::<u64>()
    };
    let programs = modules.iter().filter(|m| m.image.kind() != restitch_image::ImageKind::SharedObject);
    let program: Vec<PathBuf> = programs.max_by_key(weight).map(|m| m.path.clone()).into_iter().collect();
    let mut code = Code::new(&program);
    let mut loaded = Loaded::empty(Format::PreAggregated, &output.path);
    let mut covered = Covered::default();
    for module in modules {
        let analyzed = match crate::analysis::analyze_image(module.image) {
            Ok(analyzed) => analyzed,
            Err(why) => {
                loaded.notes.push(format!("left out: {}: {why}", module.path.display()));
                continue;
            }
        };
        if !module.records.has_branches() {
            covered.add(&analyzed.program, &module.records.ips);
        }
        let build_id = code.add(&module.path, analyzed).build_id();
        let content = Content::Records(module.records);
        loaded.modules.push(LoadedModule {
            path: module.path,
            build_id,
            content,
            sampled: Sampled::default(),
        });
    }
    if loaded.modules.is_empty() {
        return Err(nothing_analysed(&loaded.notes));
    }
    Ok(Converted { coverage: covered.share(), ..save(&loaded, &mut code, &output)? })
}

/// Records of code that no format can say anything of, but for the one that holds addresses.
fn nothing_analysed(left_out: &[String]) -> PipelineError {
    let left_out = left_out.join("; ");
    PipelineError::NothingToDo(format!(
        "no profile was written; {left_out}; `-o FILE.perf.data` keeps what is recorded for `perf report`"
    ))
}

fn save(loaded: &Loaded, code: &mut Code, output: &ProfileOutput) -> Result<Converted, PipelineError> {
    let format = format_of(output)?;
    let mut notes = loaded.notes.clone();
    let bytes = write::encode(loaded, code, format, &output.options, &mut notes)?;
    crate::disk::write_result(&output.path, &bytes, 0o644)?;
    notes.dedup();
    Ok(Converted { format: Some(format), bytes: bytes.len() as u64, coverage: None, notes })
}

/// The format of an output.
///
/// # Errors
/// If neither a name nor the file's ending tells it.
pub fn format_of(output: &ProfileOutput) -> Result<Format, PipelineError> {
    let name = output.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    output.format.or_else(|| Format::of_file_name(&name)).ok_or_else(|| {
        PipelineError::Usage(format!(
            "the ending of \"{name}\" tells no format; name one with --format ({})",
            Format::ALL.map(Format::name).join(", ")
        ))
    })
}
