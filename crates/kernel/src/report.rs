//! Results in words, in a terminal of 80 columns, and as JSON.

use crate::code::{Code, EdgeKind, End, SiteKind};
use crate::doctor::{KERNEL_SCHEMA_VERSION, KernelDoctor};
use crate::edge_counts::exact_edges;
use crate::functions::FunctionId;
use crate::kernel::Kernel;
use crate::survey::{Counts, Survey, live_edges};
use restitch_address::Svma;
use restitch_report::{bytes, count, counted, paragraph};
use serde::Serialize;
use std::collections::BTreeMap;

/// What `restitch kernel analyze` says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// [`KERNEL_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The kernel's release.
    pub release: String,
    /// Of the whole kernel; none where functions were named.
    pub survey: Option<Survey>,
    /// Of the functions that were named.
    pub functions: Vec<FunctionReport>,
}

/// What there is to say of a function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// Its further names.
    pub aliases: Vec<String>,
    /// Where it starts, hexadecimal.
    pub address: String,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Parts that stand apart.
    pub parts: Vec<Part>,
    /// Whether it can be moved.
    pub is_movable: bool,
    /// Why not, all reasons.
    pub reasons: Vec<Stays>,
    /// Whether its calls can be led elsewhere by the function tracer.
    pub is_redirectable: bool,
    /// What is in it.
    pub counts: Counts,
    /// Functions that it calls or goes on to, by name.
    pub callees: Vec<Callee>,
    /// Its blocks, by address.
    pub blocks: Vec<BlockReport>,
    /// The ways between them.
    pub edges: Vec<EdgeReport>,
}

/// A part of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Where it starts, hexadecimal.
    pub address: String,
    /// Bytes to the next symbol.
    pub bytes: u64,
}

/// Why a function stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stays {
    /// In words.
    pub reason: &'static str,
    /// Where it is seen, hexadecimal; none if it holds for all of it.
    pub address: Option<String>,
}

/// A function that is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Callee {
    /// Its name, or its address.
    pub name: String,
    /// Places that lead there.
    pub sites: u64,
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockReport {
    /// Where it starts, hexadecimal.
    pub address: String,
    /// Its length.
    pub bytes: u64,
    /// How it ends.
    pub end: &'static str,
    /// Whether control comes there, as far as can be seen.
    pub is_reached: bool,
}

/// A way between blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EdgeReport {
    /// The block's number; none for the outside.
    pub from: Option<usize>,
    /// Likewise.
    pub to: Option<usize>,
    /// What leads there.
    pub kind: &'static str,
    /// Whether it can be taken as static keys stand.
    pub is_live: bool,
    /// Whether its count follows from counts of blocks; none if it cannot be taken.
    pub is_exact: Option<bool>,
}

fn hex(at: Svma) -> String {
    format!("{:#x}", at.get())
}

impl Analysis {
    /// Of the whole kernel, or of some functions.
    pub fn of(kernel: &Kernel, release: String, functions: &[FunctionId]) -> Self {
        Self {
            schema_version: KERNEL_SCHEMA_VERSION,
            release,
            survey: functions.is_empty().then(|| Survey::of(kernel)),
            functions: functions.iter().map(|id| FunctionReport::of(kernel, *id)).collect(),
        }
    }

