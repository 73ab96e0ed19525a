//! What becomes of branch records: counts by module, and on demand the records themselves as a `perf.data` file.
//!
//! Problem: records come from several sources, in the addresses of several processes, which load, fork and execute meanwhile.
//! Idea: one sink for all sources. It knows what is mapped where in each process, looks again when an address is in
//! nothing that it knows, and shares files between processes.
//!
//! Limits: a process that executes a program and is gone before its first record comes is not known; its branches count as
//! "elsewhere".

mod coverage;
mod file;

use crate::profiles::{ProfileOutput, RecordedModule, save_records};
use crate::{SessionError, Watcher};
use coverage::Coverage;
use file::RecordFile;
use restitch_address::{Avma, AvmaRange, LoadBias, Svma, SvmaRange};
use restitch_apply_process::{ImageCache, Module, Target, is_vdso};
use restitch_image::Image;
use restitch_procfs::FileIdentity;
use restitch_profile::Profile;
use restitch_profile_formats::{Format, Records};
use restitch_program::Program;
use restitch_trace::{Record, Sink, Taken};
use restitch_tracee::Memory;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a process's modules are looked at again when a branch is in none of them: at least, and in times of what looking costs.
const LOOK_AGAIN: (Duration, u32) = (Duration::from_millis(10), 20);
/// A module with less than this share of the branches is left out of the profile.
const LEAST_SHARE: f64 = 0.001;

/// A file that some process has mapped, and what was seen in it.
struct Seen {
    path: PathBuf,
    identity: FileIdentity,
    image: Arc<Image>,
    records: Records,
    branches: u64,
}

/// Where things are in one process.
#[derive(Debug, Clone, Default)]
struct Places {
    modules: Vec<(AvmaRange, LoadBias, usize)>,
    /// Where nothing else was while branches were recorded, although something else may have been mapped there when it was looked.
    certain: Vec<(AvmaRange, LoadBias, usize)>,
    looked: Option<Instant>,
    took: Duration,
}

impl Places {
    /// Newest first: a module that was mapped later may lie where an older one was.
    fn find(&self, at: Avma) -> Option<(usize, Svma)> {
        let newest_first = self.certain.iter().chain(self.modules.iter().rev());
        let found = newest_first.into_iter().find(|(range, ..)| range.contains(at));
        found.map(|(_, bias, module)| (*module, bias.to_stated(at)))
    }

    fn may_look(&self) -> bool {
        let least = LOOK_AGAIN.0.max(self.took * LOOK_AGAIN.1);
        self.looked.is_none_or(|looked| looked.elapsed() > least)
    }
}

/// Takes branch records of any number of processes.
#[derive(Default)]
pub(crate) struct BranchRecords {
    seen: Vec<Seen>,
    processes: BTreeMap<i32, Places>,
    images: ImageCache,
    file: Option<RecordFile>,
    coverage: Coverage,
    /// Processes that have branches.
    with_branches: BTreeSet<i32>,
    /// Branches that were in no module.
    pub elsewhere: u64,
}

impl Seen {
    /// Whether it has a file, which a profile can tell of. (The vdso has none.)
    fn is_file(&self) -> bool {
        !is_vdso(&self.path)
    }
}

impl BranchRecords {
    /// With the records themselves, in stacks of the output's depth, if the output is `perf.data`.
    pub fn for_output(output: &ProfileOutput) -> Self {
        let is_file = crate::profiles::format_of(output).is_ok_and(|format| format == Format::PerfData);
        Self { file: is_file.then(|| RecordFile::new(output.options.depth)), ..Self::default() }
    }

