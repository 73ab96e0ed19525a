//! Tracing versions: blocks in original order with recording code between them.
//!
//! Problem: branch records at nanoseconds each. Idea: a copy of hot code in which each branch whose way is
//! not known beforehand leaves a record behind: conditional ones that are taken their number, indirect ones
//! where they go. Direct jumps and calls need none (`unnamed.rs`). A thread is put into the copy by a tracer,
//! runs for as many branches as there is room for, and goes on in the original code by itself. Calls push the
//! *original* return addresses, and returns and indirect jumps look their targets up, so nothing but the
//! program counter tells the copy from the original: it can be left at any instruction, and no unwinder,
//! signal handler, `setjmp` or fork ever meets it (so calls that other versions leave in the original code
//! are copied, too). Whatever is not copied (system calls first of all) is executed in the original code.
//!
//! What one thread at a time needs in memory is in a window ([`crate::window`]) that it reaches relative to
//! the program counter: no register and no segment base is taken. Limits: processes with a shadow stack
//! (returns must then match calls).

mod code;
mod frames;
mod unnamed;

use crate::error::EmitError;
use crate::model::{AddressMap, MapPiece, PieceKind, PlacedBlock, Version, VersionSymbol};
use crate::page::LARGE_PAGE;
use crate::window::{self, BurstBranch, BurstTable, Inserted, Leads, Taken};
use crate::{areas, elf};
use code::{Code, Dest};
use restitch_address::{Avma, LoadBias, PAGE, Svma, SvmaRange};
use restitch_image::Image;
use restitch_program::{Block, BlockAttrs, BlockId, Movability, Program, Terminator};
use restitch_x86::Condition;
use restitch_x86::{Flow, encode, kernel, record, relocate_field};
use std::collections::BTreeMap;
use unnamed::Implied;

/// What to emit as a tracing version, and where.
#[derive(Debug, Clone, Copy)]
pub struct BurstRequest<'a> {
    /// The module.
    pub image: &'a Image,
    /// Its code.
    pub program: &'a Program,
    /// By block: whether it is to be copied. What cannot be is left out.
    pub blocks: &'a [bool],
    /// Where the version goes: page-aligned.
    pub start: Svma,
    /// Number of the version, from 1.
    pub number: u32,
    /// Its window: page-aligned, within 2 GiB of module and version, whole or of [`window::WORDS_LEN`] bytes.
    pub window: SvmaRange,
    /// Where the table is in the process.
    pub table: Avma,
    /// The window's table has `2^bits` pairs.
    pub bits: u8,
    /// Number of the first branch.
    pub first: u32,
    /// What turns addresses into those of the process: the unwind tables name words of the window.
    pub bias: LoadBias,
}

/// How an indirect branch goes on once its target is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Return,
    Jump,
    Call,
}

const KINDS: [Kind; 3] = [Kind::Return, Kind::Jump, Kind::Call];
/// No label.
const NONE: u32 = u32::MAX;

/// Whether a tracing version may hold a copy of the block. Pinned ones it may: what `setjmp` and its like
/// remember is the return address, and that is the original's.
pub fn may_trace(program: &Program, id: BlockId) -> bool {
    let block = program.block(id);
    let movability = program.function(block.function).movability;
    matches!(movability, Movability::Movable | Movability::Linkage)
        && !block.attrs.intersects(BlockAttrs::PADDING | BlockAttrs::UNREACHED)
}

/// More bytes than a tracing version of these blocks has.
pub fn burst_bound(program: &Program, blocks: &[bool]) -> u64 {
    let chosen = program.block_ids().filter(|b| blocks[b.index()]).map(|b| program.block(b));
    // Code, and about as much again for unwind tables.
    let bytes: u64 = chosen.map(|b| 2 * u64::from(b.len) + 460 + 260 * u64::from(b.call_count)).sum();
    // Names of functions are not mapped.
    (bytes + (64 << 10)).next_multiple_of(PAGE)
}

