//! Sets of addresses of the text: a bit for each byte.

use restitch_address::{Svma, SvmaRange};

/// A set of text addresses, one bit a byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressSet {
    base: Svma,
    len: u64,
    bits: Vec<u64>,
}

impl AddressSet {
    pub fn new(range: SvmaRange) -> Self {
        let len = range.len();
        Self { base: range.start, len, bits: vec![0; len.div_ceil(64) as usize] }
    }
    pub fn insert(&mut self, at: Svma) {
        let i = at.offset_from(self.base) as u64;
        if i < self.len {
            self.bits[(i / 64) as usize] |= 1 << (i % 64);
        }
    }
    pub fn contains(&self, at: Svma) -> bool {
        let i = at.offset_from(self.base) as u64;
        i < self.len && self.bits[(i / 64) as usize] >> (i % 64) & 1 == 1
    }
    /// The addresses of `range` that are in the set, in order.
    pub fn iter_in(&self, range: SvmaRange) -> impl Iterator<Item = Svma> + '_ {
        let from = range.start.offset_from(self.base).clamp(0, self.len as i64) as u64;
        let to = range.end.offset_from(self.base).clamp(0, self.len as i64) as u64;
        (from / 64..to.div_ceil(64)).flat_map(move |word| {
            let mut bits = self.bits[word as usize];
            std::iter::from_fn(move || {
                let bit = u64::from(bits.trailing_zeros());
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(64 * word + bit)
            })
            .filter(move |i| (from..to).contains(i))
            .map(|i| self.base + i)
        })
    }
    /// Whether any address in `from..to` is in the set.
    pub fn any_between(&self, from: Svma, to: Svma) -> bool {
        (0..to.offset_from(from).max(0)).any(|i| self.contains(from.offset(i)))
    }
}

/// A complete set that also says how many of its addresses lie below another one: the index into a table with
/// one element an address, in order. (The same as a binary search in that table, of which each step would be
/// a cache miss.)
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranked {
    set: AddressSet,
    /// By word of `set.bits`: addresses in the words before it.
    before: Vec<u32>,
}

impl Ranked {
    /// The set of those of `addresses` that are in `range`.
    pub fn new(range: SvmaRange, addresses: impl Iterator<Item = Svma>) -> Self {
        let mut set = AddressSet::new(range);
        addresses.for_each(|at| set.insert(at));
        Self::of(set)
    }
    /// The addresses of `set`.
    pub fn of(set: AddressSet) -> Self {
        let mut sum = 0;
        let before = set.bits.iter().map(|bits| {
            let before = sum;
            sum += bits.count_ones();
            before
        });
        Self { before: before.collect(), set }
    }
    pub fn contains(&self, at: Svma) -> bool {
        self.set.contains(at)
    }
    /// How many addresses lie below `at`.
    pub fn below(&self, at: Svma) -> usize {
        let i = at.get().saturating_sub(self.set.base.get()).min(self.set.len);
        let (word, bit) = ((i / 64) as usize, i % 64);
        match (self.before.get(word), self.before.last()) {
            (Some(before), _) => (before + (self.set.bits[word] & ((1 << bit) - 1)).count_ones()) as usize,
            (None, Some(before)) => (before + self.set.bits[word - 1].count_ones()) as usize,
            (None, None) => 0,
        }
    }
    /// The index of `at`, if it is in the set.
    pub fn index_of(&self, at: Svma) -> Option<usize> {
        self.contains(at).then(|| self.below(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// It says what a search in the sorted list says, also of addresses outside of its range.
        #[test]
        fn ranks_are_those_of_a_sorted_list(
            len in 0u64..300,
            offsets in prop::collection::btree_set(0u64..300, 0..40),
            asked in prop::collection::vec(0u64..500, 1..40),
        ) {
            let base = Svma::new(100);
            let list: Vec<Svma> = offsets.into_iter().filter(|i| *i < len).map(|i| base + i).collect();
            let ranked = Ranked::new(SvmaRange::new(base, len), list.iter().copied());
            for at in asked.into_iter().map(Svma::new) {
                prop_assert_eq!(ranked.below(at), list.partition_point(|a| *a < at));
                prop_assert_eq!(ranked.index_of(at), list.binary_search(&at).ok());
            }
        }
    }
}
