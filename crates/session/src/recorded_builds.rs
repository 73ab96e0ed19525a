//! What a `perf.data` file has of one build of a program.
//!
//! **Problem.** A path may have held two builds, one after the other, while it was recorded; one build may have two paths; and where nothing says of which build
//! samples are, those of another one fit somewhere, too: a profile that is wrong without a word.
//!
//! **Idea.** Build ids decide where they are known, whatever the paths. Without them, samples are taken by the file's name if the processor was always where an
//! instruction of this file starts, and the user is told; of several files of that name, those of which that is certain. Build ids of perf's table are those
//! of the files when perf ended, so such samples have to fit, too.

use crate::analysis::Analyzed;
use restitch_address::{FileOffset, Svma};
use restitch_profile::{ImportedModule, ImportedSamples, MappedFile};
use restitch_program::Fit;
use std::collections::BTreeMap;
use std::path::Path;

/// What there is of one build.
#[derive(Debug, Default)]
pub(crate) struct OfBuild {
    /// All of it.
    pub samples: ImportedModule,
    /// The files that it was recorded as.
    pub files: Vec<MappedFile>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// What `imported` has of the build `module`, which the user knows as `program`.
///
/// # Errors
/// Why there is nothing that can be trusted, in words that follow the name of the file, with the next step.
pub(crate) fn of_build(
    imported: &ImportedSamples,
    module: &Analyzed,
    program: &Path,
) -> Result<OfBuild, String> {
    let id = module.image.build_id().map(|id| id.as_bytes());
    let is_named = |m: &&ImportedModule| id.is_some() && m.build_id.as_deref() == id;
    let named: Vec<&ImportedModule> = imported.modules.iter().filter(is_named).collect();
    // By name, where one of the two has no build id.
    let may_be = |m: &&ImportedModule| (id.is_none() || m.build_id.is_none()) && same_name(&m.path, program);
    let nameless = with_aliases(imported, imported.modules.iter().filter(may_be).collect());
    match named.is_empty() {
        false => by_build_id(&named, &nameless, module, program),
        true => by_name(imported, &nameless, module, program),
    }
}

/// Files of which the build is known. What else has the name may be another build, and there is enough without it.
fn by_build_id(
    named: &[&ImportedModule],
    nameless: &[&ImportedModule],
    module: &Analyzed,
    program: &Path,
) -> Result<OfBuild, String> {
    let fits = |m: &&&ImportedModule| m.is_named_by_mapping() || fit(m, module).may_be();
    let (taken, replaced): (Vec<&&ImportedModule>, Vec<_>) = named.iter().partition(fits);
    let name = program.display();
    if let (true, Some(first)) = (taken.is_empty(), replaced.first()) {
        return Err(format!(
            "its table of build ids says that its samples of {} are of this build of {name}, but {:.0} % of them are inside of instructions of it: the file \
             was replaced while it was recorded; record again, with `perf record --buildid-mmap`",
            first.path,
            fit(first, module).inside_percent()
        ));
    }
    let mut found = joined(taken.into_iter().copied());
    let left = replaced.into_iter().chain(nameless).map(|m| samples_of(m)).sum::<u64>();
    if left > 0 {
        found.notes.push(format!(
            "{left} samples of files of this name are of another build of {name}, or do not say of which; they are left out"
        ));
    }
    Ok(found)
}

/// Files of which nothing but the name says what they are.
fn by_name(
    imported: &ImportedSamples,
    nameless: &[&ImportedModule],
    module: &Analyzed,
    program: &Path,
) -> Result<OfBuild, String> {
    let name = program.display();
    let fits: Vec<(&ImportedModule, Fit)> = nameless.iter().map(|m| (*m, fit(m, module))).collect();
    let fitting: Vec<&(&ImportedModule, Fit)> = fits.iter().filter(|(_, fit)| fit.may_be()).collect();
    let certain: Vec<&(&ImportedModule, Fit)> =
        fitting.iter().filter(|(_, fit)| fit.is_certain()).copied().collect();
    let taken = match (fitting.len(), certain.len()) {
        (0, _) => return Err(nothing(imported, &fits, program)),
        (1, _) => fitting,
        (n, 0) => {
            return Err(format!(
                "it has samples of {n} different files named {name} and does not say which of them is this build; record again without --no-buildid"
            ));
        }
        _ => certain,
    };
    let mut found = joined(taken.iter().map(|(m, _)| *m));
    let (used, all) = (samples_of(&found.samples), nameless.iter().map(|m| samples_of(m)).sum::<u64>());
    let known =
        if module.image.build_id().is_some() { "the profile does not say" } else { "the file does not say" };
    found.notes.push(format!(
        "{known} which build it is of (no build id): {used} of {all} samples were taken by the name {name}, because they fit its instructions"
    ));
    Ok(found)
}

fn nothing(imported: &ImportedSamples, fits: &[(&ImportedModule, Fit)], program: &Path) -> String {
    let name = program.display();
    if let Some((m, fit)) = fits.iter().max_by_key(|(m, _)| samples_of(m)) {
        return format!(
            "it does not say of which build of {name} it is, and {:.0} % of its samples of {} are inside of instructions of this file: they are another build's; \
             record this one, or name the file that was recorded",
            fit.inside_percent(),
            m.path
        );
    }
    let mut have: Vec<&str> = imported.modules.iter().map(|m| m.path.as_str()).collect();
    have.dedup();
    format!(
        "it has no profile for this build of {name} (it has: {}); record one with `restitch record`",
        have.join(", ")
    )
}

/// With files of other names that are the same in the file system.
fn with_aliases<'a>(
    imported: &'a ImportedSamples,
    mut found: Vec<&'a ImportedModule>,
) -> Vec<&'a ImportedModule> {
    let is_there = |m: &ImportedModule, found: &[&ImportedModule]| found.iter().any(|f| f.file == m.file);
    let inodes: Vec<_> = found.iter().filter_map(|m| m.file.inode).collect();
    for m in &imported.modules {
        if m.build_id.is_none() && m.file.inode.is_some_and(|i| inodes.contains(&i)) && !is_there(m, &found) {
            found.push(m);
        }
    }
    found
}

