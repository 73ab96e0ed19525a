//! Callees in place of their calls: of hot calls within the group, those whose callee is short, or is called
//! from nowhere else. A call and its return are two or three branches that are taken, and instructions for
//! nothing else; a compiler that builds the kernel with a profile saves them, too.
//!
//! Callees are whole: each of their blocks has a twin in the caller, which counts the caller's share. Blocks
//! are parted at the call. Callees whose own calls are replaced come first, so callees in callees are.
//!
//! Here is decided what is worth it, and what may be by its form; that code in the callee knows nothing of
//! its return address is for the checker. A callee of which it finds otherwise is called as before.

use crate::convert::{BlockWay, Converted, ConvertedBlock, leads_to};
use restitch_address::{Svma, SvmaRange};
use restitch_kernel::{FunctionId, Functions, SiteKind};
use restitch_kernel_group::{Block, End, Fixup, Target, UnwindRow};
use restitch_x86::module_code::SITE;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Hot bytes of a callee that stands in place of several calls. What a call takes of the caller, and its
/// return of the callee, are 10.
const SHORT: u64 = 64;
/// All bytes of such a callee.
const SHORT_WITH_COLD: u64 = 1024;
/// All bytes of one that is called from one place only.
const ONCE: u64 = 16 << 10;
/// Bytes that a function may come to.
const MOST: u64 = 64 << 10;

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Inlined {
    pub(crate) functions: Vec<Converted>,
    /// By the callee's start: in place of how many calls it stands.
    pub(crate) calls: BTreeMap<Svma, usize>,
}

/// Puts callees in place of hot calls: in blocks that are executed more often than `threshold`. Those that
/// are `never` to be are called.
pub(crate) fn inline(
    functions: Vec<Converted>,
    kernel: &Functions,
    threshold: u64,
    never: &BTreeSet<FunctionId>,
) -> Inlined {
    let starts: Vec<Svma> = functions.iter().map(|function| kernel.get(function.id).start()).collect();
    let numbers: HashMap<Svma, usize> = starts.iter().copied().zip(0..).collect();
    let mut references = vec![0; functions.len()];
    for to in functions.iter().flat_map(|own| &own.blocks).flat_map(|block| leads_to(&block.made.block)) {
        numbers.get(&to).into_iter().for_each(|number| references[*number] += 1);
    }
    let may_be = functions.iter().zip(&starts);
    let is_start = |at: Svma| kernel.starting_at(at).is_some();
    let may_be = may_be.map(|(own, start)| !never.contains(&own.id) && can_be_inlined(own, *start, is_start));
    let may_be = may_be.collect();
    let mut inlining = Inlining {
        is_settled: vec![false; functions.len()],
        functions: functions.into_iter().map(Some).collect(),
        starts,
        numbers,
        references,
        may_be,
        threshold,
        stand_ins: 0,
        calls: BTreeMap::new(),
    };
    for number in 0..inlining.functions.len() {
        inlining.settle(number);
    }
    Inlined { functions: inlining.functions.into_iter().flatten().collect(), calls: inlining.calls }
}

struct Inlining {
    /// None while its calls are being replaced.
    functions: Vec<Option<Converted>>,
    is_settled: Vec<bool>,
    starts: Vec<Svma>,
    numbers: HashMap<Svma, usize>,
    /// From how many places control goes to each.
    references: Vec<usize>,
    may_be: Vec<bool>,
    threshold: u64,
    /// Blocks so far that have no place in the original.
    stand_ins: u32,
    calls: BTreeMap<Svma, usize>,
}

/// A call that is to be replaced.
struct Site {
    /// In the block.
    at: u32,
    /// In the original.
    original: Svma,
    callee: usize,
}

impl Inlining {
    /// Replaces the calls of a function, behind those of its callees.
    fn settle(&mut self, number: usize) {
        if std::mem::replace(&mut self.is_settled[number], true) {
            return;
        }
        let Some(mut function) = self.functions[number].take() else { return };
        let hot = function.blocks.iter().filter(|block| block.count > self.threshold);
        let callees: Vec<usize> = hot
            .flat_map(|block| calls(&block.made.block))
            .filter_map(|(_, to)| self.numbers.get(&to).copied())
            .collect();
        callees.into_iter().for_each(|callee| self.settle(callee));
        let mut block = 0;
        while block < function.blocks.len() {
            if let Some(site) = self.site(&function, block) {
                self.replace(&mut function, block, &site);
            }
            block += 1;
        }
        self.functions[number] = Some(function);
    }

    /// The first call of a block whose callee is to stand there.
    fn site(&self, function: &Converted, block: usize) -> Option<Site> {
        let own = &function.blocks[block];
        if own.count <= self.threshold || Block::is_stand_in(own.address()) {
            return None;
        }
        let len: u64 = function.blocks.iter().map(ConvertedBlock::len).sum();
        let mut sites = function.code.sites_in(own.original).iter().filter_map(|site| match site.kind {
            SiteKind::Call(to) if u32::from(site.len) == SITE => Some((site.at, to)),
            _ => None,
        });
        calls(&own.made.block).find_map(|(at, to)| {
            let (original, _) = sites.next().filter(|(_, called)| *called == to)?;
            let callee = *self.numbers.get(&to)?;
            let is_wanted = self.may_be[callee] && self.is_worth_it(callee, len);
            (is_wanted && row_at(&own.made.block, at).is_some()).then_some(Site { at, original, callee })
        })
    }

