//! Writing `perf.data`: samples with branch stacks, as if the processor recorded the last N taken branches.
//!
//! **What you do**: make a [`PerfDataWriter`], tell it processes and mappings, hand it samples, take the
//! bytes. **What it does**: one event `cycles:u` with the sample type `IP|TID|TIME|PERIOD|BRANCH_STACK`,
//! MMAP2 and COMM records, the build-id table, and the feature bits that `perf report` wants for branch
//! stacks. Or samples of instructions alone ([`PerfDataWriter::of_samples`]), of `cycles:u` or `cpu-clock:u`.
//! Any depth can be written; `perf report --branch-history` skips stacks of more than 127 records
//! (`PERF_MAX_BRANCH_DEPTH`), `perf script` and `perf2bolt` take all.
//!
//! Format: `tools/perf/Documentation/perf.data-file-format.txt`, `perf_event_open(2)`.

use restitch_address::{Avma, AvmaRange, FileOffset};
use std::collections::BTreeMap;

/// The deepest stack that fits into one record, whose size is 16 bits.
pub const MAX_DEPTH: usize = 2048;

/// A taken branch of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenBranch {
    /// The branch instruction.
    pub from: Avma,
    /// Where it went.
    pub to: Avma,
    /// Whether it was mispredicted, where that is known.
    pub mispredicted: Option<bool>,
}

/// A sample with the branches that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerfSample<'a> {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Nanoseconds of any clock, the same for all records.
    pub time: u64,
    /// Where the thread was.
    pub ip: Avma,
    /// **Newest first**; what is deeper than the writer's depth is cut off.
    pub branches: &'a [TakenBranch],
}

/// A file that a process has mapped as code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerfMapping<'a> {
    /// The process.
    pub pid: u32,
    /// The thread that mapped it.
    pub tid: u32,
    /// When.
    pub time: u64,
    /// Where: whole pages.
    pub range: AvmaRange,
    /// The file offset of the first byte.
    pub offset: FileOffset,
    /// The file.
    pub path: &'a str,
    /// Its GNU build id, at most 20 bytes; empty if it has none.
    pub build_id: &'a [u8],
}

/// What triggers samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledEvent {
    /// The processor's cycles.
    Cycles,
    /// The kernel's clock of a processor, in nanoseconds.
    CpuClock,
}

/// Writes `perf.data` into memory.
#[derive(Debug, Clone)]
pub struct PerfDataWriter {
    event: SampledEvent,
    /// Nothing: samples have no stacks.
    depth: Option<usize>,
    period: u64,
    data: Vec<u8>,
    build_ids: BTreeMap<String, Vec<u8>>,
    command_line: Vec<String>,
}

const IP: u64 = 1;
const TID: u64 = 2;
const TIME: u64 = 4;
const PERIOD: u64 = 1 << 8;
const BRANCH_STACK: u64 = 1 << 11;
const BRANCH_USER: u64 = 1;
/// `PERF_TYPE_HARDWARE` and `PERF_TYPE_SOFTWARE`.
const HARDWARE: u64 = 0;
const SOFTWARE: u64 = 1;
const BRANCH_ANY: u64 = 1 << 3;

/// Bits of `perf_event_attr`: inherit, exclude_kernel, exclude_hv, mmap, comm, task, sample_id_all, mmap2,
/// comm_exec.
const ATTR_FLAGS: u64 = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24;
const ATTR_SIZE: u64 = 128;
const HEADER_SIZE: u64 = 104;

const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const HEADER_BUILD_ID: u32 = 67;
const USER: u16 = 2;
const COMM_EXEC: u16 = 1 << 13;
const MMAP_BUILD_ID: u16 = 1 << 14;
const BUILD_ID_SIZE: u16 = 1 << 15;

impl PerfDataWriter {
    /// A writer of stacks with at most `depth` records (1 to [`MAX_DEPTH`], anything else is brought into
    /// it), one sample for `period` events.
    pub fn new(depth: usize, period: u64) -> Self {
        Self::with(SampledEvent::Cycles, Some(depth.clamp(1, MAX_DEPTH)), period)
    }

