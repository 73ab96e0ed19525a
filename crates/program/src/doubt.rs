//! Doubt in what was decoded: functions whose bytes are not known to be code throughout get no blocks, and
//! what nothing leads to is marked.
//!
//! **Problem.** A function's range is decoded from its start to its end. Hand-written code keeps constants
//! and tables there, and most bytes decode as something. What is taken for code wrongly is copied, entered,
//! or written over; the checker, which believes this analysis, agrees.
//!
//! **Idea.** Evidence of data, each enough by itself: an operand reads or writes the bytes; an address is
//! made and memory is accessed through it ([`follow_address`]); a jump table, or an object of the symbol
//! table, is there; an address inside is made that control does not come to in any way that is known, and the
//! function has no jump that could (computed gotos are one); a jump to something that is added up, so that
//! its targets are not known; instructions that no compiler writes; code that runs out of its function
//! without anybody calling it, or that nothing leads to and that is not whole. Such a function is left as it
//! is, every byte of it. Bytes that nothing leads to, but that are clean code, are neither copied nor written
//! over ([`crate::BlockAttrs::UNREACHED`]).
//!
//! **What code says that is not understood**, opaque functions and what lies between functions (hand-written
//! code without unwind information), is looked for along its control flow, and at every byte that control
//! does not come to from a place that is certain: a branch too many only makes a block boundary, one too few
//! might lead into the middle of a patch; what is read too much only stays in place.
//!
//! **Limits.** Calls are taken to return. Data that is clean code, that its function runs into, and that is
//! read through an address from memory, cannot be told from code.

use crate::address_set::AddressSet;
use crate::flag_use::{FlagUse, UnknownCaller, flag_use};
use crate::follow::follow_address;
use crate::leaders::Leaders;
use crate::model::{JumpTable, Movability, TableEncoding};
use crate::sweep::{INDEXED_BYTES, Kind, Mini, Span, Sweep};
use crate::unknown_code::{entered_by_loader, gaps, naming_at_any_byte};
use restitch_address::{Svma, SvmaRange};
use restitch_image::{Image, ImageKind, SymbolKind};
use restitch_x86::kernel::KernelEntry;
use restitch_x86::possible::possible_branch;
use restitch_x86::{Decoded, Flow, Insn, Naming, Op, Reg, decode_one};
use std::collections::BTreeSet;

/// An address is followed through at most this many instructions: what is read is read soon.
const FOLLOWED: usize = 64;
/// So many instructions in front may say what other registers hold.
const LEADING: usize = 16;
/// A table of offsets that leads into a function has at least this many: numbers that do so by chance are
/// fewer.
const LEAST_OFFSETS: usize = 3;
/// And no more than this.
const MOST_OFFSETS: u64 = 16_384;

/// What the analysis does not trust.
pub(crate) struct Doubt {
    /// By span: why it gets no blocks.
    pub opaque: Vec<Option<Movability>>,
    /// Instructions that control is known to come to.
    pub reached: AddressSet,
    /// Where code that is not understood calls or jumps to other functions, sorted.
    pub callers: Vec<UnknownCaller>,
}

/// Finds it, and adds the leaders that opaque functions make.
pub(crate) fn find(image: &Image, sweep: &Sweep, leaders: &mut Leaders, tables: &[JumpTable]) -> Doubt {
    let mut search = Search::new(image, sweep, leaders, tables);
    search.unreadable();
    search.accessed_bytes();
    search.walk();
    search.believe_linkage();
    search.look_between();
    for s in (0..sweep.spans.len()).filter(|s| !sweep.spans[*s].is_signal_frame()) {
        search.judge(s);
    }
    search.look_into_opaque();
    search.callers.sort_unstable();
    search.callers.dedup();
    Doubt { opaque: search.opaque, reached: search.reached, callers: search.callers }
}

/// What a jump adds up to know its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// A base and a signed number of four bytes that is loaded, as computed gotos of compilers do.
    Offset,
    /// Anything else.
    Computed,
}

