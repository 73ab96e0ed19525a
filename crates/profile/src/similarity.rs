//! How alike two profiles of one program are.
//!
//! * **Overlap**, as AutoFDO's `profile_diff` computes it (`SymbolMap::Overlap`): the sum over all places of
//!   the smaller of the two shares, `sum_i min(u_i / sum(u), v_i / sum(v))`. 1 for equal distributions, 0 for
//!   disjoint ones.
//! * **Cosine similarity** of execution counts, `u.v / (|u| |v|)`, over functions and over branch
//!   instructions (*One Profile Fits All*, section 2.1 and figures 1 and 2).
//! * **L0, L1 and L2 norms** of the difference of taken probabilities of conditional branches (figure 3). The
//!   probability is taken over all executions; it has a meaning where both profiles ran the branch, so those
//!   branches are compared, and the others are counted apart. The paper's figures are per branch:
//!   [`TakenNorms`] gives sums, and divided by the number of branches.

use crate::model::Profile;
use restitch_program::{EdgeKind, Program, Terminator};

/// The numbers of one profile that are compared, over the functions, branches, blocks and edges of one or
/// more programs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Features {
    /// Block executions by function.
    pub function_totals: Vec<f64>,
    /// Executions of each function's entry.
    pub functions: Vec<f64>,
    /// Executions of each branch instruction: jumps, conditional ones included.
    pub branches: Vec<f64>,
    /// Executions of each block.
    pub blocks: Vec<f64>,
    /// Traversals of each edge.
    pub edges: Vec<f64>,
    /// Of each conditional branch: taken, executed.
    pub conditional: Vec<(f64, f64)>,
}

impl Features {
    /// Adds a module. All profiles that are compared add the same programs in the same order.
    pub fn add(&mut self, program: &Program, profile: &Profile) {
        for function in program.function_ids() {
            let f = program.function(function);
            let count = |b| profile.block(b) as f64;
            self.function_totals.push(program.blocks_of(function).map(count).sum());
            self.functions.push(f.entry_block().map_or(0.0, count));
        }
        self.blocks.extend(profile.blocks.iter().map(|n| *n as f64));
        self.edges.extend(profile.edges.iter().map(|n| *n as f64));
        for id in program.block_ids() {
            let conditional = match program.block(id).terminator {
                Terminator::Conditional(..) | Terminator::ShortConditional(_) => true,
                Terminator::Jump(_) | Terminator::Table(_) | Terminator::IndirectJump => false,
                _ => continue,
            };
            self.branches.push(profile.block(id) as f64);
            if conditional {
                let (mut taken, mut all) = (0.0, 0.0);
                for (edge, e) in program.out_edges(id) {
                    let count = profile.edge(edge) as f64;
                    all += count;
                    taken += if e.kind == EdgeKind::Taken { count } else { 0.0 };
                }
                // The taken direction may leave the known code and have no edge.
                let all =
                    if program.block(id).edge_count < 2 { all.max(profile.block(id) as f64) } else { all };
                self.conditional.push((taken, all));
            }
        }
    }
}

/// Norms of the difference of taken probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TakenNorms {
    /// Conditional branches that both profiles ran.
    pub branches: usize,
    /// Conditional branches that only one of them ran.
    pub only_one: usize,
    /// Branches whose probabilities differ.
    pub l0: f64,
    /// Sum of the absolute differences.
    pub l1: f64,
    /// Root of the sum of the squares.
    pub l2: f64,
}

impl TakenNorms {
    /// The norms divided by the number of branches that were compared: the scale of the paper's figure 3. 0
    /// without branches.
    pub fn per_branch(&self) -> (f64, f64, f64) {
        let n = self.branches.max(1) as f64;
        (self.l0 / n, self.l1 / n, self.l2 / n)
    }
}

/// All measures for two profiles.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Similarity {
    /// Overlap of the functions' block executions: AutoFDO's figure.
    pub function_overlap: f64,
    /// Overlap of blocks.
    pub block_overlap: f64,
    /// Overlap of edges.
    pub edge_overlap: f64,
    /// Cosine similarity of function executions.
    pub function_cosine: f64,
    /// Cosine similarity of branch executions.
    pub branch_cosine: f64,
    /// Norms of taken probabilities.
    pub taken: TakenNorms,
}