    /// A writer of samples without stacks, one for `period` events (of cycles, or nanoseconds).
    pub fn of_samples(event: SampledEvent, period: u64) -> Self {
        Self::with(event, None, period)
    }

    fn with(event: SampledEvent, depth: Option<usize>, period: u64) -> Self {
        Self {
            event,
            depth,
            period: period.max(1),
            data: Vec::new(),
            build_ids: BTreeMap::new(),
            command_line: vec!["restitch".into()],
        }
    }

    /// The command line that the file says made it.
    pub fn command_line(&mut self, words: impl IntoIterator<Item = String>) {
        self.command_line = words.into_iter().collect();
    }

    /// The largest number of records in a stack; 0, if samples have none.
    pub fn depth(&self) -> usize {
        self.depth.unwrap_or(0)
    }

    /// Bytes of records so far.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// A thread has this name, since an `exec` if `exec`.
    pub fn command(&mut self, pid: u32, tid: u32, time: u64, name: &str, exec: bool) {
        let mut body = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        let end = (0..=15.min(name.len())).rev().find(|i| name.is_char_boundary(*i)).unwrap_or(0);
        put_name(&mut body, &name[..end], 8);
        self.other(COMM, if exec { COMM_EXEC } else { 0 }, body, pid, tid, time);
    }

    /// A process or thread was made by another.
    pub fn fork(&mut self, pid: u32, tid: u32, parent: u32, parent_tid: u32, time: u64) {
        let mut body: Vec<u8> = [pid, parent, tid, parent_tid].iter().flat_map(|w| w.to_le_bytes()).collect();
        body.extend(time.to_le_bytes());
        self.other(FORK, 0, body, pid, tid, time);
    }

    /// A file was mapped.
    pub fn mapping(&mut self, mapping: &PerfMapping<'_>) {
        let &PerfMapping { pid, tid, time, range, offset, path, build_id } = mapping;
        let mut body = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        for word in [range.start.get(), range.len(), offset.get()] {
            body.extend(word.to_le_bytes());
        }
        let mut misc = USER;
        let mut identity = [0u8; 24];
        if !build_id.is_empty() && build_id.len() <= 20 {
            misc |= MMAP_BUILD_ID;
            identity[0] = build_id.len() as u8;
            identity[4..4 + build_id.len()].copy_from_slice(build_id);
            self.build_ids.insert(path.into(), build_id.into());
        }
        body.extend(identity);
        body.extend([5, 0, 0, 0, 2, 0, 0, 0]); // PROT_READ|PROT_EXEC, MAP_PRIVATE
        put_name(&mut body, path, 8);
        self.other(MMAP2, misc, body, pid, tid, time);
    }

    /// A sample.
    pub fn sample(&mut self, sample: &PerfSample<'_>) {
        let stack = &sample.branches[..sample.branches.len().min(self.depth())];
        let mut body = Vec::with_capacity(48 + stack.len() * 24);
        body.extend(sample.ip.get().to_le_bytes());
        body.extend(sample.pid.to_le_bytes());
        body.extend(sample.tid.to_le_bytes());
        for word in [sample.time, self.period] {
            body.extend(word.to_le_bytes());
        }
        if self.depth.is_some() {
            body.extend((stack.len() as u64).to_le_bytes());
        }
        for branch in stack {
            let flags = match branch.mispredicted {
                Some(true) => 1u64,
                Some(false) => 2,
                None => 0,
            };
            for word in [branch.from.get(), branch.to.get(), flags] {
                body.extend(word.to_le_bytes());
            }
        }
        self.record(SAMPLE, USER, &body);
    }

    /// A record that is no sample: it ends with thread and time (`sample_id_all`).
    fn other(&mut self, kind: u32, misc: u16, mut body: Vec<u8>, pid: u32, tid: u32, time: u64) {
        body.extend(pid.to_le_bytes());
        body.extend(tid.to_le_bytes());
        body.extend(time.to_le_bytes());
        self.record(kind, misc, &body);
    }

    fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        // Paths and stacks are bounded, so that a record always fits; a longer path than the system allows is
        // dropped.
        let Ok(size) = u16::try_from(body.len() + 8) else { return };
        self.data.extend(kind.to_le_bytes());
        self.data.extend(misc.to_le_bytes());
        self.data.extend(size.to_le_bytes());
        self.data.extend(body);
    }

    /// The bytes of the file.
    pub fn finish(self) -> Vec<u8> {
        let attrs_at = HEADER_SIZE;
        let attrs_len = ATTR_SIZE + 16;
        let data_at = attrs_at + attrs_len;
        let features = self.features();
        let bits = features.iter().fold(0u64, |bits, (bit, _)| bits | 1 << bit);
        let mut out = Vec::with_capacity(self.data.len() + 4096);
        out.extend(b"PERFILE2");
        let data_len = self.data.len() as u64;
        for word in [HEADER_SIZE, attrs_len, attrs_at, attrs_len, data_at, data_len, 0, 0, bits, 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.attr());
        out.extend([0; 16]); // no ids: there is one event
        out.extend(&self.data);
        let mut at = data_at + data_len + 16 * features.len() as u64;
        for (_, content) in &features {
            out.extend(at.to_le_bytes());
            out.extend((content.len() as u64).to_le_bytes());
            at += content.len() as u64;
        }
        features.iter().for_each(|(_, content)| out.extend(content));
        out
    }

    /// `perf_event_attr` of the event: of the hardware cycles, of software the clock, both number 0.
    fn attr(&self) -> Vec<u8> {
        let mut attr = vec![0u8; ATTR_SIZE as usize];
        let mut put = |at: usize, word: u64| attr[at..at + 8].copy_from_slice(&word.to_le_bytes());
        let kind = match self.event {
            SampledEvent::Cycles => HARDWARE,
            SampledEvent::CpuClock => SOFTWARE,
        };
        put(0, ATTR_SIZE << 32 | kind);
        put(16, self.period);
        put(24, IP | TID | TIME | PERIOD);
        put(40, ATTR_FLAGS);
        if self.depth.is_some() {
            put(24, IP | TID | TIME | PERIOD | BRANCH_STACK);
            put(72, BRANCH_USER | BRANCH_ANY);
        }
        attr
    }

    /// Feature sections by bit, in the order of the bits.
    fn features(&self) -> Vec<(u32, Vec<u8>)> {
        let mut build_ids = Vec::new();
        for (path, id) in &self.build_ids {
            let mut body = (-1i32).to_le_bytes().to_vec();
            let mut padded = id.clone();
            padded.resize(20, 0);
            body.extend(padded);
            body.extend([id.len() as u8, 0, 0, 0]);
            put_name(&mut body, path, 64);
            build_ids.extend(HEADER_BUILD_ID.to_le_bytes());
            build_ids.extend((USER | BUILD_ID_SIZE).to_le_bytes());
            build_ids.extend((body.len() as u16 + 8).to_le_bytes());
            build_ids.extend(body);
        }
        let mut command = (self.command_line.len() as u32).to_le_bytes().to_vec();
        self.command_line.iter().for_each(|word| put_string(&mut command, word));
        let string = |text: &str| {
            let mut out = Vec::new();
            put_string(&mut out, text);
            out
        };
        let mut features = vec![
            (2, build_ids),
            (5, string(concat!("restitch ", env!("CARGO_PKG_VERSION")))),
            (6, string("x86_64")),
            (11, command),
            (12, self.event_description()),
        ];
        if self.depth.is_some() {
            features.push((15, Vec::new())); // there are branch stacks
        }
        features
    }

    /// The event's name, for reports.
    fn event_description(&self) -> Vec<u8> {
        let mut out = 1u32.to_le_bytes().to_vec();
        out.extend((ATTR_SIZE as u32).to_le_bytes());
        out.extend(self.attr());
        out.extend(0u32.to_le_bytes());
        put_string(
            &mut out,
            match self.event {
                SampledEvent::Cycles => "cycles:u",
                SampledEvent::CpuClock => "cpu-clock:u",
            },
        );
        out
    }
}

