//! `record --source ip` and `--source lbr`: a profile of what the kernel samples. The process is not changed,
//! and not even stopped.
//!
//! **What it costs** is how many samples are taken times what one costs, so that is measured first, and as
//! many are taken as fit into the share of the time that it may cost ([`Rate`]).
//!
//! **Processes** come and go: a command's are sampled with whatever they start and execute, and the kernel
//! tells what they map, so those count, too, that have ended when their samples are read. A process in a
//! layout of restitch's is sampled where the original code is that stands for it.
//!
//! **Limits.** The loader's own work, before a command's program begins, is not sampled. What `ip` gives has
//! no branches: how often edges were taken is an estimate ([`restitch_profile::repair()`]), and code that no
//! sample has met counts as never executed.

use crate::branch_records::BranchRecords;
use crate::trace_record::TraceRecordOptions;
use crate::trace_record::TraceSubject;
use crate::trace_record::{exit_status, in_processes, launch_holding};
use restitch_apply::explained;
use restitch_apply_process::VersionMaps;
use restitch_perf::{Record, Sample, SampleEvent, max_sample_rate, sample_cost};
use restitch_pipeline::Watcher;
use restitch_pipeline::profiles::ProfileOutput;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_processes::no_file::in_no_file;
use restitch_processes::process_family::at_work;
use restitch_processes::process_set::{ProcessSet, refuse_stopped};
use restitch_processes::sampler::Sampler;
use restitch_processes::source::SourceChoice;
use restitch_procfs::{self as procfs, Mapping, MappingName, Permissions};
use restitch_report::Samples;
use restitch_trace::Sink;
use restitch_tracee::AskedToEnd;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long samples lie about, at most, before they are read: long enough to cost nothing, and short enough
/// to ask a process what it has mapped.
const STEP: Duration = Duration::from_millis(50);

/// How often samples are taken.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Samples a second of a thread's running.
    pub per_second: u64,
    /// What one costs.
    pub cost: Duration,
    /// They come with branch records of the hardware.
    pub stacks: bool,
}

impl Rate {
    /// As often as a share of the running time pays for, and the kernel permits.
    ///
    /// # Errors
    /// If sampling is not permitted.
    pub fn within(overhead: f64, source: SourceChoice) -> Result<Self, SessionError> {
        let stacks = source == SourceChoice::Lbr;
        let cost = sample_cost(SampleEvent::Auto, stacks)?;
        Ok(Self { stacks, ..Self::of(overhead, cost, max_sample_rate()) })
    }

    fn of(overhead: f64, cost: Duration, most: u64) -> Self {
        // What is too little to be told is not nothing.
        const LEAST: Duration = Duration::from_micros(1);
        let cost = cost.max(LEAST);
        let per_second = ((overhead / cost.as_secs_f64()).round() as u64).clamp(1, most.max(1));
        Self { per_second, cost, stacks: false }
    }

    /// Each so often instead, or as often as the kernel permits.
    fn each(self, time: Duration) -> Self {
        let per_second = (1.0 / time.as_secs_f64()).round() as u64;
        Self { per_second: per_second.clamp(1, max_sample_rate()), ..self }
    }

