//! The lockstep walk: every placed block, instruction by instruction, beside its original.

use crate::callee::Callees;
use crate::finding::{CheckReport, Findings, Problem};
use crate::flags::Flags;
use crate::frames::Frames;
use crate::lock_skip::LockSkip;
use crate::map::{Boundary, MapCursor, MapProblem, PlaceCursor};
use crate::row::RowAt;
use crate::subject::Subject;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use restitch_address::{Svma, SvmaRange};
use restitch_image::RelocationKind;
use restitch_program::{Block, BlockId, CallTarget, JumpTable, Terminator};
use std::cell::OnceCell;
use std::collections::HashSet;

/// A byte of text that no instruction has been found to own yet.
const FREE: u8 = 0;
/// First byte of an instruction.
const START: u8 = 1;
/// Another byte of an instruction.
const INSIDE: u8 = 2;

/// The state of a walk over all placed blocks.
pub(crate) struct Walk<'s, 'a> {
    pub s: &'s Subject<'a>,
    pub findings: Findings,
    pub report: CheckReport,
    pub flags: Flags,
    pub frames: Frames<'a>,
    map: MapCursor<'a>,
    places: PlaceCursor<'a>,
    /// Original addresses that the version's control goes to.
    pub exits: Vec<Svma>,
    /// What each byte of text is.
    marks: Vec<u8>,
    /// Whether each counter was met.
    pub counted: Vec<bool>,
    /// Whether the words of each vote were met.
    pub voted: Vec<bool>,
    /// What is called directly, once somebody has asked.
    pub called: OnceCell<HashSet<CallTarget>>,
    /// What callees do with their return addresses.
    callees: Callees,
}

/// The block that is walked.
#[derive(Clone, Copy)]
pub(crate) struct Current<'a> {
    /// Its index in the version's blocks.
    pub index: usize,
    /// Where it is in the version.
    pub range: SvmaRange,
    /// The original.
    pub block: &'a Block,
    /// The table that its jump uses through a copy, once the load of the copy was seen.
    pub copied: Option<&'a JumpTable>,
    /// A second copy: the map's way back does not speak of it.
    pub duplicate: bool,
    /// Whether a call was passed (which may not return, so a block's counter has to be before it).
    pub called: bool,
}

impl<'s, 'a> Walk<'s, 'a> {
    pub fn new(s: &'s Subject<'a>, frames: Frames<'a>, findings: Findings) -> Self {
        let counters = s.version.counters.as_ref().map_or(0, |c| c.counted.len());
        let votes = s.version.counters.as_ref().map_or(0, |c| c.votes.len());
        Self {
            s,
            findings,
            report: CheckReport::default(),
            flags: Flags::default(),
            frames,
            map: MapCursor::new(&s.version.map, s.version.range.start),
            places: PlaceCursor::new(&s.version.map),
            exits: Vec::new(),
            marks: vec![FREE; s.version.text.len() as usize],
            counted: vec![false; counters],
            voted: vec![false; votes],
            called: OnceCell::new(),
            callees: Callees::default(),
        }
    }

    /// Walks all placed blocks, then looks for what is left over.
    pub fn run(&mut self) {
        for (index, placed) in self.s.version.blocks.iter().enumerate() {
            let Some(block) = self.s.program.blocks.get(placed.block.index()) else { continue };
            let (range, duplicate) = (placed.version, placed.duplicate);
            let current = Current { index, range, block, copied: None, duplicate, called: false };
            if self.block(current).is_none() {
                self.findings.at(placed.version.start, block.start, Problem::NotChecked(placed.block));
            }
            self.report.blocks += 1;
            self.report.duplicates += u64::from(duplicate);
        }
        self.leftovers();
        self.places_of_placed_blocks();
        self.totals();
    }

    fn leftovers(&mut self) {
        let text = self.s.version.text.start;
        for placed in &self.s.version.blocks {
            if let Some(i) = self.first_free(placed.version) {
                self.findings.version(text + i as u64, Problem::Unaccounted("a byte of a placed block"));
            }
        }
        for piece in &self.s.version.map.pieces {
            let range = SvmaRange::new(piece.version, piece.len.into());
            if let Some(i) = self.first_free(range) {
                self.findings.version(text + i as u64, Problem::Unaccounted("a byte of a piece of the map"));
            }
        }
        let Some(table) = &self.s.version.counters else { return };
        for (i, met) in self.counted.iter().enumerate() {
            let why = match (met, table.missing.binary_search(&(i as u32)).is_ok()) {
                (false, false) => "nothing increments it",
                (true, true) => "it is said to be missing and is there",
                _ => continue,
            };
            self.findings.version(table.area.start + table.width.bytes() * i as u64, Problem::Counter(why));
        }
    }

