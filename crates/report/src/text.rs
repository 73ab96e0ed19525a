//! The result for people, in a terminal of 80 columns.

use crate::model::{
    ApplySummary, Counting, Module, OtherModules, Plan, PlannedMemory, ProfileSummary, RunResult,
};
use crate::units::{bytes, count, counted, digits, micros, percent, precise};
use crate::verdict::{Better, Verdict};
use crate::visible::{visible, visible_line};
use std::fmt::Write as _;

/// Columns that are used.
pub const WIDTH: usize = 80;
/// Columns of the labels at the left.
const LABEL: usize = 12;
/// At most this many hot functions are listed for a module.
const HOTTEST: usize = 5;
/// Columns of a hot function's name and numbers of blocks together.
const NAME_AND_BLOCKS: usize = 53;
/// A line that begins with blanks goes on so many columns further to the right.
const HANGING: usize = 2;
/// Columns of the longer bar.
const BAR: f64 = 40.0;

/// Lines with a label, wrapped.
struct Page(String);

impl Page {
    /// A labelled paragraph: `label       words, wrapped below each other`.
    fn entry(&mut self, label: &str, words: &str) {
        let mut head = format!("{label:<LABEL$}");
        if label.chars().count() >= LABEL {
            self.0.push_str(head.trim_end());
            self.0.push('\n');
            head = " ".repeat(LABEL);
        }
        self.0.push_str(&paragraph(&head, words));
    }
    /// A line as it is, cut to the width.
    fn line(&mut self, text: &str) {
        let cut: String = visible_line(text).chars().take(WIDTH).collect();
        self.0.push_str(cut.trim_end());
        self.0.push('\n');
    }
    fn gap(&mut self) {
        self.0.push('\n');
    }
}

/// `head` and the words behind it, wrapped below each other at 80 columns; control characters are shown.
/// Words stay whole, and so do commands in backquotes, which are to be copied.
pub fn paragraph(head: &str, words: &str) -> String {
    let indent = head.chars().count();
    let (mut page, mut line, mut empty) = (String::new(), head.to_owned(), true);
    for word in unbroken(visible(words).split_whitespace()) {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            page.push_str(&line);
            page.push('\n');
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word);
        empty = false;
    }
    page + line.trim_end() + "\n"
}

/// A message for a terminal of `width` columns: wrapped below its first word, where that ends with a colon,
/// or behind the blanks that it begins with. Words stay whole, and so do commands in backquotes, which are to
/// be copied.
pub fn message(text: &str, width: usize) -> String {
    let blanks = text.len() - text.trim_start_matches(' ').len();
    let (head, words) = match text.split_once(": ") {
        _ if blanks > 0 => (" ".repeat(blanks), &text[blanks..]),
        Some((head, words)) if !head.contains(' ') => (format!("{head}: "), words),
        _ => (String::new(), text),
    };
    let indent = head.chars().count() + if blanks > 0 { HANGING } else { 0 };
    let (mut lines, mut line, mut begun) = (String::new(), head, false);
    for word in unbroken(words.split(' ')) {
        if begun && line.chars().count() + 1 + word.chars().count() > width {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(indent);
        } else if begun {
            line.push(' ');
        }
        line.push_str(&word);
        begun = true;
    }
    lines + &line + "\n"
}

/// Words, and what stands between two backquotes as one.
fn unbroken<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in words {
        match all.last_mut().filter(|_| is_open) {
            Some(command) => {
                command.push(' ');
                command.push_str(word);
            }
            None => all.push(word.into()),
        }
        is_open ^= word.matches('`').count() % 2 == 1;
    }
    if let Some(unclosed) = all.pop_if(|_| is_open) {
        all.extend(unclosed.split(' ').map(String::from));
    }
    all
}

impl RunResult {
    /// The result in words: at most 80 columns (a longer single word, such as a path, stays whole), no
    /// colours.
    pub fn to_text(&self) -> String {
        let mut page = Page(String::new());
        self.head(&mut page);
        for module in &self.modules {
            page.gap();
            module.write_text(&mut page);
        }
        page.gap();
        if let Some(profile) = &self.profile {
            profile.write_text(&mut page);
        }
        for (label, words) in self.recorded_rows() {
            page.entry(label, &words);
        }
        if let Some(apply) = &self.apply {
            apply.write_text(&mut page);
        }
        self.costs(&mut page);
        if let Some(others) = &self.other_modules {
            others.write_text(&mut page);
        }
        for warning in &self.warnings {
            page.entry("warning", warning);
        }
        for verdict in self.verdict.iter().chain(&self.verdict_beside) {
            page.gap();
            verdict.write_text(&mut page);
        }
        for (i, (label, words)) in self.continuous.iter().flat_map(|c| c.rows()).enumerate() {
            if i == 0 {
                page.gap();
            }
            page.entry(label, &words);
        }
        page.gap();
        page.entry("result", &format!("{} (exit code {})", self.outcome.words(), self.exit_code));
        page.0
    }