    /// The share of the running time that it costs.
    pub fn overhead(self) -> f64 {
        self.per_second as f64 * self.cost.as_secs_f64()
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Sampled {
    /// The source.
    pub source: SourceChoice,
    /// What there is to tell of the samples.
    pub told: Samples,
    /// Processes with samples.
    pub processes: usize,
    /// Modules in the profile.
    pub modules: usize,
    /// The command's exit status as a shell gives it, if a command was sampled.
    pub status: Option<i32>,
}

/// Samples, and writes the profile file whole or not at all.
///
/// # Errors
/// [`SessionError`]. The process was not changed.
pub fn record_sampled(
    options: TraceRecordOptions,
    source: SourceChoice,
    watcher: &mut dyn Watcher,
) -> Result<Sampled, SessionError> {
    restitch_pipeline::disk::check_writable(&options.output.path)?;
    let of_itself = |error| SessionError::unsampled("restitch itself, to know what a sample costs", error);
    let mut rate = Rate::within(options.how.overhead, source).map_err(of_itself)?;
    if let Some(period) = options.how.period {
        rate = rate.each(period.time()?);
    }
    let take = |sampler: &Sampler| Taking::new(source, &options.output, sampler.event(), rate);
    let (taken, status) = match options.subject {
        TraceSubject::Process(pid, duration) => (of_set(pid, false, duration, rate, take, watcher)?, None),
        TraceSubject::Tree(pid, duration) => (of_set(pid, true, duration, rate, take, watcher)?, None),
        TraceSubject::Command(command) => {
            let (taken, status) = of_command(command, rate, take, watcher)?;
            (taken, Some(status))
        }
    };
    watcher.phase("analysing", None);
    taken.finish(rate, status, &options.output, watcher)
}

/// Samples a process, or all that run its program.
fn of_set(
    named: i32,
    tree: bool,
    duration: Duration,
    rate: Rate,
    take: impl FnOnce(&Sampler) -> Taking,
    watcher: &mut dyn Watcher,
) -> Result<Taking, SessionError> {
    let family = at_work(named, tree, watcher);
    if !tree {
        refuse_stopped(family.leader)?;
    }
    let set = ProcessSet::open_to_look(family.leader, tree)?;
    family.warnings().iter().chain(&set.left_out()).for_each(|told| watcher.note(told));
    watcher.phase("sampling", Some(duration.as_secs_f64()));
    let of_process = |error| SessionError::unsampled(format!("process {}", family.leader), error);
    let mut sampler = Sampler::of(&set, rate.per_second, rate.stacks).map_err(of_process)?;
    let mut taking = take(&sampler);
    set.pids().into_iter().for_each(|pid| taking.open(pid));
    let mut maps = VersionMaps::default();
    let end = Instant::now() + duration;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        sampler.wait(left.min(STEP));
        taking.take_all(sampler.drain(), Some((&set, &mut maps)));
        if !set.leader_is_alive() || AskedToEnd::signal().is_some() {
            break;
        }
    }
    sampler.end().map_err(of_process)?;
    taking.take_all(sampler.drain(), Some((&set, &mut maps)));
    if taking.records.modules() == 0 && AskedToEnd::signal().is_none() {
        set.verify_leader()?;
    }
    if tree {
        watcher.note(&in_processes(&taking.records));
    }
    Ok(taking)
}

/// Samples a command from its program's entry point to its end, with all that it starts meanwhile.
fn of_command(
    command: Command,
    rate: Rate,
    take: impl FnOnce(&Sampler) -> Taking,
    watcher: &mut dyn Watcher,
) -> Result<(Taking, i32), SessionError> {
    watcher.phase("sampling", None);
    let name = command.get_program().to_string_lossy().into_owned();
    let (process, opened) = launch_holding(command, |process| {
        let of_command = |error| SessionError::unsampled(&name, error);
        let sampler =
            Sampler::of_threads(&[process.pid], rate.per_second, rate.stacks).map_err(of_command)?;
        let mut taking = take(&sampler);
        taking.open(process.pid);
        Ok::<_, SessionError>((sampler, taking))
    })?;
    let (mut sampler, mut taking) = match opened {
        Ok(opened) => opened,
        // The command is not to be taken down with us.
        Err(error) => {
            exit_status(None, process)?;
            return Err(error);
        }
    };
    while !procfs::has_ended(process.pid) {
        sampler.wait(STEP);
        taking.take_all(sampler.drain(), None);
    }
    let unknown = |error: SessionError| SessionError::Command {
        command: name.clone(),
        why: explained(format!("waiting for its end: {error}; no profile is written"), error),
    };
    let status = exit_status(None, process).map_err(unknown)?;
    sampler.end().map_err(|error| SessionError::unsampled(&name, error))?;
    taking.take_all(sampler.drain(), None);
    Ok((taking, status))
}

/// Samples that are being taken in.
struct Taking {
    source: SourceChoice,
    records: BranchRecords,
    samples: u64,
    stacks: u64,
    lost: u64,
}

impl Taking {
    fn new(source: SourceChoice, output: &ProfileOutput, event: SampleEvent, rate: Rate) -> Self {
        let records = match source {
            SourceChoice::Lbr => BranchRecords::for_output(output),
            _ => BranchRecords::of_samples_for(output, event, rate.per_second),
        };
        Self { source, records, samples: 0, stacks: 0, lost: 0 }
    }