struct Search<'a> {
    image: &'a Image,
    sweep: &'a Sweep,
    leaders: &'a mut Leaders,
    tables: &'a [JumpTable],
    opaque: Vec<Option<Movability>>,
    /// Opaque spans whose ways out are not known yet.
    open: Vec<usize>,
    reached: AddressSet,
    /// Targets of direct branches, also those that are no instruction.
    aimed: AddressSet,
    /// Targets of direct branches from other functions.
    entered: AddressSet,
    /// Addresses that a jump goes to with something unknown added.
    bases: BTreeSet<Svma>,
    /// Spans of linkage stubs, which the loader reaches through their slots.
    linkage: BTreeSet<usize>,
    callers: Vec<UnknownCaller>,
}

impl<'a> Search<'a> {
    fn new(image: &'a Image, sweep: &'a Sweep, leaders: &'a mut Leaders, tables: &'a [JumpTable]) -> Self {
        let set = || AddressSet::new(sweep.text);
        let linkage = image.plt_slots().iter().filter_map(|slot| sweep.span_at(slot.stub.start)).collect();
        let (mut aimed, mut entered, mut s) = (set(), set(), 0);
        for &(at, to) in &sweep.targets {
            while s + 1 < sweep.spans.len() && sweep.spans[s].range.end <= at {
                s += 1;
            }
            aimed.insert(to);
            if !sweep.spans[s].range.contains(to) {
                entered.insert(to);
            }
        }
        let opaque = vec![None; sweep.spans.len()];
        Self {
            image,
            sweep,
            leaders,
            tables,
            opaque,
            open: Vec::new(),
            reached: set(),
            aimed,
            entered,
            bases: BTreeSet::new(),
            linkage,
            callers: Vec::new(),
        }
    }

    fn doubt(&mut self, span: usize, why: Movability) {
        if self.opaque[span].is_none() && (why != Movability::DataInside || !self.linkage.contains(&span)) {
            self.opaque[span] = Some(why);
            self.open.push(span);
        }
    }

    fn doubt_at(&mut self, at: Svma, why: Movability) {
        if let Some(s) = self.sweep.span_at(at) {
            self.doubt(s, why);
        }
    }

    /// Bytes that are read or written: of one function, or of several.
    fn doubt_accessed(&mut self, at: Svma, bytes: u64) {
        let end = at + bytes.max(1);
        let first = self.sweep.spans.partition_point(|span| span.range.end <= at);
        let spans = self.sweep.spans[first..].iter().take_while(|span| span.range.start < end).count();
        (first..first + spans).for_each(|s| self.doubt(s, Movability::DataInside));
    }

    /// What does not decode, or branches to where no instruction is.
    fn unreadable(&mut self) {
        let sweep = self.sweep;
        for (s, span) in sweep.spans.iter().enumerate() {
            if span.overlapping {
                self.doubt(s, Movability::Overlapping);
            } else if !span.decodable || sweep.minis_of(span).iter().any(|m| m.kind == Kind::Unsupported) {
                self.doubt(s, Movability::Undecodable);
            }
        }
        for at in self.leaders.elsewhere.clone() {
            self.doubt_at(at, Movability::ReturnsElsewhere);
        }
        for at in self.leaders.misaligned.clone() {
            self.doubt_at(at, Movability::Undecodable);
        }
        let executable = self.image.executable_ranges();
        for &(at, to) in sweep.targets.iter().filter(|(_, to)| !sweep.text.contains(*to)) {
            if !executable.iter().any(|range| range.contains(to)) {
                self.doubt_at(at, Movability::Undecodable);
            }
        }
    }

