//! Tracing versions: each instruction of the text is a copy or belongs to one of the few forms of recording
//! code, which are written down here a second time, as text.
//!
//! Pinned blocks may be copied: what is pinned looks at return addresses, and these are the original's.
//!
//! What is proved: copied blocks are the original's, and each way out of one is a recorded branch to the
//! equivalent of its target, a look-up whose pairs are proved too, or a way out to the very original
//! instruction that comes next. Recording code takes nothing but `rcx` before it has saved more, gives back
//! what it has taken, and stores into the window only, apart from the return addresses of calls, which are
//! the original ones. What the tracer is told of inserted code is what is there, and unwinders are told the
//! same.

use crate::burst_cycles::unrecorded_cycle;
use crate::burst_forms::{has_memory, has_no_prefix, is_test, is_word, loads_target};
use crate::burst_frames;
use crate::burst_window;
use crate::finding::{CheckReport, Findings, Problem};
use crate::lock_skip::LockSkip;
use crate::subject::Subject;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, OpKind, Register,
};
use restitch_address::Svma;
use restitch_emit::window::{self, BurstBranch, BurstTable, Inserted, Leads, Taken};
use restitch_emit::{MapPiece, PieceKind};
use restitch_program::{BlockAttrs, Movability};
use std::collections::BTreeSet;

/// Where it went wrong, and how.
type Checked<T = ()> = Result<T, (Svma, &'static str)>;

/// What a branch of the version leads to, to be looked at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// At the first address: the taken branch at the second one to the third.
    Edge(Svma, Svma, Svma),
    /// At the first address: the way out to the second.
    Leave(Svma, Svma),
    /// The same where `rcx` is taken.
    Last(Svma, Svma),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Return,
    Jump,
    Call,
}

struct Reader<'s, 'a> {
    s: &'s Subject<'a>,
    table: &'a BurstTable,
    /// The next instruction.
    v: Svma,
    gas: GasFormatter,
    found: String,
    read: Vec<bool>,
    /// By byte: whether an instruction begins there, or a place to which a branch into one leads.
    begins: Vec<bool>,
    numbers: Vec<bool>,
    routines: [Svma; 3],
    inserted: Vec<Inserted>,
    pieces: Vec<MapPiece>,
    entries: Vec<(Svma, Svma)>,
    unnamed: Vec<BurstBranch>,
    /// Where control does not run straight on without a record: direct jumps and calls that are recorded, and
    /// ways out.
    ends: Vec<Svma>,
    leaves: Vec<Svma>,
    due: BTreeSet<Due>,
    report: CheckReport,
}

/// Checks the text of a tracing version, and everything that is said about it.
pub(crate) fn check(s: &Subject<'_>, table: &BurstTable, findings: &mut Findings) -> CheckReport {
    let mut reader = Reader::new(s, table);
    let form = burst_window::check(s, table).map_err(|why| (s.version.range.start, why));
    let walked = form.and_then(|()| reader.walk()).and_then(|()| reader.compare());
    if let Err((at, why)) = walked {
        findings.version(at, Problem::Burst { why, found: std::mem::take(&mut reader.found) });
        return reader.report;
    }
    let text = s.version.text.start;
    let begins = reader.begins.iter().enumerate().filter(|(_, begins)| **begins);
    burst_frames::check(s, table, begins.map(|(i, _)| text + i as u64), findings);
    reader.report
}

impl<'s, 'a> Reader<'s, 'a> {
    fn new(s: &'s Subject<'a>, table: &'a BurstTable) -> Self {
        let mut gas = GasFormatter::new();
        let options = gas.options_mut();
        options.set_uppercase_hex(false);
        options.set_small_hex_numbers_in_decimal(false);
        options.set_branch_leading_zeros(false);
        options.set_rip_relative_addresses(false);
        Self {
            s,
            table,
            v: s.version.text.start,
            gas,
            found: String::new(),
            read: vec![false; s.version.text.len() as usize],
            begins: vec![false; s.version.text.len() as usize],
            numbers: vec![false; table.branches.len()],
            routines: [Svma::default(); 3],
            inserted: Vec::new(),
            pieces: Vec::new(),
            entries: Vec::new(),
            unnamed: Vec::new(),
            ends: Vec::new(),
            leaves: Vec::new(),
            due: BTreeSet::new(),
            report: CheckReport::default(),
        }
    }

