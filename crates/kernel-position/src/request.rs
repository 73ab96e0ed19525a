//! What is wanted.

use restitch_kernel::FunctionId;

/// Which functions, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The group's name: letters, digits, `_`.
    pub name: String,
    /// Functions whose calls are led to their copies.
    pub roots: Vec<FunctionId>,
    /// Functions that are copied for those of the group that call them. Those that cannot be, stay.
    pub callees: Vec<FunctionId>,
    /// The order of their blocks.
    pub order: Order,
    /// Whether roots need a place of the function tracer. Without one they are proved, but no calls can be
    /// led to them: for measures of what can be copied.
    pub needs_trace_sites: bool,
}

/// The order of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As they are. What the compiler has parted off as rarely executed is far behind.
    Kept,
    /// The last one of each part first, but for entries: for tests.
    Reversed,
}