    fn head(&self, page: &mut Page) {
        page.line(&format!("restitch {} {}", self.restitch_version, self.command));
        let t = &self.target;
        let mut words = t.program.clone();
        if let Some(pid) = t.pid {
            let processes = match t.processes {
                0 | 1 => String::new(),
                n => format!("{}, ", counted(n.into(), "process")),
            };
            let _ = write!(words, " (process {pid}, {processes}{})", counted(t.threads.into(), "thread"));
        }
        page.entry("target", &words);
    }

    fn costs(&self, page: &mut Page) {
        if !self.phases.is_empty() {
            let total: f64 = self.phases.iter().map(|p| p.ms).sum();
            let parts: Vec<String> =
                self.phases.iter().map(|p| format!("{} {}", p.name, micros(p.ms * 1e3))).collect();
            page.entry("time", &format!("{}: {}", micros(total * 1e3), parts.join(", ")));
        }
        if let Some(ms) = self.apply.as_ref().map(|a| a.in_force_ms).filter(|ms| *ms > 0.0) {
            page.entry("active", &format!("{} after the start", micros(ms * 1e3)));
        }
        if self.peak_memory_bytes > 0 {
            page.entry("memory", &format!("{} at most", bytes(self.peak_memory_bytes)));
        }
        if let Some(planned) = &self.planned_memory {
            page.entry("needed", &planned.words());
        }
    }
}

impl Module {
    fn write_text(&self, page: &mut Page) {
        page.entry("module", &self.path);
        if let Some(id) = &self.build_id {
            page.entry("  build id", id);
        }
        let code = format!(
            "{} of code, {}, {}; {} of it can be moved",
            bytes(self.code_bytes),
            counted(self.functions, "function"),
            counted(self.blocks, "block"),
            percent(self.movable_share)
        );
        page.entry("  code", &code);
        for r in &self.not_movable {
            let words = format!("{}: {} ({})", r.reason, counted(r.functions, "function"), bytes(r.bytes));
            page.entry("    stays", &words);
        }
        if let Some(plan) = &self.plan {
            plan.write_text(self.samples, page);
        }
        if let Some(l) = &self.layout {
            let words = format!(
                "{}: {} and {}, score {} before, {} after",
                l.algorithm,
                counted(l.hot_blocks, "hot block"),
                counted(l.cold_blocks, "cold block"),
                digits(l.score_before),
                digits(l.score_after)
            );
            page.entry("  layout", &words);
            if l.duplicates > 0 {
                let words = format!("{}, {}", counted(l.duplicates, "block"), bytes(l.duplicate_bytes));
                page.entry("  duplicates", &words);
            }
            if l.prefetches > 0 {
                page.entry("  fetched ahead", &counted(l.prefetches, "line"));
            }
        }
        if let Some(v) = &self.version {
            let words = format!(
                "number {}: {} in {} of code ({} with tables), {}",
                v.number,
                counted(v.blocks, "block"),
                bytes(v.text_bytes),
                bytes(v.bytes),
                counted(v.redirects, "redirect")
            );
            page.entry("  version", &words);
            let c = &v.checked;
            let words = format!(
                "equal to the original: {}, {}, {} and {}",
                counted(c.instructions, "instruction"),
                counted(c.branches, "branch"),
                counted(c.rows, "unwind row"),
                counted(c.tables, "jump table")
            );
            page.entry("  checked", &words);
        }
        if let Some(c) = &self.counting {
            c.write_text(page);
        }
        for (i, f) in self.hottest.iter().take(HOTTEST).enumerate() {
            let label = if i == 0 { "  hottest" } else { "" };
            let moved = match &self.plan {
                Some(_) => count(f.blocks),
                None => format!("{}/{}", count(f.moved_blocks), count(f.blocks)),
            };
            // Large functions have large numbers: the name gives way.
            let room = NAME_AND_BLOCKS - moved.len().max(9);
            let name: String = visible_line(&f.name).chars().take(room).collect();
            page.line(&format!("{label:<LABEL$}{:>7}  {name:<room$} {moved:>9} blk", percent(f.share)));
            if let Some(why) = &f.stays {
                page.entry("    stays", why);
            }
        }
    }
}