    fn walk(&mut self) -> Checked {
        for (i, kind) in [Kind::Return, Kind::Jump, Kind::Call].into_iter().enumerate() {
            self.routines[i] = self.v;
            self.look_up(kind)?;
        }
        for index in 0..self.s.version.blocks.len() {
            self.block(index)?;
        }
        while let Some(due) = self.due.pop_first() {
            match due {
                Due::Edge(at, from, to) => {
                    self.v = at;
                    self.edge(from, to)?;
                }
                Due::Leave(at, to) => {
                    self.v = at;
                    if !self.read[self.offset(at)?] {
                        self.leave(to)?;
                    } else if !self.inserted.iter().any(|p| p.at == at && p.leads == Leads::To(to)) {
                        return Err((at, "a way out leads elsewhere"));
                    }
                }
                Due::Last(at, to) => {
                    self.v = at;
                    self.give_back_and_leave(to)?;
                }
            }
        }
        Ok(())
    }

    /// Compares what is said with what was found.
    fn compare(&mut self) -> Checked {
        let text = self.s.version.text.start;
        if let Some(i) = self.read.iter().position(|read| !read) {
            return Err((text + i as u64, "nothing leads to this byte"));
        }
        self.inserted.sort_unstable_by_key(|p| p.at.offset_from(text));
        self.pieces.sort_unstable_by_key(|p| p.version.offset_from(text));
        self.entries.sort_unstable();
        self.entries.dedup_by_key(|entry| entry.0);
        if self.inserted != self.table.inserted {
            return Err((text, "what is said of inserted code is not what is there"));
        }
        if self.entries != self.table.entries {
            return Err((text, "what is said of where indirect branches come in is not what is there"));
        }
        self.unnamed.sort_unstable();
        if self.unnamed != self.table.unnamed {
            return Err((text, "what is said of branches without a record is not what is there"));
        }
        self.leaves.sort_unstable();
        self.leaves.dedup();
        if self.leaves != self.table.leaves {
            return Err((text, "what is said of ways out is not what is there"));
        }
        if let Some(at) = unrecorded_cycle(&self.unnamed, &self.ends) {
            return Err((at, "a cycle of the program has no record"));
        }
        if self.pieces != self.s.version.map.pieces {
            return Err((text, "the address map is not what is there"));
        }
        self.report.map_pieces = self.pieces.len() as u64;
        Ok(())
    }

    fn offset(&self, at: Svma) -> Checked<usize> {
        let text = self.s.version.text;
        if text.contains(at) {
            Ok(at.offset_from(text.start) as usize)
        } else {
            Err((at, "it is outside of the text"))
        }
    }

    /// The next instruction, which nothing else has read.
    fn next(&mut self) -> Checked<Instruction> {
        let at = self.v;
        let instruction = self.s.decode(at).ok_or((at, "there is no instruction"))?;
        let from = self.offset(at)?;
        let bytes = self.read.get_mut(from..from + instruction.len()).ok_or((at, "the text ends in it"))?;
        if bytes.iter().any(|read| *read) {
            return Err((at, "two instructions share bytes"));
        }
        bytes.fill(true);
        self.begins[from] = true;
        self.report.instructions += 1;
        self.v = at + instruction.len() as u64;
        Ok(instruction)
    }

    /// The next instruction has to be this one.
    fn expect(&mut self, wanted: &str) -> Checked {
        let at = self.v;
        let instruction = self.next()?;
        self.format(&instruction);
        // What names no register names an address relative to the program counter.
        let absolute = instruction.memory_base() == Register::None && has_memory(&instruction);
        if self.found != wanted || absolute || instruction.segment_prefix() != Register::None {
            return Err((at, "inserted code is none of the known forms"));
        }
        Ok(())
    }

