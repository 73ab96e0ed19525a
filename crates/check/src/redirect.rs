//! The patches of the original code.

use crate::finding::Problem;
use crate::path::EntryPoint;
use crate::walk::Walk;
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use restitch_address::{Svma, SvmaRange};
use restitch_emit::{Redirect, RedirectKind};
use restitch_program::{BlockAttrs, BlockId, CallTarget, EdgeKind, Program};

/// Length in bytes of the patch.
const PATCH: u64 = 5;

/// What a landing redirect is for.
const LANDED: BlockAttrs = BlockAttrs::INDIRECT.union(BlockAttrs::LANDING_PAD);
/// What makes a block's start a place that control can come to from elsewhere.
const ENTERED: BlockAttrs = BlockAttrs::ENTRY
    .union(BlockAttrs::LANDING_PAD)
    .union(BlockAttrs::INDIRECT)
    .union(BlockAttrs::BRANCH_TARGET);

impl Walk<'_, '_> {
    /// Checks all redirects; the walk has to be over.
    pub fn redirects(&mut self) {
        let mut sorted = self.s.version.redirects.clone();
        sorted.sort();
        for pair in sorted.windows(2) {
            if (pair[1].at.offset_from(pair[0].at) as u64) < PATCH {
                self.findings.at(pair[1].to, pair[1].at, Problem::Redirect("it overlaps another one"));
            }
        }
        self.exits_into_patches(&sorted);
        let entered = if sorted.is_empty() { Vec::new() } else { entered(self.s.program) };
        for redirect in &sorted {
            self.report.redirects += 1;
            if let Err(why) = self.redirect(redirect, &entered) {
                self.findings.at(redirect.to, redirect.at, Problem::Redirect(why));
            }
        }
    }

    /// The version must not go to the original bytes behind the first one of a patch.
    fn exits_into_patches(&mut self, sorted: &[Redirect]) {
        for exit in std::mem::take(&mut self.exits) {
            let i = sorted.partition_point(|r| r.at < exit);
            let Some(before) = i.checked_sub(1).map(|i| &sorted[i]) else { continue };
            if SvmaRange::new(before.at, PATCH).contains(exit) {
                let why = "the version goes to the original code in the middle of it";
                self.findings.at(before.to, exit, Problem::Redirect(why));
            }
        }
    }

