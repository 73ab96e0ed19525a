//! Import of `perf.data`: instruction pointers and branch stacks, by mapped file.
//!
//! Pure: bytes in, samples out. The reader is our own, because it must hold against damaged files: version
//! 0.11 of `linux-perf-data` adds section offsets and sizes from the header unchecked, allocates what they
//! say, and skips branch stacks instead of handing them out.
//!
//! Records are replayed in time order: mappings, forks and `exec` decide which file an address belongs to. A
//! place is given as a file offset (`address - mapping + page offset`); the program headers of the file turn
//! it into an [`Svma`] ([`ImportedModule::to_svma`]). Read: little-endian files of `perf record`, piped
//! output (`-o -`) and compressed records (`-z`) included. Not read, with a clear error: several events with
//! different sample formats and no identifiers.
//!
//! Two builds may have had one path, one after the other, and one build two paths. A file is therefore known
//! by path and build id, or path and inode where the mapping does not tell the build ([`MappedFile`]); what
//! the table of build ids says of a path is said of the file that was mapped there last.
//!
//! Format: `tools/perf/Documentation/perf.data-file-format.txt` and `perf_event_open(2)`.

mod attrs;
mod builds;
mod records;
mod replay;
mod stream;

use std::borrow::Cow;
use std::collections::BTreeMap;

use restitch_address::{FileOffset, Svma};

use crate::branches::BranchSamples;
use crate::paths::Turns;

/// A file that is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PerfDataError {
    /// Another kind of file.
    #[error(
        "reading perf.data: this is not a perf.data file (it does not begin with PERFILE2); give the output of `perf record -o FILE`"
    )]
    Magic,
    /// A part of it lies behind its end.
    #[error(
        "reading perf.data: the {what} lies outside of the file, which is cut off or damaged; record again and let perf end by itself"
    )]
    Truncated {
        /// Which part.
        what: &'static str,
    },
    /// Compressed records that are none.
    #[error(
        "reading perf.data: its compressed records cannot be unpacked, it is damaged; record again and let perf end by itself"
    )]
    Packed,
    /// Compressed records that are too many.
    #[error(
        "reading perf.data: its compressed records hold more than {} MiB, which is the most that is unpacked; record for a shorter time, or with a \
         lower frequency (-F)",
        bound >> 20
    )]
    TooLarge {
        /// The most, in bytes.
        bound: usize,
    },
    /// A variant that is not read.
    #[error("reading perf.data: {what} cannot be read; {instead}")]
    Unsupported {
        /// What it is.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
}

/// The samples of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportedSamples {
    /// Files that samples fell into, sorted by path.
    pub modules: Vec<ImportedModule>,
    /// Samples read.
    pub samples: u64,
    /// Samples in user mode that fell into no mapped file.
    pub unmapped: u64,
    /// Records that perf reports as lost.
    pub lost: u64,
    /// Records that could not be decoded.
    pub malformed: u64,
    /// Samples that came with a branch stack that is not empty.
    pub branch_stacks: u64,
}

/// A file as a mapping names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MappedFile {
    /// As the kernel named it.
    pub path: String,
    /// The build id of the mapping itself.
    pub build_id: Option<Vec<u8>>,
    /// Where the file is, of mappings without build id (the older form has neither).
    pub inode: Option<Inode>,
}

/// A file of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Its number there.
    pub number: u64,
    /// Tells files apart that had this number one after the other.
    pub generation: u64,
}

impl Inode {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let (device, number) = ((fields.u32()?, fields.u32()?), fields.u64()?);
        let generation = fields.u64()?;
        (number != 0).then_some(Self { device, number, generation })
    }
}

/// The samples of one mapped file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportedModule {
    /// As the kernel named it.
    pub path: String,
    /// Its build id, where the file tells it.
    pub build_id: Option<Vec<u8>>,
    /// What its mappings say of it.
    pub file: MappedFile,
    /// Number of its last mapping, among all of executable files.
    pub last_mapped: u64,
    /// Samples by place.
    pub ips: BTreeMap<FileOffset, u64>,
    /// Taken branches: branch instruction, target.
    pub branches: BTreeMap<(FileOffset, FileOffset), u64>,
    /// Code that ran between two taken branches: target of the older, branch instruction of the newer.
    pub ranges: BTreeMap<(FileOffset, FileOffset), u64>,
    /// Branches that were taken one after the other.
    pub turns: Turns<FileOffset>,
}

/// The samples of one module in canonical coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleSamples {
    /// Samples by instruction.
    pub ips: BTreeMap<Svma, u64>,
    /// Branch records.
    pub branches: BranchSamples,
    /// Samples and records that `place` did not know.
    pub unplaced: u64,
}

