//! Where control goes in the version: terminators, and the jumps, stubs and counters that lead from one block
//! to the next.

use crate::finding::Problem;
use crate::map::Boundary;
use crate::row::RowAt;
use crate::walk::{Current, Walk};
use iced_x86::{Code, Decoder, FlowControl, Instruction, Mnemonic, OpKind};
use restitch_address::{Svma, SvmaRange};
use restitch_emit::{Counted, CounterWidth};
use restitch_program::{Condition, EdgeKind, Terminator};

/// `incq disp32(%rip)`.
const COUNT: [u8; 3] = [0x48, 0xff, 0x05];
/// `incl disp32(%rip)`.
const NARROW: [u8; 2] = [0xff, 0x05];
/// The same, as long as [`COUNT`] by a prefix without a meaning.
const LONG_NARROW: [u8; 3] = [0x3e, 0xff, 0x05];
/// The counter that keeps flags and registers, as `(bytes, bytes by which rsp is lower before them)`.
const KEEPING: [(&[u8], u32); 9] = [
    (&[0x48, 0x8d, 0x64, 0x24, 0x80], 0), // lea -128(%rsp),%rsp: over the red zone
    (&[0x50], 128),                       // push %rax
    (&[0x9f], 136),                       // lahf: SF ZF AF PF CF to ah
    (&[0x0f, 0x90, 0xc0], 136),           // seto %al: OF to al
    (&COUNT, 136),                        // incq disp32(%rip)
    (&[0x04, 0x7f], 136),                 // add $127,%al: OF again
    (&[0x9e], 136),                       // sahf: the other five again
    (&[0x58], 136),                       // pop %rax
    (&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0], 128), // lea 128(%rsp),%rsp
];
/// A path from one block to the next that is longer than this many instructions is not believed.
const MAX_PATH: usize = 64;

/// A counter that stands in the version.
pub(crate) struct Counter {
    index: usize,
    counted: Counted,
    plain: bool,
    pub len: u32,
}

/// Which way a block is left.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    kind: EdgeKind,
    /// The original destination.
    want: Svma,
    /// Whether the block is always left this way, so that counting it counts the block.
    only: bool,
}

/// A boundary at the start of a block's copy that a redirect may go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryPoint {
    /// Where it is.
    pub version: Svma,
    /// What it is equivalent to.
    pub original: Svma,
    /// Whether a counter of the block lies before it.
    pub counted: bool,
}

