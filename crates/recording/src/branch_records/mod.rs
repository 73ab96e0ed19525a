//! What becomes of branch records and samples: counts by module, and on demand the records themselves as a
//! `perf.data` file.
//!
//! Problem: records come from several sources, in the addresses of several processes, which load, fork and
//! execute meanwhile. Idea: one sink for all sources. It knows what is mapped where in each process, looks
//! again when an address is in nothing that it knows (or is told by the kernel what a process maps), and
//! shares files between processes. Records are counted when the process may execute another program already:
//! what a look finds is believed only if it still executes the one that the records are of.
//!
//! Limits: a process that executes a program and is gone before its first record comes is not known, unless
//! the kernel told of it; its branches count as "elsewhere".

mod coverage;
mod file;

use coverage::Coverage;
use file::RecordFile;
use restitch_address::{Avma, AvmaRange, LoadBias, Svma, SvmaRange};
use restitch_apply_process::{ImageCache, Module, Target, is_vdso};
use restitch_image::Image;
use restitch_perf::{Branch, Sample, SampleEvent};
use restitch_pipeline::Watcher;
use restitch_pipeline::profiles::{ProfileOutput, RecordedModule, save_records};
use restitch_processes::SessionError;
use restitch_procfs::{Execution, FileIdentity, Mapping};
use restitch_profile::Profile;
use restitch_profile_formats::{Format, Records, TakenBranch};
use restitch_program::Program;
use restitch_trace::{Record, Sink, Taken};
use restitch_tracee::Memory;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a process's modules are looked at again when a branch is in none of them: at least, and in times
/// of what looking costs.
const LOOK_AGAIN: (Duration, u32) = (Duration::from_millis(10), 20);
/// A module with less than this share of the branches is left out of the profile.
const LEAST_SHARE: f64 = 0.001;

/// A file that some process has mapped, and what was seen in it.
struct Seen {
    path: PathBuf,
    identity: FileIdentity,
    image: Arc<Image>,
    records: Records,
    /// Branches, or samples where there are no more than these.
    weight: u64,
}

/// Where things are in one process.
#[derive(Debug, Clone, Default)]
struct Places {
    modules: Vec<(AvmaRange, LoadBias, usize)>,
    /// Where nothing else was while branches were recorded, although something else may have been mapped
    /// there when it was looked.
    certain: Vec<(AvmaRange, LoadBias, usize)>,
    looked: Option<Instant>,
    took: Duration,
    /// What program they are of.
    of: Executed,
}

/// Which of the programs that a process executes one after the other.
#[derive(Debug, Clone, Default)]
enum Executed {
    /// That of the first look.
    #[default]
    Any,
    /// The one that was seen.
    Seen(Execution),
    /// One of which the kernel has told, with the module that it has mapped first: its own code. The process
    /// may execute another one by now.
    Told(Option<(LoadBias, usize)>),
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
pub struct BranchRecords {
    seen: Vec<Seen>,
    processes: BTreeMap<i32, Places>,
    images: ImageCache,
    file: Option<RecordFile>,
    coverage: Coverage,
    /// Processes that have branches, or samples.
    with_branches: BTreeSet<i32>,
    /// Branches, or samples, that were in no module.
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
        Self::with_file(output, || RecordFile::new(output.options.depth))
    }

    /// The same for samples of instructions alone, so many a second.
    pub fn of_samples_for(output: &ProfileOutput, event: SampleEvent, per_second: u64) -> Self {
        Self::with_file(output, || RecordFile::of_samples(event, per_second))
    }

    fn with_file(output: &ProfileOutput, file: impl FnOnce() -> RecordFile) -> Self {
        let is_file =
            restitch_pipeline::profiles::format_of(output).is_ok_and(|format| format == Format::PerfData);
        Self { file: is_file.then(file), ..Self::default() }
    }

