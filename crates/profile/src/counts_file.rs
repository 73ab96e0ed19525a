//! The file that processes of an instrumented program count in.
//!
//! ```text
//! "RSTCOUNT"  version: u32  calls that vote: u32  identity: u64  shape: u64  counters: u64
//! offset of the counters: u64  length of the file: u64  length of the table: u64      (64 bytes)
//! table: length and bytes of the build id, of the path; a hash of the code: u64; then a word for each counter (what it counts) and each call that votes (which one)
//! padding to a page; counters, 8 bytes each, then the words of votes (`target_value_profile.rs`), to the end of a page
//! ```
//!
//! All numbers are little-endian. The 64 bytes are fixed when the program is instrumented and are compared at
//! its start; `identity` is a hash of the table, `shape` one of the program's blocks, edges and calls, to
//! which the table's indices refer.

use crate::derive::Known;
use crate::placement::{Counted, CounterPlan};
use crate::target_value_profile::{Vote, VoteArea};
use restitch_address::{Svma, SvmaRange};
use restitch_program::{BlockId, CallId, EdgeId, Program};

/// The version of the format that is written.
pub const COUNTS_VERSION: u32 = 3;
const MAGIC: &[u8; 8] = b"RSTCOUNT";
const HEADER: usize = 64;
const PAGE: usize = restitch_address::PAGE as usize;
/// Low bits of a table's word: it counts an edge; nothing increments it.
const EDGE: u32 = 1;
const MISSING: u32 = 2;

/// Bytes that are no counts file, or not one for this program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CountsError {
    /// Another kind of file.
    #[error(
        "reading counts: this is no counts file (it does not begin with RSTCOUNT); `restitch instrument` makes them"
    )]
    Magic,
    /// Another version of the format.
    #[error(
        "reading counts: format version {found}, this program reads version {COUNTS_VERSION}; instrument the program again"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// Lengths or hashes do not agree.
    #[error("reading counts: the file is damaged or cut off ({what}); instrument the program again")]
    Corrupt {
        /// What does not fit.
        what: &'static str,
    },
    /// The program is another one, or another restitch sees it differently.
    #[error(
        "reading counts: they are those of another build of the program, or of another version of restitch; instrument the program again"
    )]
    OtherProgram,
}

/// What is counted where, for one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountsFile {
    /// The program's GNU build id; empty where it has none.
    pub build_id: Vec<u8>,
    /// Where the original program is.
    pub path: String,
    /// A hash of its code ([`code_hash`]): patched programs keep their build id.
    pub code: u64,
    /// What each counter counts, and whether anything increments it.
    pub counted: Vec<(Counted, bool)>,
    /// The indirect calls that vote for their usual target.
    pub votes: Vec<CallId>,
    shape: u64,
}

impl CountsFile {
    /// For counters of `program`; those with an index in `missing` are in no code.
    pub fn new(program: &Program, counted: &[Counted], missing: &[u32], build_id: &[u8], path: &str) -> Self {
        let mut counted: Vec<_> = counted.iter().map(|&c| (c, true)).collect();
        for &index in missing {
            if let Some(entry) = counted.get_mut(index as usize) {
                entry.1 = false;
            }
        }
        let (votes, shape) = (Vec::new(), shape(program));
        Self { build_id: build_id.to_vec(), path: path.into(), code: 0, counted, votes, shape }
    }

