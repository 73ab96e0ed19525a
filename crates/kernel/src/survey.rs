//! Figures of all functions, or of one: what `restitch kernel analyze` says.

use crate::code::{Code, End, SiteKind};
use crate::edge_counts::{FlowEdge, exact_edges};
use crate::functions::FunctionId;
use crate::kernel::Kernel;
use crate::reason::Reason;
use serde::Serialize;
use std::collections::BTreeMap;

/// What there is in functions, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Basic blocks.
    pub blocks: u64,
    /// Edges between blocks of one function, as static keys stand.
    pub edges: u64,
    /// Those whose count follows from the counts of blocks.
    pub exact_edges: u64,
    /// Branches that static keys switch.
    pub static_keys: u64,
    /// Of these, those of 2 bytes.
    pub short_static_keys: u64,
    /// Of these, those that are jumps now.
    pub static_key_jumps: u64,
    /// Static calls.
    pub static_calls: u64,
    /// Instructions whose faults are expected.
    pub exceptions: u64,
    /// Traps that report.
    pub bugs: u64,
    /// Of these, those behind which control goes on.
    pub warnings: u64,
    /// Direct calls.
    pub calls: u64,
    /// Calls through a register or memory.
    pub indirect_calls: u64,
    /// Jumps through a register by a thunk, or in place of one.
    pub indirect_jumps: u64,
    /// Jumps whose targets are not known.
    pub table_jumps: u64,
    /// Jumps to other functions.
    pub tail_calls: u64,
    /// Returns.
    pub returns: u64,
    /// Operands that count from the program counter.
    pub relative_operands: u64,
}

impl Counts {
    /// Of one function's code.
    pub fn of(code: &Code) -> Self {
        let mut counts = Self { blocks: code.blocks.len() as u64, ..Self::default() };
        counts.add_edges(code);
        code.sites.iter().for_each(|site| counts.add_site(&site.kind));
        for block in &code.blocks {
            match block.end {
                End::Return => counts.returns += 1,
                End::IndirectJump(_) => counts.indirect_jumps += 1,
                End::TableJump => counts.table_jumps += 1,
                End::StaticJump { .. } => counts.static_calls += 1,
                End::Jump(to) if code.block_at(to).is_none() => counts.tail_calls += 1,
                End::StaticKey { is_jump, .. } => {
                    counts.static_keys += 1;
                    counts.static_key_jumps += u64::from(is_jump);
                    counts.short_static_keys += u64::from(block.range.end.offset_from(block.branch) == 2);
                }
                _ => {}
            }
        }
        counts
    }

    fn add_edges(&mut self, code: &Code) {
        let live: Vec<FlowEdge> = live_edges(code);
        let exact = exact_edges(code.blocks.len(), &live);
        let inner = live.iter().zip(exact).filter(|(edge, _)| edge.from.is_some() && edge.to.is_some());
        for (_, is_exact) in inner {
            self.edges += 1;
            self.exact_edges += u64::from(is_exact);
        }
    }

    fn add_site(&mut self, kind: &SiteKind) {
        match kind {
            SiteKind::Trace | SiteKind::Unlocked => {}
            SiteKind::Call(_) => self.calls += 1,
            SiteKind::IndirectCall(_) => self.indirect_calls += 1,
            SiteKind::StaticCall { .. } => self.static_calls += 1,
            SiteKind::Relative { .. } => self.relative_operands += 1,
            SiteKind::Exception(_) => self.exceptions += 1,
            SiteKind::Bug { goes_on, .. } => {
                self.bugs += 1;
                self.warnings += u64::from(*goes_on);
            }
        }
    }

    fn add(&mut self, other: &Self) {
        let fields = [
            (&mut self.blocks, other.blocks),
            (&mut self.edges, other.edges),
            (&mut self.exact_edges, other.exact_edges),
            (&mut self.static_keys, other.static_keys),
            (&mut self.short_static_keys, other.short_static_keys),
            (&mut self.static_key_jumps, other.static_key_jumps),
            (&mut self.static_calls, other.static_calls),
            (&mut self.exceptions, other.exceptions),
            (&mut self.bugs, other.bugs),
            (&mut self.warnings, other.warnings),
            (&mut self.calls, other.calls),
            (&mut self.indirect_calls, other.indirect_calls),
            (&mut self.indirect_jumps, other.indirect_jumps),
            (&mut self.table_jumps, other.table_jumps),
            (&mut self.tail_calls, other.tail_calls),
            (&mut self.returns, other.returns),
            (&mut self.relative_operands, other.relative_operands),
        ];
        fields.into_iter().for_each(|(sum, more)| *sum += more);
    }
}

/// The edges that can be taken as the code stands, between blocks that control comes to.
pub fn live_edges(code: &Code) -> Vec<FlowEdge> {
    let is_reached = |block: Option<usize>| block.is_none_or(|block| code.blocks[block].is_reached);
    let edges = code.edges.iter().filter(|edge| edge.is_live && is_reached(edge.from) && is_reached(edge.to));
    edges.map(|edge| FlowEdge { from: edge.from, to: edge.to }).collect()
}