    fn format(&mut self, instruction: &Instruction) {
        self.found.clear();
        self.gas.format(instruction, &mut self.found);
    }

    /// Whether the next instruction leads out of a block before its end.
    fn is_next_leave(&mut self) -> bool {
        let state = self.address(window::STATE);
        let stores = self.s.decode(self.v).filter(|i| i.code() == Code::Mov_rm32_imm32);
        stores.is_some_and(|i| {
            [window::NO_COPY, window::FULL].contains(&i.immediate32()) && is_word(&i, 0, state)
        })
    }

    fn word(&self, word: u64) -> String {
        format!("0x{:x}", self.address(word).get())
    }
    fn address(&self, word: u64) -> Svma {
        self.table.window.start + word
    }
    fn save(&mut self, register: Register, word: u64) -> Checked {
        self.plain(Code::Mov_rm64_r64, [None, Some(register)], self.address(word))
    }
    fn load(&mut self, word: u64, register: Register) -> Checked {
        self.plain(Code::Mov_r64_rm64, [Some(register), None], self.address(word))
    }
    fn lea(&mut self, address: Svma, register: Register) -> Checked {
        self.plain(Code::Lea_r64_m, [Some(register), None], address)
    }
    /// The next instruction has to be of this code, with a register and memory at this address, told relative
    /// to the program counter. (Most of recording code is; as text, that took three quarters of the time of a
    /// check.)
    fn plain(&mut self, code: Code, registers: [Option<Register>; 2], address: Svma) -> Checked {
        let at = self.v;
        let instruction = self.next()?;
        let is_operand = |n: u32, register: Option<Register>| match register {
            Some(register) => {
                instruction.op_kind(n) == OpKind::Register && instruction.op_register(n) == register
            }
            None => is_word(&instruction, n, address),
        };
        let is_wanted = instruction.code() == code
            && instruction.op_count() == 2
            && is_operand(0, registers[0])
            && is_operand(1, registers[1]);
        if is_wanted { Ok(()) } else { Err(self.unknown(at, &instruction)) }
    }
    /// The next instruction has to store this number there.
    fn store(&mut self, number: u32, word: u64) -> Checked {
        let (at, address) = (self.v, self.address(word));
        let instruction = self.next()?;
        let is_wanted = instruction.code() == Code::Mov_rm32_imm32
            && instruction.immediate32() == number
            && is_word(&instruction, 0, address);
        if is_wanted { Ok(()) } else { Err(self.unknown(at, &instruction)) }
    }
    fn unknown(&mut self, at: Svma, instruction: &Instruction) -> (Svma, &'static str) {
        self.format(instruction);
        (at, "inserted code is none of the known forms")
    }
    /// A jump: where it goes.
    fn jump(&mut self) -> Checked<Svma> {
        let at = self.v;
        let i = self.next()?;
        match i.code() {
            Code::Jmp_rel32_64 | Code::Jmp_rel8_64 => Ok(Svma::new(i.near_branch_target())),
            _ => Err((at, "there is no jump")),
        }
    }
    /// `jcc`: where it goes.
    fn branch(&mut self, mnemonic: &str) -> Checked<Svma> {
        let at = self.v;
        let i = self.next()?;
        self.format(&i);
        let to = i.near_branch_target();
        if self.found == format!("{mnemonic} 0x{to:x}") {
            Ok(Svma::new(to))
        } else {
            Err((at, "a branch of inserted code is none of the known forms"))
        }
    }

    /// `jrcxz`: where it goes.
    fn jrcxz(&mut self) -> Checked<Svma> {
        let at = self.v;
        let i = self.next()?;
        if i.code() == Code::Jrcxz_rel8_64 && has_no_prefix(&i) {
            return Ok(Svma::new(i.near_branch_target()));
        }
        Err((at, "a branch of inserted code is none of the known forms"))
    }

