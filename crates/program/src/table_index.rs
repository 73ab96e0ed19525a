//! How far below its start a jump table may be indexed.
//!
//! Problem: the address that the code of a switch names is not always the first entry's: a table may be
//! indexed from its middle (`ops[signed_byte + 4]`) or backwards. What stands in front of that address is
//! then part of the table, and a copy without it is too short.
//!
//! Idea: go back from the load of the entry along all branches to where its index was made, and see the least
//! number that it can be: what is extended by zeros, or was checked without sign, is not negative; a constant
//! that is added moves it; a check with sign gives a number. What is made in any other way may be anything.
//!
//! Limits: memory is taken to hold what was stored there by the same operand; a number of 64 bits of whose
//! lower part alone a check was made is taken to be that part; what a jump through a table brings along is
//! not seen where something else leads to the same place; sums are taken to fit.

use crate::stack_state::{RBP, RSP};
use crate::sweep::{Kind, Sweep};
use restitch_address::Svma;
use restitch_image::Image;
use restitch_x86::{
    Action, Address, Binary, BitChange, Condition, Mem, Op, Operand, Part, Reg, Semantic, Shift, Stores,
    Unary, decode_one, decode_semantic,
};
use std::collections::HashSet;

/// Instructions that are looked at for one table; how an index is made is seen in a few.
const MOST_STEPS: usize = 256;
/// A comparison stands at most so many instructions in front of the branch that asks for its result.
const TO_COMPARISON: usize = 3;
/// Registers that a call may change (System V ABI, figure 3.4): rax, rcx, rdx, rsi, rdi, r8 to r11.
const CHANGED_BY_CALLS: u16 = 0b0000_1111_1100_0111;

/// What is done to a number, which keeps the order of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Plus(i64),
    /// By no negative number.
    Times(i64),
    /// So many low bits become something else.
    LowBits(u32),
    /// Divided by a power of two, downwards.
    Halved(u32),
}

impl Step {
    fn of(self, number: i64) -> i64 {
        match self {
            Self::Plus(by) => number.saturating_add(by),
            Self::Times(by) => number.saturating_mul(by),
            Self::LowBits(bits) => number >> bits << bits,
            Self::Halved(times) => number >> times,
        }
    }
}

/// What is asked: the least of what `steps`, from the last one on, make of the number with sign `what`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wanted {
    what: Operand,
    steps: Vec<Step>,
    /// What checks behind here say, as long as what they have checked keeps its value.
    checked: Vec<Checked>,
}

/// A number with sign that lies between two others, each included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Checked {
    what: Operand,
    least: i64,
    most: i64,
}

/// What is known of what is wanted, one instruction earlier.
enum Earlier {
    /// It is no less than this.
    Least(i64),
    /// It is one of these.
    Wanted(Vec<Wanted>),
}

/// How far below tables the code of a module goes.
pub(crate) struct TableIndex<'a> {
    image: &'a Image,
    sweep: &'a Sweep,
    /// Direct branches by target: those that leave a function for the middle of another one.
    entering: Vec<(Svma, Svma)>,
    /// The function whose branches are `inside`.
    span: usize,
    /// The same, of one function.
    inside: Vec<(Svma, Svma)>,
}

impl<'a> TableIndex<'a> {
    pub fn new(image: &'a Image, sweep: &'a Sweep) -> Self {
        let (mut entering, mut s) = (Vec::new(), 0);
        for &(at, to) in &sweep.targets {
            while s + 1 < sweep.spans.len() && sweep.spans[s].range.end <= at {
                s += 1;
            }
            if !sweep.spans[s].range.contains(to) && !sweep.is_head(to) {
                entering.push((to, at));
            }
        }
        entering.sort_unstable();
        Self { image, sweep, entering, span: usize::MAX, inside: Vec::new() }
    }

    /// How many bytes below the address that it names the load at `load_at` (or jump through memory) in span
    /// number `span` may read; `None` if that is not known.
    pub fn bytes_below(&mut self, span: usize, load_at: Svma) -> Option<u64> {
        self.look_at(span);
        let mini = self.sweep.mini_at(load_at)?;
        let (Op::Load { mem, .. } | Op::JumpMemory(mem)) = decode_one(self.bytes(mini)?, load_at)?.op else {
            return None;
        };
        let least = self.least(mini, indexing(&mem))?;
        Some(least.min(0).unsigned_abs())
    }

