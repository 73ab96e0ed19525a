//! What code that is called does with its return address, found by following all its paths.
//!
//! Problem: a version's calls push addresses in the version. Who looks at its return address (a position by
//! `call` and `pop`, arguments behind the call, logs of callers) sees another one, or what does not lie
//! behind it. Idea: follow the code from where it is called, and know of each register and word of the stack
//! whether it holds a place on the stack or something made of the return address. Only returning to it needs
//! no knowledge of it; to write over it without having read it (`mov %rax,(%rsp); ret`, as retpolines do)
//! needs none either. Who returns the place of its word, or keeps it in memory, lets others read it (where
//! there is a frame, the place in rax is what the stack pointer was restored from).
//!
//! Limits: what is called in between is taken to leave the word alone, and to keep registers by the calling
//! convention; jumps through registers or memory end a path, but for known jump tables; places of the stack
//! other than the word's own are not followed through other memory.

use crate::model::JumpTable;
use crate::stack_state::{Place, RBP, RSP, State, Value, WORD};
use crate::sweep::Sweep;
use restitch_address::Svma;
use restitch_cfi::{Cfa, Register, UnwindForm};
use restitch_image::Image;
use restitch_x86::{
    Action, Binary, Decoded, MemoryUse, Operand, Semantic, Unary, decode_one, decode_semantic, memory_uses,
};
use std::collections::{BTreeMap, BTreeSet};

/// Instructions that are looked at for one entry, those again of which something else is known by then. Of
/// the functions of Debian's cc1plus, mariadbd, python3.11, libc and libcrypto that are looked at, none takes
/// half as many. One that takes more is believed to do the worst.
const MOST_STEPS: usize = 100_000;
/// Registers that a call may change (System V ABI, figure 3.4): rax, rcx, rdx, rsi, rdi, r8 to r11.
const CHANGED_BY_CALLS: u16 = 0b0000_1111_1100_0111;
/// The register that holds what a function returns: rax.
const RESULT: restitch_x86::Reg = restitch_x86::Reg(0);
/// Registers that hold arguments: rcx, rdx, rsi, rdi, r8, r9.
const ARGUMENTS: u16 = 0b0000_0011_1100_0110;

/// What callee does with its return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Looks {
    /// It returns to it, or does not return.
    No,
    /// It reads it.
    Reads,
    /// Control goes on so many bytes behind it, there only or there as well.
    Resumes(i64),
    /// It reads what is there, or goes on somewhere else: what stands behind the call may be no code.
    Elsewhere,
}

/// What was found of one entry.
pub(crate) struct Followed {
    /// What it does.
    pub looks: Looks,
    /// The instructions that were looked at.
    pub seen: BTreeSet<Svma>,
}

/// What code is followed with.
#[derive(Clone, Copy)]
pub(crate) struct Code<'a> {
    /// The module.
    pub image: &'a Image,
    /// What unwinders know of it.
    pub unwind: &'a dyn UnwindForm,
    /// Its functions.
    pub sweep: &'a Sweep,
    /// Recognised jump tables, sorted by jump.
    pub tables: &'a [JumpTable],
    /// Names of functions of other modules that look at their return addresses, as far as they are not known
    /// of old.
    pub elsewhere: &'a BTreeSet<String>,
}

/// Follows the code at `entry`.
pub(crate) fn follow(code: Code<'_>, entry: Svma) -> Followed {
    let mut walk = Walk {
        code,
        states: BTreeMap::new(),
        open: Vec::new(),
        reads: false,
        returns_place: false,
        has_frame: false,
        uses_what_is_there: false,
        resumes: BTreeSet::new(),
    };
    walk.reach(entry, &State::at_entry());
    let mut steps = 0;
    while let Some(at) = walk.open.pop() {
        let Some(state) = walk.states.get(&at).cloned() else { continue };
        walk.step(at, state);
        steps += 1;
        if steps > MOST_STEPS {
            // What it does further on is not known.
            walk.uses_what_is_there = true;
            break;
        }
    }
    Followed { looks: walk.looks(), seen: walk.states.into_keys().collect() }
}

