//! The lockstep walk: from each entry, the copy beside the original, instruction by instruction.
//!
//! What is compared is what happens: `nop`s and direct jumps may be added and left out on either side. A pair
//! is proved by the pairs that control reaches from it; each is looked at once, so loops end.

use crate::copies::Copies;
use crate::counting::Count;
use crate::finding::{Finding, MAX_FINDINGS, Problem};
use crate::inlined::{Calls, Inside, has_no_frame, is_free_of_return_address};
use crate::insn::{Does, Insn};
use crate::marks::Marks;
use crate::original::{Chain, Original};
use crate::step::{Act, Step};
use crate::tables::{Row, StaticCall, lowered};
use restitch_address::Svma;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// A copy and what it has to equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) copy: Svma,
    pub(crate) original: Svma,
    /// An original in front of it that leaves the stack as it is: the unwinder's row of a jump that was added
    /// may be of either.
    behind: Option<Svma>,
    /// The callees that the copy has in place of their calls, and in which the original is.
    inside: Inside,
}

impl Pair {
    /// In no callee.
    pub(crate) fn new(copy: Svma, original: Svma) -> Self {
        Self { copy, original, behind: None, inside: Inside::default() }
    }
    /// In the same callees.
    fn to(self, copy: Svma, original: Svma) -> Self {
        Self { copy, original, behind: None, inside: self.inside }
    }
    fn behind(self, original: Svma) -> Self {
        Self { behind: Some(original), ..self }
    }
}

/// What a step of the copy was compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paired {
    pub(crate) step: Step,
    inside: Inside,
}

/// An operand that names an entry of the kernel's table of warnings, and one that stands for it.
struct NamedWarning {
    at: Pair,
    copy: Svma,
    original: Svma,
}

/// The state of a walk.
pub(crate) struct Walk<'w> {
    pub(crate) copies: &'w Copies<'w>,
    pub(crate) original: &'w Original<'w>,
    todo: Vec<Pair>,
    seen: HashSet<Pair>,
    /// The steps of the original that steps of the copy were compared with, by the copy's place.
    pub(crate) paired: BTreeMap<Svma, Paired>,
    pub(crate) marks: Marks,
    named: Vec<NamedWarning>,
    /// Places that count which were passed, with the counters.
    pub(crate) counted: BTreeMap<Svma, u64>,
    /// Calls that the loader is to be told of.
    pub(crate) calls: Vec<Pair>,
    inlined: Calls,
    chains: HashMap<Svma, Rc<Chain>>,
    pub(crate) findings: Vec<Finding>,
}

impl<'w> Walk<'w> {
    pub(crate) fn new(copies: &'w Copies<'w>, original: &'w Original<'w>) -> Self {
        Self {
            copies,
            original,
            todo: Vec::new(),
            seen: HashSet::new(),
            paired: BTreeMap::new(),
            marks: Marks::new(copies.module),
            named: Vec::new(),
            counted: BTreeMap::new(),
            calls: Vec::new(),
            inlined: Calls::default(),
            chains: HashMap::new(),
            findings: Vec::new(),
        }
    }

    /// Proves all that control reaches from these pairs.
    pub(crate) fn run(&mut self, entries: impl IntoIterator<Item = Pair>) {
        self.todo.extend(entries);
        while let Some(pair) = self.todo.pop() {
            if self.findings.len() >= MAX_FINDINGS {
                return;
            }
            if self.seen.insert(pair)
                && let Err(problem) = self.pair(pair)
            {
                self.find(pair, problem);
            }
        }
        for named in std::mem::take(&mut self.named) {
            if !self.is_counterpart(&named) {
                let problem = Problem::WrongTarget { to: named.copy, want: named.original };
                self.find(named.at, problem);
            }
        }
    }

    /// Notes what is wrong at a pair.
    pub(crate) fn find(&mut self, pair: Pair, problem: Problem) {
        let function = self.original.names_around(pair.original).first().cloned();
        let place = self.copies.module.place(pair.copy);
        self.findings.push(Finding { function, original: Some(pair.original), place, problem });
    }

    fn chain(&mut self, from: Svma) -> Rc<Chain> {
        let original = self.original;
        self.chains.entry(from).or_insert_with(|| Rc::new(original.follow(from))).clone()
    }