/// Makes a tracing version.
///
/// # Errors
/// If the place is no page, or something is out of 32-bit reach.
pub fn emit_burst(request: &BurstRequest<'_>) -> Result<Version, EmitError> {
    if request.start.align_down(PAGE) != request.start {
        return Err(EmitError::Unaligned(request.start));
    }
    let mut burst = Burst::new(request);
    burst.implied = Implied::of(&burst);
    KINDS.into_iter().for_each(|kind| burst.look_up(kind));
    burst.blocks()?;
    burst.finish()
}

struct Burst<'r> {
    request: &'r BurstRequest<'r>,
    /// More than the length of the version.
    bound: u64,
    code: Code,
    /// By block; [`NONE`] where there is no copy.
    labels: Vec<u32>,
    routines: [u32; 3],
    leaves: BTreeMap<Svma, u32>,
    /// Ways out of indirect branches whose target has no copy.
    lost: Vec<(Svma, u32)>,
    /// Ways out of branches whose record is the last one, by where the original code goes on: `rcx` is taken
    /// there.
    last: BTreeMap<Svma, u32>,
    /// Conditional branches whose recording code stands behind the function.
    pending: Vec<(u32, Svma, Svma)>,
    branches: Vec<BurstBranch>,
    /// Direct branches that need no record.
    implied: Implied,
    unnamed: Vec<BurstBranch>,
    /// Where code is left because what comes next has no copy.
    without_copy: Vec<Svma>,
    entries: Vec<(Svma, Svma)>,
    pieces: Vec<MapPiece>,
    inserted: Vec<Inserted>,
    placed: Vec<PlacedBlock>,
    symbols: Vec<VersionSymbol>,
}

impl<'r> Burst<'r> {
    fn new(request: &'r BurstRequest<'r>) -> Self {
        let program = request.program;
        let mut code = Code::default();
        code.bytes.resize(areas::HEADERS as usize, 0);
        let mut label = |chosen: bool| if chosen { code.label() } else { NONE };
        let chosen = |id: BlockId| request.blocks[id.index()] && may_trace(program, id);
        let labels = program.block_ids().map(|id| label(chosen(id))).collect();
        let routines = KINDS.map(|_| label(true));
        Self {
            request,
            bound: burst_bound(program, request.blocks),
            code,
            labels,
            routines,
            leaves: BTreeMap::new(),
            lost: Vec::new(),
            last: BTreeMap::new(),
            pending: Vec::new(),
            branches: Vec::new(),
            implied: Implied::default(),
            unnamed: Vec::new(),
            without_copy: Vec::new(),
            entries: Vec::new(),
            pieces: Vec::new(),
            inserted: Vec::new(),
            placed: Vec::new(),
            symbols: Vec::new(),
        }
    }

    fn at(&self, offset: usize) -> Svma {
        self.request.start + offset as u64
    }
    fn word(&self, offset: u64) -> Dest {
        Dest::At(self.request.window.start + offset)
    }
    /// The copy of the block that starts at `at`.
    fn copy_of(&self, at: Svma) -> Option<u32> {
        let block = self.request.program.block_starting_at(at)?;
        Some(self.labels[block.index()]).filter(|label| *label != NONE)
    }
    fn number(&mut self, from: Svma, to: Svma) -> u32 {
        self.branches.push(BurstBranch { from, to: Some(to) });
        self.request.first + self.branches.len() as u32 - 1
    }

    /// What was written since `from` is inserted code.
    fn note(&mut self, from: usize, taken: Taken, leads: Leads) {
        let (at, len) = (self.at(from), (self.code.here() - from) as u32);
        self.inserted.push(Inserted { at, len, taken, leads });
        let (kind, original) = match (taken, leads) {
            (Taken::Nothing, Leads::To(original)) => (PieceKind::Inserted, original),
            _ => (PieceKind::Opaque, Svma::default()),
        };
        self.pieces.push(MapPiece { version: at, original, len, kind });
    }

