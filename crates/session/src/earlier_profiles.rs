//! Profiles of earlier rounds of a session that goes on.
//!
//! A process that does one thing by day and another by night is to be fast at both, and laying out again at
//! each change costs something. So what earlier rounds have counted is added to what this one has, each with
//! the same weight (*One Profile Fits All*, section 4).

use crate::left_out::LeftOut;
use restitch_apply_process::Module;
use restitch_pipeline::analysis::analyze_image_among;
use restitch_pipeline::parallel;
use restitch_pipeline::selection::weigh;
use restitch_processes::SessionError;
use restitch_processes::modules::{Chosen, leave_changing, may_be_changed};
use restitch_processes::process_set::ProcessSet;
use restitch_profile::{MergeWeights, ModuleProfile, Profile, ProfileFile, merge_profiles};
use std::collections::BTreeMap;

/// What a round has counted, in a form that outlives its analyses.
pub(crate) fn stored<'a>(chosen: &[Chosen], profiles: impl Iterator<Item = &'a mut Profile>) -> ProfileFile {
    let one = |(c, profile): (&Chosen, &'a mut Profile)| {
        let id = c.analyzed.image.identity().as_bytes();
        ModuleProfile::of(&c.analyzed.program, profile, id, &c.path.to_string_lossy())
    };
    ProfileFile { modules: chosen.iter().zip(profiles).map(one).collect() }
}

/// The sum of `own` and the `earlier` ones, each of the same weight. Profiles in which nothing ran do not
/// count.
pub(crate) fn with_earlier(own: &ProfileFile, earlier: &[&ProfileFile]) -> ProfileFile {
    let ran = |file: &&ProfileFile| file.modules.iter().any(|m| !m.blocks.is_empty());
    let all = std::iter::once(own).chain(earlier.iter().copied()).filter(ran);
    let all: Vec<ProfileFile> = all.cloned().collect();
    merge_profiles(&all, &MergeWeights::Equal).unwrap_or_else(|_| own.clone())
}

/// The counts of a module in `all`, if they are of this very file.
pub(crate) fn of_module(all: &ProfileFile, module: &Chosen) -> Option<Profile> {
    let (profile, lost) =
        all.module(module.analyzed.image.identity().as_bytes())?.resolve(&module.analyzed.program);
    (lost.count == 0).then_some(profile)
}

/// Whether `all` has counts of this build of the module.
pub(crate) fn is_known(all: &ProfileFile, module: &Module) -> bool {
    let (path, image) = (module.path.to_string_lossy(), &module.image);
    // Content is compared only where the name is the same: it may have to be read for that.
    all.modules
        .iter()
        .any(|m| (image.build_id().is_some() || m.path == path) && m.build_id == image.identity().as_bytes())
}

/// The modules of `all` that this round has not chosen and that the process still has, with their counts:
/// they stay in the layout.
///
/// # Errors
/// If the process cannot be read.
pub(crate) fn not_chosen(
    set: &ProcessSet,
    chosen: &[Chosen],
    left_out: &LeftOut,
    all: &ProfileFile,
) -> Result<Vec<(Chosen, Profile)>, SessionError> {
    let modules = &set.leader.target().modules;
    let is_known = |index: &usize| is_known(all, &modules[*index]);
    let is_new = |index: &usize| {
        let path = &modules[*index].path;
        chosen.iter().all(|c| c.path != *path) && !left_out.has(path)
    };
    let wanted = (0..modules.len()).filter(|i| is_new(i) && is_known(i) && may_be_changed(set, *i));
    let modules = analyzed(set, wanted.collect())?;
    let with_counts = |module: Chosen| Some((of_module(all, &module)?, module));
    Ok(modules.into_iter().filter_map(with_counts).map(|(profile, module)| (module, profile)).collect())
}

/// These modules of the process, analysed; those that cannot be are left out.
///
/// # Errors
/// If the process cannot be read.
pub(crate) fn analyzed(set: &ProcessSet, indices: Vec<usize>) -> Result<Vec<Chosen>, SessionError> {
    let modules = &set.leader.target().modules;
    let neighbours = set.neighbours();
    let one = |index: usize| (index, analyze_image_among(modules[index].image.clone(), &neighbours));
    let analyses = parallel::map(indices, one);
    let mut out = Vec::new();
    for (index, analyzed) in analyses {
        let Ok(mut analyzed) = analyzed else { continue };
        leave_changing(set, index, &mut analyzed)?;
        let weights = weigh(&analyzed.program, &BTreeMap::new());
        out.push(Chosen { index, path: modules[index].path.clone(), analyzed, weights, samples: 0 });
    }
    Ok(out)
}
