//! The records in a ring (perf_event_open(2), "MMAP layout"), parsed.

use restitch_address::{Avma, AvmaRange, FileOffset};
use restitch_procfs::Device;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One taken branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// Address of the branch instruction.
    pub from: Avma,
    /// Where it went.
    pub to: Avma,
    /// Whether the processor had predicted it wrongly.
    pub mispredicted: bool,
}

/// One sample.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// What it was about to execute.
    pub ip: Avma,
    /// Nanoseconds of the kernel's `perf` clock.
    pub time: u64,
    /// Where the kernel's functions on the stack return to, the innermost first; empty unless asked for.
    pub callers: Vec<Avma>,
    /// The last taken branches, newest first; empty unless asked for.
    pub branches: Vec<Branch>,
}

/// Something that the kernel reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A sample.
    Sample(Sample),
    /// A process mapped executable memory.
    Mmap {
        /// The process.
        pid: i32,
        /// The thread that did it.
        tid: i32,
        /// Where.
        range: AvmaRange,
        /// Which byte of the file is at the start.
        offset: FileOffset,
        /// The file's device.
        device: Device,
        /// The file's inode.
        inode: u64,
        /// The file, or a name in brackets or slashes that the kernel makes up.
        path: PathBuf,
        /// When.
        time: u64,
    },
    /// A thread or process was started.
    Fork {
        /// Its process.
        pid: i32,
        /// Its number.
        tid: i32,
        /// The process that started it.
        parent_pid: i32,
        /// When.
        time: u64,
    },
    /// A process executes another program, whose mappings follow: what was mapped before is gone.
    Exec {
        /// The process.
        pid: i32,
        /// When.
        time: u64,
    },
    /// A thread or process ended.
    Exit {
        /// Its process.
        pid: i32,
        /// Its number.
        tid: i32,
        /// When.
        time: u64,
    },
    /// A thread has ended, and its event has counted so much: processor time in nanoseconds, in user and
    /// system, if that is what it samples by. There is one of each processor's event, and they may come after
    /// [`Exit`](Self::Exit).
    Time {
        /// Its process.
        pid: i32,
        /// Its number.
        tid: i32,
        /// What was counted.
        value: u64,
        /// When.
        time: u64,
    },
    /// So many records did not fit into the ring.
    Lost {
        /// Number of records.
        count: u64,
    },
    /// The kernel halted or restarted sampling because it came too often.
    Throttle,
    /// A record of a kind that is not used here.
    Other {
        /// Its type number.
        kind: u32,
    },
}

impl Record {
    /// When it happened, if the record tells.
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Sample(sample) => Some(sample.time),
            Self::Mmap { time, .. }
            | Self::Fork { time, .. }
            | Self::Exec { time, .. }
            | Self::Exit { time, .. }
            | Self::Time { time, .. } => Some(*time),
            _ => None,
        }
    }
}

/// Which fields the records have: what was asked for when the event was opened. Samples hold address, thread
/// and time always; other records end in thread and time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordLayout {
    /// Samples have the kernel's stack behind them.
    pub callers: bool,
    /// Samples end in a branch stack.
    pub branches: bool,
}

const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const THROTTLE: u32 = 5;
const UNTHROTTLE: u32 = 6;
const FORK: u32 = 7;
const READ: u32 = 8;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
/// Thread and time behind every record that is no sample.
const TRAILER: usize = 16;
/// `PERF_RECORD_MISC_COMM_EXEC`: the name is new because another program is.
const MISC_EXEC: u16 = 1 << 13;
/// One `perf_branch_entry`.
const BRANCH: usize = 24;