    /// One instruction with a displacement to a word of the window.
    fn op(&mut self, opcode: &[u8], word: u64) {
        let word = self.word(word);
        self.code.to(opcode, word, &[]);
    }

    fn store(&mut self, word: u64, value: u32) {
        let word = self.word(word);
        self.code.to(record::STORE, word, &value.to_le_bytes());
    }

    /// Ends the burst; the original code goes on at `at`.
    fn leave(&mut self, at: Svma, why: u32) {
        if why == window::NO_COPY {
            self.without_copy.push(at);
        }
        let from = self.code.here();
        self.store(window::STATE, why);
        self.code.jmp(Dest::At(at));
        self.note(from, Taken::Nothing, Leads::To(at));
    }

    /// Records branch `number`, with `rcx` saved, and goes on at `to`.
    fn record(&mut self, number: u32, to: Svma, copy: Option<u32>) {
        let from = self.code.here();
        self.op(record::LOAD_RCX, window::CURSOR);
        self.code.raw(record::PUT_RECORD);
        self.code.raw(&number.to_le_bytes());
        self.code.raw(record::NEXT_RECORD);
        self.op(record::SAVE_RCX, window::CURSOR);
        if let Some(label) = copy {
            self.code.raw(record::TEST_FULL);
            self.op(record::LOAD_RCX, window::SAVED_RCX);
            self.note(from, Taken::Rcx, Leads::To(to));
            self.jump(label, to);
            // Once in a burst: elsewhere, so that what is always executed lies close together.
            let code = &mut self.code;
            let last = *self.last.entry(to).or_insert_with(|| code.label());
            let from = self.code.here();
            self.code.jmp(Dest::Label(last));
            self.note(from, Taken::Rcx, Leads::To(to));
        } else {
            self.note(from, Taken::Rcx, Leads::To(to));
            self.give_back_and_leave(to, window::NO_COPY);
        }
    }

    /// Ends the burst, `rcx` being saved; the original code goes on at `at`.
    fn give_back_and_leave(&mut self, at: Svma, why: u32) {
        let from = self.code.here();
        self.op(record::LOAD_RCX, window::SAVED_RCX);
        self.note(from, Taken::Rcx, Leads::To(at));
        self.leave(at, why);
    }

    fn jump(&mut self, label: u32, to: Svma) {
        let from = self.code.here();
        self.code.jmp(Dest::Label(label));
        self.note(from, Taken::Nothing, Leads::To(to));
    }

    /// The direct branch at `from` is taken.
    fn edge(&mut self, from: Svma, to: Svma) {
        let number = self.number(from, to);
        let start = self.code.here();
        self.op(record::SAVE_RCX, window::SAVED_RCX);
        self.note(start, Taken::Nothing, Leads::To(to));
        self.record(number, to, self.copy_of(to));
    }

    /// The direct jump at `at`.
    fn direct_jump(&mut self, at: Svma, to: Svma) {
        match self.implied.label(at) {
            Some(label) => {
                self.unnamed.push(BurstBranch { from: at, to: Some(to) });
                self.jump(label, to);
            }
            None => self.edge(at, to),
        }
    }

    /// The direct call at `at`.
    fn call(&mut self, at: Svma, returns: Svma, to: Svma) {
        let implied = self.implied.label(at);
        let pushed = self.request.bias.to_actual(returns).get();
        if let (Some(label), Ok(pushed)) = (implied, i32::try_from(pushed)) {
            self.unnamed.push(BurstBranch { from: at, to: Some(to) });
            let start = self.code.here();
            self.code.raw(record::PUSH_NUMBER);
            self.code.raw(&pushed.to_le_bytes());
            self.note(start, Taken::Nothing, Leads::To(at));
            return self.jump(label, to);
        }
        let start = self.code.here();
        self.op(record::SAVE_RCX, window::SAVED_RCX);
        self.note(start, Taken::Nothing, Leads::To(at));
        let start = self.code.here();
        self.code.to(record::LEA_RCX, Dest::At(returns), &[]);
        self.code.raw(record::PUSH_RCX);
        self.note(start, Taken::Rcx, Leads::To(at));
        if let Some(label) = implied {
            self.unnamed.push(BurstBranch { from: at, to: Some(to) });
            let start = self.code.here();
            self.op(record::LOAD_RCX, window::SAVED_RCX);
            self.note(start, Taken::Rcx, Leads::To(to));
            return self.jump(label, to);
        }
        let number = self.number(at, to);
        self.record(number, to, self.copy_of(to));
    }

