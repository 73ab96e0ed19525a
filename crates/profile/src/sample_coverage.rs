//! How much of what runs instruction samples know.
//!
//! **Problem.** A block without a sample counts as one that was never executed. Where there are few samples
//! for a large program that is most of what runs, and the profile does not look it.
//!
//! **Idea** (I. J. Good, The population frequencies of species and the estimation of population parameters,
//! Biometrika 40, 1953): the next sample falls into a block that has none with about the probability that a
//! sample fell into a block with no other.
//!
//! **Limits.** Samples are taken for independent, as those of a clock are and those of the branches in one
//! record are not. It is about the time in which they were taken. Samples outside of the program's blocks say
//! nothing.

use restitch_address::Svma;
use restitch_program::Program;
use std::collections::BTreeMap;

/// The estimated share of the time in `program`'s blocks that is spent in blocks with a sample, 0 to 1.
/// `samples` are numbers of samples by address; nothing, if none of them is in a block.
pub fn sample_coverage(program: &Program, samples: &BTreeMap<Svma, u64>) -> Option<f64> {
    let mut blocks = vec![0u64; program.blocks.len()];
    for (&at, &n) in samples {
        if let Some(block) = program.block_at(at) {
            let count = &mut blocks[block.index()];
            *count = count.saturating_add(n);
        }
    }
    let all: f64 = blocks.iter().map(|n| *n as f64).sum();
    let alone = blocks.iter().filter(|n| **n == 1).count();
    (all > 0.0).then(|| 1.0 - alone as f64 / all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, RandomProgram, Shape, TWO_FUNCTIONS, walk};
    use proptest::prelude::*;

    #[test]
    fn single_samples_tell_of_those_that_are_missing() {
        let program = Program::from_text(TWO_FUNCTIONS).unwrap();
        let of = |samples: &[(u64, u64)]| {
            sample_coverage(&program, &samples.iter().map(|(at, n)| (Svma::new(*at), *n)).collect())
        };
        let starts: Vec<u64> = program.blocks.iter().map(|b| b.start.get()).collect();
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(0x10, 7)]), None, "in no block");
        assert_eq!(of(&[(starts[0], 1)]), Some(0.0));
        assert_eq!(of(&[(starts[0], 1), (starts[0] + 1, 1)]), Some(1.0), "two in one block");
        assert_eq!(of(&[(starts[0], 3), (starts[1], 1), (0x10, 7)]), Some(0.75));
        assert!(of(&[(starts[0], u64::MAX), (starts[0] + 1, u64::MAX), (starts[1], 1)]).unwrap() > 0.99);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// Samples drawn in proportion to a known time: the estimate is near the true share of the blocks
        /// that have one.
        #[test]
        fn it_estimates_what_the_samples_know(seed: u64, number in 50usize..1000) {
            let program = RandomProgram::shaped(seed, Shape { functions: 20, blocks: 30, unmovable: 0.0 }).program;
            let truth = walk(&program, seed, 400, 0.0);
            let time = |b| truth.block(b) * u64::from(program.block(b).len);
            let mut sum = 0;
            let sums: Vec<u64> = program.block_ids().map(|b| { sum += time(b); sum }).collect();
            prop_assume!(sum > 0);
            let mut random = Random::new(seed ^ 77);
            let mut samples = BTreeMap::new();
            let mut sampled = vec![false; sums.len()];
            for _ in 0..number {
                let at = random.bits() % sum;
                let block = sums.partition_point(|s| *s <= at);
                sampled[block] = true;
                *samples.entry(program.blocks[block].start).or_insert(0) += 1;
            }
            let known: u64 = program.block_ids().filter(|b| sampled[b.index()]).map(time).sum();
            let share = sample_coverage(&program, &samples).unwrap();
            let error = (share - known as f64 / sum as f64).abs();
            // Five standard deviations of the number of single samples, and the bias of the estimate, which
            // is below 1 / number.
            prop_assert!(error < 5.0 / (number as f64).sqrt() + 1.0 / number as f64, "{} {}", share, known as f64 / sum as f64);
        }
    }
}