    fn look_at(&mut self, span: usize) {
        if self.span != span {
            let branches = self.sweep.targets_in(self.sweep.spans[span].range).iter();
            self.inside = branches.map(|&(at, to)| (to, at)).collect();
            self.inside.sort_unstable();
            self.span = span;
        }
    }

    fn bytes(&self, mini: usize) -> Option<&'a [u8]> {
        let mini = &self.sweep.minis[mini];
        self.image.read(self.sweep.address(mini), mini.len.into())
    }

    fn semantic(&self, mini: usize) -> Option<Semantic> {
        decode_semantic(self.bytes(mini)?, self.sweep.address(&self.sweep.minis[mini]))
    }

    /// The least of all that `wanted` may be in front of the instruction with record `mini`.
    fn least(&self, mini: usize, wanted: Vec<Wanted>) -> Option<i64> {
        let mut open: Vec<(usize, Wanted)> = wanted.into_iter().map(|wanted| (mini, wanted)).collect();
        let (mut seen, mut least) = (HashSet::new(), i64::MAX);
        while let Some((mini, wanted)) = open.pop() {
            if !seen.insert((mini, wanted.clone())) {
                continue;
            }
            let before = self.before(mini).filter(|_| seen.len() <= MOST_STEPS)?;
            for (mini, taken) in before {
                match self.earlier(mini, taken, wanted.clone())? {
                    Earlier::Least(number) => least = least.min(number),
                    Earlier::Wanted(wanted) => open.extend(wanted.into_iter().map(|wanted| (mini, wanted))),
                }
            }
        }
        Some(least)
    }

    /// The instructions from which control comes to the one with record `mini`, and whether by taking their
    /// branch; `None` if it may come from elsewhere.
    fn before(&self, mini: usize) -> Option<Vec<(usize, bool)>> {
        let span = &self.sweep.spans[self.span];
        let at = self.sweep.address(self.sweep.minis.get(mini)?);
        let branches = self.branches_to(at).map(|from| Some((self.sweep.mini_at(from)?, true)));
        let mut found: Vec<(usize, bool)> = branches.collect::<Option<_>>()?;
        let previous = mini.checked_sub(1).filter(|i| *i >= span.first && span.range.contains(at));
        let falls = |i: &usize| {
            let kind = self.sweep.minis[*i].kind;
            !kind.ends_block() || matches!(kind, Kind::Conditional(_) | Kind::ShortConditional)
        };
        found.extend(previous.filter(falls).map(|i| (i, false)));
        (!found.is_empty() && at != span.range.start).then_some(found)
    }

    /// Where branches to `at` are.
    fn branches_to(&self, at: Svma) -> impl Iterator<Item = Svma> {
        [&self.inside, &self.entering].into_iter().flat_map(move |list| {
            let first = list.partition_point(|(to, _)| *to < at);
            list[first..].iter().take_while(move |(to, _)| *to == at).map(|(_, from)| *from)
        })
    }

    /// What `wanted` was in front of the instruction with record `mini`, which was executed (and its branch
    /// `taken`).
    fn earlier(&self, mini: usize, taken: bool, mut wanted: Wanted) -> Option<Earlier> {
        match self.sweep.minis[mini].kind {
            Kind::Conditional(condition) => {
                let holds = if taken { condition } else { condition.inverted() };
                let checked = self.checked(mini, holds);
                wanted.checked.extend(checked.filter(|c| !wanted.checked.contains(c)));
                Some(wanted.settled())
            }
            _ => self.undone(mini, wanted),
        }
    }

    /// What is known of what was compared in front of the branch with record `mini`, if `condition` holds.
    fn checked(&self, mini: usize, condition: Condition) -> Option<Checked> {
        let first = self.sweep.spans[self.span].first;
        let mut between = (first..mini).rev().take(TO_COMPARISON);
        let at = between.find(|i| self.sweep.minis[*i].writes != 0)?;
        let checked = compared(self.semantic(at)?.action, condition)?;
        let runs_on = |i: usize| {
            let (before, here) = (&self.sweep.minis[i - 1], &self.sweep.minis[i]);
            let ends = before.kind.ends_block() && !matches!(before.kind, Kind::Conditional(_));
            !ends && self.branches_to(self.sweep.address(here)).next().is_none()
        };
        // As it is at the branch: what was compared may have been changed since.
        let keeps = |i: usize| self.changes(i, checked.what) == Some(false);
        ((at + 1..=mini).all(runs_on) && (at + 1..mini).all(keeps)).then_some(checked)
    }

    /// Whether the instruction may change what the operand is.
    fn changes(&self, mini: usize, what: Operand) -> Option<bool> {
        let insn = decode_one(self.bytes(mini)?, self.sweep.address(&self.sweep.minis[mini]))?;
        let is_call = matches!(self.sweep.minis[mini].kind, Kind::Call | Kind::IndirectCall);
        let writes = insn.writes | if is_call { CHANGED_BY_CALLS } else { 0 };
        let writes_to = |reg: Reg| writes >> reg.0 & 1 == 1;
        Some(match what {
            Operand::Part(part) => writes_to(part.reg),
            Operand::Memory(address, size) => {
                let is_own = [address.base, address.index].iter().flatten().any(|r| [RSP, RBP].contains(r));
                let moved = address.base.is_some_and(writes_to) || address.index.is_some_and(writes_to);
                moved
                    || is_call && !is_own
                    || writes_at(self.semantic(mini)?.action, insn.memory, address, size)
            }
            Operand::Immediate(_) => false,
        })
    }

    /// [`TableIndex::earlier`] for what is no conditional branch.
    fn undone(&self, mini: usize, mut wanted: Wanted) -> Option<Earlier> {
        wanted.checked.retain(|checked| self.changes(mini, checked.what) == Some(false));
        if !self.changes(mini, wanted.what)? {
            return Some(wanted.settled());
        }
        let action = self.semantic(mini)?.action;
        match wanted.what {
            Operand::Part(part) => made(action, part, wanted),
            Operand::Memory(address, size) => stored(action, address, size, wanted),
            Operand::Immediate(_) => None,
        }
    }
}