    /// The indirect branch at `at`, whose target `load` puts into `rcx`.
    fn site(&mut self, kind: Kind, at: Svma, load: (&[u8], Option<(usize, Svma)>), returns: Svma) {
        self.unnamed.push(BurstBranch { from: at, to: None });
        let leave = self.code.label();
        let start = self.code.here();
        self.op(record::SAVE_RCX, window::SAVED_RCX);
        self.note(start, Taken::Nothing, Leads::To(at));
        let start = self.code.here();
        match load {
            (bytes, None) => self.code.raw(bytes),
            (bytes, Some((field, target))) => self.code.to(&bytes[..field], Dest::At(target), &[]),
        }
        self.op(record::SAVE_RAX, window::SAVED_RAX);
        self.note(start, Taken::Rcx, Leads::To(at));
        let start = self.code.here();
        if kind == Kind::Call {
            self.code.to(record::LEA_RAX, Dest::At(returns), &[]);
            self.op(record::SAVE_RAX, window::RETURN);
        }
        self.code.to(record::LEA_RAX, Dest::Label(leave), &[]);
        self.code.jmp(Dest::Label(self.routines[kind as usize]));
        self.note(start, Taken::RcxRax, Leads::To(at));
        self.lost.push((at, leave));
    }

    /// The look-up of indirect branches: the target is in `rcx`, the way out in `rax`.
    fn look_up(&mut self, kind: Kind) {
        let [search, hit, miss] = [0; 3].map(|_| self.code.label());
        self.code.place(self.routines[kind as usize]);
        let from = self.code.here();
        self.op(record::SAVE_RAX, window::SITE);
        self.note(from, Taken::RcxRax, Leads::ToRax);
        let from = self.code.here();
        self.op(record::SAVE_RCX, window::ORIGINAL);
        self.op(record::SAVE_RDX, window::SAVED_RDX);
        self.code.raw(record::TAKE_FLAGS);
        self.op(record::SAVE_RAX, window::SAVED_FLAGS);
        self.note(from, Taken::RcxRax, Leads::ToSite);
        let from = self.code.here();
        // As `window::slot`.
        self.code.raw(&record::hash_of_rcx(window::STRETCH, window::HASH, self.request.bits));
        let within = (1 << (window::STRETCH - window::APART)) - 1;
        self.code.raw(&record::add_place_of_rcx(window::APART, within));
        self.code.raw(record::SLOT_OFFSET);
        self.table_to_rdx();
        self.code.raw(record::ADD_RDX);
        self.code.place(search);
        self.code.raw(record::COMPARE_SLOT);
        self.code.jcc(Condition::Equal, Dest::Label(hit));
        self.code.raw(record::TEST_SLOT);
        self.code.jcc(Condition::Equal, Dest::Label(miss));
        self.code.raw(record::NEXT_SLOT);
        self.code.jmp(Dest::Label(search));
        self.code.place(hit);
        self.hit(miss);
        self.give_back();
        self.note(from, Taken::All, Leads::ToSite);
        self.go(kind);
        self.code.place(miss);
        let from = self.code.here();
        self.give_back();
        self.note(from, Taken::All, Leads::ToSite);
        let from = self.code.here();
        self.op(record::JMP_WORD, window::SITE);
        self.note(from, Taken::Nothing, Leads::ToSite);
    }

