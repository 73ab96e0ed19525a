//! Which modules of a process are worth work, and their analyses.

use crate::error::SessionError;
use crate::process_set::ProcessSet;
use crate::refusal::left_alone;
use crate::sampling::IpSamples;
use restitch_apply::Why;
use restitch_apply_process::Module;
use restitch_pipeline::analysis::{Analyzed, analyze_image_among, words};
use restitch_pipeline::parallel;
use restitch_pipeline::selection::{Weights, select, weigh};
use restitch_program::{Movability, Program};
use restitch_report as report;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A module with less than this share of the samples is left alone.
const LEAST_SHARE: f64 = 0.01;

/// A module that will get versions.
#[derive(Clone)]
pub struct Chosen {
    /// Its index in the leader's modules.
    pub index: usize,
    /// Its file.
    pub path: PathBuf,
    /// What is known of its code.
    pub analyzed: Analyzed,
    /// What the samples say of its blocks.
    pub weights: Weights,
    /// Samples in it.
    pub samples: u64,
}

/// What was chosen, and what was left alone, with its samples and the reason.
pub type Choice = (Vec<Chosen>, Vec<(PathBuf, u64, String)>);

/// Analyses by module index.
pub type Analyses = BTreeMap<usize, Result<Analyzed, Why>>;

/// The modules that have a share of the samples, the largest share first.
pub(crate) fn with_a_share(samples: &IpSamples) -> Vec<usize> {
    let all = samples.by_module.keys().map(|&index| (samples.in_module(index), index));
    let mut all: Vec<_> = all.filter(|(n, _)| *n as f64 >= LEAST_SHARE * samples.total as f64).collect();
    all.sort_by_key(|(n, index)| (std::cmp::Reverse(*n), *index));
    all.into_iter().map(|(_, index)| index).collect()
}

/// Whether a module may be changed at all; nothing else has to be known of it.
pub fn may_be_changed(set: &ProcessSet, index: usize) -> bool {
    never_changed(&set.leader.target().modules[index]).is_none()
}

/// Why a module is never changed, whatever is known of it.
fn never_changed(module: &Module) -> Option<String> {
    if module.is_vdso() {
        return Some("the kernel's own code is never changed".into());
    }
    if is_runtime_loader(&module.path.to_string_lossy()) {
        return Some("the dynamic loader is never changed".into());
    }
    left_alone(module)
}

/// Analyses the modules that have a share of the samples, but for those that are `ready`, which are taken
/// from there; those that cannot be analysed come back with the reason.
pub fn choose(set: &ProcessSet, samples: &IpSamples, ready: &mut Analyses) -> Result<Choice, SessionError> {
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    let target = set.leader.target();
    let mut wanted = with_a_share(samples);
    let missing = wanted.iter().copied().filter(|i| may_be_changed(set, *i) && !ready.contains_key(i));
    ready.extend(analyze(set, missing.collect()));
    if !wanted.contains(&target.program) {
        let n = samples.in_module(target.program);
        left.push((target.modules[target.program].path.clone(), n, too_little(n, samples.total)));
    }
    wanted.sort_unstable();
    for index in wanted {
        let (module, addresses) = (&target.modules[index], &samples.by_module[&index]);
        let n = samples.in_module(index);
        if let Some(why) = never_changed(module) {
            left.push((module.path.clone(), n, why));
            continue;
        }
        match ready
            .remove(&index)
            .unwrap_or_else(|| analyze_image_among(module.image.clone(), &set.neighbours()))
        {
            Ok(mut analyzed) => {
                leave_changing(set, index, &mut analyzed)?;
                let weights = weigh(&analyzed.program, addresses);
                if !is_worth_counting(&analyzed.program, &weights) {
                    left.push((module.path.clone(), n, why_it_stays(&analyzed.program, &weights)));
                    continue;
                }
                chosen.push(Chosen { index, path: module.path.clone(), analyzed, weights, samples: n });
            }
            Err(why) => left.push((module.path.clone(), n, why.to_string())),
        }
    }
    Ok((chosen, left))
}

/// Why the program itself is left alone, which the user will look for, in words that follow its name.
fn too_little(samples: u64, total: u64) -> String {
    match samples {
        0 => "the program itself stays as it is: none of the samples is in its code".into(),
        n => {
            let share = 100.0 * n as f64 / total.max(1) as f64;
            format!(
                "the program itself stays as it is: too little of the time is spent in its code ({share:.2} % of the samples)"
            )
        }
    }
}

/// The samples in modules that have too few of them, the program aside, and those in no module.
pub fn others(set: &ProcessSet, samples: &IpSamples) -> report::OtherModules {
    let (named, program) = (with_a_share(samples), set.leader.target().program);
    let others = samples.by_module.keys().filter(|i| **i != program && !named.contains(i));
    let others: Vec<u64> = others.map(|i| samples.in_module(*i)).collect();
    let inside: u64 = samples.by_module.keys().map(|i| samples.in_module(*i)).sum();
    let (few, outside) = (others.iter().sum(), samples.total.saturating_sub(inside));
    let share = |n: u64| n as f64 / samples.total.max(1) as f64;
    report::OtherModules {
        modules: others.len() as u64,
        samples: few,
        share: share(few),
        outside,
        outside_share: share(outside),
    }
}

/// Leaves code of module number `index` in place that is not the file's in one of the processes, or that one
/// of them may write to.
///
/// # Errors
/// If the leader cannot be read.
pub fn leave_changing(set: &ProcessSet, index: usize, analyzed: &mut Analyzed) -> Result<(), SessionError> {
    analyzed.leave_writable(&set.writable_code(index)?);
    analyzed.leave_changed(&set.foreign_code(index)?);
    Ok(())
}

/// Analyses these modules, on all processors.
pub fn analyze(set: &ProcessSet, modules: Vec<usize>) -> Analyses {
    let (modules_of, neighbours) = (&set.leader.target().modules, set.neighbours());
    let one = |index: usize| (index, analyze_image_among(modules_of[index].image.clone(), &neighbours));
    parallel::map(modules, one).into_iter().collect()
}

/// Whether a counting version of the sampled functions and those around them would hold anything.
fn is_worth_counting(program: &Program, weights: &Weights) -> bool {
    select(program, weights).into_iter().any(|f| program.blocks_of(f).any(|b| program.is_movable(b)))
}

/// Why there is nothing to do in a module with samples, with the reason that most of them have, in words that
/// follow its name.
fn why_it_stays(program: &Program, weights: &Weights) -> String {
    let mut reasons: BTreeMap<Movability, u64> = BTreeMap::new();
    for (function, weight) in program.functions.iter().zip(&weights.functions) {
        *reasons.entry(function.movability).or_default() += weight;
    }
    let most = reasons.into_iter().max_by_key(|(_, weight)| *weight).filter(|(_, weight)| *weight > 0);
    match most {
        Some((why, _)) if why != Movability::Movable => {
            format!("its samples lie in code that cannot be moved: {}", words(why))
        }
        _ => "its samples lie in code that cannot be moved".into(),
    }
}

/// The loader runs before and beneath everything else, `_dl_find_object` included.
pub fn is_runtime_loader(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with("ld-linux") || name.starts_with("ld-musl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_stays_is_told_with_its_share() {
        assert!(too_little(0, 500).contains("none of the samples"));
        assert!(too_little(3, 1000).contains("0.30 % of the samples"));
        assert!(too_little(0, 0).contains("none"));
    }
}