    /// Looks at a process before its first record comes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(&mut self, pid: i32) -> Result<(), SessionError> {
        let target = Target::open_with(pid, &mut self.images)?;
        self.know(pid, target);
        Ok(())
    }

    /// Takes what is recorded where `modules` of a process are for theirs: branches are recorded only while they are there.
    pub fn be_certain<'m>(&mut self, pid: i32, modules: impl Iterator<Item = &'m Module>) {
        let mut certain = Vec::new();
        for module in modules {
            let place = (module.range, module.bias, self.index_of(module));
            let is_known = self.processes.get(&pid).is_some_and(|places| places.modules.contains(&place));
            if let Some(file) = self.file.as_mut().filter(|_| !is_known) {
                file.mapped(pid, module);
            }
            certain.push(place);
        }
        self.processes.entry(pid).or_default().certain = certain;
    }

    /// Adds branches that thread `tid` of process `pid` has taken one after the other, oldest first.
    fn add(&mut self, pid: i32, tid: i32, branches: &[Taken]) {
        self.with_branches.insert(pid);
        let locate = |records: &mut Self, at| records.locate(pid, at);
        let mut stack: Vec<_> = branches.iter().map(|b| (locate(self, b.from), locate(self, b.to))).collect();
        // Records want the newest one first.
        stack.reverse();
        self.coverage.add(&stack);
        self.elsewhere += stack.iter().filter(|(from, _)| from.is_none()).count() as u64;
        let mut modules: Vec<usize> = stack.iter().flat_map(|(f, t)| [f, t]).flatten().map(|p| p.0).collect();
        modules.sort_unstable();
        modules.dedup();
        // Each module sees the whole stack, with the places of other modules left blank.
        for module in modules {
            let own = |p: &Option<(usize, Svma)>| p.filter(|p| p.0 == module).map(|p| p.1);
            let part: Vec<_> = stack.iter().map(|(from, to)| (own(from), own(to))).collect();
            let seen = &mut self.seen[module];
            seen.branches += part.iter().filter(|(from, _)| from.is_some()).count() as u64;
            seen.records.add_stack(&part, 1);
        }
        if let Some(file) = &mut self.file {
            file.add(pid, tid, branches);
        }
    }

    fn locate(&mut self, pid: i32, at: Avma) -> Option<(usize, Svma)> {
        let places = self.processes.entry(pid).or_default();
        if let found @ Some(_) = places.find(at) {
            return found;
        }
        if !places.may_look() {
            return None;
        }
        let begun = Instant::now();
        if let Ok(target) = Target::open_with(pid, &mut self.images) {
            self.know(pid, target);
        }
        let places = self.processes.entry(pid).or_default();
        (places.looked, places.took) = (Some(Instant::now()), begun.elapsed());
        places.find(at)
    }

    /// Adds modules that are new in a process.
    fn know(&mut self, pid: i32, target: Target) {
        for module in target.modules {
            let index = self.index_of(&module);
            let places = self.processes.entry(pid).or_default();
            let place = (module.range, module.bias, index);
            if !places.modules.contains(&place) {
                places.modules.push(place);
                if let Some(file) = &mut self.file {
                    file.mapped(pid, &module);
                }
            }
        }
        let places = self.processes.entry(pid).or_default();
        places.looked = Some(Instant::now());
    }

    fn index_of(&mut self, module: &Module) -> usize {
        let is_known = |seen: &Seen| seen.path == module.path && seen.identity == module.identity;
        self.seen.iter().position(is_known).unwrap_or_else(|| {
            let (path, image) = (module.path.clone(), module.image.clone());
            let identity = module.identity;
            self.seen.push(Seen { path, identity, image, records: Records::default(), branches: 0 });
            self.seen.len() - 1
        })
    }

    /// Critical sections of restartable sequences that the modules of a process state in their `__rseq_cs` sections.
    pub fn restartable(&self, pid: i32) -> Vec<AvmaRange> {
        let Ok(memory) = Memory::open_read_only(pid) else { return Vec::new() };
        let modules = self.processes.get(&pid).map(|places| &places.modules[..]).unwrap_or_default();
        let section = |(_, bias, module): &(AvmaRange, LoadBias, usize)| {
            Some((*bias, self.seen[*module].image.section("__rseq_cs")?.range))
        };
        let sections = modules.iter().filter_map(section);
        sections.flat_map(|(bias, range)| critical_sections(&memory, bias, range)).collect()
    }

    /// The module of process `pid` that holds `at`, and the address in its file, for people.
    pub fn name(&self, pid: i32, at: Avma) -> String {
        match self.processes.get(&pid).and_then(|places| places.find(at)) {
            Some((module, stated)) => {
                let file = self.seen[module].path.file_name().unwrap_or_default().to_string_lossy();
                format!("{file} {stated}")
            }
            None => at.to_string(),
        }
    }

    /// How many processes branches were recorded in.
    pub fn processes(&self) -> usize {
        self.with_branches.len()
    }

    /// Branches in modules.
    pub fn branches(&self) -> u64 {
        self.files().map(|seen| seen.branches).sum()
    }

    /// Branches in the vdso: a `perf.data` file has them, profiles of files do not.
    pub fn in_vdso(&self) -> u64 {
        self.seen.iter().filter(|seen| !seen.is_file()).map(|seen| seen.branches).sum()
    }

    fn files(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(|seen| seen.is_file())
    }

    /// The estimated share of what is executed that the records know, 0 to 1.
    pub fn coverage(&self) -> f64 {
        self.coverage.share()
    }

    /// What the records say of the file at `path`, whose code is `program`.
    pub fn profile(&self, path: &Path, program: &Program) -> Profile {
        let seen = self.seen.iter().find(|seen| seen.path == path);
        seen.map_or_else(|| Profile::empty(program), |seen| seen.records.to_profile(program).0)
    }

    /// Modules with a part in the records that is worth mentioning.
    pub fn modules(&self) -> usize {
        let least = self.least();
        self.files().filter(|seen| seen.branches >= least).count()
    }

    fn least(&self) -> u64 {
        ((LEAST_SHARE * self.branches() as f64).ceil() as u64).max(1)
    }

    /// Writes the output whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written, or nothing was recorded.
    pub fn save(self, output: &ProfileOutput, watcher: &mut dyn Watcher) -> Result<(), SessionError> {
        if let Some(file) = self.file {
            watcher.note(&file.describe());
            return crate::write_result(&output.path, &file.finish(), 0o644);
        }
        let least = self.least();
        let heavy = self.seen.into_iter().filter(|seen| seen.is_file() && seen.branches >= least);
        let module = |s: Seen| RecordedModule { path: s.path, image: s.image, records: s.records };
        for note in save_records(heavy.map(module).collect(), output)?.notes {
            watcher.note(&note);
        }
        Ok(())
    }
}

impl Sink for BranchRecords {
    fn record(&mut self, record: Record<'_>) {
        self.add(record.pid, record.tid, record.branches);
    }

    fn forked(&mut self, pid: i32, parent: i32) {
        let places = self.processes.get(&parent).cloned().unwrap_or_default();
        self.processes.insert(pid, places);
        if let Some(file) = &mut self.file {
            file.forked(pid, parent);
        }
    }

    fn executed(&mut self, pid: i32) {
        self.processes.insert(pid, Places::default());
        if let Some(file) = &mut self.file {
            file.executed(pid);
        }
    }
}

/// The descriptors in a section, as the loader has relocated them: u32 version, flags; u64 start, length, abort.
fn critical_sections(memory: &Memory, bias: LoadBias, section: SvmaRange) -> Vec<AvmaRange> {
    const ENTRY: usize = 32;
    let bytes = memory.read_vec(bias.to_actual(section.start), section.len().min(1 << 20) as usize);
    let word = |entry: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
    let range = |entry: &[u8]| AvmaRange::new(Avma::new(word(entry, 8)), word(entry, 16));
    bytes.unwrap_or_default().chunks_exact(ENTRY).map(range).filter(|r| !r.is_empty()).collect()
}