impl Plan {
    fn write_text(&self, samples: u64, page: &mut Page) {
        let words = format!(
            "{} of all, {}, in {} with {} of code",
            percent(self.sample_share),
            counted(samples, "sample"),
            counted(self.sampled_functions, "function"),
            bytes(self.sampled_bytes)
        );
        page.entry("  samples", &words);
        if self.fixed_functions > 0 {
            let words = format!(
                "{} with {} of these samples cannot be moved",
                counted(self.fixed_functions, "function"),
                percent(self.fixed_share)
            );
            page.entry("  fixed", &words);
        }
        let mut words = format!(
            "{} with {} of {}",
            counted(self.functions, "function"),
            counted(self.blocks, "block"),
            bytes(self.bytes)
        );
        let _ = match self.counting_bytes {
            Some(version) => write!(
                words,
                "; the counting version has {} of code ({} with tables and counters)",
                bytes(version),
                bytes(self.counting_mapped_bytes.unwrap_or(version))
            ),
            None => write!(words, "; by branch records, without a counting version"),
        };
        page.entry("  profiled", &words);
    }
}

impl PlannedMemory {
    /// What is needed, and what there is.
    pub(crate) fn words(&self) -> String {
        let mut words = format!("{} of the process's memory", bytes(self.needed_bytes));
        if self.for_counting {
            words += " to count; how much the new code takes is known then";
        }
        match (self.left_bytes, self.limit_bytes, &self.group) {
            (Some(left), Some(limit), Some(group)) => {
                let _ = write!(words, "; {} of {} are left in {group}", bytes(left), bytes(limit));
            }
            _ => words += "; no memory cgroup limits it, as far as can be seen",
        }
        words
    }
}

impl OtherModules {
    fn write_text(&self, page: &mut Page) {
        let mut parts = Vec::new();
        if self.modules > 0 {
            let modules = counted(self.modules, "other module");
            parts.push(format!("{modules} with {} of the samples, too few in each", percent(self.share)));
        }
        if self.outside > 0 {
            parts.push(format!("{} of the samples in no module", percent(self.outside_share)));
        }
        if !parts.is_empty() {
            page.entry("others", &parts.join("; "));
        }
    }
}

impl Counting {
    fn write_text(&self, page: &mut Page) {
        let words = format!(
            "{} for {} ({} each)",
            counted(self.counters, "counter"),
            counted(self.blocks, "block"),
            digits(self.counters_per_block)
        );
        page.entry("  counted", &words);
        if self.edges == 0 {
            return;
        }
        let words =
            format!("{} with {}", counted(self.functions_run, "function"), counted(self.edges, "edge"));
        page.entry("  ran", &words);
        let shares = |edges, functions| {
            format!("{} of the edges, {} of the functions", precise(edges), precise(functions))
        };
        let exact = shares(self.exact_edge_share, self.exact_function_share);
        let blocks = shares(self.block_edge_share, self.block_function_share);
        page.entry("  exact", &format!("{exact}; from block counts alone {blocks}"));
        let words = format!(
            "{} between blocks and the ways in, {} and the ways out (calls that do not return included)",
            precise(self.flow_error_in),
            precise(self.flow_error_out)
        );
        page.entry("  flow", &format!("error {words}"));
    }
}

impl ProfileSummary {
    /// Where it is from: a file has neither time nor samples.
    pub(crate) fn source_words(&self) -> String {
        let mut words = self.source.clone();
        if self.seconds > 0.0 {
            let _ = write!(words, ", {}", micros(self.seconds * 1e6));
        }
        if self.samples > 0 {
            let _ = write!(words, ", {}", counted(self.samples, "sample"));
        }
        words
    }

    fn write_text(&self, page: &mut Page) {
        let mut words = self.source_words();
        if self.seconds > 0.0 || self.exact_edge_share > 0.0 {
            let _ = write!(words, "; {} of the edges exact", percent(self.exact_edge_share));
        }
        page.entry("profile", &words);
    }
}

impl ApplySummary {
    fn write_text(&self, page: &mut Page) {
        page.entry("applied", &self.applied_words());
        if self.pause_us > 0.0 {
            let parts = self.parts_in_words();
            let of = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
            page.entry("pause", &format!("{}{of}", micros(self.pause_us)));
        }
        if self.moved_threads > 0 {
            page.entry("moved", &self.moved_words());
        }
    }
}