    /// What is read or written, is an object by its symbol, or a jump table.
    fn accessed_bytes(&mut self) {
        let sweep = self.sweep;
        for named in &sweep.named {
            match named.naming {
                Naming::Access | Naming::Displacement => {
                    self.doubt_accessed(named.to, u64::from(named.accessed));
                }
                Naming::Address | Naming::Number => {
                    let range = sweep.span_at(named.at).map(|s| sweep.spans[s].range);
                    self.followed(named.at, range.unwrap_or_default());
                }
            }
        }
        for &at in &sweep.odd {
            self.doubt_at(at, Movability::DataInside);
        }
        let symbols = self.image.symbols_with_aliases().iter();
        for symbol in symbols.filter(|s| s.kind == SymbolKind::Object) {
            self.doubt_at(symbol.range.start, Movability::DataInside);
        }
        for table in self.tables {
            let width = if table.encoding == TableEncoding::Absolute8 { 8 } else { 4 };
            let last = table.table + width * (table.targets.len().max(1) as u64 - 1);
            self.doubt_at(table.table, Movability::DataInside);
            self.doubt_at(last, Movability::DataInside);
        }
    }

    /// Whether memory is accessed through the address that the instruction at `at`, in `range`, makes.
    fn followed(&mut self, at: Svma, range: SvmaRange) {
        let Some(made) = decoded_at(self.image, at) else { return };
        // Nothing runs into a landing pad but what seems to come back from a call that does not.
        let decode = |at| decoded_at(self.image, at).filter(|_| !self.leaders.pads.contains(at));
        let mut uses = follow_address(&decode, range, &[], &made, FOLLOWED);
        if !uses.accessed.is_empty() || !uses.jumped.is_empty() {
            // With what is known of other registers, it may be elsewhere.
            uses = follow_address(&decode, range, &self.leading_to(at), &made, FOLLOWED);
        }
        for place in uses.accessed {
            // What begins in a function ends there, for all that is known of the index.
            let bytes = if self.sweep.span_at(place).is_some() { 1 } else { INDEXED_BYTES };
            self.doubt_accessed(place, bytes);
        }
        let by_table = |at: &Svma| self.tables.binary_search_by_key(at, |t| t.jump_at).is_ok();
        self.bases.extend(uses.jumped.iter().filter(|(jump, _)| !by_table(jump)).map(|(_, base)| base));
    }

    /// The instructions in front of the one at `at` from which control can only come there.
    fn leading_to(&self, at: Svma) -> Vec<Decoded> {
        let sweep = self.sweep;
        let Some(s) = sweep.span_at(at) else { return Vec::new() };
        let minis = sweep.minis_of(&sweep.spans[s]);
        let here = sweep.starts.below(at) - sweep.spans[s].first;
        let straight = |i: &usize| {
            let next = minis.get(*i + 1);
            !minis[*i].kind.ends_block()
                && next.is_none_or(|next| !self.leaders.all.contains(sweep.address(next)))
        };
        let first = (here.saturating_sub(LEADING)..here).rev().take_while(straight).last().unwrap_or(here);
        minis[first..here].iter().filter_map(|m| decoded_at(self.image, sweep.address(m))).collect()
    }

    /// Marks what control comes to in ways that are known.
    fn walk(&mut self) {
        let sweep = self.sweep;
        let mut roots = self.entered.clone();
        for &to in self.tables.iter().flat_map(|t| t.targets.iter().chain(&t.tail)) {
            if sweep.starts.contains(to) {
                roots.insert(to);
            }
        }
        for symbol in self.image.symbols_with_aliases().iter().filter(|s| s.kind != SymbolKind::Object) {
            roots.insert(symbol.range.start);
        }
        for (s, span) in sweep.spans.iter().enumerate() {
            self.reach(s, span.range.start);
            for root in roots.iter_in(span.range) {
                self.reach(s, root);
            }
            let pads: Vec<Svma> = self.leaders.pads.iter_in(span.range).collect();
            pads.into_iter().for_each(|pad| self.reach(s, pad));
        }
    }

    /// Marks all of the linkage stubs: the loader gives out the addresses of their parts.
    fn believe_linkage(&mut self) {
        for &s in &self.linkage {
            for mini in self.sweep.minis_of(&self.sweep.spans[s]) {
                self.reached.insert(self.sweep.address(mini));
            }
        }
    }