/// The files of which nothing but the name says that they may be `program`.
pub(crate) fn without_build(imported: &ImportedSamples, program: &Path) -> Vec<MappedFile> {
    let is_nameless = |m: &&ImportedModule| m.build_id.is_none() && same_name(&m.path, program);
    imported.modules.iter().filter(is_nameless).map(|m| m.file.clone()).collect()
}

/// The files of `imported` that are not in `taken`: one for each build, and one for each path of which nothing says a build.
///
/// What several files of one path have, none of which says its build, is left out; `notes` say so.
pub(crate) fn others(
    imported: &ImportedSamples,
    taken: &[MappedFile],
    notes: &mut Vec<String>,
) -> Vec<ImportedModule> {
    let mut builds: BTreeMap<(Option<&[u8]>, &str), Vec<&ImportedModule>> = BTreeMap::new();
    for m in imported.modules.iter().filter(|m| !taken.contains(&m.file)) {
        let path = if m.build_id.is_some() { "" } else { &m.path };
        builds.entry((m.build_id.as_deref(), path)).or_default().push(m);
    }
    let mut out = Vec::new();
    for ((build, path), parts) in builds {
        if build.is_some() || parts.len() == 1 {
            out.push(joined(parts.into_iter()).samples);
            continue;
        }
        let samples = parts.iter().map(|m| samples_of(m)).sum::<u64>();
        notes.push(format!(
            "left out: {samples} samples of {} different files that were {path}, none of which says its build; name the file that is meant with --program",
            parts.len()
        ));
    }
    out.sort_by(|a, b| a.file.cmp(&b.file));
    out
}

/// Whether samples of an unknown build may be of this one.
pub(crate) fn may_be_of(recorded: &ImportedModule, module: &Analyzed) -> bool {
    recorded.build_id.is_some() || fit(recorded, module).may_be()
}

fn joined<'a>(parts: impl Iterator<Item = &'a ImportedModule>) -> OfBuild {
    let mut out = OfBuild::default();
    for part in parts {
        out.files.push(part.file.clone());
        match out.files.len() {
            1 => out.samples = part.clone(),
            _ => out.samples.add(part),
        }
    }
    out
}

/// How all places of a file fit the code: samples, and both ends of branches.
fn fit(recorded: &ImportedModule, module: &Analyzed) -> Fit {
    let mut places: BTreeMap<Svma, u64> = BTreeMap::new();
    let mut add = |at: FileOffset, count: u64| {
        if let Some(at) = module.image.address_of(at) {
            let sum = places.entry(at).or_default();
            *sum = sum.saturating_add(count);
        }
    };
    recorded.ips.iter().for_each(|(at, count)| add(*at, *count));
    for (&(from, to), &count) in &recorded.branches {
        add(from, count);
        add(to, count);
    }
    module.program.fit(&module.image, &places)
}

fn samples_of(module: &ImportedModule) -> u64 {
    module.ips.values().chain(module.branches.values()).fold(0, |sum, n| sum.saturating_add(*n))
}

/// Whether a recorded path has the file name of `program`; the kernel marks paths of files that are gone.
pub(crate) fn same_name(path: &str, program: &Path) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    Path::new(path).file_name() == program.file_name()
}
