//! From a file in any format to what it says.

use super::code::{Code, Known, same_name};
use super::loaded::{Content, Loaded, LoadedModule};
use super::options::{ProfileInput, Sampled};
use crate::analysis::Analyzed;
use crate::disk::read_profile;
use crate::error::PipelineError;
use crate::recorded_builds::{of_build, others, without_build};
use crate::selection::weigh;
use restitch_address::Svma;
use restitch_apply::Why;
use restitch_profile::{
    ImportedModule, Known as KnownCounts, Profile, ProfileFile, derive, import_perf_data, repair,
    sample_coverage,
};
use restitch_profile_formats::{
    Format, FormatError, Records, autofdo, bolt_yaml, fdata, order, preaggregated, propeller,
};
use restitch_program::Program;
use restitch_report::counted;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reads a profile file.
pub fn load(input: &ProfileInput, code: &mut Code) -> Result<Loaded, PipelineError> {
    let bytes = read_profile(&input.path)?;
    load_bytes(&bytes, input, code)
}

/// How a format is read.
enum Reader {
    /// Counts of several modules.
    Store,
    /// Samples of several modules.
    PerfData,
    /// An order of symbols, as text.
    Order(fn(&str) -> Result<Vec<String>, FormatError>),
    /// Records of one program, as text; notes for the user are added.
    Records(fn(&str, &Known, &mut Vec<String>) -> Result<Records, FormatError>),
}

impl Reader {
    const fn of(format: Format) -> Self {
        match format {
            Format::Store => Self::Store,
            Format::PerfData => Self::PerfData,
            Format::SymbolOrder => Self::Order(order::read),
            Format::PropellerClusters => Self::Order(propeller::read_functions),
            Format::PreAggregated => Self::Records(|text, _, _| preaggregated::read(text)),
            Format::BoltYaml => Self::Records(read_bolt_yaml),
            Format::AutoFdo => Self::Records(read_autofdo),
            Format::Fdata | Format::FdataNoLbr => Self::Records(read_fdata),
        }
    }
}

/// Takes what was read from a profile file, which may have been a pipe.
///
/// # Errors
/// If it is no profile, or does not fit the code.
pub fn load_bytes(bytes: &[u8], input: &ProfileInput, code: &mut Code) -> Result<Loaded, PipelineError> {
    let path = &input.path;
    let bad = |why: Why| PipelineError::BadFile { path: path.clone(), why };
    let format = match input.format {
        Some(format) => format,
        None => Format::detect(bytes).map_err(|e| bad(e.into()))?,
    };
    let text = || {
        let why = || format!("reading {}: it is not text in UTF-8", format.describe());
        std::str::from_utf8(bytes).map_err(|_| bad(why().into()))
    };
    let mut loaded = Loaded::empty(format, path);
    match Reader::of(format) {
        Reader::Store => {
            let file = ProfileFile::read(bytes).map_err(|e| bad(e.into()))?;
            loaded.modules = Loaded::of_counts(file, path).modules;
        }
        Reader::PerfData => load_perf_data(bytes, input.sampled, code, &mut loaded).map_err(bad)?,
        Reader::Order(read) => {
            loaded.order = read(text()?).map_err(|e| bad(e.into()))?;
            refuse_strange_names(&loaded, code)?;
        }
        Reader::Records(read) => {
            let text = text()?;
            let known = code.only(path)?;
            let records = read(text, known, &mut loaded.notes).map_err(|e| bad(e.into()))?;
            let module = LoadedModule {
                path: known.path.clone(),
                build_id: known.build_id(),
                content: Content::Records(records),
                sampled: input.sampled,
            };
            if module.weight() == 0 {
                return Err(counts_nothing(path, &module.path, &loaded.notes));
            }
            loaded.modules.push(module);
        }
    }
    Ok(loaded)
}

/// That the profile at `path` has no counts of `program`; `notes` are what was said of it until then.
pub fn counts_nothing(path: &Path, program: &Path, notes: &[String]) -> PipelineError {
    let why = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let why = format!(
        "nothing that it counts is in {}{why}; give a profile of this program, as `restitch record` writes it",
        program.display()
    );
    PipelineError::BadFile { path: path.into(), why: why.into() }
}

