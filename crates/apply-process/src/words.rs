//! Finding words that lie in ranges of addresses, at whatever byte they begin: stacks need not be aligned,
//! and neither is what they are copied to.
//!
//! Idea: all words in a range of up to 16 MiB have the same upper five bytes, and the one below them lies
//! between two values. Whether that holds anywhere among some places is asked of all of them at once, byte by
//! byte, which compilers turn into vector instructions; hardly any word is looked at itself.

use restitch_address::{Avma, AvmaRange};
use std::collections::BTreeMap;

/// Bytes of a word.
const WORD: usize = 8;
/// Places that are asked about at once.
const BLOCK: usize = 64;
/// Ranges are split where more than the lower three bytes of addresses change, if those are not more than so
/// many parts.
const GRAIN: u64 = 1 << 24;
const MOST_GRAINS: u64 = 64;

/// Finds words that lie in ranges.
#[derive(Debug)]
pub(crate) struct WordFinder {
    ranges: Vec<AvmaRange>,
    kinds: Vec<Kind>,
}

/// Words that agree in some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    /// By number, the lowest being 0: the byte that lies between two values, and three above it.
    bytes: [usize; 4],
    /// The least value of the first of them, and how much it may be above that.
    least: u8,
    span: u8,
    /// The values of the others.
    others: [u8; 3],
}

impl Kind {
    /// The kind that holds all words between `first` and `last`, both included.
    fn between(first: u64, last: u64) -> Self {
        let highest = (0..WORD).rev().find(|i| first.to_le_bytes()[*i] != last.to_le_bytes()[*i]);
        let lowest = highest.unwrap_or(0).max(2);
        let bytes = [lowest, lowest + 1, lowest + 2, lowest + 3].map(|byte| byte.min(WORD - 1));
        let value = |i: usize| first.to_le_bytes()[bytes[i]];
        let span = last.to_le_bytes()[lowest] - value(0);
        // At the very top of the address space the same byte is asked for twice, which may be the first one.
        let others = [1, 2, 3].map(value);
        Self { bytes, least: value(0), span, others }
    }

    /// Whether a word of this kind may begin at one of the first [`BLOCK`] bytes of `bytes`.
    fn may_be_in(&self, bytes: &[u8; BLOCK + WORD]) -> bool {
        let [first, second, third, fourth] = self.bytes.map(|byte| from(bytes, byte));
        let [b, c, d] = self.others;
        // A minimum, since of that compilers make vector instructions.
        let mut least = u8::MAX;
        for i in 0..BLOCK {
            let differs = first[i].wrapping_sub(self.least).saturating_sub(self.span);
            least = least.min(differs | (second[i] ^ b) | (third[i] ^ c) | (fourth[i] ^ d));
        }
        least == 0
    }
}

fn from(bytes: &[u8; BLOCK + WORD], byte: usize) -> &[u8; BLOCK] {
    bytes[byte..].first_chunk().expect("a word is longer")
}

impl WordFinder {
    /// For the words that are in one of `ranges`.
    pub fn of(ranges: &[AvmaRange]) -> Self {
        let ranges: Vec<AvmaRange> = ranges.iter().copied().filter(|r| !r.is_empty()).collect();
        let ends = || ranges.iter().map(|r| (r.start.get(), r.end.get() - 1));
        let grains: u64 = ends().map(|(first, last)| last / GRAIN - first / GRAIN + 1).sum();
        let kinds = if grains > MOST_GRAINS {
            ends().map(|(first, last)| Kind::between(first, last)).collect()
        } else {
            let mut parts: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            for (first, last) in ends() {
                for grain in first / GRAIN..=last / GRAIN {
                    let (from, to) = (first.max(grain * GRAIN), last.min(grain * GRAIN + (GRAIN - 1)));
                    let part = parts.entry(grain).or_insert((from, to));
                    *part = (part.0.min(from), part.1.max(to));
                }
            }
            parts.into_values().map(|(first, last)| Kind::between(first, last)).collect()
        };
        Self { ranges, kinds }
    }

