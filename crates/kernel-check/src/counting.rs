//! Counters: what the module says of them, and what stands at the places that count.
//!
//! The only thing that copies may do besides what originals do. A counter is a word of memory that is the
//! module's own and starts as zero; one place counts it, and nothing else in the module has its address.

use crate::finding::Problem;
use crate::insn::Insn;
use crate::kernel::{from_itself, long};
use crate::load::{Loaded, Part};
use crate::sections::{COUNTED, OWN_COUNTERS, SHARED_COUNTERS};
use restitch_address::Svma;
use std::collections::BTreeSet;

/// `incq 0(%rip)` of a word that each processor has, and of one that all share.
const OWN: [u8; 8] = [0x65, 0x48, 0xff, 0x05, 0, 0, 0, 0];
const SHARED: [u8; 8] = [0xf0, 0x48, 0xff, 0x05, 0, 0, 0, 0];
/// `pushfq` and `popfq`.
const PUSH: u8 = 0x9c;
const POP: u8 = 0x9d;
/// Bytes of a counter, of the head of what is said of them, and of what says where one is counted.
const COUNTER: u64 = 8;
const HEAD: usize = 16;
const PLACE: usize = 4;

/// A place that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) at: Svma,
    /// Which counter.
    pub(crate) number: u64,
    /// The instruction that counts.
    pub(crate) counts_at: Svma,
    /// Bytes of that.
    pub(crate) len: u64,
    /// The flags are saved in front of it, by one byte, and restored behind it, by one byte.
    pub(crate) keeps_flags: bool,
}

impl Count {
    pub(crate) fn end(&self) -> Svma {
        self.counts_at + self.len + u64::from(self.keeps_flags)
    }
}

/// The counters of a module.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// All places that count.
    pub(crate) places: BTreeSet<Svma>,
    start: Svma,
    /// Bytes.
    len: u64,
    /// What the instruction looks like, but for its displacement.
    form: [u8; 8],
}

fn wrong<T>(what: &'static str) -> Result<T, Problem> {
    Err(Problem::Counter(what))
}

impl Counting {
    /// Reads what the module says.
    pub(crate) fn of_module(module: &Loaded<'_>) -> Result<Self, Problem> {
        let (own, shared) = (module.part(OWN_COUNTERS), module.part(SHARED_COUNTERS));
        let (memory, form) = match (module.part(COUNTED), own, shared) {
            (None, None, None) => return Ok(Self::default()),
            (Some(_), Some(memory), None) => (memory, OWN),
            (Some(_), None, Some(memory)) => (memory, SHARED),
            _ => return wrong("is of no kind that groups have: no memory, or two kinds, or no list"),
        };
        let Some(said) = module.part(COUNTED) else { return wrong("is not listed") };
        let (Some(start), Some(number)) = (long(&said.data, 0), long(&said.data, 8)) else {
            return wrong("has a list that is cut");
        };
        let len = memory.data.len() as u64;
        if Svma::new(start) != memory.at || number.checked_mul(COUNTER) != Some(len) || len == 0 {
            return wrong("has memory elsewhere, or more or less of it");
        }
        if memory.data.iter().any(|byte| *byte != 0) {
            return wrong("does not start as zero");
        }
        let places = places(said)?;
        match places.len() as u64 == number {
            true => Ok(Self { places, start: memory.at, len, form }),
            false => wrong("is counted at two places, or at none"),
        }
    }

    /// What counts at `at`; none if that is not a place that does.
    pub(crate) fn at(&self, part: &Part<'_>, at: Svma) -> Result<Option<Count>, Problem> {
        if !self.places.contains(&at) {
            return Ok(None);
        }
        let bytes = |at: Svma| part.data.get(at.offset_from(part.at) as usize..).unwrap_or_default();
        let keeps_flags = bytes(at).first() == Some(&PUSH);
        let counts_at = at + u64::from(keeps_flags);
        let insn = Insn::decode(bytes(counts_at), counts_at);
        let insn = insn.filter(|insn| insn.len == 8 && insn.form[..8] == self.form);
        let Some((insn, word)) = insn.and_then(|insn| Some((insn, insn.names?))) else {
            return wrong("is no counting instruction of its kind");
        };
        if keeps_flags && bytes(insn.end()).first() != Some(&POP) {
            return wrong("does not restore the flags");
        }
        let offset = word.get().wrapping_sub(self.start.get());
        if offset >= self.len || !offset.is_multiple_of(COUNTER) {
            return wrong("writes elsewhere than to a counter");
        }
        Ok(Some(Count { at, number: offset / COUNTER, counts_at, len: insn.len, keeps_flags }))
    }
}

fn places(said: &Part<'_>) -> Result<BTreeSet<Svma>, Problem> {
    let list = &said.data[HEAD..];
    if !list.len().is_multiple_of(PLACE) {
        return wrong("has a list that ends in the middle of an entry");
    }
    let place = |at: usize| from_itself(&said.data, said.at, at);
    Ok((HEAD..said.data.len()).step_by(PLACE).filter_map(place).collect())
}