    /// `lea 4(%rcx),%rcx`.
    fn advance(&mut self) -> Checked {
        let at = self.v;
        let i = self.next()?;
        let is_wanted = i.code() == Code::Lea_r64_m
            && i.op0_register() == Register::RCX
            && i.memory_base() == Register::RCX
            && i.memory_index() == Register::None
            && i.memory_displacement64() == 4
            && has_no_prefix(&i);
        if is_wanted { Ok(()) } else { Err(self.unknown(at, &i)) }
    }

    fn note(&mut self, at: Svma, taken: Taken, leads: Leads) {
        let len = self.v.offset_from(at) as u32;
        self.inserted.push(Inserted { at, len, taken, leads });
        let (kind, original) = match (taken, leads) {
            (Taken::Nothing, Leads::To(original)) => (PieceKind::Inserted, original),
            _ => (PieceKind::Opaque, Svma::default()),
        };
        self.pieces.push(MapPiece { version: at, original, len, kind });
    }

    /// The number that the instruction stores at `rcx`, which has to mean this branch and no other.
    fn number(&mut self, from: Svma, to: Svma) -> Checked {
        let at = self.v;
        let i = self.s.decode(at).ok_or((at, "there is no instruction"))?;
        if i.code() != Code::Mov_rm32_imm32 {
            return Err((at, "there is no number"));
        }
        let number = i.immediate32();
        self.store_at_rcx(number)?;
        let index = number.wrapping_sub(self.table.first) as usize;
        if self.table.branches.get(index) != Some(&BurstBranch { from, to: Some(to) })
            || number & window::INDIRECT != 0
        {
            return Err((at, "the number means another branch"));
        }
        if std::mem::replace(&mut self.numbers[index], true) {
            return Err((at, "two branches have one number"));
        }
        self.report.counters += 1;
        Ok(())
    }

    /// `movl $number,(%rcx)`.
    fn store_at_rcx(&mut self, number: u32) -> Checked {
        let at = self.v;
        let i = self.next()?;
        let is_wanted = i.code() == Code::Mov_rm32_imm32
            && i.immediate32() == number
            && i.op_kind(0) == OpKind::Memory
            && i.memory_base() == Register::RCX
            && i.memory_index() == Register::None
            && i.memory_displacement64() == 0
            && has_no_prefix(&i);
        if is_wanted { Ok(()) } else { Err(self.unknown(at, &i)) }
    }

    fn leave(&mut self, to: Svma) -> Checked {
        let at = self.v;
        let i = self.s.decode(at).ok_or((at, "there is no instruction"))?;
        let why = i.immediate32();
        if ![window::FULL, window::NO_COPY, window::NO_TARGET].contains(&why) {
            return Err((at, "a way out leaves an odd state"));
        }
        self.store(why, window::STATE)?;
        if why == window::NO_COPY {
            self.leaves.push(to);
        }
        if self.jump()? != to {
            return Err((at, "a way out leads elsewhere"));
        }
        self.note(at, Taken::Nothing, Leads::To(to));
        self.report.branches += 1;
        Ok(())
    }

    /// A jump to the copy of `to`.
    fn jump_to_copy(&mut self, to: Svma) -> Checked {
        let at = self.v;
        let target = self.jump()?;
        if self.s.copy_at(target, to).is_none() {
            return Err((at, "a jump does not go to the copy of its target"));
        }
        self.note(at, Taken::Nothing, Leads::To(to));
        self.report.branches += 1;
        Ok(())
    }

    fn edge(&mut self, from: Svma, to: Svma) -> Checked {
        let at = self.v;
        self.save(Register::RCX, window::SAVED_RCX)?;
        self.note(at, Taken::Nothing, Leads::To(to));
        self.record(from, to)
    }