    /// Notes where to go, and records the branch. Where that was the last one there is room for, the original
    /// code executes it.
    fn hit(&mut self, full: u32) {
        self.code.raw(record::LOAD_SLOT);
        self.op(record::SAVE_RDX, window::TARGET);
        self.table_to_rdx();
        self.code.raw(record::SLOT_RECORD);
        self.code.raw(&window::INDIRECT.to_le_bytes());
        self.op(record::LOAD_RDX, window::CURSOR);
        self.code.raw(record::PUT_SLOT_RECORD);
        self.op(record::SAVE_RDX, window::CURSOR);
        self.code.raw(record::TEST_RDX_FULL);
        self.code.jcc(Condition::Equal, Dest::Label(full));
    }

    fn table_to_rdx(&mut self) {
        self.code.raw(record::MOVABS_RDX);
        self.code.raw(&self.request.table.get().to_le_bytes());
    }

    fn give_back(&mut self) {
        self.op(record::LOAD_RAX, window::SAVED_FLAGS);
        self.code.raw(record::GIVE_FLAGS);
        self.op(record::LOAD_RDX, window::SAVED_RDX);
        self.op(record::LOAD_RAX, window::SAVED_RAX);
        self.op(record::LOAD_RCX, window::SAVED_RCX);
    }

    fn go(&mut self, kind: Kind) {
        let from = self.code.here();
        match kind {
            Kind::Return => self.code.raw(record::DROP_RETURN),
            Kind::Call => self.op(record::PUSH_WORD, window::RETURN),
            Kind::Jump => {}
        }
        if kind != Kind::Jump {
            self.note(from, Taken::Nothing, Leads::ToSite);
        }
        let from = self.code.here();
        self.op(record::JMP_WORD, window::TARGET);
        self.note(from, Taken::Nothing, Leads::ToOriginal);
    }

    fn blocks(&mut self) -> Result<(), EmitError> {
        let program = self.request.program;
        for function in program.function_ids() {
            let start = self.code.here();
            for id in program.blocks_of(function) {
                if self.labels[id.index()] == NONE {
                    continue;
                }
                let from = self.code.here();
                self.block(id)?;
                let version = SvmaRange::between(self.at(from), self.at(self.code.here()));
                self.placed.push(PlacedBlock { block: id, duplicate: false, version });
            }
            for (label, from, to) in std::mem::take(&mut self.pending) {
                self.code.place(label);
                self.edge(from, to);
            }
            if self.code.here() != start {
                let range = SvmaRange::between(self.at(start), self.at(self.code.here()));
                let function = program.function(function);
                let named = function.name.as_deref().map(str::to_owned);
                let name = named.unwrap_or_else(|| format!("sub_{:x}", function.range.start.get()));
                self.symbols.push(VersionSymbol { name: format!("{name}.burst"), range });
            }
        }
        for (at, label) in std::mem::take(&mut self.leaves) {
            self.code.place(label);
            self.leave(at, window::NO_COPY);
        }
        for (at, label) in std::mem::take(&mut self.lost) {
            self.code.place(label);
            self.leave(at, window::NO_TARGET);
        }
        for (at, label) in std::mem::take(&mut self.last) {
            self.code.place(label);
            self.give_back_and_leave(at, window::FULL);
        }
        Ok(())
    }

    fn block(&mut self, id: BlockId) -> Result<(), EmitError> {
        let block = self.request.program.block(id);
        let bytes = self.request.image.read(block.start, block.len as usize);
        let bytes = bytes.ok_or(EmitError::Unreadable(block.start))?;
        self.code.place(self.labels[id.index()]);
        self.entries.push((block.start, self.at(self.code.here())));
        let body = block.len - u32::from(block.terminator_len);
        let mut offset = 0;
        while offset < body {
            let at = block.start + u64::from(offset);
            match self.instruction(&bytes[offset as usize..body as usize], at) {
                Some(len) => offset += len,
                None => {
                    self.leave(at, window::NO_COPY);
                    return Ok(());
                }
            }
        }
        self.tail(id, block, &bytes[body as usize..]);
        Ok(())
    }