    /// Marks what control comes to from `from` within the span.
    fn reach(&mut self, s: usize, from: Svma) {
        let sweep = self.sweep;
        let span = &sweep.spans[s];
        let minis = sweep.minis_of(span);
        let mut open = vec![from];
        while let Some(from) = open.pop() {
            if self.reached.contains(from) || !sweep.starts.contains(from) || !span.range.contains(from) {
                continue;
            }
            let first = sweep.mini_at(from).map_or(minis.len(), |i| i - span.first);
            for mini in &minis[first..] {
                let at = sweep.address(mini);
                if self.reached.contains(at) {
                    break;
                }
                self.reached.insert(at);
                if matches!(mini.kind, Kind::Jump | Kind::Conditional(_) | Kind::ShortConditional)
                    && let Some(to) = sweep.target_of(at)
                {
                    open.push(to);
                }
                if mini.kind.ends_block() && !is_conditional(mini.kind) {
                    break;
                }
            }
        }
    }

    /// Labels that only an unknown jump could go to, and whether what nothing leads to is clean code.
    fn judge(&mut self, s: usize) {
        if self.opaque[s].is_some() || self.linkage.contains(&s) {
            return;
        }
        let sweep = self.sweep;
        let span = &sweep.spans[s];
        // An address made in the middle of what was taken for an instruction is that of something else.
        let odd = |at: &Svma| *at != span.range.start && !sweep.starts.contains(*at);
        if self.leaders.made.iter_in(span.range).any(|at| odd(&at)) {
            return self.doubt(s, Movability::DataInside);
        }
        let taken = self.leaders.indirect.iter_in(span.range).filter(|at| !self.reached.contains(*at));
        let taken: Vec<Svma> = taken.collect();
        if self.jumps_to_labels(span) {
            taken.into_iter().for_each(|label| self.reach(s, label));
            let are_known = self.reach_by_offsets(s);
            if self.may_come_anywhere(span, are_known) {
                return self.doubt(s, Movability::ComputedTargets);
            }
        } else if taken.iter().any(|at| self.leaders.made.contains(*at)) {
            // An address for certain, and nothing that could jump there: data, or a label that is compared
            // with. (A number may equal an address by chance.)
            return self.doubt(s, Movability::KnownLabels);
        }
        if !self.is_whole(span) {
            self.doubt(s, Movability::DataInside);
        }
    }

    /// Marks what the offsets lead to that stand in data where code of the span makes an address, if they
    /// lead into the span: switches whose table is not known well enough to copy it. Whether there are such.
    fn reach_by_offsets(&mut self, s: usize) -> bool {
        let sweep = self.sweep;
        let range = sweep.spans[s].range;
        let from = sweep.data_named.partition_point(|n| n.0 < range.start);
        let named = sweep.data_named[from..].iter().take_while(|n| n.0 < range.end);
        let mut places: Vec<Svma> = named.map(|n| n.1).collect();
        places.sort_unstable();
        places.dedup();
        // From the table itself, as switches have them, or from a label that is added (GCC manual, Labels as
        // Values).
        let bases: Vec<Svma> = self.leaders.made.iter_in(range).collect();
        let origins = |table: Svma| std::iter::once(table).chain(bases.iter().copied());
        let mut are_any = false;
        for (i, &table) in places.iter().enumerate() {
            let end = places.get(i + 1).map_or(MOST_OFFSETS, |next| next.offset_from(table) as u64 / 4);
            for origin in origins(table) {
                let offset = |i: u64| self.image.read_i32(table + 4 * i);
                let targets =
                    (0..end.min(MOST_OFFSETS)).map_while(|i| Some(origin.offset(offset(i)?.into())));
                let targets: BTreeSet<Svma> = targets.take_while(|to| sweep.starts.contains(*to)).collect();
                if targets.range(range.start..range.end).count() < LEAST_OFFSETS {
                    continue;
                }
                are_any = true;
                for to in targets {
                    if range.contains(to) && to != range.start {
                        self.leaders.all.insert(to);
                        self.leaders.indirect.insert(to);
                    }
                    sweep.span_at(to).into_iter().for_each(|s| self.reach(s, to));
                }
            }
        }
        are_any
    }

