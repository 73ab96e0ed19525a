//! All layouts side by side.

use restitch_layout::{Layout, Score};
use restitch_profile::Profile;
use restitch_program::Program;
use restitch_report::{paragraph, table};
use serde::Serialize;

use crate::machine::Machine;
use crate::measured::Measured;
use crate::occupancy::Occupancy;
use crate::place::Placement;
use crate::simulate;
use crate::simulate::Counts;
use crate::trace::Trace;

/// Share of the executed bytes that counts as hot for [`Occupancy`].
const HOT: f64 = 0.9;

/// What the numbers of the table are.
const LEGEND: &str = "events per 1000 bytes of executed code; cost: cycles that the front end may lose by them; used: bytes of fetched lines that ran before they were displaced";

/// A comparison of layouts of one program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What the models are of.
    pub machine: Machine,
    /// Steps of the trace.
    pub steps: usize,
    /// The seed of its walk; `None` for a trace of branch records.
    pub seed: Option<u64>,
    /// The program as it is, then the layouts in the order asked for.
    pub entries: Vec<Entry>,
    /// What layouts did on a real processor, where they were run.
    pub measured: Option<Measured>,
}

/// One layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The layout's name; "as it is" for the unchanged program.
    pub name: String,
    /// What the models counted.
    pub counts: Counts,
    /// [`Counts::cost`].
    pub cost: f64,
    /// Extended-TSP score under the whole profile.
    pub ext_tsp: f64,
    /// Share of executed edges that fall through, under the whole profile.
    pub fall_through: f64,
    /// Pages that hold 99 % of the executed bytes.
    pub pages: usize,
    /// Hot lines of each set of the instruction cache.
    pub occupancy: Occupancy,
    /// Instructions in the code that fetch a line ahead.
    pub prefetches: usize,
}

/// Compares named layouts on a trace; `seed` is that of its walk, if it is one.
pub fn compare(
    program: &Program,
    profile: &Profile,
    machine: Machine,
    layouts: &[(&str, Layout)],
    trace: &Trace,
    seed: Option<u64>,
) -> Comparison {
    let entry = |name: &str, layout: Option<&Layout>| {
        let placement =
            layout.map_or_else(|| Placement::original(program), |layout| Placement::of(program, layout));
        let score = match layout {
            Some(layout) => Score::of(program, profile, layout),
            None => Score::of_original(program, profile),
        };
        let counts = simulate(program, trace, &placement, &machine);
        Entry {
            name: name.to_owned(),
            counts,
            cost: counts.cost(),
            ext_tsp: score.ext_tsp,
            fall_through: score.fall_through_share(),
            pages: score.pages.p99,
            occupancy: Occupancy::of(program, profile, &placement, &machine, HOT),
            prefetches: placement.prefetches.len(),
        }
    };
    let mut entries = vec![entry("as it is", None)];
    entries.extend(layouts.iter().map(|(name, layout)| entry(name, Some(layout))));
    Comparison { machine, steps: trace.steps.len(), seed, entries, measured: None }
}

impl Comparison {
    /// Adds what was measured of the same layouts on a real processor, and how far the models go with it.
    pub fn add(&mut self, mut measured: Measured) {
        let costs: Vec<(&str, f64)> = self.entries.iter().map(|e| (e.name.as_str(), e.cost)).collect();
        measured.correlate(&costs);
        self.measured = Some(measured);
    }

    /// A table for people, in 80 columns: events per 1,000 bytes of executed code.
    pub fn to_text(&self) -> String {
        let source =
            self.seed.map_or_else(|| "branch records".to_owned(), |seed| format!("a walk with seed {seed}"));
        let mut out =
            paragraph("", &format!("machine: {}; {} steps of {source}", self.machine.name, self.steps));
        out += &paragraph("", LEGEND);
        out.push('\n');
        let heads = [
            "layout",
            "cost",
            "L1i",
            "used",
            "L2",
            "iTLB",
            "sTLB",
            "BTB",
            "taken",
            "falls",
            "pages",
            "conflicts",
        ];
        let rows: Vec<(String, Vec<String>)> =
            self.entries.iter().map(|entry| (entry.name.clone(), self.cells(entry))).collect();
        out += &table(&heads, &rows);
        self.prefetches_to_text(&mut out);
        out.extend(self.measured.iter().map(Measured::to_text));
        out
    }

    /// What stands behind a layout's name.
    fn cells(&self, e: &Entry) -> Vec<String> {
        let c = &e.counts;
        let rate = |n: u64| 1000.0 * n as f64 / c.bytes.max(1) as f64;
        vec![
            format!("{:.2}", e.cost),
            format!("{:.4}", rate(c.l1i)),
            format!("{:.1}%", 100.0 * c.used_share(self.machine.line)),
            format!("{:.4}", rate(c.l2)),
            format!("{:.4}", rate(c.itlb)),
            format!("{:.4}", rate(c.stlb)),
            format!("{:.4}", rate(c.btb)),
            format!("{:.3}", rate(c.taken)),
            format!("{:.1}%", 100.0 * e.fall_through),
            e.pages.to_string(),
            e.occupancy.excess().to_string(),
        ]
    }

    /// What fetching ahead does, of the layouts that do: each stands behind itself without it, and behind
    /// itself with as many instructions that fetch nothing new, which shows what the mere bytes do.
    fn prefetches_to_text(&self, out: &mut String) {
        for three in self.entries.windows(3).filter(|e| e[0].prefetches == 0 && e[1].prefetches > 0) {
            let rate = |e: &Entry, n: u64| 1000.0 * n as f64 / e.counts.bytes.max(1) as f64;
            let (off, padded, on) = (&three[0], &three[1], &three[2]);
            let words = format!(
                "{}: {} lines fetched ahead, {:.4} executed; L2 misses {:.4} before, {:.4} with the bytes alone, {:.4} with them",
                on.name,
                on.prefetches,
                rate(on, on.counts.prefetches),
                rate(off, off.counts.l2),
                rate(padded, padded.counts.l2),
                rate(on, on.counts.l2),
            );
            *out += &paragraph("", &words);
        }
    }

    /// The same and more for programs.
    ///
    /// # Errors
    /// None that can happen; the signature is serde's.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|json| json + "\n")
    }
}