struct Walk<'a> {
    code: Code<'a>,
    /// What is known at each instruction, on all ways there.
    states: BTreeMap<Svma, State>,
    open: Vec<Svma>,
    /// It reads the word.
    reads: bool,
    /// It returns the place of the word.
    returns_place: bool,
    /// It moves the stack pointer, other than by its calls.
    has_frame: bool,
    /// It reads or writes where the return address points.
    uses_what_is_there: bool,
    /// Where it goes on, besides at the return address.
    resumes: BTreeSet<Option<i64>>,
}

/// An instruction with all that is asked of it.
struct Step {
    semantic: Semantic,
    decoded: Decoded,
    uses: Vec<MemoryUse>,
}

impl Step {
    fn at(image: &Image, at: Svma) -> Option<Self> {
        let bytes = image.read_tail(at).filter(|_| image.is_executable(at))?;
        let bytes = &bytes[..bytes.len().min(20)];
        let (semantic, decoded) = (decode_semantic(bytes, at)?, decode_one(bytes, at)?);
        Some(Self { semantic, decoded, uses: memory_uses(bytes, at) })
    }
}

impl Walk<'_> {
    fn looks(&self) -> Looks {
        let mut resumes = self.resumes.iter();
        match (resumes.next(), resumes.next()) {
            _ if self.uses_what_is_there => Looks::Elsewhere,
            (Some(Some(by)), None) => Looks::Resumes(*by),
            (None, _) if self.reads || self.returns_place && !self.has_frame => Looks::Reads,
            (None, _) => Looks::No,
            _ => Looks::Elsewhere,
        }
    }

    fn reach(&mut self, at: Svma, state: &State) {
        let news = match self.states.get_mut(&at) {
            Some(known) => known.join(state),
            None => {
                self.states.insert(at, state.clone());
                true
            }
        };
        if news {
            self.open.push(at);
        }
    }

    fn step(&mut self, at: Svma, mut state: State) {
        let Some(step) = Step::at(self.code.image, at) else { return };
        self.reads |= keeps_word(&step.semantic.action, &state);
        if !matches!(step.semantic.action, Action::Return(_)) {
            self.note_uses(&step, &state);
        }
        if step.semantic.is_transfer() {
            return self.transfer(&step, state);
        }
        let top = state.top();
        execute(&step, &mut state);
        self.has_frame |= state.top() != top;
        self.reach(step.semantic.end(), &state);
    }

    /// Notes reads of words that hold the return address, and uses of what it points to.
    fn note_uses(&mut self, step: &Step, state: &State) {
        // Code that aligns its stack puts the return address where its frame expects it: it looks at it if it
        // reads that.
        let copies =
            matches!(step.semantic.action, Action::Push(_)) || changes_nothing(&step.semantic.action);
        for used in &step.uses {
            let Some(address) = &used.address else { continue };
            // A number made of it may be an index; an address is not scaled.
            let parts = [address.base, address.index.filter(|_| address.scale == 1)];
            self.uses_what_is_there |= parts.into_iter().flatten().any(|r| state.register(r).is_return());
            if let Value::Stack(place) = state.address(address)
                && used.reads
                && !copies
            {
                self.reads |= state.returns_in(place, used.size.max(1)).next().is_some();
            }
        }
    }

    fn transfer(&mut self, step: &Step, state: State) {
        let next = step.semantic.end();
        match &step.semantic.action {
            Action::Jump(to) => self.jump(step, *to, &state),
            Action::JumpIf(_, to) | Action::CountBranch(_, to) => {
                self.jump(step, *to, &state);
                self.reach(next, &state);
            }
            Action::JumpTo(operand) => {
                match state.read(operand) {
                    Value::Code(to) => self.reach(to, &state),
                    value => self.goes_to(value),
                }
                let table = self.code.tables.binary_search_by_key(&step.semantic.at, |t| t.jump_at);
                let targets = table.map_or(&[][..], |t| &self.code.tables[t].targets);
                targets.iter().for_each(|to| self.reach(*to, &state));
            }
            // Who calls the next instruction, say, asks where it is.
            Action::Call(to) if self.is_inside(step, *to) => {
                let mut state = state;
                state.push(Value::Code(next));
                self.reach(*to, &state);
            }
            Action::Call(_) => self.behind_call(step, state),
            Action::CallTo(operand) => {
                self.goes_to(state.read(operand));
                self.behind_call(step, state);
            }
            Action::Return(more) => {
                self.returns_place |= state.register(RESULT) == Value::Stack(WORD);
                let mut state = state;
                match state.pop() {
                    Value::Code(to) => {
                        let top = state.register(RSP).plus(Some((*more).into()));
                        state.set_register(RSP, top);
                        self.reach(to, &state);
                    }
                    value => self.goes_to(value),
                }
            }
            _ => {}
        }
    }

    /// Whether `to` is the next instruction, or one of the same function that does not begin it.
    fn is_inside(&self, step: &Step, to: Svma) -> bool {
        let span = self.code.sweep.span_at(to).map(|s| self.code.sweep.spans[s].range);
        let inside = span.is_some_and(|range| range.start != to && range.contains(step.semantic.at));
        inside || to == step.semantic.end()
    }

    /// Control goes to `value`.
    fn goes_to(&mut self, value: Value) {
        if let Value::Return(by) = value
            && by != Some(0)
        {
            self.resumes.insert(by);
        }
    }

    /// Jumps, but to other functions: they are looked at by themselves.
    fn jump(&mut self, step: &Step, to: Svma, state: &State) {
        let sweep = self.code.sweep;
        let other =
            sweep.span_at(to).map(|s| &sweep.spans[s]).filter(|s| !s.range.contains(step.semantic.at));
        if other.is_none_or(|s| s.range.start != to || s.doubt.is_part) {
            self.reach(to, state);
        }
    }

    fn behind_call(&mut self, step: &Step, mut state: State) {
        let hands_on =
            |n: u8| ARGUMENTS >> n & 1 != 0 && state.register(restitch_x86::Reg(n)) == Value::Stack(WORD);
        self.reads |= (0..16).any(hands_on);
        state.forget(CHANGED_BY_CALLS);
        if self.comes_back(step, &state) {
            self.reach(step.semantic.end(), &state);
        }
    }

    /// Whether a call may come back, as far as its function's rows tell: where they hold at the call and no
    /// more behind it, what stands there is another path's.
    fn comes_back(&self, call: &Step, state: &State) -> bool {
        let (at, next) = (call.semantic.at, call.semantic.end());
        let sweep = self.code.sweep;
        let leaves = sweep.span_at(at).is_some_and(|s| sweep.spans[s].range.end == next);
        let holds = |at: Svma| {
            let row = self.code.unwind.state_at(at).ok().flatten()?;
            match (&row.state.cfa, state.top()) {
                (Cfa::RegisterOffset { register: Register::RSP, offset }, Some((0, top))) => {
                    Some(*offset == 8 - top)
                }
                _ => None,
            }
        };
        !leaves && (holds(at) != Some(true) || holds(next) != Some(false))
    }
}