    fn pair(&mut self, pair: Pair) -> Result<(), Problem> {
        let chain = self.chain(pair.original);
        let Some(copy) = self.follow(pair, &chain)? else { return Ok(()) };
        if let Some(tail) = self.called_tail(pair, &copy, &chain)? {
            return self.tail(pair, &copy, tail);
        }
        let original = chain.end.clone()?;
        if let Some(next) = self.without_call(pair, &copy, &original)? {
            self.todo.push(next);
            return Ok(());
        }
        let here = pair.to(copy.at, original.at);
        if self.is_known(here)? {
            return Ok(());
        }
        let original = self.with_barrier(&copy, original);
        self.claim(here, &copy, original)?;
        self.knows_nothing_of_its_call(here, &original)?;
        self.acts(here, &copy, &original)
    }

    /// Whether a step was compared with this very one before.
    fn is_known(&self, pair: Pair) -> Result<bool, Problem> {
        match self.paired.get(&pair.copy) {
            Some(other) if other.step.at == pair.original && other.inside == pair.inside => Ok(true),
            Some(other) => Err(Problem::TwoOriginals { other: other.step.at }),
            None => Ok(false),
        }
    }

    /// Notes what a step is compared with, and compares what tables say.
    fn claim(&mut self, pair: Pair, copy: &Step, original: Step) -> Result<(), Problem> {
        self.paired.insert(copy.at, Paired { step: original, inside: pair.inside });
        self.marks.claim(copy.at, copy.len)?;
        self.rows(pair, copy, &original)?;
        self.table_entries(pair, copy)
    }

    /// The jump by which a callee in place of its call hands over to another function, where the copy calls
    /// that: its return is the callee's.
    fn called_tail(&self, pair: Pair, copy: &Step, chain: &Chain) -> Result<Option<Step>, Problem> {
        let Act::Plain(Insn { does: Does::Call(_), .. }) = copy.act else { return Ok(None) };
        if self.inlined.get(pair.inside).is_none() {
            return Ok(None);
        }
        let mut behind = chain.places.iter().zip(chain.places.iter().skip(1));
        let jump = behind.find(|(from, to)| !self.original.names(**to).is_empty() && **to != **from);
        let Some((from, to)) = jump else { return Ok(None) };
        let step = self.original.step(*from)?;
        let leads = matches!(step.act, Act::Plain(insn) if insn.does == Does::Jump(*to));
        Ok(leads.then_some(step))
    }

    /// A call in place of such a jump.
    fn tail(&mut self, pair: Pair, copy: &Step, jump: Step) -> Result<(), Problem> {
        let here = pair.to(copy.at, jump.at);
        let call = self.inlined.get(pair.inside).copied();
        let (Some(call), false) = (call, self.is_known(here)?) else { return Ok(()) };
        // What is called returns to what lies on the stack: nothing of the callee may.
        if !self.original.tables.rows.at(jump.at).is_some_and(has_no_frame) {
            return Err(Problem::Inlined("hands over with a frame of its own"));
        }
        self.claim(here, copy, jump)?;
        if let (Act::Plain(own), Act::Plain(theirs)) = (copy.act, jump.act)
            && let (Does::Call(to), Does::Jump(want)) = (own.does, theirs.does)
        {
            self.call(here, to, want)?;
        }
        self.todo.push(Pair { inside: call.outer, ..here.to(copy.end(), call.back) });
        Ok(())
    }

    /// A call of `to` where the original goes to `want`.
    fn call(&mut self, pair: Pair, to: Svma, want: Svma) -> Result<(), Problem> {
        if self.copies.part(to).is_some() {
            self.todo.push(Pair::new(to, want));
        } else if to != want {
            return Err(Problem::WrongTarget { to, want });
        } else {
            self.calls.push(pair);
        }
        Ok(())
    }

    /// Where the original goes on, if it calls, or returns, and the copy does not: the callee stands in place
    /// of its call. The place of the tracer that a callee begins with is left out.
    fn without_call(&mut self, pair: Pair, copy: &Step, original: &Step) -> Result<Option<Pair>, Problem> {
        let is_call = |step: &Step| matches!(step.act, Act::Plain(Insn { does: Does::Call(_), .. }));
        let on = |original: Svma| pair.to(copy.at, original);
        if let Act::Plain(Insn { does: Does::Call(entry), .. }) = original.act
            && !is_call(copy)
            && !self.original.tables.knows(original.at)
        {
            let row = self.original.tables.rows.at(original.at);
            let places = [original.at, original.end(), entry];
            let inside = self.inlined.enter(places, pair.inside, row)?;
            return Ok(Some(Pair { inside, ..on(entry) }));
        }
        let Some(call) = self.inlined.get(pair.inside) else { return Ok(None) };
        Ok(match (original.act, copy.act) {
            (Act::Return, _) => Some(Pair { inside: call.outer, ..on(call.back) }),
            (Act::Trace, Act::Trace) => {
                return Err(Problem::Inlined("has its place of the function tracer still"));
            }
            (Act::Trace, _) if pair.original == call.entry => Some(on(original.end())),
            _ => None,
        })
    }

