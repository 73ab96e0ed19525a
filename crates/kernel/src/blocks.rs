//! From instructions to blocks and edges.

use crate::code::{Block, Code, Edge, EdgeKind, End, Site, SiteKind, Trouble};
use crate::functions::Function;
use crate::reason::Reason;
use crate::steps::{Known, Reader, Step};
use crate::tables::entries_in;
use restitch_address::{Svma, SvmaRange};

/// The code of a function, with what is known of its kernel.
pub fn code_of(known: &Known, function: &Function) -> Code {
    let mut reader = Reader::new(known, function);
    let mut parts = function.parts.clone();
    parts.sort_by_key(|part| part.start);
    parts.iter().for_each(|part| reader.part(*part));
    let Reader { steps, troubles, .. } = reader;
    let mut builder = Builder { known, function, steps, code: Code { troubles, ..Code::default() } };
    builder.blocks();
    builder.edges();
    builder.reach();
    builder.drop_filler();
    builder.addresses();
    builder.code.troubles.sort_unstable();
    builder.code.troubles.dedup();
    builder.code
}

struct Builder<'a> {
    known: &'a Known,
    function: &'a Function,
    steps: Vec<Step>,
    code: Code,
}

impl Builder<'_> {
    fn trouble(&mut self, reason: Reason, at: Svma) {
        self.code.troubles.push(Trouble { reason, at });
    }

    /// Addresses of `list`, which is in order, in the function.
    fn inside<'l>(&self, list: &'l [Svma]) -> impl Iterator<Item = Svma> + use<'l> {
        let parts = self.function.parts.clone();
        parts.into_iter().flat_map(move |part| {
            let from = list.partition_point(|at| *at < part.start);
            let to = list.partition_point(|at| *at < part.end);
            list[from..to.max(from)].iter().copied()
        })
    }

    /// Where blocks start.
    fn leaders(&self) -> Vec<Svma> {
        let mut leaders: Vec<Svma> = self.function.parts.iter().map(|part| part.start).collect();
        leaders.extend(self.inside(&self.known.entered));
        for step in &self.steps {
            let target = step.end.and_then(|end| end.target());
            let fixup = step.exception.map(|exception| exception.fixup);
            leaders.extend([target, fixup].into_iter().flatten().filter(|at| self.function.contains(*at)));
            if step.end.is_some() || step.exception.is_some() {
                leaders.push(step.range.end);
            }
        }
        leaders.sort_unstable();
        leaders.dedup();
        leaders
    }

    fn blocks(&mut self) {
        let leaders = self.leaders();
        let steps = std::mem::take(&mut self.steps);
        let lost: Vec<Svma> = leaders.iter().filter(|at| is_covered(&steps, **at)).copied().collect();
        lost.into_iter().for_each(|at| self.trouble(Reason::IntoInstruction, at));
        self.tables_fit(&steps);
        let is_one = |a: &Step, b: &Step| {
            a.range.end == b.range.start && leaders.binary_search(&b.range.start).is_err()
        };
        steps.chunk_by(is_one).for_each(|steps| self.block(steps));
        self.steps = steps;
    }

    /// Entries of tables are about whole instructions.
    fn tables_fit(&mut self, steps: &[Step]) {
        let tables = &self.known.tables;
        let mut lost = Vec::new();
        for part in &self.function.parts {
            lost.extend(entries_in(&tables.exceptions, *part).iter().map(|entry| entry.at));
            lost.extend(entries_in(&tables.keys, *part).iter().map(|entry| entry.at));
            lost.extend(entries_in(&tables.calls, *part).iter().map(|entry| entry.at));
            lost.extend(entries_in(&tables.bugs, *part).iter().map(|entry| entry.at));
        }
        lost.retain(|at| steps.binary_search_by_key(at, |step| step.range.start).is_err());
        lost.into_iter().for_each(|at| self.trouble(Reason::IntoInstruction, at));
    }

    fn block(&mut self, steps: &[Step]) {
        let [first, .., last] = steps else {
            let [only] = steps else { return };
            return self.push(only, only, steps);
        };
        self.push(first, last, steps);
    }

    fn push(&mut self, first: &Step, last: &Step, steps: &[Step]) {
        let range = SvmaRange::between(first.range.start, last.range.end);
        let has_branch =
            !matches!(last.end, None | Some(End::Next | End::Trap | End::NoReturn | End::TableJump));
        let branch = if has_branch { last.range.start } else { range.end };
        let end = last.end.unwrap_or(End::Next);
        self.code.blocks.push(Block { range, end, branch, is_reached: false });
        for step in steps {
            let (at, len) = (step.range.start, step.range.len() as u8);
            let bug = step.bug.map(|bug| SiteKind::Bug { entry: bug.entry, goes_on: bug.goes_on });
            let exception = step.exception.map(SiteKind::Exception);
            let unlocked = step.is_unlocked.then_some(SiteKind::Unlocked);
            let sites = [step.site, unlocked, bug, exception].into_iter().flatten();
            self.code.sites.extend(sites.map(|kind| Site { at, len, kind }));
        }
    }

    fn edges(&mut self) {
        let mut edges = vec![Edge {
            from: None,
            to: self.code.block_at(self.function.start()),
            kind: EdgeKind::Entry,
            is_live: true,
        }];
        edges.retain(|edge| edge.to.is_some());
        let entered: Vec<Svma> = self.inside(&self.known.entered).collect();
        let entries = entered.iter().filter_map(|at| self.code.block_at(*at));
        edges.extend(entries.map(|to| Edge {
            from: None,
            to: Some(to),
            kind: EdgeKind::Entry,
            is_live: true,
        }));
        for (number, block) in self.code.blocks.iter().enumerate() {
            self.edges_of(number, block, &mut edges);
        }
        self.code.edges = edges;
    }

    fn edges_of(&self, number: usize, block: &Block, edges: &mut Vec<Edge>) {
        let mut add = |to: Option<usize>, kind: EdgeKind, is_live: bool| {
            edges.push(Edge { from: Some(number), to, kind, is_live });
        };
        let to = |at: Svma| self.code.block_at(at);
        let is_jump = matches!(block.end, End::StaticKey { is_jump: true, .. });
        let is_key = matches!(block.end, End::StaticKey { .. });
        if let Some(target) = block.end.target() {
            add(to(target), EdgeKind::Taken, is_jump || !is_key);
        }
        if block.end.flows_on() {
            add(to(block.range.end), EdgeKind::Fall, !is_jump);
        } else if block.end.target().is_none() {
            add(None, EdgeKind::Exit, true);
        }
        for site in self.code.sites_in(block.range) {
            if let SiteKind::Exception(exception) = site.kind {
                add(to(exception.fixup), EdgeKind::Fault, true);
            }
        }
    }

    /// Marks the blocks that control may come to, also when static keys are switched.
    fn reach(&mut self) {
        let blocks = self.code.blocks.len();
        let mut next = vec![Vec::new(); blocks];
        let mut open = Vec::new();
        for edge in &self.code.edges {
            match (edge.from, edge.to) {
                (Some(from), Some(to)) => next[from].push(to),
                (None, Some(to)) => open.push(to),
                _ => {}
            }
        }
        while let Some(block) = open.pop() {
            if !std::mem::replace(&mut self.code.blocks[block].is_reached, true) {
                open.extend_from_slice(&next[block]);
            }
        }
    }

    /// Leaves out blocks of filler alone, which nothing leads to.
    fn drop_filler(&mut self) {
        let steps = &self.steps;
        let is_filler = |block: &Block| {
            let from = steps.partition_point(|step| step.range.start < block.range.start);
            let to = steps.partition_point(|step| step.range.start < block.range.end);
            !block.is_reached && steps[from..to].iter().all(|step| step.is_padding && step.bug.is_none())
        };
        let is_kept: Vec<bool> = self.code.blocks.iter().map(|block| !is_filler(block)).collect();
        if is_kept.iter().all(|kept| *kept) {
            return;
        }
        let mut kept = is_kept.iter();
        self.code.blocks.retain(|_| *kept.next().unwrap_or(&true));
        self.code.edges.clear();
        self.edges();
    }

    /// Uses of addresses in its middle, its own and those of others; and those that it uses of others.
    fn addresses(&mut self) {
        let start = self.function.start();
        let steps = std::mem::take(&mut self.steps);
        for at in steps.iter().filter_map(|step| step.names).filter(|at| self.known.places.text.contains(*at))
        {
            match self.function.contains(at) {
                true if at != start => self.trouble(Reason::OwnAddress, at),
                true => {}
                false => self.code.uses.push(at),
            }
        }
        let others: Vec<Svma> = self.inside(&self.known.named).filter(|at| *at != start).collect();
        others.into_iter().for_each(|at| self.trouble(Reason::KnownInside, at));
    }
}

/// Whether an address is in the middle of an instruction.
fn is_covered(steps: &[Step], at: Svma) -> bool {
    let behind = steps.partition_point(|step| step.range.start <= at);
    steps[..behind].last().is_some_and(|step| step.range.contains(at) && step.range.start != at)
}