    fn totals(&mut self) {
        self.report.filler = self.marks.iter().filter(|m| **m == FREE).count() as u64;
        self.report.map_pieces = self.s.version.map.pieces.len() as u64;
    }

    /// The first byte of `range`, as an offset in the text, that belongs to no instruction.
    fn first_free(&self, range: SvmaRange) -> Option<usize> {
        let from = range.start.offset_from(self.s.version.text.start) as usize;
        let bytes = self.marks.get(from..from.checked_add(range.len() as usize)?)?;
        bytes.iter().position(|m| *m == FREE).map(|i| from + i)
    }

    /// Accounts for one instruction of the version: its bytes, its place in the map, its unwind row.
    pub fn visit(&mut self, at: Svma, len: u32, boundary: Boundary, row: RowAt) {
        let original = row.originals[0].or(row.originals[1]).unwrap_or_default();
        match self.mark(at, len) {
            Some(true) => self.report.instructions += 1,
            // A copied instruction belongs to one block; what blocks share is stubs.
            Some(false) if !matches!(boundary, Boundary::Copied(_) | Boundary::InTableWindow(_)) => {}
            _ => self.findings.at(at, original, Problem::Overlap),
        }
        match self.map.check(at, len, boundary) {
            Ok(()) => {}
            Err(MapProblem::Missing) => {
                self.findings.at(at, original, Problem::Map("no piece holds this instruction"));
            }
            Err(MapProblem::Wrong(says)) => self.findings.at(at, original, Problem::MapWrong { says }),
            Err(MapProblem::Form) => {
                let why = "the piece here has the wrong kind, or does not end with the instruction";
                self.findings.at(at, original, Problem::Map(why));
            }
        }
        self.report.rows += 1;
        self.frames.compare_row(at, row, &mut self.findings);
    }

    /// Checks the map's way back for one original instruction: it leads to its copy (no duplicate), or to the
    /// counter in front of it.
    pub fn place(&mut self, c: &Current<'_>, original: Svma, entry: Svma, copy: Svma) {
        if c.duplicate {
            return;
        }
        let (says, second) = self.places.version_of(original);
        if says != Some(entry) && says != Some(copy) {
            self.findings.at(copy, original, Problem::PlaceWrong { says });
        } else if second.is_some_and(|second| second != copy) {
            self.findings.at(copy, original, Problem::PlaceWrong { says: second });
        }
    }

    /// No place speaks of an original address that was not copied.
    fn places_of_placed_blocks(&mut self) {
        let map = &self.s.version.map;
        let program = self.s.program;
        if map.places.windows(2).any(|p| p[0].original > p[1].original) {
            self.findings.add(None, None, Problem::Map("the places of the way back are not sorted"));
        }
        let mut block = 0;
        for place in &map.places {
            let end = place.original + u64::from(place.len);
            let mut at = place.original;
            while program.blocks.get(block).is_some_and(|b| b.end() <= at) {
                block += 1;
            }
            let mut b = block;
            while at < end {
                match program.blocks.get(b).filter(|b| b.range().contains(at)) {
                    Some(found) if self.s.place(BlockId(b as u32)).is_some() => at = found.end(),
                    _ => {
                        let why = "the way back knows an address that was not copied";
                        self.findings.at(place.version, at, Problem::Map(why));
                        break;
                    }
                }
                b += 1;
            }
        }
    }

    /// Marks the bytes of an instruction. Whether they are newly marked; `None`: they collide.
    fn mark(&mut self, at: Svma, len: u32) -> Option<bool> {
        let i = at.offset_from(self.s.version.text.start) as usize;
        let bytes = self.marks.get_mut(i..i.checked_add(len as usize)?)?;
        if bytes.iter().all(|m| *m == FREE) {
            bytes.fill(INSIDE);
            bytes[0] = START;
            return Some(true);
        }
        let same = bytes[0] == START && bytes[1..].iter().all(|m| *m == INSIDE);
        let ends = self.marks.get(i + len as usize).is_none_or(|m| *m != INSIDE);
        (same && ends).then_some(false)
    }