    /// An instruction of a callee that stands in place of its call does what it does with a return address.
    fn knows_nothing_of_its_call(&self, pair: Pair, original: &Step) -> Result<(), Problem> {
        if self.inlined.get(pair.inside).is_none() {
            return Ok(());
        }
        let leaves = match original.act {
            Act::Through(through) => !through.is_call,
            Act::StaticCall(call, _) => call.is_jump(),
            Act::Plain(insn) => insn.does == Does::Elsewhere,
            Act::Key(_) | Act::Trace | Act::Return => false,
        };
        if leaves {
            return Err(Problem::Inlined("is left without a return"));
        }
        let Act::Plain(_) = original.act else { return Ok(()) };
        let row = self.original.tables.rows.at(original.at);
        let row = row.ok_or(Problem::Inlined("has no row of the unwinder"))?;
        match is_free_of_return_address(&self.original.bytes(original.at), row) {
            Some(false) => Ok(()),
            Some(true) if self.original.flags_are_dead(original.end()) => Ok(()),
            _ => Err(Problem::Inlined("uses the stack above its own frame, or its pointer")),
        }
    }

    /// Follows the copy to where it does something; none if that is the original itself.
    fn follow(&mut self, pair: Pair, chain: &Chain) -> Result<Option<Step>, Problem> {
        let mut at = pair.copy;
        let mut passed = HashSet::new();
        loop {
            let Some(part) = self.copies.part(at) else { return self.back(at, pair, chain) };
            if !passed.insert(at) {
                return Err(Problem::Instruction("goes round in a circle without doing anything"));
            }
            if let Some(count) = self.copies.counting.at(part, at)? {
                self.count(&count, pair, chain)?;
                at = count.end();
                continue;
            }
            let step = self.copies.step(part, at)?;
            let Act::Plain(insn) = step.act else { return Ok(Some(step)) };
            let next = match insn.does {
                Does::Nothing => insn.end(),
                Does::Marks if chain.marks => insn.end(),
                Does::Jump(to) => to,
                _ => return Ok(Some(step)),
            };
            if self.copies.tables.knows(at) {
                return Err(Problem::Instruction("does nothing, and a table speaks of it"));
            }
            self.marks.claim(at, insn.len)?;
            self.passed_rows(&insn, pair, chain)?;
            at = next;
        }
    }

    /// A place that counts, on the way to what equals the pair's original: it keeps the flags that are there,
    /// or nothing reads them. What is pushed on the stack is in the unwinder's rows.
    fn count(&mut self, count: &Count, pair: Pair, chain: &Chain) -> Result<(), Problem> {
        if self.inlined.get(pair.inside).is_some() {
            return Err(Problem::Inlined("is counted"));
        }
        if !count.keeps_flags && !self.original.flags_are_dead(pair.original) {
            return Err(Problem::Counter("overwrites flags that are read"));
        }
        if count.keeps_flags {
            self.marks.claim(count.at, 1)?;
            self.marks.claim(count.end().offset(-1), 1)?;
        }
        self.marks.claim(count.counts_at, count.len)?;
        self.counted.insert(count.at, count.number);
        let rows = &self.copies.tables.rows;
        if count.keeps_flags && rows.at(count.at).is_none_or(|row| row == Row::default()) {
            return Err(Problem::Counter("pushes where the unwinder knows no stack"));
        }
        let lowered = |row: Option<Row>| if count.keeps_flags { row.map(lowered) } else { row };
        let is_right = self.rows_of_passed(pair, chain)?.into_iter().any(|row| {
            rows.at(count.at) == row
                && (1..count.end().offset_from(count.at) as u64)
                    .all(|offset| rows.at(count.at + offset) == lowered(row))
        });
        match is_right {
            true => Ok(()),
            false => Err(Problem::Counter("has a row of the unwinder of no place that is passed")),
        }
    }

