//! Which modules of a process are worth work, and their analyses.

use crate::SessionError;
use crate::analysis::{Analyzed, analyze_image};
use crate::parallel;
use crate::process_set::ProcessSet;
use crate::sampling::IpSamples;
use crate::selection::{Weights, select, weigh};
use restitch_program::Program;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A module with less than this share of the samples is left alone.
const LEAST_SHARE: f64 = 0.01;

/// A module that will get versions.
#[derive(Clone)]
pub(crate) struct Chosen {
    /// Its index in the leader's modules.
    pub index: usize,
    pub path: PathBuf,
    pub analyzed: Analyzed,
    pub weights: Weights,
    pub samples: u64,
}

/// What was chosen, and what was left alone, with the reason.
pub(crate) type Choice = (Vec<Chosen>, Vec<(PathBuf, String)>);

/// Analyses by module index.
pub(crate) type Analyses = BTreeMap<usize, Result<Analyzed, String>>;

/// The modules that have a share of the samples, the largest share first.
pub(crate) fn with_a_share(samples: &IpSamples) -> Vec<usize> {
    let all = samples.by_module.keys().map(|&index| (samples.in_module(index), index));
    let mut all: Vec<_> = all.filter(|(n, _)| *n as f64 >= LEAST_SHARE * samples.total as f64).collect();
    all.sort_by_key(|(n, index)| (std::cmp::Reverse(*n), *index));
    all.into_iter().map(|(_, index)| index).collect()
}

/// Whether a module may be changed at all; nothing else has to be known of it.
pub(crate) fn may_be_changed(set: &ProcessSet, index: usize) -> bool {
    !is_runtime_loader(&set.leader.target().modules[index].path.to_string_lossy())
}

/// Analyses the modules that have a share of the samples, but for those that are `ready`, which are taken from there; those that cannot be analysed come back with
/// the reason.
pub(crate) fn choose(
    set: &ProcessSet,
    samples: &IpSamples,
    ready: &mut Analyses,
) -> Result<Choice, SessionError> {
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    let target = set.leader.target();
    let mut wanted = with_a_share(samples);
    let missing = wanted.iter().copied().filter(|i| may_be_changed(set, *i) && !ready.contains_key(i));
    ready.extend(analyze(set, missing.collect()));
    wanted.sort_unstable();
    for index in wanted {
        let (module, addresses) = (&target.modules[index], &samples.by_module[&index]);
        let n = samples.in_module(index);
        let Some(analyzed) = ready.remove(&index) else {
            left.push((module.path.clone(), "the dynamic loader is never changed".into()));
            continue;
        };
        match analyzed {
            Ok(mut analyzed) => {
                analyzed.leave(&set.foreign_code(index)?);
                let weights = weigh(&analyzed.program, addresses);
                if !is_worth_counting(&analyzed.program, &weights) {
                    left.push((module.path.clone(), "its samples lie in code that cannot be moved".into()));
                    continue;
                }
                chosen.push(Chosen { index, path: module.path.clone(), analyzed, weights, samples: n });
            }
            Err(why) => left.push((module.path.clone(), why)),
        }
    }
    Ok((chosen, left))
}

/// Analyses these modules, on all processors.
pub(crate) fn analyze(set: &ProcessSet, modules: Vec<usize>) -> Analyses {
    let modules_of = &set.leader.target().modules;
    let one = |index: usize| (index, analyze_image(modules_of[index].image.clone()));
    parallel::map(modules, one).into_iter().collect()
}

/// Whether a counting version of the sampled functions and those around them would hold anything.
fn is_worth_counting(program: &Program, weights: &Weights) -> bool {
    select(program, weights).into_iter().any(|f| program.blocks_of(f).any(|b| program.is_movable(b)))
}

/// The loader runs before and beneath everything else, `_dl_find_object` included.
pub(crate) fn is_runtime_loader(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with("ld-linux") || name.starts_with("ld-musl"))
}
