//! A group as one HTML file: no scripts, nothing loaded from elsewhere.

use crate::group::{BeforeAndAfter, GroupReport, ROW};
use crate::html::{Page, page};
use crate::occupancy::Occupancy;
use crate::units::count;

/// Steps of the colour of a set, from empty to full.
const STEPS: u32 = 8;

const STYLE: &str = "\
.sets{display:grid;grid-template-columns:repeat(16,minmax(1.6rem,2.6rem));gap:2px;margin:.6rem 0}\
.sets span{background:rgb(59 130 246/calc(var(--full)*100%/8));text-align:center;border-radius:3px;\
font-variant-numeric:tabular-nums;font-size:.8rem;outline:1px solid var(--line)}\
.sets .over{background:#b91c1c;color:#fff;font-weight:bold}\
.caches{display:flex;flex-wrap:wrap;gap:2rem}.caches h3{font-size:1rem;margin:.5rem 0}";

impl GroupReport {
    /// The group as a complete HTML page.
    pub fn to_html(&self) -> String {
        page(&format!("restitch: group {}", self.name), STYLE, |page| {
            page.wrapped("<h1>Group ", &self.name, "</h1>\n");
            page.wrapped("<p>", self.bytes_in_words(), ".</p>\n");
            for note in &self.notes {
                page.wrapped("<p>", note, "</p>\n");
            }
            if let Some(cache) = &self.cache {
                cache.write_html(page);
            }
            self.functions_table(page);
            self.calls_table(page);
            self.stays_table(page);
        })
    }

    fn functions_table(&self, page: &mut Page) {
        page.raw("<h2>Functions</h2>\n<table>\n<tr><th>Function</th><th>Original</th>");
        page.raw(
            "<th class=\"n\">Hot bytes</th><th class=\"n\">Chains</th><th class=\"n\">Cold bytes</th></tr>\n",
        );
        for function in &self.functions {
            page.wrapped("<tr><td><code>", &function.name, "</code>");
            page.wrapped("", function.mark(), "</td>");
            page.wrapped("<td><code>", &function.address, "</code></td>");
            for number in [function.hot_bytes, function.chains, function.cold_bytes] {
                page.wrapped("<td class=\"n\">", count(number), "</td>");
            }
            page.raw("</tr>\n");
        }
        page.raw("</table>\n");
    }

    fn calls_table(&self, page: &mut Page) {
        if self.indirect_calls.is_empty() {
            return;
        }
        page.raw("<h2>Calls through pointers and static calls</h2>\n<table>\n<tr><th>Place</th>");
        page.raw("<th>By</th><th>Called</th><th class=\"n\">Calls</th></tr>\n");
        for call in &self.indirect_calls {
            page.wrapped("<tr><td><code>", call.place(), "</code></td>");
            page.raw(if call.is_static_call { "<td>static call</td>" } else { "<td>pointer</td>" });
            page.wrapped("<td><code>", call.target(), "</code></td>");
            page.wrapped("<td class=\"n\">", count(call.count), "</td></tr>\n");
        }
        page.raw("</table>\n");
    }

    fn stays_table(&self, page: &mut Page) {
        if self.stays.is_empty() {
            return;
        }
        page.raw(
            "<h2>Not in the group</h2>\n<table>\n<tr><th>Function</th><th>Address</th><th>Why</th></tr>\n",
        );
        for stays in &self.stays {
            page.wrapped("<tr><td><code>", &stays.name, "</code></td>");
            page.wrapped("<td><code>", &stays.address, "</code></td>");
            page.wrapped("<td>", &stays.why, "</td></tr>\n");
        }
        page.raw("</table>\n");
    }
}

impl BeforeAndAfter {
    fn write_html(&self, page: &mut Page) {
        page.raw("<h2>Hot code in the first-level instruction cache</h2>\n");
        let words = "A cell is a set: the lines of hot code that fall into it. Red: more than it holds.";
        page.wrapped("<p>", format!("{}. {words}", self.shape_in_words()), "</p>\n<div class=\"caches\">\n");
        for (open, occupancy) in
            [("<div><h3>Before</h3>", &self.before), ("<div><h3>After</h3>", &self.after)]
        {
            page.raw(open);
            page.wrapped("<div>", occupancy.in_words(), "</div>");
            occupancy.write_html(page);
            page.raw("</div>\n");
        }
        page.raw("</div>\n");
    }
}

impl Occupancy {
    fn write_html(&self, page: &mut Page) {
        const { assert!(ROW == 16, "the style has as many columns") };
        page.raw("<div class=\"sets\">\n");
        for lines in &self.sets {
            if self.is_overfull(*lines) {
                page.wrapped("<span class=\"over\">", lines, "</span>");
            } else {
                let full = lines * STEPS / self.shape.ways;
                page.wrapped("<span style=\"--full:", full, "\">");
                page.wrapped("", lines, "</span>");
            }
        }
        page.raw("</div>");
    }
}