    /// Control leaves the copies: it has to go on where the original does.
    fn back(&mut self, to: Svma, pair: Pair, chain: &Chain) -> Result<Option<Step>, Problem> {
        if let Some(call) = self.inlined.get(pair.inside) {
            // It may return to the original.
            let Ok(Step { act: Act::Return, .. }) = chain.end else {
                return Err(Problem::Inlined("is left without a return"));
            };
            let pair = Pair { inside: call.outer, ..pair.to(pair.copy, call.back) };
            let chain = self.chain(pair.original);
            return self.back(to, pair, &chain);
        }
        if chain.places.contains(&to) {
            return Ok(None);
        }
        let there = self.chain(to);
        match (&there.end, &chain.end) {
            (Ok(there), Ok(here)) if there.at == here.at => Ok(None),
            _ => Err(Problem::WrongTarget { to, want: pair.original }),
        }
    }

    /// `lfence` in front of a branch through a register may be the kernel's form of that.
    fn with_barrier(&self, copy: &Step, original: Step) -> Step {
        let Act::Plain(Insn { does: Does::Fence, .. }) = original.act else { return original };
        match (copy.act, self.original.step(original.end())) {
            (Act::Through(_), Ok(next)) if matches!(next.act, Act::Through(_)) => {
                Step { len: original.len + next.len, act: next.act, ..original }
            }
            _ => original,
        }
    }

    /// The row that the copy has to have for a place of the original.
    fn row_of_original(&self, inside: Inside, at: Svma) -> Result<Option<Row>, Problem> {
        self.inlined.row(inside, self.original.tables.rows.at(at))
    }

    /// The unwinder's rows of an instruction, at each byte: a return address points behind a call, and is
    /// looked up one byte before that.
    fn rows(&self, pair: Pair, copy: &Step, original: &Step) -> Result<(), Problem> {
        let offsets: Vec<[u64; 2]> = match copy.len == original.len {
            true => (0..copy.len).map(|offset| [offset, offset]).collect(),
            false => vec![[0, 0], [copy.len - 1, original.len.max(1) - 1]],
        };
        let rows = &self.copies.tables.rows;
        for [own, theirs] in offsets {
            if rows.at(copy.at + own) != self.row_of_original(pair.inside, original.at + theirs)? {
                let what = "has another row than the original";
                return Err(Problem::Table { table: ".orc_unwind", what });
            }
        }
        Ok(())
    }

    /// Those of a jump or `nop`: of any place that the original's control passes.
    fn passed_rows(&self, insn: &Insn, pair: Pair, chain: &Chain) -> Result<(), Problem> {
        let right = self.rows_of_passed(pair, chain)?;
        let rows = &self.copies.tables.rows;
        match (0..insn.len).all(|offset| right.contains(&rows.at(insn.at + offset))) {
            true => Ok(()),
            false => {
                Err(Problem::Table { table: ".orc_unwind", what: "has a row of no place that is passed" })
            }
        }
    }

    /// The rows of places of the original that a step in front of its next one stands for.
    fn rows_of_passed(&self, pair: Pair, chain: &Chain) -> Result<Vec<Option<Row>>, Problem> {
        let places = chain.places.iter().copied().chain(pair.behind);
        places.map(|at| self.row_of_original(pair.inside, at)).collect()
    }

    /// Entries of tables about an instruction.
    fn table_entries(&mut self, pair: Pair, copy: &Step) -> Result<(), Problem> {
        if !self.copies.tables.is_plain(copy.at, copy.end()) {
            return Err(Problem::Instruction("has a table speak of its middle"));
        }
        let exceptions = (
            self.copies.tables.exceptions.get(&copy.at),
            self.original.tables.exceptions.get(&pair.original),
        );
        match exceptions {
            (None, None) => {}
            (Some(own), Some(theirs)) if own.data == theirs.data => {
                self.todo.push(pair.to(own.fixup, theirs.fixup));
            }
            _ => return Err(Problem::Table { table: "__ex_table", what: "says something else of it" }),
        }
        let warnings =
            (self.copies.tables.warnings.get(&copy.at), self.original.tables.warnings.get(&pair.original));
        let is_same = match warnings {
            (None, None) => true,
            (Some(own), Some(theirs)) => own.rest == theirs.rest && own.pointers == theirs.pointers,
            _ => false,
        };
        match is_same {
            true => Ok(()),
            false => Err(Problem::Table { table: "__bug_table", what: "says something else of it" }),
        }
    }

