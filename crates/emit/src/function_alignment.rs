//! Which alignment the entries of a file's functions were given on purpose: programs may keep something else
//! in the low bits of pointers to them.
//!
//! **Idea.** More filler in front of a function than the usual alignment asks for says what was asked for. A
//! function that is as aligned without such filler may be one of them, or be so by chance: it is taken for
//! one of them.

use restitch_address::Svma;
use restitch_program::Program;

/// What programs may rely on in any file, in bytes: what compilers do without being asked.
const USUAL: u64 = 16;
/// More filler in front of a function is for something else.
const MOST: u64 = 4096;

/// The alignments of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FunctionAlignment {
    /// Powers of two above the usual one, in bytes, falling.
    asked_for: Vec<u64>,
}

impl FunctionAlignment {
    /// Those of a program.
    pub(crate) fn of(program: &Program) -> Self {
        let mut ranges: Vec<(u64, u64)> =
            program.functions.iter().map(|f| (f.range.start.get(), f.range.end.get())).collect();
        ranges.sort_unstable();
        Self::of_functions(&ranges)
    }

    /// Those of functions from start to end, sorted.
    fn of_functions(ranges: &[(u64, u64)]) -> Self {
        let mut asked_for: Vec<u64> =
            ranges.windows(2).filter_map(|pair| asked_for(pair[0].1, pair[1].0)).collect();
        asked_for.sort_unstable_by(|a, b| b.cmp(a));
        asked_for.dedup();
        Self { asked_for }
    }

    /// What a copy of the entry has to keep, in bytes.
    pub(crate) fn at(&self, entry: Svma) -> u32 {
        let usual = (1..=USUAL.trailing_zeros()).rev().map(|bits| 1 << bits);
        let all = self.asked_for.iter().copied().chain(usual);
        all.into_iter().find(|align| entry.get().is_multiple_of(*align)).unwrap_or(1) as u32
    }
}

/// The least alignment above the usual one that explains the filler from `end` to `start`.
fn asked_for(end: u64, start: u64) -> Option<u64> {
    if start <= end || start - end >= MOST || end.next_multiple_of(USUAL) >= start {
        return None;
    }
    let aligns = (USUAL.trailing_zeros() + 1..=MOST.trailing_zeros()).map(|bits| 1u64 << bits);
    aligns.into_iter().find(|align| end.next_multiple_of(*align) == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filler_says_what_was_asked_for() {
        // By chance at a multiple of 64; behind 14 bytes of filler; no filler at all.
        for (end, start) in [(0x1040, 0x1040), (0x1032, 0x1040), (0x1040, 0x1041)] {
            assert_eq!(asked_for(end, start), None, "{end:#x} {start:#x}");
        }
        assert_eq!(asked_for(0x1021, 0x1040), Some(32), "the least that explains it");
        assert_eq!(asked_for(0x1010, 0x1040), Some(64));
        assert_eq!(asked_for(0x1101, 0x2000), Some(4096));
        assert_eq!(asked_for(0x1010, 0x1038), None, "some code without a name, or data");
        assert_eq!(asked_for(0x1000, 0x3000), None, "too much");
        assert_eq!(asked_for(0x1050, 0x1040), None, "they overlap");
    }

    #[test]
    fn entries_keep_what_some_function_was_given() {
        let usual = FunctionAlignment::of_functions(&[(0x1000, 0x1035), (0x1040, 0x1050)]);
        let keeps = |alignment: &FunctionAlignment, entry| alignment.at(Svma::new(entry));
        assert_eq!([0x1040, 0x1010, 0x1008, 0x1001].map(|at| keeps(&usual, at)), [16, 16, 8, 1]);
        let asked = FunctionAlignment::of_functions(&[(0x1000, 0x1008), (0x1040, 0x1048), (0x1060, 0x1070)]);
        assert_eq!(asked.asked_for, [64, 32]);
        let entries = [0x1000, 0x1080, 0x1060, 0x1010, 0x1004];
        assert_eq!(entries.map(|at| keeps(&asked, at)), [64, 64, 32, 16, 4]);
    }
}
