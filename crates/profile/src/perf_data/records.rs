//! The records of the data section.

use super::attrs::{Format, Formats, sample};
use super::stream::{Raw, Walk};
use super::{Fields, Inode, PerfDataError};

/// What a record says, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    Map(Mapping),
    /// A process was forked.
    Fork {
        pid: u32,
        parent: u32,
    },
    /// A process executes another program: its mappings are gone.
    Exec {
        pid: u32,
    },
    Sample(Sample),
}

/// A range of a process's addresses that a file was mapped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub pid: u32,
    pub start: u64,
    pub len: u64,
    pub page_offset: u64,
    pub path: String,
    pub build_id: Option<Vec<u8>>,
    pub inode: Option<Inode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    pub pid: u32,
    /// `None` for samples outside of user mode.
    pub ip: Option<u64>,
    /// Place of the branch records (24 bytes each) in the data section, and their number.
    pub stack: usize,
    pub records: usize,
}

/// All records, with their times.
#[derive(Default)]
pub(super) struct Found {
    /// In the order of the file, until sorted.
    pub events: Vec<(u64, Event)>,
    pub lost: u64,
    pub malformed: u64,
}

impl Found {
    /// Sorts by time; records of the same time stay in the order of the file.
    pub fn sort_by_time(&mut self) {
        self.events.sort_by_key(|(time, _)| *time);
    }
}

const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const CPU_MODE: u16 = 7;
const USER_MODE: u16 = 2;
const COMM_EXEC: u16 = 1 << 13;
const MMAP_DATA: u16 = 1 << 13;
const MMAP_BUILD_ID: u16 = 1 << 14;
const PROT_EXEC: u32 = 4;

pub(super) fn collect(data: &[u8], formats: &Formats) -> Result<Found, PerfDataError> {
    let mut found = Found::default();
    for record in Walk::new(data) {
        let Raw { kind, misc, body, .. } = record?;
        let start = body.as_ptr() as usize - data.as_ptr() as usize;
        found.add(kind, misc, body, start, formats);
    }
    Ok(found)
}

impl Found {
    fn add(&mut self, kind: u32, misc: u16, body: &[u8], start: usize, formats: &Formats) {
        let event = match kind {
            SAMPLE => formats.of_sample(body).and_then(|format| read_sample(body, misc, start, format)),
            LOST => {
                let mut fields = Fields::new(body);
                let lost = fields.u64().and_then(|_id| fields.u64());
                self.lost = self.lost.saturating_add(lost.unwrap_or(0));
                return;
            }
            COMM if misc & COMM_EXEC == 0 => return,
            MMAP if misc & MMAP_DATA != 0 => return,
            MMAP | MMAP2 | COMM | FORK => {
                let time = formats.of_other(body).map(|format| time_of(body, format));
                time.and_then(|time| Some((time, read_other(kind, misc, body)?)))
            }
            _ => return,
        };
        match event {
            Some(event) => self.events.push(event),
            None => self.malformed += 1,
        }
    }
}

/// The time in the identification that ends a record other than a sample; 0 without one.
fn time_of(body: &[u8], format: Format) -> u64 {
    if !format.sample_id_all || format.sample_type & sample::TIME == 0 {
        return 0;
    }
    let behind = [sample::TIME, sample::ID, sample::STREAM_ID, sample::CPU, sample::IDENTIFIER];
    let size = 8 * behind.iter().filter(|bit| format.sample_type & **bit != 0).count();
    body.len().checked_sub(size).and_then(|at| Fields::new(&body[at..]).u64()).unwrap_or(0)
}

fn read_other(kind: u32, misc: u16, body: &[u8]) -> Option<Event> {
    let mut fields = Fields::new(body);
    let pid = fields.u32()?;
    match kind {
        COMM => return Some(Event::Exec { pid }),
        FORK => return Some(Event::Fork { pid, parent: fields.u32()? }),
        _ => {}
    }
    let _tid = fields.u32()?;
    let (start, len, page_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (mut build_id, mut inode) = (None, None);
    let mut executable = true;
    if kind == MMAP2 {
        let identity = fields.take(24)?;
        if misc & MMAP_BUILD_ID != 0 && identity[0] != 0 {
            build_id = Some(identity[4..4 + usize::from(identity[0]).min(20)].to_vec());
        } else if misc & MMAP_BUILD_ID == 0 {
            inode = Inode::read(identity);
        }
        executable = fields.u32()? & PROT_EXEC != 0;
        let _flags = fields.u32()?;
    }
    // What is mapped as data still covers what was there before.
    let path = if executable { fields.name()? } else { String::new() };
    Some(Event::Map(Mapping { pid, start, len, page_offset, path, build_id, inode }))
}

/// The fields of a sample in the order of `perf_event_open(2)`, up to the branch stack.
fn read_sample(body: &[u8], misc: u16, start: usize, format: Format) -> Option<(u64, Event)> {
    let mut fields = Fields::new(body);
    let has = |bit| format.sample_type & bit != 0;
    let mut optional = |bit| if has(bit) { fields.u64() } else { Some(0) };
    optional(sample::IDENTIFIER)?;
    let ip = optional(sample::IP)?;
    let pid = optional(sample::TID)? as u32;
    let time = optional(sample::TIME)?;
    for bit in [sample::ADDR, sample::ID, sample::STREAM_ID, sample::CPU, sample::PERIOD] {
        optional(bit)?;
    }
    if has(sample::READ) {
        skip_read(&mut fields, format.read_format)?;
    }
    if has(sample::CALLCHAIN) {
        let count = fields.u64()?;
        fields.take(count.checked_mul(8)?)?;
    }
    if has(sample::RAW) {
        let size = fields.u32()?;
        fields.take(u64::from(size))?;
    }
    let (mut stack, mut records) = (0, 0);
    if has(sample::BRANCH_STACK) {
        let count = fields.u64()?;
        if format.hw_index {
            fields.u64()?;
        }
        stack = start + (body.len() - fields.rest.len());
        records = fields.take(count.checked_mul(24)?)?.len() / 24;
    }
    let user = misc & CPU_MODE == USER_MODE && has(sample::IP);
    Some((time, Event::Sample(Sample { pid, ip: user.then_some(ip), stack, records })))
}

/// Skips counter values (`PERF_FORMAT_*`).
fn skip_read(fields: &mut Fields<'_>, read_format: u64) -> Option<()> {
    const TIMES: u64 = 3;
    const ID: u64 = 4;
    const GROUP: u64 = 8;
    const LOST: u64 = 16;
    let each = 1 + (read_format & (ID | LOST)).count_ones() as u64;
    let times = u64::from((read_format & TIMES).count_ones());
    let words = if read_format & GROUP != 0 {
        fields.u64()?.checked_mul(each)?.checked_add(times)?
    } else {
        each + times
    };
    fields.take(words.checked_mul(8)?).map(|_| ())
}
