//! What tracing versions copy, and how probing makes it grow.
//!
//! Problem: bursts end where code has no copy, and samples of half a second do not tell which code that is: a
//! function that is called often and is short has no sample. Idea: the bursts tell it themselves. Where they
//! have ended, the function and those around it are added, in whatever library they are, and the next tracing
//! version holds them.
//!
//! Each round costs a version and bursts that end early, so there should be few: a module is copied whole if
//! it is small, and of a large one all that the sampled functions call, and what these call, as far as there
//! is room.

use restitch_address::{Avma, AvmaRange, Svma};
use restitch_apply_process::{Module, Target};
use restitch_emit::may_trace;
use restitch_image::Image;
use restitch_pipeline::analysis::{Analyzed, analyze_image_among};
use restitch_pipeline::selection::{Weights, select, select_within};
use restitch_processes::SessionError;
use restitch_processes::modules::{Analyses, Chosen, is_runtime_loader, leave_changing};
use restitch_processes::process_set::ProcessSet;
use restitch_procfs::system::available_memory;
use restitch_procfs::{MappedFile, MapsFile, threads};
use restitch_program::{CallSite, CallTarget, FuncId, Movability, Program};
use restitch_trace::Guard;
use restitch_tracee::Memory;
use restitch_x86::slot::SlotBranch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A module's functions are added in the order of how many bursts ended there, until this share of all ends
/// is dealt with.
const ENDS: f64 = 0.98;

/// Blocks that a tracing version may copy beyond what is known to be needed. (The C library has 80,000.)
const ROOM: usize = 60_000;
/// A program whose blocks are no more than these, all libraries included, is copied before its hot code is
/// known (cc1plus has 1.2 million)...
const SMALL: usize = 1_500_000;
/// ... if a quarter of the memory that is available is enough for that, at so many bytes a block.
const BLOCK_MEMORY: u64 = 1_600;

/// Modules, and by block whether it is to be copied.
pub struct BurstScope {
    pub modules: Vec<Chosen>,
    pub blocks: Vec<Vec<bool>>,
    /// The same for the last version that was made.
    made: Vec<Vec<bool>>,
    permanent: BTreeSet<usize>,
    /// Others may be copied, too: the process has one thread, and is looked at alone.
    is_alone: bool,
    /// How to see that a module that is not permanent is still there.
    guards: BTreeMap<usize, Guard>,
    /// Analyses of modules that are not in it yet.
    ready: Analyses,
    /// Modules that cannot be analysed.
    hopeless: BTreeSet<usize>,
    /// Files with samples that are not copied, because they may go.
    may_go: Vec<PathBuf>,
    /// Nothing can be added.
    pub is_whole: bool,
}

impl BurstScope {
    /// The functions with samples, what they call and those around them, and the linkage tables, of modules
    /// that cannot go away; small modules whole. What is `ready` need not be analysed when its turn comes.
    ///
    /// # Errors
    /// If the process's memory cannot be compared with a file.
    pub fn new(set: &ProcessSet, chosen: Vec<Chosen>, ready: Analyses) -> Result<Self, SessionError> {
        let mut scope = Self::of(set, chosen, ready);
        // The second time, what libraries call through slots of their own.
        for _ in 0..2 {
            for at in scope.called_elsewhere(set) {
                scope.add(set, at, 1)?;
            }
            scope.blocks = blocks_of(&scope.modules, ROOM);
        }
        scope.add_vdso(set)?;
        scope.blocks = blocks_of(&scope.modules, ROOM);
        Ok(scope)
    }

