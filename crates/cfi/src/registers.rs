//! The registers of a frame.

use crate::Register;
use restitch_address::Avma;

/// The registers of a frame, as far as they are known: `rax` to `r15` and `rip`, by DWARF number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    values: [Option<u64>; 17],
}

impl Registers {
    /// The value of `register`; `None` if it is not known or not one of the 17.
    pub fn get(&self, register: Register) -> Option<u64> {
        self.values.get(usize::from(register.0)).copied().flatten()
    }
    /// Sets or forgets `register`. Others than the 17 are ignored.
    pub fn set(&mut self, register: Register, value: Option<u64>) {
        if let Some(slot) = self.values.get_mut(usize::from(register.0)) {
            *slot = value;
        }
    }
    /// These registers with `register` set.
    pub fn with(mut self, register: Register, value: u64) -> Self {
        self.set(register, Some(value));
        self
    }
    /// The program counter.
    pub fn rip(&self) -> Option<Avma> {
        self.get(Register::RIP).map(Avma::new)
    }
    /// The stack pointer.
    pub fn rsp(&self) -> Option<Avma> {
        self.get(Register::RSP).map(Avma::new)
    }
}
