//! Medians, ratios and how sure one can be of them.
//!
//! Timings on shared machines have long tails, so nothing here uses means or assumes a distribution:
//! intervals are made of order statistics (for one median) or of the bootstrap (for a ratio of two medians).

use crate::verdict::{Better, Helped, Verdict};

/// The confidence that verdicts use.
pub const CONFIDENCE: f64 = 0.95;
/// With fewer values than this on a side resampling says nothing.
pub const LEAST: usize = 3;
/// Rounds of the bootstrap: its percentiles move by less than a tenth of the interval's width from there on.
const ROUNDS: usize = 2000;
/// Start of the bootstrap's random numbers: fixed, so that equal measurements give equal verdicts.
const SEED: u64 = 0x7265_7374_6974_6368;

/// An interval that holds the true value with probability `confidence` (0 to 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that is reached; less than asked for where there are too few values.
    pub confidence: f64,
}

/// The values in order; `None` if there are none or one is not finite.
fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { sorted[n / 2 - 1].midpoint(sorted[n / 2]) }
}

/// The median. `None` without values or with one that is not finite.
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).map(|s| middle(&s))
}

/// The shortest symmetric interval of order statistics that holds the median with probability `confidence`;
/// the whole range if there are too few values for it (six are needed for 0.95).
///
/// The number of values below the true median is binomial, so the interval from the `j`-th smallest to the
/// `j`-th largest holds it with probability `1 - 2 P(Bin(n, 1/2) < j)` (Conover, Practical Nonparametric
/// Statistics, 3.2).
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let s = sorted(values)?;
    let n = s.len();
    // P(Bin(n, 1/2) = k) by logarithms, so that large n do not underflow.
    let mut log_p = -(n as f64) * std::f64::consts::LN_2;
    let (mut below, mut best) = (log_p.exp(), None);
    for j in 1..=n.div_ceil(2) {
        let reached = 1.0 - 2.0 * below;
        if j > 1 && reached < confidence {
            break;
        }
        best = Some(Interval { low: s[j - 1], high: s[n - j], confidence: reached.max(0.0) });
        log_p += ((n - j + 1) as f64 / j as f64).ln();
        below += log_p.exp();
    }
    best
}

/// The median of `after[i] / before[i]`, with its interval: for measurements that were taken in turns.
///
/// `None` if the lengths differ, there are none, or a ratio is not finite.
pub fn median_of_ratios(before: &[f64], after: &[f64], confidence: f64) -> Option<(f64, Interval)> {
    if before.len() != after.len() {
        return None;
    }
    let ratios: Vec<f64> = before.iter().zip(after).map(|(b, a)| a / b).collect();
    Some((median(&ratios)?, median_interval(&ratios, confidence)?))
}

/// The ratio of the medians, `after / before`, with its percentile bootstrap interval (Efron): for
/// measurements that were not taken in turns. Deterministic.
///
/// `None` without values on a side, if one is not finite, or if the median before is 0.
pub fn ratio_of_medians(before: &[f64], after: &[f64], confidence: f64) -> Option<(f64, Interval)> {
    let (b, a) = (sorted(before)?, sorted(after)?);
    let ratio = Some(middle(&a) / middle(&b)).filter(|r| r.is_finite())?;
    let mut random = SplitMix(SEED);
    let ratios =
        (0..ROUNDS).map(|_| resampled_median(&a, &mut random) / resampled_median(&b, &mut random)).collect();
    let interval = percentiles(ratios, confidence)?;
    let confidence = if a.len().min(b.len()) < LEAST { 0.0 } else { confidence };
    Some((ratio, Interval { confidence, ..interval }))
}

/// The ratio of the totals' quotients, `after / before`, with its percentile bootstrap interval: for windows
/// so short that single ones say little. Each pair is what was gained in a window and what it took; windows
/// are drawn as a whole. Deterministic.
///
/// `None` without pairs on a side, if one is not finite, or if a quotient is not.
pub fn ratio_of_totals(
    before: &[(f64, f64)],
    after: &[(f64, f64)],
    confidence: f64,
) -> Option<(f64, Interval)> {
    let is_known = |pairs: &[(f64, f64)]| pairs.iter().all(|pair| pair.0.is_finite() && pair.1.is_finite());
    if before.is_empty() || after.is_empty() || !is_known(before) || !is_known(after) {
        return None;
    }
    let ratio = quotient(after.iter()) / quotient(before.iter());
    let mut random = SplitMix(SEED);
    let mut resampled = |pairs: &[(f64, f64)]| {
        let n = pairs.len() as u64;
        quotient((0..n).map(|_| &pairs[(random.next() % n) as usize]))
    };
    let ratios = (0..ROUNDS).map(|_| resampled(after) / resampled(before)).collect();
    let interval = percentiles(ratios, confidence)?;
    let confidence = if before.len().min(after.len()) < LEAST { 0.0 } else { confidence };
    Some((ratio, Interval { confidence, ..interval })).filter(|(ratio, _)| ratio.is_finite())
}

