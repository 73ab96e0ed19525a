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
/// Columns that a call gets in the text.
const CALL: usize = 65;

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
    /// Calls through pointers and static calls in the functions, those that are hot.
    pub indirect_calls: Vec<GroupCall>,
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
    /// Whether it was asked for, or is the hottest code's.
    pub is_root: bool,
    /// Whether calls from everywhere are led to the copy; else only the group's own direct calls are.
    pub is_led: bool,
    /// Bytes of its hot blocks.
    pub hot_bytes: u64,
    /// Into how many chains they fell.
    pub chains: u64,
    /// Bytes of its cold blocks.
    pub cold_bytes: u64,
    /// In place of how many calls of it it stands; what its code there takes is the callers'.
    #[serde(default)]
    pub inlined_calls: u64,
}

/// Calls through a pointer or a static call, at one place and of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCall {
    /// Who calls.
    pub caller: String,
    /// Where the instruction is in the original, in hexadecimal.
    pub site: String,
    /// Bytes from the start of the caller to there; none where that stands apart from it.
    pub offset: Option<u64>,
    /// Whether it is a static call; else one through a pointer.
    pub is_static_call: bool,
    /// What is called, if it is one of the kernel's own functions.
    pub callee: Option<String>,
    /// Where the call goes.
    pub goes: GroupCallGoes,
    /// How often: the executions of the site, parted as the function tracer has seen its targets.
    pub count: u64,
}

/// Where calls through pointers and static calls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupCallGoes {
    /// To a copy in the group.
    Copy,
    /// To a function that is not in the group.
    Original,
    /// To functions of modules.
    Module,
    /// That was not seen.
    Unseen,
}

impl GroupCall {
    /// The place in words: `vfs_read+0x1f`.
    pub(crate) fn place(&self) -> String {
        match self.offset {
            Some(offset) => format!("{}+{offset:#x}", self.caller),
            None => format!("{} at {}", self.caller, self.site),
        }
    }

    /// What is called, in words.
    pub(crate) fn target(&self) -> String {
        let name = self.callee.as_deref().unwrap_or_default();
        match self.goes {
            GroupCallGoes::Copy => name.into(),
            GroupCallGoes::Original => format!("{name} (stays)"),
            GroupCallGoes::Module => "(a module's function)".into(),
            GroupCallGoes::Unseen => "(not seen)".into(),
        }
    }
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
        self.calls_in_text(&mut out, self.indirect_calls.len());
        for stays in &self.stays {
            out.push_str(&paragraph("stays       ", &format!("{}: {}", stays.name, stays.why)));
        }
        if let Some(cache) = &self.cache {
            cache.write_text(&mut out);
        }
        out
    }

    /// The functions, their calls through pointers and the cache alone, for a terminal: the `most` functions
    /// with the most hot code, and so many calls that are made most often.
    pub fn picture(&self, most: usize) -> String {
        let mut out = String::new();
        self.functions_in_text(&mut out, most);
        self.calls_in_text(&mut out, most);
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
            let mark = function.mark();
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

    /// The `most` calls through pointers and static calls that are made most often.
    fn calls_in_text(&self, out: &mut String, most: usize) {
        if self.indirect_calls.is_empty() {
            return;
        }
        let _ = writeln!(out, "{:CALL$} {:>14}", "call through a pointer or a static call", "calls");
        let mut calls: Vec<&GroupCall> = self.indirect_calls.iter().collect();
        calls.sort_by_key(|call| Reverse(call.count));
        for call in calls.iter().take(most) {
            let words = format!("{} -> {}", call.place(), call.target());
            let words: String = visible_line(&words).chars().take(CALL).collect();
            let _ = writeln!(out, "{words:CALL$} {:>14}", count(call.count));
        }
        if calls.len() > most {
            let _ = writeln!(out, "and {} more", count((calls.len() - most) as u64));
        }
        out.push('\n');
    }
}

impl GroupFunction {
    /// What stands behind its name.
    pub(crate) fn mark(&self) -> &'static str {
        match (self.is_root, self.is_led) {
            (true, _) => " (root)",
            (false, true) => " (pointer)",
            (false, false) if self.inlined_calls > 0 && self.hot_bytes + self.cold_bytes == 0 => " (inlined)",
            (false, false) => "",
        }
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