    fn of(set: &ProcessSet, mut chosen: Vec<Chosen>, ready: Analyses) -> Self {
        let target = set.leader.target();
        let permanent = permanent_modules(target);
        let is_alone = !set.is_tree() && threads(target.pid()).is_ok_and(|threads| threads.len() == 1);
        let mut guards = BTreeMap::new();
        if is_alone && let Ok(maps) = MapsFile::open(target.pid()) {
            for module in chosen.iter_mut().filter(|c| !permanent.contains(&c.index)) {
                let Some(guard) = guard(target, module.index, &module.analyzed.program, &maps) else {
                    continue;
                };
                // It may have come in place of the one that was analysed.
                if leave_changing(set, module.index, &mut module.analyzed).is_err() {
                    continue;
                }
                guards.insert(module.index, guard);
            }
        }
        let (chosen, others): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|c| permanent.contains(&c.index) || guards.contains_key(&c.index));
        let may_go = others.into_iter().map(|c| c.path).collect();
        let blocks = blocks_of(&chosen, ROOM);
        Self {
            modules: chosen,
            blocks,
            made: Vec::new(),
            permanent,
            is_alone,
            guards,
            ready,
            hopeless: BTreeSet::new(),
            may_go,
            is_whole: false,
        }
    }

    /// Where calls of what is copied lead through the global offset tables: to the allocator, to string
    /// functions, which end most bursts where they have no copy and have too few samples to be known.
    fn called_elsewhere(&self, set: &ProcessSet) -> BTreeSet<Avma> {
        let target = set.leader.target();
        let Ok(memory) = Memory::open_read_only(target.pid()) else { return BTreeSet::new() };
        let mut found = BTreeSet::new();
        for (module, blocks) in self.modules.iter().zip(&self.blocks) {
            let Analyzed { image, program, .. } = &module.analyzed;
            let calls = program.calls.iter().filter(|call| blocks[call.block.index()]);
            let slots: BTreeSet<Svma> = calls.filter_map(|call| slot_of(image, call)).collect();
            let bias = target.modules[module.index].bias;
            found.extend(slots.into_iter().filter_map(|at| memory.read_u64(bias.to_actual(at)).ok()));
        }
        found.into_iter().map(Avma::new).collect()
    }

    /// All code of a small program and its libraries, whose analyses are `ready`; these come back if it is
    /// too large.
    ///
    /// # Errors
    /// If the process's memory cannot be compared with a file.
    pub fn whole(set: &ProcessSet, ready: Analyses) -> Result<Result<Self, Analyses>, SessionError> {
        let programs = ready.values().flatten().map(|analyzed| &analyzed.program);
        let blocks = programs.map(|program| program.blocks.len()).sum::<usize>();
        if blocks > most_blocks(available_memory()) {
            return Ok(Err(ready));
        }
        let vdso = set.leader.target().vdso();
        let wanted: Vec<usize> = ready.keys().copied().filter(|index| Some(*index) != vdso).collect();
        let mut scope = Self::of(set, Vec::new(), ready);
        for index in wanted {
            scope.module(set, index)?;
        }
        scope.add_vdso(set)?;
        scope.blocks = blocks_of(&scope.modules, SMALL);
        scope.is_whole = true;
        Ok(Ok(scope))
    }

    /// Why nothing can be copied although there are samples.
    pub fn left_out(&self) -> Option<SessionError> {
        let names: Vec<String> = self.may_go.iter().map(|path| path.display().to_string()).collect();
        let (what, next) = match self.is_alone {
            true => (
                "and that were gone when they were to be copied",
                "try again; `--source trace` records in them, too",
            ),
            false => (
                "and may close again",
                "bursts copy these in processes of one thread only, `--source trace` records in them",
            ),
        };
        (!names.is_empty()).then(|| {
            SessionError::nothing_to_do(format!(
                "all samples are in libraries that the program has opened itself (dlopen) {what}: {}; {next}",
                names.join(", ")
            ))
        })
    }

    /// How to see that a module is still there, if it may go.
    pub fn guard(&self, index: usize) -> Option<&Guard> {
        self.guards.get(&index)
    }

    /// Blocks in all modules.
    pub fn len(&self) -> usize {
        self.blocks.iter().flatten().filter(|b| **b).count()
    }

    /// Addresses that indirect branches can come in at: starts of blocks, and behind calls.
    pub fn entries(&self) -> u64 {
        self.modules.iter().zip(&self.blocks).map(|(module, blocks)| entries(&module.analyzed, blocks)).sum()
    }

    /// Adds the functions in which bursts have ended or could not begin, and those around them; the share of
    /// these places that had no copy and will have one. (Not that of blocks: what ends most bursts is often
    /// one short function.)
    ///
    /// # Errors
    /// If the process's memory cannot be compared with a file.
    pub fn grow(&mut self, set: &ProcessSet, ended_at: &BTreeMap<Avma, u64>) -> Result<f64, SessionError> {
        let all: u64 = ended_at.values().sum();
        let mut ends: Vec<(Avma, u64)> = ended_at.iter().map(|(at, n)| (*at, *n)).collect();
        ends.sort_unstable_by_key(|end| std::cmp::Reverse(end.1));
        let mut seen = 0;
        for (at, n) in ends {
            self.add(set, at, n)?;
            seen += n;
            if seen as f64 > ENDS * all as f64 {
                break;
            }
        }
        self.blocks = blocks_of(&self.modules, ROOM);
        let new = ended_at
            .iter()
            .filter(|(at, _)| self.holds(&self.blocks, set, **at) && !self.holds(&self.made, set, **at));
        Ok(new.map(|(_, n)| *n).sum::<u64>() as f64 / all.max(1) as f64)
    }

    /// A version is made of it as it is.
    pub fn is_made(&mut self) {
        self.made.clone_from(&self.blocks);
    }

    /// Whether the block at `at` is among `blocks`.
    fn holds(&self, blocks: &[Vec<bool>], set: &ProcessSet, at: Avma) -> bool {
        let target = set.leader.target();
        let Some(index) = target.module_at(at) else { return false };
        let Some(i) = self.modules.iter().position(|m| m.index == index) else { return false };
        let block = self.modules[i].analyzed.program.block_at(target.modules[index].bias.to_stated(at));
        let of_module = blocks.get(i);
        block
            .zip(of_module)
            .is_some_and(|(block, blocks)| blocks.get(block.index()).copied().unwrap_or(false))
    }

    fn add(&mut self, set: &ProcessSet, at: Avma, n: u64) -> Result<(), SessionError> {
        let target = set.leader.target();
        let may_be_copied = |index: &usize| self.is_alone || self.permanent.contains(index);
        let Some(index) = target.module_at(at).filter(may_be_copied) else { return Ok(()) };
        let Some(module) = self.module(set, index)? else { return Ok(()) };
        let stated = target.modules[index].bias.to_stated(at);
        if let Some(function) = module.analyzed.program.function_at(stated) {
            module.weights.functions[function.index()] += n;
        }
        Ok(())
    }

    /// All of the vdso, if the process has one: calls lead there through pointers of the C library, and have
    /// a few functions to go to. It comes behind other modules, so that it can be left out later; alone it is
    /// of no use.
    fn add_vdso(&mut self, set: &ProcessSet) -> Result<(), SessionError> {
        let Some(index) = set.leader.target().vdso().filter(|_| !self.modules.is_empty()) else {
            return Ok(());
        };
        if let Some(vdso) = self.module(set, index)? {
            vdso.weights.functions.fill(1);
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
        let analyzed = self
            .ready
            .remove(&index)
            .unwrap_or_else(|| analyze_image_among(module.image.clone(), &set.neighbours()));
        let Ok(mut analyzed) = analyzed else {
            self.hopeless.insert(index);
            return Ok(None);
        };
        if !self.permanent.contains(&index) {
            let target = set.leader.target();
            let maps = MapsFile::open(target.pid()).ok();
            let guard = maps.and_then(|maps| guard(target, index, &analyzed.program, &maps));
            let Some(guard) = guard else { return Ok(None) };
            self.guards.insert(index, guard);
        }
        leave_changing(set, index, &mut analyzed)?;
        let program = &analyzed.program;
        let weights =
            Weights { functions: vec![0; program.functions.len()], blocks: vec![0; program.blocks.len()] };
        let path = module.path.clone();
        self.modules.push(Chosen { index, path, analyzed, weights, samples: 0 });
        Ok(self.modules.last_mut())
    }
}