    /// The branch is recorded, `rcx` being saved, and control goes on at `to`.
    fn record(&mut self, from: Svma, to: Svma) -> Checked {
        let at = self.v;
        self.load(window::CURSOR, Register::RCX)?;
        self.number(from, to)?;
        self.advance()?;
        self.save(Register::RCX, window::CURSOR)?;
        if self.s.decode(self.v).is_some_and(|i| is_test(&i)) {
            self.next()?;
            let full = self.jrcxz()?;
            self.load(window::SAVED_RCX, Register::RCX)?;
            self.note(at, Taken::Rcx, Leads::To(to));
            self.jump_to_copy(to)?;
            if self.v != full {
                return Err((at, "a full record goes astray"));
            }
            let way_out = self.jump()?;
            self.note(full, Taken::Rcx, Leads::To(to));
            // All of these are looked at after all of the branches that lead there: each is read once.
            self.due.insert(Due::Last(way_out, to));
            return Ok(());
        }
        self.note(at, Taken::Rcx, Leads::To(to));
        self.give_back_and_leave(to)
    }

    fn give_back_and_leave(&mut self, to: Svma) -> Checked {
        let at = self.v;
        self.load(window::SAVED_RCX, Register::RCX)?;
        self.note(at, Taken::Rcx, Leads::To(to));
        self.leave(to)
    }

    fn give_back(&mut self) -> Checked {
        self.load(window::SAVED_FLAGS, Register::RAX)?;
        self.expect("add $0x7f,%al")?;
        self.expect("sahf")?;
        self.load(window::SAVED_RDX, Register::RDX)?;
        self.load(window::SAVED_RAX, Register::RAX)?;
        self.load(window::SAVED_RCX, Register::RCX)
    }

    fn look_up(&mut self, kind: Kind) -> Checked {
        let at = self.v;
        self.save(Register::RAX, window::SITE)?;
        self.note(at, Taken::RcxRax, Leads::ToRax);
        let at = self.v;
        self.save(Register::RCX, window::ORIGINAL)?;
        self.save(Register::RDX, window::SAVED_RDX)?;
        self.expect("lahf")?;
        self.expect("seto %al")?;
        self.save(Register::RAX, window::SAVED_FLAGS)?;
        self.note(at, Taken::RcxRax, Leads::ToSite);
        let at = self.v;
        self.expect("mov %rcx,%rdx")?;
        self.expect(&format!("shr $0x{:x},%rdx", window::STRETCH))?;
        self.expect(&format!("movabs $0x{:x},%rax", window::HASH))?;
        self.expect("imul %rdx,%rax")?;
        self.expect(&format!("shr $0x{:x},%rax", 64 - self.table.bits))?;
        self.expect("mov %ecx,%edx")?;
        self.expect(&format!("shr $0x{:x},%edx", window::APART))?;
        self.expect(&format!("and $0x{:x},%edx", (1 << (window::STRETCH - window::APART)) - 1))?;
        self.expect("add %rdx,%rax")?;
        self.expect("shl $0x4,%rax")?;
        self.expect(&format!("movabs $0x{:x},%rdx", self.table.table.get()))?;
        self.expect("add %rdx,%rax")?;
        let search = self.v;
        self.expect("mov (%rax),%rdx")?;
        self.expect("cmp %rcx,%rdx")?;
        let hit = self.branch("je")?;
        self.expect("test %rdx,%rdx")?;
        let miss = self.branch("je")?;
        self.expect("add $0x10,%rax")?;
        if self.jump()? != search || self.v != hit {
            return Err((search, "the search goes astray"));
        }
        self.expect("mov 0x8(%rax),%rdx")?;
        self.save(Register::RDX, window::TARGET)?;
        self.expect(&format!("movabs $0x{:x},%rdx", self.table.table.get()))?;
        self.expect("sub %edx,%eax")?;
        self.expect(&format!("or $0x{:x},%eax", window::INDIRECT))?;
        self.load(window::CURSOR, Register::RDX)?;
        self.expect("mov %eax,(%rdx)")?;
        self.expect("add $0x4,%rdx")?;
        self.save(Register::RDX, window::CURSOR)?;
        self.expect("test %dx,%dx")?;
        let full = self.branch("je")?;
        self.give_back()?;
        self.note(at, Taken::All, Leads::ToSite);
        self.go(kind)?;
        let at = self.v;
        if miss != at || full != at {
            return Err((at, "a search without result goes astray"));
        }
        self.give_back()?;
        self.note(at, Taken::All, Leads::ToSite);
        let at = self.v;
        let site = self.word(window::SITE);
        self.expect(&format!("jmpq *{site}"))?;
        self.note(at, Taken::Nothing, Leads::ToSite);
        Ok(())
    }

