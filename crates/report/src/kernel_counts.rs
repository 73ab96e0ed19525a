//! How often the blocks of kernel functions were executed, as data, JSON and text.

use crate::group::GroupStays;
use crate::text::paragraph;
use crate::units::{count, counted, percent};
use crate::visible::visible_line;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Version of the JSON form of counts.
pub const COUNTS_SCHEMA_VERSION: u32 = 1;

/// Columns that a function's name gets in the text.
const NAME: usize = 38;
/// So many of the functions are listed.
const LISTED: usize = 20;

/// What was counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CountsReport {
    /// [`COUNTS_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of restitch.
    pub restitch_version: String,
    /// The kernel's release.
    pub release: String,
    /// For how long it was counted, in seconds.
    pub seconds: f64,
    /// Tasks that slept in the copies when counters were read: counts may differ from each other by one for
    /// each.
    #[serde(default)]
    pub standing: u64,
    /// The group, if it stays loaded because of them, with no calls led to it.
    #[serde(default)]
    pub left: Option<String>,
    /// How many counters there were, for all blocks and edges.
    pub counters: u64,
    /// The functions, those with the most executed blocks first.
    pub functions: Vec<CountedFunction>,
    /// Functions that were called, and were not counted.
    pub stays: Vec<GroupStays>,
}

/// A function, and how often its blocks and edges were executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedFunction {
    /// Its name.
    pub name: String,
    /// Where it is, in hexadecimal.
    pub address: String,
    /// Whether it was counted whoever called it; else calls by functions that were counted are.
    pub is_root: bool,
    /// How often its first block was executed.
    pub calls: u64,
    /// Its blocks, by address.
    pub blocks: Vec<CountedBlock>,
    /// The ways between them.
    pub edges: Vec<CountedEdge>,
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedBlock {
    /// Where it is, in hexadecimal.
    pub address: String,
    /// Its bytes.
    pub bytes: u64,
    /// How often it was executed.
    pub count: u64,
}

/// A way between blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedEdge {
    /// Where the block is that it leaves.
    pub from: String,
    /// Where the block is that it comes to.
    pub to: String,
    /// How often it was taken.
    pub count: u64,
    /// Whether that is so, or a bound.
    pub is_exact: bool,
}

impl CountedFunction {
    /// Executions of all its blocks.
    pub fn executions(&self) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.count))
    }

    fn executed(&self) -> usize {
        self.blocks.iter().filter(|block| block.count > 0).count()
    }
}

impl CountsReport {
    /// As JSON.
    ///
    /// # Errors
    /// None in practice: all numbers are finite.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Reads what [`Self::to_json`] has written.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// The share of the edges whose counts are exact. (Tamches and Miller, *Dynamic kernel code
    /// optimization*, section 4, have 99.6 % of them, from counts of blocks alone.)
    pub fn exact_share(&self) -> f64 {
        let mut edges = self.functions.iter().flat_map(|function| &function.edges);
        let all = edges.clone().count();
        let exact = edges.by_ref().filter(|edge| edge.is_exact).count();
        if all == 0 { 1.0 } else { exact as f64 / all as f64 }
    }

    /// For a terminal: at most 80 columns.
    pub fn to_text(&self) -> String {
        let sum = |of: fn(&CountedFunction) -> usize| self.functions.iter().map(of).sum::<usize>() as u64;
        let (blocks, executed) = (sum(|f| f.blocks.len()), sum(CountedFunction::executed));
        let mut out = paragraph(
            "counted     ",
            &format!(
                "{} of Linux {} for {:.1} s: {} for {}, of which {} were executed; {} of the edges exact",
                counted(self.functions.len() as u64, "function"),
                self.release,
                self.seconds,
                counted(self.counters, "counter"),
                counted(blocks, "block"),
                count(executed),
                percent(self.exact_share()),
            ),
        );
        out.push_str(&self.standing_in_words());
        self.functions_in_text(&mut out);
        for stays in &self.stays {
            out.push_str(&paragraph("not counted ", &format!("{}: {}", stays.name, stays.why)));
        }
        out
    }

    fn standing_in_words(&self) -> String {
        if self.standing == 0 {
            return String::new();
        }
        let tasks = counted(self.standing, "task");
        let left = self.left.as_deref().map(visible_line).map_or_else(String::new, |group| {
            format!(
                "; group {group} stays loaded for them, with no calls led to it: restitch kernel revert \
                 {group} takes it out when they have gone on"
            )
        });
        let words = format!(
            "{tasks} slept in the copies when counters were read, in calls that are not over: counts may \
             differ by one for each{left}"
        );
        paragraph("sleepers    ", &words)
    }

    fn functions_in_text(&self, out: &mut String) {
        let head = ["function", "calls", "executions", "blocks"];
        let _ = writeln!(out, "\n{:NAME$} {:>13} {:>15} {:>9}", head[0], head[1], head[2], head[3]);
        for function in self.functions.iter().take(LISTED) {
            let name: String = visible_line(&function.name).chars().take(NAME).collect();
            let blocks = format!("{}/{}", function.executed(), function.blocks.len());
            let (calls, executions) = (count(function.calls), count(function.executions()));
            let _ = writeln!(out, "{name:NAME$} {calls:>13} {executions:>15} {blocks:>9}");
        }
        if let Some(more) = self.functions.len().checked_sub(LISTED).filter(|more| *more > 0) {
            let _ = writeln!(out, "and {} more", counted(more as u64, "function"));
        }
        out.push('\n');
    }
}
