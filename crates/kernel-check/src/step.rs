//! What code does at one place, the kernel's rewriting of it undone.

use crate::insn::{Insn, Through};
use crate::tables::{Key, StaticCall};
use restitch_address::Svma;

/// What happens at a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    /// A branch by a static key.
    Key(Key),
    /// A static call; where it leads at the moment, if anywhere.
    StaticCall(StaticCall, Option<Svma>),
    /// A place of the function tracer.
    Trace,
    /// A return, in whatever form.
    Return,
    /// A branch through a register, in whatever form.
    Through(Through),
    /// An instruction that means itself.
    Plain(Insn),
}

/// A place, and what happens there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) at: Svma,
    pub(crate) len: u64,
    pub(crate) act: Act,
}

impl Step {
    pub(crate) fn end(&self) -> Svma {
        self.at + self.len
    }
}