    fn go(&mut self, kind: Kind) -> Checked {
        let at = self.v;
        let returns = self.word(window::RETURN);
        match kind {
            Kind::Return => self.expect("lea 0x8(%rsp),%rsp")?,
            Kind::Call => self.expect(&format!("pushq {returns}"))?,
            Kind::Jump => {}
        }
        if kind != Kind::Jump {
            self.note(at, Taken::Nothing, Leads::ToSite);
        }
        let at = self.v;
        let target = self.word(window::TARGET);
        self.expect(&format!("jmpq *{target}"))?;
        self.note(at, Taken::Nothing, Leads::ToOriginal);
        Ok(())
    }

    fn block(&mut self, index: usize) -> Checked {
        let placed = self.s.version.blocks[index];
        let fail = |why| Err((placed.version.start, why));
        let Some(block) = self.s.program.blocks.get(placed.block.index()) else {
            return fail("it names a block that is not there");
        };
        let movability = self.s.program.function(block.function).movability;
        if !matches!(movability, Movability::Movable | Movability::Linkage)
            || block.attrs.intersects(BlockAttrs::PADDING | BlockAttrs::UNREACHED)
            || self.s.place(placed.block) != Some(index)
        {
            return fail("the block may not be copied, or is copied twice");
        }
        self.v = placed.version.start;
        self.entries.push((block.start, self.v));
        let mut o = block.start;
        while o != block.end() {
            match self.instruction(o, block.end())? {
                Some(next) => o = next,
                None => break,
            }
        }
        if o == block.end() {
            self.fall(o)?;
        }
        self.report.blocks += 1;
        if self.v == placed.version.end { Ok(()) } else { fail("the block does not end where it should") }
    }

    /// One original instruction; where the original goes on, if the copy goes on too.
    fn instruction(&mut self, o: Svma, end: Svma) -> Checked<Option<Svma>> {
        if self.is_next_leave() {
            self.ends.push(o);
            return self.leave(o).map(|()| None);
        }
        let left = end.offset_from(o).clamp(0, 2 * 15) as usize;
        let bytes = self.s.image.read(o, left).ok_or((o, "the original has no bytes"))?;
        let mut decoder = Decoder::with_ip(64, bytes, o.get(), DecoderOptions::NONE);
        let original = decoder.decode();
        if original.is_invalid() {
            return Err((self.v, "the original has no instruction"));
        }
        if let Some(skip) = LockSkip::at(&original, bytes) {
            return self.lock_skip(&skip, bytes, &mut decoder).map(Some);
        }
        let next = o + original.len() as u64;
        match original.flow_control() {
            FlowControl::Next => {
                let field = decoder.get_constant_offsets(&original).displacement_offset();
                self.copied(&original, &bytes[..original.len()], field)?;
            }
            FlowControl::Call if original.code() == Code::Call_rel32_64 => self.call(&original, o, next)?,
            FlowControl::IndirectCall => self.site(Kind::Call, &original, o, next)?,
            FlowControl::UnconditionalBranch
                if matches!(original.code(), Code::Jmp_rel8_64 | Code::Jmp_rel32_64) =>
            {
                let to = Svma::new(original.near_branch_target());
                return self.direct_jump(o, to).map(|()| None);
            }
            FlowControl::ConditionalBranch => {
                self.conditional(&original, &bytes[..original.len()], o, next)?;
                return Ok(None);
            }
            FlowControl::Return if original.code() == Code::Retnq => {
                return self.site(Kind::Return, &original, o, next).map(|()| None);
            }
            FlowControl::IndirectBranch => return self.site(Kind::Jump, &original, o, next).map(|()| None),
            _ => return Err((self.v, "an instruction is copied that only the original may execute")),
        }
        Ok(Some(next))
    }