/// Parses one record, given its type, the `misc` word of its header, and the bytes behind that 8-byte header.
/// `None` for one that is too short for what it claims to hold.
pub fn parse_record(kind: u32, misc: u16, body: &[u8], layout: RecordLayout) -> Option<Record> {
    let mut cursor = Cursor(body);
    match kind {
        SAMPLE => sample(&mut cursor, layout).map(Record::Sample),
        MMAP2 => mmap(body),
        COMM if misc & MISC_EXEC != 0 => exec(body),
        FORK | EXIT => task(kind, &mut cursor),
        READ => read(&mut cursor),
        LOST => {
            cursor.u64()?;
            Some(Record::Lost { count: cursor.u64()? })
        }
        THROTTLE | UNTHROTTLE => Some(Record::Throttle),
        kind => Some(Record::Other { kind }),
    }
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

fn sample(cursor: &mut Cursor<'_>, layout: RecordLayout) -> Option<Sample> {
    let ip = Avma::new(cursor.u64()?);
    let (pid, tid, time) = (cursor.i32()?, cursor.i32()?, cursor.u64()?);
    let callers = if layout.callers { callers(cursor)? } else { Vec::new() };
    let branches = if layout.branches { branches(cursor)? } else { Vec::new() };
    Some(Sample { pid, tid, ip, time, callers, branches })
}

/// A chain of callers: it begins with the sampled address itself, and has marks of where it goes over to
/// other code, which are the highest addresses.
fn callers(cursor: &mut Cursor<'_>) -> Option<Vec<Avma>> {
    const MARKS: u64 = -4095_i64 as u64;
    let count = usize::try_from(cursor.u64()?).ok()?;
    if count > cursor.0.len() / size_of::<u64>() {
        return None;
    }
    let all: Option<Vec<u64>> = (0..count).map(|_| cursor.u64()).collect();
    Some(all?.into_iter().filter(|at| *at < MARKS).skip(1).map(Avma::new).collect())
}

fn branches(cursor: &mut Cursor<'_>) -> Option<Vec<Branch>> {
    let count = usize::try_from(cursor.u64()?).ok()?;
    if count > cursor.0.len() / BRANCH {
        return None;
    }
    let one = |cursor: &mut Cursor<'_>| {
        let (from, to, flags) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        Some(Branch { from: Avma::new(from), to: Avma::new(to), mispredicted: flags & 1 != 0 })
    };
    (0..count).map(|_| one(cursor)).collect()
}