/// Refuses an order of symbols none of which is a function of any file that the user named: any text with one
/// word a line looks like such an order.
fn refuse_strange_names(loaded: &Loaded, code: &mut Code) -> Result<(), PipelineError> {
    let programs = code.named();
    for program in &programs {
        let names = &code.at(program)?.names;
        let is_known = |symbol: &String| {
            let section = symbol.strip_prefix(".text.").and_then(|name| names.address_of(name));
            section.or_else(|| names.address_of(symbol)).is_some()
        };
        if loaded.order.is_empty() || loaded.order.iter().any(is_known) {
            return Ok(());
        }
    }
    let (Some(program), number) = (programs.first(), loaded.order.len()) else { return Ok(()) };
    let why = format!(
        "none of the {} in it is a function of {}; is it another program's, or no profile at all?",
        counted(number as u64, "name"),
        program.display()
    );
    Err(PipelineError::BadFile { path: loaded.path.clone(), why: why.into() })
}

fn read_bolt_yaml(text: &str, known: &Known, notes: &mut Vec<String>) -> Result<Records, FormatError> {
    let read = bolt_yaml::read(text, &known.analyzed.program, &known.names, &known.blocks)?;
    notes.extend(read.notes);
    Ok(read.records)
}

fn read_autofdo(text: &str, known: &Known, notes: &mut Vec<String>) -> Result<Records, FormatError> {
    let read = autofdo::read(text, &known.names)?;
    notes.extend(read.notes);
    Ok(read.records)
}

fn read_fdata(text: &str, known: &Known, notes: &mut Vec<String>) -> Result<Records, FormatError> {
    let read = fdata::read(text, &known.names, &known.analyzed.program, &known.blocks)?;
    if !read.unknown.is_empty() {
        let some: Vec<&str> = read.unknown.keys().take(3).map(String::as_str).collect();
        notes.push(format!(
            "{} names of the profile are not in {} ({}, ...)",
            read.unknown.len(),
            known.path.display(),
            some.join(", ")
        ));
    }
    Ok(read.records)
}

