//! What tracing versions copy, and how probing makes it grow.
//!
//! Problem: bursts end where code has no copy, and samples of half a second do not tell which code that is: a function that is called
//! often and is short has no sample. Idea: the bursts tell it themselves. Where they have ended, the function and those around it
//! are added, in whatever library they are, and the next tracing version holds them.

use crate::SessionError;
use crate::analysis::{Analyzed, analyze_image};
use crate::modules::{Analyses, Chosen, is_runtime_loader, may_be_changed};
use crate::process_set::ProcessSet;
use crate::selection::{Weights, select};
use restitch_address::Avma;
use restitch_apply_process::{Module, Target};
use restitch_profile::scope_of;
use restitch_program::{FuncId, Movability};
use std::collections::{BTreeMap, BTreeSet};

/// A module's functions are added in the order of how many bursts ended there, until this share of all ends is dealt with.
const ENDS: f64 = 0.98;

/// Modules, and by block whether it is to be copied.
pub(crate) struct BurstScope {
    pub modules: Vec<Chosen>,
    pub blocks: Vec<Vec<bool>>,
    permanent: BTreeSet<usize>,
    /// Analyses of modules that are not in it yet.
    ready: Analyses,
    /// Modules that cannot be analysed.
    hopeless: BTreeSet<usize>,
}

impl BurstScope {
    /// The functions with samples, those around them, and the linkage tables, of modules that cannot go away. What is `ready` need not be
    /// analysed when its turn comes.
    pub fn new(set: &ProcessSet, mut chosen: Vec<Chosen>, ready: Analyses) -> Self {
        let permanent = permanent_modules(set.leader.target());
        chosen.retain(|c| permanent.contains(&c.index));
        let blocks = chosen.iter().map(blocks_of).collect();
        Self { modules: chosen, blocks, permanent, ready, hopeless: BTreeSet::new() }
    }

    /// Blocks in all modules.
    pub fn len(&self) -> usize {
        self.blocks.iter().flatten().filter(|b| **b).count()
    }

    /// Addresses that indirect branches can come in at: starts of blocks, and behind calls.
    pub fn entries(&self) -> u64 {
        self.modules.iter().zip(&self.blocks).map(|(module, blocks)| entries(&module.analyzed, blocks)).sum()
    }

    /// Adds the functions in which bursts have ended, and those around them; how many blocks that has brought.
    ///
    /// # Errors
    /// If the process's memory cannot be compared with a file.
    pub fn grow(&mut self, set: &ProcessSet, ended_at: &BTreeMap<Avma, u64>) -> Result<usize, SessionError> {
        let before = self.len();
        let mut ends: Vec<(Avma, u64)> = ended_at.iter().map(|(at, n)| (*at, *n)).collect();
        ends.sort_unstable_by_key(|end| std::cmp::Reverse(end.1));
        let most = ENDS * ends.iter().map(|end| end.1).sum::<u64>() as f64;
        let mut seen = 0;
        for (at, n) in ends {
            self.add(set, at, n)?;
            seen += n;
            if seen as f64 > most {
                break;
            }
        }
        self.blocks = self.modules.iter().map(blocks_of).collect();
        Ok(self.len() - before.min(self.len()))
    }

    fn add(&mut self, set: &ProcessSet, at: Avma, n: u64) -> Result<(), SessionError> {
        let target = set.leader.target();
        let Some(index) = target.module_at(at).filter(|index| self.permanent.contains(index)) else {
            return Ok(());
        };
        let Some(module) = self.module(set, index)? else { return Ok(()) };
        let stated = target.modules[index].bias.to_stated(at);
        if let Some(function) = module.analyzed.program.function_at(stated) {
            module.weights.functions[function.index()] += n;
        }
        Ok(())
    }

    /// The module number `index`, analysed if it was not yet.
    fn module(&mut self, set: &ProcessSet, index: usize) -> Result<Option<&mut Chosen>, SessionError> {
        let known = self.modules.iter().position(|m| m.index == index);
        if let Some(i) = known {
            return Ok(self.modules.get_mut(i));
        }
        let module = &set.leader.target().modules[index];
        if is_runtime_loader(&module.path.to_string_lossy()) || self.hopeless.contains(&index) {
            return Ok(None);
        }
        let analyzed = self.ready.remove(&index).unwrap_or_else(|| analyze_image(module.image.clone()));
        let Ok(mut analyzed) = analyzed else {
            self.hopeless.insert(index);
            return Ok(None);
        };
        analyzed.leave(&set.foreign_code(index)?);
        let program = &analyzed.program;
        let weights =
            Weights { functions: vec![0; program.functions.len()], blocks: vec![0; program.blocks.len()] };
        let path = module.path.clone();
        self.modules.push(Chosen { index, path, analyzed, weights, samples: 0 });
        Ok(self.modules.last_mut())
    }
}

/// The modules that tracing versions may be made of.
pub(crate) fn candidates(set: &ProcessSet) -> Vec<usize> {
    permanent_modules(set.leader.target()).into_iter().filter(|i| may_be_changed(set, *i)).collect()
}

/// The program and the libraries that it names, directly or through others: they stay where they are for as long as it runs. What was
/// opened by `dlopen` may go, and something else may come where it was; a tracing version would then be entered from there.
fn permanent_modules(target: &Target) -> BTreeSet<usize> {
    let is_named = |module: &Module, name: &str| {
        let file = module.path.file_name().is_some_and(|file| file == name);
        file || module.image.soname() == Some(name)
    };
    let mut found = BTreeSet::from([target.program]);
    let mut open = vec![target.program];
    while let Some(index) = open.pop() {
        for name in target.modules[index].image.needed() {
            let modules = target.modules.iter().enumerate();
            for (i, _) in modules.filter(|(_, module)| is_named(module, name)) {
                if found.insert(i) {
                    open.push(i);
                }
            }
        }
    }
    found
}

fn blocks_of(module: &Chosen) -> Vec<bool> {
    let program = &module.analyzed.program;
    let linkage = |f: &FuncId| program.function(*f).movability == Movability::Linkage;
    let mut blocks = scope_of(program, &select(program, &module.weights));
    for function in program.function_ids().filter(linkage) {
        program.blocks_of(function).for_each(|b| blocks[b.index()] = true);
    }
    blocks
}

fn entries(module: &Analyzed, blocks: &[bool]) -> u64 {
    let chosen = module.program.block_ids().filter(|b| blocks[b.index()]);
    chosen.map(|b| 1 + u64::from(module.program.block(b).call_count)).sum()
}
