//! What the checker can find wrong.

use restitch_address::Svma;
use restitch_program::BlockId;
use std::fmt;
use thiserror::Error;

/// At most this many findings are kept; the rest is only counted, so that a thoroughly wrong version cannot
/// fill memory.
pub const MAX_FINDINGS: usize = 200;

/// One difference between a version and the program that it should equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where in the version, if it has a place there.
    pub version: Option<Svma>,
    /// The original address that it is about, if there is one.
    pub original: Option<Svma>,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.version, self.original) {
            (Some(v), Some(o)) => write!(f, "at {v} (original {o}): {}", self.problem),
            (Some(v), None) => write!(f, "at {v}: {}", self.problem),
            (None, Some(o)) => write!(f, "original {o}: {}", self.problem),
            (None, None) => write!(f, "{}", self.problem),
        }
    }
}

/// What is wrong at the place that a [`Finding`] names.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// The image header or the ranges of the version.
    #[error("the version's image: {0}")]
    Elf(&'static str),
    /// Symbols.
    #[error("the version's symbols: {0}")]
    Symbol(&'static str),
    /// The set or order of placed blocks.
    #[error("the placed blocks: {0}")]
    Placement(&'static str),
    /// The program's own tables contradict the original bytes.
    #[error("the analysis of the original code: {0}")]
    Program(&'static str),
    /// A copied instruction differs.
    #[error("a copied instruction differs from the original: {0}")]
    Instruction(&'static str),
    /// A call, a RIP-relative operand or a branch goes somewhere else.
    #[error("{what} goes to {to}, not to the equivalent of {want}")]
    WrongTarget {
        /// What goes there.
        what: &'static str,
        /// Where it goes in the version.
        to: Svma,
        /// The original address that it has to be equivalent to.
        want: Svma,
    },
    /// A terminator is not what it should be.
    #[error("the end of a block: {0}")]
    Terminator(&'static str),
    /// Two instructions share bytes.
    #[error("two different instructions share bytes")]
    Overlap,
    /// Bytes that nothing reaches where there must be none.
    #[error("{0} that no instruction of the version accounts for")]
    Unaccounted(&'static str),
    /// A jump table's copy.
    #[error("the copy of a jump table: {0}")]
    Table(&'static str),
    /// One entry of a jump table's copy.
    #[error("entry {index} of the copy of a jump table goes to {to}, not to the equivalent of {want}")]
    TableEntry {
        /// Number of the entry.
        index: u32,
        /// Where it goes.
        to: Svma,
        /// The original address that it has to be equivalent to.
        want: Svma,
    },
    /// The address map.
    #[error("the address map: {0}")]
    Map(&'static str),
    /// The map gives a wrong address.
    #[error("the address map says {says:?} here")]
    MapWrong {
        /// What it says.
        says: Option<Svma>,
    },
    /// The map's way back gives a wrong address.
    #[error("the address map sends the original instruction to {says:?} instead")]
    PlaceWrong {
        /// Where it sends it.
        says: Option<Svma>,
    },
    /// A counter.
    #[error("a counter: {0}")]
    Counter(&'static str),
    /// A counter that changes flags stands where they may be read.
    #[error("a counter that changes the status flags stands where they may still be read")]
    FlagsLive,
    /// A tracing version.
    #[error("the tracing version: {why}{}", if .found.is_empty() { String::new() } else { format!(" (found `{found}`)") })]
    Burst {
        /// What is wrong.
        why: &'static str,
        /// The instruction, where it is one of recording code.
        found: String,
    },
    /// A slot of the global offset table.
    #[error("a slot that is taken to be bound: {0}")]
    Bound(&'static str),
    /// A promoted call.
    #[error("a promoted call: {0}")]
    Promoted(&'static str),
    /// A copied call of what reads its return address.
    #[error("a call of {0}, which reads its return address, is copied")]
    ReturnAddress(Svma),
    /// What finds out what an indirect call usually calls.
    #[error("a vote: {0}")]
    Vote(&'static str),
    /// A line that is fetched ahead.
    #[error("a prefetch: {0}")]
    Prefetch(&'static str),
    /// A redirect.
    #[error("a redirect: {0}")]
    Redirect(&'static str),
    /// A retarget.
    #[error("a retarget: {0}")]
    Retarget(&'static str),
    /// A function of which pointers lead to the copy.
    #[error("pointers to a function: {0}")]
    Pointer(&'static str),
    /// The unwind tables cannot be read.
    #[error("{of} unwind tables: {why}")]
    Unwind {
        /// Whose.
        of: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The unwind row differs.
    #[error("the unwind row {0}")]
    Row(String),
    /// The exception table differs.
    #[error("the exception table {0}")]
    Lsda(String),
    /// Something of the block could not be checked because of what was found before.
    #[error("block {0:?} cannot be checked")]
    NotChecked(BlockId),
}

/// What was checked, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Copies of blocks.
    pub blocks: u64,
    /// How many of them are second copies.
    pub duplicates: u64,
    /// Instructions in the version's text, of all kinds.
    pub instructions: u64,
    /// Branch instructions that were written anew or added.
    pub branches: u64,
    /// Copies of jump tables.
    pub tables: u64,
    /// Entries of those.
    pub table_entries: u64,
    /// Unwind rows compared, one an instruction boundary.
    pub rows: u64,
    /// Call instructions whose exception handling was compared.
    pub call_sites: u64,
    /// Calls and jumps through a slot or a stub that became direct.
    pub direct: u64,
    /// Calls and jumps of a stub that go through the stub's slot.
    pub by_slot: u64,
    /// Indirect calls that compare their operand and call directly.
    pub promoted: u64,
    /// Lines that are fetched ahead.
    pub prefetches: u64,
    /// Redirects.
    pub redirects: u64,
    /// Retargets.
    pub retargets: u64,
    /// Retargeted functions: pointers lead to the copy.
    pub retargeted: u64,
    /// Counters.
    pub counters: u64,
    /// Indirect calls that vote for their usual target.
    pub votes: u64,
    /// Pieces of the address map.
    pub map_pieces: u64,
    /// Bytes of text that nothing reaches: alignment.
    pub filler: u64,
}

/// A version that is not equal to its program, or could not be shown to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct CheckError {
    /// The first [`MAX_FINDINGS`] findings. Never empty.
    pub findings: Vec<Finding>,
    /// How many there were in all.
    pub total: u64,
    /// How much was checked.
    pub checked: Box<CheckReport>,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checking the new code: {} differences from the original code", self.total)?;
        for finding in self.findings.iter().take(3) {
            write!(f, "; {finding}")?;
        }
        f.write_str("; it was not applied: leave these functions out of the layout and report this as a bug")
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub list: Vec<Finding>,
    pub total: u64,
}

impl Findings {
    pub fn add(&mut self, version: Option<Svma>, original: Option<Svma>, problem: Problem) {
        self.total += 1;
        if self.list.len() < MAX_FINDINGS {
            self.list.push(Finding { version, original, problem });
        }
    }
    pub fn at(&mut self, version: Svma, original: Svma, problem: Problem) {
        self.add(Some(version), Some(original), problem);
    }
    pub fn version(&mut self, version: Svma, problem: Problem) {
        self.add(Some(version), None, problem);
    }
}