/// A zero-terminated name, filled up to a multiple of `align`.
fn put_name(out: &mut Vec<u8>, name: &str, align: usize) {
    let len = (name.len() + 1).div_ceil(align) * align;
    out.extend(name.as_bytes());
    out.resize(out.len() + len - name.len(), 0);
}

/// A string of the header: length, then bytes filled up with zeros to that length.
fn put_string(out: &mut Vec<u8>, text: &str) {
    let len = (text.len() + 1).div_ceil(64) * 64;
    out.extend((len as u32).to_le_bytes());
    put_name(out, text, 64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_profile::import_perf_data;

    fn example(depth: usize) -> Vec<u8> {
        let mut writer = PerfDataWriter::new(depth, 1000);
        writer.command(7, 7, 1, "program-with-a-long-name", true);
        let range = AvmaRange::new(Avma::new(0x40_1000), 0x2000);
        let (offset, path) = (FileOffset::new(0x1000), "/usr/bin/program");
        writer.mapping(&PerfMapping { pid: 7, tid: 7, time: 2, range, offset, path, build_id: &[9; 20] });
        writer.fork(8, 8, 7, 7, 3);
        let branch =
            |from, to| TakenBranch { from: Avma::new(from), to: Avma::new(to), mispredicted: Some(false) };
        let branches =
            [branch(0x40_1030, 0x40_1000), branch(0x40_1020, 0x40_1024), branch(0x40_1008, 0x40_1010)];
        for pid in [7, 8] {
            writer.sample(&PerfSample {
                pid,
                tid: pid,
                time: 9,
                ip: Avma::new(0x40_1000),
                branches: &branches,
            });
        }
        writer.finish()
    }

    #[test]
    fn what_is_written_is_imported() {
        let samples = import_perf_data(&example(16)).unwrap();
        assert_eq!(
            (samples.samples, samples.malformed, samples.unmapped, samples.branch_stacks),
            (2, 0, 0, 2)
        );
        let module = &samples.modules[0];
        assert_eq!(
            (module.path.as_str(), module.build_id.as_deref()),
            ("/usr/bin/program", Some(&[9u8; 20][..]))
        );
        let at = FileOffset::new;
        assert_eq!(module.branches[&(at(0x1030), at(0x1000))], 2);
        assert_eq!(module.ranges[&(at(0x1024), at(0x1030))], 2);
        assert_eq!(module.ranges[&(at(0x1010), at(0x1020))], 2);
        let shallow = import_perf_data(&example(2)).unwrap();
        assert_eq!(shallow.modules[0].branches.len(), 2);
    }

    #[test]
    fn samples_without_stacks_are_imported() {
        for event in [SampledEvent::Cycles, SampledEvent::CpuClock] {
            let mut writer = PerfDataWriter::of_samples(event, 1000);
            let range = AvmaRange::new(Avma::new(0x40_1000), 0x2000);
            let (offset, path) = (FileOffset::new(0x1000), "/usr/bin/program");
            writer.mapping(&PerfMapping { pid: 7, tid: 7, time: 2, range, offset, path, build_id: &[] });
            for at in [0x40_1010, 0x40_1010, 0x40_1020] {
                writer.sample(&PerfSample { pid: 7, tid: 7, time: 9, ip: Avma::new(at), branches: &[] });
            }
            let read = import_perf_data(&writer.finish()).unwrap();
            assert_eq!((read.samples, read.malformed, read.branch_stacks), (3, 0, 0));
            assert_eq!(read.modules[0].ips[&FileOffset::new(0x1010)], 2);
        }
    }

    #[test]
    fn the_deepest_stack_fits() {
        let mut writer = PerfDataWriter::new(usize::MAX, 0);
        let branch = TakenBranch { from: Avma::new(1), to: Avma::new(2), mispredicted: None };
        let branches = vec![branch; 5000];
        writer.sample(&PerfSample { pid: 1, tid: 1, time: 1, ip: Avma::new(2), branches: &branches });
        assert_eq!(import_perf_data(&writer.finish()).unwrap().branch_stacks, 1);
    }
}
