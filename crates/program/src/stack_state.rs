//! What is known, at one instruction of a function that was called, of places on the stack and of the return
//! address: in registers and in words of the stack.

use restitch_address::Svma;
use restitch_x86::{Address, Operand, Part, Reg};

/// Encoding number of `rsp`.
pub(crate) const RSP: Reg = Reg(4);
/// Encoding number of `rbp`.
pub(crate) const RBP: Reg = Reg(5);
/// Words that are remembered at most; code that keeps more of them is not what is looked for.
const MOST_WORDS: usize = 32;

/// A place on the stack: bytes from where `rsp` was once. Base 0: where it was at the entry, where the return
/// address is; else the low half of the address of the instruction that moved it by an unknown amount, and 1.
pub(crate) type Place = (u32, i64);

/// The word of the return address.
pub(crate) const WORD: Place = (0, 0);

/// What a register or a word of the stack holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// Anything else.
    Unknown,
    /// The address of a place on the stack.
    Stack(Place),
    /// The return address and so many bytes; `None` if it is not known how many.
    Return(Option<i64>),
    /// What a call inside the function has pushed: the address behind it.
    Code(Svma),
}

impl Value {
    /// What it is if it may be either.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Return(_), Self::Return(_)) => Self::Return(None),
            _ => Self::Unknown,
        }
    }
    /// So many bytes further on.
    pub fn plus(self, by: Option<i64>) -> Self {
        match (self, by) {
            (Self::Stack((base, at)), Some(by)) => Self::Stack((base, at.wrapping_add(by))),
            (Self::Return(Some(at)), Some(by)) => Self::Return(Some(at.wrapping_add(by))),
            (Self::Return(_), _) => Self::Return(None),
            _ => Self::Unknown,
        }
    }
    /// Whether it is made of the return address.
    pub fn is_return(self) -> bool {
        matches!(self, Self::Return(_))
    }
}

/// What is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    registers: [Value; 16],
    /// Words that hold something known, sorted. The word of the return address is always there.
    words: Vec<(Place, Value)>,
}

impl State {
    /// At the entry, right behind the call.
    pub fn at_entry() -> Self {
        let mut registers = [Value::Unknown; 16];
        registers[usize::from(RSP.0)] = Value::Stack(WORD);
        Self { registers, words: vec![(WORD, Value::Return(Some(0)))] }
    }

    /// Takes in what is known on another way here; says whether that changed anything.
    pub fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.registers.iter_mut().zip(&other.registers) {
            *mine = mine.or(*theirs);
        }
        for (place, value) in &mut self.words {
            *value = match (value.or(other.word(*place)), *place) {
                // What was written there on one way only may come back anywhere.
                (Value::Unknown, WORD) if *value != other.word(WORD) => Value::Return(None),
                (joined, _) => joined,
            };
        }
        self.words.retain(|(place, value)| *place == WORD || *value != Value::Unknown);
        *self != before
    }

    pub fn register(&self, reg: Reg) -> Value {
        self.registers[usize::from(reg.0 & 15)]
    }
    pub fn set_register(&mut self, reg: Reg, value: Value) {
        self.registers[usize::from(reg.0 & 15)] = value;
    }
    /// Forgets a set of registers, by number.
    pub fn forget(&mut self, set: u16) {
        let chosen = self.registers.iter_mut().enumerate().filter(|(i, _)| set & 1 << i != 0);
        chosen.for_each(|(_, value)| *value = Value::Unknown);
    }
    /// Where the stack pointer is.
    pub fn top(&self) -> Option<Place> {
        match self.register(RSP) {
            Value::Stack(place) => Some(place),
            _ => None,
        }
    }

    /// What the 8 bytes at `place` hold.
    pub fn word(&self, place: Place) -> Value {
        self.words.binary_search_by_key(&place, |w| w.0).map_or(Value::Unknown, |i| self.words[i].1)
    }
    /// Writes `size` bytes at `place`.
    pub fn write(&mut self, place: Place, size: u16, value: Value) {
        let (base, at) = place;
        let end = at.wrapping_add(size.into());
        for ((b, from), old) in &mut self.words {
            if *b == base && *from < end && *from > at - 8 {
                *old = if old.is_return() && (*b, *from) == WORD && size < 8 {
                    Value::Return(None)
                } else {
                    Value::Unknown
                };
            }
        }
        self.words.retain(|(place, value)| *place == WORD || *value != Value::Unknown);
        if size != 8 || value == Value::Unknown {
            return;
        }
        match self.words.binary_search_by_key(&(base, at), |w| w.0) {
            Ok(i) => self.words[i].1 = value,
            Err(i) if self.words.len() < MOST_WORDS => self.words.insert(i, ((base, at), value)),
            Err(_) => {}
        }
    }
    /// The words that hold the return address, or what was made of it, among the `size` bytes at `place`.
    pub fn returns_in(&self, place: Place, size: u16) -> impl Iterator<Item = Place> {
        let (base, at) = place;
        let end = at.wrapping_add(size.into());
        self.words
            .iter()
            .filter(move |((b, from), value)| {
                *b == base && *from < end && *from > at.wrapping_sub(8) && value.is_return()
            })
            .map(|w| w.0)
    }

    /// What an address means.
    pub fn address(&self, address: &Address) -> Value {
        if address.rip || address.segment.is_some() {
            return Value::Unknown;
        }
        let parts = [address.base, address.index].map(|r| r.map_or(Value::Unknown, |r| self.register(r)));
        match (parts, address.base, address.index) {
            ([base, _], Some(_), None) => base.plus(Some(address.disp)),
            ([_, index], None, Some(_)) if address.scale == 1 => index.plus(Some(address.disp)),
            ([a, b], ..) if a.is_return() || b.is_return() => Value::Return(None),
            _ => Value::Unknown,
        }
    }
    /// What an operand holds.
    pub fn read(&self, operand: &Operand) -> Value {
        match operand {
            Operand::Part(part) => self.part(*part),
            Operand::Memory(address, size) => match (self.address(address), size) {
                (Value::Stack(place), 8) => self.word(place),
                (Value::Stack(place), size) if self.returns_in(place, (*size).into()).next().is_some() => {
                    Value::Return(None)
                }
                _ => Value::Unknown,
            },
            Operand::Immediate(_) => Value::Unknown,
        }
    }
    fn part(&self, part: Part) -> Value {
        match self.register(part.reg) {
            whole if part.size == 8 => whole,
            Value::Return(_) => Value::Return(None),
            _ => Value::Unknown,
        }
    }
    /// Makes an operand hold `value`.
    pub fn set(&mut self, operand: &Operand, value: Value) {
        match operand {
            Operand::Part(part) if part.size >= 4 => self.set_register(part.reg, value),
            Operand::Part(part) => self.set_register(part.reg, Value::Unknown),
            Operand::Memory(address, size) => {
                if let Value::Stack(place) = self.address(address) {
                    self.write(place, (*size).into(), value);
                }
            }
            Operand::Immediate(_) => {}
        }
    }
    /// `push`.
    pub fn push(&mut self, value: Value) {
        let top = self.register(RSP).plus(Some(-8));
        self.set_register(RSP, top);
        if let Value::Stack(place) = top {
            self.write(place, 8, value);
        }
    }
    /// `pop`: what was there.
    pub fn pop(&mut self) -> Value {
        let top = self.register(RSP);
        self.set_register(RSP, top.plus(Some(8)));
        if let Value::Stack(place) = top { self.word(place) } else { Value::Unknown }
    }
}