    /// Whether the function has a jump that may go to a label of it: an indirect one that is no recognised
    /// switch.
    fn jumps_to_labels(&self, span: &Span) -> bool {
        self.unknown_jumps(span).next().is_some()
    }

    /// The jumps that may go to labels, which control is known to come to.
    fn unknown_jumps<'s>(&'s self, span: &Span) -> impl Iterator<Item = Svma> + use<'s, 'a> {
        let sweep = self.sweep;
        let indirect = sweep.indirect_of(span).iter().map(|i| &sweep.minis[*i as usize]);
        let jumps = indirect.filter(|m| m.kind == Kind::IndirectJump);
        jumps.map(|m| sweep.address(m)).filter(|at| {
            self.reached.contains(*at) && self.tables.binary_search_by_key(at, |t| t.jump_at).is_err()
        })
    }

    /// Whether a jump may come to any instruction of the span: it goes to a sum, as into an unrolled loop.
    /// What is written over a label there may be another one's bytes as well. `are_known`: tables of offsets
    /// say where sums with their entries lead.
    fn may_come_anywhere(&self, span: &Span, are_known: bool) -> bool {
        let sums: Vec<Sum> = self.unknown_jumps(span).filter_map(|at| self.sum_at(at)).collect();
        let has_labels = || self.leaders.indirect.iter_in(span.range).next().is_some();
        let is_base = self.bases.range(span.range.start..span.range.end).next().is_some();
        sums.contains(&Sum::Computed) && has_labels()
            || (is_base || !sums.is_empty() && has_labels()) && !are_known
    }

    /// What the jump at `at` goes to, if it is no label, nor what a table of them says.
    fn sum_at(&self, at: Svma) -> Option<Sum> {
        let Op::JumpRegister(mut target) = decoded_at(self.image, at)?.op else { return None };
        let leading = self.leading_to(at);
        for (i, insn) in leading.iter().enumerate().rev() {
            let is_offset = |r: Reg| {
                let made = leading[..i].iter().rfind(|insn| insn.writes >> r.0 & 1 == 1).map(|insn| insn.op);
                matches!(made, Some(Op::Load { size: 4, signed: true, .. } | Op::SignExtend(..)))
            };
            match insn.op {
                _ if insn.writes >> target.0 & 1 == 0 => {}
                Op::Copy(_, source, 64) => target = source,
                Op::Add(a, b) | Op::Sum(_, a, b) if is_offset(a) || is_offset(b) => return Some(Sum::Offset),
                Op::Add(..) | Op::Sum(..) | Op::AddConstant(..) => return Some(Sum::Computed),
                // Made of registers, not loaded: a subtraction, say.
                Op::Other if insn.addresses == 0 && insn.reads != 0 => return Some(Sum::Computed),
                _ => return None,
            }
        }
        None
    }

    /// Whether control does not run out of the function at its end, unless somebody is known to enter it, and
    /// what nothing leads to branches to instructions.
    fn is_whole(&self, span: &Span) -> bool {
        let sweep = self.sweep;
        let minis = sweep.minis_of(span);
        let reached = |m: &Mini| self.reached.contains(sweep.address(m));
        let Some(last) = minis.iter().rfind(|m| m.kind != Kind::Padding) else {
            return true;
        };
        let leaves = last.kind.ends_block() && !is_conditional(last.kind);
        let may_not_return = matches!(last.kind, Kind::Call | Kind::IndirectCall);
        let known = reached(last) && self.entered.contains(span.range.start);
        let whole = leaves || may_not_return || known || is_system_call(self.image, sweep.address(last));
        whole
            && sweep.targets_in(span.range).iter().all(|(at, to)| {
                self.reached.contains(*at) || sweep.starts.contains(*to) || !sweep.text.contains(*to)
            })
    }

    /// Looks at code that no unwind table entry covers.
    fn look_between(&mut self) {
        let (entered, loader) = (self.entered_for_certain(), entered_by_loader(self.image));
        for gap in gaps(self.image, self.sweep) {
            let by_loader = loader.iter().copied().filter(|at| gap.contains(*at));
            let certain = entered.iter_in(gap).chain(self.functions_in(gap)).chain(by_loader).collect();
            let roots = self.aimed.iter_in(gap).collect();
            self.look_through(gap, certain, roots);
        }
    }

    /// What code that is understood branches to.
    fn entered_for_certain(&self) -> AddressSet {
        let mut entered = AddressSet::new(self.sweep.text);
        let understood = self.sweep.spans.iter().zip(&self.opaque).filter(|(_, opaque)| opaque.is_none());
        for (span, _) in understood {
            for (_, to) in
                self.sweep.targets_in(span.range).iter().filter(|(at, _)| self.reached.contains(*at))
            {
                entered.insert(*to);
            }
        }
        entered
    }

    /// Where functions begin in `range` by their symbols.
    fn functions_in(&self, range: SvmaRange) -> impl Iterator<Item = Svma> + use<'a> {
        let symbols = self.image.symbols();
        let from = symbols.partition_point(|symbol| symbol.range.start < range.start);
        let inside = symbols[from..].iter().take_while(move |symbol| symbol.range.start < range.end);
        inside.filter(|symbol| symbol.kind != SymbolKind::Object).map(|symbol| symbol.range.start)
    }

    /// Looks at opaque functions; these may make others opaque.
    fn look_into_opaque(&mut self) {
        let entered = self.entered_for_certain();
        while let Some(s) = self.open.pop() {
            let range = self.sweep.spans[s].range;
            let mut roots = vec![range.start];
            roots.extend(self.aimed.iter_in(range));
            roots.extend(self.leaders.pads.iter_in(range));
            roots.extend(self.leaders.indirect.iter_in(range));
            let certain = entered.iter_in(range).chain(self.functions_in(range)).collect();
            self.look_through(range, certain, roots);
        }
    }

    /// Where the code of `range` goes, and what it names: from `certain` places, to which control comes, and
    /// `roots`, to which it seems to; and at every byte that the certain ones do not lead to. (What seems an
    /// instruction may be data, and the next one begin in the middle of it.)
    fn look_through(&mut self, range: SvmaRange, certain: Vec<Svma>, roots: Vec<Svma>) {
        // What is behind a call is not certain to be code: callees may return elsewhere, or never.
        let seeming = certain.iter().copied().chain(roots).collect();
        let known = self.follow_code(range, certain, false);
        self.follow_code(range, seeming, true);
        self.every_branch(range, &known);
        for insn in naming_at_any_byte(self.image, range, &known) {
            self.named_in_opaque(&insn, range);
        }
    }

    /// Decodes from the places `open` of `range`, to which control seems to come, past calls if these are
    /// taken to return. The bytes of what it decodes.
    fn follow_code(&mut self, range: SvmaRange, mut open: Vec<Svma>, calls_return: bool) -> AddressSet {
        let mut known = AddressSet::new(range);
        let mut seen = BTreeSet::new();
        while let Some(at) = open.pop() {
            if !range.contains(at) || !seen.insert(at) {
                continue;
            }
            let Some(decoded) = decoded_at(self.image, at) else { continue };
            let next = decoded.insn.end();
            if next > range.end {
                // An instruction of this function reaches into the next one.
                self.doubt_at(range.end, Movability::Overlapping);
            }
            (0..u64::from(decoded.insn.len)).for_each(|i| known.insert(at + i));
            self.named_in_opaque(&decoded.insn, range);
            if decoded.insn.flow == Flow::IndirectCall && flag_use(self.image, next) == FlagUse::Read {
                self.callers.push(UnknownCaller { target: None, then: FlagUse::Read });
            }
            let (target, goes_on) = match decoded.insn.flow {
                Flow::Next => (None, true),
                Flow::IndirectCall | Flow::Stop => (None, calls_return),
                Flow::Call(to) => (Some(to), calls_return),
                Flow::Conditional(_, to) | Flow::ShortConditional(to) => (Some(to), true),
                Flow::Jump(to) => (Some(to), false),
                Flow::IndirectJump | Flow::Return | Flow::Unsupported => (None, false),
            };
            if let Some(to) = target {
                if range.contains(to) {
                    open.push(to);
                } else {
                    self.aim(to);
                    self.called_by_unknown(to, matches!(decoded.insn.flow, Flow::Call(_)).then_some(next));
                }
            }
            if goes_on {
                open.push(next);
            }
        }
        known
    }

    /// An instruction of opaque code may read what is elsewhere, or make the address of a label there.
    fn named_in_opaque(&mut self, insn: &Insn, range: SvmaRange) {
        let fixed = self.image.kind() == ImageKind::Executable;
        let Some(to) = insn.names else { return };
        match insn.naming {
            Naming::Access => self.doubt_accessed(to, u64::from(insn.accessed)),
            Naming::Displacement if fixed => self.doubt_accessed(to, u64::from(insn.accessed)),
            Naming::Address => self.label_of_opaque(insn.at, to, range),
            Naming::Number if fixed => self.label_of_opaque(insn.at, to, range),
            Naming::Displacement | Naming::Number => {}
        }
    }

    fn label_of_opaque(&mut self, at: Svma, to: Svma, range: SvmaRange) {
        let text = self.sweep.text;
        if text.contains(to) || text.contains(to + (INDEXED_BYTES - 1)) {
            self.followed(at, range);
        }
        let Some(s) = self.sweep.span_at(to) else { return };
        let is_entry = self.sweep.spans[s].range.start == to;
        if is_entry || range.contains(to) || !self.sweep.starts.contains(to) {
            return;
        }
        self.leaders.all.insert(to);
        self.leaders.indirect.insert(to);
        if !self.reached.contains(to) {
            self.doubt(s, Movability::DataInside);
        }
    }

    /// Opaque code branches to `to`.
    fn aim(&mut self, to: Svma) {
        let Some(s) = self.sweep.span_at(to) else { return };
        if self.sweep.starts.contains(to) {
            self.leaders.all.insert(to);
            self.leaders.branch.insert(to);
            self.reach(s, to);
        } else {
            self.doubt(s, Movability::Undecodable);
        }
        if self.opaque[s].is_some() && !self.aimed.contains(to) {
            self.open.push(s);
        }
        self.aimed.insert(to);
    }

    /// Code that is not understood calls `target`, which returns to `back`; or jumps there, and it returns to
    /// nobody knows whom.
    fn called_by_unknown(&mut self, target: Svma, back: Option<Svma>) {
        let then = back.map_or(FlagUse::Unknown, |back| flag_use(self.image, back));
        self.callers.push(UnknownCaller { target: Some(target), then });
    }

    /// Takes every byte of `range` that is not in `known` for the start of a direct branch.
    fn every_branch(&mut self, range: SvmaRange, known: &AddressSet) {
        let Some(bytes) = self.image.read(range.start, range.len() as usize) else { return };
        for i in (0..bytes.len()).filter(|i| !known.contains(range.start + *i as u64)) {
            let Some(branch) = possible_branch(&bytes[i..]) else { continue };
            let at = range.start + i as u64;
            let (next, to) = (at + u64::from(branch.len), at.offset(branch.distance));
            if !range.contains(to) && self.sweep.starts.contains(to) {
                self.leaders.all.insert(to);
                self.leaders.branch.insert(to);
                self.called_by_unknown(to, branch.calls.then_some(next));
            }
        }
    }
}

fn is_conditional(kind: Kind) -> bool {
    matches!(kind, Kind::Conditional(_) | Kind::ShortConditional)
}

/// Whether `syscall` is at `at`: one that ends the program does not return.
fn is_system_call(image: &Image, at: Svma) -> bool {
    image.read_tail(at).and_then(KernelEntry::beginning_of) == Some(KernelEntry::SystemCall)
}

fn decoded_at(image: &Image, at: Svma) -> Option<Decoded> {
    let bytes = image.read_tail(at)?;
    decode_one(&bytes[..bytes.len().min(17)], at)
}