impl Wanted {
    fn new(what: Operand, steps: &[Step]) -> Self {
        Self { what, steps: steps.to_vec(), checked: Vec::new() }
    }

    /// What it comes to if `what` is no less than `number`.
    fn least(&self, number: i64) -> Earlier {
        Earlier::Least(self.steps.iter().rev().fold(number, |number, step| step.of(number)))
    }

    /// As what `steps` make of `what`.
    fn from(mut self, what: Operand, steps: &[Step]) -> Earlier {
        self.what = what;
        self.steps.extend_from_slice(steps);
        self.settled()
    }

    /// What a check says of it, if one does.
    fn settled(self) -> Earlier {
        match self.checked.iter().find(|checked| checked.says_of(self.what)) {
            Some(checked) => self.least(checked.least),
            None => match self.what {
                Operand::Immediate(number) => self.least(number as i64),
                _ => Earlier::Wanted(vec![self]),
            },
        }
    }
}

impl Checked {
    /// Whether what was checked is `what`, or holds it.
    fn says_of(&self, what: Operand) -> bool {
        let (bytes, of) = (self.what.size(), what.size());
        let is_same = match (self.what, what) {
            (Operand::Part(a), Operand::Part(b)) => a.reg == b.reg && a.high == b.high,
            (Operand::Memory(a, _), Operand::Memory(b, _)) => a == b,
            _ => false,
        };
        let fits = self.least >= 0 && self.most <= most_of(of);
        is_same && (bytes == of || bytes > of && fits || of == 8 && self.least >= 0)
    }
}

/// The largest number with sign of so many bytes.
fn most_of(bytes: u8) -> i64 {
    i64::MAX >> (64 - 8 * u32::from(bytes.clamp(1, 8)))
}

/// The number with sign in the lowest bytes of `number`.
fn signed(number: u64, bytes: u8) -> i64 {
    let rest = 64 - 8 * u32::from(bytes.clamp(1, 8));
    (number << rest) as i64 >> rest
}

/// The lowest bytes of an operand that has at least as many.
fn lowest(what: Operand, bytes: u8) -> Operand {
    match what {
        Operand::Part(part) => Operand::Part(Part { size: bytes, ..part }),
        Operand::Memory(address, _) => Operand::Memory(address, bytes),
        Operand::Immediate(number) => Operand::Immediate(signed(number, bytes) as u64),
    }
}

/// The registers by which a load indexes its table; where nothing is multiplied, one of them is its base.
fn indexing(mem: &Mem) -> Vec<Wanted> {
    let whole = |reg| Operand::Part(Part { reg, size: 8, high: false });
    if mem.scale > 1 {
        let step = Step::Times(mem.scale.into());
        mem.index.into_iter().map(|reg| Wanted::new(whole(reg), &[step])).collect()
    } else {
        [mem.base, mem.index].into_iter().flatten().map(|reg| Wanted::new(whole(reg), &[])).collect()
    }
}