/// Compares two profiles whose features are of the same programs.
pub fn similarity(a: &Features, b: &Features) -> Similarity {
    Similarity {
        function_overlap: overlap(&a.function_totals, &b.function_totals),
        block_overlap: overlap(&a.blocks, &b.blocks),
        edge_overlap: overlap(&a.edges, &b.edges),
        function_cosine: cosine(&a.functions, &b.functions),
        branch_cosine: cosine(&a.branches, &b.branches),
        taken: taken_norms(&a.conditional, &b.conditional),
    }
}

/// The sum of the smaller shares; 0 if either has no counts.
pub fn overlap(a: &[f64], b: &[f64]) -> f64 {
    let (x, y): (f64, f64) = (a.iter().sum(), b.iter().sum());
    if x == 0.0 || y == 0.0 {
        return 0.0;
    }
    a.iter().zip(b).map(|(m, n)| (m / x).min(n / y)).sum::<f64>().min(1.0)
}

/// The cosine of the angle between two vectors of counts; 0 if either is zero.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    // Scaled first, so that squares of counts near 2^64 keep their precision.
    let most = |v: &[f64]| v.iter().copied().fold(0.0, f64::max);
    let (x, y) = (most(a), most(b));
    if x == 0.0 || y == 0.0 {
        return 0.0;
    }
    let dot: f64 = a.iter().zip(b).map(|(m, n)| (m / x) * (n / y)).sum();
    let norm = |v: &[f64], most: f64| v.iter().map(|n| (n / most).powi(2)).sum::<f64>().sqrt();
    (dot / (norm(a, x) * norm(b, y))).min(1.0)
}

fn taken_norms(a: &[(f64, f64)], b: &[(f64, f64)]) -> TakenNorms {
    let mut norms = TakenNorms::default();
    let mut squares = 0.0;
    for ((taken_a, all_a), (taken_b, all_b)) in a.iter().zip(b) {
        match (*all_a > 0.0, *all_b > 0.0) {
            (true, true) => {
                // Equal fractions of integers are equal: cross-multiplied, not divided.
                let same = taken_a * all_b == taken_b * all_a;
                let difference = if same { 0.0 } else { (taken_a / all_a - taken_b / all_b).abs() };
                norms.branches += 1;
                norms.l0 += f64::from(u8::from(!same));
                norms.l1 += difference;
                squares += difference * difference;
            }
            (false, false) => {}
            _ => norms.only_one += 1,
        }
    }
    norms.l2 = squares.sqrt();
    norms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RandomProgram, walk};
    use proptest::prelude::*;

    #[test]
    fn measures_are_those_of_the_definitions() {
        assert_eq!(overlap(&[1.0, 3.0], &[30.0, 10.0]), 0.5);
        assert_eq!(overlap(&[1.0], &[0.0]), 0.0);
        assert!((cosine(&[3.0, 4.0], &[4.0, 3.0]) - 24.0 / 25.0).abs() < 1e-12);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        let norms = taken_norms(
            &[(1.0, 2.0), (3.0, 3.0), (0.0, 5.0), (1.0, 1.0), (0.0, 0.0)],
            &[(2.0, 4.0), (0.0, 7.0), (5.0, 10.0), (0.0, 0.0), (0.0, 0.0)],
        );
        let expected = TakenNorms { branches: 3, only_one: 1, l0: 2.0, l1: 1.5, l2: 1.25f64.sqrt() };
        assert_eq!(norms, expected);
        assert_eq!(norms.per_branch().1, 0.5);
    }

    proptest! {
        #[test]
        fn a_profile_is_like_itself_and_likeness_is_symmetric(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let features = |seed, runs| {
                let mut features = Features::default();
                features.add(&program, &walk(&program, seed, runs, 0.1));
                features
            };
            let (a, b) = (features(seed, 30), features(seed ^ 1, 20));
            let (ab, ba) = (similarity(&a, &b), similarity(&b, &a));
            prop_assert!((ab.block_overlap - ba.block_overlap).abs() < 1e-12);
            prop_assert!((ab.function_cosine - ba.function_cosine).abs() < 1e-12);
            prop_assert_eq!(ab.taken, ba.taken);
            for n in [ab.function_overlap, ab.block_overlap, ab.edge_overlap, ab.function_cosine, ab.branch_cosine] {
                prop_assert!((0.0..=1.0).contains(&n));
            }
            let same = similarity(&a, &a);
            prop_assert!(a.blocks.iter().sum::<f64>() == 0.0 || (same.block_overlap - 1.0).abs() < 1e-9);
            prop_assert_eq!((same.taken.l0, same.taken.l1, same.taken.l2), (0.0, 0.0, 0.0));
        }
    }
}
