//! Header, event attributes and build-id table.

use std::collections::HashMap;

use super::{Fields, PerfDataError};

/// `PERF_SAMPLE_*` bits.
pub(super) mod sample {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const IDENTIFIER: u64 = 1 << 16;
}

const SAMPLE_ID_ALL: u64 = 1 << 18;
const BRANCH_HW_INDEX: u64 = 1 << 17;
/// Bit of the build-id table among the header's features.
const FEATURE_BUILD_ID: u32 = 2;
const HEADER_SIZE: usize = 104;
const PIPED_HEADER_SIZE: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Section {
    pub offset: u64,
    pub size: u64,
}

impl Section {
    fn of<'a>(&self, bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], PerfDataError> {
        let end = self.offset.checked_add(self.size).and_then(|end| usize::try_from(end).ok());
        let range = end.and_then(|end| bytes.get(self.offset as usize..end));
        range.ok_or(PerfDataError::Truncated { what })
    }
}

pub(super) struct Header {
    attr_size: u64,
    attrs: Section,
    data: Section,
    features: u64,
}

/// The two kinds of files.
pub(super) enum Kind {
    /// With tables beside the records.
    Seekable(Header),
    /// Written to a pipe: after this many bytes there are records only, which say the same.
    Piped(usize),
}

impl Kind {
    pub fn read(bytes: &[u8]) -> Result<Self, PerfDataError> {
        match bytes.get(..8) {
            Some(b"PERFILE2") => {}
            Some(b"2ELIFREP") => {
                let (what, instead) = ("a big-endian file", "record on the machine that runs the program");
                return Err(PerfDataError::Unsupported { what, instead });
            }
            _ => return Err(PerfDataError::Magic),
        }
        match Fields::new(&bytes[8..]).u64() {
            Some(size) if size == PIPED_HEADER_SIZE as u64 => Ok(Self::Piped(PIPED_HEADER_SIZE)),
            Some(_) => Header::read(bytes).map(Self::Seekable),
            None => Err(PerfDataError::Truncated { what: "header" }),
        }
    }
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, PerfDataError> {
        let mut fields = Fields::new(bytes.get(16..).unwrap_or_default());
        let read = |fields: &mut Fields<'_>| {
            let attr_size = fields.u64()?;
            let mut section = || Some(Section { offset: fields.u64()?, size: fields.u64()? });
            let (attrs, data, _event_types) = (section()?, section()?, section()?);
            Some(Self { attr_size, attrs, data, features: fields.u64()? })
        };
        if bytes.len() < HEADER_SIZE {
            return Err(PerfDataError::Truncated { what: "header" });
        }
        read(&mut fields).ok_or(PerfDataError::Truncated { what: "header" })
    }

    pub fn data<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], PerfDataError> {
        if self.data.size == 0 {
            return Err(PerfDataError::Truncated { what: "table of records (perf did not finish the file)" });
        }
        self.data.of(bytes, "table of records")
    }
}

/// How the samples of one event are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    pub sample_type: u64,
    pub read_format: u64,
    pub sample_id_all: bool,
    pub hw_index: bool,
}

/// The formats of all events.
pub(super) struct Formats {
    first: Format,
    same: bool,
    by_id: HashMap<u64, Format>,
}

impl Formats {
    /// From the tables of a file.
    pub fn read(bytes: &[u8], header: &Header) -> Result<Self, PerfDataError> {
        let attrs = header.attrs.of(bytes, "table of events")?;
        // The attribute up to `sample_type` and flags, and the section of its identifiers.
        if header.attr_size < 64 + 16 || attrs.len() < header.attr_size as usize {
            return Err(NO_EVENT);
        }
        let mut all = Vec::new();
        for attr in attrs.chunks_exact(header.attr_size as usize) {
            let (attr, section) = attr.split_at(attr.len() - 16);
            let mut section = Fields::new(section);
            let section = section.u64().zip(section.u64()).ok_or(NO_EVENT)?;
            let ids =
                Section { offset: section.0, size: section.1 }.of(bytes, "table of event identifiers")?;
            all.push((read_attr(attr).ok_or(NO_EVENT)?, ids));
        }
        Self::of(&all)
    }