/// What a comparison says of what it compares if `condition` holds behind it.
fn compared(comparison: Action, condition: Condition) -> Option<Checked> {
    let (what, with) = match comparison {
        Action::Binary(Binary::Cmp, what, Operand::Immediate(with)) => (what, with),
        Action::Binary(Binary::Test, what, other) if what == other => (what, 0),
        _ => return None,
    };
    let (most, with) = (most_of(what.size()), signed(with, what.size()));
    let (least, most) = match condition {
        Condition::BelowOrEqual if with >= 0 => (0, with),
        Condition::Below if with > 0 => (0, with - 1),
        Condition::Equal => (with, with),
        Condition::GreaterOrEqual => (with, most),
        Condition::Greater => (with.checked_add(1)?, most),
        Condition::NoSign if with == 0 => (0, most),
        _ => return None,
    };
    Some(Checked { what, least, most })
}

/// What `wanted`, which is `part`, was in front of an instruction that writes the register.
fn made(action: Action, part: Part, wanted: Wanted) -> Option<Earlier> {
    let size = part.size;
    if let Action::WidenAccumulator(bytes) = action {
        let half = Operand::Part(Part { size: bytes / 2, ..part });
        return match bytes {
            4 if size == 8 => Some(wanted.least(0)),
            _ if bytes == size => Some(wanted.from(half, &[])),
            _ => None,
        };
    }
    let written = written_part(action).filter(|written| written.reg == part.reg)?;
    if written.size == 4 && size == 8 {
        return Some(wanted.least(0));
    }
    if written.size < size || written.high {
        let bits = if written.high { 16 } else { 8 * u32::from(written.size) };
        let is_beneath = bits < 8 * u32::from(size) && !part.high;
        return is_beneath.then(|| wanted.from(Operand::Part(part), &[Step::LowBits(bits)]));
    }
    let own = Operand::Part(part);
    let is_whole = written.size == size;
    Some(match action {
        Action::Move { src, signed, .. } if src.size() < size => match signed {
            true => wanted.from(src, &[]),
            false => wanted.least(0),
        },
        Action::Move { src, .. } => wanted.from(lowest(src, size), &[]),
        Action::LoadAddress(_, address) => return of_address(address, size, wanted),
        Action::Binary(Binary::Xor | Binary::Sub, dst, src) if dst == src => wanted.least(0),
        Action::Binary(op, _, src) => return of_arithmetic(op, src, own, wanted),
        Action::Unary(Unary::Inc, _) => wanted.from(own, &[Step::Plus(1)]),
        Action::Unary(Unary::Dec, _) => wanted.from(own, &[Step::Plus(-1)]),
        Action::Shift(shift, _, Operand::Immediate(count)) if is_whole => {
            return of_shift(shift, count as u32 % (8 * u32::from(size.max(4))), own, wanted);
        }
        Action::Multiply(_, by, Operand::Immediate(times)) if times as i64 >= 0 && by.size() >= size => {
            wanted.from(lowest(by, size), &[Step::Times(times as i64)])
        }
        Action::MoveIf(_, _, src) => {
            let [kept, moved] =
                [own, lowest(src, size)].map(|what| Wanted { what, ..wanted.clone() }.settled());
            return both(kept, moved);
        }
        Action::SetIf(..) | Action::Scan(..) if is_whole => wanted.least(0),
        _ => return None,
    })
}

/// Either of these.
fn both(a: Earlier, b: Earlier) -> Option<Earlier> {
    Some(match (a, b) {
        (Earlier::Least(a), Earlier::Least(b)) => Earlier::Least(a.min(b)),
        (Earlier::Wanted(a), Earlier::Wanted(b)) => Earlier::Wanted([a, b].concat()),
        (Earlier::Least(number), Earlier::Wanted(mut wanted))
        | (Earlier::Wanted(mut wanted), Earlier::Least(number)) => {
            wanted.push(Wanted::new(Operand::Immediate(number as u64), &[]));
            Earlier::Wanted(wanted)
        }
    })
}

/// The one register, or part of one, that the instruction writes, if it is none of those that write more.
fn written_part(action: Action) -> Option<Part> {
    match action {
        Action::Move { dst: Operand::Part(part), .. }
        | Action::LoadAddress(part, _)
        | Action::Binary(_, Operand::Part(part), _)
        | Action::Unary(_, Operand::Part(part))
        | Action::Shift(_, Operand::Part(part), _)
        | Action::Multiply(part, ..)
        | Action::SetIf(_, Operand::Part(part))
        | Action::MoveIf(_, part, _)
        | Action::Scan(_, part, _)
        | Action::ShiftTo(_, part, ..)
        | Action::AndNot(part, ..)
        | Action::LowBit(_, part, _)
        | Action::ZeroHigh(part, ..)
        | Action::SwapBytes(part) => Some(part),
        _ => None,
    }
}