    /// One instruction in the middle of a block: its length. `None` if the original code has to execute it.
    fn instruction(&mut self, bytes: &[u8], at: Svma) -> Option<u32> {
        let (insn, rip) = relocate_field(bytes, at)?;
        let (len, end) = (usize::from(insn.len), insn.end());
        let bytes = &bytes[..len];
        match insn.flow {
            Flow::Next if !kernel::enters_kernel(bytes) => {
                if rip.is_some_and(|rip| !self.reaches(rip.target)) {
                    return None;
                }
                self.copy(bytes, at, rip.map(|rip| (usize::from(rip.offset), rip.target)));
            }
            Flow::Call(to) => {
                self.call(at, end, to);
                self.entries.push((end, self.at(self.code.here())));
            }
            Flow::IndirectCall => {
                let (load, field) = record::load_target(bytes)?;
                let target = rip.map(|rip| rip.target);
                if target.is_some_and(|target| !self.reaches(target)) {
                    return None;
                }
                self.site(Kind::Call, at, (&load, field.zip(target)), end);
                self.entries.push((end, self.at(self.code.here())));
            }
            _ => return None,
        }
        Some(len as u32)
    }

    fn reaches(&self, target: Svma) -> bool {
        let (from, to) = (self.request.start, self.request.start + self.bound);
        encode::fits_near(target.offset_from(from)) && encode::fits_near(target.offset_from(to))
    }

    fn copy(&mut self, bytes: &[u8], at: Svma, rip: Option<(usize, Svma)>) {
        let from = self.code.here();
        match rip {
            Some((field, target)) => self.code.to(&bytes[..field], Dest::At(target), &bytes[field + 4..]),
            None => self.code.raw(bytes),
        }
        let (version, len) = (self.at(from), bytes.len() as u32);
        if let Some(last) = self.pieces.last_mut()
            && last.kind == PieceKind::Linear
            && last.version + u64::from(last.len) == version
            && last.original + u64::from(last.len) == at
        {
            last.len += len;
            return;
        }
        self.pieces.push(MapPiece { version, original: at, len, kind: PieceKind::Linear });
    }

    fn tail(&mut self, id: BlockId, block: &Block, bytes: &[u8]) {
        let at = block.terminator_at();
        match block.terminator {
            Terminator::FallThrough => self.fall(id, block),
            Terminator::Jump(to) => self.direct_jump(at, to),
            Terminator::Conditional(condition, to) => {
                let label = self.code.label();
                let from = self.code.here();
                self.code.jcc(condition, Dest::Label(label));
                self.branch(from, at);
                self.pending.push((label, at, to));
                self.fall(id, block);
            }
            Terminator::ShortConditional(to) => {
                let from = self.code.here();
                self.code.raw(&bytes[..bytes.len() - 1]);
                // Over the jump to what follows if it is not taken.
                self.code.raw(&[encode::JMP_NEAR as u8]);
                self.branch(from, at);
                let fall = match self.copy_of(block.end()) {
                    Some(label) => label,
                    None => self.leave_label(block.end()),
                };
                self.jump(fall, block.end());
                self.edge(at, to);
            }
            Terminator::Return if record::is_plain_return(bytes) => {
                self.site(Kind::Return, at, (record::LOAD_RETURN, None), at);
            }
            Terminator::Table(_) | Terminator::IndirectJump => self.indirect_jump(at, bytes),
            Terminator::Return | Terminator::Stop => self.leave(at, window::NO_COPY),
        }
    }

    fn indirect_jump(&mut self, at: Svma, bytes: &[u8]) {
        let target = relocate_field(bytes, at).map(|(_, rip)| rip.map(|rip| rip.target));
        match (record::load_target(bytes), target) {
            (Some((load, field)), Some(target)) if target.is_none_or(|target| self.reaches(target)) => {
                self.site(Kind::Jump, at, (&load, field.zip(target)), at);
            }
            _ => self.leave(at, window::NO_COPY),
        }
    }