    fn acts(&mut self, pair: Pair, copy: &Step, original: &Step) -> Result<(), Problem> {
        let next = pair.to(copy.end(), original.end());
        match (copy.act, original.act) {
            (Act::Key(own), Act::Key(theirs)) => {
                if own.key != theirs.key || own.flags != theirs.flags {
                    return Err(Problem::Table { table: "__jump_table", what: "names another key" });
                }
                self.todo.push(pair.to(own.target, theirs.target).behind(original.at));
                self.todo.push(next.behind(original.at));
            }
            (Act::StaticCall(own, to), Act::StaticCall(theirs, live)) => {
                self.static_call(own, theirs)?;
                let trampoline = self.original.trampoline(own.key);
                if to.is_none() || (to != trampoline && to != live) {
                    return Err(Problem::Instruction("is a static call that begins as one of another key"));
                }
                if !own.is_jump() {
                    self.todo.push(next);
                }
            }
            (Act::Trace, Act::Trace) => self.todo.push(next),
            (Act::Return, Act::Return) => {}
            (Act::Through(own), Act::Through(theirs)) if own == theirs => {
                if own.is_call {
                    self.todo.push(next);
                }
            }
            (Act::Plain(own), Act::Plain(theirs)) => self.instructions(pair, &own, &theirs)?,
            _ => return Err(Problem::Instruction("does not do what the original does")),
        }
        Ok(())
    }

    fn static_call(&self, own: StaticCall, theirs: StaticCall) -> Result<(), Problem> {
        match own == theirs {
            true => Ok(()),
            false => Err(Problem::Table { table: ".static_call_sites", what: "names another key" }),
        }
    }

    /// Instructions that mean themselves.
    fn instructions(&mut self, pair: Pair, own: &Insn, theirs: &Insn) -> Result<(), Problem> {
        let next = pair.to(own.end(), theirs.end());
        let behind = |to: Pair| to.behind(theirs.at);
        match (own.does, theirs.does) {
            (Does::Conditional(condition, to), Does::Conditional(other, want)) => {
                match condition ^ other {
                    0 => self.todo.extend([behind(pair.to(to, want)), behind(next)]),
                    1 => self
                        .todo
                        .extend([behind(pair.to(to, theirs.end())), behind(pair.to(own.end(), want))]),
                    _ => return Err(Problem::Instruction("branches by another condition")),
                }
                return Ok(());
            }
            (Does::Call(to), Does::Call(want)) if own.form == theirs.form => {
                self.call(pair, to, want)?;
                self.todo.push(next);
                return Ok(());
            }
            _ => {}
        }
        if own.form != theirs.form || own.len != theirs.len {
            return Err(Problem::Instruction("is not the original's"));
        }
        self.operands(pair, own, theirs)?;
        match (own.does, theirs.does) {
            (Does::Counted(to), Does::Counted(want)) => {
                self.todo.extend([behind(pair.to(to, want)), behind(next)]);
            }
            (Does::Next | Does::Nothing | Does::Marks | Does::Fence, _) => self.todo.push(next),
            (Does::Trap, Does::Trap) => {
                let warning = self.original.tables.warnings.get(&theirs.at);
                if warning.is_some_and(|warning| warning.goes_on) {
                    self.todo.push(next);
                }
            }
            (Does::Elsewhere, Does::Elsewhere) => {}
            _ => return Err(Problem::Instruction("is not understood")),
        }
        Ok(())
    }

    fn operands(&mut self, at: Pair, own: &Insn, theirs: &Insn) -> Result<(), Problem> {
        match (own.names, theirs.names) {
            (None, None) => Ok(()),
            (Some(to), Some(want)) if to == want => Ok(()),
            (Some(copy), Some(original)) => {
                self.named.push(NamedWarning { at, copy, original });
                Ok(())
            }
            _ => Err(Problem::Instruction("is not the original's")),
        }
    }

    /// Whether the named entries of the tables of warnings are those of a trap and of its copy.
    fn is_counterpart(&self, named: &NamedWarning) -> bool {
        let own = self.copies.tables.warnings.iter().find(|(_, warning)| warning.entry == named.copy);
        let Some((trap, _)) = own else { return false };
        let original = self.paired.get(trap).and_then(|own| self.original.tables.warnings.get(&own.step.at));
        original.is_some_and(|original| original.entry == named.original)
    }

    /// The original's place that says whose code a step of the copy is: of a callee in place of its call, the
    /// call.
    pub(crate) fn owner(&self, paired: &Paired) -> Svma {
        self.inlined.outermost(paired.inside).map_or(paired.step.at, |call| call.call)
    }
}
