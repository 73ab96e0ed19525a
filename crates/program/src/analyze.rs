//! The analysis: one function that reads as the list of its phases.

use crate::address_set::{AddressSet, Ranked};
use crate::doubt::{self, Doubt};
use crate::edges::build_edges_with;
use crate::function_source::{FunctionRange, FunctionSource, function_ranges};
use crate::leaders::{self, Leaders};
use crate::model::*;
use crate::return_address::Code;
use crate::stays::{self, Facts};
use crate::sweep::{Kind, Mini, Span, Sweep};
use crate::{flags, looks, special, tables};
use restitch_address::Svma;
use restitch_cfi::{UnwindForm, UnwindInfo};
use restitch_image::{Binding, Image};
use restitch_x86::patch::Patch;
use restitch_x86::{Flow, Insn, scan_lock_skips};
use std::collections::{BTreeSet, HashSet};

/// Why a module cannot be analysed at all.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AnalyzeError {
    /// No function ranges; in the words of where they should have come from.
    #[error("{0}")]
    NoFunctions(&'static str),
    /// Larger than the tables can index.
    #[error("the code spans {0} bytes; restitch handles up to 4 GiB in one file")]
    TooLarge(u64),
}

/// Where what is known of a module's functions comes from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// Which there are.
    pub functions: &'a dyn FunctionSource,
    /// What unwinders know of them.
    pub unwind: &'a dyn UnwindForm,
}

impl<'a> From<&'a UnwindInfo> for Sources<'a> {
    /// Both by the unwind tables of an ELF file.
    fn from(unwind: &'a UnwindInfo) -> Self {
        Self { functions: unwind, unwind }
    }
}

/// Analyses the code of `image`, whose functions `unwind` lists.
///
/// # Errors
/// See [`AnalyzeError`]. Functions that cannot be understood are no errors: see [`Function::movability`].
pub fn analyze(image: &Image, unwind: &UnwindInfo) -> Result<Program, AnalyzeError> {
    analyze_among(image, unwind.into(), &BTreeSet::new())
}

/// [`analyze`] by other sources, and beside other modules, of which the functions with the names `elsewhere`
/// look at their return addresses ([`exports_that_look`]): calls to them stay.
///
/// # Errors
/// Those of [`analyze`].
pub fn analyze_among(
    image: &Image,
    sources: Sources<'_>,
    elsewhere: &BTreeSet<String>,
) -> Result<Program, AnalyzeError> {
    let Sources { functions, unwind } = sources;
    let ranges = function_ranges(image, functions);
    check_size(&ranges, functions)?;
    let sweep = Sweep::run(image, unwind, &ranges);
    let mut jump_tables = tables::find_tables(image, &sweep);
    let code = Code { image, unwind, sweep: &sweep, tables: &jump_tables, elsewhere };
    let mut leaders = leaders::collect(code);
    let doubt = doubt::find(image, &sweep, &mut leaders, &jump_tables);
    drop_tables(&sweep, &doubt, &mut leaders, &mut jump_tables);
    settle_tables(&sweep, &mut leaders, &mut jump_tables);
    let (sweep, doubt, leaders) = (&sweep, &doubt, &leaders);
    let movability = stays::movability(Facts { image, unwind, sweep, doubt, leaders, tables: &jump_tables });
    let mut builder = Builder::new(sweep, leaders, doubt, jump_tables);
    for (i, span) in sweep.spans.iter().enumerate() {
        let has_blocks = doubt.opaque[i].is_none();
        builder.function(span, movability[i], has_blocks, image.function_name(span.range.start));
    }
    Ok(builder.finish(image))
}

/// Refuses code that there is too little or too much of.
fn check_size(ranges: &[FunctionRange], functions: &dyn FunctionSource) -> Result<(), AnalyzeError> {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return Err(AnalyzeError::NoFunctions(functions.if_none()));
    };
    let spanned = last.range.end.offset_from(first.range.start) as u64;
    if spanned > u64::from(u32::MAX) {
        return Err(AnalyzeError::TooLarge(spanned));
    }
    Ok(())
}

/// What is found of functions that a module offers to others ([`exports_that_look`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exports {
    /// Names of those that look at their return addresses, or jump on to code that does: calls to them have
    /// to push the original's.
    pub looking: BTreeSet<String>,
    /// Names of functions of other modules to which one of them may jump on.
    pub onward: BTreeSet<String>,
}