fn mmap(body: &[u8]) -> Option<Record> {
    let (fixed, trailer) = body.split_at(body.len().checked_sub(TRAILER)?);
    let mut cursor = Cursor(fixed);
    let (pid, tid) = (cursor.i32()?, cursor.i32()?);
    let (start, len, offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let (major, minor, inode, _generation) = (cursor.u32()?, cursor.u32()?, cursor.u64()?, cursor.u64()?);
    let (_protection, _flags) = (cursor.u32()?, cursor.u32()?);
    let name = cursor.0.split(|&byte| byte == 0).next().unwrap_or_default();
    Some(Record::Mmap {
        pid,
        tid,
        range: AvmaRange::new(Avma::new(start), len),
        offset: FileOffset::new(offset),
        device: Device { major, minor },
        inode,
        path: PathBuf::from(OsString::from_vec(name.to_vec())),
        time: Cursor(&trailer[8..]).u64()?,
    })
}

fn exec(body: &[u8]) -> Option<Record> {
    let (fixed, trailer) = body.split_at(body.len().checked_sub(TRAILER)?);
    Some(Record::Exec { pid: Cursor(fixed).i32()?, time: Cursor(&trailer[8..]).u64()? })
}

fn task(kind: u32, cursor: &mut Cursor<'_>) -> Option<Record> {
    let (pid, parent_pid, tid, _parent_tid) = (cursor.i32()?, cursor.i32()?, cursor.i32()?, cursor.i32()?);
    let time = cursor.u64()?;
    Some(match kind {
        FORK => Record::Fork { pid, tid, parent_pid, time },
        _ => Record::Exit { pid, tid, time },
    })
}

fn read(cursor: &mut Cursor<'_>) -> Option<Record> {
    let (pid, tid, value) = (cursor.i32()?, cursor.i32()?, cursor.u64()?);
    cursor.take::<8>()?;
    Some(Record::Time { pid, tid, value, time: cursor.u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BRANCHES: RecordLayout = RecordLayout { callers: false, branches: true };

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn pair(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    #[test]
    fn a_sample_with_branches_is_read() {
        let body = words(&[0x1000, pair(7, 8), 99, 2, 0x10, 0x20, 1, 0x30, 0x40, 2]);
        let Some(Record::Sample(sample)) = parse_record(SAMPLE, 0, &body, BRANCHES) else {
            panic!("no sample");
        };
        assert_eq!((sample.pid, sample.tid, sample.ip, sample.time), (7, 8, Avma::new(0x1000), 99));
        let found: Vec<_> =
            sample.branches.iter().map(|b| (b.from.get(), b.to.get(), b.mispredicted)).collect();
        assert_eq!(found, [(0x10, 0x20, true), (0x30, 0x40, false)]);
        assert!(parse_record(SAMPLE, 0, &body[..72], BRANCHES).is_none());
        assert!(parse_record(SAMPLE, 0, &words(&[1, 2, 3, u64::MAX]), BRANCHES).is_none());
    }

    #[test]
    fn a_sample_with_callers_is_read() {
        const MARK_OF_KERNEL: u64 = -128_i64 as u64;
        let body =
            words(&[0x1000, pair(7, 8), 99, 4, MARK_OF_KERNEL, 0x1000, 0x2000, 0x3000, 1, 0x10, 0x20, 0]);
        let layout = RecordLayout { callers: true, branches: true };
        let Some(Record::Sample(sample)) = parse_record(SAMPLE, 0, &body, layout) else {
            panic!("no sample");
        };
        assert_eq!(sample.callers, [0x2000, 0x3000].map(Avma::new));
        assert_eq!(sample.branches.len(), 1);
        assert!(parse_record(SAMPLE, 0, &body[..56], layout).is_none());
        assert!(parse_record(SAMPLE, 0, &words(&[1, 2, 3, u64::MAX]), layout).is_none());
    }

    #[test]
    fn a_mapping_is_read_with_its_name_and_time() {
        let mut body = words(&[pair(7, 8), 0x4000, 0x2000, 0x1000, pair(8, 1), 55, 0, pair(5, 2)]);
        body.extend(b"/bin/x\0\0");
        body.extend(words(&[pair(7, 8), 77]));
        let Some(Record::Mmap { pid, range, offset, device, inode, path, time, .. }) =
            parse_record(MMAP2, 0, &body, RecordLayout::default())
        else {
            panic!("no mapping");
        };
        assert_eq!((pid, offset.get(), inode, time), (7, 0x1000, 55, 77));
        assert_eq!((device.major, device.minor), (8, 1));
        assert_eq!(range, AvmaRange::new(Avma::new(0x4000), 0x2000));
        assert_eq!(path, PathBuf::from("/bin/x"));
    }

    #[test]
    fn forks_exits_and_losses_are_read() {
        let body = words(&[pair(7, 6), pair(8, 9), 5]);
        let layout = RecordLayout::default();
        assert_eq!(
            parse_record(FORK, 0, &body, layout),
            Some(Record::Fork { pid: 7, tid: 8, parent_pid: 6, time: 5 })
        );
        assert_eq!(parse_record(EXIT, 0, &body, layout), Some(Record::Exit { pid: 7, tid: 8, time: 5 }));
        assert_eq!(parse_record(LOST, 0, &words(&[1, 42]), layout), Some(Record::Lost { count: 42 }));
        assert_eq!(parse_record(LOST, 0, &[0; 15], layout), None);
    }

    #[test]
    fn what_an_ended_thread_has_counted_is_read() {
        let body = words(&[pair(7, 8), 1234, pair(7, 8), 99]);
        let read = |body: &[u8]| parse_record(READ, 0, body, RecordLayout::default());
        assert_eq!(read(&body), Some(Record::Time { pid: 7, tid: 8, value: 1234, time: 99 }));
        assert_eq!(read(&body[..31]), None);
    }

    #[test]
    fn only_names_that_come_with_a_program_tell_of_one() {
        let body = words(&[pair(7, 7), u64::from_ne_bytes(*b"program\0"), pair(7, 7), 5]);
        let read = |misc, body: &[u8]| parse_record(COMM, misc, body, RecordLayout::default());
        assert_eq!(read(MISC_EXEC, &body), Some(Record::Exec { pid: 7, time: 5 }));
        assert_eq!(read(0, &body), Some(Record::Other { kind: COMM }));
        assert_eq!(read(MISC_EXEC, &body[..19]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]
        #[test]
        fn any_bytes_are_read_without_panic(kind in 0u32..24, misc: u16, body in proptest::collection::vec(any::<u8>(), 0..160), callers: bool, branches: bool) {
            let record = parse_record(kind, misc, &body, RecordLayout { callers, branches });
            if let Some(Record::Sample(sample)) = record {
                prop_assert!(sample.branches.len() * BRANCH <= body.len());
            }
        }
    }
}
