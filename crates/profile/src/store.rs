//! The stored form of profiles: sparse counts, keyed by build id and canonical address.
//!
//! ```text
//! "RSTPROF\0"  version: u32  payload length: u64  CRC-32 of the payload: u32  payload
//! payload: number of modules, then for each: build id, path, blocks, edges, calls, targets of indirect calls, paths,
//!   pairs of blocks that ran together
//! ```
//!
//! Fixed-width numbers are little-endian, all others LEB128; strings and tables carry their lengths first.
//! Addresses are stored as differences from the one before, so that a count takes about three bytes. Reading
//! is pure, allocates in proportion to the input, and refuses what does not agree with the checksum. Version
//! 1, which had no targets, version 2, which had no paths, and version 3, which had no pairs, are still read.

use std::collections::BTreeMap;

use restitch_address::Svma;
use restitch_program::{CallId, CallTarget, Edge, EdgeId, EdgeKind, Program};

use crate::model::Profile;

/// The version of the format that is written.
pub const STORE_VERSION: u32 = 4;
/// The oldest version that is read.
const OLDEST_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"RSTPROF\0";
const HEADER: usize = 8 + 4 + 8 + 4;

/// Bytes that are not a stored profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another kind of file.
    #[error(
        "reading a stored profile: this is not one (it does not begin with RSTPROF); record one with `restitch record`"
    )]
    Magic,
    /// Another version of the format.
    #[error(
        "reading a stored profile: it has format version {found}, this program reads versions 1 to {STORE_VERSION}; record it again"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// The file ends early.
    #[error("reading a stored profile: it is cut off ({found} bytes of {expected}); copy or record it again")]
    Truncated {
        /// Bytes that the header promises.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Bytes have changed, or follow the end.
    #[error("reading a stored profile: it is damaged ({what}); copy or record it again")]
    Corrupt {
        /// What does not fit.
        what: &'static str,
    },
}

/// Profiles of several modules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProfileFile {
    /// One entry a module.
    pub modules: Vec<ModuleProfile>,
}

/// Sparse counts of one module, in canonical coordinates. Zero counts are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleProfile {
    /// The module's GNU build id; empty where it has none.
    pub build_id: Vec<u8>,
    /// Where the module was, for messages.
    pub path: String,
    /// Executions by block start.
    pub blocks: BTreeMap<Svma, u64>,
    /// Traversals by start of the source block, start of the target block, and kind.
    pub edges: BTreeMap<(Svma, Svma, EdgeKind), u64>,
    /// Executions by address of the call instruction.
    pub calls: BTreeMap<Svma, u64>,
    /// Executions of indirect calls by address of the call instruction and of what was called in the module.
    pub targets: BTreeMap<(Svma, Svma), u64>,
    /// Executions of two edges one after the other ([`Profile::paths`]).
    pub paths: BTreeMap<PathKey, u64>,
    /// Windows in which both of two blocks ran, by their starts ([`Profile::temporal_affinity`]).
    pub temporal_affinity: BTreeMap<(Svma, Svma), u64>,
}

/// Two edges: start of the first block, kind, start of the block between, kind, start of the last block.
pub type PathKey = (Svma, EdgeKind, Svma, EdgeKind, Svma);

/// Counts that have no place in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unmatched {
    /// Entries without a block.
    pub blocks: usize,
    /// Entries without an edge.
    pub edges: usize,
    /// Entries without a call.
    pub calls: usize,
    /// Sum of all unmatched counts.
    pub count: u64,
    /// Sum of all counts, matched or not.
    pub total: u64,
}

