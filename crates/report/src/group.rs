//! A group of kernel functions that are laid out together, as data, JSON and text: what Figures 2 and 3 of
//! Tamches and Miller show. The page is in `group_html.rs`.

use crate::occupancy::Occupancy;
use crate::text::paragraph;
use crate::units::{bytes, count, counted, percent};
use crate::visible::visible_line;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt::Write as _;

/// Version of the JSON form of a group.
pub const GROUP_SCHEMA_VERSION: u32 = 1;

/// Sets in a row of the picture.
pub(crate) const ROW: usize = 16;
/// Columns that a function's name gets in the text.
const NAME: usize = 38;

/// A group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// [`GROUP_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of restitch.
    pub restitch_version: String,
    /// Its name.
    pub name: String,
    /// How calls were led to the copies, in the control module's word; none if nothing was loaded.
    pub led_by: Option<String>,
    /// Functions in it, in the order of their hot code.
    pub functions: Vec<GroupFunction>,
    /// Functions that were asked for, or are called, and stay.
    pub stays: Vec<GroupStays>,
    /// How the hot code fills the cache: at its original places and in the group. None without counts.
    pub cache: Option<BeforeAndAfter>,
    /// What the user should know, in words.
    pub notes: Vec<String>,
}

/// A function of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFunction {
    /// Its name.
    pub name: String,
    /// Where the original is, in hexadecimal.
    pub address: String,
    /// Whether calls from everywhere are led to the copy; else only the group's own calls are.
    pub is_root: bool,
    /// Bytes of its hot blocks.
    pub hot_bytes: u64,
    /// Into how many chains they fell.
    pub chains: u64,
    /// Bytes of its cold blocks.
    pub cold_bytes: u64,
}

/// A function that is not in the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStays {
    /// Its name.
    pub name: String,
    /// Where it is, in hexadecimal.
    pub address: String,
    /// Why, in words.
    pub why: String,
}

/// The same code at two places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeforeAndAfter {
    /// Where it was.
    pub before: Occupancy,
    /// Where it is.
    pub after: Occupancy,
}

impl GroupReport {
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

    /// Bytes of hot code, and of cold code.
    pub fn bytes(&self) -> (u64, u64) {
        let functions = self.functions.iter();
        functions.fold((0, 0), |(hot, cold), f| (hot + f.hot_bytes, cold + f.cold_bytes))
    }

    /// The bytes in words: `4,260 B of hot code, 14.3 KiB (77.4 %) of cold code`.
    pub(crate) fn bytes_in_words(&self) -> String {
        let (hot, cold) = self.bytes();
        let share = if hot + cold == 0 { 0.0 } else { cold as f64 / (hot + cold) as f64 };
        format!("{} of hot code, {} ({}) of cold code", bytes(hot), bytes(cold), percent(share))
    }

    /// For a terminal: at most 80 columns.
    pub fn to_text(&self) -> String {
        let mut out = paragraph("group       ", &format!("{}: {}", self.name, self.bytes_in_words()));
        for note in &self.notes {
            out.push_str(&paragraph("note        ", note));
        }
        self.functions_in_text(&mut out, self.functions.len());
        for stays in &self.stays {
            out.push_str(&paragraph("stays       ", &format!("{}: {}", stays.name, stays.why)));
        }
        if let Some(cache) = &self.cache {
            cache.write_text(&mut out);
        }
        out
    }

    /// The functions and the cache alone, for a terminal: the `most` functions with the most hot code.
    pub fn picture(&self, most: usize) -> String {
        let mut out = String::new();
        self.functions_in_text(&mut out, most);
        if let Some(cache) = &self.cache {
            cache.write_text(&mut out);
        }
        out
    }

    fn functions_in_text(&self, out: &mut String, most: usize) {
        let head = ["function", "hot bytes", "chains", "cold bytes"];
        let _ = writeln!(out, "\n{:NAME$} {:>11} {:>8} {:>12}", head[0], head[1], head[2], head[3]);
        let mut functions: Vec<&GroupFunction> = self.functions.iter().collect();
        if functions.len() > most {
            functions.sort_by_key(|function| Reverse((function.is_root, function.hot_bytes)));
        }
        for function in functions.iter().take(most) {
            let mark = if function.is_root { " (root)" } else { "" };
            let name = visible_line(&function.name);
            let name: String = name.chars().take(NAME - mark.len()).chain(mark.chars()).collect();
            let numbers = [function.hot_bytes, function.chains, function.cold_bytes].map(count);
            let [hot, chains, cold] = numbers;
            let _ = writeln!(out, "{name:NAME$} {hot:>11} {chains:>8} {cold:>12}");
        }
        if functions.len() > most {
            let _ = writeln!(out, "and {} more", count((functions.len() - most) as u64));
        }
        out.push('\n');
    }
}

impl BeforeAndAfter {
    /// The cache, in words.
    pub(crate) fn shape_in_words(&self) -> String {
        let shape = self.before.shape;
        format!(
            "{} sets of {} of {} bytes",
            count(shape.sets.into()),
            counted(shape.ways.into(), "line"),
            count(shape.line_bytes.into())
        )
    }

    fn write_text(&self, out: &mut String) {
        let words = format!("{}; * is a set with more lines than it holds", self.shape_in_words());
        out.push_str(&paragraph("L1 cache    ", &words));
        for (when, occupancy) in [("before", &self.before), ("after", &self.after)] {
            let _ = writeln!(out, "\n{when:12}{}", occupancy.in_words());
            occupancy.write_text(out);
        }
    }
}

impl Occupancy {
    /// How full it is, in words.
    pub(crate) fn in_words(&self) -> String {
        let share = percent(self.share());
        format!("{}, {share} of the cache; {} overfull", counted(self.lines(), "line"), self.overfull_sets())
    }

    fn overfull_sets(&self) -> String {
        counted(self.overfull(), "set")
    }

    fn write_text(&self, out: &mut String) {
        for row in self.sets.chunks(ROW) {
            for lines in row {
                let mark = if self.is_overfull(*lines) { '*' } else { ' ' };
                // Wider numbers need more lines than a cache of this day holds in all.
                let _ = write!(out, "{lines:>3}{mark}");
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
}
