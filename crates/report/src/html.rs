//! The result as one HTML file: no scripts, nothing loaded from elsewhere.

use crate::model::{Counting, Module, RunResult};
use crate::units::{bytes, count, counted, digits, micros, percent, precise};
use crate::verdict::{Better, Helped, Verdict};
use crate::visible::visible;
use std::fmt::{self, Display, Write as _};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bar:#3b82f6;--old:#9ca3af}\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.bar{height:1.4rem;border-radius:3px;background:var(--bar);min-width:1px}.bar.old{background:var(--old)}\
.row{display:grid;grid-template-columns:5rem 1fr 11rem;gap:.6rem;align-items:center;margin:.3rem 0}\
.yes{color:#15803d}.no{color:#b91c1c}code{overflow-wrap:anywhere}";

/// Text that is safe in elements and in quoted attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in visible(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A page in the making. What is pushed as text is escaped; only literals of this file are not.
pub(crate) struct Page(String);

impl Page {
    pub(crate) fn raw(&mut self, html: &'static str) {
        self.0.push_str(html);
    }
    pub(crate) fn text(&mut self, text: impl Display) {
        let _ = write!(self.0, "{}", Escaped(&text.to_string()));
    }
    pub(crate) fn wrapped(&mut self, open: &'static str, text: impl Display, close: &'static str) {
        self.raw(open);
        self.text(text);
        self.raw(close);
    }
    fn pair(&mut self, name: &'static str, value: impl Display) {
        self.wrapped("<tr><th>", name, "</th>");
        self.wrapped("<td>", value, "</td></tr>\n");
    }
}

/// A complete page of that title, with more rules of style, whose body is written by `body`.
pub(crate) fn page(title: &str, style: &'static str, body: impl FnOnce(&mut Page)) -> String {
    let mut page = Page(String::new());
    page.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.raw("<meta name=\"viewport\" content=\"width=device-width\">\n");
    page.wrapped("<title>", title, "</title>\n");
    page.raw("<style>");
    page.raw(STYLE);
    page.raw(style);
    page.raw("</style>\n</head>\n<body>\n");
    body(&mut page);
    page.raw("</body>\n</html>\n");
    page.0
}

impl RunResult {
    /// The result as a complete HTML page.
    pub fn to_html(&self) -> String {
        page(&format!("restitch: {}", self.target.program), "", |page| {
            page.wrapped("<h1>restitch ", format!("{}: {}", self.command, self.outcome.words()), "</h1>\n");
            for verdict in self.verdict.iter().chain(&self.verdict_beside) {
                verdict.write_html(page);
            }
            for warning in &self.warnings {
                page.wrapped("<p><strong>Warning:</strong> ", warning, "</p>\n");
            }
            self.summary(page);
            for module in &self.modules {
                module.write_html(page);
            }
            self.times(page);
        })
    }

    fn summary(&self, page: &mut Page) {
        page.raw("<h2>Run</h2>\n<table>\n");
        page.pair("Program", &self.target.program);
        if let Some(pid) = self.target.pid {
            page.pair("Process", pid);
            page.pair("Processes", self.target.processes);
            page.pair("Threads", self.target.threads);
        }
        if let Some(p) = &self.profile {
            page.pair("Profile", p.source_words());
            // Of samples alone, as a plan has them, none is.
            if p.seconds > 0.0 || p.exact_edge_share > 0.0 {
                page.pair("Exact edges", percent(p.exact_edge_share));
            }
        }
        for (label, words) in self.recorded_rows() {
            page.pair(label, words);
        }
        for (label, words) in self.continuous.iter().flat_map(|c| c.rows()) {
            page.pair(label, words);
        }
        if let Some(a) = &self.apply {
            page.pair("Applied", a.applied_words());
            if a.moved_threads > 0 {
                page.pair("Moved", a.moved_words());
            }
            if a.in_force_ms > 0.0 {
                page.pair("Active after", micros(a.in_force_ms * 1e3));
            }
            let parts = a.parts_in_words();
            let of = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
            page.pair("Pause", format!("{}{of}", micros(a.pause_us)));
        }
        page.pair("Memory", bytes(self.peak_memory_bytes));
        if let Some(planned) = &self.planned_memory {
            page.pair("Needed", planned.words());
        }
        page.pair("Exit code", self.exit_code);
        page.pair("Made by", format!("restitch {}, schema {}", self.restitch_version, self.schema_version));
        page.raw("</table>\n");
    }

    fn times(&self, page: &mut Page) {
        // Recordings of branches and samples have none.
        if self.phases.is_empty() {
            return;
        }
        page.raw("<h2>Phases</h2>\n<table>\n");
        for phase in &self.phases {
            page.wrapped("<tr><td>", &phase.name, "</td>");
            page.wrapped("<td class=\"n\">", micros(phase.ms * 1e3), "</td></tr>\n");
        }
        page.raw("</table>\n");
    }
}

impl Verdict {
    fn write_html(&self, page: &mut Page) {
        let better = match self.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        };
        page.wrapped("<p>", format!("{} ({better})", self.metric), "</p>\n");
        let longest = self.before.max(self.after);
        for (open, name, value) in [
            ("<div class=\"bar old\" style=\"width:", "before", self.before),
            ("<div class=\"bar\" style=\"width:", "after", self.after),
        ] {
            let share =
                if longest > 0.0 && value.is_finite() { (value / longest).clamp(0.0, 1.0) } else { 0.0 };
            page.wrapped("<div class=\"row\"><span>", name, "</span><div>");
            page.wrapped(open, format!("{:.1}", share * 100.0), "%\"></div></div>");
            page.wrapped("<span class=\"n\">", format!("{} {}", digits(value), self.unit), "</span></div>\n");
        }
        page.raw(match self.helped {
            Helped::Yes => "<p class=\"yes\">",
            Helped::No => "<p class=\"no\">",
            Helped::Unclear => "<p>",
        });
        page.text(format!(
            "{}: after / before = {} ({} to {}, confidence {}, {} and {} measurements)",
            self.helped.words(),
            digits(self.ratio),
            digits(self.ratio_low),
            digits(self.ratio_high),
            percent(self.confidence),
            count(self.samples_before),
            count(self.samples_after),
        ));
        page.raw("</p>\n");
    }
}