impl<'a> Walk<'_, 'a> {
    /// The counter that stands at `v`, if one does: its form and that its word is one of the area's.
    pub fn counter_at(&self, v: Svma) -> Option<Counter> {
        let table = self.s.version.counters.as_ref()?;
        let (code, kept): (&[u8], _) = match table.width {
            CounterWidth::Bits64 => (&COUNT, COUNT),
            CounterWidth::Bits32 => (&NARROW, LONG_NARROW),
        };
        let plain = self.s.text(v, code.len()).is_some_and(|b| b == code);
        let behind = code.len() as u32;
        let (field, len) =
            if plain { (v + u64::from(behind), behind + 4) } else { self.keeping_at(v, kept)? };
        let field_bytes: [u8; 4] = self.s.text(field, 4)?.try_into().ok()?;
        let word = (field + 4).offset(i32::from_le_bytes(field_bytes).into());
        let offset = word.offset_from(table.area.start) as u64;
        if !table.area.contains(word) || !offset.is_multiple_of(table.width.bytes()) {
            return None;
        }
        let index = usize::try_from(offset / table.width.bytes()).ok()?;
        Some(Counter { index, counted: *table.counted.get(index)?, plain, len })
    }

    /// The counter that keeps flags with `count` as its increment: its field, and its length.
    fn keeping_at(&self, v: Svma, count: [u8; 3]) -> Option<(Svma, u32)> {
        let (mut at, mut field) = (v, None);
        for (bytes, _) in KEEPING {
            let wanted = if bytes == COUNT { &count[..] } else { bytes };
            if self.s.text(at, bytes.len())? != wanted {
                return None;
            }
            at = at + bytes.len() as u64;
            if bytes == COUNT {
                field = Some(at);
                at = at + 4;
            }
        }
        Some((field?, at.offset_from(v) as u32))
    }

    /// Accounts for the counter at `v`, which stands in front of the original `o`, or of a `jump` to it.
    fn visit_counter(&mut self, v: Svma, counter: &Counter, o: Svma, jump: Option<Svma>, row: RowAt) {
        if counter.plain {
            self.visit(v, counter.len, Boundary::Inserted(o, jump), row);
            if !self.flags.dead_at(self.s, o) {
                self.findings.at(v, o, Problem::FlagsLive);
            }
        } else {
            let mut at = v;
            for (bytes, lowered) in KEEPING {
                let len = bytes.len() as u32 + if bytes == COUNT { 4 } else { 0 };
                let boundary = if at == v { Boundary::Inserted(o, jump) } else { Boundary::Inside };
                self.visit(at, len, boundary, RowAt { lowered, ..row });
                at = at + u64::from(len);
            }
        }
        self.report.counters += 1;
        if std::mem::replace(&mut self.counted[counter.index], true) {
            self.findings.at(v, o, Problem::Counter("two places increment the same one"));
        }
    }

    /// Steps over counters in front of an instruction of the block; they have to count the block.
    pub fn counters_in_block(&mut self, c: &Current<'a>, mut v: Svma, o: Svma) -> Option<Svma> {
        if self.s.version.counters.is_none() {
            return Some(v);
        }
        while let Some(counter) = self.counter_at(v) {
            self.visit_counter(v, &counter, o, None, RowAt::of(o));
            if counter.counted != Counted::Block(self.s.version.blocks[c.index].block) || c.called {
                let why = "it does not count the block that it stands in, or stands behind a call";
                self.findings.at(v, o, Problem::Counter(why));
            }
            if c.copied.is_some() {
                self.findings.at(v, o, Problem::Counter("it stands between a table's load and its jump"));
            }
            v = v + u64::from(counter.len);
        }
        Some(v)
    }

    /// Checks how the block ends. Gives the first address behind what belongs to the block for certain.
    pub fn terminator(&mut self, c: &mut Current<'a>, decoder: &mut Decoder<'_>, v: Svma) -> Option<Svma> {
        let at = c.block.terminator_at();
        if let Terminator::FallThrough = c.block.terminator {
            if c.block.terminator_len != 0 {
                self.findings.at(v, at, Problem::Program("a block without a branch has a terminator"));
            }
            let outcome = Outcome { kind: EdgeKind::FallThrough, want: c.block.end(), only: true };
            self.leave(c, v, outcome, None)?;
            return Some(v);
        }
        let original = decoder.decode();
        let len = usize::from(c.block.terminator_len);
        if original.is_invalid() || original.len() != len || !is_as_stated(&original, c.block.terminator) {
            let why = "the original instruction is not the terminator that the analysis states";
            self.findings.at(v, at, Problem::Program(why));
            return None;
        }
        self.report.branches += 1;
        match c.block.terminator {
            Terminator::FallThrough => None,
            Terminator::Jump(want) => {
                self.place(c, at, v, v);
                self.leave(c, v, Outcome { kind: EdgeKind::Taken, want, only: true }, Some(at))?;
                Some(v)
            }
            Terminator::Conditional(condition, want) => {
                let v = self.before_terminator(c, v, at)?;
                self.conditional(c, v, condition, want)
            }
            Terminator::ShortConditional(want) => {
                let v = self.before_terminator(c, v, at)?;
                self.short_conditional(c, &original, v, want)
            }
            Terminator::Table(_) | Terminator::IndirectJump | Terminator::Return | Terminator::Stop => {
                let v = self.before_terminator(c, v, at)?;
                self.unchanged_terminator(c, &original, v)
            }
        }
    }

    /// Steps over the counters in front of the terminator.
    fn before_terminator(&mut self, c: &Current<'a>, entry: Svma, at: Svma) -> Option<Svma> {
        let v = self.counters_in_block(c, entry, at)?;
        self.place(c, at, entry, v);
        Some(v)
    }

    fn unchanged_terminator(&mut self, c: &mut Current<'a>, i: &Instruction, v: Svma) -> Option<Svma> {
        let at = c.block.terminator_at();
        if let Terminator::Table(id) = c.block.terminator {
            let Some(table) = self.s.program.tables.get(id.index()).filter(|t| t.jump_at == at) else {
                self.findings.at(v, at, Problem::Program("the jump has another table"));
                return None;
            };
            if table.load_at == at
                && let Some(end) = self.table_load(c, table, i, v)
            {
                return Some(end);
            }
        }
        if let Some(end) = self.made_direct(c, i, v) {
            return Some(end);
        }
        let bytes = self.s.image.read(at, i.len())?;
        let end = self.same_instruction(c, i, bytes, v)?;
        let boundary = match c.copied {
            Some(_) => Boundary::InTableWindow(at),
            None => Boundary::Copied(at),
        };
        self.visit(v, i.len() as u32, boundary, RowAt::of(at));
        if c.block.terminator == Terminator::Stop {
            // Who steps over the trap goes on where he would have.
            let outcome = Outcome { kind: EdgeKind::FallThrough, want: c.block.end(), only: false };
            self.reach(c, end, false, outcome, None, false)?;
        }
        Some(end)
    }

    fn conditional(&mut self, c: &Current<'a>, v: Svma, condition: Condition, want: Svma) -> Option<Svma> {
        let at = c.block.terminator_at();
        let Some(copy) = self.s.decode(v).filter(|i| condition_of(i).is_some()) else {
            self.findings.at(v, at, Problem::Terminator("there is no conditional jump"));
            return None;
        };
        let taken = Outcome { kind: EdgeKind::Taken, want, only: false };
        let not_taken = Outcome { kind: EdgeKind::FallThrough, want: c.block.end(), only: false };
        let (jumps, falls) = match condition_of(&copy) {
            Some(code) if code == condition.code() => (taken, not_taken),
            Some(code) if code == condition.code() ^ 1 => (not_taken, taken),
            _ => {
                self.findings.at(v, at, Problem::Terminator("it tests another condition"));
                return None;
            }
        };
        self.split(c, &copy, v, jumps, falls)
    }

    fn short_conditional(
        &mut self,
        c: &Current<'a>,
        original: &Instruction,
        v: Svma,
        want: Svma,
    ) -> Option<Svma> {
        let at = c.block.terminator_at();
        let copy = self.s.decode(v).filter(|i| i.len() == original.len());
        let prefix = original.len() - 1;
        let same = self.s.text(v, prefix) == self.s.image.read(at, prefix);
        let Some(copy) = copy.filter(|_| same) else {
            self.findings.at(v, at, Problem::Terminator("it is not the original loop or jrcxz"));
            return None;
        };
        let taken = Outcome { kind: EdgeKind::Taken, want, only: false };
        let not_taken = Outcome { kind: EdgeKind::FallThrough, want: c.block.end(), only: false };
        self.split(c, &copy, v, taken, not_taken)
    }

    /// A conditional branch in the version: both ways.
    fn split(
        &mut self,
        c: &Current<'a>,
        copy: &Instruction,
        v: Svma,
        jumps: Outcome,
        falls: Outcome,
    ) -> Option<Svma> {
        let at = c.block.terminator_at();
        let end = v + copy.len() as u64;
        self.visit(v, copy.len() as u32, Boundary::Branch(at, None), RowAt::of(at));
        self.reach(c, Svma::new(copy.near_branch_target()), true, jumps, Some(at), false)?;
        // What follows is part of this block unless the next one follows directly.
        self.reach(c, end, false, falls, Some(at), false)?;
        Some(end)
    }

    /// The one way out of a block without condition.
    fn leave(&mut self, c: &Current<'a>, v: Svma, outcome: Outcome, at: Option<Svma>) -> Option<()> {
        self.reach(c, v, false, outcome, at, true)
    }

    /// Follows the version from `v` until it comes to the equivalent of the original destination. `jumped`:
    /// control comes from a branch, so any block that starts at `v` is entered; else only those that are
    /// placed behind this one. `terminator`: the original branch; `rewritten`: the next jump may be its new
    /// form.
    fn reach(
        &mut self,
        c: &Current<'a>,
        v: Svma,
        jumped: bool,
        outcome: Outcome,
        terminator: Option<Svma>,
        rewritten: bool,
    ) -> Option<()> {
        let (start, want) = (v, outcome.want);
        let (mut v, mut jumped, mut rewritten) = (v, jumped, rewritten);
        let row = RowAt { originals: [Some(want), terminator.or_else(|| self.last_byte(c))], lowered: 0 };
        let wrong = |walk: &mut Self, to: Svma| {
            walk.findings.at(start, want, Problem::WrongTarget { what: "control", to, want });
            None
        };
        for _ in 0..MAX_PATH {
            if !self.s.version.range.contains(v) {
                // An address outside: reached by a jump only.
                if jumped && v != want && self.skips_stub(v, want) {
                    return Some(());
                }
                if v != want || !jumped {
                    return wrong(self, v);
                }
                self.exits.push(want);
                return Some(());
            }
            // Control only falls into duplicates.
            let there = match jumped {
                true => self.s.copy_at(v, want).is_some(),
                false => self.s.copy_behind(c.index, v, want),
            };
            if there {
                return Some(());
            }
            if let Some(target) = self.s.through_stub(want)
                && let Some(place) = self.s.copy_at(v, target)
                && (jumped || place > c.index)
            {
                self.report.direct += 1;
                return Some(());
            }
            if !c.range.contains(v) && self.s.placed_around(v).is_some() {
                return wrong(self, v);
            }
            if let Some(counter) = self.counter_at(v) {
                self.visit_counter(v, &counter, want, terminator.filter(|_| rewritten), row);
                self.stays_in_range(c, v, counter.len);
                self.counts_outcome(c, v, counter.counted, outcome);
                v = v + u64::from(counter.len);
                jumped = true;
                continue;
            }
            let boundary = match terminator.filter(|_| rewritten) {
                Some(at) => Boundary::Branch(at, Some(want)),
                None => Boundary::Added(want),
            };
            if self.jumps_by_slot(v, want) {
                self.visit(v, 6, boundary, row);
                self.stays_in_range(c, v, 6);
                self.report.branches += u64::from(!rewritten);
                self.report.by_slot += 1;
                return Some(());
            }
            let Some(jump) = self.s.decode(v).filter(is_direct_jump) else {
                let why = "control goes on into something that is neither a block nor a jump to one";
                self.findings.at(v, want, Problem::Terminator(why));
                return None;
            };
            self.visit(v, jump.len() as u32, boundary, row);
            self.stays_in_range(c, v, jump.len() as u32);
            self.report.branches += u64::from(!rewritten);
            v = Svma::new(jump.near_branch_target());
            (jumped, rewritten) = (true, false);
        }
        self.findings.at(start, want, Problem::Terminator("a path of jumps does not end"));
        None
    }

    /// The last byte of a block that falls out of its function, behind a call that does not return: the
    /// unwind state there is that of the function, not that of what follows.
    fn last_byte(&self, c: &Current<'a>) -> Option<Svma> {
        let function = self.s.program.functions.get(c.block.function.index())?;
        (c.block.end() == function.range.end && c.block.len > 0).then(|| c.block.end() - 1)
    }

    /// An instruction that starts in the block's range ends in it.
    fn stays_in_range(&mut self, c: &Current<'a>, v: Svma, len: u32) {
        if c.range.contains(v) && !c.range.contains(v + u64::from(len - 1)) {
            let why = "the copy is longer than its range";
            self.findings.at(v, c.block.terminator_at(), Problem::Placement(why));
        }
    }

    /// A counter on the way out has to count this way, or the block where there is no other.
    fn counts_outcome(&mut self, c: &Current<'a>, v: Svma, counted: Counted, outcome: Outcome) {
        let block = self.s.version.blocks[c.index].block;
        let right = match counted {
            Counted::Block(b) => outcome.only && b == block && !c.called,
            Counted::Edge(e) => self.s.program.edges.get(e.index()).is_some_and(|e| {
                e.from == block
                    && e.kind == outcome.kind
                    && self.s.program.blocks.get(e.to.index()).is_some_and(|b| b.start == outcome.want)
            }),
        };
        if !right {
            self.findings.at(v, outcome.want, Problem::Counter("it counts something else than this way"));
        }
    }

    /// Where redirects to a block's copy may go: to its start, behind a prefetch, behind counters and behind
    /// `endbr64`.
    pub fn entry_points(&self, index: usize) -> Vec<EntryPoint> {
        let placed = self.s.version.blocks[index];
        let Some(block) = self.s.program.blocks.get(placed.block.index()) else { return Vec::new() };
        let (mut v, mut o, mut counted) = (placed.version.start, block.start, false);
        let point = |version, original, counted| EntryPoint { version, original, counted };
        let mut points = vec![point(v, o, counted)];
        // To pass a prefetch by changes nothing.
        if self.fetched_at(index).is_some() {
            v = v + u64::from(crate::prefetch::LEN);
            points.push(point(v, o, counted));
        }
        for _ in 0..4 {
            let endbr = [0xf3, 0x0f, 0x1e, 0xfa];
            if let Some(counter) = self.counter_at(v) {
                counted |= counter.counted == Counted::Block(placed.block);
                v = v + u64::from(counter.len);
            } else if o == block.start && self.s.bytes(SvmaRange::new(v, 4)) == Some(&endbr) {
                (v, o) = (v + 4, o + 4);
            } else {
                break;
            }
            points.push(point(v, o, counted));
        }
        points
    }
}

