//! One instruction.

use crate::alu;
use crate::memory::Memory;
use crate::state::{Flags, State};
use crate::value::{Value, mask};
use restitch_address::{Avma, LoadBias};
use restitch_x86::{
    ALL_FLAGS, Action, Binary, BitChange, Condition, CountBranch, Effects, Flag, Operand, Part, Reg, Scan,
    Semantic, Shift, Stores, Unary,
};

const RAX: Reg = Reg(0);
const RCX: Reg = Reg(1);
const RDX: Reg = Reg(2);
const RSP: Reg = Reg(4);
const RBP: Reg = Reg(5);
const RSI: Reg = Reg(6);
const RDI: Reg = Reg(7);
/// Rounds of a `rep` instruction that are followed one by one; beyond that memory is forgotten.
const MOST_REPEATED: u64 = 4096;

/// What an instruction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Control goes on behind it; for a conditional branch: it is not taken.
    On,
    /// The branch is taken; [`State::pc`] is its target.
    Taken,
    /// It cannot be told what it does; the state is as it was before it.
    Stuck(Stuck),
}

/// What is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stuck {
    /// Whether a conditional branch is taken.
    Condition,
    /// Where an indirect branch or a return goes.
    Target,
    /// How control goes on at all: traps, far transfers, divisions that fault.
    Odd,
}

/// The instruction's surroundings.
struct Context<'a, M> {
    state: &'a mut State,
    bias: LoadBias,
    memory: &'a mut M,
    /// Behind the instruction.
    end: Avma,
}

impl State {
    /// Executes the instruction at [`State::pc`], decoded in the coordinates of a module with this `bias`.
    pub fn step(&mut self, semantic: &Semantic, bias: LoadBias, memory: &mut impl Memory) -> Step {
        let end = bias.to_actual(semantic.end());
        let mut context = Context { state: self, bias, memory, end };
        let step = match context.transfer(&semantic.action) {
            Some(step) => step,
            None => context.execute(&semantic.action),
        };
        if step == Step::On {
            self.pc = end;
        }
        step
    }
}