/// Whether the place of the return address gets to memory that is not on the stack.
fn keeps_word(action: &Action, state: &State) -> bool {
    let Action::Move { dst: Operand::Memory(to, 8), src, .. } = action else { return false };
    state.read(src) == Value::Stack(WORD) && !matches!(state.address(to), Value::Stack(_))
}

/// Whether memory stays as it is: `lock orl $0,(%rsp)` is a barrier.
fn changes_nothing(action: &Action) -> bool {
    let op = matches!(action, Action::Binary(Binary::Add | Binary::Sub | Binary::Or | Binary::Xor, ..));
    op && matches!(action, Action::Binary(_, Operand::Memory(..), Operand::Immediate(0)))
}

/// What an instruction that is no branch does to what is known.
fn execute(step: &Step, state: &mut State) {
    let old = state.clone();
    match &step.semantic.action {
        Action::Nothing => {}
        action if changes_nothing(action) => {}
        Action::Move { dst, src, .. } => state.set(dst, sized(old.read(src), src)),
        Action::LoadAddress(part, address) => {
            let value = old.address(address);
            state.set(&Operand::Part(*part), if part.size == 8 { value } else { Value::Unknown });
        }
        Action::Binary(Binary::Cmp | Binary::Test, ..) => {}
        Action::Binary(op, dst, src) => state.set(dst, computed(step, *op, dst, src, &old)),
        Action::Unary(Unary::Inc, dst) => state.set(dst, old.read(dst).plus(Some(1))),
        Action::Unary(Unary::Dec, dst) => state.set(dst, old.read(dst).plus(Some(-1))),
        Action::Push(operand) => state.push(old.read(operand)),
        Action::Pop(operand) => {
            let value = state.pop();
            state.set(operand, value);
        }
        Action::Leave => {
            state.set_register(RSP, old.register(RBP));
            let value = state.pop();
            state.set_register(RBP, value);
        }
        Action::Exchange(operand, part) => {
            state.set(operand, old.read(&Operand::Part(*part)));
            state.set(&Operand::Part(*part), old.read(operand));
        }
        Action::MoveIf(_, part, src) => {
            let (dst, is_return) = (Operand::Part(*part), old.read(src).is_return());
            let kept = if old.read(src) == old.read(&dst) { old.read(src) } else { Value::Unknown };
            state.set(&dst, if is_return { Value::Return(None) } else { kept });
        }
        _ => forget_written(step, state),
    }
}