/// What is mapped where a module's code is, if that is the module still.
fn guard(target: &Target, module: usize, program: &Program, maps: &MapsFile) -> Option<Guard> {
    let (first, last) = (program.function_ids().next()?, program.function_ids().last()?);
    let Module { bias, image, identity, .. } = &target.modules[module];
    let has = |at: Avma, file: &MappedFile| {
        let offset = file.offset.get() + at.offset_from(file.range.start) as u64;
        let same = (file.device, file.inode) == (identity.device, identity.inode);
        same && image.file_offset(bias.to_stated(at)).is_some_and(|stated| stated.get() == offset)
    };
    let start = bias.to_actual(program.function(first).range.start);
    let end = bias.to_actual(program.function(last).range.end);
    Guard::of(maps, AvmaRange::between(start, end), has).ok().flatten()
}

/// The modules that tracing versions may be made of.
pub fn candidates(set: &ProcessSet) -> Vec<usize> {
    let modules = &set.leader.target().modules;
    let may_be_traced = |i: &usize| !is_runtime_loader(&modules[*i].path.to_string_lossy());
    permanent_modules(set.leader.target()).into_iter().filter(may_be_traced).collect()
}

/// Whether all libraries are mapped that modules of a process name: its loader has done what there is to do
/// before the program begins.
pub fn has_its_libraries(target: &Target) -> bool {
    let is_there = |name: &String| target.modules.iter().any(|module| is_named(module, name));
    target.modules.iter().flat_map(|module| module.image.needed()).all(is_there)
}