impl Counting {
    fn write_html(&self, page: &mut Page) {
        let words = format!(
            "{} for {} ({} each)",
            counted(self.counters, "counter"),
            counted(self.blocks, "block"),
            digits(self.counters_per_block)
        );
        page.pair("Counted", words);
        if self.edges == 0 {
            return;
        }
        let shares = |edges, functions| {
            format!("{} of the edges, {} of the functions", percent(edges), percent(functions))
        };
        page.pair(
            "Ran",
            format!("{} with {}", counted(self.functions_run, "function"), counted(self.edges, "edge")),
        );
        page.pair("Exact", shares(self.exact_edge_share, self.exact_function_share));
        page.pair("Exact from blocks alone", shares(self.block_edge_share, self.block_function_share));
        let words = format!("{} in, {} out", precise(self.flow_error_in), precise(self.flow_error_out));
        page.pair("Flow error", words);
    }
}

impl Module {
    fn write_html(&self, page: &mut Page) {
        page.wrapped("<h2>", &self.path, "</h2>\n<table>\n");
        page.pair("Build id", self.build_id.as_deref().unwrap_or("none"));
        let words = format!(
            "{}, {}, {}",
            bytes(self.code_bytes),
            counted(self.functions, "function"),
            counted(self.blocks, "block")
        );
        page.pair("Code", words);
        page.pair("Can be moved", percent(self.movable_share));
        for r in &self.not_movable {
            page.pair(
                "Stays",
                format!("{}: {} ({})", r.reason, counted(r.functions, "function"), bytes(r.bytes)),
            );
        }
        if let Some(p) = &self.plan {
            let sampled = format!(
                "{} ({}) in {} with {}",
                count(self.samples),
                percent(p.sample_share),
                counted(p.sampled_functions, "function"),
                bytes(p.sampled_bytes)
            );
            page.pair("Samples", sampled);
            let profiled = format!(
                "{}, {}, {}",
                counted(p.functions, "function"),
                counted(p.blocks, "block"),
                bytes(p.bytes)
            );
            page.pair("To be profiled", profiled);
            if let Some(version) = p.counting_bytes {
                page.pair("Code of the counting version", bytes(version));
            }
            if let Some(mapped) = p.counting_mapped_bytes {
                page.pair("With tables and counters", bytes(mapped));
            }
        }
        if let Some(l) = &self.layout {
            let words = format!(
                "{}: {} hot and {} cold blocks",
                l.algorithm,
                count(l.hot_blocks),
                count(l.cold_blocks)
            );
            page.pair("Layout", words);
            if l.duplicates > 0 {
                let words = format!("{}, {}", counted(l.duplicates, "block"), bytes(l.duplicate_bytes));
                page.pair("Second copies", words);
            }
            page.pair("Score", format!("{} before, {} after", digits(l.score_before), digits(l.score_after)));
        }
        if let Some(v) = &self.version {
            let words = format!(
                "number {}: {}, {} of code, {} mapped, {}",
                v.number,
                counted(v.blocks, "block"),
                bytes(v.text_bytes),
                bytes(v.bytes),
                counted(v.redirects, "redirect")
            );
            page.pair("Version", words);
            let c = &v.checked;
            let words = format!(
                "{}, {}, {}, {}, {}, {}, {}",
                counted(c.blocks, "block"),
                counted(c.instructions, "instruction"),
                counted(c.branches, "branch"),
                counted(c.tables, "table"),
                counted(c.rows, "unwind row"),
                counted(c.call_sites, "call site"),
                counted(c.redirects, "redirect")
            );
            page.pair("Checked equal", words);
        }
        if let Some(c) = &self.counting {
            c.write_html(page);
        }
        page.raw("</table>\n");
        self.functions_table(page);
    }

    fn functions_table(&self, page: &mut Page) {
        if self.hottest.is_empty() {
            return;
        }
        page.raw("<table>\n<tr><th>Hottest functions</th><th>Address</th><th class=\"n\">Share</th>");
        page.raw("<th class=\"n\">Blocks</th><th class=\"n\">Moved</th></tr>\n");
        for f in &self.hottest {
            page.wrapped("<tr><td><code>", &f.name, "</code>");
            if let Some(why) = &f.stays {
                page.wrapped("<br>stays: ", why, "");
            }
            page.raw("</td>");
            page.wrapped("<td><code>", &f.address, "</code></td>");
            page.wrapped("<td class=\"n\">", percent(f.share), "</td>");
            page.wrapped("<td class=\"n\">", count(f.blocks), "</td>");
            let moved = if self.plan.is_some() { "-".into() } else { count(f.moved_blocks) };
            page.wrapped("<td class=\"n\">", moved, "</td></tr>\n");
        }
        page.raw("</table>\n");
    }
}