impl ImportedModule {
    /// Adds what another file of the same content has.
    pub fn add(&mut self, other: &Self) {
        fn sum<K: Ord + Copy>(into: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            for (key, count) in from {
                let sum = into.entry(*key).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        sum(&mut self.ips, &other.ips);
        sum(&mut self.branches, &other.branches);
        sum(&mut self.ranges, &other.ranges);
        self.turns.add_all(&other.turns);
    }

    /// Whether the mapping itself said which build it is.
    pub fn is_named_by_mapping(&self) -> bool {
        self.file.build_id.is_some()
    }

    /// Turns file offsets into canonical addresses with `place`, which knows the file's program headers.
    pub fn to_svma(&self, place: impl Fn(FileOffset) -> Option<Svma>) -> ModuleSamples {
        let mut samples = ModuleSamples::default();
        for (&at, &count) in &self.ips {
            match place(at) {
                Some(at) => *samples.ips.entry(at).or_default() += count,
                None => samples.unplaced += count,
            }
        }
        let pair = |&(a, b): &(FileOffset, FileOffset)| Some((place(a)?, place(b)?));
        let tables =
            [(&self.branches, &mut samples.branches.branches), (&self.ranges, &mut samples.branches.ranges)];
        for (from, into) in tables {
            for (key, &count) in from {
                match pair(key) {
                    Some(key) => *into.entry(key).or_default() += count,
                    None => samples.unplaced += count,
                }
            }
        }
        samples.branches.turns = self.turns.placed(place);
        samples
    }
}

/// What a file says, before it is replayed.
struct Contents<'a> {
    /// Records that are not compressed.
    data: Cow<'a, [u8]>,
    formats: attrs::Formats,
    /// Path and build id.
    build_ids: Vec<(String, Vec<u8>)>,
}

impl<'a> Contents<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, PerfDataError> {
        match attrs::Kind::read(bytes)? {
            attrs::Kind::Seekable(header) => {
                let formats = attrs::Formats::read(bytes, &header)?;
                let data = stream::unpacked(header.data(bytes)?)?;
                let mut build_ids = attrs::build_ids(bytes, &header);
                build_ids.extend(stated_build_ids(&data));
                Ok(Self { data, formats, build_ids })
            }
            attrs::Kind::Piped(from) => {
                let data = stream::unpacked(bytes.get(from..).unwrap_or_default())?;
                let attrs = stream::Walk::new(&data).filter_map(Result::ok);
                let attrs = attrs.filter(|record| record.kind == HEADER_ATTR).map(|record| record.body);
                let formats = attrs::Formats::of_records(attrs)?;
                let build_ids = stated_build_ids(&data);
                Ok(Self { data, formats, build_ids })
            }
        }
    }

    fn records(&self) -> Result<records::Found, PerfDataError> {
        let mut found = records::collect(&self.data, &self.formats)?;
        found.sort_by_time();
        Ok(found)
    }
}

/// A record that describes an event, as piped output has it.
const HEADER_ATTR: u32 = 64;
/// A record that is an entry of the build-id table (piped output, `perf inject -b`).
const HEADER_BUILD_ID: u32 = 67;

fn stated_build_ids(data: &[u8]) -> Vec<(String, Vec<u8>)> {
    let records = stream::Walk::new(data).filter_map(Result::ok);
    let stated = records.filter(|record| record.kind == HEADER_BUILD_ID);
    stated.filter_map(|record| attrs::build_id_of(record.misc, record.body)).collect()
}

/// Reads the bytes of a `perf.data` file.
pub fn import_perf_data(bytes: &[u8]) -> Result<ImportedSamples, PerfDataError> {
    let contents = Contents::read(bytes)?;
    let mut samples = replay::replay(&contents.data, &contents.records()?);
    builds::name(&mut samples.modules, &contents.build_ids);
    samples.modules.retain(|m| !m.ips.is_empty() || !m.branches.is_empty() || !m.ranges.is_empty());
    samples.modules.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(samples)
}

/// Taken branches of one sample, **oldest first**: branch instruction, target; `None` is outside of the file.
pub type FileStack = Vec<(Option<FileOffset>, Option<FileOffset>)>;

/// The branch stacks of a `perf.data` file that have something of the mapped `files`, in the order of time.
///
/// # Errors
/// As [`import_perf_data`].
pub fn branch_stacks(bytes: &[u8], files: &[MappedFile]) -> Result<Vec<FileStack>, PerfDataError> {
    let contents = Contents::read(bytes)?;
    Ok(replay::stacks(&contents.data, &contents.records()?, files))
}

/// Little-endian fields of a byte slice; reading past the end gives `None`.
#[derive(Clone, Copy)]
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(taken)
    }
    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    /// A zero-terminated name.
    fn name(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|b| *b == 0)?;
        Some(String::from_utf8_lossy(&self.rest[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests;