fn is_direct_jump(i: &Instruction) -> bool {
    i.flow_control() == FlowControl::UnconditionalBranch
        && i.op0_kind() == OpKind::NearBranch64
        && matches!(i.code(), Code::Jmp_rel8_64 | Code::Jmp_rel32_64)
}

/// The 4-bit code of the condition of a `jcc`, by this crate's own decoder.
fn condition_of(i: &Instruction) -> Option<u8> {
    let jcc = i.is_jcc_short_or_near() && i.op0_kind() == OpKind::NearBranch64;
    jcc.then(|| (i.condition_code() as u8).wrapping_sub(1)).filter(|cc| *cc < 16)
}

/// Whether the original instruction is what the analysis says.
fn is_as_stated(i: &Instruction, terminator: Terminator) -> bool {
    let to = || Svma::new(i.near_branch_target());
    match terminator {
        Terminator::FallThrough => false,
        Terminator::Jump(t) => is_direct_jump(i) && to() == t,
        Terminator::Conditional(condition, t) => condition_of(i) == Some(condition.code()) && to() == t,
        Terminator::ShortConditional(t) => (i.is_loop() || i.is_loopcc() || i.is_jcx_short()) && to() == t,
        Terminator::Table(_) | Terminator::IndirectJump => i.flow_control() == FlowControl::IndirectBranch,
        Terminator::Return => i.flow_control() == FlowControl::Return,
        Terminator::Stop => {
            matches!(i.flow_control(), FlowControl::Exception | FlowControl::Interrupt)
                || i.mnemonic() == Mnemonic::Hlt
        }
    }
}
