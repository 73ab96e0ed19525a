//! What the plugin counted: its binary form, and figures of it.
//!
//! A file is a magic number, the totals, then one record for each kernel instruction that was executed and
//! one for each branch between two of them; all numbers are little-endian. `kernel/plugin/count.c` writes it.

use std::collections::HashMap;

use crate::Result;
use crate::error::Error;

/// How files begin.
const MAGIC: &[u8; 8] = b"RSTWIN01";
/// Words of totals, the two numbers of records included.
const TOTALS: usize = 14;
/// Bytes of a record.
const EXECUTED: usize = 24;
const EDGE: usize = 32;

/// An instruction of the kernel with how often it was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Executed {
    /// Where it is.
    pub address: u64,
    /// Its length, in bytes.
    pub size: u32,
    /// How often it was executed to its end.
    pub count: u64,
}

/// What a branch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// A conditional jump, taken or not.
    Conditional,
    /// A direct jump.
    Jump,
    /// A jump to where a register or memory says.
    IndirectJump,
    /// A direct call.
    Call,
    /// A call of what a register or memory says.
    IndirectCall,
    /// A return to a caller.
    Return,
    /// None of these: an instruction that traps.
    Other,
    /// No branch: an instruction that did not come to its end, since it faulted, and where execution went on.
    Fault,
}

/// From a branch to the instruction that was executed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// Where the branch is.
    pub from: u64,
    /// Its length, in bytes.
    pub size: u32,
    /// Where it went.
    pub to: u64,
    /// How often.
    pub count: u64,
    /// What the branch is.
    pub kind: EdgeKind,
}

impl Edge {
    /// Whether it is a branch, and execution did not go on with the instruction behind it.
    pub fn is_taken(&self) -> bool {
        self.kind != EdgeKind::Fault && self.to != self.from.wrapping_add(u64::from(self.size))
    }
}

/// All that was counted in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of programs.
    pub user_instructions: u64,
    /// Reads of cache lines by the kernel, in the model of the first-level instruction cache.
    pub line_fetches: u64,
    /// Those that missed, by the kernel and by programs.
    pub line_misses: u64,
    /// The same of programs.
    pub user_line_misses: u64,
    /// Misses of the model of the first-level instruction TLB (64 pages of 4 KiB, and 8 of 2 MiB, by which
    /// the kernel's image is mapped), by the kernel.
    pub page_misses: u64,
    /// The same of programs.
    pub user_page_misses: u64,
    /// Interrupts and faults of kernel code.
    pub interruptions: u64,
    /// Steps from one instruction to another that the plugin could not explain. Counts are exact if it is 0.
    pub unexplained: u64,
    /// Pieces of the kernel whose bytes were translated anew at one address (patched code).
    pub changed: u64,
    /// Blocks of the emulator that were executed.
    pub units: u64,
    /// Processors that executed kernel code.
    pub processors: u64,
    /// Times that the emulator went on with a repeated string instruction. A guest's own clock of
    /// instructions has them, an instruction's count has not.
    pub repetitions: u64,
    /// Each instruction of the kernel that was executed, by address.
    pub executed: Vec<Executed>,
    /// Each way that a branch of the kernel took, by its address and its target; and from each instruction
    /// that a fault ended.
    pub edges: Vec<Edge>,
}

/// On how many places some share of all execution lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concentration {
    /// Places for 90 % of executed instructions.
    pub at_90: usize,
    /// For 99 %.
    pub at_99: usize,
    /// For 99.9 %.
    pub at_99_9: usize,
    /// All.
    pub all: usize,
}

/// Figures of the kernel in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Executed instructions.
    pub instructions: u64,
    /// Branches that were taken, calls and returns included.
    pub taken_branches: u64,
    /// Lines of 64 bytes.
    pub lines: Concentration,
    /// Pages of 4 KiB.
    pub pages: Concentration,
}