    /// Gives `see` the words in `bytes` that are in one of the ranges, with the places of their first bytes.
    pub fn find(&self, bytes: &[u8], mut see: impl FnMut(usize, Avma)) {
        let mut at = 0;
        while let Some(block) = bytes[at..].first_chunk::<{ BLOCK + WORD }>() {
            if self.kinds.iter().any(|kind| kind.may_be_in(block)) {
                self.compare(&block[..BLOCK + WORD - 1], at, &mut see);
            }
            at += BLOCK;
        }
        self.compare(&bytes[at..], at, &mut see);
    }

    /// `find` word by word; `bytes` begin at `at`.
    fn compare(&self, bytes: &[u8], at: usize, see: &mut impl FnMut(usize, Avma)) {
        for (i, word) in bytes.windows(WORD).enumerate() {
            let word = Avma::new(u64::from_le_bytes(word.try_into().expect("as long as a word")));
            if self.ranges.iter().any(|r| r.contains(word)) {
                see(at + i, word);
            }
        }
    }

    /// Those words in `bytes`, which stand at `start`, with their addresses, by address.
    pub fn words_at(&self, start: Avma, bytes: &[u8]) -> Vec<(Avma, Avma)> {
        let mut found = Vec::new();
        self.find(bytes, |i, word| found.push((start + i as u64, word)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(from: u64, len: u64) -> AvmaRange {
        AvmaRange::new(Avma::new(from), len)
    }

    /// Places and words, one by one.
    fn expected(ranges: &[AvmaRange], bytes: &[u8]) -> Vec<(Avma, Avma)> {
        let words = bytes.windows(8).map(|w| Avma::new(u64::from_le_bytes(w.try_into().unwrap())));
        let words = words.enumerate().filter(|(_, word)| ranges.iter().any(|r| r.contains(*word)));
        words.map(|(i, word)| (Avma::new(0x1000 + i as u64), word)).collect()
    }

    proptest! {
        /// Ranges of all sizes, at all places, and words in them and beside them at all bytes.
        #[test]
        fn no_word_in_a_range_is_missed(
            starts in prop::collection::vec((0u64..48, any::<u64>(), 0u32..34), 0..6),
            words in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0usize..90), 0..20),
            len in 0usize..400,
        ) {
            let ranges: Vec<AvmaRange> = starts
                .iter()
                .map(|(shift, start, len)| {
                    let len = start % (1 << len) + 1;
                    range((start >> 16 >> shift).min((1 << 48) - len), len)
                })
                .collect();
            let mut bytes = vec![0; len];
            let mut at = 0;
            for (which, within, gap) in words {
                at += gap;
                if let (false, Some(place)) = (ranges.is_empty(), bytes.get_mut(at..at + 8)) {
                    let range = which.get(&ranges);
                    let word = range.start.get() + within % (range.len() + 3);
                    place.copy_from_slice(&word.saturating_sub(1).to_le_bytes());
                }
            }
            let found = WordFinder::of(&ranges).words_at(Avma::new(0x1000), &bytes);
            prop_assert_eq!(found, expected(&ranges, &bytes));
        }
    }

    #[test]
    fn the_ends_of_a_range_and_of_the_bytes_are_looked_at() {
        let ranges = [range(0x55_00ff_0000, 0x0212_3456), range(0x7fff_ffff_f000, 0x1000)];
        let finder = WordFinder::of(&ranges);
        for range in ranges {
            for at in 0..=192 {
                let mut bytes = vec![0xff; 200];
                for (word, is_in) in
                    [(range.start.get(), true), (range.end.get() - 1, true), (range.end.get(), false)]
                {
                    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
                    let found = finder.words_at(Avma::new(0), &bytes);
                    let expected = is_in.then_some((Avma::new(at as u64), Avma::new(word)));
                    assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{word:#x} at {at}");
                }
            }
        }
    }

    #[test]
    fn memory_of_zeros_is_not_looked_at_word_by_word() {
        for ranges in [[range(0x40_0000, 0x3000)], [range(0xff_0000, 0x20_0000)], [range(1 << 40, 1 << 32)]] {
            let finder = WordFinder::of(&ranges);
            assert!(!finder.kinds.iter().any(|kind| kind.may_be_in(&[0; BLOCK + WORD])), "{finder:?}");
        }
    }
}
