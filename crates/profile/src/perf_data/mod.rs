//! Import of `perf.data`: instruction pointers and branch stacks, by mapped file.
//!
//! Pure: bytes in, samples out. The reader is our own, because it must hold against damaged files: version 0.11 of
//! `linux-perf-data` adds section offsets and sizes from the header unchecked, allocates what they say, and
//! skips branch stacks instead of handing them out.
//!
//! Records are replayed in time order: mappings, forks and `exec` decide which file an address belongs to. A place is
//! given as a file offset (`address - mapping + page offset`); the program headers of the file turn it into an [`Svma`]
//! ([`ImportedModule::to_svma`]). Read: little-endian files of `perf record`. Not read, with a clear error: piped
//! output (`-o -`), compressed records (`-z`), and several events with different sample formats and no identifiers.
//!
//! Format: `tools/perf/Documentation/perf.data-file-format.txt` and `perf_event_open(2)`.

mod attrs;
mod records;
mod replay;

use std::collections::BTreeMap;

use restitch_address::{FileOffset, Svma};

use crate::{BranchSamples, Turns};

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

/// The samples of one mapped file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportedModule {
    /// As the kernel named it.
    pub path: String,
    /// Its build id, where the file tells it.
    pub build_id: Option<Vec<u8>>,
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

/// Reads the bytes of a `perf.data` file.
pub fn import_perf_data(bytes: &[u8]) -> Result<ImportedSamples, PerfDataError> {
    let header = attrs::Header::read(bytes)?;
    let formats = attrs::Formats::read(bytes, &header)?;
    let mut found = records::collect(header.data(bytes)?, &formats)?;
    found.sort_by_time();
    let mut samples = replay::replay(header.data(bytes)?, &found);
    for (path, build_id) in attrs::build_ids(bytes, &header) {
        if let Some(module) = samples.modules.iter_mut().find(|m| m.path == path) {
            module.build_id.get_or_insert(build_id);
        }
    }
    Ok(samples)
}

/// Taken branches of one sample, **oldest first**: branch instruction, target; `None` is outside of the file.
pub type FileStack = Vec<(Option<FileOffset>, Option<FileOffset>)>;

/// The branch stacks of a `perf.data` file that have something of the mapped file `path`, in the order of time.
///
/// # Errors
/// As [`import_perf_data`].
pub fn branch_stacks(bytes: &[u8], path: &str) -> Result<Vec<FileStack>, PerfDataError> {
    let header = attrs::Header::read(bytes)?;
    let formats = attrs::Formats::read(bytes, &header)?;
    let mut found = records::collect(header.data(bytes)?, &formats)?;
    found.sort_by_time();
    Ok(replay::stacks(header.data(bytes)?, &found, path))
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