impl Counts {
    /// Reads a file of the plugin.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let body = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it begins otherwise"))?;
        let (totals, records) =
            body.split_at_checked(8 * TOTALS).ok_or_else(|| damaged("its totals are cut"))?;
        let total = |at: usize| word(totals, 8 * at);
        let executed = usize::try_from(total(12)).ok().and_then(|count| count.checked_mul(EXECUTED));
        let edges = usize::try_from(total(13)).ok().and_then(|count| count.checked_mul(EDGE));
        let (Some(executed), Some(edges)) = (executed, edges) else { return Err(damaged("it is too large")) };
        if executed.checked_add(edges) != Some(records.len()) {
            return Err(damaged("it has not the records that it says"));
        }
        let (executed, edges) = records.split_at(executed);
        Ok(Self {
            user_instructions: total(0),
            line_fetches: total(1),
            line_misses: total(2),
            user_line_misses: total(3),
            page_misses: total(4),
            user_page_misses: total(5),
            interruptions: total(6),
            unexplained: total(7),
            changed: total(8),
            units: total(9),
            processors: total(10),
            repetitions: total(11),
            executed: sorted(executed.chunks_exact(EXECUTED).map(executed_record).collect(), |r| {
                (r.address, 0)
            }),
            edges: sorted(edges.chunks_exact(EDGE).map(edge_record).collect::<Result<_>>()?, |r| {
                (r.from, r.to)
            }),
        })
    }

    /// How often the instruction at an address was executed.
    pub fn at(&self, address: u64) -> u64 {
        let found = self.executed.binary_search_by_key(&address, |record| record.address);
        found.map_or(0, |at| self.executed[at].count)
    }

    /// Figures of the kernel.
    pub fn summary(&self) -> Summary {
        let taken = self.edges.iter().filter(|edge| edge.is_taken());
        Summary {
            instructions: self.executed.iter().map(|record| record.count).sum(),
            taken_branches: taken.map(|edge| edge.count).sum(),
            lines: self.concentration(64),
            pages: self.concentration(restitch_address::PAGE),
        }
    }

    /// On how many pieces of `size` bytes execution lies. An instruction belongs to the piece that its first
    /// byte is in.
    fn concentration(&self, size: u64) -> Concentration {
        let mut pieces: HashMap<u64, u64> = HashMap::new();
        for record in &self.executed {
            *pieces.entry(record.address / size).or_default() += record.count;
        }
        let mut counts: Vec<u64> = pieces.into_values().filter(|&count| count > 0).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let all: u64 = counts.iter().sum();
        let most = |per_mille: u64| {
            let mut sum: u128 = 0;
            let is_below = |&&count: &&u64| {
                let enough = sum * 1000 >= u128::from(all) * u128::from(per_mille);
                sum += u128::from(count);
                !enough
            };
            counts.iter().take_while(is_below).count()
        };
        let [at_90, at_99, at_99_9] = [900, 990, 999].map(most);
        Concentration { at_90, at_99, at_99_9, all: counts.len() }
    }
}

fn damaged(why: &str) -> Error {
    Error::damaged("what the plugin counted", why)
}

fn sorted<T>(mut records: Vec<T>, key: impl Fn(&T) -> (u64, u64)) -> Vec<T> {
    records.sort_by_key(key);
    records
}

/// Eight bytes as a number.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn executed_record(bytes: &[u8]) -> Executed {
    Executed { address: word(bytes, 0), count: word(bytes, 8), size: word(bytes, 16) as u32 }
}

fn edge_record(bytes: &[u8]) -> Result<Edge> {
    let rest = word(bytes, 24);
    let kind = match rest >> 32 {
        1 => EdgeKind::Conditional,
        2 => EdgeKind::Jump,
        3 => EdgeKind::IndirectJump,
        4 => EdgeKind::Call,
        5 => EdgeKind::IndirectCall,
        6 => EdgeKind::Return,
        7 => EdgeKind::Other,
        8 => EdgeKind::Fault,
        _ => return Err(damaged("a branch is of no known kind")),
    };
    Ok(Edge { from: word(bytes, 0), to: word(bytes, 8), count: word(bytes, 16), size: rest as u32, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(executed: &[(u64, u64, u64)], edges: &[(u64, u64, u64, u64)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let totals = [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, executed.len() as u64, edges.len() as u64];
        let mut add = |word: u64| bytes.extend(word.to_le_bytes());
        totals.into_iter().for_each(&mut add);
        for &(address, count, size) in executed {
            [address, count, size].into_iter().for_each(&mut add);
        }
        for &(from, to, count, rest) in edges {
            [from, to, count, rest].into_iter().for_each(&mut add);
        }
        bytes
    }

    #[test]
    fn figures_are_those_of_the_records() {
        let executed = [(0x2000, 9, 4), (0x1000, 90, 2), (0x1040, 900, 2), (0x3000, 1, 1)];
        let edges = [(0x1000, 0x1002, 60, 1 << 32 | 2), (0x1000, 0x1040, 30, 1 << 32 | 2)];
        let counts = Counts::parse(&file(&executed, &edges)).unwrap();
        assert_eq!((counts.user_instructions, counts.processors), (5, 1));
        assert_eq!((counts.at(0x1040), counts.at(0x1041)), (900, 0));
        let summary = counts.summary();
        assert_eq!((summary.instructions, summary.taken_branches), (1000, 30));
        assert_eq!(summary.lines, Concentration { at_90: 1, at_99: 2, at_99_9: 3, all: 4 });
        assert_eq!(summary.pages, Concentration { at_90: 1, at_99: 1, at_99_9: 2, all: 3 });
    }

    #[test]
    fn a_file_that_is_cut_or_of_another_kind_is_refused() {
        let whole = file(&[(1, 2, 3)], &[(1, 2, 3, 1 << 32)]);
        assert!(Counts::parse(&whole).is_ok());
        for end in 0..whole.len() {
            assert!(Counts::parse(&whole[..end]).is_err(), "{end}");
        }
        assert!(Counts::parse(&file(&[], &[(1, 2, 3, 9 << 32)])).is_err());
    }
}