/// Why functions stay, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Staying {
    /// The reason in words.
    pub reason: &'static str,
    /// Functions of which it is the first reason.
    pub functions: u64,
    /// Their code, in bytes.
    pub bytes: u64,
}

/// Figures of a whole kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Survey {
    /// Functions of the kernel itself.
    pub functions: u64,
    /// Their code in bytes, without what fills gaps.
    pub code_bytes: u64,
    /// Functions that can be moved.
    pub movable_functions: u64,
    /// Their code in bytes.
    pub movable_bytes: u64,
    /// Why the others stay.
    pub not_movable: Vec<Staying>,
    /// Functions of which no table says anything.
    pub functions_without_tables: u64,
    /// Functions whose calls can be led elsewhere.
    pub redirectable_functions: u64,
    /// Functions whose edges all follow from the counts of blocks.
    pub functions_with_exact_edges: u64,
    /// Functions with an edge at all.
    pub functions_with_edges: u64,
    /// Functions that share their name with others.
    pub ambiguous_functions: u64,
    /// Further names of functions.
    pub aliases: u64,
    /// Functions that never return.
    pub functions_that_never_return: u64,
    /// Names of code in modules, which is not looked at.
    pub names_in_modules: u64,
    /// What is in the code.
    pub counts: Counts,
    /// Bytes of an entry of the table of bugs.
    pub bug_entry_bytes: u64,
    /// Rows of the unwinder.
    pub unwind_rows: u64,
    /// What could not be read, and what follows.
    pub notes: Vec<String>,
}

impl Survey {
    /// Of all functions.
    pub fn of(kernel: &Kernel) -> Self {
        let mut survey = Self::empty(kernel);
        let mut staying: BTreeMap<Reason, Staying> = BTreeMap::new();
        for id in kernel.functions.ids() {
            survey.add(kernel, id, &mut staying);
        }
        survey.not_movable = staying.into_values().collect();
        survey.not_movable.sort_by_key(|staying| std::cmp::Reverse(staying.bytes));
        survey
    }

    fn empty(kernel: &Kernel) -> Self {
        let tables = &kernel.known.tables;
        Self {
            functions: 0,
            code_bytes: 0,
            movable_functions: 0,
            movable_bytes: 0,
            not_movable: Vec::new(),
            functions_without_tables: 0,
            redirectable_functions: 0,
            functions_with_exact_edges: 0,
            functions_with_edges: 0,
            ambiguous_functions: 0,
            aliases: 0,
            functions_that_never_return: kernel.known.silent.len() as u64,
            names_in_modules: kernel.in_modules,
            counts: Counts::default(),
            bug_entry_bytes: tables.bug_len as u64,
            unwind_rows: tables.unwind.len() as u64,
            notes: kernel.notes.clone(),
        }
    }

    fn add(&mut self, kernel: &Kernel, id: FunctionId, staying: &mut BTreeMap<Reason, Staying>) {
        let (function, code) = (kernel.functions.get(id), kernel.code(id));
        let (counts, bytes) = (Counts::of(&code), code.len());
        self.functions += 1;
        self.code_bytes += bytes;
        match kernel.reasons(id, &code).first() {
            None => {
                self.movable_functions += 1;
                self.movable_bytes += bytes;
            }
            Some(reason) => {
                let empty = Staying { reason: reason.words(), functions: 0, bytes: 0 };
                let staying = staying.entry(*reason).or_insert(empty);
                staying.functions += 1;
                staying.bytes += bytes;
            }
        }
        let is_silent = function.parts.iter().all(|part| kernel.known.tables.are_silent(*part));
        self.functions_without_tables += u64::from(is_silent);
        self.redirectable_functions += u64::from(kernel.is_traceable(id, &code));
        self.functions_with_edges += u64::from(counts.edges > 0);
        self.functions_with_exact_edges += u64::from(counts.edges > 0 && counts.edges == counts.exact_edges);
        self.ambiguous_functions += u64::from(function.is_ambiguous);
        self.aliases += function.aliases.len() as u64;
        self.counts.add(&counts);
    }

    /// The share of the code that can be moved, 0 to 1.
    pub fn movable_share(&self) -> f64 {
        share(self.movable_bytes, self.code_bytes)
    }

    /// The share of edges whose count follows from the counts of blocks, 0 to 1.
    pub fn exact_share(&self) -> f64 {
        share(self.counts.exact_edges, self.counts.edges)
    }

    /// The share of functions all of whose edges follow.
    pub fn exact_functions_share(&self) -> f64 {
        share(self.functions_with_exact_edges, self.functions_with_edges)
    }
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 1.0 } else { part as f64 / of as f64 }
}