impl<M: Memory> Context<'_, M> {
    fn read(&mut self, operand: &Operand) -> Value {
        self.state.read(operand, self.bias, self.memory)
    }

    fn write(&mut self, operand: &Operand, value: Value) {
        self.state.write(operand, self.bias, value);
    }

    /// Branches; `None` for other instructions.
    fn transfer(&mut self, action: &Action) -> Option<Step> {
        Some(match *action {
            Action::Jump(to) => self.go(self.bias.to_actual(to)),
            Action::JumpIf(condition, to) => {
                let holds = self.state.flags.condition(condition);
                self.go_if(holds, self.bias.to_actual(to))
            }
            Action::CountBranch(kind, to) => {
                let holds = self.count(kind);
                self.go_if(holds, self.bias.to_actual(to))
            }
            Action::JumpTo(operand) => match self.read(&operand).low(8) {
                Some(to) => self.go(Avma::new(to)),
                None => Step::Stuck(Stuck::Target),
            },
            Action::Call(to) => self.call(self.bias.to_actual(to)),
            Action::CallTo(operand) => match self.read(&operand).low(8) {
                Some(to) => self.call(Avma::new(to)),
                None => Step::Stuck(Stuck::Target),
            },
            Action::Return(popped) => self.ret(popped),
            Action::Stop => Step::Stuck(Stuck::Odd),
            _ => return None,
        })
    }

    fn go(&mut self, to: Avma) -> Step {
        self.state.pc = to;
        Step::Taken
    }

    fn go_if(&mut self, holds: Option<bool>, to: Avma) -> Step {
        match holds {
            Some(true) => self.go(to),
            Some(false) => Step::On,
            None => Step::Stuck(Stuck::Condition),
        }
    }

    fn call(&mut self, to: Avma) -> Step {
        self.state.push(Value::known(self.end.get()));
        self.go(to)
    }

    fn ret(&mut self, popped: u16) -> Step {
        let before = self.state.register(RSP);
        match self.state.pop(self.memory).low(8) {
            Some(to) => {
                let rsp = self.state.register(RSP).low(8).map(|rsp| rsp.wrapping_add(popped.into()));
                self.state.set_register(RSP, Value::maybe(rsp));
                self.go(Avma::new(to))
            }
            None => {
                self.state.set_register(RSP, before);
                Step::Stuck(Stuck::Target)
            }
        }
    }

    /// Whether a counting branch is taken; counts only if that is known.
    fn count(&mut self, kind: CountBranch) -> Option<bool> {
        let rcx = self.state.register(RCX);
        match kind {
            CountBranch::IfZero => return rcx.low(8).map(|v| v == 0),
            CountBranch::IfZero32 => return rcx.low(4).map(|v| v == 0),
            CountBranch::Odd => return None,
            CountBranch::Loop | CountBranch::LoopEqual | CountBranch::LoopNotEqual => {}
        }
        let left = rcx.low(8)?.wrapping_sub(1);
        let also = match kind {
            CountBranch::LoopEqual => self.state.flags.get(Flag::Zero)?,
            CountBranch::LoopNotEqual => !self.state.flags.get(Flag::Zero)?,
            _ => true,
        };
        self.state.set_register(RCX, Value::known(left));
        Some(left != 0 && also)
    }

    fn execute(&mut self, action: &Action) -> Step {
        match *action {
            Action::Move { dst, src, signed } => self.move_value(&dst, &src, signed),
            Action::LoadAddress(dst, address) => {
                // `lea` ignores segments.
                let address = restitch_x86::Address { segment: None, ..address };
                let at = self.state.address(&address, self.bias);
                self.state.write_part(dst, Value::maybe(at.map(Avma::get)));
            }
            Action::Binary(op, dst, src) => self.binary(op, &dst, &src),
            Action::Unary(op, dst) => self.unary(op, &dst),
            Action::Shift(op, dst, count) => self.shift(op, &dst, &count),
            Action::Multiply(dst, a, b) => self.multiply(dst, &a, &b),
            Action::MultiplyWide(by, signed) => self.multiply_wide(&by, signed),
            Action::Divide(by, signed) => return self.divide(&by, signed),
            Action::SetIf(condition, dst) => {
                let holds = self.state.flags.condition(condition);
                self.write(&dst, Value::maybe(holds.map(u64::from)));
            }
            Action::MoveIf(condition, dst, src) => self.move_if(condition, dst, &src),
            Action::Push(src) => {
                let value = self.read(&src);
                self.state.push(value);
            }
            Action::Pop(dst) => {
                let value = self.state.pop(self.memory);
                self.write(&dst, value);
            }
            Action::Leave => {
                let frame = self.state.register(RBP);
                self.state.set_register(RSP, frame);
                let caller = self.state.pop(self.memory);
                self.state.set_register(RBP, caller);
            }
            Action::Exchange(dst, part) => {
                let (a, b) = (self.read(&dst), self.state.read_part(part));
                self.write(&dst, b);
                self.state.write_part(part, a);
            }
            Action::ExchangeAdd(dst, part) => self.exchange_add(&dst, part),
            Action::CompareExchange(dst, part) => self.compare_exchange(&dst, part),
            Action::WidenAccumulator(size) => {
                let value = self.state.register(RAX).sign_extended(size / 2);
                self.state.write_part(Part { reg: RAX, size, high: false }, value);
            }
            Action::SignAccumulator(size) => {
                let sign = self.state.register(RAX).low(size).map(|v| v >> (8 * size - 1) & 1);
                let fill = sign.map(|sign| if sign != 0 { u64::MAX } else { 0 });
                self.state.write_part(Part { reg: RDX, size, high: false }, Value::maybe(fill));
            }
            Action::BitTest(change, dst, bit) => self.bit_test(change, &dst, &bit),
            Action::Scan(op, dst, src) => self.scan(op, dst, &src),
            Action::SwapBytes(part) => {
                let value = self.state.register(part.reg).low(part.size);
                let swapped = value.map(|v| v.swap_bytes() >> (64 - 8 * u32::from(part.size)));
                self.state.write_part(part, Value::maybe(swapped));
            }
            Action::SetCarry(value) => {
                let old = self.state.flags.get(Flag::Carry);
                self.state.flags.set(Flag::Carry, value.or_else(|| old.map(|carry| !carry)));
            }
            Action::ShiftTo(op, dst, src, count) => {
                let count = self.read(&count).low(1).map(|count| alu::shift_count(count, dst.size));
                let both = self.read(&src).low(dst.size).zip(count);
                let result = both.map(|(a, n)| alu::shift(op, a, n, dst.size, &mut Flags::default()));
                self.state.write_part(dst, Value::maybe(result));
            }
            Action::AndNot(dst, a, b) => {
                let (a, b) = (self.state.read_part(a).low(dst.size), self.read(&b).low(dst.size));
                self.with_flags(dst, a.zip(b), |(a, b), flags| alu::and_not(a, b, dst.size, flags));
            }
            Action::LowBit(op, dst, src) => {
                let a = self.read(&src).low(dst.size);
                self.with_flags(dst, a, |a, flags| alu::low_bit(op, a, dst.size, flags));
            }
            Action::ZeroHigh(dst, src, from) => {
                let (a, from) = (self.read(&src).low(dst.size), self.state.read_part(from).low(1));
                self.with_flags(dst, a.zip(from), |(a, n), flags| alu::zero_high(a, n, dst.size, flags));
            }
            Action::RepeatStore(size) => self.repeat(size, false),
            Action::RepeatMove(size) => self.repeat(size, true),
            Action::Vector(vector) => self.state.vector(&vector, self.bias, self.memory),
            Action::Opaque(effects) => self.opaque(&effects),
            _ => {}
        }
        Step::On
    }

    fn move_value(&mut self, dst: &Operand, src: &Operand, signed: bool) {
        let value = self.read(src);
        let value = if signed { value.sign_extended(src.size()) } else { value };
        self.write(dst, value);
    }

    fn binary(&mut self, op: Binary, dst: &Operand, src: &Operand) {
        let size = dst.size();
        // A register against itself: the result does not depend on its value.
        let cleared = matches!(op, Binary::Xor | Binary::Sub | Binary::Cmp) && dst == src && is_register(dst);
        // `sbb` of a register from itself depends on the carry only.
        let cleared = cleared || op == Binary::Sbb && dst == src && is_register(dst);
        let (a, b) = match cleared {
            true => (Some(0), Some(0)),
            false => (self.read(dst).low(size), self.read(src).low(size)),
        };
        let result = match (a, b) {
            (Some(a), Some(b)) => alu::binary(op, a, b, size, &mut self.state.flags),
            _ => None,
        };
        if result.is_none() {
            self.state.flags.forget(ALL_FLAGS);
        }
        if !matches!(op, Binary::Cmp | Binary::Test) {
            self.write(dst, Value::maybe(result));
        }
    }

    fn unary(&mut self, op: Unary, dst: &Operand) {
        let size = dst.size();
        let result = self.read(dst).low(size).map(|a| alu::unary(op, a, size, &mut self.state.flags));
        if result.is_none() {
            self.state.flags.forget(alu::unary_flags(op));
        }
        self.write(dst, Value::maybe(result));
    }

    fn shift(&mut self, op: Shift, dst: &Operand, count: &Operand) {
        let size = dst.size();
        let count = self.read(count).low(1).map(|count| alu::shift_count(count, size));
        let result = match (self.read(dst).low(size), count) {
            (Some(a), Some(count)) => Some(alu::shift(op, a, count, size, &mut self.state.flags)),
            (None, Some(0)) => return self.unchanged(dst),
            _ => {
                self.state.flags.forget(alu::shift_flags(op));
                None
            }
        };
        self.write(dst, Value::maybe(result));
    }

    /// Writes an operand back: 4-byte registers are zero-extended even if nothing else happens.
    fn unchanged(&mut self, dst: &Operand) {
        let value = self.read(dst);
        self.write(dst, value);
    }

    fn multiply(&mut self, dst: Part, a: &Operand, b: &Operand) {
        let size = dst.size;
        let result = match (self.read(a).low(size), self.read(b).low(size)) {
            (Some(a), Some(b)) => Some(alu::multiply(a, b, size, true, &mut self.state.flags).0),
            _ => {
                self.state.flags.forget(ALL_FLAGS);
                None
            }
        };
        self.state.write_part(dst, Value::maybe(result));
    }

    fn multiply_wide(&mut self, by: &Operand, signed: bool) {
        let size = by.size();
        let (a, b) = (self.state.register(RAX).low(size), self.read(by).low(size));
        let product = match (a, b) {
            (Some(a), Some(b)) => Some(alu::multiply(a, b, size, signed, &mut self.state.flags)),
            _ => {
                self.state.flags.forget(ALL_FLAGS);
                None
            }
        };
        if size == 1 {
            let whole = Value::maybe(product.map(|(low, high)| low | high << 8));
            return self.state.write_part(Part { reg: RAX, size: 2, high: false }, whole);
        }
        self.state.write_part(Part { reg: RAX, size, high: false }, Value::maybe(product.map(|p| p.0)));
        self.state.write_part(Part { reg: RDX, size, high: false }, Value::maybe(product.map(|p| p.1)));
    }

    fn divide(&mut self, by: &Operand, signed: bool) -> Step {
        let size = by.size();
        let (high, low) = (self.state.register(RDX).low(size), self.state.register(RAX).low(size));
        let divisor = self.read(by).low(size);
        let result = match (high, low, divisor) {
            (Some(high), Some(low), Some(by)) => match alu::divide(high, low, by, size, signed) {
                None => return Step::Stuck(Stuck::Odd),
                result => result,
            },
            _ => None,
        };
        self.state.flags.forget(ALL_FLAGS);
        self.state.write_part(Part { reg: RAX, size, high: false }, Value::maybe(result.map(|r| r.0)));
        self.state.write_part(Part { reg: RDX, size, high: false }, Value::maybe(result.map(|r| r.1)));
        Step::On
    }

    fn move_if(&mut self, condition: Condition, dst: Part, src: &Operand) {
        let (old, new) = (self.state.read_part(dst), self.read(src));
        let value = match self.state.flags.condition(condition) {
            Some(true) => new,
            Some(false) => old,
            None if old == new => old,
            None => Value::UNKNOWN,
        };
        self.state.write_part(dst, value);
    }

    /// Writes what `op` makes of operands that are known, with the flags; makes both unknown otherwise.
    fn with_flags<A>(&mut self, dst: Part, operands: Option<A>, op: impl FnOnce(A, &mut Flags) -> u64) {
        if operands.is_none() {
            self.state.flags.forget(ALL_FLAGS);
        }
        let result = operands.map(|operands| op(operands, &mut self.state.flags));
        self.state.write_part(dst, Value::maybe(result));
    }

    /// `rep stos` and `rep movs` (`moves`).
    fn repeat(&mut self, size: u8, moves: bool) {
        let [count, to, from] = [RCX, RDI, RSI].map(|reg| self.state.register(reg).low(8));
        let step = match self.state.downwards {
            Some(downwards) => {
                if downwards {
                    -i64::from(size)
                } else {
                    size.into()
                }
            }
            None => return self.repeat_unknown(moves),
        };
        let (Some(count), Some(to)) = (count, to) else { return self.repeat_unknown(moves) };
        if count > MOST_REPEATED {
            self.repeat_unknown(moves);
        } else {
            let stored = self.state.register(RAX);
            for i in 0..count {
                let by = step.wrapping_mul(i as i64) as u64;
                let value = match (moves, from) {
                    (false, _) => stored,
                    (true, Some(from)) => {
                        self.state.load(Avma::new(from.wrapping_add(by)), size, self.memory)
                    }
                    (true, None) => Value::UNKNOWN,
                };
                self.state.store(Some(Avma::new(to.wrapping_add(by))), size, value);
            }
        }
        let moved = step.wrapping_mul(count as i64) as u64;
        self.state.set_register(RDI, Value::known(to.wrapping_add(moved)));
        if moves {
            self.state.set_register(RSI, Value::maybe(from.map(|from| from.wrapping_add(moved))));
        }
        self.state.set_register(RCX, Value::known(0));
    }

    fn repeat_unknown(&mut self, moves: bool) {
        self.state.overlay.lose();
        self.state.set_register(RDI, Value::UNKNOWN);
        if moves {
            self.state.set_register(RSI, Value::UNKNOWN);
        }
        self.state.set_register(RCX, Value::known(0));
    }

    fn exchange_add(&mut self, dst: &Operand, part: Part) {
        let old = self.read(dst);
        self.binary(Binary::Add, dst, &Operand::Part(part));
        let sum = self.read(dst);
        self.state.write_part(part, old);
        if *dst == Operand::Part(part) {
            self.write(dst, sum);
        }
    }

    fn compare_exchange(&mut self, dst: &Operand, part: Part) {
        let size = dst.size();
        let accumulator = Part { reg: RAX, size, high: false };
        let (old, new) = (self.read(dst), self.state.read_part(part));
        // The address is that of before the accumulator changes.
        let expected = self.state.read_part(accumulator).low(size);
        match (expected, old.low(size)) {
            (Some(a), Some(b)) => {
                let _ = alu::binary(Binary::Cmp, a, b, size, &mut self.state.flags);
                self.write(dst, if a == b { new } else { old });
                if a != b {
                    self.state.write_part(accumulator, old);
                }
            }
            _ => {
                self.state.flags.forget(ALL_FLAGS);
                self.write(dst, Value::UNKNOWN);
                self.state.set_register(RAX, Value::UNKNOWN);
            }
        }
    }

    fn bit_test(&mut self, change: BitChange, dst: &Operand, bit: &Operand) {
        let size = dst.size();
        let (value, bit) = (self.read(dst).low(size), self.read(bit).low(1));
        let place = bit.map(|bit| 1u64 << (bit & (8 * u64::from(size) - 1)));
        // Intel keeps ZF and calls OF, SF, AF and PF undefined; AMD calls ZF undefined, too.
        self.state.flags.forget(ALL_FLAGS);
        let both = value.zip(place);
        self.state.flags.set(Flag::Carry, both.map(|(value, place)| value & place != 0));
        let changed = both.map(|(value, place)| match change {
            BitChange::Keep => value,
            BitChange::Set => value | place,
            BitChange::Reset => value & !place,
            BitChange::Complement => value ^ place,
        });
        if change != BitChange::Keep {
            self.write(dst, Value::maybe(changed));
        }
    }

    fn scan(&mut self, op: Scan, dst: Part, src: &Operand) {
        let size = dst.size;
        let result = match self.read(src).low(size) {
            Some(a) => alu::scan(op, a, size, &mut self.state.flags),
            None => {
                self.state.flags.forget(ALL_FLAGS);
                None
            }
        };
        match result {
            Some(result) => self.state.write_part(dst, Value::known(result & mask(size))),
            // Some processors leave the destination alone, upper half included.
            None => self.state.set_register(dst.reg, Value::UNKNOWN),
        }
    }

    fn opaque(&mut self, effects: &Effects) {
        match effects.stores {
            Stores::Nothing => {}
            Stores::Anywhere => self.state.overlay.lose(),
            Stores::One(address, size) => match self.state.address(&address, self.bias) {
                Some(at) => self.state.overlay.forget(at, size),
                None => self.state.overlay.lose(),
            },
        }
        self.state.vectors.forget(effects.vectors, effects.masks);
        if effects.direction {
            self.state.downwards = None;
        }
        self.state.forget_registers(effects.registers);
        self.state.flags.forget(effects.flags);
    }
}

fn is_register(operand: &Operand) -> bool {
    matches!(operand, Operand::Part(_))
}