/// A value that is loaded: one of less than 8 bytes is a part of it.
fn sized(value: Value, from: &Operand) -> Value {
    match value {
        Value::Return(_) if from.size() < 8 => Value::Return(None),
        Value::Stack(_) if from.size() < 8 => Value::Unknown,
        value => value,
    }
}

/// The result of arithmetic on a place or on the return address.
fn computed(step: &Step, op: Binary, dst: &Operand, src: &Operand, state: &State) -> Value {
    let (a, b) = (state.read(dst), state.read(src));
    let constant = match src {
        Operand::Immediate(bits) => Some(*bits as i64),
        _ => None,
    };
    let result = match op {
        _ if op == Binary::Xor && dst == src => Value::Unknown,
        Binary::Add if b == Value::Unknown => a.plus(constant),
        Binary::Sub if b == Value::Unknown => a.plus(constant.map(i64::wrapping_neg)),
        // Aligned, it points to what is there still.
        Binary::And if a.is_return() && constant.is_some_and(i64::is_negative) => Value::Return(None),
        Binary::Add | Binary::Sub if a.is_return() || b.is_return() => Value::Return(None),
        _ => Value::Unknown,
    };
    let moves_stack = matches!(dst, Operand::Part(part) if part.reg == RSP);
    match result {
        // Aligned, or room of a size that is not known: what is pushed next is at known places of a base of
        // its own.
        Value::Unknown if moves_stack => Value::Stack(base_of(step)),
        result => result,
    }
}

/// Where the stack pointer is behind an instruction that moved it by an unknown amount.
fn base_of(step: &Step) -> Place {
    (step.semantic.at.get() as u32 | 1, 0)
}

/// What an instruction that is not understood writes is not known any more.
fn forget_written(step: &Step, state: &mut State) {
    let written: Vec<(Place, u16)> = step
        .uses
        .iter()
        .filter(|used| used.writes)
        .filter_map(|used| match state.address(used.address.as_ref()?) {
            Value::Stack(place) => Some((place, used.size)),
            _ => None,
        })
        .collect();
    for (place, size) in written {
        let changes = state.word(WORD).is_return() && state.returns_in(place, size).any(|p| p == WORD);
        state.write(place, size, Value::Unknown);
        if changes && step.uses.iter().any(|used| used.reads) {
            state.write(WORD, 8, Value::Return(None));
        }
    }
    state.forget(step.decoded.writes);
}