    fn copied(&mut self, original: &Instruction, bytes: &[u8], field: usize) -> Checked {
        let at = self.v;
        let copy = self.next()?;
        let found = self.s.text(at, copy.len()).unwrap_or_default();
        let equal = if original.is_ip_rel_memory_operand() {
            let apart = |b: &[u8]| b.len() >= field + 4 && b.len() == bytes.len();
            apart(found)
                && original.memory_base() == Register::RIP
                && copy.is_ip_rel_memory_operand()
                && copy.ip_rel_memory_address() == original.ip_rel_memory_address()
                && found[..field] == bytes[..field]
                && found[field + 4..] == bytes[field + 4..]
        } else {
            found == bytes
        };
        if !equal {
            return Err((at, "a copied instruction differs"));
        }
        self.piece(at, Svma::new(original.ip()), PieceKind::Linear);
        Ok(())
    }

    /// A branch over a `lock` prefix and that instruction, with nothing between them. The branch is not
    /// recorded.
    fn lock_skip(&mut self, skip: &LockSkip, bytes: &[u8], decoder: &mut Decoder<'_>) -> Checked<Svma> {
        let len = skip.branch.len();
        self.copied(&skip.branch, &bytes[..len], 0)?;
        let second = self.v;
        let locked = decoder.decode();
        let field = decoder.get_constant_offsets(&locked).displacement_offset();
        self.copied(&locked, &bytes[len..][..locked.len()], field)?;
        // A thread may stand behind the prefix, too.
        let bare = self.offset(second + 1)?;
        self.begins[bare] = true;
        Ok(skip.end())
    }

    /// A piece of the map, as part of the one before it where that goes on.
    fn piece(&mut self, version: Svma, original: Svma, kind: PieceKind) {
        let len = self.v.offset_from(version) as u32;
        match self.pieces.last_mut() {
            Some(last)
                if (last.kind, kind) == (PieceKind::Linear, PieceKind::Linear)
                    && last.version + u64::from(last.len) == version
                    && last.original + u64::from(last.len) == original =>
            {
                last.len += len;
            }
            _ => self.pieces.push(MapPiece { version, original, len, kind }),
        }
    }

    /// A direct jump: recorded, or to the copy of its target.
    fn direct_jump(&mut self, o: Svma, to: Svma) -> Checked {
        if self.s.decode(self.v).is_some_and(|i| i.code() == Code::Mov_rm64_r64) {
            self.ends.push(o);
            return self.edge(o, to);
        }
        self.unnamed.push(BurstBranch { from: o, to: Some(to) });
        self.jump_to_copy(to)
    }

    fn call(&mut self, original: &Instruction, o: Svma, returns: Svma) -> Checked {
        let to = Svma::new(original.near_branch_target());
        let unnamed = BurstBranch { from: o, to: Some(to) };
        let at = self.v;
        if self.s.decode(at).is_some_and(|i| i.code() == Code::Pushq_imm32) {
            let i = self.next()?;
            let returns_to = self.s.bias.map(|bias| bias.to_actual(returns).get());
            if returns_to != Some(i.immediate32to64() as u64) || !has_no_prefix(&i) {
                return Err(self.unknown(at, &i));
            }
            self.note(at, Taken::Nothing, Leads::To(o));
            self.unnamed.push(unnamed);
            self.jump_to_copy(to)?;
            self.entries.push((returns, self.v));
            self.report.call_sites += 1;
            return Ok(());
        }
        self.save(Register::RCX, window::SAVED_RCX)?;
        self.note(at, Taken::Nothing, Leads::To(o));
        let at = self.v;
        self.lea(returns, Register::RCX)?;
        self.expect("push %rcx")?;
        self.note(at, Taken::Rcx, Leads::To(o));
        let at = self.v;
        if self.s.decode(at).is_some_and(|i| is_word(&i, 1, self.address(window::SAVED_RCX))) {
            self.load(window::SAVED_RCX, Register::RCX)?;
            self.note(at, Taken::Rcx, Leads::To(to));
            self.unnamed.push(unnamed);
            self.jump_to_copy(to)?;
        } else {
            self.ends.push(o);
            self.record(o, to)?;
        }
        self.entries.push((returns, self.v));
        self.report.call_sites += 1;
        Ok(())
    }

