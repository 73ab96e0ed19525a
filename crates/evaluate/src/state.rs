//! The integer state of a thread.

use crate::memory::{Memory, Overlay};
use crate::value::Value;
use crate::vector_registers::Vectors;
use restitch_address::{Avma, LoadBias, Svma};
use restitch_x86::{Address, Condition, Flag, Operand, Part, Reg, Segment};

/// The direction flag in rflags.
const DIRECTION: u64 = 1 << 10;
/// Number of rsp.
pub(crate) const RSP: usize = 4;

/// Status flags, each known or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    values: u8,
    known: u8,
}

impl Flags {
    /// All flags known, from the processor's flags register.
    pub fn from_rflags(rflags: u64) -> Self {
        let set = Flag::ALL.into_iter().filter(|flag| rflags & flag.in_rflags() != 0);
        let values = set.fold(0, |values, flag| values | flag.bit());
        Self { values, known: restitch_x86::ALL_FLAGS }
    }

    /// A flag.
    pub fn get(self, flag: Flag) -> Option<bool> {
        (self.known & flag.bit() != 0).then_some(self.values & flag.bit() != 0)
    }

    /// Sets a flag, or makes it unknown.
    pub fn set(&mut self, flag: Flag, value: Option<bool>) {
        self.forget(flag.bit());
        if let Some(value) = value {
            self.known |= flag.bit();
            self.values |= if value { flag.bit() } else { 0 };
        }
    }

    /// Makes a set of flags unknown.
    pub fn forget(&mut self, set: u8) {
        self.known &= !set;
        self.values &= !set;
    }

    /// Whether a condition holds, if the flags that it needs are known.
    pub fn condition(self, condition: Condition) -> Option<bool> {
        condition.holds(|flag| self.get(flag))
    }

    /// Whether `rflags` has another value in a known flag.
    pub fn contradicts(self, rflags: u64) -> bool {
        let real = Self::from_rflags(rflags);
        (real.values ^ self.values) & self.known != 0
    }
}

/// What is known of a thread: registers, flags, segment bases and what it has stored since.
#[derive(Debug, Clone)]
pub struct State {
    /// Where it is.
    pub pc: Avma,
    registers: [Value; 16],
    pub(crate) vectors: Vectors,
    /// The direction flag: string instructions go downwards.
    pub(crate) downwards: Option<bool>,
    /// Status flags.
    pub flags: Flags,
    fs_base: Option<Avma>,
    gs_base: Option<Avma>,
    pub(crate) overlay: Overlay,
}

impl State {
    /// A thread at `pc` with all general registers (in encoding order: rax, rcx, rdx, rbx, rsp, rbp, rsi,
    /// rdi, r8 to r15), the flags register and the bases of fs and gs.
    pub fn new(pc: Avma, registers: [u64; 16], rflags: u64, fs_base: Avma, gs_base: Avma) -> Self {
        Self {
            pc,
            registers: registers.map(Value::known),
            vectors: Vectors::UNKNOWN,
            downwards: Some(rflags & DIRECTION != 0),
            flags: Flags::from_rflags(rflags),
            fs_base: Some(fs_base),
            gs_base: Some(gs_base),
            overlay: Overlay::default(),
        }
    }

    /// A thread at `pc` of which nothing is known: the paper's static look-ahead.
    pub fn blank(pc: Avma) -> Self {
        let mut overlay = Overlay::default();
        overlay.lose();
        let registers = [Value::UNKNOWN; 16];
        let (vectors, downwards, flags) = (Vectors::UNKNOWN, None, Flags::default());
        Self { pc, registers, vectors, downwards, flags, fs_base: None, gs_base: None, overlay }
    }

    /// A general register.
    pub fn register(&self, reg: Reg) -> Value {
        self.registers[usize::from(reg.0 & 15)]
    }