    fn redirect(&self, redirect: &Redirect, entered: &[bool]) -> Result<(), &'static str> {
        let program = self.s.program;
        let at = redirect.at;
        let id = program.block_at(at).ok_or("it is not in a block")?;
        let block = program.block(id);
        if block.attrs.contains(BlockAttrs::UNREACHED) {
            return Err("nothing is known to lead there: it may be data");
        }
        let endbr = self.s.image.read(block.start, 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa]);
        let behind_the_first = redirect.kind == RedirectKind::Entry && self.is_in_prologue(id, at);
        if at != block.start && !(endbr && at == block.start + 4) && !behind_the_first {
            return Err(
                "it is neither at the start of a block nor behind its endbr64, nor behind the first instructions of a function",
            );
        }
        let patch = SvmaRange::new(at, PATCH);
        if !self.s.image.static_probes_in(patch).is_empty() {
            return Err("it covers a static probe");
        }
        if !program.function(block.function).range.covers(&patch) {
            return Err("the function is too short for it");
        }
        let mut next = id.index() + 1;
        while let Some(b) = program.blocks.get(next).filter(|b| patch.contains(b.start)) {
            if entered[next] || b.attrs.intersects(ENTERED) {
                return Err("it covers the start of a block that can be entered from elsewhere");
            }
            next += 1;
        }
        let from = program.calls.partition_point(|c| c.at + u64::from(c.len) <= at);
        let returns = program.calls.get(from).map(|c| c.at + u64::from(c.len));
        if returns.is_some_and(|r| r != at && patch.contains(r)) {
            return Err("a call returns into the middle of it");
        }
        let (wanted, why) = match redirect.kind {
            RedirectKind::Entry => (BlockAttrs::ENTRY, "it is not at a function's entry"),
            RedirectKind::Landing => (LANDED, "neither an indirect jump nor an exception reaches it"),
        };
        let entered = |id: &BlockId| program.block(*id).attrs.intersects(wanted);
        let mut result = Err(why);
        for id in [Some(id), self.lone_marker(at)].into_iter().flatten().filter(entered) {
            result = self.redirect_target(redirect, id);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// The block before `at` that is nothing but an `endbr64`: who enters it comes to `at`.
    fn lone_marker(&self, at: Svma) -> Option<BlockId> {
        let id = self.s.program.block_starting_at(at.offset(-4))?;
        let is_marker = self.s.image.read(at.offset(-4), 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa]);
        (is_marker && self.s.program.block(id).end() == at).then_some(id)
    }

    /// Whether `at` is one of the first instructions of block `id`, and those before it go on to it.
    fn is_in_prologue(&self, id: BlockId, at: Svma) -> bool {
        let block = self.s.program.block(id);
        let len = at.offset_from(block.start);
        let bytes = usize::try_from(len).ok().and_then(|len| self.s.image.read(block.start, len));
        at < block.end() && bytes.is_some_and(|bytes| plain_lengths(bytes, block.start).is_some())
    }

    /// Where the copy of block `id` has the instruction at `at`, if that is one of its first ones: as far
    /// behind the first one's copy as it is behind the first one, and so are those between.
    fn prologue_point(&self, id: BlockId, at: Svma, points: &[EntryPoint]) -> Option<EntryPoint> {
        let start = self.s.program.block(id).start;
        let EntryPoint { version, counted, .. } = *points.iter().rfind(|p| p.original == start)?;
        let len = u64::try_from(at.offset_from(start)).ok()?;
        let original = plain_lengths(self.s.image.read(start, len as usize)?, start)?;
        let copied = plain_lengths(self.s.bytes(SvmaRange::new(version, len))?, version)?;
        let point = EntryPoint { version: version + len, original: at, counted };
        (original == copied && self.is_in_prologue(id, at)).then_some(point)
    }

    fn redirect_target(&self, redirect: &Redirect, id: BlockId) -> Result<(), &'static str> {
        let place = self.s.place(id).ok_or("its block is not in the version")?;
        let points = self.entry_points(place);
        let start = self.s.program.block(id).start;
        // Running endbr64 again changes nothing, so the start of the copy is right for both.
        let endbr = self.s.image.read(start, 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa]);
        let is_same = |o: Svma| o == redirect.at || (o == start && endbr && redirect.at == start + 4);
        let behind = self.prologue_point(id, redirect.at, &points);
        let mut all = points.iter().chain(&behind);
        let point = all.find(|p| p.version == redirect.to && is_same(p.original));
        match point {
            None => Err("it does not lead to the equivalent instruction"),
            Some(point) if point.counted => Err("it leads past the block's counter"),
            Some(point) if self.s.bytes(SvmaRange::new(point.version, 1)).is_none() => {
                Err("it leads outside")
            }
            Some(_) => Ok(()),
        }
    }
}

/// The lengths of the instructions that make up `bytes`, which are at `at`, if there are one to four and each
/// goes on to what stands behind it.
fn plain_lengths(bytes: &[u8], at: Svma) -> Option<Vec<usize>> {
    let mut lengths = Vec::new();
    for instruction in &mut Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE) {
        if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
            return None;
        }
        lengths.push(instruction.len());
    }
    (1..=4).contains(&lengths.len()).then_some(lengths)
}

/// For each block, whether a branch, a table or a call goes to its start, or a handler that steps over a
/// trap.
fn entered(program: &Program) -> Vec<bool> {
    let mut entered = vec![false; program.blocks.len()];
    let edges = program.edges.iter().filter(|e| e.kind != EdgeKind::FallThrough).map(|e| e.to);
    let called = program.calls.iter().filter_map(|c| match c.target {
        CallTarget::Direct(to) => program.block_starting_at(to),
        CallTarget::Indirect => None,
    });
    let listed = program.tables.iter().flat_map(|t| t.targets.iter().chain(&t.tail));
    let listed = listed.filter_map(|to: &Svma| program.block_starting_at(*to));
    let traps = (0..program.blocks.len()).map(BlockId::from_index);
    let trapped = traps.filter_map(|block| program.behind_trap(block));
    for block in edges.chain(called).chain(listed).chain(trapped) {
        if let Some(e) = entered.get_mut(block.index()) {
            *e = true;
        }
    }
    entered
}
