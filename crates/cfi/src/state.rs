//! What the unwinder has to know at one instruction.

use crate::expression::may_read;
use crate::registers::Register;
use restitch_address::Svma;
use std::sync::Arc;

/// The bytes of a DWARF expression.
pub type ExpressionBytes = Arc<[u8]>;

/// How to find the canonical frame address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// A register plus bytes.
    RegisterOffset {
        /// The register.
        register: Register,
        /// What to add to it, in bytes.
        offset: i64,
    },
    /// The value of an expression.
    Expression(ExpressionBytes),
}

/// How to find the caller's value of a register (DWARF 5, section 6.4.1). Offsets are in bytes, unfactored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RegisterRule {
    /// Cannot be found. For the return address: this is the outermost frame.
    Undefined,
    /// It has not been changed.
    SameValue,
    /// It is stored at CFA + offset.
    Offset(i64),
    /// It *is* CFA + offset.
    ValOffset(i64),
    /// It is in another register.
    Register(Register),
    /// It is stored at the address that the expression gives (the CFA is pushed first).
    Expression(ExpressionBytes),
    /// It is the value that the expression gives (the CFA is pushed first).
    ValExpression(ExpressionBytes),
}

/// The complete unwind state at an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrameState {
    /// The canonical frame address.
    pub cfa: Cfa,
    /// The registers that have a rule, sorted by register. A register without one is as good as unchanged.
    pub registers: Vec<(Register, RegisterRule)>,
    /// Bytes of outgoing arguments that a landing pad must find popped (`DW_CFA_GNU_args_size`).
    pub args_size: u64,
    /// The column that holds the return address: 16 ([`Register::RIP`]) in all ordinary code.
    pub return_address: Register,
}

/// A state and where it begins to hold; it holds up to the next row, or the end of the entry's range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Row {
    /// First address at which the state holds.
    pub start: Svma,
    /// The state. Rows that are equal may share it.
    pub state: Arc<FrameState>,
}

/// The canonical frame address from a place on, up to the next one's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrameAddress {
    /// First address at which it holds.
    pub start: Svma,
    /// Where the frame is.
    pub cfa: Cfa,
}

impl FrameState {
    /// The state at the first instruction of an ordinary function: CFA = rsp + 8, return address at CFA - 8.
    pub fn at_entry() -> Self {
        Self {
            cfa: Cfa::RegisterOffset { register: Register::RSP, offset: 8 },
            registers: vec![(Register::RIP, RegisterRule::Offset(-8))],
            args_size: 0,
            return_address: Register::RIP,
        }
    }

    /// The rule of `register`, if it has one.
    pub fn rule(&self, register: Register) -> Option<&RegisterRule> {
        let i = self.registers.binary_search_by_key(&register, |(r, _)| *r).ok()?;
        Some(&self.registers[i].1)
    }

    /// The same frame while `rsp` is lower by `bytes` than where this state was made for (inserted code has
    /// pushed something, or raised the stack if negative). Only a CFA that is based on `rsp` changes. `None`
    /// if an expression or a register rule reads `rsp`, or if the new offset overflows.
    pub fn shifted_stack(&self, bytes: i64) -> Option<Self> {
        let reads_rsp = |rule: &RegisterRule| match rule {
            RegisterRule::Register(r) => *r == Register::RSP,
            RegisterRule::Expression(e) | RegisterRule::ValExpression(e) => may_read(e, Register::RSP),
            _ => false,
        };
        let same_rsp = self.rule(Register::RSP) == Some(&RegisterRule::SameValue);
        if same_rsp || self.registers.iter().any(|(_, rule)| reads_rsp(rule)) {
            return None;
        }
        let cfa = match &self.cfa {
            Cfa::RegisterOffset { register, offset } if *register == Register::RSP => {
                Cfa::RegisterOffset { register: *register, offset: offset.checked_add(bytes)? }
            }
            Cfa::Expression(e) if may_read(e, Register::RSP) => return None,
            other => other.clone(),
        };
        Some(Self { cfa, ..self.clone() })
    }

    /// Whether an expression of the state reads the program counter, as those of PLT stubs do. Such code may
    /// not be described by the same state at another address.
    pub fn depends_on_position(&self) -> bool {
        let reads = |e: &ExpressionBytes| may_read(e, Register::RIP);
        matches!(&self.cfa, Cfa::Expression(e) if reads(e))
            || matches!(&self.cfa, Cfa::RegisterOffset { register, .. } if *register == Register::RIP)
            || self.registers.iter().any(|(_, rule)| match rule {
                RegisterRule::Expression(e) | RegisterRule::ValExpression(e) => reads(e),
                RegisterRule::Register(r) => *r == Register::RIP,
                _ => false,
            })
    }
}