/// The quotient of the sums.
pub fn quotient<'a>(pairs: impl Iterator<Item = &'a (f64, f64)>) -> f64 {
    let (gained, took) = pairs.fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    gained / took
}

/// The interval that holds so large a share of the ratios in its middle; of those that are numbers.
fn percentiles(mut ratios: Vec<f64>, confidence: f64) -> Option<Interval> {
    ratios.retain(|ratio| ratio.is_finite());
    ratios.sort_by(f64::total_cmp);
    let last = ratios.len().checked_sub(1)?;
    let tail = (1.0 - confidence) / 2.0;
    let rank = |p: f64| ((p * last as f64).round() as usize).min(last);
    Some(Interval { low: ratios[rank(tail)], high: ratios[rank(1.0 - tail)], confidence })
}

fn resampled_median(sorted: &[f64], random: &mut SplitMix) -> f64 {
    let n = sorted.len() as u64;
    let mut drawn: Vec<f64> = (0..n).map(|_| sorted[(random.next() % n) as usize]).collect();
    drawn.sort_by(f64::total_cmp);
    middle(&drawn)
}

/// Steele, Lea and Flood's generator.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What an interval of `after / before` says. An interval that is not sure to 0.9 says nothing.
pub fn helped(interval: &Interval, better: Better) -> Helped {
    let (lower, higher) = (interval.high < 1.0, interval.low > 1.0);
    match (better, lower, higher) {
        _ if interval.confidence < 0.9 => Helped::Unclear,
        (Better::Lower, true, _) | (Better::Higher, _, true) => Helped::Yes,
        (Better::Lower, _, true) | (Better::Higher, true, _) => Helped::No,
        _ => Helped::Unclear,
    }
}