    /// A process that is there: what it has mapped.
    fn open(&mut self, pid: i32) {
        // One that has just ended has no samples either.
        let _ = self.records.open(pid);
    }

    /// Takes records in; samples in versions of a set's processes count where the original code is.
    fn take_all(&mut self, records: Vec<Record>, mut set: Option<(&ProcessSet, &mut VersionMaps)>) {
        for record in records {
            match record {
                Record::Sample(sample) => {
                    let original =
                        set.as_mut().and_then(|(set, maps)| set.original(maps, sample.pid, sample.ip));
                    self.take(Sample { ip: original.unwrap_or(sample.ip), ..sample });
                }
                Record::Mmap { pid, range, offset, device, inode, path, .. } => {
                    let name = MappingName::File { path, deleted: false };
                    let permissions = Permissions { read: true, write: false, execute: true, shared: false };
                    self.records.mapped(pid, &Mapping { range, permissions, offset, device, inode, name });
                }
                Record::Fork { pid, parent_pid, .. } if pid != parent_pid => {
                    self.records.forked(pid, parent_pid)
                }
                Record::Exec { pid, .. } => self.records.told_executed(pid),
                Record::Lost { count } => self.lost += count,
                _ => {}
            }
        }
    }

    fn take(&mut self, sample: Sample) {
        self.samples += 1;
        if self.source == SourceChoice::Ip {
            self.records.add_sample(sample.pid, sample.tid, sample.ip);
        } else if !sample.branches.is_empty() {
            self.stacks += 1;
            self.records.add_stack(&sample);
        }
    }

    fn finish(
        self,
        rate: Rate,
        status: Option<i32>,
        output: &ProfileOutput,
        watcher: &mut dyn Watcher,
    ) -> Result<Sampled, SessionError> {
        let Self { source, records, samples, stacks, lost } = self;
        let (modules, counted, processes) = (records.modules(), records.branches(), records.processes());
        let (elsewhere, in_vdso) = (records.elsewhere, records.in_vdso());
        if modules == 0 {
            heed()?;
            if let Some(error) = in_no_file("the process", elsewhere, samples.max(elsewhere)) {
                return Err(error);
            }
            let why = match (source, stacks) {
                (SourceChoice::Lbr, 0) if samples > 0 => {
                    format!("{samples} samples came without branch records; use --source trace, burst or count")
                }
                _ => "the process used too little CPU time to be sampled; try again under load, for longer, or with more --overhead".into(),
            };
            return Err(SessionError::nothing_to_do(why));
        }
        let of_branches = (source == SourceChoice::Lbr).then(|| records.coverage());
        let of_samples = records.save(output, watcher)?;
        let branches = if source == SourceChoice::Lbr { counted + elsewhere + in_vdso } else { 0 };
        let told = Samples {
            source: if source == SourceChoice::Lbr { "lbr" } else { "ip" }.into(),
            samples,
            branches,
            elsewhere,
            in_vdso,
            lost,
            per_second: rate.per_second,
            cost_us: rate.cost.as_secs_f64() * 1e6,
            overhead: rate.overhead(),
            coverage: of_branches.or(of_samples),
        };
        Ok(Sampled { source, told, processes, modules, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_samples_are_taken_as_may_be_paid_and_are_permitted() {
        let of = |overhead, us, most| Rate::of(overhead, Duration::from_micros(us), most);
        assert_eq!(of(0.01, 10, 50_000).per_second, 1000);
        assert!((of(0.01, 10, 50_000).overhead() - 0.01).abs() < 1e-9);
        assert_eq!(of(0.01, 100, 50_000).per_second, 100);
        assert_eq!(of(0.5, 1, 4000).per_second, 4000);
        // Too cheap to be told; too dear for the budget; a kernel that permits none.
        assert_eq!(of(0.01, 0, 50_000).per_second, 10_000);
        assert_eq!(of(0.0001, 1000, 50_000).per_second, 1);
        assert_eq!(of(0.01, 10, 0).per_second, 1);
    }
}