    /// A branch of the original was written at `from`.
    fn branch(&mut self, from: usize, original: Svma) {
        let (version, len) = (self.at(from), (self.code.here() - from) as u32);
        self.pieces.push(MapPiece { version, original, len, kind: PieceKind::Branch });
    }

    fn leave_label(&mut self, at: Svma) -> u32 {
        let code = &mut self.code;
        *self.leaves.entry(at).or_insert_with(|| code.label())
    }

    /// Control goes on behind the block.
    fn fall(&mut self, id: BlockId, block: &Block) {
        let follows = self.request.program.blocks.get(id.index() + 1).is_some_and(|next| {
            next.start == block.end()
                && next.function == block.function
                && self.labels[id.index() + 1] != NONE
        });
        match self.copy_of(block.end()) {
            Some(_) if follows => {}
            Some(label) => self.jump(label, block.end()),
            None => self.leave(block.end(), window::NO_COPY),
        }
    }

    fn finish(mut self) -> Result<Version, EmitError> {
        self.fill_in()?;
        let request = self.request;
        let text_end = self.code.here() as u32;
        let text = SvmaRange::between(
            request.start + u64::from(areas::HEADERS),
            request.start + u64::from(text_end),
        );
        // Pages of code hold nothing else.
        let tables = text_end.next_multiple_of(PAGE as u32);
        let areas = areas::Areas {
            hot_end: text_end,
            text_end,
            tables,
            copies: Vec::new(),
            shared: Vec::new(),
            tables_end: tables,
        };
        let mut bytes = std::mem::take(&mut self.code.bytes);
        bytes.resize(tables as usize, 0);
        let none = SvmaRange::new(request.start + u64::from(tables), 0);
        let [eh_frame_hdr, eh_frame] = frames::write(&self, text, &mut bytes)?;
        let unwind = areas::UnwindAreas { lsda: none, eh_frame_hdr, eh_frame };
        let names = elf::Names { symbols: &self.symbols, probes: Vec::new() };
        let loaded_len = elf::finish(&mut bytes, request.start, &areas, &unwind, &names);
        self.entries.sort_unstable();
        self.entries.dedup_by_key(|entry| entry.0);
        self.unnamed.sort_unstable();
        self.without_copy.sort_unstable();
        self.without_copy.dedup();
        Ok(Version {
            assumes: Vec::new(),
            large: loaded_len - loaded_len % LARGE_PAGE,
            number: request.number,
            range: SvmaRange::new(request.start, bytes.len() as u64),
            bytes,
            loaded_len,
            text,
            hot_text: text,
            tables: none,
            eh_frame,
            eh_frame_hdr,
            lsda: none,
            blocks: self.placed,
            // Nobody is to be moved into a tracing version but by its tracer: there is no way in.
            map: AddressMap { pieces: self.pieces, places: Vec::new() },
            redirects: Vec::new(),
            retargeted: Vec::new(),
            retargets: Vec::new(),
            symbols: self.symbols,
            counters: None,
            burst: Some(BurstTable {
                window: request.window,
                table: request.table,
                bits: request.bits,
                first: request.first,
                branches: self.branches,
                unnamed: self.unnamed,
                leaves: self.without_copy,
                entries: self.entries,
                inserted: self.inserted,
            }),
            skipped: Vec::new(),
        })
    }

    fn fill_in(&mut self) -> Result<(), EmitError> {
        let start = self.request.start;
        for fix in std::mem::take(&mut self.code.fixes) {
            let target = match fix.dest {
                Dest::At(target) => target,
                Dest::Label(label) => match self.code.labels[label as usize] {
                    Some(offset) => start + offset as u64,
                    None => unreachable!("every label that is used is placed"),
                },
            };
            let end = start + fix.end as u64;
            let displacement = i32::try_from(target.offset_from(end))
                .map_err(|_| EmitError::BurstOutOfReach { from: end, to: target })?;
            self.code.bytes[fix.field..fix.field + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        Ok(())
    }
}
