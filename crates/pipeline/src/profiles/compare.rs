//! `profile compare`: how alike profiles are, each with each.

use super::code::Code;
use super::load::{load, resolve};
use super::loaded::Loaded;
use super::options::ProfileInput;
use crate::error::PipelineError;
use restitch_profile::{Features, Profile, similarity};
use restitch_program::{BlockId, Program};
use restitch_report::{ComparedProfile, Comparison, TakenDifference};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Compares each profile with each. Modules are compared where their code is known; a module that a profile
/// does not have counts as not run in it. `only_movable`: leave out code that cannot be moved, which counting
/// versions do not count, and functions whose entry cannot lead to a copy, of which they count what comes
/// from copies (glibc's `memmove` for vectors: `mempcpy` jumps to the third byte).
///
/// # Errors
/// If a profile cannot be read, or no module's code is there.
pub fn compare_profiles(
    inputs: &[ProfileInput],
    programs: &[PathBuf],
    only_movable: bool,
) -> Result<Comparison, PipelineError> {
    let mut code = Code::new(programs);
    let mut notes = Vec::new();
    let mut all: Vec<BTreeMap<PathBuf, Profile>> = Vec::new();
    for input in inputs {
        let loaded = load(input, &mut code)?;
        all.push(profiles(&loaded, &mut code, &mut notes)?);
    }
    let mut paths: Vec<PathBuf> = all.iter().flat_map(|p| p.keys().cloned()).collect();
    paths.sort();
    paths.dedup();
    let mut features = vec![Features::default(); inputs.len()];
    for path in &paths {
        let program = &code.at(path)?.analyzed.program;
        let nothing = Profile::empty(program);
        for (features, profiles) in features.iter_mut().zip(&mut all) {
            if let Some(profile) = profiles.get_mut(path).filter(|_| only_movable) {
                keep_movable(program, profile);
            }
            features.add(program, profiles.get(path).unwrap_or(&nothing));
        }
    }
    notes.sort();
    notes.dedup();
    let mut comparison = Comparison::new(compared(inputs, &features), notes);
    comparison.modules = paths.iter().map(|p| p.display().to_string()).collect();
    for a in &features {
        let row: Vec<_> = features.iter().map(|b| similarity(a, b)).collect();
        comparison.function_overlap.push(row.iter().map(|s| s.function_overlap).collect());
        comparison.block_overlap.push(row.iter().map(|s| s.block_overlap).collect());
        comparison.edge_overlap.push(row.iter().map(|s| s.edge_overlap).collect());
        comparison.function_cosine.push(row.iter().map(|s| s.function_cosine).collect());
        comparison.branch_cosine.push(row.iter().map(|s| s.branch_cosine).collect());
        let taken = row.iter().map(|s| TakenDifference {
            branches: s.taken.branches as u64,
            only_one: s.taken.only_one as u64,
            l0: s.taken.l0,
            l1: s.taken.l1,
            l2: s.taken.l2,
        });
        comparison.taken.push(taken.collect());
    }
    Ok(comparison)
}

/// Clears what cannot be moved, or not all of it.
fn keep_movable(program: &Program, profile: &mut Profile) {
    let is_kept = |block: BlockId| {
        program.is_movable(block) && program.function(program.block(block).function).redirectable
    };
    for block in program.block_ids().filter(|b| !is_kept(*b)) {
        profile.blocks[block.index()] = 0;
    }
    for (edge, count) in program.edges.iter().zip(&mut profile.edges) {
        *count = if is_kept(edge.from) { *count } else { 0 };
    }
    for (call, count) in program.calls.iter().zip(&mut profile.calls) {
        *count = if is_kept(call.block) { *count } else { 0 };
    }
}

/// The counts of each module whose code is known, by the file that it was read from.
fn profiles(
    loaded: &Loaded,
    code: &mut Code,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<PathBuf, Profile>, PipelineError> {
    let mut found = BTreeMap::new();
    let mut missing = None;
    for module in &loaded.modules {
        if code.excludes(module) {
            continue;
        }
        match code.of(module, &loaded.path) {
            Ok(known) => {
                let (profile, more) = resolve(module, known)?;
                notes.extend(more.into_iter().map(|n| format!("{}: {n}", loaded.path.display())));
                found.insert(known.path.clone(), profile);
            }
            Err(error) => {
                notes.push(format!("left out: {error}"));
                missing = Some(error);
            }
        }
    }
    match missing {
        Some(error) if found.is_empty() => Err(error),
        _ if found.is_empty() => Err(PipelineError::BadFile {
            path: loaded.path.clone(),
            why: "it has no counts that can be compared; give a profile with counts of the program".into(),
        }),
        _ => Ok(found),
    }
}

fn compared(inputs: &[ProfileInput], features: &[Features]) -> Vec<ComparedProfile> {
    let one = |(input, f): (&ProfileInput, &Features)| ComparedProfile {
        path: input.path.display().to_string(),
        blocks: f.blocks.iter().filter(|n| **n > 0.0).count() as u64,
        executions: f.blocks.iter().sum::<f64>() as u64,
        functions: f.function_totals.iter().filter(|n| **n > 0.0).count() as u64,
    };
    inputs.iter().zip(features).map(one).collect()
}
