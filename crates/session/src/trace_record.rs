//! `record --source trace`: a profile from software branch tracing ([`restitch_trace`]), which changes nothing in the process.

use crate::analysis::analyze_image;
use crate::profiles::{ProfileOutput, save_counts};
use crate::{SessionError, Watcher};
use restitch_address::{Avma, AvmaRange, LoadBias, Svma, SvmaRange};
use restitch_apply_process::{Module, Target};
use restitch_procfs::{self as procfs, ProcessId};
use restitch_profile::{BranchSamples, ModuleProfile, ProfileFile};
use restitch_trace::{Record, TraceOptions, TraceReport, trace};
use restitch_tracee::{ExitStatus, LaunchOptions, Memory, TraceEvent, TraceEvents};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What to trace.
#[derive(Debug)]
pub enum TraceSubject {
    /// A running process, for some time.
    Process(i32, Duration),
    /// A program from its start to its end.
    Command(Command),
}

/// Settings of [`record_traced`].
#[derive(Debug)]
pub struct TraceRecordOptions {
    /// What to trace.
    pub subject: TraceSubject,
    /// Taken branches in a record.
    pub depth: usize,
    /// The share of the running time that it may cost, 0 to 1.
    pub overhead: f64,
    /// The profile file.
    pub output: ProfileOutput,
}

/// What came of it.
#[derive(Debug)]
pub struct Traced {
    /// The tracer's figures.
    pub report: TraceReport,
    /// Branches that were in no module.
    pub elsewhere: u64,
    /// The command's exit status as a shell gives it, if a command was traced.
    pub status: Option<i32>,
    /// Modules in the profile.
    pub modules: usize,
}

/// Traces, and writes the profile file whole or not at all.
///
/// # Errors
/// [`SessionError`]. The process was not changed.
pub fn record_traced(options: TraceRecordOptions, watcher: &mut dyn Watcher) -> Result<Traced, SessionError> {
    crate::check_writable(&options.output.path)?;
    let mut launched = None;
    let (pid, duration) = match options.subject {
        TraceSubject::Process(pid, duration) => (pid, Some(duration)),
        TraceSubject::Command(command) => (launched.insert(launch(command)?).pid, None),
    };
    crate::process_set::refuse_kernel_thread(pid)?;
    watcher.phase("tracing", duration.map(|d| d.as_secs_f64()));
    let mut places = Places::open(pid)?;
    let tracing = TraceOptions {
        depth: options.depth,
        overhead: options.overhead,
        duration,
        restartable: places.restartable(),
        ..TraceOptions::default()
    };
    let report = trace(pid, tracing, &AtomicBool::new(false), &mut |record| places.add(&record))?;
    watcher.phase("analysing", None);
    let status = launched.map(|process| exit_status(report.exit, process)).transpose()?;
    let file = places.profile();
    if file.modules.is_empty() {
        let why = format!("process {pid} used too little CPU time to be traced; try again under load");
        return Err(SessionError::NothingToDo(why));
    }
    let modules = file.modules.len();
    for note in save_counts(file, &options.output)?.notes {
        watcher.note(&note);
    }
    Ok(Traced { modules, elsewhere: places.elsewhere, status, report })
}

/// Starts a command and lets go of it at its program's entry point, where all of its libraries are mapped.
pub(crate) fn launch(command: Command) -> Result<ProcessId, SessionError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut events = TraceEvents::spawn(command, LaunchOptions::default())?;
    let process = events.root();
    loop {
        match events.next_event(LOADER_LIMIT)? {
            Some(TraceEvent::Exec(stopped)) => match procfs::auxv(process.pid)?.entry() {
                Some(entry) => events.run_to(stopped, entry)?,
                None => drop(stopped.resume()),
            },
            Some(TraceEvent::Reached(stopped)) => {
                stopped.resume();
                events.detach();
                return Ok(process);
            }
            Some(TraceEvent::Exited { .. }) | None => {
                let why = "it ended before it began".into();
                return Err(SessionError::Command { command: name, why });
            }
            Some(_) => {}
        }
    }
}

/// How long the loader may take.
const LOADER_LIMIT: Duration = Duration::from_secs(60);

/// The tracer has collected the end of a child of ours where it saw it.
pub(crate) fn exit_status(exit: Option<ExitStatus>, process: ProcessId) -> Result<i32, SessionError> {
    match exit {
        Some(ExitStatus::Code(code)) => Ok(code),
        Some(ExitStatus::Signal(signal)) => Ok(128 + signal),
        None => Ok(restitch_tracee::wait_for_child(process)?),
    }
}

/// How often the modules are looked at again when a branch is in none of them.
const REFRESH: Duration = Duration::from_secs(1);
/// A module with less than this share of the branches is left out of the profile.
const LEAST_SHARE: f64 = 0.001;

