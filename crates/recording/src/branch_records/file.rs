//! Branch records as they came, in the form in which `perf` records those of the hardware.

use restitch_address::{Avma, AvmaRange, FileOffset, PAGE};
use restitch_apply_process::Module;
use restitch_perf::SampleEvent;
use restitch_procfs as procfs;
use restitch_profile_formats::{PerfDataWriter, PerfMapping, PerfSample, SampledEvent, TakenBranch};
use restitch_trace::Taken;
use std::collections::BTreeSet;
use std::time::Instant;

/// Bytes of records that are kept in memory; what comes later is counted and left out.
const MOST_BYTES: usize = 1 << 30;

/// Writes what happens in the order in which it happens.
pub(super) struct RecordFile {
    writer: PerfDataWriter,
    begun: Instant,
    /// Time of the last record, in nanoseconds: times only rise.
    time: u64,
    named: BTreeSet<(i32, i32)>,
    samples: u64,
    left_out: u64,
}

impl RecordFile {
    /// Stacks of `depth`: a longer record makes several samples.
    pub fn new(depth: usize) -> Self {
        Self::of(PerfDataWriter::new(depth, depth as u64))
    }

    /// Samples of instructions alone, so many a second.
    pub fn of_samples(event: SampleEvent, per_second: u64) -> Self {
        Self::of(match event {
            SampleEvent::CpuClock => {
                PerfDataWriter::of_samples(SampledEvent::CpuClock, 1_000_000_000 / per_second.max(1))
            }
            // How many cycles lie between two samples changes with the processor's frequency: each counts
            // once.
            _ => PerfDataWriter::of_samples(SampledEvent::Cycles, 1),
        })
    }

    fn of(mut writer: PerfDataWriter) -> Self {
        writer.command_line(["restitch", "record"].map(String::from));
        let (begun, named) = (Instant::now(), BTreeSet::new());
        Self { writer, begun, time: 1, named, samples: 0, left_out: 0 }
    }

    /// Nanoseconds since the beginning.
    fn now(&mut self) -> u64 {
        self.time = (self.begun.elapsed().as_nanos() as u64).max(self.time + 1);
        self.time
    }

    fn name(&mut self, pid: i32, tid: i32, executed: bool) {
        if self.named.insert((pid, tid)) || executed {
            let name = procfs::thread_status(pid, tid).map(|status| status.name).unwrap_or_default();
            let time = self.now();
            self.writer.command(pid as u32, tid as u32, time, &name, executed);
        }
    }

    /// A process has a module mapped.
    pub fn mapped(&mut self, pid: i32, module: &Module) {
        self.name(pid, pid, false);
        let build_id = module.image.build_id().map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let path = module.path.display().to_string();
        for segment in module.image.segments().iter().filter(|s| s.executable) {
            let start = segment.range.start.align_down(PAGE);
            let ahead = segment.range.start.get() - start.get();
            let len = (segment.range.len() + ahead).next_multiple_of(PAGE);
            let time = self.now();
            self.writer.mapping(&PerfMapping {
                pid: pid as u32,
                tid: pid as u32,
                time,
                range: AvmaRange::new(module.bias.to_actual(start), len),
                offset: FileOffset::new(segment.file_offset.get().saturating_sub(ahead)),
                path: &path,
                build_id: &build_id,
            });
        }
    }

    /// A process was made: it has the mappings of its parent.
    pub fn forked(&mut self, pid: i32, parent: i32) {
        let time = self.now();
        self.writer.fork(pid as u32, pid as u32, parent as u32, parent as u32, time);
    }

    /// A process executes a program: it has no mappings any more.
    pub fn executed(&mut self, pid: i32) {
        self.name(pid, pid, true);
    }

    /// A record, oldest branch first.
    pub fn add(&mut self, pid: i32, tid: i32, branches: &[Taken]) {
        for part in branches.chunks(self.writer.depth().max(1)) {
            let stack: Vec<TakenBranch> = part.iter().rev().map(taken).collect();
            let ip = stack.first().map_or(Avma::new(0), |newest| newest.to);
            self.sample(pid, tid, ip, &stack);
        }
    }

    /// What the kernel has sampled: where the thread was, and its last branches, newest first, if it tells
    /// them.
    pub fn sample(&mut self, pid: i32, tid: i32, ip: Avma, branches: &[TakenBranch]) {
        if self.writer.bytes() > MOST_BYTES {
            self.left_out += 1;
            return;
        }
        self.name(pid, tid, false);
        let time = self.now();
        self.writer.sample(&PerfSample { pid: pid as u32, tid: tid as u32, time, ip, branches });
        self.samples += 1;
    }

    /// What was written, for people.
    pub fn describe(&self) -> String {
        let left_out = match self.left_out {
            0 => String::new(),
            n => format!("; {n} more were left out, because the file would be larger than 1 GiB"),
        };
        match self.writer.depth() {
            0 => format!("{} samples{left_out}", self.samples),
            depth => format!("{} branch stacks of up to {depth} branches{left_out}", self.samples),
        }
    }

    /// The bytes of the file.
    pub fn finish(self) -> Vec<u8> {
        self.writer.finish()
    }
}

fn taken(branch: &Taken) -> TakenBranch {
    TakenBranch { from: branch.from, to: branch.to, mispredicted: None }
}