    /// From records that describe events (their bodies), as piped output has them.
    pub fn of_records<'a>(bodies: impl Iterator<Item = &'a [u8]>) -> Result<Self, PerfDataError> {
        let event = |body: &'a [u8]| {
            // `perf_event_attr` says how long it is; identifiers follow.
            let size = Fields::new(body.get(4..)?).u32()? as usize;
            let (attr, ids) = body.split_at_checked(size)?;
            Some((read_attr(attr)?, ids))
        };
        let all = bodies.map(|body| event(body).ok_or(NO_EVENT)).collect::<Result<Vec<_>, _>>()?;
        Self::of(&all)
    }

    fn of(all: &[(Format, &[u8])]) -> Result<Self, PerfDataError> {
        let mut by_id = HashMap::new();
        for (format, ids) in all {
            for id in ids.chunks_exact(8) {
                by_id.insert(Fields::new(id).u64().unwrap_or_default(), *format);
            }
        }
        let (first, rest) = all.split_first().ok_or(NO_EVENT)?;
        let same = rest.iter().all(|f| f.0 == first.0);
        if !same && all.iter().any(|(f, _)| f.sample_type & sample::IDENTIFIER == 0 || !f.sample_id_all) {
            let (what, instead) = ("a mix of events without identifiers", "record one event only");
            return Err(PerfDataError::Unsupported { what, instead });
        }
        Ok(Self { first: first.0, same, by_id })
    }

    /// The format of a sample (its body).
    pub fn of_sample(&self, body: &[u8]) -> Option<Format> {
        if self.same { Some(self.first) } else { self.by_id.get(&Fields::new(body).u64()?).copied() }
    }

    /// The format of another record (its body), whose identifier stands last.
    pub fn of_other(&self, body: &[u8]) -> Option<Format> {
        if self.same {
            return Some(self.first);
        }
        let id = body.len().checked_sub(8).and_then(|at| Fields::new(&body[at..]).u64())?;
        self.by_id.get(&id).copied()
    }
}

const NO_EVENT: PerfDataError = PerfDataError::Truncated { what: "description of an event" };

/// A `perf_event_attr` of whatever version.
fn read_attr(attr: &[u8]) -> Option<Format> {
    let at = |offset: usize| Fields::new(attr.get(offset..)?).u64();
    // `branch_sample_type` came with the second version of the structure (72 bytes and more).
    let branch_sample_type = if attr.len() >= 80 { at(72)? } else { 0 };
    Some(Format {
        sample_type: at(24)?,
        read_format: at(32)?,
        sample_id_all: at(40)? & SAMPLE_ID_ALL != 0,
        hw_index: branch_sample_type & BRANCH_HW_INDEX != 0,
    })
}

/// The build-id table: path and build id. A damaged table ends early; it is a convenience.
pub(super) fn build_ids(bytes: &[u8], header: &Header) -> Vec<(String, Vec<u8>)> {
    read_build_ids(bytes, header).unwrap_or_default()
}

fn read_build_ids(bytes: &[u8], header: &Header) -> Option<Vec<(String, Vec<u8>)>> {
    if header.features & (1 << FEATURE_BUILD_ID) == 0 {
        return None;
    }
    let before = (header.features & ((1 << FEATURE_BUILD_ID) - 1)).count_ones() as u64;
    let table = header.data.offset.checked_add(header.data.size)?.checked_add(before * 16)?;
    let mut fields = Fields::new(bytes.get(usize::try_from(table).ok()?..)?);
    let section = Section { offset: fields.u64()?, size: fields.u64()? };
    let mut fields = Fields::new(section.of(bytes, "build-id table").ok()?);
    let mut found = Vec::new();
    while let Some((path, id)) = read_build_id(&mut fields) {
        found.push((path, id));
    }
    Some(found)
}

fn read_build_id(fields: &mut Fields<'_>) -> Option<(String, Vec<u8>)> {
    let (_type, misc, size) = (fields.u32()?, fields.u16()?, fields.u16()?);
    build_id_of(misc, fields.take(u64::from(size).checked_sub(8)?)?)
}

/// One entry of the table, which may also be a record.
pub(super) fn build_id_of(misc: u16, body: &[u8]) -> Option<(String, Vec<u8>)> {
    const HAS_SIZE: u16 = 1 << 15;
    let mut body = Fields::new(body);
    let _pid = body.u32()?;
    let id = body.take(24)?;
    let len = if misc & HAS_SIZE != 0 { usize::from(id[20]).min(20) } else { 20 };
    Some((body.name()?, id[..len].to_vec()))
}
