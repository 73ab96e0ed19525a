//! Whether a process does something else than before, told from samples.
//!
//! **Problem.** Samples of the same work differ by chance, and the more so the flatter the profile is: of
//! some hundred samples over some thousand lines of code, two sets of the same work have hardly half in
//! common. **Idea.** How much two sets have in common is compared with what they would have if they were of
//! the same work: they are thrown together and divided by chance, again and again (a permutation test; Good,
//! *Permutation Tests*, 2000). A difference counts that chance does not make, and that is large enough to be
//! worth anything.

use std::collections::BTreeMap;

/// Divisions by chance.
const DIVISIONS: usize = 99;
/// A difference is worth something where so much of what two sets could have in common is missing.
const LEAST_MISSING: f64 = 0.15;
/// More samples than this of the same work are not added up.
const MOST: u64 = 10_000;

/// Where samples were: how often in each place of each module. What a place is, is the user's: a function, or
/// a line of code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SampleSet {
    places: BTreeMap<(u32, u64), u64>,
    total: u64,
}

impl SampleSet {
    /// Adds `count` samples at `place` in module number `module`.
    pub fn add(&mut self, module: u32, place: u64, count: u64) {
        *self.places.entry((module, place)).or_default() += count;
        self.total += count;
    }

    /// Adds samples of the same work, as long as there are not enough.
    pub fn learn(&mut self, more: &SampleSet) {
        if self.total < MOST {
            more.places.iter().for_each(|(&(module, place), &n)| self.add(module, place, n));
        }
    }

    /// The share of samples that the two have in common: the sum over the places of the smaller one of their
    /// two shares.
    fn overlap(&self, other: &SampleSet) -> f64 {
        let pairs = self.places.iter().filter_map(|(place, n)| Some((*n, *other.places.get(place)?)));
        common(pairs, self.total, other.total)
    }

    /// What two sets have in common, of what they would have if they were of the same work, from 0 to about
    /// 1; `None` where chance alone may have made the difference.
    fn agreement(&self, other: &SampleSet) -> Option<f64> {
        if self.total == 0 || other.total == 0 {
            return None;
        }
        let found = self.overlap(other);
        let all: Vec<(u64, u64)> = {
            let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
            self.places.iter().for_each(|(place, n)| sums.entry(*place).or_default().0 += n);
            other.places.iter().for_each(|(place, n)| sums.entry(*place).or_default().1 += n);
            sums.into_values().collect()
        };
        // Each sample by its place's number.
        let mut samples: Vec<u32> = Vec::with_capacity((self.total + other.total) as usize);
        for (place, (a, b)) in all.iter().enumerate() {
            samples.extend(std::iter::repeat_n(place as u32, (a + b) as usize));
        }
        let (mut chance, mut first) = (Chance::new(), vec![0u64; all.len()]);
        let (mut sum, mut as_low) = (0.0, 0);
        for _ in 0..DIVISIONS {
            first.fill(0);
            for taken in 0..self.total as usize {
                let left = (samples.len() - taken) as u64;
                samples.swap(taken, taken + chance.below(left) as usize);
                first[samples[taken] as usize] += 1;
            }
            let pairs = first.iter().zip(&all).map(|(a, (x, y))| (*a, x + y - a));
            let by_chance = common(pairs, self.total, other.total);
            sum += by_chance;
            as_low += usize::from(by_chance <= found);
        }
        (as_low == 0).then(|| found * DIVISIONS as f64 / sum)
    }

    /// Whether these are samples of other work than `other`: the difference is not chance, and worth
    /// something.
    pub fn differs_from(&self, other: &SampleSet) -> bool {
        self.agreement(other).is_some_and(|agreement| agreement <= 1.0 - LEAST_MISSING)
    }
}

fn common(pairs: impl Iterator<Item = (u64, u64)>, first: u64, second: u64) -> f64 {
    let (first, second) = (first.max(1) as f64, second.max(1) as f64);
    pairs.map(|(a, b)| (a as f64 / first).min(b as f64 / second)).sum()
}

/// Numbers that are as good as chance for dividing samples, and the same each time (Steele, Lea and Flood,
/// *Fast splittable pseudorandom number generators*, 2014).
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        Self(0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `count` samples over `lines` lines from `first` on, the later ones rarer (as 1/n, as functions are),
    /// by chance.
    fn samples(first: u64, lines: u64, count: u64, seed: u64) -> SampleSet {
        let mut chance = Chance(seed);
        let weights: Vec<u64> = (1..=lines).map(|n| 1_000_000 / n).collect();
        let sum: u64 = weights.iter().sum();
        let mut shape = SampleSet::default();
        for _ in 0..count {
            let mut at = chance.below(sum);
            let line = weights.iter().position(|w| match at.checked_sub(*w) {
                Some(left) => {
                    at = left;
                    false
                }
                None => true,
            });
            shape.add(0, first + line.unwrap_or(0) as u64, 1);
        }
        shape
    }

    #[test]
    fn the_same_work_is_the_same_however_flat_it_is() {
        for (lines, count) in [(10, 400), (1000, 400), (5000, 1000), (5000, 400)] {
            for seed in 1..20 {
                let (a, b) = (samples(0, lines, count, seed), samples(0, lines, count, 1000 + seed));
                assert!(!a.differs_from(&b), "{lines} {count} {seed}: {:?}", a.agreement(&b));
            }
        }
    }

    #[test]
    fn other_work_is_told() {
        for (lines, count) in [(10, 400), (1000, 400), (5000, 400)] {
            let (a, b) = (samples(0, lines, count, 1), samples(3 * lines, lines, count, 2));
            assert!(a.differs_from(&b) && b.differs_from(&a), "{lines} {count}");
            // Half of it, beside the same work as before.
            let mut half = samples(0, lines, count, 3);
            half.learn(&b);
            assert!(half.differs_from(&a), "{lines} {count}: {:?}", half.agreement(&a));
            // A twentieth is worth nothing.
            let mut little = samples(0, lines, count, 3);
            little.learn(&samples(3 * lines, lines, count / 20, 4));
            assert!(!little.differs_from(&a), "{lines} {count}: {:?}", little.agreement(&a));
        }
    }

    #[test]
    fn nothing_is_told_of_nothing() {
        let (none, some) = (SampleSet::default(), samples(0, 10, 100, 1));
        assert!(!none.differs_from(&some) && !some.differs_from(&none) && !none.differs_from(&none));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut known = SampleSet::default();
        (0..50).for_each(|seed| known.learn(&samples(0, 10, 1000, seed)));
        assert_eq!(known.total, MOST);
        assert_eq!(known.places.values().sum::<u64>(), MOST);
    }

    proptest! {
        #[test]
        fn a_set_agrees_with_itself_and_order_does_not_matter(counts in prop::collection::vec((0u32..3, 0u64..2000, 1u64..20), 1..60), others in prop::collection::vec((0u32..3, 0u64..2000, 1u64..20), 1..60)) {
            let shape = |counts: &[(u32, u64, u64)]| {
                let mut shape = SampleSet::default();
                counts.iter().for_each(|&(module, at, n)| shape.add(module, at, n));
                shape
            };
            let (a, b) = (shape(&counts), shape(&others));
            prop_assert!((a.overlap(&a) - 1.0).abs() < 1e-9);
            prop_assert!(!a.differs_from(&a));
            prop_assert!((a.overlap(&b) - b.overlap(&a)).abs() < 1e-9);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&a.overlap(&b)));
        }
    }
}