/// `lea`: an address of this module is not negative.
fn of_address(address: Address, size: u8, wanted: Wanted) -> Option<Earlier> {
    let part = |reg| Operand::Part(Part { reg, size, high: false });
    let (plus, scale) = (Step::Plus(address.disp), i64::from(address.scale));
    match (address.base, address.index) {
        _ if address.rip => Some(wanted.least(0)),
        (None, None) => Some(wanted.least(address.disp)),
        (Some(base), None) => Some(wanted.from(part(base), &[plus])),
        (None, Some(index)) => Some(wanted.from(part(index), &[plus, Step::Times(scale)])),
        (Some(base), Some(index)) if base == index => {
            Some(wanted.from(part(index), &[plus, Step::Times(scale + 1)]))
        }
        _ => None,
    }
}

/// Arithmetic with `src` on what is wanted, `own`.
fn of_arithmetic(op: Binary, src: Operand, own: Operand, wanted: Wanted) -> Option<Earlier> {
    let constant = match src {
        Operand::Immediate(number) => Some(signed(number, own.size())),
        _ => None,
    };
    Some(match (op, constant?) {
        (Binary::Add, by) => wanted.from(own, &[Step::Plus(by)]),
        (Binary::Sub, by) => wanted.from(own, &[Step::Plus(by.checked_neg()?)]),
        (Binary::And, mask) if mask >= 0 => wanted.least(0),
        (Binary::And, mask) if mask == -1 << mask.trailing_zeros() => {
            wanted.from(own, &[Step::LowBits(mask.trailing_zeros())])
        }
        (Binary::Or, bits) if bits >= 0 => wanted.from(own, &[]),
        _ => return None,
    })
}

fn of_shift(shift: Shift, count: u32, own: Operand, wanted: Wanted) -> Option<Earlier> {
    match shift {
        Shift::Shr if count > 0 => Some(wanted.least(0)),
        Shift::Sar => Some(wanted.from(own, &[Step::Halved(count)])),
        Shift::Shl if count < 32 => Some(wanted.from(own, &[Step::Times(1 << count)])),
        _ => None,
    }
}

/// What `wanted`, which is memory, was in front of an instruction that writes there.
fn stored(action: Action, address: Address, size: u8, wanted: Wanted) -> Option<Earlier> {
    let own = Operand::Memory(address, size);
    match action {
        Action::Move { dst: Operand::Memory(to, bytes), src, .. } if to == address && bytes >= size => {
            Some(wanted.from(lowest(src, size), &[]))
        }
        Action::Binary(op, dst, src) if dst == own => of_arithmetic(op, src, own, wanted),
        _ => None,
    }
}

/// Whether the instruction writes something at the address, as far as operands say.
fn writes_at(action: Action, operand: Option<Mem>, address: Address, size: u8) -> bool {
    let overlaps = |to: Address, bytes: u16| {
        let same = (to.base, to.index, to.scale, to.rip)
            == (address.base, address.index, address.scale, address.rip);
        same && to.disp < address.disp + i64::from(size) && address.disp < to.disp + i64::from(bytes)
    };
    let dst = match action {
        Action::Binary(Binary::Cmp | Binary::Test, ..) | Action::BitTest(BitChange::Keep, ..) => {
            return false;
        }
        Action::Move { dst, .. }
        | Action::Binary(_, dst, _)
        | Action::Unary(_, dst)
        | Action::Shift(_, dst, _)
        | Action::SetIf(_, dst)
        | Action::Pop(dst)
        | Action::Exchange(dst, _)
        | Action::ExchangeAdd(dst, _)
        | Action::CompareExchange(dst, _)
        | Action::BitTest(_, dst, _) => dst,
        Action::RepeatStore(_) | Action::RepeatMove(_) => return true,
        Action::Opaque(effects) => {
            return match effects.stores {
                Stores::Nothing => false,
                Stores::One(to, bytes) => overlaps(to, bytes),
                Stores::Anywhere => true,
            };
        }
        Action::Vector(_) => {
            let widest = 64;
            return operand.is_some_and(|m| {
                let Mem { base, index, scale, disp, rip } = m;
                overlaps(Address { base, index, scale, disp, rip, segment: None }, widest)
            });
        }
        _ => return false,
    };
    matches!(dst, Operand::Memory(to, bytes) if overlaps(to, bytes.into()))
}