fn load_perf_data(bytes: &[u8], sampled: Sampled, code: &mut Code, loaded: &mut Loaded) -> Result<(), Why> {
    let imported = import_perf_data(bytes)?;
    if imported.lost > 0 {
        loaded.notes.push(format!("perf lost {} records", imported.lost));
    }
    if imported.malformed > 0 {
        loaded.notes.push(format!("{} records could not be decoded", imported.malformed));
    }
    let module = |samples: ImportedModule, path: PathBuf| LoadedModule {
        path,
        build_id: samples.build_id.clone().unwrap_or_default(),
        content: Content::Offsets(samples),
        sampled,
    };
    let (mut judged, mut refused) = (Vec::new(), None);
    for path in code.named() {
        // Why a file cannot be read is said where its code is needed.
        let Ok(known) = code.at(&path) else { continue };
        judged.extend(without_build(&imported, &path));
        match of_build(&imported, &known.analyzed, &path) {
            Ok(found) => {
                let recorded = PathBuf::from(&found.samples.path);
                let is_named = same_name(&recorded, &path) || found.samples.build_id.is_some();
                loaded.modules.push(module(found.samples, if is_named { recorded } else { path }));
                judged.extend(found.files);
                loaded.notes.extend(found.notes);
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    if let (true, Some(why)) = (loaded.modules.is_empty(), refused) {
        return Err(why.into());
    }
    let mut notes = Vec::new();
    for samples in others(&imported, &judged, &mut notes) {
        let path = PathBuf::from(&samples.path);
        loaded.modules.push(module(samples, path));
    }
    loaded.notes.extend(notes);
    Ok(())
}

/// The profile of one module, and what the user should know of it.
pub fn resolve(module: &LoadedModule, known: &Known) -> Result<(Profile, Vec<String>), PipelineError> {
    resolve_in(module, &known.analyzed, &known.path)
}

/// The same for code that is known as `path`.
pub fn resolve_in(
    module: &LoadedModule,
    code: &Analyzed,
    path: &Path,
) -> Result<(Profile, Vec<String>), PipelineError> {
    let program = &code.program;
    let name = path.display();
    if let Some(stored) = module.stored() {
        let (profile, lost) = stored.resolve(program);
        let share = 100.0 * lost.count as f64 / lost.total.max(1) as f64;
        let note = format!("{share:.1} % of the profile's counts have no place in {name}");
        return Ok((profile, if lost.count > 0 { vec![note] } else { Vec::new() }));
    }
    let records = module.records(&code.image).unwrap_or_default();
    if records.has_branches() {
        let (profile, matched) = records.to_profile(program);
        let all = matched.used_ranges + matched.broken_ranges;
        let mut notes = Vec::new();
        if matched.broken_ranges * 20 > all {
            let build =
                build_in_words(&module.build_id, code.image.build_id().map_or(&[], |id| id.as_bytes()));
            notes.push(format!(
                "{} of {all} runs between branches do not fit the code of {name}: {build}",
                matched.broken_ranges
            ));
        }
        return Ok((profile, notes));
    }
    // Other formats may hold counts that were scaled or added up: nothing tells how many were single ones.
    let counted_singly = matches!(module.content, Content::Offsets(_));
    let known = counted_singly.then(|| sample_coverage(program, &records.ips)).flatten();
    let note = only_samples(known);
    Ok((of_samples(program, &records.ips, module.sampled), vec![note]))
}

/// What the user should know of a profile without branches, whose samples know so much of what is executed.
pub fn only_samples(known: Option<f64>) -> String {
    let share = known.map_or(String::new(), |known| {
        format!(" (they fall into code that takes about {:.0} % of the time)", 100.0 * known)
    });
    format!(
        "the profile has no branches, only instruction samples{share}: what was not sampled is not cold, so the layout may not pay; \
         `restitch record` gives an exact profile"
    )
}

/// A profile of instruction samples alone.
pub fn of_samples(program: &Program, samples: &BTreeMap<Svma, u64>, how: Sampled) -> Profile {
    if how == Sampled::Derived {
        let blocks = weigh(program, samples).blocks.iter().map(|n| Some(*n)).collect();
        return derive(program, &KnownCounts { blocks, ..KnownCounts::default() }).profile;
    }
    let mut counts = vec![0; program.blocks.len()];
    for (&at, &n) in samples {
        if let Some(block) = program.block_at(at) {
            counts[block.index()] += n;
        }
    }
    repair(program, &counts).profile
}

/// What is known of whether a profile is of the build that a file is, and what that means for records that do
/// not fit. (Where both build ids are known and differ, the file was not taken.)
fn build_in_words(recorded: &[u8], present: &[u8]) -> &'static str {
    match (recorded.is_empty(), present.is_empty()) {
        (false, false) => {
            "it is the build that was recorded (same build id), so branches are missing between those that were recorded, or the code \
             was changed in memory"
        }
        (true, _) => {
            "the profile does not say which build was recorded; if it was another one, record again, or name that file with \
             --program"
        }
        (false, true) => {
            "the file has no build id, so whether it is the build that was recorded cannot be told; it was taken by its name"
        }
    }
}

/// The module that `path` is, of several; else the one with most counts.
pub fn choose<'a>(loaded: &'a Loaded, code: &mut Code) -> Option<&'a LoadedModule> {
    let fitting: Vec<&LoadedModule> = loaded.modules.iter().filter(|m| !code.excludes(m)).collect();
    let most = fitting.into_iter().max_by_key(|m| m.weight());
    most.or_else(|| loaded.modules.iter().find(|m| same_name(&m.path, Path::new(""))))
}

#[cfg(test)]
mod tests {
    use super::{build_in_words, only_samples};

    #[test]
    fn what_samples_know_is_said_where_it_is_known() {
        assert!(
            only_samples(Some(0.358)).contains(
                "instruction samples (they fall into code that takes about 36 % of the time): what"
            )
        );
        assert!(only_samples(None).contains("instruction samples: what"));
    }

    #[test]
    fn only_what_is_known_of_a_build_is_said() {
        let says = |recorded: &[u8], present: &[u8], words: &str| {
            let text = build_in_words(recorded, present);
            assert!(text.contains(words), "{text}");
        };
        says(&[1, 2], &[1, 2], "same build id");
        says(&[], &[1, 2], "does not say which build");
        says(&[], &[], "does not say which build");
        says(&[1, 2], &[], "cannot be told");
    }
}