/// What names of parts of a part begin with.
const OF_THAT: &str = "of that: ";

/// Puts the parts of the last part behind it, in brackets.
fn close(parts: &mut [String], inner: &mut Vec<String>) {
    if let Some(last) = parts.last_mut().filter(|_| !inner.is_empty()) {
        let _ = write!(last, " ({})", std::mem::take(inner).join(", "));
    }
}

impl ApplySummary {
    /// How the layout is active.
    pub(crate) fn applied_words(&self) -> String {
        format!("{}, {}", self.how, counted(self.patches, "patch"))
    }

    /// The parts of the pause that took any time: without a counting version, say, nothing was stopped for
    /// it.
    pub(crate) fn parts_in_words(&self) -> Vec<String> {
        let (mut parts, mut inner): (Vec<String>, Vec<String>) = Default::default();
        for part in self.pause_parts.iter().filter(|p| p.us > 0.0) {
            let time = micros(part.us);
            match part.name.strip_prefix(OF_THAT) {
                Some(name) => inner.push(format!("{name} {time}")),
                None => {
                    close(&mut parts, &mut inner);
                    parts.push(format!("{} {time}", part.name));
                }
            }
        }
        close(&mut parts, &mut inner);
        parts
    }

    /// How many threads were moved in which stop.
    pub(crate) fn moved_words(&self) -> String {
        let (counting, layout) = (self.moved_to_counting, self.moved_to_layout);
        match counting {
            0 => format!("{} to the new layout", counted(layout, "thread")),
            _ => format!(
                "{} to the counting version, {} to the new layout",
                counted(counting, "thread"),
                count(layout)
            ),
        }
    }
}

impl Verdict {
    fn write_text(&self, page: &mut Page) {
        let better = match self.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        };
        page.entry("measured", &format!("{} ({better})", self.metric));
        let longest = self.before.max(self.after);
        for (label, value, samples) in
            [("  before", self.before, self.samples_before), ("  after", self.after, self.samples_after)]
        {
            let share =
                if longest > 0.0 && value.is_finite() { (value / longest).clamp(0.0, 1.0) } else { 0.0 };
            let bar = "#".repeat((share * BAR).round() as usize);
            let number = format!("{} {}", digits(value), self.unit);
            let unit: String = number.trim_end().chars().take(20).collect();
            page.line(&format!("{label:<LABEL$}{unit:<20} {bar:<40} n={samples}"));
        }
        let words = format!(
            "{}: {} ({} to {}, confidence {})",
            self.helped.words(),
            digits(self.ratio),
            digits(self.ratio_low),
            digits(self.ratio_high),
            percent(self.confidence)
        );
        page.entry("  ratio", &words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_wrapped_between_words_and_not_in_commands() {
        let text = "restitch: process 7 ended; look its number up (`pgrep -a NAME`) and try again";
        let wrapped = "restitch: process 7 ended; look\n          its number up\n          (`pgrep -a NAME`) and\n          try again\n";
        assert_eq!(message(text, 32), wrapped);
        assert_eq!(message(text, 200), format!("{text}\n"));
        let item = "  version 3 of /usr/bin/it: optimized, 12 KiB, retired";
        assert_eq!(message(item, 40), "  version 3 of /usr/bin/it: optimized,\n    12 KiB, retired\n");
        let path = "/a/long/path/that/has/no/blank/in/it";
        assert_eq!(
            message(&format!("restitch: reading {path}: no"), 20),
            format!("restitch: reading\n          {path}:\n          no\n")
        );
    }

    #[test]
    fn paragraphs_are_wrapped_between_words_and_not_in_commands() {
        let words =
            "as many words as do not leave room for a command on the same line: `sudo sysctl kernel.a=1`";
        let lines = paragraph("    ", words);
        assert!(lines.contains("\n    `sudo sysctl kernel.a=1`\n"), "{lines}");
        let unclosed =
            "a ` that nothing closes, and many words behind it that have to be wrapped all the same";
        assert!(paragraph("", unclosed).lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn messages_keep_all_their_words() {
        for text in ["", "restitch: ", "no colon", "an open ` quote and more", "restitch: two  blanks"] {
            let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
            assert_eq!(words(&message(text, 1)), words(text), "{text}");
        }
    }
}