    fn site(&mut self, kind: Kind, original: &Instruction, o: Svma, returns: Svma) -> Checked {
        let at = self.v;
        self.save(Register::RCX, window::SAVED_RCX)?;
        self.note(at, Taken::Nothing, Leads::To(o));
        let at = self.v;
        if kind == Kind::Return {
            self.expect("mov (%rsp),%rcx")?;
        } else {
            let load = self.next()?;
            if !loads_target(&load, original) {
                return Err((at, "the target of an indirect branch is taken from somewhere else"));
            }
        }
        self.save(Register::RAX, window::SAVED_RAX)?;
        self.note(at, Taken::Rcx, Leads::To(o));
        let at = self.v;
        if kind == Kind::Call {
            self.lea(returns, Register::RAX)?;
            self.save(Register::RAX, window::RETURN)?;
        }
        self.unnamed.push(BurstBranch { from: o, to: None });
        let lea = self.s.decode(self.v).ok_or((self.v, "there is no instruction"))?;
        let leave = Svma::new(lea.memory_displacement64());
        self.lea(leave, Register::RAX)?;
        if self.jump()? != self.routines[kind as usize] {
            return Err((at, "an indirect branch is looked up the wrong way"));
        }
        self.note(at, Taken::RcxRax, Leads::To(o));
        self.due.insert(Due::Leave(leave, o));
        if kind == Kind::Call {
            self.entries.push((returns, self.v));
            self.report.call_sites += 1;
        }
        Ok(())
    }

    fn conditional(&mut self, original: &Instruction, bytes: &[u8], o: Svma, falls: Svma) -> Checked {
        let at = self.v;
        let copy = self.next()?;
        let to = Svma::new(original.near_branch_target());
        self.piece(at, o, PieceKind::Branch);
        self.report.branches += 1;
        if original.is_jcc_short_or_near() {
            if !copy.is_jcc_short_or_near() || copy.condition_code() != original.condition_code() {
                return Err((at, "a conditional branch has another condition"));
            }
            self.due.insert(Due::Edge(Svma::new(copy.near_branch_target()), o, to));
            return self.fall(falls);
        }
        let short = original.is_loop() || original.is_loopcc() || original.is_jcx_short();
        let found = self.s.text(at, copy.len()).unwrap_or_default();
        if !short || found.len() != bytes.len() || found[..found.len() - 1] != bytes[..bytes.len() - 1] {
            return Err((at, "a short conditional branch differs"));
        }
        let taken = Svma::new(copy.near_branch_target());
        let jump = self.v;
        let target = self.jump()?;
        if self.s.copy_at(target, falls).is_none() {
            self.ends.push(falls);
            self.due.insert(Due::Leave(target, falls));
        }
        self.note(jump, Taken::Nothing, Leads::To(falls));
        if self.v != taken {
            return Err((at, "a short conditional branch goes astray"));
        }
        self.edge(o, to)
    }

    /// Control goes on at the original address `to`.
    fn fall(&mut self, to: Svma) -> Checked {
        if self.s.copy_at(self.v, to).is_some() {
            return Ok(());
        }
        let jumps = |i: Instruction| i.flow_control() == FlowControl::UnconditionalBranch;
        if self.s.decode(self.v).is_some_and(jumps) {
            self.jump_to_copy(to)
        } else {
            self.ends.push(to);
            self.leave(to)
        }
    }
}