impl ModuleProfile {
    /// The stored form of `profile`, which must be parallel to the tables of `program`.
    pub fn of(program: &Program, profile: &Profile, build_id: &[u8], path: &str) -> Self {
        let start = |b: restitch_program::BlockId| program.block(b).start;
        let blocks = program.blocks.iter().zip(&profile.blocks).map(|(b, &n)| (b.start, n));
        let edges =
            program.edges.iter().zip(&profile.edges).map(|(e, &n)| ((start(e.from), start(e.to), e.kind), n));
        let calls = program.calls.iter().zip(&profile.calls).map(|(c, &n)| (c.at, n));
        let targets =
            profile.targets.iter().filter_map(|(c, to)| Some((program.calls.get(c.index())?.at, to)));
        let targets = targets.flat_map(|(at, to)| to.iter().map(move |(&to, &n)| ((at, to), n)));
        let edge = |e: EdgeId| program.edges.get(e.index());
        let key = |(a, b): (EdgeId, EdgeId)| {
            let (a, b) = (edge(a)?, edge(b)?);
            Some((start(a.from), a.kind, start(a.to), b.kind, start(b.to)))
        };
        let paths = profile.paths.iter().filter_map(|(&pair, &n)| Some((key(pair)?, n)));
        let temporal_affinity =
            profile.temporal_affinity.iter().map(|(&(a, b), &n)| ((start(a), start(b)), n));
        Self {
            build_id: build_id.to_vec(),
            path: path.to_owned(),
            blocks: blocks.filter(|(_, n)| *n > 0).collect(),
            edges: edges.filter(|(_, n)| *n > 0).collect(),
            calls: calls.filter(|(_, n)| *n > 0).collect(),
            targets: targets.filter(|(_, n)| *n > 0).collect(),
            paths: paths.filter(|(_, n)| *n > 0).collect(),
            temporal_affinity: temporal_affinity.filter(|(_, n)| *n > 0).collect(),
        }
    }

    /// The counts in the tables of `program`, and what has no place there.
    pub fn resolve(&self, program: &Program) -> (Profile, Unmatched) {
        let mut profile = Profile::empty(program);
        let mut lost = Unmatched::default();
        for (&at, &count) in &self.blocks {
            let block = program.block_starting_at(at);
            place(block.map(|b| &mut profile.blocks[b.index()]), count, &mut lost, |l| &mut l.blocks);
        }
        for (&key, &count) in &self.edges {
            let edge = find_edge(program, key.0, key.1, key.2);
            place(edge.map(|e| &mut profile.edges[e.index()]), count, &mut lost, |l| &mut l.edges);
        }
        for (&at, &count) in &self.calls {
            let call = program.calls.binary_search_by_key(&at, |c| c.at).ok();
            place(call.map(|c| &mut profile.calls[c]), count, &mut lost, |l| &mut l.calls);
        }
        for (&(at, to), &count) in &self.targets {
            // A call that is not there is among the lost calls.
            if let Ok(call) = program.calls.binary_search_by_key(&at, |c| c.at)
                && program.calls[call].target == CallTarget::Indirect
            {
                profile.add_target(CallId(call as u32), to, count);
            }
        }
        for (&key, &count) in &self.paths {
            // Edges that are not there are among the lost edges.
            if let Some(pair) = find_path(program, key) {
                profile.paths.insert(pair, count);
            }
        }
        for (&(a, b), &count) in &self.temporal_affinity {
            // Blocks that are not there are among the lost blocks.
            if let (Some(a), Some(b)) = (program.block_starting_at(a), program.block_starting_at(b))
                && a < b
            {
                profile.temporal_affinity.insert((a, b), count);
            }
        }
        (profile, lost)
    }

    /// Adds `weight` times the counts of `other`, rounded, saturating.
    fn add(&mut self, other: &ModuleProfile, weight: f64) {
        add_scaled(&mut self.blocks, &other.blocks, weight);
        add_scaled(&mut self.edges, &other.edges, weight);
        add_scaled(&mut self.calls, &other.calls, weight);
        add_scaled(&mut self.targets, &other.targets, weight);
        add_scaled(&mut self.paths, &other.paths, weight);
        add_scaled(&mut self.temporal_affinity, &other.temporal_affinity, weight);
    }
}