    fn table(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 * self.counted.len() + self.path.len() + 64);
        for text in [&self.build_id[..], self.path.as_bytes()] {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text);
        }
        out.extend(self.code.to_le_bytes());
        for &(counted, present) in &self.counted {
            let (index, kind) = match counted {
                Counted::Block(block) => (block.0, 0),
                Counted::Edge(edge) => (edge.0, EDGE),
            };
            out.extend((index << 2 | kind | if present { 0 } else { MISSING }).to_le_bytes());
        }
        self.votes.iter().for_each(|call| out.extend(call.0.to_le_bytes()));
        out
    }

    /// Offset of the counters in the file, and the file's length.
    pub fn layout(&self) -> (u64, u64) {
        layout(self.table().len(), self.counted.len(), self.votes.len())
    }

    /// The file's first bytes.
    pub fn identity(&self) -> [u8; HEADER] {
        self.header(&self.table())
    }

    fn header(&self, table: &[u8]) -> [u8; HEADER] {
        let (offset, len) = layout(table.len(), self.counted.len(), self.votes.len());
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&COUNTS_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(self.votes.len() as u32).to_le_bytes());
        let fields = [fnv(table), self.shape, self.counted.len() as u64, offset, len, table.len() as u64];
        for (i, field) in fields.into_iter().enumerate() {
            out[16 + 8 * i..24 + 8 * i].copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// The bytes of the file with all counters 0.
    pub fn write(&self) -> Vec<u8> {
        let table = self.table();
        let mut out = self.header(&table).to_vec();
        out.extend(table);
        let (_, len) = layout(out.len() - HEADER, self.counted.len(), self.votes.len());
        out.resize(len as usize, 0);
        out
    }

    /// Reads a file: what is counted, and the counts.
    ///
    /// # Errors
    /// [`CountsError`], never a panic.
    pub fn read(bytes: &[u8]) -> Result<(Self, Vec<u64>), CountsError> {
        let corrupt = |what| CountsError::Corrupt { what };
        if !bytes.starts_with(MAGIC) {
            return Err(CountsError::Magic);
        }
        if bytes.len() < HEADER {
            return Err(corrupt("it ends in its header"));
        }
        let found = word(bytes, 8).unwrap_or(0);
        if found != COUNTS_VERSION {
            return Err(CountsError::Version { found });
        }
        let field = |i: usize| long(bytes, 16 + 8 * i).unwrap_or(0);
        let table_len = usize::try_from(field(5)).ok().filter(|n| *n <= bytes.len() - HEADER);
        let table = &bytes[HEADER..][..table_len.ok_or(corrupt("its table is cut off"))?];
        let count = usize::try_from(field(2)).ok().filter(|n| *n <= table.len() / 4);
        let count = count.ok_or(corrupt("it has more counters than its table"))?;
        let voting = word(bytes, 12).map_or(0, |n| n as usize);
        if voting > table.len() / 4 {
            return Err(corrupt("it has more votes than its table"));
        }
        let (offset, len) = layout(table.len(), count, voting);
        if (offset, len) != (field(3), field(4)) || len != bytes.len() as u64 {
            return Err(corrupt("its length is wrong"));
        }
        if fnv(table) != field(0) {
            return Err(corrupt("its table has changed"));
        }
        let (build_id, rest) = text(table).ok_or(corrupt("no build id"))?;
        let (path, rest) = text(rest).ok_or(corrupt("no path"))?;
        let (code, rest) = rest.split_first_chunk().ok_or(corrupt("no hash of the code"))?;
        let code = u64::from_le_bytes(*code);
        if rest.len() != 4 * (count + voting) {
            return Err(corrupt("its table has another length than it says"));
        }
        let (counted, votes) = rest.split_at(4 * count);
        let words = |of: &[u8]| of.chunks_exact(4).filter_map(|w| word(w, 0)).collect::<Vec<u32>>();
        let counted = words(counted).into_iter().map(entry).collect();
        let votes = words(votes).into_iter().map(CallId).collect();
        let values = (0..count).filter_map(|i| long(bytes, offset as usize + 8 * i)).collect();
        let path = String::from_utf8_lossy(path).into_owned();
        Ok((Self { build_id: build_id.to_vec(), path, code, counted, votes, shape: field(1) }, values))
    }

    /// What the calls of [`Self::votes`] have voted for, by the `bytes` that this was read from.
    pub fn read_votes(&self, bytes: &[u8]) -> Vec<Vote> {
        let counters = long(bytes, 40).unwrap_or(0);
        let at = counters.saturating_add(8 * self.counted.len() as u64);
        VoteArea { calls: self.votes.len() }.read(bytes.get(at as usize..).unwrap_or_default())
    }

    /// The counts that `values` stand for in `program`, with the set of its blocks that were counted.
    ///
    /// # Errors
    /// [`CountsError::OtherProgram`].
    pub fn known(&self, program: &Program, values: &[u64]) -> Result<(CounterPlan, Known), CountsError> {
        let fits = |&(c, _): &(Counted, bool)| match c {
            Counted::Block(b) => b.index() < program.blocks.len(),
            Counted::Edge(e) => e.index() < program.edges.len(),
        };
        if shape(program) != self.shape || !self.counted.iter().all(fits) {
            return Err(CountsError::OtherProgram);
        }
        let scope: Vec<bool> = program.block_ids().map(|b| program.is_movable(b)).collect();
        let plan = CounterPlan {
            counted: self.counted.iter().map(|c| c.0).collect(),
            blocks: scope.iter().filter(|s| **s).count(),
            scope,
            undetermined: Vec::new(),
        };
        let missing: Vec<u32> =
            (0u32..).zip(&self.counted).filter(|(_, c)| !c.1).map(|(index, _)| index).collect();
        let known = plan.known_without(program, values, &missing);
        Ok((plan, known))
    }
}

