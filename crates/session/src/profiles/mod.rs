//! Profiles as files: `profile convert`, `merge`, `compare` and `show`, and the other formats of `record -o`.
//!
//! A file is loaded into what it says ([`load`]), matched with the code of its modules ([`code`]) where the output needs that, and
//! written ([`write`]).

mod code;
mod compare;
mod load;
mod synth;
mod write;

pub use restitch_profile::MergeWeights;
pub use restitch_profile_formats::{Format, Holds};

pub(crate) use code::Code;
pub use compare::compare_profiles;
pub(crate) use load::{load, of_samples, resolve};
pub use write::WriteOptions;

use crate::SessionError;
use load::{Loaded, LoadedModule};
use restitch_profile::{ProfileFile, merge_profiles};
use std::path::{Path, PathBuf};

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
    /// Block counts by samples and length, edges by the equations of Tamches and Miller ([`restitch_profile::derive()`]).
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

/// What was done, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Converted {
    /// The format that was written.
    pub format: Option<Format>,
    /// Bytes written.
    pub bytes: u64,
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
) -> Result<Converted, SessionError> {
    crate::check_writable(&output.path)?;
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
) -> Result<Converted, SessionError> {
    crate::check_writable(&output.path)?;
    let mut code = Code::new(programs);
    let mut notes = Vec::new();
    let mut files = Vec::new();
    for input in inputs {
        let loaded = load(input, &mut code)?;
        files.push(counts(&loaded, &mut code, &mut notes)?);
    }
    let merged = merge_profiles(&files, weights)
        .map_err(|e| SessionError::BadFile { path: inputs[0].path.clone(), why: e.to_string() })?;
    let mut loaded = Loaded::of_counts(merged, &output.path);
    loaded.notes = notes;
    save(&loaded, &mut code, output)
}

/// Writes counts that were just recorded. A file name that tells no format gets restitch's own.
pub(crate) fn save_counts(file: ProfileFile, output: &ProfileOutput) -> Result<Converted, SessionError> {
    let output = ProfileOutput { format: Some(format_of(output).unwrap_or(Format::Store)), ..output.clone() };
    if output.format == Some(Format::Store) {
        let bytes = file.write();
        crate::write_result(&output.path, &bytes, 0o644)?;
        return Ok(Converted { format: output.format, bytes: bytes.len() as u64, notes: Vec::new() });
    }
    let loaded = Loaded::of_counts(file, &output.path);
    save(&loaded, &mut Code::new(&[]), &output)
}

/// What was recorded of one module.
pub(crate) struct RecordedModule {
    /// Its file, in the view of the process.
    pub path: PathBuf,
    /// What the process had mapped.
    pub image: std::sync::Arc<restitch_image::Image>,
    /// By address in the file.
    pub records: restitch_profile_formats::Records,
}

/// Writes branch records that were just made. A file name that tells no format gets restitch's own.
pub(crate) fn save_records(
    modules: Vec<RecordedModule>,
    output: &ProfileOutput,
) -> Result<Converted, SessionError> {
    let output = ProfileOutput { format: Some(format_of(output).unwrap_or(Format::Store)), ..output.clone() };
    // Formats that hold one module get the program that ran most, not a library.
    let weight = |m: &&RecordedModule| m.records.branches.values().map(|t| t.count).sum::<u64>();
    let programs = modules.iter().filter(|m| m.image.kind() != restitch_image::ImageKind::SharedObject);
    let program: Vec<PathBuf> = programs.max_by_key(weight).map(|m| m.path.clone()).into_iter().collect();
    let mut code = Code::new(&program);
    let mut loaded = Loaded::empty(Format::PreAggregated, &output.path);
    for module in modules {
        let Ok(analyzed) = crate::analysis::analyze_image(module.image) else {
            loaded.notes.push(format!("left out: {} cannot be analysed", module.path.display()));
            continue;
        };
        let build_id = code.add(&module.path, analyzed).build_id();
        let content = load::Content::Records(module.records);
        loaded.modules.push(LoadedModule {
            path: module.path,
            build_id,
            content,
            sampled: Sampled::default(),
        });
    }
    save(&loaded, &mut code, &output)
}

fn save(loaded: &Loaded, code: &mut Code, output: &ProfileOutput) -> Result<Converted, SessionError> {
    let format = format_of(output)?;
    let mut notes = loaded.notes.clone();
    let bytes = write::encode(loaded, code, format, &output.options, &mut notes)?;
    crate::write_result(&output.path, &bytes, 0o644)?;
    notes.dedup();
    Ok(Converted { format: Some(format), bytes: bytes.len() as u64, notes })
}