/// Looks at the functions that `image` offers to other modules under one of the names `wanted`. Only their
/// own code is looked at, and what it jumps to.
///
/// `elsewhere`: what is known to look at its return address in other modules, but for what is known of old.
pub fn exports_that_look(
    image: &Image,
    unwind: &UnwindInfo,
    wanted: &HashSet<String>,
    elsewhere: &BTreeSet<String>,
) -> Exports {
    let ranges = function_ranges(image, unwind);
    let offered = image.symbols_with_aliases().iter();
    let offered = offered.filter(|s| s.binding != Binding::Local && s.is_function());
    let named = offered.map(|s| (s.range.start, special::without_version(&s.name)));
    let is_known = |name: &str| special::looks_at_its_caller(name) || special::unwinds(name);
    let is_asked = |name: &str| wanted.contains(name) && !is_known(name);
    let entries: Vec<(Svma, &str)> = named.filter(|(_, name)| is_asked(name)).collect();
    let reached = reached_by_jumps(image, &ranges, entries.iter().map(|entry| entry.0).collect());
    let sweep = Sweep::run(image, unwind, &reached);
    let tables = tables::find_tables(image, &sweep);
    let code = Code { image, unwind, sweep: &sweep, tables: &tables, elsewhere };
    Exports { looking: looks::that_look(code, &entries), onward: looks::onward(code) }
}

/// Those of `functions` that hold one of the places `open`, or to which one of them jumps.
fn reached_by_jumps(image: &Image, functions: &[FunctionRange], mut open: Vec<Svma>) -> Vec<FunctionRange> {
    let mut reached = BTreeSet::new();
    while let Some(at) = open.pop() {
        let index = functions.partition_point(|f| f.range.end <= at);
        let function = functions.get(index).filter(|f| f.range.contains(at));
        if let Some(function) = function.filter(|_| reached.insert(index)) {
            open.extend(jumped_to(image, function));
        }
    }
    reached.into_iter().map(|i| functions[i]).collect()
}

/// Where the direct jumps of a function lead that leave it; none of code that is not understood.
fn jumped_to(image: &Image, function: &FunctionRange) -> Vec<Svma> {
    let &FunctionRange { range, overlapping } = function;
    let mut out = Vec::new();
    let see = |insn: Insn| match insn.flow {
        Flow::Jump(to) | Flow::Conditional(_, to) | Flow::ShortConditional(to) if !range.contains(to) => {
            out.push(to);
        }
        _ => {}
    };
    let bytes = image.read(range.start, range.len() as usize).filter(|_| !overlapping);
    let is_understood = bytes.is_some_and(|bytes| scan_lock_skips(bytes, range.start, see).is_ok());
    if is_understood { out } else { Vec::new() }
}

/// A table into a function that has no blocks is one more indirect jump that is not understood, and goes to
/// labels.
fn drop_tables(sweep: &Sweep, doubt: &Doubt, leaders: &mut Leaders, tables: &mut Vec<JumpTable>) {
    let has_blocks = |at: Svma| sweep.span_at(at).is_some_and(|s| doubt.opaque[s].is_none());
    let may_be_entry = |to: &Svma| has_blocks(*to) || !sweep.starts.contains(*to);
    tables.retain(|t| {
        let kept = has_blocks(t.jump_at) && t.targets.iter().all(may_be_entry);
        for &to in t.targets.iter().filter(|to| !kept && sweep.starts.contains(**to)) {
            leaders.indirect.insert(to);
        }
        kept
    });
}

/// Decides which tables a version may copy: nothing can jump between the load and the jump. The targets of
/// the others are reached by jumps that no copy serves.
fn settle_tables(sweep: &Sweep, leaders: &mut Leaders, tables: &mut [JumpTable]) {
    for table in tables.iter_mut() {
        let span = sweep.span_at(table.jump_at).map(|s| sweep.spans[s].range);
        let entered_between = leaders.all.any_between(table.load_at + 1, table.jump_at + 1);
        // A table that a copy must not shorten: the original entries have to be those of one function family.
        table.copyable &= !entered_between && span.is_some();
        if !table.copyable {
            for &to in table.targets.iter().filter(|to| sweep.starts.contains(**to)) {
                leaders.indirect.insert(to);
            }
        }
    }
}