/// Whether a program that names a library as `name` means this module.
fn is_named(module: &Module, name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    module.path.file_name().is_some_and(|own| own == file) || module.image.soname() == Some(name)
}

/// The program, the vdso, and the libraries that the program names, directly or through others: they stay
/// where they are for as long as it runs. What was opened by `dlopen` may go, and something else may come
/// where it was; a tracing version would then be entered from there. So this has to be looked at before each
/// burst ([`Guard`]), and no other thread may do it during one.
fn permanent_modules(target: &Target) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([target.program]);
    found.extend(target.vdso());
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

/// What is copied of each module: what is known to be needed, and more while there is `room` for further
/// blocks. Modules with more samples and ends of bursts come first.
fn blocks_of(modules: &[Chosen], mut room: usize) -> Vec<Vec<bool>> {
    let mut blocks: Vec<Vec<bool>> = modules
        .iter()
        .map(|module| copied(&module.analyzed.program, &select(&module.analyzed.program, &module.weights)))
        .collect();
    let weight = |module: &Chosen| module.weights.functions.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..modules.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(weight(&modules[*i])));
    for i in order {
        let (Chosen { analyzed, weights, .. }, needed) = (&modules[i], count(&blocks[i]));
        let program = &analyzed.program;
        let all = copied(program, &program.function_ids().collect::<Vec<_>>());
        let wider = if count(&all) <= needed + room {
            all
        } else {
            copied(program, &select_within(program, weights, needed + room))
        };
        room = room.saturating_sub(count(&wider).saturating_sub(needed));
        blocks[i] = wider;
    }
    blocks
}

/// So many blocks of a program are copied before it is known which are needed: see [`SMALL`]. Where the
/// system does not tell of its memory, a tenth of that.
fn most_blocks(available: Option<u64>) -> usize {
    let fit = available.map(|bytes| bytes / 4 / BLOCK_MEMORY);
    fit.map_or(SMALL / 10, |fit| SMALL.min(usize::try_from(fit).unwrap_or(SMALL)))
}

/// The slot that a call goes through: that of its stub, or its own.
fn slot_of(image: &Image, call: &CallSite) -> Option<Svma> {
    match call.target {
        CallTarget::Direct(to) => image.plt_slot_at(to).map(|stub| stub.slot),
        CallTarget::Indirect => {
            let (branch, distance) = SlotBranch::beginning_of(image.read_tail(call.at)?)?;
            (branch == SlotBranch::Call).then(|| call.at.offset(distance))
        }
    }
}

fn count(blocks: &[bool]) -> usize {
    blocks.iter().filter(|b| **b).count()
}

/// The blocks of these functions and of the linkage tables.
fn copied(program: &Program, functions: &[FuncId]) -> Vec<bool> {
    let mut blocks = vec![false; program.blocks.len()];
    let linkage = program.function_ids().filter(|f| program.function(*f).movability == Movability::Linkage);
    for block in functions.iter().copied().chain(linkage).flat_map(|f| program.blocks_of(f)) {
        blocks[block.index()] = may_trace(program, block);
    }
    blocks
}

/// Addresses in one module that indirect branches can come in at, one for each block and each call. So many
/// branches there are, too, at most.
pub fn entries(module: &Analyzed, blocks: &[bool]) -> u64 {
    let chosen = module.program.block_ids().filter(|b| blocks[b.index()]);
    chosen.map(|b| 1 + u64::from(module.program.block(b).call_count)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_programs_are_copied_where_there_is_memory() {
        assert_eq!(most_blocks(Some(64 << 30)), SMALL);
        assert_eq!(most_blocks(Some(1 << 30)), (1 << 30) / 4 / BLOCK_MEMORY as usize);
        assert_eq!(most_blocks(Some(0)), 0);
        assert_eq!(most_blocks(None), SMALL / 10);
    }
}