fn entry(word: u32) -> (Counted, bool) {
    let index = word >> 2;
    let counted =
        if word & EDGE == 0 { Counted::Block(BlockId(index)) } else { Counted::Edge(EdgeId(index)) };
    (counted, word & MISSING == 0)
}

fn layout(table: usize, counters: usize, calls: usize) -> (u64, u64) {
    let offset = (HEADER + table).next_multiple_of(PAGE);
    // A file without counters has a page of them all the same, so that there is something to map.
    let area = 8 * counters + VoteArea { calls }.bytes() as usize;
    let len = offset + area.max(1).next_multiple_of(PAGE);
    (offset as u64, len as u64)
}

fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = word(bytes, 0)? as usize;
    bytes.get(4..)?.split_at_checked(len)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    fnv_on(0xcbf2_9ce4_8422_2325, bytes)
}

fn fnv_on(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// A hash of the code that a program's file holds: its parts and where each is.
pub fn code_hash<'a>(parts: impl IntoIterator<Item = (Svma, &'a [u8])>) -> u64 {
    parts.into_iter().fold(fnv(&[]), |hash, (at, bytes)| fnv_on(fnv_on(hash, &at.get().to_le_bytes()), bytes))
}

/// A hash of the places of all blocks, edges and calls.
fn shape(program: &Program) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |value: u64| hash = (hash ^ value).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    for block in &program.blocks {
        let range = SvmaRange::between(block.start, block.end());
        add(range.start.get());
        add(range.len());
    }
    for edge in &program.edges {
        add(u64::from(edge.from.0) << 32 | u64::from(edge.to.0));
        add(edge.kind as u64);
    }
    program.calls.iter().for_each(|call| add(call.at.get()));
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(ids: Vec<(u32, bool, bool)>, path: String) -> CountsFile {
        let counted = ids
            .into_iter()
            .map(|(i, edge, present)| {
                let i = i >> 2;
                (if edge { Counted::Edge(EdgeId(i)) } else { Counted::Block(BlockId(i)) }, present)
            })
            .collect();
        let votes = (0..path.len() as u32).map(|i| CallId(7 * i)).collect();
        CountsFile { build_id: vec![1, 2, 3], path, code: 0x1234_5678_9abc_def0, counted, votes, shape: 77 }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ids in proptest::collection::vec(any::<(u32, bool, bool)>(), 0..900),
                                   path in "\\PC{0,30}", value: u64) {
            let file = file(ids, path);
            let mut bytes = file.write();
            let (offset, len) = file.layout();
            prop_assert_eq!(bytes.len() as u64, len);
            prop_assert_eq!(&bytes[..HEADER], file.identity());
            prop_assert_eq!(offset % 4096, 0);
            if let Some(last) = file.counted.len().checked_sub(1) {
                bytes[offset as usize + 8 * last..][..8].copy_from_slice(&value.to_le_bytes());
            }
            if let Some(last) = file.votes.len().checked_sub(1) {
                let words = offset + 8 * file.counted.len() as u64;
                bytes[(words + VoteArea { calls: last + 1 }.samples(last)) as usize] = 1;
            }
            let (read, values) = CountsFile::read(&bytes).unwrap();
            let votes = read.read_votes(&bytes);
            prop_assert_eq!(votes.len(), file.votes.len());
            prop_assert_eq!(votes.iter().map(|v| v.samples).sum::<u64>(), file.votes.len().min(1) as u64);
            prop_assert_eq!(values.len(), file.counted.len());
            prop_assert!(values.last().is_none_or(|v| *v == value));
            prop_assert_eq!(read, file);
        }

        #[test]
        fn damage_is_found(at in 0usize..2000, bit in 0u8..8, cut in 0usize..20_000) {
            let file = file((0..400).map(|i| (4 * i, i % 3 == 0, true)).collect(), "/bin/x".into());
            let mut bytes = file.write();
            bytes.truncate(bytes.len().saturating_sub(cut));
            prop_assert!(cut == 0 || CountsFile::read(&bytes).is_err());
            if at < bytes.len() {
                bytes[at] ^= 1 << bit;
                let table = HEADER + file.table().len();
                let shape = (24..32).contains(&at);
                prop_assert!(CountsFile::read(&bytes).is_err() || shape || at >= table);
            }
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = CountsFile::read(&bytes);
            let mut with_magic = MAGIC.to_vec();
            with_magic.extend(COUNTS_VERSION.to_le_bytes());
            with_magic.extend(bytes);
            let _ = CountsFile::read(&with_magic);
        }
    }
}