/// Cuts the instruction stream into blocks and assembles the tables.
struct Builder<'a> {
    sweep: &'a Sweep,
    leaders: &'a Leaders,
    doubt: &'a Doubt,
    tables: Vec<JumpTable>,
    functions: Vec<Function>,
    blocks: Vec<Block>,
    calls: Vec<CallSite>,
    /// Index of each block's first record, and one more at the end.
    first_mini: Vec<u32>,
    /// Where control comes back by itself: behind calls, and behind traps that a handler steps over.
    resumed: AddressSet,
}

impl<'a> Builder<'a> {
    fn new(sweep: &'a Sweep, leaders: &'a Leaders, doubt: &'a Doubt, tables: Vec<JumpTable>) -> Self {
        Self {
            sweep,
            leaders,
            doubt,
            tables,
            functions: Vec::with_capacity(sweep.spans.len()),
            blocks: Vec::with_capacity(sweep.minis.len() / 5),
            calls: Vec::with_capacity(sweep.minis.len() / 12),
            first_mini: Vec::with_capacity(sweep.minis.len() / 5),
            resumed: AddressSet::new(sweep.text),
        }
    }

    fn function(&mut self, span: &Span, movability: Movability, has_blocks: bool, name: Option<&str>) {
        let first_block = BlockId::from_index(self.blocks.len());
        let function = FuncId::from_index(self.functions.len());
        if has_blocks {
            let minis = self.sweep.minis_of(span);
            let mut first = 0;
            for i in 0..minis.len() {
                let last =
                    i + 1 == minis.len() || self.leaders.all.contains(self.sweep.address(&minis[i + 1]));
                if last {
                    self.block(function, span, first, i);
                    first = i + 1;
                }
            }
        }
        self.functions.push(Function {
            range: span.range,
            name: name.map(Into::into),
            blocks: BlockRange::new(first_block, (self.blocks.len() - first_block.index()) as u32),
            movability,
            redirectable: false,
        });
    }

    fn block(&mut self, function: FuncId, span: &Span, first: usize, last: usize) {
        let minis = &self.sweep.minis_of(span)[first..=last];
        let start = self.sweep.address(&minis[0]);
        let end_mini = &minis[minis.len() - 1];
        let end = self.sweep.address(end_mini) + u64::from(end_mini.len);
        let block = BlockId::from_index(self.blocks.len());
        let first_call = CallId::from_index(self.calls.len());
        for m in minis.iter().filter(|m| matches!(m.kind, Kind::Call | Kind::IndirectCall)) {
            let at = self.sweep.address(m);
            let target = match m.kind {
                Kind::Call => self.sweep.target_of(at).map_or(CallTarget::Indirect, CallTarget::Direct),
                _ => CallTarget::Indirect,
            };
            self.resumed.insert(at + u64::from(m.len));
            self.calls.push(CallSite { at, len: m.len, block, target });
        }
        if end_mini.kind == Kind::Stop {
            self.resumed.insert(end);
        }
        let ends = end_mini.kind.ends_block();
        self.first_mini.push((span.first + first) as u32);
        self.blocks.push(Block {
            start,
            len: end.offset_from(start) as u32,
            terminator_len: if ends { end_mini.len } else { 0 },
            attrs: self.attrs(span, start, minis),
            function,
            terminator: self.terminator(end_mini),
            first_edge: EdgeId(0),
            edge_count: 0,
            first_call,
            call_count: (self.calls.len() - first_call.index()) as u32,
        });
    }

    fn attrs(&self, span: &Span, start: Svma, minis: &[Mini]) -> BlockAttrs {
        let l = self.leaders;
        let mut attrs = BlockAttrs::empty();
        attrs.set(BlockAttrs::ENTRY, start == span.range.start);
        attrs.set(BlockAttrs::LANDING_PAD, l.pads.contains(start));
        attrs.set(BlockAttrs::INDIRECT, l.indirect.contains(start));
        attrs.set(BlockAttrs::BRANCH_TARGET, l.branch.contains(start));
        attrs.set(BlockAttrs::PINNED, l.pinned.contains(start));
        let filler = minis.iter().all(|m| m.kind == Kind::Padding || m.kind == Kind::Stop && m.len == 1);
        attrs.set(BlockAttrs::PADDING, filler && attrs.is_empty());
        let padding = attrs.contains(BlockAttrs::PADDING);
        attrs.set(BlockAttrs::UNREACHED, !padding && !self.doubt.reached.contains(start));
        attrs
    }