/// The verdict on measurements before and after.
///
/// `None` if there is nothing to compare: no values on a side, values that are not finite, or a median of 0
/// before.
pub fn verdict(metric: &str, unit: &str, better: Better, before: &[f64], after: &[f64]) -> Option<Verdict> {
    let (ratio, interval) = ratio_of_medians(before, after, CONFIDENCE)?;
    Some(Verdict {
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        better,
        before: median(before)?,
        after: median(after)?,
        ratio,
        ratio_low: interval.low,
        ratio_high: interval.high,
        confidence: interval.confidence,
        samples_before: before.len() as u64,
        samples_after: after.len() as u64,
        helped: helped(&interval, better),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn order_statistic_intervals_have_the_ranks_of_the_published_tables() {
        // Conover, table A3 (n = 10: 2nd and 9th, 0.979; n = 20: 6th and 15th, 0.959; n = 100: 40th and 61st,
        // 0.965).
        for (n, low, high, reached) in
            [(6, 1, 6, 0.969), (10, 2, 9, 0.979), (20, 6, 15, 0.959), (100, 40, 61, 0.965)]
        {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let i = median_interval(&values, 0.95).unwrap();
            assert_eq!((i.low, i.high), (f64::from(low), f64::from(high)), "n = {n}");
            assert!((i.confidence - reached).abs() < 0.001, "n = {n}: {}", i.confidence);
        }
    }

    #[test]
    fn too_few_values_say_so() {
        let i = median_interval(&[1.0, 2.0, 3.0], 0.95).unwrap();
        assert_eq!((i.low, i.high, i.confidence), (1.0, 3.0, 0.75));
        assert_eq!(median_interval(&[5.0], 0.95).unwrap().confidence, 0.0);
        let v = verdict("cycles", "", Better::Lower, &[10.0, 10.0], &[5.0, 5.0]).unwrap();
        assert_eq!((v.ratio, v.helped), (0.5, Helped::Unclear));
    }

    #[test]
    fn a_clear_gain_a_clear_loss_and_noise_are_told_apart() {
        let noise = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, -1.5, 0.2];
        let around = |m: f64| noise.iter().map(|n| m + n).collect::<Vec<_>>();
        let judge = |b, a, better| verdict("m", "", better, &around(b), &around(a)).unwrap().helped;
        assert_eq!(judge(100.0, 90.0, Better::Lower), Helped::Yes);
        assert_eq!(judge(100.0, 90.0, Better::Higher), Helped::No);
        assert_eq!(judge(100.0, 110.0, Better::Higher), Helped::Yes);
        assert_eq!(judge(100.0, 110.0, Better::Lower), Helped::No);
        assert_eq!(judge(100.0, 100.1, Better::Lower), Helped::Unclear);
    }

    #[test]
    fn ratios_by_pairs_cancel_a_drift_that_both_sides_share() {
        let before: Vec<f64> = (0..12).map(|i| 100.0 * 1.2f64.powi(i)).collect();
        let after: Vec<f64> = before.iter().map(|b| b * 0.9).collect();
        let (ratio, interval) = median_of_ratios(&before, &after, 0.95).unwrap();
        assert!((ratio - 0.9).abs() < 1e-9 && interval.high < 0.91 && interval.low > 0.89);
        assert_eq!(median_of_ratios(&before, &after[1..], 0.95), None);
        assert_eq!(median_of_ratios(&[0.0], &[1.0], 0.95), None);
    }

    #[test]
    fn totals_of_steps_are_compared_with_intervals_that_allow_for_the_steps() {
        // A thousand units in every fourth window.
        let steps = |n: usize, by: f64| -> Vec<(f64, f64)> {
            (0..n).map(|i| (if i % 4 == 0 { by } else { 0.0 }, 0.25)).collect()
        };
        let (ratio, interval) = ratio_of_totals(&steps(48, 1000.0), &steps(48, 1100.0), 0.95).unwrap();
        assert!((ratio - 1.1).abs() < 1e-9 && interval.low < 0.8 && interval.high > 1.5, "{interval:?}");
        let (_, interval) = ratio_of_totals(&steps(48, 1000.0), &steps(48, 4000.0), 0.95).unwrap();
        assert!(interval.low > 1.5, "{interval:?}");
        assert_eq!(ratio_of_totals(&steps(4, 0.0), &steps(4, 1.0), 0.95), None, "nothing before");
        assert_eq!(ratio_of_totals(&[], &steps(4, 1.0), 0.95), None);
        assert_eq!(ratio_of_totals(&[(f64::NAN, 1.0)], &steps(4, 1.0), 0.95), None);
    }

    #[test]
    fn the_order_statistic_interval_covers_as_often_as_it_says() {
        let mut random = SplitMix(7);
        let (mut held, rounds) = (0, 4000);
        for _ in 0..rounds {
            // An exponential: skewed, median ln 2.
            let values: Vec<f64> = (0..15)
                .map(|_| -((random.next() >> 11) as f64 / (1u64 << 53) as f64 + 1e-300).ln())
                .collect();
            let i = median_interval(&values, 0.95).unwrap();
            held += u32::from(i.low <= std::f64::consts::LN_2 && std::f64::consts::LN_2 <= i.high);
        }
        let share = f64::from(held) / f64::from(rounds);
        assert!((0.945..=0.985).contains(&share), "{share}");
    }

    proptest! {
        #[test]
        fn intervals_hold_the_median_and_scale_with_the_values(
            values in prop::collection::vec(1.0f64..1e6, 1..60), factor in 0.01f64..100.0,
        ) {
            let m = median(&values).unwrap();
            let i = median_interval(&values, 0.95).unwrap();
            prop_assert!(i.low <= m && m <= i.high);
            let scaled: Vec<f64> = values.iter().map(|v| v * factor).collect();
            let (ratio, _) = ratio_of_medians(&values, &scaled, 0.95).unwrap();
            prop_assert!((ratio / factor - 1.0).abs() < 1e-9);
        }

        #[test]
        fn swapping_the_sides_swaps_the_verdict(
            before in prop::collection::vec(50.0f64..60.0, 8..20), after in prop::collection::vec(80.0f64..90.0, 8..20),
        ) {
            let forth = verdict("m", "", Better::Lower, &before, &after).unwrap();
            let back = verdict("m", "", Better::Lower, &after, &before).unwrap();
            prop_assert_eq!((forth.helped, back.helped), (Helped::No, Helped::Yes));
        }
    }
}