/// The format of an output.
///
/// # Errors
/// If neither a name nor the file's ending tells it.
pub fn format_of(output: &ProfileOutput) -> Result<Format, SessionError> {
    let name = output.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    output.format.or_else(|| Format::of_file_name(&name)).ok_or_else(|| SessionError::Command {
        command: "profile".into(),
        why: format!(
            "the ending of \"{name}\" tells no format; name one with --format ({})",
            Format::ALL.map(Format::name).join(", ")
        ),
    })
}

/// The counts of a loaded profile. Modules whose code is not there are left out, with a note.
fn counts(loaded: &Loaded, code: &mut Code, notes: &mut Vec<String>) -> Result<ProfileFile, SessionError> {
    notes.extend(loaded.notes.iter().cloned());
    let mut file = ProfileFile::default();
    let mut missing = None;
    for module in &loaded.modules {
        match counts_of(module, loaded, code, notes) {
            Ok(module) => file.modules.push(module),
            Err(error) => {
                notes.push(format!("left out: {error}"));
                missing = Some(error);
            }
        }
    }
    match missing {
        Some(error) if file.modules.is_empty() => Err(error),
        _ => Ok(file),
    }
}

fn counts_of(
    module: &LoadedModule,
    loaded: &Loaded,
    code: &mut Code,
    notes: &mut Vec<String>,
) -> Result<restitch_profile::ModuleProfile, SessionError> {
    if let Some(stored) = module.stored() {
        return Ok(stored.clone());
    }
    let known = code.of(module, &loaded.path)?;
    let (profile, more) = resolve(module, known)?;
    notes.extend(more);
    Ok(restitch_profile::ModuleProfile::of(
        &known.analyzed.program,
        &profile,
        &known.build_id(),
        &module.path.display().to_string(),
    ))
}

/// What `profile show` prints.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProfileFacts {
    /// The format that the file is in.
    pub format: Option<Format>,
    /// One entry a module.
    pub modules: Vec<ModuleFacts>,
    /// Symbols, for formats that hold an order.
    pub order: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// One module of a profile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModuleFacts {
    /// Its path.
    pub path: String,
    /// Its build id in hexadecimal; empty if not known.
    pub build_id: String,
    /// What is in the file, in words and numbers.
    pub content: Vec<(&'static str, u64)>,
    /// Functions with most block executions: name, share of all.
    pub hottest: Vec<(String, f64)>,
}

/// Looks into a profile file.
///
/// # Errors
/// If it cannot be read.
pub fn show_profile(input: &ProfileInput, programs: &[PathBuf]) -> Result<ProfileFacts, SessionError> {
    let mut code = Code::new(programs);
    let loaded = load(input, &mut code)?;
    let (format, notes, order) = (Some(loaded.format), loaded.notes.clone(), loaded.order.clone());
    let mut facts = ProfileFacts { format, modules: Vec::new(), order, notes };
    for module in &loaded.modules {
        let mut entry = ModuleFacts {
            path: module.path.display().to_string(),
            build_id: module.build_id.iter().map(|b| format!("{b:02x}")).collect(),
            content: module.summary(),
            hottest: Vec::new(),
        };
        match code.of(module, &loaded.path) {
            Ok(known) => {
                let (profile, notes) = resolve(module, known)?;
                facts.notes.extend(notes);
                entry.hottest = hottest(known, &profile);
            }
            Err(error) => facts.notes.push(format!("functions are not named: {error}")),
        }
        facts.modules.push(entry);
    }
    Ok(facts)
}

fn hottest(known: &code::Known, profile: &restitch_profile::Profile) -> Vec<(String, f64)> {
    let program = &known.analyzed.program;
    let mut sums = vec![0u64; program.functions.len()];
    for (block, count) in program.blocks.iter().zip(&profile.blocks) {
        sums[block.function.index()] = sums[block.function.index()].saturating_add(*count);
    }
    let total = sums.iter().map(|n| *n as f64).sum::<f64>().max(1.0);
    let mut order: Vec<usize> = (0..sums.len()).filter(|f| sums[*f] > 0).collect();
    order.sort_by_key(|f| (std::cmp::Reverse(sums[*f]), *f));
    let name = |f: usize| {
        let at = program.functions[f].range.start;
        known.names.name_at(at).map_or_else(|| format!("{at}"), String::from)
    };
    order.iter().take(10).map(|f| (name(*f), sums[*f] as f64 / total)).collect()
}

/// Whether two paths have the same file name.
fn same_name(a: &Path, b: &Path) -> bool {
    a.file_name() == b.file_name()
}
