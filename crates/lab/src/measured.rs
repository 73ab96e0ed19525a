//! What layouts do on a real processor, beside what the models say.

use restitch_report::{counted, paragraph, table};
use serde::Serialize;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The command that was run.
    pub command: String,
    /// How often each layout was run, and the original beside it.
    pub rounds: usize,
    /// What has to be known of the runs to read the numbers.
    pub warnings: Vec<String>,
    /// What was counted, in words; the first of them decides.
    pub events: Vec<String>,
    /// The layouts, in the order asked for.
    pub layouts: Vec<MeasuredLayout>,
    /// Pearson's correlation of the models' cost with what decides, over the layouts and the original;
    /// nothing, if there are fewer than three or all are alike.
    pub correlation: Option<f64>,
}

/// One layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredLayout {
    /// Its name.
    pub name: String,
    /// For each event, layout divided by original.
    pub ratios: Vec<Ratio>,
}

/// A ratio of two measurements that were made one after the other, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that the interval holds the true one, 0 to 1.
    pub confidence: f64,
}

/// Fewer rounds give no interval that holds the true ratio with a probability of 0.95.
const LEAST_ROUNDS: usize = 6;

impl Measured {
    /// Finds out how far the models' `costs` of the original, which comes first, and of layouts by name go
    /// with what was measured.
    pub(crate) fn correlate(&mut self, costs: &[(&str, f64)]) {
        let first = |layout: &MeasuredLayout| layout.ratios.first().map(|ratio| ratio.median);
        let cost = |name: &str| costs.iter().find(|cost| cost.0 == name).map(|cost| cost.1);
        let measured = self.layouts.iter().filter_map(|l| Some((cost(&l.name)?, first(l)?)));
        let original = costs.first().map(|original| (original.1, 1.0));
        self.correlation = pearson(&original.into_iter().chain(measured).collect::<Vec<_>>());
    }

    /// A table for people, in 80 columns.
    pub(crate) fn to_text(&self) -> String {
        let is_sure = self.rounds >= LEAST_ROUNDS;
        let what =
            if is_sure { "median [interval]" } else { "median; six rounds are the least for an interval" };
        let words = format!(
            "on this processor, {} of `{}`, each against the original beside it: {what}",
            counted(self.rounds as u64, "round"),
            self.command
        );
        let heads: Vec<&str> = ["layout"].into_iter().chain(self.events.iter().map(String::as_str)).collect();
        let cell = |r: &Ratio| match is_sure {
            true => format!("{:.3} [{:.3}, {:.3}]", r.median, r.low, r.high),
            false => format!("{:.3}", r.median),
        };
        let row = |l: &MeasuredLayout| (l.name.clone(), l.ratios.iter().map(cell).collect());
        let rows: Vec<(String, Vec<String>)> = self.layouts.iter().map(row).collect();
        let mut out = format!("\n{}\n{}", paragraph("", &words), table(&heads, &rows));
        if !self.warnings.is_empty() {
            out.push('\n');
            out.extend(self.warnings.iter().map(|warning| paragraph("warning: ", warning)));
        }
        if let (Some(r), Some(event)) = (self.correlation, self.events.first()) {
            out +=
                &format!("\n{}", paragraph("", &format!("cost by the models against {event}: r = {r:.2}")));
        }
        out
    }
}

/// Pearson's correlation of pairs.
fn pearson(pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
    let both = sum(&|p| (p.0 - x) * (p.1 - y));
    let each = sum(&|p| (p.0 - x).powi(2)) * sum(&|p| (p.1 - y).powi(2));
    let r = both / each.sqrt();
    (pairs.len() > 2 && r.is_finite()).then_some(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rounds: usize, warnings: &[&str]) -> String {
        let ratio = Ratio { median: 0.9, low: 0.8, high: 0.95, confidence: 0.5 };
        let measured = Measured {
            command: "prog x".into(),
            rounds,
            warnings: warnings.iter().map(|&warning| warning.into()).collect(),
            events: vec!["processor time".into()],
            layouts: vec![MeasuredLayout { name: "ph".into(), ratios: vec![ratio] }],
            correlation: None,
        };
        measured.to_text()
    }

    #[test]
    fn fewer_rounds_than_six_have_no_interval() {
        let (few, enough) = (measured(5, &[]), measured(6, &["it ended with 1"]));
        assert!(
            few.contains("six rounds are the least") && few.contains("0.900") && !few.contains('['),
            "{few}"
        );
        assert!(
            enough.contains("0.900 [0.800, 0.950]") && enough.contains("warning: it ended with 1"),
            "{enough}"
        );
        assert!(!few.contains("warning"), "{few}");
    }

    #[test]
    fn what_rises_and_falls_together_correlates() {
        let r = |pairs: &[(f64, f64)]| pearson(pairs);
        assert!((r(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]).unwrap() - 1.0).abs() < 1e-12);
        assert!((r(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]).unwrap() + 1.0).abs() < 1e-12);
        assert!(r(&[(1.0, 1.0), (2.0, 0.0), (3.0, 1.0), (2.0, 2.0)]).unwrap().abs() < 1e-12);
        assert_eq!(r(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None, "one of them does not change");
        assert_eq!((r(&[(1.0, 1.0), (2.0, 2.0)]), r(&[])), (None, None), "too few");
    }
}
