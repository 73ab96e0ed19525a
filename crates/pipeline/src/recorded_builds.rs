//! What a `perf.data` file has of one build of a program.
//!
//! **Problem.** A path may have held two builds, one after the other, while it was recorded; one build may
//! have two paths; and where nothing says of which build samples are, those of another one fit somewhere,
//! too: a profile that is wrong without a word.
//!
//! **Idea.** Build ids decide where they are known, whatever the paths. Without them, samples are taken by
//! the file's name if the processor was always where an instruction of this file starts, and the user is
//! told; of several files of that name, those of which that is certain. Build ids of perf's table are those
//! of the files when perf ended, so such samples have to fit, too.

use crate::analysis::Analyzed;
use restitch_address::{FileOffset, Svma};
use restitch_profile::{ImportedModule, ImportedSamples, Inode, MappedFile};
use restitch_program::Fit;
use std::collections::BTreeMap;
use std::path::Path;

/// What there is of one build.
#[derive(Debug, Default)]
pub struct OfBuild {
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
pub fn of_build(imported: &ImportedSamples, module: &Analyzed, program: &Path) -> Result<OfBuild, String> {
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

/// Files of which the build is known. What else has the name may be another build, and there is enough
/// without it.
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
    let fits: Vec<(OfBuild, Fit)> = by_file(nameless)
        .into_iter()
        .map(|one| {
            let fit = fit(&one.samples, module);
            (one, fit)
        })
        .collect();
    let fitting = fits.iter().filter(|(_, fit)| fit.may_be()).count();
    let certain = fits.iter().filter(|(_, fit)| fit.is_certain()).count();
    if fitting == 0 {
        return Err(nothing(imported, &fits, program));
    }
    if fitting > 1 && certain == 0 {
        return Err(format!(
            "it has samples of {fitting} different files named {name} and does not say which of them is this build; record again without --no-buildid"
        ));
    }
    let is_taken = |fit: &Fit| if fitting == 1 { fit.may_be() } else { fit.is_certain() };
    let taken: Vec<OfBuild> = fits.into_iter().filter(|(_, fit)| is_taken(fit)).map(|(one, _)| one).collect();
    let mut found = joined(taken.iter().map(|one| &one.samples));
    found.files = taken.into_iter().flat_map(|one| one.files).collect();
    let (used, all) = (samples_of(&found.samples), nameless.iter().map(|m| samples_of(m)).sum::<u64>());
    let known =
        if module.image.build_id().is_some() { "the profile does not say" } else { "the file does not say" };
    found.notes.push(format!(
        "{known} which build it is of (no build id): {used} of {all} samples were taken by the name {name}, because they fit its instructions"
    ));
    Ok(found)
}

fn nothing(imported: &ImportedSamples, fits: &[(OfBuild, Fit)], program: &Path) -> String {
    let name = program.display();
    if let Some((one, fit)) = fits.iter().max_by_key(|(one, _)| samples_of(&one.samples)) {
        return format!(
            "it does not say of which build of {name} it is, and {:.0} % of its samples of {} are inside of instructions of this file: they are another build's; \
             record this one, or name the file that was recorded",
            fit.inside_percent(),
            one.samples.path
        );
    }
    let mut have: Vec<&str> = imported.modules.iter().map(|m| m.path.as_str()).collect();
    have.dedup();
    format!(
        "it has no profile for this build of {name} (it has: {}); record one with `restitch record`",
        have.join(", ")
    )
}

/// What is one file in the file system, under whatever names.
fn by_file(parts: &[&ImportedModule]) -> Vec<OfBuild> {
    let mut files: BTreeMap<(Option<Inode>, &str), Vec<&ImportedModule>> = BTreeMap::new();
    for part in parts {
        let path = if part.file.inode.is_some() { "" } else { &part.path };
        files.entry((part.file.inode, path)).or_default().push(part);
    }
    files.into_values().map(|parts| joined(parts.into_iter())).collect()
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

/// The files of `imported` that are not in `taken`: one for each build, and one for each path of which
/// nothing says a build.
///
/// What several files of one path have, none of which says its build, is left out; `notes` say so.
pub fn others(
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
pub fn may_be_of(recorded: &ImportedModule, module: &Analyzed) -> bool {
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
pub fn same_name(path: &str, program: &Path) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    Path::new(path).file_name() == program.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyze_image;
    use restitch_image::Image;
    use restitch_testkit::{compile, program};
    use std::sync::Arc;

    fn module() -> Analyzed {
        let small = include_bytes!("../../check/tests/data/small.elf");
        analyze_image(Arc::new(Image::parse(small.to_vec()).unwrap())).unwrap()
    }

    /// Samples `shift` bytes behind where the blocks of the module start, `count` of each.
    fn recorded(module: &Analyzed, path: &str, inode: u64, (shift, count): (u64, u64)) -> ImportedModule {
        let blocks = module.program.blocks.iter().filter(|b| b.len > 4);
        let places = blocks.filter_map(|b| module.image.file_offset(b.start + shift));
        let inode = Inode { device: (8, 1), number: inode, generation: 0 };
        let path = path.to_owned();
        ImportedModule {
            path: path.clone(),
            ips: places.map(|at| (at, count)).collect(),
            file: MappedFile { path, build_id: None, inode: Some(inode) },
            ..ImportedModule::default()
        }
    }

    fn found(modules: Vec<ImportedModule>) -> Result<(u64, usize, String), String> {
        found_of(&module(), modules)
    }

    /// Samples for each place, files, notes.
    fn found_of(module: &Analyzed, modules: Vec<ImportedModule>) -> Result<(u64, usize, String), String> {
        let imported = ImportedSamples { modules, ..ImportedSamples::default() };
        let found = of_build(&imported, module, Path::new("/bin/program"))?;
        let places = found.samples.ips.len() as u64;
        assert!(places > 0);
        Ok((samples_of(&found.samples) / places, found.files.len(), found.notes.join("\n")))
    }

    #[test]
    fn samples_without_a_build_id_have_to_fit() {
        let m = module();
        let of = |path: &str, inode, counts| recorded(&m, path, inode, counts);
        let (count, files, notes) = found(vec![of("/other/program", 1, (0, 5))]).unwrap();
        assert_eq!((count, files), (5, 1));
        assert!(notes.contains("no build id") && notes.contains("by the name"), "{notes}");
        // One file under two names; and another one, which is left alone.
        let two =
            vec![of("/bin/other", 2, (0, 9)), of("/bin/program", 1, (0, 5)), of("/tmp/alias", 1, (0, 2))];
        assert_eq!(found(two).unwrap().0, 7);
        // The one of two builds that fits.
        let two = vec![of("/bin/program", 1, (1, 50)), of("/bin/program (deleted)", 2, (0, 3))];
        assert_eq!(found(two).unwrap().0, 3);
        let why = found(vec![of("/bin/program", 1, (1, 50))]).unwrap_err();
        assert!(why.contains("another build's") && why.contains("% of its samples"), "{why}");
        let why = found(vec![of("/bin/other", 1, (0, 5))]).unwrap_err();
        assert!(why.contains("it has: /bin/other"), "{why}");
    }

    #[test]
    fn of_files_that_fit_by_chance_none_is_taken() {
        let m = module();
        let few = |inode| {
            let mut few = recorded(&m, "/bin/program", inode, (0, 5));
            few.ips = few.ips.into_iter().take(3).collect();
            few
        };
        assert_eq!(found(vec![few(1)]).unwrap().0, 5, "there is but one");
        let why = found(vec![few(1), few(2)]).unwrap_err();
        assert!(why.contains("2 different files named /bin/program"), "{why}");
    }

    #[test]
    fn build_ids_decide_where_they_are_known() {
        let compiled = match compile(&program("switch.c"), &["-O2", "-Wl,--build-id"]) {
            Ok(path) => std::fs::read(path).unwrap(),
            Err(error) => return restitch_testkit::skipped(&error.to_string()),
        };
        let m = analyze_image(Arc::new(Image::parse(compiled).unwrap())).unwrap();
        let found = |modules| found_of(&m, modules);
        let id = m.image.build_id().unwrap().as_bytes().to_vec();
        let with = |path: &str, build_id: &[u8], by_mapping: bool, counts| {
            let mut with = recorded(&m, path, 1, counts);
            with.build_id = Some(build_id.to_vec());
            with.file.build_id = with.build_id.clone().filter(|_| by_mapping);
            with.file.inode = None;
            with
        };
        let all = vec![
            with("/bin/program", &id, true, (0, 5)),
            with("/bin/alias", &id, true, (0, 2)),
            with("/bin/program", &[9; 20], true, (0, 100)),
            recorded(&m, "/bin/program", 3, (0, 1000)),
        ];
        let (count, files, notes) = found(all).unwrap();
        assert_eq!((count, files), (7, 2));
        assert!(notes.contains("left out"), "{notes}");
        let (count, files, notes) = found(vec![with("/bin/program", &id, false, (0, 5))]).unwrap();
        assert_eq!((count, files, notes.as_str()), (5, 1, ""));
        // perf found this build when it ended, the samples are another's.
        let why = found(vec![with("/bin/program", &id, false, (1, 5))]).unwrap_err();
        assert!(why.contains("replaced while it was recorded") && why.contains("--buildid-mmap"), "{why}");
        assert!(found(vec![with("/bin/program", &[9; 20], true, (0, 5))]).is_err());
    }

    #[test]
    fn without_named_files_there_is_one_part_for_each_build() {
        let m = module();
        let mut named = [recorded(&m, "/a", 1, (0, 1)), recorded(&m, "/b", 2, (0, 2))];
        named.iter_mut().for_each(|n| n.build_id = Some(vec![7; 20]));
        let twice = [recorded(&m, "/c", 3, (0, 1)), recorded(&m, "/c", 4, (0, 1))];
        let alone = recorded(&m, "/d", 5, (0, 1));
        let modules = named.into_iter().chain(twice).chain([alone]).collect();
        let imported = ImportedSamples { modules, ..ImportedSamples::default() };
        let mut notes = Vec::new();
        let others = others(&imported, &[], &mut notes);
        let paths: Vec<&str> = others.iter().map(|m| m.path.as_str()).collect();
        assert_eq!(paths, ["/a", "/d"]);
        assert!(others[0].ips.values().all(|count| *count == 3));
        assert!(notes.len() == 1 && notes[0].contains("2 different files that were /c"), "{notes:?}");
    }
}