    pub(crate) fn set_register(&mut self, reg: Reg, value: Value) {
        self.registers[usize::from(reg.0 & 15)] = value;
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> Option<Avma> {
        self.registers[RSP].low(8).map(Avma::new)
    }

    /// Whether memory contents are still relied upon.
    pub fn knows_memory(&self) -> bool {
        !self.overlay.is_lost()
    }

    /// Whether real registers (in the same order as in [`State::new`]) or flags differ from what is known
    /// here.
    pub fn contradicts(&self, registers: &[u64; 16], rflags: u64) -> bool {
        self.flags.contradicts(rflags)
            || self.registers.iter().zip(registers).any(|(value, &real)| value.contradicts(real))
    }

    /// The `size` bytes (1 to 8) of memory at `at`, as far as they are known; those above are not.
    pub fn load(&self, at: Avma, size: u8, memory: &mut impl Memory) -> Value {
        self.overlay.load(at, size, memory)
    }

    /// Makes a set of registers (by number) unknown.
    pub(crate) fn forget_registers(&mut self, set: u16) {
        for (i, value) in self.registers.iter_mut().enumerate() {
            if set & 1 << i != 0 {
                *value = Value::UNKNOWN;
            }
        }
    }

    pub(crate) fn read_part(&self, part: Part) -> Value {
        let whole = self.register(part.reg);
        if part.high { whole.second() } else { whole.zero_extended(part.size) }
    }

    pub(crate) fn write_part(&mut self, part: Part, value: Value) {
        let old = self.register(part.reg);
        let new = match part.size {
            8 => value,
            4 => value.zero_extended(4),
            _ if part.high => old.with_second(value),
            size => old.with_low(size, value),
        };
        self.set_register(part.reg, new);
    }

    /// The address that an operand means.
    pub(crate) fn address(&self, address: &Address, bias: LoadBias) -> Option<Avma> {
        let segment = match address.segment {
            None => 0,
            Some(Segment::Fs) => self.fs_base?.get(),
            Some(Segment::Gs) => self.gs_base?.get(),
        };
        if address.rip {
            return Some(bias.to_actual(Svma::new(address.disp as u64)) + segment);
        }
        let base = address.base.map_or(Some(0), |r| self.register(r).low(8))?;
        let index = address.index.map_or(Some(0), |r| self.register(r).low(8))?;
        let scaled = index.wrapping_mul(u64::from(address.scale));
        Some(Avma::new(base.wrapping_add(scaled).wrapping_add(address.disp as u64)) + segment)
    }

    pub(crate) fn read(&self, operand: &Operand, bias: LoadBias, memory: &mut impl Memory) -> Value {
        match operand {
            Operand::Part(part) => self.read_part(*part),
            Operand::Immediate(bits) => Value::known(*bits),
            Operand::Memory(address, size) => match self.address(address, bias) {
                Some(at) => self.overlay.load(at, *size, memory),
                None => Value::UNKNOWN,
            }
            .zero_extended(*size),
        }
    }

    pub(crate) fn write(&mut self, operand: &Operand, bias: LoadBias, value: Value) {
        match operand {
            Operand::Part(part) => self.write_part(*part, value),
            Operand::Immediate(_) => {}
            Operand::Memory(address, size) => {
                let at = self.address(address, bias);
                self.store(at, *size, value);
            }
        }
    }

    /// Stores where it is known to, or forgets memory.
    pub(crate) fn store(&mut self, at: Option<Avma>, size: u8, value: Value) {
        match at {
            Some(at) => self.overlay.store(at, size, value),
            None => self.overlay.lose(),
        }
    }

    pub(crate) fn push(&mut self, value: Value) {
        let top = self.registers[RSP].low(8).map(|rsp| rsp.wrapping_sub(8));
        self.store(top.map(Avma::new), 8, value);
        self.registers[RSP] = Value::maybe(top);
    }

    pub(crate) fn pop(&mut self, memory: &mut impl Memory) -> Value {
        let Some(rsp) = self.registers[RSP].low(8) else { return Value::UNKNOWN };
        self.registers[RSP] = Value::known(rsp.wrapping_add(8));
        self.overlay.load(Avma::new(rsp), 8, memory)
    }
}
