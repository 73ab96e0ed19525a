//! Profiles from files for `optimize`: our own store, `perf.data` with and without branch stacks, and the
//! formats of other tools.

use crate::analysis::Analyzed;
use crate::disk;
use crate::error::PipelineError;
use crate::profiles::{
    Code, ProfileInput, Sampled, counts_nothing, load_bytes, of_samples, only_samples, resolve,
};
use crate::recorded_builds::of_build;
use restitch_apply::{Why, explained};
use restitch_profile::{ModuleProfile, Profile, ProfileFile, import_perf_data, sample_coverage};
use restitch_profile_formats::{Format, Holds};
use std::path::Path;

/// The first bytes of a `perf.data` file.
const PERF_MAGIC: &[u8] = b"PERFILE2";

/// The profile in this file, for this program.
#[derive(Debug, Clone, Copy)]
pub struct ProfileRequest<'a> {
    /// The file of the program, or of the library.
    pub program: &'a Path,
    /// The file of the profile.
    pub profile: &'a Path,
}

/// The profile for one module, and what the user should know about it.
///
/// # Errors
/// If the file cannot be read, is damaged, or has nothing for this module.
pub fn read_profile(
    request: ProfileRequest<'_>,
    module: &Analyzed,
) -> Result<(Profile, Vec<String>), PipelineError> {
    let bytes = disk::read_profile(request.profile)?;
    if bytes.starts_with(PERF_MAGIC) {
        return from_perf(&bytes, request, module);
    }
    match Format::detect(&bytes) {
        Ok(format) if format != Format::Store => return from_text(&bytes, format, request, module),
        _ => {}
    }
    let stored = ProfileFile::read(&bytes).map_err(|e| bad(request, e))?;
    let (profile, unmatched) = stored_part(&stored, module, request)?.resolve(&module.program);
    let mut warnings = Vec::new();
    if unmatched.count > 0 {
        let share = 100.0 * unmatched.count as f64 / unmatched.total.max(1) as f64;
        warnings.push(format!("{share:.1} % of the profile's counts have no place in this file"));
    }
    Ok((profile, warnings))
}

/// The formats of other tools, which are of the one program that is to be optimized.
fn from_text(
    bytes: &[u8],
    format: Format,
    request: ProfileRequest<'_>,
    module: &Analyzed,
) -> Result<(Profile, Vec<String>), PipelineError> {
    let mut code = Code::with(request.program, module.clone());
    let input =
        ProfileInput { path: request.profile.to_owned(), format: Some(format), sampled: Sampled::default() };
    let loaded = load_bytes(bytes, &input, &mut code)?;
    if let Some(why) = without_counts(format) {
        return Err(bad(request, why));
    }
    let part = loaded.modules.first().ok_or_else(|| no_part(request, &[]))?;
    let (profile, mut warnings) = resolve(part, code.of(part, request.profile)?)?;
    warnings.extend(loaded.notes);
    if profile.blocks.iter().all(|count| *count == 0) {
        return Err(counts_nothing(request.profile, request.program, &warnings));
    }
    Ok((profile, warnings))
}

/// Why a profile of this format says nothing of how often code runs, if so.
pub fn without_counts(format: Format) -> Option<String> {
    (format.holds() == Holds::Order).then(|| {
        format!(
            "{} says in which order code stands, not how often it runs; give a profile with counts",
            described(format)
        )
    })
}

/// The format in words. Any text with one word a line may be a symbol order.
fn described(format: Format) -> String {
    match format {
        Format::SymbolOrder => {
            format!("it is text with one word a line, which is a {} and", format.describe())
        }
        _ => format.describe().into(),
    }
}

fn bad(request: ProfileRequest<'_>, why: impl Into<Why>) -> PipelineError {
    PipelineError::BadFile { path: request.profile.to_owned(), why: why.into() }
}

fn no_part(request: ProfileRequest<'_>, have: &[&str]) -> PipelineError {
    let why = format!(
        "it has no profile for this build of {} (it has: {}); record one with `restitch record`",
        request.program.display(),
        have.join(", ")
    );
    bad(request, why)
}

/// The stored profile's part for this module: by build id, else (where neither has one) by file name.
fn stored_part<'a>(
    stored: &'a ProfileFile,
    module: &Analyzed,
    request: ProfileRequest<'_>,
) -> Result<&'a ModuleProfile, PipelineError> {
    let id = build_id(module);
    let found = if id.is_empty() {
        stored.modules.iter().find(|m| m.build_id.is_empty() && same_name(&m.path, request.program))
    } else {
        stored.module(&id)
    };
    let have: Vec<&str> = stored.modules.iter().map(|m| m.path.as_str()).collect();
    found.ok_or_else(|| no_part(request, &have))
}

/// Reads a profile in restitch's own format.
///
/// # Errors
/// If the file cannot be read or is of another kind.
pub fn read_store(path: &Path) -> Result<ProfileFile, PipelineError> {
    ProfileFile::read(&disk::read_profile(path)?).map_err(|e| {
        let words = format!(
            "{e}; this takes profiles of `restitch record`, `restitch profile convert` makes one of another format"
        );
        PipelineError::BadFile { path: path.into(), why: explained(words, e) }
    })
}

/// Adds to `profile` what `known` says of the indirect calls of this build of the module, if it says
/// anything.
pub fn adopt_targets(known: &ProfileFile, module: &Analyzed, profile: &mut Profile) {
    let id = build_id(module);
    if let Some(part) = known.module(&id).filter(|_| !id.is_empty()) {
        profile.adopt_targets(&part.resolve(&module.program).0);
    }
}

fn build_id(module: &Analyzed) -> Vec<u8> {
    module.image.build_id().map(|b| b.as_bytes().to_vec()).unwrap_or_default()
}

fn same_name(path: &str, program: &Path) -> bool {
    Path::new(path).file_name() == program.file_name()
}

fn from_perf(
    bytes: &[u8],
    request: ProfileRequest<'_>,
    module: &Analyzed,
) -> Result<(Profile, Vec<String>), PipelineError> {
    let imported = import_perf_data(bytes).map_err(|e| bad(request, e))?;
    let found = of_build(&imported, module, request.program).map_err(|why| bad(request, why))?;
    let samples = found.samples.to_svma(|offset| module.image.address_of(offset));
    let mut warnings = found.notes;
    if imported.lost > 0 {
        warnings.push(format!("perf lost {} records", imported.lost));
    }
    if !samples.branches.branches.is_empty() {
        let (profile, report) = samples.branches.to_profile(&module.program);
        let (used, other) = (report.used_branches, report.other_branches);
        warnings.push(format!("the profile is made of branch records: {used} used, {other} of other kinds"));
        return Ok((profile, warnings));
    }
    warnings.push(only_samples(sample_coverage(&module.program, &samples.ips)));
    Ok((of_samples(&module.program, &samples.ips, Sampled::default()), warnings))
}
