//! Making a table.

use crate::format::{BRANCH, HEADER, MAGIC, NONE, OPERAND, STRETCH, VERSION, number};
use restitch_address::{Svma, SvmaRange};
use restitch_image::Image;
use restitch_program::Program;
use restitch_x86::{Action, CountBranch, Flow, Insn, Operand, Segment, decode_semantic, scan};
use std::collections::{BTreeSet, HashMap};

/// The bytes of the table of a module: of all its executable code, movable or not. Decoding begins anew at
/// each function, symbol and linkage stub.
pub fn build(image: &Image, program: &Program) -> Vec<u8> {
    let ranges = image.executable_ranges();
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return Builder::new(SvmaRange::default()).finish();
    };
    let mut builder = Builder::new(SvmaRange::between(first.start, last.end));
    let starts = starts(image, program);
    let mut behind = first.start;
    for range in &ranges {
        if behind != range.start {
            builder.gap(behind);
        }
        let cuts = starts.range(range.start + 1..range.end).copied();
        let mut from = range.start;
        for to in cuts.chain(std::iter::once(range.end)) {
            builder.piece(image, SvmaRange::between(from, to));
            from = to;
        }
        behind = range.end;
    }
    builder.finish()
}

/// Addresses that are certainly instruction starts.
fn starts(image: &Image, program: &Program) -> BTreeSet<Svma> {
    let functions = program.functions.iter().flat_map(|f| [f.range.start, f.range.end]);
    let is_code = |s: &&restitch_image::Symbol| image.is_executable(s.range.start) && !s.range.is_empty();
    let symbols = image.symbols().iter().filter(is_code).map(|s| s.range.start);
    let stubs = image.plt_slots().iter().map(|slot| slot.stub.start);
    let mut starts: BTreeSet<Svma> = functions.chain(symbols).chain(stubs).collect();
    // A symbol inside a function is not trusted: blocks there come from the function's own decoding.
    starts.retain(|&at| program.function_at(at).is_none_or(|f| program.function(f).range.start == at));
    starts
}

struct Builder {
    range: SvmaRange,
    /// Place and word of each branch.
    branches: Vec<(u64, u64)>,
    operands: Vec<[u8; OPERAND]>,
    numbers: HashMap<[u8; OPERAND], u32>,
}

impl Builder {
    fn new(range: SvmaRange) -> Self {
        Self { range, branches: Vec::new(), operands: Vec::new(), numbers: HashMap::new() }
    }

    fn piece(&mut self, image: &Image, range: SvmaRange) {
        let Some(bytes) = image.read(range.start, range.len() as usize) else { return self.gap(range.start) };
        let mut found = Vec::new();
        let end = scan(bytes, range.start, |insn| {
            if insn.flow != Flow::Next {
                found.push(insn);
            }
        });
        for insn in found {
            let at = insn.at.offset_from(range.start) as usize;
            self.branch(&bytes[at..], &insn);
        }
        if let Err(at) = end {
            self.gap(at);
        }
    }

    fn gap(&mut self, at: Svma) {
        self.add(at, 0, number::UNKNOWN, 0, 0);
    }

    fn add(&mut self, at: Svma, len: u8, kind: u64, detail: u64, value: u32) {
        let place = at.offset_from(self.range.start) as u64;
        let word = (place & 0xff) | kind << 8 | detail << 12 | u64::from(len) << 16 | u64::from(value) << 32;
        self.branches.push((place, word));
    }

    fn branch(&mut self, bytes: &[u8], insn: &Insn) {
        let start = self.range.start;
        let relative = |to: Svma| to.offset_from(start) as u32;
        let (at, len) = (insn.at, insn.len);
        match decode_semantic(bytes, at).map_or(Action::Stop, |s| s.action) {
            Action::Jump(to) => self.add(at, len, number::JUMP, 0, relative(to)),
            Action::Call(to) => self.add(at, len, number::CALL, 0, relative(to)),
            Action::JumpIf(condition, to) => {
                self.add(at, len, number::CONDITIONAL, condition.code().into(), relative(to));
            }
            Action::CountBranch(kind, to) => match times(kind) {
                Some(detail) => self.add(at, len, number::COUNTING, detail, relative(to)),
                None => self.add(at, len, number::UNKNOWN, 0, 0),
            },
            Action::JumpTo(operand) => {
                let number = self.operand(&operand);
                self.add(at, len, number::JUMP_TO, 0, number);
            }
            Action::CallTo(operand) => {
                let number = self.operand(&operand);
                self.add(at, len, number::CALL_TO, 0, number);
            }
            Action::Return(popped) => self.add(at, len, number::RETURN, 0, popped.into()),
            _ => self.add(at, len, number::UNKNOWN, 0, 0),
        }
    }

    fn operand(&mut self, operand: &Operand) -> u32 {
        let bytes = encode_operand(operand, self.range.start);
        let next = self.operands.len() as u32;
        *self.numbers.entry(bytes).or_insert_with(|| {
            self.operands.push(bytes);
            next
        })
    }

    fn finish(self) -> Vec<u8> {
        let stretches = self.range.len().div_ceil(STRETCH);
        let index_len = 4 * (stretches as usize + 1);
        let mut out = Vec::with_capacity(HEADER + index_len + BRANCH * self.branches.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend((self.branches.len() as u32).to_le_bytes());
        out.extend(self.range.start.get().to_le_bytes());
        out.extend(self.range.len().to_le_bytes());
        out.extend((self.operands.len() as u32).to_le_bytes());
        out.extend((STRETCH as u32).to_le_bytes());
        out.extend([0; 8]);
        let mut at = 0;
        for stretch in 0..=stretches {
            while self.branches.get(at).is_some_and(|b| b.0 < stretch * STRETCH) {
                at += 1;
            }
            // The last entry is the number of all branches, also of a gap that begins at the very end.
            let first = if stretch == stretches { self.branches.len() } else { at };
            out.extend((first as u32).to_le_bytes());
        }
        out.resize(out.len() + index_len % 8, 0);
        self.branches.iter().for_each(|(_, word)| out.extend(word.to_le_bytes()));
        self.operands.iter().for_each(|operand| out.extend(operand));
        out
    }
}

fn times(kind: CountBranch) -> Option<u64> {
    Some(match kind {
        CountBranch::Loop => 0,
        CountBranch::LoopEqual => 1,
        CountBranch::LoopNotEqual => 2,
        CountBranch::IfZero => 3,
        CountBranch::IfZero32 => 4,
        CountBranch::Odd => return None,
    })
}

fn encode_operand(operand: &Operand, start: Svma) -> [u8; OPERAND] {
    let mut bytes = [0; OPERAND];
    let number = |r: Option<restitch_x86::Reg>| r.map_or(NONE, |r| r.0);
    match operand {
        Operand::Part(part) => bytes[0] = part.reg.0,
        Operand::Memory(address, _) => {
            let stated = Svma::new(address.disp as u64);
            let disp = if address.rip { stated.offset_from(start) } else { address.disp };
            bytes[0] = number(address.base);
            bytes[1] = number(address.index);
            bytes[2] = address.scale;
            bytes[3] = if address.rip { 2 } else { 1 };
            bytes[4] = match address.segment {
                None => 0,
                Some(Segment::Fs) => 1,
                Some(Segment::Gs) => 2,
            };
            bytes[8..].copy_from_slice(&disp.to_le_bytes());
        }
        Operand::Immediate(_) => {}
    }
    bytes
}