/// The edge between the blocks that start here, of this kind.
pub(crate) fn find_edge(program: &Program, from: Svma, to: Svma, kind: EdgeKind) -> Option<EdgeId> {
    let from = program.block_starting_at(from)?;
    let same = |e: &Edge| e.kind == kind && program.block(e.to).start == to;
    program.out_edges(from).find(|(_, e)| same(e)).map(|(id, _)| id)
}

/// The two edges that a key names.
pub(crate) fn find_path(program: &Program, key: PathKey) -> Option<(EdgeId, EdgeId)> {
    let (from, first, at, second, to) = key;
    Some((find_edge(program, from, at, first)?, find_edge(program, at, to, second)?))
}

fn place(
    slot: Option<&mut u64>,
    count: u64,
    lost: &mut Unmatched,
    which: impl Fn(&mut Unmatched) -> &mut usize,
) {
    lost.total = lost.total.saturating_add(count);
    match slot {
        Some(slot) => *slot = slot.saturating_add(count),
        None => {
            *which(lost) += 1;
            lost.count = lost.count.saturating_add(count);
        }
    }
}

fn add_scaled<K: Ord + Copy>(into: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>, weight: f64) {
    for (&key, &count) in from {
        // A count that is scaled by exactly 1 stays exact also above 2^53.
        let scaled = if weight == 1.0 { count } else { (count as f64 * weight).round() as u64 };
        if scaled > 0 {
            let slot = into.entry(key).or_default();
            *slot = slot.saturating_add(scaled);
        }
    }
}

impl ProfileFile {
    /// The weighted sum of several files; modules are the same if their build ids are, or, without build ids,
    /// their paths. Weights below zero and not-a-number count as zero.
    pub fn merge(files: &[(&ProfileFile, f64)]) -> ProfileFile {
        let mut merged = ProfileFile::default();
        for (file, weight) in files {
            let weight = if *weight > 0.0 { *weight } else { 0.0 };
            for module in &file.modules {
                let same = |m: &&mut ModuleProfile| {
                    m.build_id == module.build_id && (!m.build_id.is_empty() || m.path == module.path)
                };
                if let Some(known) = merged.modules.iter_mut().find(same) {
                    known.add(module, weight);
                } else {
                    let (build_id, path) = (module.build_id.clone(), module.path.clone());
                    let mut new = ModuleProfile { build_id, path, ..ModuleProfile::default() };
                    new.add(module, weight);
                    merged.modules.push(new);
                }
            }
        }
        merged
    }

    /// The module with this build id.
    pub fn module(&self, build_id: &[u8]) -> Option<&ModuleProfile> {
        self.modules.iter().find(|m| m.build_id == build_id)
    }

