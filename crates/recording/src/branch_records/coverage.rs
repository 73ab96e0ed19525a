//! How much of what runs a profile from branch records knows.
//!
//! **Problem.** What a profile has not seen counts as never executed, and is moved out of the way. If that is
//! much of what runs, the new layout gains little (`docs/design/profile.md`), and the profile itself looks as
//! any other.
//!
//! **Idea.** *Sample coverage* (I. J. Good, The population frequencies of species and the estimation of
//! population parameters, Biometrika 40, 1953): what all records but one know of that one is what all of them
//! know of the next, about. Branches in one record are no independent samples, so a branch that is in one
//! record only was seen once, however often it is in it.
//!
//! **Limits.** It is about the time in which records were taken: what a program does later nobody can know.

use restitch_address::Svma;
use std::collections::HashMap;

/// A module and an address in it; nothing, if it is in none.
type Place = Option<(usize, Svma)>;

/// Where branches were seen.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    branches: HashMap<(Place, Place), Sight>,
    records: u64,
}

#[derive(Debug)]
struct Sight {
    /// The record that had it first.
    first: u64,
    /// Another record had it as well.
    again: bool,
    count: u64,
}

impl Coverage {
    /// Takes in a record: branches from and to, those from nowhere left out.
    pub fn add(&mut self, record: &[(Place, Place)]) {
        self.records += 1;
        let number = self.records;
        for branch in record.iter().filter(|(from, _)| from.is_some()) {
            let sight =
                self.branches.entry(*branch).or_insert(Sight { first: number, again: false, count: 0 });
            sight.again |= sight.first != number;
            sight.count += 1;
        }
    }

    /// The estimated share of the branches that are executed, weighed by how often they are, that the records
    /// have: 0 to 1.
    pub fn share(&self) -> f64 {
        let count = |again: bool| -> u64 {
            self.branches.values().filter(|s| s.again || !again).map(|s| s.count).sum()
        };
        count(true) as f64 / count(false).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn branch(n: u64) -> (Place, Place) {
        (Some((0, Svma::new(n))), Some((0, Svma::new(n + 0x100))))
    }

    fn covered(records: &[&[u64]]) -> f64 {
        let mut coverage = Coverage::default();
        for record in records {
            coverage.add(&record.iter().map(|n| branch(*n)).collect::<Vec<_>>());
        }
        coverage.share()
    }

    #[test]
    fn what_one_record_has_says_nothing_of_another() {
        assert_eq!(covered(&[]), 0.0);
        assert_eq!(covered(&[&[1, 1, 1, 2]]), 0.0);
        assert_eq!(covered(&[&[1, 1, 1], &[1]]), 1.0);
        assert_eq!(covered(&[&[1, 1, 2], &[1, 3, 3, 3, 3]]), 3.0 / 8.0);
        let mut coverage = Coverage::default();
        coverage.add(&[(None, branch(1).1), branch(1)]);
        coverage.add(&[branch(1)]);
        assert_eq!(coverage.share(), 1.0, "nobody asks where branches from nowhere come from");
    }

    proptest! {
        /// Records of independent branches with known probabilities: the estimate is near the true share of
        /// what was seen.
        #[test]
        fn it_estimates_what_the_next_record_has(seed in any::<u64>(), records in 20u64..200, kinds in 10u64..2000) {
            let mut state = seed;
            let mut draw = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Squared: some branches are frequent, most are not.
                let x = (state >> 11) as f64 / (1u64 << 53) as f64;
                (x * x * kinds as f64) as u64
            };
            let all: Vec<Vec<u64>> = (0..records).map(|_| (0..10).map(|_| draw()).collect()).collect();
            let share = covered(&all.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let known: std::collections::HashSet<u64> = all.iter().flatten().copied().collect();
            let next: Vec<u64> = (0..20_000).map(|_| draw()).collect();
            let true_share = next.iter().filter(|n| known.contains(n)).count() as f64 / 20_000.0;
            // Five standard deviations of the estimate, which has 10 * records samples.
            let tolerance = 5.0 / (10.0 * records as f64).sqrt() + 0.02;
            prop_assert!((share - true_share).abs() < tolerance, "{share} {true_share}");
        }
    }
}