/// Modules of the process and what was seen in them.
pub(crate) struct Places {
    pid: i32,
    modules: Vec<(Module, BranchSamples)>,
    looked: Instant,
    /// Branches that were in no module.
    pub elsewhere: u64,
}

impl Places {
    pub fn open(pid: i32) -> Result<Self, SessionError> {
        let modules = Target::open(pid)?.modules.into_iter().map(|m| (m, BranchSamples::default())).collect();
        Ok(Self { pid, modules, looked: Instant::now(), elsewhere: 0 })
    }

    fn locate(&mut self, at: Avma) -> Option<(usize, Svma)> {
        if !self.modules.iter().any(|(m, _)| m.range.contains(at)) && self.looked.elapsed() > REFRESH {
            self.refresh();
        }
        // Newest first: a module that was mapped later may lie where an older one was.
        let mut modules = self.modules.iter().enumerate().rev();
        modules.find_map(|(i, (m, _))| m.stated(at).map(|stated| (i, stated)))
    }

    /// Adds modules that have been loaded meanwhile (also by an exec).
    fn refresh(&mut self) {
        self.looked = Instant::now();
        let Ok(target) = Target::open(self.pid) else { return };
        for module in target.modules {
            let is_known = |(m, _): &(Module, BranchSamples)| m.path == module.path && m.bias == module.bias;
            if !self.modules.iter().any(is_known) {
                self.modules.push((module, BranchSamples::default()));
            }
        }
    }

    /// The module that holds `at`, and the address in its file.
    pub fn name(&self, at: Avma) -> String {
        let module = self.modules.iter().rev().find_map(|(m, _)| m.stated(at).map(|stated| (m, stated)));
        match module {
            Some((m, stated)) => {
                let file = m.path.file_name().unwrap_or_default().to_string_lossy();
                format!("{file} {stated}")
            }
            None => at.to_string(),
        }
    }

    /// Takes a record.
    pub fn add(&mut self, record: &Record<'_>) {
        let mut places = Vec::with_capacity(record.branches.len());
        for branch in record.branches.iter().rev() {
            places.push((self.locate(branch.from), self.locate(branch.to)));
        }
        self.elsewhere += places.iter().filter(|(from, _)| from.is_none()).count() as u64;
        let mut seen: Vec<usize> = places.iter().flat_map(|(f, t)| [f, t]).flatten().map(|p| p.0).collect();
        seen.sort_unstable();
        seen.dedup();
        // Each module sees the whole stack, with the places of other modules left blank.
        for module in seen {
            let own = |p: &Option<(usize, Svma)>| p.filter(|p| p.0 == module).map(|p| p.1);
            let stack: Vec<_> = places.iter().map(|(from, to)| (own(from), own(to))).collect();
            self.modules[module].1.add_stack(&stack);
        }
    }

    /// Critical sections that the modules state in their `__rseq_cs` sections.
    fn restartable(&self) -> Vec<AvmaRange> {
        let Ok(memory) = Memory::open_read_only(self.pid) else { return Vec::new() };
        let section = |m: &Module| Some((m.bias, m.image.section("__rseq_cs")?.range));
        let sections = self.modules.iter().filter_map(|(m, _)| section(m));
        sections.flat_map(|(bias, range)| critical_sections(&memory, bias, range)).collect()
    }

    /// The profile of all records.
    pub fn profile(&self) -> ProfileFile {
        let count = |samples: &BranchSamples| samples.branches.values().sum::<u64>();
        let all: u64 = self.modules.iter().map(|(_, samples)| count(samples)).sum();
        let least = (LEAST_SHARE * all as f64).max(1.0);
        let heavy = self.modules.iter().filter(|(_, samples)| count(samples) as f64 >= least);
        let modules = heavy.filter_map(|(module, samples)| module_profile(module, samples));
        ProfileFile { modules: modules.filter(|m| !m.blocks.is_empty()).collect() }
    }
}

fn module_profile(module: &Module, samples: &BranchSamples) -> Option<ModuleProfile> {
    let analyzed = analyze_image(module.image.clone()).ok()?;
    let (profile, _) = samples.to_profile(&analyzed.program);
    let build_id = module.image.build_id().map(|b| b.as_bytes().to_vec()).unwrap_or_default();
    Some(ModuleProfile::of(&analyzed.program, &profile, &build_id, &module.path.to_string_lossy()))
}

/// The descriptors in a section, as the loader has relocated them: u32 version, flags; u64 start, length, abort.
fn critical_sections(memory: &Memory, bias: LoadBias, section: SvmaRange) -> Vec<AvmaRange> {
    const ENTRY: usize = 32;
    let bytes = memory.read_vec(bias.to_actual(section.start), section.len().min(1 << 20) as usize);
    let word = |entry: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
    let range = |entry: &[u8]| AvmaRange::new(Avma::new(word(entry, 8)), word(entry, 16));
    bytes.unwrap_or_default().chunks_exact(ENTRY).map(range).filter(|r| !r.is_empty()).collect()
}