    /// The bytes of the file.
    pub fn write(&self) -> Vec<u8> {
        let mut payload = Writer::default();
        payload.number(self.modules.len() as u64);
        for module in &self.modules {
            payload.module(module);
        }
        let payload = payload.bytes;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(STORE_VERSION.to_le_bytes());
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(crc32fast::hash(&payload).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Reads the bytes of a file.
    pub fn read(bytes: &[u8]) -> Result<ProfileFile, StoreError> {
        let cut = |expected: u64| StoreError::Truncated { expected, found: bytes.len() as u64 };
        if bytes.len() < MAGIC.len() || !bytes.starts_with(MAGIC) {
            return Err(StoreError::Magic);
        }
        let header = bytes.get(MAGIC.len()..HEADER).ok_or(cut(HEADER as u64))?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if !(OLDEST_VERSION..=STORE_VERSION).contains(&word(0)) {
            return Err(StoreError::Version { found: word(0) });
        }
        let len = u64::from(word(4)) | u64::from(word(8)) << 32;
        let payload = &bytes[HEADER..];
        if (payload.len() as u64) < len {
            return Err(cut(len.saturating_add(HEADER as u64)));
        }
        if payload.len() as u64 > len {
            return Err(StoreError::Corrupt { what: "bytes follow the end" });
        }
        if crc32fast::hash(payload) != word(12) {
            return Err(StoreError::Corrupt { what: "wrong checksum" });
        }
        let mut reader = Reader { rest: payload, version: word(0) };
        let count = reader.count()?;
        let modules = (0..count).map(|_| reader.module()).collect::<Result<_, _>>()?;
        match reader.rest {
            [] => Ok(ProfileFile { modules }),
            _ => Err(StoreError::Corrupt { what: "bytes follow the last module" }),
        }
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend(bytes);
    }

    fn module(&mut self, module: &ModuleProfile) {
        self.string(&module.build_id);
        self.string(module.path.as_bytes());
        self.addresses(&module.blocks);
        let mut last = Svma::new(0);
        self.number(module.edges.len() as u64);
        for (&(from, to, kind), &count) in &module.edges {
            self.number(from.offset_from(last) as u64);
            self.number(zigzag(to.offset_from(from)));
            self.number(kind as u64);
            self.number(count);
            last = from;
        }
        self.addresses(&module.calls);
        self.targets(&module.targets);
        self.paths(&module.paths);
        self.targets(&module.temporal_affinity);
    }

    /// First blocks as differences, each other block as the distance from the one before; both kinds in one
    /// number.
    fn paths(&mut self, paths: &BTreeMap<PathKey, u64>) {
        let mut last = Svma::new(0);
        self.number(paths.len() as u64);
        for (&(from, first, at, second, to), &count) in paths {
            self.number(from.offset_from(last) as u64);
            self.number(first as u64 + KINDS * second as u64);
            self.number(zigzag(at.offset_from(from)));
            self.number(zigzag(to.offset_from(at)));
            self.number(count);
            last = from;
        }
    }

    /// Calls as differences; targets as the distance from the call. (Pairs of blocks likewise.)
    fn targets(&mut self, targets: &BTreeMap<(Svma, Svma), u64>) {
        let mut last = Svma::new(0);
        self.number(targets.len() as u64);
        for (&(at, to), &count) in targets {
            self.number(at.offset_from(last) as u64);
            self.number(zigzag(to.offset_from(at)));
            self.number(count);
            last = at;
        }
    }

    fn addresses(&mut self, counts: &BTreeMap<Svma, u64>) {
        let mut last = Svma::new(0);
        self.number(counts.len() as u64);
        for (&at, &count) in counts {
            self.number(at.offset_from(last) as u64);
            self.number(count);
            last = at;
        }
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

struct Reader<'a> {
    rest: &'a [u8],
    version: u32,
}

/// Kinds of edges.
const KINDS: u64 = 3;

fn kind(number: u64) -> Result<EdgeKind, StoreError> {
    match number {
        0 => Ok(EdgeKind::FallThrough),
        1 => Ok(EdgeKind::Taken),
        2 => Ok(EdgeKind::Table),
        _ => Err(StoreError::Corrupt { what: "an unknown kind of edge" }),
    }
}

const ENDS: StoreError = StoreError::Corrupt { what: "a table is longer than the file" };

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<u64, StoreError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(ENDS)?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(StoreError::Corrupt { what: "a number is too long" })
    }

    /// The length of a table whose elements take a byte at least.
    fn count(&mut self) -> Result<usize, StoreError> {
        let count = self.number()?;
        if count > self.rest.len() as u64 { Err(ENDS) } else { Ok(count as usize) }
    }

    fn string(&mut self) -> Result<&'a [u8], StoreError> {
        let count = self.count()?;
        let (string, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(string)
    }

    fn module(&mut self) -> Result<ModuleProfile, StoreError> {
        let build_id = self.string()?.to_vec();
        let path = String::from_utf8(self.string()?.to_vec())
            .map_err(|_| StoreError::Corrupt { what: "a path is not UTF-8" })?;
        let blocks = self.addresses()?;
        let mut edges = BTreeMap::new();
        let mut last = Svma::new(0);
        for _ in 0..self.count()? {
            last = last + self.number()?;
            let to = last.offset(unzigzag(self.number()?));
            let kind = kind(self.number()?)?;
            edges.insert((last, to, kind), self.number()?);
        }
        let calls = self.addresses()?;
        let targets = if self.version < 2 { BTreeMap::new() } else { self.targets()? };
        let paths = if self.version < 3 { BTreeMap::new() } else { self.paths()? };
        let temporal_affinity = if self.version < 4 { BTreeMap::new() } else { self.targets()? };
        Ok(ModuleProfile { build_id, path, blocks, edges, calls, targets, paths, temporal_affinity })
    }

    fn paths(&mut self) -> Result<BTreeMap<PathKey, u64>, StoreError> {
        let mut paths = BTreeMap::new();
        let mut last = Svma::new(0);
        for _ in 0..self.count()? {
            last = last + self.number()?;
            let kinds = self.number()?;
            let (first, second) = (kind(kinds % KINDS)?, kind(kinds / KINDS)?);
            let at = last.offset(unzigzag(self.number()?));
            let to = at.offset(unzigzag(self.number()?));
            paths.insert((last, first, at, second, to), self.number()?);
        }
        Ok(paths)
    }

    fn targets(&mut self) -> Result<BTreeMap<(Svma, Svma), u64>, StoreError> {
        let mut targets = BTreeMap::new();
        let mut last = Svma::new(0);
        for _ in 0..self.count()? {
            last = last + self.number()?;
            let to = last.offset(unzigzag(self.number()?));
            targets.insert((last, to), self.number()?);
        }
        Ok(targets)
    }

    fn addresses(&mut self) -> Result<BTreeMap<Svma, u64>, StoreError> {
        let mut counts = BTreeMap::new();
        let mut last = Svma::new(0);
        for _ in 0..self.count()? {
            last = last + self.number()?;
            counts.insert(last, self.number()?);
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, RandomProgram, walk};
    use proptest::prelude::*;

    fn example(seed: u64) -> (Program, Profile, ProfileFile) {
        let program = RandomProgram::new(seed).program;
        let profile = walk(&program, seed, 20, 0.1);
        let module = ModuleProfile::of(&program, &profile, b"\x01\x02\x03", "/usr/bin/thing");
        let other = ModuleProfile { path: "/lib/other.so".into(), ..ModuleProfile::default() };
        (program, profile, ProfileFile { modules: vec![module, other] })
    }

    #[test]
    fn each_damage_has_its_message() {
        let bytes = example(3).2.write();
        assert_eq!(ProfileFile::read(b"\x7fELF"), Err(StoreError::Magic));
        let mut other = bytes.clone();
        other[8] = 9;
        assert_eq!(ProfileFile::read(&other), Err(StoreError::Version { found: 9 }));
        for len in 8..bytes.len() {
            assert!(matches!(ProfileFile::read(&bytes[..len]), Err(StoreError::Truncated { .. })), "{len}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(ProfileFile::read(&longer), Err(StoreError::Corrupt { .. })));
        for at in HEADER..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_eq!(ProfileFile::read(&changed), Err(StoreError::Corrupt { what: "wrong checksum" }));
        }
        let message = StoreError::Version { found: 9 }.to_string();
        assert!(message.contains("version 9") && message.contains("record it again"));
    }

    #[test]
    fn what_has_no_place_is_reported() {
        let (program, profile, mut file) = example(5);
        let module = &mut file.modules[0];
        module.blocks.insert(Svma::new(3), 40);
        module.edges.insert((Svma::new(3), Svma::new(4), EdgeKind::Taken), 2);
        module.calls.insert(Svma::new(5), 1);
        let (resolved, lost) = module.resolve(&program);
        assert_eq!(resolved, profile);
        assert_eq!((lost.blocks, lost.edges, lost.calls, lost.count), (1, 1, 1, 43));
    }

    #[test]
    fn older_versions_are_read() {
        let mut file = example(7).2;
        // The last tables of the last module: each is one zero if it is empty, and older versions do not have
        // them.
        file.modules.truncate(1);
        file.modules[0].temporal_affinity.clear();
        for version in [3, 2, 1] {
            match version {
                2 => file.modules[0].paths.clear(),
                1 => file.modules[0].targets.clear(),
                _ => {}
            }
            let mut bytes = file.write();
            (version..STORE_VERSION).for_each(|_| assert_eq!(bytes.pop(), Some(0)));
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let len = (bytes.len() - HEADER) as u64;
            bytes[12..20].copy_from_slice(&len.to_le_bytes());
            let crc = crc32fast::hash(&bytes[HEADER..]);
            bytes[20..24].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(ProfileFile::read(&bytes).as_ref(), Ok(&file));
        }
        let mut newer = file.write();
        newer[8] = STORE_VERSION as u8 + 1;
        assert_eq!(ProfileFile::read(&newer), Err(StoreError::Version { found: STORE_VERSION + 1 }));
    }

    #[test]
    fn merging_weighs() {
        let file = |n| {
            let blocks = BTreeMap::from([(Svma::new(16), n)]);
            ProfileFile { modules: vec![ModuleProfile { build_id: vec![7], blocks, ..Default::default() }] }
        };
        let merged = ProfileFile::merge(&[(&file(10), 0.5), (&file(4), 2.0), (&file(9), f64::NAN)]);
        assert_eq!(merged, file(13));
        let same = ProfileFile::merge(&[(&file(u64::MAX - 1), 1.0)]);
        assert_eq!(same, file(u64::MAX - 1));
        assert_eq!(merged.module(&[7]), merged.modules.first());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seed: u64) {
            let (program, profile, file) = example(seed);
            let bytes = file.write();
            let read = ProfileFile::read(&bytes).unwrap();
            prop_assert_eq!(&read, &file);
            prop_assert_eq!(read.modules[0].resolve(&program).0, profile);
        }
        #[test]
        fn extreme_numbers_survive(counts in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..20)) {
            let mut module = ModuleProfile::default();
            for (a, b, n) in counts {
                module.blocks.insert(Svma::new(a), n);
                module.edges.insert((Svma::new(a), Svma::new(b), EdgeKind::Table), n);
                module.targets.insert((Svma::new(a), Svma::new(b)), n);
                module.temporal_affinity.insert((Svma::new(b), Svma::new(n)), a);
                let kinds = [EdgeKind::FallThrough, EdgeKind::Taken, EdgeKind::Table];
                let (first, second) = (kinds[(a % 3) as usize], kinds[(b % 3) as usize]);
                module.paths.insert((Svma::new(a), first, Svma::new(b), second, Svma::new(n)), n);
            }
            let file = ProfileFile { modules: vec![module] };
            prop_assert_eq!(ProfileFile::read(&file.write()), Ok(file));
        }
    }

    /// Damage behind a right checksum, so that it reaches the payload reader.
    #[test]
    fn fuzz_never_panics() {
        let mut random = Random::new(1);
        let (until, original) =
            (std::time::Instant::now() + std::time::Duration::from_millis(700), example(9).2.write());
        let mut rounds = 0u32;
        while rounds < 1000 || std::time::Instant::now() < until {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(6) {
                let at = HEADER + random.below(bytes.len() - HEADER);
                bytes[at] = random.bits() as u8;
            }
            bytes.truncate(bytes.len() - random.below(4));
            let len = bytes.len() - HEADER;
            bytes[12..20].copy_from_slice(&(len as u64).to_le_bytes());
            let crc = crc32fast::hash(&bytes[HEADER..]);
            bytes[20..24].copy_from_slice(&crc.to_le_bytes());
            if let Ok(file) = ProfileFile::read(&bytes) {
                assert_eq!(ProfileFile::read(&file.write()), Ok(file));
            }
            rounds += 1;
        }
    }
}
