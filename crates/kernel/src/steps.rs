//! Instructions of a function with what the kernel's tables and symbols say of them.

use crate::code::{End, SiteKind, Trouble};
use crate::functions::Function;
use crate::memory::Memory;
use crate::places::{Places, Thunk};
use crate::reason::Reason;
use crate::tables::{BugEntry, CallEntry, ExceptionEntry, KeyEntry, Tables, entries_in, entry_at};
use restitch_address::{Svma, SvmaRange};
use restitch_x86::kernel_code::{
    KernelInsn, is_quiet_trace_site, is_unlocked, key_site, scan_kernel, static_call_form, target_marker,
    traced_by,
};
use restitch_x86::{Flow, Naming};
use std::collections::HashSet;

/// What is known of a kernel beside the bytes of one function.
#[derive(Debug)]
pub struct Known {
    /// The kernel's memory.
    pub memory: Memory,
    /// Parts of the text.
    pub places: Places,
    /// Tables about code.
    pub tables: Tables,
    /// Places of the function tracer; empty if its list shows no addresses.
    pub traced: HashSet<Svma>,
    /// Functions that do not return.
    pub silent: HashSet<Svma>,
    /// Addresses inside of functions that other code jumps to, in order.
    pub entered: Vec<Svma>,
    /// Addresses inside of functions that other code or constants have, in order.
    pub named: Vec<Svma>,
}

/// An instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) range: SvmaRange,
    /// How its block ends, if it ends it.
    pub(crate) end: Option<End>,
    /// What it is beside, at most: the site, and a trap's or a fault's entry.
    pub(crate) site: Option<SiteKind>,
    pub(crate) bug: Option<BugEntry>,
    pub(crate) exception: Option<ExceptionEntry>,
    /// An address of code or data that it names.
    pub(crate) names: Option<Svma>,
    pub(crate) is_padding: bool,
    /// Whether its lock prefix is taken out.
    pub(crate) is_unlocked: bool,
}

/// Reads the instructions of a function.
pub(crate) struct Reader<'a> {
    known: &'a Known,
    function: &'a Function,
    entries: Entries<'a>,
    pub(crate) steps: Vec<Step>,
    pub(crate) troubles: Vec<Trouble>,
}

/// What the tables say of one part: mostly nothing.
#[derive(Default)]
struct Entries<'a> {
    exceptions: &'a [ExceptionEntry],
    keys: &'a [KeyEntry],
    calls: &'a [CallEntry],
    bugs: &'a [BugEntry],
}