    /// In words.
    pub fn to_text(&self) -> String {
        let head = match self.release.as_str() {
            "" => "Linux\n".into(),
            release => format!("Linux {release}\n"),
        };
        let survey = self.survey.as_ref().map(survey_text).unwrap_or_default();
        let functions: String = self.functions.iter().map(function_text).collect();
        head + &survey + &functions
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

impl KernelDoctor {
    /// As JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

/// A line with its label.
fn row(label: &str, words: &str) -> String {
    paragraph(&format!("  {label:<16}"), words)
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn survey_text(s: &Survey) -> String {
    let named = format!(
        "{}, {} more names; {} share their name with others",
        count(s.functions),
        count(s.aliases),
        count(s.ambiguous_functions)
    );
    let code = format!(
        "{}, {} of it movable ({})",
        bytes(s.code_bytes),
        percent(s.movable_share()),
        counted(s.movable_functions, "function")
    );
    let redirects = format!(
        "{} can be led to copies by the function tracer",
        counted(s.redirectable_functions, "function")
    );
    let exact = format!("; in {} of the functions all do", percent(s.exact_functions_share()));
    let mut text = row("functions", &named) + &row("code", &code) + &row("redirects", &redirects);
    text += &counts_text(&s.counts, Some(&exact));
    text += &row(
        "alternatives",
        "not known: the kernel gives their table back once it has started; the code is read as it stands",
    );
    text += &row(
        "modules",
        &format!("{} of code in modules, which is not looked at", counted(s.names_in_modules, "name")),
    );
    for staying in &s.not_movable {
        let words = format!(
            "{}, {}: {}",
            counted(staying.functions, "function"),
            bytes(staying.bytes),
            staying.reason
        );
        text += &row("not moved", &words);
    }
    s.notes.iter().for_each(|note| text += &row("note", note));
    text
}

/// What there is, for all functions with what is `exact` of them.
fn counts_text(c: &Counts, exact: Option<&str>) -> String {
    let of_functions = exact.unwrap_or_default();
    let share = if c.edges == 0 { 1.0 } else { c.exact_edges as f64 / c.edges as f64 };
    let edges =
        format!("{}, of which {} follow from counts of blocks{of_functions}", count(c.edges), percent(share));
    let keys = format!(
        "{}, {} of them in 2 bytes; {} are jumps now",
        count(c.static_keys),
        count(c.short_static_keys),
        count(c.static_key_jumps)
    );
    let calls = format!(
        "{} direct, {} indirect, {} to other functions for good (tail calls)",
        count(c.calls),
        count(c.indirect_calls),
        count(c.tail_calls)
    );
    let jumps =
        format!("{} through registers, {} to unknown targets", count(c.indirect_jumps), count(c.table_jumps));
    let traps = format!("{} that report, {} of them go on (WARN)", count(c.bugs), count(c.warnings));
    // Of one function, what there is none of is left out.
    let if_any = |number: u64, row: String| if number > 0 || exact.is_some() { row } else { String::new() };
    [
        row("blocks", &count(c.blocks)),
        row("edges", &edges),
        if_any(c.static_keys, row("static keys", &keys)),
        if_any(c.static_calls, row("static calls", &count(c.static_calls))),
        if_any(c.exceptions, row("faults", &format!("expected of {}", counted(c.exceptions, "instruction")))),
        if_any(c.bugs, row("traps", &traps)),
        row("calls", &calls),
        if_any(c.indirect_jumps + c.table_jumps, row("indirect jumps", &jumps)),
        row("returns", &count(c.returns)),
    ]
    .concat()
}

fn function_text(f: &FunctionReport) -> String {
    let parts = if f.parts.len() > 1 { format!(" in {} parts", f.parts.len()) } else { String::new() };
    let mut text = paragraph("", &format!("{} at {}, {}{parts}", f.name, f.address, bytes(f.bytes)));
    if !f.aliases.is_empty() {
        text += &row("other names", &f.aliases.join(", "));
    }
    text += &match f.is_movable {
        true => row("movable", "yes"),
        false => {
            let reason = |s: &Stays| {
                row(
                    "not moved",
                    &format!(
                        "{}{}",
                        s.reason,
                        s.address.as_ref().map(|at| format!(", at {at}")).unwrap_or_default()
                    ),
                )
            };
            f.reasons.iter().map(reason).collect()
        }
    };
    let redirect = if f.is_redirectable {
        "yes, by the function tracer"
    } else {
        "no: it has no place of the function tracer"
    };
    text += &row("redirect", redirect);
    text += &counts_text(&f.counts, None);
    let callee = |callee: &Callee| {
        if callee.sites > 1 { format!("{} ({})", callee.name, callee.sites) } else { callee.name.clone() }
    };
    if !f.callees.is_empty() {
        text += &row("goes to", &f.callees.iter().map(callee).collect::<Vec<_>>().join(", "));
    }
    text
}

impl FunctionReport {
    /// Of one function.
    pub fn of(kernel: &Kernel, id: FunctionId) -> Self {
        let (function, code) = (kernel.functions.get(id), kernel.code(id));
        let reasons = kernel.reasons(id, &code).into_iter().map(|reason| {
            let trouble = code.troubles.iter().find(|trouble| trouble.reason == reason);
            Stays { reason: reason.words(), address: trouble.map(|trouble| hex(trouble.at)) }
        });
        let reasons: Vec<Stays> = reasons.collect();
        let part = |part: &restitch_address::SvmaRange| Part { address: hex(part.start), bytes: part.len() };
        Self {
            name: function.name.clone(),
            aliases: function.aliases.clone(),
            address: hex(function.start()),
            bytes: code.len(),
            parts: function.parts.iter().map(part).collect(),
            is_movable: reasons.is_empty(),
            reasons,
            is_redirectable: kernel.is_traceable(id, &code),
            counts: Counts::of(&code),
            callees: callees(kernel, &code),
            blocks: code.blocks.iter().map(block).collect(),
            edges: edges(&code),
        }
    }
}

fn callees(kernel: &Kernel, code: &Code) -> Vec<Callee> {
    let calls = code.sites.iter().filter_map(|site| match site.kind {
        SiteKind::Call(to) => Some(to),
        _ => None,
    });
    let tails = code.blocks.iter().filter_map(|block| match block.end {
        End::Jump(to) if code.block_at(to).is_none() => Some(to),
        _ => None,
    });
    let mut sites: BTreeMap<String, u64> = BTreeMap::new();
    for to in calls.chain(tails) {
        let function = kernel.functions.at(to).map(|id| kernel.functions.get(id));
        let name = function.map_or_else(
            || hex(to),
            |function| match to.offset_from(function.start()) {
                0 => function.name.clone(),
                offset => format!("{}+{offset:#x}", function.name),
            },
        );
        *sites.entry(name).or_default() += 1;
    }
    sites.into_iter().map(|(name, sites)| Callee { name, sites }).collect()
}

fn block(block: &crate::code::Block) -> BlockReport {
    let end = match block.end {
        End::Next => "next",
        End::Jump(_) => "jump",
        End::Conditional { .. } | End::ShortConditional(_) => "conditional",
        End::StaticKey { .. } => "static_key",
        End::Return => "return",
        End::IndirectJump(_) => "indirect_jump",
        End::TableJump => "unknown_jump",
        End::StaticJump { .. } => "static_call",
        End::Trap => "trap",
        End::NoReturn => "call_without_return",
    };
    let is_reached = block.is_reached;
    BlockReport { address: hex(block.range.start), bytes: block.range.len(), end, is_reached }
}

fn edges(code: &Code) -> Vec<EdgeReport> {
    let live = live_edges(code);
    let mut exact = exact_edges(code.blocks.len(), &live).into_iter();
    let mut live = live.into_iter().peekable();
    let edge = |edge: &crate::code::Edge| {
        let is_next =
            edge.is_live && live.next_if(|next| (next.from, next.to) == (edge.from, edge.to)).is_some();
        let kind = match edge.kind {
            EdgeKind::Entry => "entry",
            EdgeKind::Taken => "taken",
            EdgeKind::Fall => "fall",
            EdgeKind::Fault => "fault",
            EdgeKind::Exit => "exit",
        };
        let is_exact = if is_next { exact.next() } else { None };
        EdgeReport { from: edge.from, to: edge.to, kind, is_live: edge.is_live, is_exact }
    };
    code.edges.iter().map(edge).collect()
}
