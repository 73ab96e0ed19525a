//! The names of general-purpose registers.

/// A general-purpose register, 0 (rax) to 15 (r15) in encoding order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u8);