    /// Looks at a process before its first record comes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(&mut self, pid: i32) -> Result<(), SessionError> {
        let seen = Execution::of(pid)?;
        let target = Target::open_with(pid, &mut self.images)?;
        self.processes.entry(pid).or_default().of = Executed::Seen(seen);
        self.know(pid, target);
        Ok(())
    }

    /// Adds what a process has mapped by now, if it executes what its places are of.
    fn look(&mut self, pid: i32) {
        // An error: it has ended.
        let Ok(seen) = Execution::of(pid) else { return };
        let Ok(target) = Target::open_with(pid, &mut self.images) else { return };
        let is_one = Execution::of(pid).is_ok_and(|now| now == seen);
        if is_one && self.is_of(pid, &seen, &target) {
            self.processes.entry(pid).or_default().of = Executed::Seen(seen);
            self.know(pid, target);
        }
    }

    /// Whether what was seen of a process is what its places are of.
    fn is_of(&mut self, pid: i32, seen: &Execution, target: &Target) -> bool {
        match self.processes.get(&pid).map(|places| &places.of) {
            None | Some(Executed::Any) => true,
            Some(Executed::Seen(known)) => known == seen,
            Some(Executed::Told(None)) => false,
            Some(Executed::Told(Some(first))) => {
                let first = *first;
                target.modules.iter().any(|module| (module.bias, self.index_of(module)) == first)
            }
        }
    }

    /// Takes what is recorded where `modules` of a process are for theirs: branches are recorded only while
    /// they are there.
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
        // Records want the newest one first.
        self.count(pid, branches.iter().rev().map(|b| (b.from, b.to)));
        if let Some(file) = &mut self.file {
            file.add(pid, tid, branches);
        }
    }

    /// Adds the last branches before a sample, as the hardware has recorded them.
    pub fn add_stack(&mut self, sample: &Sample) {
        self.count(sample.pid, sample.branches.iter().map(|b| (b.from, b.to)));
        if let Some(file) = &mut self.file {
            let branch =
                |b: &Branch| TakenBranch { from: b.from, to: b.to, mispredicted: Some(b.mispredicted) };
            let stack: Vec<_> = sample.branches.iter().map(branch).collect();
            file.sample(sample.pid, sample.tid, sample.ip, &stack);
        }
    }

    /// Counts branches that a thread of process `pid` has taken one after the other, newest first.
    fn count(&mut self, pid: i32, branches: impl Iterator<Item = (Avma, Avma)>) {
        self.with_branches.insert(pid);
        let stack: Vec<_> =
            branches.map(|(from, to)| (self.locate(pid, from), self.locate(pid, to))).collect();
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
            seen.weight += part.iter().filter(|(from, _)| from.is_some()).count() as u64;
            seen.records.add_stack(&part, 1);
        }
    }

    /// Adds where the kernel has seen a thread of process `pid`.
    pub fn add_sample(&mut self, pid: i32, tid: i32, at: Avma) {
        self.with_branches.insert(pid);
        match self.locate(pid, at) {
            Some((module, stated)) => {
                let seen = &mut self.seen[module];
                seen.records.add_ip(stated, 1);
                seen.weight += 1;
            }
            None => self.elsewhere += 1,
        }
        if let Some(file) = &mut self.file {
            file.sample(pid, tid, at, &[]);
        }
    }

    /// Takes in that a process has mapped a module, as the kernel tells: it may have ended when a record of
    /// it comes.
    pub fn mapped(&mut self, pid: i32, code: &Mapping) {
        if let Some(module) = Module::of_mapping(pid, code, &mut self.images) {
            self.know_module(pid, &module);
            // It is what lies there now, also where it lay before another one did.
            let index = self.index_of(&module);
            let places = self.processes.entry(pid).or_default();
            places.modules.sort_by_key(|place| *place == (module.range, module.bias, index));
            if let Executed::Told(first @ None) = &mut places.of {
                *first = Some((module.bias, index));
            }
        }
    }

    /// Takes in that a process executes another program, as the kernel tells: it may execute yet another one
    /// by now. What it maps is [told](Self::mapped), too.
    pub fn told_executed(&mut self, pid: i32) {
        self.begin(pid, Executed::Told(None));
    }

    fn begin(&mut self, pid: i32, of: Executed) {
        self.processes.insert(pid, Places { of, ..Places::default() });
        if let Some(file) = &mut self.file {
            file.executed(pid);
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
        self.look(pid);
        let places = self.processes.entry(pid).or_default();
        (places.looked, places.took) = (Some(Instant::now()), begun.elapsed());
        places.find(at)
    }

    /// Adds modules that are new in a process.
    fn know(&mut self, pid: i32, target: Target) {
        target.modules.iter().for_each(|module| self.know_module(pid, module));
        let places = self.processes.entry(pid).or_default();
        places.looked = Some(Instant::now());
    }

    fn know_module(&mut self, pid: i32, module: &Module) {
        let place = (module.range, module.bias, self.index_of(module));
        let places = self.processes.entry(pid).or_default();
        if !places.modules.contains(&place) {
            places.modules.push(place);
            if let Some(file) = &mut self.file {
                file.mapped(pid, module);
            }
        }
    }

    fn index_of(&mut self, module: &Module) -> usize {
        let is_known = |seen: &Seen| seen.path == module.path && seen.identity == module.identity;
        self.seen.iter().position(is_known).unwrap_or_else(|| {
            let (path, image) = (module.path.clone(), module.image.clone());
            let identity = module.identity;
            self.seen.push(Seen { path, identity, image, records: Records::default(), weight: 0 });
            self.seen.len() - 1
        })
    }

    /// Critical sections of restartable sequences that the modules of a process state in their `__rseq_cs`
    /// sections.
    pub fn restartable(&self, pid: i32) -> Vec<AvmaRange> {
        let Ok(memory) = Memory::open_read_only(pid) else { return Vec::new() };
        let modules = self.processes.get(&pid).map(|places| &places.modules[..]).unwrap_or_default();
        let section = |(_, bias, module): &(AvmaRange, LoadBias, usize)| {
            Some((*bias, self.seen[*module].image.section("__rseq_cs")?.range))
        };
        let sections = modules.iter().filter_map(section);
        sections.flat_map(|(bias, range)| critical_sections(&memory, bias, range)).collect()
    }

    /// The module of process `pid` that holds `at`, and the function with the distance from its start there,
    /// or else the address in the file, for people.
    pub fn name(&self, pid: i32, at: Avma) -> String {
        let Some((module, stated)) = self.processes.get(&pid).and_then(|places| places.find(at)) else {
            return format!("code of no file that is known, at {at}");
        };
        let Seen { path, image, .. } = &self.seen[module];
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        match image.symbol_containing(stated).filter(|symbol| symbol.is_function()) {
            Some(symbol) => format!("{file} {}+{:#x}", symbol.name, stated.offset_from(symbol.range.start)),
            None => format!("{file} at {stated}"),
        }
    }

    /// How many processes something was recorded in.
    pub fn processes(&self) -> usize {
        self.with_branches.len()
    }

    /// Branches (samples, if there are no more than these) in modules.
    pub fn branches(&self) -> u64 {
        self.files().map(|seen| seen.weight).sum()
    }

    /// Of branches or samples, those in the vdso: a `perf.data` file has them, profiles of files do not.
    pub fn in_vdso(&self) -> u64 {
        self.seen.iter().filter(|seen| !seen.is_file()).map(|seen| seen.weight).sum()
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
        self.files().filter(|seen| seen.weight >= least).count()
    }

    fn least(&self) -> u64 {
        ((LEAST_SHARE * self.branches() as f64).ceil() as u64).max(1)
    }

    /// Writes the output whole or not at all; of samples the [coverage](restitch_profile::sample_coverage()),
    /// where it was found out.
    ///
    /// # Errors
    /// If it cannot be written, or nothing was recorded.
    pub fn save(
        self,
        output: &ProfileOutput,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<f64>, SessionError> {
        if let Some(file) = self.file {
            watcher.note(&file.describe());
            restitch_pipeline::disk::write_result(&output.path, &file.finish(), 0o644)?;
            return Ok(None);
        }
        let least = self.least();
        let heavy = self.seen.into_iter().filter(|seen| seen.is_file() && seen.weight >= least);
        let module = |s: Seen| RecordedModule { path: s.path, image: s.image, records: s.records };
        let saved = save_records(heavy.map(module).collect(), output)?;
        saved.notes.iter().for_each(|note| watcher.note(note));
        Ok(saved.coverage)
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
        self.begin(pid, Executed::Any);
        // While it is held: when its records come it may have ended, or execute yet another program. An
        // error: it has ended.
        let _ = self.open(pid);
        // The loader is about to map its libraries.
        if let Some(places) = self.processes.get_mut(&pid) {
            places.looked = None;
        }
    }
}

/// The descriptors in a section, as the loader has relocated them: u32 version, flags; u64 start, length,
/// abort.
fn critical_sections(memory: &Memory, bias: LoadBias, section: SvmaRange) -> Vec<AvmaRange> {
    const ENTRY: usize = 32;
    let bytes = memory.read_vec(bias.to_actual(section.start), section.len().min(1 << 20) as usize);
    let word = |entry: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
    let range = |entry: &[u8]| AvmaRange::new(Avma::new(word(entry, 8)), word(entry, 16));
    bytes.unwrap_or_default().chunks_exact(ENTRY).map(range).filter(|r| !r.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_procfs::{MappingName, Permissions};
    use std::os::unix::fs::MetadataExt;

    /// No process has this number.
    const GONE: i32 = i32::MAX;

    /// This program's code as a process that is gone had it mapped, and its first byte.
    fn mapping() -> (Mapping, Avma) {
        mapping_of(std::env::current_exe().expect("it has a name"))
    }

    fn mapping_of(own: PathBuf) -> (Mapping, Avma) {
        let file = std::fs::metadata(&own).expect("it is there");
        let image = Image::parse(std::fs::read(&own).expect("it is readable")).expect("a program");
        let code = image.segments().iter().find(|segment| segment.executable).expect("it has code");
        let start = Avma::new(0x5555_0000_0000);
        let device = restitch_procfs::FileIdentity::of(&std::fs::File::open(&own).expect("it opens"));
        let mapping = Mapping {
            range: AvmaRange::new(
                start,
                code.range.len().next_multiple_of(restitch_address::PAGE) + restitch_address::PAGE,
            ),
            permissions: Permissions { read: true, write: false, execute: true, shared: false },
            offset: code.file_offset.align_down(restitch_address::PAGE),
            device: device.expect("it has one").device,
            inode: file.ino(),
            name: MappingName::File { path: own, deleted: false },
        };
        (mapping, start + code.file_offset.get() % restitch_address::PAGE)
    }

    #[test]
    fn places_are_told_by_function_or_address_in_the_file() {
        let (code, at) = mapping();
        let mut records = BranchRecords::default();
        records.mapped(GONE, &code);
        let name = |offset: u64| records.name(GONE, at + offset);
        let file = std::env::current_exe().expect("a name");
        let file = file.file_name().expect("a name").to_string_lossy().into_owned();
        let all: Vec<String> = (0..code.range.len() / 2).step_by(4096).map(name).collect();
        assert!(all.iter().all(|place| place.starts_with(&format!("{file} "))), "{all:?}");
        assert!(all.iter().any(|place| place.contains("+0x")), "{all:?}");
        let outside = records.name(GONE, Avma::new(0x1000));
        assert_eq!(outside, "code of no file that is known, at 0x1000");
    }

    #[test]
    fn who_has_ended_is_known_by_what_the_kernel_told() {
        let (code, at) = mapping();
        let mut records = BranchRecords::default();
        records.add_sample(GONE, GONE, at);
        assert_eq!((records.branches(), records.elsewhere, records.modules()), (0, 1, 0));
        records.executed(GONE);
        records.mapped(GONE, &code);
        records.add_sample(GONE, GONE, at);
        records.forked(GONE - 1, GONE);
        records.add_sample(GONE - 1, GONE - 1, at);
        assert_eq!((records.branches(), records.elsewhere, records.processes()), (2, 1, 2));
        // Another program is there now, or another file of that name.
        records.executed(GONE);
        records.mapped(GONE, &Mapping { inode: code.inode + 1, ..code });
        records.add_sample(GONE, GONE, at);
        assert_eq!((records.branches(), records.elsewhere), (2, 2));
    }

    /// A shell that executes another program when it gets a line.
    fn shell(then: &str) -> std::process::Child {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("read line; exec {then}")]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let shell = command.spawn().expect("it starts");
        // It may still be in the middle of being executed itself.
        while Target::open(shell.id() as i32).is_err() {
            std::thread::yield_now();
        }
        shell
    }

    /// Lets the shell execute its program; that one, and its first byte of code.
    fn executes(shell: &mut std::process::Child) -> (Module, Avma) {
        use std::io::Write;
        let pid = shell.id() as i32;
        let before = Execution::of(pid).expect("it waits");
        shell.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
        let target = loop {
            match Execution::of(pid) {
                Ok(now) if now != before => match Target::open(pid) {
                    Ok(target) => break target,
                    Err(_) => std::thread::yield_now(),
                },
                _ => std::thread::yield_now(),
            }
        };
        let program = target.modules[target.program].clone();
        let code = program.image.segments().iter().find(|s| s.executable).expect("code").range.start;
        let at = program.bias.to_actual(code);
        (program, at)
    }

    fn look_at_once(records: &mut BranchRecords, pid: i32) {
        records.processes.get_mut(&pid).expect("known").looked = None;
    }

    #[test]
    fn a_program_that_is_executed_before_the_records_of_the_one_before_are_counted_has_no_part_in_them() {
        let mut shell = shell("cat");
        let pid = shell.id() as i32;
        let mut records = BranchRecords::default();
        records.open(pid).expect("it waits");
        let (_, at) = executes(&mut shell);
        look_at_once(&mut records, pid);
        records.add_sample(pid, pid, at);
        assert_eq!((records.branches(), records.elsewhere), (0, 1));
        Sink::executed(&mut records, pid);
        records.add_sample(pid, pid, at);
        assert_eq!((records.branches(), records.elsewhere), (1, 1));
        drop(shell.stdin.take());
        shell.wait().expect("it ends");
    }

    #[test]
    fn a_program_of_which_the_kernel_has_told_is_looked_at_as_long_as_it_is_there() {
        let mut shell = shell("cat");
        let pid = shell.id() as i32;
        let (program, at) = executes(&mut shell);
        let mut records = BranchRecords::default();
        // Another one has come before.
        records.told_executed(pid);
        records.mapped(pid, &mapping().0);
        look_at_once(&mut records, pid);
        records.add_sample(pid, pid, at);
        assert_eq!((records.branches(), records.elsewhere), (0, 1));
        // That very one.
        records.told_executed(pid);
        let maps = restitch_procfs::maps(pid).expect("it waits");
        let code = maps.iter().find(|m| m.range.contains(at)).expect("its code");
        records.mapped(pid, code);
        let library = |m: &&Mapping| m.permissions.execute && m.path().is_some_and(|p| p != program.path);
        let library = maps.iter().find(library).expect("it has a loader");
        records.add_sample(pid, pid, library.range.start);
        assert_eq!((records.branches(), records.elsewhere), (1, 1));
        drop(shell.stdin.take());
        shell.wait().expect("it ends");
    }

    #[test]
    fn what_was_mapped_last_is_there() {
        let folder = restitch_testkit::scratch();
        let copy = folder.path().join("copy");
        std::fs::copy(std::env::current_exe().expect("it has a name"), &copy).expect("copied");
        let ((own, at), (copy, _)) = (mapping(), mapping_of(copy));
        let mut records = BranchRecords::default();
        for code in [&own, &copy, &own] {
            records.mapped(GONE, code);
            records.add_sample(GONE, GONE, at);
        }
        assert_eq!(records.seen.iter().map(|seen| seen.weight).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn stacks_of_the_hardware_are_counted_and_kept_with_their_predictions() {
        let (code, at) = mapping();
        let mut records = BranchRecords { file: Some(RecordFile::new(32)), ..BranchRecords::default() };
        records.mapped(GONE, &code);
        let branch = |from, to, mispredicted| Branch { from: at + from, to: at + to, mispredicted };
        let branches = vec![branch(40, 0, true), branch(8, 16, false), branch(1 << 40, 4, false)];
        let sample = Sample { pid: GONE, tid: GONE, ip: at + 4, time: 1, callers: Vec::new(), branches };
        records.add_stack(&sample);
        assert_eq!((records.branches(), records.elsewhere), (2, 1));
        let seen = &records.seen[0].records;
        assert_eq!((seen.branches.len(), seen.ranges.len(), seen.ips.len()), (3, 2, 0), "{seen:?}");
        let bytes = records.file.expect("kept").finish();
        let flags: Vec<u8> = [1u64, 2, 2].iter().flat_map(|flag| flag.to_le_bytes()).collect();
        let stack = bytes.windows(72).find(|w| w[..8] == (at + 40).get().to_le_bytes()).expect("the stack");
        let found: Vec<u8> = stack.chunks(24).flat_map(|branch| branch[16..].to_vec()).collect();
        assert_eq!(found, flags);
        assert_eq!(restitch_profile::import_perf_data(&bytes).expect("a file").branch_stacks, 1);
    }
}