impl<'a> Entries<'a> {
    fn of(tables: &'a Tables, part: SvmaRange) -> Self {
        Self {
            exceptions: entries_in(&tables.exceptions, part),
            keys: entries_in(&tables.keys, part),
            calls: entries_in(&tables.calls, part),
            bugs: entries_in(&tables.bugs, part),
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(known: &'a Known, function: &'a Function) -> Self {
        Self { known, function, entries: Entries::default(), steps: Vec::new(), troubles: Vec::new() }
    }

    /// Reads one part, without the filler behind its last instruction.
    pub(crate) fn part(&mut self, part: SvmaRange) {
        let Some(bytes) = self.known.memory.bytes(part) else {
            return self.trouble(Reason::Undecodable, part.start);
        };
        self.entries = Entries::of(&self.known.tables, part);
        let first = self.steps.len();
        let mut skip = part.start;
        let scanned = scan_kernel(bytes, part.start, |insn| {
            if insn.insn.at >= skip {
                let rest = &bytes[insn.insn.at.offset_from(part.start) as usize..];
                self.step(&insn, rest, part);
                skip = self.steps.last().map_or(skip, |step| step.range.end);
            }
        });
        match scanned {
            Err(at) => self.trouble(Reason::Undecodable, at),
            Ok(()) => {
                self.drop_filler(first);
                self.runs_on(first, part.end);
            }
        }
    }

    fn trouble(&mut self, reason: Reason, at: Svma) {
        self.troubles.push(Trouble { reason, at });
    }

    /// Filler behind the last instruction that ends a block; a call before it does not return.
    fn drop_filler(&mut self, first: usize) {
        while self.steps.len() > first + 1 && self.steps.last().is_some_and(|step| step.is_padding) {
            self.steps.pop();
        }
    }

    fn runs_on(&mut self, first: usize, end: Svma) {
        let Some(last) = self.steps[first..].last_mut() else { return };
        let is_call = matches!(last.site, Some(SiteKind::Call(_)));
        match &mut last.end {
            Some(end) if !end.flows_on() => {}
            None if is_call => last.end = Some(End::NoReturn),
            _ => self.trouble(Reason::RunsOn, end),
        }
    }

    fn step(&mut self, insn: &KernelInsn, rest: &[u8], part: SvmaRange) {
        let at = insn.insn.at;
        let mut step = Step {
            range: SvmaRange::new(at, insn.insn.len.into()),
            end: None,
            site: None,
            bug: entry_at(self.entries.bugs, at).copied(),
            exception: entry_at(self.entries.exceptions, at).copied(),
            names: insn.insn.names.filter(|_| insn.insn.naming != Naming::Displacement && !insn.tells_place),
            is_padding: insn.insn.padding,
            is_unlocked: is_unlocked(rest),
        };
        let field = insn.displacement.zip(insn.insn.names);
        step.site = field.map(|(field, target)| SiteKind::Relative { field, target });
        if let Some(call) = entry_at(self.entries.calls, at) {
            self.static_call(&mut step, *call, rest);
        } else if let Some(key) = entry_at(self.entries.keys, at) {
            self.static_key(&mut step, *key, rest);
        } else if self.is_trace_site(at, rest, part) {
            step.site = Some(SiteKind::Trace);
            step.is_padding = false;
            if !is_quiet_trace_site(rest) {
                self.trouble(Reason::HasUsers, at);
            }
        } else {
            self.flow(&mut step, insn);
        }
        step.range.end = step.range.end.min(part.end);
        self.steps.push(step);
    }

    /// The place of the function tracer: in its list; without one, where it is in all kernels, behind the
    /// marker of branch targets.
    fn is_trace_site(&self, at: Svma, rest: &[u8], part: SvmaRange) -> bool {
        if !self.known.traced.is_empty() {
            return self.known.traced.contains(&at);
        }
        let Some(start) = self.known.memory.bytes(part).filter(|_| part.start == self.function.start())
        else {
            return false;
        };
        let is_there = at == part.start || at == part.start + target_marker(start);
        let calls_tracer = || traced_by(rest, at).is_some_and(|to| Some(to) == self.known.places.trace_entry);
        is_there && (is_quiet_trace_site(rest) || calls_tracer())
    }

    fn static_call(&mut self, step: &mut Step, call: CallEntry, rest: &[u8]) {
        let at = step.range.start;
        let Some(form) = static_call_form(rest, at) else { return self.trouble(Reason::UnknownState, at) };
        step.range = SvmaRange::new(at, restitch_x86::module_code::SITE.into());
        step.names = None;
        step.is_padding = false;
        match call.is_tail {
            true => (step.site, step.end) = (None, Some(End::StaticJump { key: call.key })),
            false => step.site = Some(SiteKind::StaticCall { key: call.key, form }),
        }
    }

    fn static_key(&mut self, step: &mut Step, entry: KeyEntry, rest: &[u8]) {
        let at = step.range.start;
        let site = key_site(rest, at, entry.target).filter(|site| u64::from(site.len) == step.range.len());
        let Some(site) = site else { return self.trouble(Reason::UnknownState, at) };
        let kind = self.known.memory.word(entry.key + self.known.tables.key_kind_at);
        if kind.is_none() {
            self.trouble(Reason::UnknownState, at);
        }
        step.is_padding = false;
        step.end = Some(End::StaticKey {
            key: entry.key,
            taken: entry.target,
            is_inverted: entry.is_inverted,
            is_initially_on: kind.is_some_and(|kind| kind & 1 != 0),
            is_jump: site.is_jump,
        });
    }

    fn flow(&mut self, step: &mut Step, insn: &KernelInsn) {
        let at = step.range.start;
        let has_thunks = self.known.places.has_register_thunks;
        let through = insn.indirect.filter(|_| has_thunks);
        match insn.insn.flow {
            Flow::Next => {}
            Flow::Jump(to) => step.end = Some(self.jump(to)),
            Flow::Conditional(condition, taken) => {
                if self.known.places.thunk(taken).is_some() {
                    self.trouble(Reason::OddBranch, at);
                }
                step.end = Some(End::Conditional { condition, taken });
            }
            Flow::ShortConditional(to) => {
                self.trouble(Reason::OddBranch, at);
                step.end = Some(End::ShortConditional(to));
            }
            Flow::IndirectJump => match through.filter(|site| site.is_rewritten) {
                Some(site) => step.end = Some(End::IndirectJump(site.register)),
                None => {
                    self.trouble(Reason::JumpTable, at);
                    step.end = Some(End::TableJump);
                }
            },
            Flow::Call(to) => self.call(step, to),
            Flow::IndirectCall => {
                step.site = step.site.or(Some(SiteKind::IndirectCall(through.map(|site| site.register))));
            }
            Flow::Return => step.end = Some(End::Return),
            Flow::Stop if step.bug.is_some_and(|bug| bug.goes_on) => {}
            Flow::Stop => step.end = Some(End::Trap),
            Flow::Unsupported => self.trouble(Reason::OddBranch, at),
        }
    }

    fn jump(&self, to: Svma) -> End {
        match self.known.places.thunk(to) {
            Some(Thunk::Return) => End::Return,
            Some(Thunk::Register(register)) => End::IndirectJump(register),
            None => End::Jump(to),
        }
    }

    fn call(&mut self, step: &mut Step, to: Svma) {
        let at = step.range.start;
        if self.function.contains(to) && to != self.function.start() {
            self.trouble(Reason::OddBranch, at);
        }
        step.site = Some(match self.known.places.thunk(to) {
            Some(Thunk::Register(register)) => SiteKind::IndirectCall(Some(register)),
            _ => SiteKind::Call(to),
        });
        if self.known.silent.contains(&to) {
            step.end = Some(End::NoReturn);
        }
    }
}