    fn terminator(&self, last: &Mini) -> Terminator {
        let at = self.sweep.address(last);
        let target = || self.sweep.target_of(at);
        match (last.kind, target()) {
            (Kind::Jump, Some(to)) => Terminator::Jump(to),
            (Kind::Conditional(cc), Some(to)) => Terminator::Conditional(cc, to),
            (Kind::ShortConditional, Some(to)) => Terminator::ShortConditional(to),
            (Kind::IndirectJump, _) => match self.tables.binary_search_by_key(&at, |t| t.jump_at) {
                Ok(t) => Terminator::Table(TableId::from_index(t)),
                Err(_) => Terminator::IndirectJump,
            },
            (Kind::Return, _) => Terminator::Return,
            (Kind::Stop, _) => Terminator::Stop,
            _ => Terminator::FallThrough,
        }
    }

    fn finish(mut self, image: &Image) -> Program {
        let minis = self.sweep.minis.len();
        self.first_mini.push(minis as u32);
        // A padding block falls through only if something real reaches it, which makes it no padding.
        self.unmark_reached_padding();
        let starts = Ranked::new(self.sweep.text, self.blocks.iter().map(|b| b.start));
        let find = |_: &[Block], at| starts.index_of(at).map(BlockId::from_index);
        let edges = build_edges_with(&mut self.blocks, &self.tables, &find);
        let minis = block_minis(&self.first_mini, &self.functions, self.sweep);
        let live = flags::live_in(&flags::Code {
            image,
            functions: &self.functions,
            blocks: &self.blocks,
            edges: &edges,
            calls: &self.calls,
            starts: &starts,
            sweep: self.sweep,
            minis: &minis,
            unknown_callers: &self.doubt.callers,
        });
        for (block, live) in self.blocks.iter_mut().zip(live) {
            block.attrs.set(BlockAttrs::FLAGS_LIVE_IN, live != 0);
        }
        for i in 0..self.functions.len() {
            self.functions[i].redirectable = self.redirectable(&self.functions[i]);
        }
        Program {
            functions: self.functions,
            blocks: self.blocks,
            edges,
            calls: self.calls,
            tables: self.tables,
        }
    }

    /// Filler that the block before it falls into is code.
    fn unmark_reached_padding(&mut self) {
        for i in 1..self.blocks.len() {
            let (before, here) = (&self.blocks[i - 1], &self.blocks[i]);
            let falls = matches!(
                before.terminator,
                Terminator::FallThrough | Terminator::Conditional(..) | Terminator::ShortConditional(_)
            );
            if here.attrs.contains(BlockAttrs::PADDING)
                && falls
                && before.end() == here.start
                && !before.attrs.contains(BlockAttrs::PADDING)
            {
                self.blocks[i].attrs.remove(BlockAttrs::PADDING);
            }
        }
    }

    /// Whether the bytes of a patch at the entry (behind its marker) can be overwritten.
    fn redirectable(&self, function: &Function) -> bool {
        let entry_block = function.entry_block().filter(|_| function.movability == Movability::Movable);
        let Some(entry_block) = entry_block else { return false };
        let l = self.leaders;
        let entry = function.range.start;
        let from = entry + self.marker_len(function, entry_block);
        let to = from + Patch::LEN as u64;
        let pinned = self.blocks[entry_block.index()].attrs.contains(BlockAttrs::PINNED);
        let entered = |at: Svma| {
            l.branch.contains(at)
                || l.pads.contains(at)
                || l.indirect.contains(at)
                || self.resumed.contains(at)
        };
        to.offset_from(function.range.end) <= 0
            && !pinned
            && !(1..Patch::LEN as u64).any(|i| entered(from + i))
    }

    fn marker_len(&self, function: &Function, entry: BlockId) -> u64 {
        let first = self.first_mini[entry.index()] as usize;
        if self.sweep.marked.contains(function.range.start) { self.sweep.minis[first].len.into() } else { 0 }
    }
}

/// Record ranges per block: like `first_mini`, but without the records of functions that have no blocks.
fn block_minis(first_mini: &[u32], functions: &[Function], sweep: &Sweep) -> Vec<(u32, u32)> {
    let mut out = Vec::with_capacity(first_mini.len());
    for (f, span) in functions.iter().zip(&sweep.spans) {
        let end = (span.first + span.count) as u32;
        let blocks = f.blocks.indices();
        for b in blocks.clone() {
            let last = b + 1 == blocks.end;
            out.push((first_mini[b], if last { end } else { first_mini[b + 1] }));
        }
    }
    out
}
