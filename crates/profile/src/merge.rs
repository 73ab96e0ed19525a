//! Sums of profiles.
//!
//! Profiles of different length cannot just be added: the longest would drown the others. *One Profile Fits
//! All* (section 4) gives each application's profile the same weight, and that is the default here: each is
//! brought to the same total first.

use crate::store::{ModuleProfile, ProfileFile};

/// What each profile counts in a sum.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum MergeWeights {
    /// All the same.
    #[default]
    Equal,
    /// One weight a profile: a profile of weight 2 counts as much as two of weight 1, however long each was
    /// recorded.
    Shares(Vec<f64>),
    /// Counts are added as they are: right for parts of one recording.
    AsCounted,
}

/// Weights that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// Another number of weights than profiles.
    #[error("merging profiles: there are {weights} weights for {profiles} profiles; give one a profile")]
    Number {
        /// Weights.
        weights: usize,
        /// Profiles.
        profiles: usize,
    },
    /// A weight is negative, infinite or not a number, or all are zero.
    #[error(
        "merging profiles: {weight} is no weight; weights are numbers from 0 up, and one at least is above 0"
    )]
    Weight {
        /// The weight.
        weight: f64,
    },
    /// A profile has no counts.
    #[error("merging profiles: profile number {number} has no counts; leave it out or record it again")]
    Empty {
        /// Its place, from 1.
        number: usize,
    },
}

/// Sum of the block counts, or of the edges' where there are none.
pub fn total(file: &ProfileFile) -> f64 {
    let blocks = |m: &ModuleProfile| m.blocks.values().map(|n| *n as f64).sum::<f64>();
    let edges = |m: &ModuleProfile| m.edges.values().map(|n| *n as f64).sum::<f64>();
    let sum: f64 = file.modules.iter().map(blocks).sum();
    if sum > 0.0 { sum } else { file.modules.iter().map(edges).sum() }
}

/// The weighted sum of `files`. With [`MergeWeights::Equal`] and [`MergeWeights::Shares`], each file is first
/// scaled to the total of the largest, so that the sum keeps small counts; the order of the files does not
/// matter.
///
/// # Errors
/// [`MergeError`].
pub fn merge_profiles(files: &[ProfileFile], weights: &MergeWeights) -> Result<ProfileFile, MergeError> {
    let factors = factors(files, weights)?;
    let weighted: Vec<(&ProfileFile, f64)> = files.iter().zip(factors).collect();
    Ok(ProfileFile::merge(&weighted))
}

fn factors(files: &[ProfileFile], weights: &MergeWeights) -> Result<Vec<f64>, MergeError> {
    let shares = match weights {
        MergeWeights::AsCounted => return Ok(vec![1.0; files.len()]),
        MergeWeights::Equal => vec![1.0; files.len()],
        MergeWeights::Shares(shares) => shares.clone(),
    };
    if shares.len() != files.len() {
        return Err(MergeError::Number { weights: shares.len(), profiles: files.len() });
    }
    if let Some(&weight) = shares.iter().find(|w| !w.is_finite() || **w < 0.0) {
        return Err(MergeError::Weight { weight });
    }
    if !shares.is_empty() && shares.iter().all(|w| *w == 0.0) {
        return Err(MergeError::Weight { weight: 0.0 });
    }
    let totals: Vec<f64> = files.iter().map(total).collect();
    if let Some(empty) = totals.iter().position(|t| *t == 0.0) {
        return Err(MergeError::Empty { number: empty + 1 });
    }
    let most = totals.iter().copied().fold(0.0, f64::max);
    Ok(shares.iter().zip(totals).map(|(share, total)| share * most / total).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_address::Svma;

    fn file(counts: &[(u64, u64)]) -> ProfileFile {
        let blocks = counts.iter().map(|(at, n)| (Svma::new(*at), *n)).collect();
        ProfileFile { modules: vec![ModuleProfile { build_id: vec![7], blocks, ..Default::default() }] }
    }

    #[test]
    fn equal_weights_bring_profiles_to_one_total() {
        let (long, short) = (file(&[(1, 900), (2, 100)]), file(&[(3, 10)]));
        let merged = merge_profiles(&[long.clone(), short.clone()], &MergeWeights::Equal).unwrap();
        assert_eq!(merged, file(&[(1, 900), (2, 100), (3, 1000)]));
        let sum = merge_profiles(&[long.clone(), short.clone()], &MergeWeights::AsCounted).unwrap();
        assert_eq!(sum, file(&[(1, 900), (2, 100), (3, 10)]));
        let shares = MergeWeights::Shares(vec![0.5, 2.0]);
        assert_eq!(merge_profiles(&[long, short], &shares).unwrap(), file(&[(1, 450), (2, 50), (3, 2000)]));
    }

    #[test]
    fn wrong_weights_say_what_is_right() {
        let files = [file(&[(1, 1)]), file(&[])];
        let error = |w| merge_profiles(&files, &w).unwrap_err().to_string();
        assert!(error(MergeWeights::Shares(vec![1.0])).contains("1 weights for 2"));
        assert!(error(MergeWeights::Shares(vec![1.0, f64::NAN])).contains("NaN"));
        assert!(error(MergeWeights::Shares(vec![0.0, 0.0])).contains("above 0"));
        assert!(error(MergeWeights::Equal).contains("number 2"));
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter(a in prop::collection::vec((0u64..9, 1u64..1000), 1..9), b in prop::collection::vec((0u64..9, 1u64..1000), 1..9)) {
            let (a, b) = (file(&a), file(&b));
            let one = merge_profiles(&[a.clone(), b.clone()], &MergeWeights::Equal).unwrap();
            let other = merge_profiles(&[b, a], &MergeWeights::Equal).unwrap();
            prop_assert_eq!(one, other);
        }
    }
}