    /// Walks one block. `None` if it went so wrong that the rest makes no sense (a finding says why).
    fn block(&mut self, mut c: Current<'a>) -> Option<()> {
        let Some(bytes) = self.s.image.read(c.block.start, c.block.len as usize) else {
            self.findings.at(c.range.start, c.block.start, Problem::Program("the block has no bytes"));
            return None;
        };
        if self.s.image.is_relocated(c.block.range()) {
            let why = "the loader writes into the block, whose bytes in the file are not those that run";
            self.findings.at(c.range.start, c.block.start, Problem::Program(why));
            return None;
        }
        let mut decoder = Decoder::with_ip(64, bytes, c.block.start.get(), DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let (mut entry, mut o) = (c.range.start, c.block.start);
        let mut v = self.prefetch(&c, entry)?;
        while o.offset_from(c.block.terminator_at()) < 0 {
            v = self.counters_in_block(&c, v, o)?;
            v = self.vote(&c, v, o)?;
            self.place(&c, o, entry, v);
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                self.findings.at(v, o, Problem::Program("the original bytes do not decode"));
                return None;
            }
            let rest = &bytes[o.offset_from(c.block.start) as usize..];
            if let Some(skip) = LockSkip::at(&instruction, rest) {
                decoder.decode_out(&mut instruction);
                v = self.lock_skip(&c, &skip, rest, v)?;
                (entry, o) = (v, skip.end());
                continue;
            }
            v = self.copied(&mut c, &instruction, &rest[..instruction.len()], v)?;
            (entry, o) = (v, o + instruction.len() as u64);
        }
        if o != c.block.terminator_at() {
            self.findings.at(v, o, Problem::Program("the terminator is not at an instruction boundary"));
            return None;
        }
        let end = self.terminator(&mut c, &mut decoder, v)?;
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(end, o, Problem::Placement("the copy is longer than its range"));
        }
        Some(())
    }

    /// Compares a branch over a `lock` prefix and the instruction of that prefix: both are there, byte for
    /// byte, with nothing between them, and where the branch leads is the equivalent of where the original
    /// leads.
    fn lock_skip(&mut self, c: &Current<'a>, skip: &LockSkip, bytes: &[u8], v: Svma) -> Option<Svma> {
        let (branch, locked) = (&skip.branch, &skip.locked);
        let (o, len) = (Svma::new(branch.ip()), branch.len());
        let copied = |o| match c.copied {
            Some(_) => Boundary::InTableWindow(o),
            None => Boundary::Copied(o),
        };
        let second = self.same_instruction(c, branch, &bytes[..len], v)?;
        self.visit(v, len as u32, copied(o), RowAt::of(o));
        let at = Svma::new(locked.ip());
        let end = self.same_instruction(c, locked, &bytes[len..][..locked.len()], second)?;
        self.place(c, at, second, second);
        self.visit(second, locked.len() as u32, copied(at), RowAt::of(at));
        // Behind the prefix a thread may stand, too.
        let (bare, inside) = (at + 1, second + 1);
        self.place(c, bare, inside, inside);
        if self.map.check(inside, locked.len() as u32 - 1, copied(bare)).is_err() {
            let why = "the place behind a lock prefix to which a branch leads is not the original's";
            self.findings.at(inside, bare, Problem::Map(why));
        }
        self.frames.compare_row(inside, RowAt::of(bare), &mut self.findings);
        self.report.branches += 1;
        let len = end.offset_from(v) as u32;
        self.frames.compare_handling(self.s, v, o, (len, len), false, &mut self.findings);
        Some(end)
    }

    /// Compares one instruction that is no terminator; gives the address behind its copy.
    fn copied(&mut self, c: &mut Current<'a>, i: &Instruction, bytes: &[u8], v: Svma) -> Option<Svma> {
        let o = Svma::new(i.ip());
        if let Terminator::Table(id) = c.block.terminator
            && let Some(table) = self.s.program.tables.get(id.index())
            && table.load_at == o
            && let Some(end) = self.table_load(c, table, i, v)
        {
            return Some(end);
        }
        match i.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {}
            FlowControl::Interrupt | FlowControl::Exception => {}
            FlowControl::XbeginXabortXend if i.mnemonic() != Mnemonic::Xbegin => {}
            _ => {
                self.findings.at(v, o, Problem::Program("a branch stands inside a block"));
                return None;
            }
        }
        if self.is_promoted(i, v) {
            c.called = true;
            self.report.call_sites += 1;
            return self.promoted(c, i, bytes, v);
        }
        let boundary = match c.copied {
            Some(_) => Boundary::InTableWindow(o),
            None => Boundary::Copied(o),
        };
        let rewritten = match self.made_direct(c, i, v) {
            Some(end) => Some(end),
            None => self.called_by_slot(c, i, v),
        };
        let end = match rewritten {
            Some(end) => end,
            None => {
                let end = self.same_instruction(c, i, bytes, v)?;
                self.visit(v, i.len() as u32, boundary, RowAt::of(o));
                end
            }
        };
        if i.mnemonic() == Mnemonic::Call {
            c.called = true;
            self.report.call_sites += 1;
            self.callee(i, v);
        }
        let is_call = i.mnemonic() == Mnemonic::Call;
        let len = (end.offset_from(v) as u32, i.len() as u32);
        self.frames.compare_handling(self.s, v, o, len, is_call, &mut self.findings);
        Some(end)
    }

    /// Looks at what the copied call `i` goes to.
    fn callee(&mut self, i: &Instruction, v: Svma) {
        let image = self.s.image;
        let to = match i.flow_control() {
            FlowControl::Call => Some(Svma::new(i.near_branch_target())),
            _ if i.is_ip_rel_memory_operand() => {
                let slot = Svma::new(i.ip_rel_memory_address());
                image.relocation_at(slot).and_then(|r| match r.kind {
                    RelocationKind::Relative { target } => Some(target),
                    _ => None,
                })
            }
            _ => None,
        };
        if let Some(to) = to.filter(|to| self.callees.read_return_address(image, *to)) {
            self.findings.at(v, Svma::new(i.ip()), Problem::ReturnAddress(to));
        }
    }

    /// Compares the bytes: equal but for what has to keep its target.
    pub fn same_instruction(
        &mut self,
        c: &Current<'a>,
        i: &Instruction,
        bytes: &[u8],
        v: Svma,
    ) -> Option<Svma> {
        let o = Svma::new(i.ip());
        let Some(copy) = self.s.text(v, bytes.len()) else {
            self.findings.at(v, o, Problem::Instruction("the text ends before it"));
            return None;
        };
        let end = v + bytes.len() as u64;
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(v, o, Problem::Placement("the copy is longer than its range"));
            return None;
        }
        let distance = o.offset_from(v);
        let near_call = i.flow_control() == FlowControl::Call && i.op0_kind() == OpKind::NearBranch64;
        let field = match (near_call, i.is_ip_rel_memory_operand()) {
            (false, false) => None,
            (true, _) => Some(bytes.len() - 4),
            (_, true) => displacement_field(i, o, bytes),
        };
        let Some(field) = field else {
            if copy != bytes {
                self.findings.at(v, o, Problem::Instruction("its bytes"));
                return None;
            }
            return Some(end);
        };
        if copy[..field] != bytes[..field] || copy[field + 4..] != bytes[field + 4..] {
            self.findings.at(v, o, Problem::Instruction("its bytes outside the displacement"));
            return None;
        }
        let shift = i64::from(word(copy, field)) - i64::from(word(bytes, field)) - distance;
        if near_call {
            let want = Svma::new(i.near_branch_target());
            let to = want.offset(shift);
            if shift == 0 {
                self.exits.push(want);
            } else if self.s.copy_at(to, want).is_none() && !self.skips_stub(to, want) {
                self.findings.at(v, o, Problem::WrongTarget { what: "a call", to, want });
            }
        } else {
            // The address of a retargeted function is that of its copy.
            let named = Svma::new(i.ip_rel_memory_address());
            let (want, to) = (self.s.retargeted.get(&named).copied().unwrap_or(named), named.offset(shift));
            if to != want || (want != named && i.mnemonic() != Mnemonic::Lea) {
                self.findings.at(v, o, Problem::WrongTarget { what: "a RIP-relative operand", to, want });
            }
        }
        Some(end)
    }
}

/// Where the 4-byte displacement of a RIP-relative instruction is.
fn displacement_field(i: &Instruction, o: Svma, bytes: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::with_ip(64, bytes, o.get(), DecoderOptions::NONE);
    let again = decoder.decode();
    let offsets = decoder.get_constant_offsets(&again);
    (offsets.displacement_size() == 4 && again == *i).then(|| offsets.displacement_offset())
}

fn word(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_le_bytes)
}