    /// None of those that are being settled themselves.
    fn is_worth_it(&self, callee: usize, caller_len: u64) -> bool {
        let Some(callee_code) = &self.functions[callee] else { return false };
        let len: u64 = callee_code.blocks.iter().map(ConvertedBlock::len).sum();
        let hot = callee_code.blocks.iter().filter(|block| block.count > self.threshold);
        let hot_len: u64 = hot.map(ConvertedBlock::len).sum();
        let is_short = hot_len <= SHORT && len <= SHORT_WITH_COLD;
        let is_called_once = self.references[callee] == 1 && !callee_code.is_led && len <= ONCE;
        (is_short || is_called_once) && caller_len + len <= MOST
    }

    /// Parts the block at the call, and puts the callee's blocks between. Nothing, if the unwinder could not
    /// be told of it.
    fn replace(&mut self, function: &mut Converted, block: usize, site: &Site) {
        let Some(mut callee) = self.functions[site.callee].take() else { return };
        let start = self.starts[site.callee];
        let own = &function.blocks[block];
        let first = self.stand_ins;
        let twins: HashMap<Svma, Svma> =
            callee.blocks.iter().map(ConvertedBlock::address).zip((first..).map(Block::inlined)).collect();
        let entered = callee.blocks.iter().find(|own| own.address() == start).map_or(0, |own| own.count);
        let share = Share { part: own.count.min(entered), of: entered };
        if let Some(frame) = row_at(&own.made.block, site.at)
            && let Some(entry) = twins.get(&start).copied()
            && let Some(inlined) =
                twins_of(&callee, &twins, frame, start, site.original + u64::from(SITE), share)
        {
            self.stand_ins += twins.len() as u32;
            let rest = part(&mut function.blocks[block], site, entry);
            let [from, back] = [function.blocks[block].address(), rest.address()];
            // Where the call was the block's last instruction, what follows is a block already.
            let is_last = rest.made.block.code.is_empty() && rest.made.block.end == End::Next(back);
            function.ways.retain(|way| !(is_last && way.from == from));
            function.ways.iter_mut().filter(|way| way.from == from).for_each(|way| way.from = back);
            let way = |from, to, count| BlockWay { from, to, count, is_only: true };
            function.ways.push(way(from, entry, share.part));
            let own = twins.keys().copied().collect();
            let returns = callee.blocks.iter().filter(|block| leaves(&block.made.block, &own));
            let returns = returns.map(|own| way(twins[&own.address()], back, share.taken(own.count)));
            function.ways.extend(returns);
            function.ways.extend(callee.ways.iter().filter_map(|way| {
                let (from, to) = (*twins.get(&way.from)?, *twins.get(&way.to)?);
                Some(BlockWay { from, to, count: share.taken(way.count), ..*way })
            }));
            function.blocks.splice(block + 1..block + 1, (!is_last).then_some(rest));
            function.blocks.extend(inlined);
            callee.blocks.iter_mut().for_each(|own| own.count -= share.taken(own.count));
            callee.ways.iter_mut().for_each(|way| way.count -= share.taken(way.count));
            *self.calls.entry(start).or_default() += 1;
        }
        self.functions[site.callee] = Some(callee);
    }
}

/// The part of a callee's executions that is the caller's.
#[derive(Debug, Clone, Copy)]
struct Share {
    part: u64,
    of: u64,
}

impl Share {
    fn taken(self, count: u64) -> u64 {
        let part = u128::from(count) * u128::from(self.part) / u128::from(self.of.max(1));
        (part as u64).min(count)
    }
}

/// Direct calls, in their order: where in the block, and of what.
fn calls(block: &Block) -> impl Iterator<Item = (u32, Svma)> {
    block.fixups.iter().filter_map(|fixup| match fixup {
        Fixup::Call { at, target } => Some((*at, *target)),
        _ => None,
    })
}

/// The unwinder's row at an offset.
fn row_at(block: &Block, at: u32) -> Option<[u8; UnwindRow::LEN]> {
    block.unwind.iter().rfind(|row| row.offset <= at).map(|row| row.row)
}

