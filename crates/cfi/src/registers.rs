//! The registers of a frame.

use restitch_address::Avma;
use std::fmt;

/// A DWARF register number of x86-64 (System V ABI, figure 3.36).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u16);

impl Register {
    /// `rax`.
    pub const RAX: Self = Self(0);
    /// `rdx`.
    pub const RDX: Self = Self(1);
    /// `rcx`.
    pub const RCX: Self = Self(2);
    /// `rbx`.
    pub const RBX: Self = Self(3);
    /// `rsi`.
    pub const RSI: Self = Self(4);
    /// `rdi`.
    pub const RDI: Self = Self(5);
    /// `rbp`.
    pub const RBP: Self = Self(6);
    /// `rsp`.
    pub const RSP: Self = Self(7);
    /// `r8`.
    pub const R8: Self = Self(8);
    /// `r9`.
    pub const R9: Self = Self(9);
    /// `r10`.
    pub const R10: Self = Self(10);
    /// `r11`.
    pub const R11: Self = Self(11);
    /// `r12`.
    pub const R12: Self = Self(12);
    /// `r13`.
    pub const R13: Self = Self(13);
    /// `r14`.
    pub const R14: Self = Self(14);
    /// `r15`.
    pub const R15: Self = Self(15);
    /// The return address, that is, `rip`.
    pub const RIP: Self = Self(16);
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 17] = [
            "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15", "rip",
        ];
        match NAMES.get(usize::from(self.0)) {
            Some(name) => f.write_str(name),
            None => write!(f, "dwarf{}", self.0),
        }
    }
}

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
