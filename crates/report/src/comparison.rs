//! How alike profiles are: data, JSON and tables. The picture is in `heatmap.rs`.

use crate::visible::visible_line;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Version of the JSON form of a comparison.
pub const COMPARISON_SCHEMA_VERSION: u32 = 1;

/// Several profiles, each compared with each. All tables are square, in the order of `profiles`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of restitch.
    pub restitch_version: String,
    /// The profiles.
    pub profiles: Vec<ComparedProfile>,
    /// Files of the code that was compared.
    pub modules: Vec<String>,
    /// Overlap of functions (AutoFDO's figure), 0 to 1.
    pub function_overlap: Vec<Vec<f64>>,
    /// Overlap of blocks, 0 to 1.
    pub block_overlap: Vec<Vec<f64>>,
    /// Overlap of edges, 0 to 1.
    pub edge_overlap: Vec<Vec<f64>>,
    /// Cosine similarity of function executions, 0 to 1.
    pub function_cosine: Vec<Vec<f64>>,
    /// Cosine similarity of branch executions, 0 to 1.
    pub branch_cosine: Vec<Vec<f64>>,
    /// Differences of taken probabilities.
    pub taken: Vec<Vec<TakenDifference>>,
    /// What the user should know, in words.
    pub warnings: Vec<String>,
}

/// One profile of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedProfile {
    /// Its file.
    pub path: String,
    /// Functions that ran.
    pub functions: u64,
    /// Blocks that ran.
    pub blocks: u64,
    /// Block executions.
    pub executions: u64,
}

/// Norms of the difference of the taken probabilities of conditional branches that both profiles ran.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TakenDifference {
    /// Conditional branches that both ran.
    pub branches: u64,
    /// Conditional branches that only one of the two ran.
    pub only_one: u64,
    /// Branches whose probabilities differ.
    pub l0: f64,
    /// Sum of the absolute differences.
    pub l1: f64,
    /// Root of the sum of the squared differences.
    pub l2: f64,
}

impl TakenDifference {
    /// A norm divided by the number of branches.
    fn per_branch(&self, norm: f64) -> f64 {
        norm / self.branches.max(1) as f64
    }
}

/// One table of numbers, ready to be shown.
pub(crate) struct Table {
    /// What it shows.
    pub title: &'static str,
    /// By row and column.
    pub values: Vec<Vec<f64>>,
    /// Whether 1 stands for equal; else 0 does.
    pub likeness: bool,
}

impl Comparison {
    /// A comparison without tables yet.
    pub fn new(profiles: Vec<ComparedProfile>, warnings: Vec<String>) -> Self {
        Self {
            schema_version: COMPARISON_SCHEMA_VERSION,
            restitch_version: env!("CARGO_PKG_VERSION").into(),
            profiles,
            modules: Vec::new(),
            function_overlap: Vec::new(),
            block_overlap: Vec::new(),
            edge_overlap: Vec::new(),
            function_cosine: Vec::new(),
            branch_cosine: Vec::new(),
            taken: Vec::new(),
            warnings,
        }
    }

    /// The JSON form, with a line end.
    ///
    /// # Errors
    /// Never for values that this crate makes; the serializer's error otherwise.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// If it is not one.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// The tables in the order in which they are shown.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let like = |title, values: &Vec<Vec<f64>>| Table { title, values: values.clone(), likeness: true };
        let norm = |title, pick: fn(&TakenDifference) -> f64| {
            let cell = |t: &TakenDifference| t.per_branch(pick(t));
            let values = self.taken.iter().map(|row| row.iter().map(cell).collect()).collect();
            Table { title, values, likeness: false }
        };
        vec![
            like("overlap of functions", &self.function_overlap),
            like("overlap of blocks", &self.block_overlap),
            like("overlap of edges", &self.edge_overlap),
            like("cosine, functions", &self.function_cosine),
            like("cosine, branches", &self.branch_cosine),
            norm("taken probability, L0 per branch", |t| t.l0),
            norm("taken probability, L1 per branch", |t| t.l1),
            norm("taken probability, L2 per branch", |t| t.l2),
        ]
    }

    /// Tables for a terminal.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for (number, profile) in self.profiles.iter().enumerate() {
            let ComparedProfile { path, functions, blocks, executions } = profile;
            let path = visible_line(path);
            let _ = writeln!(
                out,
                "{:>3}  {path}: {functions} functions, {blocks} blocks ran, {executions} block executions",
                number + 1
            );
        }
        for table in self.tables() {
            let _ = writeln!(out, "\n{}", table.title);
            let header: String = (1..=self.profiles.len()).map(|n| format!("{n:>8}")).collect();
            let _ = writeln!(out, "    {header}");
            for (number, row) in table.values.iter().enumerate() {
                let cells: String = row.iter().map(|v| format!("{v:>8.4}")).collect();
                let _ = writeln!(out, "{:>3} {cells}", number + 1);
            }
        }
        out
    }
}