/// Whether a function may stand in place of a call by its form: control leaves it by returns alone, and by
/// jumps to where functions start; and no entry of a table is about it that could not be there twice.
fn can_be_inlined(function: &Converted, start: Svma, is_start: impl Fn(Svma) -> bool) -> bool {
    let own: BTreeSet<Svma> = function.blocks.iter().map(ConvertedBlock::address).collect();
    let is_plain = |block: &Block| {
        let stays = match block.end {
            End::Next(to) => own.contains(&to),
            End::Jump(to) => own.contains(&to) || is_start(to),
            End::Conditional { taken, next, .. } | End::StaticKey { taken, next, .. } => {
                own.contains(&taken) && own.contains(&next)
            }
            End::Return | End::Stop => true,
            End::IndirectJump(_) | End::StaticJump { .. } => false,
        };
        let is_simple = |fixup: &Fixup| match fixup {
            Fixup::Relative { target, .. } => matches!(target, Target::Data(_)),
            Fixup::Trace { at } => block.address == start && *at <= MARK,
            Fixup::Count { .. } => false,
            Fixup::Call { .. } | Fixup::IndirectCall { .. } | Fixup::StaticCall { .. } => true,
        };
        stays
            && block.warnings.is_empty()
            && block.fixups.iter().all(is_simple)
            && block.exceptions.iter().all(|exception| own.contains(&exception.fixup))
    };
    let mut blocks = function.blocks.iter().map(|own| &own.made.block);
    own.contains(&start) && blocks.clone().all(is_plain) && blocks.any(|block| leaves(block, &own))
}

/// Whether control leaves a function at the end of a block that is to stand in place of a call: by a return,
/// or by one of the function that it hands over to.
fn leaves(block: &Block, own: &BTreeSet<Svma>) -> bool {
    match block.end {
        End::Return => true,
        End::Jump(to) => !own.contains(&to),
        _ => false,
    }
}

/// Bytes of what a function may begin with if branches through registers reach it.
const MARK: u32 = 4;

/// A callee's blocks, for a caller whose frame has the row `frame` at the call, and goes on at `back`.
fn twins_of(
    callee: &Converted,
    twins: &HashMap<Svma, Svma>,
    frame: [u8; UnwindRow::LEN],
    start: Svma,
    back: Svma,
    share: Share,
) -> Option<Vec<ConvertedBlock>> {
    let twin = |own: &ConvertedBlock| {
        let mut twin = own.clone();
        twin.count = share.taken(own.count);
        let block = &mut twin.made.block;
        if block.address == start {
            let trace = block.fixups.iter().find_map(|fixup| match fixup {
                Fixup::Trace { at } => Some(*at),
                _ => None,
            });
            trace.into_iter().for_each(|at| cut(block, at + SITE));
        }
        for row in &mut block.unwind {
            row.row = UnwindRow::in_callee(frame, row.row)?;
        }
        let to = |at: &mut Svma| twins.get(at).map(|twin| *at = *twin);
        match &mut block.end {
            End::Jump(next) if !twins.contains_key(next) => {
                let call = Fixup::Call { at: block.code.len() as u32, target: *next };
                block.code.resize(block.code.len() + SITE as usize, 0);
                block.fixups.push(call);
                block.end = End::Jump(back);
            }
            End::Next(next) | End::Jump(next) => to(next)?,
            End::Conditional { taken, next, .. } | End::StaticKey { taken, next, .. } => {
                to(taken)?;
                to(next)?;
            }
            End::Return => block.end = End::Jump(back),
            End::Stop | End::IndirectJump(_) | End::StaticJump { .. } => {}
        }
        for exception in &mut block.exceptions {
            to(&mut exception.fixup)?;
        }
        to(&mut block.address)?;
        Some(twin)
    };
    callee.blocks.iter().map(twin).collect()
}

/// Takes off the first bytes of a block: a mark, and the place of the function tracer.
fn cut(block: &mut Block, len: u32) {
    block.code.drain(..len as usize);
    block.fixups.retain(|fixup| !matches!(fixup, Fixup::Trace { .. }));
    block.fixups.iter_mut().for_each(|fixup| fixup.shift_down(len));
    let first = row_at(block, len);
    block.unwind.retain(|row| row.offset > len);
    block.unwind.iter_mut().for_each(|row| row.offset -= len);
    block.unwind.splice(0..0, first.map(|row| UnwindRow { offset: 0, row }));
    block.exceptions.iter_mut().for_each(|exception| exception.offset -= len);
    block.warnings.iter_mut().for_each(|warning| warning.offset -= len);
}

/// Parts a block at a call: it goes on to `entry`. The rest, behind the call, has the address of that place.
fn part(block: &mut ConvertedBlock, site: &Site, entry: Svma) -> ConvertedBlock {
    let behind = site.at + SITE;
    let mut rest = block.clone();
    let back = site.original + u64::from(SITE);
    rest.original = SvmaRange::between(back, block.original.end);
    block.original = SvmaRange::between(block.original.start, site.original);
    let (own, other) = (&mut block.made.block, &mut rest.made.block);
    other.address = back;
    let warnings = own.warnings.iter().filter(|warning| warning.offset < site.at).count();
    rest.made.entries.drain(..warnings);
    other.warnings.drain(..warnings);
    block.made.entries.truncate(warnings);
    own.warnings.truncate(warnings);
    other.exceptions.retain(|exception| exception.offset >= behind);
    own.exceptions.retain(|exception| exception.offset < site.at);
    other.fixups.retain(|fixup| fixup.at() >= behind);
    own.fixups.retain(|fixup| fixup.at() < site.at);
    cut(other, behind);
    own.code.truncate(site.at as usize);
    own.unwind.retain(|row| row.offset <= site.at);
    own.end = End::Next(entry);
    rest
}
